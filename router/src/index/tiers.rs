//! Tiers by number, and sets of them.

use shared::Tier;

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

/// A set of tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TierSet(u8);

impl TierSet {
    pub(super) const EMPTY: Self = Self(0);

    pub(super) fn with(self, tier: Tier) -> Self {
        Self(self.0 | 1 << tier_index(tier))
    }

    pub(super) fn without(self, tier: Tier) -> Self {
        Self(self.0 & !(1 << tier_index(tier)))
    }

    pub(super) fn contains(self, tier: Tier) -> bool {
        self.0 & 1 << tier_index(tier) != 0
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn bits(self) -> u8 {
        self.0
    }

    /// The tiers, nearest first.
    pub(super) fn iter(self) -> impl Iterator<Item = Tier> {
        let mut left = self;
        std::iter::from_fn(move || {
            let nearest = left.nearest()?;
            left = left.without(nearest);
            Some(nearest)
        })
    }

    /// The nearest tier.
    pub(super) fn nearest(self) -> Option<Tier> {
        let first = usize::try_from(self.0.trailing_zeros()).expect("small");
        TIERS.get(first).copied()
    }
}
