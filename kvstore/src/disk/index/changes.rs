//! What routers are told of the names on disk.
//!
//! Names are told in their order, some at a time, from the catalog itself; of those the consumer was told before, the net
//! difference is kept. A store that was just started has all of its names untold, which takes no memory.

use std::collections::BTreeSet;
use std::mem;

use shared::{BlockName, CacheChange, Tier};

use crate::disk::catalog::{Catalog, CatalogError};

/// Names that are told at a time beside changes: a message of one MiB.
pub(super) const REPORT_NAMES_MAX: usize = 65_536;
/// Names read at a time.
const PAGE_NAMES: usize = 4_096;
const FIRST: BlockName = BlockName([0; 16]);
const LAST: BlockName = BlockName([0xff; 16]);

/// The net difference to what was last reported: `stored` is a part of what is held, `removed` of what was reported before,
/// so both are bounded by what fits the drive.
#[derive(Debug)]
pub(super) struct Changes {
    /// Names from this one on were never reported. None when all were.
    untold: Option<BlockName>,
    stored: BTreeSet<BlockName>,
    removed: BTreeSet<BlockName>,
}

impl Changes {
    /// Nothing was told.
    pub(super) fn new() -> Self {
        Self { untold: Some(FIRST), stored: BTreeSet::new(), removed: BTreeSet::new() }
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

    /// Reports the difference and the next names that were never reported. After an error nothing is lost: the next call
    /// reports the same. Encrypted blocks are left out unless they can be read.
    pub(super) fn drain(
        &mut self,
        catalog: &Catalog,
        opens_sealed: bool,
    ) -> Result<Vec<CacheChange>, CatalogError> {
        let (mut untold, mut found) = (self.untold, Vec::new());
        while let Some(from) = untold.filter(|_| found.len() < REPORT_NAMES_MAX) {
            let (records, next) = catalog.names(from..=LAST, PAGE_NAMES)?;
            let readable = records.iter().filter(|record| opens_sealed || !record.entry.sealed);
            found.extend(readable.map(|record| record.name));
            untold = next;
        }
        self.untold = untold;
        let removed: Vec<BlockName> = mem::take(&mut self.removed).into_iter().collect();
        let mut stored: Vec<BlockName> = mem::take(&mut self.stored).into_iter().collect();
        // Below the names that were found, all of them.
        stored.append(&mut found);
        let (tier, mut changes) = (Tier::Disk, Vec::new());
        if !removed.is_empty() {
            changes.push(CacheChange::Removed { tier, names: removed });
        }
        if !stored.is_empty() {
            changes.push(CacheChange::Stored { tier, names: stored });
        }
        Ok(changes)
    }

    fn is_told(&self, name: BlockName) -> bool {
        self.untold.is_none_or(|untold| name < untold)
    }
}

#[cfg(test)]
mod tests {
    use shared::{CacheChange, TenantTag, Tier};

    use super::{Changes, REPORT_NAMES_MAX};
    use crate::disk::catalog::{
        Catalog, CatalogConfig, Entry, Record, SegmentContents, SegmentState,
    };
    use crate::testing::name;

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
            written_unix_seconds: 5,
            tenant: TenantTag::NONE,
            sealed: false,
        };
        Record { name: name(number), entry }
    }

    fn names(change: &CacheChange) -> (bool, Vec<shared::BlockName>) {
        match change {
            CacheChange::Stored { tier: Tier::Disk, names } => (true, names.clone()),
            CacheChange::Removed { tier: Tier::Disk, names } => (false, names.clone()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_are_told_some_at_a_time_and_changes_between_are_net() {
        let folder = tempfile::tempdir().unwrap();
        let config = CatalogConfig::in_folder(folder.path().join("catalog"));
        let (catalog, _) = Catalog::open(&config, [7; 32]).unwrap();
        let contents = SegmentContents {
            number: 1,
            state: SegmentState::Open,
            bytes: 1 << 30,
            changed_unix_seconds: 0,
            records: (0..NAMES).map(record).collect(),
        };
        catalog.load_segment(&contents).unwrap();
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
}
