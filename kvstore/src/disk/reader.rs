//! The reading threads: from a segment file straight into a slot, with every check on the way.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender};
use shared::BlockName;

use super::Shared;
use super::catalog::Entry;
use super::format::RecordKind;
use super::segment;
use super::stats::DiskReadError;
use crate::pool::{OwnedSlot, payload_bytes};

/// A block to read.
#[derive(Debug)]
pub(crate) struct DiskRead {
    pub(crate) name: BlockName,
    /// Where to put it.
    pub(crate) target: OwnedSlot,
}

/// One answer.
#[derive(Debug)]
pub(crate) struct DiskReadDone {
    pub(crate) name: BlockName,
    /// The slot that was lent. After an error its bytes are undefined.
    pub(crate) target: OwnedSlot,
    pub(crate) result: Result<DiskFound, DiskReadError>,
}

/// What was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskFound {
    /// Payload bytes.
    pub(crate) bytes: u32,
    /// CRC-32C of the payload, computed over what was read.
    pub(crate) checksum: u32,
    pub(crate) exact: bool,
}

/// A read that waits.
pub(super) struct Job {
    pub(super) read: DiskRead,
    pub(super) done: Sender<DiskReadDone>,
}

/// A segment file that is open for reading.
type OpenFile = Option<(u64, File)>;

/// Serves until the tier drops; what waits then is dropped, which frees its slots.
pub(super) fn serve(shared: &Shared, jobs: &Receiver<Job>) {
    while let Ok(mut job) = jobs.recv() {
        // Runs of blocks lie in one file. Closed when the run ends, so that no removed file keeps its space for long.
        let mut open = None;
        loop {
            if shared.closing.load(Ordering::Acquire) {
                return;
            }
            let DiskRead { name, mut target } = job.read;
            let result = read(shared, name, &mut target, &mut open);
            shared.counters.read(result.map(|found| found.bytes));
            // Nobody waits any more: the slot returns with the message.
            let _ignored = job.done.send(DiskReadDone { name, target, result });
            match jobs.try_recv() {
                Ok(next) => job = next,
                Err(_) => break,
            }
        }
    }
}

fn read(
    shared: &Shared,
    name: BlockName,
    target: &mut OwnedSlot,
    open: &mut OpenFile,
) -> Result<DiskFound, DiskReadError> {
    let entry = shared.index.find(name).ok_or(DiskReadError::Gone)?;
    let result = read_entry(shared, name, &entry, target, open);
    if result.is_ok() {
        let now = shared.clock.unix_seconds();
        shared.counters.read_at_age(now.saturating_sub(entry.written_unix_seconds));
    }
    if let Err(error) = result
        && error != DiskReadError::Unopened
        && shared.index.forget(name, &entry)
        && error != DiskReadError::Gone
    {
        let (segment, page) = (entry.segment, entry.page);
        tracing::warn!(%name, segment, page, %error, "a block on disk was given up");
    }
    result
}

fn read_entry(
    shared: &Shared,
    name: BlockName,
    entry: &Entry,
    target: &mut OwnedSlot,
    open: &mut OpenFile,
) -> Result<DiskFound, DiskReadError> {
    let file = open_segment(shared, entry.segment, open).map_err(|error| match reason(&error) {
        DiskReadError::Refused => DiskReadError::Unopened,
        other => other,
    })?;
    let offset = u64::from(entry.page) * super::format::PAGE;
    let header = segment::read_record(file, entry.segment, offset, u64::MAX)
        .map_err(|error| reason(&error))?
        .filter(|header| {
            header.kind == RecordKind::Block && header.name == name && Entry::from(header) == *entry
        })
        .ok_or(DiskReadError::Corrupt)?;
    let mut result = Err(DiskReadError::Corrupt);
    target.write(&mut |slot| {
        // A payload that does not fit the slot is as good as damaged: this tier holds blocks of one layout.
        let Some(payload) = slot.get_mut(..payload_bytes(entry.bytes)) else {
            return;
        };
        result = match file.read_exact_at(payload, header.payload_offset()) {
            Ok(()) if crc32c::crc32c(payload) == entry.checksum => Ok(()),
            Ok(()) => Err(DiskReadError::Corrupt),
            Err(error) => Err(reason(&error)),
        };
    });
    let Entry { bytes, checksum, exact, .. } = *entry;
    result.map(|()| DiskFound { bytes, checksum, exact })
}

fn open_segment<'a>(shared: &Shared, number: u64, open: &'a mut OpenFile) -> io::Result<&'a File> {
    let file = match open.take() {
        Some((opened, file)) if opened == number => file,
        Some(_) | None => File::open(segment::path(&shared.config.folder, number))?,
    };
    let (_, file) = open.insert((number, file));
    Ok(file)
}

fn reason(error: &io::Error) -> DiskReadError {
    match error.kind() {
        io::ErrorKind::NotFound => DiskReadError::Gone,
        // The file is shorter than it was.
        io::ErrorKind::UnexpectedEof => DiskReadError::Corrupt,
        _ => DiskReadError::Refused,
    }
}
