//! The router: membership, events, queue and placement behind one set of methods. Time goes in, actions come out.
//!
//! The driver carries out the actions of every call in their order, calls [`Router::tick`] no later than
//! [`Router::next_deadline`] says, and calls [`Router::finished`] once for each request whose ticket was dropped.

#[cfg(test)]
mod churn;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use shared::{
    CacheEvent, LoadReport, PlaceRequest, Placement, RequestId, ServeError, Timestamp, WorkerEvent,
    WorkerRank,
};

use crate::admission::{Completions, Queue, Waiting};
use crate::config::{ConfigError, RouterConfig};
use crate::index::{Applied, JoinError, PrefixIndex, ViewState};
use crate::loads::Loads;
use crate::place::{Blocked, Choice, Facts, choose};
use crate::records::{DecisionLog, DecisionRecord};
use crate::resync::Resyncs;
use crate::role::Role;
use crate::snapshot::{
    LoadSnapshot, PlacedCounters, RefusedCounters, RouterSnapshot, WorkerSnapshot,
};

/// What the driver of a router has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell the request where it runs. It counts as running there until [`Router::finished`].
    Place {
        /// The request.
        id: RequestId,
        /// Where and why.
        placement: Placement,
    },
    /// Tell the request that it will not run. It is forgotten; [`Router::finished`] is not needed.
    Refuse {
        /// The request.
        id: RequestId,
        /// Why.
        error: ServeError,
    },
    /// Ask a member to publish its whole state: `Cleared`, then `Stored` events, in its ordinary sequence.
    Resync {
        /// The member.
        worker: WorkerRank,
    },
}

/// The router's state. Plain data, owned by one thread.
#[derive(Debug)]
pub struct Router {
    config: RouterConfig,
    index: PrefixIndex,
    loads: Loads,
    queue: Queue,
    running: HashMap<RequestId, Running>,
    completions: Completions,
    resyncs: Resyncs,
    decisions: DecisionLog,
    /// When the head of the queue may find a prefill worker without any other event.
    relief_at: Option<Timestamp>,
    counters: Counters,
}

/// A placed request. Bounded by the decode workers' bounds.
#[derive(Debug)]
struct Running {
    decode: WorkerRank,
    prefill: Option<WorkerRank>,
}

#[derive(Debug, Default)]
struct Counters {
    placed: PlacedCounters,
    refused: RefusedCounters,
    withdrawn: u64,
    finished: u64,
    finished_unknown: u64,
    lost_with_worker: u64,
    reports_unknown_worker: u64,
    resyncs: u64,
}

impl Router {
    /// A router without members.
    ///
    /// # Errors
    /// A setting is out of its range.
    pub fn new(config: RouterConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            index: PrefixIndex::new(config.workers_max, config.index_entries_max),
            loads: Loads::new(config.loads, &config.cost),
            queue: Queue::new(config.admission.waiting_max),
            running: HashMap::new(),
            completions: Completions::default(),
            resyncs: Resyncs::new(config.resync),
            decisions: DecisionLog::new(config.records.decisions_max),
            relief_at: None,
            counters: Counters::default(),
            config,
        })
    }

    /// Takes a member, idle and holding nothing. Repeating it for a member with the same role changes nothing; with
    /// another role the member leaves first.
    ///
    /// # Errors
    /// The table of members is full. Nothing changed.
    pub fn worker_joined(
        &mut self,
        worker: WorkerRank,
        role: Role,
        now: Timestamp,
    ) -> Result<Vec<Action>, JoinError> {
        let mut actions = Vec::new();
        match self.index.role(worker) {
            Some(known) if known == role => return Ok(actions),
            Some(_) => actions = self.worker_left(worker, now),
            None => {}
        }
        self.index.join(worker, role)?;
        self.loads.join(worker, role, now);
        self.drain(now, &mut actions);
        Ok(actions)
    }

    /// Forgets a member, its blocks, and the requests that run on it: their owners learn from the broken stream. When
    /// the last decode worker leaves, everything that waits is refused. Unknown members are ignored.
    pub fn worker_left(&mut self, worker: WorkerRank, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        self.index.leave(worker);
        self.loads.leave(worker);
        self.resyncs.settled(worker);
        let (loads, counters) = (&mut self.loads, &mut self.counters);
        self.running.retain(|&id, running| {
            if running.prefill == Some(worker) {
                running.prefill = None;
            }
            if running.decode != worker {
                return true;
            }
            // The chain ends with its decode worker: prefill for it is over, too.
            if let Some(prefill) = running.prefill {
                loads.finish(prefill, id, now);
            }
            counters.lost_with_worker += 1;
            false
        });
        if !self.loads.has_decode() {
            while let Some(waiting) = self.queue.pop() {
                let error = ServeError::NoWorker { role: Role::Decode.as_str() };
                self.refuse(waiting.request.id, error, &mut actions);
            }
        }
        self.drain(now, &mut actions);
        actions
    }

    /// Takes what a member tells about itself. Events of strangers are counted and ignored.
    pub fn worker_event(&mut self, event: &WorkerEvent, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            WorkerEvent::Cache(event) => self.cache_event(event, now, &mut actions),
            WorkerEvent::Load { worker, report } => {
                self.load_event(*worker, report, now, &mut actions);
            }
        }
        actions
    }

    /// Asks for a placement: the answer is among the actions of this or of a later call, exactly once, unless
    /// [`Self::finished`] withdraws the request before.
    ///
    /// An id that is waiting or running already is refused as an internal error; the earlier request is not touched.
    pub fn submit(&mut self, request: PlaceRequest, now: Timestamp) -> Vec<Action> {
        let mut actions = self.tick(now);
        let id = request.id;
        if let Some(error) = self.refusal(&request, now) {
            self.refuse(id, error, &mut actions);
            return actions;
        }
        if self.queue.len() == 0 {
            match choose(&request, self.facts(now)) {
                Ok(choice) => {
                    self.place(&Waiting { request, since: now }, choice, now, &mut actions);
                    return actions;
                }
                Err(blocked) => self.note_blocked(blocked, now),
            }
        }
        if self.queue.is_full() {
            let waiting = self.queue.len();
            let retry_after = self.completions.retry_after(waiting, now, &self.config.admission);
            let error = ServeError::Overloaded {
                waiting,
                waiting_max: self.config.admission.waiting_max,
                retry_after_ms: u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX),
            };
            self.refuse(id, error, &mut actions);
        } else {
            self.queue.push(request, now);
        }
        actions
    }

    /// Ends a request: a placed one frees its workers, a waiting one is withdrawn without an answer, an unknown one is
    /// ignored.
    pub fn finished(&mut self, id: RequestId, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some(running) = self.running.remove(&id) {
            self.loads.finish(running.decode, id, now);
            if let Some(prefill) = running.prefill {
                self.loads.finish(prefill, id, now);
            }
            self.completions.note(now);
            self.counters.finished += 1;
        } else if self.queue.remove(id).is_some() {
            self.counters.withdrawn += 1;
        } else {
            self.counters.finished_unknown += 1;
            return actions;
        }
        self.drain(now, &mut actions);
        actions
    }

    /// Does what is due: refuses expired requests, places one that waited for a prefill worker, repeats requests for
    /// whole states. Calling it early or twice is harmless.
    pub fn tick(&mut self, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        let waiting = self.queue.len();
        self.expire(now, &mut actions);
        let head_changed = self.queue.len() < waiting;
        if head_changed || self.relief_at.is_some_and(|at| at <= now) {
            self.drain(now, &mut actions);
        }
        self.ask_for_states(now, &mut actions);
        actions
    }

    /// When [`Self::tick`] has something to do, if nothing else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        [self.queue.next_deadline(), self.relief_at, self.resyncs.next()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The last decisions, newest first.
    pub fn decisions(&self) -> impl Iterator<Item = &DecisionRecord> {
        self.decisions.iter()
    }

    /// The last decision about a request, while it is kept.
    #[must_use]
    pub fn decision(&self, id: RequestId) -> Option<&DecisionRecord> {
        self.decisions.iter().find(|record| record.id == id)
    }

    /// The state in numbers.
    #[must_use]
    pub fn snapshot(&self, now: Timestamp) -> RouterSnapshot {
        let workers = self.index.members().map(|(worker, role)| {
            let (view, index_entries) = self.index.view(worker).expect("a member has a view");
            let load = self.loads.of(worker).map(|load| LoadSnapshot {
                placed: load.placed(),
                requests: self.loads.requests(load, now),
                rows: load.rows(now),
                rows_per_second: load.pace().rows_per_second(),
                measured: load.is_measured(),
            });
            WorkerSnapshot { worker, role, view, index_entries, load }
        });
        RouterSnapshot {
            waiting: self.queue.len(),
            running: self.running.len(),
            index_entries: self.index.entries(),
            index_blocks: self.index.blocks(),
            index: self.index.counters(),
            placed: self.counters.placed,
            refused: self.counters.refused,
            withdrawn: self.counters.withdrawn,
            finished: self.counters.finished,
            lost_with_worker: self.counters.lost_with_worker,
            finished_unknown: self.counters.finished_unknown,
            reports_unknown_worker: self.counters.reports_unknown_worker,
            resyncs: self.counters.resyncs,
            workers: workers.collect(),
        }
    }

    fn cache_event(&mut self, event: &CacheEvent, now: Timestamp, actions: &mut Vec<Action>) {
        match self.index.apply(event) {
            Applied::AfterGap => self.resyncs.need(event.worker, now),
            Applied::InOrder => {
                let complete = |(state, _)| state == ViewState::Complete;
                if self.index.view(event.worker).is_some_and(complete) {
                    self.resyncs.settled(event.worker);
                }
            }
            Applied::Duplicate | Applied::OldIncarnation | Applied::UnknownWorker => {}
        }
        self.ask_for_states(now, actions);
    }

    fn load_event(
        &mut self,
        worker: WorkerRank,
        report: &LoadReport,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        if self.loads.report(worker, report, now) {
            self.drain(now, actions);
        } else {
            self.counters.reports_unknown_worker += 1;
        }
    }

    fn facts(&self, now: Timestamp) -> Facts<'_> {
        Facts { config: &self.config, index: &self.index, loads: &self.loads, now }
    }

    /// Why a new request cannot even wait.
    fn refusal(&self, request: &PlaceRequest, now: Timestamp) -> Option<ServeError> {
        let id = request.id;
        if self.running.contains_key(&id) || self.queue.contains(id) {
            let message = format!("request {id} was submitted twice; request ids must be unique");
            return Some(ServeError::Internal { message });
        }
        if request.deadline.is_some_and(|deadline| deadline <= now) {
            return Some(ServeError::DeadlineExceeded { stage: "queued" });
        }
        (!self.loads.has_decode()).then(|| ServeError::NoWorker { role: Role::Decode.as_str() })
    }

    /// Places from the head of the queue until one cannot be placed.
    fn drain(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        self.expire(now, actions);
        self.relief_at = None;
        while let Some(head) = self.queue.head() {
            match choose(&head.request, self.facts(now)) {
                Ok(choice) => {
                    let waiting = self.queue.pop().expect("the head is there");
                    self.place(&waiting, choice, now, actions);
                }
                Err(blocked) => {
                    self.note_blocked(blocked, now);
                    return;
                }
            }
        }
    }

    fn note_blocked(&mut self, blocked: Blocked, now: Timestamp) {
        self.relief_at = match blocked {
            // Only another call frees a decode worker.
            Blocked::Decode => None,
            Blocked::Prefill => self.loads.prefill_relief(now),
        };
    }

    fn expire(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        while let Some(waiting) = self.queue.pop_expired(now) {
            let error = ServeError::DeadlineExceeded { stage: "queued" };
            self.refuse(waiting.request.id, error, actions);
        }
    }

    fn place(
        &mut self,
        waiting: &Waiting,
        choice: Choice,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        let id = waiting.request.id;
        let Choice { placement, prompt, decode, prefill, .. } = choice;
        self.loads.place(placement.decode, id, decode.rows, now);
        if let Some(prefill) = prefill {
            self.loads.place(prefill.candidate.prefill, id, prefill.rows, now);
        }
        let running = Running { decode: placement.decode, prefill: placement.prefill };
        self.running.insert(id, running);
        self.counters.placed.add(decode.kind);
        self.decisions.push(DecisionRecord {
            id,
            at: now,
            waited: now.since(waiting.since),
            prompt_tokens: prompt.tokens,
            boundary: prompt.boundary,
            kind: decode.kind,
            chosen: decode.candidate,
            prefill_cached_tokens: prefill.map_or(0, |start| start.candidate.cached_tokens),
            decode_candidates: choice.decode_candidates,
            prefill_candidates: choice.prefill_candidates,
        });
        actions.push(Action::Place { id, placement });
    }

    fn refuse(&mut self, id: RequestId, error: ServeError, actions: &mut Vec<Action>) {
        let refused = &mut self.counters.refused;
        let counter = match error {
            ServeError::Overloaded { .. } => &mut refused.overloaded,
            ServeError::DeadlineExceeded { .. } => &mut refused.deadline,
            ServeError::NoWorker { .. } => &mut refused.no_worker,
            _ => &mut refused.duplicate,
        };
        *counter += 1;
        actions.push(Action::Refuse { id, error });
    }

    fn ask_for_states(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        for worker in self.resyncs.due(now) {
            self.counters.resyncs += 1;
            actions.push(Action::Resync { worker });
        }
    }
}
