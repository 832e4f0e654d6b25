//! The state of a router as plain numbers, for `/metrics` and the dashboard.

use shared::WorkerRank;

use crate::index::{IndexCounters, ViewState};
use crate::records::PlacementKind;
use crate::role::Role;

/// Everything measured about a router at one moment. Gauges unless said otherwise; counters only grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterSnapshot {
    /// Requests that wait for a worker.
    pub waiting: usize,
    /// Requests placed and not finished.
    pub running: usize,
    /// (block, holder) pairs in the index; bounded by `index_entries_max`.
    pub index_entries: usize,
    /// Distinct blocks in the index.
    pub index_blocks: usize,
    /// Counters of the index.
    pub index: IndexCounters,
    /// Counters of placements by kind.
    pub placed: PlacedCounters,
    /// Counters of refusals by reason.
    pub refused: RefusedCounters,
    /// Counter: requests withdrawn while they waited.
    pub withdrawn: u64,
    /// Counter: placed requests that finished.
    pub finished: u64,
    /// Counter: placed requests whose decode worker left before they finished.
    pub lost_with_worker: u64,
    /// Counter: [`crate::Router::finished`] calls for requests not known any more, for example those lost with a worker.
    pub finished_unknown: u64,
    /// Counter: load reports of workers that are not members, or are stores.
    pub reports_unknown_worker: u64,
    /// Counter: requests for a member's whole state.
    pub resyncs: u64,
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
    /// Its entries in the index.
    pub index_entries: usize,
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
    /// The deadline passed before a worker was free.
    pub deadline: u64,
    /// No decode worker was a member.
    pub no_worker: u64,
    /// The request's id was waiting or running already.
    pub duplicate: u64,
}
