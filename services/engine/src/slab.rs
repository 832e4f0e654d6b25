//! The memory of a worker's blocks.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use shared::{Generation, SlotIndex, SlotMemory};

/// Equal slots of host memory. A slot holds one block.
///
/// It owns its memory ([`KvSlab::new`]) or lies over memory somebody else made ([`KvSlab::over`]), such as a segment that
/// other processes of the host can read.
pub struct KvSlab {
    memory: Arc<dyn SlotMemory>,
}

/// Slots of the slab's own.
///
/// Each slot has its own lock, held for a copy or a decode at a time. Owner and readers never wait for each other in a
/// correct program: sealed slots are only read, open ones have one owner.
struct OwnMemory {
    slots: Vec<RwLock<Box<[u8]>>>,
    slot_bytes: usize,
}

impl KvSlab {
    /// Allocates `slots` slots of `slot_bytes` zeroed bytes.
    #[must_use]
    pub fn new(slots: u32, slot_bytes: usize) -> Self {
        let slot = || RwLock::new(vec![0; slot_bytes].into_boxed_slice());
        Self::over(Arc::new(OwnMemory { slots: (0..slots).map(|_| slot()).collect(), slot_bytes }))
    }

    /// A slab whose slots are those of `memory`. A slot must hold one block; `memory` must lock per slot, because the
    /// forward pass reads one slot while it writes another.
    #[must_use]
    pub fn over(memory: Arc<dyn SlotMemory>) -> Self {
        Self { memory }
    }
}

impl SlotMemory for KvSlab {
    fn slots(&self) -> u32 {
        self.memory.slots()
    }

    fn slot_bytes(&self) -> usize {
        self.memory.slot_bytes()
    }

    fn read(&self, slot: SlotIndex, visit: &mut dyn FnMut(&[u8])) {
        self.memory.read(slot, visit);
    }

    fn write(&self, slot: SlotIndex, visit: &mut dyn FnMut(&mut [u8])) {
        self.memory.write(slot, visit);
    }

    fn mark(&self, slot: SlotIndex, sealed: Option<Generation>) {
        self.memory.mark(slot, sealed);
    }
}

impl fmt::Debug for KvSlab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvSlab")
            .field("slots", &self.slots())
            .field("slot_bytes", &self.slot_bytes())
            .finish()
    }
}

impl SlotMemory for OwnMemory {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shared::{SlotIndex, SlotMemory};

    use super::KvSlab;

    #[test]
    fn a_slab_over_foreign_memory_shows_its_slots() {
        let memory: Arc<dyn SlotMemory> = Arc::new(KvSlab::new(2, 4));
        let slab = KvSlab::over(Arc::clone(&memory));
        assert_eq!((slab.slots(), slab.slot_bytes()), (2, 4));
        slab.write(SlotIndex(1), &mut |bytes| bytes.copy_from_slice(&[1, 2, 3, 4]));
        let mut seen = Vec::new();
        memory.read(SlotIndex(1), &mut |bytes| seen.extend_from_slice(bytes));
        assert_eq!(seen, [1, 2, 3, 4]);
    }
}
