//! What the worker tells the router about itself.

use std::time::Duration;

use shared::{CacheChange, CacheEvent, Flow, LoadReport, Sink, Timestamp, WorkerEvent, WorkerRank};

/// Numbers cache changes without gaps and sends load reports when something changed, or after a while.
pub(super) struct Reporter {
    /// None once the sink closed: nobody listens any more.
    events: Option<Box<dyn Sink<WorkerEvent>>>,
    rank: WorkerRank,
    incarnation: u64,
    sequence: u64,
    interval: Duration,
    last: Option<(LoadReport, Timestamp)>,
}

impl Reporter {
    pub(super) fn new(
        rank: WorkerRank,
        incarnation: u64,
        interval: Duration,
        events: Box<dyn Sink<WorkerEvent>>,
    ) -> Self {
        Self { events: Some(events), rank, incarnation, sequence: 0, interval, last: None }
    }

    pub(super) fn rank(&self) -> WorkerRank {
        self.rank
    }

    pub(super) fn cache(&mut self, changes: Vec<CacheChange>) {
        for change in changes {
            let Self { rank: worker, incarnation, sequence, .. } = *self;
            self.emit(WorkerEvent::Cache(CacheEvent { worker, incarnation, sequence, change }));
            self.sequence += 1;
        }
    }

    pub(super) fn load(&mut self, report: LoadReport, now: Timestamp) {
        // Progress and rates are of use after a while only; they go along with what changes.
        let fresh = self.last.as_ref().is_some_and(|(last, at)| {
            let same = LoadReport { progress: last.progress, rates: last.rates, ..report };
            *last == same && now.since(*at) < self.interval
        });
        if fresh {
            return;
        }
        self.last = Some((report, now));
        self.emit(WorkerEvent::Load { worker: self.rank, report });
    }

    fn emit(&mut self, event: WorkerEvent) {
        let Some(events) = &mut self.events else { return };
        if events.emit(event) == Flow::Closed {
            tracing::warn!(worker = %self.rank, "nobody takes this worker's reports any more");
            self.events = None;
        }
    }
}
