//! The speed of a worker as an integer, so that equal inputs give equal decisions on every machine.

use std::time::Duration;

use crate::nanos::Nanos;

/// Rows per kilorow, the grain in which a pace is kept.
const KILOROW: u64 = 1_000;
/// One row in a thousand seconds: anything slower is a broken measurement.
const NANOS_PER_KILOROW_MAX: u64 = 1_000_000_000_000_000;

/// How long a worker takes per row: nanoseconds for 1,000 rows, in 1..=10^15.
///
/// Nanoseconds per row would round away a tenth of a percent at a million rows per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    nanos_per_kilorow: u64,
}

impl Pace {
    /// The pace of a worker that computes this many rows per second.
    ///
    /// # Panics
    /// When `rows_per_second` is 0; configuration is validated before.
    pub(crate) fn from_rows_per_second(rows_per_second: u32) -> Self {
        assert!(0 < rows_per_second, "a pace needs at least one row per second");
        Self { nanos_per_kilorow: 1_000_000_000_000 / u64::from(rows_per_second) }
    }

    /// The pace from a measurement in rows per second; none when it is zero, negative or not a number.
    pub(crate) fn measured(rows_per_second: f64) -> Option<Self> {
        if !rows_per_second.is_finite() || rows_per_second <= 0.0 {
            return None;
        }
        // An overflow means slower than any worker: the clamp holds for it too.
        let nanos = Duration::try_from_secs_f64(1_000.0 / rows_per_second)
            .map_or(u64::MAX, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        Some(Self { nanos_per_kilorow: nanos.clamp(1, NANOS_PER_KILOROW_MAX) })
    }

    /// The time for `rows` rows, rounded up to nanoseconds, saturating after 584 years.
    pub(crate) fn time_for(self, rows: u64) -> Nanos {
        // 64 bits hold all but absurd products, and their division is many times faster: a decision has hundreds.
        if let Some(nanos) = rows.checked_mul(self.nanos_per_kilorow) {
            return Nanos(nanos.div_ceil(KILOROW));
        }
        let nanos = u128::from(rows) * u128::from(self.nanos_per_kilorow);
        let nanos = nanos.div_ceil(u128::from(KILOROW));
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The whole rows computed in `time`.
    pub(crate) fn rows_in(self, Nanos(nanos): Nanos) -> u64 {
        // As above.
        if let Some(scaled) = nanos.checked_mul(KILOROW) {
            return scaled / self.nanos_per_kilorow;
        }
        let scaled = u128::from(nanos) * u128::from(KILOROW);
        u64::try_from(scaled / u128::from(self.nanos_per_kilorow)).unwrap_or(u64::MAX)
    }

    /// Rows per second, rounded down, for reports.
    pub(crate) fn rows_per_second(self) -> u64 {
        self.rows_in(Nanos(1_000_000_000))
    }
}

#[cfg(test)]
mod tests {
    use super::Pace;
    use crate::nanos::Nanos;

    #[test]
    fn time_and_rows_agree() {
        for rate in [1, 7, 1_000, 48_000, 1_000_000, u32::MAX] {
            let pace = Pace::from_rows_per_second(rate);
            for rows in [0, 1, 127, 128, 7_948, 1_000_000] {
                let time = pace.time_for(rows);
                assert!(rows <= pace.rows_in(time), "{rows} rows at {rate}");
                if 0 < rows {
                    let less = Nanos(time.0.checked_sub(1).expect("rows take time"));
                    assert!(pace.rows_in(less) < rows, "{rows} rows at {rate}");
                }
            }
        }
        assert_eq!(Pace::from_rows_per_second(1_000).time_for(128), Nanos(128_000_000));
    }

    #[test]
    fn broken_measurements_are_refused_or_clamped() {
        for broken in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Pace::measured(broken), None, "{broken}");
        }
        for extreme in [f64::MIN_POSITIVE, 1e-30, 1e30, f64::MAX] {
            let pace = Pace::measured(extreme).expect("finite and positive");
            assert!(Nanos::ZERO < pace.time_for(1_000));
        }
        assert_eq!(Pace::measured(1_000.0), Some(Pace::from_rows_per_second(1_000)));
        assert_eq!(Pace::measured(2_000.0).map(Pace::rows_per_second), Some(2_000));
    }
}
