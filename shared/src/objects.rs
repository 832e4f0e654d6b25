//! Cached objects: what can be fetched by name, and where a copy of it lies.

use crate::ids::{Generation, RegionId, SlotIndex};
use crate::names::BlockName;

/// The kinds of immutable values the cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// The global KV of 128 tokens: [`crate::KvLayout::block_bytes`] bytes.
    Block,
    /// The encoder window KV of the 128 tokens of a block: [`crate::KvLayout::window_bytes`] bytes. It is the state
    /// needed to start at the end of that block.
    Window,
}

/// The full name of a cached object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// What it is.
    pub kind: ObjectKind,
    /// The name of the block, or of the block whose end a window object belongs to.
    pub name: BlockName,
}

/// Where one copy lies: a slot of a registered region, as it was filled the `generation`-th time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The region.
    pub region: RegionId,
    /// The slot in it.
    pub slot: SlotIndex,
    /// Guards against reuse of the slot between lookup and read.
    pub generation: Generation,
}

/// All a reader needs in order to fetch an object and to check what it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// What it is.
    pub key: ObjectKey,
    /// Where it lies.
    pub location: Location,
    /// Payload length in bytes.
    pub bytes: u32,
    /// CRC-32C of the payload.
    pub checksum: u32,
    /// Whether the bytes equal those of a cold run in one process: false once a bounded replay had a part in them.
    pub exact: bool,
}

/// The memory a copy lies in, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// A worker's own slab.
    Device,
    /// Host memory of a store node.
    Host,
    /// A store node's drive.
    Disk,
    /// Another node or an object store.
    Remote,
}

impl Tier {
    /// The word used in metrics and reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
            Self::Remote => "remote",
        }
    }
}
