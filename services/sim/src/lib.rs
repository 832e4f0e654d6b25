//! Replays traces of requests through the shipped router, schedulers, planner, pools and retention in virtual time.
//!
//! What is modelled here is what stands between them: how long steps, reads and messages take ([`Settings`]), and what
//! faults do ([`Fault`]). What it is not: it computes no token, moves no byte, and measures no program; its times are as
//! good as the rates it is given.
//!
//! Invariants
//! - Equal settings, traces and faults give equal reports: one thread, one seed, no clock.
//! - Every request has exactly one outcome; see `world.rs` for what else is asserted in every run.
//! - Every setting, assumption and label is part of every report.
//!
//! Start reading at `world.rs`, then `settings/table.rs`.
#![forbid(unsafe_code)]

mod agenda;
mod drive;
mod fault;
mod measure;
mod memory;
mod plan;
mod report;
mod settings;
mod store;
mod trace;
mod world;

#[cfg(test)]
mod tests;

pub use fault::{Fault, FaultError, FaultKind, Member};
pub use plan::{Plan, PlanError, Runs};
pub use report::{Figure, Part, Report, json, page, simulate, table};
pub use settings::{KEYS, Key, PRESETS, Preset, SettingError, Settings};
pub use trace::{Bound, CaptureLine, Chain, Format, Request, Trace, TraceError, capture_header};
pub use world::Checking;
