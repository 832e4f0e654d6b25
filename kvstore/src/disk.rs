//! The disk tier: blocks in append-only segment files, behind the host tier.
//!
//! Blocks are queued for writing without waiting and written by one thread; reads are queued and done by a few. The index
//! of names lies on disk too, in the [`catalog`], and is made anew from the files when it is missing or damaged. Window
//! objects never come here.
//!
//! Below it may lie an object store (`disk/object.rs`), which takes complete segments and gives them back when they are
//! asked for.
//!
//! The drive is read and written past the page cache and several transfers at a time, where the system has that
//! (`disk/io.rs`). What a read would take now is known ([`DiskLoad`]), so that a slow drive makes misses, not waits.
//!
//! Invariants: a name is written once as long as its copy is found; a read returns the bytes that were sealed under the
//! name or an error, whatever happened to the files; a crash costs at most what was not synced; all files together stay
//! below `bytes_max`; what was admitted stays for its retention (`disk/retention.rs`); one process has the folder; every
//! queue is bounded and full means dropped and counted.
//!
//! Start reading at [`format`], then `disk/writer.rs`, `disk/index.rs` and `disk/retention.rs`.

mod ack;
mod append;
pub mod catalog;
mod check;
mod config;
mod evict;
mod folder;
mod format;
mod free;
mod index;
pub(crate) mod io;
mod keys;
mod load;
mod object;
mod pace;
mod queue;
mod reader;
mod recover;
mod retention;
mod room;
mod scrub;
mod segment;
mod stats;
pub mod survey;
mod told;
mod tombstones;
mod writer;

#[cfg(test)]
pub(crate) use object::tests as object_tests;

#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use shared::{BlockName, Clock, Numerics, TenantTag};

pub use config::{DiskConfig, DiskError};
pub use evict::EvictError;
pub use io::DiskIo;
pub use load::DiskLoad;
pub use object::{ObjectConfig, ObjectError, ObjectStats};
pub use retention::{
    Limits as RetentionLimits, PlanError, PlanVerdict, Retention, RetentionPlan, RetentionQuery,
    Reuse, plan_retention,
};
pub use stats::DiskStats;

pub(crate) use ack::{Ack, Acked};
pub(crate) use object::{Below, Connect};
pub(crate) use reader::{DiskRead, DiskReadDone};
pub(crate) use stats::DiskReadError;

use crate::pool::SealedSlot;
use crate::tenants::TenantQuotas;
use folder::{lock, open_keys};
use format::{Identity, record_bytes};
use free::FreeFiles;
use index::Index;
use io::{Drive, SystemDrive};
use keys::TenantKeys;
use load::Load;
use object::Remote;
use queue::{Candidate, Queue, QueueBounds, Refused};
use reader::Job;
use recover::{Recovered, StartReport};
use retention::Limits;
use stats::{Counters, WriteDrop};
use writer::{Command, Queued, Writer};

/// How long the end of the tier may take for writing what is queued. A full queue at its default is 256 MiB.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// How much longer it may take until the threads are left behind: a drive that hangs.
const HANG_MAX: Duration = Duration::from_secs(10);

/// What a disk tier needs to know besides its settings.
#[derive(Clone)]
pub struct DiskWiring {
    /// Bytes of one block: [`shared::KvLayout::block_bytes`].
    pub block_bytes: usize,
    /// [`shared::KvLayout::fingerprint`]. Segments of another one are not read.
    pub layout: [u8; 32],
    /// The engine's revision, at most 64 bytes. Segments of another one are not read.
    pub numerics: Numerics,
    /// The time by which blocks are synced and errors are retried, and that is written into the files.
    pub clock: Arc<dyn Clock>,
    /// How much each tenant may keep.
    pub quotas: Arc<TenantQuotas>,
}

/// Blocks in segment files.
pub struct DiskTier {
    shared: Arc<Shared>,
    writes: Option<Sender<Command>>,
    reads: Option<Sender<Job>>,
    objects: Option<object::Handles>,
    /// Disconnected when all threads have ended.
    ended: Receiver<()>,
    /// The scrub ends when it is dropped.
    scrub: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

/// What callers and threads have in common.
struct Shared {
    config: DiskConfig,
    identity: Identity,
    limits: Limits,
    quotas: Arc<TenantQuotas>,
    /// None when blocks are not encrypted.
    keys: Option<TenantKeys>,
    /// Held over an eviction of a tenant: the list of them is written as a whole.
    evicting: Mutex<()>,
    block_bytes: u32,
    clock: Arc<dyn Clock>,
    drive: Arc<dyn Drive>,
    index: Index,
    /// Files that can be written on again.
    free: Mutex<FreeFiles>,
    queue: Mutex<Queue>,
    /// Of reads that wait or are under way.
    load: Mutex<Load>,
    counters: Counters,
    /// The object store below, if there is one.
    remote: Option<Remote>,
    /// From this time on what is queued is dropped.
    drain_until: AtomicU64,
    /// Reads are not begun any more.
    closing: AtomicBool,
    /// Locked as long as it is open.
    _lock: File,
}

/// A block that is to be written.
pub(crate) struct Put {
    pub(crate) block: SealedSlot,
    /// Whose it is. One that lies on disk already stays whose it is there.
    pub(crate) tenant: TenantTag,
    /// Who waits until it is durable.
    pub(crate) ack: Option<Ack>,
}

/// What became of a block that was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is queued, or on disk already.
    Queued,
    /// The write budget has nothing left for it, or its tenant has as much as it may have.
    OverBudget,
    /// The queue is full, or the drive is left alone after an error.
    Dropped,
}

impl DiskTier {
    /// Locks the folder, brings the catalog in step with the segments and starts the threads. Blocks: reads the last
    /// segment, and one table for each that the catalog does not know.
    ///
    /// # Errors
    /// When a setting is out of its range, another store has the folder, it cannot be read or written, or there is no
    /// thread.
    pub fn start(config: &DiskConfig, wiring: DiskWiring) -> Result<Self, DiskError> {
        Self::start_on(config, wiring, |folder| Arc::new(SystemDrive::probe(folder)))
    }

    /// The same on the drive that is made when the folder is locked.
    pub(crate) fn start_on(
        config: &DiskConfig,
        wiring: DiskWiring,
        drive: impl FnOnce(&Path) -> Arc<dyn Drive>,
    ) -> Result<Self, DiskError> {
        Self::start_over(config, wiring, drive, None)
    }

    /// The same over an object store that stands in for the configured one.
    pub(crate) fn start_over(
        config: &DiskConfig,
        wiring: DiskWiring,
        drive: impl FnOnce(&Path) -> Arc<dyn Drive>,
        connect: Option<Connect>,
    ) -> Result<Self, DiskError> {
        config.check(wiring.block_bytes)?;
        let numerics = DiskError::Numerics { found: wiring.numerics.0.len() };
        let identity = Identity::new(wiring.layout, &wiring.numerics).ok_or(numerics)?;
        let block_bytes = u32::try_from(wiring.block_bytes).expect("the check refuses more");
        let limits = config.limits(block_bytes)?;
        let lock = lock(&config.folder)?;
        let keys = open_keys(config)?;
        let counters = Counters::default();
        let drive = drive(&config.folder);
        let Recovered { index, active, number_next, free, report } =
            recover::recover(config, identity, &*drive, &*wiring.clock, &counters)?;
        let remote = Remote::new(config, identity, number_next, connect)?;
        let shared = Arc::new(Shared {
            config: config.clone(),
            identity,
            limits,
            quotas: wiring.quotas,
            keys,
            evicting: Mutex::new(()),
            block_bytes,
            clock: wiring.clock,
            drive,
            index,
            free: Mutex::new(free),
            queue: Mutex::new(Queue::new(Retention::new(limits))),
            load: Mutex::new(Load::new()),
            counters,
            remote,
            drain_until: AtomicU64::new(u64::MAX),
            closing: AtomicBool::new(false),
            _lock: lock,
        });
        let spared = active.as_ref().map(segment::OpenSegment::number);
        // Room for the rest of the segment that is written on.
        let rest =
            active.as_ref().map_or(0, |active| config.segment_bytes.saturating_sub(active.bytes()));
        let bytes_max = config.bytes_max.saturating_sub(rest);
        shared.expire().and_then(|()| shared.shrink(bytes_max, spared)).map_err(|source| {
            DiskError::File {
                what: "remove the oldest segment of",
                path: config.folder.clone(),
                source,
            }
        })?;
        shared.restart_budget();
        let (alive, ended) = bounded(0);
        // One place per queued block, as many for those who wait for one, and some for those who wait for a flush.
        let (writes, commands) = bounded(2 * config.queue_objects_max + 16);
        let (reads, jobs) = bounded(config.reads_max);
        let writer = Writer::new(Arc::clone(&shared), commands, active, number_next);
        let mut tier = Self {
            shared,
            writes: Some(writes),
            reads: Some(reads),
            objects: None,
            ended,
            scrub: None,
            threads: Vec::with_capacity(config.readers + 3),
        };
        tier.spawn_all(alive, writer, &jobs)?;
        tier.tell_start(&report);
        Ok(tier)
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &DiskConfig {
        &self.shared.config
    }

    /// Whether the block can be read from disk now; not durable for sure. The answer may be outdated at once.
    #[must_use]
    pub fn contains(&self, name: BlockName) -> bool {
        self.shared.index.find(name).is_some()
    }

    /// The same for many blocks at once, in their order.
    #[must_use]
    pub fn contains_all(&self, names: &[BlockName]) -> Vec<bool> {
        self.shared.index.find_all(names).iter().map(Option::is_some).collect()
    }

    /// Whether all threads still run. Without them a broken invariant ended the tier, which only a new process makes good.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// What the tier holds and did since it started.
    #[must_use]
    pub fn stats(&self) -> DiskStats {
        let Shared { config, counters, queue, index, clock, .. } = &*self.shared;
        let sizes = index.sizes();
        let stats = counters.snapshot(&queue.lock(), index, &sizes, config, clock.unix_seconds());
        let keys_loaded = self.shared.keys.as_ref().map_or(0, |keys| format::wide(keys.loaded()));
        let objects = self.shared.remote.as_ref().map(|remote| remote.stats(&self.shared));
        let io = self.shared.drive.io();
        let (files_free, bytes_free) = self.shared.free_files();
        let file_bytes = stats.file_bytes + bytes_free;
        DiskStats { io, load: self.load(), keys_loaded, objects, file_bytes, files_free, ..stats }
    }

    /// How busy the drive is with reads now, and how fast it was lately. See [`DiskLoad::time_for`].
    #[must_use]
    pub fn load(&self) -> DiskLoad {
        self.shared.load.lock().snapshot(self.shared.clock.now())
    }

    /// Bytes that a read of one block takes from the drive.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        record_bytes(self.shared.block_bytes)
    }

    /// Writes what was queued before and makes it durable, and says whether that worked; blocks dropped by an error are
    /// only counted. Blocks for at most twice `wait_max`: for the end of a process, tools and tests.
    #[must_use = "false means that blocks may be lost by a crash"]
    pub fn flush(&self, wait_max: Duration) -> bool {
        let Some(writes) = &self.writes else {
            unreachable!("the sender is taken by drop alone");
        };
        let (done, flushed) = bounded(1);
        writes.send_timeout(Command::Flush(done), wait_max).is_ok()
            && flushed.recv_timeout(wait_max).is_ok()
    }

    /// Removes all segments, those of other layouts included, and says how many blocks left. Objects are deleted soon after. What is queued is not
    /// written any more. Blocks while files are removed.
    #[must_use = "the number of evicted blocks is the only report of what happened"]
    pub fn evict_all(&self) -> usize {
        let segments = {
            let mut queue = self.shared.queue.lock();
            queue.epoch += 1;
            self.shared.index.lose_all();
            self.shared.index.catalog().segments()
        };
        let mut evicted = 0;
        for (number, _) in segments {
            let removed = self.shared.remove_file(number);
            let index = &self.shared.index;
            let leave = || index.doom_segment(number).map_err(writer::refused);
            match removed.and_then(|()| leave()) {
                Ok(objects) => evicted += objects,
                Err(error) => {
                    self.shared.counters.write_error();
                    tracing::error!(number, %error, "cannot remove a segment; check the rights of the folder");
                }
            }
        }
        if let Err(error) = self.shared.remove_free_files() {
            self.shared.counters.write_error();
            tracing::error!(%error, "cannot remove a free file; check the rights of the folder");
        }
        self.shared.objects_changed();
        self.shared.restart_budget();
        evicted
    }

    /// Queues a block to be written, unless it is on disk or queued, or at least `waiting_max` are waiting, or the write
    /// budget has nothing left for it. Never waits; what is not taken is counted.
    pub(crate) fn store(&self, put: Put, waiting_max: usize) -> Taken {
        self.queue(put, Reuse::Unknown, waiting_max)
    }

    /// The same for a block that was asked for again: it may take more of the budget, and one that is on disk is written
    /// again when its retention ends soon.
    pub(crate) fn keep(&self, put: Put, waiting_max: usize) -> Taken {
        self.queue(put, Reuse::Expected, waiting_max)
    }

    /// Of blocks that were found, those that [`DiskTier::keep`] would take: not on disk, or not for long. One answer per
    /// name.
    pub(crate) fn wants(&self, names: impl Iterator<Item = BlockName>) -> Vec<bool> {
        let names: Vec<BlockName> = names.collect();
        let held = self.shared.index.find_all(&names);
        let now = self.shared.clock.unix_seconds();
        let queue = self.shared.queue.lock();
        let names = names.iter().zip(&held);
        names.map(|(name, held)| queue.wants(*name, held.as_ref(), now)).collect()
    }

    fn queue(&self, put: Put, reuse: Reuse, waiting_max: usize) -> Taken {
        let Put { block, tenant, ack } = put;
        let source = block.descriptor();
        let config = &self.shared.config;
        let bounds = QueueBounds {
            objects: config.queue_objects_max.min(waiting_max),
            bytes: config.queue_bytes_max,
        };
        let now = self.shared.clock.now();
        let (name, bytes) = (source.key.name, source.bytes);
        let held = self.shared.index.find(name);
        // Whoever stored it first pays for it.
        let tenant = held.map_or(tenant, |entry| entry.tenant);
        let tenant_bytes_max = self.shared.quotas.of(tenant).disk_bytes_max;
        let tenant_bytes = match tenant_bytes_max {
            0 => 0,
            _ => self.shared.index.tenant_bytes(tenant),
        };
        let place = {
            let mut queue = self.shared.queue.lock();
            let unix_seconds = self.shared.clock.unix_seconds();
            let candidate = Candidate {
                name,
                bytes,
                reuse,
                unix_seconds,
                held,
                tenant,
                tenant_bytes,
                tenant_bytes_max,
            };
            queue.admit(candidate, bounds, now)
        };
        let counters = &self.shared.counters;
        let dropped = |reason| {
            counters.dropped(reason);
            Taken::Dropped
        };
        let place = match place {
            Ok(place) => place,
            Err(Refused::Known) => {
                self.confirm(name, ack);
                return Taken::Queued;
            }
            Err(Refused::Budget) => {
                counters.over_budget(bytes);
                return Taken::OverBudget;
            }
            Err(Refused::Quota) => {
                counters.dropped(WriteDrop::Quota);
                return Taken::OverBudget;
            }
            Err(Refused::Full) => return dropped(WriteDrop::Queue),
            Err(Refused::Suspended) => return dropped(WriteDrop::Error),
        };
        let Some(writes) = &self.writes else {
            unreachable!("the sender is taken by drop alone");
        };
        if writes.try_send(Command::Write(Queued { block, tenant, place, ack })).is_err() {
            // Callers of flush took the places, or the thread died.
            self.shared.queue.lock().leave(name, bytes);
            return dropped(WriteDrop::Queue);
        }
        Taken::Queued
    }

    /// Has a block that is on disk or queued acknowledged when it is durable.
    fn confirm(&self, name: BlockName, ack: Option<Ack>) {
        if let (Some(ack), Some(writes)) = (ack, &self.writes) {
            // Refused: too many wait, and it says by its drop that it is not known to be durable.
            let _refused = writes.try_send(Command::Confirm(name, ack));
        }
    }

    /// Queues a read, answered on `done` by one message, in any order. Never waits; gives the slot back when there is no
    /// room. `done` must have room for all answers that are out.
    pub(crate) fn read(&self, read: DiskRead, done: &Sender<DiskReadDone>) -> Result<(), DiskRead> {
        let Some(reads) = &self.reads else {
            unreachable!("the sender is taken by drop alone");
        };
        let (job, bytes) = (Job { read, done: done.clone() }, self.read_bytes());
        self.shared.load.lock().join(bytes, self.shared.clock.now());
        reads.try_send(job).map_err(|refused| {
            self.shared.load.lock().leave(1, bytes);
            refused.into_inner().read
        })
    }

    fn tell_start(&self, report: &StartReport) {
        let StartReport { catalog, trusted, loaded, dropped, took } = report;
        let stats = self.stats();
        let sealed = self.shared.index.catalog().sealed();
        if self.shared.keys.is_none() && 0 < sealed {
            tracing::warn!(
                blocks = sealed,
                "blocks on disk are encrypted and are not found; set disk.tenant_keys to the folder of their keys"
            );
        }
        tracing::info!(
            folder = %self.config().folder.display(), blocks = stats.objects_held,
            segments = stats.segments, %catalog, trusted, loaded, dropped,
            took_ms = took.as_millis(), lost_bytes = stats.lost_bytes, io = stats.io.as_str(),
            "disk tier started"
        );
    }

    /// Takes `alive` by value: it must be gone when a thread was refused and the tier drops.
    fn spawn_all(
        &mut self,
        alive: Sender<()>,
        writer: Writer,
        jobs: &Receiver<Job>,
    ) -> Result<(), DiskError> {
        self.spawn("kv-disk-write".to_owned(), &alive, move || writer.run())?;
        for reader in 0..self.config().readers {
            let (shared, jobs) = (Arc::clone(&self.shared), jobs.clone());
            self.spawn(format!("kv-disk-read-{reader}"), &alive, move || {
                reader::serve(&shared, &jobs);
            })?;
        }
        if self.config().scrub_mib_per_s != 0 {
            let (scrub, stop) = bounded(0);
            let shared = Arc::clone(&self.shared);
            self.spawn("kv-disk-scrub".to_owned(), &alive, move || scrub::run(&shared, &stop))?;
            self.scrub = Some(scrub);
        }
        if let Some(remote) = &self.shared.remote {
            let (thread, handles) = object::Thread::new(remote.config())?;
            let shared = Arc::clone(&self.shared);
            self.spawn("kv-object-store".to_owned(), &alive, move || thread.run(&shared))?;
            self.objects = Some(handles);
        }
        drop(alive);
        Ok(())
    }

    fn spawn(
        &mut self,
        name: String,
        alive: &Sender<()>,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), DiskError> {
        let alive = alive.clone();
        let run = move || {
            let _alive = alive;
            work();
        };
        let thread = thread::Builder::new().name(name).spawn(run).map_err(DiskError::Thread)?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for DiskTier {
    /// Writes what is queued, for some seconds at most, and makes it durable.
    fn drop(&mut self) {
        let until = self.shared.clock.now().after(DRAIN_MAX);
        self.shared.drain_until.store(until.0, Ordering::Release);
        self.shared.closing.store(true, Ordering::Release);
        self.writes = None;
        self.reads = None;
        self.objects = None;
        if let Some(remote) = &self.shared.remote {
            remote.stop();
        }
        self.scrub = None;
        if self.ended.recv_timeout(DRAIN_MAX + HANG_MAX) == Err(RecvTimeoutError::Timeout) {
            let folder = self.shared.config.folder.display();
            tracing::error!(%folder, "the disk does not answer; what was not synced may be lost");
            return;
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the disk tier died, see the message above");
            }
        }
        // The threads had the only other handles.
        if let Some(shared) = Arc::get_mut(&mut self.shared)
            && let Err(error) = shared.index.close()
        {
            tracing::warn!(%error, "the catalog was not closed; the next start takes longer");
        }
    }
}

impl Shared {
    /// Fills the budget anew from what is on disk.
    fn restart_budget(&self) {
        let written = self.index.records();
        self.queue.lock().retention.restart(written, self.clock.unix_seconds());
    }
}

impl fmt::Debug for DiskTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskTier").field("config", self.config()).finish_non_exhaustive()
    }
}
