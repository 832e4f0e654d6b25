//! Clusters of separate processes, and what they do when members fail: killed, frozen, damaged, wrong, full.
//!
//! Everywhere the same is asked: the text of an undisturbed run or a clear error within a stated time, no token lost or
//! repeated, then every process that lives at rest with nothing leaked, and the next request answered.
//!
//! Start reading at `view.rs` (what a test sees of any cluster), then `hand.rs` (members started one by one) and `up.rs`
//! (`kvasir up`); then [`faults`].

#[cfg(test)]
mod after;
#[cfg(test)]
mod discovery;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod flight;
#[cfg(test)]
mod full;
#[cfg(test)]
mod hand;
#[cfg(test)]
mod hosts;
#[cfg(test)]
mod logprobs;
#[cfg(test)]
mod members;
#[cfg(test)]
mod replicas;
#[cfg(test)]
mod starts;
#[cfg(test)]
mod up;
#[cfg(test)]
mod view;
