//! What starts, steps and publishing share: the borders, open operations, offers, measurements and counters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use engine::{Engine, KvSlab};
use kvstore::{Pool, ReadRequest, Seal, SealedSlot, StartCosts, Transport};
use shared::{
    BlockName, BlockStore, CacheEvent, Clock, Flow, Grouped, LoadReport, LocateEvent, ObjectKey,
    OfferEvent, OfferOutcome, PrefillDirectory, PrefillEvent, RequestContext, Sink, StepPace,
    Ticket, Timestamp, WorkerEvent, WorkerRank, ungrouped,
};

use crate::config::DecodeConfig;
use crate::mailbox::{Mailbox, NoteSink, OperationId, PrefillSink};
use crate::scheduler::SequenceKey;
use crate::stats::DecodeStats;
use crate::worker::DecodeParts;
use crate::worker::rates::{Origin, Rates};

/// Weight of the newest sample in a running mean: about the last eight count.
const NEWEST_WEIGHT: f64 = 0.125;
/// Steps of fewer rows than this are mostly those of answers alone, whose rows cost more than those of a prompt.
const MEASURED_ROWS_MIN: u64 = 32;

/// What an operation of the loop is for.
pub(super) enum Operation {
    Locate(SequenceKey),
    Read(SequenceKey),
    Prefill(SequenceKey),
    /// Objects whose outcome is open; pinned until then.
    Offer {
        /// On whose behalf; the block outlives its request.
        context: RequestContext,
        objects: Vec<SealedSlot>,
        /// Kept so that the offer is not withdrawn; none while it is being made.
        ticket: Option<Ticket>,
        since: Timestamp,
    },
}

/// See the module's documentation.
pub(super) struct Core {
    pub(super) config: DecodeConfig,
    pub(super) rank: WorkerRank,
    pub(super) engine: Arc<Engine>,
    pub(super) slab: Arc<KvSlab>,
    pub(super) pool: Pool,
    pub(super) windows: Pool,
    pub(super) prefill: Arc<dyn PrefillDirectory>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) stats: DecodeStats,
    pub(super) operations: BTreeMap<OperationId, Operation>,
    transport: Arc<dyn Transport>,
    store: Arc<dyn BlockStore>,
    events: Events,
    next_operation: u64,
    /// Batches of reads per sequence that the transport has not given up yet.
    reads_open: BTreeMap<SequenceKey, usize>,
    offers_open: usize,
    pace: StepPace,
    read_bytes_per_second: f64,
    pub(super) rates: Rates,
}

/// Where the worker's own events go.
struct Events {
    sink: Box<dyn Sink<WorkerEvent>>,
    flow: Flow,
    incarnation: u64,
    sequence: u64,
    /// When, requests running and waiting, and whether draining, as last reported.
    reported: Option<(Timestamp, (u32, u32, bool))>,
}

impl Core {
    pub(super) fn new(config: DecodeConfig, parts: DecodeParts, mailbox: Arc<Mailbox>) -> Self {
        let incarnation = parts.clock.incarnation();
        Self {
            config,
            rank: parts.rank,
            engine: parts.engine,
            slab: parts.slab,
            pool: parts.pool,
            windows: parts.windows,
            prefill: parts.prefill,
            clock: parts.clock,
            mailbox,
            stats: DecodeStats::default(),
            operations: BTreeMap::new(),
            transport: parts.transport,
            store: parts.store,
            events: Events {
                sink: parts.events,
                flow: Flow::Open,
                incarnation,
                sequence: 0,
                reported: None,
            },
            next_operation: 0,
            reads_open: BTreeMap::new(),
            offers_open: 0,
            pace: StepPace::new(NEWEST_WEIGHT),
            read_bytes_per_second: 0.0,
            rates: Rates::new(),
        }
    }

    /// Looks keys up in the store.
    pub(super) fn locate(
        &mut self,
        key: SequenceKey,
        context: RequestContext,
        objects: Vec<Grouped<ObjectKey>>,
    ) -> (OperationId, Ticket) {
        let operation = self.begin(Operation::Locate(key));
        let sink = NoteSink::new(&self.mailbox, operation, 1);
        (
            operation,
            self.store.locate(context, objects, Box::new(sink) as Box<dyn Sink<LocateEvent>>),
        )
    }

    /// Starts a batch of reads.
    pub(super) fn read(
        &mut self,
        key: SequenceKey,
        context: RequestContext,
        reads: Vec<ReadRequest>,
    ) -> (OperationId, Ticket) {
        assert!(!reads.is_empty(), "an empty batch has no answer");
        let operation = self.begin(Operation::Read(key));
        *self.reads_open.entry(key).or_insert(0) += 1;
        let sink = NoteSink::new(&self.mailbox, operation, reads.len());
        (operation, self.transport.read(context, reads, Box::new(sink)))
    }

    /// Names a prefill attempt and makes its sink, which passes on at most `events_max` events and sets `alive` with each
    /// sign of life besides them.
    pub(super) fn prefill_sink(
        &mut self,
        key: SequenceKey,
        events_max: usize,
        alive: &Arc<AtomicBool>,
    ) -> (OperationId, Box<dyn Sink<PrefillEvent>>) {
        let operation = self.begin(Operation::Prefill(key));
        let notes = NoteSink::new(&self.mailbox, operation, events_max);
        (operation, Box::new(PrefillSink { notes, alive: Arc::clone(alive) }))
    }

    fn begin(&mut self, what: Operation) -> OperationId {
        let operation = OperationId(self.next_operation);
        self.next_operation += 1;
        self.operations.insert(operation, what);
        operation
    }

    /// A start is over: what its lookups and prefill attempts still say is not heard any more.
    pub(super) fn forget_start(&mut self, key: SequenceKey) {
        self.operations.retain(|_, operation| match operation {
            Operation::Locate(other) | Operation::Prefill(other) => *other != key,
            Operation::Read(_) | Operation::Offer { .. } => true,
        });
    }

    /// A batch of reads came back as a whole. Says whether it was the sequence's last one.
    pub(super) fn read_over(&mut self, key: SequenceKey) -> bool {
        let open = self.reads_open.get_mut(&key).expect("counted when the batch began");
        *open -= 1;
        if *open == 0 {
            self.reads_open.remove(&key);
            return true;
        }
        false
    }

    /// Whether a transport still holds slots of this sequence.
    pub(super) fn has_reads(&self, key: SequenceKey) -> bool {
        self.reads_open.contains_key(&key)
    }

    /// Seals and publishes the window object of this name, unless it is held or no slot can be had.
    pub(super) fn publish_window(
        &mut self,
        context: RequestContext,
        name: Grouped<BlockName>,
        exact: bool,
        bytes: &[u8],
    ) {
        let Grouped { item: name, group } = name;
        if self.windows.contains(name) {
            return;
        }
        let Ok(mut slots) = self.windows.reserve(1) else {
            self.stats.windows_dropped += 1;
            return;
        };
        let mut slot = slots.pop().expect("one was reserved");
        slot.write(&mut |target| target[..bytes.len()].copy_from_slice(bytes));
        let seal = Seal { name, exact, bytes: payload_bytes(bytes.len()) };
        let sealed = self.windows.seal(slot, seal);
        self.stats.windows_published += 1;
        self.offer(context, vec![Grouped { item: sealed, group }]);
    }

    /// Offers objects to the store, as many as the bound on open offers leaves; they stay pinned until their outcome
    /// is known.
    pub(super) fn offer(&mut self, context: RequestContext, mut objects: Vec<Grouped<SealedSlot>>) {
        let room = self.config.offers_max - self.offers_open;
        self.stats.offers_skipped += widen(objects.len().saturating_sub(room));
        objects.truncate(room);
        if objects.is_empty() {
            return;
        }
        self.stats.offers += widen(objects.len());
        self.offers_open += objects.len();
        let descriptor = |Grouped { item, group }: &Grouped<SealedSlot>| Grouped {
            item: item.descriptor(),
            group: *group,
        };
        let descriptors: Vec<_> = objects.iter().map(descriptor).collect();
        let objects = ungrouped(objects);
        let since = self.clock.now();
        let operation = self.begin(Operation::Offer { context, objects, ticket: None, since });
        let durability = self.config.durability;
        let sink: Box<dyn Sink<OfferEvent>> =
            Box::new(NoteSink::new(&self.mailbox, operation, descriptors.len()));
        let made = self.store.offer(context, descriptors, durability, sink);
        if let Some(Operation::Offer { ticket, .. }) = self.operations.get_mut(&operation) {
            *ticket = Some(made);
        }
    }

    /// The outcome of one object of an offer: unpins it.
    pub(super) fn offered(&mut self, operation: OperationId, event: OfferEvent) {
        let Some(Operation::Offer { objects, .. }) = self.operations.get_mut(&operation) else {
            return;
        };
        self.stats.offers_memory_only += u64::from(event.outcome == OfferOutcome::MemoryOnly);
        let before = objects.len();
        objects.retain(|object| object.descriptor().key != event.key);
        self.offers_open -= before - objects.len();
    }

    /// No further outcome of an offer comes.
    pub(super) fn offer_over(&mut self, operation: OperationId) {
        if let Some(Operation::Offer { objects, .. }) = self.operations.remove(&operation) {
            self.offers_open -= objects.len();
        }
    }

    /// Withdraws offers that the store has not answered in time, and unpins their objects.
    pub(super) fn withdraw_offers(&mut self, now: Timestamp) {
        let Self { config, operations, stats, offers_open, .. } = self;
        let wait = config.offer_wait();
        operations.retain(|_, operation| match operation {
            Operation::Offer { context, objects, ticket, since } if wait < now.since(*since) => {
                tracing::warn!(
                    request = %context.id, objects = objects.len(),
                    "the store left an offer unanswered; it is withdrawn"
                );
                drop(ticket.take());
                stats.offers_withdrawn += widen(objects.len());
                *offers_open -= objects.len();
                false
            }
            Operation::Locate(_)
            | Operation::Read(_)
            | Operation::Prefill(_)
            | Operation::Offer { .. } => true,
        });
    }

    /// Takes the time of a step into account.
    pub(super) fn step_took(&mut self, took: Duration, rows: u64) {
        self.stats.steps += 1;
        self.stats.step_time += took;
        self.stats.step_time_max = self.stats.step_time_max.max(took);
        if MEASURED_ROWS_MIN <= rows || self.pace.is_unknown() {
            self.pace.step(narrow(rows), took);
        }
    }

    /// Rows per second of a full step, 0 while unknown.
    fn rows_per_second(&self) -> f64 {
        self.pace.rows_per_second(self.config.tail_rows_step_max)
    }

    /// Takes the time of a batch of reads into account; its origin when all of it has the same.
    pub(super) fn reads_took(&mut self, took: Duration, bytes: u64, origin: Option<Origin>) {
        if let Some(origin) = origin {
            let block = widen(self.engine.layout().block_bytes());
            self.rates.reads(origin, took, bytes / block);
        }
        if !took.is_zero() && bytes != 0 {
            let speed = to_float(bytes) / took.as_secs_f64();
            self.read_bytes_per_second = running_mean(self.read_bytes_per_second, speed);
        }
    }

    /// What fetching and computing cost, as measured, or as assumed before that.
    pub(super) fn costs(&self) -> StartCosts {
        let or = |measured: f64, assumed| if 0.0 < measured { measured } else { assumed };
        let bytes = or(self.read_bytes_per_second, self.config.read_bytes_per_second_initial);
        let rows = or(self.rows_per_second(), self.config.rows_per_second_initial);
        let layout = self.engine.layout();
        let fetch_ms = |object: usize| to_float(widen(object)) / bytes * 1_000.0;
        StartCosts {
            block_fetch_ms: fetch_ms(layout.block_bytes()),
            window_fetch_ms: fetch_ms(layout.window_bytes()),
            encoder_row_ms: 1_000.0 / rows,
        }
    }

    /// Tells the router that nothing is held from an earlier life, and what is.
    pub(super) fn announce(&mut self) {
        for change in self.pool.resync_changes() {
            self.events.change(self.rank, change);
        }
    }

    /// Tells the router what changed in the pool.
    pub(super) fn publish_changes(&mut self) {
        if self.events.flow == Flow::Closed {
            return;
        }
        for change in self.pool.drain_changes() {
            self.events.change(self.rank, change);
        }
    }

    /// Reports the load when it changed or the last report is old.
    pub(super) fn publish_load(&mut self, now: Timestamp, pending_rows: u64, draining: bool) {
        self.stats.slots = widen(self.pool.total());
        self.stats.slots_available = widen(self.pool.available());
        self.stats.rows_per_second = self.rows_per_second();
        let running = narrow(self.stats.running);
        let waiting = narrow(self.stats.waiting);
        let state = (running, waiting, draining);
        if let Some((at, reported)) = self.events.reported
            && reported == state
            && now.since(at) < self.config.report_interval()
        {
            return;
        }
        self.events.reported = Some((now, state));
        let stats = &self.stats;
        let progress = stats.decode_rows + stats.tail_rows + stats.tokens + self.rates.waits();
        let report = LoadReport {
            running,
            waiting,
            pending_rows,
            slots_available: narrow(self.stats.slots_available),
            slots: narrow(self.stats.slots),
            rows_per_second: self.rows_per_second(),
            progress,
            draining,
            rates: self.rates.told(),
        };
        self.events.emit(WorkerEvent::Load { worker: self.rank, report });
    }
}

impl Events {
    fn change(&mut self, worker: WorkerRank, change: shared::CacheChange) {
        let Self { incarnation, sequence, .. } = *self;
        self.sequence += 1;
        self.emit(WorkerEvent::Cache(CacheEvent { worker, incarnation, sequence, change }));
    }

    fn emit(&mut self, event: WorkerEvent) {
        if self.flow == Flow::Open {
            self.flow = self.sink.emit(event);
        }
    }
}

/// Slots that drop last first, so that the beginning of a chain is the last to be evicted.
pub(super) struct Run<T>(pub(super) Vec<T>);

impl<T> Drop for Run<T> {
    fn drop(&mut self) {
        while let Some(slot) = self.0.pop() {
            drop(slot);
        }
    }
}

/// A count for statistics.
pub(super) fn widen(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// A position or block number as an index.
pub(super) fn index(position: u32) -> usize {
    usize::try_from(position).expect("usize holds 32 bits on every supported target")
}

/// A number of tokens that was checked against the context.
pub(super) fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).expect("bounded by the context, which has 32 bits")
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn payload_bytes(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a descriptor's length has 32 bits")
}

fn running_mean(mean: f64, sample: f64) -> f64 {
    if mean == 0.0 { sample } else { mean + (sample - mean) * NEWEST_WEIGHT }
}

fn to_float(value: u64) -> f64 {
    // Exact up to 2^32, saturating above: rates of more than that per sample are not measured.
    f64::from(u32::try_from(value).unwrap_or(u32::MAX))
}
