//! The bytes of segment files. Pure: no file is touched here.
//!
//! A segment is a file of whole pages of [`PAGE`] bytes: one page with the *segment header*, then *records*, each from a
//! page boundary on and padded with zeros to the next one, so that a record can be written and read past the page cache.
//! A record is a *record header* of [`RECORD_HEADER_BYTES`] bytes and right behind it the payload. A complete segment
//! ends with a record of kind [`RecordKind::Table`], whose payload is the headers of all records before it, and one page
//! with the *seal*. Who reads a segment reads its last page: with a seal there the table tells what is inside; else the
//! records are walked, header by header.
//!
//! Every structure carries a CRC-32C of its own and says where it lies (segment number and page), so that bytes of
//! another file or another place are never taken for a record. Integers are little-endian. What is not named below is
//! zero and left for later versions; a change that an old reader would misread raises [`FORMAT_VERSION`].
//!
//! ```text
//! segment header, 256 bytes          record header, 128 bytes            seal, 128 bytes
//!   0  magic "KVSRSEGM"                0  magic "KVRC"                     0  magic "KVSL"
//!   8  format version       u32        4  kind                 u8          4  records               u32
//!  12  bytes of a page      u32        5  flags                u8          8  segment number        u64
//!                                      6  object               u8
//!  16  segment number       u64        8  segment number       u64        16  page of the table     u32
//!  24  created, Unix s      u64       16  page                 u32        24  oldest write, Unix s  u64
//!  32  layout fingerprint   [32]      20  payload bytes        u32        32  newest write, Unix s  u64
//!  64  numerics, text       [64]      24  payload CRC-32C      u32       124  CRC-32C of 0..124     u32
//! 128  flags                u32       32  written, Unix s      u64
//! 252  CRC-32C of 0..252    u32
//!                                     48  name                 [16]
//!                                     64  tenant's tag         u64
//!                                     72  nonce                [12]
//!                                     84  authentication tag   [16]
//!                                    124  CRC-32C of 0..124    u32
//! ```
//!
//! Kinds of a record: 1, an object; 2, the table. The object is 0, a block, or 1, a piece of a media embedding: a program
//! that does not know the latter takes it for a block, whose name nobody asks for.
//!
//! Flags of a segment: bit 0, the file was another segment's before, so that what lies behind the records may be its. Flags
//! of a record: bit 0, the block is exact; bit 1, its payload is sealed with its tenant's key (`disk/keys.rs`), and nonce and
//! authentication tag are there. Checksums are of the bytes as they lie in the file, so that recovery, scrub and fsck need no
//! key. The tag is [`shared::TenantTag`]; 0 is nobody's, and what records say that were written before there were tenants.

use shared::{BlockName, Numerics, ObjectKind, TenantTag};

/// Bytes of a page: the alignment of records, and that of direct I/O on every drive we know.
pub(crate) const PAGE: u64 = 4_096;
/// The same as a size in memory.
pub(crate) const PAGE_BYTES: usize = 4_096;
/// The version of all of the above.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Bytes of a segment header; the rest of its page is zero.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 256;
/// Bytes of a record header. With it a Flash block of 113,920 bytes takes 28 pages and leaves 640 bytes unused.
pub(crate) const RECORD_HEADER_BYTES: usize = 128;
/// Bytes of a seal; the rest of its page is zero.
pub(crate) const SEAL_BYTES: usize = 128;
/// Longest numerics that fit a segment header, in bytes.
pub(crate) const NUMERICS_BYTES_MAX: usize = 64;

const SEGMENT_MAGIC: [u8; 8] = *b"KVSRSEGM";
const RECORD_MAGIC: [u8; 4] = *b"KVRC";
const SEAL_MAGIC: [u8; 4] = *b"KVSL";
const SEGMENT_FLAG_RECYCLED: u32 = 1;
const FLAG_EXACT: u8 = 1;
const FLAG_SEALED: u8 = 2;
/// Bytes of a nonce of AES-256-GCM.
pub(crate) const NONCE_BYTES: usize = 12;
/// Bytes of its authentication tag.
pub(crate) const TAG_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 4;

/// What the bytes of blocks depend on besides their names: segments of another identity are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    layout: [u8; 32],
    numerics: [u8; NUMERICS_BYTES_MAX],
}

impl Identity {
    /// None when the numerics are longer than [`NUMERICS_BYTES_MAX`] bytes.
    pub(crate) fn new(layout: [u8; 32], numerics: &Numerics) -> Option<Self> {
        let text = numerics.0.as_bytes();
        let mut padded = [0; NUMERICS_BYTES_MAX];
        padded.get_mut(..text.len())?.copy_from_slice(text);
        Some(Self { layout, numerics: padded })
    }

    pub(crate) fn layout(&self) -> [u8; 32] {
        self.layout
    }

    /// A hash of all of it: what a catalog is made for.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("kvasir 2026 segment identity 1");
        hasher.update(&self.layout);
        hasher.update(&self.numerics);
        *hasher.finalize().as_bytes()
    }

    /// The numerics without their padding; what is no UTF-8 is shown as such.
    pub(crate) fn numerics(&self) -> Numerics {
        let text = String::from_utf8_lossy(&self.numerics);
        Numerics(text.trim_end_matches('\0').into())
    }
}

/// The first bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) number: u64,
    pub(crate) created_unix_seconds: u64,
    pub(crate) identity: Identity,
    pub(crate) origin: FileOrigin,
}

/// Where the file of a segment is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileOrigin {
    /// It was made for the segment: what was not written is empty.
    Made,
    /// It was another segment's, with a lower number: what was not written may be that one's.
    Recycled,
}

/// Why bytes are no segment header of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SegmentHeaderError {
    #[error("it does not begin like a segment")]
    Magic,
    #[error("its format version is {found}, this program reads {FORMAT_VERSION}")]
    Version { found: u32 },
    #[error("its header fails its checksum")]
    Checksum,
    #[error("its pages have {found} bytes, this program reads pages of {PAGE}")]
    Page { found: u32 },
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        put(&mut bytes, 0, &SEGMENT_MAGIC);
        put(&mut bytes, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut bytes, 12, &page_bytes().to_le_bytes());
        put(&mut bytes, 16, &self.number.to_le_bytes());
        put(&mut bytes, 24, &self.created_unix_seconds.to_le_bytes());
        put(&mut bytes, 32, &self.identity.layout);
        put(&mut bytes, 64, &self.identity.numerics);
        let flags = match self.origin {
            FileOrigin::Made => 0,
            FileOrigin::Recycled => SEGMENT_FLAG_RECYCLED,
        };
        put(&mut bytes, 128, &flags.to_le_bytes());
        close(&mut bytes);
        bytes
    }

    /// The version is looked at before the checksum: another version may keep its checksum elsewhere.
    pub(crate) fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> Result<Self, SegmentHeaderError> {
        if take::<8>(bytes, 0) != SEGMENT_MAGIC {
            return Err(SegmentHeaderError::Magic);
        }
        let version = u32::from_le_bytes(take(bytes, 8));
        if version != FORMAT_VERSION {
            return Err(SegmentHeaderError::Version { found: version });
        }
        if !is_closed(bytes) {
            return Err(SegmentHeaderError::Checksum);
        }
        let found = u32::from_le_bytes(take(bytes, 12));
        if found != page_bytes() {
            return Err(SegmentHeaderError::Page { found });
        }
        Ok(Self {
            number: u64::from_le_bytes(take(bytes, 16)),
            created_unix_seconds: u64::from_le_bytes(take(bytes, 24)),
            identity: Identity { layout: take(bytes, 32), numerics: take(bytes, 64) },
            origin: match u32::from_le_bytes(take(bytes, 128)) & SEGMENT_FLAG_RECYCLED {
                0 => FileOrigin::Made,
                _ => FileOrigin::Recycled,
            },
        })
    }
}

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Block,
    /// A piece of a media embedding.
    Media,
    Table,
}

impl RecordKind {
    /// What an object is written as. None when it is of a kind that is never on disk.
    pub(crate) fn of(object: ObjectKind) -> Option<Self> {
        match object {
            ObjectKind::Block => Some(Self::Block),
            ObjectKind::Media => Some(Self::Media),
            ObjectKind::Window => None,
        }
    }

    /// What kind of object it holds. None of a table.
    pub(crate) fn object(self) -> Option<ObjectKind> {
        match self {
            Self::Block => Some(ObjectKind::Block),
            Self::Media => Some(ObjectKind::Media),
            Self::Table => None,
        }
    }
}

/// How a payload was encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sealing {
    pub(crate) nonce: [u8; NONCE_BYTES],
    pub(crate) tag: [u8; TAG_BYTES],
}

/// The first bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: RecordKind,
    pub(crate) exact: bool,
    /// The segment it was written to.
    pub(crate) segment: u64,
    /// Where it begins, in pages from the start of the file.
    pub(crate) page: u32,
    /// Payload bytes.
    pub(crate) bytes: u32,
    /// CRC-32C of the payload as it lies in the file.
    pub(crate) checksum: u32,
    pub(crate) written_unix_seconds: u64,
    /// Zero in a table.
    pub(crate) name: BlockName,
    /// Whose it is. Nobody's in a table.
    pub(crate) tenant: TenantTag,
    /// None: the payload is plain.
    pub(crate) sealing: Option<Sealing>,
}

impl RecordHeader {
    pub(crate) fn encode(&self) -> [u8; RECORD_HEADER_BYTES] {
        let mut bytes = [0; RECORD_HEADER_BYTES];
        put(&mut bytes, 0, &RECORD_MAGIC);
        (bytes[4], bytes[6]) = match self.kind {
            RecordKind::Block => (1, 0),
            RecordKind::Media => (1, 1),
            RecordKind::Table => (2, 0),
        };
        bytes[5] = if self.exact { FLAG_EXACT } else { 0 };
        if let Some(sealing) = &self.sealing {
            bytes[5] |= FLAG_SEALED;
            put(&mut bytes, 72, &sealing.nonce);
            put(&mut bytes, 84, &sealing.tag);
        }
        put(&mut bytes, 8, &self.segment.to_le_bytes());
        put(&mut bytes, 16, &self.page.to_le_bytes());
        put(&mut bytes, 20, &self.bytes.to_le_bytes());
        put(&mut bytes, 24, &self.checksum.to_le_bytes());
        put(&mut bytes, 32, &self.written_unix_seconds.to_le_bytes());
        put(&mut bytes, 48, &self.name.0);
        put(&mut bytes, 64, &self.tenant.0.to_le_bytes());
        close(&mut bytes);
        bytes
    }

    /// None when the bytes are no intact record header.
    pub(crate) fn decode(bytes: &[u8; RECORD_HEADER_BYTES]) -> Option<Self> {
        if take::<4>(bytes, 0) != RECORD_MAGIC || !is_closed(bytes) {
            return None;
        }
        let kind = match (bytes[4], bytes[6]) {
            (1, 0) => RecordKind::Block,
            (1, 1) => RecordKind::Media,
            (2, 0) => RecordKind::Table,
            _ => return None,
        };
        let flags = bytes[5];
        if flags & !(FLAG_EXACT | FLAG_SEALED) != 0 {
            return None;
        }
        let sealing = Sealing { nonce: take(bytes, 72), tag: take(bytes, 84) };
        Some(Self {
            kind,
            exact: flags & FLAG_EXACT != 0,
            segment: u64::from_le_bytes(take(bytes, 8)),
            page: u32::from_le_bytes(take(bytes, 16)),
            bytes: u32::from_le_bytes(take(bytes, 20)),
            checksum: u32::from_le_bytes(take(bytes, 24)),
            written_unix_seconds: u64::from_le_bytes(take(bytes, 32)),
            name: BlockName(take(bytes, 48)),
            tenant: TenantTag(u64::from_le_bytes(take(bytes, 64))),
            sealing: (flags & FLAG_SEALED != 0).then_some(sealing),
        })
    }

    /// Where it begins, in bytes from the start of the file.
    pub(crate) fn offset(&self) -> u64 {
        u64::from(self.page) * PAGE
    }

    /// Where its payload begins.
    pub(crate) fn payload_offset(&self) -> u64 {
        self.offset() + wide(RECORD_HEADER_BYTES)
    }

    /// First byte behind it and its padding.
    pub(crate) fn end(&self) -> u64 {
        self.offset() + record_bytes(self.bytes)
    }
}

/// The last page of a complete segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    /// Records in the table.
    pub(crate) records: u32,
    pub(crate) segment: u64,
    /// Where the table begins, in pages from the start of the file.
    pub(crate) table_page: u32,
    pub(crate) oldest_unix_seconds: u64,
    pub(crate) newest_unix_seconds: u64,
}

impl Seal {
    pub(crate) fn encode(&self) -> [u8; SEAL_BYTES] {
        let mut bytes = [0; SEAL_BYTES];
        put(&mut bytes, 0, &SEAL_MAGIC);
        put(&mut bytes, 4, &self.records.to_le_bytes());
        put(&mut bytes, 8, &self.segment.to_le_bytes());
        put(&mut bytes, 16, &self.table_page.to_le_bytes());
        put(&mut bytes, 24, &self.oldest_unix_seconds.to_le_bytes());
        put(&mut bytes, 32, &self.newest_unix_seconds.to_le_bytes());
        close(&mut bytes);
        bytes
    }

    /// None when the bytes are no intact seal.
    pub(crate) fn decode(bytes: &[u8; SEAL_BYTES]) -> Option<Self> {
        if take::<4>(bytes, 0) != SEAL_MAGIC || !is_closed(bytes) {
            return None;
        }
        Some(Self {
            records: u32::from_le_bytes(take(bytes, 4)),
            segment: u64::from_le_bytes(take(bytes, 8)),
            table_page: u32::from_le_bytes(take(bytes, 16)),
            oldest_unix_seconds: u64::from_le_bytes(take(bytes, 24)),
            newest_unix_seconds: u64::from_le_bytes(take(bytes, 32)),
        })
    }
}

/// Bytes that a record with this payload takes in a file.
pub(crate) fn record_bytes(payload: u32) -> u64 {
    (wide(RECORD_HEADER_BYTES) + u64::from(payload)).next_multiple_of(PAGE)
}

/// Bytes that complete a segment with this many records: the table and the seal's page.
pub(crate) fn seal_bytes(records: usize) -> u64 {
    (wide(RECORD_HEADER_BYTES) * (wide(records) + 1)).next_multiple_of(PAGE) + PAGE
}

/// A page-aligned offset in pages.
///
/// # Panics
/// When the offset is not aligned, or beyond the 16 TiB that a segment can have.
pub(crate) fn page_of(offset: u64) -> u32 {
    assert!(offset.is_multiple_of(PAGE), "records begin at page boundaries");
    u32::try_from(offset / PAGE).expect("segments are limited to 16 GiB by the configuration")
}

pub(crate) fn wide(count: usize) -> u64 {
    u64::try_from(count).expect("usize has at most 64 bits on every supported target")
}

fn page_bytes() -> u32 {
    u32::try_from(PAGE_BYTES).expect("a page is small")
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the range has N bytes")
}

/// Puts the checksum of everything before them into the last four bytes.
fn close(bytes: &mut [u8]) {
    let (body, checksum) = bytes.split_at_mut(bytes.len() - CHECKSUM_BYTES);
    checksum.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
}

fn is_closed(bytes: &[u8]) -> bool {
    let (body, checksum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
    crc32c::crc32c(body).to_le_bytes() == checksum
}

#[cfg(test)]
mod tests {
    use shared::{BlockName, Numerics, TenantTag};

    use super::{
        FileOrigin, Identity, PAGE, PAGE_BYTES, RecordHeader, RecordKind, Seal, Sealing,
        SegmentHeader, SegmentHeaderError, close, page_of, record_bytes, seal_bytes, wide,
    };

    fn segment() -> SegmentHeader {
        let identity = Identity::new([0xab; 32], &Numerics("cpu-exact-1".into())).unwrap();
        let origin = FileOrigin::Made;
        SegmentHeader { number: 0x0102, created_unix_seconds: 0x6000_0001, identity, origin }
    }

    fn record() -> RecordHeader {
        RecordHeader {
            kind: RecordKind::Block,
            exact: true,
            segment: 0x0102,
            page: 0x0304,
            bytes: 113_920,
            checksum: 0xdead_beef,
            written_unix_seconds: 0x6000_0002,
            name: BlockName([0x11; 16]),
            tenant: TenantTag::NONE,
            sealing: None,
        }
    }

    fn seal() -> Seal {
        Seal {
            records: 7,
            segment: 0x0102,
            table_page: 0x0304,
            oldest_unix_seconds: 0x6000_0001,
            newest_unix_seconds: 0x6000_0002,
        }
    }

    /// Parts that are not zero, by offset. The checksums in them were computed by another program.
    fn check_golden(found: &[u8], parts: &[(usize, &str)]) {
        let mut expected = vec![0; found.len()];
        for (at, digits) in parts {
            for (index, pair) in digits.as_bytes().chunks(2).enumerate() {
                let pair = std::str::from_utf8(pair).unwrap();
                expected[at + index] = u8::from_str_radix(pair, 16).unwrap();
            }
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn a_segment_header_has_the_written_bytes() {
        let layout = "ab".repeat(32);
        let parts = [
            (0, "4b5653525345474d"),
            (8, "0100000000100000"),
            (16, "0201000000000000"),
            (24, "0100006000000000"),
            (32, layout.as_str()),
            (64, "6370752d65786163742d31"),
            (252, "3a14bef1"),
        ];
        check_golden(&segment().encode(), &parts);
        assert_eq!(SegmentHeader::decode(&segment().encode()), Ok(segment()));
    }

    #[test]
    fn a_record_header_has_the_written_bytes() {
        let parts = [
            (0, "4b5652430101"),
            (8, "0201000000000000"),
            (16, "0403000000bd0100efbeadde"),
            (32, "0200006000000000"),
            (48, "11111111111111111111111111111111"),
            (124, "5ba79cf7"),
        ];
        check_golden(&record().encode(), &parts);
        let table = RecordHeader { kind: RecordKind::Table, exact: false, ..record() };
        assert_eq!(table.encode()[4..6], [2, 0]);
        let sealing = Some(Sealing { nonce: [0x22; 12], tag: [0x33; 16] });
        let sealed = RecordHeader { tenant: TenantTag(0x0102_0304), sealing, ..record() };
        let bytes = sealed.encode();
        assert_eq!(bytes[4..6], [1, 3]);
        assert_eq!(bytes[64..72], [4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(
            (bytes[72..84].to_vec(), bytes[84..100].to_vec()),
            (vec![0x22; 12], vec![0x33; 16])
        );
        let media = RecordHeader { kind: RecordKind::Media, ..record() };
        for header in [record(), table, sealed, media] {
            assert_eq!(RecordHeader::decode(&header.encode()), Some(header));
        }
        // One byte, which programs that know no pieces do not look at, and the checksum.
        let (block, media) = (record().encode(), media.encode());
        let differs: Vec<usize> = (0..128).filter(|at| block[*at] != media[*at]).collect();
        assert_eq!((differs[0], media[6]), (6, 1));
        assert!(differs[1..].iter().all(|at| 124 <= *at), "{differs:?}");
    }

    #[test]
    fn a_seal_has_the_written_bytes() {
        let parts = [
            (0, "4b56534c07000000"),
            (8, "0201000000000000"),
            (16, "04030000"),
            (24, "0100006000000000"),
            (32, "0200006000000000"),
            (124, "03f8b992"),
        ];
        check_golden(&seal().encode(), &parts);
        assert_eq!(Seal::decode(&seal().encode()), Some(seal()));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for bit in 0..256 * 8 {
            let mut bytes = segment().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&bytes).is_err(), "bit {bit}");
        }
        for bit in 0..128 * 8 {
            let mut bytes = record().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&bytes), None, "bit {bit}");
            let mut bytes = seal().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Seal::decode(&bytes), None, "bit {bit}");
        }
    }

    #[test]
    fn what_this_version_does_not_know_is_refused() {
        let closed = |at: usize, value: u8| {
            let mut bytes = record().encode();
            bytes[at] = value;
            close(&mut bytes);
            RecordHeader::decode(&bytes)
        };
        assert_eq!(closed(4, 3), None, "an unknown kind");
        assert_eq!(closed(5, 4), None, "an unknown flag");
        assert_eq!(closed(6, 2), None, "an unknown object");
        let table = RecordHeader { kind: RecordKind::Table, ..record() };
        let mut bytes = table.encode();
        bytes[6] = 1;
        close(&mut bytes);
        assert_eq!(RecordHeader::decode(&bytes), None, "a table is no object");
        let mut newer = segment().encode();
        newer[8] = 2;
        assert_eq!(
            SegmentHeader::decode(&newer),
            Err(SegmentHeaderError::Version { found: 2 }),
            "whatever its checksum"
        );
        let mut pages = segment().encode();
        pages[13] = 0x20;
        close(&mut pages);
        assert_eq!(SegmentHeader::decode(&pages), Err(SegmentHeaderError::Page { found: 8_192 }));
        assert_eq!(Identity::new([0; 32], &Numerics("x".repeat(65))), None);
    }

    #[test]
    fn sizes_are_whole_pages() {
        assert_eq!(record_bytes(113_920), 28 * PAGE);
        for (payload, pages) in [(0, 1), (3_968, 1), (3_969, 2)] {
            assert_eq!(record_bytes(payload), pages * PAGE, "{payload} bytes");
        }
        for (records, pages) in [(0, 2), (31, 2), (32, 3)] {
            assert_eq!(seal_bytes(records), pages * PAGE, "{records} records");
        }
        assert_eq!((page_of(3 * PAGE), wide(PAGE_BYTES)), (3, PAGE));
    }
}
