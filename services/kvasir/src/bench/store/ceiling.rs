//! What the drive gives a program that does nothing else: one file past the page cache, some large pieces at a time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use shared::Clock;

use crate::bench::rig::fill;

/// Bytes of one piece, and how many are under way at a time.
const PIECE_BYTES: usize = 4 << 20;
const DEPTH: usize = 4;
/// What direct I/O wants buffers to begin at on every drive of today.
const ALIGNMENT: usize = 4_096;

/// A file of whole pieces.
pub(super) struct Ceiling {
    path: PathBuf,
    pieces: usize,
    clock: Arc<dyn Clock>,
}

/// What is done to each piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Write,
    Read,
}

impl Ceiling {
    /// A file of at least so many bytes; nothing is touched yet.
    pub(super) fn new(folder: &Path, bytes: usize, clock: &Arc<dyn Clock>) -> Self {
        let pieces = bytes.div_ceil(PIECE_BYTES);
        Self { path: folder.join("ceiling"), pieces, clock: Arc::clone(clock) }
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self) -> usize {
        self.pieces * PIECE_BYTES
    }

    /// Writes the file anew, syncs it, and says how long that took and whether it went past the page cache.
    pub(super) fn write(&self) -> anyhow::Result<(Duration, bool)> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error)?,
            Ok(()) | Err(_) => {}
        }
        self.go(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, Verb::Write)
    }

    /// Reads the file that was written.
    pub(super) fn read(&self) -> anyhow::Result<(Duration, bool)> {
        self.go(OFlags::RDONLY, Verb::Read)
    }

    fn go(&self, flags: OFlags, verb: Verb) -> anyhow::Result<(Duration, bool)> {
        let (file, direct) = self.open(flags).context("the file beside the store")?;
        let buffers: Vec<Buffer> = (0_u64..).take(DEPTH).map(Buffer::new).collect();
        let next = AtomicUsize::new(0);
        let start = self.clock.now();
        thread::scope(|scope| {
            let work = |mut buffer: Buffer| -> io::Result<()> {
                loop {
                    let piece = next.fetch_add(1, Ordering::Relaxed);
                    if self.pieces <= piece {
                        return Ok(());
                    }
                    let offset = u64::try_from(piece * PIECE_BYTES).unwrap_or(u64::MAX);
                    match verb {
                        Verb::Write => file.write_all_at(buffer.bytes(), offset)?,
                        Verb::Read => file.read_exact_at(buffer.bytes(), offset)?,
                    }
                }
            };
            let threads: Vec<_> =
                buffers.into_iter().map(|buffer| scope.spawn(move || work(buffer))).collect();
            for thread in threads {
                thread.join().map_err(|_| anyhow!("a thread died"))??;
            }
            anyhow::Ok(())
        })
        .context("the file beside the store")?;
        if verb == Verb::Write {
            file.sync_data()?;
        }
        Ok((self.clock.now().since(start), direct))
    }

    /// Past the page cache where the file system allows it.
    fn open(&self, flags: OFlags) -> io::Result<(File, bool)> {
        let mode = Mode::RUSR | Mode::WUSR;
        match open(&self.path, flags | OFlags::DIRECT | OFlags::CLOEXEC, mode) {
            Ok(file) => Ok((file.into(), true)),
            Err(Errno::INVAL) => {
                // Some file systems make the file before they refuse.
                let flags = flags.difference(OFlags::EXCL) | OFlags::CLOEXEC;
                Ok((open(&self.path, flags, mode)?.into(), false))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// One piece of memory that begins where direct I/O wants it.
struct Buffer {
    memory: Vec<u8>,
    begin: usize,
}

impl Buffer {
    fn new(key: u64) -> Self {
        let mut memory = vec![0; PIECE_BYTES + ALIGNMENT];
        fill(&mut memory, key);
        let begin = memory.as_ptr().align_offset(ALIGNMENT);
        assert!(begin <= ALIGNMENT, "bytes can be aligned");
        Self { memory, begin }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + PIECE_BYTES]
    }
}
