//! The router: membership, events, queue and placement behind one set of methods. Time goes in, actions come out.
//!
//! The driver carries out the actions of every call in their order, calls [`Router::tick`] no later than
//! [`Router::next_deadline`] says, and calls [`Router::finished`] once for each request whose ticket was dropped.

#[cfg(test)]
mod admitting;
#[cfg(test)]
mod churn;
#[cfg(test)]
mod expected;
mod learning;
mod peers;
mod queueing;
#[cfg(test)]
mod repair;
#[cfg(test)]
mod soak;
#[cfg(test)]
mod steering;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use shared::{
    BlockName, CacheChange, CacheEvent, CacheQuestion, LoadReport, Placement, RequestId,
    ServeError, Timestamp, WorkerEvent, WorkerRank,
};

use crate::admission::Completions;
use crate::answers::AnswerLength;
use crate::config::{ConfigError, RouterConfig};
use crate::index::{Applied, JoinError, PrefixIndex, ViewState};
use crate::life::Lives;
use crate::loads::Loads;
use crate::place::{Facts, Scratch};
use crate::queue::{Queue, QueueLimits};
use crate::records::{DecisionLog, DecisionRecord, Expected, LegEnd, PredictionCounters};
use crate::resync::{Resyncs, Step};
use crate::role::Role;
use crate::snapshot::{
    LoadSnapshot, PlacedCounters, RateSnapshot, RefusedCounters, ResyncCounters, RouterSnapshot,
    WorkerSnapshot,
};
use peers::Peers;

pub use peers::{PEER_REFRESH, PEER_SILENCE, PeerSnapshot, RESERVED_NAMES_MAX, Reservation};

/// How often workers are looked at for having become stuck; only the counter of such workers waits for it.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

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
    /// Ask a member whose events were lost; the answer comes in its ordinary sequence.
    Resync {
        /// The member.
        worker: WorkerRank,
        /// What to ask it for.
        question: CacheQuestion,
    },
}

/// The router's state. Plain data, owned by one thread.
#[derive(Debug)]
pub struct Router {
    config: RouterConfig,
    index: PrefixIndex,
    loads: Loads,
    lives: Lives,
    queue: Queue,
    running: HashMap<RequestId, Running>,
    completions: Completions,
    answers: AnswerLength,
    resyncs: Resyncs,
    decisions: DecisionLog,
    peers: Peers,
    /// When something that waits may find a worker without any other event.
    relief_at: Option<Timestamp>,
    /// When workers were looked at last.
    looked_at: Timestamp,
    /// Raised when prefill workers come, go or drain: what waits for one is tried anew.
    prefill_state: u64,
    /// The decode worker and the prefill worker chosen last.
    last: (Option<WorkerRank>, Option<WorkerRank>),
    scratch: RefCell<Scratch>,
    counters: Counters,
}

/// A placed request. Bounded by the decode workers' bounds.
#[derive(Debug)]
struct Running {
    decode: WorkerRank,
    prefill: Option<WorkerRank>,
    decode_rows: u64,
    prefill_rows: u64,
    /// Of the prompt's whole blocks.
    names: Arc<[BlockName]>,
    /// None once it started.
    expected: Option<Expected>,
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
    outcomes_unknown: u64,
    overtaken: u64,
    resyncs: ResyncCounters,
    predictions: PredictionCounters,
}

impl Router {
    /// A router without members.
    ///
    /// # Errors
    /// A setting is out of its range.
    pub fn new(config: RouterConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let limits = QueueLimits {
            waiting_max: config.admission.waiting_max,
            passes_max: config.admission.priority_passes_max,
            tenants_max: config.admission.tenants_max,
        };
        let weights = config.tenant_weights.iter().map(|(id, &weight)| (id.tag(), weight));
        Ok(Self {
            index: PrefixIndex::new(config.workers_max, config.index_entries_max)
                .with_drives(config.index_drive_blocks_max)
                .with_expectations(config.expected_blocks_max),
            loads: Loads::new(config.loads, &config.cost),
            lives: Lives::new(config.life, config.seed),
            queue: Queue::new(limits, weights.collect()),
            running: HashMap::new(),
            completions: Completions::default(),
            answers: AnswerLength::assumed(config.cost.answer_tokens),
            resyncs: Resyncs::new(config.resync),
            decisions: DecisionLog::new(config.records.decisions_max),
            peers: Peers::default(),
            relief_at: None,
            looked_at: Timestamp(0),
            prefill_state: 0,
            last: (None, None),
            scratch: RefCell::default(),
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
        self.lives.join(worker, role, now);
        self.prefill_state += u64::from(role == Role::Prefill);
        self.drain(now, &mut actions);
        Ok(actions)
    }

    /// Forgets a member, its blocks, and the requests that run on it: their owners learn from the broken stream. When
    /// the last decode worker leaves, everything that waits is refused. Unknown members are ignored.
    pub fn worker_left(&mut self, worker: WorkerRank, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        self.prefill_state += u64::from(self.index.role(worker) == Some(Role::Prefill));
        self.index.leave(worker);
        self.loads.leave(worker);
        self.lives.leave(worker, now);
        self.peers.worker_left(worker);
        self.resyncs.settled(worker);
        self.forget_running(worker, now);
        self.refuse_all_without_decode(&mut actions);
        self.drain(now, &mut actions);
        actions
    }

    /// Notes that the events of a member ended, and that it will tell all it holds from the beginning: what it told counts no
    /// more. It stays a member, and what is placed there goes on. Unknown members are ignored.
    pub fn view_lost(&mut self, worker: WorkerRank) {
        self.index.doubt(worker);
        self.index.distrust(worker);
        // Nothing is to be asked for: it comes.
        self.resyncs.settled(worker);
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

    /// Ends a request: a placed one frees its workers, a waiting one is withdrawn without an answer, an unknown one is
    /// ignored.
    pub fn finished(&mut self, id: RequestId, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some(running) = self.running.remove(&id) {
            for worker in [Some(running.decode), running.prefill].into_iter().flatten() {
                self.loads.finish(worker, id, now);
                self.lives.finished(worker, id);
            }
            if let Some(record) = self.decisions.of_mut(id)
                && record.chosen.decode == running.decode
            {
                record.end(LegEnd::LetGo, now);
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

    /// Does what is due: refuses expired requests, places those whose wait ends by time alone, forgets what runs on workers
    /// whose drain took too long, repeats requests to members whose events were lost. Calling it early or twice is harmless.
    pub fn tick(&mut self, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        self.index.expire(now);
        if LOOK_PERIOD <= now.since(self.looked_at) {
            self.looked_at = now;
            self.lives.look(&self.loads, now);
        }
        let cut_off = self.lives.drained_out(now);
        for &worker in &cut_off {
            self.forget_running(worker, now);
        }
        let waiting = self.queue.len();
        self.expire_peers(now, &mut actions);
        self.expire(now, &mut actions);
        let head_changed = self.queue.len() < waiting;
        let room_changed = head_changed || !cut_off.is_empty();
        if room_changed || self.relief_at.is_some_and(|at| at <= now) {
            self.drain(now, &mut actions);
        }
        self.ask_for_states(now, &mut actions);
        actions
    }

    /// When [`Self::tick`] has something to do, if nothing else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let queue = [self.queue.next_deadline(), self.relief_at];
        let members = [self.resyncs.next(), self.lives.next_drain()];
        queue.into_iter().chain(members).flatten().min()
    }

    /// The last decisions, newest first.
    pub fn decisions(&self) -> impl Iterator<Item = &DecisionRecord> {
        self.decisions.iter()
    }

    /// The last decision about a request, while it is kept.
    #[must_use]
    pub fn decision(&self, id: RequestId) -> Option<&DecisionRecord> {
        self.decisions.of(id)
    }

    /// The state in numbers.
    #[must_use]
    pub fn snapshot(&self, now: Timestamp) -> RouterSnapshot {
        let workers = self.index.members().map(|(worker, role)| {
            let (view, index_entries) = self.index.view(worker).expect("a member has a view");
            let load = self.load_snapshot(worker, now);
            let ranges_suspect = self.index.suspect(worker).len();
            let unindexed = self.index.unindexed(worker);
            WorkerSnapshot { worker, role, view, ranges_suspect, index_entries, unindexed, load }
        });
        let (tenants, tenants_waiting) = self.queue.tenants();
        RouterSnapshot {
            policy: self.config.policy,
            waiting: self.queue.len(),
            waiting_by_class: self.queue.by_class(),
            tenants,
            tenants_waiting,
            life: self.lives.counters,
            remembered: self.lives.remembered(),
            predictions: self.counters.predictions,
            answer_tokens: self.answers.tokens(),
            overtaken: self.counters.overtaken,
            outcomes_unknown: self.counters.outcomes_unknown,
            running: self.running.len(),
            index_entries: self.index.entries(),
            index_blocks: self.index.blocks(),
            index_drive_blocks: self.index.drive_blocks(),
            expected: self.index.expected(),
            expected_blocks: self.index.expectation_blocks(),
            index: self.index.counters(),
            placed: self.counters.placed,
            refused: self.counters.refused,
            withdrawn: self.counters.withdrawn,
            finished: self.counters.finished,
            lost_with_worker: self.counters.lost_with_worker,
            finished_unknown: self.counters.finished_unknown,
            reports_unknown_worker: self.counters.reports_unknown_worker,
            resyncs: self.counters.resyncs,
            peers: self.peers.snapshot(),
            workers: workers.collect(),
        }
    }

    fn load_snapshot(&self, worker: WorkerRank, now: Timestamp) -> Option<LoadSnapshot> {
        let load = self.loads.of(worker)?;
        Some(LoadSnapshot {
            placed: load.placed(),
            requests: self.loads.requests(load, now),
            rows: load.rows(now),
            rows_per_second: load.rates().pace.rows_per_second(),
            measured: load.is_measured(),
            rates: RateSnapshot::of(load.rates()),
            life: self.lives.snapshot(worker, now),
        })
    }

    /// Lets go of what runs on a worker. Its owners go on as they do.
    fn forget_running(&mut self, worker: WorkerRank, now: Timestamp) {
        let Self { running, loads, lives, counters, .. } = self;
        running.retain(|&id, running| {
            let mut end = |worker| {
                loads.finish(worker, id, now);
                lives.finished(worker, id);
            };
            if running.decode != worker {
                running.prefill.take_if(|prefill| *prefill == worker).into_iter().for_each(end);
                return true;
            }
            // The chain ends with its decode worker: prefill for it is over, too, and probes nobody any more.
            end(worker);
            running.prefill.into_iter().for_each(end);
            counters.lost_with_worker += 1;
            false
        });
    }

    fn cache_event(&mut self, event: &CacheEvent, now: Timestamp, actions: &mut Vec<Action>) {
        let worker = event.worker;
        let applied = self.index.apply(event);
        let stale = self.index.view(worker).is_some_and(|(state, _)| state == ViewState::Stale);
        let located = matches!(event.change, CacheChange::Digests(_));
        match applied {
            Applied::AfterGap | Applied::InOrder if !stale => self.resyncs.settled(worker),
            Applied::AfterGap | Applied::InOrder if located => self.resyncs.narrowed(worker, now),
            Applied::AfterGap => self.resyncs.need(worker, now),
            Applied::InOrder
            | Applied::Duplicate
            | Applied::OldIncarnation
            | Applied::UnknownWorker => {}
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
        if !self.loads.report(worker, report, now) {
            self.counters.reports_unknown_worker += 1;
            return;
        }
        let busy = self.loads.is_busy(worker);
        self.lives.reported(worker, report.progress, busy, now);
        self.reported_drain(worker, report.draining, now, actions);
        self.drain(now, actions);
    }

    fn facts(&self, now: Timestamp) -> Facts<'_> {
        Facts {
            config: &self.config,
            index: &self.index,
            loads: &self.loads,
            lives: &self.lives,
            answer_tokens: self.answers.tokens(),
            last: self.last,
            now,
            scratch: &self.scratch,
        }
    }

    fn ask_for_states(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        for (worker, step) in self.resyncs.due(now) {
            let asked = &mut self.counters.resyncs;
            let question = match step {
                Step::Digests => {
                    asked.digests += 1;
                    CacheQuestion::Digests
                }
                Step::Ranges => {
                    asked.ranges += 1;
                    CacheQuestion::Ranges(self.index.suspect(worker))
                }
                Step::Whole => {
                    asked.whole += 1;
                    self.index.distrust(worker);
                    CacheQuestion::Whole
                }
            };
            actions.push(Action::Resync { worker, question });
        }
    }
}
