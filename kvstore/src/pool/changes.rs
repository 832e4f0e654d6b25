//! The net change of a set of names since it was last reported, and the digests of what was.

use std::collections::BTreeMap;

use shared::{BlockName, CacheChange, RangeDigests, RangeSet, Tier, range_of};

/// Names whose present state differs from what was last reported. At most one entry per held name and one per name
/// reported and gone since, so two per slot: a bound without an overflow case. Reported in the order in which they changed,
/// which for blocks that are sealed one after the other is that of their chain: whoever follows keeps them side by side.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pending: BTreeMap<BlockName, (Pending, u64)>,
    /// Changes so far.
    turn: u64,
    /// Of everything that was reported and not taken back.
    told: RangeDigests,
    /// Names reported once more because a consumer had lost something.
    told_again: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Stored,
    Removed,
}

impl Changes {
    /// The name is held from now on. It was not before.
    pub(super) fn stored(&mut self, name: BlockName) {
        self.flip(name, Pending::Stored);
    }

    /// The name is not held from now on. It was before.
    pub(super) fn removed(&mut self, name: BlockName) {
        self.flip(name, Pending::Removed);
    }

    /// The changes since the last call.
    pub(super) fn drain(&mut self, tier: Tier) -> Vec<CacheChange> {
        let (mut stored, mut removed) = (Vec::new(), Vec::new());
        let mut pending: Vec<_> = std::mem::take(&mut self.pending).into_iter().collect();
        pending.sort_unstable_by_key(|&(_, (_, turn))| turn);
        for (name, (change, _)) in pending {
            match change {
                Pending::Stored => {
                    self.told.add(name, tier);
                    stored.push(name);
                }
                Pending::Removed => {
                    self.told.remove(name, tier);
                    removed.push(name);
                }
            }
        }
        let mut changes = Vec::new();
        if !removed.is_empty() {
            changes.push(CacheChange::Removed { tier, names: removed });
        }
        if !stored.is_empty() {
            changes.push(CacheChange::Stored { tier, names: stored });
        }
        changes
    }

    /// These names are all that is held of these ranges, and are reported in another way, once more.
    pub(super) fn tell_again(&mut self, ranges: RangeSet, held: &[BlockName], tier: Tier) {
        self.pending.retain(|&name, _| !ranges.contains(range_of(name)));
        self.told.clear(ranges);
        for &name in held {
            self.told.add(name, tier);
        }
        self.told_again += u64::try_from(held.len()).expect("slots are counted in 32 bits");
    }

    /// The digests of what was reported.
    pub(super) fn digests(&self) -> RangeDigests {
        self.told.clone()
    }

    /// Names reported once more. Only grows.
    pub(super) fn told_again(&self) -> u64 {
        self.told_again
    }

    /// Entries waiting to be reported.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Two opposite changes cancel out: the reported state holds again.
    fn flip(&mut self, name: BlockName, change: Pending) {
        if self.pending.remove(&name).is_none() {
            self.pending.insert(name, (change, self.turn));
            self.turn += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use shared::Random;
    use shared::{BlockName, CacheChange, CacheQuestion, RangeSet, Tier, range_of};

    use crate::pool::Seal;
    use crate::testing::{Follower, SLOT_BYTES, pool};

    fn spread(number: usize) -> BlockName {
        let mut generator = Random::new(u64::try_from(number).unwrap());
        let halves = (u128::from(generator.word()), u128::from(generator.word()));
        BlockName((halves.0 << 64 | halves.1).to_be_bytes())
    }

    #[test]
    fn names_are_told_in_the_order_in_which_they_were_sealed() {
        let pool = pool(1, 50);
        let names: Vec<BlockName> = (0..20).map(spread).collect();
        for &name in &names {
            let slot = pool.reserve(1).unwrap().pop().unwrap();
            let bytes = u32::try_from(SLOT_BYTES).unwrap();
            drop(pool.seal(slot, Seal { name, exact: true, bytes }));
        }
        let told = pool.drain_changes();
        let [CacheChange::Stored { names: told, .. }] = &told[..] else { panic!("{told:?}") };
        assert_eq!(*told, names);
    }

    #[test]
    fn answers_keep_a_follower_right_and_repeat_only_what_was_asked_for() {
        for seed in 0..40 {
            println!("seed {seed}");
            let (pool, mut generator) = (pool(1, 50), Random::new(seed));
            let (mut follower, mut again) = (Follower::default(), 0);
            for _ in 0..2_000 {
                let name = spread(generator.below(200));
                match generator.below(40) {
                    0 => drop(pool.lookup(name).map(|held| pool.forget(&held.descriptor()))),
                    1 => follower.follow(pool.answer(&CacheQuestion::Digests)),
                    2 => {
                        let words = [0; 4].map(|_: u64| generator.word() & generator.word());
                        let ranges = RangeSet::from_words(words);
                        let told = pool.answer(&CacheQuestion::Ranges(ranges));
                        assert_eq!(told[0], CacheChange::RangesCleared(ranges));
                        if let Some(CacheChange::Stored { names, .. }) = told.get(1) {
                            assert!(names.iter().all(|name| ranges.contains(range_of(*name))));
                            again += u64::try_from(names.len()).unwrap();
                        }
                        follower.follow(told);
                    }
                    3..=8 => follower.follow(pool.drain_changes()),
                    _ => {
                        let slot = pool.reserve(1).unwrap().pop().unwrap();
                        let bytes = u32::try_from(SLOT_BYTES).unwrap();
                        drop(pool.seal(slot, Seal { name, exact: true, bytes }));
                    }
                }
            }
            follower.follow(pool.answer(&CacheQuestion::Digests));
            assert_eq!(follower.names_in(Tier::Device), pool.names());
            assert_eq!(pool.told_again(), again);
        }
    }
}
