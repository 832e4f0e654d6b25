//! What became of each placement: prediction beside outcome, for operators.
//!
//! The placement thread notes each decision, and a decorator of the decode border notes what the worker says about its
//! start and how the answer ended. Both meet in one bounded ring, from which `/debug/routing` tells, and in sums from
//! which `/metrics` tells ([`Accuracy`]).
//!
//! What it deliberately is not: part of any decision, or of the router, which stays pure.
//!
//! Invariants: nothing here waits for anything but one short section under a lock; at most `records_max` outcomes are
//! kept; an event of a request that is not kept any more changes nothing.

mod accuracy;
mod config;
mod evidence;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use router::DecisionRecord;
use shared::{
    Clock, Decode, DecodeDirectory, DecodeEvent, DecodeRequest, Flow, RequestId, Sink, StartReport,
    Ticket, Timestamp, WorkerRank,
};

pub(crate) use accuracy::{AccuracyFigures, Sums};
pub use config::ExplainConfig;
pub(crate) use evidence::policy as evidence_policy;

use accuracy::Accuracy;

/// What became of one placement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// The request. One that was placed anew has an outcome for each placement.
    pub(crate) id: RequestId,
    /// When it was placed, as its decision record says.
    pub(crate) at: Timestamp,
    /// The decode worker.
    pub(crate) decode: WorkerRank,
    /// Tokens that were expected to be had from a cache, by whichever worker has more.
    pub(crate) predicted_tokens: u32,
    /// What the worker said about its start, and when.
    pub(crate) started: Option<(StartReport, Timestamp)>,
    /// How it ended.
    pub(crate) ended: Option<Ended>,
}

/// The end of one placement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ended {
    pub(crate) how: String,
    /// Since it was placed.
    pub(crate) after: Duration,
    /// Tokens that the worker emitted.
    pub(crate) tokens: u64,
}

/// The outcomes of the last placements. Clones of its `Arc` are held by whoever tells and whoever asks.
pub(crate) struct Outcomes {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    records_max: usize,
}

struct State {
    ring: VecDeque<Outcome>,
    /// How many left the ring: the place of outcome `n` is `n - left`.
    left: u64,
    /// The latest outcome of each request in the ring.
    latest: HashMap<RequestId, u64>,
    accuracy: Accuracy,
}

impl Outcomes {
    /// None yet; `records_max` are kept, 0 keeps none and compares nothing.
    pub(crate) fn new(
        config: &ExplainConfig,
        records_max: usize,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let accuracy = Accuracy::new(config);
        let state = State { ring: VecDeque::new(), left: 0, latest: HashMap::new(), accuracy };
        Arc::new(Self { state: Mutex::new(state), clock, records_max })
    }

    /// Notes a placement; the oldest makes room.
    pub(crate) fn placed(&self, record: &DecisionRecord) {
        if self.records_max == 0 {
            return;
        }
        let outcome = Outcome {
            id: record.id,
            at: record.at,
            decode: record.chosen.decode,
            predicted_tokens: record.chosen.cached_tokens.max(record.prefill_cached_tokens),
            started: None,
            ended: None,
        };
        let mut state = self.state.lock();
        if state.ring.len() == self.records_max {
            state.drop_oldest();
        }
        let number = state.left + length(state.ring.len());
        state.latest.insert(outcome.id, number);
        state.ring.push_back(outcome);
    }

    /// The outcomes of a request's placements, oldest first, as far as they are kept.
    pub(crate) fn of(&self, id: RequestId) -> Vec<Outcome> {
        let state = self.state.lock();
        state.ring.iter().filter(|outcome| outcome.id == id).cloned().collect()
    }

    /// The last outcomes, newest first.
    pub(crate) fn last(&self, count: usize) -> Vec<Outcome> {
        self.state.lock().ring.iter().rev().take(count).cloned().collect()
    }

    /// Prediction against outcome, in sums.
    pub(crate) fn figures(&self) -> AccuracyFigures {
        self.state.lock().accuracy.figures()
    }

    /// The same directory, whose workers' starts and ends are noted.
    pub(crate) fn watch(
        self: &Arc<Self>,
        inner: Arc<dyn DecodeDirectory>,
    ) -> Arc<dyn DecodeDirectory> {
        Arc::new(WatchedDirectory { inner, outcomes: Arc::clone(self) })
    }

    fn started(&self, id: RequestId, decode: WorkerRank, report: StartReport) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let Some(outcome) = state.latest_of(id, decode) else { return };
        if outcome.started.is_some() {
            return;
        }
        outcome.started = Some((report, now));
        let predicted = outcome.predicted_tokens;
        let turn = state.accuracy.note(decode, predicted, report.cached_tokens);
        drop(state);
        turn.log();
    }

    fn ended(&self, id: RequestId, decode: WorkerRank, how: &str, tokens: u64) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if let Some(outcome) = state.latest_of(id, decode)
            && outcome.ended.is_none()
        {
            let after = now.since(outcome.at);
            outcome.ended = Some(Ended { how: how.to_owned(), after, tokens });
        }
    }
}

impl State {
    fn drop_oldest(&mut self) {
        let Some(oldest) = self.ring.pop_front() else { return };
        if self.latest.get(&oldest.id) == Some(&self.left) {
            self.latest.remove(&oldest.id);
        }
        self.left += 1;
    }

    /// The latest placement of a request, if it is the one on this worker.
    fn latest_of(&mut self, id: RequestId, decode: WorkerRank) -> Option<&mut Outcome> {
        let number = *self.latest.get(&id)?;
        let place = usize::try_from(number - self.left).expect("a ring fits in memory");
        self.ring.get_mut(place).filter(|outcome| outcome.decode == decode)
    }
}

/// Finds the same workers, each behind a [`WatchedDecode`].
struct WatchedDirectory {
    inner: Arc<dyn DecodeDirectory>,
    outcomes: Arc<Outcomes>,
}

impl DecodeDirectory for WatchedDirectory {
    fn decode(&self, worker: WorkerRank) -> Option<Arc<dyn Decode>> {
        let inner = self.inner.decode(worker)?;
        Some(Arc::new(WatchedDecode { inner, outcomes: Arc::clone(&self.outcomes), worker }))
    }
}

/// A decode border whose starts and ends are noted.
struct WatchedDecode {
    inner: Arc<dyn Decode>,
    outcomes: Arc<Outcomes>,
    worker: WorkerRank,
}

impl Decode for WatchedDecode {
    fn submit(&self, request: DecodeRequest, sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        let sink = WatchedSink {
            inner: sink,
            outcomes: Arc::clone(&self.outcomes),
            id: request.id,
            worker: self.worker,
            tokens: 0,
            over: false,
        };
        self.inner.submit(request, Box::new(sink))
    }
}

/// Passes events on and notes those that tell something.
struct WatchedSink {
    inner: Box<dyn Sink<DecodeEvent>>,
    outcomes: Arc<Outcomes>,
    id: RequestId,
    worker: WorkerRank,
    tokens: u64,
    over: bool,
}

impl WatchedSink {
    fn end(&mut self, how: &str) {
        if !std::mem::replace(&mut self.over, true) {
            self.outcomes.ended(self.id, self.worker, how, self.tokens);
        }
    }
}

impl Sink<DecodeEvent> for WatchedSink {
    fn emit(&mut self, event: DecodeEvent) -> Flow {
        match &event {
            DecodeEvent::Started(report) => self.outcomes.started(self.id, self.worker, *report),
            DecodeEvent::Token(_) => self.tokens += 1,
            DecodeEvent::Finished(_) => self.end("finished"),
            DecodeEvent::Failed(error) => self.end(&format!("failed: {error}")),
        }
        let flow = self.inner.emit(event);
        if flow == Flow::Closed {
            self.end("cancelled");
        }
        flow
    }
}

impl Drop for WatchedSink {
    fn drop(&mut self) {
        self.end("cancelled, or its worker was lost");
    }
}

fn length(count: usize) -> u64 {
    u64::try_from(count).expect("usize has at most 64 bits")
}

#[cfg(test)]
mod tests;
