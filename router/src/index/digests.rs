//! What one member told, per range of names: the digests that find out which ranges an event was lost for.
//!
//! The digests are over what was told and not taken back, indexed or not, so that a full index does not make a range
//! differ. Of the pairs that found no room only the number and the sum of their hashes are kept, which is exact as long
//! as no event is lost; a removal of something that is not indexed is taken for one of them. Should that be wrong after a
//! loss, the range differs and is told again, once.

use shared::{BlockName, RANGES, RangeDigests, RangeSet, Tier, range_of};

/// The digests of one member: 3 KiB.
#[derive(Debug)]
pub(super) struct MemberDigests {
    told: RangeDigests,
    /// (name, tier) pairs told and not indexed, per range.
    unindexed: Box<[u32; RANGES]>,
    /// Ranges in which what is indexed may differ from what the member holds.
    suspect: RangeSet,
}

impl MemberDigests {
    /// Nothing was told.
    pub(super) fn new() -> Self {
        Self {
            told: RangeDigests::default(),
            unindexed: Box::new([0; RANGES]),
            suspect: RangeSet::default(),
        }
    }

    /// A pair was told and is indexed from now on.
    pub(super) fn indexed(&mut self, name: BlockName, tier: Tier) {
        self.told.add(name, tier);
    }

    /// A pair was told that finds no room in the index.
    pub(super) fn unindexed(&mut self, name: BlockName, tier: Tier) {
        let unindexed = &mut self.unindexed[usize::from(range_of(name))];
        *unindexed = unindexed.saturating_add(1);
        self.told.add(name, tier);
    }

    /// An indexed pair was taken back.
    pub(super) fn removed(&mut self, name: BlockName, tier: Tier) {
        self.told.remove(name, tier);
    }

    /// A pair was taken back that is not indexed.
    pub(super) fn removed_unindexed(&mut self, name: BlockName, tier: Tier) {
        let unindexed = &mut self.unindexed[usize::from(range_of(name))];
        if let Some(rest) = unindexed.checked_sub(1) {
            *unindexed = rest;
            self.told.remove(name, tier);
        }
    }

    /// The entries of these ranges are gone: what the member holds there comes anew.
    pub(super) fn cleared(&mut self, ranges: RangeSet) {
        self.told.clear(ranges);
        for range in ranges.iter() {
            self.unindexed[usize::from(range)] = 0;
        }
        self.suspect = self.suspect.without(ranges);
    }

    /// Events were lost: every range may differ.
    pub(super) fn lost(&mut self) {
        self.suspect = RangeSet::ALL;
    }

    /// The member said what it holds: exactly the ranges with another digest differ.
    pub(super) fn compare(&mut self, held: &RangeDigests) {
        self.suspect = self.told.differing(held);
    }

    /// Ranges in which what is indexed may differ from what the member holds.
    pub(super) fn suspect(&self) -> RangeSet {
        self.suspect
    }

    /// (name, tier) pairs told and not indexed. What the digests do not differ in is still missing these.
    pub(super) fn unindexed_pairs(&self) -> u64 {
        self.unindexed.iter().copied().map(u64::from).sum()
    }
}

#[cfg(test)]
mod tests {
    use shared::{RangeDigests, RangeSet, Tier, range_of};

    use super::MemberDigests;
    use crate::testing::block;

    #[test]
    fn what_finds_no_room_does_not_make_a_range_differ() {
        let (tier, mut ours, mut theirs) =
            (Tier::Disk, MemberDigests::new(), RangeDigests::default());
        for position in 0..2_000 {
            theirs.add(block(1, position), tier);
            if position % 2 == 0 {
                ours.indexed(block(1, position), tier);
            } else {
                ours.unindexed(block(1, position), tier);
            }
        }
        for position in 0..700 {
            theirs.remove(block(1, position), tier);
            if position % 2 == 0 {
                ours.removed(block(1, position), tier);
            } else {
                ours.removed_unindexed(block(1, position), tier);
            }
        }
        ours.lost();
        ours.compare(&theirs);
        assert_eq!((ours.suspect(), ours.unindexed_pairs()), (RangeSet::default(), 650));
        ours.lost();
        assert_eq!(ours.suspect(), RangeSet::ALL);
        // A lost removal, found and mended.
        theirs.remove(block(1, 1_000), tier);
        ours.compare(&theirs);
        let differing: RangeSet = [range_of(block(1, 1_000))].into_iter().collect();
        assert_eq!(ours.suspect(), differing);
        ours.cleared(differing);
        assert!(ours.suspect().is_empty());
        ours.cleared(RangeSet::ALL);
        assert_eq!(ours.unindexed_pairs(), 0);
        ours.removed_unindexed(block(1, 1_999), tier);
        ours.compare(&RangeDigests::default());
        assert!(ours.suspect().is_empty(), "nobody told of it");
    }
}
