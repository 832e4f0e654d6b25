//! How fast a worker computes rows, told from steps of any size.
//!
//! A step costs a fixed time and some more for each row. Rows over seconds therefore say as much about what was asked of a
//! worker as about the worker: one that got short prompts looks slow, is asked for no long ones, and goes on looking slow. A
//! line through the recent steps tells the two apart.
//!
//! Not a model of a machine. Where steps of few rows all take the same time, the line is flat and a full step looks faster
//! than it is, until the first long prompt, which comes because of that, corrects it.

use std::time::Duration;

/// Sizes whose spread is below this share of their mean lie too near each other for a line.
const SPREAD_MIN: f64 = 0.05;

/// A line through recent steps: their time by their rows. Old steps fade.
#[derive(Clone, Copy, Debug)]
pub struct StepPace {
    newest: f64,
    // Sums over steps, each fading.
    steps: f64,
    rows: f64,
    rows_squared: f64,
    seconds: f64,
    rows_seconds: f64,
}

impl StepPace {
    /// Nothing measured yet. `newest` is what all older steps lose in weight with each new one: above 0, below 1; 0.1 keeps
    /// about ten steps in sight.
    #[must_use]
    pub const fn new(newest: f64) -> Self {
        assert!(0.0 < newest && newest < 1.0, "old steps fade, and the newest one counts");
        Self { newest, steps: 0.0, rows: 0.0, rows_squared: 0.0, seconds: 0.0, rows_seconds: 0.0 }
    }

    /// Whether no step was taken into account yet.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.steps == 0.0
    }

    /// A step of `rows` rows took this long. One without rows or time says nothing.
    pub fn step(&mut self, rows: u32, took: Duration) {
        if rows == 0 || took.is_zero() {
            return;
        }
        let (rows, seconds) = (f64::from(rows), took.as_secs_f64());
        let news = [1.0, rows, rows * rows, seconds, rows * seconds];
        let sums = [
            &mut self.steps,
            &mut self.rows,
            &mut self.rows_squared,
            &mut self.seconds,
            &mut self.rows_seconds,
        ];
        for (sum, new) in sums.into_iter().zip(news) {
            *sum = *sum * (1.0 - self.newest) + new;
        }
    }

    /// Rows per second of a step of `full` rows; 0 while unknown. Between what recent steps had, as if nothing were fixed,
    /// and what they would have had with `full` rows in the same time, as if all were.
    #[must_use]
    pub fn rows_per_second(&self, full: u32) -> f64 {
        if self.is_unknown() {
            return 0.0;
        }
        let (rows, seconds) = (self.rows / self.steps, self.seconds / self.steps);
        let per_row_most = seconds / rows;
        let variance = self.rows_squared / self.steps - rows * rows;
        let covariance = self.rows_seconds / self.steps - rows * seconds;
        let spread = SPREAD_MIN * rows;
        let per_row = if variance <= spread * spread {
            per_row_most
        } else {
            (covariance / variance).clamp(0.0, per_row_most)
        };
        let full = f64::from(full.max(1));
        full / (seconds + per_row * (full - rows))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::StepPace;

    /// Rows per second of 2,048 rows after steps of these sizes, which take 5 ms and 20 us a row.
    fn after(sizes: &[u32]) -> f64 {
        let mut pace = StepPace::new(0.125);
        for &rows in sizes {
            pace.step(rows, Duration::from_micros(5_000 + 20 * u64::from(rows)));
        }
        pace.rows_per_second(2_048)
    }

    #[test]
    fn steps_of_few_rows_tell_the_pace_of_full_ones() {
        let full = 2_048.0 / (0.005 + 0.000_02 * 2_048.0);
        for sizes in [&[2_048][..], &[64, 200], &[2_048, 64, 64, 64, 64], &[40, 90, 64, 33, 120]] {
            let found = after(sizes);
            assert!((found / full - 1.0).abs() < 1e-6, "{sizes:?}: {found} rows/s, not {full}");
        }
    }

    #[test]
    fn steps_of_one_size_have_their_own_pace() {
        let expected = 64.0 / (0.005 + 0.000_02 * 64.0);
        assert!((after(&[64; 20]) / expected - 1.0).abs() < 1e-6);
    }

    #[test]
    fn what_no_line_explains_stays_within_its_bounds() {
        let mut pace = StepPace::new(0.125);
        assert!(pace.is_unknown() && pace.rows_per_second(512) == 0.0);
        pace.step(0, Duration::from_millis(5));
        pace.step(9, Duration::ZERO);
        assert!(pace.is_unknown());
        // More rows in less time: all is taken as fixed. Then the contrary: nothing is.
        for (steps, rate) in
            [([(100, 9), (300, 5)], 512.0 / 7.0), ([(100, 1), (300, 20)], 200.0 / 10.5)]
        {
            let mut pace = StepPace::new(0.000_001);
            for (rows, ms) in steps {
                pace.step(rows, Duration::from_millis(ms));
            }
            let found = pace.rows_per_second(512) / 1_000.0;
            assert!((found / rate - 1.0).abs() < 1e-3, "{found} rows/ms, not {rate}");
        }
    }
}
