//! Identifiers. Each is its own type, so that the compiler tells a slot from a token.

use std::fmt;
use std::sync::Arc;

macro_rules! integer_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

integer_id!(
    /// An entry of the model's vocabulary.
    TokenId(u32)
);
integer_id!(
    /// A worker process, as the discovery names it. Stable over restarts of the process.
    WorkerId(u32)
);
integer_id!(
    /// A data-parallel rank inside one worker.
    DpRank(u16)
);
integer_id!(
    /// A registered memory region that a transport can read from.
    RegionId(u64)
);
integer_id!(
    /// A fixed-size slot inside a region.
    SlotIndex(u32)
);
integer_id!(
    /// Counts how often a slot was filled. A read that carries an old generation fails instead of returning the
    /// bytes of a later tenant of the slot.
    Generation(u64)
);

impl TokenId {
    /// The id as an index into a table with one row per vocabulary entry.
    #[must_use]
    pub fn index(self) -> usize {
        usize::try_from(self.0).expect("usize holds 32 bits on every supported target")
    }
}

impl SlotIndex {
    /// The slot as an index into a slice with one element per slot.
    #[must_use]
    pub fn index(self) -> usize {
        usize::try_from(self.0).expect("usize holds 32 bits on every supported target")
    }
}

/// The unit of placement: one data-parallel rank of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerRank {
    /// The worker process.
    pub worker: WorkerId,
    /// The rank inside it.
    pub rank: DpRank,
}

impl fmt::Display for WorkerRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.worker, self.rank)
    }
}

/// Names one request through every leg. Printed as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u128);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Names the content of one image: the hash of its bytes and of everything that changes its embedding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MediaId(pub [u8; 32]);

impl fmt::Debug for MediaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MediaId({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

/// Whose cache a request may see. Opaque; part of the root of every name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub Arc<str>);
