//! Random histories against the rules every history keeps: one answer per request, order, bounds, members only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shared::{
    CacheChange, CacheEvent, LoadReport, RequestId, StartGeometry, Tier, Timestamp, WorkerEvent,
    WorkerRank,
};

use super::{Action, Router};
use crate::config::RouterConfig;
use crate::records::PlacementKind;
use crate::role::Role;
use crate::snapshot::RouterSnapshot;
use crate::testing::{Random, names, rank, request};

const FLASH: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };
const DECODE_RUNNING_MAX: u32 = 3;
const WAITING_MAX: usize = 6;
const ENTRIES_MAX: usize = 150;
const DECISIONS_MAX: usize = 8;
const WORKERS: usize = 9;
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
    running: BTreeMap<u128, WorkerRank>,
    answers: BTreeMap<u128, u32>,
    history: Vec<Action>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut config = RouterConfig::with_defaults(FLASH);
        config.seed = seed;
        config.index_entries_max = ENTRIES_MAX;
        config.admission.waiting_max = WAITING_MAX;
        config.admission.decode_running_max = DECODE_RUNNING_MAX;
        config.admission.prefill_running_max = 2;
        config.records.decisions_max = DECISIONS_MAX;
        Self {
            router: Router::new(config).expect("valid settings"),
            random: Random::new(seed),
            now: Timestamp(0),
            members: BTreeMap::new(),
            sequences: BTreeMap::new(),
            next_id: 0,
            waiting: BTreeSet::new(),
            running: BTreeMap::new(),
            answers: BTreeMap::new(),
            history: Vec::new(),
        }
    }

    fn role(worker: u32) -> Role {
        [Role::Decode, Role::Prefill, Role::Store][usize::try_from(worker % 3).expect("small")]
    }

    fn step(&mut self) {
        self.now = self.now.after(Duration::from_micros(self.random.next() % 200_000));
        let worker = u32::try_from(self.random.below(WORKERS)).expect("small");
        match self.random.below(20) {
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
        self.members.insert(worker, role);
        self.sequences.entry(worker).or_insert(0);
        let actions = self.router.worker_joined(worker, role, self.now).expect("room");
        self.take(actions);
    }

    fn leave(&mut self, worker: WorkerRank) {
        self.members.remove(&worker);
        self.running.retain(|_, decode| *decode != worker);
        let actions = self.router.worker_left(worker, self.now);
        self.take(actions);
    }

    fn submit(&mut self) {
        let id = self.next_id;
        self.next_id += 1;
        let tokens = *self.random.pick(&LENGTHS);
        let chain = u32::try_from(self.random.below(4)).expect("small");
        let mut request = request(id, tokens, &names(chain, tokens / 128));
        let patience = Duration::from_micros(self.random.next() % 3_000_000);
        request.deadline = self.random.chance(2).then(|| self.now.after(patience));
        self.waiting.insert(id);
        let actions = self.router.submit(request, self.now);
        self.take(actions);
    }

    /// Ends a request: mostly a running one, sometimes one that waits, is lost or was refused.
    fn finish(&mut self) {
        let running: Vec<u128> = self.running.keys().copied().collect();
        let id = if running.is_empty() || self.random.chance(6) {
            u128::from(self.random.next()) % (self.next_id + 1)
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
        *sequence += u64::from(self.random.chance(10));
        let event_sequence = *sequence;
        *sequence += 1;
        let chain = u32::try_from(self.random.below(4)).expect("small");
        let held = names(chain, u32::try_from(self.random.below(62)).expect("small"));
        let tier =
            if Self::role(worker.worker.0) == Role::Store { Tier::Host } else { Tier::Device };
        let change = match self.random.below(8) {
            0 => CacheChange::Cleared,
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
            waiting: 0,
            pending_rows: u64::from(running) * (self.random.next() % 4_000),
            slots_available: 10,
            slots: 20,
            rows_per_second: f64::from(u32::try_from(self.random.below(5_000)).expect("small")),
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
        for action in &actions {
            match action {
                Action::Place { id, placement } => {
                    let oldest = self.waiting.first().copied();
                    assert_eq!(oldest, Some(id.0), "first in, first out, and answered once");
                    self.waiting.remove(&id.0);
                    *self.answers.entry(id.0).or_default() += 1;
                    assert_eq!(self.members.get(&placement.decode), Some(&Role::Decode));
                    let prefill = placement.prefill.map(|worker| self.members.get(&worker));
                    assert!(prefill.is_none_or(|role| role == Some(&Role::Prefill)));
                    assert_eq!(placement.expected_cached_tokens % 128, 0);
                    self.running.insert(id.0, placement.decode);
                }
                Action::Refuse { id, .. } => {
                    assert!(self.waiting.remove(&id.0), "answered once");
                    *self.answers.entry(id.0).or_default() += 1;
                }
                Action::Resync { worker } => assert!(self.members.contains_key(worker)),
            }
        }
        self.history.extend(actions);
    }

    fn check(&self) {
        let snapshot = self.router.snapshot(self.now);
        assert_eq!(snapshot.waiting, self.waiting.len());
        assert_eq!(snapshot.running, self.running.len());
        assert_eq!(snapshot.workers.len(), self.members.len());
        assert!(snapshot.waiting <= WAITING_MAX);
        assert!(snapshot.index_entries <= ENTRIES_MAX);
        assert!(self.router.decisions().count() <= DECISIONS_MAX);
        let held: usize = snapshot.workers.iter().map(|worker| worker.index_entries).sum();
        assert_eq!(held, snapshot.index_entries);
        for worker in &snapshot.workers {
            let Some(load) = worker.load.filter(|_| worker.role == Role::Decode) else { continue };
            let expected = self.running.values().filter(|decode| **decode == worker.worker).count();
            assert_eq!(usize::try_from(load.placed), Ok(expected));
            assert!(load.placed <= DECODE_RUNNING_MAX);
        }
    }

    /// Ends everything: with workers there and running requests ending, every request gets its answer.
    fn settle(&mut self) {
        self.join(rank(0), Role::Decode);
        self.join(rank(1), Role::Prefill);
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
    let counts: [(&str, Count); 9] = [
        ("overloaded", |it| it.refused.overloaded),
        ("deadline", |it| it.refused.deadline),
        ("no worker", |it| it.refused.no_worker),
        ("withdrawn", |it| it.withdrawn),
        ("lost with worker", |it| it.lost_with_worker),
        ("finished unknown", |it| it.finished_unknown),
        ("resyncs", |it| it.resyncs),
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
