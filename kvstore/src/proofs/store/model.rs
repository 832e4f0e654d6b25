//! What a schedule was promised by the store.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use shared::ObjectKey;

use super::{BLOCKS, block};
use crate::disk::survey::{BlockCopy, Survey};

/// What is known about the store's duties. Bounded by the names there are, and the damage done.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// Every version of an object that the store took.
    pub(super) stored: BTreeMap<ObjectKey, BTreeSet<u64>>,
    /// Blocks that a flush acknowledged, with the copy that counts.
    durable: BTreeMap<u64, BlockCopy>,
    /// Places that were damaged on purpose; without a page the whole segment.
    damaged: BTreeSet<(u64, Option<u32>)>,
    /// No file was damaged, torn or left by an error of the drive.
    pub(super) files_whole: bool,
    /// No block was given up.
    pub(super) catalog_whole: bool,
    /// The drive was seen to be slow since the last start.
    pub(super) slowed: bool,
}

impl Model {
    pub(super) fn new() -> Self {
        Self { files_whole: true, catalog_whole: true, ..Self::default() }
    }

    /// A flush said that everything is durable, and `is_held` that a block is on disk.
    pub(super) fn acknowledge(&mut self, folder: &Path, is_held: impl Fn(u64) -> bool) {
        let survey = Survey::open(folder).unwrap();
        let mut newest = BTreeMap::new();
        for segment in survey.segments() {
            newest.extend(segment.blocks().map(|copy| (copy.name, copy)));
        }
        for number in 1..=BLOCKS {
            let copy = newest.get(&block(number).name);
            let copy = copy.filter(|copy| !self.is_damaged(copy) && is_held(number));
            self.durable.extend(copy.map(|copy| (number, *copy)));
        }
    }

    /// Blocks that must be on disk: acknowledged, intact, and not older than the retention.
    pub(super) fn promised(&self, now: u64, retention_s: u64) -> BTreeSet<u64> {
        let fresh = self.durable.iter().filter(|(_, copy)| {
            now.saturating_sub(copy.written_unix_seconds) <= retention_s && !self.is_damaged(copy)
        });
        fresh.map(|(number, _)| *number).collect()
    }

    /// What lies at this place is lost, and `hit` are the blocks that may be looked for there: an older copy elsewhere is not
    /// found by the lookup that meets the damage.
    pub(super) fn damage<'a>(
        &mut self,
        (segment, page): (u64, Option<u32>),
        hit: impl Iterator<Item = &'a BlockCopy>,
    ) {
        self.damaged.insert((segment, page));
        for copy in hit.filter(|copy| page.is_none_or(|page| copy.page == page)) {
            self.durable.retain(|number, _| block(*number).name != copy.name);
        }
        self.files_whole = false;
        self.catalog_whole = false;
    }

    /// The drive failed to read a block, which is not looked for any more.
    pub(super) fn given_up(&mut self, number: u64) {
        self.catalog_whole = false;
        if let Some(copy) = self.durable.remove(&number) {
            self.damaged.insert((copy.segment, Some(copy.page)));
        }
    }

    /// Everything on disk was removed.
    pub(super) fn evicted(&mut self) {
        self.durable.clear();
    }

    fn is_damaged(&self, copy: &BlockCopy) -> bool {
        [None, Some(copy.page)].into_iter().any(|page| self.damaged.contains(&(copy.segment, page)))
    }
}
