//! Sets of small numbers, and a bound on computing.

/// A set of numbers below a size fixed when it is made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn new(size: usize) -> Self {
        Self(vec![0; size.div_ceil(64)])
    }

    pub(super) fn contains(&self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 == 1
    }

    pub(super) fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    pub(super) fn extend(&mut self, other: &Self) {
        for (target, source) in self.0.iter_mut().zip(&other.0) {
            *target |= source;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let low = usize::try_from(left.trailing_zeros()).expect("at most 64");
                left &= left.wrapping_sub(1);
                (low < 64).then_some(index * 64 + low)
            })
        })
    }

    /// Words that an operation on all of it reads.
    pub(super) fn words(&self) -> usize {
        self.0.len()
    }
}

/// First bytes of characters in UTF-8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leads([u64; 4]);

impl Leads {
    /// Those of the characters from `first` to `last`. Bytes that begin no character may be in it.
    pub(super) fn of(first: u32, last: u32) -> Self {
        let mut leads = Self::default();
        for byte in lead(first)..=lead(last) {
            leads.0[usize::from(byte / 64)] |= 1 << (byte % 64);
        }
        leads
    }

    pub(super) fn extend(&mut self, other: Self) {
        for (target, source) in self.0.iter_mut().zip(other.0) {
            *target |= source;
        }
    }

    pub(super) fn meets(self, other: Self) -> bool {
        self.0.iter().zip(other.0).any(|(one, other)| one & other != 0)
    }
}

/// The first byte of a character's UTF-8.
fn lead(scalar: u32) -> u8 {
    let byte = match scalar {
        0..=0x7F => scalar,
        0x80..=0x7FF => 0xC0 | scalar >> 6,
        0x800..=0xFFFF => 0xE0 | scalar >> 12,
        _ => 0xF0 | scalar >> 18,
    };
    u8::try_from(byte).expect("characters end at 10FFFF")
}

/// What keeping a few dozen bytes costs, so that a bound on steps bounds memory as well.
pub(super) const STEPS_PER_ENTRY: usize = 16;

/// Classes or ranges that are copied or gone through one after another in one step.
pub(super) const PARTS_PER_STEP: usize = 16;

/// Steps that are left for one grammar.
#[derive(Debug)]
pub(super) struct Work(pub(super) usize);

impl Work {
    /// Takes steps; none when there are not as many.
    pub(super) fn spend(&mut self, steps: usize) -> Option<()> {
        self.0 = self.0.checked_sub(steps)?;
        Some(())
    }
}
