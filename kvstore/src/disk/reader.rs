//! The reading threads: from segment files into slots, with every check on the way.
//!
//! What waits is taken together and sorted by place. Records that lie behind one another are read by one transfer, several
//! transfers are under way at a time, and each block is answered when its own transfer ended. Whoever waits longest is never
//! overtaken by more than one such batch.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender};
use shared::{BlockName, ObjectKind, TenantTag, Timestamp};

use super::Shared;
use super::catalog::Entry;
use super::format::{PAGE, RECORD_HEADER_BYTES, RecordHeader, RecordKind, record_bytes, wide};
use super::io::{DEPTH, Transfers, Whole, open};
use super::keys::{OpenError, TenantKeys};
use super::load::Served;
use super::segment;
use super::stats::DiskReadError;
use crate::pool::{OwnedSlot, payload_bytes};
use crate::sys::{Action, Buffer, Piece};

/// Bytes of one transfer, unless a record is longer: 18 Flash blocks. Twice as many make no drive of ours faster, and the
/// first of them wait for the last.
const RUN_BYTES_MAX: u64 = 2 << 20;
/// Blocks that one thread takes at a time. The other threads find some of a long run, too.
const BATCH_MAX: usize = 128;
/// Files that a thread has open at most. Runs lie in one or two.
const FILES_MAX: usize = 8;

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
    /// CRC-32C of the payload, computed over what is in the slot now.
    pub(crate) checksum: u32,
    pub(crate) exact: bool,
    /// What it is.
    pub(crate) kind: ObjectKind,
    /// Whose it is.
    pub(crate) tenant: TenantTag,
}

/// A read that waits.
pub(super) struct Job {
    pub(super) read: DiskRead,
    pub(super) done: Sender<DiskReadDone>,
}

/// A read whose place is known.
struct Placed {
    job: Job,
    entry: Entry,
    /// Read by a transfer of its own, after one with others failed.
    alone: bool,
}

impl Placed {
    fn place(&self) -> (u64, u32) {
        (self.entry.segment, self.entry.page)
    }

    fn bytes(&self) -> u64 {
        record_bytes(self.entry.bytes)
    }
}

/// Records behind one another, read by one transfer.
struct Run {
    tag: u64,
    began: Timestamp,
    blocks: Vec<Placed>,
}

/// Serves until the tier drops; what waits then is dropped, which frees its slots.
pub(super) fn serve(shared: &Shared, jobs: &Receiver<Job>) {
    let mut reader = Reader {
        shared,
        transfers: Transfers::new(shared.drive.queue()),
        run_bytes_max: RUN_BYTES_MAX.max(record_bytes(shared.block_bytes)),
        batch: VecDeque::new(),
        runs: Vec::with_capacity(DEPTH),
        files: Vec::with_capacity(FILES_MAX),
        free: Vec::with_capacity(DEPTH),
        tag_next: 0,
    };
    while let Ok(job) = jobs.recv() {
        reader.take(job);
        reader.gather(jobs);
        while reader.work(jobs) {
            if shared.closing.load(Ordering::Acquire) {
                return;
            }
        }
        // Closed when there is nothing to read, so that no removed file keeps its space for long.
        reader.files.clear();
    }
}

/// One thread's state.
struct Reader<'a> {
    shared: &'a Shared,
    transfers: Transfers,
    run_bytes_max: u64,
    /// What was taken and is not begun, by place. At most [`BATCH_MAX`], and what failed together.
    batch: VecDeque<Placed>,
    /// Under way, at most [`DEPTH`].
    runs: Vec<Run>,
    files: Vec<(u64, Arc<File>)>,
    /// Buffers that were used before.
    free: Vec<Buffer>,
    tag_next: u64,
}

impl Reader<'_> {
    /// Begins as much as it may, and waits for one transfer. False when there is nothing to do.
    fn work(&mut self, jobs: &Receiver<Job>) -> bool {
        while self.transfers.under_way() < DEPTH {
            if self.batch.is_empty() {
                self.gather(jobs);
            }
            if self.batch.is_empty() {
                break;
            }
            self.begin();
        }
        match self.transfers.wait() {
            Some(whole) => self.end(whole),
            None => return !self.batch.is_empty(),
        }
        true
    }

    fn gather(&mut self, jobs: &Receiver<Job>) {
        while self.batch.len() < BATCH_MAX {
            let Ok(job) = jobs.try_recv() else { break };
            self.take(job);
        }
        self.batch.make_contiguous().sort_unstable_by_key(Placed::place);
    }

    /// Looks up where the block lies.
    fn take(&mut self, job: Job) {
        let entry = self.shared.index.find(job.read.name);
        match entry {
            None => self.answer(job, None, Err(DiskReadError::Gone)),
            // A payload that does not fit a slot is as good as damaged: this tier holds blocks of one layout.
            Some(entry) if self.run_bytes_max < record_bytes(entry.bytes) => {
                self.answer(job, Some(entry), Err(DiskReadError::Corrupt));
            }
            Some(entry) => self.batch.push_back(Placed { job, entry, alone: false }),
        }
    }

    /// Begins to read the first block of the batch, and those behind it that lie there in the file, too.
    fn begin(&mut self) {
        let blocks = self.next_run();
        let Some(first) = blocks.first() else { return };
        let (segment, offset) = (first.entry.segment, u64::from(first.entry.page) * PAGE);
        let file = match self.file(segment) {
            Ok(file) => file,
            Err(error) => {
                let reason = match reason(&error) {
                    DiskReadError::Refused => DiskReadError::Unopened,
                    other => other,
                };
                return self.answer_all(blocks, reason);
            }
        };
        let buffer_bytes = usize::try_from(self.run_bytes_max).expect("a run fits memory");
        let Ok(buffer) = self.free.pop().map_or_else(|| Buffer::new(buffer_bytes), Ok) else {
            return self.answer_all(blocks, DiskReadError::Unopened);
        };
        let bytes = blocks.iter().map(Placed::bytes).sum::<u64>();
        let range = 0..usize::try_from(bytes).expect("a run fits memory");
        let tag = self.tag_next;
        self.tag_next += 1;
        self.runs.push(Run { tag, began: self.shared.clock.now(), blocks });
        self.transfers.push(tag, &file, Action::Read(Piece { buffer, range, offset }));
    }

    fn next_run(&mut self) -> Vec<Placed> {
        let mut run: Vec<Placed> = Vec::new();
        let mut bytes = 0;
        while let Some(next) = self.batch.pop_front_if(|next| {
            let Some(last) = run.last() else { return true };
            let follows = last.entry.segment == next.entry.segment
                && u64::from(last.entry.page) * PAGE + last.bytes()
                    == u64::from(next.entry.page) * PAGE;
            let fits = bytes + next.bytes() <= self.run_bytes_max;
            follows && fits && !last.alone && !next.alone
        }) {
            bytes += next.bytes();
            run.push(next);
        }
        run
    }

    /// A transfer ended: checks and answers its blocks.
    fn end(&mut self, whole: Whole) {
        let found = self.runs.iter().position(|run| run.tag == whole.tag);
        let run = self.runs.swap_remove(found.expect("a transfer under way has a run"));
        let Some(buffer) = whole.buffer else { unreachable!("reads come back with their buffer") };
        let bytes = run.blocks.iter().map(Placed::bytes).sum();
        let served = Served { reads: wide(run.blocks.len()), bytes, began: run.began };
        // Before anyone is answered: who asks again at once must find what this one taught.
        self.shared.load.lock().served(served, self.shared.clock.now());
        match whole.result {
            Ok(()) => {
                let mut records = buffer.bytes();
                for mut block in run.blocks {
                    let length = usize::try_from(block.bytes()).expect("it was read");
                    let (record, later) = records.split_at(length);
                    records = later;
                    let result =
                        check(&mut block.job.read, &block.entry, record, self.shared.keys.as_ref());
                    self.answer(block.job, Some(block.entry), result);
                }
            }
            // What is wrong with one of them must not cost the others.
            Err(_) if 1 < run.blocks.len() => {
                let blocks = run.blocks.into_iter().rev();
                for block in blocks.map(|block| Placed { alone: true, ..block }) {
                    self.batch.push_front(block);
                }
            }
            Err(error) => self.answer_all(run.blocks, reason(&error)),
        }
        self.free.push(buffer);
    }

    fn answer_all(&self, blocks: Vec<Placed>, error: DiskReadError) {
        for block in blocks {
            self.answer(block.job, Some(block.entry), Err(error));
        }
    }

    fn answer(&self, job: Job, entry: Option<Entry>, result: Result<DiskFound, DiskReadError>) {
        let Job { read: DiskRead { name, target }, done } = job;
        let shared = self.shared;
        let result = match (&entry, result) {
            // Its segment left while it was read, and another one is being written over it.
            (Some(entry), Err(DiskReadError::Corrupt))
                if !shared.index.is_listed(entry.segment) =>
            {
                Err(DiskReadError::Gone)
            }
            (_, result) => result,
        };
        match (entry, result) {
            (Some(entry), Ok(_)) => {
                let now = shared.clock.unix_seconds();
                shared.counters.read_at_age(now.saturating_sub(entry.written_unix_seconds));
            }
            // The file left a moment ago, its object did not.
            (Some(entry), Err(DiskReadError::Gone)) if shared.index.is_copied(entry.segment) => {}
            (Some(entry), Err(error)) if error != DiskReadError::Unopened => {
                let forgotten = shared.index.forget(name, &entry);
                let is_news = !matches!(error, DiskReadError::Gone | DiskReadError::Keyless);
                if forgotten && is_news {
                    let (segment, page) = (entry.segment, entry.page);
                    tracing::warn!(%name, segment, page, %error, "a block on disk was given up");
                }
            }
            (_, Ok(_) | Err(_)) => {}
        }
        shared.counters.read(result.map(|found| found.bytes));
        shared.load.lock().leave(1, record_bytes(shared.block_bytes));
        // Nobody waits any more: the slot returns with the message.
        let _ignored = done.send(DiskReadDone { name, target, result });
    }

    fn file(&mut self, number: u64) -> io::Result<Arc<File>> {
        if let Some((_, file)) = self.files.iter().find(|(opened, _)| *opened == number) {
            return Ok(Arc::clone(file));
        }
        let path = segment::path(&self.shared.config.folder, number);
        let io = self.shared.drive.io();
        let file = Arc::new(open(&path, OpenOptions::new().read(true), io)?);
        if self.files.len() == FILES_MAX {
            self.files.remove(0);
        }
        self.files.push((number, Arc::clone(&file)));
        Ok(file)
    }
}

/// Copies a record's payload into the slot, checks what is there then, and decrypts it there.
pub(super) fn check(
    read: &mut DiskRead,
    entry: &Entry,
    record: &[u8],
    keys: Option<&TenantKeys>,
) -> Result<DiskFound, DiskReadError> {
    let (head, _) = record.split_first_chunk().expect("a record is at least a page");
    let header = RecordHeader::decode(head)
        .filter(|header| {
            let listed = header.kind != RecordKind::Table && header.name == read.name;
            listed && Entry::from(header) == *entry
        })
        .ok_or(DiskReadError::Corrupt)?;
    let payload = &record[RECORD_HEADER_BYTES..][..payload_bytes(entry.bytes)];
    let mut read_into = Err(DiskReadError::Corrupt);
    read.target.write(&mut |slot| {
        let Some(slot) = slot.get_mut(..payload.len()) else { return };
        slot.copy_from_slice(payload);
        if crc32c::crc32c(slot) == entry.checksum {
            read_into = opened(&header, slot, keys);
        }
    });
    let Entry { bytes, exact, kind, tenant, .. } = *entry;
    read_into.map(|checksum| DiskFound { bytes, checksum, exact, kind, tenant })
}

/// Decrypts an intact payload, if it is encrypted, and gives the checksum of what it is then.
fn opened(
    header: &RecordHeader,
    payload: &mut [u8],
    keys: Option<&TenantKeys>,
) -> Result<u32, DiskReadError> {
    let Some(sealing) = &header.sealing else { return Ok(header.checksum) };
    // Without keys nobody finds it, unless it was just so.
    let keys = keys.ok_or(DiskReadError::Unopened)?;
    match keys.open_payload(header, sealing, payload) {
        Ok(()) => Ok(crc32c::crc32c(payload)),
        Err(OpenError::NoKey) => Err(DiskReadError::Keyless),
        Err(OpenError::Forged) => Err(DiskReadError::Corrupt),
        Err(OpenError::Refused) => Err(DiskReadError::Unopened),
    }
}

fn reason(error: &io::Error) -> DiskReadError {
    match error.kind() {
        io::ErrorKind::NotFound => DiskReadError::Gone,
        // The file is shorter than it was.
        io::ErrorKind::UnexpectedEof => DiskReadError::Corrupt,
        _ => DiskReadError::Refused,
    }
}
