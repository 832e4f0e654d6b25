//! A prefill or a decode worker as a process: one model, one slab, one data plane.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use decode::{DecodeParts, DecodeWorker};
use engine::{Engine, Part, loaded_share};
use gateway::MetricsProvider;
use kvstore::PeerTransport;
use prefill::{PrefillParts, PrefillWorker};
use shared::{BlockStore, Flow, PrefillDirectory, Sink, WorkerEvent};
use tokio::task::block_in_place;

use super::base::{Base, Offered};
use super::peers::Peers;
use super::stores::Stores;
use crate::admin::{self, Observed, Starts};
use crate::console::Console;
use crate::identity::MemberRole;
use crate::lanes::Lanes;
use crate::wire::EventHub;
use crate::wiring::memory;
use crate::wiring::parts::{
    Asked, NamedPool, WorkerEvents, WorkerMemory, grammars, load, worker_memory,
};

/// Either worker, behind what this process needs of it.
#[derive(Clone)]
enum Worker {
    Prefill(Arc<PrefillWorker>),
    Decode(Arc<DecodeWorker>),
}

impl Worker {
    fn begin_drain(&self) {
        match self {
            Self::Prefill(worker) => worker.begin_drain(),
            Self::Decode(worker) => worker.begin_drain(),
        }
    }

    fn is_running(&self) -> bool {
        match self {
            Self::Prefill(worker) => worker.is_running(),
            Self::Decode(worker) => worker.is_running(),
        }
    }

    fn idle(&self) -> bool {
        match self {
            Self::Prefill(worker) => worker.idle(),
            Self::Decode(worker) => worker.idle(),
        }
    }

    fn starts(&self) -> Starts {
        match self.clone() {
            Self::Prefill(worker) => Arc::new(move |id| worker.starts_of(id)),
            Self::Decode(worker) => Arc::new(move |id| worker.starts_of(id)),
        }
    }

    fn figures(&self) -> MetricsProvider {
        match self.clone() {
            Self::Prefill(worker) => Arc::new(move |text| admin::prefill(&worker.stats(), text)),
            Self::Decode(worker) => Arc::new(move |text| {
                admin::decode(&worker.stats(), text);
                admin::grammars(&worker.guide_stats(), text);
            }),
        }
    }
}

/// What a worker is made of besides its settings.
struct Parts {
    engine: Arc<Engine>,
    memory: WorkerMemory,
    transport: Arc<PeerTransport>,
    peers: Arc<Peers>,
    store: Arc<dyn BlockStore>,
    events: Box<dyn Sink<WorkerEvent>>,
}

/// Runs the worker until it is told to stop.
///
/// # Errors
/// When the model cannot be loaded, memory is refused, or an address is taken.
pub(super) async fn run(mut base: Base, console: &mut Console) -> anyhow::Result<()> {
    let role = base.me.role();
    let part = if role == MemberRole::Prefill { Part::Encoder } else { Part::Whole };
    let arithmetic = base.config.server.arith.into();
    memory::check_worker(&base.config, base.checkpoint.config().layout())?;
    let engine = block_in_place(|| {
        load(&base.checkpoint, arithmetic, part, &mut |line| console.progress(line))
    })?;
    let engine = Arc::new(engine);
    let memory =
        block_in_place(|| worker_memory(engine.layout(), &base.config.server, base.me.rank()))?;
    let called: &[MemberRole] = match role {
        MemberRole::Prefill => &[MemberRole::Kvstore],
        _ => &[MemberRole::Kvstore, MemberRole::Prefill],
    };
    let peers = base.peers(called, Lanes::default());
    let transport = Arc::new(base.transport(&peers)?);
    transport.register_shared(&memory.blocks, &memory.slab_memory)?;
    transport.register_shared(&memory.windows, &memory.window_memory)?;

    let asked = Asked::default();
    let rank = base.me.rank();
    let hub = EventHub::new({
        let asked = asked.clone();
        move |question| asked.ask(rank, &question)
    });
    let told = Arc::clone(&hub);
    let pass = move |event| {
        told.emit(event);
        Flow::Open
    };
    let events = Box::new(WorkerEvents::new(rank, &memory.blocks, asked, pass));
    let [blocks, windows] = match role {
        MemberRole::Prefill => ["prefill_blocks", "prefill_windows"],
        _ => ["decode_blocks", "decode_windows"],
    };
    let pools =
        vec![NamedPool::new(blocks, &memory.blocks), NamedPool::new(windows, &memory.windows)];
    let nodes = Arc::clone(&peers);
    let nodes = Arc::new(move || nodes.stores());
    let stores = Arc::new(Stores::new(nodes, base.config.stores, Arc::clone(&base.clock)));
    let parts = Parts {
        engine,
        memory,
        transport: Arc::clone(&transport),
        peers: Arc::clone(&peers),
        store: Arc::clone(&stores) as Arc<dyn BlockStore>,
        events,
    };
    let worker = start(&base, parts)?;

    let mut observed = observe(&base, &worker, &transport, &peers, pools);
    observed.figures.push(Arc::new(move |text| admin::stores(&stores.stats(), text)));
    let offered = Offered { events: Some(hub), ..offered(&base, &worker) };
    let running = base.answer(offered, Base::admin(observed), &peers)?;
    base.say_ready(console)?;
    let ended = base.until_stopped(|| worker.is_running()).await;
    console.progress("draining");
    worker.begin_drain();
    let drain = if ended.is_ok() { base.drain() } else { Duration::ZERO };
    running.end(drain).await;
    transport.close().await;
    block_in_place(|| drop(worker));
    peers.close().await;
    ended?;
    console.line("drained")?;
    Ok(())
}

fn start(base: &Base, parts: Parts) -> anyhow::Result<Worker> {
    let Parts { engine, memory, transport, peers, store, events } = parts;
    let transport = base.telemetry.transport(transport, base.me.rank());
    let (rank, clock) = (base.me.rank(), Arc::clone(&base.clock));
    let WorkerMemory { slab, blocks: pool, windows, .. } = memory;
    if base.me.role() == MemberRole::Prefill {
        let parts =
            PrefillParts { rank, engine, slab, pool, windows, transport, store, clock, events };
        let worker = PrefillWorker::start(base.config.prefill.clone(), parts)?;
        return Ok(Worker::Prefill(Arc::new(worker)));
    }
    let prefill = peers as Arc<dyn PrefillDirectory>;
    let grammars = Some(block_in_place(|| grammars(&base.checkpoint))?);
    let parts = DecodeParts {
        rank,
        engine,
        slab,
        pool,
        windows,
        transport,
        store,
        prefill,
        grammars,
        clock,
        events,
    };
    let worker = DecodeWorker::start(base.config.decode.clone(), parts);
    Ok(Worker::Decode(Arc::new(worker.context("the decode worker")?)))
}

/// What other members may call.
fn offered(base: &Base, worker: &Worker) -> Offered {
    let rank = base.me.rank();
    match worker {
        Worker::Prefill(worker) => {
            let worker = base.telemetry.prefill(Arc::clone(worker) as _, rank);
            Offered { prefill: Some(worker), ..Offered::default() }
        }
        Worker::Decode(worker) => {
            let worker = base.telemetry.decode(Arc::clone(worker) as _, rank);
            Offered { decode: Some(worker), ..Offered::default() }
        }
    }
}

fn observe(
    base: &Base,
    worker: &Worker,
    transport: &Arc<PeerTransport>,
    peers: &Arc<Peers>,
    pools: Vec<NamedPool>,
) -> Observed {
    let running = worker.clone();
    let (counted, read, linked) = (worker.clone(), Arc::clone(transport), Arc::clone(peers));
    let share = loaded_share(base.checkpoint.config(), Part::Encoder);
    let is_prefill = base.me.role() == MemberRole::Prefill;
    Observed {
        pools,
        figures: vec![
            worker.figures(),
            Arc::new(move |text| admin::reads(&read.stats(), text)),
            base.telemetry.figures(),
            base.discovery_figures(),
        ],
        busy: vec![Arc::new(move || usize::from(!counted.idle()))],
        prefill_loaded_share: is_prefill.then_some(share.with_tables),
        evict_disk: None,
        evict_tenant: None,
        is_running: Some(Arc::new(move || running.is_running())),
        places: None,
        routing: None,
        capture: None,
        starts: vec![(format!("{} ({})", base.me.name, base.me.role()), worker.starts())],
        members: Some(Arc::new(move || linked.states())),
    }
}
