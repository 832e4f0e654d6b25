//! Identifiers. Each is its own type, so that the compiler tells a slot from a token.

use std::fmt;
use std::sync::Arc;

use crate::objects::ObjectKind;

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

impl RegionId {
    /// The region of a worker's or store node's objects of one kind: the worker in the upper 32 bits, then 16 bits of the
    /// rank, then the kind. So a descriptor says whom it is read from.
    #[must_use]
    pub fn of(owner: WorkerRank, kind: ObjectKind) -> Self {
        let kind = match kind {
            ObjectKind::Block => 1,
            ObjectKind::Window => 2,
            ObjectKind::Media => 3,
        };
        Self(u64::from(owner.worker.0) << 32 | u64::from(owner.rank.0) << 16 | kind)
    }

    /// Whose region it is, if it was made by [`RegionId::of`].
    #[must_use]
    pub fn owner(self) -> WorkerRank {
        let worker = u32::try_from(self.0 >> 32).expect("32 bits are left");
        let rank = u16::try_from(self.0 >> 16 & 0xffff).expect("16 bits are left");
        WorkerRank { worker: WorkerId(worker), rank: DpRank(rank) }
    }
}

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

/// Where a request stands in a distributed trace, as the W3C header `traceparent` carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace; 0 when there is none.
    pub trace: u128,
    /// The span that caused this request; 0 when there is none.
    pub span: u64,
    /// Whether the caller records this trace.
    pub sampled: bool,
}

impl TraceContext {
    /// No trace.
    pub const NONE: Self = Self { trace: 0, span: 0, sampled: false };

    /// Reads the header's value: version, trace, parent span and flags in hexadecimal digits, joined by hyphens. None when
    /// it is malformed or names no trace; the specification then wants a new trace. Of later versions the first four
    /// fields are read.
    #[must_use]
    pub fn parse(header: &str) -> Option<Self> {
        let mut fields = header.trim().split('-');
        let mut field = |digits: usize| {
            let field = fields.next()?;
            let valid = field.len() == digits
                && field.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
            valid.then_some(field)
        };
        let version = field(2)?;
        let trace = u128::from_str_radix(field(32)?, 16).ok()?;
        let span = u64::from_str_radix(field(16)?, 16).ok()?;
        let flags = u8::from_str_radix(field(2)?, 16).ok()?;
        let surplus = version == "00" && fields.next().is_some();
        if version == "ff" || surplus || trace == 0 || span == 0 {
            return None;
        }
        Some(Self { trace, span, sampled: flags & 1 == 1 })
    }
}

impl fmt::Display for TraceContext {
    /// The header's value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

/// On whose behalf something is done: goes with every call, so that each log line and span names its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestContext {
    /// The request.
    pub id: RequestId,
    /// The trace it belongs to.
    pub trace: TraceContext,
    /// Whose bytes it makes and uses. Says nothing about rights: names alone decide what can be found.
    pub tenant: TenantTag,
}

impl RequestContext {
    /// Work that no request caused: upkeep, tools.
    pub const NONE: Self =
        Self { id: RequestId(0), trace: TraceContext::NONE, tenant: TenantTag::NONE };
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

impl TenantId {
    /// What stands for the tenant where bytes are kept and counted: the first 8 bytes of a hash of its name, never 0.
    #[must_use]
    pub fn tag(&self) -> TenantTag {
        let hash = blake3::derive_key("kvasir 2026 tenant tag 1", self.0.as_bytes());
        let (head, _) = hash.split_first_chunk().expect("a hash has 32 bytes");
        TenantTag(u64::from_be_bytes(*head).max(1))
    }
}

/// Whose bytes something is: a hash of the tenant's name, so that stores keep no names. 0 is nobody's, or unknown. No
/// secret: it may be logged. Two tenants share one with probability n^2 / 2^65 among n; they then share quota and eviction,
/// never names. Printed as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantTag(pub u64);

impl TenantTag {
    /// Nobody's, or unknown.
    pub const NONE: Self = Self(0);
}

impl fmt::Display for TenantTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{DpRank, RegionId, TenantId, TenantTag, TraceContext, WorkerId, WorkerRank};
    use crate::objects::ObjectKind;

    #[test]
    fn a_region_names_its_owner() {
        let mut regions = std::collections::BTreeSet::new();
        for (worker, rank) in [(0, 0), (1, 0), (1, 7), (u32::MAX, u16::MAX)] {
            let owner = WorkerRank { worker: WorkerId(worker), rank: DpRank(rank) };
            for kind in ObjectKind::ALL {
                let region = RegionId::of(owner, kind);
                assert_eq!(region.owner(), owner);
                assert!(regions.insert(region), "{owner} {kind:?}");
            }
        }
    }

    #[test]
    fn a_tag_depends_on_the_name_alone_and_is_never_nobodys() {
        let tag = |name: &str| TenantId(name.into()).tag();
        let names = ["", "a", "b", "default", "acme"];
        let tags: std::collections::BTreeSet<TenantTag> = names.into_iter().map(tag).collect();
        assert_eq!(tags.len(), names.len());
        assert!(!tags.contains(&TenantTag::NONE));
        assert_eq!(tag("acme"), tag("acme"));
        assert_eq!(TenantTag(0xab).to_string(), "00000000000000ab");
    }

    #[test]
    fn the_header_is_read_and_written() {
        let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = TraceContext::parse(header).unwrap();
        assert_eq!(context.to_string(), header);
        assert!(context.sampled);
        let later = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more";
        assert!(!TraceContext::parse(later).unwrap().sampled);
        let malformed = [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ];
        for header in malformed {
            assert_eq!(TraceContext::parse(header), None, "{header}");
        }
    }
}
