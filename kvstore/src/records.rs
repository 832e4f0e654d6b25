//! Why each block of a recent prompt was had from a cache, or not: what `kvasir kv explain` shows.
//!
//! A worker keeps one record per start, for its last starts. Which parts a record has: blocks that follow each other and
//! fared alike are one run, so that a record is short whatever the length of its prompt.

use std::collections::VecDeque;
use std::fmt;

use parking_lot::Mutex;
use shared::{Miss, RequestId, WindowSource};

/// Starts that are remembered, and runs of blocks in all of them together: about 2 MiB.
const RECORDS_MAX: usize = 4_096;
const RUNS_MAX: usize = 65_536;

/// How a worker came by a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockFate {
    /// It was in the worker's own memory.
    Held,
    /// It was read from a store node.
    Read,
    /// A prefill worker handed it over.
    HandedOver {
        /// Whether it had been cached there.
        cached: bool,
    },
    /// A store node has it, and it was computed anew: a block before it was missing, or reading it would have cost more.
    Unwanted,
    /// A store node had it and could not be read, or gave wrong bytes; it was computed anew.
    Failed,
    /// It was found nowhere, and computed.
    Missed(Miss),
}

impl BlockFate {
    /// The words used in reports; a miss has its reason besides.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Read => "read",
            Self::HandedOver { cached: true } => "handed over, cached at prefill",
            Self::HandedOver { cached: false } => "handed over, computed by prefill",
            Self::Unwanted => "found, not used",
            Self::Failed => "found, not readable",
            Self::Missed(_) => "missed",
        }
    }
}

/// Blocks that follow each other and fared alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FateRun {
    /// How many.
    pub blocks: u32,
    /// How the worker came by each of them.
    pub fate: BlockFate,
}

/// How one start went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartRecord {
    /// The request.
    pub request: RequestId,
    /// Global KV was there up to this position, in tokens; from there on it was computed.
    pub start: u32,
    /// Where the windows at the start came from.
    pub window_source: WindowSource,
    /// Rows below the start that were computed again for the windows.
    pub replayed_rows: u32,
    /// Whether what followed equals a cold run.
    pub exact: bool,
    /// The blocks of the prompt that were looked up, from its beginning.
    pub runs: Vec<FateRun>,
}

/// The last starts of a worker.
#[derive(Default)]
pub struct StartRecords {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    records: VecDeque<StartRecord>,
    runs: usize,
}

impl StartRecords {
    /// Keeps a record, and lets the oldest ones go.
    pub fn keep(&self, record: StartRecord) {
        let mut kept = self.kept.lock();
        kept.runs += record.runs.len();
        kept.records.push_back(record);
        while RECORDS_MAX < kept.records.len() || RUNS_MAX < kept.runs {
            let Some(oldest) = kept.records.pop_front() else { return };
            kept.runs -= oldest.runs.len();
        }
    }

    /// The starts of a request that are still remembered, oldest first: more than one when it gave way or moved.
    #[must_use]
    pub fn of(&self, request: RequestId) -> Vec<StartRecord> {
        let kept = self.kept.lock();
        kept.records.iter().filter(|record| record.request == request).cloned().collect()
    }
}

impl fmt::Debug for StartRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartRecords").finish_non_exhaustive()
    }
}

/// Joins the fates of blocks in their order.
#[must_use]
pub fn fate_runs(fates: &[BlockFate]) -> Vec<FateRun> {
    let mut runs: Vec<FateRun> = Vec::new();
    for &fate in fates {
        match runs.last_mut() {
            Some(run) if run.fate == fate => run.blocks += 1,
            _ => runs.push(FateRun { blocks: 1, fate }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use shared::{Miss, RequestId, WindowSource};

    use super::{BlockFate, FateRun, RECORDS_MAX, RUNS_MAX, StartRecord, StartRecords, fate_runs};

    fn record(request: u128, runs: usize) -> StartRecord {
        StartRecord {
            request: RequestId(request),
            start: 128,
            window_source: WindowSource::Cold,
            replayed_rows: 0,
            exact: true,
            runs: vec![FateRun { blocks: 1, fate: BlockFate::Held }; runs],
        }
    }

    #[test]
    fn blocks_that_fared_alike_are_one_run() {
        let missed = |miss| BlockFate::Missed(miss);
        let fates = [
            BlockFate::Held,
            BlockFate::Held,
            BlockFate::Read,
            missed(Miss::Expired),
            missed(Miss::Evicted),
            missed(Miss::Evicted),
        ];
        let runs: Vec<_> = fate_runs(&fates).iter().map(|run| (run.blocks, run.fate)).collect();
        let expected = [
            (2, BlockFate::Held),
            (1, BlockFate::Read),
            (1, missed(Miss::Expired)),
            (2, missed(Miss::Evicted)),
        ];
        assert_eq!(runs, expected);
        assert!(fate_runs(&[]).is_empty());
    }

    #[test]
    fn the_last_starts_are_remembered_within_both_bounds() {
        let records = StartRecords::default();
        for request in 0..u128::try_from(RECORDS_MAX).unwrap() {
            records.keep(record(request, 1));
        }
        assert_eq!(records.of(RequestId(0)).len(), 1);
        records.keep(record(5, 2));
        assert!(records.of(RequestId(0)).is_empty(), "the oldest left");
        assert_eq!(records.of(RequestId(5)), [record(5, 1), record(5, 2)]);
        records.keep(record(9, RUNS_MAX));
        assert!(records.of(RequestId(5)).is_empty());
        assert_eq!(records.of(RequestId(9)).len(), 1);
        records.keep(record(9, RUNS_MAX + 1));
        assert!(records.of(RequestId(9)).is_empty(), "too long to be kept at all");
    }
}
