//! All ways to the drive, and drives that fail.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::bounded;
use parking_lot::Mutex;
use rustix::io::Errno;
use shared::ManualClock;

use super::{FLUSH, Folder, Rig, config, file, files, wiring};
use crate::disk::append::Appender;
use crate::disk::io::{DEPTH, DiskIo, Drive, Queue, SystemDrive, Transfers, open};
use crate::disk::stats::DiskReadError;
use crate::disk::{DiskConfig, DiskRead, DiskTier};
use crate::sys::{Action, Buffer, Ended, Piece, Transfer};
use crate::testing::{bytes_of, name, next, payload, pool};

const PAGE: usize = 4_096;
/// Where the system has no io_uring, threads take its place.
const WAYS: [DiskIo; 4] =
    [DiskIo::Threads, DiskIo::ThreadsDirect, DiskIo::Ring, DiskIo::RingDirect];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Sync,
}

fn kind(transfer: &Transfer) -> Kind {
    match transfer.action {
        Action::Read(_) => Kind::Read,
        Action::Write(_) => Kind::Write,
        Action::Sync => Kind::Sync,
    }
}

/// What a drive does instead of what it was asked for.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Nothing.
    Error(Errno),
    /// So many bytes of it, and says so.
    Short(usize),
    /// So many pages of it, and says it failed.
    Torn(usize, Errno),
}

/// Which transfers go wrong: of this kind, after the first `spared`, `times` of them.
#[derive(Clone, Copy, Debug)]
struct Plan {
    kind: Kind,
    spared: usize,
    times: usize,
    fault: Fault,
}

#[derive(Debug, Default)]
struct Faults(Mutex<Option<Plan>>);

impl Faults {
    fn set(&self, plan: Plan) {
        *self.0.lock() = Some(plan);
    }

    fn clear(&self) {
        *self.0.lock() = None;
    }

    fn next(&self, kind: Kind) -> Option<Fault> {
        let mut plan = self.0.lock();
        let plan = plan.as_mut().filter(|plan| plan.kind == kind)?;
        if 0 < plan.spared {
            plan.spared -= 1;
            return None;
        }
        plan.times = plan.times.checked_sub(1)?;
        Some(plan.fault)
    }
}

/// A drive that fails as planned.
struct FaultyDrive {
    inner: SystemDrive,
    faults: Arc<Faults>,
}

struct FaultyQueue {
    inner: Box<dyn Queue>,
    faults: Arc<Faults>,
    failed: VecDeque<Ended>,
    /// By tag: what is to be reported, and where the range really ends.
    altered: HashMap<u64, (Fault, usize)>,
}

impl Drive for FaultyDrive {
    fn io(&self) -> DiskIo {
        self.inner.io()
    }

    fn queue(&self) -> Box<dyn Queue> {
        Box::new(FaultyQueue {
            inner: self.inner.queue(),
            faults: Arc::clone(&self.faults),
            failed: VecDeque::new(),
            altered: HashMap::new(),
        })
    }
}

fn piece(transfer: &mut Transfer) -> &mut Piece {
    match &mut transfer.action {
        Action::Read(piece) | Action::Write(piece) => piece,
        Action::Sync => panic!("a sync has no part"),
    }
}

impl Queue for FaultyQueue {
    fn push(&mut self, mut transfer: Transfer) {
        let fault = self.faults.next(kind(&transfer));
        let pages = match fault {
            None => return self.inner.push(transfer),
            Some(Fault::Error(error)) => {
                return self.failed.push_back(Ended { transfer, result: Err(error.into()) });
            }
            Some(Fault::Short(bytes)) => bytes / PAGE,
            Some(Fault::Torn(pages, _)) => pages,
        };
        let is_write = kind(&transfer) == Kind::Write;
        let piece = piece(&mut transfer);
        let end = piece.range.end;
        if is_write {
            piece.range.end = end.min(piece.range.start + pages * PAGE);
        }
        self.altered.extend(fault.map(|fault| (transfer.tag, (fault, end))));
        self.inner.push(transfer);
    }

    fn wait(&mut self) -> Option<Ended> {
        if let Some(failed) = self.failed.pop_front() {
            return Some(failed);
        }
        let mut ended = self.inner.wait()?;
        let Some((fault, end)) = self.altered.remove(&ended.transfer.tag) else {
            return Some(ended);
        };
        let is_read = kind(&ended.transfer) == Kind::Read;
        let piece = piece(&mut ended.transfer);
        piece.range.end = end;
        ended.result = match fault {
            Fault::Short(bytes) => {
                // Whole when it is no longer than that: how many blocks a read joins depends on what waited.
                let (range, bytes) = (piece.range.clone(), bytes.min(piece.range.len()));
                if is_read {
                    piece.buffer.bytes_mut()[range][bytes..].fill(0xee);
                }
                Ok(bytes)
            }
            Fault::Torn(_, error) | Fault::Error(error) => Err(error.into()),
        };
        Some(ended)
    }
}

fn faulty(io: DiskIo) -> (Arc<Faults>, Arc<dyn Drive>) {
    let faults = Arc::new(Faults::default());
    let drive = FaultyDrive { inner: SystemDrive::of(io), faults: Arc::clone(&faults) };
    (faults, Arc::new(drive))
}

/// A drive that writes and never syncs.
pub(crate) fn unsyncable() -> Arc<dyn Drive> {
    let (faults, drive) = faulty(DiskIo::Threads);
    let fault = Fault::Error(Errno::IO);
    faults.set(Plan { kind: Kind::Sync, spared: 0, times: usize::MAX, fault });
    drive
}

/// A drive whose reads each take so long, by a clock that stands still otherwise.
pub(crate) struct SlowDrive {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) read: Arc<Mutex<Duration>>,
}

struct SlowQueue {
    inner: Box<dyn Queue>,
    clock: Arc<ManualClock>,
    read: Arc<Mutex<Duration>>,
}

impl Drive for SlowDrive {
    fn io(&self) -> DiskIo {
        DiskIo::Threads
    }

    fn queue(&self) -> Box<dyn Queue> {
        let inner = SystemDrive::of(DiskIo::Threads).queue();
        Box::new(SlowQueue { inner, clock: Arc::clone(&self.clock), read: Arc::clone(&self.read) })
    }
}

impl Queue for SlowQueue {
    fn push(&mut self, transfer: Transfer) {
        self.inner.push(transfer);
    }

    fn wait(&mut self) -> Option<Ended> {
        let ended = self.inner.wait()?;
        if kind(&ended.transfer) == Kind::Read {
            self.clock.advance(*self.read.lock());
        }
        Some(ended)
    }
}

/// Has all of these read at once, and says which came, after checking their bytes.
fn read_at_once(tier: &DiskTier, numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let target = pool(2, 64);
    let (done, answers) = bounded(64);
    let numbers: Vec<u64> = numbers.into_iter().collect();
    for number in &numbers {
        let target = target.reserve(1).unwrap().pop().unwrap();
        tier.read(DiskRead { name: name(*number), target }, &done).unwrap();
    }
    let mut found = Vec::new();
    for _ in &numbers {
        let answer = next(&answers);
        let Ok(block) = answer.result else { continue };
        let seal = crate::pool::Seal { name: answer.name, exact: block.exact, bytes: block.bytes };
        let sealed = target.seal_unnamed(answer.target, seal);
        let number = numbers.iter().copied().find(|number| name(*number) == answer.name).unwrap();
        assert_eq!(bytes_of(&sealed), payload(number), "block {number}");
        found.push(number);
    }
    found.sort_unstable();
    let load = tier.load();
    assert_eq!((load.queued_reads, load.queued_bytes), (0, 0));
    found
}

fn numbers(range: std::ops::Range<u64>) -> Vec<u64> {
    range.collect()
}

#[test]
fn every_way_to_the_drive_reads_what_the_others_wrote() {
    let folder = Folder::new();
    let config = DiskConfig { reads_max: 64, ..config(&folder) };
    let mut end = 0;
    for io in WAYS {
        let rig = Rig::on(&config, Arc::new(SystemDrive::of(io)));
        assert_eq!(rig.stats().io, io);
        assert_eq!(read_at_once(&rig.tier, 0..end), numbers(0..end), "{io:?}");
        rig.write(end..end + 8);
        (end + 8..end + 12).for_each(|number| rig.queue(number));
        end += 12;
        assert!(rig.tier.flush(FLUSH));
        assert_eq!(read_at_once(&rig.tier, 0..end), numbers(0..end), "{io:?}");
        let stats = rig.stats();
        assert_eq!((stats.corrupt, stats.read_errors, stats.lost_bytes), (0, 0, 0), "{io:?}");
        assert!(rig.pool.audit().is_at_rest());
    }
    assert_eq!(Rig::new(&folder).readable(0..end).len(), 48);
}

#[test]
fn the_best_way_that_works_is_found_and_leaves_nothing_behind() {
    let folder = Folder::new();
    let drive = SystemDrive::probe(folder.path());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let rig = Rig::new(&folder);
    assert_eq!(rig.stats().io, drive.io());
    // Nothing can be tried where nothing can be made.
    assert_eq!(SystemDrive::probe(&folder.path().join("missing")).io(), DiskIo::Threads);
    let words: BTreeSet<&str> = WAYS.into_iter().map(DiskIo::as_str).collect();
    assert_eq!(words.len(), 4);
}

#[test]
fn an_error_of_a_long_read_costs_the_block_it_hits_alone() {
    for io in [DiskIo::Threads, DiskIo::RingDirect] {
        let folder = Folder::new();
        let (faults, drive) = faulty(io);
        let rig = Rig::on(&DiskConfig { readers: 1, ..config(&folder) }, drive);
        rig.write(0..10);
        let error = Fault::Error(Errno::IO);
        // A transfer that fails once costs nothing if others were read by it, and else its block.
        faults.set(Plan { kind: Kind::Read, spared: 0, times: 1, fault: error });
        assert!(9 <= read_at_once(&rig.tier, 0..10).len());
        faults.set(Plan { kind: Kind::Read, spared: 0, times: usize::MAX, fault: error });
        assert_eq!(rig.read(5), Err(DiskReadError::Refused));
        faults.clear();
        assert_eq!(rig.read(5), Err(DiskReadError::Gone), "it is not tried again");
        assert!(8 <= read_at_once(&rig.tier, 0..10).len());
        assert_eq!(rig.stats().corrupt, 0);
        rig.write([5]);
        assert_eq!(rig.readable([5]), [5]);
    }
}

#[test]
fn missing_parts_are_asked_for_again() {
    for io in [DiskIo::Threads, DiskIo::RingDirect] {
        for bytes in [PAGE, PAGE + 100, 3 * PAGE] {
            let folder = Folder::new();
            let (faults, drive) = faulty(io);
            let config = DiskConfig { readers: 1, sync_ms: 60_000, ..config(&folder) };
            let rig = Rig::on(&config, drive);
            let short = |kind| Plan { kind, spared: 1, times: 3, fault: Fault::Short(bytes) };
            faults.set(short(Kind::Write));
            (0..12).for_each(|number| rig.queue(number));
            assert!(rig.tier.flush(FLUSH));
            faults.set(Plan { spared: 0, ..short(Kind::Read) });
            assert_eq!(read_at_once(&rig.tier, 0..12), numbers(0..12), "{bytes} {io:?}");
            let stats = rig.stats();
            assert_eq!((stats.corrupt, stats.read_errors, stats.dropped_error), (0, 0, 0));
            drop(rig);
            assert_eq!(Rig::new(&folder).readable(0..12).len(), 12);
        }
    }
}

#[test]
fn a_write_that_fails_or_tears_costs_what_was_not_durable() {
    let faults = [
        Fault::Error(Errno::IO),
        Fault::Error(Errno::NOSPC),
        Fault::Torn(1, Errno::IO),
        Fault::Torn(2, Errno::NOSPC),
        Fault::Short(0),
    ];
    for (fault, io) in faults.into_iter().flat_map(|fault| WAYS.map(|io| (fault, io))) {
        let folder = Folder::new();
        let (planned, drive) = faulty(io);
        let rig = Rig::on(&config(&folder), drive);
        rig.write(0..5);
        planned.set(Plan { kind: Kind::Write, spared: 0, times: 1, fault });
        (5..9).for_each(|number| rig.queue(number));
        assert!(rig.tier.flush(FLUSH), "what was dropped is counted, what is written is durable");
        let stats = rig.stats();
        assert_eq!((stats.write_errors, stats.suspended), (1, 1), "{fault:?} {io:?}");
        assert!(1 <= stats.dropped_error, "{stats:?}");
        assert_eq!(stats.written + stats.dropped_error, 9, "each is counted once");
        assert_eq!((stats.queue_objects, stats.queue_bytes), (0, 0));
        assert_eq!(rig.readable(0..5).len(), 5);
        assert!(rig.pool.audit().is_at_rest());
        rig.clock.advance(Duration::from_secs(1));
        rig.write(5..9);
        assert_eq!((rig.readable(0..9).len(), rig.stats().suspended), (9, 0));
        assert!(rig.stats().file_bytes <= 2 << 16);
        drop(rig);
        let rig = Rig::new(&folder);
        assert_eq!((rig.readable(0..9).len(), rig.stats().corrupt), (9, 0), "{fault:?} {io:?}");
    }
}

#[test]
fn a_failed_sync_is_told_and_its_segment_not_written_on() {
    for io in WAYS {
        let folder = Folder::new();
        let (faults, drive) = faulty(io);
        let rig = Rig::on(&config(&folder), drive);
        rig.write(0..3);
        let fault = Fault::Error(Errno::IO);
        faults.set(Plan { kind: Kind::Sync, spared: 0, times: 1, fault });
        rig.queue(3);
        assert!(!rig.tier.flush(FLUSH));
        assert_eq!((rig.stats().write_errors, rig.stats().suspended), (1, 1));
        rig.clock.advance(Duration::from_secs(1));
        rig.write([4]);
        // What may not be durable is not found any more.
        assert_eq!((files(&folder).len(), rig.readable(0..5)), (2, vec![0, 1, 2, 4]));
    }
}

#[test]
fn a_segment_without_a_block_is_not_left_behind_by_errors() {
    let folder = Folder::new();
    let (faults, drive) = faulty(DiskIo::RingDirect);
    let rig = Rig::on(&config(&folder), drive);
    for round in 0..4 {
        // The header is written, the first block is not.
        let fault = Fault::Error(Errno::NOSPC);
        faults.set(Plan { kind: Kind::Write, spared: 1, times: 1, fault });
        rig.write([round]);
        rig.clock.advance(Duration::from_secs(60));
        assert_eq!((files(&folder).len(), rig.stats().segments), (0, 0), "round {round}");
    }
    assert_eq!((rig.stats().dropped_error, rig.stats().write_errors), (4, 4));
    rig.write([9]);
    assert_eq!(rig.readable([9]), [9]);
}

#[test]
fn reserved_bytes_are_given_back_and_are_no_lost_bytes() {
    let folder = Folder::new();
    let length = || fs::metadata(file(&folder, 1)).unwrap().len();
    let rig = Rig::new(&folder);
    rig.write(0..3);
    assert_eq!(length(), 1 << 16, "as long as it may become");
    assert_eq!(rig.stats().file_bytes, 4 * 4_096);
    drop(rig);
    assert_eq!(length(), 4 * 4_096);
    // What a killed process leaves behind.
    let killed = OpenOptions::new().write(true).open(file(&folder, 1)).unwrap();
    killed.set_len(1 << 16).unwrap();
    let rig = Rig::new(&folder);
    assert_eq!((rig.readable(0..3).len(), rig.stats().lost_bytes), (3, 0));
    rig.write(3..13);
    rig.write([13]);
    assert_eq!((length(), files(&folder).len()), (1 << 16, 2), "sealed, it is full");
}

#[test]
fn a_part_that_never_comes_is_an_error_in_the_end() {
    let cases = [
        (Fault::Short(0), io::ErrorKind::UnexpectedEof),
        (Fault::Short(100), io::ErrorKind::UnexpectedEof),
        (Fault::Error(Errno::INTR), io::ErrorKind::Interrupted),
        (Fault::Error(Errno::AGAIN), io::ErrorKind::WouldBlock),
        (Fault::Error(Errno::IO), io::Error::from(Errno::IO).kind()),
    ];
    for (fault, expected) in cases {
        let (faults, drive) = faulty(DiskIo::Threads);
        faults.set(Plan { kind: Kind::Read, spared: 0, times: usize::MAX, fault });
        let mut transfers = Transfers::new(drive.queue());
        let executable = Arc::new(File::open("/proc/self/exe").unwrap());
        let buffer = Buffer::new(2 * PAGE).unwrap();
        let piece = Piece { buffer, range: 0..2 * PAGE, offset: 0 };
        transfers.push(7, &executable, Action::Read(piece));
        let whole = transfers.wait().unwrap();
        assert_eq!(whole.tag, 7);
        assert_eq!(whole.result.unwrap_err().kind(), expected, "{fault:?}");
        assert!(whole.buffer.is_some() && transfers.wait().is_none());
    }
}

#[test]
fn what_is_appended_in_any_pieces_is_written_in_order() {
    for io in WAYS {
        let folder = Folder::new();
        let path = folder.path().join("appended");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let file = Arc::new(open(&path, &options, io).unwrap());
        let mut appender = Appender::new(&SystemDrive::of(io), 3 * 4_096);
        let bytes: Vec<u8> = (0..40 * PAGE).map(|at| (at / 97).to_le_bytes()[0]).collect();
        let mut offset = 0;
        for pages in [1, 2, 3, 4, 7, 1, 13, 9] {
            let part = &bytes[offset..offset + pages * PAGE];
            appender.append(&file, u64::try_from(offset).unwrap(), part).unwrap();
            offset += part.len();
            assert!(appender.written() <= u64::try_from(offset).unwrap());
        }
        appender.sync(&file).unwrap();
        assert_eq!(appender.written(), u64::try_from(offset).unwrap());
        assert_eq!(fs::read(&path).unwrap(), bytes, "{io:?}");
    }
}

#[test]
fn what_lies_before_a_failed_piece_is_written() {
    for spared in 0..5 {
        let folder = Folder::new();
        let (faults, drive) = faulty(DiskIo::RingDirect);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        let file = Arc::new(open(&folder.path().join("appended"), &options, drive.io()).unwrap());
        let mut appender = Appender::new(&*drive, 4_096);
        let fault = Fault::Error(Errno::IO);
        faults.set(Plan { kind: Kind::Write, spared, times: 1, fault });
        let appended =
            (0..6u64).try_for_each(|page| appender.append(&file, page * 4_096, &[1; PAGE]));
        assert!(appended.and_then(|()| appender.settle(&file)).is_err());
        appender.give_up();
        assert_eq!(appender.written(), u64::try_from(spared).unwrap() * 4_096);
        appender.append(&file, 0, &[2; PAGE]).unwrap();
        appender.settle(&file).unwrap();
        assert_eq!(appender.written(), 4_096, "it goes on elsewhere");
    }
}

#[test]
fn the_ways_hold_as_much_as_they_are_deep() {
    for io in WAYS {
        let mut transfers = Transfers::new(SystemDrive::of(io).queue());
        let executable = Arc::new(File::open("/proc/self/exe").unwrap());
        for tag in 0..u64::try_from(DEPTH).unwrap() {
            let buffer = Buffer::new(PAGE).unwrap();
            let piece = Piece { buffer, range: 0..PAGE, offset: tag * 4_096 };
            transfers.push(tag, &executable, Action::Read(piece));
        }
        let mut tags: Vec<u64> = std::iter::from_fn(|| transfers.wait())
            .map(|whole| whole.result.map(|()| whole.tag).unwrap())
            .collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..8).collect::<Vec<_>>());
    }
}

#[test]
fn the_load_counts_what_waits_and_learns_what_reads_take() {
    let folder = Folder::new();
    let clock = Arc::new(ManualClock::new());
    let read = Arc::new(Mutex::new(Duration::from_secs(1)));
    let drive = SlowDrive { clock: Arc::clone(&clock), read: Arc::clone(&read) };
    let tier = DiskTier::start_on(&config(&folder), wiring(&clock), |_| Arc::new(drive)).unwrap();
    let rig = Rig::of(tier, Arc::clone(&clock));
    rig.write([1]);
    let before = rig.tier.load().time_for(1, rig.tier.read_bytes());
    assert!(before < Duration::from_millis(1));
    assert_eq!(rig.readable([1]), [1]);
    let after = rig.tier.load().time_for(1, rig.tier.read_bytes());
    assert!(Duration::from_millis(100) < after, "{after:?}");
    assert_eq!(rig.stats().load, rig.tier.load());
}
