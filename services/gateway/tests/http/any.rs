//! Anything a stranger sends and anything a model says, and what holds of the reply.
//!
//! An input is bytes: [`random`](super::random) and [`any_answer`](super::any_answer) draw some in every run of CI, the targets of
//! `fuzz` look for others by coverage. Both make the claims of [`claims`].

pub(crate) mod answers;
pub(crate) mod bodies;
pub(crate) mod changes;
pub(crate) mod claims;
mod spoken;
mod streams;
mod told;
mod words;
