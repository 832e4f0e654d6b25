//! Changes: each is put together from what is there, written as one batch, and then taken over into memory.

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use rocksdb::WriteBatch;
use shared::{BlockName, TenantTag};

use super::config::{CatalogError, NAMES, PLACES, SMALL};
use super::rows::{
    self, Entry, KEY_TOTALS, NAMES_END, PLACES_END, Record, SEGMENTS, Segment, SegmentState,
    TENANTS, Totals, Usage,
};
use super::{Catalog, Held};
use crate::disk::format::wide;

/// Names in one batch: some hundred KiB of memory.
pub(super) const BATCH_NAMES_MAX: usize = 1_024;

/// What [`Catalog::insert`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// Records entered. The others belong to segments that are not listed any more, or not open.
    pub entered: usize,
    /// The names among them that had no copy before.
    pub new: Vec<BlockName>,
}

/// What the seal of a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSeal {
    /// Bytes of the complete file.
    pub bytes: u64,
    /// Records in it.
    pub records: u64,
    /// The oldest write, in seconds since the Unix epoch.
    pub oldest_unix_seconds: u64,
    /// The newest write, in seconds since the Unix epoch.
    pub newest_unix_seconds: u64,
}

impl Catalog {
    /// Lists a segment that was begun at that time and has this size.
    ///
    /// # Errors
    /// When the database refuses.
    ///
    /// # Panics
    /// When the segment is listed: numbers are used once.
    pub fn begin_segment(
        &self,
        number: u64,
        bytes: u64,
        created_unix_seconds: u64,
    ) -> Result<(), CatalogError> {
        let _writing = self.writing.lock();
        let empty = Segment::empty(SegmentState::Open, bytes);
        self.list(number, Segment { newest_unix_seconds: created_unix_seconds, ..empty })
    }

    /// A segment that is not complete has this size: blocks were written to it that will never be entered.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn resize_segment(&self, number: u64, bytes: u64) -> Result<(), CatalogError> {
        let _writing = self.writing.lock();
        self.amend(number, |segment| segment.bytes = bytes)
    }

    /// The newest write of a segment counts as of this time: it seemed to come from the future.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn age_segment(&self, number: u64, newest_unix_seconds: u64) -> Result<(), CatalogError> {
        let _writing = self.writing.lock();
        self.amend(number, |segment| segment.newest_unix_seconds = newest_unix_seconds)
    }

    /// Enters records that were written: their names, their segments' rows and their tenants' use together. At most 1,024
    /// at a time are one batch; more are several, in their order. Not durable before [`Catalog::sync`].
    ///
    /// # Errors
    /// When the database refuses, or a row is damaged. Batches before the failed one stay.
    pub fn insert(&self, records: &[Record]) -> Result<Inserted, CatalogError> {
        let _writing = self.writing.lock();
        let mut inserted = Inserted::default();
        for records in records.chunks(BATCH_NAMES_MAX) {
            self.insert_batch(records, &mut inserted)?;
        }
        Ok(inserted)
    }

    /// Marks a segment complete, if it is listed and all records that its seal counts were entered; else it stays open, the
    /// next start reads its table, and the answer is false. Call it when the seal is durable.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn seal_segment(&self, number: u64, seal: &SegmentSeal) -> Result<bool, CatalogError> {
        let _writing = self.writing.lock();
        let mut change = self.change();
        let Some(segment) = change.segment(number) else { return Ok(false) };
        if segment.state != SegmentState::Open || segment.records != seal.records {
            return Ok(false);
        }
        *segment = Segment {
            state: SegmentState::Sealed,
            bytes: seal.bytes,
            records: seal.records,
            oldest_unix_seconds: seal.oldest_unix_seconds,
            newest_unix_seconds: seal.newest_unix_seconds,
        };
        self.commit(change)?;
        Ok(true)
    }

    /// Takes exactly this copy out: it failed a check or is gone. False when another one counts by now, or none.
    ///
    /// # Errors
    /// When the database refuses, or a row is damaged.
    pub fn forget(&self, name: BlockName, entry: &Entry) -> Result<bool, CatalogError> {
        let _writing = self.writing.lock();
        if self.find(name)?.as_ref() != Some(entry) {
            return Ok(false);
        }
        let mut change = self.change();
        self.take_out(&mut change, name, entry);
        self.commit(change)?;
        Ok(true)
    }

    /// Takes a segment and the names whose copy lies in it out, and says how many names that were; each batch of at most
    /// 1,024 copies is shown to `removed` after it was written. Its file must be gone before: a crash in between leaves a row
    /// without a file, which the next start finishes. 0 when the segment is not listed.
    ///
    /// # Errors
    /// When the database refuses, or a row is damaged. What was shown is gone; the call can be repeated.
    pub fn remove_segment(
        &self,
        number: u64,
        removed: &mut dyn FnMut(&[Record]),
    ) -> Result<u64, CatalogError> {
        let _writing = self.writing.lock();
        self.remove(number, None, removed)
    }

    /// Takes everything out: names, segments and tenants, but not who was evicted. Numbers are not used again. Blocks until the space is freed.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn clear(&self) -> Result<(), CatalogError> {
        let _writing = self.writing.lock();
        let mut batch = WriteBatch::default();
        batch.delete_range_cf(self.family(NAMES), [].as_slice(), NAMES_END.as_slice());
        batch.delete_range_cf(self.family(PLACES), [].as_slice(), PLACES_END.as_slice());
        for rows in [SEGMENTS, TENANTS] {
            batch.delete_range_cf(self.family(SMALL), [rows], [rows + 1]);
        }
        let number_next = self.held.lock().totals.number_next;
        let totals = Totals { number_next, ..Totals::default() };
        batch.put_cf(self.family(SMALL), KEY_TOTALS, totals.encode());
        let written = self.db.write_opt(batch, &self.write_options);
        written.map_err(|source| self.failed("clear itself", source))?;
        *self.held.lock() = Held { totals, ..Held::default() };
        // Marks of deleted ranges slow lookups down as long as they are there; this drops them with what they cover.
        for name in [NAMES, PLACES, SMALL] {
            self.db.compact_range_cf(self.family(name), None::<&[u8]>, None::<&[u8]>);
        }
        Ok(())
    }

    /// Enters a new row. With the lock on writing held.
    pub(super) fn list(&self, number: u64, segment: Segment) -> Result<(), CatalogError> {
        let mut change = self.change();
        assert!(change.segment(number).is_none(), "a segment number is used once");
        change.segments.insert(number, Some(segment));
        let next = number.saturating_add(1);
        change.totals.number_next = change.totals.number_next.max(next);
        self.commit(change)
    }

    /// Changes the row of a listed segment. With the lock on writing held.
    pub(super) fn amend(
        &self,
        number: u64,
        amend: impl FnOnce(&mut Segment),
    ) -> Result<(), CatalogError> {
        let mut change = self.change();
        if let Some(segment) = change.segment(number) {
            amend(segment);
        }
        self.commit(change)
    }

    /// At most [`BATCH_NAMES_MAX`] records. With the lock on writing held.
    pub(super) fn insert_batch(
        &self,
        records: &[Record],
        inserted: &mut Inserted,
    ) -> Result<(), CatalogError> {
        let names: Vec<BlockName> = records.iter().map(|record| record.name).collect();
        let held = self.find_all(&names)?;
        let mut change = self.change();
        // Names that this batch has put in, for those that come twice.
        let mut put: HashMap<BlockName, Entry> = HashMap::with_capacity(records.len());
        let (mut entered, mut new) = (0, Vec::new());
        for (Record { name, entry }, held) in records.iter().zip(held) {
            let open = |segment: &&mut Segment| {
                matches!(segment.state, SegmentState::Open | SegmentState::Remote)
            };
            let Some(segment) = change.segment(entry.segment).filter(open) else { continue };
            segment.enter(entry);
            entered += 1;
            let place = rows::place_key(entry.segment, entry.page);
            change.batch.put_cf(self.family(PLACES), place, name.0);
            let before = put.get(name).copied().or(held);
            if before.is_some_and(|before| entry.place() < before.place()) {
                continue;
            }
            match before {
                Some(before) => change.count(&before, -1),
                None => new.push(*name),
            }
            change.count(entry, 1);
            change.batch.put_cf(self.family(NAMES), name.0, entry.encode());
            put.insert(*name, *entry);
        }
        self.commit(change)?;
        inserted.entered += entered;
        inserted.new.append(&mut new);
        Ok(())
    }

    /// [`Catalog::remove_segment`], with the lock on writing held. `left` is the row that stays.
    pub(super) fn remove(
        &self,
        number: u64,
        left: Option<Segment>,
        removed: &mut dyn FnMut(&[Record]),
    ) -> Result<u64, CatalogError> {
        let Some(segment) = self.segment(number) else { return Ok(0) };
        if segment.state.is_sealed() {
            // Half of its names gone, nobody may trust it any more.
            self.amend(number, |segment| segment.state = SegmentState::Open)?;
        }
        let (mut count, mut first) = (0, Some(0));
        while let Some(page) = first {
            let (gone, next) = self.copies(number, page, BATCH_NAMES_MAX)?;
            let mut change = self.change();
            for Record { name, entry } in &gone {
                self.take_out(&mut change, *name, entry);
            }
            first = next;
            if first.is_none() {
                change.segments.insert(number, left);
                let (from, until) = (rows::place_key(number, 0), rows::place_end(number));
                change.batch.delete_range_cf(self.family(PLACES), from, until);
            }
            self.commit(change)?;
            count += wide(gone.len());
            removed(&gone);
        }
        Ok(count)
    }

    pub(super) fn take_out(&self, change: &mut Change<'_>, name: BlockName, entry: &Entry) {
        change.count(entry, -1);
        change.batch.delete_cf(self.family(NAMES), name.0);
    }

    pub(super) fn change(&self) -> Change<'_> {
        Change {
            held: &self.held,
            totals: self.held.lock().totals,
            batch: WriteBatch::default(),
            segments: BTreeMap::new(),
            tenants: BTreeMap::new(),
            sealed: 0,
        }
    }

    /// Writes a change and takes it over. With the lock on writing held since before the change was begun.
    pub(super) fn commit(&self, mut change: Change<'_>) -> Result<(), CatalogError> {
        let small = self.family(SMALL);
        for (tenant, delta) in &change.tenants {
            let usage = delta
                .applied(self.tenant(*tenant)?)
                .ok_or_else(|| self.damaged("a tenant's row"))?;
            if usage == Usage::default() {
                change.batch.delete_cf(small, rows::tenant_key(*tenant));
            } else {
                change.batch.put_cf(small, rows::tenant_key(*tenant), usage.encode());
            }
            change.totals.usage = delta
                .applied(change.totals.usage)
                .ok_or_else(|| self.damaged("the row of totals"))?;
        }
        for (number, segment) in &change.segments {
            match segment {
                Some(segment) => {
                    change.batch.put_cf(small, rows::segment_key(*number), segment.encode());
                }
                None => change.batch.delete_cf(small, rows::segment_key(*number)),
            }
        }
        let sealed = change.totals.sealed.checked_add_signed(change.sealed);
        change.totals.sealed = sealed.ok_or_else(|| self.damaged("the row of totals"))?;
        change.batch.put_cf(small, KEY_TOTALS, change.totals.encode());
        let Change { batch, totals, segments, .. } = change;
        let written = self.db.write_opt(batch, &self.write_options);
        written.map_err(|source| self.failed("write a change", source))?;
        let mut held = self.held.lock();
        held.totals = totals;
        for (number, segment) in segments {
            let before = match segment {
                Some(segment) => {
                    held.file_bytes += segment.drive_bytes();
                    held.segments.insert(number, segment)
                }
                None => held.segments.remove(&number),
            };
            held.file_bytes -= before.map_or(0, |before| before.drive_bytes());
        }
        Ok(())
    }
}

/// A change that is being put together.
pub(super) struct Change<'a> {
    held: &'a Mutex<Held>,
    totals: Totals,
    batch: WriteBatch,
    /// Rows that will be different; None is removed.
    segments: BTreeMap<u64, Option<Segment>>,
    tenants: BTreeMap<TenantTag, Delta>,
    /// How many encrypted copies come.
    sealed: i64,
}

impl Change<'_> {
    /// The row of a segment, to be changed.
    fn segment(&mut self, number: u64) -> Option<&mut Segment> {
        match self.segments.entry(number) {
            Slot::Occupied(slot) => slot.into_mut().as_mut(),
            Slot::Vacant(slot) => {
                let segment = self.held.lock().segments.get(&number).copied()?;
                slot.insert(Some(segment)).as_mut()
            }
        }
    }

    /// A copy comes (1) or goes (-1).
    fn count(&mut self, entry: &Entry, by: i64) {
        let delta = self.tenants.entry(entry.tenant).or_default();
        delta.objects += by;
        delta.payload_bytes += by * i64::from(entry.bytes);
        self.sealed += if entry.sealed { by } else { 0 };
    }
}

/// How what is held changes.
#[derive(Clone, Copy, Debug, Default)]
struct Delta {
    objects: i64,
    payload_bytes: i64,
}

impl Delta {
    /// None when less would be held than nothing.
    fn applied(self, usage: Usage) -> Option<Usage> {
        Some(Usage {
            objects: usage.objects.checked_add_signed(self.objects)?,
            payload_bytes: usage.payload_bytes.checked_add_signed(self.payload_bytes)?,
        })
    }
}
