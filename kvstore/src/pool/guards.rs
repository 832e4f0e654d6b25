//! The states of a slot as types. Dropping a guard takes the pool's lock for a moment and never panics.

use std::fmt;
use std::sync::Arc;

use shared::{BlockName, Descriptor, RegionId, SlotIndex, SlotMemory};

use super::state::Hold;
use super::{Shared, payload_bytes};

/// A living guard holds one of these; the pool counts them to check its own counters.
type Witness = Arc<()>;

/// A slot with one writer. Dropping it frees the slot.
pub struct OwnedSlot {
    shared: Arc<Shared>,
    index: SlotIndex,
    witness: Option<Witness>,
}

impl OwnedSlot {
    pub(super) fn new(shared: Arc<Shared>, index: SlotIndex, witness: Witness) -> Self {
        Self { shared, index, witness: Some(witness) }
    }

    /// The slot.
    #[must_use]
    pub fn index(&self) -> SlotIndex {
        self.index
    }

    /// The memory it lies in.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn SlotMemory> {
        &self.shared.memory
    }

    /// The region it lies in.
    #[must_use]
    pub fn region(&self) -> RegionId {
        self.shared.config.region
    }

    /// Shows the slot's bytes for writing.
    pub fn write(&mut self, visit: &mut dyn FnMut(&mut [u8])) {
        self.shared.memory.write(self.index, visit);
    }

    pub(super) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Ends the guard without freeing the slot. For the pool, under its lock.
    pub(super) fn disarm(&mut self) {
        self.witness = None;
    }
}

impl Drop for OwnedSlot {
    fn drop(&mut self) {
        if self.witness.is_none() {
            return;
        }
        let mut state = self.shared.state.lock();
        self.witness = None;
        state.free_slot(self.index);
    }
}

/// An immutable, named slot, pinned while this or a clone lives. Dropping the last one leaves it cached as the most
/// recently used.
pub struct SealedSlot {
    shared: Arc<Shared>,
    descriptor: Descriptor,
    witness: Option<Witness>,
}

impl SealedSlot {
    pub(super) fn new(shared: Arc<Shared>, descriptor: Descriptor, witness: Witness) -> Self {
        Self { shared, descriptor, witness: Some(witness) }
    }

    /// The slot.
    #[must_use]
    pub fn index(&self) -> SlotIndex {
        self.descriptor.location.slot
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> BlockName {
        self.descriptor.key.name
    }

    /// Whether the bytes equal those of a cold run in one process.
    #[must_use]
    pub fn exact(&self) -> bool {
        self.descriptor.exact
    }

    /// What others need to read it. Valid at least while this guard lives.
    #[must_use]
    pub fn descriptor(&self) -> Descriptor {
        self.descriptor
    }

    /// The memory it lies in.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn SlotMemory> {
        &self.shared.memory
    }

    /// Shows the payload.
    pub fn read(&self, visit: &mut dyn FnMut(&[u8])) {
        read_payload(&self.shared, &self.descriptor, visit);
    }
}

impl Clone for SealedSlot {
    fn clone(&self) -> Self {
        let witness = self.shared.state.lock().pin(self.index());
        Self::new(Arc::clone(&self.shared), self.descriptor, witness)
    }
}

impl Drop for SealedSlot {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        self.witness = None;
        state.release(self.descriptor.location.slot, Hold::Pin);
    }
}

/// A read in progress: the slot keeps its bytes until this drops.
pub struct OpenRead {
    shared: Arc<Shared>,
    descriptor: Descriptor,
    witness: Option<Witness>,
}

impl OpenRead {
    pub(super) fn new(shared: Arc<Shared>, descriptor: Descriptor, witness: Witness) -> Self {
        Self { shared, descriptor, witness: Some(witness) }
    }

    /// What is being read.
    #[must_use]
    pub fn descriptor(&self) -> Descriptor {
        self.descriptor
    }

    /// Shows the payload.
    pub fn read(&self, visit: &mut dyn FnMut(&[u8])) {
        read_payload(&self.shared, &self.descriptor, visit);
    }

    /// Whether the source's own bytes still have the checksum they were sealed with.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        let mut intact = false;
        self.read(&mut |payload| intact = crc32c::crc32c(payload) == self.descriptor.checksum);
        intact
    }
}

impl Drop for OpenRead {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        self.witness = None;
        state.release(self.descriptor.location.slot, Hold::Read);
    }
}

impl fmt::Debug for OwnedSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedSlot").field(&self.index).finish()
    }
}

impl fmt::Debug for SealedSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SealedSlot").field(&self.descriptor).finish()
    }
}

impl fmt::Debug for OpenRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenRead").field(&self.descriptor).finish()
    }
}

fn read_payload(shared: &Shared, descriptor: &Descriptor, visit: &mut dyn FnMut(&[u8])) {
    let bytes = payload_bytes(descriptor.bytes);
    shared.memory.read(descriptor.location.slot, &mut |slot| visit(&slot[..bytes]));
}
