//! A prefill worker, a decode worker and a store in one process, and what a client sees of them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use decode::{DecodeConfig, DecodeParts, DecodeWorker};
use engine::{Arithmetic, Engine, KvSlab, Part};
use kvstore::{
    DiskTier, HostMemory, HostTier, HostTierConfig, HostWiring, LocalTransport,
    LocalTransportConfig, Pool, PoolConfig, Seal, Transport,
};
use prefill::{PrefillConfig, PrefillParts, PrefillWorker};
use shared::{
    BLOCK_TOKENS, BlockName, BlockStore, Clock, Decode, DecodeEvent, DecodeRequest, DpRank,
    FinishReason, Flow, Lineage, ManualClock, ObjectKind, Prefill, PrefillDirectory, RegionId,
    RequestId, Root, Sampling, SlotMemory, StartReport, TenantTag, Ticket, Tier, TokenId,
    TraceContext, WorkerId, WorkerRank, block_names,
};

use super::lane::{Alone, bytes};
use super::models::Model;

/// No answer takes this long; a test that waits longer is stuck.
const ANSWER_WAIT: Duration = Duration::from_secs(120);
/// Enough for a prompt of 7,948 tokens, its answer, and open offers.
const BLOCK_SLOTS: u32 = 160;
/// One for each block of the longest prompt, and some for the answer.
const WINDOW_SLOTS: u32 = 96;
const PREFILL: WorkerRank = WorkerRank { worker: WorkerId(1), rank: DpRank(0) };
const DECODE: WorkerRank = WorkerRank { worker: WorkerId(2), rank: DpRank(0) };

/// The memories of one party and their books.
#[derive(Clone)]
pub(crate) struct Party {
    pub(crate) blocks: Pool,
    pub(crate) windows: Pool,
}

impl Party {
    fn of(&self, kind: ObjectKind) -> &Pool {
        match kind {
            ObjectKind::Block | ObjectKind::Media => &self.blocks,
            ObjectKind::Window => &self.windows,
        }
    }

    /// Puts an object there as if it had been computed or read.
    pub(crate) fn plant(&self, kind: ObjectKind, name: BlockName, object: &Object) {
        let pool = self.of(kind);
        let mut slot = pool.reserve(1).unwrap().remove(0);
        let bytes = object.bytes.len();
        slot.write(&mut |target| target[..bytes].copy_from_slice(&object.bytes));
        let seal = Seal { name, exact: object.exact, bytes: u32::try_from(bytes).unwrap() };
        drop(pool.seal(slot, seal));
    }

    /// What it holds under a name.
    pub(crate) fn object(&self, kind: ObjectKind, name: BlockName) -> Option<Object> {
        let slot = self.of(kind).lookup(name)?;
        let mut copy = bytes(self.of(kind).memory().as_ref(), slot.index());
        copy.truncate(usize::try_from(slot.descriptor().bytes).unwrap());
        Some(Object { bytes: copy, exact: slot.exact() })
    }
}

/// A cached value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) bytes: Vec<u8>,
    pub(crate) exact: bool,
}

/// The loaded parts of one model.
#[derive(Clone)]
pub(crate) struct Engines {
    pub(crate) prefill: Arc<Engine>,
    pub(crate) decode: Arc<Engine>,
}

impl Engines {
    pub(crate) fn load(model: Model, arithmetic: Arithmetic) -> Self {
        Self {
            prefill: model.load(arithmetic, Part::Encoder),
            decode: model.load(arithmetic, Part::Whole),
        }
    }
}

/// How a cluster is set up.
pub(crate) struct Sizes {
    pub(crate) prefill: PrefillConfig,
    pub(crate) decode: DecodeConfig,
    pub(crate) decode_slots: u32,
}

impl Sizes {
    fn roomy() -> Self {
        let decode = DecodeConfig { offers_max: 64, ..DecodeConfig::STANDARD };
        let prefill = PrefillConfig { window_interval: BLOCK_TOKENS, ..PrefillConfig::STANDARD };
        Self { prefill, decode, decode_slots: BLOCK_SLOTS }
    }
}

/// See the module's documentation. Fields drop in order: who asks goes before who answers.
pub(crate) struct Cluster {
    pub(crate) decode_worker: DecodeWorker,
    pub(crate) prefill_worker: Arc<PrefillWorker>,
    pub(crate) engines: Engines,
    pub(crate) prefill: Party,
    pub(crate) decode: Party,
    pub(crate) store: Party,
    pub(crate) host: Arc<HostTier>,
    _transport: Arc<LocalTransport>,
}

impl Cluster {
    /// A cluster whose prefill worker publishes a window object at every block, with room for every prompt.
    pub(crate) fn start(engines: &Engines) -> Self {
        Self::sized(engines, Sizes::roomy())
    }

    /// The same over a disk.
    pub(crate) fn start_over(engines: &Engines, disk: Arc<DiskTier>) -> Self {
        Self::started(engines, Sizes::roomy(), Some(disk))
    }

    pub(crate) fn sized(engines: &Engines, sizes: Sizes) -> Self {
        Self::started(engines, sizes, None)
    }

    fn started(engines: &Engines, sizes: Sizes, disk: Option<Arc<DiskTier>>) -> Self {
        let queue = LocalTransportConfig { queue_max: 1_024 };
        let transport = Arc::new(LocalTransport::start(queue).unwrap());
        // Time stands still: no deadline passes, and measured speeds stay the configured ones.
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
        let host = Arc::new(start_store(&engines.decode, &transport, &clock, disk));
        let store = Party { blocks: host.blocks().clone(), windows: host.windows().clone() };
        let (prefill, prefill_slab) = memories(&engines.prefill, 3, BLOCK_SLOTS);
        let (decode, decode_slab) = memories(&engines.decode, 5, sizes.decode_slots);
        for party in [&store, &prefill, &decode] {
            transport.register(&party.blocks).unwrap();
            transport.register(&party.windows).unwrap();
        }
        let parts = PrefillParts {
            rank: PREFILL,
            engine: Arc::clone(&engines.prefill),
            slab: prefill_slab,
            pool: prefill.blocks.clone(),
            windows: prefill.windows.clone(),
            transport: Arc::clone(&transport) as Arc<dyn Transport>,
            store: Arc::clone(&host) as Arc<dyn BlockStore>,
            clock: Arc::clone(&clock),
            events: Box::new(|_| Flow::Open),
        };
        let prefill_worker = Arc::new(PrefillWorker::start(sizes.prefill, parts).unwrap());
        let parts = DecodeParts {
            rank: DECODE,
            engine: Arc::clone(&engines.decode),
            slab: decode_slab,
            pool: decode.blocks.clone(),
            windows: decode.windows.clone(),
            transport: Arc::clone(&transport) as Arc<dyn Transport>,
            store: Arc::clone(&host) as Arc<dyn BlockStore>,
            prefill: Arc::new(OnePrefill(Arc::clone(&prefill_worker))),
            grammars: None,
            clock,
            events: Box::new(|_| Flow::Open),
        };
        let decode_worker = DecodeWorker::start(sizes.decode, parts).unwrap();
        Self {
            decode_worker,
            prefill_worker,
            engines: engines.clone(),
            prefill,
            decode,
            store,
            host,
            _transport: transport,
        }
    }

    /// Every party with its name.
    pub(crate) fn parties(&self) -> [(&'static str, &Party); 3] {
        [("prefill", &self.prefill), ("decode", &self.decode), ("store", &self.store)]
    }

    /// Asks the decode worker.
    pub(crate) fn ask(&self, asked: &DecodeRequest) -> Pending {
        let (sender, events) = channel();
        let sink = move |event| if sender.send(event).is_ok() { Flow::Open } else { Flow::Closed };
        let ticket = self.decode_worker.submit(asked.clone(), Box::new(sink));
        Pending { events, ticket }
    }

    /// Asks the decode worker and waits for the whole answer.
    pub(crate) fn answer(&self, asked: &DecodeRequest) -> Answer {
        self.ask(asked).answer()
    }

    /// Waits until nobody holds anything, and checks that every slot is explained.
    pub(crate) fn rest(&self) {
        let idle = || self.decode_worker.idle() && self.prefill_worker.idle();
        wait_until("the workers are idle", idle);
        for (name, party) in self.parties() {
            for pool in [&party.blocks, &party.windows] {
                let at_rest = || pool.audit().is_at_rest();
                wait_until(name, at_rest);
                assert_eq!(pool.audit().leaked, 0, "{name}");
            }
        }
        let stats = self.decode_worker.stats();
        assert_eq!((stats.running, stats.waiting, stats.blocks_reserved), (0, 0, 0));
        assert_eq!((stats.failed, stats.prefill_retries, stats.prefill_fallbacks), (0, 0, 0));
        assert_eq!(stats.reads_failed, 0);
    }

    /// Forgets everything, everywhere.
    pub(crate) fn evict(&self) {
        self.rest();
        for (name, party) in self.parties() {
            for pool in [&party.blocks, &party.windows] {
                let held = pool.held();
                assert_eq!(pool.evict_all(), held, "{name} is at rest");
            }
        }
    }

    /// The answer must be the lone sequence's, and so must every copy of every full block, of which the decode worker
    /// holds all.
    pub(crate) fn check(&self, asked: &DecodeRequest, answer: &Answer, alone: &Alone<'_>) {
        assert_eq!(answer.tokens, alone.tokens, "N = {}, {:?}", asked.prompt.len(), answer.start);
        assert!(answer.start.exact, "{:?}", answer.start);
        let held = self.check_blocks(asked, alone);
        let processed = asked.prompt.len() + answer.tokens.len() - 1;
        assert_eq!(held, processed / usize::try_from(BLOCK_TOKENS).unwrap(), "all are held");
    }

    /// Every copy of a full block must be the lone sequence's. Answers how many the decode worker holds.
    pub(crate) fn check_blocks(&self, asked: &DecodeRequest, alone: &Alone<'_>) -> usize {
        let processed = alone.tokens.len() - 1;
        let ids: Vec<_> = asked.prompt.iter().chain(&alone.tokens[..processed]).copied().collect();
        let mut held = 0;
        for (index, name) in (0_u32..).zip(block_names(&asked.root, &ids)) {
            let expected = Object { bytes: alone.lane.block(index), exact: true };
            for (party, memory) in self.parties() {
                let Some(found) = memory.object(ObjectKind::Block, name) else { continue };
                assert!(found == expected, "block {index} of {party}, N = {}", asked.prompt.len());
                held += usize::from(party == "decode");
            }
        }
        held
    }
}

/// A request under way. Dropping it cancels the request.
pub(crate) struct Pending {
    events: Receiver<DecodeEvent>,
    ticket: Ticket,
}

impl Pending {
    pub(crate) fn next(&self) -> DecodeEvent {
        self.events.recv_timeout(ANSWER_WAIT).expect("an event comes")
    }

    pub(crate) fn answer(self) -> Answer {
        let (mut start, mut tokens) = (None, Vec::new());
        let end = loop {
            match self.next() {
                DecodeEvent::Started(report) => {
                    assert!(start.is_none() && tokens.is_empty());
                    start = Some(report);
                }
                DecodeEvent::Token(token, _) => tokens.push(token),
                DecodeEvent::Finished(end) => break end,
                DecodeEvent::Failed(error) => panic!("the request failed: {error}"),
            }
        };
        assert!(self.events.try_recv().is_err(), "nothing follows the end");
        drop(self.ticket);
        Answer { tokens, start: start.expect("a start is reported"), end }
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) start: StartReport,
    pub(crate) end: FinishReason,
}

/// The one prefill worker.
struct OnePrefill(Arc<PrefillWorker>);

impl PrefillDirectory for OnePrefill {
    fn prefill(&self, worker: WorkerRank) -> Option<Arc<dyn Prefill>> {
        (worker == PREFILL).then(|| Arc::clone(&self.0) as Arc<dyn Prefill>)
    }

    fn prefill_members(&self) -> Vec<WorkerRank> {
        vec![PREFILL]
    }
}

/// A greedy request that visits prefill. Requests with different `cache` numbers share nothing.
pub(crate) fn request(
    cache: u8,
    lineage: Lineage,
    prompt: &[TokenId],
    tokens: u32,
) -> DecodeRequest {
    let mut key = [cache; 32];
    key[0] = if lineage == Lineage::Exact { 1 } else { 2 };
    let root = Root::from_bytes(key);
    DecodeRequest {
        id: RequestId(u128::from(cache)),
        trace: TraceContext::NONE,
        tenant: TenantTag::NONE,
        prompt: Arc::from(prompt),
        emitted: Vec::new(),
        root,
        names: Arc::from(block_names(&root, prompt)),
        lineage,
        sampling: Sampling::GREEDY,
        logit_bias: Arc::from([]),
        logprobs: None,
        constraint: None,
        stop_ids: Vec::new(),
        output_tokens_max: tokens,
        prefill: Some(PREFILL),
        deadline: None,
    }
}

/// Block slots in a slab and window slots in host memory, with pools under the regions `region` and the next.
fn memories(engine: &Engine, region: u64, block_slots: u32) -> (Party, Arc<KvSlab>) {
    let layout = engine.layout();
    let slab = Arc::new(KvSlab::new(block_slots, layout.block_bytes()));
    let windows = HostMemory::with_slots(WINDOW_SLOTS, layout.window_bytes()).unwrap();
    let pool = |region, kind, tier, memory| {
        Pool::new(PoolConfig { region: RegionId(region), kind, tier }, memory)
    };
    let memory = Arc::clone(&slab) as Arc<dyn SlotMemory>;
    let party = Party {
        blocks: pool(region, ObjectKind::Block, Tier::Device, memory),
        windows: pool(region + 1, ObjectKind::Window, Tier::Host, Arc::new(windows)),
    };
    (party, slab)
}

fn start_store(
    engine: &Engine,
    transport: &Arc<LocalTransport>,
    clock: &Arc<dyn Clock>,
    disk: Option<Arc<DiskTier>>,
) -> HostTier {
    let layout = engine.layout();
    let bytes = |slots: u32, slot: usize| u64::from(slots) * u64::try_from(slot).unwrap();
    let config = HostTierConfig {
        block_bytes_max: bytes(BLOCK_SLOTS, layout.block_bytes()),
        window_bytes_max: bytes(WINDOW_SLOTS, layout.window_bytes()),
        ..HostTierConfig::DEFAULT
    };
    let wiring = HostWiring {
        quotas: Arc::default(),
        block_slot_bytes: layout.block_bytes(),
        window_slot_bytes: layout.window_bytes(),
        block_region: RegionId(1),
        window_region: RegionId(2),
        transport: Arc::clone(transport) as Arc<dyn Transport>,
        clock: Arc::clone(clock),
        disk,
    };
    HostTier::start(&config, wiring).unwrap()
}

/// Polls a condition that another thread brings about.
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if condition() {
            return;
        }
        thread::park_timeout(Duration::from_millis(1));
    }
    panic!("waited too long: {what}");
}
