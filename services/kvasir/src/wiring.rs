//! All roles in one process: memories, pools, transport, host tier, workers and placement, put together.
//!
//! Roles see each other through the border traits alone; here is the only place that knows which implementation stands
//! behind them. Order of construction: transport, store, placement, prefill, decode. Order of the end: the reverse, so that
//! nobody calls what is gone.

mod asked;
mod directory;
mod events;
pub(crate) mod memory;
pub(crate) mod parts;
mod placement;
mod pools;

use std::sync::Arc;

use anyhow::Context;
use decode::{DecodeParts, DecodeWorker};
use engine::{Checkpoint, Engine, GrammarCompiler, LoadedShare, Part, loaded_share};
use kvstore::{HostTier, HostWiring, LocalTransport, LocalTransportConfig, Pool, Transport};
use prefill::{PrefillParts, PrefillWorker};
use router::{Role, Router};
use shared::{
    BlockStore, CacheEvent, Clock, Decode, DecodeDirectory, DpRank, KvLayout, ObjectKind, Placer,
    PrefillDirectory, RegionId, Sink, WorkerEvent, WorkerId, WorkerRank,
};

use crate::admin::Routing;
use crate::config::Config;
use crate::explain::Predictions;
use crate::telemetry::Telemetry;
use asked::Asked;
use directory::{OneDecode, OnePrefill};
use events::WorkerEvents;
use parts::{grammars, load};
use placement::{Placement, PlacementParts};
use pools::{WorkerMemory, worker_memory};

pub use placement::Placement as PlacementThread;
pub use pools::NamedPool;

/// The ranks of the three members of a one-process cluster.
const STORE: WorkerRank = WorkerRank { worker: WorkerId(0), rank: DpRank(0) };
const PREFILL: WorkerRank = WorkerRank { worker: WorkerId(1), rank: DpRank(0) };
const DECODE: WorkerRank = WorkerRank { worker: WorkerId(2), rank: DpRank(0) };

/// A running cluster of one router, one prefill worker, one decode worker and one store. Dropping it ends all threads.
///
/// Fields are in the order of their end.
pub struct Cluster {
    /// The decode worker, as the front door calls it.
    asked_to_decode: Arc<dyn Decode>,
    decode: Arc<DecodeWorker>,
    prefill: Arc<PrefillWorker>,
    placement: Arc<Placement>,
    predictions: Arc<Predictions>,
    store: Arc<HostTier>,
    pools: Vec<NamedPool>,
    prefill_loaded_share: LoadedShare,
}

impl Cluster {
    /// Loads the model twice, the encoder for prefill and the whole for decode, and starts every role. Blocks for as long as
    /// that takes; both workers map the same file, so its bytes are in memory once. `progress` gets a line now and then.
    ///
    /// # Errors
    /// When the checkpoint cannot be loaded, memory is refused or more than the machine has, a setting is out of range, or the system gives no thread.
    pub fn start(
        config: &Config,
        checkpoint: &Checkpoint,
        clock: &Arc<dyn Clock>,
        progress: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Self> {
        Self::start_traced(config, checkpoint, clock, &Telemetry::off(), progress)
    }

    /// The same with spans around what the roles do for each other.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub(crate) fn start_traced(
        config: &Config,
        checkpoint: &Checkpoint,
        clock: &Arc<dyn Clock>,
        telemetry: &Telemetry,
        progress: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Self> {
        memory::check(config, checkpoint.config().layout(), memory::physical_bytes())?;
        let arithmetic = config.server.arith.into();
        let encoder = Arc::new(load(checkpoint, arithmetic, Part::Encoder, progress)?);
        let whole = Arc::new(load(checkpoint, arithmetic, Part::Whole, progress)?);
        let layout = whole.layout().clone();
        let prefill_memory = worker_memory(&layout, &config.server, PREFILL)?;
        let decode_memory = worker_memory(&layout, &config.server, DECODE)?;

        let transport =
            LocalTransport::start(LocalTransportConfig { queue_max: config.transport.queue_max })
                .context("the transport")?;
        let transport = Arc::new(transport);
        let readers = telemetry.transport(Arc::clone(&transport) as _, STORE);
        let store = Arc::new(start_store(config, &layout, readers, clock)?);
        let pools = vec![
            NamedPool::new("prefill_blocks", &prefill_memory.blocks),
            NamedPool::new("prefill_windows", &prefill_memory.windows),
            NamedPool::new("decode_blocks", &decode_memory.blocks),
            NamedPool::new("decode_windows", &decode_memory.windows),
            NamedPool::new("store_blocks", store.blocks()),
            NamedPool::new("store_windows", store.windows()),
        ];
        for NamedPool { pool, .. } in &pools {
            transport.register(pool)?;
        }
        let asked = Asked::default();
        let (placement, predictions) = start_placement(config, &whole, &store, &asked, clock)?;
        let placement = Arc::new(placement);
        let shared = Shared {
            transport,
            store: telemetry.store(Arc::clone(&store) as _, STORE),
            asked,
            grammars: grammars(checkpoint)?,
            clock: Arc::clone(clock),
            telemetry,
        };
        let prefill = start_prefill(config, encoder, prefill_memory, &shared, &placement)?;
        let prefill = Arc::new(prefill);
        let members: Arc<dyn PrefillDirectory> = Arc::new(OnePrefill {
            rank: PREFILL,
            worker: telemetry.prefill(Arc::clone(&prefill) as _, PREFILL),
        });
        let decode = start_decode(config, whole, decode_memory, &shared, (&placement, members))?;
        let decode = Arc::new(decode);
        Ok(Self {
            asked_to_decode: telemetry.decode(Arc::clone(&decode) as _, DECODE),
            decode,
            prefill,
            placement,
            predictions,
            store,
            pools,
            prefill_loaded_share: loaded_share(checkpoint.config(), Part::Encoder),
        })
    }

    /// The router, as the front door uses it.
    #[must_use]
    pub fn placer(&self) -> Arc<dyn Placer> {
        Arc::clone(&self.placement) as Arc<dyn Placer>
    }

    /// The decode workers, as the front door finds them.
    #[must_use]
    pub fn directory(&self) -> Arc<dyn DecodeDirectory> {
        Arc::new(OneDecode { rank: DECODE, worker: Arc::clone(&self.asked_to_decode) })
    }

    /// The router and how well it predicts, for operators.
    pub(crate) fn routing(&self) -> Routing {
        let predictions = Arc::clone(&self.predictions);
        let worker = Arc::new(|name: &str| match name {
            "prefill" => Some(PREFILL),
            "decode" => Some(DECODE),
            _ => None,
        });
        Routing { thread: Arc::clone(&self.placement), predictions, worker }
    }

    /// The decode worker.
    #[must_use]
    pub fn decode(&self) -> &DecodeWorker {
        &self.decode
    }

    /// The prefill worker.
    #[must_use]
    pub fn prefill(&self) -> &PrefillWorker {
        &self.prefill
    }

    /// The placement thread.
    #[must_use]
    pub fn placement(&self) -> &PlacementThread {
        &self.placement
    }

    /// The host tier.
    #[must_use]
    pub fn store(&self) -> &HostTier {
        &self.store
    }

    /// Every pool of the process with its name.
    #[must_use]
    pub fn pools(&self) -> &[NamedPool] {
        &self.pools
    }

    /// Share of the checkpoint's bytes that the prefill worker maps.
    #[must_use]
    pub fn prefill_loaded_share(&self) -> LoadedShare {
        self.prefill_loaded_share
    }

    /// Whether every role still runs. Never blocks.
    ///
    /// # Errors
    /// Names the roles whose thread ended, which a broken invariant alone does.
    pub fn health(&self) -> Result<(), String> {
        let roles = [
            ("decode worker", self.decode.is_running()),
            ("prefill worker", self.prefill.is_running()),
            ("placement thread", self.placement.is_running()),
            ("host tier", self.store.is_running()),
        ];
        let ended = roles.into_iter().filter(|(_, running)| !running).map(|(role, _)| role);
        let ended: Vec<&str> = ended.collect();
        if ended.is_empty() {
            return Ok(());
        }
        Err(format!(
            "the {} ended by a fault and needs a restart of this process",
            ended.join(" and the ")
        ))
    }

    /// Tells the workers to take nothing new.
    pub fn begin_drain(&self) {
        self.decode.begin_drain();
        self.prefill.begin_drain();
    }
}

/// What both workers are connected to.
struct Shared<'a> {
    transport: Arc<LocalTransport>,
    store: Arc<dyn BlockStore>,
    asked: Asked,
    grammars: Arc<GrammarCompiler>,
    clock: Arc<dyn Clock>,
    telemetry: &'a Telemetry,
}

impl Shared<'_> {
    /// How a worker whose blocks are in `pool` is heard by the router of this process.
    fn events(
        &self,
        worker: WorkerRank,
        pool: &Pool,
        placement: &Placement,
    ) -> Box<dyn Sink<WorkerEvent>> {
        let teller = placement.teller();
        let pass = move |event| teller.event(event);
        Box::new(WorkerEvents::new(worker, pool, self.asked.clone(), pass))
    }
}

fn start_store(
    config: &Config,
    layout: &KvLayout,
    transport: Arc<dyn Transport>,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<HostTier> {
    let wiring = HostWiring {
        quotas: config.tenants.quotas(),
        block_slot_bytes: layout.block_bytes(),
        window_slot_bytes: layout.window_bytes(),
        block_region: RegionId::of(STORE, ObjectKind::Block),
        window_region: RegionId::of(STORE, ObjectKind::Window),
        transport,
        clock: Arc::clone(clock),
        disk: None,
    };
    HostTier::start(&config.store, wiring).context("the store ([store] of the configuration)")
}

fn start_placement(
    config: &Config,
    engine: &Engine,
    store: &Arc<HostTier>,
    asked: &Asked,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<(Placement, Arc<Predictions>)> {
    let settings = config.router(engine.geometry())?;
    let predictions = Predictions::new(&config.explain);
    let router = Router::new(settings)?;
    let store = Arc::clone(store);
    let asked_store = asked.clone();
    let mut sequence = 0;
    let poll = move || {
        let events = asked_store.told_by(&store, STORE).into_iter().map(|change| {
            let event = CacheEvent { worker: STORE, incarnation: 0, sequence, change };
            sequence += 1;
            WorkerEvent::Cache(event)
        });
        events.collect()
    };
    let parts = PlacementParts {
        router,
        members: vec![(STORE, Role::Store), (PREFILL, Role::Prefill), (DECODE, Role::Decode)],
        // A request that is placed anew has two places for a moment.
        requests_max: 2 * config.gateway.requests_in_flight_max,
        clock: Arc::clone(clock),
        poll: Box::new(poll),
        resync: Box::new({
            let asked = asked.clone();
            move |worker, question| asked.ask(worker, question)
        }),
        predictions: Arc::clone(&predictions),
        hub: None,
    };
    let placement = Placement::start(parts).context("the placement thread")?;
    Ok((placement, predictions))
}

fn start_prefill(
    config: &Config,
    engine: Arc<Engine>,
    memory: WorkerMemory,
    shared: &Shared<'_>,
    placement: &Placement,
) -> anyhow::Result<PrefillWorker> {
    let events = shared.events(PREFILL, &memory.blocks, placement);
    let parts = PrefillParts {
        rank: PREFILL,
        engine,
        slab: memory.slab,
        pool: memory.blocks,
        windows: memory.windows,
        transport: shared.telemetry.transport(Arc::clone(&shared.transport) as _, PREFILL),
        store: Arc::clone(&shared.store),
        clock: Arc::clone(&shared.clock),
        events,
    };
    Ok(PrefillWorker::start(config.prefill.clone(), parts)?)
}

fn start_decode(
    config: &Config,
    engine: Arc<Engine>,
    memory: WorkerMemory,
    shared: &Shared<'_>,
    (placement, prefill): (&Placement, Arc<dyn PrefillDirectory>),
) -> anyhow::Result<DecodeWorker> {
    let events = shared.events(DECODE, &memory.blocks, placement);
    let parts = DecodeParts {
        rank: DECODE,
        engine,
        slab: memory.slab,
        pool: memory.blocks,
        windows: memory.windows,
        transport: shared.telemetry.transport(Arc::clone(&shared.transport) as _, DECODE),
        store: Arc::clone(&shared.store),
        prefill,
        grammars: Some(Arc::clone(&shared.grammars)),
        clock: Arc::clone(&shared.clock),
        events,
    };
    Ok(DecodeWorker::start(config.decode.clone(), parts)?)
}
