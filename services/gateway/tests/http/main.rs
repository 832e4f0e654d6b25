//! The gateway over real sockets, in front of the scripted engine.
//!
//! The behaviours that naive servers get wrong (specs, recipe-and-apis 5.4), and where they are held: 1 2 4 5 `replies`
//! (thinking stream) · 3 `replies` (usage chunk) · 6 to 9 `chat_tools`, every split in `output::call_tests` · 10 11 `replies` ·
//! 12 `logprobs`, `output::random_tests` · 13 14 `responses` · 15 16 17 18 `messages`, `errors` · 19 `random` · 20 21 22 `chat_tools` · 25 `life`,
//! `chat_tools` · 26 `request::tests`, `errors` · 27 `prompt::tests`, `output::call_tests` · 28 `messages`, `kept` · 29 `chat_tools` · 30 `messages`.
//! 23 24 `chat_tools`, and the decode worker's tests, which keeps the grammar.
#![expect(clippy::unwrap_used, reason = "a step that fails is the failure of its test")]

mod agents;
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
