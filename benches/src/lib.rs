//! Benchmarks of the engine on this machine, each figure beside its bound.
//!
//! `cargo run --release -p benches -- DIR...` prints one Markdown table per checkpoint, ready for `results/`. What it is
//! not: a test. Nothing is asserted; a figure without machine, date and commit beside it is not a result.
//!
//! Start reading at [`speed`], then [`machine`].
#![forbid(unsafe_code)]

pub mod evict;
pub mod machine;
pub mod speed;
