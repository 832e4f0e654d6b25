//! The gateway over real sockets, in front of the scripted engine.
//!
//! The behaviours that naive servers get wrong (specs, recipe-and-apis 5.4) are held by tests whose names begin with
//! `behaviour_` and their numbers; `cargo nextest list behaviour_` shows them, here, at the parts that are behind a behaviour,
//! and, with client libraries and the real binary, in `tests`. Those that several protocols share are in [`behaviours`].
#![expect(clippy::unwrap_used, reason = "a step that fails is the failure of its test")]

mod agents;
mod any;
mod any_answer;
mod behaviours;
mod chat_tools;
mod client;
mod completions;
mod contents;
mod door;
mod errors;
mod evidence;
mod house;
mod kept;
mod life;
mod logprobs;
mod messages;
mod placing;
mod random;
mod replies;
mod responses;
mod waiting;
