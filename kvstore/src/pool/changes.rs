//! The net change of a set of names since it was last reported.

use std::collections::BTreeMap;

use shared::{BlockName, CacheChange, Tier};

/// Names whose present state differs from what was last reported. At most one entry per held name and one per name
/// reported and gone since, so two per slot: a bound without an overflow case. Sorted, so that equal histories give
/// equal reports.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pending: BTreeMap<BlockName, Pending>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Stored,
    Removed,
}

impl Changes {
    /// The name is held from now on. It was not before.
    pub(super) fn stored(&mut self, name: BlockName) {
        self.flip(name, Pending::Stored);
    }

    /// The name is not held from now on. It was before.
    pub(super) fn removed(&mut self, name: BlockName) {
        self.flip(name, Pending::Removed);
    }

    /// The changes since the last call.
    pub(super) fn drain(&mut self, tier: Tier) -> Vec<CacheChange> {
        let (mut stored, mut removed) = (Vec::new(), Vec::new());
        for (name, pending) in std::mem::take(&mut self.pending) {
            match pending {
                Pending::Stored => stored.push(name),
                Pending::Removed => removed.push(name),
            }
        }
        let mut changes = Vec::new();
        if !removed.is_empty() {
            changes.push(CacheChange::Removed { tier, names: removed });
        }
        if !stored.is_empty() {
            changes.push(CacheChange::Stored { tier, names: stored });
        }
        changes
    }

    /// Forgets the pending changes: everything was reported in another way.
    pub(super) fn reset(&mut self) {
        self.pending.clear();
    }

    /// Entries waiting to be reported.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Two opposite changes cancel out: the reported state holds again.
    fn flip(&mut self, name: BlockName, change: Pending) {
        if self.pending.remove(&name).is_none() {
            self.pending.insert(name, change);
        }
    }
}
