//! Reads, writes and syncs that the kernel does while the thread goes on: io_uring.
//!
//! A transfer goes in by value, with its buffer and its file, and comes back when the kernel is done with it. In between
//! nothing of this process can reach the buffer. A ring that is dropped waits for what is under way; what it cannot wait
//! for is leaked, never freed. Not here: a part that is missing (`disk/io.rs`), and what to do without io_uring.
#![expect(unsafe_code, reason = "the kernel reaches buffers by their addresses alone")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode, squeue};

use super::buffer::Buffer;

/// How often the kernel may refuse to take transfers, for want of memory, a millisecond apart: ten seconds.
const REFUSED_MAX: u32 = 10_000;
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

/// Bytes of a buffer and where in a file they belong.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) buffer: Buffer,
    /// Of the buffer.
    pub(crate) range: Range<usize>,
    /// In the file, of the beginning of the range.
    pub(crate) offset: u64,
}

/// What to do.
#[derive(Debug)]
pub(crate) enum Action {
    /// From the file into the buffer.
    Read(Piece),
    /// From the buffer into the file.
    Write(Piece),
    /// Makes what was written before durable: fdatasync. Transfers under way are not waited for.
    Sync,
}

/// One request to the drive.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// Of the caller, to know it again.
    pub(crate) tag: u64,
    pub(crate) file: Arc<File>,
    pub(crate) action: Action,
    /// How often it was pushed again because a part was missing.
    pub(crate) again: u32,
}

/// A transfer that the kernel is done with.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) transfer: Transfer,
    /// Bytes transferred, possibly less than asked for; 0 for a sync.
    pub(crate) result: io::Result<usize>,
}

/// A queue of transfers to the kernel, of one thread.
pub(crate) struct Ring {
    ring: IoUring,
    /// The transfers under way, each at the index that the kernel hands back. As many places as the ring is deep.
    under_way: Box<[Option<Transfer>]>,
}

impl Ring {
    /// A ring for at most `depth` transfers at a time.
    ///
    /// # Errors
    /// When the system refuses: ENOSYS where the kernel has no io_uring, EPERM under seccomp filters (docker's default) or
    /// when it is switched off, ENOMEM beyond the limit on locked memory before Linux 5.12.
    pub(crate) fn new(depth: u32) -> io::Result<Self> {
        let ring = IoUring::new(depth)?;
        Ok(Self { ring, under_way: (0..depth).map(|_| None).collect() })
    }

    /// Gives a transfer to the kernel. Does not wait.
    ///
    /// # Panics
    /// When as many as the ring is deep are under way, or the range exceeds the buffer or 4 GiB.
    pub(crate) fn push(&mut self, mut transfer: Transfer) {
        let mut places = self.under_way.iter();
        let index = places.position(Option::is_none).expect("callers stay within the depth");
        let entry = entry(&mut transfer).user_data(index.try_into().expect("a ring is short"));
        self.under_way[index] = Some(transfer);
        // SAFETY: the buffer and the file that the entry names are owned by `under_way` until the kernel reports the end
        // of this entry; nothing reads or writes the buffer there, and its memory does not move with its owner.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the submission queue has a place for each transfer under way");
        // Refused: the next wait submits it.
        let _refused: io::Result<usize> = self.ring.submit();
    }

    /// Waits until a transfer ends, in any order; None when none is under way.
    ///
    /// # Panics
    /// When the kernel refuses for ten seconds to take what was pushed.
    pub(crate) fn wait(&mut self) -> Option<Ended> {
        self.end_one().unwrap_or_else(|error| panic!("the kernel takes no more transfers: {error}"))
    }

    fn end_one(&mut self) -> io::Result<Option<Ended>> {
        if self.under_way.iter().all(Option::is_none) {
            return Ok(None);
        }
        let mut refused = 0;
        loop {
            if let Some(entry) = self.ring.completion().next() {
                let index = usize::try_from(entry.user_data()).expect("it was an index");
                let transfer = self.under_way[index].take().expect("a transfer ends once");
                let code = entry.result();
                let result = usize::try_from(code)
                    .map_err(|_| io::Error::from_raw_os_error(code.saturating_neg()));
                return Ok(Some(Ended { transfer, result }));
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    refused += 1;
                    if REFUSED_MAX < refused {
                        return Err(error);
                    }
                    thread::sleep(REFUSED_PAUSE);
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
}

impl Drop for Ring {
    /// Waits for what is under way: the kernel may still write to its buffers.
    fn drop(&mut self) {
        while let Ok(Some(_)) = self.end_one() {}
        for transfer in self.under_way.iter_mut().filter_map(Option::take) {
            let _leaked: &mut Transfer = Box::leak(Box::new(transfer));
        }
    }
}

fn entry(transfer: &mut Transfer) -> squeue::Entry {
    let file = Fd(transfer.file.as_raw_fd());
    let place = |piece: &mut Piece| {
        let bytes = &mut piece.buffer.bytes_mut()[piece.range.clone()];
        let count = u32::try_from(bytes.len()).expect("a piece has less than 4 GiB");
        (bytes.as_mut_ptr(), count, piece.offset)
    };
    match &mut transfer.action {
        Action::Read(piece) => {
            let (bytes, count, offset) = place(piece);
            opcode::Read::new(file, bytes, count).offset(offset).build()
        }
        Action::Write(piece) => {
            let (bytes, count, offset) = place(piece);
            opcode::Write::new(file, bytes, count).offset(offset).build()
        }
        Action::Sync => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use super::{Action, Ended, Piece, Ring, Transfer};
    use crate::sys::Buffer;

    const PAGE: usize = 4_096;

    /// None where the system has no io_uring: then there is nothing to test.
    fn ring(depth: u32) -> Option<Ring> {
        Ring::new(depth).inspect_err(|error| println!("no io_uring here: {error}")).ok()
    }

    fn file() -> Arc<File> {
        Arc::new(tempfile::tempfile().unwrap())
    }

    fn transfer(tag: u64, file: &Arc<File>, action: Action) -> Transfer {
        Transfer { tag, file: Arc::clone(file), action, again: 0 }
    }

    fn filled(byte: u8) -> Buffer {
        let mut buffer = Buffer::new(PAGE).unwrap();
        buffer.bytes_mut().fill(byte);
        buffer
    }

    fn page(page: u64, buffer: Buffer) -> Piece {
        Piece { buffer, range: 0..PAGE, offset: page * 4_096 }
    }

    fn wait_all(ring: &mut Ring) -> Vec<Ended> {
        let mut ended: Vec<Ended> = std::iter::from_fn(|| ring.wait()).collect();
        ended.sort_unstable_by_key(|ended| ended.transfer.tag);
        ended
    }

    #[test]
    fn what_is_written_at_once_is_read_at_once() {
        let Some(mut ring) = ring(4) else { return };
        let file = file();
        for round in 0..3 {
            for tag in 0..4 {
                let byte = u8::try_from(round * 4 + tag).unwrap();
                ring.push(transfer(tag, &file, Action::Write(page(tag, filled(byte)))));
            }
            assert!(wait_all(&mut ring).iter().all(|ended| matches!(ended.result, Ok(PAGE))));
            ring.push(transfer(9, &file, Action::Sync));
            assert!(matches!(ring.wait().unwrap().result, Ok(0)));
            for tag in 0..4 {
                ring.push(transfer(tag, &file, Action::Read(page(tag, filled(0xee)))));
            }
            for (tag, ended) in (0..).zip(wait_all(&mut ring)) {
                let Action::Read(piece) = ended.transfer.action else { panic!("it was a read") };
                let byte = u8::try_from(round * 4 + tag).unwrap();
                assert_eq!(piece.buffer.bytes(), [byte; PAGE]);
            }
            assert!(ring.wait().is_none(), "nothing is under way");
        }
    }

    #[test]
    fn errors_and_missing_parts_are_told_with_the_buffer() {
        let Some(mut ring) = ring(2) else { return };
        let file = file();
        file.write_all_at(&[7; 100], 0).unwrap();
        ring.push(transfer(0, &file, Action::Read(page(0, filled(1)))));
        let short = ring.wait().unwrap();
        assert!(matches!(short.result, Ok(100)));
        let Action::Read(piece) = short.transfer.action else { panic!("it was a read") };
        assert_eq!((piece.buffer.bytes()[99], piece.buffer.bytes()[100]), (7, 1));
        let read_only = Arc::new(File::open("/proc/self/exe").unwrap());
        ring.push(transfer(1, &read_only, Action::Write(page(0, piece.buffer))));
        let refused = ring.wait().unwrap();
        let error: io::Error = refused.result.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::BADF.raw_os_error()));
    }

    #[test]
    fn a_dropped_ring_has_finished_what_was_under_way() {
        let Some(mut ring) = ring(8) else { return };
        let file = file();
        for tag in 0..8 {
            ring.push(transfer(tag, &file, Action::Write(page(tag, filled(5)))));
        }
        drop(ring);
        let mut bytes = vec![0; 8 * PAGE];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 5));
    }

    #[test]
    #[should_panic(expected = "callers stay within the depth")]
    fn a_full_ring_takes_no_more() {
        let Some(mut ring) = ring(1) else { panic!("callers stay within the depth") };
        let file = file();
        for tag in 0..2 {
            ring.push(transfer(tag, &file, Action::Sync));
        }
    }
}
