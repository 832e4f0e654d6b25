//! Ranges of block names, and what somebody holds of each range as one number: how a view with lost events is mended
//! without being told everything again.
//!
//! A name belongs to the range of its first byte. The digest of a range is the sum of a hash of each (name, tier) pair
//! held there, so it is kept by one addition per change, and whoever holds the same set has the same sum, whatever the
//! order was. Names are keyed hashes: nobody outside can choose some whose hashes cancel out.

use crate::names::BlockName;
use crate::objects::Tier;
use crate::random::mix;

/// Ranges of names. 39 thousand names each for a store with ten million blocks: 625 KB to tell one again.
pub const RANGES: usize = 256;

/// The range of a name.
#[must_use]
pub fn range_of(name: BlockName) -> u8 {
    name.0[0]
}

/// A set of ranges. The default is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeSet([u64; 4]);

impl RangeSet {
    /// Every range.
    pub const ALL: Self = Self([u64::MAX; 4]);

    /// The set with these bits: range r is bit r % 64 of word r / 64.
    #[must_use]
    pub fn from_words(words: [u64; 4]) -> Self {
        Self(words)
    }

    /// The bits, as [`Self::from_words`] takes them.
    #[must_use]
    pub fn words(self) -> [u64; 4] {
        self.0
    }

    /// Adds a range.
    pub fn insert(&mut self, range: u8) {
        self.0[usize::from(range / 64)] |= 1 << (range % 64);
    }

    /// Whether a range is in it.
    #[must_use]
    pub fn contains(self, range: u8) -> bool {
        self.0[usize::from(range / 64)] & (1 << (range % 64)) != 0
    }

    /// The ranges of either.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// The ranges of the first that are not in the other.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// Whether no range is in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == [0; 4]
    }

    /// Ranges in it.
    #[must_use]
    pub fn len(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The ranges, ascending.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(move |&range| self.contains(range))
    }
}

impl FromIterator<u8> for RangeSet {
    fn from_iter<I: IntoIterator<Item = u8>>(ranges: I) -> Self {
        let mut set = Self::default();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

/// One digest per range: 2 KiB. The default is that of somebody who holds nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeDigests(Box<[u64; RANGES]>);

impl Default for RangeDigests {
    fn default() -> Self {
        Self(Box::new([0; RANGES]))
    }
}

impl RangeDigests {
    /// The digests with these values, in the order of their ranges.
    #[must_use]
    pub fn from_values(values: [u64; RANGES]) -> Self {
        Self(Box::new(values))
    }

    /// One value per range, in their order.
    #[must_use]
    pub fn values(&self) -> &[u64; RANGES] {
        &self.0
    }

    /// A name is held in a tier from now on. It was not before.
    pub fn add(&mut self, name: BlockName, tier: Tier) {
        let digest = &mut self.0[usize::from(range_of(name))];
        *digest = digest.wrapping_add(pair_hash(name, tier));
    }

    /// A name is not held in a tier from now on. It was before.
    pub fn remove(&mut self, name: BlockName, tier: Tier) {
        let digest = &mut self.0[usize::from(range_of(name))];
        *digest = digest.wrapping_sub(pair_hash(name, tier));
    }

    /// Nothing is held of these ranges from now on.
    pub fn clear(&mut self, ranges: RangeSet) {
        for range in ranges.iter() {
            self.0[usize::from(range)] = 0;
        }
    }

    /// What two hold together, who have no (name, tier) pair in common.
    #[must_use]
    pub fn joined(&self, other: &Self) -> Self {
        Self(Box::new(std::array::from_fn(|range| self.0[range].wrapping_add(other.0[range]))))
    }

    /// The ranges of which two hold something different. Two that hold different sets are taken for equal once in 2^64
    /// times.
    #[must_use]
    pub fn differing(&self, other: &Self) -> RangeSet {
        (0..=u8::MAX).filter(|&at| self.0[usize::from(at)] != other.0[usize::from(at)]).collect()
    }
}

/// A hash of a (name, tier) pair. Part of the protocol: all processes of a cluster compute the same.
fn pair_hash(name: BlockName, tier: Tier) -> u64 {
    let number = u128::from_be_bytes(name.0);
    let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).expect("64 bits are left");
    let tier = match tier {
        Tier::Device => 1,
        Tier::Host => 2,
        Tier::Disk => 3,
        Tier::Remote => 4,
    };
    mix(half(number) ^ mix(half(number >> 64) ^ mix(tier)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{RANGES, RangeDigests, RangeSet, pair_hash, range_of};
    use crate::names::BlockName;
    use crate::objects::Tier;
    use crate::random::mix;

    const TIERS: [Tier; 4] = [Tier::Device, Tier::Host, Tier::Disk, Tier::Remote];

    fn name(number: u64) -> BlockName {
        let (high, low) = (mix(number), mix(!number));
        BlockName((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
    }

    #[test]
    fn sets_of_ranges_are_sets() {
        let some: RangeSet = [0, 63, 64, 200, 255].into_iter().collect();
        assert_eq!(some.iter().collect::<Vec<_>>(), [0, 63, 64, 200, 255]);
        assert_eq!((some.len(), RangeSet::ALL.len(), RangeSet::default().len()), (5, 256, 0));
        assert_eq!(RangeSet::from_words(some.words()), some);
        assert_eq!(RangeSet::ALL.without(some).union(some), RangeSet::ALL);
        assert!(some.without(RangeSet::ALL).is_empty() && !some.is_empty());
        assert!(some.contains(200) && !some.contains(201));
        assert_eq!(RangeSet::ALL.iter().count(), RANGES);
    }

    #[test]
    fn digests_depend_on_what_is_held_and_on_nothing_else() {
        let held: BTreeSet<u64> = (0..3_000).filter(|number| number % 3 != 0).collect();
        let mut direct = RangeDigests::default();
        for &number in held.iter().rev() {
            direct.add(name(number), TIERS[usize::try_from(number % 4).unwrap()]);
        }
        let mut detour = RangeDigests::default();
        for number in 0..3_000_u64 {
            detour.add(name(number), TIERS[usize::try_from(number % 4).unwrap()]);
        }
        assert!(200 < direct.differing(&detour).len(), "four names each");
        for number in (0..3_000_u64).filter(|number| !held.contains(number)) {
            detour.remove(name(number), TIERS[usize::try_from(number % 4).unwrap()]);
        }
        assert_eq!(direct, detour);
        detour.remove(name(1), TIERS[1]);
        detour.add(name(1), TIERS[2]);
        let one: RangeSet = [range_of(name(1))].into_iter().collect();
        assert_eq!(direct.differing(&detour), one, "the tier counts");
        detour.clear(one);
        direct.clear(one);
        assert_eq!(direct, detour);
    }

    #[test]
    fn two_tiers_are_joined_by_their_digests() {
        let (mut host, mut disk, mut both) =
            (RangeDigests::default(), RangeDigests::default(), RangeDigests::default());
        for number in 0..1_000 {
            host.add(name(number), Tier::Host);
            disk.add(name(number / 2 + 700), Tier::Disk);
            both.add(name(number), Tier::Host);
            both.add(name(number / 2 + 700), Tier::Disk);
        }
        assert_eq!(host.joined(&disk), both);
        assert_eq!(RangeDigests::from_values(*both.values()), both);
    }

    #[test]
    fn the_hash_is_the_protocols() {
        let spread = BlockName(std::array::from_fn(|at| u8::try_from(at * 17).unwrap()));
        let found = TIERS.map(|tier| pair_hash(spread, tier));
        let expected = [
            14_029_459_624_490_587_689,
            16_594_474_533_768_910_620,
            6_137_927_069_744_411_220,
            14_901_809_581_068_049_329,
        ];
        assert_eq!(found, expected);
    }
}
