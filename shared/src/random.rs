//! A seeded generator and the hash it is made of: equal seeds give equal histories on every machine. Nothing here is for secrets.

/// The constant that SplitMix64 steps by: 2^64 over the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of `SplitMix64` (Steele, Lea, Flood, OOPSLA 2014): a bijection in which every bit of the result depends on
/// every bit of the value. 0 stays 0; [`mix`] has no such point at 0.
#[must_use]
pub fn finalise(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A well-spread function of 64 bits: one step of `SplitMix64` from this state.
#[must_use]
pub fn mix(value: u64) -> u64 {
    finalise(value.wrapping_add(STEP))
}

/// The generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Draws that depend on the seed alone.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// A number in `0..bound`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("usize has at most 64 bits");
        usize::try_from(self.word() % bound).expect("below a usize")
    }

    /// A number in `low..=high`.
    ///
    /// # Panics
    /// When `high` is less than `low`.
    pub fn between(&mut self, low: u32, high: u32) -> u32 {
        assert!(low <= high, "{low}..={high} is empty");
        let drawn = self.word() % (u64::from(high - low) + 1);
        low + u32::try_from(drawn).expect("below a span of 32 bits")
    }

    /// A number in 0..1, of 2^32 equally likely ones.
    pub fn unit(&mut self) -> f64 {
        let upper = u32::try_from(self.word() >> 32).expect("32 bits are left");
        f64::from(upper) / 4_294_967_296.0
    }

    /// Whether something of this probability happens.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// True once in `times`, which is not 0.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// An exponentially distributed number.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// One of these.
    ///
    /// # Panics
    /// When there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::{Random, finalise, mix};

    /// The first words of the generator for seed 1234567, as its authors' program prints them.
    #[test]
    fn the_function_is_the_published_one() {
        let state = |step: u64| 1_234_567_u64.wrapping_add(super::STEP.wrapping_mul(step));
        let words: Vec<_> = (0..3).map(|step| mix(state(step))).collect();
        assert_eq!(
            words,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
        assert_eq!(finalise(0), 0);
    }

    #[test]
    fn draws_have_the_means_they_should() {
        let mut random = Random::new(7);
        let count = 100_000_u32;
        let sum = |draw: &mut dyn FnMut() -> f64| (0..count).map(|_| draw()).sum::<f64>();
        let unit = sum(&mut || random.unit()) / f64::from(count);
        assert!((unit - 0.5).abs() < 0.01, "{unit}");
        let exponential = sum(&mut || random.exponential(3.0)) / f64::from(count);
        assert!((exponential - 3.0).abs() < 0.05, "{exponential}");
        let few = (0..count).filter(|_| random.happens(0.1)).count();
        assert!((9_500..10_500).contains(&few), "{few}");
        let few = (0..count).filter(|_| random.one_in(10)).count();
        assert!((9_500..10_500).contains(&few), "{few}");
        assert!((0..1_000).all(|_| random.below(3) < 3));
        assert!((0..1_000).all(|_| (5..=7).contains(&random.between(5, 7))));
        assert!((0..1_000).all(|_| [1, 2].contains(random.pick(&[1, 2]))));
    }
}
