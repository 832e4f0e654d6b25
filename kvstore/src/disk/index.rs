//! Which name lies where, as the threads of the tier see it: the catalog, and in front of it what is written but not durable.
//!
//! A block is entered into the catalog when its record is durable, in batches of one sync. Until then its place is held in
//! memory, so that it can be read at once; a crash loses it, and nobody was told of it.
//!
//! A catalog that cannot be read makes blocks misses, which are counted. Nothing here reads segment files; calls that
//! look up or change block for the catalog's database.

mod changes;
mod remote;
mod tenants;

use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use shared::{BlockName, CacheChange, CacheQuestion, RangeSet, TenantTag};

use super::catalog::{
    Catalog, CatalogError, CatalogSizes, Entry, Record, SegmentSeal, SegmentState,
};
use super::format::{RecordHeader, wide};
use super::retention::Limits;
use super::tombstones::Tombstones;
use changes::Changes;

/// Blocks that may be written and not be durable: 467 MB of Flash blocks, more than a segment has.
pub(super) const UNSYNCED_MAX: usize = 4_096;
/// Blocks that are entered into the catalog at once.
const BATCH_MAX: usize = 1_024;

impl From<&RecordHeader> for Entry {
    fn from(record: &RecordHeader) -> Self {
        Self {
            segment: record.segment,
            page: record.page,
            bytes: record.bytes,
            checksum: record.checksum,
            exact: record.exact,
            kind: record.kind.object().expect("tables are in no index"),
            written_unix_seconds: record.written_unix_seconds,
            tenant: record.tenant,
            sealed: record.sealing.is_some(),
        }
    }
}

impl From<&RecordHeader> for Record {
    fn from(record: &RecordHeader) -> Self {
        Self { name: record.name, entry: Entry::from(record) }
    }
}

/// Routers are told of what can be read and that they place requests by.
fn is_told(entry: &Entry, opens_sealed: bool) -> bool {
    entry.kind.is_told() && (opens_sealed || !entry.sealed)
}

/// Places of what is not durable.
#[derive(Debug, Default)]
struct Unsynced {
    places: HashMap<BlockName, Entry>,
    /// Payload bytes of each tenant that has some.
    tenant_bytes: HashMap<TenantTag, u64>,
}

impl Unsynced {
    fn insert(&mut self, record: &Record) {
        let Record { name, entry } = record;
        self.remove(*name);
        *self.tenant_bytes.entry(entry.tenant).or_default() += u64::from(entry.bytes);
        self.places.insert(*name, *entry);
    }

    fn remove(&mut self, name: BlockName) {
        let Some(entry) = self.places.remove(&name) else { return };
        if let Some(bytes) = self.tenant_bytes.get_mut(&entry.tenant) {
            *bytes -= u64::from(entry.bytes);
            if *bytes == 0 {
                self.tenant_bytes.remove(&entry.tenant);
            }
        }
    }
}

/// The index. Its memory is that of the catalog, [`UNSYNCED_MAX`] places, and what of the changes nobody asked for yet.
#[derive(Debug)]
pub(super) struct Index {
    catalog: Catalog,
    /// Written, not entered yet.
    unsynced: Mutex<Unsynced>,
    /// What is dead, although the catalog may still have it.
    tombstones: RwLock<Tombstones>,
    /// Whether encrypted blocks can be read.
    opens_sealed: bool,
    /// Held over every change of the catalog's names, so that what is reported is in the order in which it happened.
    changes: Mutex<Changes>,
    errors: AtomicU64,
}

impl Index {
    pub(super) fn new(catalog: Catalog, tombstones: Tombstones, opens_sealed: bool) -> Self {
        Self {
            catalog,
            unsynced: Mutex::default(),
            tombstones: RwLock::new(tombstones),
            opens_sealed,
            changes: Mutex::new(Changes::new()),
            errors: AtomicU64::new(0),
        }
    }

    /// Where the copy of a name lies; None also when the catalog cannot say.
    pub(super) fn find(&self, name: BlockName) -> Option<Entry> {
        // In this order: what leaves the one is in the other already.
        let unsynced = self.unsynced.lock().places.get(&name).copied();
        let found =
            unsynced.or_else(|| self.catalog.find(name).unwrap_or_else(|_| self.failed(None)));
        found.filter(|entry| self.is_found(entry, &self.tombstones.read()))
    }

    /// The same for many names at once, in their order.
    pub(super) fn find_all(&self, names: &[BlockName]) -> Vec<Option<Entry>> {
        if names.is_empty() {
            return Vec::new();
        }
        let unsynced: Vec<Option<Entry>> = {
            let unsynced = self.unsynced.lock();
            names.iter().map(|name| unsynced.places.get(name).copied()).collect()
        };
        let nothing = || vec![None; names.len()];
        let entered = self.catalog.find_all(names).unwrap_or_else(|_| self.failed(nothing()));
        let tombstones = self.tombstones.read();
        let found = unsynced.into_iter().zip(entered).map(|(first, second)| first.or(second));
        found.map(|entry| entry.filter(|entry| self.is_found(entry, &tombstones))).collect()
    }

    /// Whether an object can be read, if it is there.
    fn is_readable(&self, entry: &Entry) -> bool {
        self.opens_sealed || !entry.sealed
    }

    /// Whether routers are told of an object, if it is there.
    fn is_told(&self, entry: &Entry) -> bool {
        is_told(entry, self.opens_sealed)
    }

    fn is_found(&self, entry: &Entry, tombstones: &Tombstones) -> bool {
        self.is_readable(entry) && !tombstones.covers(entry.tenant, entry.written_unix_seconds)
    }

    /// Of names that these records brought, those that routers are told of.
    fn told_of(&self, mut names: Vec<BlockName>, records: &[Record]) -> Vec<BlockName> {
        let untold = records.iter().filter(|record| !self.is_told(&record.entry));
        let untold: HashSet<BlockName> = untold.map(|record| record.name).collect();
        if !untold.is_empty() {
            names.retain(|name| !untold.contains(name));
        }
        names
    }

    /// Counts what the catalog refused. What is damaged it has logged by itself.
    fn failed<T>(&self, nothing: T) -> T {
        self.errors.fetch_add(1, Ordering::Relaxed);
        nothing
    }

    /// Lookups and changes that the catalog refused.
    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    pub(super) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// What the catalog takes; zeros when its database does not say.
    pub(super) fn sizes(&self) -> CatalogSizes {
        self.catalog.sizes().unwrap_or_else(|_| self.failed(CatalogSizes::default()))
    }

    /// A record was written and is not durable yet.
    pub(super) fn written(&self, record: &Record) {
        self.unsynced.lock().insert(record);
    }

    /// Records became durable: enters those that were not given up meanwhile. None of them is found after an error: the next
    /// start reads their segment.
    pub(super) fn enter(&self, records: &[Record]) -> Result<(), CatalogError> {
        let entered = records.chunks(BATCH_MAX).try_for_each(|batch| self.enter_batch(batch));
        // What was entered is in the catalog by now; the others are lost.
        self.lose(records);
        entered
    }

    fn enter_batch(&self, records: &[Record]) -> Result<(), CatalogError> {
        // Before the look at what was given up: an eviction between the two would miss what is entered then.
        let mut changes = self.changes.lock();
        let listed: Vec<Record> = {
            let unsynced = self.unsynced.lock();
            // Not the very copy: an older one of the same name is entered, too, so that all of its segment are.
            let is_held = |record: &&Record| unsynced.places.contains_key(&record.name);
            records.iter().filter(is_held).copied().collect()
        };
        let inserted = self.catalog.insert(&listed)?;
        changes.stored(&self.told_of(inserted.new, &listed));
        Ok(())
    }

    /// Records are not to be found in memory any more.
    pub(super) fn lose(&self, records: &[Record]) {
        let mut unsynced = self.unsynced.lock();
        for record in records {
            if unsynced.places.get(&record.name) == Some(&record.entry) {
                unsynced.remove(record.name);
            }
        }
    }

    /// The same for all that is not durable.
    pub(super) fn lose_all(&self) {
        mem::take(&mut *self.unsynced.lock());
    }

    /// The seal of a segment is durable. One that lacks records in the catalog stays open there: the next start reads it.
    pub(super) fn seal(&self, number: u64, seal: &SegmentSeal) -> Result<(), CatalogError> {
        if self.catalog.seal_segment(number, seal)? {
            return Ok(());
        }
        self.catalog.resize_segment(number, seal.bytes)
    }

    /// Takes exactly this copy out of the index: it failed a check or is gone. False when another one counts by now, or the
    /// catalog refuses.
    pub(super) fn forget(&self, name: BlockName, entry: &Entry) -> bool {
        {
            let mut unsynced = self.unsynced.lock();
            if unsynced.places.get(&name) == Some(entry) {
                unsynced.remove(name);
                return true;
            }
        }
        let mut changes = self.changes.lock();
        let forgotten = self.catalog.forget(name, entry).unwrap_or_else(|_| self.failed(false));
        if forgotten && self.is_told(entry) {
            changes.removed(name);
        }
        forgotten
    }

    /// Takes a segment and its names away, shows the copies that leave and says how many that were. Its file is gone.
    pub(super) fn remove_segment(
        &self,
        number: u64,
        leaving: &mut dyn FnMut(&Entry),
    ) -> Result<usize, CatalogError> {
        let mut changes = self.changes.lock();
        let removed = self.catalog.remove_segment(number, &mut |records| {
            for Record { name, entry } in records {
                if self.is_told(entry) {
                    changes.removed(*name);
                }
                leaving(entry);
            }
        })?;
        Ok(usize::try_from(removed).expect("as many were counted one by one"))
    }

    /// Segments whose retention is over, oldest first. A write from the future counts as written now, from now on.
    pub(super) fn expired(&self, limits: &Limits, now: u64) -> Result<Vec<u64>, CatalogError> {
        let mut expired = Vec::new();
        for (number, segment) in self.catalog.segments() {
            if segment.state == SegmentState::Remote {
                continue;
            }
            if now < segment.newest_unix_seconds {
                self.catalog.age_segment(number, now)?;
            } else if limits.is_over(segment.newest_unix_seconds, now) {
                expired.push(number);
            }
        }
        Ok(expired)
    }

    /// The oldest segment of another layout: it makes room for ours.
    pub(super) fn oldest_foreign(&self) -> Option<u64> {
        let mut segments = self.catalog.segments().into_iter();
        segments.find_map(|(number, row)| (row.state == SegmentState::Foreign).then_some(number))
    }

    /// Records in each segment that has some, and the second of its newest write, oldest first.
    pub(super) fn records(&self) -> impl Iterator<Item = (usize, u64)> {
        let segments = self.catalog.segments().into_iter();
        let ours = segments
            .filter(|(_, segment)| 0 < segment.records && segment.state != SegmentState::Remote);
        ours.map(|(_, segment)| {
            let records = usize::try_from(segment.records).expect("16 GiB hold fewer records");
            (records, segment.newest_unix_seconds)
        })
    }

    /// How the set of names changed since the last call. At most [`changes::REPORT_NAMES_MAX`] names that were never
    /// reported come at a time.
    pub(super) fn drain_changes(&self) -> Vec<CacheChange> {
        let mut changes = self.changes.lock();
        let drained = changes.drain(&self.catalog, self.opens_sealed);
        drained.unwrap_or_else(|_| self.failed(Vec::new()))
    }

    /// What somebody who lost changes is told. What does not fit a report follows by [`Self::drain_changes`].
    pub(super) fn answer(&self, question: &CacheQuestion) -> Vec<CacheChange> {
        let mut changes = self.changes.lock();
        let mut told = Vec::new();
        match question {
            CacheQuestion::Digests => {}
            CacheQuestion::Ranges(ranges) => {
                changes.tell_again(*ranges);
                told.push(CacheChange::RangesCleared(*ranges));
            }
            CacheQuestion::Whole => {
                changes.tell_again(RangeSet::ALL);
                told.push(CacheChange::Cleared);
            }
        }
        let drained = changes.drain(&self.catalog, self.opens_sealed);
        told.extend(drained.unwrap_or_else(|_| self.failed(Vec::new())));
        if *question == CacheQuestion::Digests {
            told.push(CacheChange::Digests(changes.digests()));
        }
        told
    }

    /// Names that answers reported once more. Only grows.
    pub(super) fn told_again(&self) -> u64 {
        self.changes.lock().told_again()
    }

    /// Notes the clean end. Nothing changes any more.
    pub(super) fn close(&mut self) -> Result<(), CatalogError> {
        self.catalog.finish()
    }

    /// Names that have a copy, and their payload bytes.
    pub(super) fn held(&self) -> (u64, u64) {
        let usage = self.catalog.usage();
        (usage.objects, usage.payload_bytes)
    }

    /// Segments, and those of other layouts among them.
    pub(super) fn segments(&self) -> (u64, u64) {
        let (all, foreign) = self.catalog.segment_counts();
        (wide(all), wide(foreign))
    }
}
