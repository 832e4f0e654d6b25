//! The state of a router as plain numbers, for `/metrics` and the dashboard.

use std::time::Duration;

use shared::WorkerRank;

use crate::cost::Rates;
use crate::index::{IndexCounters, ViewState};
use crate::life::{Breaker, DrainSource, LifeCounters};
use crate::policy::Policy;
use crate::records::{PlacementKind, PredictionCounters};
use crate::role::Role;
use crate::router::PeerSnapshot;

/// Everything measured about a router at one moment. Gauges unless said otherwise; counters only grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterSnapshot {
    /// Requests that wait for a worker.
    pub waiting: usize,
    /// Requests placed and not finished.
    pub running: usize,
    /// (block, holder) pairs in the first level of the index; bounded by `index_entries_max`.
    pub index_entries: usize,
    /// Distinct blocks in the first level, those only expected among them.
    pub index_blocks: usize,
    /// (block, store, tier) entries in the second level; bounded by `index_drive_blocks_max`.
    pub index_drive_blocks: usize,
    /// (block, worker) pairs that are expected and not there yet.
    pub expected: usize,
    /// Blocks of all expectations that did not end; bounded by `expected_blocks_max`.
    pub expected_blocks: usize,
    /// Counters of the index.
    pub index: IndexCounters,
    /// Counters of placements by kind.
    pub placed: PlacedCounters,
    /// Counters of refusals by reason.
    pub refused: RefusedCounters,
    /// By which policy workers are chosen.
    pub policy: Policy,
    /// Requests that wait for a worker, by class: high, normal, low.
    pub waiting_by_class: [usize; 3],
    /// Tenants whose use of the queue is remembered.
    pub tenants: usize,
    /// Those of them that wait.
    pub tenants_waiting: usize,
    /// Counters of what happened to workers.
    pub life: LifeCounters,
    /// Workers that left and are remembered for their return; at most 512.
    pub remembered: usize,
    /// Counters of predictions and their outcomes.
    pub predictions: PredictionCounters,
    /// Tokens of an answer, learned from those that ended.
    pub answer_tokens: u32,
    /// Counter: requests placed while others waited before them for a prefill worker or one not excluded.
    pub overtaken: u64,
    /// Counter: outcomes told of requests or workers not known any more.
    pub outcomes_unknown: u64,
    /// Counter: requests withdrawn while they waited.
    pub withdrawn: u64,
    /// Counter: placed requests that finished.
    pub finished: u64,
    /// Counter: placed requests whose decode worker left, or was cut off by the end of its drain, before they finished.
    pub lost_with_worker: u64,
    /// Counter: [`crate::Router::finished`] calls for requests not known any more, for example those lost with a worker.
    pub finished_unknown: u64,
    /// Counter: load reports of workers that are not members, or are stores.
    pub reports_unknown_worker: u64,
    /// Counters of requests to members whose events were lost.
    pub resyncs: ResyncCounters,
    /// Other routers and what they have placed.
    pub peers: PeerSnapshot,
    /// Every member, in the order of their names.
    pub workers: Vec<WorkerSnapshot>,
}

/// One member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSnapshot {
    /// The member.
    pub worker: WorkerRank,
    /// Its role.
    pub role: Role,
    /// How complete its entries in the index are.
    pub view: ViewState,
    /// Ranges of names in which its entries may differ from what it holds, of 256; 0 while no event is missing.
    pub ranges_suspect: u32,
    /// Its entries in the first level of the index.
    pub index_entries: usize,
    /// (block, tier) pairs it told that found no room in the index.
    pub unindexed: u64,
    /// Its load; none for stores.
    pub load: Option<LoadSnapshot>,
}

/// The expected load of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadSnapshot {
    /// Requests placed there and not finished.
    pub placed: u32,
    /// Requests expected in work or waiting there, from its last report and what was placed since.
    pub requests: u32,
    /// Rows expected to be waiting.
    pub rows: u64,
    /// The pace it is priced with, in rows per second.
    pub rows_per_second: u64,
    /// Whether that pace was measured, not configured.
    pub measured: bool,
    /// The other rates it is priced with: as it measured them, or as configured.
    pub rates: RateSnapshot,
    /// What is known for and against giving it requests.
    pub life: LifeSnapshot,
}

/// What is known for and against giving a worker requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifeSnapshot {
    /// Its circuit breaker.
    pub breaker: Breaker,
    /// Whether it has work and makes no progress.
    pub wedged: bool,
    /// Who said first that it takes nothing new; none while it takes requests.
    pub draining: Option<DrainSource>,
    /// Whether it has not served enough requests yet to get as many as others.
    pub warming_up: bool,
}

/// The rates a worker is priced with, besides its pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSnapshot {
    /// One step of its running answers; zero while unknown.
    pub step: Duration,
    /// One block from a store's host memory.
    pub restore_host: Duration,
    /// One block from a store's drive.
    pub restore_disk: Duration,
    /// One block from an object store.
    pub restore_remote: Duration,
    /// One block from a prefill worker.
    pub restore_peer: Duration,
    /// The hand-off after prefill's work.
    pub handoff: Duration,
}

impl RateSnapshot {
    pub(crate) fn of(rates: &Rates) -> Self {
        let &Rates {
            step,
            restore_host,
            restore_disk,
            restore_remote,
            restore_peer,
            handoff,
            pace: _,
        } = rates;
        Self {
            step: step.into(),
            restore_host: restore_host.into(),
            restore_disk: restore_disk.into(),
            restore_remote: restore_remote.into(),
            restore_peer: restore_peer.into(),
            handoff: handoff.into(),
        }
    }
}

/// Placements by kind. Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacedCounters([u64; PlacementKind::ALL.len()]);

impl PlacedCounters {
    /// Placements of one kind.
    #[must_use]
    pub fn of(&self, kind: PlacementKind) -> u64 {
        self.iter().find(|&(it, _)| it == kind).map_or(0, |(_, count)| count)
    }

    /// All kinds with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (PlacementKind, u64)> + '_ {
        PlacementKind::ALL.into_iter().zip(self.0)
    }

    /// Placements of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(crate) fn add(&mut self, kind: PlacementKind) {
        for (it, count) in PlacementKind::ALL.into_iter().zip(&mut self.0) {
            *count += u64::from(it == kind);
        }
    }
}

/// Refusals by reason. Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedCounters {
    /// The queue was full.
    pub overloaded: u64,
    /// The queue was full, and the tenant had more than its share of it.
    pub over_share: u64,
    /// The deadline passed before a worker was free.
    pub deadline: u64,
    /// No decode worker was a member.
    pub no_worker: u64,
    /// The request's id was waiting or running already.
    pub duplicate: u64,
}

/// Requests to members whose events were lost, by what was asked for. Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResyncCounters {
    /// The digests of its ranges.
    pub digests: u64,
    /// The ranges whose digests differ.
    pub ranges: u64,
    /// Everything it holds, because it answered neither.
    pub whole: u64,
}

impl ResyncCounters {
    /// Requests of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.digests + self.ranges + self.whole
    }
}
