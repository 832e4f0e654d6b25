//! Times of a decision in one word: a decision adds hundreds of them.

use std::time::Duration;

/// A time in nanoseconds. Arithmetic saturates, at zero and after 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, or no time.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// So many times as long.
    #[must_use]
    pub fn times(self, count: u32) -> Self {
        Self(self.0.saturating_mul(u64::from(count)))
    }
}

impl From<Duration> for Nanos {
    fn from(time: Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(time: Nanos) -> Self {
        Self::from_nanos(time.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Nanos;

    #[test]
    fn sums_differences_and_products_stop_at_the_ends() {
        let (one, most) = (Nanos(1), Nanos(u64::MAX));
        assert_eq!((most.plus(one), one.minus(most), most.times(2)), (most, Nanos::ZERO, most));
        assert_eq!(
            (one.plus(one), Nanos(3).minus(one), one.times(7)),
            (Nanos(2), Nanos(2), Nanos(7))
        );
        assert_eq!(Nanos::from(Duration::MAX), most);
        assert_eq!(Duration::from(Nanos::from(Duration::new(3, 5))), Duration::new(3, 5));
    }
}
