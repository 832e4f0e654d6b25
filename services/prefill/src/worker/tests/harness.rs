//! A worker over the golden `tiny-w` model with everything around it, and the bytes it must produce.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use engine::{
    Arithmetic, Checkpoint, Engine, EngineOptions, Floors, KvSlab, Layers, Part, RowPlan, Segment,
};
use kvstore::{
    HostMemory, HostTier, HostTierConfig, HostWiring, LocalTransport, LocalTransportConfig,
    NoStore, Pool, PoolConfig, Transport,
};
use shared::{
    BlockName, BlockStore, Clock, Descriptor, DpRank, Flow, Lineage, ManualClock, ObjectKind,
    Prefill, PrefillEvent, PrefillRequest, RegionId, RequestId, Root, ServeError, SlotIndex,
    SlotMemory, TenantTag, Ticket, Tier, TokenId, TraceContext, WindowSource, WorkerEvent,
    WorkerId, WorkerRank, block_names,
};

use crate::config::PrefillConfig;
use crate::worker::{PrefillParts, PrefillWorker};

/// A test that waits this long for an event has found a hang.
const HANG: Duration = Duration::from_secs(120);

pub(super) const RANK: WorkerRank = WorkerRank { worker: WorkerId(3), rank: DpRank(0) };

pub(super) const CONFIG: PrefillConfig = PrefillConfig {
    step_rows_max: 256,
    window_interval: 256,
    locate_wait_ms_max: 5,
    read_wait_ms_max: 5,
    ..PrefillConfig::STANDARD
};

/// The golden model with windows of 72.
pub(super) const TINY: &str = "../../tests/golden/tiny-w/checkpoint";

/// The demo's model with windows of 128.
pub(super) const SEEDLING: &str = "../../deploy/models/seedling";

fn engine(model: &str, arithmetic: Arithmetic, part: Part) -> Arc<Engine> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(model);
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let options = EngineOptions { arithmetic, part, rollback: 12 };
    Arc::new(Engine::load(&checkpoint, &options, &mut |_| ()).unwrap())
}

/// Token ids that differ from place to place and between `variant`s, the same for every call.
pub(super) fn ids(variant: u32, count: u32) -> Vec<TokenId> {
    let mut state = 0x9e37_79b9_u32.wrapping_mul(variant + 1) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        TokenId(state % 450)
    };
    (0..count).map(|_| next()).collect()
}

/// What is around a worker. The defaults: 32 block slots, 16 window slots, no store, a local transport.
pub(super) struct Setup {
    pub(super) config: PrefillConfig,
    pub(super) model: &'static str,
    pub(super) arithmetic: Arithmetic,
    pub(super) slots: u32,
    pub(super) window_slots: u32,
    pub(super) host_tier: bool,
    pub(super) store: Option<Arc<dyn BlockStore>>,
    /// Wraps the transport of the worker.
    pub(super) wrap: fn(Arc<dyn Transport>) -> Arc<dyn Transport>,
}

impl Setup {
    pub(super) fn new() -> Self {
        Self {
            config: CONFIG,
            model: TINY,
            arithmetic: Arithmetic::Fast,
            slots: 32,
            window_slots: 16,
            host_tier: false,
            store: None,
            wrap: |transport| transport,
        }
    }

    pub(super) fn start(self) -> World {
        let engine = engine(self.model, self.arithmetic, Part::Encoder);
        let layout = engine.layout().clone();
        let slab = Arc::new(KvSlab::new(self.slots, layout.block_bytes()));
        let windows = HostMemory::with_slots(self.window_slots, layout.window_bytes()).unwrap();
        let pool = |region, kind, memory| {
            let tier = Tier::Device;
            Pool::new(PoolConfig { region: RegionId(region), kind, tier }, memory)
        };
        let pool_blocks = pool(1, ObjectKind::Block, Arc::clone(&slab) as Arc<dyn SlotMemory>);
        let pool_windows = pool(2, ObjectKind::Window, Arc::new(windows));
        let local =
            Arc::new(LocalTransport::start(LocalTransportConfig { queue_max: 64 }).unwrap());
        let clock = Arc::new(ManualClock::new());
        clock.advance(Duration::from_secs(1_000));
        let host = self.host_tier.then(|| {
            let wiring = HostWiring {
                quotas: Arc::default(),
                block_slot_bytes: layout.block_bytes(),
                window_slot_bytes: layout.window_bytes(),
                block_region: RegionId(3),
                window_region: RegionId(4),
                transport: Arc::clone(&local) as Arc<dyn Transport>,
                clock: Arc::clone(&clock) as Arc<dyn Clock>,
                disk: None,
            };
            let config = HostTierConfig {
                block_bytes_max: 16 << 20,
                window_bytes_max: 16 << 20,
                ..HostTierConfig::DEFAULT
            };
            Arc::new(HostTier::start(&config, wiring).unwrap())
        });
        for pool in [&pool_blocks, &pool_windows] {
            local.register(pool).unwrap();
        }
        if let Some(host) = &host {
            local.register(host.blocks()).unwrap();
            local.register(host.windows()).unwrap();
        }
        let store = host.as_ref().map(|host| Arc::clone(host) as Arc<dyn BlockStore>);
        let (sender, reports) = channel();
        let parts = PrefillParts {
            rank: RANK,
            engine,
            slab: Arc::clone(&slab),
            pool: pool_blocks.clone(),
            windows: pool_windows.clone(),
            transport: (self.wrap)(local),
            store: self.store.or(store).unwrap_or_else(|| Arc::new(NoStore)),
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            events: Box::new(move |event| send(&sender, event)),
        };
        let worker = PrefillWorker::start(self.config, parts).unwrap();
        World { worker, pool: pool_blocks, windows: pool_windows, clock, reports, next_id: 0 }
    }
}

/// Waits for something that another thread does.
pub(super) fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..20_000_000 {
        if holds() {
            return;
        }
        thread::yield_now();
    }
    panic!("what was waited for never happened");
}

/// Passes an event on; closed when the test has dropped the receiver.
fn send<E>(sender: &Sender<E>, event: E) -> Flow {
    if sender.send(event).is_ok() { Flow::Open } else { Flow::Closed }
}

pub(super) struct World {
    pub(super) worker: PrefillWorker,
    pub(super) pool: Pool,
    pub(super) windows: Pool,
    pub(super) clock: Arc<ManualClock>,
    pub(super) reports: Receiver<WorkerEvent>,
    next_id: u128,
}

/// A request in work.
pub(super) struct Running {
    pub(super) events: Receiver<PrefillEvent>,
    pub(super) ticket: Ticket,
}

/// A request that finished; its ticket still pins.
pub(super) struct Done {
    /// Index, descriptor and `cached` of each announced block.
    pub(super) blocks: Vec<(u32, Descriptor, bool)>,
    pub(super) window: Descriptor,
    pub(super) replayed_tokens: u32,
    pub(super) window_source: WindowSource,
    pub(super) _ticket: Ticket,
}

pub(super) fn root(lineage: Lineage) -> Root {
    Root::from_bytes([if lineage == Lineage::Exact { 1 } else { 2 }; 32])
}

pub(super) fn names(ids: &[TokenId], lineage: Lineage) -> Vec<BlockName> {
    block_names(&root(lineage), ids)
}

impl World {
    pub(super) fn request(&mut self, ids: &[TokenId], lineage: Lineage) -> PrefillRequest {
        self.next_id += 1;
        PrefillRequest {
            id: RequestId(self.next_id),
            trace: TraceContext::NONE,
            tenant: TenantTag::NONE,
            ids: ids.into(),
            root: root(lineage),
            names: names(ids, lineage).into(),
            lineage,
            from: 0,
            to: u32::try_from(ids.len()).unwrap(),
        }
    }

    pub(super) fn submit(&mut self, request: PrefillRequest) -> Running {
        let (sender, events) = channel();
        let ticket = self.worker.submit(request, Box::new(move |event| send(&sender, event)));
        Running { events, ticket }
    }

    pub(super) fn prefill(&mut self, ids: &[TokenId], lineage: Lineage) -> Done {
        let request = self.request(ids, lineage);
        self.submit(request).finish()
    }

    pub(super) fn refusal(&mut self, request: PrefillRequest) -> ServeError {
        match self.submit(request).next() {
            PrefillEvent::Failed(error) => error,
            other => panic!("expected a refusal, found {other:?}"),
        }
    }

    /// Waits until the worker has nothing in hand, and checks that no slot is held.
    pub(super) fn settle(&self) {
        until(|| self.worker.idle());
        let audit = self.worker.audit();
        assert!(audit.iter().all(|pool| pool.is_at_rest()), "{audit:?}");
    }

    /// Frees the whole own pool and all window objects.
    pub(super) fn evict(&self) {
        self.settle();
        assert!(self.pool.evict_all() + self.windows.evict_all() <= self.pool.total() * 2);
    }

    /// The bytes of an announced object.
    pub(super) fn bytes(&self, object: &Descriptor) -> Vec<u8> {
        let pool = match object.key.kind {
            ObjectKind::Block | ObjectKind::Media => &self.pool,
            ObjectKind::Window => &self.windows,
        };
        let open = pool.open(object).expect("what is announced is readable");
        let mut bytes = Vec::new();
        open.read(&mut |payload| bytes.extend_from_slice(payload));
        bytes
    }

    pub(super) fn block_bytes(&self, done: &Done) -> Vec<Vec<u8>> {
        done.blocks.iter().map(|(_, block, _)| self.bytes(block)).collect()
    }
}

impl Running {
    pub(super) fn next(&self) -> PrefillEvent {
        self.events.recv_timeout(HANG).expect("an event comes, and the sink is not dropped")
    }

    /// Reads events until the end. Panics when the request fails or events come out of order.
    pub(super) fn finish(self) -> Done {
        let mut blocks = Vec::new();
        let mut window = None;
        loop {
            match self.next() {
                PrefillEvent::Waiting => {}
                PrefillEvent::Sealed { index, block, cached } => {
                    assert_eq!(window, None, "blocks come before the window object");
                    blocks.push((index, block, cached));
                }
                PrefillEvent::Window(object) => assert_eq!(window.replace(object), None),
                PrefillEvent::Finished { replayed_tokens, window_source } => {
                    let window = window.expect("the window object comes before the end");
                    let _ticket = self.ticket;
                    return Done { blocks, window, replayed_tokens, window_source, _ticket };
                }
                PrefillEvent::Failed(error) => panic!("the prefill failed: {error}"),
            }
        }
    }
}

impl Done {
    /// How many leading blocks were announced as cached. No other block is.
    pub(super) fn cached(&self) -> usize {
        let cached = self.blocks.iter().filter(|(_, _, cached)| *cached).count();
        assert!(self.blocks[..cached].iter().all(|(_, _, cached)| *cached), "a leading run");
        cached
    }

    pub(super) fn exact(&self) -> Vec<bool> {
        self.blocks.iter().map(|(_, block, _)| block.exact).collect()
    }
}

/// What the whole model computes for a prompt in one cold pass in one process.
pub(super) struct Reference {
    pub(super) blocks: Vec<Vec<u8>>,
    /// The window object at the end.
    pub(super) window: Vec<u8>,
}

pub(super) fn reference(ids: &[TokenId]) -> Reference {
    reference_in(TINY, Arithmetic::Fast, ids)
}

pub(super) fn reference_in(model: &str, arithmetic: Arithmetic, ids: &[TokenId]) -> Reference {
    let engine = engine(model, arithmetic, Part::Whole);
    let count = u32::try_from(ids.len()).unwrap();
    let slab = KvSlab::new(count / 128, engine.layout().block_bytes());
    let mut sequence = engine.sequence(ids);
    for slot in 0..count / 128 {
        sequence.push_block(SlotIndex(slot));
    }
    let floors = Floors { window: 0, write: 0, decoder: 0 };
    let rows: Vec<_> = (0..count)
        .map(|position| RowPlan { position, layers: Layers::All, floors, logits: false })
        .collect();
    let logits = engine.forward(&slab, &mut [Segment { sequence: &mut sequence, rows: &rows }]);
    assert_eq!(logits.len(), 0);
    let mut window = vec![0; engine.layout().window_bytes()];
    sequence.export_window(count, &mut window);
    let block = |slot| {
        let mut bytes = Vec::new();
        slab.read(SlotIndex(slot), &mut |slot| bytes.extend_from_slice(slot));
        bytes
    };
    Reference { blocks: (0..count / 128).map(block).collect(), window }
}
