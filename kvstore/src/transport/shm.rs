//! Reading through shared memory: the reader copies objects out of a read-only mapping of the owner's segment. The owner
//! does nothing meanwhile, and may be frozen.
//!
//! Behind the slots of a segment lie marks by which the owner says which object, by its generation, each slot holds. A
//! reader believes a copy if the mark was that of its object before and after it, and the checksum is right. What it cannot
//! copy so it asks the owner about, over a unix socket: one message each way, no payload. The owner says whether it holds
//! the object; it looks at its own copy, which it forgets if that is damaged; and it passes the segment's file along the
//! first time and after a new registration. Then the reader tries once more.
//!
//! Only processes of the same user talk to each other. A connection carries one run at a time.
//!
//! Start reading at `client.rs`, then `ahead.rs` (a second thread for long runs) and `server.rs`; `messages.rs` has the two
//! messages, `socket.rs` moves them.

mod ahead;
mod client;
mod messages;
mod server;
mod socket;

pub(super) use client::{Lines, read};
pub(super) use server::{Listener, serve};

#[cfg(test)]
pub(super) use {
    messages::{Ask, SegmentShape, Told},
    socket::Conversation,
};
