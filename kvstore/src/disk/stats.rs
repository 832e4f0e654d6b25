//! What the disk tier counts.

use std::sync::atomic::{AtomicU64, Ordering};

use super::format::wide;
use super::index::State;

/// A snapshot of the disk tier. Counts are since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Blocks that can be read from disk now.
    pub objects_held: u64,
    /// Their payload bytes.
    pub bytes_held: u64,
    /// Bytes of all segment files, those of other layouts included.
    pub file_bytes: u64,
    /// The bound on those.
    pub file_bytes_max: u64,
    /// Segment files, those of other layouts included.
    pub segments: u64,
    /// Segment files of another layout, other numerics or another version: not read, removed when space is needed.
    pub segments_foreign: u64,
    /// Segments that were removed to make room.
    pub segments_dropped: u64,
    /// Blocks that left with them.
    pub objects_dropped: u64,
    /// Blocks written.
    pub written: u64,
    /// Payload bytes of those.
    pub written_bytes: u64,
    /// Blocks read and found intact.
    pub read: u64,
    /// Payload bytes of those.
    pub read_bytes: u64,
    /// Blocks not written because the queue was full.
    pub dropped_queue: u64,
    /// Blocks not written because of an error, or while writing was suspended after one.
    pub dropped_error: u64,
    /// Blocks not written because everything was evicted while they waited.
    pub dropped_evicted: u64,
    /// Blocks not written because their bytes in host memory fail their checksum. Always 0 unless memory is at fault.
    pub dropped_corrupt: u64,
    /// Blocks not written because the tier ended before their turn.
    pub dropped_closed: u64,
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
    /// Blocks that wait to be written now.
    pub queue_objects: u64,
    /// Their payload bytes.
    pub queue_bytes: u64,
    /// Whether writing is suspended after an error: 1 or 0.
    pub suspended: u64,
}

/// Why a block was not written.
#[derive(Clone, Copy, Debug)]
pub(super) enum WriteDrop {
    Queue,
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
    /// The system refused the read; the block is not found any more.
    #[error("the system refused to read the block")]
    Refused,
}

/// The counters, written by callers and all threads of the tier.
#[derive(Debug, Default)]
pub(super) struct Counters {
    written: AtomicU64,
    written_bytes: AtomicU64,
    read: AtomicU64,
    read_bytes: AtomicU64,
    write_drops: [AtomicU64; 5],
    corrupt: AtomicU64,
    read_gone: AtomicU64,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    syncs: AtomicU64,
    lost_bytes: AtomicU64,
    segments_dropped: AtomicU64,
    objects_dropped: AtomicU64,
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
            Err(DiskReadError::Corrupt) => add(&self.corrupt, 1),
            Err(DiskReadError::Refused | DiskReadError::Unopened) => add(&self.read_errors, 1),
        }
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

    pub(super) fn segment_dropped(&self, objects: usize) {
        add(&self.segments_dropped, 1);
        add(&self.objects_dropped, wide(objects));
    }

    pub(super) fn snapshot(&self, state: &State, file_bytes_max: u64) -> DiskStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let dropped = |reason| read(self.write_drop(reason));
        let (queue_objects, queue_bytes) = state.queue();
        let foreign = state.segments().values().filter(|segment| segment.foreign).count();
        DiskStats {
            objects_held: state.objects(),
            bytes_held: state.payload_bytes(),
            file_bytes: state.file_bytes(),
            file_bytes_max,
            segments: wide(state.segments().len()),
            segments_foreign: wide(foreign),
            segments_dropped: read(&self.segments_dropped),
            objects_dropped: read(&self.objects_dropped),
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
            queue_objects: wide(queue_objects),
            queue_bytes,
            suspended: u64::from(state.suspended_until.is_some()),
        }
    }

    fn write_drop(&self, reason: WriteDrop) -> &AtomicU64 {
        let [queue, error, evicted, corrupt, closed] = &self.write_drops;
        match reason {
            WriteDrop::Queue => queue,
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
