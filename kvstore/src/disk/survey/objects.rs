//! Segments in the object store, as the catalog beside the segments knows them. The object store itself is not asked: a
//! running store does that.

use super::{Exclusive, Survey, SurveyError};
use crate::disk::catalog::{Catalog, CatalogConfig, Existing, SegmentState};
use crate::disk::config::CATALOG_FOLDER;

/// A segment whose object is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectSegment {
    /// Its number.
    pub number: u64,
    /// Bytes of the object.
    pub bytes: u64,
    /// Its records; names that were written again since are counted, too. 0 of one that is to be deleted.
    pub records: u64,
    /// The oldest write, in seconds since the Unix epoch.
    pub oldest_unix_seconds: u64,
    /// The newest write, in seconds since the Unix epoch.
    pub newest_unix_seconds: u64,
    /// Whether its file is there as well.
    pub on_drive: bool,
}

impl Survey {
    /// The segments whose object is there, ascending; none without a catalog that can be read. Blocks; takes no lock and
    /// changes nothing.
    ///
    /// # Errors
    /// When the catalog is there and cannot be read.
    pub fn objects(&self) -> Result<Vec<ObjectSegment>, SurveyError> {
        let Existing::Ready(catalog, _) = Catalog::open_read_only(&self.catalog_config())? else {
            return Ok(Vec::new());
        };
        let segments = catalog.segments().into_iter();
        let objects = segments.filter(|(_, row)| row.state.is_copied()).map(|(number, row)| {
            let gone = row.is_doomed();
            ObjectSegment {
                number,
                bytes: row.bytes,
                records: row.records,
                oldest_unix_seconds: if gone { 0 } else { row.oldest_unix_seconds },
                newest_unix_seconds: row.newest_unix_seconds,
                on_drive: row.state == SegmentState::Copied,
            }
        });
        Ok(objects.collect())
    }

    pub(super) fn catalog_config(&self) -> CatalogConfig {
        CatalogConfig::in_folder(self.folder().join(CATALOG_FOLDER))
    }
}

impl Exclusive {
    /// Has the next run of the store delete these objects, and says how many blocks are not found any more. Files are to be
    /// removed before ([`Exclusive::remove`]). Blocks.
    ///
    /// # Errors
    /// When the catalog cannot be read or changed. The call can be repeated.
    pub fn doom_objects(&self, numbers: &[u64]) -> Result<u64, SurveyError> {
        let config = self.survey().catalog_config();
        let identity = match Catalog::open_read_only(&config)? {
            Existing::Unusable(_) => return Ok(0),
            Existing::Ready(_, identity) => identity,
        };
        if numbers.is_empty() {
            return Ok(0);
        }
        let (catalog, _) = Catalog::open(&config, identity)?;
        let mut blocks = 0;
        for number in numbers {
            if catalog.segment(*number).is_some_and(|row| row.state.is_copied()) {
                blocks += catalog.doom_segment(*number, &mut |_| {})?;
            }
        }
        catalog.close()?;
        Ok(blocks)
    }
}
