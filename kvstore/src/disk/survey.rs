//! The segment files of a folder as an operator's tool sees them: read-only, a segment at a time.
//!
//! It takes no lock and may look at the files of a running store: what is being written then is the end of the last
//! segment and shows as *open*, segments that leave meanwhile are skipped. What changes files ([`Exclusive`]) takes the
//! store's lock. Bytes are read by the same code as the store's; there is no second reader of the format.
//!
//! Memory is bounded by one segment: its record headers (64 bytes per block), and one record.
//!
//! Start reading at [`Survey`], then [`fsck`].

mod catalog;
mod fsck;
mod objects;
mod repair;
mod tenants;
mod usage;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use shared::{BlockName, Numerics, ObjectKind, TenantTag};

use super::catalog::CatalogError;
pub use super::check::{BlockFault, Checker};
pub use super::pace::Pace;
pub use catalog::{CatalogCheck, CatalogState, Rebuilt};
pub use fsck::{Checked, Damage, Finding, Watcher, fsck};
pub use objects::ObjectSegment;
pub use repair::{Exclusive, Repair};
pub use usage::{Ages, StateBytes, TenantBytes, Usage, tenants};

use super::folder::LOCK_FILE;
use super::format::{
    FileOrigin, Identity, PAGE, RecordHeader, RecordKind, SEAL_BYTES, Seal, SegmentHeader,
    SegmentHeaderError, record_bytes, wide,
};
use super::free::FreeFiles;
use super::io::go_direct;
use super::recover::segment_numbers;
use super::segment::{self, Steps};
use super::tombstones::{self, Tombstones};

/// Why a folder could not be surveyed or changed.
#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    /// It is no folder, or not to be read.
    #[error("cannot list {}: {source}; give the folder of a store node's disk", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A store runs on the folder.
    #[error(
        "a running store holds {}; stop it first, or have it evict by POST /debug/cache/evict?tier=disk",
        lock.display()
    )]
    Locked {
        /// The file that is locked.
        lock: PathBuf,
    },
    /// The catalog beside the segments could not be read or written.
    #[error("{0}; kvasir kv rebuild makes it anew from the segments")]
    Catalog(#[from] CatalogError),
    /// A file could not be changed.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// One copy of a block or of a piece of a media embedding, as its record says. Several copies of a name may lie in a folder; the last one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block.
    pub name: BlockName,
    /// The segment it lies in.
    pub segment: u64,
    /// Where its record begins, in pages of 4,096 bytes from the start of the file.
    pub page: u32,
    /// Payload bytes.
    pub bytes: u32,
    /// CRC-32C of the payload as it lies in the file.
    pub checksum: u32,
    /// When it was written, by the wall clock of the store.
    pub written_unix_seconds: u64,
    /// Whether a cached answer from it equals the cold one bit for bit.
    pub exact: bool,
    /// Whether it is a block or a piece of a media embedding.
    pub kind: ObjectKind,
    /// Whose it is.
    pub tenant: TenantTag,
    /// Whether its payload is encrypted with its tenant's key.
    pub sealed: bool,
}

impl From<&RecordHeader> for BlockCopy {
    fn from(record: &RecordHeader) -> Self {
        let RecordHeader { exact, segment, page, bytes, checksum, .. } = *record;
        let (name, written_unix_seconds) = (record.name, record.written_unix_seconds);
        Self {
            name,
            segment,
            page,
            bytes,
            checksum,
            written_unix_seconds,
            exact,
            kind: record.kind.object().expect("tables are not among the records"),
            tenant: record.tenant,
            sealed: record.sealing.is_some(),
        }
    }
}

/// What a segment's header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentOrigin {
    /// When it was begun, by the wall clock of the store.
    pub created_unix_seconds: u64,
    /// [`shared::KvLayout::fingerprint`] of the store that wrote it.
    pub layout: [u8; 32],
    /// The engine's revision.
    pub numerics: Numerics,
}

/// What a segment file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Complete: seal and table agree.
    Sealed,
    /// Without a seal, and the last one: it is being written, or the next start writes on.
    Open,
    /// Without a seal that can be believed, and not the last one: it is read record by record.
    Unsealed,
    /// Shorter than its first page: the program was stopped while making it. The next start removes it.
    Unborn,
    /// Of another format version. It is left alone.
    Foreign {
        /// The version.
        version: u32,
    },
    /// Its header is damaged or speaks of another file, or the system does not read it.
    Damaged {
        /// What is wrong.
        reason: String,
    },
}

impl SegmentState {
    /// The word used in reports.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Sealed => "sealed",
            Self::Open => "open",
            Self::Unsealed => "unsealed",
            Self::Unborn => "unborn",
            Self::Foreign { .. } => "foreign",
            Self::Damaged { .. } => "damaged",
        }
    }
}

/// The segment files that a folder had when it was listed.
#[derive(Clone, Debug)]
pub struct Survey {
    folder: PathBuf,
    /// Ascending.
    numbers: Vec<u64>,
    free: (u64, u64),
    tombstones: Tombstones,
}

impl Survey {
    /// Lists a folder. Blocks; takes no lock and makes nothing.
    ///
    /// # Errors
    /// [`SurveyError::Folder`] when it cannot be listed or no store ever used it, [`SurveyError::File`] when the list of evicted tenants in it
    /// cannot be read.
    pub fn open(folder: &Path) -> Result<Self, SurveyError> {
        let failed = |source| SurveyError::Folder { folder: folder.to_owned(), source };
        let numbers = segment_numbers(folder).map_err(failed)?;
        let free = FreeFiles::list(folder).map_err(failed)?;
        if numbers.is_empty() && free.count() == 0 && !folder.join(LOCK_FILE).exists() {
            let reason = "no store ever wrote there; give the folder of a store node's disk";
            return Err(failed(io::Error::new(io::ErrorKind::NotFound, reason)));
        }
        let tombstones = Tombstones::read(folder).map_err(|source| SurveyError::File {
            what: "read",
            path: folder.join(tombstones::FILE),
            source,
        })?;
        let free = (wide(free.count()), free.bytes());
        Ok(Self { folder: folder.to_owned(), numbers, free, tombstones })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether a block was evicted with its tenant: its bytes are there until its segment leaves, but nobody finds it.
    #[must_use]
    pub fn is_evicted(&self, block: &BlockCopy) -> bool {
        self.tombstones.covers(block.tenant, block.written_unix_seconds)
    }

    /// The numbers of all segments, ascending: the order in which they were begun.
    #[must_use]
    pub fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    /// Files of segments that left, which the store keeps to write on again, and their bytes.
    #[must_use]
    pub fn free_files(&self) -> (u64, u64) {
        self.free
    }

    /// The file of a segment.
    #[must_use]
    pub fn path(&self, number: u64) -> PathBuf {
        segment::path(&self.folder, number)
    }

    /// Reads header and table of a segment, or all record headers of one without a seal. Payloads are not looked at.
    /// None when the file left since. Blocks.
    #[must_use]
    pub fn segment(&self, number: u64) -> Option<Segment> {
        let last = self.numbers.last() == Some(&number);
        let unreadable = |error: &io::Error, file_bytes| Segment {
            unreadable: true,
            ..Segment::new(number, file_bytes, damaged(format!("it cannot be read: {error}")))
        };
        let file = match File::open(self.path(number)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => return Some(unreadable(&error, 0)),
        };
        let file_bytes = file.metadata().map_or(0, |metadata| metadata.len());
        let loaded = load(file, number, file_bytes, last);
        Some(loaded.unwrap_or_else(|error| unreadable(&error, file_bytes)))
    }

    /// All segments that are still there, ascending, read one by one as by [`Survey::segment`].
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = Segment> {
        self.numbers.iter().filter_map(|number| self.segment(*number))
    }

    /// What the blocks of the first segment after this one depend on that has an intact header; None without any.
    fn identity_after(&self, number: u64) -> Option<Identity> {
        self.numbers.iter().filter(|other| number < **other).find_map(|other| {
            let file = File::open(self.path(*other)).ok()?;
            let header = segment::read_header(&file).ok().flatten()?;
            let header = SegmentHeader::decode(&header).ok()?;
            (header.number == *other).then_some(header.identity)
        })
    }
}

/// A segment file: what its header and its table, or its records, say. Holds the file open, so it stays readable when it
/// leaves the folder meanwhile.
#[derive(Debug)]
pub struct Segment {
    number: u64,
    file_bytes: u64,
    /// What lies behind was reserved for writing and never written.
    data_bytes: u64,
    state: SegmentState,
    header: Option<SegmentHeader>,
    records: Vec<RecordHeader>,
    /// What is wrong with the seal or the table.
    seal_fault: Option<Damage>,
    unreadable: bool,
    file: Option<File>,
}

impl Segment {
    fn new(number: u64, file_bytes: u64, state: SegmentState) -> Self {
        Self {
            number,
            file_bytes,
            data_bytes: file_bytes,
            state,
            header: None,
            records: Vec::new(),
            seal_fault: None,
            unreadable: false,
            file: None,
        }
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The size of its file when it was read.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// What it is.
    #[must_use]
    pub fn state(&self) -> &SegmentState {
        &self.state
    }

    /// What its header says; None when that cannot be read.
    #[must_use]
    pub fn origin(&self) -> Option<SegmentOrigin> {
        self.header.map(|header| SegmentOrigin {
            created_unix_seconds: header.created_unix_seconds,
            layout: header.identity.layout(),
            numerics: header.identity.numerics(),
        })
    }

    /// The version of its format, as far as it can be told.
    #[must_use]
    pub fn version(&self) -> Option<u32> {
        match self.state {
            SegmentState::Foreign { version } => Some(version),
            _ => self.header.map(|_| super::format::FORMAT_VERSION),
        }
    }

    /// Its blocks in the order of their writes: those in the table, or those whose record header is intact.
    pub fn blocks(&self) -> impl DoubleEndedIterator<Item = BlockCopy> + ExactSizeIterator {
        self.records.iter().map(BlockCopy::from)
    }

    /// Oldest and newest write, in seconds since the Unix epoch; None without blocks.
    #[must_use]
    pub fn written(&self) -> Option<(u64, u64)> {
        let times = || self.records.iter().map(|record| record.written_unix_seconds);
        Some((times().min()?, times().max()?))
    }

    /// Reads a block of this segment past the page cache and checks record and payload. Blocks.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, copy: &BlockCopy, checker: &mut Checker) -> Result<(), BlockFault> {
        let file = self.file.as_ref().ok_or(BlockFault::Read(io::ErrorKind::NotFound))?;
        let found = checker.record(file, self.number, copy.page, copy.bytes)?;
        if BlockCopy::from(&found) == *copy { Ok(()) } else { Err(BlockFault::Record) }
    }

    /// Bytes of all records, headers and padding included.
    fn record_bytes(&self) -> u64 {
        self.records.iter().map(|record| record_bytes(record.bytes)).sum()
    }
}

fn damaged(reason: String) -> SegmentState {
    SegmentState::Damaged { reason }
}

fn load(file: File, number: u64, file_bytes: u64, last: bool) -> io::Result<Segment> {
    let Some(header) = segment::read_header(&file)? else {
        return Ok(Segment::new(number, file_bytes, SegmentState::Unborn));
    };
    let (header, state) = match SegmentHeader::decode(&header) {
        Err(SegmentHeaderError::Version { found }) => {
            (None, SegmentState::Foreign { version: found })
        }
        Err(error) => (None, damaged(error.to_string())),
        Ok(header) if header.number != number => {
            (Some(header), damaged(format!("its header says it is number {}", header.number)))
        }
        Ok(header) => (Some(header), SegmentState::Sealed),
    };
    if state != SegmentState::Sealed {
        return Ok(Segment { header, ..Segment::new(number, file_bytes, state) });
    }
    let mut data_bytes = file_bytes;
    // In this order: a store that seals the file in between makes it look unsealed, never damaged.
    let sealed = has_seal(&file, number, file_bytes)?;
    let (state, records, seal_fault) = match segment::read_table(&file, number)? {
        Some(records) => (SegmentState::Sealed, records, None),
        None => {
            let state = if last { SegmentState::Open } else { SegmentState::Unsealed };
            data_bytes = segment::data_end(&file)?.min(file_bytes);
            let origin = header.map_or(FileOrigin::Made, |header| header.origin);
            let (records, table) = steps(&file, number, data_bytes, origin)?;
            if origin == FileOrigin::Recycled {
                // Nobody knows how much of what lies behind is new.
                let end = table.as_ref().or_else(|| records.last()).map_or(PAGE, RecordHeader::end);
                data_bytes = data_bytes.min(end);
            }
            let fault = match table {
                _ if sealed => Some(Damage::Table),
                Some(_) if !last => Some(Damage::Seal),
                // What stands in the place of its seal may be from before.
                Some(_) if origin == FileOrigin::Recycled => None,
                // Zeros behind the table of the last segment: a crash while it was sealed.
                Some(table) if is_damaged_seal(&file, &table, file_bytes)? => Some(Damage::Seal),
                _ => None,
            };
            (state, records, fault)
        }
    };
    go_direct(&file);
    let empty = Segment::new(number, file_bytes, state);
    Ok(Segment { header, records, seal_fault, data_bytes, file: Some(file), ..empty })
}

fn has_seal(file: &File, number: u64, file_bytes: u64) -> io::Result<bool> {
    if !file_bytes.is_multiple_of(PAGE) || file_bytes < 3 * PAGE {
        return Ok(false);
    }
    let seal = read_seal(file, file_bytes - PAGE)?;
    Ok(Seal::decode(&seal).is_some_and(|seal| seal.segment == number))
}

/// Whether bytes stand where the seal of this table would, in a file that ends behind them.
fn is_damaged_seal(file: &File, table: &RecordHeader, file_bytes: u64) -> io::Result<bool> {
    let whole = table.end() + PAGE == file_bytes;
    Ok(whole && read_seal(file, table.end())?.iter().any(|byte| *byte != 0))
}

fn read_seal(file: &File, offset: u64) -> io::Result<[u8; SEAL_BYTES]> {
    let mut seal = [0; SEAL_BYTES];
    file.read_exact_at(&mut seal, offset)?;
    Ok(seal)
}

/// The blocks with an intact record header, and the table's header if there is one.
fn steps(
    file: &File,
    number: u64,
    file_bytes: u64,
    origin: FileOrigin,
) -> io::Result<(Vec<RecordHeader>, Option<RecordHeader>)> {
    let mut steps = Steps::new(file, number, file_bytes, origin);
    let mut records = Vec::new();
    while let Some(record) = steps.step()? {
        if record.kind == RecordKind::Table {
            return Ok((records, Some(record)));
        }
        records.push(record);
    }
    Ok((records, None))
}

/// Whether a name is one of a segment file, and which number it has.
#[must_use]
pub fn segment_number(file_name: &str) -> Option<u64> {
    segment::number_of(file_name.as_ref())
}
