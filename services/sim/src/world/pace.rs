//! How fast a worker believes it is.
//!
//! The workers take the line through their recent steps, [`shared::StepPace`]. What they had before says what the last requests
//! looked like as much as how fast the worker is, since a step of few rows is slow for its fixed time: `pace-by-rows` 1, rows
//! over seconds, both fading, and 0, an average of the rates of steps, show what that changed.

use std::time::Duration;

use shared::StepPace;

use crate::settings::{narrow, real};

/// The measurement.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    by_rows: u64,
    line: StepPace,
    /// Rows of a full step.
    full: u32,
    newest: f64,
    rows: f64,
    seconds: f64,
    mean: f64,
}

impl Pace {
    /// Nothing measured yet. See the setting for `by_rows`; `full` are the rows of a full step.
    pub(super) fn new(by_rows: u64, newest: f64, full: u64) -> Self {
        let line = StepPace::new(newest);
        Self { by_rows, line, full: narrow(full), newest, rows: 0.0, seconds: 0.0, mean: 0.0 }
    }

    pub(super) fn forget(&mut self) {
        self.line = StepPace::new(self.newest);
        (self.rows, self.seconds, self.mean) = (0.0, 0.0, 0.0);
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.mean == 0.0
    }

    pub(super) fn step(&mut self, rows: u64, took: Duration) {
        self.line.step(narrow(rows), took);
        let (rows, seconds) = (real(rows), took.as_secs_f64());
        self.rows = self.rows * (1.0 - self.newest) + rows;
        self.seconds = self.seconds * (1.0 - self.newest) + seconds;
        average(&mut self.mean, rows / seconds, self.newest);
    }

    /// 0 while nothing was measured.
    pub(super) fn rows_per_second(&self) -> f64 {
        match (self.by_rows, self.seconds == 0.0) {
            (_, true) => 0.0,
            (0, false) => self.mean,
            (1, false) => self.rows / self.seconds,
            (_, false) => self.line.rows_per_second(self.full),
        }
    }
}

/// Takes a measurement into a moving average; 0 is none yet.
pub(super) fn average(average: &mut f64, measured: f64, newest: f64) {
    *average = if *average == 0.0 { measured } else { *average + newest * (measured - *average) };
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Pace;

    #[test]
    fn short_steps_drag_an_average_of_rates_more_than_sums_and_no_line() {
        let pace = |by_rows| {
            let mut pace = Pace::new(by_rows, 0.125, 2_048);
            assert!(pace.is_unknown());
            // 2,048 rows at 40,000 a second and 5 ms, then four ends of prompts.
            for _ in 0..16 {
                pace.step(2_048, Duration::from_micros(56_200));
            }
            for _ in 0..4 {
                pace.step(64, Duration::from_micros(6_600));
            }
            pace.rows_per_second()
        };
        assert!(pace(0) < 26_000.0 && 33_000.0 < pace(1), "{} {}", pace(0), pace(1));
        assert!((pace(2) - 2_048.0 / 0.056_2).abs() < 100.0, "{}", pace(2));
    }
}
