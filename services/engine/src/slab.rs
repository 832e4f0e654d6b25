//! The memory of a worker's blocks.

use parking_lot::RwLock;
use shared::{SlotIndex, SlotMemory};

/// Equal slots of host memory, allocated up front. A slot holds one block.
///
/// Each slot has its own lock, held for a copy or a decode at a time. Owner and readers never wait for each other in a
/// correct program: sealed slots are only read, open ones have one owner.
#[derive(Debug)]
pub struct KvSlab {
    slots: Vec<RwLock<Box<[u8]>>>,
    slot_bytes: usize,
}

impl KvSlab {
    /// Allocates `slots` slots of `slot_bytes` zeroed bytes.
    #[must_use]
    pub fn new(slots: u32, slot_bytes: usize) -> Self {
        let slot = || RwLock::new(vec![0; slot_bytes].into_boxed_slice());
        Self { slots: (0..slots).map(|_| slot()).collect(), slot_bytes }
    }
}

impl SlotMemory for KvSlab {
    fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("made from a 32-bit count")
    }

    fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    fn read(&self, slot: SlotIndex, visit: &mut dyn FnMut(&[u8])) {
        visit(&self.slots[slot.index()].read());
    }

    fn write(&self, slot: SlotIndex, visit: &mut dyn FnMut(&mut [u8])) {
        visit(&mut self.slots[slot.index()].write());
    }
}
