//! A drive that a schedule holds in its hands: it fails, waits and forgets as it is told.
//!
//! Transfers go to real files at once, on the calling thread. What was not made durable is known, by pages: a crash of the
//! machine is a copy of the folder in which a part of that is missing or torn. A crash of the process alone is a copy with
//! everything, of which as much is not durable as before.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use shared::{BlockName, Random};

use crate::disk::DiskIo;
use crate::disk::io::{Drive, Queue};
use crate::sys::{Action, Ended, Piece, Transfer};

const PAGE: usize = 4_096;
/// What a drive writes whole or not at all.
const SECTOR: usize = 512;
/// Bytes of a page in which the name of a record would stand.
const HEAD_BYTES: usize = 128;

/// What becomes of one transfer that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteFault {
    /// Nothing of it is done.
    Error(Errno),
    /// So many pages are written, and it fails.
    Torn(usize),
    /// So many pages are written, and it says so.
    Short(usize),
    /// It did not begin, and wants to be asked again.
    Again,
}

/// What becomes of all reads of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadFault {
    Error(Errno),
    /// They end before the block.
    Short,
    /// A bit of it is another one.
    Flip,
    /// The first of them did not begin, and wants to be asked again.
    Again,
}

/// What a drive says that is not so, from its first transfer on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lie {
    /// What was written is durable.
    Synced,
    /// All was written: the last page was not.
    Written,
}

/// What a crash ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crash {
    /// The process: what was written stays.
    Process,
    /// The machine: what was not synced may go.
    Machine,
}

/// The drive, and the schedule's handle of it.
#[derive(Clone, Default)]
pub(super) struct SimulatedDrive(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    /// By inode.
    files: BTreeMap<u64, Unsynced>,
    write_fault: Option<(usize, WriteFault)>,
    read_fault: Option<(BlockName, ReadFault)>,
    lie: Option<Lie>,
    /// So many transfers that write are let through before the next one waits.
    hold_writes: Option<usize>,
    hold_reads: bool,
    /// The transfer that waits, if it writes bytes: where, and which.
    held_write: Option<(u64, u64, Vec<u8>)>,
    writer_waits: bool,
    reader_waits: bool,
    /// What went wrong since it was last asked.
    log: Vec<String>,
}

/// What of a file is not durable.
#[derive(Clone, Debug, Default)]
struct Unsynced {
    /// What stood there when the file was last synced; nothing where the file had ended.
    pages: BTreeMap<u64, Vec<u8>>,
    /// Its length when it was last synced.
    length: Option<u64>,
}

struct SimulatedQueue {
    shared: Arc<Shared>,
    waiting: VecDeque<Transfer>,
}

impl SimulatedDrive {
    /// A drive that cannot be trusted.
    pub(super) fn lying(lie: Lie) -> Self {
        let drive = Self::default();
        drive.0.state.lock().lie = Some(lie);
        drive
    }

    /// The transfer that writes after so many others fails. A later plan takes the place of this one.
    pub(super) fn fail_write(&self, spared: usize, fault: WriteFault) {
        self.0.state.lock().write_fault = Some((spared, fault));
    }

    /// Reads of this block fail.
    pub(super) fn fail_reads(&self, name: BlockName, fault: ReadFault) {
        self.0.state.lock().read_fault = Some((name, fault));
    }

    /// No plan is left.
    pub(super) fn mend(&self) {
        let mut state = self.0.state.lock();
        state.write_fault = None;
        state.read_fault = None;
    }

    /// The transfer that writes after so many others waits, and all behind it.
    pub(super) fn hold_writes(&self, spared: usize) {
        self.0.state.lock().hold_writes = Some(spared);
    }

    /// Reads wait.
    pub(super) fn hold_reads(&self) {
        self.0.state.lock().hold_reads = true;
    }

    /// Nothing waits any more.
    pub(super) fn release(&self) {
        let mut state = self.0.state.lock();
        state.hold_writes = None;
        state.hold_reads = false;
        state.held_write = None;
        state.writer_waits = false;
        state.reader_waits = false;
        self.0.moved.notify_all();
    }

    pub(super) fn writer_waits(&self) -> bool {
        self.0.state.lock().writer_waits
    }

    pub(super) fn reader_waits(&self) -> bool {
        self.0.state.lock().reader_waits
    }

    /// What went wrong since the last call.
    pub(super) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.0.state.lock().log)
    }

    /// Copies the segment files of a folder as a crash now leaves them, and gives the drive on which they are found. Nothing
    /// may be written meanwhile, but by a transfer that is held: a part of that may have been done.
    pub(super) fn crash(
        &self,
        crash: Crash,
        (from, to): (&Path, &Path),
        generator: &mut Random,
    ) -> Self {
        let state = self.0.state.lock();
        let mut files = BTreeMap::new();
        for path in segment_files(from).into_iter().chain(free_files(from)) {
            let inode = fs::metadata(&path).unwrap().ino();
            let mut bytes = fs::read(&path).unwrap();
            let mut unsynced = state.files.get(&inode).cloned().unwrap_or_default();
            if let Some((_, offset, held)) =
                state.held_write.as_ref().filter(|(held, ..)| *held == inode)
            {
                write_partly(&mut bytes, &mut unsynced, *offset, held, generator);
            }
            if crash == Crash::Machine {
                forget(&mut bytes, &unsynced, generator);
                unsynced = Unsynced { pages: BTreeMap::new(), length: None };
                unsynced.length = Some(bytes.len().try_into().unwrap());
            }
            let target = to.join(path.file_name().unwrap());
            write_sparse(&target, &bytes);
            files.insert(fs::metadata(&target).unwrap().ino(), unsynced);
        }
        let state = State { files, lie: state.lie, ..State::default() };
        Self(Arc::new(Shared { state: Mutex::new(state), moved: Condvar::new() }))
    }
}

impl Drive for SimulatedDrive {
    fn io(&self) -> DiskIo {
        DiskIo::Threads
    }

    fn queue(&self) -> Box<dyn Queue> {
        Box::new(SimulatedQueue { shared: Arc::clone(&self.0), waiting: VecDeque::new() })
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        let mut state = self.0.state.lock();
        match state.next_write_fault() {
            None | Some(WriteFault::Again) => state.synced(file),
            Some(_) => Err(Errno::IO.into()),
        }
    }
}

impl Queue for SimulatedQueue {
    fn push(&mut self, transfer: Transfer) {
        self.waiting.push_back(transfer);
    }

    fn wait(&mut self) -> Option<Ended> {
        let mut transfer = self.waiting.pop_front()?;
        let mut state = self.shared.state.lock();
        let file = Arc::clone(&transfer.file);
        let result = match &mut transfer.action {
            Action::Read(piece) => {
                while state.hold_reads {
                    state.reader_waits = true;
                    self.shared.moved.wait(&mut state);
                }
                state.read(&file, piece)
            }
            Action::Write(piece) => {
                state.begin_write(&file, Some(piece));
                while state.writer_waits {
                    self.shared.moved.wait(&mut state);
                }
                state.write(&file, piece)
            }
            Action::Sync => {
                state.begin_write(&file, None);
                while state.writer_waits {
                    self.shared.moved.wait(&mut state);
                }
                match state.next_write_fault() {
                    None => state.synced(&file).map(|()| 0),
                    Some(WriteFault::Again) => Err(Errno::INTR.into()),
                    Some(_) => Err(Errno::IO.into()),
                }
            }
        };
        Some(Ended { transfer, result })
    }
}

impl State {
    /// Stops at a transfer that is to be held.
    fn begin_write(&mut self, file: &File, piece: Option<&Piece>) {
        match &mut self.hold_writes {
            None => return,
            Some(0) => {}
            Some(spared) => {
                *spared -= 1;
                return;
            }
        }
        self.log.push(format!("held: {}", if piece.is_some() { "write" } else { "sync" }));
        self.held_write = piece.map(|piece| {
            let bytes = piece.buffer.bytes()[piece.range.clone()].to_vec();
            (file.metadata().unwrap().ino(), piece.offset, bytes)
        });
        self.writer_waits = true;
    }

    fn next_write_fault(&mut self) -> Option<WriteFault> {
        let (spared, fault) = self.write_fault?;
        if 0 < spared {
            self.write_fault = Some((spared - 1, fault));
            return None;
        }
        self.write_fault = None;
        self.log.push(format!("write fault: {fault:?}"));
        Some(fault)
    }

    fn write(&mut self, file: &File, piece: &Piece) -> io::Result<usize> {
        let bytes = &piece.buffer.bytes()[piece.range.clone()];
        let fault = self.next_write_fault();
        let pages = match fault {
            None => bytes.len() / PAGE,
            Some(WriteFault::Error(error)) => return Err(error.into()),
            Some(WriteFault::Again) => return Err(Errno::INTR.into()),
            Some(WriteFault::Torn(pages)) => pages,
            // Without any progress it would be an error.
            Some(WriteFault::Short(pages)) => pages.max(1),
        };
        let bytes = &bytes[..bytes.len().min(pages * PAGE)];
        let unsynced = self.files.entry(file.metadata()?.ino()).or_default();
        if piece.offset == 0 && file.metadata()?.len() == 0 {
            // A new file: the number of an old one is used again.
            *unsynced = Unsynced::default();
        }
        let first = piece.offset / page_bytes();
        for page in first..first + u64::try_from(bytes.len() / PAGE).unwrap() {
            if let Entry::Vacant(place) = unsynced.pages.entry(page) {
                let mut before = vec![0; PAGE];
                let held = file.read_at(&mut before, page * page_bytes())?;
                before.truncate(held);
                place.insert(before);
            }
        }
        let lost = if self.lie == Some(Lie::Written) && PAGE < bytes.len() { PAGE } else { 0 };
        file.write_all_at(&bytes[..bytes.len() - lost], piece.offset)?;
        match fault {
            Some(WriteFault::Torn(_)) => Err(Errno::IO.into()),
            _ => Ok(bytes.len()),
        }
    }

    fn synced(&mut self, file: &File) -> io::Result<()> {
        if self.lie == Some(Lie::Synced) {
            return Ok(());
        }
        let metadata = file.metadata()?;
        let synced = Unsynced { pages: BTreeMap::new(), length: Some(metadata.len()) };
        self.files.insert(metadata.ino(), synced);
        Ok(())
    }

    fn read(&mut self, file: &File, piece: &mut Piece) -> io::Result<usize> {
        let bytes = &mut piece.buffer.bytes_mut()[piece.range.clone()];
        let count = file.read_at(bytes, piece.offset)?;
        let Some((name, fault)) = self.read_fault else { return Ok(count) };
        let mut pages = bytes.chunks_exact(PAGE);
        let is_meant = |page: &[u8]| page[..HEAD_BYTES].windows(16).any(|head| head == name.0);
        let Some(page) = pages.position(is_meant) else { return Ok(count) };
        match fault {
            ReadFault::Error(error) => Err(error.into()),
            ReadFault::Short => Ok(count.min(page * PAGE)),
            ReadFault::Flip => {
                bytes[page * PAGE + HEAD_BYTES + 72] ^= 0x20;
                Ok(count)
            }
            ReadFault::Again => {
                self.read_fault = None;
                Err(Errno::INTR.into())
            }
        }
    }
}

fn page_bytes() -> u64 {
    u64::try_from(PAGE).unwrap()
}

/// The files of all segments in a folder, oldest first.
pub(super) fn segment_files(folder: &Path) -> Vec<PathBuf> {
    files_called(folder, "segment")
}

/// Those that segments left behind, to be written on again.
pub(super) fn free_files(folder: &Path) -> Vec<PathBuf> {
    files_called(folder, "free")
}

fn files_called(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    paths.sort_unstable();
    paths
}

/// A transfer that was under way has written some of its pages, in any order.
fn write_partly(
    bytes: &mut Vec<u8>,
    unsynced: &mut Unsynced,
    offset: u64,
    held: &[u8],
    generator: &mut Random,
) {
    for (index, page) in held.chunks_exact(PAGE).enumerate() {
        if generator.below(2) == 0 {
            continue;
        }
        let begin = usize::try_from(offset).unwrap() + index * PAGE;
        bytes.resize(bytes.len().max(begin + PAGE), 0);
        let before = bytes[begin..begin + PAGE].to_vec();
        bytes[begin..begin + PAGE].copy_from_slice(page);
        unsynced.pages.entry(u64::try_from(begin / PAGE).unwrap()).or_insert(before);
    }
}

/// Of what is not durable all stays, nothing, or some sectors: the others are what they were, empty in a new file.
fn forget(bytes: &mut Vec<u8>, unsynced: &Unsynced, generator: &mut Random) {
    let mode = generator.below(3);
    for (page, before) in &unsynced.pages {
        let kept = match mode {
            0 => PAGE / SECTOR,
            1 => 0,
            _ => generator.below(PAGE / SECTOR + 1),
        };
        let begin = usize::try_from(*page).unwrap() * PAGE;
        let (from, end) = (begin + kept * SECTOR, begin + PAGE);
        if end <= bytes.len() {
            let mut before = before.clone();
            before.resize(PAGE, 0);
            bytes[from..end].copy_from_slice(&before[from - begin..]);
        }
    }
    let now = bytes.len();
    let length = match unsynced.length {
        // Its name alone is durable.
        None => match generator.below(4) {
            0 => 0,
            1 => generator.below(now + 1),
            _ => now,
        },
        Some(synced) => {
            let synced = usize::try_from(synced).unwrap();
            let (low, high) = (synced.min(now), synced.max(now));
            [low, high, low + generator.below(high - low + 1)][generator.below(3)]
        }
    };
    bytes.resize(length, 0);
}

/// What is empty is not written, as it was only reserved.
fn write_sparse(path: &Path, bytes: &[u8]) {
    let file = File::create(path).unwrap();
    file.set_len(bytes.len().try_into().unwrap()).unwrap();
    for (index, page) in bytes.chunks(PAGE).enumerate() {
        if page.iter().any(|byte| *byte != 0) {
            file.write_all_at(page, u64::try_from(index * PAGE).unwrap()).unwrap();
        }
    }
}
