//! A store node as a process: host memory and a drive, behind lookups, offers and reads.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kvstore::{DiskConfig, DiskTier, DiskWiring, HostTier, HostWiring, PeerTransport};
use shared::{CacheEvent, ObjectKind, RegionId, WorkerEvent, WorkerRank};
use tokio::sync::watch;
use tokio::task::block_in_place;
use tokio::time::{interval, timeout};

use super::base::{Base, Offered};
use super::peers::Peers;
use crate::admin::{self, Observed};
use crate::console::Console;
use crate::lanes::Lanes;
use crate::wire::EventHub;
use crate::wiring::memory;
use crate::wiring::parts::{Asked, NamedPool};

/// Pause between two looks at what changed: routers know it at most so much later.
const CHANGES_PERIOD: Duration = Duration::from_millis(50);

/// Runs the node until it is told to stop.
///
/// # Errors
/// When memory is refused, the folder of the drive cannot be used, or an address is taken.
pub(super) async fn run(mut base: Base, console: &mut Console) -> anyhow::Result<()> {
    memory::check_store(&base.config)?;
    let peers = base.peers(&[], Lanes::default());
    let transport = Arc::new(base.transport(&peers)?);
    let rank = base.me.rank();
    let tier = Arc::new(start(&base, &transport)?);
    transport.register_shared(tier.blocks(), tier.block_memory())?;
    transport.register_shared(tier.windows(), tier.window_memory())?;

    let asked = Asked::default();
    let hub = EventHub::new({
        let asked = asked.clone();
        move |question| asked.ask(rank, &question)
    });
    let (stop, stopped) = watch::channel(false);
    let incarnation = base.facts.incarnation;
    let changes =
        Changes { tier: Arc::clone(&tier), hub: Arc::clone(&hub), asked, rank, incarnation };
    let mut telling = tokio::task::JoinSet::new();
    telling.spawn(changes.tell(stopped));
    let observed = observe(&base, &tier, &transport, &peers);
    let store = base.telemetry.store(Arc::clone(&tier) as _, rank);
    let offered = Offered { store: Some(store), events: Some(hub), ..Offered::default() };
    let running = base.answer(offered, Base::admin(observed), &peers)?;
    base.say_ready(console)?;
    let ended = base.until_stopped(|| tier.is_running()).await;
    console.progress("draining");
    stop.send_replace(true);
    let drain = if ended.is_ok() { base.drain() } else { Duration::ZERO };
    running.end(drain).await;
    if timeout(CHANGES_PERIOD * 10, telling.join_next()).await.is_err() {
        telling.shutdown().await;
    }
    transport.close().await;
    // What waits for the drive is written here.
    block_in_place(|| drop(tier));
    peers.close().await;
    ended?;
    console.line("drained")?;
    Ok(())
}

/// Host memory, and the drive below it if the member has one.
fn start(base: &Base, transport: &Arc<PeerTransport>) -> anyhow::Result<HostTier> {
    let rank = base.me.rank();
    let layout = base.checkpoint.config().layout();
    let quotas = base.config.tenants.quotas();
    let disk = match &base.me.disk {
        None => None,
        Some(folder) => {
            let disk = &base.config.disk;
            let mut tenant_keys = disk.tenant_keys.clone();
            if !tenant_keys.as_os_str().is_empty() {
                // Nodes on one host read the same file, and none may delete the keys of another.
                tenant_keys.push(&base.me.name);
            }
            let mut config = DiskConfig { folder: folder.clone(), tenant_keys, ..disk.clone() };
            config.object.node.clone_from(&base.me.name);
            let wiring = DiskWiring {
                block_bytes: layout.block_bytes(),
                layout: layout.fingerprint(),
                numerics: base.facts.numerics.clone(),
                clock: Arc::clone(&base.clock),
                quotas: Arc::clone(&quotas),
            };
            let started = block_in_place(|| DiskTier::start(&config, wiring));
            Some(Arc::new(started.context("the drive of this store node")?))
        }
    };
    let wiring = HostWiring {
        block_slot_bytes: layout.block_bytes(),
        window_slot_bytes: layout.window_bytes(),
        block_region: RegionId::of(rank, ObjectKind::Block),
        window_region: RegionId::of(rank, ObjectKind::Window),
        transport: base.telemetry.transport(Arc::clone(transport) as _, rank),
        clock: Arc::clone(&base.clock),
        disk,
        quotas,
    };
    let tier = block_in_place(|| HostTier::start(&base.config.store, wiring));
    tier.context("the store ([store] of the configuration)")
}

fn observe(
    base: &Base,
    tier: &Arc<HostTier>,
    transport: &Arc<PeerTransport>,
    peers: &Arc<Peers>,
) -> Observed {
    let (counted, read, linked) = (Arc::clone(tier), Arc::clone(transport), Arc::clone(peers));
    let (evicted, running) = (Arc::clone(tier), Arc::clone(tier));
    let of_tenants = Arc::clone(tier);
    Observed {
        pools: vec![
            NamedPool::new("store_blocks", tier.blocks()),
            NamedPool::new("store_windows", tier.windows()),
        ],
        figures: vec![
            Arc::new(move |text| admin::store(&counted.stats(), text)),
            Arc::new(move |text| admin::reads(&read.stats(), text)),
            base.telemetry.figures(),
            base.discovery_figures(),
        ],
        evict_tenant: Some(Arc::new(move |tenant| of_tenants.evict_tenant(tenant))),
        evict_disk: Some(Arc::new(move || evicted.evict_disk())),
        places: Some(admin::places_in(Arc::clone(tier))),
        is_running: Some(Arc::new(move || running.is_running())),
        members: Some(Arc::new(move || linked.states())),
        ..Observed::default()
    }
}

/// Tells routers what the node holds.
struct Changes {
    tier: Arc<HostTier>,
    hub: Arc<EventHub>,
    asked: Asked,
    rank: WorkerRank,
    incarnation: u64,
}

impl Changes {
    async fn tell(self, mut stopped: watch::Receiver<bool>) {
        let mut period = interval(CHANGES_PERIOD);
        let mut sequence = 0;
        loop {
            tokio::select! {
                // A dropped sender says the same.
                _ = stopped.wait_for(|stop| *stop) => return,
                _ = period.tick() => {}
            }
            for change in self.asked.told_by(&self.tier, self.rank) {
                let (worker, incarnation) = (self.rank, self.incarnation);
                self.hub.emit(WorkerEvent::Cache(CacheEvent {
                    worker,
                    incarnation,
                    sequence,
                    change,
                }));
                sequence += 1;
            }
        }
    }
}
