//! The random integers the Engram multipliers were drawn with: numpy's `default_rng(seed).integers(0, n)`.
//!
//! A checkpoint stores the learned tables but not the multipliers, so the generator has to be reproduced bit for bit.
//! Sources: the NEP 19 stream guarantees of numpy; M. O'Neill, "PCG: A Family of Simple Fast Space-Efficient
//! Statistically Good Algorithms" (2014), variant XSL-RR 128/64; her `seed_seq_fe` for seeding; D. Lemire, "Fast Random
//! Integer Generation in an Interval" (2019).

const POOL: usize = 4;
const PCG_MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

/// The state of one generator.
pub(super) struct NumpyRandom {
    state: u128,
    increment: u128,
}

impl NumpyRandom {
    /// The generator `default_rng(seed)`.
    pub(super) fn new(seed: u64) -> Self {
        let words = seed_words(seed);
        let wide = |high: usize| (u128::from(words[high]) << 64) | u128::from(words[high + 1]);
        let increment = (wide(2) << 1) | 1;
        let mut random = Self { state: 0, increment };
        random.step();
        random.state = random.state.wrapping_add(wide(0));
        random.step();
        random
    }

    /// A number in `0..end`, equally likely each. `end` must be above 2^32: numpy draws smaller ranges differently.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        assert!(u64::from(u32::MAX) + 1 < end, "ranges of 32 bits are drawn differently");
        let threshold = end.wrapping_neg() % end;
        // Lemire's rejection: a try fails with probability below end / 2^64, so the loop ends at once in practice.
        loop {
            let product = u128::from(self.next()) * u128::from(end);
            if threshold <= low(product) {
                return high(product);
            }
        }
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(PCG_MULTIPLIER).wrapping_add(self.increment);
    }

    fn next(&mut self) -> u64 {
        self.step();
        let rotation = u32::try_from(self.state >> 122).expect("six bits");
        (high(self.state) ^ low(self.state)).rotate_right(rotation)
    }
}

fn high(value: u128) -> u64 {
    u64::try_from(value >> 64).expect("64 bits")
}

fn low(value: u128) -> u64 {
    u64::try_from(value & u128::from(u64::MAX)).expect("64 bits")
}

/// numpy's `SeedSequence(seed).generate_state(4, uint64)` for a seed of at most 64 bits.
fn seed_words(seed: u64) -> [u64; 4] {
    let pool = mixed_pool(seed);
    let mut constant = 0x8b51_f9dd_u32;
    let mut halves = [0_u64; 8];
    for (index, half) in halves.iter_mut().enumerate() {
        let mut value = pool[index % POOL] ^ constant;
        constant = constant.wrapping_mul(0x58f3_8ded);
        value = value.wrapping_mul(constant);
        *half = u64::from(value ^ (value >> 16));
    }
    [0, 2, 4, 6].map(|first| halves[first] | (halves[first + 1] << 32))
}

fn mixed_pool(seed: u64) -> [u32; POOL] {
    let mut constant = 0x43b0_d7e5_u32;
    let mut hash = |value: u32| {
        let mut value = value ^ constant;
        constant = constant.wrapping_mul(0x931e_8875);
        value = value.wrapping_mul(constant);
        value ^ (value >> 16)
    };
    let entropy = |shift: u32| u32::try_from((seed >> shift) & 0xffff_ffff).expect("32 bits");
    let mut pool = [hash(entropy(0)), hash(entropy(32)), hash(0), hash(0)];
    for source in 0..POOL {
        for target in (0..POOL).filter(|target| *target != source) {
            let left = pool[target].wrapping_mul(0xca01_f9dd);
            let mixed = left.wrapping_sub(hash(pool[source]).wrapping_mul(0x4973_f715));
            pool[target] = mixed ^ (mixed >> 16);
        }
    }
    pool
}

#[cfg(test)]
mod tests {
    use super::NumpyRandom;

    #[test]
    fn draws_equal_the_published_multipliers() {
        // specs/v41-architecture.md §9.2; a multiplier is 2 r + 1.
        let cases = [
            (1, [76_632_096_046_245, 4_839_876_093_313, 35_959_672_319_349, 73_987_337_458_391]),
            (14, [67_716_810_739_261, 51_510_806_800_915, 30_921_347_202_721, 82_619_226_485_591]),
        ];
        for (layer, expected) in cases {
            let mut random = NumpyRandom::new(10_007 * layer);
            let found = expected.map(|_| 2 * random.below(46_539_438_283_891) + 1);
            assert_eq!(found, expected, "layer {layer}");
        }
    }
}
