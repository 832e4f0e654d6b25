//! How far each member can have a prefix, and from where.

use shared::{Tier, WorkerRank};

use super::tiers::{TIERS, TierSet, tier_index};

/// A number of blocks for each tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounts([u32; 4]);

impl TierCounts {
    /// The number for one tier.
    #[must_use]
    pub fn of(&self, tier: Tier) -> u32 {
        self.0[tier_index(tier)]
    }

    /// The sum over all tiers.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.0.iter().sum()
    }

    /// The tiers with their numbers, nearest first.
    pub fn iter(&self) -> impl Iterator<Item = (Tier, u32)> + '_ {
        TIERS.into_iter().zip(self.0)
    }

    pub(super) fn at(&mut self, tier: Tier) -> &mut u32 {
        &mut self.0[tier_index(tier)]
    }
}

/// How far one member can have a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixMatch {
    /// The member.
    pub worker: WorkerRank,
    /// For each tier, the leading blocks of the prefix that the member itself holds in this tier. Blocks that are only
    /// expected are not counted, nor those in the drives of a store while the index has a second level.
    pub leading: TierCounts,
    /// The leading blocks that the member can have: each is held by itself or by a store, in any tier, or expected of
    /// itself.
    pub reach: u32,
    /// Those blocks by the nearest tier each can be had from; what is expected counts as in device memory. Sums to
    /// `reach`.
    pub reach_by_tier: TierCounts,
    /// Those blocks that the member does not hold yet: a request placed there is expected to bring them. Some of them
    /// may be in a store, too. A part of `reach_by_tier` of device memory.
    pub expected: u32,
}

/// The answer for all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixMatches {
    held: Held,
    /// Blocks that every other member can have, from stores.
    others: TierCounts,
}

/// In the order of the members' names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// No store had any of the blocks, and each member its blocks in the same tiers.
    Plain(Vec<PlainMatch>),
    General(Vec<PrefixMatch>),
}

/// The first `end` blocks are in these tiers of the member; in none, they are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainMatch {
    pub(super) worker: WorkerRank,
    pub(super) tiers: TierSet,
    pub(super) end: u32,
}

impl PlainMatch {
    fn expand(self) -> PrefixMatch {
        let leading = TIERS.map(|tier| if self.tiers.contains(tier) { self.end } else { 0 });
        let (leading, mut reach_by_tier) = (TierCounts(leading), TierCounts::default());
        *reach_by_tier.at(self.tiers.nearest().unwrap_or(Tier::Device)) = self.end;
        let expected = if self.tiers.is_empty() { self.end } else { 0 };
        PrefixMatch { worker: self.worker, leading, reach: self.end, reach_by_tier, expected }
    }
}

/// Reads [`PrefixMatches`] in the order of names.
#[derive(Debug)]
pub(crate) struct InOrder<'a> {
    matches: &'a PrefixMatches,
    /// Whoever lies before this was asked for, or passed.
    at: usize,
}

impl InOrder<'_> {
    /// The answer for one member, which must not come before the last one asked for.
    #[inline]
    pub(crate) fn of(&mut self, worker: WorkerRank) -> PrefixMatch {
        let found = match &self.matches.held {
            Held::Plain(held) => {
                let is_at = pass(held, &mut self.at, worker, |it| it.worker);
                is_at.map(|it| it.expand())
            }
            Held::General(held) => pass(held, &mut self.at, worker, |it| it.worker).copied(),
        };
        found.unwrap_or_else(|| self.matches.other(worker))
    }
}

/// Passes those before a member, and says whether it comes next.
fn pass<'a, T>(
    held: &'a [T],
    at: &mut usize,
    worker: WorkerRank,
    name: impl Fn(&T) -> WorkerRank,
) -> Option<&'a T> {
    let number = |it: WorkerRank| u64::from(it.worker.0) << 16 | u64::from(it.rank.0);
    let wanted = number(worker);
    while let Some(it) = held.get(*at) {
        let this = number(name(it));
        if wanted <= this {
            return (wanted == this).then_some(it);
        }
        *at += 1;
    }
    None
}

impl PrefixMatches {
    pub(super) fn new(held: Held, others: TierCounts) -> Self {
        Self { held, others }
    }

    /// The answer for one member. For one that holds none of the blocks it is what the stores have.
    #[must_use]
    pub fn of(&self, worker: WorkerRank) -> PrefixMatch {
        let found = match &self.held {
            Held::Plain(held) => {
                let at = held.binary_search_by_key(&worker, |found| found.worker);
                at.ok().map(|at| held[at].expand())
            }
            Held::General(held) => {
                let at = held.binary_search_by_key(&worker, |found| found.worker);
                at.ok().map(|at| held[at])
            }
        };
        found.unwrap_or_else(|| self.other(worker))
    }

    fn other(&self, worker: WorkerRank) -> PrefixMatch {
        PrefixMatch {
            worker,
            leading: TierCounts::default(),
            reach: self.others.total(),
            reach_by_tier: self.others,
            expected: 0,
        }
    }

    /// For members asked for in the order of their names: each answer is found beside the one before.
    pub(crate) fn in_order(&self) -> InOrder<'_> {
        InOrder { matches: self, at: 0 }
    }

    /// The answers for members that hold, or are expected to hold, at least one of the blocks, in the order of their
    /// names.
    pub fn iter(&self) -> impl Iterator<Item = PrefixMatch> + '_ {
        let (plain, general): (&[PlainMatch], &[PrefixMatch]) = match &self.held {
            Held::Plain(held) => (held, &[]),
            Held::General(held) => (&[], held),
        };
        plain.iter().map(|found| found.expand()).chain(general.iter().copied())
    }

    /// How many leading blocks each of these members can have, in the order of their names. Cheaper than [`Self::iter`].
    pub fn reaches(&self) -> impl Iterator<Item = (WorkerRank, u32)> + '_ {
        let (plain, general): (&[PlainMatch], &[PrefixMatch]) = match &self.held {
            Held::Plain(held) => (held, &[]),
            Held::General(held) => (&[], held),
        };
        let plain = plain.iter().map(|found| (found.worker, found.end));
        plain.chain(general.iter().map(|found| (found.worker, found.reach)))
    }
}
