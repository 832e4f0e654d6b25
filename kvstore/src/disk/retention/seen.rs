//! Names that were refused lately, in a fixed number of bits.
//!
//! Two generations of a Bloom filter: names go into the younger one; when it has its fill the older one is emptied and
//! becomes the younger. A name is remembered for at least one generation and at most two. One name in forty that was
//! never seen is taken for one that was, which costs budget and nothing else.

use std::mem;

use shared::BlockName;
use shared::random::finalise;

/// Bits per name of a full generation. With four probes 2.4 % of unknown names are found in it.
const BITS_PER_NAME: u64 = 8;
const PROBES: u64 = 4;
/// Names of a generation: as many as blocks fit the drive, within this range. The upper end takes 8 MiB of memory.
const NAMES_MIN: u64 = 1_024;
const NAMES_MAX: u64 = 4 << 20;
const WORD_BITS: u64 = 64;

/// The filter.
#[derive(Debug)]
pub(super) struct Seen {
    younger: Vec<u64>,
    older: Vec<u64>,
    /// Names in the younger one.
    names: u64,
    names_max: u64,
}

impl Seen {
    pub(super) fn new(names: u64) -> Self {
        let names_max = names.clamp(NAMES_MIN, NAMES_MAX).next_power_of_two();
        let words = usize::try_from(names_max * BITS_PER_NAME / WORD_BITS).expect("at most 4 MiB");
        Self { younger: vec![0; words], older: vec![0; words], names: 0, names_max }
    }

    pub(super) fn contains(&self, name: BlockName) -> bool {
        has(&self.younger, name) || has(&self.older, name)
    }

    pub(super) fn insert(&mut self, name: BlockName) {
        if has(&self.younger, name) {
            return;
        }
        if self.names == self.names_max {
            mem::swap(&mut self.younger, &mut self.older);
            self.younger.fill(0);
            self.names = 0;
        }
        for (word, bit) in probes(self.younger.len(), name) {
            self.younger[word] |= bit;
        }
        self.names += 1;
    }
}

fn has(words: &[u64], name: BlockName) -> bool {
    probes(words.len(), name).all(|(word, bit)| words[word] & bit != 0)
}

/// Which bits stand for a name: word and mask. `words` is a power of two.
fn probes(words: usize, name: BlockName) -> impl Iterator<Item = (usize, u64)> {
    let (halves, _) = name.0.as_chunks::<8>();
    // Names are hashes, but tests count them; so they are mixed once more.
    let [first, second] = [halves[0], halves[1]].map(|half| finalise(u64::from_le_bytes(half)));
    let step = finalise(first ^ second.rotate_left(32)) | 1;
    let mask = u64::try_from(words).expect("usize has at most 64 bits") * WORD_BITS - 1;
    (0..PROBES).map(move |probe| {
        let bit = first.wrapping_add(second).wrapping_add(probe.wrapping_mul(step)) & mask;
        let word = usize::try_from(bit / WORD_BITS).expect("it is below the number of words");
        (word, 1 << (bit % WORD_BITS))
    })
}

#[cfg(test)]
mod tests {
    use super::{NAMES_MIN, Seen};
    use crate::testing::name;

    #[test]
    fn a_name_is_remembered_for_one_generation_at_least_and_two_at_most() {
        let mut seen = Seen::new(1);
        let mut oldest_found = 0;
        for number in 0..20 * NAMES_MIN {
            seen.insert(name(number));
            assert!((number.saturating_sub(NAMES_MIN)..=number).all(|known| {
                // Every thirty-second is looked at: all of them would take long.
                known % 32 != 0 || seen.contains(name(known))
            }));
        }
        for number in 0..17 * NAMES_MIN {
            oldest_found += u64::from(seen.contains(name(number)));
        }
        assert!(oldest_found < 17 * NAMES_MIN / 16, "{oldest_found} of those that left");
    }

    #[test]
    fn few_unknown_names_are_taken_for_known_ones() {
        let mut seen = Seen::new(NAMES_MIN);
        (0..NAMES_MIN).for_each(|number| seen.insert(name(number)));
        let wrong = (NAMES_MIN..101 * NAMES_MIN).filter(|number| seen.contains(name(*number)));
        let wrong = wrong.count();
        assert!(wrong < 3_600, "{wrong} of 102,400; 2,450 are expected");
        // A name that is seen again takes no place.
        for _ in 0..3 {
            (0..NAMES_MIN).for_each(|number| seen.insert(name(number)));
        }
        assert!((0..NAMES_MIN).all(|number| seen.contains(name(number))));
    }
}
