//! Reading through shared memory: the owner holds objects open, the reader copies them out of a read-only mapping.
//!
//! Over a unix socket goes control alone. A *turn* is one message each way: the reader says which group of objects it has
//! copied and which it wants next; the owner releases the former, says whether it had held them all that time, opens the
//! latter, and passes the segment's file along the first time. So a run of `g` groups takes `g + 1` round trips, and no
//! byte of payload passes the socket.
//!
//! Only processes of the same user talk to each other. A connection carries one run at a time and at most one open group;
//! when it ends, or a group is held for too long, the owner releases without the reader. A reader believes a copy only if
//! its checksum is right and the owner says it held the object until after the copy.
//!
//! Start reading at `client.rs`, then `server.rs`; `messages.rs` has the two messages, `socket.rs` moves them.

mod client;
mod messages;
mod server;
mod socket;

pub(super) use client::{Lines, read};
pub(super) use server::{Listener, serve};

#[cfg(test)]
pub(super) use {
    messages::{Opened, SegmentShape, Turn},
    socket::Conversation,
};
