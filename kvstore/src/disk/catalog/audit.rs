//! A recount of everything, for `kv fsck` and tests.

use std::collections::BTreeMap;

use shared::{BlockName, TenantTag};

use super::Catalog;
use super::config::{CatalogError, PLACES};
use super::rows::{self, Usage};
use super::scan::Rows;
use crate::disk::format::wide;

/// Rows read at a time.
const PAGE_ROWS: usize = 4_096;

/// What a recount found. All numbers but the first are faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogAudit {
    /// Names and their payload bytes.
    pub usage: Usage,
    /// Whether the totals say something else.
    pub totals_differ: bool,
    /// Tenants whose row says something else.
    pub tenants_differ: u64,
    /// Names whose copy lies in a segment that is not listed.
    pub names_without_segment: u64,
    /// Names whose place does not name them: they would stay when their segment is removed.
    pub names_without_place: u64,
    /// Segments with more places than records.
    pub segments_differ: u64,
    /// Places in segments that are not listed.
    pub places_without_segment: u64,
}

impl CatalogAudit {
    /// Whether nothing was found.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        *self == Self { usage: self.usage, ..Self::default() }
    }
}

impl Catalog {
    /// Reads everything and compares. Changes wait for its end: 60 million names take minutes. Its memory is bounded by
    /// the tenants and segments there are.
    ///
    /// # Errors
    /// When the database cannot be read, or a row is damaged.
    pub fn audit(&self) -> Result<CatalogAudit, CatalogError> {
        let _writing = self.writing.lock();
        let mut audit = CatalogAudit::default();
        let mut tenants: BTreeMap<TenantTag, Usage> = BTreeMap::new();
        let last = BlockName([0xff; 16]);
        let mut from = Some(BlockName([0; 16]));
        while let Some(first) = from {
            let (records, next) = self.names(first..=last, PAGE_ROWS)?;
            for record in records {
                let (name, entry) = (record.name, record.entry);
                for usage in [&mut audit.usage, tenants.entry(entry.tenant).or_default()] {
                    usage.objects += 1;
                    usage.payload_bytes += u64::from(entry.bytes);
                }
                if self.segment(entry.segment).is_none() {
                    audit.names_without_segment += 1;
                }
                let place = self.places(entry.segment, entry.page, 1)?;
                if place.first() != Some(&(entry.page, name)) {
                    audit.names_without_place += 1;
                }
            }
            from = next;
        }
        audit.totals_differ = self.usage() != audit.usage;
        self.audit_tenants(&tenants, &mut audit)?;
        self.audit_places(&mut audit)?;
        Ok(audit)
    }

    fn audit_tenants(
        &self,
        counted: &BTreeMap<TenantTag, Usage>,
        audit: &mut CatalogAudit,
    ) -> Result<(), CatalogError> {
        let mut listed: BTreeMap<TenantTag, Usage> = BTreeMap::new();
        let mut from = Some(TenantTag::NONE);
        while let Some(first) = from {
            let page = self.tenants(first, PAGE_ROWS)?;
            from = page.last().and_then(|(tenant, _)| tenant.0.checked_add(1)).map(TenantTag);
            listed.extend(page);
        }
        let missing = counted.keys().filter(|tenant| !listed.contains_key(tenant)).count();
        let wrong = listed.iter().filter(|(tenant, usage)| counted.get(tenant) != Some(usage));
        audit.tenants_differ = wide(missing + wrong.count());
        Ok(())
    }

    fn audit_places(&self, audit: &mut CatalogAudit) -> Result<(), CatalogError> {
        let mut counted: BTreeMap<u64, u64> = BTreeMap::new();
        let mut from = Some(rows::place_key(0, 0));
        while let Some(first) = from {
            let until = rows::PLACES_END.to_vec();
            let page = Rows { family: PLACES, from: first, until, count_max: PAGE_ROWS };
            let keys = self.scan(page, "a place", |key, _| {
                let (segment, _) = key.split_first_chunk()?;
                Some((u64::from_be_bytes(*segment), key.to_vec()))
            })?;
            // The least key above the last one.
            from = keys.last().map(|(_, key)| [key.as_slice(), &[0]].concat());
            for (segment, _) in keys {
                *counted.entry(segment).or_default() += 1;
            }
        }
        for (number, places) in counted {
            match self.segment(number) {
                None => audit.places_without_segment += places,
                Some(segment) if segment.records < places => audit.segments_differ += 1,
                Some(_) => {}
            }
        }
        Ok(())
    }
}
