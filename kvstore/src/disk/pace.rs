//! How fast to read: a pure decider.

use std::time::Duration;

use shared::Timestamp;

/// What may be made up for after a pause: a tenth of a second of the rate, so that no burst is seen by readers.
const BEHIND_MAX_NANOSECONDS: u64 = 100_000_000;
const MIB: u128 = 1 << 20;

/// Spreads reads over time so that their rate stays below a bound. Touches no clock: the caller waits.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    mib_per_s: u64,
    /// When all that was read so far is paid for.
    paid: Timestamp,
}

impl Pace {
    /// A pace of at most so many MiB per second; 0 is no bound.
    #[must_use]
    pub fn new(mib_per_s: u64, now: Timestamp) -> Self {
        Self { mib_per_s, paid: now }
    }

    /// Accounts for bytes that were read, and says how long to wait before the next read.
    #[must_use = "without the wait there is no pace"]
    pub fn wait_after(&mut self, bytes: u64, now: Timestamp) -> Duration {
        if self.mib_per_s == 0 {
            return Duration::ZERO;
        }
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / (u128::from(self.mib_per_s) * MIB);
        let cost = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let earliest = Timestamp(now.0.saturating_sub(BEHIND_MAX_NANOSECONDS));
        self.paid = self.paid.max(earliest).after(cost);
        self.paid.since(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::Timestamp;

    use super::Pace;

    const MIB: u64 = 1 << 20;

    #[test]
    fn reads_are_spread_to_the_rate() {
        let mut now = Timestamp(5_000_000_000);
        let mut pace = Pace::new(8, now);
        for _ in 0..80 {
            now = now.after(pace.wait_after(MIB, now));
        }
        assert_eq!(now.since(Timestamp(5_000_000_000)), Duration::from_secs(10));
    }

    #[test]
    fn a_pause_is_not_made_up_for() {
        let mut pace = Pace::new(8, Timestamp(0));
        let late = Timestamp(3_600_000_000_000);
        assert_eq!(pace.wait_after(MIB, late), Duration::from_millis(25), "but for 100 ms");
        assert_eq!(pace.wait_after(MIB, late), Duration::from_millis(150));
    }

    #[test]
    fn a_slow_drive_is_not_slowed_further() {
        let mut pace = Pace::new(8, Timestamp(0));
        for second in 1..5 {
            let now = Timestamp(second * 1_000_000_000);
            assert_eq!(pace.wait_after(MIB / 2, now), Duration::ZERO, "{second}");
        }
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        assert_eq!(Pace::new(0, Timestamp(0)).wait_after(u64::MAX, Timestamp(0)), Duration::ZERO);
    }
}
