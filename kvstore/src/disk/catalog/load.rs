//! Segments that a start read, entered as a whole.

use super::Catalog;
use super::config::CatalogError;
use super::rows::{Record, Segment, SegmentState};
use super::write::{BATCH_NAMES_MAX, Inserted};

/// What a segment file holds, as read from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentContents {
    /// Its number.
    pub number: u64,
    /// What it is.
    pub state: SegmentState,
    /// Its size, behind a cut.
    pub bytes: u64,
    /// When the file was last changed: what counts as the newest write of one without records.
    pub changed_unix_seconds: u64,
    /// All of its records; none of a foreign one.
    pub records: Vec<Record>,
}

impl Catalog {
    /// Enters a segment as it was read, in place of what was known of it. A crash in the middle leaves it open, so that
    /// the next start loads it again. Segments may come in any order: the later place of a name counts. Blocks for a
    /// batch per 1,024 records.
    ///
    /// # Errors
    /// When the database refuses, or a row is damaged. The call can be repeated.
    ///
    /// # Panics
    /// When a record says that it lies in another segment.
    pub fn load_segment(&self, contents: &SegmentContents) -> Result<(), CatalogError> {
        let SegmentContents { number, state, bytes, changed_unix_seconds, records } = contents;
        let inside = records.iter().all(|record| record.entry.segment == *number);
        assert!(inside, "a segment holds its own records");
        let _writing = self.writing.lock();
        self.remove(*number, None, &mut |_| {})?;
        let foreign = *state == SegmentState::Foreign;
        let begun = if foreign { SegmentState::Foreign } else { SegmentState::Open };
        let newest_unix_seconds = if records.is_empty() { *changed_unix_seconds } else { 0 };
        let empty = Segment::empty(begun, *bytes);
        self.list(*number, Segment { newest_unix_seconds, ..empty })?;
        if foreign {
            return Ok(());
        }
        let mut inserted = Inserted::default();
        for records in records.chunks(BATCH_NAMES_MAX) {
            self.insert_batch(records, &mut inserted)?;
        }
        if *state == SegmentState::Sealed {
            self.amend(*number, |segment| segment.state = SegmentState::Sealed)?;
        }
        Ok(())
    }

    /// Makes the catalog from the segments alone: what `kv rebuild` does. What it held is taken out first.
    ///
    /// # Errors
    /// When the database refuses. The next start loads the segments that were not reached.
    ///
    /// # Panics
    /// As [`Catalog::load_segment`], and when a segment comes twice.
    pub fn rebuild(
        &self,
        segments: impl IntoIterator<Item = SegmentContents>,
    ) -> Result<(), CatalogError> {
        self.clear()?;
        for contents in segments {
            assert!(self.segment(contents.number).is_none(), "a segment comes once");
            self.load_segment(&contents)?;
        }
        self.sync()
    }
}
