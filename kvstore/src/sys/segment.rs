//! Memory that several processes map: the owner for writing, everybody else for reading.
//!
//! A segment is an anonymous file (memfd) of fixed size. It is sealed: nobody can shrink it, so that touching a mapping
//! never faults, nobody can grow it, and nobody can map it for writing or write to it any more, except through the one
//! mapping its owner made before.
//!
//! Behind its slots lie *marks*: words of 64 bits by which the owner says what may be read now. A reader looks at them
//! before and after it copies: the owner changes the mark first and writes afterwards.
#![expect(
    unsafe_code,
    reason = "bytes of a memory mapping can only be reached through its address"
)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{self, MemfdFlags, SealFlags};

/// One slot of a segment of one's own. It owns its range of the mapping: no other slot overlaps it.
#[derive(Debug)]
pub(crate) struct SharedSlot {
    mapping: Arc<MmapRaw>,
    range: Range<usize>,
}

/// The marks of a segment of one's own, all zero at first. Dropping them sets them to zero again, for those who still have
/// the segment mapped.
#[derive(Debug)]
pub(crate) struct Marks {
    mapping: Arc<MmapRaw>,
    start: usize,
    count: usize,
}

/// Bytes of a mark.
const MARK_BYTES: usize = 8;
/// Marks begin at a multiple of this many bytes, a cache line: no slot shares one with them.
const MARKS_ALIGNMENT: usize = 64;

/// Where the marks begin in a segment of `count` slots that are `stride` bytes apart. None when that cannot be addressed.
pub(crate) fn marks_start(count: usize, stride: usize) -> Option<usize> {
    count.checked_mul(stride)?.checked_next_multiple_of(MARKS_ALIGNMENT)
}

/// Bytes of such a segment with `marks` marks.
pub(crate) fn segment_bytes(count: usize, stride: usize, marks: usize) -> Option<usize> {
    marks_start(count, stride)?.checked_add(marks.checked_mul(MARK_BYTES)?)
}

/// Another process's segment, mapped for reading.
#[derive(Debug)]
pub(crate) struct ForeignSegment {
    mapping: MmapRaw,
}

/// Why a segment of another process was not mapped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SegmentError {
    /// The system refused.
    #[error("cannot map the peer's memory: {0}")]
    System(#[from] io::Error),
    /// Its owner could shrink it under the mapping, which would end this process.
    #[error("the peer's memory is not sealed against shrinking")]
    Unsealed,
    /// It has another size than its owner said.
    #[error("the peer's memory has {found} bytes, {expected} were announced")]
    Size {
        /// Bytes announced.
        expected: usize,
        /// Bytes it has.
        found: u64,
    },
}

/// Makes a segment of `count` slots of `slot_bytes` bytes each, `stride` bytes apart, and `marks` marks behind them, zeroed,
/// its pages present as far as the system had them. Returns its file, its slots and its marks.
///
/// # Errors
/// When the system refuses the memory, or does not know these seals (Linux before 5.1).
///
/// # Panics
/// When slots would overlap, or the segment is empty or larger than the address space.
pub(crate) fn shared_slots(
    count: usize,
    slot_bytes: usize,
    stride: usize,
    marks: usize,
) -> io::Result<(OwnedFd, Vec<SharedSlot>, Marks)> {
    assert!(0 < count && 0 < slot_bytes, "a segment holds at least one byte");
    assert!(slot_bytes <= stride, "slots do not overlap");
    let start = marks_start(count, stride).expect("a segment fits the address space");
    let bytes = segment_bytes(count, stride, marks).expect("a segment fits the address space");
    let file = fs::memfd_create("kvasir-slots", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    // Not fallocate: it takes page after page until the machine has none left, where mapping refuses at once.
    fs::ftruncate(&file, u64::try_from(bytes).expect("usize has at most 64 bits"))?;
    let mapping = MmapOptions::new().len(bytes).populate().map_raw(&file)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    fs::fcntl_add_seals(&file, seals)?;
    let mapping = Arc::new(mapping);
    let slot = |index: usize| {
        let start = index * stride;
        SharedSlot { mapping: Arc::clone(&mapping), range: start..start + slot_bytes }
    };
    let slots = (0..count).map(slot).collect();
    Ok((file, slots, Marks { mapping, start, count: marks }))
}

impl Marks {
    /// Sets a mark after what was written before: whoever sees the mark sees the bytes.
    ///
    /// # Panics
    /// When there is no such mark.
    pub(crate) fn set(&self, index: usize, value: u64) {
        self.mark(index).store(value, Ordering::Release);
    }

    /// Sets a mark to zero before what is written later: whoever sees new bytes sees that the mark is gone.
    ///
    /// # Panics
    /// When there is no such mark.
    pub(crate) fn clear(&self, index: usize) {
        self.mark(index).store(0, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    fn mark(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "there are {} marks", self.count);
        let offset = self.start + index * MARK_BYTES;
        assert!(offset + MARK_BYTES <= self.mapping.len(), "marks lie inside their mapping");
        // SAFETY: `offset` lies inside the mapping, as asserted.
        let mark = unsafe { self.mapping.as_mut_ptr().add(offset) };
        // SAFETY: the mapping begins at a page and `offset` is a multiple of 8, so it is aligned; it is mapped for reading
        // and writing while `self.mapping` lives, which the reference does not outlive. Marks lie behind all slots, and in
        // this process nothing but these atomics reaches them; other processes can only read them.
        unsafe { AtomicU64::from_ptr(mark.cast()) }
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        (0..self.count).for_each(|index| self.clear(index));
    }
}

impl SharedSlot {
    /// The slot's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        assert!(self.range.end <= self.mapping.len(), "a slot lies inside its mapping");
        // SAFETY: `range` lies inside the mapping, as asserted.
        let start = unsafe { self.mapping.as_ptr().add(self.range.start) };
        // SAFETY: the bytes are mapped while `self.mapping` lives and the file cannot shrink (sealed). Only this slot
        // covers them (`shared_slots` cuts disjoint ranges), it is borrowed for as long as the slice lives, and no other
        // process can write them (sealed against later writers before the file was given to anybody).
        unsafe { slice::from_raw_parts(start, self.range.len()) }
    }

    /// The slot's bytes for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.range.end <= self.mapping.len(), "a slot lies inside its mapping");
        // SAFETY: `range` lies inside the mapping, as asserted.
        let start = unsafe { self.mapping.as_mut_ptr().add(self.range.start) };
        // SAFETY: as in `bytes`; the borrow is exclusive. Other processes may read the bytes meanwhile: they never make
        // a reference of them and check what they copied (`ForeignSegment::copy_to`).
        unsafe { slice::from_raw_parts_mut(start, self.range.len()) }
    }
}

impl ForeignSegment {
    /// Maps a segment for reading. Refuses a file that its owner could still shrink.
    ///
    /// # Errors
    /// [`SegmentError`], see there.
    pub(crate) fn map(file: impl AsFd, bytes: usize) -> Result<Self, SegmentError> {
        let file = file.as_fd();
        let seals = fs::fcntl_get_seals(file).map_err(io::Error::from)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(SegmentError::Unsealed);
        }
        let found = fs::fstat(file).map_err(io::Error::from)?.st_size;
        let found = u64::try_from(found).unwrap_or(0);
        if bytes == 0 || u64::try_from(bytes) != Ok(found) {
            return Err(SegmentError::Size { expected: bytes, found });
        }
        Ok(Self { mapping: MmapOptions::new().len(bytes).map_raw_read_only(&file)? })
    }

    /// The mark at `offset`, read after everything before this call and before everything after it. None when `offset` is
    /// not that of a mark inside the segment.
    pub(crate) fn mark(&self, offset: usize) -> Option<u64> {
        let end = offset.checked_add(MARK_BYTES)?;
        if self.mapping.len() < end || !offset.is_multiple_of(MARK_BYTES) {
            return None;
        }
        // SAFETY: `offset` lies inside the mapping, as checked.
        let mark = unsafe { self.mapping.as_ptr().add(offset) };
        fence(Ordering::Acquire);
        // SAFETY: eight bytes from `mark` on lie inside the mapping, as checked, and stay mapped: the file cannot shrink.
        // The mapping begins at a page and `offset` is a multiple of 8, so it is aligned. Another process may be writing:
        // the read is volatile and of one word, which our targets do at once.
        let mark = unsafe { ptr::read_volatile(mark.cast::<u64>()) };
        fence(Ordering::Acquire);
        Some(mark)
    }

    /// Copies `target.len()` bytes from `offset` on. False when that range is not inside the segment.
    ///
    /// The owner may be writing them at the same time: then the copy is a mixture, which the marks tell, and the caller's
    /// checksum.
    #[must_use]
    pub(crate) fn copy_to(&self, offset: usize, target: &mut [u8]) -> bool {
        let Some(end) = offset.checked_add(target.len()) else {
            return false;
        };
        if self.mapping.len() < end {
            return false;
        }
        // SAFETY: `offset` lies inside the mapping, as checked.
        let start = unsafe { self.mapping.as_ptr().add(offset) };
        // SAFETY: `target.len()` bytes from `start` on lie inside the mapping, as checked, and stay mapped: the file
        // cannot shrink (`map` checked the seal). The target is memory of this process under an exclusive borrow, so
        // the ranges do not overlap. No reference to the foreign bytes is made, so nothing is assumed about them.
        unsafe { ptr::copy_nonoverlapping(start, target.as_mut_ptr(), target.len()) };
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use memmap2::MmapOptions;
    use rustix::fs::{self, MemfdFlags};
    use rustix::io;

    use super::{ForeignSegment, SegmentError, shared_slots};

    #[test]
    fn what_the_owner_writes_is_read_through_a_second_mapping() {
        let (file, mut slots, _marks) = shared_slots(3, 5, 8, 0).unwrap();
        slots[1].bytes_mut().copy_from_slice(b"slot1");
        slots[2].bytes_mut().copy_from_slice(b"slot2");
        let foreign = ForeignSegment::map(&file, 64).unwrap();
        for (offset, expected) in [(0, [0; 5]), (8, *b"slot1"), (16, *b"slot2")] {
            let mut seen = [1; 5];
            assert!(foreign.copy_to(offset, &mut seen));
            assert_eq!(seen, expected);
        }
        assert_eq!(slots[1].bytes(), b"slot1");
    }

    #[test]
    fn ranges_outside_are_refused() {
        let (file, _slots, _marks) = shared_slots(1, 8, 8, 1).unwrap();
        let foreign = ForeignSegment::map(&file, 72).unwrap();
        for offset in [65, 72, 73, usize::MAX] {
            assert!(!foreign.copy_to(offset, &mut [0; 8]), "offset {offset}");
            assert_eq!(foreign.mark(offset), None, "offset {offset}");
        }
        assert_eq!(foreign.mark(63), None, "no mark begins there");
    }

    #[test]
    fn marks_are_seen_by_others_until_they_are_dropped() {
        let (file, _slots, marks) = shared_slots(2, 5, 8, 3).unwrap();
        let foreign = ForeignSegment::map(&file, 64 + 3 * 8).unwrap();
        let seen = || [0, 1, 2].map(|mark| foreign.mark(64 + 8 * mark).unwrap());
        assert_eq!(seen(), [0; 3]);
        marks.set(0, 7);
        marks.set(2, u64::MAX);
        assert_eq!(seen(), [7, 0, u64::MAX]);
        marks.clear(2);
        assert_eq!(seen(), [7, 0, 0]);
        drop(marks);
        assert_eq!(seen(), [0; 3]);
    }

    #[test]
    fn nobody_else_can_write_or_resize() {
        let (file, slots, _marks) = shared_slots(1, 8, 8, 0).unwrap();
        assert!(MmapOptions::new().len(8).map_raw(&file).is_err(), "no second writable mapping");
        assert_eq!(io::write(&file, b"x"), Err(io::Errno::PERM));
        assert_eq!(fs::ftruncate(&file, 4), Err(io::Errno::PERM));
        assert_eq!(fs::ftruncate(&file, 16), Err(io::Errno::PERM));
        assert_eq!(slots[0].bytes(), [0; 8]);
    }

    #[test]
    fn a_file_that_may_shrink_or_has_another_size_is_refused() {
        let (sealed, _slots, _marks) = shared_slots(1, 8, 8, 0).unwrap();
        let other = ForeignSegment::map(&sealed, 16).unwrap_err();
        assert!(matches!(other, SegmentError::Size { expected: 16, found: 64 }), "{other}");
        let open = fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
        fs::ftruncate(&open, 8).unwrap();
        let open = ForeignSegment::map(open.as_fd(), 8).unwrap_err();
        assert!(matches!(open, SegmentError::Unsealed), "{open}");
    }
}
