use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::bounded;
use shared::{CacheChange, ManualClock, Numerics, SlotMemory, TenantTag, Tier};

use super::io::Drive;
use super::stats::DiskReadError;
use super::{
    DiskConfig, DiskError, DiskRead, DiskReadDone, DiskStats, DiskTier, DiskWiring, Put, Taken,
};
use crate::memory::HostMemory;
use crate::pool::{Pool, Seal, SealedSlot};
use crate::testing::{
    SLOT_BYTES, bytes_of, damage, name, next, payload, pool, pool_with_memory, store,
};

mod catalog;
mod faults;
mod files;
pub(crate) mod io;
mod recycled;
mod retention;
mod scrub;
mod survey;
mod tenants;

/// More than any flush of a test takes.
const FLUSH: Duration = Duration::from_secs(20);
/// Records of a test's segment: of its 16 pages one is the header and two are the table and the seal.
const SEGMENT_RECORDS: u64 = 13;

/// A folder of its own, removed in the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// In memory where the system has such a file system, for tests that sync often and ask nothing of the drive.
    pub(crate) fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::below(memory) } else { Self::new() }
    }

    fn below(parent: &Path) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("kvstore-test-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Small segments of 16 pages, 64 of them at most, synced whenever the queue is empty. The budget takes fifty new blocks at
/// once.
pub(crate) fn config(folder: &Folder) -> DiskConfig {
    DiskConfig {
        bytes_max: 64 << 16,
        segment_bytes: 1 << 16,
        queue_objects_max: 32,
        queue_bytes_max: 1 << 20,
        sync_ms: 0,
        reads_max: 32,
        scrub_mib_per_s: 0,
        ..DiskConfig::in_folder(folder.path().to_owned())
    }
}

pub(crate) fn wiring(clock: &Arc<ManualClock>) -> DiskWiring {
    DiskWiring {
        quotas: Arc::default(),
        block_bytes: SLOT_BYTES,
        layout: [7; 32],
        numerics: Numerics("cpu-exact-1".into()),
        clock: Arc::clone(clock) as Arc<dyn shared::Clock>,
    }
}

/// Nobody's block, to be written.
pub(crate) fn put(block: SealedSlot) -> Put {
    Put { block, tenant: TenantTag::NONE, ack: None }
}

/// A disk tier and a pool whose blocks are written to it.
struct Rig {
    tier: DiskTier,
    clock: Arc<ManualClock>,
    pool: Pool,
    memory: Arc<HostMemory>,
    target: Pool,
}

impl Rig {
    fn new(folder: &Folder) -> Self {
        Self::with(&config(folder))
    }

    fn with(config: &DiskConfig) -> Self {
        Self::at(config, Arc::new(ManualClock::new()))
    }

    fn at(config: &DiskConfig, clock: Arc<ManualClock>) -> Self {
        let tier = DiskTier::start(config, wiring(&clock)).unwrap();
        Self::of(tier, clock)
    }

    /// On this drive.
    fn on(config: &DiskConfig, drive: Arc<dyn Drive>) -> Self {
        let clock = Arc::new(ManualClock::new());
        let tier = DiskTier::start_on(config, wiring(&clock), |_| drive).unwrap();
        Self::of(tier, clock)
    }

    fn of(tier: DiskTier, clock: Arc<ManualClock>) -> Self {
        let (pool, memory) = pool_with_memory(1, 64);
        Self { tier, clock, pool, memory, target: self::pool(2, 1) }
    }

    fn queue(&self, number: u64) {
        self.tier.store(put(store(&self.pool, number)), usize::MAX);
    }

    /// Writes and makes durable, one block after the other.
    fn write(&self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.queue(number);
            assert!(self.tier.flush(FLUSH));
        }
    }

    fn read(&self, number: u64) -> Result<Vec<u8>, DiskReadError> {
        let (done, answers) = bounded(1);
        let target = self.target.reserve(1).unwrap().pop().unwrap();
        self.tier.read(DiskRead { name: name(number), target }, &done).unwrap();
        let DiskReadDone { name: read, target, result } = next(&answers);
        assert_eq!(read, name(number));
        let found = result?;
        let seal = Seal { name: read, exact: found.exact, bytes: found.bytes };
        let sealed = self.target.seal_unnamed(target, seal);
        assert_eq!(sealed.descriptor().checksum, found.checksum);
        Ok(bytes_of(&sealed))
    }

    /// Which of the numbers can be read; what is read has the right bytes.
    fn readable(&self, numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let readable = numbers.into_iter().filter(|number| match self.read(*number) {
            Ok(bytes) => {
                assert_eq!(bytes, payload(*number), "block {number}");
                true
            }
            Err(_) => false,
        });
        readable.collect()
    }

    fn stats(&self) -> DiskStats {
        self.tier.stats()
    }
}

/// The files of the segments, by number.
fn files(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.contains('.') && !name.ends_with(".free"));
    names.sort_unstable();
    names
}

fn file(folder: &Folder, number: u64) -> PathBuf {
    super::segment::path(folder.path(), number)
}

/// Flips one bit of a segment.
pub(crate) fn flip(folder: &Folder, number: u64, offset: usize) {
    let mut bytes = fs::read(file(folder, number)).unwrap();
    bytes[offset] ^= 4;
    fs::write(file(folder, number), bytes).unwrap();
}

fn stored(numbers: impl IntoIterator<Item = u64>) -> CacheChange {
    CacheChange::Stored { tier: Tier::Disk, names: numbers.into_iter().map(name).collect() }
}

fn removed(numbers: impl IntoIterator<Item = u64>) -> CacheChange {
    CacheChange::Removed { tier: Tier::Disk, names: numbers.into_iter().map(name).collect() }
}

#[test]
fn a_restart_keeps_what_was_synced() {
    let folder = Folder::new();
    let rig = Rig::new(&folder);
    let inexact = {
        let mut slot = rig.pool.reserve(1).unwrap().pop().unwrap();
        slot.write(&mut |bytes| bytes.fill(9));
        rig.pool.seal(slot, Seal { name: name(99), exact: false, bytes: 20 })
    };
    rig.tier.store(put(inexact), usize::MAX);
    rig.write(0..20);
    assert_eq!(rig.readable(0..20).len(), 20);
    assert!(rig.pool.audit().is_at_rest());
    let before = rig.stats();
    assert_eq!((before.written, before.objects_held, before.segments), (21, 21, 2));
    drop(rig);
    for _ in 0..2 {
        let rig = Rig::new(&folder);
        assert_eq!(rig.tier.drain_changes(), [stored((0..20).chain([99]))]);
        assert_eq!(rig.readable(0..21).len(), 20);
        assert_eq!(rig.read(99), Ok(vec![9; 20]));
        let stats = rig.stats();
        let held = |stats: &DiskStats| (stats.objects_held, stats.bytes_held, stats.file_bytes);
        assert_eq!((held(&stats), stats.lost_bytes), (held(&before), 0));
    }
    let rig = Rig::new(&folder);
    rig.write(20..30);
    assert_eq!(files(&folder).len(), 3, "the last segment was written on");
    drop(rig);
    assert_eq!(Rig::new(&folder).readable(0..30).len(), 30);
}

#[test]
fn the_end_of_the_tier_writes_what_is_queued() {
    let folder = Folder::new();
    let rig = Rig::with(&DiskConfig { sync_ms: 60_000, ..config(&folder) });
    (0..20).for_each(|number| rig.queue(number));
    drop(rig);
    assert_eq!(Rig::new(&folder).readable(0..20).len(), 20);
}

#[test]
fn a_block_is_written_once() {
    let folder = Folder::new();
    let rig = Rig::new(&folder);
    rig.write([1, 2, 1, 2, 1]);
    assert_eq!(rig.stats().written, 2);
    drop(rig);
    let rig = Rig::new(&folder);
    rig.write([1, 2, 3]);
    assert_eq!(rig.stats().written, 1);
}

#[test]
fn changes_are_net_and_a_resync_starts_over() {
    let folder = Folder::new();
    let rig = Rig::new(&folder);
    rig.write([3, 1]);
    assert_eq!(rig.tier.drain_changes(), [stored([1, 3])]);
    assert!(rig.tier.drain_changes().is_empty());
    rig.write([2]);
    assert_eq!(rig.tier.resync_changes(), [CacheChange::Cleared, stored([1, 2, 3])]);
    assert!(rig.tier.drain_changes().is_empty());
    assert_eq!(rig.tier.evict_all(), 3);
    rig.write([3, 4]);
    assert_eq!(rig.tier.drain_changes(), [removed([1, 2]), stored([4])]);
    assert_eq!(rig.tier.evict_all(), 2);
    rig.write([4]);
    assert_eq!(rig.tier.evict_all(), 1);
    assert_eq!(rig.tier.drain_changes(), [removed([3, 4])]);
    assert_eq!(rig.tier.resync_changes(), [CacheChange::Cleared]);
    assert!(files(&folder).is_empty());
}

#[test]
fn a_full_queue_drops_and_counts_and_never_waits() {
    let folder = Folder::new();
    let small = u64::try_from(SLOT_BYTES).unwrap();
    let cases = [
        ("objects", DiskConfig { queue_objects_max: 3, ..config(&folder) }, usize::MAX),
        ("bytes", DiskConfig { queue_bytes_max: 3 * small, ..config(&folder) }, usize::MAX),
        ("the caller's bound", config(&folder), 3),
    ];
    for (what, config, waiting_max) in cases {
        let rig = Rig::with(&config);
        let blocks: Vec<SealedSlot> = (0..5).map(|number| store(&rig.pool, number)).collect();
        let index = blocks[0].index();
        let (reached, held) = bounded(1);
        let (open, gate) = bounded::<()>(1);
        thread::scope(|scope| {
            scope.spawn(|| {
                rig.memory.write(index, &mut |_| {
                    reached.send(()).unwrap();
                    next(&gate);
                });
            });
            // The writing thread stops at the first block: somebody writes to its slot.
            next(&held);
            for block in blocks {
                let _taken: Taken = rig.tier.store(put(block), waiting_max);
            }
            let stats = rig.stats();
            assert_eq!((stats.queue_objects, stats.dropped_queue), (3, 2), "{what}");
            assert_eq!(stats.queue_bytes, 3 * small);
            open.send(()).unwrap();
        });
        assert!(rig.tier.flush(FLUSH));
        assert_eq!(rig.readable(0..5), [0, 1, 2], "{what}");
        assert_eq!((rig.stats().queue_objects, rig.stats().queue_bytes), (0, 0));
        assert!(rig.pool.audit().is_at_rest());
        assert_eq!(rig.tier.evict_all(), 3);
    }
}

#[test]
fn eviction_drops_what_waits() {
    let folder = Folder::new();
    let rig = Rig::new(&folder);
    let blocks: Vec<SealedSlot> = (0..3).map(|number| store(&rig.pool, number)).collect();
    let index = blocks[0].index();
    let (reached, held) = bounded(1);
    let (open, gate) = bounded::<()>(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            rig.memory.write(index, &mut |_| {
                reached.send(()).unwrap();
                next(&gate);
            });
        });
        next(&held);
        for block in blocks {
            let _taken: Taken = rig.tier.store(put(block), usize::MAX);
        }
        assert_eq!(rig.tier.evict_all(), 0);
        open.send(()).unwrap();
    });
    assert!(rig.tier.flush(FLUSH));
    assert_eq!((rig.readable(0..3).len(), rig.stats().dropped_evicted), (0, 3));
    rig.write(0..3);
    assert_eq!(rig.readable(0..3).len(), 3);
}

#[test]
fn a_second_store_in_the_same_folder_is_refused() {
    let folder = Folder::new();
    let rig = Rig::new(&folder);
    let clock = Arc::new(ManualClock::new());
    let refused = DiskTier::start(&config(&folder), wiring(&clock)).unwrap_err();
    assert!(matches!(&refused, DiskError::Locked { folder: named } if named == folder.path()));
    assert!(refused.to_string().contains("in use by another store"), "{refused}");
    drop(rig);
    DiskTier::start(&config(&folder), wiring(&clock)).unwrap();
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let folder = Folder::new();
    let base = config(&folder);
    let cases = [
        (DiskConfig { bytes_max: (2 << 16) - 1, ..base.clone() }, "bytes_max"),
        (DiskConfig { bytes_max: u64::MAX, ..base.clone() }, "bytes_max"),
        (DiskConfig { segment_bytes: (1 << 16) - 4_096, ..base.clone() }, "segment_bytes"),
        (DiskConfig { segment_bytes: (1 << 16) + 1, ..base.clone() }, "segment_bytes"),
        (DiskConfig { bytes_max: 3 << 16, ..base.clone() }, "bytes_max"),
        (DiskConfig { retention_s: 0, ..base.clone() }, "retention_s"),
        (DiskConfig { retention_s: 31_536_001, ..base.clone() }, "retention_s"),
        (DiskConfig { queue_objects_max: 0, ..base.clone() }, "queue_objects_max"),
        (DiskConfig { queue_bytes_max: 36, ..base.clone() }, "queue_bytes_max"),
        (DiskConfig { sync_ms: 60_001, ..base.clone() }, "sync_ms"),
        (DiskConfig { readers: 0, ..base.clone() }, "readers"),
        (DiskConfig { reads_max: 0, ..base.clone() }, "reads_max"),
        (DiskConfig { onboard_ms_max: 0, ..base.clone() }, "onboard_ms_max"),
        (DiskConfig { onboard_lookups_max: 0, ..base.clone() }, "onboard_lookups_max"),
        (DiskConfig { scrub_mib_per_s: 65_537, ..base.clone() }, "scrub_mib_per_s"),
        (DiskConfig { catalog_cache_bytes: 1, ..base.clone() }, "catalog_cache_bytes"),
        (
            DiskConfig { catalog_write_buffer_bytes: 1 << 33, ..base.clone() },
            "catalog_write_buffer_bytes",
        ),
    ];
    for (config, expected) in cases {
        let error = config.check(SLOT_BYTES).unwrap_err();
        assert!(matches!(error, DiskError::Config { field, .. } if field == expected), "{error}");
    }
    let large = base.check(60_000).unwrap_err();
    assert!(matches!(large, DiskError::Config { field: "segment_bytes", .. }), "{large}");
    DiskConfig::in_folder(folder.path().to_owned()).check(113_920).unwrap();
    let clock = Arc::new(ManualClock::new());
    let numerics = Numerics("x".repeat(65));
    let long = DiskTier::start(&base, DiskWiring { numerics, ..wiring(&clock) }).unwrap_err();
    assert!(matches!(long, DiskError::Numerics { found: 65 }));
}
