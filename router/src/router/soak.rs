//! Long churn: workers come and go, requests come, run and end, blocks are told, removed and lost. Nothing of it is kept.

use std::fs;
use std::time::Duration;

use shared::{
    CacheChange, CacheEvent, LegOutcome, Random, RequestId, SessionKey, StartGeometry, StartReport,
    TenantId, Tier, Timestamp, WindowSource, WorkerEvent, WorkerRank,
};

use super::{Action, Router};
use crate::config::RouterConfig;
use crate::role::Role;
use crate::testing::{names, rank, request};

const FLASH: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };
const WORKERS: u32 = 24;
const REQUESTS_PER_ROUND: u32 = 1_500;
const BLOCKS: u32 = 24;
/// Rounds until every table has grown to its largest and been given back once or more.
const ROUNDS_BEFORE: u32 = 12;
const ROUNDS: u32 = 60;
/// What the memory of a process moves by itself: pages of the allocator's free lists.
const SLACK_BYTES: u64 = 1 << 20;

/// Bytes of this process that lie in memory. Linux.
fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

fn role(worker: u32) -> Role {
    [Role::Decode, Role::Decode, Role::Prefill, Role::Store][usize::try_from(worker % 4).unwrap()]
}

struct Soak {
    router: Router,
    random: Random,
    now: Timestamp,
    next_id: u128,
    /// Incarnation of all workers: they start anew in each round.
    round: u64,
    sequences: [u64; 24],
}

impl Soak {
    fn new() -> Self {
        let mut config = RouterConfig::with_defaults(FLASH);
        config.seed = 3;
        config.admission.waiting_max = 200;
        config.records.decisions_max = 500;
        config.index_entries_max = 20_000;
        config.index_drive_blocks_max = 20_000;
        let router = Router::new(config).unwrap();
        let now = Timestamp(0);
        Self { router, random: Random::new(3), now, next_id: 0, round: 0, sequences: [0; 24] }
    }

    fn round(&mut self) {
        self.round += 1;
        self.sequences = [0; 24];
        for worker in 0..WORKERS {
            let _actions = self.router.worker_joined(rank(worker), role(worker), self.now).unwrap();
        }
        let first = self.next_id;
        let mut placed = Vec::new();
        for number in 0..REQUESTS_PER_ROUND {
            self.now = self.now.after(Duration::from_millis(3));
            placed.extend(self.submit(number));
            self.tell(number);
            if self.random.one_in(2) && !placed.is_empty() {
                let index = self.random.below(placed.len());
                self.end(placed.swap_remove(index));
            }
        }
        for worker in 0..WORKERS {
            let _actions = self.router.worker_left(rank(worker), self.now);
        }
        for id in first..self.next_id {
            let _actions = self.router.finished(RequestId(id), self.now);
        }
        // Whatever waits for time has had it.
        self.now = self.now.after(Duration::from_secs(3_600));
        let _actions = self.router.tick(self.now);
    }

    fn submit(&mut self, number: u32) -> Vec<(u128, WorkerRank)> {
        let id = self.next_id;
        self.next_id += 1;
        // A third follows an earlier one of the round; all others are new to the world.
        let chain = if self.random.one_in(3) { number / 2 } else { number };
        let chain = u32::try_from(self.round).unwrap() * REQUESTS_PER_ROUND + chain;
        let mut request = request(id, BLOCKS * 128 + 60, &names(chain, BLOCKS));
        request.tenant = TenantId(format!("tenant {}", id % 5_000).into());
        request.session = self.random.one_in(2).then(|| SessionKey(self.random.word()));
        request.deadline = Some(self.now.after(Duration::from_secs(5)));
        let actions = self.router.submit(request, self.now);
        placements(actions)
    }

    fn tell(&mut self, number: u32) {
        let worker = u32::try_from(self.random.below(24)).unwrap();
        let chain = u32::try_from(self.round).unwrap() * REQUESTS_PER_ROUND + number;
        let tier = match role(worker) {
            Role::Store if self.random.one_in(2) => Tier::Disk,
            Role::Store => Tier::Host,
            Role::Decode | Role::Prefill => Tier::Device,
        };
        let held = names(chain, BLOCKS);
        let change = if self.random.one_in(3) {
            CacheChange::Removed { tier, names: held }
        } else {
            CacheChange::Stored { tier, names: held }
        };
        let sequence = &mut self.sequences[usize::try_from(worker).unwrap()];
        // Now and then one is lost.
        *sequence += 1 + u64::from(self.random.one_in(50));
        let event = CacheEvent {
            worker: rank(worker),
            incarnation: self.round,
            sequence: *sequence - 1,
            change,
        };
        let _actions = self.router.worker_event(&WorkerEvent::Cache(event), self.now);
    }

    fn end(&mut self, (id, worker): (u128, WorkerRank)) {
        let report = StartReport {
            cached_tokens: 128,
            replayed_tokens: 0,
            window_source: WindowSource::Cold,
            exact: true,
            bytes_fetched: 0,
            prefill: None,
        };
        let last = match self.random.below(3) {
            0 => LegOutcome::Failed,
            _ => LegOutcome::Completed { tokens: 9 },
        };
        for outcome in [LegOutcome::Started(report), last] {
            let _actions = self.router.outcome(RequestId(id), worker, outcome, self.now);
        }
        let _actions = self.router.finished(RequestId(id), self.now);
    }
}

fn placements(actions: Vec<Action>) -> Vec<(u128, WorkerRank)> {
    let placed = actions.into_iter().filter_map(|action| match action {
        Action::Place { id, placement } => Some((id.0, placement.decode)),
        Action::Refuse { .. } | Action::Resync { .. } => None,
    });
    placed.collect()
}

#[test]
fn after_long_churn_memory_is_where_it_was() {
    let mut soak = Soak::new();
    let mut base = 0;
    for round in 0..ROUNDS {
        soak.round();
        let snapshot = soak.router.snapshot(soak.now);
        let left = (snapshot.waiting, snapshot.running, snapshot.workers.len());
        assert_eq!((left, snapshot.index_entries), ((0, 0, 0), 0), "round {round}");
        if round == ROUNDS_BEFORE {
            base = resident_bytes();
        }
    }
    let end = resident_bytes();
    println!("{} MiB after {ROUNDS_BEFORE} rounds, {} after {ROUNDS}", base >> 20, end >> 20);
    assert!(end <= base + SLACK_BYTES, "{base} bytes became {end}");
}
