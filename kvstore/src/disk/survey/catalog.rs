//! The catalog beside the segments: compared with them, mended, and made anew from them, under the store's lock.
//!
//! A start reads by itself whatever the catalog does not claim to know. So only the segments that it is trusted with are
//! compared; memory is that of one of them.

use std::collections::BTreeMap;
use std::fs::File;

use super::{Exclusive, SurveyError};
use crate::disk::catalog::{
    Catalog, CatalogAudit, CatalogError, Existing, RebuildReason, Record, SegmentContents,
    StartPlan,
};
use crate::disk::format::{Identity, SegmentHeader, wide};
use crate::disk::recover::{self, Loaded};
use crate::disk::segment;
use crate::disk::tombstones::Tombstones;

/// Names looked up at a time.
const BATCH_NAMES: usize = 1_024;

/// How the catalog of a folder agrees with its segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogState {
    /// There is none that can be used. No fault: the next start makes it anew.
    Unusable(RebuildReason),
    /// It was compared.
    Compared(CatalogCheck),
}

/// What a comparison found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogCheck {
    /// Segments that the next start would trust the catalog with: those that were compared.
    pub segments: u64,
    /// Names that it leads into them with.
    pub entries: u64,
    /// Of those, the ones without such a record. The block is a miss when it is read.
    pub entries_without_record: u64,
    /// Records in them that it does not know, although no newer copy takes their place. The block is not found.
    pub records_without_entry: u64,
    /// Rows of the catalog that contradict each other.
    pub contradictions: u64,
    /// Segments that the next start reads or takes out: without a seal, unknown, of another length or gone. No fault.
    pub unsettled: u64,
}

impl CatalogCheck {
    /// All that is wrong.
    #[must_use]
    pub fn differences(&self) -> u64 {
        self.entries_without_record + self.records_without_entry + self.contradictions
    }
}

/// What a new catalog was made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Segments, those below included.
    pub segments: u64,
    /// Without a block that is known: empty, of another layout, numerics or version, or not to be read.
    pub without_blocks: u64,
    /// Names that have a copy.
    pub blocks: u64,
    /// Payload bytes of those copies.
    pub bytes: u64,
}

impl Exclusive {
    /// Compares the catalog with the segments that it is trusted with: every entry with its record, every record with its
    /// entry. Reads tables and no payloads, and changes nothing. Blocks.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn check_catalog(&self) -> Result<CatalogState, SurveyError> {
        Ok(match Catalog::open_read_only(&self.survey().catalog_config())? {
            Existing::Unusable(reason) => CatalogState::Unusable(reason),
            Existing::Ready(catalog, identity) => {
                let (check, _) = self.compare(&catalog, &identity)?;
                CatalogState::Compared(check)
            }
        })
    }

    /// Does the same and enters each segment that differs anew; says what it found. Blocks.
    ///
    /// # Errors
    /// When the catalog cannot be read or changed.
    pub fn mend_catalog(&self) -> Result<CatalogState, SurveyError> {
        let config = self.survey().catalog_config();
        let identity = match Catalog::open_read_only(&config)? {
            Existing::Unusable(reason) => return Ok(CatalogState::Unusable(reason)),
            Existing::Ready(_, identity) => identity,
        };
        let (catalog, _) = Catalog::open(&config, identity)?;
        let (check, differing) = self.compare(&catalog, &identity)?;
        if 0 < check.contradictions {
            self.rebuild(&catalog, &identity)?;
        }
        for number in differing {
            if let Some(contents) = self.contents(number, &identity) {
                catalog.load_segment(&contents)?;
            }
        }
        catalog.close()?;
        Ok(CatalogState::Compared(check))
    }

    /// Makes the catalog anew from the segments alone, for what the newest of them was written for. Blocks: reads every
    /// table, and every record of segments without one.
    ///
    /// # Errors
    /// When the catalog cannot be written.
    pub fn rebuild_catalog(&self) -> Result<Rebuilt, SurveyError> {
        let newest = self.survey().numbers().iter().rev().find_map(|number| self.identity(*number));
        // Without any segment a start takes whatever is there for that of another store, and makes it anew.
        let identity = newest.map_or([0; 32], |identity| identity.fingerprint());
        let (catalog, _) = Catalog::open(&self.survey().catalog_config(), identity)?;
        self.rebuild(&catalog, &identity)?;
        let (segments, usage) = (catalog.segments(), catalog.usage());
        catalog.close()?;
        Ok(Rebuilt {
            segments: wide(segments.len()),
            without_blocks: wide(segments.iter().filter(|(_, row)| row.records == 0).count()),
            blocks: usage.objects,
            bytes: usage.payload_bytes,
        })
    }

    fn rebuild(&self, catalog: &Catalog, identity: &[u8; 32]) -> Result<(), CatalogError> {
        let numbers = self.survey().numbers().iter();
        catalog.rebuild(numbers.filter_map(|number| self.contents(*number, identity)))
    }

    /// What was found, and the segments that are to be entered anew.
    fn compare(
        &self,
        catalog: &Catalog,
        identity: &[u8; 32],
    ) -> Result<(CatalogCheck, Vec<u64>), SurveyError> {
        let folder = self.survey().folder();
        let files = recover::segment_files(folder)
            .map_err(|source| SurveyError::Folder { folder: folder.to_owned(), source })?;
        let StartPlan { trusted, load, gone, remote } = catalog.plan_start(&files);
        let mut check = CatalogCheck {
            unsettled: wide(load.len() + gone.len() + remote.len()),
            contradictions: contradictions(&catalog.audit()?),
            ..CatalogCheck::default()
        };
        let mut differing = Vec::new();
        for number in trusted {
            if catalog.segment(number).is_none_or(|row| !row.state.is_sealed()) {
                continue;
            }
            let records = self.contents(number, identity).map_or_else(Vec::new, |it| it.records);
            let before = check.differences();
            let compared = SegmentRecords { number, records: &records };
            compare_segment(catalog, &compared, &self.survey().tombstones, &mut check)?;
            if before < check.differences() {
                differing.push(number);
            }
        }
        Ok((check, differing))
    }

    /// What a segment holds; None when there is nothing to list.
    fn contents(&self, number: u64, identity: &[u8; 32]) -> Option<SegmentContents> {
        let folder = self.survey().folder();
        let loaded = recover::load(folder, number, |its| its.fingerprint() == *identity)
            .unwrap_or_else(|error| recover::unreadable(folder, number, &error));
        match loaded {
            Loaded::Unborn => None,
            Loaded::Foreign { contents, .. } | Loaded::Sealed(contents) => Some(contents),
            Loaded::Open { walk, bytes, .. } => Some(recover::open_contents(number, bytes, &walk)),
        }
        .map(|contents| recover::living(contents, &self.survey().tombstones))
    }

    fn identity(&self, number: u64) -> Option<Identity> {
        let file = File::open(self.survey().path(number)).ok()?;
        let header = segment::read_header(&file).ok().flatten()?;
        let header = SegmentHeader::decode(&header).ok()?;
        (header.number == number).then_some(header.identity)
    }
}

/// The living records of a segment.
struct SegmentRecords<'a> {
    number: u64,
    records: &'a [Record],
}

/// Dead names that the next start takes out are no fault of the catalog.
fn compare_segment(
    catalog: &Catalog,
    segment: &SegmentRecords<'_>,
    tombstones: &Tombstones,
    check: &mut CatalogCheck,
) -> Result<(), CatalogError> {
    let SegmentRecords { number, records } = *segment;
    check.segments += 1;
    for records in records.chunks(BATCH_NAMES) {
        let names: Vec<_> = records.iter().map(|record| record.name).collect();
        for (record, entry) in records.iter().zip(catalog.find_all(&names)?) {
            let known = entry.is_some_and(|entry| record.entry.place() <= entry.place());
            check.records_without_entry += u64::from(!known);
        }
    }
    let by_page: BTreeMap<u32, &Record> =
        records.iter().map(|record| (record.entry.page, record)).collect();
    let mut page = Some(0);
    while let Some(first) = page {
        let (copies, next) = catalog.copies(number, first, BATCH_NAMES)?;
        for copy in copies {
            if tombstones.covers(copy.entry.tenant, copy.entry.written_unix_seconds) {
                continue;
            }
            let found = by_page.get(&copy.entry.page) == Some(&&copy);
            check.entries += 1;
            check.entries_without_record += u64::from(!found);
        }
        page = next;
    }
    Ok(())
}

fn contradictions(audit: &CatalogAudit) -> u64 {
    audit.tenants_differ
        + audit.names_without_segment
        + audit.names_without_place
        + audit.segments_differ
        + audit.places_without_segment
        + u64::from(audit.totals_differ)
}
