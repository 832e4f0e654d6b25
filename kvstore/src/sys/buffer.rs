//! Memory for transfers past the page cache: whole pages at a page boundary.

use std::io;

use memmap2::MmapMut;

/// The alignment of direct I/O on every drive we know.
const PAGE_BYTES: usize = 4_096;

/// Zeroed memory that begins at a page boundary and never moves, whoever holds it. Its pages are had from the system when
/// they are first touched.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: MmapMut,
}

impl Buffer {
    /// At least `bytes` bytes, rounded up to whole pages of 4,096.
    ///
    /// # Errors
    /// When the system refuses the memory.
    ///
    /// # Panics
    /// When `bytes` is 0.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        assert!(0 < bytes, "a buffer holds at least one byte");
        Ok(Self { memory: MmapMut::map_anon(bytes.next_multiple_of(PAGE_BYTES))? })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

#[cfg(test)]
mod tests {
    use super::{Buffer, PAGE_BYTES};

    #[test]
    fn a_buffer_is_whole_pages_at_a_page_boundary() {
        for (bytes, expected) in [(1, PAGE_BYTES), (PAGE_BYTES, PAGE_BYTES), (9_000, 12_288)] {
            let mut buffer = Buffer::new(bytes).unwrap();
            assert_eq!(buffer.bytes().len(), expected);
            assert_eq!(buffer.bytes().as_ptr().align_offset(PAGE_BYTES), 0);
            assert!(buffer.bytes_mut().iter().all(|byte| *byte == 0));
        }
    }
}
