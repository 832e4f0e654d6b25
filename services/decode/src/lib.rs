//! The decode worker: continuous batching of tails and decode rows over the whole model.
//!
//! Two halves: a pure [`Scheduler`] that decides who waits, starts, computes and gives way, and a loop
//! ([`DecodeWorker`]) that carries its decisions out with the engine, the pools, the store and the prefill workers.
//!
//! What it is not: it does not choose workers (the router does), parse or render text (the gateway does), or compute
//! anything a prefill worker was asked for, unless all prefill workers failed.
//!
//! Invariants: a request starts at a block boundary X at most S of its prompt and attaches exactly the blocks below X;
//! tokens depend on the request, X and the window source, never on batch, preemption or cache content; see the README.
//!
//! Start reading at [`Scheduler`], then `worker.rs`.
#![forbid(unsafe_code)]

mod config;
mod guides;
mod mailbox;
mod scheduler;
mod stats;
mod worker;

pub use config::{ConfigError, DecodeConfig};
pub use guides::GuideStats;
pub use scheduler::{
    Arrival, Scheduler, SchedulerLimits, SequenceKey, Stage, StepPlan, TailPiece, TailPlan,
};
pub use stats::DecodeStats;
pub use worker::{DecodeParts, DecodeWorker, StartError};
