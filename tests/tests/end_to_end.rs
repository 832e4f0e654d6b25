//! The real binary with the built-in model, seen from outside.

mod chats;
mod faults;
mod life;
