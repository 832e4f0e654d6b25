//! How the drive is read and written: several transfers at a time, from and to page-aligned buffers.
//!
//! The best way that the system allows is found by trying it when the tier starts: direct I/O or the page cache, io_uring or
//! the calling thread itself. All ways take the same buffers and places, so nothing above knows the difference.
//!
//! Invariants: at most the depth is under way; a transfer ends once, with its buffer; what ends well is whole: a missing part
//! is asked for again, with a bound. A queue belongs to one thread.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::format::{PAGE_BYTES, wide};
use crate::sys::{Action, Buffer, Ended, Piece, Ring, Transfer};

/// Transfers of one thread that are under way at most. Four of some MiB keep a drive busy; the rest is for single blocks.
pub(super) const DEPTH: usize = 8;
/// How often a missing part is asked for. Each time must bring a page, but for interruptions.
const AGAIN_MAX: u32 = 16;
/// The file that is made to find out what works. It has no name any more when it is used.
const PROBE_FILE: &str = "probe";

/// How the drive is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskIo {
    /// One transfer at a time and thread, through the page cache.
    #[default]
    Threads,
    /// One transfer at a time and thread, past the page cache.
    ThreadsDirect,
    /// Several transfers at a time by io_uring, through the page cache.
    Ring,
    /// Several transfers at a time by io_uring, past the page cache: what is meant to be.
    RingDirect,
}

impl DiskIo {
    /// The words used in logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::ThreadsDirect => "threads+direct",
            Self::Ring => "io_uring",
            Self::RingDirect => "io_uring+direct",
        }
    }

    /// Whether the page cache is passed by.
    #[must_use]
    pub fn is_direct(self) -> bool {
        matches!(self, Self::ThreadsDirect | Self::RingDirect)
    }

    fn has_ring(self) -> bool {
        matches!(self, Self::Ring | Self::RingDirect)
    }
}

/// A way to the drive.
pub(crate) trait Drive: Send + Sync {
    /// Which one it is.
    fn io(&self) -> DiskIo;
    /// A queue for the calling thread, [`DEPTH`] deep.
    fn queue(&self) -> Box<dyn Queue>;

    /// Makes a file durable, its length included, on the calling thread: where nothing is under way.
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }
}

/// Where one thread's transfers go.
pub(crate) trait Queue: Send {
    /// Takes a transfer. At most [`DEPTH`] may be under way. May block until it is done.
    fn push(&mut self, transfer: Transfer);
    /// Waits until one ends, in any order; None when none is under way. Part of the bytes may be missing.
    fn wait(&mut self) -> Option<Ended>;
}

/// The drive as the system gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SystemDrive {
    io: DiskIo,
}

impl SystemDrive {
    /// This way and no other.
    pub(crate) fn of(io: DiskIo) -> Self {
        Self { io }
    }

    /// The best way that works for files of this folder. Blocks: writes, syncs and reads a page or two.
    pub(super) fn probe(folder: &Path) -> Self {
        let mut refused = Vec::new();
        let file = probe_file(folder).map_err(|error| refused.push(("a file to try it", error)));
        let mut io = DiskIo::Threads;
        if let Ok(file) = file {
            let tried = set_direct(&file).and_then(|()| try_page(&mut Blocking::default(), &file));
            let direct = tried.map_err(|error| {
                refused.push(("O_DIRECT", error));
                // It may be set, and not work.
                clear_direct(&file);
            });
            let tried = ring().and_then(|mut ring| try_page(&mut ring, &file));
            let ring = tried.map_err(|error| refused.push(("io_uring", error)));
            io = match (direct.is_ok(), ring.is_ok()) {
                (true, true) => DiskIo::RingDirect,
                (false, true) => DiskIo::Ring,
                (true, false) => DiskIo::ThreadsDirect,
                (false, false) => DiskIo::Threads,
            };
        }
        if !refused.is_empty() {
            let reasons: Vec<String> =
                refused.iter().map(|(what, error)| format!("{what}: {error}")).collect();
            tracing::warn!(
                folder = %folder.display(), io = io.as_str(), refused = reasons.join("; "),
                "the disk is slower than it could be: allow io_uring (seccomp, kernel.io_uring_disabled), or use a file \
                 system with direct I/O"
            );
        }
        Self { io }
    }
}

impl Drive for SystemDrive {
    fn io(&self) -> DiskIo {
        self.io
    }

    fn queue(&self) -> Box<dyn Queue> {
        if !self.io.has_ring() {
            return Box::new(Blocking::default());
        }
        match ring() {
            Ok(ring) => Box::new(ring),
            Err(error) => {
                tracing::warn!(%error, "no more io_uring; one thread of the disk goes on without");
                Box::new(Blocking::default())
            }
        }
    }
}

impl Queue for Ring {
    fn push(&mut self, transfer: Transfer) {
        Self::push(self, transfer);
    }

    fn wait(&mut self) -> Option<Ended> {
        Self::wait(self)
    }
}

/// Does each transfer at once, on the calling thread.
#[derive(Debug, Default)]
struct Blocking {
    /// Not yet waited for. As many as callers have under way.
    ended: VecDeque<Ended>,
}

impl Queue for Blocking {
    fn push(&mut self, mut transfer: Transfer) {
        let file = &transfer.file;
        let result = match &mut transfer.action {
            Action::Read(Piece { buffer, range, offset }) => {
                file.read_at(&mut buffer.bytes_mut()[range.clone()], *offset)
            }
            Action::Write(Piece { buffer, range, offset }) => {
                file.write_at(&buffer.bytes()[range.clone()], *offset)
            }
            Action::Sync => file.sync_data().map(|()| 0),
        };
        self.ended.push_back(Ended { transfer, result });
    }

    fn wait(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }
}

/// A transfer that ended as a whole, or failed.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) tag: u64,
    /// None after a sync.
    pub(super) buffer: Option<Buffer>,
    pub(super) result: io::Result<()>,
}

/// A queue whose transfers end as a whole.
pub(super) struct Transfers {
    queue: Box<dyn Queue>,
    under_way: usize,
}

impl Transfers {
    pub(super) fn new(queue: Box<dyn Queue>) -> Self {
        Self { queue, under_way: 0 }
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Takes a transfer; `tag` comes back with it.
    ///
    /// # Panics
    /// When [`DEPTH`] are under way.
    pub(super) fn push(&mut self, tag: u64, file: &Arc<File>, action: Action) {
        assert!(self.under_way < DEPTH, "callers stay within the depth");
        self.under_way += 1;
        self.queue.push(Transfer { tag, file: Arc::clone(file), action, again: 0 });
    }

    /// Waits until a transfer ended as a whole or failed, in any order; None when none is under way.
    pub(super) fn wait(&mut self) -> Option<Whole> {
        loop {
            let Ended { mut transfer, result } = self.queue.wait()?;
            let Some(result) = outcome(&mut transfer, result) else {
                transfer.again += 1;
                self.queue.push(transfer);
                continue;
            };
            self.under_way -= 1;
            let buffer = match transfer.action {
                Action::Read(piece) | Action::Write(piece) => Some(piece.buffer),
                Action::Sync => None,
            };
            return Some(Whole { tag: transfer.tag, buffer, result });
        }
    }
}

/// How a transfer ended; None when the part it is now about is to be tried again.
fn outcome(transfer: &mut Transfer, result: io::Result<usize>) -> Option<io::Result<()>> {
    let retried = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
    };
    let count = match result {
        Err(error) if !retried(&error) || transfer.again == AGAIN_MAX => return Some(Err(error)),
        Err(_) => return None,
        Ok(count) => count,
    };
    let (piece, nothing) = match &mut transfer.action {
        Action::Sync => return Some(Ok(())),
        Action::Read(piece) => (piece, io::ErrorKind::UnexpectedEof),
        Action::Write(piece) => (piece, io::ErrorKind::WriteZero),
    };
    if piece.range.len() <= count {
        return Some(Ok(()));
    }
    // Places stay aligned: a part of a page is done again.
    let pages = count / PAGE_BYTES * PAGE_BYTES;
    if pages == 0 || transfer.again == AGAIN_MAX {
        return Some(Err(nothing.into()));
    }
    piece.range.start += pages;
    piece.offset += wide(pages);
    None
}

/// Opens a file for transfers of whole pages.
pub(super) fn open(path: &Path, options: &OpenOptions, io: DiskIo) -> io::Result<File> {
    let file = options.open(path)?;
    if io.is_direct() {
        go_direct(&file);
    }
    Ok(file)
}

/// Lets a file be read and written past the page cache from now on, in whole pages only. Where the file system has no such
/// transfers, nothing changes.
pub(super) fn go_direct(file: &File) {
    // Refused by file systems in memory: what they hold is all there is.
    let _ignored: io::Result<()> = set_direct(file);
}

/// Back to the page cache.
pub(super) fn clear_direct(file: &File) {
    if let Ok(flags) = fcntl_getfl(file) {
        // To take a flag away is never refused.
        let _ignored: rustix::io::Result<()> = fcntl_setfl(file, flags - OFlags::DIRECT);
    }
}

fn set_direct(file: &File) -> io::Result<()> {
    let flags = fcntl_getfl(file)?;
    Ok(fcntl_setfl(file, flags | OFlags::DIRECT)?)
}

fn ring() -> io::Result<Ring> {
    Ring::new(u32::try_from(DEPTH).expect("the depth is small"))
}

fn probe_file(folder: &Path) -> io::Result<Arc<File>> {
    let path = folder.join(PROBE_FILE);
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(Arc::new(file))
}

/// Writes a page, makes it durable and reads it.
fn try_page(queue: &mut dyn Queue, file: &Arc<File>) -> io::Result<()> {
    let mut buffer = Buffer::new(PAGE_BYTES)?;
    buffer.bytes_mut().fill(0x5a);
    let whole = |buffer, range: Range<usize>| Piece { buffer, range, offset: 0 };
    let mut done = |action| {
        queue.push(Transfer { tag: 0, file: Arc::clone(file), action, again: 0 });
        let ended = queue.wait().expect("one is under way");
        ended.result.map(|count| (count, ended.transfer.action))
    };
    let (written, _) = done(Action::Write(whole(buffer, 0..PAGE_BYTES)))?;
    done(Action::Sync)?;
    let (read, action) = done(Action::Read(whole(Buffer::new(PAGE_BYTES)?, 0..PAGE_BYTES)))?;
    let Action::Read(piece) = action else { unreachable!("a read comes back as one") };
    let equal = piece.buffer.bytes().iter().all(|byte| *byte == 0x5a);
    if (written, read, equal) != (PAGE_BYTES, PAGE_BYTES, true) {
        return Err(io::Error::other("a page that was written is not read"));
    }
    Ok(())
}
