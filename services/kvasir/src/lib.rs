//! The program `kvasir`: command line, configuration, and the wiring of all roles in one process.
//!
//! What it is not: it decides nothing about placement, scheduling or caching and computes no model; those crates know
//! nothing of each other's wiring, this one knows nothing but the wiring.
//!
//! Invariants: configuration and environment are read here only, once; every thread and task started here is joined;
//! a failed start is one line that says what to do; the clock is read in [`clock`] only.
//!
//! Start reading at [`cli`], then `serve`, then [`wiring`].
#![forbid(unsafe_code)]

pub mod cli;
pub mod console;

mod file_watch;
mod keys;
mod lanes;
mod public;
mod serve;

mod roles;
mod up;

mod model;

pub mod identity;
pub mod wire;

pub mod wiring;

mod discovery;
mod explain;

mod admin;
mod capture;

pub mod telemetry;

pub mod config;

pub mod clock;

pub mod client;

pub mod bench;

mod demo;
mod generate;
mod golden;

mod kv;

mod sim;
mod trace;
