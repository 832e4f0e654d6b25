//! Proofs about the store as a whole: what holds for every schedule, every fault and every kill.
//!
//! - [`simulation`]: the host tier under seeded schedules, its invariants checked after every step.
//! - [`store`]: host tier, drive, catalog, crashes and a second node under seeded schedules, on the drive in [`drive`].
//! - [`faults`]: transports that lie, lose and delay. [`damage`]: files that were torn, flipped, swapped or put back.
//! - [`kill`]: processes that are killed while they write.
//! - [`tenants`]: quotas, evictions and keys of tenants over real files.
//! - [`durable`]: what a put that asks for the disk is answered.
//! - [`hits`]: what writers publish is what readers plan with.
//!
//! `kvstore/tests/model.rs` has a model of slots and readers, all of whose states are visited.
//!
//! Everything random comes from a seed that is printed; a found seed becomes a case. Start reading at [`support`].

mod damage;
mod drive;
mod durable;
mod faults;
mod hits;
mod kill;
mod simulation;
mod store;
mod support;
mod tenants;
