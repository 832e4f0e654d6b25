//! The fence: the only unsafe code of the crate. Memory mappings behind safe types, nothing else.

mod segment;

pub(crate) use segment::{ForeignSegment, SharedSlot, shared_slots};
