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
//! - The index never claims a block that its worker's events do not claim: what is lost or does not fit is absent.
//! - Queue, running requests, index entries, members and decision records have bounds from [`RouterConfig`].
//! - Equal calls give equal actions: ties are broken by a seeded hash, maps that are walked are ordered.
//!
//! Start reading at `router.rs`, then `place.rs` and `policy.rs`, then `index.rs`.
#![forbid(unsafe_code)]

mod admission;
mod config;
mod index;
mod loads;
mod pace;
mod place;
mod policy;
mod records;
mod resync;
mod role;
mod router;
mod snapshot;
#[cfg(test)]
mod testing;

pub use config::{
    AdmissionConfig, ConfigError, CostConfig, LoadConfig, RecordConfig, ResyncConfig, RouterConfig,
};
pub use index::{
    Applied, IndexCounters, JoinError, PrefixIndex, PrefixMatch, PrefixMatches, TierCounts,
    ViewState,
};
pub use policy::Cost;
pub use records::{Candidate, DecisionRecord, PlacementKind, PrefillCandidate};
pub use role::Role;
pub use router::{Action, Router};
pub use snapshot::{LoadSnapshot, PlacedCounters, RefusedCounters, RouterSnapshot, WorkerSnapshot};
