//! What routers are told of the names on disk.
//!
//! Names are told in their order, some at a time, from the catalog itself; of those the consumer was told before, the net
//! difference is kept. A store that was just started has all of its names untold, which takes no memory, and what is told
//! once more is untold first. The digests are of what was told, so they are kept along and cost a start nothing.

use std::collections::BTreeSet;
use std::mem;

use shared::{BlockName, CacheChange, RANGES, RangeDigests, RangeSet, Tier, range_of};

use super::is_told;
use crate::disk::catalog::{Catalog, CatalogError};

/// Names that are told at a time beside changes: a message of one MiB.
pub(super) const REPORT_NAMES_MAX: usize = 65_536;
/// Names read at a time.
const PAGE_NAMES: usize = 4_096;
const TIER: Tier = Tier::Disk;

/// The net difference to what was last reported: `stored` is a part of what is held, `removed` of what was reported before,
/// so both are bounded by what fits the drive.
#[derive(Debug)]
pub(super) struct Changes {
    /// For each range, the name from which on nothing of it was reported. None when all was.
    untold: Box<[Option<BlockName>; RANGES]>,
    stored: BTreeSet<BlockName>,
    removed: BTreeSet<BlockName>,
    /// Of everything that was reported and not taken back.
    told: RangeDigests,
    /// Ranges that are being told once more.
    again: RangeSet,
    told_again: u64,
}

impl Changes {
    /// Nothing was told.
    pub(super) fn new() -> Self {
        Self {
            untold: Box::new(std::array::from_fn(|range| Some(first_of(range)))),
            stored: BTreeSet::new(),
            removed: BTreeSet::new(),
            told: RangeDigests::default(),
            again: RangeSet::default(),
            told_again: 0,
        }
    }

    pub(super) fn stored(&mut self, names: &[BlockName]) {
        for name in names {
            if self.is_told(*name) && !self.removed.remove(name) {
                self.stored.insert(*name);
            }
        }
    }

    pub(super) fn removed(&mut self, name: BlockName) {
        if self.is_told(name) && !self.stored.remove(&name) {
            self.removed.insert(name);
        }
    }

    /// The consumer takes it that nothing is held of these ranges: the calls of [`Self::drain`] that follow tell what is.
    pub(super) fn tell_again(&mut self, ranges: RangeSet) {
        for range in ranges.iter().map(usize::from) {
            self.untold[range] = Some(first_of(range));
        }
        self.stored.retain(|&name| !ranges.contains(range_of(name)));
        self.removed.retain(|&name| !ranges.contains(range_of(name)));
        self.told.clear(ranges);
        self.again = self.again.union(ranges);
    }

    /// Reports the difference and the next names that were never reported. After an error nothing is lost: the next call
    /// reports the same. Encrypted blocks are left out unless they can be read, and pieces of media embeddings always.
    pub(super) fn drain(
        &mut self,
        catalog: &Catalog,
        opens_sealed: bool,
    ) -> Result<Vec<CacheChange>, CatalogError> {
        let (mut untold, mut found) = (self.untold.clone(), Vec::new());
        let (mut again, mut told_again) = (self.again, 0);
        for range in RangeSet::ALL.iter() {
            let at = usize::from(range);
            while let Some(from) = untold[at].filter(|_| found.len() < REPORT_NAMES_MAX) {
                let (records, next) = catalog.names(from..=last_of(at), PAGE_NAMES)?;
                let before = found.len();
                let told = records.iter().filter(|record| is_told(&record.entry, opens_sealed));
                found.extend(told.map(|record| record.name));
                told_again += if again.contains(range) { found.len() - before } else { 0 };
                untold[at] = next;
            }
            if untold[at].is_none() {
                again = again.without([range].into_iter().collect());
            }
        }
        (self.untold, self.again) = (untold, again);
        self.told_again += u64::try_from(told_again).expect("a page is counted in 64 bits");
        let removed: Vec<BlockName> = mem::take(&mut self.removed).into_iter().collect();
        let mut stored: Vec<BlockName> = mem::take(&mut self.stored).into_iter().collect();
        stored.append(&mut found);
        stored.sort_unstable();
        removed.iter().for_each(|&name| self.told.remove(name, TIER));
        stored.iter().for_each(|&name| self.told.add(name, TIER));
        let (tier, mut changes) = (TIER, Vec::new());
        if !removed.is_empty() {
            changes.push(CacheChange::Removed { tier, names: removed });
        }
        if !stored.is_empty() {
            changes.push(CacheChange::Stored { tier, names: stored });
        }
        Ok(changes)
    }

    /// The digests of what was reported.
    pub(super) fn digests(&self) -> RangeDigests {
        self.told.clone()
    }

    /// Names reported once more. Only grows.
    pub(super) fn told_again(&self) -> u64 {
        self.told_again
    }

    fn is_told(&self, name: BlockName) -> bool {
        self.untold[usize::from(range_of(name))].is_none_or(|untold| name < untold)
    }
}

fn first_of(range: usize) -> BlockName {
    edge_of(range, 0)
}

fn last_of(range: usize) -> BlockName {
    edge_of(range, u8::MAX)
}

fn edge_of(range: usize, rest: u8) -> BlockName {
    let mut name = [rest; 16];
    name[0] = u8::try_from(range).expect("there are 256 ranges");
    BlockName(name)
}

#[cfg(test)]
mod tests {
    use shared::Random;
    use std::collections::BTreeSet;

    use shared::{BlockName, CacheChange, ObjectKind, RangeSet, TenantTag, Tier};

    use super::{Changes, REPORT_NAMES_MAX};
    use crate::disk::catalog::{
        Catalog, CatalogConfig, Entry, Record, SegmentContents, SegmentState,
    };
    use crate::testing::{Follower, name};

    const NAMES: u64 = 70_000;

    fn record(number: u64) -> Record {
        let page = u32::try_from(1 + number).unwrap();
        let (segment, bytes, checksum, exact) = (1, 100, 0, true);
        let entry = Entry {
            segment,
            page,
            bytes,
            checksum,
            exact,
            kind: ObjectKind::Block,
            written_unix_seconds: 5,
            tenant: TenantTag::NONE,
            sealed: false,
        };
        Record { name: name(number), entry }
    }

    fn names(change: &CacheChange) -> (bool, Vec<BlockName>) {
        match change {
            CacheChange::Stored { tier: Tier::Disk, names } => (true, names.clone()),
            CacheChange::Removed { tier: Tier::Disk, names } => (false, names.clone()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_are_told_some_at_a_time_and_changes_between_are_net() {
        let (_folder, catalog) = catalog((0..NAMES).map(record).collect());
        let mut changes = Changes::new();
        let first = changes.drain(&catalog, true).unwrap();
        let (stored, told) = names(&first[0]);
        assert!(stored && told.len() == REPORT_NAMES_MAX && first.len() == 1);
        // One that was told leaves and comes back, one leaves, one that was not told leaves.
        for (number, back) in [(3, true), (4, false), (NAMES - 1, false)] {
            let Record { name, entry } = record(number);
            assert!(catalog.forget(name, &entry).unwrap());
            changes.removed(name);
            if back {
                catalog.insert(&[record(number)]).unwrap();
                changes.stored(&[name]);
            }
        }
        let second = changes.drain(&catalog, true).unwrap();
        assert_eq!(names(&second[0]), (false, vec![name(4)]));
        let (stored, rest) = names(&second[1]);
        let from = u64::try_from(REPORT_NAMES_MAX).unwrap();
        let expected: Vec<_> = (from..NAMES - 1).map(name).collect();
        assert!(stored && rest == expected);
        assert_eq!(changes.drain(&catalog, true).unwrap(), []);
        changes.stored(&[name(NAMES)]);
        assert_eq!(names(&changes.drain(&catalog, true).unwrap()[0]), (true, vec![name(NAMES)]));
    }

    fn catalog(records: Vec<Record>) -> (tempfile::TempDir, Catalog) {
        let folder = tempfile::tempdir().unwrap();
        let config = CatalogConfig::in_folder(folder.path().join("catalog"));
        let (catalog, _) = Catalog::open(&config, [7; 32]).unwrap();
        let contents = SegmentContents {
            number: 1,
            state: SegmentState::Open,
            bytes: 1 << 30,
            changed_unix_seconds: 0,
            records,
        };
        catalog.load_segment(&contents).unwrap();
        (folder, catalog)
    }

    /// A record under a name that is spread like a real one.
    fn spread(number: u64) -> Record {
        let name = BlockName((u128::from(Random::new(number).word()) << 64).to_be_bytes());
        Record { name, ..record(number) }
    }

    #[test]
    fn ranges_are_told_again_from_the_catalog_while_others_change() {
        let count = NAMES * 2;
        let (_folder, catalog) = catalog((0..count).map(spread).collect());
        let (mut changes, mut follower) = (Changes::new(), Follower::default());
        let mut held: BTreeSet<BlockName> = (0..count).map(|number| spread(number).name).collect();
        let mut generator = Random::new(5);
        for step in 0..12 {
            if step % 3 == 1 {
                let words = [0; 4].map(|_: u64| generator.word() & generator.word());
                let ranges = RangeSet::from_words(words);
                changes.tell_again(ranges);
                follower.follow(vec![CacheChange::RangesCleared(ranges)]);
            }
            for _ in 0..500 {
                let record = spread(generator.word() % count);
                if held.remove(&record.name) {
                    assert!(catalog.forget(record.name, &record.entry).unwrap());
                    changes.removed(record.name);
                } else {
                    held.insert(record.name);
                    changes.stored(&catalog.insert(&[record]).unwrap().new);
                }
            }
            let told = changes.drain(&catalog, true).unwrap();
            let names: usize = told.iter().map(|change| names(change).1.len()).sum();
            assert!(names <= REPORT_NAMES_MAX + 4_096 + 1_000, "{names}");
            follower.follow(told);
            follower.follow(vec![CacheChange::Digests(changes.digests())]);
        }
        while follower.names_in(Tier::Disk).len() < held.len() {
            follower.follow(changes.drain(&catalog, true).unwrap());
        }
        assert!(held.iter().eq(&follower.names_in(Tier::Disk)));
        assert_eq!(changes.drain(&catalog, true).unwrap(), []);
        assert!(0 < changes.told_again() && changes.told_again() < 2 * count);
        changes.tell_again(RangeSet::ALL);
        let before = changes.told_again();
        let mut told = 0;
        while told < held.len() {
            told += names(&changes.drain(&catalog, true).unwrap()[0]).1.len();
        }
        assert_eq!(changes.told_again() - before, u64::try_from(held.len()).unwrap());
    }
}
