//! A worker and the store nodes that it talks to, all in this process: over QUIC or through shared memory, as between
//! processes.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use crossbeam_channel::{Receiver, bounded};
use kvstore::{
    DiskTier, HostTier, HostTierConfig, HostWiring, OwnedSlot, PeerStats, PeerTransport, ReadDone,
    ReadRequest, SealedSlot, Transport,
};
use parking_lot::Mutex;
use shared::{
    BlockStore, Clock, Descriptor, DpRank, Durability, Flow, Grouped, LocateEvent, ObjectKey,
    ObjectKind, OfferEvent, OfferOutcome, RegionId, RequestContext, Ticket, WorkerId, WorkerRank,
};
use tokio::task::block_in_place;

use crate::bench::rig::{Directory, Side, identity, peer, transport};
use crate::identity::MemberRole;

/// How long an answer may take until the run is given up.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// How often and how long to wait until a store has let go of what was read from it: 5 seconds in all.
const EMPTY_TRIES: u32 = 5_000;
const EMPTY_WAIT: Duration = Duration::from_millis(1);

const WORKER: WorkerRank = WorkerRank { worker: WorkerId(1), rank: DpRank(0) };

/// The way between the worker and a node, both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Quic,
    SharedMemory,
}

/// How large a rig is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Objects that the worker offers, and that each node has room for.
    pub(super) objects: usize,
    /// Objects that the worker can read at a time.
    pub(super) targets: usize,
    pub(super) object_bytes: usize,
}

/// One worker, one node per way.
pub(super) struct Rig {
    pub(super) sizes: Sizes,
    /// What the worker offers.
    pub(super) source: Side,
    pub(super) sealed: Vec<SealedSlot>,
    /// Where the worker reads to, and its slots, which are written by reads in turn.
    pub(super) target: Side,
    targets: Mutex<VecDeque<OwnedSlot>>,
    transport: Arc<PeerTransport>,
    nodes: Vec<Node>,
}

struct Node {
    way: Way,
    tier: HostTier,
    transport: Arc<PeerTransport>,
}

/// An offer on its way.
pub(super) struct Offering {
    _ticket: Ticket,
    answers: Receiver<OfferOutcome>,
    count: usize,
}

impl Rig {
    /// Starts everything; `folder` is for certificates and sockets. The disk goes below the first node.
    pub(super) fn start(
        sizes: Sizes,
        ways: &[Way],
        disk: Option<&Arc<DiskTier>>,
        folder: &Path,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let source = Side::new(WORKER, u32::try_from(sizes.objects)?, sizes.object_bytes)?;
        let target = Side::new(WORKER, u32::try_from(sizes.targets)?, sizes.object_bytes)?;
        let targets = Mutex::new(target.pool.reserve(sizes.targets)?.into());
        let sealed = source.fill(sizes.objects, sizes.object_bytes)?;
        let me = identity(folder, MemberRole::Decode, "worker", clock)?;
        let (known, socket) = (Directory::new(), folder.join("worker.sock"));
        let worker = transport(&me, Arc::clone(&known), Some(socket.clone()), clock)?;
        worker.register_shared(&source.pool, &source.memory)?;
        let mut nodes: Vec<Node> = Vec::new();
        for (way, number) in ways.iter().zip(2_u32..) {
            let rank = WorkerRank { worker: WorkerId(number), rank: DpRank(0) };
            let name = format!("store-{number}");
            let them = identity(folder, MemberRole::Kvstore, &name, clock)?;
            let path = folder.join(format!("{name}.sock"));
            let through = |path: &Path| (*way == Way::SharedMemory).then(|| path.to_owned());
            let peers = Directory::new();
            peers.add(WORKER, peer(&me, &worker, through(&socket)));
            let transport = Arc::new(transport(&them, peers, through(&path), clock)?);
            known.add(rank, peer(&them, &transport, through(&path)));
            let disk = disk.filter(|_| nodes.is_empty());
            nodes.push(Node::start(*way, rank, sizes, disk, (transport, clock))?);
        }
        Ok(Self { sizes, source, sealed, target, targets, transport: Arc::new(worker), nodes })
    }

    /// Closes the transports, then the nodes.
    pub(super) async fn end(self) {
        let Self { transport, nodes, .. } = self;
        for Node { tier, transport, .. } in nodes {
            transport.close().await;
            block_in_place(|| drop(tier));
        }
        transport.close().await;
    }

    /// Offers these of the worker's objects, without waiting.
    pub(super) fn offer(&self, way: Way, objects: &[SealedSlot]) -> anyhow::Result<Offering> {
        let (done, answers) = bounded(objects.len());
        let sink = move |event: OfferEvent| match done.send(event.outcome) {
            Ok(()) => Flow::Open,
            Err(_) => Flow::Closed,
        };
        let offered = objects.iter().map(|slot| Grouped::<Descriptor>::alone(slot.descriptor()));
        let tier = self.tier(way)?;
        let _ticket =
            tier.offer(RequestContext::NONE, offered.collect(), Durability::Memory, Box::new(sink));
        Ok(Offering { _ticket, answers, count: objects.len() })
    }

    /// Puts objects and waits until the node has them; each must come to this outcome.
    pub(super) fn put(
        &self,
        way: Way,
        objects: &[SealedSlot],
        expected: OfferOutcome,
    ) -> anyhow::Result<()> {
        self.offer(way, objects)?.finish(&[expected])
    }

    /// Makes sure that the node has all objects in memory.
    pub(super) fn hold_all(&self, way: Way) -> anyhow::Result<()> {
        for objects in self.sealed.chunks(super::BATCH) {
            let offering = self.offer(way, objects)?;
            offering.finish(&[OfferOutcome::Stored, OfferOutcome::AlreadyHeld])?;
        }
        Ok(())
    }

    /// Empties the node's memory.
    pub(super) fn empty(&self, way: Way) -> anyhow::Result<()> {
        let tier = self.tier(way)?;
        for _ in 0..EMPTY_TRIES {
            let _evicted: usize = tier.evict_all();
            if tier.blocks().held() == 0 {
                return Ok(());
            }
            // A reader's word that it has its copy may still be under way.
            thread::sleep(EMPTY_WAIT);
        }
        bail!("{} blocks are held by nobody that is known", tier.blocks().held())
    }

    /// Finds these objects, all of them, and pins them as long as the ticket lives.
    pub(super) fn locate(
        &self,
        way: Way,
        objects: &[SealedSlot],
    ) -> anyhow::Result<(Ticket, Vec<Descriptor>)> {
        let (done, answers) = bounded(1);
        let sink = move |event: LocateEvent| match done.send(event.found) {
            Ok(()) => Flow::Open,
            Err(_) => Flow::Closed,
        };
        let keys = objects.iter().map(|slot| Grouped::<ObjectKey>::alone(slot.descriptor().key));
        let tier = self.tier(way)?;
        let ticket = tier.locate(RequestContext::NONE, keys.collect(), Box::new(sink));
        let found = answers.recv_timeout(ANSWER_MAX).context("a lookup was not answered")?;
        if let Some(miss) = found.iter().find_map(|found| found.err()) {
            bail!("not all of {} blocks were found: {miss:?}", objects.len());
        }
        let found = found.into_iter().flatten().collect();
        Ok((ticket, found))
    }

    /// Reads objects of a node into the worker's memory and waits until they are there, checked. The slots take turns, so
    /// that what is written to is no warmer than what a copy or a connection writes to.
    pub(super) fn get(&self, sources: &[Descriptor]) -> anyhow::Result<()> {
        let mut targets = self.targets.lock();
        ensure!(sources.len() <= targets.len(), "{} reads at a time are too many", sources.len());
        let reads = sources.iter().zip(targets.drain(..sources.len()));
        let reads = reads.map(|(source, target)| ReadRequest { source: *source, target });
        let reads: Vec<ReadRequest> = reads.collect();
        let (done, answers) = bounded(sources.len());
        let sink = move |answer: ReadDone| {
            let ReadDone { result, target, .. } = answer;
            if done.send((result, target)).is_ok() { Flow::Open } else { Flow::Closed }
        };
        let _ticket = self.transport.read(RequestContext::NONE, reads, Box::new(sink));
        for _ in sources {
            let answer = answers.recv_timeout(ANSWER_MAX).context("a read was not answered")?;
            answer.0?;
            targets.push_back(answer.1);
        }
        Ok(())
    }

    /// Says whether nothing went another way than meant: over QUIC what is to go through shared memory, or back.
    pub(super) fn check_ways(&self) -> anyhow::Result<()> {
        let only = |way: Way, stats: PeerStats| {
            let other = if way == Way::Quic { stats.shared_memory } else { stats.quic };
            ensure!(other.objects == 0, "{way:?}: blocks took another way than the one measured");
            Ok(())
        };
        for node in &self.nodes {
            only(node.way, node.transport.stats())?;
            if node.way == Way::SharedMemory {
                let served = node.transport.stats().served_quic;
                ensure!(served.objects == 0, "blocks left over QUIC");
            }
        }
        Ok(())
    }

    fn tier(&self, way: Way) -> anyhow::Result<&HostTier> {
        let node = self.nodes.iter().find(|node| node.way == way);
        node.map(|node| &node.tier).context("there is no node for this way")
    }
}

impl Node {
    fn start(
        way: Way,
        rank: WorkerRank,
        sizes: Sizes,
        disk: Option<&Arc<DiskTier>>,
        (transport, clock): (Arc<PeerTransport>, &Arc<dyn Clock>),
    ) -> anyhow::Result<Self> {
        let object_bytes = u64::try_from(sizes.object_bytes)?;
        let config = HostTierConfig {
            block_bytes_max: u64::try_from(sizes.objects)? * object_bytes,
            window_bytes_max: object_bytes,
            ..HostTierConfig::DEFAULT
        };
        let wiring = HostWiring {
            quotas: Arc::default(),
            block_slot_bytes: sizes.object_bytes,
            window_slot_bytes: sizes.object_bytes,
            block_region: RegionId::of(rank, ObjectKind::Block),
            window_region: RegionId::of(rank, ObjectKind::Window),
            transport: Arc::clone(&transport) as Arc<dyn Transport>,
            clock: Arc::clone(clock),
            disk: disk.map(Arc::clone),
        };
        let tier = HostTier::start(&config, wiring)?;
        transport.register_shared(tier.blocks(), tier.block_memory())?;
        Ok(Self { way, tier, transport })
    }
}

impl Offering {
    /// Waits for all answers; each must be one of these.
    pub(super) fn finish(self, expected: &[OfferOutcome]) -> anyhow::Result<()> {
        for _ in 0..self.count {
            let outcome =
                self.answers.recv_timeout(ANSWER_MAX).context("an offer was not answered")?;
            ensure!(expected.contains(&outcome), "an offered block was {outcome:?}");
        }
        Ok(())
    }
}
