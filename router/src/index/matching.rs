//! How far each member can have a prefix, and from where: one walk over the blocks.

use shared::{Tier, WorkerRank};

use super::Slot;
use super::holders::{Holder, TIERS, tier_index};

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

    fn at(&mut self, tier: Tier) -> &mut u32 {
        &mut self.0[tier_index(tier)]
    }
}

/// How far one member can have a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixMatch {
    /// The member.
    pub worker: WorkerRank,
    /// For each tier, the leading blocks of the prefix that the member itself holds in this tier.
    pub leading: TierCounts,
    /// The leading blocks that the member can have: each is held by itself or by a store, in any tier.
    pub reach: u32,
    /// Those blocks by the nearest tier each can be had from. Sums to `reach`.
    pub reach_by_tier: TierCounts,
}

/// The answer for all members, in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixMatches(Vec<PrefixMatch>);

impl PrefixMatches {
    /// The answer for one member; nothing held when it is not a member.
    #[must_use]
    pub fn of(&self, worker: WorkerRank) -> PrefixMatch {
        match self.0.binary_search_by_key(&worker, |found| found.worker) {
            Ok(at) => self.0[at],
            Err(_) => PrefixMatch {
                worker,
                leading: TierCounts::default(),
                reach: 0,
                reach_by_tier: TierCounts::default(),
            },
        }
    }

    /// All answers, in the order of the members' names.
    #[must_use]
    pub fn as_slice(&self) -> &[PrefixMatch] {
        &self.0
    }

    /// From answers in any order.
    #[cfg(test)]
    pub(super) fn from_unordered(mut matches: Vec<PrefixMatch>) -> Self {
        matches.sort_by_key(|found| found.worker);
        Self(matches)
    }
}

/// The state of a walk. A block in a store advances every member still in the walk without touching it: such blocks
/// are counted once in `common`, and members that hold the block nearer by correct that count for themselves.
pub(super) struct Walk {
    order: Vec<(WorkerRank, Slot)>,
    alive: Vec<Slot>,
    progress: Vec<Progress>,
    position: u32,
    common: TierCounts,
}

#[derive(Clone, Copy, Default)]
struct Progress {
    leading: TierCounts,
    /// Blocks held by the member nearer than by any store, by tier.
    nearer: TierCounts,
    /// The tiers that `common` counted for those blocks.
    replaced: TierCounts,
    /// One more than the last position held; what keeps a member in the walk where no store helps.
    held_up_to: u32,
    /// Set when the member dropped out: blocks reached, and `common` at that point.
    ended: Option<(u32, TierCounts)>,
}

impl Walk {
    /// A walk for these members, in the order of their names, whose slots are all below `slots`.
    pub(super) fn new(members: impl Iterator<Item = (WorkerRank, Slot)>, slots: usize) -> Self {
        let order: Vec<_> = members.collect();
        Self {
            alive: order.iter().map(|&(_, slot)| slot).collect(),
            progress: vec![Progress::default(); slots],
            order,
            position: 0,
            common: TierCounts::default(),
        }
    }

    /// Takes the next block: who holds it, and the nearest tier of a store that does. False when no member can go on.
    pub(super) fn step(&mut self, holders: &[Holder], store: Option<Tier>) -> bool {
        for holder in holders {
            let progress = &mut self.progress[usize::from(holder.slot)];
            for tier in holder.tiers.iter() {
                let leading = progress.leading.at(tier);
                *leading += u32::from(*leading == self.position);
            }
            if progress.ended.is_some() {
                continue;
            }
            progress.held_up_to = self.position + 1;
            let own = holder.tiers.nearest();
            match store {
                Some(tier) if own < tier => {
                    *progress.nearer.at(own) += 1;
                    *progress.replaced.at(tier) += 1;
                }
                Some(_) => {}
                None => *progress.nearer.at(own) += 1,
            }
        }
        match store {
            Some(tier) => *self.common.at(tier) += 1,
            None => self.drop_members_without_the_block(),
        }
        self.position += 1;
        !self.alive.is_empty()
    }

    fn drop_members_without_the_block(&mut self) {
        let (position, common, progress) = (self.position, self.common, &mut self.progress);
        self.alive.retain(|&slot| {
            let member = &mut progress[usize::from(slot)];
            let holds = member.held_up_to == position + 1;
            if !holds {
                member.ended = Some((position, common));
            }
            holds
        });
    }

    /// The answer for every member.
    pub(super) fn finish(self) -> PrefixMatches {
        let end = (self.position, self.common);
        let matches = self.order.iter().map(|&(worker, slot)| {
            let progress = &self.progress[usize::from(slot)];
            let (reach, mut reach_by_tier) = progress.ended.unwrap_or(end);
            for tier in TIERS {
                *reach_by_tier.at(tier) += progress.nearer.of(tier);
                *reach_by_tier.at(tier) -= progress.replaced.of(tier);
            }
            assert_eq!(reach_by_tier.total(), reach, "every block reached comes from one tier");
            PrefixMatch { worker, leading: progress.leading, reach, reach_by_tier }
        });
        PrefixMatches(matches.collect())
    }

    #[cfg(test)]
    pub(super) fn count(counts: &mut TierCounts, tier: Tier) {
        *counts.at(tier) += 1;
    }
}
