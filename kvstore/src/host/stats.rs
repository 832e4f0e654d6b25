//! What the host tier counts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk::DiskStats;
use crate::pool::Pool;
use crate::transport::ReadError;

/// A snapshot of the host tier. Counts are since its start; the groups are not taken at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStats {
    /// Objects read, checked and held.
    pub stored: u64,
    /// Payload bytes of those.
    pub stored_bytes: u64,
    /// Offers of objects that were already held.
    pub already_held: u64,
    /// Offers not taken because the queue was full.
    pub dropped_queue: u64,
    /// Offers not taken because every slot was pinned.
    pub dropped_space: u64,
    /// Offers whose source was evicted, unregistered or closed before it was read.
    pub dropped_gone: u64,
    /// Offers not read within their time: a slow peer, or too many before them.
    pub dropped_late: u64,
    /// Offers whose bytes failed their checksum or did not fit. Always 0 unless memory, a link or a peer is at fault.
    pub dropped_corrupt: u64,
    /// Offers not taken because their tenant has as many bytes here as it may have, all of them in use.
    pub dropped_quota: u64,
    /// Offers not taken because their tenant was evicted meanwhile.
    pub dropped_evicted: u64,
    /// Tenants that have objects here. As many as objects at most.
    pub tenants: u64,
    /// Objects that became durable before their offer was answered, as was asked for.
    pub acknowledged: u64,
    /// Objects of which that was asked for and that are in memory only.
    pub memory_only: u64,
    /// Offers withdrawn before they were read.
    pub withdrawn: u64,
    /// Keys found by lookups.
    pub hits: u64,
    /// Keys not found by lookups.
    pub misses: u64,
    /// Lookups answered with "nothing" because the queue was full.
    pub lookups_refused: u64,
    /// Lookups answered with what they had because blocks did not come from disk in time.
    pub lookups_late: u64,
    /// Blocks brought from disk.
    pub onboarded: u64,
    /// Keys not brought from disk for want of a slot, of room for a read, or of a place for the lookup.
    pub onboard_refused: u64,
    /// Keys answered as not found although they are on disk: to read them would have taken longer than a lookup waits.
    pub disk_too_slow: u64,
    /// The same of keys that are in the object store alone: it is too slow, or left alone after an error.
    pub object_too_slow: u64,
    /// Window objects that grew too old.
    pub windows_expired: u64,
    /// Blocks held now, and pieces of media embeddings, which lie in slots of blocks.
    pub blocks_held: u64,
    /// Blocks that fit.
    pub blocks_max: u64,
    /// Window objects held now; those that grew too old are counted until the next command.
    pub windows_held: u64,
    /// Window objects that fit.
    pub windows_max: u64,
    /// Bytes of the slots of all objects held now.
    pub bytes_held: u64,
    /// The disk below; None without one.
    pub disk: Option<DiskStats>,
}

/// Why an offered object was not taken.
#[derive(Clone, Copy, Debug)]
pub(super) enum DropReason {
    QueueFull,
    NoSpace,
    Gone,
    Late,
    Corrupt,
    Quota,
    Evicted,
}

/// The counters, written by the tier's thread and its callers.
#[derive(Debug, Default)]
pub(super) struct Counters {
    stored: AtomicU64,
    stored_bytes: AtomicU64,
    pub(super) already_held: AtomicU64,
    dropped_queue: AtomicU64,
    dropped_space: AtomicU64,
    dropped_gone: AtomicU64,
    dropped_late: AtomicU64,
    dropped_corrupt: AtomicU64,
    dropped_quota: AtomicU64,
    dropped_evicted: AtomicU64,
    pub(super) acknowledged: AtomicU64,
    pub(super) memory_only: AtomicU64,
    pub(super) withdrawn: AtomicU64,
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) lookups_refused: AtomicU64,
    pub(super) lookups_late: AtomicU64,
    pub(super) onboarded: AtomicU64,
    pub(super) onboard_refused: AtomicU64,
    pub(super) disk_too_slow: AtomicU64,
    pub(super) object_too_slow: AtomicU64,
    pub(super) windows_expired: AtomicU64,
}

impl Counters {
    pub(super) fn stored(&self, bytes: u32) {
        self.stored.fetch_add(1, Ordering::Relaxed);
        self.stored_bytes.fetch_add(u64::from(bytes), Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, reason: DropReason) {
        let counter = match reason {
            DropReason::QueueFull => &self.dropped_queue,
            DropReason::NoSpace => &self.dropped_space,
            DropReason::Gone => &self.dropped_gone,
            DropReason::Late => &self.dropped_late,
            DropReason::Corrupt => &self.dropped_corrupt,
            DropReason::Quota => &self.dropped_quota,
            DropReason::Evicted => &self.dropped_evicted,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn snapshot(
        &self,
        blocks: &Pool,
        windows: &Pool,
        disk: Option<DiskStats>,
    ) -> HostStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let held = [blocks, windows].map(|pool| wide(pool.held()));
        let bytes = [blocks, windows].map(|pool| wide(pool.memory().slot_bytes()));
        HostStats {
            stored: read(&self.stored),
            stored_bytes: read(&self.stored_bytes),
            already_held: read(&self.already_held),
            dropped_queue: read(&self.dropped_queue),
            dropped_space: read(&self.dropped_space),
            dropped_gone: read(&self.dropped_gone),
            dropped_late: read(&self.dropped_late),
            dropped_corrupt: read(&self.dropped_corrupt),
            dropped_quota: read(&self.dropped_quota),
            dropped_evicted: read(&self.dropped_evicted),
            tenants: 0,
            acknowledged: read(&self.acknowledged),
            memory_only: read(&self.memory_only),
            withdrawn: read(&self.withdrawn),
            hits: read(&self.hits),
            misses: read(&self.misses),
            lookups_refused: read(&self.lookups_refused),
            lookups_late: read(&self.lookups_late),
            onboarded: read(&self.onboarded),
            onboard_refused: read(&self.onboard_refused),
            disk_too_slow: read(&self.disk_too_slow),
            object_too_slow: read(&self.object_too_slow),
            windows_expired: read(&self.windows_expired),
            blocks_held: held[0],
            blocks_max: wide(blocks.total()),
            windows_held: held[1],
            windows_max: wide(windows.total()),
            bytes_held: held[0] * bytes[0] + held[1] * bytes[1],
            disk,
        }
    }
}

impl From<ReadError> for DropReason {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::UnknownRegion { .. }
            | ReadError::Stale
            | ReadError::PeerLost { .. }
            | ReadError::Closed => Self::Gone,
            ReadError::Late { .. } => Self::Late,
            ReadError::Busy { .. } => Self::QueueFull,
            ReadError::Corrupt { .. } | ReadError::Length { .. } => Self::Corrupt,
        }
    }
}

pub(super) fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(wide(by), Ordering::Relaxed);
}

pub(super) fn wide(count: usize) -> u64 {
    u64::try_from(count).expect("usize has at most 64 bits on every supported target")
}
