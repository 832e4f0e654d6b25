//! Cached objects: what can be fetched by name, and where a copy of it lies.
//!
//! Names of blocks and of pieces of media embeddings never meet, so both may lie in one pool. A window object has the name of
//! its block.

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
    /// A piece of a media embedding: at most as many bytes as a block, and named by [`crate::media_piece_name`].
    Media,
}

impl ObjectKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Block, Self::Window, Self::Media];

    /// The kind whose slots it lies in. Pieces of media embeddings lie in those of blocks: they are cut to fit them, so that
    /// nobody has to divide memory between the two.
    #[must_use]
    pub fn slots(self) -> Self {
        match self {
            Self::Block | Self::Media => Self::Block,
            Self::Window => Self::Window,
        }
    }

    /// Whether stores write it to their disks.
    #[must_use]
    pub fn goes_to_disk(self) -> bool {
        match self {
            Self::Block | Self::Media => true,
            Self::Window => false,
        }
    }

    /// Whether routers are told who holds it: they place requests by blocks alone.
    #[must_use]
    pub fn is_told(self) -> bool {
        match self {
            Self::Block => true,
            Self::Window | Self::Media => false,
        }
    }

    /// The word used in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Window => "window",
            Self::Media => "media",
        }
    }
}

/// The full name of a cached object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// What it is.
    pub kind: ObjectKind,
    /// The name of the block, of the block whose end a window object belongs to, or of the piece of a media embedding.
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
