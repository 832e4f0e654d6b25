//! One turn of the loop: take what arrived, start what can start, compute one step, report.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use engine::{Engine, KvSlab};
use kvstore::{Pool, StartRecords, Transport};
use parking_lot::Mutex;
use shared::{
    BlockStore, Clock, Flow, LoadReport, NameCache, ObjectKind, OfferOutcome, PrefillEvent,
    ServeError, SlotMemory, Timestamp, WorkerRank,
};

use super::PrefillParts;
use super::job::{Job, Stage};
use super::offers::Offers;
use super::report::Reporter;
use super::speed::Speed;
use crate::config::PrefillConfig;
use crate::mailbox::{Command, Life, Mailbox, Work};
use crate::scheduler::{Chunk, PrefillId, Scheduler, SchedulerLimits};
use crate::stats::PrefillStats;

/// How long the loop sleeps when a request waits for slots. Most slots come back with a message that ends the sleep;
/// the last reader of a slot sends none, so there must be a look at the pool now and then. Short beside a step.
const SLOT_POLL: Duration = Duration::from_millis(5);

/// The state of the worker's thread.
pub(super) struct Loop {
    pub(super) config: PrefillConfig,
    pub(super) engine: Arc<Engine>,
    pub(super) slab: Arc<KvSlab>,
    pub(super) pool: Pool,
    pub(super) windows: Pool,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) store: Arc<dyn BlockStore>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) scheduler: Scheduler,
    /// By id, so that whatever visits all of them does it in the order of arrival.
    pub(super) jobs: BTreeMap<PrefillId, Job>,
    pub(super) offers: Offers,
    pub(super) speed: Speed,
    pub(super) stats: PrefillStats,
    /// Names that were computed for earlier requests.
    pub(super) names: NameCache,
    pub(super) chunks: Vec<Chunk>,
    pub(super) records: Arc<StartRecords>,
    published: Arc<Mutex<PrefillStats>>,
    reporter: Reporter,
    /// When unfinished requests were last told that the worker lives.
    signed: Timestamp,
    commands: VecDeque<Command>,
    draining: bool,
    /// Turns with nothing to compute: no request, or all of them wait for others.
    waits: u64,
}

impl Loop {
    pub(super) fn new(
        config: PrefillConfig,
        parts: PrefillParts,
        mailbox: Arc<Mailbox>,
        published: Arc<Mutex<PrefillStats>>,
        records: Arc<StartRecords>,
    ) -> Self {
        let PrefillParts { rank, engine, slab, pool, windows, transport, store, clock, events } =
            parts;
        let layout = engine.layout();
        assert_eq!(pool.config().kind, ObjectKind::Block, "the pool holds blocks");
        assert_eq!(slab.slot_bytes(), layout.block_bytes(), "a slot of the slab is one block");
        assert_eq!(pool.memory().slots(), slab.slots(), "the pool keeps the books of the slab");
        assert_eq!(windows.config().kind, ObjectKind::Window, "this pool holds window objects");
        assert!(layout.window_bytes() <= windows.memory().slot_bytes(), "a window object fits");
        let scheduler = Scheduler::new(SchedulerLimits {
            step_rows_max: config.step_rows_max,
            waiting_max: config.waiting_max,
            running_max: config.running_max,
            held_max: config.held_max,
            window_interval: config.window_interval,
        });
        let mut reporter =
            Reporter::new(rank, clock.incarnation(), config.report_interval(), events);
        // A fresh incarnation begins with what the pool holds, so that the index needs no memory of the last one.
        reporter.cache(pool.resync_changes());
        Self {
            offers: Offers::new(config.offers_max, config.durability),
            speed: Speed::new(&config),
            signed: clock.now(),
            config,
            engine,
            slab,
            pool,
            windows,
            transport,
            store,
            clock,
            mailbox,
            scheduler,
            jobs: BTreeMap::new(),
            stats: PrefillStats::default(),
            names: NameCache::new(NameCache::STANDARD_BYTES),
            chunks: Vec::new(),
            records,
            published,
            reporter,
            commands: VecDeque::new(),
            draining: false,
            waits: 0,
        }
    }

    pub(super) fn rank(&self) -> WorkerRank {
        self.reporter.rank()
    }

    /// Runs one turn. Closed when the worker stops.
    pub(super) fn turn(&mut self) -> Flow {
        let wait = self.wait(self.clock.now());
        let life = self.mailbox.take(wait, &mut self.commands);
        if life == Life::Stopping {
            return Flow::Closed;
        }
        self.draining = life == Life::Draining;
        while let Some(command) = self.commands.pop_front() {
            self.handle(command);
        }
        let now = self.clock.now();
        self.give_up_waiting(now);
        self.withdraw_offers(now);
        self.admit();
        self.waits += u64::from(!self.scheduler.has_rows());
        self.step();
        let now = self.clock.now();
        self.give_signs_of_life(now);
        self.report(now);
        Flow::Open
    }

    /// Ends everything: whoever still listens is told why, and all slots go back.
    pub(super) fn end(&mut self, error: &ServeError) {
        // After this nothing arrives any more, also when the loop ended by a panic.
        self.mailbox.advance(Life::Stopping);
        self.mailbox.take(Duration::ZERO, &mut self.commands);
        for command in self.commands.drain(..) {
            if let Command::Submit(mut submission) = command {
                // The request is over; a closed sink has nothing left to hear.
                let _: Flow = submission.sink.emit(PrefillEvent::Failed(error.clone()));
            }
        }
        for (_, mut job) in std::mem::take(&mut self.jobs) {
            if let Some(sink) = &mut job.sink {
                // The same.
                let _: Flow = sink.emit(PrefillEvent::Failed(error.clone()));
            }
            job.release(&self.pool);
        }
        self.offers.clear();
        self.mailbox.settle(Work::Idle);
    }

    /// Forgets a request and returns everything it holds.
    pub(super) fn remove(&mut self, id: PrefillId) {
        let Some(job) = self.jobs.remove(&id) else { return };
        let phase = self.scheduler.remove(id);
        assert!(phase.is_some(), "every request is known to the scheduler");
        if !matches!(job.stage, Stage::Held) {
            self.stats.requests_cancelled += 1;
            tracing::info!(request = %job.request.id, "prefill cancelled");
        }
        job.release(&self.pool);
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.receive(submission),
            Command::Release(id) => self.remove(id),
            Command::Located(id, event) => self.located(id, Some(event)),
            Command::Read(id, done) => self.read_done(id, done),
            Command::Offered(offer, event) => match self.offers.settle(offer, event) {
                Some(OfferOutcome::Stored | OfferOutcome::AlreadyHeld) => {
                    self.stats.offers_stored += 1;
                }
                Some(OfferOutcome::MemoryOnly) => self.stats.offers_memory_only += 1,
                Some(OfferOutcome::Dropped) => self.stats.offers_dropped += 1,
                None => {}
            },
            Command::OfferOver(offer) => {
                self.stats.offers_dropped += count(self.offers.close(offer));
            }
        }
    }

    /// How long the loop may sleep when nothing arrives.
    fn wait(&self, now: Timestamp) -> Duration {
        if self.scheduler.has_rows() {
            return Duration::ZERO;
        }
        let slots = self.scheduler.next_waiting().map(|_| SLOT_POLL);
        let deadlines = self.jobs.values().filter_map(|job| match &job.stage {
            Stage::Locating(locating) => Some(locating.deadline.since(now)),
            Stage::Reading(reading) => Some(reading.deadline.since(now).max(SLOT_POLL)),
            Stage::Queued | Stage::Computing(_) | Stage::Held => None,
        });
        deadlines.chain(slots).fold(self.config.sign_interval(), Duration::min)
    }

    /// Tells everybody who waits that the worker lives, since a long queue looks like silence.
    fn give_signs_of_life(&mut self, now: Timestamp) {
        if now.since(self.signed) < self.config.sign_interval() {
            return;
        }
        self.signed = now;
        let mut closed = Vec::new();
        for (id, job) in &mut self.jobs {
            if let Some(sink) = &mut job.sink
                && sink.emit(PrefillEvent::Waiting) == Flow::Closed
            {
                closed.push(*id);
            }
        }
        for id in closed {
            // Equal to a dropped ticket.
            self.remove(id);
        }
    }

    fn withdraw_offers(&mut self, now: Timestamp) {
        let withdrawn = self.offers.withdraw(now, self.config.offer_wait());
        if 0 < withdrawn {
            tracing::warn!(
                objects = withdrawn,
                "the store left offers unanswered; they are withdrawn"
            );
            self.stats.offers_withdrawn += count(withdrawn);
        }
    }

    fn report(&mut self, now: Timestamp) {
        self.reporter.cache(self.pool.drain_changes());
        let load = self.scheduler.load();
        let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let report = LoadReport {
            running: narrow(load.running),
            waiting: narrow(load.waiting),
            pending_rows: load.pending_rows,
            slots_available: narrow(self.pool.available()),
            slots: narrow(self.pool.total()),
            rows_per_second: self.speed.rows_per_second(),
            progress: self.stats.rows_computed + self.stats.rows_replayed + self.waits,
            draining: self.draining,
            rates: self.speed.rates(),
        };
        self.reporter.load(report, now);
        self.stats.waiting = load.waiting;
        self.stats.running = load.running;
        self.stats.held = load.held;
        self.stats.pending_rows = load.pending_rows;
        self.stats.offers_outstanding = self.offers.outstanding();
        self.stats.rows_per_second = report.rows_per_second;
        self.stats.commands_promised = self.mailbox.promised();
        self.published.lock().clone_from(&self.stats);
        let idle = self.jobs.is_empty() && self.offers.outstanding() == 0;
        self.mailbox.settle(if idle { Work::Idle } else { Work::Busy });
    }
}

/// A number of things as a counter's increment.
pub(super) fn count(things: usize) -> u64 {
    u64::try_from(things).expect("usize has at most 64 bits on every target")
}
