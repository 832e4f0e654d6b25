//! The prefill worker: sealed blocks and window objects from token ids, with the encoder alone.
//!
//! What it is not: it samples nothing, keeps no conversation, speaks no network protocol, and never computes beyond the
//! hand-off boundary S of a request.
//!
//! Invariants: [`scheduler`] is pure; a block is announced once it is sealed and stays pinned until the ticket drops; a
//! lost block, a late read or a silent store costs a recompute, never a wrong answer.
//!
//! Start reading at [`scheduler`], then [`worker`].
#![forbid(unsafe_code)]

pub mod config;
mod mailbox;
pub mod scheduler;
pub mod stats;
pub mod worker;

pub use config::{ConfigError, PrefillConfig};
pub use scheduler::{
    Chunk, Phase, PrefillId, QueueFull, Scheduler, SchedulerLimits, SchedulerLoad,
};
pub use stats::PrefillStats;
pub use worker::{PrefillParts, PrefillWorker, StartError};
