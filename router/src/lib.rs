//! Placement: which decode worker answers a request, and which prefill worker, if any, computes its prompt.
//!
//! Everything here is pure: `now` goes in, [`Action`]s come out. There is no clock, no I/O, no lock, no thread and no
//! logging; the binary owns one placement thread that drives a [`Router`] behind bounded channels and implements
//! `shared::Placer` on top of it.
//!
//! What it is not: it moves no bytes, talks to no worker and never decides what a worker attaches or recomputes. Its
//! index is a prediction; a wrong one costs time, never a wrong answer.
//!
//! Invariants
//! - Every submitted request gets exactly one [`Action::Place`] or [`Action::Refuse`], unless it is withdrawn while it
//!   waits.
//! - The index claims what its workers' events said last; after a lost event that may be too much until the worker's
//!   digests were compared, and what does not fit is absent.
//! - Queue, running requests, index entries, members and decision records have bounds from [`RouterConfig`].
//! - Equal calls give equal actions: ties are broken by a seeded hash, maps that are walked are ordered.
//!
//! Start reading at `router.rs`, then `place.rs`, `cost.rs` and `policy.rs`, then `queue.rs` and `index.rs`.
#![forbid(unsafe_code)]

mod admission;
mod answers;
mod config;
mod cost;
mod field;
mod index;
mod life;
mod loads;
mod nanos;
mod pace;
mod place;
mod policy;
mod queue;
mod ranked;
mod reason;
mod records;
mod resync;
mod role;
mod router;
mod snapshot;
mod terms;
#[cfg(test)]
mod testing;

pub use config::{
    AdmissionConfig, ConfigError, CostConfig, LifeConfig, LoadConfig, RecordConfig, ResyncConfig,
    RouterConfig,
};
pub use cost::Cost;
pub use index::{
    Applied, IndexCounters, JoinError, PrefixIndex, PrefixMatch, PrefixMatches, TierCounts,
    ViewState,
};
pub use life::{Breaker, DrainSource, LifeCounters, Steer};
pub use nanos::Nanos;
pub use policy::Policy;
pub use records::{
    Candidate, Considered, DecisionRecord, EndOutcome, LegEnd, PlacementKind, PredictionCounters,
    PrefillCandidate, StartOutcome, Steered,
};
pub use role::Role;
pub use router::{
    Action, PEER_REFRESH, PEER_SILENCE, PeerSnapshot, RESERVED_NAMES_MAX, Reservation, Router,
};
pub use snapshot::{
    LifeSnapshot, LoadSnapshot, PlacedCounters, RateSnapshot, RefusedCounters, ResyncCounters,
    RouterSnapshot, WorkerSnapshot,
};
