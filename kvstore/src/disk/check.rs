//! One record read as a whole, past the page cache where that is possible, and checked: what the scrub and the operator's
//! tools do with every block. A read through the cache would find what was written, not what the drive kept, and would
//! push out what readers want.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::format::{
    PAGE, PAGE_BYTES, RECORD_HEADER_BYTES, RecordHeader, RecordKind, record_bytes,
};
use super::io::clear_direct;
use crate::pool::payload_bytes;

/// Why a block in a segment file is not intact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockFault {
    /// There is no intact record header, or another one than was listed.
    #[error("its record is damaged or is not the one that is listed")]
    Record,
    /// The payload is damaged.
    #[error("its payload fails its checksum")]
    Payload,
    /// The file is too short.
    #[error("the file ends before it does")]
    Cut,
    /// The system does not give its bytes.
    #[error("the system refuses to read it: {0}")]
    Read(io::ErrorKind),
}

/// Reads and checks records, one at a time. Holds the bytes of the last one, at most those of the longest record.
#[derive(Debug, Default)]
pub struct Checker {
    buffer: Vec<u8>,
    payload: Range<usize>,
}

impl Checker {
    /// One without a buffer yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The payload that was read last; empty when its record was not read to the end.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.buffer[self.payload.clone()]
    }

    /// Reads the block's record at a page and gives its header when header and payload are intact. `file` may be one
    /// that `go_direct` was called for. Blocks.
    pub(super) fn record(
        &mut self,
        file: &File,
        segment: u64,
        page: u32,
        bytes: u32,
    ) -> Result<RecordHeader, BlockFault> {
        self.payload = 0..0;
        let refused = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => BlockFault::Cut,
            kind => BlockFault::Read(kind),
        };
        let (offset, length) = (u64::from(page) * PAGE, record_bytes(bytes));
        if file.metadata().map_err(refused)?.len() < offset + length {
            return Err(BlockFault::Cut);
        }
        let begin = self.room(usize::try_from(length).expect("the file has as many bytes"));
        let end = begin + RECORD_HEADER_BYTES + payload_bytes(bytes);
        let record = &mut self.buffer[begin..];
        read_whole(file, record, offset).map_err(refused)?;
        let (head, _) = record.split_first_chunk().expect("a record is at least a page");
        let header = RecordHeader::decode(head)
            .filter(|header| {
                let place = (header.segment, header.page, header.bytes);
                header.kind != RecordKind::Table && place == (segment, page, bytes)
            })
            .ok_or(BlockFault::Record)?;
        self.payload = begin + RECORD_HEADER_BYTES..end;
        if crc32c::crc32c(self.payload()) != header.checksum {
            return Err(BlockFault::Payload);
        }
        Ok(header)
    }

    /// Makes the buffer end `length` bytes behind a page boundary of memory, and says where that lies in it.
    fn room(&mut self, length: usize) -> usize {
        self.buffer.resize(length + PAGE_BYTES, 0);
        let begin = self.buffer.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        self.buffer.truncate(begin + length);
        begin
    }
}

/// Reads whole pages; through the cache when a drive wants more than pages of ours are aligned to.
fn read_whole(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    match file.read_exact_at(bytes, offset) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            clear_direct(file);
            file.read_exact_at(bytes, offset)
        }
        read => read,
    }
}
