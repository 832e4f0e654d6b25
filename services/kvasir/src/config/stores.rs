//! Settings of a worker's view of the store nodes.

use std::time::Duration;

use anyhow::ensure;
use serde::Deserialize;
use shared::Durability;

/// How objects spread over the store nodes. All workers of a cluster should have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoresConfig {
    /// Nodes that a hot group of blocks lies on, 1 to 3. Default 2: one can be lost or busy. 1 keeps a single copy of all.
    pub replicas_max: usize,
    /// Lookups of a group by one worker within the window from which on it is hot, 1 to 1,000,000. Default 8: what a worker
    /// looks up that often does not stay in its own memory, and others want it too.
    pub hot_lookups_min: u32,
    /// The window in which lookups are counted, in seconds, 1 to 86,400. A group stays hot for at most two of them. Default 60.
    pub hot_window_s: u64,
    /// Objects that one worker lets store nodes copy from each other at a time, 0 to 65,536: those that were found, but not where
    /// they were looked for first. 0 copies nothing. Default 64: two groups, some 7 MB for Flash.
    pub copies_max: usize,
    /// When workers take a block for stored: `memory`, once it is in a node's memory, or `disk`, once it is synced to its drive and
    /// in the catalog. Default `memory`: a block that is lost costs a recompute. With `disk` a worker keeps its own copy some
    /// milliseconds longer; what a node keeps in memory alone it says, and is counted.
    pub durability: StoreDurability,
}

impl Default for StoresConfig {
    /// The documented default of every field.
    fn default() -> Self {
        Self {
            replicas_max: 2,
            hot_lookups_min: 8,
            hot_window_s: 60,
            copies_max: 64,
            durability: StoreDurability::Memory,
        }
    }
}

/// When a block counts as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreDurability {
    /// In a node's memory.
    Memory,
    /// On its drive, too.
    Disk,
}

impl From<StoreDurability> for Durability {
    fn from(durability: StoreDurability) -> Self {
        match durability {
            StoreDurability::Memory => Self::Memory,
            StoreDurability::Disk => Self::Disk,
        }
    }
}

impl StoresConfig {
    /// The window in which lookups are counted.
    #[must_use]
    pub fn hot_window(&self) -> Duration {
        Duration::from_secs(self.hot_window_s)
    }

    /// Checks the values.
    ///
    /// # Errors
    /// Names the first one out of its range.
    pub fn check(&self) -> anyhow::Result<()> {
        let ranges = [
            ("replicas_max", (1..=3).contains(&self.replicas_max), "1..=3"),
            ("hot_lookups_min", (1..=1_000_000).contains(&self.hot_lookups_min), "1..=1000000"),
            ("hot_window_s", (1..=86_400).contains(&self.hot_window_s), "1..=86400"),
            ("copies_max", self.copies_max <= 65_536, "0..=65536"),
        ];
        for (field, holds, expected) in ranges {
            ensure!(holds, "stores.{field} is out of range: expected {expected}");
        }
        Ok(())
    }
}
