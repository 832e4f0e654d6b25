//! A seeded generator: equal seeds give equal histories on every machine.

/// A well-spread function of 64 bits: the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The generator.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// A number in `0..bound`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("usize has at most 64 bits");
        usize::try_from(self.next() % bound).expect("below a usize")
    }

    /// A number in 0..1, of 2^32 equally likely ones.
    pub(crate) fn unit(&mut self) -> f64 {
        let upper = u32::try_from(self.next() >> 32).expect("32 bits are left");
        f64::from(upper) / 4_294_967_296.0
    }

    /// Whether something of this probability happens.
    pub(crate) fn happens(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// An exponentially distributed number.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

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
        assert!((0..1_000).all(|_| random.below(3) < 3));
    }
}
