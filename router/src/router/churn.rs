//! Random histories against the rules every history keeps: one answer per request, bounds, members only, nothing new for
//! those that drain.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shared::{
    CacheChange, CacheEvent, LegOutcome, LoadReport, Placement, Priority, Random, RangeDigests,
    RangeSet, RequestId, SessionKey, StartGeometry, StartReport, TenantId, Tier, Timestamp,
    WindowSource, WorkerEvent, WorkerRank, WorkerRates,
};

use super::{Action, Router};
use crate::config::RouterConfig;
use crate::life::{Breaker, DrainSource, Steer};
use crate::policy::Policy;
use crate::records::PlacementKind;
use crate::role::Role;
use crate::snapshot::RouterSnapshot;
use crate::testing::{names, rank, request};

const FLASH: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };
const DECODE_RUNNING_MAX: u32 = 3;
const WAITING_MAX: usize = 6;
const ENTRIES_MAX: usize = 150;
const DECISIONS_MAX: usize = 8;
const WORKERS: usize = 9;
const TENANTS: [&str; 4] = ["acme", "b", "c", "d"];
const LENGTHS: [u32; 9] = [1, 127, 128, 267, 268, 408, 1_000, 4_000, 7_948];

struct World {
    router: Router,
    random: Random,
    now: Timestamp,
    members: BTreeMap<WorkerRank, Role>,
    sequences: BTreeMap<WorkerRank, u64>,
    next_id: u128,
    /// Requests without an answer.
    waiting: BTreeSet<u128>,
    running: BTreeMap<u128, Placement>,
    /// What each request asked not to be given.
    excluded: BTreeMap<u128, Vec<WorkerRank>>,
    /// Workers whose drain was told and is not over.
    draining: BTreeMap<WorkerRank, Timestamp>,
    answers: BTreeMap<u128, u32>,
    history: Vec<Action>,
    tenants: &'static [&'static str],
}

impl World {
    fn new(seed: u64) -> Self {
        let mut config = RouterConfig::with_defaults(FLASH);
        config.seed = seed;
        config.index_entries_max = ENTRIES_MAX;
        config.admission.waiting_max = WAITING_MAX;
        config.admission.decode_running_max = DECODE_RUNNING_MAX;
        config.admission.prefill_running_max = 2;
        config.admission.look_ahead_max = 2;
        config.admission.priority_passes_max = 3;
        config.admission.tenants_max = 2;
        config.tenant_weights.insert(TenantId(TENANTS[0].into()), 3);
        config.records.decisions_max = DECISIONS_MAX;
        config.life.failures_max = 2;
        config.life.open_min = Duration::from_millis(300);
        config.life.wedged_after = Duration::from_millis(900);
        config.life.drain_max = Duration::from_secs(2);
        let policies = u64::try_from(Policy::ALL.len()).expect("few");
        let policy = usize::try_from(seed % policies).expect("few");
        config.policy = Policy::ALL[policy];
        Self {
            router: Router::new(config).expect("valid settings"),
            random: Random::new(seed),
            now: Timestamp(0),
            members: BTreeMap::new(),
            sequences: BTreeMap::new(),
            next_id: 0,
            waiting: BTreeSet::new(),
            running: BTreeMap::new(),
            excluded: BTreeMap::new(),
            draining: BTreeMap::new(),
            answers: BTreeMap::new(),
            history: Vec::new(),
            tenants: if seed.is_multiple_of(4) { &TENANTS[..1] } else { &TENANTS },
        }
    }

    fn role(worker: u32) -> Role {
        [Role::Decode, Role::Prefill, Role::Store][usize::try_from(worker % 3).expect("small")]
    }

    fn step(&mut self) {
        self.now = self.now.after(Duration::from_micros(self.random.word() % 200_000));
        let worker = u32::try_from(self.random.below(WORKERS)).expect("small");
        match self.random.below(29) {
            20..=22 => self.outcome(),
            23 => self.drain(rank(worker)),
            26 | 27 => self.undrain_one(),
            28 => self.router.view_lost(rank(worker)),
            24 | 25 => self.submit(),
            0 => self.leave(rank(worker)),
            1 | 2 => self.join(rank(worker), Self::role(worker)),
            3..=8 => self.submit(),
            9..=12 => self.finish(),
            13..=15 => self.cache_event(rank(worker)),
            16 | 17 => self.load_report(rank(worker)),
            _ => self.tick(),
        }
        self.check();
    }

    fn join(&mut self, worker: WorkerRank, role: Role) {
        // An operator's word waits for its return.
        self.members.insert(worker, role);
        self.sequences.entry(worker).or_insert(0);
        let actions = self.router.worker_joined(worker, role, self.now).expect("room");
        self.take(actions);
    }

    fn leave(&mut self, worker: WorkerRank) {
        self.forget(worker);
        let actions = self.router.worker_left(worker, self.now);
        self.take(actions);
    }

    fn forget(&mut self, worker: WorkerRank) {
        self.members.remove(&worker);
        self.running.retain(|_, placement| placement.decode != worker);
    }

    fn drain(&mut self, worker: WorkerRank) {
        let until = self.now.after(Duration::from_millis(self.random.word() % 1_500));
        if self.members.get(&worker).is_some_and(|role| *role != Role::Store) {
            let end = self.draining.entry(worker).or_insert(until);
            *end = until.min(*end);
        }
        let actions = self.router.worker_draining(worker, (DrainSource::Operator, until), self.now);
        self.take(actions);
    }

    /// Oftener than workers are drained, so that few are.
    fn undrain_one(&mut self) {
        let draining: Vec<WorkerRank> = self.draining.keys().copied().collect();
        if !draining.is_empty() {
            let worker = *self.random.pick(&draining);
            self.undrain(worker);
        }
    }

    fn undrain(&mut self, worker: WorkerRank) {
        // Who is away is not known by name.
        if self.members.contains_key(&worker) {
            self.draining.remove(&worker);
        }
        let by = DrainSource::Operator;
        let actions = self.router.worker_undrained(worker, by, self.now);
        self.take(actions);
    }

    /// Tells how a running request fares, or something about one that is over.
    fn outcome(&mut self) {
        let running: Vec<u128> = self.running.keys().copied().collect();
        let (id, worker, prefill) = if running.is_empty() || self.random.one_in(8) {
            (u128::from(self.random.word()) % (self.next_id + 1), rank(self.random_worker()), None)
        } else {
            let id = *self.random.pick(&running);
            (id, self.running[&id].decode, self.running[&id].prefill)
        };
        let prefill =
            if self.random.one_in(3) { Some(rank(self.random_worker())) } else { prefill };
        let outcome = match self.random.below(4) {
            0 | 1 => LegOutcome::Started(StartReport {
                cached_tokens: u32::try_from(self.random.below(60)).expect("small") * 128,
                replayed_tokens: 0,
                window_source: WindowSource::Cold,
                exact: true,
                bytes_fetched: 0,
                prefill,
            }),
            2 => LegOutcome::Completed { tokens: 40 },
            _ => LegOutcome::Failed,
        };
        let actions = self.router.outcome(RequestId(id), worker, outcome, self.now);
        self.take(actions);
    }

    fn random_worker(&mut self) -> u32 {
        u32::try_from(self.random.below(WORKERS)).expect("small")
    }

    fn submit(&mut self) {
        let id = self.next_id;
        self.next_id += 1;
        let tokens = *self.random.pick(&LENGTHS);
        let chain = u32::try_from(self.random.below(4)).expect("small");
        let mut request = request(id, tokens, &names(chain, tokens / 128));
        let patience = Duration::from_micros(self.random.word() % 3_000_000);
        request.deadline = self.random.one_in(2).then(|| self.now.after(patience));
        request.priority = *self.random.pick(&Priority::ALL);
        request.tenant = TenantId((*self.random.pick(self.tenants)).into());
        request.session = self.random.one_in(2).then(|| SessionKey(self.random.word() % 5));
        request.excluded = (0..self.random.below(3)).map(|_| rank(self.random_worker())).collect();
        self.excluded.insert(id, request.excluded.clone());
        self.waiting.insert(id);
        let actions = self.router.submit(request, self.now);
        self.take(actions);
    }

    /// Ends a request: mostly a running one, sometimes one that waits, is lost or was refused.
    fn finish(&mut self) {
        let running: Vec<u128> = self.running.keys().copied().collect();
        let id = if running.is_empty() || self.random.one_in(6) {
            u128::from(self.random.word()) % (self.next_id + 1)
        } else {
            *self.random.pick(&running)
        };
        self.running.remove(&id);
        if self.waiting.remove(&id) {
            self.answers.insert(id, 1);
        }
        let actions = self.router.finished(RequestId(id), self.now);
        self.take(actions);
    }

    fn cache_event(&mut self, worker: WorkerRank) {
        let sequence = self.sequences.entry(worker).or_insert(0);
        *sequence += u64::from(self.random.one_in(10));
        let event_sequence = *sequence;
        *sequence += 1;
        let chain = u32::try_from(self.random.below(4)).expect("small");
        let held = names(chain, u32::try_from(self.random.below(62)).expect("small"));
        let tier =
            if Self::role(worker.worker.0) == Role::Store { Tier::Host } else { Tier::Device };
        let change = match self.random.below(8) {
            0 if self.random.one_in(2) => CacheChange::Cleared,
            0 if self.random.one_in(3) => CacheChange::RangesCleared(RangeSet::ALL),
            0 => CacheChange::Digests(RangeDigests::default()),
            1 | 2 => CacheChange::Removed { tier, names: held },
            _ => CacheChange::Stored { tier, names: held },
        };
        let event = CacheEvent { worker, incarnation: 1, sequence: event_sequence, change };
        let actions = self.router.worker_event(&WorkerEvent::Cache(event), self.now);
        self.take(actions);
    }

    fn load_report(&mut self, worker: WorkerRank) {
        let running = u32::try_from(self.random.below(4)).expect("small");
        let report = LoadReport {
            running,
            pending_rows: u64::from(running) * (self.random.word() % 4_000),
            rows_per_second: f64::from(u32::try_from(self.random.below(5_000)).expect("small")),
            progress: self.random.word() % 3,
            rates: WorkerRates {
                step_ns: self.random.word() % 30_000_000,
                restore_peer_ns: self.random.word() % 2 * 700_000,
                ..WorkerRates::default()
            },
            ..LoadReport::default()
        };
        let event = WorkerEvent::Load { worker, report };
        let actions = self.router.worker_event(&event, self.now);
        self.take(actions);
    }

    fn tick(&mut self) {
        let actions = self.router.tick(self.now);
        self.take(actions);
        let due = self.router.next_deadline();
        assert!(due.is_none_or(|at| self.now < at), "nothing stays due after a tick");
        assert_eq!(self.router.tick(self.now), [], "a second tick has nothing to do");
    }

    fn take(&mut self, actions: Vec<Action>) {
        // Whatever was called may have looked at the time, and forgotten what runs on workers whose drain is over.
        let (router, now, draining) = (&self.router, self.now, &self.draining);
        self.running.retain(|id, placement| {
            let is_over = draining.get(&placement.decode).is_some_and(|until| *until <= now);
            !is_over || router.reservation(RequestId(*id)).is_some()
        });
        for action in &actions {
            match action {
                Action::Place { id, placement } => {
                    assert!(self.waiting.remove(&id.0), "answered once");
                    *self.answers.entry(id.0).or_default() += 1;
                    assert_eq!(self.members.get(&placement.decode), Some(&Role::Decode));
                    let prefill = placement.prefill.map(|worker| self.members.get(&worker));
                    assert!(prefill.is_none_or(|role| role == Some(&Role::Prefill)));
                    assert_eq!(placement.expected_cached_tokens % 128, 0);
                    let used = [Some(placement.decode), placement.prefill];
                    assert!(used.iter().flatten().all(|it| !self.draining.contains_key(it)));
                    let excluded = &self.excluded[&id.0];
                    let mut others = self.members.iter().filter(|(worker, role)| {
                        **role == Role::Decode && !self.draining.contains_key(worker)
                    });
                    let nobody_else = others.all(|(worker, _)| excluded.contains(worker));
                    assert!(nobody_else || !excluded.contains(&placement.decode));
                    self.running.insert(id.0, placement.clone());
                }
                Action::Refuse { id, .. } => {
                    assert!(self.waiting.remove(&id.0), "answered once");
                    *self.answers.entry(id.0).or_default() += 1;
                }
                Action::Resync { worker, .. } => assert!(self.members.contains_key(worker)),
            }
        }
        self.history.extend(actions);
    }

    fn check(&self) {
        self.check_cold();
        let snapshot = self.router.snapshot(self.now);
        assert_eq!(snapshot.waiting, self.waiting.len());
        assert_eq!(snapshot.running, self.running.len());
        assert_eq!(snapshot.workers.len(), self.members.len());
        assert!(snapshot.waiting <= WAITING_MAX);
        assert_eq!(snapshot.waiting_by_class.iter().sum::<usize>(), snapshot.waiting);
        assert!(
            snapshot.tenants_waiting <= snapshot.tenants && snapshot.tenants <= 2 + TENANTS.len()
        );
        assert!(snapshot.index_entries <= ENTRIES_MAX);
        assert!(self.router.decisions().count() <= DECISIONS_MAX);
        let held: usize = snapshot.workers.iter().map(|worker| worker.index_entries).sum();
        assert_eq!(held, snapshot.index_entries);
        for worker in &snapshot.workers {
            let Some(load) = worker.load.filter(|_| worker.role == Role::Decode) else { continue };
            let expected = self.running.values().filter(|it| it.decode == worker.worker).count();
            assert_eq!(usize::try_from(load.placed), Ok(expected));
            assert!(load.placed <= DECODE_RUNNING_MAX);
        }
    }

    /// Ends everything: with workers there and running requests ending, every request gets its answer.
    fn settle(&mut self) {
        for (worker, role) in [(rank(0), Role::Decode), (rank(1), Role::Prefill)] {
            self.join(worker, role);
            self.undrain(worker);
        }
        let mut rounds = 0;
        while !(self.waiting.is_empty() && self.running.is_empty()) {
            rounds += 1;
            assert!(rounds < 1_000, "requests are stuck: {:?}", self.waiting);
            let ids: Vec<u128> = self.running.keys().copied().collect();
            for id in ids {
                self.running.remove(&id);
                let actions = self.router.finished(RequestId(id), self.now);
                self.take(actions);
            }
            if self.running.is_empty() && !self.waiting.is_empty() {
                let due = self.router.next_deadline();
                self.now = due.expect("what waits for time says when").max(self.now);
            }
            self.tick();
            self.check();
        }
        assert_eq!(self.answers.len(), usize::try_from(self.next_id).expect("small"));
        assert!(self.answers.values().all(|&count| count == 1));
        let snapshot = self.router.snapshot(self.now);
        assert!(snapshot.workers.iter().all(|it| it.load.is_none_or(|load| load.placed == 0)));
        self.check_breakers();
    }

    /// Who has not served enough is counted, not looked for.
    fn check_cold(&self) {
        let lives = &self.router.lives;
        let all = [Role::Decode, Role::Prefill].map(|role| lives.of_role(role).iter());
        let cold = all.into_iter().flatten().any(|(_, life)| !lives.is_warm(life));
        assert_eq!(lives.any_cold(), cold);
    }

    /// Nothing runs: no request probes a worker, so that the next one may.
    fn check_breakers(&self) {
        let (lives, loads) = (&self.router.lives, &self.router.loads);
        let decodes = loads.decode().zip(lives.of_role(Role::Decode));
        let prefills = loads.prefill().zip(lives.of_role(Role::Prefill));
        for (member, (_, life)) in decodes.chain(prefills) {
            let breaker = lives.snapshot(member.0, self.now).breaker;
            let steer = lives.steer(member, life, &[], self.now);
            assert!(breaker == Breaker::Open || steer != Some(Steer::Broken), "{}", member.0);
        }
    }
}

fn history(seed: u64, steps: usize) -> (Vec<Action>, RouterSnapshot) {
    println!("seed {seed}");
    let mut world = World::new(seed);
    for _ in 0..steps {
        world.step();
    }
    world.settle();
    (world.history, world.router.snapshot(world.now))
}

#[test]
fn every_history_keeps_the_rules() {
    let snapshots: Vec<_> = (0..400).map(|seed| history(seed, 400).1).collect();
    // The histories are worth something only if everything happens in them.
    let sum = |count: &dyn Fn(&RouterSnapshot) -> u64| snapshots.iter().map(count).sum::<u64>();
    for kind in PlacementKind::ALL {
        let placed = sum(&|snapshot| snapshot.placed.of(kind));
        assert!(100 < placed, "{} placements: {placed}", kind.as_str());
    }
    type Count = fn(&RouterSnapshot) -> u64;
    let counts: [(&str, Count); 20] = [
        ("overloaded", |it| it.refused.overloaded),
        ("over share", |it| it.refused.over_share),
        ("overtaken", |it| it.overtaken),
        ("breakers opened", |it| it.life.breakers_opened),
        ("probes", |it| it.life.probes),
        ("wedged", |it| it.life.wedged),
        ("cut off", |it| it.life.drains_cut_off),
        ("overridden", |it| it.life.overridden),
        ("warm-up passed", |it| it.life.warm_up_passed),
        ("predictions", |it| it.predictions.requests),
        ("deadline", |it| it.refused.deadline),
        ("no worker", |it| it.refused.no_worker),
        ("withdrawn", |it| it.withdrawn),
        ("lost with worker", |it| it.lost_with_worker),
        ("finished unknown", |it| it.finished_unknown),
        ("digests asked for", |it| it.resyncs.digests),
        ("ranges asked for", |it| it.resyncs.ranges),
        ("everything asked for", |it| it.resyncs.whole),
        ("gaps", |it| it.index.gaps),
        ("dropped full", |it| it.index.blocks_dropped_full),
    ];
    for (name, count) in counts {
        assert!(100 < sum(&count), "{name}: {}", sum(&count));
    }
}

#[test]
fn equal_histories_give_equal_actions() {
    for seed in [1, 77, 4_242] {
        assert_eq!(history(seed, 600), history(seed, 600), "seed {seed}");
    }
}
