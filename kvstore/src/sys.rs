//! The fence: the only unsafe code of the crate. Memory mappings, and transfers that the kernel does while we go on, behind
//! safe types; nothing else.

mod buffer;
mod ring;
mod segment;

pub(crate) use buffer::Buffer;
pub(crate) use ring::{Action, Ended, Piece, Ring, Transfer};
pub(crate) use segment::{
    ForeignSegment, Marks, SharedSlot, marks_start, segment_bytes, shared_slots,
};
