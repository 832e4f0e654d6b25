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
use super::check::{BlockFault, Checker};
use super::format::{record_bytes, wide};
use super::index::{Entry, State};
use super::io::go_direct;
use super::pace::Pace;
use super::segment;

/// A pass begins at most this often: a small store would be read without end.
const PASS_PERIOD: Duration = Duration::from_secs(3_600);
/// Pages in quarantine that are counted; beyond them the drive is to be replaced, whatever the number is.
const QUARANTINE_MAX: usize = 65_536;
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
    fn release(&self, state: &State) {
        self.quarantine.lock().retain(|(segment, _)| state.segments().contains_key(segment));
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
        let last = shared.state.lock().segments().keys().next_back().copied();
        let mut next = 0;
        loop {
            let number = {
                let state = shared.state.lock();
                let number = state.segments().range(next..).next().map(|(number, _)| *number);
                number.filter(|number| Some(*number) <= last)
            };
            let Some(number) = number else { break };
            self.segment(number)?;
            next = number.saturating_add(1);
        }
        let scrub = &shared.counters.scrub;
        scrub.release(&shared.state.lock());
        scrub.passes.fetch_add(1, Ordering::Relaxed);
        Some(())
    }

    fn segment(&mut self, number: u64) -> Going {
        let copies = copies(&self.shared.state.lock(), number);
        // It left, or the system has no descriptor for it now: the next pass comes here again.
        let Ok(file) = File::open(segment::path(&self.shared.config.folder, number)) else {
            return Some(());
        };
        go_direct(&file);
        for (name, entry) in copies {
            if self.shared.state.lock().find(name) != Some(entry) {
                continue;
            }
            if let Err(fault) = self.check(&file, name, &entry) {
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
        if self.shared.state.lock().forget(name, entry) {
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

/// The blocks whose copy in this segment counts. As many as fit a segment.
fn copies(state: &State, number: u64) -> Vec<(BlockName, Entry)> {
    let Some(segment) = state.segments().get(&number) else {
        return Vec::new();
    };
    let entries = segment.names.iter().filter_map(|name| Some((*name, state.find(*name)?)));
    entries.filter(|(_, entry)| entry.segment == number).collect()
}
