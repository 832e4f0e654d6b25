//! What routers are told of the blocks in host memory and below.

use shared::{CacheChange, CacheQuestion};

use super::HostTier;

impl HostTier {
    /// How the sets of blocks in host memory and on disk changed since the last call, each under its tier. Window objects
    /// are not reported: the router places by blocks. See [`crate::Pool::drain_changes`].
    #[must_use = "changes are reported once"]
    pub fn drain_changes(&self) -> Vec<CacheChange> {
        let mut changes = self.pools.blocks.drain_changes();
        changes.extend(self.disk.iter().flat_map(|disk| disk.drain_changes()));
        changes
    }

    /// The changes as a fresh start: `Cleared`, which speaks for both tiers, then what each holds. A full disk is told over
    /// the calls of [`HostTier::drain_changes`] that follow. See
    /// [`crate::Pool::resync_changes`] and [`crate::DiskTier::resync_changes`].
    #[must_use = "changes are reported once"]
    pub fn resync_changes(&self) -> Vec<CacheChange> {
        self.answer(&CacheQuestion::Whole)
    }

    /// What somebody who lost changes is told, for both tiers together, as [`Pool::answer`](crate::Pool::answer) and
    /// [`DiskTier::answer`](crate::DiskTier::answer) tell it. Visits every block in memory, and blocks for the catalog.
    #[must_use = "changes are reported once"]
    pub fn answer(&self, question: &CacheQuestion) -> Vec<CacheChange> {
        let memory = self.pools.blocks.answer(question);
        match &self.disk {
            Some(disk) => joined(memory, disk.answer(question)),
            None => memory,
        }
    }

    /// Names that answers reported once more. Only grows.
    #[must_use]
    pub fn told_again(&self) -> u64 {
        self.pools.blocks.told_again() + self.disk.as_ref().map_or(0, |disk| disk.told_again())
    }
}

/// The answers of two tiers to one question, as one: a clear at the beginning of the first speaks for both, digests at the
/// ends are put together.
fn joined(mut first: Vec<CacheChange>, second: Vec<CacheChange>) -> Vec<CacheChange> {
    let digests = match first.last() {
        Some(CacheChange::Digests(_)) => first.pop(),
        _ => None,
    };
    for change in second {
        match (change, &digests) {
            (CacheChange::Cleared | CacheChange::RangesCleared(_), _) => {}
            (CacheChange::Digests(below), Some(CacheChange::Digests(above))) => {
                first.push(CacheChange::Digests(above.joined(&below)));
            }
            (change, _) => first.push(change),
        }
    }
    first
}
