//! Benchmarks that are clients: they measure any OpenAI-compatible server from outside.

pub mod ladder;
mod text;
