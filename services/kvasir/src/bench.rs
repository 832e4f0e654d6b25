//! Benchmarks: the ladder is a client and measures any OpenAI-compatible server from outside; those of the transport and of
//! the store need none.

mod figures;
pub(crate) mod gateway;
pub mod grammar;
pub mod handoff;
pub mod ladder;
mod rig;
pub mod router;
pub mod store;
mod text;
pub mod transport;
