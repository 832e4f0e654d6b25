//! Segment files: made, appended to, sealed, and read back after a restart.
//!
//! Order of a crash-only file: its name is durable and its header written before the first record is, header and records are
//! durable before a record is counted as synced, and the seal is written after everything it speaks of is. What a crash
//! leaves behind the last whole record is cut off.
//!
//! The bytes of a segment are reserved when it is begun, so that the file system has nothing to do while it is written. The
//! rest is given back when it is sealed, when the tier ends, or at the start after a crash.
//!
//! A segment that takes over a free file (`disk/free.rs`) begins with one that is long and full of another one's bytes. Its
//! header is durable before it gets its name, so that a crash leaves a free file or a segment, and nothing between.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use shared::{BlockName, TenantTag};

use super::append::Appender;
use super::catalog::SegmentSeal;
use super::format::{
    FileOrigin, PAGE, PAGE_BYTES, RECORD_HEADER_BYTES, RecordHeader, RecordKind, SEAL_BYTES,
    SEGMENT_HEADER_BYTES, Seal, SegmentHeader, page_of, record_bytes, seal_bytes, wide,
};
use super::io::{Drive, go_direct, open};
use crate::pool::payload_bytes;

const EXTENSION: &str = "segment";
const FREE_EXTENSION: &str = "free";
/// A crash can leave so many bytes unwritten before some that were: those under way, and as many again.
const GAP_MAX: u64 = 64 << 20;

/// The file of a segment.
pub(super) fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:016x}.{EXTENSION}"))
}

/// The free file that was the segment with this number.
pub(super) fn free_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:016x}.{FREE_EXTENSION}"))
}

/// The number in the name of a segment file, if it is one of ours.
pub(super) fn number_of(name: &OsStr) -> Option<u64> {
    number_before(name, EXTENSION)
}

/// The number in the name of a free file.
pub(super) fn free_number_of(name: &OsStr) -> Option<u64> {
    number_before(name, FREE_EXTENSION)
}

fn number_before(name: &OsStr, wanted: &str) -> Option<u64> {
    let (digits, extension) = name.to_str()?.split_once('.')?;
    let digits = (digits.len() == 16 && extension == wanted).then_some(digits)?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    // Signs and capital letters are numbers, too, but not how a file of ours is called.
    (format!("{number:016x}") == digits).then_some(number)
}

/// Makes the names in a folder durable: files made and removed.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The segment that is being written.
#[derive(Debug)]
pub(super) struct OpenSegment {
    file: Arc<File>,
    number: u64,
    /// Where the next record begins.
    end: u64,
    /// The records so far, for the table.
    records: Vec<RecordHeader>,
}

impl OpenSegment {
    /// Makes a new file with room for `segment_bytes`. On return its name is durable and its header written: durable with the
    /// first sync of records, without a sync of its own, for which the drive would wait.
    pub(super) fn create(
        folder: &Path,
        header: &SegmentHeader,
        segment_bytes: u64,
        appender: &mut Appender,
    ) -> io::Result<Self> {
        let path = path(folder, header.number);
        let mut options = OpenOptions::new();
        let file = open(&path, options.read(true).write(true).create_new(true), appender.io())?;
        let segment = Self::empty(file, header.number);
        // Its length comes last: a file that is long and has no header would look like one of another program.
        let written = segment
            .write_header(header, appender)
            .and_then(|()| sync_folder(folder))
            .and_then(|()| segment.reserve(segment_bytes));
        segment.begun(written, &path, appender)
    }

    /// The same with the file that was the segment `free` before, whose number is lower.
    pub(super) fn reuse(
        (folder, free): (&Path, u64),
        header: &SegmentHeader,
        segment_bytes: u64,
        appender: &mut Appender,
    ) -> io::Result<Self> {
        assert!(free < header.number, "what lies in a free file has lower numbers");
        let (old, path) = (free_path(folder, free), path(folder, header.number));
        let mut options = OpenOptions::new();
        let file = open(&old, options.read(true).write(true), appender.io())?;
        let segment = Self::empty(file, header.number);
        let written = segment
            .write_header(header, appender)
            .and_then(|()| appender.sync(&segment.file))
            .and_then(|()| fs::rename(&old, &path))
            .and_then(|()| sync_folder(folder))
            .and_then(|()| segment.resize(segment_bytes));
        segment.begun(written, &path, appender)
    }

    fn empty(file: File, number: u64) -> Self {
        Self { file: Arc::new(file), number, end: PAGE, records: Vec::new() }
    }

    fn write_header(&self, header: &SegmentHeader, appender: &mut Appender) -> io::Result<()> {
        let mut page = [0; PAGE_BYTES];
        page[..SEGMENT_HEADER_BYTES].copy_from_slice(&header.encode());
        appender.append(&self.file, 0, &page)?;
        appender.settle(&self.file)
    }

    fn begun(
        self,
        written: io::Result<()>,
        path: &Path,
        appender: &mut Appender,
    ) -> io::Result<Self> {
        if let Err(error) = written {
            appender.give_up();
            // Without records the file is worth nothing; if it stays, the next start removes or skips it.
            let _ignored: io::Result<()> = fs::remove_file(path);
            return Err(error);
        }
        Ok(self)
    }

    /// Goes on behind the last whole record of a file that a restart found.
    pub(super) fn resume(file: File, number: u64, walk: Walk) -> Self {
        Self { file: Arc::new(file), number, end: walk.end, records: walk.records }
    }

    /// Makes it ready for an appender after [`OpenSegment::resume`].
    pub(super) fn prepare(&self, segment_bytes: u64, appender: &Appender) -> io::Result<()> {
        if appender.io().is_direct() {
            go_direct(&self.file);
        }
        self.reserve(segment_bytes.max(self.end))
    }

    /// Gives back what was reserved and not written. Says how long the file is now.
    pub(super) fn trim(&self, end: u64) -> io::Result<u64> {
        // Refused: it stays longer than it has to be, and is counted so.
        let _ignored: io::Result<()> = self.file.set_len(end);
        Ok(self.file.metadata()?.len())
    }

    /// Makes a file that has some bytes already as long as this.
    fn resize(&self, bytes: u64) -> io::Result<()> {
        if bytes < self.file.metadata()?.len() {
            self.file.set_len(bytes)?;
        }
        self.reserve(bytes)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        match fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            // Without the space, but with the length: writes need not move the end of the file at least.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.file.set_len(bytes),
            done => Ok(done?),
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.end
    }

    /// Where the next record begins, in pages.
    pub(super) fn next_page(&self) -> u32 {
        page_of(self.end)
    }

    /// Whether one more record and then the seal fit.
    pub(super) fn has_room(&self, payload: u32, segment_bytes: u64) -> bool {
        self.end + record_bytes(payload) + seal_bytes(self.records.len() + 1) <= segment_bytes
    }

    /// Appends a record: its header, its payload and its padding. Written and durable later, see [`Appender`]. After an
    /// error the segment is not to be written on.
    pub(super) fn append(
        &mut self,
        header: RecordHeader,
        record: &[u8],
        appender: &mut Appender,
    ) -> io::Result<()> {
        assert_eq!((header.segment, header.offset()), (self.number, self.end), "records are dense");
        assert_eq!(wide(record.len()), record_bytes(header.bytes), "a record is whole pages");
        appender.append(&self.file, self.end, record)?;
        self.records.push(header);
        self.end = header.end();
        Ok(())
    }

    /// Waits until all records are written.
    pub(super) fn settle(&self, appender: &mut Appender) -> io::Result<()> {
        appender.settle(&self.file)
    }

    /// Makes all records durable.
    pub(super) fn sync(&self, appender: &mut Appender) -> io::Result<()> {
        appender.sync(&self.file)
    }

    /// Makes what was written durable, after an error: nothing is appended any more.
    pub(super) fn sync_written(&self, drive: &dyn Drive) -> io::Result<()> {
        drive.sync(&self.file)
    }

    /// Writes the table and the seal and makes the file durable; it is complete then. After a failure nobody knows what was
    /// kept: it is not to be written on.
    pub(super) fn seal(&mut self, appender: &mut Appender) -> io::Result<SegmentSeal> {
        let payload: Vec<u8> = self.records.iter().flat_map(RecordHeader::encode).collect();
        let times = || self.records.iter().map(|record| record.written_unix_seconds);
        let table = RecordHeader {
            tenant: TenantTag::NONE,
            sealing: None,
            kind: RecordKind::Table,
            exact: false,
            segment: self.number,
            page: self.next_page(),
            bytes: u32::try_from(payload.len()).expect("16 GiB hold fewer records"),
            checksum: crc32c::crc32c(&payload),
            written_unix_seconds: times().max().unwrap_or(0),
            name: BlockName([0; 16]),
        };
        let seal = Seal {
            records: u32::try_from(self.records.len()).expect("16 GiB hold fewer records"),
            segment: self.number,
            table_page: table.page,
            oldest_unix_seconds: times().min().unwrap_or(0),
            newest_unix_seconds: times().max().unwrap_or(0),
        };
        let mut bytes = Vec::new();
        frame(&table, &mut bytes, |bytes| bytes.extend_from_slice(&payload));
        bytes.extend_from_slice(&seal.encode());
        bytes.resize(bytes.len().next_multiple_of(PAGE_BYTES), 0);
        assert_eq!(wide(bytes.len()), seal_bytes(self.records.len()), "as was reserved");
        // The records first: a start believes the table without reading what it lists.
        appender.sync(&self.file)?;
        appender.append(&self.file, self.end, &bytes)?;
        appender.settle(&self.file)?;
        // The seal is the last page.
        self.file.set_len(self.end + wide(bytes.len()))?;
        appender.sync(&self.file)?;
        self.end += wide(bytes.len());
        Ok(SegmentSeal {
            bytes: self.end,
            records: u64::from(seal.records),
            oldest_unix_seconds: seal.oldest_unix_seconds,
            newest_unix_seconds: seal.newest_unix_seconds,
        })
    }
}

/// Lays a record out: header, the payload that `fill` appends, zeros to the end of the page.
pub(super) fn frame(header: &RecordHeader, record: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    record.clear();
    record.extend_from_slice(&header.encode());
    fill(record);
    record.resize(record.len().next_multiple_of(PAGE_BYTES), 0);
}

/// Reads the header of a segment file; `Ok(None)` when the file ends before its first page does.
pub(super) fn read_header(file: &File) -> io::Result<Option<[u8; SEGMENT_HEADER_BYTES]>> {
    if file.metadata()?.len() < PAGE {
        return Ok(None);
    }
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

/// The records of a sealed segment, from its table. None when there is no seal, or seal and table do not agree with each
/// other: the segment is to be walked then.
pub(super) fn read_table(file: &File, number: u64) -> io::Result<Option<Vec<RecordHeader>>> {
    let bytes = file.metadata()?.len();
    if !bytes.is_multiple_of(PAGE) || bytes < 3 * PAGE {
        return Ok(None);
    }
    let mut seal = [0; SEAL_BYTES];
    file.read_exact_at(&mut seal, bytes - PAGE)?;
    let Some(seal) = Seal::decode(&seal).filter(|seal| seal.segment == number) else {
        return Ok(None);
    };
    let Some(range) = table_range(&seal, bytes) else { return Ok(None) };
    let length = usize::try_from(range.end - range.start).expect("16 GiB hold fewer records");
    let mut table = vec![0; length];
    file.read_exact_at(&mut table, range.start)?;
    Ok(table_records(&seal, &table))
}

/// Where the table of a sealed segment of so many bytes lies, its header included, padding not; None when there is no room
/// for it.
pub(super) fn table_range(seal: &Seal, bytes: u64) -> Option<Range<u64>> {
    let start = u64::from(seal.table_page) * PAGE;
    let records = usize::try_from(seal.records).ok()?;
    let whole = PAGE <= start && start + seal_bytes(records) == bytes;
    whole.then(|| start..start + wide(RECORD_HEADER_BYTES) * (wide(records) + 1))
}

/// The records in the bytes of such a range; None when they do not agree with the seal.
pub(super) fn table_records(seal: &Seal, bytes: &[u8]) -> Option<Vec<RecordHeader>> {
    let (head, payload) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>()?;
    let table = RecordHeader::decode(head)?;
    let placed = table.kind == RecordKind::Table
        && table.segment == seal.segment
        && table.page == seal.table_page
        && payload_bytes(table.bytes) == payload.len();
    if !placed || crc32c::crc32c(payload) != table.checksum {
        return None;
    }
    let (headers, _) = payload.as_chunks::<RECORD_HEADER_BYTES>();
    let records = headers.iter().map(|header| {
        let record = RecordHeader::decode(header)?;
        let inside = record.segment == seal.segment && record.end() <= table.offset();
        (record.kind != RecordKind::Table && inside).then_some(record)
    });
    records.collect()
}

/// Where the last bytes end that were ever written: what lies behind was only reserved. The end of the file where the file
/// system does not tell.
pub(super) fn data_end(file: &File) -> io::Result<u64> {
    let mut end = 0;
    // Bounded by the pages of the file: each round begins behind the last one.
    loop {
        match seek(file, SeekFrom::Data(end)).and_then(|data| seek(file, SeekFrom::Hole(data))) {
            Ok(hole) => end = hole,
            Err(Errno::NXIO) => return Ok(end),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(file.metadata()?.len()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// What a walk over a segment found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Walk {
    /// The whole records, in order.
    pub(super) records: Vec<RecordHeader>,
    /// First byte behind the last of them.
    pub(super) end: u64,
    /// Bytes before `end` that belong to no whole record.
    pub(super) lost_bytes: u64,
}

/// Finds the records of a segment without a seal, payloads included: after a crash a header can be there without its
/// payload. Behind a damaged header the search goes on at the next page.
pub(super) fn walk(file: &File, number: u64, origin: FileOrigin) -> io::Result<Walk> {
    let mut steps = Steps::new(file, number, data_end(file)?, origin);
    let mut records: Vec<RecordHeader> = Vec::new();
    let mut payload = Vec::new();
    while let Some(record) = steps.step()? {
        if record.kind == RecordKind::Table {
            break;
        }
        payload.resize(payload_bytes(record.bytes), 0);
        file.read_exact_at(&mut payload, record.payload_offset())?;
        if crc32c::crc32c(&payload) == record.checksum {
            records.push(record);
        }
    }
    let end = records.last().map_or(PAGE, RecordHeader::end);
    let held: u64 = records.iter().map(|record| record_bytes(record.bytes)).sum();
    Ok(Walk { records, end, lost_bytes: end - PAGE - held })
}

/// From record to record by their headers alone, tables included. Behind a damaged header the search goes on at the
/// next page; in a recycled file, where those of another segment follow the records, for at most [`GAP_MAX`] bytes.
pub(super) struct Steps<'a> {
    file: &'a File,
    number: u64,
    offset: u64,
    /// Where the last record ended.
    end: u64,
    file_bytes: u64,
    gap_max: u64,
}

impl<'a> Steps<'a> {
    /// Steps over what lies in the first `file_bytes` bytes.
    pub(super) fn new(file: &'a File, number: u64, file_bytes: u64, origin: FileOrigin) -> Self {
        let gap_max = match origin {
            FileOrigin::Made => u64::MAX,
            FileOrigin::Recycled => GAP_MAX,
        };
        Self { file, number, offset: PAGE, end: PAGE, file_bytes, gap_max }
    }

    /// The next record with an intact header; None at the end.
    pub(super) fn step(&mut self) -> io::Result<Option<RecordHeader>> {
        while self.offset + PAGE <= self.file_bytes && self.offset - self.end <= self.gap_max {
            let found = read_record(self.file, self.number, self.offset, self.file_bytes)?;
            if let Some(record) = found {
                self.offset = record.end();
                self.end = record.end();
                return Ok(found);
            }
            self.offset += PAGE;
        }
        Ok(None)
    }
}

/// The header of the record at an offset, if one of this segment begins there and ends within the file.
pub(super) fn read_record(
    file: &File,
    number: u64,
    offset: u64,
    file_bytes: u64,
) -> io::Result<Option<RecordHeader>> {
    let mut bytes = [0; RECORD_HEADER_BYTES];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(RecordHeader::decode(&bytes).filter(|record| {
        record.segment == number && record.offset() == offset && record.end() <= file_bytes
    }))
}
