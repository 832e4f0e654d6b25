//! What routers are told of the blocks on disk.

use shared::{CacheChange, CacheQuestion};

use super::DiskTier;

impl DiskTier {
    /// How the set of durable blocks on disk changed since the last call; after the start, what was found, 65,536 blocks a
    /// call or some more. For one consumer. Only the net change is kept, so its memory is bounded by what fits the drive.
    /// Blocks for the catalog. See [`crate::Pool::drain_changes`].
    #[must_use = "changes are reported once"]
    pub fn drain_changes(&self) -> Vec<CacheChange> {
        self.shared.index.drain_changes()
    }

    /// The same as a fresh start: `Cleared` and the first blocks on disk; the calls of [`DiskTier::drain_changes`] that
    /// follow report the others.
    #[must_use = "changes are reported once"]
    pub fn resync_changes(&self) -> Vec<CacheChange> {
        self.answer(&CacheQuestion::Whole)
    }

    /// What somebody who lost changes is told, as [`crate::Pool::answer`] tells it. The digests are of what was reported, so
    /// they are kept along, and a start computes none. Ranges are read from the catalog in the order of their names, some
    /// blocks now and the others by the calls of [`DiskTier::drain_changes`] that follow. Blocks for the catalog.
    #[must_use = "changes are reported once"]
    pub fn answer(&self, question: &CacheQuestion) -> Vec<CacheChange> {
        self.shared.index.answer(question)
    }

    /// Names that answers reported once more. Only grows.
    #[must_use]
    pub fn told_again(&self) -> u64 {
        self.shared.index.told_again()
    }
}
