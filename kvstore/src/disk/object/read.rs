//! Reads: blocks that lie behind one another, or nearly so, come by one range read; several are under way at a time.
//!
//! What waits is taken together and sorted by place, as the threads of the drive do.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use object_store::ObjectStoreExt;
use tokio::sync::mpsc;

use super::{Failure, Remote, Work};
use crate::disk::Shared;
use crate::disk::catalog::{Entry, SegmentState};
use crate::disk::format::{PAGE, record_bytes, wide};
use crate::disk::load::Served;
use crate::disk::reader::{DiskFound, DiskRead, DiskReadDone, Job, check};
use crate::disk::stats::DiskReadError;

/// Bytes of one range read, unless a record is longer: 70 Flash blocks. What a request costs besides its bytes is some ten
/// milliseconds, in which a fast link brings as many.
const GET_BYTES_MAX: u64 = 8 << 20;
/// Bytes between two blocks that are read along: less than what another request costs.
const GAP_BYTES_MAX: u64 = 256 << 10;
/// Blocks that are sorted together.
const BATCH_MAX: usize = 1_024;

/// A read whose place is known.
struct Placed {
    job: Job,
    entry: Entry,
}

impl Placed {
    fn extent(&self) -> Extent {
        let start = u64::from(self.entry.page) * PAGE;
        Extent { segment: self.entry.segment, start, end: start + record_bytes(self.entry.bytes) }
    }
}

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    segment: u64,
    start: u64,
    end: u64,
}

/// Blocks of one range read, by place.
struct Run {
    segment: u64,
    range: Range<u64>,
    blocks: Vec<Placed>,
}

/// Serves until the tier drops.
pub(super) async fn serve(shared: &Shared, remote: &Remote, mut jobs: mpsc::Receiver<Job>) {
    let mut waiting: VecDeque<Run> = VecDeque::new();
    let mut gets = FuturesUnordered::new();
    loop {
        while gets.len() < remote.config.gets_max
            && let Some(run) = waiting.pop_front()
        {
            gets.push(get(shared, remote, run));
        }
        tokio::select! {
            biased;
            () = remote.stop.cancelled() => return,
            Some(()) = gets.next(), if !gets.is_empty() => {}
            // The next ones are sorted when all of these are under way, so that nobody is overtaken for long.
            job = jobs.recv(), if waiting.is_empty() => match job {
                Some(job) => waiting = runs(gather(shared, remote, job, &mut jobs)),
                None => return,
            },
        }
    }
}

/// Looks up where the blocks lie that wait now.
fn gather(
    shared: &Shared,
    remote: &Remote,
    first: Job,
    jobs: &mut mpsc::Receiver<Job>,
) -> Vec<Placed> {
    let mut placed = Vec::new();
    let mut next = Some(first);
    let mut taken = 0;
    while let Some(job) = next {
        taken += 1;
        let entry = shared.index.find(job.read.name);
        let state =
            |entry: Entry| shared.index.catalog().segment(entry.segment).map(|row| row.state);
        match entry {
            None => answer(shared, remote, job, None, Err(DiskReadError::Gone)),
            // It was written to the drive again since it was looked up.
            Some(entry) if state(entry) != Some(SegmentState::Remote) => {
                answer(shared, remote, job, None, Err(DiskReadError::Unanswered));
            }
            Some(entry) => placed.push(Placed { job, entry }),
        }
        next = if taken < BATCH_MAX { jobs.try_recv().ok() } else { None };
    }
    placed
}

fn runs(mut placed: Vec<Placed>) -> VecDeque<Run> {
    placed.sort_unstable_by_key(|block| (block.entry.segment, block.entry.page));
    let extents: Vec<Extent> = placed.iter().map(Placed::extent).collect();
    let mut placed = placed.into_iter();
    let cut = cut(&extents).into_iter().map(|(segment, range, count)| {
        let blocks = placed.by_ref().take(count).collect();
        Run { segment, range, blocks }
    });
    cut.collect()
}

/// Cuts extents that are sorted by place into ranges, and says how many belong to each.
fn cut(extents: &[Extent]) -> Vec<(u64, Range<u64>, usize)> {
    let mut cut: Vec<(u64, Range<u64>, usize)> = Vec::new();
    for Extent { segment, start, end } in extents.iter().copied() {
        if let Some((last, range, count)) = cut.last_mut()
            && *last == segment
            && start <= range.end + GAP_BYTES_MAX
            && end <= range.start + GET_BYTES_MAX
        {
            range.end = range.end.max(end);
            *count += 1;
        } else {
            cut.push((segment, start..end, 1));
        }
    }
    cut
}

/// Reads a run and answers its blocks.
async fn get(shared: &Shared, remote: &Remote, run: Run) {
    let began = shared.clock.now();
    remote.counters.gets_now.add(1);
    let limit = Duration::from_millis(remote.config.read_ms_max);
    let found = fetch(remote, &run, limit).await;
    remote.counters.gets_now.sub(1);
    let (now, bytes) = (shared.clock.now(), run.range.end - run.range.start);
    let reads = wide(run.blocks.len());
    if !matches!(found, Err(Failure::Stopped)) {
        remote.load.lock().served(Served { reads, bytes, began }, now);
        remote.learn_get(now.since(began));
    }
    remote.counters.gets.add(1);
    match found {
        Ok(found) => {
            remote.counters.get_bytes.add(wide(found.len()));
            remote.succeeded(Work::Reads);
            for Placed { mut job, entry } in run.blocks {
                let start = u64::from(entry.page) * PAGE - run.range.start;
                let record = slice(&found, start, record_bytes(entry.bytes));
                let result = record.map_or(Err(DiskReadError::Corrupt), |record| {
                    check(&mut job.read, &entry, record, shared.keys.as_ref())
                });
                answer(shared, remote, job, Some(entry), result);
            }
        }
        Err(failure) => {
            let error = match &failure {
                // Dropping them frees their slots.
                Failure::Stopped => return,
                Failure::Missing(_) => DiskReadError::Gone,
                _ => DiskReadError::Unanswered,
            };
            match failure {
                // That is what the estimate is for.
                Failure::Missing(_) | Failure::Late => remote.count(&failure),
                _ => remote.failed(Work::Reads, &failure, now),
            }
            for Placed { job, entry } in run.blocks {
                answer(shared, remote, job, Some(entry), Err(error));
            }
        }
    }
}

/// The bytes of a range. An object that is shorter than it was gives those that are there.
async fn fetch(remote: &Remote, run: &Run, limit: Duration) -> Result<bytes::Bytes, Failure> {
    let (store, key) = (remote.store()?, remote.keys.object(run.segment));
    let range = run.range.clone();
    let failure = match remote.request(limit, store.get_range(&key, range.clone())).await {
        Err(failure @ (Failure::Unreachable(_) | Failure::Refused(_))) => failure,
        done => return done,
    };
    // Servers differ in what they call a range behind the end.
    let size = remote.request(limit, store.head(&key)).await.map(|object| object.size);
    match size {
        Ok(size) if size <= range.start => Ok(bytes::Bytes::new()),
        Ok(size) if size < range.end => {
            remote.request(limit, store.get_range(&key, range.start..size)).await
        }
        Err(missing @ Failure::Missing(_)) => Err(missing),
        Ok(_) | Err(_) => Err(failure),
    }
}

fn slice(bytes: &[u8], start: u64, length: u64) -> Option<&[u8]> {
    let start = usize::try_from(start).ok()?;
    bytes.get(start..start.checked_add(usize::try_from(length).ok()?)?)
}

fn answer(
    shared: &Shared,
    remote: &Remote,
    job: Job,
    entry: Option<Entry>,
    result: Result<DiskFound, DiskReadError>,
) {
    let Job { read: DiskRead { name, target }, done } = job;
    let counters = &remote.counters;
    match (entry, result) {
        (entry, Ok(found)) => {
            counters.read.add(1);
            counters.read_bytes.add(u64::from(found.bytes));
            let written = entry.map_or(0, |entry| entry.written_unix_seconds);
            shared.counters.read_at_age(shared.clock.unix_seconds().saturating_sub(written));
        }
        (
            Some(entry),
            Err(error @ (DiskReadError::Corrupt | DiskReadError::Gone | DiskReadError::Keyless)),
        ) => {
            counters.corrupt.add(u64::from(error == DiskReadError::Corrupt));
            if shared.index.forget(name, &entry) {
                let (segment, page) = (entry.segment, entry.page);
                tracing::warn!(%name, segment, page, %error, "a block in the object store was given up");
            }
        }
        (_, Err(_)) => counters.reads_unanswered.add(1),
    }
    remote.load.lock().leave(1, record_bytes(shared.block_bytes));
    // Nobody waits any more: the slot returns with the message.
    let _ignored = done.send(DiskReadDone { name, target, result });
}

#[cfg(test)]
mod tests {
    use super::{Extent, GAP_BYTES_MAX, GET_BYTES_MAX, cut};

    #[test]
    fn neighbours_come_by_one_read_of_bounded_length() {
        let extent = |segment, start, end| Extent { segment, start, end };
        let gap = GAP_BYTES_MAX;
        type Cut = (u64, u64, u64, usize);
        let cases: [(&[Extent], &[Cut]); 6] = [
            (&[], &[]),
            (&[extent(1, 0, 10), extent(1, 10, 20)], &[(1, 0, 20, 2)]),
            (&[extent(1, 0, 10), extent(1, 10 + gap, 20 + gap)], &[(1, 0, 20 + gap, 2)]),
            (
                &[extent(1, 0, 10), extent(1, 11 + gap, 20 + gap)],
                &[(1, 0, 10, 1), (1, 11 + gap, 20 + gap, 1)],
            ),
            (&[extent(1, 0, 10), extent(2, 10, 20)], &[(1, 0, 10, 1), (2, 10, 20, 1)]),
            (
                &[extent(1, 0, GET_BYTES_MAX), extent(1, GET_BYTES_MAX, GET_BYTES_MAX + 1)],
                &[(1, 0, GET_BYTES_MAX, 1), (1, GET_BYTES_MAX, GET_BYTES_MAX + 1, 1)],
            ),
        ];
        for (extents, expected) in cases {
            let found: Vec<_> = cut(extents)
                .into_iter()
                .map(|(segment, range, count)| (segment, range.start, range.end, count))
                .collect();
            assert_eq!(found, expected);
        }
    }
}
