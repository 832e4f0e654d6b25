//! The control plane between processes: gRPC over mutual TLS.
//!
//! `generated` holds the messages of `proto/kvasir/v1`, [`convert`] turns them into the types of crate `shared` and back,
//! [`serve`] answers calls with local implementations of the border traits, and a [`Link`] with [`RemoteDecode`],
//! [`RemotePrefill`], [`RemoteStore`], [`watch`] and [`watch_router`] is their remote twin on the calling side.
//!
//! What it deliberately is not: a transport of cached bytes (those move by `kvstore`'s transports), and no discovery: who
//! is a member is told by the caller.
//!
//! Invariants: what a peer may call depends on its certificate alone; a malformed message is an error that names the
//! field, never a panic; a border's caller is never blocked; every queue, count and time here has a bound; a link owns
//! its tasks.
//!
//! Start reading at [`convert`], then [`serve`], then [`Link`].

mod client;
pub mod convert;
mod facts;
mod gather;
mod hub;
mod link;
mod routers;
mod server;
mod streams;
mod tasks;
mod watch;

#[cfg(test)]
mod tests;

#[rustfmt::skip]
#[expect(
    unreachable_pub,
    unnameable_types,
    unused_qualifications,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::absolute_paths,
    clippy::clone_on_ref_ptr,
    clippy::too_many_lines,
    clippy::trivially_copy_pass_by_ref,
    reason = "nobody edits generated code"
)]
mod generated;

pub use client::{RemoteDecode, RemotePrefill, RemoteStore};
pub use convert::WireError;
pub use facts::{Disagreement, Facts, PROTOCOL};
pub use hub::EventHub;
pub use link::{Link, LinkLimits, LinkOptions, LinkState, LinkStats, MemberAddress};
pub use routers::{
    HeardRouter, RESERVATIONS_MAX, RouterHub, RouterNews, RouterWatch, watch_router,
};
pub use server::{ServeReport, ServerLimits, Services, serve};
pub use watch::{Watch, Watched, watch};

use generated as v1;

/// Largest message either side takes, in bytes. The largest real ones are a prompt of
/// [`convert::TOKENS_MAX`] tokens (at most 20 MiB packed) and its names; the default of 4 MiB would end at a million.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
