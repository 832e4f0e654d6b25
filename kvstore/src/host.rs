//! The host tier: a bounded store of blocks, window objects and pieces of media embeddings in host memory, behind
//! [`BlockStore`], with a disk below it or without one. A piece is kept as a block is, in a slot of the same size: below,
//! what is said of blocks holds for pieces, but that routers are not told of them.
//!
//! One named thread does all the work. It answers `locate` by pinning what is held until the ticket drops, also while
//! reads are under way, and `offer` by reading the object through a [`Transport`], checking it and sealing it. Nothing
//! is ever pushed into it. What does not fit, is not read, or fails its check is simply not cached here.
//!
//! With a disk every block that is stored is also queued to be written there, and a lookup waits a little for blocks
//! that are on disk alone while they are read into slots of this tier; others go on meanwhile.
//!
//! Invariants: memory is allocated once, from two bounds in bytes; the queue is bounded; window objects leave when they
//! were not used for `window_ttl`, and never go to disk; at most half of the slots are pinned by waiting writes; dropping
//! the tier withdraws what waits, joins the thread and flushes the disk.

mod acks;
mod lookups;
mod owners;
mod stats;
mod told;
mod windows;
mod worker;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Sender, TrySendError, bounded};
use parking_lot::Mutex;
use shared::{
    BlockName, BlockStore, Clock, Descriptor, Durability, Flow, Grouped, LocateEvent, Miss,
    ObjectKey, ObjectKind, OfferEvent, OfferOutcome, RegionId, RequestContext, Sink, SlotMemory,
    TenantTag, Ticket, Tier, ungrouped,
};

pub use lookups::BlockPlace;
pub use stats::HostStats;

use crate::disk::{DiskTier, EvictError};
use crate::memory::{MemoryError, SharedMemory};
use crate::pool::{Pool, PoolAudit, PoolConfig};
use crate::tenants::TenantQuotas;
use crate::transport::Transport;
use acks::Answers;
use lookups::{Lookup, Pins};
use owners::Owners;
use stats::{Counters, DropReason, wide};
use worker::{Command, Offer, Waiting, Worker};

/// How long the end of the tier waits for the disk to write and sync what is queued.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// How large a host tier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTierConfig {
    /// Memory for blocks and pieces of media embeddings, in bytes, allocated at the start. Range: one block to the host's memory. Default: 1 GiB, which
    /// for the Flash layout is 9,425 blocks or 1.2 million tokens: enough for a demo on a laptop, small beside a server.
    pub block_bytes_max: u64,
    /// Memory for window objects, in bytes, allocated at the start. Range: one object to the host's memory. Default:
    /// 256 MiB, which for the Flash layout is 198 objects: one per conversation that was active in the last minutes.
    pub window_bytes_max: u64,
    /// How long an unused window object is kept. Range: 1 second to 1 hour. Default: 10 minutes, about the time in which
    /// the next turn of a conversation comes; later, rebuilding 128 rows is cheaper than the memory.
    pub window_ttl: Duration,
    /// Offered objects that may wait, and commands that may wait. Range: 1 to 65,536. Default: 1,024: a waiting offer
    /// pins a slot of the worker that made it, and what overflows can be recomputed.
    pub queue_max: usize,
    /// How long an offer may take until all of it is read, waiting included; the rest is then not taken. Range: 1 ms to 10
    /// min. Default: 30 s: the worker that made it pins the objects as long.
    pub offer_wait_max: Duration,
    /// Objects read at a time. Range: 1 to 1,024. Default: 16, about 2 MB of Flash blocks: enough to keep a link busy,
    /// few enough that a withdrawn offer stops soon.
    pub batch_max: usize,
}

impl HostTierConfig {
    /// The defaults documented at the fields.
    pub const DEFAULT: Self = Self {
        block_bytes_max: 1 << 30,
        window_bytes_max: 256 << 20,
        window_ttl: Duration::from_secs(600),
        queue_max: 1_024,
        offer_wait_max: Duration::from_secs(30),
        batch_max: 16,
    };

    /// Checks the ranges that need no memory to be known.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn check(&self) -> Result<(), HostTierError> {
        let ttl = self.window_ttl;
        if !(Duration::from_secs(1)..=Duration::from_secs(3_600)).contains(&ttl) {
            let found = format!("{ttl:?}");
            return Err(HostTierError::Config {
                field: "window_ttl",
                found,
                expected: "1 s to 1 h",
            });
        }
        let wait = self.offer_wait_max;
        if !(Duration::from_millis(1)..=Duration::from_secs(600)).contains(&wait) {
            let found = format!("{wait:?}");
            return Err(HostTierError::Config {
                field: "offer_wait_max",
                found,
                expected: "1 ms to 10 min",
            });
        }
        for (field, found, max, expected) in [
            ("queue_max", self.queue_max, 65_536, "1 to 65,536"),
            ("batch_max", self.batch_max, 1_024, "1 to 1,024"),
        ] {
            if !(1..=max).contains(&found) {
                let found = found.to_string();
                return Err(HostTierError::Config { field, found, expected });
            }
        }
        Ok(())
    }
}

/// What a host tier is connected to.
#[derive(Clone)]
pub struct HostWiring {
    /// Bytes of one block: [`shared::KvLayout::block_bytes`].
    pub block_slot_bytes: usize,
    /// Bytes of one window object: [`shared::KvLayout::window_bytes`].
    pub window_slot_bytes: usize,
    /// The region under which blocks are read from here.
    pub block_region: RegionId,
    /// The region under which window objects are read from here.
    pub window_region: RegionId,
    /// How offered objects are read.
    pub transport: Arc<dyn Transport>,
    /// The time by which window objects grow old and lookups end.
    pub clock: Arc<dyn Clock>,
    /// The disk below, if there is one. One host tier may use it.
    pub disk: Option<Arc<DiskTier>>,
    /// How much each tenant may keep in host memory.
    pub quotas: Arc<TenantQuotas>,
}

/// Why a host tier did not start.
#[derive(Debug, thiserror::Error)]
pub enum HostTierError {
    /// A setting is out of its range.
    #[error("{field} is {found}, expected {expected}")]
    Config {
        /// The setting.
        field: &'static str,
        /// Its value.
        found: String,
        /// Its range.
        expected: &'static str,
    },
    /// The memory could not be had.
    #[error("memory for {what}: {source}")]
    Memory {
        /// What it was for.
        what: &'static str,
        /// Why not.
        source: MemoryError,
    },
    /// The system gave no thread.
    #[error("cannot start the host tier's thread: {0}")]
    Thread(io::Error),
}

/// A store of blocks and window objects in host memory.
#[derive(Debug)]
pub struct HostTier {
    pools: Pools,
    /// Below the blocks and below the window objects.
    memories: [Arc<SharedMemory>; 2],
    queue_max: usize,
    disk: Option<Arc<DiskTier>>,
    counters: Arc<Counters>,
    owners: Arc<Mutex<Owners>>,
    waiting: Arc<AtomicUsize>,
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

/// One pool per kind of object.
#[derive(Clone, Debug)]
struct Pools {
    blocks: Pool,
    windows: Pool,
}

/// What the parts of the thread have in common.
#[derive(Clone, Debug)]
struct Common {
    pools: Pools,
    counters: Arc<Counters>,
    /// Locked for moments; a pool's lock is taken under it.
    owners: Arc<Mutex<Owners>>,
}

impl Pools {
    fn of(&self, kind: ObjectKind) -> &Pool {
        match kind {
            ObjectKind::Block | ObjectKind::Media => &self.blocks,
            ObjectKind::Window => &self.windows,
        }
    }
}

impl HostTier {
    /// Allocates the memory and starts the thread. The caller registers [`HostTier::blocks`] and [`HostTier::windows`]
    /// with the transports that others read by.
    ///
    /// # Errors
    /// When a setting is out of its range, memory is refused, or there is no thread.
    pub fn start(config: &HostTierConfig, wiring: HostWiring) -> Result<Self, HostTierError> {
        config.check()?;
        let pool = |kind, region, bytes_max, slot_bytes| {
            let what = match kind {
                ObjectKind::Block | ObjectKind::Media => "blocks (block_bytes_max)",
                ObjectKind::Window => "window objects (window_bytes_max)",
            };
            let memory = SharedMemory::with_bound(bytes_max, slot_bytes)
                .map_err(|source| HostTierError::Memory { what, source })?;
            let memory = Arc::new(memory);
            let slots = Arc::clone(&memory) as Arc<dyn SlotMemory>;
            Ok((Pool::new(PoolConfig { region, kind, tier: Tier::Host }, slots), memory))
        };
        let HostWiring { block_region, window_region, .. } = wiring;
        let (block_bytes, window_bytes) = (wiring.block_slot_bytes, wiring.window_slot_bytes);
        let (blocks, block_memory) =
            pool(ObjectKind::Block, block_region, config.block_bytes_max, block_bytes)?;
        let (windows, window_memory) =
            pool(ObjectKind::Window, window_region, config.window_bytes_max, window_bytes)?;
        let pools = Pools { blocks, windows };
        let counters = Arc::new(Counters::default());
        let (commands, received) = bounded(config.queue_max);
        let disk = wiring.disk.clone();
        let owners = Owners::new(pools.clone(), Arc::clone(&wiring.quotas));
        let owners = Arc::new(Mutex::new(owners));
        let common = Common {
            pools: pools.clone(),
            counters: Arc::clone(&counters),
            owners: Arc::clone(&owners),
        };
        let worker = Worker::new(config, wiring, common, received);
        let thread = thread::Builder::new()
            .name("kv-host-tier".to_owned())
            .spawn(move || worker.run())
            .map_err(HostTierError::Thread)?;
        tracing::info!(
            blocks = pools.blocks.total(),
            windows = pools.windows.total(),
            "host tier started"
        );
        Ok(Self {
            pools,
            memories: [block_memory, window_memory],
            queue_max: config.queue_max,
            disk,
            counters,
            owners,
            waiting: Arc::new(AtomicUsize::new(0)),
            commands: Some(commands),
            thread: Some(thread),
        })
    }

    /// The pool of the blocks, to be registered with a transport.
    #[must_use]
    pub fn blocks(&self) -> &Pool {
        &self.pools.blocks
    }

    /// The memory below the blocks, for readers on this host.
    #[must_use]
    pub fn block_memory(&self) -> &Arc<SharedMemory> {
        &self.memories[0]
    }

    /// The memory below the window objects, for readers on this host.
    #[must_use]
    pub fn window_memory(&self) -> &Arc<SharedMemory> {
        &self.memories[1]
    }

    /// The pool of the window objects, to be registered with a transport.
    #[must_use]
    pub fn windows(&self) -> &Pool {
        &self.pools.windows
    }

    /// Whether all threads still run, those of the disk included. Without them a broken invariant ended the tier, which
    /// only a new process makes good.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
            && self.disk.as_ref().is_none_or(|disk| disk.is_running())
    }

    /// What the tier holds and did since it started.
    #[must_use]
    pub fn stats(&self) -> HostStats {
        let disk = self.disk.as_ref().map(|disk| disk.stats());
        let stats = self.counters.snapshot(&self.pools.blocks, &self.pools.windows, disk);
        HostStats { tenants: wide(self.owners.lock().tenants()), ..stats }
    }

    /// Recounts both pools: blocks, then window objects.
    #[must_use]
    pub fn audit(&self) -> [PoolAudit; 2] {
        [self.pools.blocks.audit(), self.pools.windows.audit()]
    }

    /// Frees everything in host memory that nobody holds, and says how many objects that were. The disk keeps what it has.
    #[must_use = "the number of evicted objects is the only report of what happened"]
    pub fn evict_all(&self) -> usize {
        self.pools.blocks.evict_all() + self.pools.windows.evict_all()
    }

    /// Removes everything from the disk, and says how many blocks that were; 0 without a disk. Blocks while files are
    /// removed. See [`DiskTier::evict_all`].
    #[must_use = "the number of evicted objects is the only report of what happened"]
    pub fn evict_disk(&self) -> usize {
        self.disk.as_ref().map_or(0, |disk| disk.evict_all())
    }

    /// Takes everything out that is a tenant's, in memory and on disk, what is on its way here included, and says how many
    /// names that were. What is being read stays readable until that is over; its bytes on disk leave with their segments.
    /// Blocks the caller: see [`DiskTier::evict_tenant`].
    ///
    /// # Errors
    /// When the disk could not do its part. Memory has done its own then.
    pub fn evict_tenant(&self, tenant: TenantTag) -> Result<usize, EvictError> {
        let mut evicted = self.owners.lock().evict(tenant);
        if let Some(disk) = &self.disk {
            let on_disk = disk.evict_tenant(tenant);
            // What lookups brought up from the disk until then.
            evicted += self.owners.lock().evict(tenant);
            evicted += on_disk?;
        }
        Ok(evicted)
    }

    /// Payload bytes that a tenant has in host memory.
    #[must_use]
    pub fn tenant_bytes(&self, tenant: TenantTag) -> u64 {
        self.owners.lock().held_bytes(tenant)
    }

    /// Says where each block is, or why not here, without pinning, reading or counting anything. `told` is called once, on
    /// the tier's thread, and must not block; it is dropped uncalled when the queue is full or the tier ends first.
    pub fn places(&self, names: Vec<BlockName>, told: Box<dyn FnOnce(Vec<BlockPlace>) + Send>) {
        // Whoever waits for it sees that it was dropped.
        let _sent_or_dropped = self.send(Command::Places(names, told)).is_ok();
    }

    /// Queues a command; gives it back when there is no room or no thread.
    fn send(&self, command: Command) -> Result<(), Command> {
        let Some(commands) = &self.commands else {
            unreachable!("the sender is taken by drop alone");
        };
        commands.try_send(command).map_err(|refused| match refused {
            TrySendError::Full(command) | TrySendError::Disconnected(command) => command,
        })
    }
}

impl BlockStore for HostTier {
    /// When the queue is full the answer is "nothing found", given on the calling thread.
    fn locate(
        &self,
        context: RequestContext,
        keys: Vec<Grouped<ObjectKey>>,
        sink: Box<dyn Sink<LocateEvent>>,
    ) -> Ticket {
        let keys = ungrouped(keys);
        let pins = Arc::new(Mutex::new(Pins::Waiting));
        let lookup = Lookup { context, keys, sink, pins: Arc::clone(&pins) };
        match self.send(Command::Locate(lookup)) {
            Ok(()) => Ticket::new(move || lookups::release(&pins)),
            Err(Command::Locate(mut lookup)) => {
                self.counters.lookups_refused.fetch_add(1, Ordering::Relaxed);
                // Nobody is left to tell when the sink is closed too.
                let _: Flow = lookup
                    .sink
                    .emit(LocateEvent::at_once(vec![Err(Miss::NoRoom); lookup.keys.len()]));
                Ticket::empty()
            }
            Err(Command::Offer(_) | Command::Places(..)) => {
                unreachable!("a refused command comes back as it was")
            }
        }
    }

    /// What exceeds the queue is answered with [`OfferOutcome::Dropped`] on the calling thread, last objects first to go.
    /// A withdrawn offer is answered by dropping its sink.
    fn offer(
        &self,
        context: RequestContext,
        objects: Vec<Grouped<Descriptor>>,
        durability: Durability,
        mut sink: Box<dyn Sink<OfferEvent>>,
    ) -> Ticket {
        let mut objects = ungrouped(objects);
        let waiting = Waiting::admit(&self.waiting, objects.len(), self.queue_max);
        let refused = objects.split_off(waiting.count());
        if self.refuse(&refused, &mut *sink) == Flow::Closed || objects.is_empty() {
            return Ticket::empty();
        }
        let withdrawn = Arc::new(AtomicBool::new(false));
        let (began, withdrawn_by) = (self.owners.lock().begin(), Arc::clone(&withdrawn));
        let offer = Offer {
            context,
            objects,
            durability,
            answers: Answers::new(sink),
            waiting,
            withdrawn: withdrawn_by,
            began,
        };
        match self.send(Command::Offer(Box::new(offer))) {
            Ok(()) => Ticket::new(move || withdrawn.store(true, Ordering::Release)),
            Err(Command::Offer(offer)) => {
                let Offer { objects, mut answers, .. } = *offer;
                // Closed or not, there is nothing more to say.
                let _: Flow = self.refuse(&objects, &mut answers);
                Ticket::empty()
            }
            Err(Command::Locate(_) | Command::Places(..)) => {
                unreachable!("a refused command comes back as it was")
            }
        }
    }
}

impl HostTier {
    fn refuse(&self, objects: &[Descriptor], sink: &mut dyn Sink<OfferEvent>) -> Flow {
        for object in objects {
            self.counters.dropped(DropReason::QueueFull);
            let event = OfferEvent { key: object.key, outcome: OfferOutcome::Dropped };
            if sink.emit(event) == Flow::Closed {
                return Flow::Closed;
            }
        }
        Flow::Open
    }
}

impl Drop for HostTier {
    fn drop(&mut self) {
        self.commands = None;
        let Some(thread) = self.thread.take() else {
            return;
        };
        // A sink may hold the last handle of the tier; its drop then runs on the thread that would be joined.
        if thread.thread().id() == thread::current().id() {
            return;
        }
        if thread.join().is_err() {
            tracing::error!("the host tier's thread died; a sink panicked, see the message above");
        }
        // The tier's own end drains too, but others may still hold it.
        if let Some(disk) = &self.disk
            && !disk.flush(FLUSH_MAX)
        {
            tracing::warn!("the disk was not flushed in time; blocks stored last may be lost");
        }
    }
}

/// A store that holds nothing, for workers that run without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoStore;

impl BlockStore for NoStore {
    fn locate(
        &self,
        _: RequestContext,
        keys: Vec<Grouped<ObjectKey>>,
        mut sink: Box<dyn Sink<LocateEvent>>,
    ) -> Ticket {
        // Closed or not, there is nothing more to say.
        let _: Flow = sink.emit(LocateEvent::at_once(vec![Err(Miss::NotAsked); keys.len()]));
        Ticket::empty()
    }

    fn offer(
        &self,
        _: RequestContext,
        objects: Vec<Grouped<Descriptor>>,
        _: Durability,
        mut sink: Box<dyn Sink<OfferEvent>>,
    ) -> Ticket {
        for object in objects {
            let event = OfferEvent { key: object.item.key, outcome: OfferOutcome::Dropped };
            if sink.emit(event) == Flow::Closed {
                break;
            }
        }
        Ticket::empty()
    }
}
