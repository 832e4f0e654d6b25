//! A decode worker in one process with everything around it, and what a client sees of it.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use decode::{DecodeConfig, DecodeParts, DecodeWorker};
use engine::{Arithmetic, Checkpoint, Engine, EngineOptions, GrammarCompiler, KvSlab, Part};
use kvstore::{
    HostTier, HostTierConfig, HostWiring, LocalTransport, LocalTransportConfig, NoStore, Pool,
    PoolConfig, Transport,
};
use parking_lot::Mutex;
use shared::{
    BlockStore, Clock, Decode, DecodeEvent, DecodeRequest, DpRank, FinishReason, Flow, Lineage,
    ManualClock, ObjectKind, RegionId, RequestId, Root, Sampling, ServeError, SlotMemory,
    StartReport, TenantTag, Ticket, Tier, TokenId, TraceContext, WorkerEvent, WorkerId, WorkerRank,
    block_names,
};

use crate::prefill_double::{Doubles, PrefillDouble};
use crate::store_double::SilentStore;

/// No answer takes this long; a test that waits longer is stuck.
const ANSWER_WAIT: Duration = Duration::from_secs(120);
pub(crate) const RANK: WorkerRank = WorkerRank { worker: WorkerId(1), rank: DpRank(0) };

pub(crate) fn tiny() -> Arc<Engine> {
    load("tests/golden/tiny-w/checkpoint")
}

pub(crate) fn seedling() -> Arc<Engine> {
    load("deploy/models/seedling")
}

fn load(folder: &str) -> Arc<Engine> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder: PathBuf = root.join(folder);
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let options = EngineOptions { arithmetic: Arithmetic::Exact, part: Part::Whole, rollback: 12 };
    Arc::new(Engine::load(&checkpoint, &options, &mut |_| ()).unwrap())
}

/// What stands behind the worker's pools.
pub(crate) enum StoreKind {
    None,
    Host,
    Silent(Arc<SilentStore>),
}

/// How a rig is built.
pub(crate) struct RigOptions {
    pub(crate) config: DecodeConfig,
    pub(crate) slots: u32,
    pub(crate) prefills: u32,
    pub(crate) store: StoreKind,
    pub(crate) grammars: Option<Arc<GrammarCompiler>>,
}

impl Default for RigOptions {
    fn default() -> Self {
        Self {
            config: DecodeConfig { offers_max: 8, ..DecodeConfig::STANDARD },
            slots: 64,
            prefills: 0,
            store: StoreKind::None,
            grammars: None,
        }
    }
}

pub(crate) struct Rig {
    worker: DecodeWorker,
    pub(crate) engine: Arc<Engine>,
    pub(crate) pool: Pool,
    pub(crate) windows: Pool,
    pub(crate) prefills: Vec<Arc<PrefillDouble>>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) events: Arc<Mutex<Vec<WorkerEvent>>>,
}

impl Deref for Rig {
    type Target = DecodeWorker;

    fn deref(&self) -> &DecodeWorker {
        &self.worker
    }
}

/// The parts of a worker without store and prefill.
pub(crate) fn parts(engine: &Arc<Engine>, slots: u32) -> DecodeParts {
    let layout = engine.layout();
    let config = |region, kind| PoolConfig { region: RegionId(region), kind, tier: Tier::Device };
    let slab = Arc::new(KvSlab::new(slots, layout.block_bytes()));
    let memory = Arc::clone(&slab) as Arc<dyn SlotMemory>;
    let windows = Arc::new(KvSlab::new(32, layout.window_bytes()));
    DecodeParts {
        rank: RANK,
        engine: Arc::clone(engine),
        slab,
        pool: Pool::new(config(1, ObjectKind::Block), memory),
        windows: Pool::new(config(2, ObjectKind::Window), windows),
        transport: Arc::new(LocalTransport::start(LocalTransportConfig { queue_max: 64 }).unwrap()),
        store: Arc::new(NoStore),
        prefill: Arc::new(Doubles(Vec::new())),
        grammars: None,
        clock: Arc::new(ManualClock::new()),
        events: Box::new(|_| Flow::Open),
    }
}

impl Rig {
    pub(crate) fn new(engine: &Arc<Engine>, options: RigOptions) -> Self {
        let queue = LocalTransportConfig { queue_max: 1_024 };
        let transport = Arc::new(LocalTransport::start(queue).unwrap());
        let clock = Arc::new(ManualClock::new());
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&events);
        let mut parts = parts(engine, options.slots);
        let (pool, windows) = (parts.pool.clone(), parts.windows.clone());
        transport.register(&pool).unwrap();
        transport.register(&windows).unwrap();
        let prefills: Vec<_> = (0..options.prefills)
            .map(|number| PrefillDouble::new(10 + number, engine, &transport))
            .collect();
        parts.prefill = Arc::new(Doubles(prefills.clone()));
        parts.store = match options.store {
            StoreKind::None => Arc::new(NoStore),
            StoreKind::Host => start_store(engine, &transport, &clock),
            StoreKind::Silent(store) => store,
        };
        parts.grammars = options.grammars;
        parts.transport = transport;
        parts.clock = Arc::clone(&clock) as Arc<dyn Clock>;
        parts.events = Box::new(move |event| {
            seen.lock().push(event);
            Flow::Open
        });
        let worker = DecodeWorker::start(options.config, parts).unwrap();
        let engine = Arc::clone(engine);
        Self { worker, engine, pool, windows, prefills, clock, events }
    }

    pub(crate) fn ask(&self, request: DecodeRequest) -> Pending {
        let (sender, events) = channel();
        let sink = move |event| match sender.send(event) {
            Ok(()) => Flow::Open,
            Err(_) => Flow::Closed,
        };
        let ticket = self.worker.submit(request, Box::new(sink));
        Pending { events, ticket: Some(ticket) }
    }

    pub(crate) fn answer(&self, request: DecodeRequest) -> Answer {
        self.ask(request).answer()
    }

    /// Waits until the worker is idle and checks that nothing is held.
    pub(crate) fn rest(&self) {
        wait_until("the worker is idle", || self.worker.idle());
        for prefill in &self.prefills {
            prefill.join();
            for pool in [&prefill.pool, &prefill.windows] {
                wait_until("prefill's pools rest", || pool.audit().is_at_rest());
            }
        }
        for pool in [&self.pool, &self.windows] {
            wait_until("the own pools rest", || pool.audit().is_at_rest());
        }
        let stats = self.worker.stats();
        assert_eq!((stats.running, stats.waiting, stats.blocks_reserved), (0, 0, 0));
    }
}

fn start_store(
    engine: &Engine,
    transport: &Arc<LocalTransport>,
    clock: &Arc<ManualClock>,
) -> Arc<dyn BlockStore> {
    let layout = engine.layout();
    let config = HostTierConfig {
        block_bytes_max: u64::try_from(layout.block_bytes()).unwrap() * 128,
        window_bytes_max: u64::try_from(layout.window_bytes()).unwrap() * 64,
        ..HostTierConfig::DEFAULT
    };
    let wiring = HostWiring {
        quotas: Arc::default(),
        block_slot_bytes: layout.block_bytes(),
        window_slot_bytes: layout.window_bytes(),
        block_region: RegionId(3),
        window_region: RegionId(4),
        transport: Arc::clone(transport) as Arc<dyn Transport>,
        clock: Arc::clone(clock) as Arc<dyn Clock>,
        disk: None,
    };
    let store = HostTier::start(&config, wiring).unwrap();
    transport.register(store.blocks()).unwrap();
    transport.register(store.windows()).unwrap();
    Arc::new(store)
}

/// Polls a condition that another thread brings about.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if condition() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    panic!("waited too long until {what}");
}

/// A request under way.
pub(crate) struct Pending {
    events: Receiver<DecodeEvent>,
    ticket: Option<Ticket>,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) report: Option<StartReport>,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) end: Result<FinishReason, ServeError>,
}

impl Answer {
    pub(crate) fn report(&self) -> StartReport {
        self.report.unwrap_or_else(|| panic!("no start was reported: {self:?}"))
    }
}

impl Pending {
    pub(crate) fn next(&self) -> DecodeEvent {
        self.events.recv_timeout(ANSWER_WAIT).expect("an event comes")
    }

    pub(crate) fn cancel(mut self) {
        drop(self.ticket.take());
    }

    /// Nobody listens any more, but the ticket lives.
    pub(crate) fn hang_up(self) -> Option<Ticket> {
        self.ticket
    }

    pub(crate) fn answer(self) -> Answer {
        let mut answer = Answer { report: None, tokens: Vec::new(), end: Ok(FinishReason::Stop) };
        loop {
            match self.next() {
                DecodeEvent::Started(report) => {
                    assert!(answer.tokens.is_empty() && answer.report.is_none());
                    answer.report = Some(report);
                }
                DecodeEvent::Token(token, _) => {
                    assert!(answer.report.is_some(), "started comes first");
                    answer.tokens.push(token);
                }
                DecodeEvent::Finished(reason) => {
                    answer.end = Ok(reason);
                    break;
                }
                DecodeEvent::Failed(error) => {
                    answer.end = Err(error);
                    break;
                }
            }
        }
        assert!(self.events.try_recv().is_err(), "nothing follows the end");
        answer
    }
}

/// A prompt of `length` tokens that depends on `seed`.
pub(crate) fn prompt(engine: &Engine, seed: u64, length: usize) -> Vec<TokenId> {
    let vocabulary = u64::try_from(engine.config().vocab).unwrap();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            TokenId(u32::try_from(state % vocabulary).unwrap())
        })
        .collect()
}

pub(crate) fn root(lineage: Lineage) -> Root {
    Root::from_bytes([if lineage == Lineage::Exact { 1 } else { 2 }; 32])
}

pub(crate) fn request(prompt: &[TokenId], tokens: u32) -> DecodeRequest {
    with_lineage(prompt, tokens, Lineage::Exact)
}

pub(crate) fn with_lineage(prompt: &[TokenId], tokens: u32, lineage: Lineage) -> DecodeRequest {
    DecodeRequest {
        id: RequestId(7),
        trace: TraceContext::NONE,
        tenant: TenantTag::NONE,
        prompt: Arc::from(prompt),
        emitted: Vec::new(),
        root: root(lineage),
        names: Arc::from(block_names(&root(lineage), prompt)),
        lineage,
        sampling: Sampling::GREEDY,
        logit_bias: Arc::from([]),
        logprobs: None,
        constraint: None,
        stop_ids: Vec::new(),
        output_tokens_max: tokens,
        prefill: None,
        deadline: None,
    }
}
