//! Why each request went where it went: a bounded ring of decision records, for people.

use std::collections::VecDeque;
use std::time::Duration;

use shared::{RequestId, Timestamp, WorkerRank};

use crate::policy::Cost;

/// The kinds of placement, by what decided whether prefill is visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PlacementKind {
    /// Direct: the prompt is too short to have a hand-off boundary.
    ShortPrompt,
    /// Direct: every block of [0, S) can be had without prefill.
    AllCached,
    /// Direct: no prefill worker is a member.
    NoPrefillWorker,
    /// Direct: every prefill worker is at its bound, and the missing part is short.
    PrefillBusy,
    /// Direct: cheaper than visiting a prefill worker.
    DirectCheaper,
    /// A prefill worker takes part.
    Disaggregated,
}

impl PlacementKind {
    /// All kinds, in the order of their counters.
    pub const ALL: [Self; 6] = [
        Self::ShortPrompt,
        Self::AllCached,
        Self::NoPrefillWorker,
        Self::PrefillBusy,
        Self::DirectCheaper,
        Self::Disaggregated,
    ];

    /// The word used in metrics and reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ShortPrompt => "short_prompt",
            Self::AllCached => "all_cached",
            Self::NoPrefillWorker => "no_prefill_worker",
            Self::PrefillBusy => "prefill_busy",
            Self::DirectCheaper => "direct_cheaper",
            Self::Disaggregated => "disaggregated",
        }
    }
}

/// A decode worker as it was considered, in its better way to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The decode worker.
    pub decode: WorkerRank,
    /// The prefill worker it would have used.
    pub prefill: Option<WorkerRank>,
    /// The terms.
    pub cost: Cost,
    /// Tokens of [0, S) that it could have had without prefill.
    pub cached_tokens: u32,
    /// Requests expected in work or waiting there.
    pub requests: u32,
}

/// A prefill worker as it was considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillCandidate {
    /// The worker.
    pub prefill: WorkerRank,
    /// Its terms: queue, restore and recompute.
    pub cost: Cost,
    /// Tokens of [0, S) that it could have had without computing them.
    pub cached_tokens: u32,
    /// Requests expected in work or waiting there.
    pub requests: u32,
}

/// One decision: what was known, what was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionRecord {
    /// The request.
    pub id: RequestId,
    /// When it was placed.
    pub at: Timestamp,
    /// How long it waited for a worker.
    pub waited: Duration,
    /// N.
    pub prompt_tokens: u32,
    /// S.
    pub boundary: u32,
    /// What decided about prefill.
    pub kind: PlacementKind,
    /// The choice.
    pub chosen: Candidate,
    /// Tokens of [0, S) that the chosen prefill worker was expected to have cached; 0 without one.
    pub prefill_cached_tokens: u32,
    /// Decode workers considered, cheapest first, at most `candidates_max`; those at their bound are left out.
    pub decode_candidates: Vec<Candidate>,
    /// Prefill workers considered, cheapest first, at most `candidates_max`; empty when prefill was out of question.
    pub prefill_candidates: Vec<PrefillCandidate>,
}

/// The last records.
#[derive(Debug)]
pub(crate) struct DecisionLog {
    records: VecDeque<DecisionRecord>,
    records_max: usize,
}

impl DecisionLog {
    pub(crate) fn new(records_max: usize) -> Self {
        Self { records: VecDeque::new(), records_max }
    }

    /// Keeps a record; the oldest makes room.
    pub(crate) fn push(&mut self, record: DecisionRecord) {
        if self.records_max == 0 {
            return;
        }
        if self.records.len() == self.records_max {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    /// Newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &DecisionRecord> {
        self.records.iter().rev()
    }
}
