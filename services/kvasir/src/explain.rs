//! How well placements are predicted, for operators: an alarm over the last starts, and who gets to see the evidence of one.
//!
//! What became of a placement has one path: its caller tells the router, which keeps it with its decision record. The
//! placement thread passes each start on to [`Predictions`] beside what the router had expected of it.
//!
//! What it deliberately is not: part of any decision, or of the router, which stays pure.

mod accuracy;
mod config;
mod evidence;

use std::sync::Arc;

use parking_lot::Mutex;
use shared::WorkerRank;

pub(crate) use accuracy::{AccuracyFigures, Sums};
pub use config::ExplainConfig;
pub(crate) use evidence::policy as evidence_policy;

use accuracy::Accuracy;

/// Predicted against actual cached tokens of the last starts. Clones of its `Arc` are held by whoever tells and whoever
/// asks; nothing waits for more than one short section under a lock.
#[derive(Debug)]
pub(crate) struct Predictions {
    accuracy: Mutex<Accuracy>,
}

impl Predictions {
    /// None compared yet.
    pub(crate) fn new(config: &ExplainConfig) -> Arc<Self> {
        Arc::new(Self { accuracy: Mutex::new(Accuracy::new(config)) })
    }

    /// Compares one start, and logs what it changes about the alarm.
    pub(crate) fn started(&self, worker: WorkerRank, predicted_tokens: u32, actual_tokens: u32) {
        let turn = self.accuracy.lock().note(worker, predicted_tokens, actual_tokens);
        turn.log();
    }

    /// Prediction against outcome, in sums.
    pub(crate) fn figures(&self) -> AccuracyFigures {
        self.accuracy.lock().figures()
    }
}
