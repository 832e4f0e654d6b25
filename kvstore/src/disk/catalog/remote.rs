//! Segments that lie in the object store, too or alone.

use shared::BlockName;

use super::Catalog;
use super::config::CatalogError;
use super::load::SegmentContents;
use super::rows::{Record, Segment, SegmentState};
use super::write::Inserted;

/// Names of an object that are entered at once: a batch of some MiB. Segments of 256 MiB have 2,337 Flash blocks.
const BATCH_NAMES_MAX: usize = 65_536;

impl Catalog {
    /// Whether a segment lies in the object store alone. Waits for nothing.
    #[must_use]
    pub fn is_remote(&self, number: u64) -> bool {
        self.segment(number).is_some_and(|row| row.state == SegmentState::Remote)
    }

    /// The whole file of a sealed segment is in the object store. False when it is not listed as sealed any more.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn mark_copied(&self, number: u64) -> Result<bool, CatalogError> {
        self.turn(number, SegmentState::Sealed, SegmentState::Copied)
    }

    /// Its object is gone, its file is not. False when it is no such segment.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn unmark_copied(&self, number: u64) -> Result<bool, CatalogError> {
        self.turn(number, SegmentState::Copied, SegmentState::Sealed)
    }

    /// Its file is gone, its object is not: all of its names stay. False when it is no such segment.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn mark_remote(&self, number: u64) -> Result<bool, CatalogError> {
        self.turn(number, SegmentState::Copied, SegmentState::Remote)
    }

    /// The file of a segment is gone: one that lies in the object store stays with all of its names, as after
    /// [`Catalog::mark_remote`], any other leaves as by [`Catalog::remove_segment`].
    ///
    /// # Errors
    /// As [`Catalog::remove_segment`].
    pub fn leave_drive(
        &self,
        number: u64,
        removed: &mut dyn FnMut(&[Record]),
    ) -> Result<u64, CatalogError> {
        let _writing = self.writing.lock();
        if self.segment(number).is_some_and(|row| row.state == SegmentState::Copied) {
            self.amend(number, |row| row.state = SegmentState::Remote)?;
            return Ok(0);
        }
        self.remove(number, None, removed)
    }

    /// Takes all names of a segment out whose file is gone. If its object is still to be deleted, its row stays until then, so
    /// that no crash forgets the object. Otherwise as [`Catalog::remove_segment`].
    ///
    /// # Errors
    /// As [`Catalog::remove_segment`].
    pub fn doom_segment(
        &self,
        number: u64,
        removed: &mut dyn FnMut(&[Record]),
    ) -> Result<u64, CatalogError> {
        let _writing = self.writing.lock();
        let row = self.segment(number).filter(|row| row.state.is_copied());
        let left = row.map(|row| Segment::doomed(row.bytes));
        self.remove(number, left, removed)
    }

    /// Enters a segment that was found in the object store, and gives the names that had no copy before. After a crash in the
    /// middle its row has no records, and it is found again.
    ///
    /// # Errors
    /// When the database refuses, or a row is damaged. The call can be repeated.
    ///
    /// # Panics
    /// When a record says that it lies in another segment.
    pub fn adopt_segment(
        &self,
        contents: &SegmentContents,
    ) -> Result<Vec<BlockName>, CatalogError> {
        let SegmentContents { number, bytes, records, .. } = contents;
        let inside = records.iter().all(|record| record.entry.segment == *number);
        assert!(inside, "a segment holds its own records");
        let _writing = self.writing.lock();
        self.remove(*number, None, &mut |_| {})?;
        self.list(*number, Segment::empty(SegmentState::Remote, *bytes))?;
        let mut inserted = Inserted::default();
        for records in records.chunks(BATCH_NAMES_MAX) {
            self.insert_batch(records, &mut inserted)?;
        }
        Ok(inserted.new)
    }

    fn turn(
        &self,
        number: u64,
        from: SegmentState,
        to: SegmentState,
    ) -> Result<bool, CatalogError> {
        let _writing = self.writing.lock();
        if self.segment(number).is_none_or(|row| row.state != from) {
            return Ok(false);
        }
        self.amend(number, |row| row.state = to)?;
        Ok(true)
    }
}
