//! Why each request went where it went, and what came of it: a bounded ring of decision records, for people.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use shared::{Priority, RequestId, StartReport, TenantTag, Timestamp, WorkerRank};

use crate::cost::Cost;
use crate::life::Steer;
use crate::policy::Policy;

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
    /// Those of them that it does not hold yet: a request placed there before is expected to bring them.
    pub expected_tokens: u32,
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
    /// Those of them that it does not hold yet: a request placed there before is expected to bring them.
    pub expected_tokens: u32,
    /// Requests expected in work or waiting there.
    pub requests: u32,
}

/// A worker that was not considered although it had room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steered {
    /// The worker.
    pub worker: WorkerRank,
    /// Why.
    pub why: Steer,
}

/// Who was compared, and who was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Considered {
    /// Decode workers, best first, at most `candidates_max`; those at their bound are left out.
    pub decode: Vec<Candidate>,
    /// Prefill workers, best first, at most `candidates_max`; empty when prefill was out of question.
    pub prefill: Vec<PrefillCandidate>,
    /// Workers of both roles that were steered away from, at most `candidates_max`.
    pub steered: Vec<Steered>,
    /// Decode workers as good as the chosen one for the policy, itself included; a seeded hash chose among them.
    pub tied: u32,
}

/// How a placed request started, beside what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartOutcome {
    /// From its placement to the prompt being processed. `Cost::first_token` of the choice was expected.
    pub after: Duration,
    /// What the worker reports. `DecisionRecord::expected_cached_tokens` were expected.
    pub report: StartReport,
}

/// How a placed request ended on its decode worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndOutcome {
    /// From its placement to its end.
    pub after: Duration,
    /// How.
    pub how: LegEnd,
}

/// The ways in which a placement ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegEnd {
    /// The answer came to its end.
    Completed {
        /// Its tokens, those of earlier placements not counted.
        tokens: u32,
    },
    /// The worker went away or broke the request.
    Failed,
    /// The worker was shutting down and did not take the request.
    Draining,
    /// Its caller let go of it and said nothing of how it went: a client that left, or a refusal that says nothing about
    /// the worker.
    LetGo,
}

impl LegEnd {
    /// The word used in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed { .. } => "finished",
            Self::Failed => "failed",
            Self::Draining => "draining",
            Self::LetGo => "let go",
        }
    }

    /// Tokens of a completed answer.
    #[must_use]
    pub fn tokens(self) -> Option<u32> {
        match self {
            Self::Completed { tokens } => Some(tokens),
            Self::Failed | Self::Draining | Self::LetGo => None,
        }
    }
}

/// One decision: what was known, what was chosen, what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionRecord {
    /// The request.
    pub id: RequestId,
    /// Whose it is.
    pub tenant: TenantTag,
    /// Its class.
    pub priority: Priority,
    /// When it was placed.
    pub at: Timestamp,
    /// How long it waited for a worker.
    pub waited: Duration,
    /// N.
    pub prompt_tokens: u32,
    /// S.
    pub boundary: u32,
    /// Tokens its answer was expected to have, for the interference.
    pub answer_tokens: u32,
    /// By which policy it was placed.
    pub policy: Policy,
    /// What decided about prefill.
    pub kind: PlacementKind,
    /// The choice.
    pub chosen: Candidate,
    /// Whether the chosen decode worker has a reason against it and was the only one.
    pub overridden: bool,
    /// Tokens of [0, S) that the chosen prefill worker was expected to have cached; 0 without one.
    pub prefill_cached_tokens: u32,
    /// Tokens of the prompt expected to be reported as cached: of both workers the larger number.
    pub expected_cached_tokens: u32,
    /// Who was compared, and who was not.
    pub considered: Considered,
    /// How it started; none until its worker said so.
    pub started: Option<StartOutcome>,
    /// How it ended; none while it runs.
    pub ended: Option<EndOutcome>,
}

impl DecisionRecord {
    /// Notes an end. What the caller says of it counts more than that it let go, whichever is heard of first.
    pub(crate) fn end(&mut self, how: LegEnd, now: Timestamp) {
        if self.ended.is_none_or(|ended| ended.how == LegEnd::LetGo) {
            self.ended = Some(EndOutcome { after: now.since(self.at), how });
        }
    }
}

/// Prediction and outcome of all requests whose start was reported, as sums: a ratio of two of them weighs each token
/// alike. Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PredictionCounters {
    /// Requests whose start was reported.
    pub requests: u64,
    /// Tokens of their prompts.
    pub prompt_tokens: u64,
    /// Tokens expected to be cached.
    pub expected_tokens: u64,
    /// Tokens reported as cached.
    pub actual_tokens: u64,
    /// Sum of the differences, each without its sign.
    pub error_tokens: u64,
    /// Time expected from placement to the end of prompt processing.
    pub expected_time: Duration,
    /// Time it took.
    pub actual_time: Duration,
    /// Sum of the differences, each without its sign.
    pub error_time: Duration,
}

/// What was expected of a placed request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) at: Timestamp,
    pub(crate) prompt_tokens: u32,
    pub(crate) cached_tokens: u32,
    pub(crate) first_token: Duration,
}

impl PredictionCounters {
    pub(crate) fn add(&mut self, expected: &Expected, actual_tokens: u32, took: Duration) {
        self.requests += 1;
        self.prompt_tokens += u64::from(expected.prompt_tokens);
        self.expected_tokens += u64::from(expected.cached_tokens);
        self.actual_tokens += u64::from(actual_tokens);
        self.error_tokens += u64::from(expected.cached_tokens.abs_diff(actual_tokens));
        let error = expected.first_token.abs_diff(took);
        self.expected_time = self.expected_time.saturating_add(expected.first_token);
        self.actual_time = self.actual_time.saturating_add(took);
        self.error_time = self.error_time.saturating_add(error);
    }
}

/// The last records.
#[derive(Debug)]
pub(crate) struct DecisionLog {
    records: VecDeque<DecisionRecord>,
    /// Number of the record at the front.
    first: u64,
    /// Number of the latest record of each request.
    numbers: HashMap<RequestId, u64>,
    records_max: usize,
}

impl DecisionLog {
    pub(crate) fn new(records_max: usize) -> Self {
        Self { records: VecDeque::new(), first: 0, numbers: HashMap::new(), records_max }
    }

    /// Keeps a record; the oldest makes room. Gives back what is kept no more.
    pub(crate) fn push(&mut self, record: DecisionRecord) -> Option<DecisionRecord> {
        if self.records_max == 0 {
            return Some(record);
        }
        let oldest =
            if self.records.len() < self.records_max { None } else { self.records.pop_front() };
        if let Some(oldest) = &oldest {
            // A request that was placed again has a later record, which is the one that is found.
            if self.numbers.get(&oldest.id) == Some(&self.first) {
                self.numbers.remove(&oldest.id);
            }
            self.first += 1;
        }
        let number = self.first + u64::try_from(self.records.len()).expect("a length has 64 bits");
        self.numbers.insert(record.id, number);
        self.records.push_back(record);
        oldest
    }

    /// The latest record of a request.
    pub(crate) fn of(&self, id: RequestId) -> Option<&DecisionRecord> {
        self.records.get(self.place(id)?)
    }

    /// The latest record of a request, to add what came of it.
    pub(crate) fn of_mut(&mut self, id: RequestId) -> Option<&mut DecisionRecord> {
        let place = self.place(id)?;
        self.records.get_mut(place)
    }

    /// Newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &DecisionRecord> {
        self.records.iter().rev()
    }

    fn place(&self, id: RequestId) -> Option<usize> {
        let number = self.numbers.get(&id)?;
        usize::try_from(number - self.first).ok()
    }
}
