//! What is counted of the object store.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk::load::DiskLoad;

/// A snapshot. Counts are since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectStats {
    /// Objects that are known: segments of this node.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The bound on those; 0 without one.
    pub bytes_max: u64,
    /// Objects whose segment lies on no drive any more.
    pub objects_remote_only: u64,
    /// Records in those; names that were written again since are counted, too.
    pub records_remote_only: u64,
    /// Segments uploaded.
    pub uploads: u64,
    /// Bytes of those.
    pub upload_bytes: u64,
    /// Segments that were found to be there already, after a catalog was lost.
    pub uploads_spared: u64,
    /// Uploads that failed and were withdrawn; they are tried again.
    pub uploads_failed: u64,
    /// Segments that are not tried any more until the next start: refused several times, or not readable.
    pub uploads_given_up: u64,
    /// Segments that left the drive before they were uploaded: their blocks are lost, as without an object store.
    pub left_uncopied: u64,
    /// Times that a segment was not uploaded because `bytes_max` leaves no room for it.
    pub uploads_no_room: u64,
    /// Blocks read and found intact.
    pub read: u64,
    /// Payload bytes of those.
    pub read_bytes: u64,
    /// Range reads for them.
    pub gets: u64,
    /// Bytes of those, what lies between blocks included.
    pub get_bytes: u64,
    /// Blocks that were not read because the queue was full.
    pub reads_refused: u64,
    /// Blocks that were not read for want of an answer. They are still found.
    pub reads_unanswered: u64,
    /// Blocks that failed their check; they are not found any more.
    pub corrupt: u64,
    /// Objects, or ranges of them, that were gone.
    pub missing: u64,
    /// Requests that took too long.
    pub late: u64,
    /// Requests that the server refused: credentials, rights, names.
    pub refused: u64,
    /// Requests without an answer that makes sense: no connection, errors of the server.
    pub unreachable: u64,
    /// Errors of the drive or the catalog on the way.
    pub local_errors: u64,
    /// Objects that a start found and did not know.
    pub adopted: u64,
    /// Objects that were left alone at a start: damaged, of another version, ahead of this node, or too many.
    pub ignored: u64,
    /// Objects deleted because their retention was over.
    pub expired: u64,
    /// Objects deleted to make room.
    pub dropped: u64,
    /// Objects deleted because everything was evicted, or they were damaged.
    pub deleted: u64,
    /// Range reads under way now.
    pub gets_now: u64,
    /// Parts of an upload under way now.
    pub parts_now: u64,
    /// Whether it is left alone after an error: 1 or 0.
    pub suspended: u64,
    /// How busy it is with reads now.
    pub load: DiskLoad,
}

/// One number that several threads change.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub(super) fn sub(&self, by: u64) {
        self.0.fetch_sub(by, Ordering::Relaxed);
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// See [`ObjectStats`].
#[derive(Debug, Default)]
pub(super) struct ObjectCounters {
    pub(super) uploads: Count,
    pub(super) upload_bytes: Count,
    pub(super) uploads_spared: Count,
    pub(super) uploads_failed: Count,
    pub(super) uploads_given_up: Count,
    pub(super) left_uncopied: Count,
    pub(super) uploads_no_room: Count,
    pub(super) read: Count,
    pub(super) read_bytes: Count,
    pub(super) gets: Count,
    pub(super) get_bytes: Count,
    pub(super) reads_refused: Count,
    pub(super) reads_unanswered: Count,
    pub(super) corrupt: Count,
    pub(super) missing: Count,
    pub(super) late: Count,
    pub(super) refused: Count,
    pub(super) unreachable: Count,
    pub(super) local_errors: Count,
    pub(super) adopted: Count,
    pub(super) ignored: Count,
    pub(super) expired: Count,
    pub(super) dropped: Count,
    pub(super) deleted: Count,
    pub(super) gets_now: Count,
    pub(super) parts_now: Count,
}

impl ObjectCounters {
    /// Without what is read from elsewhere.
    pub(super) fn snapshot(&self) -> ObjectStats {
        ObjectStats {
            uploads: self.uploads.read(),
            upload_bytes: self.upload_bytes.read(),
            uploads_spared: self.uploads_spared.read(),
            uploads_failed: self.uploads_failed.read(),
            uploads_given_up: self.uploads_given_up.read(),
            left_uncopied: self.left_uncopied.read(),
            uploads_no_room: self.uploads_no_room.read(),
            read: self.read.read(),
            read_bytes: self.read_bytes.read(),
            gets: self.gets.read(),
            get_bytes: self.get_bytes.read(),
            reads_refused: self.reads_refused.read(),
            reads_unanswered: self.reads_unanswered.read(),
            corrupt: self.corrupt.read(),
            missing: self.missing.read(),
            late: self.late.read(),
            refused: self.refused.read(),
            unreachable: self.unreachable.read(),
            local_errors: self.local_errors.read(),
            adopted: self.adopted.read(),
            ignored: self.ignored.read(),
            expired: self.expired.read(),
            dropped: self.dropped.read(),
            deleted: self.deleted.read(),
            gets_now: self.gets_now.read(),
            parts_now: self.parts_now.read(),
            ..ObjectStats::default()
        }
    }
}
