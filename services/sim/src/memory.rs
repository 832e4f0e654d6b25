//! Slots without bytes: pools decide what is kept, and nothing here is ever read.

use std::sync::Arc;

use kvstore::{Pool, PoolConfig, Seal};
use shared::{BlockName, ObjectKind, RegionId, SlotIndex, SlotMemory, Tier, WorkerRank};

use crate::settings::narrow;

/// Memory of any number of slots that takes none.
struct Slots(u32);

impl SlotMemory for Slots {
    fn slots(&self) -> u32 {
        self.0
    }

    fn slot_bytes(&self) -> usize {
        1
    }

    fn read(&self, _: SlotIndex, visit: &mut dyn FnMut(&[u8])) {
        visit(&[0]);
    }

    fn write(&self, _: SlotIndex, visit: &mut dyn FnMut(&mut [u8])) {
        visit(&mut [0]);
    }
}

/// A pool of so many blocks.
pub(crate) fn pool(owner: WorkerRank, tier: Tier, blocks: u64) -> Pool {
    let kind = ObjectKind::Block;
    let config = PoolConfig { region: RegionId::of(owner, kind), kind, tier };
    Pool::new(config, Arc::new(Slots(narrow(blocks))))
}

/// How a block is sealed here: its one byte stands for all.
pub(crate) fn seal(name: BlockName) -> Seal {
    Seal { name, exact: true, bytes: 1 }
}
