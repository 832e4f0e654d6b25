//! Benchmarks: the ladder is a client and measures any OpenAI-compatible server from outside; the transport's needs none.

pub mod handoff;
pub mod ladder;
mod text;
pub mod transport;
