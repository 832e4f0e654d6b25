//! Reading rows in the order of their keys.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use rocksdb::ReadOptions;
use shared::{BlockName, TenantTag};

use super::Catalog;
use super::config::{CatalogError, NAMES, PLACES, SMALL};
use super::rows::{self, Entry, Record, SEGMENTS, Segment, TENANTS, Usage};

/// Rows to read.
pub(super) struct Rows {
    pub(super) family: &'static str,
    /// The first key.
    pub(super) from: Vec<u8>,
    /// The first key not to read.
    pub(super) until: Vec<u8>,
    pub(super) count_max: usize,
}

impl Catalog {
    /// Names in a range and their copies, ascending, at most `count_max`; and where to go on, if there may be more. One
    /// call sees one point in time, two calls see two. Does not displace what lookups have in the cache.
    ///
    /// # Errors
    /// When the database cannot be read, or a row is damaged.
    ///
    /// # Panics
    /// When `count_max` is 0: nobody would ever go on.
    pub fn names(
        &self,
        range: RangeInclusive<BlockName>,
        count_max: usize,
    ) -> Result<(Vec<Record>, Option<BlockName>), CatalogError> {
        assert!(0 < count_max, "a page has room for a name");
        let (first, last) = range.into_inner();
        let mut until = last.0.to_vec();
        until.push(0);
        let rows = Rows { family: NAMES, from: first.0.to_vec(), until, count_max };
        let names = self.scan(rows, "a name", |key, value| {
            Some(Record { name: rows::name_of(key)?, entry: Entry::decode(value)? })
        })?;
        let full = names.len() == count_max;
        let next = names.last().filter(|_| full).and_then(|record| after(record.name));
        Ok((names, next.filter(|next| *next <= last)))
    }

    /// Tenants that hold something and what, ascending from `first` on, at most `count_max`.
    ///
    /// # Errors
    /// When the database cannot be read, or a row is damaged.
    pub fn tenants(
        &self,
        first: TenantTag,
        count_max: usize,
    ) -> Result<Vec<(TenantTag, Usage)>, CatalogError> {
        let (from, until) = (rows::tenant_key(first), vec![TENANTS + 1]);
        let rows = Rows { family: SMALL, from, until, count_max };
        self.scan(rows, "a tenant's row", |key, value| {
            Some((rows::tenant_of(key)?, Usage::decode(value)?))
        })
    }

    pub(super) fn read_segments(&self) -> Result<BTreeMap<u64, Segment>, CatalogError> {
        let (from, until) = (rows::segment_key(0), vec![SEGMENTS + 1]);
        let rows = Rows { family: SMALL, from, until, count_max: usize::MAX };
        let segments = self.scan(rows, "a segment's row", |key, value| {
            Some((rows::segment_of(key)?, Segment::decode(value)?))
        })?;
        Ok(segments.into_iter().collect())
    }

    /// Pages and names of a segment from a page on.
    pub(super) fn places(
        &self,
        segment: u64,
        first: u32,
        count_max: usize,
    ) -> Result<Vec<(u32, BlockName)>, CatalogError> {
        let (from, until) = (rows::place_key(segment, first), rows::place_end(segment));
        let rows = Rows { family: PLACES, from, until, count_max };
        self.scan(rows, "a place", |key, value| {
            Some((rows::page_of_place(key)?, rows::name_of(value)?))
        })
    }

    /// Names whose copy lies in a segment, by its pages from one on; of at most `count_max` places, and where to go on, if
    /// there may be more.
    ///
    /// # Errors
    /// When the database cannot be read, or a row is damaged.
    ///
    /// # Panics
    /// When `count_max` is 0: nobody would ever go on.
    pub fn copies(
        &self,
        segment: u64,
        first: u32,
        count_max: usize,
    ) -> Result<(Vec<Record>, Option<u32>), CatalogError> {
        assert!(0 < count_max, "a page has room for a place");
        let places = self.places(segment, first, count_max)?;
        let names: Vec<BlockName> = places.iter().map(|(_, name)| *name).collect();
        let mut copies = Vec::with_capacity(places.len());
        for ((page, name), entry) in places.iter().zip(self.find_all(&names)?) {
            let entry = entry.filter(|entry| entry.place() == (segment, *page));
            copies.extend(entry.map(|entry| Record { name: *name, entry }));
        }
        let last = places.last().filter(|_| places.len() == count_max);
        Ok((copies, last.and_then(|(page, _)| page.checked_add(1))))
    }

    pub(super) fn scan<T>(
        &self,
        rows: Rows,
        what: &'static str,
        mut decode: impl FnMut(&[u8], &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, CatalogError> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        options.set_iterate_upper_bound(rows.until);
        let mut cursor = self.db.raw_iterator_cf_opt(self.family(rows.family), options);
        cursor.seek(&rows.from);
        let mut found = Vec::new();
        while found.len() < rows.count_max {
            let Some((key, value)) = cursor.item() else { break };
            found.push(decode(key, value).ok_or_else(|| self.damaged(what))?);
            cursor.next();
        }
        // The end of the rows and an error look alike until here.
        cursor.status().map_err(|source| self.failed("read rows", source))?;
        Ok(found)
    }
}

/// The next greater name.
pub(super) fn after(name: BlockName) -> Option<BlockName> {
    let next = u128::from_be_bytes(name.0).checked_add(1)?;
    Some(BlockName(next.to_be_bytes()))
}
