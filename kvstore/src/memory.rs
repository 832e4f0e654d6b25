//! Host memory made of equal slots: private, or shared with the other processes of the host for reading.

use std::collections::TryReserveError;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::RwLock;
use shared::{Generation, SlotIndex, SlotMemory};

use crate::sys::{Marks, SharedSlot, segment_bytes, shared_slots};

/// Slots in ordinary host memory, all allocated and zeroed when it is built.
///
/// Each slot has a lock of its own: readers of one slot share it, a writer excludes them. By the contract of
/// [`SlotMemory`] nobody ever waits here; if somebody does, the contract was broken, and the bytes are still whole.
#[derive(Debug)]
pub struct HostMemory {
    slots: Vec<RwLock<Box<[u8]>>>,
    slot_bytes: usize,
}

/// Why the memory could not be built.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The bound does not hold one slot.
    #[error(
        "{bytes_max} bytes hold no slot of {slot_bytes} bytes; raise the bound to at least {slot_bytes}"
    )]
    TooSmall {
        /// The bound.
        bytes_max: u64,
        /// Bytes of one slot.
        slot_bytes: usize,
    },
    /// The bound holds more slots than can be numbered.
    #[error("{slots} slots are more than can be numbered ({}); lower the bound", u32::MAX)]
    TooMany {
        /// Slots asked for.
        slots: u64,
    },
    /// The system did not give the memory.
    #[error("the system refused {bytes} bytes of memory ({source}); lower the bound")]
    Refused {
        /// Bytes asked for in all.
        bytes: u64,
        /// What the allocator said.
        source: TryReserveError,
    },
    /// The system did not give the memory.
    #[error(
        "the system refused {bytes} bytes of shared memory ({source}); lower the bound or raise the limit on memory"
    )]
    SharedRefused {
        /// Bytes asked for in all.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },
}

/// Slots in one segment that other processes of the host can map for reading and never for writing. Otherwise like
/// [`HostMemory`]: zeroed when it is built, its pages present as far as the system had them, one lock per slot.
///
/// The locks are this process's own. A reader in another process takes none: it looks at the marks behind the slots, of
/// which the first says whether the segment may be read at all, and the others what each slot holds (`slot_mark`).
#[derive(Debug)]
pub struct SharedMemory {
    file: OwnedFd,
    marks: Marks,
    slots: Vec<RwLock<SharedSlot>>,
    slot_bytes: usize,
    stride: usize,
}

/// The mark that says whether a segment may be read: 1, else 0.
pub(crate) const OPEN_MARK: usize = 0;

/// Which mark is that of a slot.
pub(crate) fn slot_mark(slot: SlotIndex) -> usize {
    slot.index() + 1
}

/// What it says while the slot holds the object of this generation. Zero says that it holds nothing to be read.
pub(crate) fn mark_of(generation: Generation) -> u64 {
    generation.0.saturating_add(1)
}

impl HostMemory {
    /// Allocates as many slots of `slot_bytes` bytes as `bytes_max` bytes hold, and touches every page, so that the
    /// price is paid at the start and not by the first request. The locks and lists around the slots are not counted.
    ///
    /// # Errors
    /// When not one slot fits, when there would be more than `u32::MAX`, or when the allocator refuses.
    ///
    /// # Panics
    /// When `slot_bytes` is 0.
    pub fn with_bound(bytes_max: u64, slot_bytes: usize) -> Result<Self, MemoryError> {
        assert!(0 < slot_bytes, "a slot holds at least one byte");
        Self::with_slots(slots_within(bytes_max, slot_bytes)?, slot_bytes)
    }

    /// Allocates exactly `slots` slots.
    ///
    /// # Errors
    /// When the allocator refuses.
    pub fn with_slots(slots: u32, slot_bytes: usize) -> Result<Self, MemoryError> {
        let refused = |source| MemoryError::Refused {
            bytes: u64::from(slots).saturating_mul(u64::try_from(slot_bytes).unwrap_or(u64::MAX)),
            source,
        };
        let mut memory = Vec::new();
        memory.try_reserve_exact(SlotIndex(slots).index()).map_err(refused)?;
        for _ in 0..slots {
            let mut slot = Vec::new();
            slot.try_reserve_exact(slot_bytes).map_err(refused)?;
            slot.resize(slot_bytes, 0);
            memory.push(RwLock::new(slot.into_boxed_slice()));
        }
        Ok(Self { slots: memory, slot_bytes })
    }
}

impl SharedMemory {
    /// Slots begin at multiples of this many bytes, a cache line: no two slots share one.
    const ALIGNMENT: usize = 64;

    /// Allocates as many slots of `slot_bytes` bytes as `bytes_max` bytes hold. Up to 63 bytes
    /// between slots are not counted, like the locks and lists around them; blocks and window objects need none.
    ///
    /// # Errors
    /// When not one slot fits, when there would be more than `u32::MAX`, or when the system refuses.
    ///
    /// # Panics
    /// When `slot_bytes` is 0.
    pub fn with_bound(bytes_max: u64, slot_bytes: usize) -> Result<Self, MemoryError> {
        assert!(0 < slot_bytes, "a slot holds at least one byte");
        Self::with_slots(slots_within(bytes_max, slot_bytes)?, slot_bytes)
    }

    /// Allocates exactly `slots` slots.
    ///
    /// # Errors
    /// When the system refuses.
    ///
    /// # Panics
    /// When `slots` or `slot_bytes` is 0.
    pub fn with_slots(slots: u32, slot_bytes: usize) -> Result<Self, MemoryError> {
        assert!(0 < slots && 0 < slot_bytes, "a segment holds at least one byte");
        let count = SlotIndex(slots).index();
        let stride = slot_bytes.checked_next_multiple_of(Self::ALIGNMENT);
        let marks = count + 1;
        let whole = |stride: &usize| segment_bytes(count, *stride, marks).is_some();
        let Some(stride) = stride.filter(whole) else {
            let source = io::Error::from(io::ErrorKind::OutOfMemory);
            return Err(MemoryError::SharedRefused { bytes: u64::MAX, source });
        };
        let segment = shared_slots(count, slot_bytes, stride, marks);
        let (file, mapped, marks) = segment.map_err(|source| {
            let bytes = u64::try_from(count * stride).unwrap_or(u64::MAX);
            MemoryError::SharedRefused { bytes, source }
        })?;
        let slots = mapped.into_iter().map(RwLock::new).collect();
        Ok(Self { file, marks, slots, slot_bytes, stride })
    }

    /// Says to those who have the segment mapped whether they may read it.
    pub(crate) fn open(&self, open: bool) {
        if open {
            self.marks.set(OPEN_MARK, 1);
        } else {
            self.marks.clear(OPEN_MARK);
        }
    }

    /// The segment, for peers: whoever gets it can map it for reading and nothing else.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Distance between the beginnings of two neighbouring slots, in bytes. Slot 0 begins at 0.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }
}

impl SlotMemory for SharedMemory {
    fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("built from a count of 32 bits")
    }

    fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    fn read(&self, slot: SlotIndex, visit: &mut dyn FnMut(&[u8])) {
        visit(self.slots[slot.index()].read().bytes());
    }

    fn write(&self, slot: SlotIndex, visit: &mut dyn FnMut(&mut [u8])) {
        visit(self.slots[slot.index()].write().bytes_mut());
    }

    fn mark(&self, slot: SlotIndex, sealed: Option<Generation>) {
        match sealed {
            Some(generation) => self.marks.set(slot_mark(slot), mark_of(generation)),
            None => self.marks.clear(slot_mark(slot)),
        }
    }
}

impl SlotMemory for HostMemory {
    fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("built from a count of 32 bits")
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

fn slots_within(bytes_max: u64, slot_bytes: usize) -> Result<u32, MemoryError> {
    let slots = bytes_max / u64::try_from(slot_bytes).unwrap_or(u64::MAX);
    if slots == 0 {
        return Err(MemoryError::TooSmall { bytes_max, slot_bytes });
    }
    u32::try_from(slots).map_err(|_| MemoryError::TooMany { slots })
}

#[cfg(test)]
mod tests {
    use shared::{SlotIndex, SlotMemory};

    use super::{HostMemory, MemoryError, SharedMemory};

    #[test]
    fn a_bound_in_bytes_becomes_whole_slots() {
        for (bytes_max, slots) in [(10, 1), (19, 1), (20, 2), (1_000, 100)] {
            let memory = HostMemory::with_bound(bytes_max, 10).unwrap();
            assert_eq!((memory.slots(), memory.slot_bytes()), (slots, 10), "{bytes_max} bytes");
            let memory = SharedMemory::with_bound(bytes_max, 10).unwrap();
            assert_eq!((memory.slots(), memory.slot_bytes()), (slots, 10), "{bytes_max} bytes");
            assert_eq!(memory.stride(), 64);
        }
    }

    #[test]
    fn impossible_bounds_are_refused_with_a_reason() {
        let small = HostMemory::with_bound(9, 10).unwrap_err();
        assert!(matches!(small, MemoryError::TooSmall { bytes_max: 9, slot_bytes: 10 }));
        let small = SharedMemory::with_bound(9, 10).unwrap_err();
        assert!(matches!(small, MemoryError::TooSmall { bytes_max: 9, slot_bytes: 10 }));
        for many in [
            HostMemory::with_bound(u64::MAX, 1).unwrap_err(),
            SharedMemory::with_bound(u64::MAX, 1).unwrap_err(),
        ] {
            assert!(matches!(many, MemoryError::TooMany { .. }));
        }
        let huge = HostMemory::with_slots(1, usize::MAX / 2).unwrap_err();
        assert!(matches!(huge, MemoryError::Refused { .. }), "{huge}");
        for bytes in [usize::MAX / 2 - 64, usize::MAX] {
            let huge = SharedMemory::with_slots(1, bytes).unwrap_err();
            assert!(matches!(huge, MemoryError::SharedRefused { .. }), "{huge}");
        }
    }

    #[test]
    fn slots_start_zeroed_and_keep_what_is_written() {
        slots_keep_bytes(&HostMemory::with_slots(2, 4).unwrap());
        slots_keep_bytes(&SharedMemory::with_slots(2, 4).unwrap());
    }

    fn slots_keep_bytes(memory: &dyn SlotMemory) {
        memory.write(SlotIndex(1), &mut |bytes| bytes.copy_from_slice(&[1, 2, 3, 4]));
        for (slot, expected) in [(0, [0; 4]), (1, [1, 2, 3, 4])] {
            let mut seen = Vec::new();
            memory.read(SlotIndex(slot), &mut |bytes| seen.extend_from_slice(bytes));
            assert_eq!(seen, expected);
        }
    }
}
