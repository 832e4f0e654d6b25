//! Prefill, decode, transport and store together, against one sequence that computes everything by itself.
//!
//! Clusters are built from the crates: a prefill worker with the encoder alone, a decode worker with the whole model, a
//! host tier, and the local transport between them; no HTTP, no router, no binary. All comparisons are bit for bit, of
//! tokens and of the bytes of blocks, most of them on the built-in model in exact arithmetic with prompts of real text.
//!
//! One cluster has a disk: what is left of it when its process is killed must do ([`restored`]).
//!
//! What it is not: [`crate::exactness`] asks the same of the binary's own wiring; the tests of each worker stand beside it.
//!
//! Start reading at `lane.rs` (one sequence alone) and `cluster.rs` (everything around an answer); then [`cold`].

#[cfg(test)]
mod bounded;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod cold;
#[cfg(test)]
mod crowd;
#[cfg(test)]
mod fast;
#[cfg(test)]
mod hits;
#[cfg(test)]
mod lane;
#[cfg(test)]
mod models;
#[cfg(test)]
mod restored;
#[cfg(test)]
mod rollback;
#[cfg(test)]
mod rows;
#[cfg(test)]
mod schedulers;
#[cfg(test)]
mod starts;
#[cfg(test)]
mod turns;
