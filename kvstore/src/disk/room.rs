//! Segments leave: by age, and to make room.

use std::fs;
use std::io;

use super::writer::refused;
use super::{Shared, segment};

impl Shared {
    /// Removes the segments whose retention is over, or makes their files free ones. The file goes first: a reader that still
    /// has the name finds it gone.
    pub(super) fn expire(&self) -> io::Result<()> {
        let now = self.clock.unix_seconds();
        let expired = self.index.expired(&self.limits, now).map_err(refused)?;
        for number in expired {
            self.free_file(number)?;
            let objects = self.leave_drive(number, &mut |_| {})?;
            self.counters.segment_expired(objects);
            tracing::debug!(number, objects, "a segment left after its retention");
        }
        self.expire_tombstones()
    }

    /// Whether there is room for a whole segment, after what is too old and, if it must be, free files and segments of
    /// other layouts have left. Nothing that was promised ever makes room.
    pub(super) fn make_room(&self) -> io::Result<bool> {
        self.expire()?;
        let bytes_max = self.config.bytes_max - self.config.segment_bytes;
        while !self.fits(bytes_max)? {
            let Some(number) = self.index.oldest_foreign() else {
                return Ok(false);
            };
            self.remove_early(number)?;
        }
        Ok(true)
    }

    /// Removes free files and segments until all files together take at most `bytes_max` bytes, those of other layouts
    /// first, then the oldest ones: the disk is smaller than it was at the last start.
    pub(super) fn shrink(&self, bytes_max: u64, spared: Option<u64>) -> io::Result<()> {
        if bytes_max < self.file_bytes() {
            self.remove_free_files()?;
        }
        while bytes_max < self.index.catalog().file_bytes() {
            let oldest = self.index.on_drive().find(|number| Some(*number) != spared);
            let Some(number) = self.index.oldest_foreign().or(oldest) else {
                return Ok(());
            };
            self.remove_early(number)?;
        }
        Ok(())
    }

    fn remove_early(&self, number: u64) -> io::Result<()> {
        let (now, mut early) = (self.clock.unix_seconds(), 0);
        let objects = self.leave_drive(number, &mut |entry| {
            early += usize::from(!self.limits.is_over(entry.written_unix_seconds, now));
        })?;
        self.counters.segment_dropped(objects, early);
        tracing::debug!(number, objects, early, "a segment was removed to make room");
        Ok(())
    }

    /// Removes the file of a segment; one that is gone already is no error.
    pub(super) fn remove_file(&self, number: u64) -> io::Result<()> {
        match fs::remove_file(segment::path(&self.config.folder, number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
