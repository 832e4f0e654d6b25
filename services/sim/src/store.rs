//! A store node: host memory (`kvstore`'s own pool, so its own eviction) above a drive.
//!
//! As in `kvstore`'s host tier: what is offered is read at once and queued to the drive; what is found in memory without a
//! lasting copy on the drive is queued again; what only the drive has is brought into memory first, and what it could not
//! bring within the time of a lookup is answered as missing.

use std::time::Duration;

use kvstore::{Pool, Reuse, SealedSlot};
use shared::{BlockName, CacheChange, Tier, Timestamp, WorkerRank};

use crate::drive::Drive;
use crate::memory;
use crate::settings::{Settings, blocks_in, ms};

/// Host blocks of a store that has only a drive: blocks on their way up pass through them.
const STAGING_BLOCKS: u64 = 1_024;
/// How long a lookup waits for the drive. `kvstore`'s default.
const ONBOARD_MAX: Duration = Duration::from_millis(200);

/// The node.
pub(crate) struct Store {
    pub(crate) rank: WorkerRank,
    pub(crate) pool: Pool,
    pub(crate) drive: Option<Drive>,
    /// Time of the drive for one block, without the copy from memory.
    drive_block: Duration,
    /// How many times slower the drive is than it should be.
    pub(crate) slow: f64,
    drive_free: Timestamp,
    /// Drive changes to be told: new names, gone names.
    stored: Vec<BlockName>,
    removed: Vec<BlockName>,
    pub(crate) late: u64,
}

/// A block that was found.
pub(crate) struct Found {
    pub(crate) tier: Tier,
    pub(crate) slot: SealedSlot,
    /// When it is in memory.
    pub(crate) at: Timestamp,
}

impl Store {
    /// An empty node. `blocks_max` bounds what can ever be stored: a larger pool would behave alike.
    pub(crate) fn new(rank: WorkerRank, settings: &Settings, blocks_max: u64) -> Self {
        let blocks = blocks_in(settings.host_gib).max(STAGING_BLOCKS).min(blocks_max);
        let drive_ms = (settings.restore_disk_ms - settings.restore_host_ms).max(0.0);
        Self {
            rank,
            pool: memory::pool(rank, Tier::Host, blocks),
            drive: Drive::new(settings),
            drive_block: ms(drive_ms),
            slow: 1.0,
            drive_free: Timestamp(0),
            stored: Vec::new(),
            removed: Vec::new(),
            late: 0,
        }
    }

    /// Memory after a restart: empty. The drive keeps what it has.
    pub(crate) fn restart(&mut self) {
        let blocks = u64::try_from(self.pool.total()).expect("a pool counts slots in 32 bits");
        self.pool = memory::pool(self.rank, Tier::Host, blocks);
        (self.stored, self.removed) = (Vec::new(), Vec::new());
    }

    /// Looks a block up.
    pub(crate) fn look_up(&mut self, name: BlockName, now: Timestamp) -> Option<Found> {
        if let Some(slot) = self.pool.lookup(name) {
            self.write(name, Reuse::Expected, now);
            return Some(Found { tier: Tier::Host, slot, at: now });
        }
        if !self.drive.as_ref()?.holds(name) {
            return None;
        }
        let begins = self.drive_free.max(now);
        let at = begins.after(self.drive_block.mul_f64(self.slow));
        if now.after(ONBOARD_MAX) < at {
            self.late += 1;
            return None;
        }
        let target = self.pool.reserve(1).ok()?.pop()?;
        self.drive_free = at;
        let slot = self.pool.seal(target, memory::seal(name));
        self.write(name, Reuse::Expected, now);
        Some(Found { tier: Tier::Disk, slot, at })
    }

    /// Takes an offered block, if there is room.
    pub(crate) fn offer(&mut self, name: BlockName, now: Timestamp) {
        let reuse = if self.pool.contains(name) { Reuse::Expected } else { Reuse::Unknown };
        if reuse == Reuse::Unknown {
            let Some(target) = self.pool.reserve(1).ok().and_then(|mut slots| slots.pop()) else {
                return;
            };
            drop(self.pool.seal(target, memory::seal(name)));
        }
        self.write(name, reuse, now);
    }

    fn write(&mut self, name: BlockName, reuse: Reuse, now: Timestamp) {
        if self.drive.as_mut().is_some_and(|drive| drive.put(name, reuse, now)) {
            self.stored.push(name);
        }
    }

    /// Takes away what is over on the drive.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        if let Some(drive) = &mut self.drive {
            self.removed.extend(drive.expire(now));
        }
    }

    /// What changed since the last call.
    pub(crate) fn changes(&mut self) -> Vec<CacheChange> {
        let mut changes = self.pool.drain_changes();
        let tier = Tier::Disk;
        for (names, removed) in
            [(std::mem::take(&mut self.removed), true), (std::mem::take(&mut self.stored), false)]
        {
            match (names.is_empty(), removed) {
                (true, _) => {}
                (false, true) => changes.push(CacheChange::Removed { tier, names }),
                (false, false) => changes.push(CacheChange::Stored { tier, names }),
            }
        }
        changes
    }

    /// Everything, for who lost its place.
    pub(crate) fn state(&mut self) -> Vec<CacheChange> {
        (self.stored, self.removed) = (Vec::new(), Vec::new());
        let mut changes = self.pool.resync_changes();
        if let Some(drive) = self.drive.as_ref().filter(|drive| 0 < drive.blocks()) {
            changes.push(CacheChange::Stored { tier: Tier::Disk, names: drive.names() });
        }
        changes
    }
}
