//! What the disk tier's mutex guards: which name lies where, which segments there are, what waits to be written. Nothing
//! here locks, waits or touches a file.

use std::collections::hash_map::Entry as Place;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use shared::{BlockName, CacheChange, Tier, Timestamp};

use super::format::{RecordHeader, wide};
use super::retention::{Retention, Reuse};

/// Where the copy of a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) segment: u64,
    pub(super) page: u32,
    pub(super) bytes: u32,
    pub(super) checksum: u32,
    pub(super) written_unix_seconds: u64,
    pub(super) exact: bool,
}

impl From<&RecordHeader> for Entry {
    fn from(record: &RecordHeader) -> Self {
        Self {
            segment: record.segment,
            page: record.page,
            bytes: record.bytes,
            checksum: record.checksum,
            written_unix_seconds: record.written_unix_seconds,
            exact: record.exact,
        }
    }
}

/// A segment file.
#[derive(Debug, Default)]
pub(super) struct Segment {
    /// Its size.
    pub(super) bytes: u64,
    /// What was written to it; the index says whether it still is the copy that counts.
    pub(super) names: Vec<BlockName>,
    /// When it was last written to; when it was made, as long as it is empty.
    pub(super) newest_unix_seconds: u64,
    /// Of another layout, numerics or version: its names are unknown, its bytes count.
    pub(super) foreign: bool,
}

/// Why a block was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// On disk for a while, or waiting for it.
    Known,
    /// The write budget has nothing left for it.
    Budget,
    /// The queue is full.
    Full,
    /// Writing is suspended after an error.
    Suspended,
}

/// A block that wants to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) name: BlockName,
    pub(super) bytes: u32,
    pub(super) reuse: Reuse,
    pub(super) unix_seconds: u64,
}

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueBounds {
    pub(super) objects: usize,
    pub(super) bytes: u64,
}

/// The whole state. Bounded by the bytes on disk (at least a page per entry) and by the queue.
#[derive(Debug)]
pub(super) struct State {
    pub(super) retention: Retention,
    entries: HashMap<BlockName, Entry>,
    segments: BTreeMap<u64, Segment>,
    changes: Changes,
    queued: HashSet<BlockName>,
    queued_bytes: u64,
    /// Payload bytes of all entries.
    payload_bytes: u64,
    /// Bytes of all segments.
    file_bytes: u64,
    /// Raised when everything is evicted: what was queued before is not written any more.
    pub(super) epoch: u64,
    /// Until when nothing is queued, after an error.
    pub(super) suspended_until: Option<Timestamp>,
}

impl State {
    pub(super) fn new(retention: Retention) -> Self {
        Self {
            retention,
            entries: HashMap::new(),
            segments: BTreeMap::new(),
            changes: Changes::default(),
            queued: HashSet::new(),
            queued_bytes: 0,
            payload_bytes: 0,
            file_bytes: 0,
            epoch: 0,
            suspended_until: None,
        }
    }

    pub(super) fn find(&self, name: BlockName) -> Option<Entry> {
        self.entries.get(&name).copied()
    }

    pub(super) fn objects(&self) -> u64 {
        wide(self.entries.len())
    }

    pub(super) fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    pub(super) fn segments(&self) -> &BTreeMap<u64, Segment> {
        &self.segments
    }

    /// Objects and payload bytes that wait to be written.
    pub(super) fn queue(&self) -> (usize, u64) {
        (self.queued.len(), self.queued_bytes)
    }

    /// Whether a block that is expected to be used again lacks a copy on disk that lasts.
    pub(super) fn wants(&self, name: BlockName, unix_seconds: u64) -> bool {
        let lasts = self.entries.get(&name).is_some_and(|entry| {
            !self.retention.limits().is_ending(entry.written_unix_seconds, unix_seconds)
        });
        !lasts && !self.queued.contains(&name)
    }

    /// Takes a place in the queue.
    pub(super) fn admit(
        &mut self,
        candidate: Candidate,
        bounds: QueueBounds,
        now: Timestamp,
    ) -> Result<(), Refused> {
        let Candidate { name, bytes, reuse, unix_seconds } = candidate;
        let held = reuse == Reuse::Unknown && self.entries.contains_key(&name);
        if held || !self.wants(name, unix_seconds) {
            return Err(Refused::Known);
        }
        if self.suspended_until.is_some_and(|until| now < until) {
            return Err(Refused::Suspended);
        }
        let bytes = u64::from(bytes);
        if bounds.objects <= self.queued.len() || bounds.bytes < self.queued_bytes + bytes {
            return Err(Refused::Full);
        }
        if !self.retention.admits(name, reuse, self.queued.len(), unix_seconds) {
            return Err(Refused::Budget);
        }
        self.queued.insert(name);
        self.queued_bytes += bytes;
        Ok(())
    }

    /// Gives the place in the queue back.
    pub(super) fn leave_queue(&mut self, name: BlockName, bytes: u32) {
        if self.queued.remove(&name) {
            self.queued_bytes -= u64::from(bytes);
        }
    }

    pub(super) fn add_segment(&mut self, number: u64, segment: Segment) {
        self.file_bytes += segment.bytes;
        let before = self.segments.insert(number, segment);
        assert!(before.is_none(), "a segment number is used once");
    }

    /// A segment's file has this size now.
    pub(super) fn resize_segment(&mut self, number: u64, bytes: u64) {
        if let Some(segment) = self.segments.get_mut(&number) {
            self.file_bytes = self.file_bytes - segment.bytes + bytes;
            segment.bytes = bytes;
        }
    }

    /// Enters a record. A later copy of a name takes the place of an earlier one. False when the segment is gone.
    pub(super) fn insert(&mut self, record: &RecordHeader) -> bool {
        let Some(segment) = self.segments.get_mut(&record.segment) else {
            return false;
        };
        segment.names.push(record.name);
        segment.newest_unix_seconds = segment.newest_unix_seconds.max(record.written_unix_seconds);
        let grown = record.end().saturating_sub(segment.bytes);
        self.file_bytes += grown;
        segment.bytes += grown;
        self.payload_bytes += u64::from(record.bytes);
        match self.entries.entry(record.name) {
            Place::Occupied(mut place) => {
                let before = place.insert(Entry::from(record));
                self.payload_bytes -= u64::from(before.bytes);
            }
            Place::Vacant(place) => {
                place.insert(Entry::from(record));
                self.changes.stored(record.name);
            }
        }
        true
    }

    /// Takes exactly this copy out of the index: it failed a check or is gone. False when another one counts by now.
    pub(super) fn forget(&mut self, name: BlockName, entry: &Entry) -> bool {
        if self.entries.get(&name) != Some(entry) {
            return false;
        }
        self.remove(name);
        true
    }

    /// Takes a segment and its names away, and says how many names that were.
    pub(super) fn remove_segment(&mut self, number: u64) -> usize {
        let Some(segment) = self.segments.remove(&number) else {
            return 0;
        };
        self.file_bytes -= segment.bytes;
        let held = self.entries.len();
        for name in segment.names {
            if self.entries.get(&name).is_some_and(|entry| entry.segment == number) {
                self.remove(name);
            }
        }
        held - self.entries.len()
    }

    /// A segment whose retention is over. A write from the future counts as written now.
    pub(super) fn expired(&mut self, unix_seconds: u64) -> Option<u64> {
        for (number, segment) in &mut self.segments {
            segment.newest_unix_seconds = segment.newest_unix_seconds.min(unix_seconds);
            if self.retention.limits().is_over(segment.newest_unix_seconds, unix_seconds) {
                return Some(*number);
            }
        }
        None
    }

    /// The oldest segment of another layout: it makes room for ours.
    pub(super) fn oldest_foreign(&self) -> Option<u64> {
        let mut segments = self.segments.iter();
        segments.find_map(|(number, segment)| segment.foreign.then_some(*number))
    }

    /// Blocks that would leave with a segment before their retention is over.
    pub(super) fn early_blocks(&self, number: u64, unix_seconds: u64) -> usize {
        let names = self.segments.get(&number).map_or(&[][..], |segment| &segment.names);
        let entries = names.iter().filter_map(|name| Some((name, self.entries.get(name)?)));
        let early = entries.filter(|(_, entry)| {
            let written = entry.written_unix_seconds;
            entry.segment == number && !self.retention.limits().is_over(written, unix_seconds)
        });
        // A name can stand twice in a segment: its copy was damaged, or its retention short.
        early.map(|(name, _)| *name).collect::<HashSet<_>>().len()
    }

    /// Fills the budget anew from what is on disk.
    pub(super) fn restart_budget(&mut self, unix_seconds: u64) {
        let ours = self.segments.values().filter(|segment| !segment.foreign);
        let written = ours.map(|segment| (segment.names.len(), segment.newest_unix_seconds));
        self.retention.restart(written, unix_seconds);
    }

    pub(super) fn drain_changes(&mut self) -> Vec<CacheChange> {
        self.changes.drain()
    }

    pub(super) fn resync_changes(&mut self) -> Vec<CacheChange> {
        self.changes = Changes::default();
        let mut names: Vec<BlockName> = self.entries.keys().copied().collect();
        names.sort_unstable();
        let mut changes = vec![CacheChange::Cleared];
        if !names.is_empty() {
            changes.push(CacheChange::Stored { tier: Tier::Disk, names });
        }
        changes
    }

    fn remove(&mut self, name: BlockName) {
        if let Some(entry) = self.entries.remove(&name) {
            self.payload_bytes -= u64::from(entry.bytes);
            self.changes.removed(name);
        }
    }
}

/// The net difference of the set of names to what was last reported: `stored` is a part of what is held, `removed` of
/// what was reported before, so both are bounded by what fits the drive.
#[derive(Debug, Default)]
struct Changes {
    stored: BTreeSet<BlockName>,
    removed: BTreeSet<BlockName>,
}

impl Changes {
    fn stored(&mut self, name: BlockName) {
        if !self.removed.remove(&name) {
            self.stored.insert(name);
        }
    }

    fn removed(&mut self, name: BlockName) {
        if !self.stored.remove(&name) {
            self.removed.insert(name);
        }
    }

    fn drain(&mut self) -> Vec<CacheChange> {
        let Self { stored, removed } = std::mem::take(self);
        let (tier, mut changes) = (Tier::Disk, Vec::new());
        if !removed.is_empty() {
            changes.push(CacheChange::Removed { tier, names: removed.into_iter().collect() });
        }
        if !stored.is_empty() {
            changes.push(CacheChange::Stored { tier, names: stored.into_iter().collect() });
        }
        changes
    }
}
