//! Time as a value. Deciders take a [`Timestamp`]; only loops hold a [`Clock`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Nanoseconds of a monotonic clock with an arbitrary start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The time that went by since `earlier`; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This time moved forward by `delay`, saturating after 584 years.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The mean time of something that is done again and again, over about the last `window` to twice as many of it.
///
/// A ratio of two sums: long and short samples weigh as much as they hold. Integers, so that equal samples give equal means
/// everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeanTime {
    nanoseconds: u64,
    count: u64,
    window: u64,
}

impl MeanTime {
    /// Nothing measured yet.
    ///
    /// # Panics
    /// When `window` is 0.
    #[must_use]
    pub fn over(window: u32) -> Self {
        assert!(0 < window, "a mean needs something to remember");
        Self { nanoseconds: 0, count: 0, window: u64::from(window) }
    }

    /// Takes the time of `count` of them together; nothing when there were none.
    pub fn note(&mut self, took: Duration, count: u64) {
        if count == 0 {
            return;
        }
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds = self.nanoseconds.saturating_add(nanoseconds);
        self.count = self.count.saturating_add(count);
        while 2 * self.window < self.count {
            self.nanoseconds /= 2;
            self.count /= 2;
        }
    }

    /// Nanoseconds of one, at least 1; 0 before anything was measured.
    #[must_use]
    pub fn nanoseconds(self) -> u64 {
        self.nanoseconds.checked_div(self.count).map_or(0, |mean| mean.max(1))
    }
}

/// A source of monotonic time, and of the wall clock for what clients see.
pub trait Clock: Send + Sync {
    /// Monotonic time. Never goes back.
    fn now(&self) -> Timestamp;

    /// Seconds since the Unix epoch. May jump; used for display, and for telling incarnations apart.
    fn unix_seconds(&self) -> u64;

    /// The incarnation of a worker that starts now: above those of its earlier starts as long as the wall clock does not
    /// jump back. The seconds are the upper half; the monotonic time in units of 2^20 ns, about a millisecond, is the
    /// lower one, which orders starts within one second and wraps after 52 days.
    fn incarnation(&self) -> u64 {
        let fraction = (self.now().0 >> 20) & u64::from(u32::MAX);
        (self.unix_seconds() << 32) | fraction
    }
}

/// A clock that stands still until told otherwise, for tests and the simulator.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanoseconds: AtomicU64,
}

impl ManualClock {
    /// A clock at time zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves time forward.
    pub fn advance(&self, by: Duration) {
        let nanoseconds = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.nanoseconds.load(Ordering::SeqCst))
    }

    fn unix_seconds(&self) -> u64 {
        self.nanoseconds.load(Ordering::SeqCst) / 1_000_000_000
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Clock, ManualClock, MeanTime};

    #[test]
    fn a_mean_is_a_ratio_of_sums_and_forgets() {
        let mut mean = MeanTime::over(10);
        assert_eq!(mean.nanoseconds(), 0);
        mean.note(Duration::from_nanos(900), 9);
        mean.note(Duration::from_nanos(1_000), 1);
        mean.note(Duration::from_nanos(5_000), 0);
        assert_eq!(mean.nanoseconds(), 190, "ten of them in 1,900 ns");
        for _ in 0..200 {
            mean.note(Duration::from_nanos(7), 1);
        }
        assert!((7..9).contains(&mean.nanoseconds()), "{}", mean.nanoseconds());
        mean.note(Duration::MAX, u64::MAX);
        assert_eq!(mean.nanoseconds(), 1, "saturated, not broken");
        let mut fast = MeanTime::over(10);
        fast.note(Duration::ZERO, 3);
        assert_eq!(fast.nanoseconds(), 1, "measured, so never 0");
    }

    #[test]
    fn starts_within_one_second_are_different_incarnations_in_order() {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(1_000));
        let mut last = clock.incarnation();
        for pause in [2, 500, 498, 2, 5_000] {
            clock.advance(Duration::from_millis(pause));
            let next = clock.incarnation();
            assert!(last < next, "{pause} ms later");
            last = next;
        }
    }
}
