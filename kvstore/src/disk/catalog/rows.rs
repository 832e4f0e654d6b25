//! The keys and values of the catalog's database, and the plain types they stand for. Pure.
//!
//! Keys are big-endian, so that their order is that of the numbers; values are little-endian, as in segment files. A
//! change of any of this raises [`CATALOG_VERSION`]: an older database is made anew from the segments then.
//!
//! ```text
//! family `names`     name [16]               segment u64, page u32, payload bytes u32, CRC-32C u32, tenant u64,
//!                                            written u64, flags u8 (bit 0: exact, bit 1: sealed,
//!                                            bit 2: a piece of a media embedding)
//! family `places`    segment u64, page u32   name [16]
//! family `default`   's', segment u64        bytes u64, records u64, oldest u64, newest u64, state u8
//!                                            (0 open, 1 sealed, 2 foreign, 3 copied, 4 remote)
//!                    't', tenant u64         objects u64, payload bytes u64
//!                    'e', tenant u64         second u64, segments u64, done u8: disk/tombstones.rs
//!                    "mf"                    version u32, identity [32]
//!                    "mt"                    objects u64, payload bytes u64, next segment number u64,
//!                                            sealed objects u64
//!                    "mc"                    nothing; it is there after a clean end
//!                    "md"                    nothing; it is there when damage was met
//! ```

use shared::{BlockName, ObjectKind, TenantTag};

use crate::disk::format::{PAGE, record_bytes};

/// The version of all of the above.
pub(super) const CATALOG_VERSION: u32 = 2;

pub(super) const KEY_FORMAT: &[u8] = b"mf";
pub(super) const KEY_TOTALS: &[u8] = b"mt";
pub(super) const KEY_CLEAN: &[u8] = b"mc";
pub(super) const KEY_DAMAGED: &[u8] = b"md";
/// What the keys of segments begin with.
pub(super) const SEGMENTS: u8 = b's';
/// What the keys of tenants begin with.
pub(super) const TENANTS: u8 = b't';
/// What the keys of evicted tenants begin with.
pub(super) const EVICTED: u8 = b'e';
/// Above every name.
pub(super) const NAMES_END: [u8; 17] = [0xff; 17];
/// Above every place.
pub(super) const PLACES_END: [u8; 13] = [0xff; 13];

const ENTRY_BYTES: usize = 37;
const FLAG_EXACT: u8 = 1;
const FLAG_SEALED: u8 = 2;
const FLAG_MEDIA: u8 = 4;

/// Where the copy of a block lies, and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the segment.
    pub segment: u64,
    /// Where its record begins, in pages of 4,096 bytes from the start of the file.
    pub page: u32,
    /// Payload bytes.
    pub bytes: u32,
    /// CRC-32C of the payload as it lies in the file.
    pub checksum: u32,
    /// Whether its bytes are a function of its name ([`shared::Lineage`]).
    pub exact: bool,
    /// What it is: never a window object.
    pub kind: ObjectKind,
    /// When it was written, in seconds since the Unix epoch.
    pub written_unix_seconds: u64,
    /// Whose bytes it counts as.
    pub tenant: TenantTag,
    /// Whether its payload is encrypted with the tenant's key.
    pub sealed: bool,
}

impl Entry {
    /// Its place. Later copies of a name have greater ones, because segment numbers ascend.
    pub(in crate::disk) fn place(&self) -> (u64, u32) {
        (self.segment, self.page)
    }

    /// First byte behind its record and the padding.
    pub(super) fn end(&self) -> u64 {
        u64::from(self.page) * PAGE + record_bytes(self.bytes)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ENTRY_BYTES);
        bytes.extend_from_slice(&self.segment.to_le_bytes());
        bytes.extend_from_slice(&self.page.to_le_bytes());
        bytes.extend_from_slice(&self.bytes.to_le_bytes());
        bytes.extend_from_slice(&self.checksum.to_le_bytes());
        bytes.extend_from_slice(&self.tenant.0.to_le_bytes());
        bytes.extend_from_slice(&self.written_unix_seconds.to_le_bytes());
        let sealed = if self.sealed { FLAG_SEALED } else { 0 };
        let media = if self.kind == ObjectKind::Media { FLAG_MEDIA } else { 0 };
        bytes.push(media | sealed | if self.exact { FLAG_EXACT } else { 0 });
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let segment = fields.u64()?;
        let page = fields.u32()?;
        let payload = fields.u32()?;
        let checksum = fields.u32()?;
        let tenant = TenantTag(fields.u64()?);
        let written_unix_seconds = fields.u64()?;
        let known = FLAG_EXACT | FLAG_SEALED | FLAG_MEDIA;
        let flags = fields.last().filter(|flags| flags & !known == 0)?;
        let is_media = flags & FLAG_MEDIA != 0;
        Some(Self {
            segment,
            page,
            bytes: payload,
            checksum,
            exact: flags & FLAG_EXACT != 0,
            kind: if is_media { ObjectKind::Media } else { ObjectKind::Block },
            written_unix_seconds,
            tenant,
            sealed: flags & FLAG_SEALED != 0,
        })
    }
}

/// A name and its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The block's name.
    pub name: BlockName,
    /// Its copy.
    pub entry: Entry,
}

/// What a segment file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// It has no seal, or the catalog does not know all of its records.
    Open,
    /// It is complete, and the catalog knows all of its records.
    Sealed,
    /// Of another layout, numerics or version: its names are unknown, its bytes count.
    Foreign,
    /// As [`SegmentState::Sealed`], and the whole file lies in the object store, too.
    Copied,
    /// It lies in the object store alone: there is no file, and its bytes are not those of the drive.
    Remote,
}

impl SegmentState {
    /// Whether an object is there.
    #[must_use]
    pub fn is_copied(self) -> bool {
        matches!(self, Self::Copied | Self::Remote)
    }

    /// Whether there is a complete file whose records are all known.
    #[must_use]
    pub fn is_sealed(self) -> bool {
        matches!(self, Self::Sealed | Self::Copied)
    }
}

/// A row of the segment table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// What it is.
    pub state: SegmentState,
    /// Bytes of its file, or of its object when there is no file.
    pub bytes: u64,
    /// Records entered, also those whose name has a newer copy by now or was forgotten.
    pub records: u64,
    /// The oldest write, in seconds since the Unix epoch; 0 without records.
    pub oldest_unix_seconds: u64,
    /// The newest write, in seconds since the Unix epoch; 0 without records.
    pub newest_unix_seconds: u64,
}

impl Segment {
    /// Without records.
    pub(super) fn empty(state: SegmentState, bytes: u64) -> Self {
        Self { state, bytes, records: 0, oldest_unix_seconds: 0, newest_unix_seconds: 0 }
    }

    /// The row of an object that is to be deleted, its names gone: what no segment has, an oldest write at the end of time.
    pub(in crate::disk) fn doomed(bytes: u64) -> Self {
        Self { oldest_unix_seconds: u64::MAX, ..Self::empty(SegmentState::Remote, bytes) }
    }

    /// Whether it is such a row.
    pub(in crate::disk) fn is_doomed(&self) -> bool {
        *self == Self::doomed(self.bytes)
    }

    /// Bytes on the drive.
    pub(super) fn drive_bytes(&self) -> u64 {
        if self.state == SegmentState::Remote { 0 } else { self.bytes }
    }

    /// A record was written to it.
    pub(super) fn enter(&mut self, entry: &Entry) {
        let written = entry.written_unix_seconds;
        let first = self.records == 0;
        self.oldest_unix_seconds =
            if first { written } else { self.oldest_unix_seconds.min(written) };
        self.newest_unix_seconds = self.newest_unix_seconds.max(written);
        self.records += 1;
        self.bytes = self.bytes.max(entry.end());
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = numbers(&[
            self.bytes,
            self.records,
            self.oldest_unix_seconds,
            self.newest_unix_seconds,
        ]);
        bytes.push(match self.state {
            SegmentState::Open => 0,
            SegmentState::Sealed => 1,
            SegmentState::Foreign => 2,
            SegmentState::Copied => 3,
            SegmentState::Remote => 4,
        });
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let bytes = fields.u64()?;
        let records = fields.u64()?;
        let oldest_unix_seconds = fields.u64()?;
        let newest_unix_seconds = fields.u64()?;
        let state = match fields.last()? {
            0 => SegmentState::Open,
            1 => SegmentState::Sealed,
            2 => SegmentState::Foreign,
            3 => SegmentState::Copied,
            4 => SegmentState::Remote,
            _ => return None,
        };
        Some(Self { state, bytes, records, oldest_unix_seconds, newest_unix_seconds })
    }
}

/// What is held, of one tenant or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Names that have a copy.
    pub objects: u64,
    /// Payload bytes of these copies.
    pub payload_bytes: u64,
}

impl Usage {
    pub(super) fn encode(&self) -> Vec<u8> {
        numbers(&[self.objects, self.payload_bytes])
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let usage = Self { objects: fields.u64()?, payload_bytes: fields.u64()? };
        fields.0.is_empty().then_some(usage)
    }
}

/// The row `mt`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) usage: Usage,
    /// Above the numbers of all segments that were ever listed.
    pub(super) number_next: u64,
    /// Of the names, those whose copy is encrypted.
    pub(super) sealed: u64,
}

impl Totals {
    pub(super) fn encode(&self) -> Vec<u8> {
        numbers(&[self.usage.objects, self.usage.payload_bytes, self.number_next, self.sealed])
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let usage = Usage { objects: fields.u64()?, payload_bytes: fields.u64()? };
        let (number_next, sealed) = (fields.u64()?, fields.u64()?);
        fields.0.is_empty().then_some(Self { usage, number_next, sealed })
    }
}

/// The value of the row `mf`.
pub(super) fn format_row(identity: &[u8; 32]) -> Vec<u8> {
    let mut bytes = CATALOG_VERSION.to_le_bytes().to_vec();
    bytes.extend_from_slice(identity);
    bytes
}

/// The identity in such a row; None when it is of another version.
pub(super) fn identity_of(row: &[u8]) -> Option<[u8; 32]> {
    row.strip_prefix(&CATALOG_VERSION.to_le_bytes())?.try_into().ok()
}

pub(super) fn place_key(segment: u64, page: u32) -> Vec<u8> {
    let mut key = segment.to_be_bytes().to_vec();
    key.extend_from_slice(&page.to_be_bytes());
    key
}

/// The least key above all places of a segment.
pub(super) fn place_end(segment: u64) -> Vec<u8> {
    let mut key = place_key(segment, u32::MAX);
    key.push(0);
    key
}

/// The page in a key of the family `places`.
pub(super) fn page_of_place(key: &[u8]) -> Option<u32> {
    let (_, page) = key.split_at_checked(8)?;
    page.try_into().map(u32::from_be_bytes).ok()
}

pub(super) fn segment_key(number: u64) -> Vec<u8> {
    let mut key = vec![SEGMENTS];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

pub(super) fn segment_of(key: &[u8]) -> Option<u64> {
    key.strip_prefix(&[SEGMENTS])?.try_into().map(u64::from_be_bytes).ok()
}

pub(super) fn tenant_key(tenant: TenantTag) -> Vec<u8> {
    tagged(TENANTS, tenant)
}

pub(super) fn tenant_of(key: &[u8]) -> Option<TenantTag> {
    tag_behind(TENANTS, key)
}

pub(super) fn evicted_key(tenant: TenantTag) -> Vec<u8> {
    tagged(EVICTED, tenant)
}

pub(super) fn evicted_of(key: &[u8]) -> Option<TenantTag> {
    tag_behind(EVICTED, key)
}

fn tagged(prefix: u8, tenant: TenantTag) -> Vec<u8> {
    let mut key = vec![prefix];
    key.extend_from_slice(&tenant.0.to_be_bytes());
    key
}

fn tag_behind(prefix: u8, key: &[u8]) -> Option<TenantTag> {
    let tag = key.strip_prefix(&[prefix])?.try_into().map(u64::from_be_bytes).ok()?;
    Some(TenantTag(tag))
}

pub(super) fn name_of(bytes: &[u8]) -> Option<BlockName> {
    bytes.try_into().map(BlockName).ok()
}

fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Takes fields off the front.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    /// The one byte that is left.
    fn last(&mut self) -> Option<u8> {
        let [byte] = self.0 else { return None };
        Some(*byte)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }
}

#[cfg(test)]
mod tests {
    use shared::{ObjectKind, TenantTag};

    use super::{
        Entry, Segment, SegmentState, Totals, Usage, evicted_key, evicted_of, page_of_place,
        place_end, place_key, segment_key, segment_of, tenant_key, tenant_of,
    };

    fn entry() -> Entry {
        Entry {
            segment: 0x0102,
            page: 0x0304,
            bytes: 113_920,
            checksum: 0xdead_beef,
            exact: true,
            kind: ObjectKind::Block,
            written_unix_seconds: 0x6000_0002,
            tenant: TenantTag(7),
            sealed: false,
        }
    }

    #[test]
    fn an_entry_has_the_written_bytes() {
        let expected = [
            [2, 1, 0, 0, 0, 0, 0, 0].as_slice(),
            &[4, 3, 0, 0],
            &[0, 0xbd, 1, 0],
            &[0xef, 0xbe, 0xad, 0xde],
            &[7, 0, 0, 0, 0, 0, 0, 0],
            &[2, 0, 0, 0x60, 0, 0, 0, 0],
            &[1],
        ];
        assert_eq!(entry().encode(), expected.concat());
    }

    #[test]
    fn rows_come_back_and_other_lengths_and_flags_are_refused() {
        let check = |bytes: Vec<u8>, decodes: &dyn Fn(&[u8]) -> bool| {
            assert!(decodes(&bytes));
            assert!(!decodes(&bytes[1..]), "shorter");
            assert!(!decodes(&[bytes.as_slice(), &[0]].concat()), "longer");
        };
        for (exact, sealed) in [(false, false), (true, false), (false, true), (true, true)] {
            for kind in [ObjectKind::Block, ObjectKind::Media] {
                let entry = Entry { exact, sealed, kind, ..entry() };
                check(entry.encode(), &|bytes| Entry::decode(bytes) == Some(entry));
            }
        }
        for state in [
            SegmentState::Open,
            SegmentState::Sealed,
            SegmentState::Foreign,
            SegmentState::Copied,
            SegmentState::Remote,
        ] {
            let segment = Segment {
                state,
                bytes: 1,
                records: 2,
                oldest_unix_seconds: 3,
                newest_unix_seconds: 4,
            };
            check(segment.encode(), &|bytes| Segment::decode(bytes) == Some(segment));
        }
        let usage = Usage { objects: 5, payload_bytes: 6 };
        check(usage.encode(), &|bytes| Usage::decode(bytes) == Some(usage));
        let totals = Totals { usage, number_next: 7, sealed: 8 };
        check(totals.encode(), &|bytes| Totals::decode(bytes) == Some(totals));
        let mut unknown = entry().encode();
        unknown[36] = 8;
        assert_eq!(Entry::decode(&unknown), None);
    }

    #[test]
    fn keys_are_in_the_order_of_their_numbers() {
        let mut last = Vec::new();
        for (segment, page) in [(0, 0), (0, 1), (0, 256), (0, u32::MAX), (1, 0), (256, 3)] {
            let key = place_key(segment, page);
            assert!(last < key, "{segment} {page}");
            assert!(key < place_end(segment), "{segment} {page}");
            assert_eq!(page_of_place(&key), Some(page));
            last = key;
        }
        assert!(place_end(0) < place_key(1, 0));
        assert!(segment_key(255) < segment_key(256));
        assert_eq!(segment_of(&segment_key(0x0102_0304)), Some(0x0102_0304));
        let tenant = TenantTag(0x0102);
        assert_eq!(tenant_of(&tenant_key(tenant)), Some(tenant));
        assert_eq!(evicted_of(&evicted_key(tenant)), Some(tenant));
        assert_eq!(segment_of(&tenant_key(tenant)), None);
    }

    #[test]
    fn a_segment_knows_its_oldest_and_newest_write_and_grows() {
        let mut segment = Segment::empty(SegmentState::Open, 4_096);
        for written_unix_seconds in [20, 10, 30] {
            segment.enter(&Entry { page: 1, bytes: 10, written_unix_seconds, ..entry() });
        }
        let Segment { bytes, records, oldest_unix_seconds, newest_unix_seconds, .. } = segment;
        assert_eq!((bytes, records), (8_192, 3));
        assert_eq!((oldest_unix_seconds, newest_unix_seconds), (10, 30));
    }
}
