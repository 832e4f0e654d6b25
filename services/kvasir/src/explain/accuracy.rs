//! How well cached tokens are predicted of late: a window of starts, for the alarm. Sums for ever are the router's.
//!
//! Shares are sums over sums: a thousand short prompts do not outvote a long one.

use std::collections::{BTreeMap, VecDeque};

use router::PredictionCounters;
use shared::WorkerRank;

use super::ExplainConfig;

/// Predicted against actual cached tokens.
#[derive(Debug)]
pub(crate) struct Accuracy {
    starts_max: usize,
    percent_max: u64,
    /// The last starts, oldest first. At most `starts_max`.
    window: VecDeque<(WorkerRank, Sums)>,
    in_window: Sums,
    alarm: bool,
}

/// What was expected and what was had, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) starts: u64,
    pub(crate) predicted: u64,
    pub(crate) actual: u64,
    /// Sum of the differences, whichever side is more.
    pub(crate) error: u64,
}

/// The state in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccuracyFigures {
    /// Over the last starts.
    pub(crate) window: Sums,
    /// Whether the error of a full window is above its bound.
    pub(crate) alarm: bool,
}

/// What a start changed about the alarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Unchanged,
    /// It is given, for this reason.
    Given(String),
    /// It is over.
    Over,
}

impl Accuracy {
    pub(crate) fn new(config: &ExplainConfig) -> Self {
        Self {
            starts_max: config.prediction_starts,
            percent_max: u64::from(config.prediction_error_percent_max),
            window: VecDeque::new(),
            in_window: Sums::default(),
            alarm: false,
        }
    }

    /// Compares one start.
    pub(crate) fn note(&mut self, worker: WorkerRank, predicted: u32, actual: u32) -> Turn {
        let start = Sums {
            starts: 1,
            predicted: predicted.into(),
            actual: actual.into(),
            error: predicted.abs_diff(actual).into(),
        };
        self.in_window.add(start);
        self.window.push_back((worker, start));
        if self.starts_max < self.window.len()
            && let Some((_, oldest)) = self.window.pop_front()
        {
            self.in_window.take(oldest);
        }
        self.turn()
    }

    pub(crate) fn figures(&self) -> AccuracyFigures {
        AccuracyFigures { window: self.in_window, alarm: self.alarm }
    }

    fn turn(&mut self) -> Turn {
        let percent = self.in_window.error_percent();
        let is_full = self.window.len() == self.starts_max;
        if !self.alarm && is_full && self.percent_max < percent {
            self.alarm = true;
            return Turn::Given(self.reason());
        }
        if self.alarm && percent <= self.percent_max / 2 {
            self.alarm = false;
            return Turn::Over;
        }
        Turn::Unchanged
    }

    /// Why the alarm is given, in one line that names the worker with the largest error.
    fn reason(&self) -> String {
        let mut workers: BTreeMap<WorkerRank, Sums> = BTreeMap::new();
        for (worker, start) in &self.window {
            workers.entry(*worker).or_default().add(*start);
        }
        let worst = workers.iter().max_by_key(|(_, sums)| sums.error);
        let Sums { starts, predicted, actual, .. } = self.in_window;
        let whole = format!(
            "the prediction of cached tokens is off by {} % over the last {starts} starts: {predicted} predicted, {actual} had",
            self.in_window.error_percent()
        );
        let Some((worker, sums)) = worst else { return whole };
        format!(
            "{whole}; worst is worker {worker}: {} predicted, {} had in {} starts",
            sums.predicted, sums.actual, sums.starts
        )
    }
}

impl Turn {
    /// Tells a person. Nothing when nothing changed.
    pub(crate) fn log(&self) {
        match self {
            Self::Unchanged => {}
            Self::Given(reason) => tracing::warn!(
                reason,
                "requests are placed by wrong expectations; see /debug/routing of the admin listener"
            ),
            Self::Over => tracing::info!("cached tokens are predicted well again"),
        }
    }
}

impl From<PredictionCounters> for Sums {
    fn from(counters: PredictionCounters) -> Self {
        Self {
            starts: counters.requests,
            predicted: counters.expected_tokens,
            actual: counters.actual_tokens,
            error: counters.error_tokens,
        }
    }
}

impl Sums {
    /// The error in percent of what was predicted or had, whichever is more; 0 of nothing.
    pub(crate) fn error_percent(self) -> u64 {
        let whole = self.predicted.max(self.actual);
        (100 * self.error).checked_div(whole).unwrap_or(0)
    }

    fn add(&mut self, other: Self) {
        self.starts += other.starts;
        self.predicted += other.predicted;
        self.actual += other.actual;
        self.error += other.error;
    }

    fn take(&mut self, other: Self) {
        self.starts -= other.starts;
        self.predicted -= other.predicted;
        self.actual -= other.actual;
        self.error -= other.error;
    }
}

#[cfg(test)]
mod tests {
    use shared::{DpRank, WorkerId, WorkerRank};

    use super::{Accuracy, Sums, Turn};
    use crate::explain::ExplainConfig;

    fn rank(worker: u32) -> WorkerRank {
        WorkerRank { worker: WorkerId(worker), rank: DpRank(0) }
    }

    fn accuracy() -> Accuracy {
        Accuracy::new(&ExplainConfig { prediction_starts: 4, ..ExplainConfig::default() })
    }

    #[test]
    fn a_full_window_above_the_bound_gives_the_alarm_once_and_names_the_worst_worker() {
        let mut accuracy = accuracy();
        for _ in 0..3 {
            assert_eq!(accuracy.note(rank(1), 1_280, 1_280), Turn::Unchanged);
        }
        let Turn::Given(reason) = accuracy.note(rank(7), 2_560, 0) else { panic!("no alarm") };
        for word in [
            "40 %",
            "last 4 starts",
            "6400 predicted, 3840 had",
            "worker 7",
            "2560 predicted, 0 had in 1",
        ] {
            assert!(reason.contains(word), "{word}: {reason}");
        }
        assert_eq!(accuracy.note(rank(7), 1_280, 0), Turn::Unchanged, "it is told once");
        assert!(accuracy.figures().alarm);
        let turns: Vec<Turn> = (0..4).map(|_| accuracy.note(rank(7), 1_280, 1_280)).collect();
        assert_eq!(turns.iter().filter(|turn| **turn == Turn::Over).count(), 1, "{turns:?}");
        assert!(!accuracy.figures().alarm);
        let window = Sums { starts: 4, predicted: 5_120, actual: 5_120, error: 0 };
        assert_eq!(accuracy.figures().window, window);
    }

    #[test]
    fn a_window_that_is_not_full_and_one_of_nothing_give_no_alarm() {
        let mut accuracy = accuracy();
        for _ in 0..3 {
            assert_eq!(accuracy.note(rank(1), 0, 1_280), Turn::Unchanged);
        }
        let mut accuracy = self::accuracy();
        for _ in 0..8 {
            assert_eq!(accuracy.note(rank(1), 0, 0), Turn::Unchanged);
        }
        assert_eq!(accuracy.figures().window.error_percent(), 0);
    }
}
