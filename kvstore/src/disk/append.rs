//! Appending: bytes are gathered into large aligned pieces, several of which are written at a time.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;

use super::format::{PAGE, PAGE_BYTES, wide};
use super::io::{DiskIo, Drive, Transfers};
use crate::sys::{Action, Buffer, Piece};

/// Bytes of a full piece: the size at which our drives write fastest, with room for 36 Flash blocks.
const PIECE_BYTES_MAX: u64 = 4 << 20;
/// Pieces that are written at a time. With the one being filled that is 20 MiB of memory.
const PIECES_MAX: usize = 4;

/// Writes the end of one file after the other.
pub(super) struct Appender {
    transfers: Transfers,
    io: DiskIo,
    piece_bytes: usize,
    /// Buffers that were used before.
    free: Vec<Buffer>,
    filling: Option<Filling>,
    /// The pieces under way, in the order of their places.
    pieces: VecDeque<Begun>,
    /// Up to here the file has everything that was appended.
    written: u64,
    tag_next: u64,
}

/// A piece that is not full.
struct Filling {
    buffer: Buffer,
    bytes: usize,
    offset: u64,
}

/// A piece that is being written, or waits for an earlier one.
struct Begun {
    tag: u64,
    end: u64,
    written: bool,
}

impl Appender {
    /// For files of at most `file_bytes` bytes.
    pub(super) fn new(drive: &dyn Drive, file_bytes: u64) -> Self {
        let bytes = file_bytes.min(PIECE_BYTES_MAX).next_multiple_of(PAGE);
        Self {
            transfers: Transfers::new(drive.queue()),
            io: drive.io(),
            piece_bytes: usize::try_from(bytes).expect("some MiB fit"),
            free: Vec::new(),
            filling: None,
            pieces: VecDeque::new(),
            written: 0,
            tag_next: 0,
        }
    }

    /// How files are to be opened.
    pub(super) fn io(&self) -> DiskIo {
        self.io
    }

    /// Up to here the file has everything; what lies behind is gathered or being written.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Appends whole pages at `offset`, where the last ones ended. Written some time later: see [`Appender::written`]. Waits
    /// while as many pieces as are allowed are being written.
    ///
    /// # Errors
    /// When this or an earlier piece was refused: [`Appender::give_up`] must come next.
    pub(super) fn append(
        &mut self,
        file: &Arc<File>,
        mut offset: u64,
        mut bytes: &[u8],
    ) -> io::Result<()> {
        assert!(bytes.len().is_multiple_of(PAGE_BYTES) && offset.is_multiple_of(PAGE));
        assert!(self.is_idle() || self.end() == offset, "what is appended is dense");
        if self.is_idle() {
            self.written = offset;
        }
        while !bytes.is_empty() {
            let mut filling = match self.filling.take() {
                Some(filling) => filling,
                None => Filling { buffer: self.buffer()?, bytes: 0, offset },
            };
            let room = &mut filling.buffer.bytes_mut()[filling.bytes..self.piece_bytes];
            let (now, later) = bytes.split_at(bytes.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            filling.bytes += now.len();
            offset += wide(now.len());
            bytes = later;
            let full = filling.bytes == self.piece_bytes;
            self.filling = Some(filling);
            if full {
                self.begin(file)?;
            }
        }
        Ok(())
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// As [`Appender::append`].
    pub(super) fn settle(&mut self, file: &Arc<File>) -> io::Result<()> {
        self.begin(file)?;
        while !self.pieces.is_empty() {
            self.end_one()?;
        }
        Ok(())
    }

    /// Waits until everything is written and durable.
    ///
    /// # Errors
    /// As [`Appender::append`].
    pub(super) fn sync(&mut self, file: &Arc<File>) -> io::Result<()> {
        self.settle(file)?;
        self.transfers.push(self.tag_next, file, Action::Sync);
        self.tag_next += 1;
        self.transfers.wait().expect("a sync is under way").result
    }

    /// Forgets what is not written. Waits until nothing is under way; [`Appender::written`] is final then.
    pub(super) fn give_up(&mut self) {
        if let Some(filling) = self.filling.take() {
            self.free.push(filling.buffer);
        }
        while 0 < self.transfers.under_way() {
            // The first error was told; a later one is of the same drive.
            let _ignored: io::Result<()> = self.end_one();
        }
        self.pieces.clear();
    }

    fn is_idle(&self) -> bool {
        self.filling.is_none() && self.pieces.is_empty()
    }

    fn end(&self) -> u64 {
        let gathered = self.filling.as_ref().map(|filling| filling.offset + wide(filling.bytes));
        gathered.or_else(|| self.pieces.back().map(|piece| piece.end)).unwrap_or(self.written)
    }

    fn buffer(&mut self) -> io::Result<Buffer> {
        self.free.pop().map_or_else(|| Buffer::new(self.piece_bytes), Ok)
    }

    /// Begins to write what is gathered.
    fn begin(&mut self, file: &Arc<File>) -> io::Result<()> {
        while PIECES_MAX <= self.transfers.under_way() {
            self.end_one()?;
        }
        let Some(filling) = self.filling.take() else {
            return Ok(());
        };
        let (tag, offset) = (self.tag_next, filling.offset);
        self.tag_next += 1;
        self.pieces.push_back(Begun { tag, end: offset + wide(filling.bytes), written: false });
        let piece = Piece { buffer: filling.buffer, range: 0..filling.bytes, offset };
        self.transfers.push(tag, file, Action::Write(piece));
        Ok(())
    }

    /// Waits for one piece.
    fn end_one(&mut self) -> io::Result<()> {
        let whole = self.transfers.wait().expect("a piece is under way");
        self.free.extend(whole.buffer);
        whole.result?;
        for piece in &mut self.pieces {
            piece.written |= piece.tag == whole.tag;
        }
        while let Some(piece) = self.pieces.pop_front_if(|piece| piece.written) {
            self.written = piece.end;
        }
        Ok(())
    }
}
