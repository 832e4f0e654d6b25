//! The real binary with the built-in model, seen from outside.

mod calls;
mod chats;
mod cluster;
mod explain;
mod faults;
mod kv;
mod life;
mod log;
mod public;
mod recipe;
mod sdk;
mod tokenizer;
