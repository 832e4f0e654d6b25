//! The holders of one block, and the table's hash.

use std::hash::{BuildHasherDefault, Hasher};
use std::slice;

use shared::Tier;

use super::Slot;

/// All tiers, nearest first.
pub(super) const TIERS: [Tier; 4] = [Tier::Device, Tier::Host, Tier::Disk, Tier::Remote];

/// The position of a tier in [`TIERS`].
pub(super) fn tier_index(tier: Tier) -> usize {
    match tier {
        Tier::Device => 0,
        Tier::Host => 1,
        Tier::Disk => 2,
        Tier::Remote => 3,
    }
}

/// A set of tiers, never empty while a holder has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TierSet(u8);

impl TierSet {
    fn of(tier: Tier) -> Self {
        Self(1 << tier_index(tier))
    }

    /// The tiers, nearest first.
    pub(super) fn iter(self) -> impl Iterator<Item = Tier> {
        TIERS.into_iter().filter(move |&tier| self.0 & Self::of(tier).0 != 0)
    }

    /// The nearest tier.
    pub(super) fn nearest(self) -> Tier {
        self.iter().next().expect("a holder holds in some tier")
    }
}

/// One member and where it holds the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) slot: Slot,
    pub(super) tiers: TierSet,
}

/// The holders of one block. Most blocks have one, so that one needs no allocation.
#[derive(Debug)]
pub(super) enum Holders {
    One(Holder),
    Many(Vec<Holder>),
}

impl Holders {
    pub(super) fn one(slot: Slot, tier: Tier) -> Self {
        Self::One(Holder { slot, tiers: TierSet::of(tier) })
    }

    pub(super) fn as_slice(&self) -> &[Holder] {
        match self {
            Self::One(holder) => slice::from_ref(holder),
            Self::Many(holders) => holders,
        }
    }

    /// Adds a tier to a member that holds the block already. False when it does not.
    pub(super) fn add_tier(&mut self, slot: Slot, tier: Tier) -> bool {
        let Some(holder) = self.holder_mut(slot) else { return false };
        holder.tiers.0 |= TierSet::of(tier).0;
        true
    }

    /// Adds a member that does not hold the block yet.
    pub(super) fn push(&mut self, slot: Slot, tier: Tier) {
        let added = Holder { slot, tiers: TierSet::of(tier) };
        match self {
            Self::One(holder) => *self = Self::Many(vec![*holder, added]),
            Self::Many(holders) => holders.push(added),
        }
    }

    /// Takes a tier from a member. True when the member holds the block in no tier any more and was removed.
    pub(super) fn remove_tier(&mut self, slot: Slot, tier: Tier) -> bool {
        let Some(holder) = self.holder_mut(slot) else { return false };
        holder.tiers.0 &= !TierSet::of(tier).0;
        holder.tiers.0 == 0 && self.remove_holder(slot)
    }

    /// Takes a member out. False when it was not there.
    pub(super) fn remove_holder(&mut self, slot: Slot) -> bool {
        match self {
            Self::One(holder) => {
                let found = holder.slot == slot;
                if found {
                    *self = Self::Many(Vec::new());
                }
                found
            }
            Self::Many(holders) => {
                let Some(at) = holders.iter().position(|holder| holder.slot == slot) else {
                    return false;
                };
                holders.swap_remove(at);
                if let [last] = holders[..] {
                    *self = Self::One(last);
                }
                true
            }
        }
    }

    fn holder_mut(&mut self, slot: Slot) -> Option<&mut Holder> {
        let holders = match self {
            Self::One(holder) => slice::from_mut(holder),
            Self::Many(holders) => holders.as_mut_slice(),
        };
        holders.iter_mut().find(|holder| holder.slot == slot)
    }
}

/// Builds [`NameHasher`]s.
pub(super) type NameHashing = BuildHasherDefault<NameHasher>;

/// Takes 8 bytes of a name as its hash. Names are keyed hashes under a secret: they are spread evenly, and nobody
/// outside can choose them.
#[derive(Debug, Default)]
pub(super) struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk::<8>() {
            self.0 ^= u64::from_le_bytes(*first);
        }
    }

    fn write_usize(&mut self, _length: usize) {
        // The length prefix of a fixed-size array says nothing.
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
