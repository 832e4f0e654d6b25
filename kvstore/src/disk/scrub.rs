//! The scrub: one thread of low priority that reads every block again, so that damage is found before it is needed.
//!
//! It goes over the segments in the order of their numbers, past the page cache, within a budget of bytes per second. A
//! block that fails its check is forgotten, which makes it a miss, and its page is put in quarantine: the index never
//! leads there again, and the files are append-only. A restart believes the table of a sealed segment and finds the
//! damage anew, at the next read or scrub; `kvasir kv fsck --repair` takes it out of the table.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::Mutex;
use shared::BlockName;

use super::Shared;
use super::catalog::{CatalogError, Entry, Record};
use super::check::{BlockFault, Checker};
use super::format::{record_bytes, wide};
use super::index::Index;
use super::io::go_direct;
use super::pace::Pace;
use super::segment;

/// A pass begins at most this often: a small store would be read without end.
const PASS_PERIOD: Duration = Duration::from_secs(3_600);
/// Pages in quarantine that are counted; beyond them the drive is to be replaced, whatever the number is.
const QUARANTINE_MAX: usize = 65_536;
/// Blocks listed at a time.
const COPIES_MAX: usize = 1_024;
/// As far as a thread can step back.
const NICE_MAX: i32 = 19;

/// What the scrub counts.
#[derive(Debug, Default)]
pub(super) struct ScrubCounters {
    bytes: AtomicU64,
    damaged: AtomicU64,
    passes: AtomicU64,
    /// Segment and page.
    quarantine: Mutex<BTreeSet<(u64, u32)>>,
}

/// A snapshot of those.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scrubbed {
    pub(super) bytes: u64,
    pub(super) damaged: u64,
    pub(super) passes: u64,
    pub(super) quarantined: u64,
}

impl ScrubCounters {
    pub(super) fn snapshot(&self) -> Scrubbed {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Scrubbed {
            bytes: read(&self.bytes),
            damaged: read(&self.damaged),
            passes: read(&self.passes),
            quarantined: wide(self.quarantine.lock().len()),
        }
    }

    fn quarantine(&self, segment: u64, page: u32) {
        self.damaged.fetch_add(1, Ordering::Relaxed);
        let mut quarantine = self.quarantine.lock();
        if quarantine.len() < QUARANTINE_MAX {
            quarantine.insert((segment, page));
        }
    }

    /// Lets go of pages whose segments left.
    fn release(&self, index: &Index) {
        let listed = |segment| index.catalog().segment(segment).is_some();
        self.quarantine.lock().retain(|(segment, _)| listed(*segment));
    }
}

/// Serves until `stop` is disconnected.
pub(super) fn run(shared: &Shared, stop: &Receiver<()>) {
    // Of this thread alone, on Linux. Refused: it runs like the others, within the same budget.
    let _ignored = rustix::process::setpriority_process(None, NICE_MAX);
    let mut scrub = Scrub {
        shared,
        stop,
        pace: Pace::new(shared.config.scrub_mib_per_s, shared.clock.now()),
        checker: Checker::new(),
    };
    loop {
        let began = shared.clock.now();
        if scrub.pass().is_none() {
            return;
        }
        let rest = PASS_PERIOD.saturating_sub(shared.clock.now().since(began));
        if scrub.wait(rest).is_none() {
            return;
        }
    }
}

struct Scrub<'a> {
    shared: &'a Shared,
    stop: &'a Receiver<()>,
    pace: Pace,
    checker: Checker,
}

/// None when the tier ends.
type Going = Option<()>;

impl Scrub<'_> {
    /// Reads the segments there were when it began.
    fn pass(&mut self) -> Going {
        let shared = self.shared;
        for (number, _) in shared.index.catalog().segments() {
            self.segment(number)?;
        }
        let scrub = &shared.counters.scrub;
        scrub.release(&shared.index);
        scrub.passes.fetch_add(1, Ordering::Relaxed);
        Some(())
    }

    fn segment(&mut self, number: u64) -> Going {
        // It left, or the system has no descriptor for it now: the next pass comes here again.
        let Ok(file) = File::open(segment::path(&self.shared.config.folder, number)) else {
            return Some(());
        };
        go_direct(&file);
        let mut page = Some(0);
        while let Some(first) = page {
            // A catalog that cannot be read is the next pass's matter; what is damaged in it was logged.
            let Ok((copies, next)) = self.copies(number, first) else { return Some(()) };
            self.copies_of(&file, copies)?;
            page = next;
        }
        Some(())
    }

    /// Some of the blocks whose copy in this segment counts, from a page on, and where to go on.
    fn copies(&self, number: u64, first: u32) -> Result<(Vec<Record>, Option<u32>), CatalogError> {
        self.shared.index.catalog().copies(number, first, COPIES_MAX)
    }

    fn copies_of(&mut self, file: &File, copies: Vec<Record>) -> Going {
        for Record { name, entry } in copies {
            if self.shared.index.find(name) != Some(entry) {
                continue;
            }
            if let Err(fault) = self.check(file, name, &entry) {
                self.give_up(name, &entry, fault);
            }
            let bytes = record_bytes(entry.bytes);
            self.shared.counters.scrub.bytes.fetch_add(bytes, Ordering::Relaxed);
            let wait = self.pace.wait_after(bytes, self.shared.clock.now());
            self.wait(wait)?;
        }
        Some(())
    }

    fn check(&mut self, file: &File, name: BlockName, entry: &Entry) -> Result<(), BlockFault> {
        let header = self.checker.record(file, entry.segment, entry.page, entry.bytes)?;
        let listed = header.name == name && Entry::from(&header) == *entry;
        if listed { Ok(()) } else { Err(BlockFault::Record) }
    }

    fn give_up(&self, name: BlockName, entry: &Entry, fault: BlockFault) {
        let (segment, page) = (entry.segment, entry.page);
        // Not found any more: it left, or a reader noticed first.
        if self.shared.index.forget(name, entry) {
            self.shared.counters.scrub.quarantine(segment, page);
            tracing::warn!(%name, segment, page, %fault, "the scrub found a damaged block and gave it up");
        }
    }

    fn wait(&self, wait: Duration) -> Going {
        match self.stop.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => Some(()),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}
