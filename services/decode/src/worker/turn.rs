//! The loop: take what arrived, admit, start, compute one step, report.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use shared::{
    BLOCK_TOKENS, DecodeEvent, FinishReason, Flow, Grouped, NameCache, ServeError, StartReport,
    Timestamp, WorkerRank,
};

use crate::config::DecodeConfig;
use crate::guides::GuidePool;
use crate::mailbox::{Command, Life, Note, OperationId, Submission};
use crate::scheduler::{Arrival, Scheduler, SchedulerLimits, SequenceKey, Stage};
use crate::stats::DecodeStats;
use crate::worker::active::Active;
use crate::worker::core::{Core, Operation, count, index, widen};
use crate::worker::job::{Job, JobState, ModelLimits, Report, Verdict, examine};
use crate::worker::start::{Ready, Start};
use crate::worker::step::StepBuffers;
use crate::worker::{DecodeParts, Shared};

/// How long the loop sleeps at most while a start has a deadline to watch. Everything else wakes it.
const WATCH_INTERVAL: Duration = Duration::from_millis(10);
/// How long it waits for a slot that a store's read still holds.
const STALL_INTERVAL: Duration = Duration::from_millis(1);

/// How a request ends.
pub(super) enum End {
    Finished(FinishReason),
    Failed(ServeError),
    /// Nobody listens any more.
    Cancelled,
}

/// The state of the thread.
pub(super) struct Loop {
    pub(super) core: Core,
    pub(super) scheduler: Scheduler,
    pub(super) jobs: BTreeMap<SequenceKey, Job>,
    pub(super) guides: Option<Arc<GuidePool>>,
    pub(super) shared: Arc<Shared>,
    limits: ModelLimits,
    /// Names that were computed for earlier requests.
    names: NameCache,
    commands: VecDeque<Command>,
    expired: Vec<(SequenceKey, Stage)>,
    buffers: StepBuffers,
    wait: Duration,
    draining: bool,
}

impl Loop {
    pub(super) fn new(
        config: DecodeConfig,
        parts: DecodeParts,
        guides: Option<Arc<GuidePool>>,
        shared: Arc<Shared>,
    ) -> Self {
        let model = parts.engine.config();
        let limits = ModelLimits { vocabulary: model.vocab, context_tokens_max: model.context };
        let scheduler = Scheduler::new(SchedulerLimits {
            // Open offers pin blocks that no sequence may need any more.
            blocks_max: count(parts.pool.total() - config.offers_max),
            sequences_max: config.sequences_max,
            waiting_max: config.waiting_max,
            decode_rows_step_max: config.decode_rows_step_max,
            tail_rows_step_max: config.tail_rows_step_max,
            context_tokens_max: limits.context_tokens_max,
        });
        let mut core = Core::new(config, parts, Arc::clone(&shared.mailbox));
        core.announce();
        Self {
            core,
            scheduler,
            jobs: BTreeMap::new(),
            guides,
            shared,
            limits,
            names: NameCache::new(NameCache::STANDARD_BYTES),
            commands: VecDeque::new(),
            expired: Vec::new(),
            buffers: StepBuffers::default(),
            wait: Duration::ZERO,
            draining: false,
        }
    }

    pub(super) fn rank(&self) -> WorkerRank {
        self.core.rank
    }

    /// One turn; `Closed` when the worker shall stop.
    pub(super) fn turn(&mut self) -> Flow {
        let mut commands = std::mem::take(&mut self.commands);
        let life = self.shared.mailbox.take(self.wait, &mut commands);
        if life == Life::Stopping {
            self.commands = commands;
            return Flow::Closed;
        }
        self.draining = life == Life::Draining;
        let now = self.core.clock.now();
        for command in commands.drain(..) {
            self.take(command, now);
        }
        self.commands = commands;
        self.expire(now);
        self.core.withdraw_offers(now);
        while let Some(key) = self.scheduler.admit() {
            self.begin_start(key, now);
        }
        self.advance_starts(now);
        self.draw_held();
        let computed = self.compute();
        if computed.is_none() {
            self.core.rates.waited();
        }
        self.wait = match (computed, self.jobs.is_empty()) {
            (Some(true), _) => Duration::ZERO,
            (Some(false), _) => STALL_INTERVAL,
            (None, false) => WATCH_INTERVAL,
            (None, true) => self.core.config.report_interval(),
        };
        self.report();
        Flow::Open
    }

    /// The worker ends: everybody is told.
    pub(super) fn shut_down(&mut self, error: &ServeError) {
        for command in self.shared.mailbox.close() {
            if let Command::Submit(Submission { mut sink, .. }) = command {
                // The last event of a request; a closed sink has nothing left to hear.
                let _: Flow = sink.emit(DecodeEvent::Failed(error.clone()));
            }
        }
        for (_, mut job) in std::mem::take(&mut self.jobs) {
            // As above.
            let _: Flow = job.sink.emit(DecodeEvent::Failed(error.clone()));
        }
    }

    fn take(&mut self, command: Command, now: Timestamp) {
        match command {
            Command::Submit(submission) => self.accept(submission),
            Command::Cancel(key) => self.end(key, End::Cancelled),
            Command::Note(operation, note) => self.note(operation, note, now),
        }
    }

    fn accept(&mut self, submission: Submission) {
        let Submission { key, request, mut sink, guide } = submission;
        let refused = match examine(&request, self.limits, &mut self.names) {
            Verdict::Refused(error) => error,
            Verdict::Over(reason) => {
                self.core.stats.requests += 1;
                self.core.stats.finished += 1;
                // The only event of a request that was over before; a closed sink has nothing left to hear.
                let _: Flow = sink.emit(DecodeEvent::Finished(reason));
                return;
            }
            Verdict::Serve { tokens_max } => {
                let known = count(request.prompt.len() + request.emitted.len());
                let bound = self.scheduler.bound(known, tokens_max);
                let queued = bound.and_then(|tokens_max| {
                    let deadline = request.deadline;
                    let arrival = Arrival { key, tokens: known, tokens_max, deadline };
                    self.scheduler.submit(arrival).map(|()| tokens_max)
                });
                match queued {
                    Ok(tokens_max) => {
                        self.core.stats.requests += 1;
                        self.jobs.insert(key, Job::new(request, sink, guide, tokens_max));
                        return;
                    }
                    Err(error) => error,
                }
            }
        };
        self.core.stats.refused += 1;
        tracing::debug!(id = %request.id, %refused, "refused a request");
        // The only event of a refused request; a closed sink has nothing left to hear.
        let _: Flow = sink.emit(DecodeEvent::Failed(refused));
    }

    fn note(&mut self, operation: OperationId, note: Note, now: Timestamp) {
        if let Note::Offered(event) = note {
            self.core.offered(operation, event);
            return;
        }
        let over = matches!(note, Note::Over);
        let (key, kind) = match self.core.operations.get(&operation) {
            None => return,
            Some(Operation::Offer { .. }) => {
                if over {
                    self.core.offer_over(operation);
                }
                return;
            }
            Some(Operation::Locate(key)) => (*key, Kind::Locate),
            Some(Operation::Prefill(key)) => (*key, Kind::Prefill),
            Some(Operation::Read(key)) => (*key, Kind::Read),
        };
        if over {
            self.core.operations.remove(&operation);
        }
        let start = match self.jobs.get_mut(&key).map(|job| &mut job.state) {
            Some(JobState::Starting(start)) => Some(start),
            Some(JobState::Waiting | JobState::Active(_)) | None => None,
        };
        match (note, start) {
            (Note::Located(event), Some(start)) => {
                start.located(&mut self.core, operation, Some(event));
            }
            (Note::Read(done), Some(start)) => {
                if let Some((wanted, slot)) = start.reads.done(&mut self.core, operation, done, now)
                {
                    start.fetched(wanted.target, slot, wanted.cached);
                }
            }
            (Note::Prefill(event), Some(start)) => start.prefill_event(operation, event, now),
            (Note::Over, Some(start)) => match kind {
                Kind::Locate => start.located(&mut self.core, operation, None),
                Kind::Prefill => start.prefill_over(operation, now),
                Kind::Read => start.reads.over(&mut self.core, operation, now),
            },
            // The start is gone: what comes back is dropped, which returns its slots.
            (_, None) | (Note::Offered(_), Some(_)) => {}
        }
        if over && kind == Kind::Read && self.core.read_over(key) {
            self.release(key);
        }
    }

    fn expire(&mut self, now: Timestamp) {
        let mut expired = std::mem::take(&mut self.expired);
        self.scheduler.expired(now, &mut expired);
        for (key, stage) in &expired {
            self.end(*key, End::Failed(ServeError::DeadlineExceeded { stage: stage.as_str() }));
        }
        self.expired = expired;
    }

    fn begin_start(&mut self, key: SequenceKey, now: Timestamp) {
        let job = self.jobs.get_mut(&key).expect("an admitted sequence has a job");
        if job.starts != 0 || !job.request.emitted.is_empty() {
            self.core.stats.resumes += 1;
        }
        job.starts += 1;
        let basis = job.basis(self.core.engine.geometry(), self.core.config.resume_exact_tokens);
        let asked = job.asked(key, basis);
        job.state = JobState::Starting(Box::new(Start::begin(&mut self.core, asked, now)));
    }

    fn advance_starts(&mut self, now: Timestamp) {
        let mut ready = Vec::new();
        for (key, job) in &mut self.jobs {
            if let JobState::Starting(start) = &mut job.state
                && let Some(done) = start.advance(&mut self.core, now)
            {
                ready.push((*key, start.asked.basis, done));
            }
        }
        for (key, basis, done) in ready {
            let job = self.jobs.get_mut(&key).expect("taken from the jobs above");
            self.core.forget_start(key);
            note_start(&mut self.core.stats, job, &done);
            self.shared.records.keep(done.record.clone());
            if done.window_is_new
                && let Some((end, window)) = &done.window
            {
                let group = job.chain.grouped(index(end / BLOCK_TOKENS) - 1).group;
                let window = Grouped { item: window.clone(), group };
                self.core.offer(job.request.context(), vec![window]);
            }
            let (active, tail) =
                Active::begin(&self.core, job.request.context(), basis, &job.ids, done);
            job.state = JobState::Active(Box::new(active));
            self.scheduler.started(key, tail);
        }
    }

    /// Plans and computes one step. None when no sequence has rows, false when none of them could be computed.
    fn compute(&mut self) -> Option<bool> {
        if !self.scheduler.has_rows() {
            return None;
        }
        let mut buffers = std::mem::take(&mut self.buffers);
        self.scheduler.plan(&mut buffers.plan);
        for key in &buffers.plan.preempt {
            self.preempt(*key);
        }
        let gave_way = !buffers.plan.preempt.is_empty();
        let computed = self.step(&mut buffers);
        self.buffers = buffers;
        Some(computed || gave_way)
    }

    fn preempt(&mut self, key: SequenceKey) {
        self.core.stats.preemptions += 1;
        let job = self.jobs.get_mut(&key).expect("a live sequence has a job");
        tracing::debug!(id = %job.request.id, tokens = job.ids.len(), "a sequence gives way");
        let state = std::mem::replace(&mut job.state, JobState::Waiting);
        // The row is computed again, with the same logits.
        job.held = Vec::new();
        if let JobState::Active(active) = &state {
            active.publish_last(&mut self.core, &job.chain);
        }
        drop(state);
        self.core.forget_start(key);
        if !self.core.has_reads(key) {
            self.scheduler.released(key);
        }
    }

    /// Ends a request: the last event, then everything it holds goes back. An unknown key is a cancel that came late.
    pub(super) fn end(&mut self, key: SequenceKey, end: End) {
        let Some(mut job) = self.jobs.remove(&key) else { return };
        if let JobState::Active(active) = &job.state {
            active.publish_last(&mut self.core, &job.chain);
        }
        let last = match end {
            End::Finished(reason) => {
                self.core.stats.finished += 1;
                Some(DecodeEvent::Finished(reason))
            }
            End::Failed(error) => {
                self.core.stats.failed += 1;
                tracing::debug!(id = %job.request.id, %error, "a request failed");
                Some(DecodeEvent::Failed(error))
            }
            End::Cancelled => {
                self.core.stats.cancelled += 1;
                None
            }
        };
        // Slots go back before the client hears of the end, so that its next request finds them.
        job.state = JobState::Waiting;
        self.core.forget_start(key);
        if self.scheduler.end(key) {
            self.release(key);
        }
        if let Some(last) = last {
            // The last event; a closed sink has nothing left to hear.
            let _: Flow = job.sink.emit(last);
        }
    }

    /// Tells the scheduler that a leaving sequence holds nothing any more, unless a transport still has its slots.
    fn release(&mut self, key: SequenceKey) {
        if self.scheduler.stage(key) == Some(Stage::Leaving) && !self.core.has_reads(key) {
            self.scheduler.released(key);
        }
    }

    fn report(&mut self) {
        let stats = &mut self.core.stats;
        stats.waiting = widen(self.scheduler.waiting());
        stats.running = widen(self.scheduler.live());
        stats.blocks_reserved = u64::from(self.scheduler.blocks_reserved());
        stats.commands_promised = widen(self.shared.mailbox.promised());
        self.core.publish_changes();
        let now = self.core.clock.now();
        self.core.publish_load(now, self.scheduler.pending_rows(), self.draining);
        *self.shared.stats.lock() = self.core.stats;
        let open = self.jobs.len() + self.core.operations.len() + self.scheduler.live();
        self.shared.mailbox.rest(open);
    }
}

/// What kind of operation of a start a note is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Locate,
    Prefill,
    Read,
}

/// Counts a start, and keeps what the client will be told about the first one.
fn note_start(stats: &mut DecodeStats, job: &mut Job, ready: &Ready) {
    let report = ready.report;
    stats.replayed_tokens += u64::from(report.replayed_tokens);
    stats.bytes_fetched += report.bytes_fetched;
    job.report = match job.report {
        Report::Unknown => {
            stats.prompt_tokens += widen(job.request.prompt.len());
            stats.cached_tokens += u64::from(report.cached_tokens);
            Report::Known(report)
        }
        // It gave way before its first token: what is cached now is its own work, but exactness is decided anew.
        Report::Known(first) => Report::Known(StartReport { exact: report.exact, ..first }),
        Report::Sent => Report::Sent,
    };
}
