//! What the disk tier counts.

use std::sync::atomic::{AtomicU64, Ordering};

use super::catalog::CatalogSizes;
use super::config::DiskConfig;
use super::format::wide;
use super::index::Index;
use super::io::DiskIo;
use super::load::DiskLoad;
use super::object::ObjectStats;
use super::queue::Queue;
use super::scrub::{ScrubCounters, Scrubbed};

/// A snapshot of the disk tier. Counts are since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Blocks that are durable and can be read from disk now, or from the object store below it.
    pub objects_held: u64,
    /// Their payload bytes.
    pub bytes_held: u64,
    /// Bytes of all segment files, those of other layouts and free ones included.
    pub file_bytes: u64,
    /// The bound on those.
    pub file_bytes_max: u64,
    /// Segment files, those of other layouts included.
    pub segments: u64,
    /// Files of segments that left, kept to be written on again. 4 at most.
    pub files_free: u64,
    /// Segments that were begun in such a file.
    pub segments_recycled: u64,
    /// Segment files of another layout, other numerics or another version: not read, removed when space is needed.
    pub segments_foreign: u64,
    /// Segments that were removed to make room before they had to leave: those of other layouts, and those of a store
    /// whose disk was made smaller.
    pub segments_dropped: u64,
    /// Blocks that left with them.
    pub objects_dropped: u64,
    /// Segments that left because their newest write was older than the retention.
    pub segments_expired: u64,
    /// Blocks that left with them; those that were written again lie elsewhere and are not counted.
    pub objects_expired: u64,
    /// Blocks that left to make room before their retention was over. Always 0 unless `bytes_max` was made smaller, or
    /// `segment_bytes` larger. Damage and evictions are not counted here.
    pub retention_violations: u64,
    /// Blocks written.
    pub written: u64,
    /// Payload bytes of those.
    pub written_bytes: u64,
    /// Of those blocks, the ones that were on disk already: hits late in their retention.
    pub reput: u64,
    /// Bytes that the write budget has now, and when it is full.
    pub budget_bytes: u64,
    /// See above.
    pub budget_bytes_max: u64,
    /// Bytes that the write budget gains in a whole retention.
    pub budget_refill_bytes: u64,
    /// Blocks not written because the write budget had nothing left for them; the same block counts each time.
    pub dropped_budget: u64,
    /// Payload bytes of those.
    pub dropped_budget_bytes: u64,
    /// Blocks not written because their tenant has as many bytes on disk as it may have.
    pub dropped_quota: u64,
    /// Blocks read by their age: up to one hour, up to 24 hours, up to 72 hours, older.
    pub read_by_age: [u64; 4],
    /// Blocks read and found intact.
    pub read: u64,
    /// Payload bytes of those.
    pub read_bytes: u64,
    /// Blocks not written because the queue was full.
    pub dropped_queue: u64,
    /// Blocks not written because of an error, or while writing was suspended after one.
    pub dropped_error: u64,
    /// Blocks not written because everything, or their tenant, was evicted while they waited.
    pub dropped_evicted: u64,
    /// Blocks not written because their bytes in host memory fail their checksum. Always 0 unless memory is at fault.
    pub dropped_corrupt: u64,
    /// Blocks not written because the tier ended before their turn.
    pub dropped_closed: u64,
    /// Blocks that could not be decrypted because their tenant's key is gone; they are not found any more.
    pub read_keyless: u64,
    /// Names that were told to routers once more, because one had lost something. Only grows.
    pub told_again: u64,
    /// Tenants that were evicted, as long as segments may hold bytes of them. 65,536 at most.
    pub tenants_evicted: u64,
    /// Keys of tenants in memory. 4,096 at most.
    pub keys_loaded: u64,
    /// Blocks that failed their check when they were read; they are not found any more.
    pub corrupt: u64,
    /// Reads of blocks that had left meanwhile.
    pub read_gone: u64,
    /// Reads that the system refused; the blocks are not found any more, unless only their file could not be opened.
    pub read_errors: u64,
    /// Writes, syncs and removals that the system refused.
    pub write_errors: u64,
    /// Times that written blocks were made durable.
    pub syncs: u64,
    /// Bytes of segments without a seal that were no whole record at the start: torn ends, and damage.
    pub lost_bytes: u64,
    /// Bytes of records that the scrub read again.
    pub scrubbed_bytes: u64,
    /// Blocks that it found damaged; they are not found any more.
    pub scrub_damaged: u64,
    /// Times that it went over everything.
    pub scrub_passes: u64,
    /// Places of those in segments that are still there, as of its last pass: nothing is read from them. 65,536 at most.
    pub quarantined: u64,
    /// Blocks that wait to be written now.
    pub queue_objects: u64,
    /// Their payload bytes.
    pub queue_bytes: u64,
    /// Whether writing is suspended after an error: 1 or 0.
    pub suspended: u64,
    /// What the catalog did not answer: lookups, which are misses, reports, and blocks to be forgotten. 0 unless it is
    /// damaged, or its drive is.
    pub catalog_errors: u64,
    /// Bytes of memory that the catalog's cache takes now.
    pub catalog_cache_bytes: u64,
    /// What it may take.
    pub catalog_cache_bytes_max: u64,
    /// Bytes of memory that the catalog's write buffers and open files take now.
    pub catalog_buffer_bytes: u64,
    /// Bytes of the catalog's tables on disk.
    pub catalog_disk_bytes: u64,
    /// How the drive is read and written.
    pub io: DiskIo,
    /// How busy it is with reads now.
    pub load: DiskLoad,
    /// The object store below; None without one.
    pub objects: Option<ObjectStats>,
}

/// The ends of the first three classes of ages, in seconds.
const AGES_S: [u64; 3] = [3_600, 24 * 3_600, 72 * 3_600];

/// Why a block was not written.
#[derive(Clone, Copy, Debug)]
pub(super) enum WriteDrop {
    Queue,
    Budget,
    Quota,
    Error,
    Evicted,
    Corrupt,
    Closed,
}

/// Why a block was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DiskReadError {
    /// It is not on disk any more.
    #[error("the block left the disk")]
    Gone,
    /// Its bytes fail a check; it is not found any more.
    #[error("the block on disk is damaged")]
    Corrupt,
    /// The system does not open the file now, for want of descriptors or memory; the block may be found later.
    #[error("the system does not open the segment now")]
    Unopened,
    /// It is encrypted, and its tenant's key is gone; it is not found any more.
    #[error("the tenant's key is gone")]
    Keyless,
    /// The system refused the read; the block is not found any more.
    #[error("the system refused to read the block")]
    Refused,
    /// The object store does not answer now; the block may be found later.
    #[error("the object store does not answer")]
    Unanswered,
}

/// The counters, written by callers and all threads of the tier.
#[derive(Debug, Default)]
pub(super) struct Counters {
    written: AtomicU64,
    written_bytes: AtomicU64,
    read: AtomicU64,
    read_bytes: AtomicU64,
    write_drops: [AtomicU64; 7],
    dropped_budget_bytes: AtomicU64,
    reput: AtomicU64,
    read_by_age: [AtomicU64; 4],
    segments_expired: AtomicU64,
    segments_recycled: AtomicU64,
    objects_expired: AtomicU64,
    retention_violations: AtomicU64,
    corrupt: AtomicU64,
    read_gone: AtomicU64,
    read_keyless: AtomicU64,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    syncs: AtomicU64,
    lost_bytes: AtomicU64,
    segments_dropped: AtomicU64,
    objects_dropped: AtomicU64,
    pub(super) scrub: ScrubCounters,
}

impl Counters {
    pub(super) fn written(&self, bytes: u32) {
        add(&self.written, 1);
        add(&self.written_bytes, u64::from(bytes));
    }

    pub(super) fn read(&self, result: Result<u32, DiskReadError>) {
        match result {
            Ok(bytes) => {
                add(&self.read, 1);
                add(&self.read_bytes, u64::from(bytes));
            }
            Err(DiskReadError::Gone) => add(&self.read_gone, 1),
            Err(DiskReadError::Keyless) => add(&self.read_keyless, 1),
            Err(DiskReadError::Corrupt) => add(&self.corrupt, 1),
            Err(DiskReadError::Refused | DiskReadError::Unopened | DiskReadError::Unanswered) => {
                add(&self.read_errors, 1);
            }
        }
    }

    /// A block was read this long after it was written.
    pub(super) fn read_at_age(&self, seconds: u64) {
        let class = AGES_S.iter().position(|limit| seconds <= *limit).unwrap_or(AGES_S.len());
        add(&self.read_by_age[class], 1);
    }

    pub(super) fn written_again(&self) {
        add(&self.reput, 1);
    }

    pub(super) fn over_budget(&self, bytes: u32) {
        self.dropped(WriteDrop::Budget);
        add(&self.dropped_budget_bytes, u64::from(bytes));
    }

    pub(super) fn segment_recycled(&self) {
        add(&self.segments_recycled, 1);
    }

    pub(super) fn segment_expired(&self, objects: usize) {
        add(&self.segments_expired, 1);
        add(&self.objects_expired, wide(objects));
    }

    pub(super) fn dropped(&self, reason: WriteDrop) {
        add(self.write_drop(reason), 1);
    }

    pub(super) fn write_error(&self) {
        add(&self.write_errors, 1);
    }

    pub(super) fn synced(&self) {
        add(&self.syncs, 1);
    }

    pub(super) fn lost_bytes(&self, bytes: u64) {
        add(&self.lost_bytes, bytes);
    }

    /// `early` of the blocks had a retention that was not over.
    pub(super) fn segment_dropped(&self, objects: usize, early: usize) {
        add(&self.segments_dropped, 1);
        add(&self.objects_dropped, wide(objects));
        add(&self.retention_violations, wide(early));
    }

    pub(super) fn snapshot(
        &self,
        queue: &Queue,
        index: &Index,
        catalog: &CatalogSizes,
        config: &DiskConfig,
        unix_seconds: u64,
    ) -> DiskStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let dropped = |reason| read(self.write_drop(reason));
        let (queue_objects, queue_bytes) = queue.waiting();
        let limits = queue.retention.limits();
        let Scrubbed { bytes, damaged, passes, quarantined } = self.scrub.snapshot();
        let (objects_held, bytes_held) = index.held();
        let (segments, segments_foreign) = index.segments();
        DiskStats {
            objects_held,
            bytes_held,
            file_bytes: index.catalog().file_bytes(),
            file_bytes_max: config.bytes_max,
            segments,
            segments_foreign,
            files_free: 0,
            segments_recycled: read(&self.segments_recycled),
            segments_dropped: read(&self.segments_dropped),
            objects_dropped: read(&self.objects_dropped),
            segments_expired: read(&self.segments_expired),
            objects_expired: read(&self.objects_expired),
            retention_violations: read(&self.retention_violations),
            reput: read(&self.reput),
            budget_bytes: queue.retention.budget_bytes(unix_seconds),
            budget_bytes_max: limits.burst_bytes(),
            budget_refill_bytes: limits.refill_bytes(),
            dropped_budget: dropped(WriteDrop::Budget),
            dropped_budget_bytes: read(&self.dropped_budget_bytes),
            dropped_quota: dropped(WriteDrop::Quota),
            read_keyless: read(&self.read_keyless),
            told_again: index.told_again(),
            tenants_evicted: wide(index.tombstone_count()),
            keys_loaded: 0,
            read_by_age: self.read_by_age.each_ref().map(read),
            written: read(&self.written),
            written_bytes: read(&self.written_bytes),
            read: read(&self.read),
            read_bytes: read(&self.read_bytes),
            dropped_queue: dropped(WriteDrop::Queue),
            dropped_error: dropped(WriteDrop::Error),
            dropped_evicted: dropped(WriteDrop::Evicted),
            dropped_corrupt: dropped(WriteDrop::Corrupt),
            dropped_closed: dropped(WriteDrop::Closed),
            corrupt: read(&self.corrupt),
            read_gone: read(&self.read_gone),
            read_errors: read(&self.read_errors),
            write_errors: read(&self.write_errors),
            syncs: read(&self.syncs),
            lost_bytes: read(&self.lost_bytes),
            scrubbed_bytes: bytes,
            scrub_damaged: damaged,
            scrub_passes: passes,
            quarantined,
            queue_objects: wide(queue_objects),
            queue_bytes,
            suspended: u64::from(queue.suspended_until.is_some()),
            catalog_errors: index.errors(),
            catalog_cache_bytes: catalog.cache_bytes,
            catalog_cache_bytes_max: wide(config.catalog_cache_bytes),
            catalog_buffer_bytes: catalog.write_buffer_bytes + catalog.open_files_bytes,
            catalog_disk_bytes: catalog.disk_bytes,
            io: DiskIo::default(),
            load: DiskLoad::default(),
            objects: None,
        }
    }

    fn write_drop(&self, reason: WriteDrop) -> &AtomicU64 {
        let [queue, budget, quota, error, evicted, corrupt, closed] = &self.write_drops;
        match reason {
            WriteDrop::Queue => queue,
            WriteDrop::Budget => budget,
            WriteDrop::Quota => quota,
            WriteDrop::Error => error,
            WriteDrop::Evicted => evicted,
            WriteDrop::Corrupt => corrupt,
            WriteDrop::Closed => closed,
        }
    }
}

fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
