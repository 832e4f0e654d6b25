//! Names and the object store.

use super::Index;
use crate::disk::catalog::{CatalogError, Entry, Record, SegmentContents, SegmentState};
use crate::disk::recover::living;

impl Index {
    /// The file of a segment is gone. Its names stay if it lies in the object store; else they leave, and are shown. Says
    /// how many left.
    pub(in crate::disk) fn leave_drive(
        &self,
        number: u64,
        leaving: &mut dyn FnMut(&Entry),
    ) -> Result<usize, CatalogError> {
        let mut changes = self.changes.lock();
        let left = self.catalog.leave_drive(number, &mut |records| {
            for Record { name, entry } in records {
                if self.is_told(entry) {
                    changes.removed(*name);
                }
                leaving(entry);
            }
        })?;
        Ok(usize::try_from(left).expect("as many were counted one by one"))
    }

    /// The same for one that is to leave the object store, too, which deletes the object later.
    pub(in crate::disk) fn doom_segment(&self, number: u64) -> Result<usize, CatalogError> {
        let mut changes = self.changes.lock();
        let left = self.catalog.doom_segment(number, &mut |records| {
            let told = records.iter().filter(|record| self.is_told(&record.entry));
            told.for_each(|record| changes.removed(record.name));
        })?;
        Ok(usize::try_from(left).expect("as many were counted one by one"))
    }

    /// Enters a segment that was found in the object store.
    pub(in crate::disk) fn adopt(&self, contents: SegmentContents) -> Result<(), CatalogError> {
        let contents = living(contents, &self.tombstones.read());
        let mut changes = self.changes.lock();
        let new = self.catalog.adopt_segment(&contents)?;
        changes.stored(&self.told_of(new, &contents.records));
        Ok(())
    }

    /// Whether a segment has not left.
    pub(in crate::disk) fn is_listed(&self, number: u64) -> bool {
        self.catalog.segment(number).is_some()
    }

    /// Whether a file that is gone is no reason to forget what lay in it.
    pub(in crate::disk) fn is_copied(&self, number: u64) -> bool {
        self.catalog.segment(number).is_some_and(|row| row.state.is_copied())
    }

    /// The numbers of the segments on the drive, ascending.
    pub(in crate::disk) fn on_drive(&self) -> impl Iterator<Item = u64> {
        let segments = self.catalog.segments().into_iter();
        segments.filter_map(|(number, row)| (row.state != SegmentState::Remote).then_some(number))
    }
}
