//! The gateway over real sockets, in front of the scripted engine.
#![expect(clippy::unwrap_used, reason = "a step that fails is the failure of its test")]

mod client;
mod errors;
mod evidence;
mod house;
mod life;
mod placing;
mod replies;
