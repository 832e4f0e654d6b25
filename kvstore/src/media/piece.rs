//! How an embedding is cut into pieces, and the bytes of one. Pure.
//!
//! Its bytes, row behind row, are cut into parts of equal length but for the last one. A piece is a header of
//! [`HEADER_BYTES`] bytes and its part; object and payload checksum are those of every cached object. All numbers are
//! little-endian, and what is not named is zero.
//!
//! ```text
//!   0  magic "KVME"             40  rows of the embedding    u32
//!   4  version, 1        u32    44  bytes of a row           u32
//!   8  media id          [32]   48  number of the piece      u32
//!                               52  most bytes of a piece    u32
//!                               56  CRC-32C of all rows      u32
//! ```
//!
//! The checksum of all rows tells pieces of one encoding from those of another under the same name, so that no embedding is
//! put together from two.

use std::ops::Range;

use shared::MediaId;

use super::{MEDIA_BYTES_MAX, MEDIA_PIECES_MAX, MediaError, MediaSize};

/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = 64;

const MAGIC: [u8; 4] = *b"KVME";
const VERSION: u32 = 1;

/// An embedding in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    media: MediaId,
    size: MediaSize,
    piece_bytes: usize,
}

impl Cut {
    /// For pieces of at most `piece_bytes` bytes, which are more than those of a header.
    pub(super) fn new(
        media: MediaId,
        size: MediaSize,
        piece_bytes: usize,
    ) -> Result<Self, MediaError> {
        let MediaSize { rows, row_bytes } = size;
        let bytes = u64::from(rows) * u64::from(row_bytes);
        if bytes == 0 {
            return Err(MediaError::Empty { rows, row_bytes });
        }
        let room = u64::try_from(piece_bytes - HEADER_BYTES).expect("a slot fits memory");
        let pieces = bytes.div_ceil(room);
        if MEDIA_BYTES_MAX < bytes || u64::from(MEDIA_PIECES_MAX) < pieces {
            return Err(MediaError::TooLarge { bytes, pieces });
        }
        Ok(Self { media, size, piece_bytes })
    }

    /// Bytes of the embedding.
    pub(super) fn bytes(&self) -> usize {
        self.at(self.size.rows)
    }

    pub(super) fn pieces(&self) -> u32 {
        u32::try_from(self.bytes().div_ceil(self.room())).expect("at most as many as are kept")
    }

    /// Where a row begins in the embedding.
    pub(super) fn at(&self, row: u32) -> usize {
        usize::try_from(u64::from(row) * u64::from(self.size.row_bytes)).expect("it was bounded")
    }

    /// Which bytes of the embedding a piece holds.
    pub(super) fn part(&self, piece: u32) -> Range<usize> {
        let start = usize::try_from(piece).expect("it was bounded") * self.room();
        start..(start + self.room()).min(self.bytes())
    }

    /// The pieces that hold these rows.
    pub(super) fn pieces_of(&self, rows: Range<u32>) -> Range<u32> {
        let number = |piece: usize| u32::try_from(piece).expect("at most as many as are kept");
        let (start, end) = (self.at(rows.start), self.at(rows.end));
        number(start / self.room())..number(end.div_ceil(self.room()))
    }

    /// Payload bytes of a piece.
    pub(super) fn payload_bytes(&self, piece: u32) -> u32 {
        let part = self.part(piece);
        u32::try_from(HEADER_BYTES + part.len()).expect("it was bounded")
    }

    /// The header of a piece of the encoding whose rows have this checksum.
    pub(super) fn header(&self, piece: u32, checksum: u32) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        let piece_bytes = u32::try_from(self.piece_bytes).unwrap_or(u32::MAX);
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&VERSION.to_le_bytes());
        header[8..40].copy_from_slice(&self.media.0);
        let numbers = [self.size.rows, self.size.row_bytes, piece, piece_bytes, checksum];
        for (place, number) in header[40..].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        header
    }

    /// Takes a payload apart: the checksum of all rows and the piece's own bytes. None when it is not this piece of this
    /// embedding.
    pub(super) fn open<'a>(&self, piece: u32, payload: &'a [u8]) -> Option<(u32, &'a [u8])> {
        let (header, part) = payload.split_first_chunk::<HEADER_BYTES>()?;
        let checksum = u32::from_le_bytes(header[56..60].try_into().expect("four bytes"));
        let is_it = *header == self.header(piece, checksum) && part.len() == self.part(piece).len();
        is_it.then_some((checksum, part))
    }

    fn room(&self) -> usize {
        self.piece_bytes - HEADER_BYTES
    }
}

#[cfg(test)]
mod tests {
    use shared::MediaId;

    use super::{Cut, HEADER_BYTES, MEDIA_BYTES_MAX};
    use crate::media::{MediaError, MediaSize};

    const MEDIA: MediaId = MediaId([0xab; 32]);

    fn cut(rows: u32, row_bytes: u32, room: usize) -> Result<Cut, MediaError> {
        Cut::new(MEDIA, MediaSize { rows, row_bytes }, HEADER_BYTES + room)
    }

    #[test]
    fn every_byte_is_in_one_piece_and_every_row_is_covered() {
        for (rows, row_bytes, room) in
            [(1, 1, 1), (7, 10, 10), (7, 10, 16), (7, 10, 70), (7, 10, 71)]
        {
            let cut = cut(rows, row_bytes, room).unwrap();
            let mut end = 0;
            for piece in 0..cut.pieces() {
                let part = cut.part(piece);
                assert!(part.start == end && part.start < part.end && part.len() <= room);
                end = part.end;
            }
            assert_eq!(end, cut.bytes(), "{rows} rows of {row_bytes} in pieces of {room}");
            for first in 0..rows {
                for behind in first + 1..=rows {
                    let pieces = cut.pieces_of(first..behind);
                    assert!(cut.part(pieces.start).start <= cut.at(first));
                    assert!(cut.at(behind) <= cut.part(pieces.end - 1).end);
                    assert!(cut.at(first) < cut.part(pieces.start).end, "no piece too many");
                    assert!(cut.part(pieces.end - 1).start < cut.at(behind), "no piece too many");
                }
            }
        }
    }

    #[test]
    fn sizes_are_bounded_in_bytes_and_in_pieces() {
        let pieces = |rows, row_bytes, room| cut(rows, row_bytes, room).map(|cut| cut.pieces());
        let max = u32::try_from(MEDIA_BYTES_MAX).unwrap();
        assert_eq!(pieces(1, max, 1 << 20), Ok(32));
        let large = MediaError::TooLarge { bytes: MEDIA_BYTES_MAX + 1, pieces: 33 };
        assert_eq!(pieces(1, max + 1, 1 << 20), Err(large));
        assert_eq!(pieces(1_024, 10, 10), Ok(1_024));
        let many = MediaError::TooLarge { bytes: 10_250, pieces: 1_025 };
        assert_eq!(pieces(1_025, 10, 10), Err(many));
        let huge = u64::from(u32::MAX) * u64::from(u32::MAX);
        let huge = MediaError::TooLarge { bytes: huge, pieces: huge };
        assert_eq!(pieces(u32::MAX, u32::MAX, 1), Err(huge));
        for (rows, row_bytes) in [(0, 10), (10, 0), (0, 0)] {
            assert_eq!(pieces(rows, row_bytes, 10), Err(MediaError::Empty { rows, row_bytes }));
        }
    }

    #[test]
    fn a_flash_image_of_the_largest_shape_is_kept() {
        let cut = cut(2_050, 10_240, 113_920 - HEADER_BYTES).unwrap();
        assert_eq!((cut.bytes(), cut.pieces()), (20_992_000, 185));
    }

    #[test]
    fn a_header_has_the_written_bytes() {
        let header = cut(7, 10, 16).unwrap().header(3, 0xdead_beef);
        let parts: [&[u8]; 8] = [
            b"KVME",
            &[1, 0, 0, 0],
            &[0xab; 32],
            &[7, 0, 0, 0, 10, 0, 0, 0],
            &[3, 0, 0, 0],
            &[80, 0, 0, 0],
            &[0xef, 0xbe, 0xad, 0xde],
            &[0; 4],
        ];
        assert_eq!(header.as_slice(), parts.concat());
    }

    #[test]
    fn only_the_very_piece_opens() {
        let own = cut(7, 10, 16).unwrap();
        let payload = |cut: &Cut, piece| -> Vec<u8> {
            let part = vec![9; cut.part(piece).len()];
            [cut.header(piece, 5).as_slice(), &part].concat()
        };
        let whole = payload(&own, 1);
        assert_eq!(own.open(1, &whole), Some((5, [9; 16].as_slice())));
        let others = [
            payload(&own, 2),
            payload(&cut(8, 10, 16).unwrap(), 1),
            payload(&cut(7, 11, 16).unwrap(), 1),
            payload(&cut(7, 10, 17).unwrap(), 1),
            payload(&Cut::new(MediaId([1; 32]), own.size, own.piece_bytes).unwrap(), 1),
            whole[..whole.len() - 1].to_vec(),
            [whole.as_slice(), &[0]].concat(),
            whole[..HEADER_BYTES - 1].to_vec(),
            Vec::new(),
        ];
        for (at, other) in others.iter().enumerate() {
            assert_eq!(own.open(1, other), None, "case {at}");
        }
        for at in 0..HEADER_BYTES {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            // The checksum of all rows is compared with that of the other pieces.
            let opens = (56..60).contains(&at);
            assert_eq!(own.open(1, &flipped).is_some(), opens, "byte {at}");
        }
    }
}
