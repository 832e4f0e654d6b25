//! Events that come back through the borders, and those that workers publish about themselves.

use crate::constraints::TokenLogprobs;
use crate::errors::ServeError;
use crate::ids::{TokenId, WorkerRank};
use crate::names::BlockName;
use crate::objects::{Descriptor, ObjectKey, Tier};
use crate::ranges::{RangeDigests, RangeSet};
use crate::requests::Placement;
use crate::restores::Brought;

/// Where the encoder windows at a start came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowSource {
    /// The start was position 0: there is no window before it.
    Cold,
    /// A window object that ends exactly at the start.
    Object,
    /// An earlier window object, and recomputation from there.
    Recomputed,
    /// A replay of this many rows without a window object.
    Replayed(u32),
}

impl WindowSource {
    /// The word used in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Object => "object",
            Self::Recomputed => "recomputed",
            Self::Replayed(_) => "replayed",
        }
    }
}

/// How a request started: what every response reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartReport {
    /// Tokens of the prompt whose blocks existed before this request, at any worker or tier, and were used.
    pub cached_tokens: u32,
    /// Rows below the starts of prefill and decode that were recomputed to rebuild windows.
    pub replayed_tokens: u32,
    /// Where the windows at the decode start came from; when prefill computed from a cached prefix without a window
    /// object, that replay is what is reported.
    pub window_source: WindowSource,
    /// Whether the answer equals a cold run in one process, bit for bit.
    pub exact: bool,
    /// Bytes of blocks and window objects read from other memory than the decode worker's own.
    pub bytes_fetched: u64,
    /// The prefill worker that took part.
    pub prefill: Option<WorkerRank>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// One of the request's stop ids was emitted.
    Stop,
    /// The bound of the answer, or of the context, was reached.
    Length,
}

/// Events of one answer: `Started`, then tokens, then exactly one of `Finished` and `Failed`, after which nothing follows.
#[derive(Clone, Debug, PartialEq)]
pub enum DecodeEvent {
    /// Prompt processed; the first token follows. Sent once, also when the request is later preempted and resumed.
    Started(StartReport),
    /// The next token of the answer, the stop token included, and its log probabilities if the request asked for them.
    Token(TokenId, Option<Box<TokenLogprobs>>),
    /// The answer is complete.
    Finished(FinishReason),
    /// The answer could not be completed. Tokens sent before remain valid.
    Failed(ServeError),
}

/// Events of one prefill: sealed blocks in order, the window object, then exactly one of `Finished` and `Failed`; anywhere
/// before the end, `Waiting`.
#[derive(Clone, Debug, PartialEq)]
pub enum PrefillEvent {
    /// A sign of life without news: the request is queued, or what is in work for it is not announced. Sent at least
    /// every few seconds until the end; may be repeated, or absent. Who listens must not store it.
    Waiting,
    /// The block with this index is sealed and readable until the ticket drops.
    Sealed {
        /// Position of the block in the sequence.
        index: u32,
        /// Where to read it.
        block: Descriptor,
        /// Whether it existed before this request.
        cached: bool,
    },
    /// The window object at `to` is readable until the ticket drops.
    Window(Descriptor),
    /// All of `[from, to)` has been announced.
    Finished {
        /// Rows below the cached prefix recomputed to rebuild windows.
        replayed_tokens: u32,
        /// Where the windows at the cached prefix came from.
        window_source: WindowSource,
    },
    /// Prefill could not complete; what was announced stays readable until the ticket drops.
    Failed(ServeError),
}

/// The one event of a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceEvent {
    /// Where to run. The router counts the request as running there until the ticket drops.
    Placed(Placement),
    /// Not placed.
    Refused(ServeError),
}

/// The one event of a lookup: for each key, where it can be read until the ticket drops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocateEvent {
    /// One answer per key, in the order asked.
    pub found: Vec<Found>,
    /// Which of them were waited for.
    pub brought: Brought,
}

impl LocateEvent {
    /// An answer for which nothing had to be brought up.
    #[must_use]
    pub fn at_once(found: Vec<Found>) -> Self {
        Self { found, brought: Brought::default() }
    }
}

/// Where an object can be read, or why it cannot.
pub type Found = Result<Descriptor, Miss>;

/// Why an object that was looked up cannot be read. In ascending order of what it tells: of several nodes' answers the
/// greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Miss {
    /// It was not looked up: no store, or no room for the question.
    NotAsked,
    /// The store did not answer, or not in time.
    NoAnswer,
    /// Never stored there, or so long ago that it is forgotten.
    NeverStored,
    /// It left host memory, and no drive had it.
    Evicted,
    /// It left host memory, and the drive had not taken it: the write budget went to others.
    NotAdmitted,
    /// It was on the drive and left with its segment, by age or by an operator.
    Expired,
    /// It was on the drive and is not found there: it failed its check, or the drive an operation.
    Damaged,
    /// There was no room to look for it or to bring it up from the drive: slots, reads or lookups at their bounds.
    NoRoom,
    /// It is on the drive, which could not bring it within the time of a lookup.
    TooSlow,
}

impl Miss {
    /// Whether the store said that it does not have the object.
    #[must_use]
    pub fn is_absent(self) -> bool {
        match self {
            Self::NeverStored
            | Self::Evicted
            | Self::NotAdmitted
            | Self::Expired
            | Self::Damaged => true,
            Self::NotAsked | Self::NoAnswer | Self::NoRoom | Self::TooSlow => false,
        }
    }

    /// The words used in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotAsked => "not asked",
            Self::NoAnswer => "no answer",
            Self::NeverStored => "never stored",
            Self::Evicted => "evicted",
            Self::NotAdmitted => "not admitted",
            Self::Expired => "expired",
            Self::Damaged => "damaged",
            Self::NoRoom => "no room",
            Self::TooSlow => "too slow",
        }
    }
}

/// The events of an offer: one per object. The offering side keeps the object readable until its event came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferEvent {
    /// The object.
    pub key: ObjectKey,
    /// What became of it.
    pub outcome: OfferOutcome,
}

/// What a store did with an offered object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferOutcome {
    /// Read, checked and held, as durably as asked for.
    Stored,
    /// Already held, as durably as asked for: first write wins.
    AlreadyHeld,
    /// Held in memory, new or already, and not durable although that was asked for: there is no disk, it did not take the
    /// object (budget, quota, queue, an error, a window object), or not in time.
    MemoryOnly,
    /// Not taken: no space, or the read failed its check. The object is simply not cached there.
    Dropped,
}

/// A change of what a worker or store node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheChange {
    /// These blocks can now be had from this tier.
    Stored {
        /// The tier.
        tier: Tier,
        /// The blocks.
        names: Vec<BlockName>,
    },
    /// These blocks are gone from this tier.
    Removed {
        /// The tier.
        tier: Tier,
        /// The blocks.
        names: Vec<BlockName>,
    },
    /// Nothing is held any more, in any tier.
    Cleared,
    /// Nothing is held of these ranges any more, in any tier. What is held after all follows as `Stored`: whoever
    /// lost events asked for it.
    RangesCleared(RangeSet),
    /// No change: the digests of what all events before this one say is held. Whoever lost events asked for it.
    Digests(RangeDigests),
}

/// What somebody who lost events asks a member for. The answer comes in the member's ordinary sequence, so that everybody
/// who follows it can take it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheQuestion {
    /// [`CacheChange::Digests`].
    Digests,
    /// [`CacheChange::RangesCleared`] and what is held of these ranges.
    Ranges(RangeSet),
    /// [`CacheChange::Cleared`] and everything that is held.
    Whole,
}

/// A cache change with its place in the sender's history. A gap in `sequence` means lost events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheEvent {
    /// Who holds the blocks.
    pub worker: WorkerRank,
    /// Raised by every restart of the sender.
    pub incarnation: u64,
    /// Counts from 0 within an incarnation, without gaps.
    pub sequence: u64,
    /// What changed.
    pub change: CacheChange,
}

/// How the run of a request on its decode worker went, as its caller saw it. What the router learns from besides loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegOutcome {
    /// The prompt is processed.
    Started(StartReport),
    /// The answer came to its end.
    Completed {
        /// Its tokens, those of earlier legs not counted.
        tokens: u32,
    },
    /// The worker went away or broke the request.
    Failed,
    /// The worker is shutting down and did not take the request.
    Draining,
}

/// What a worker measured about itself and its ways to others: moving averages in nanoseconds; 0 while unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerRates {
    /// One step that gives each running answer a token and computes no prompt rows.
    pub step_ns: u64,
    /// Reading one block from a store's host memory.
    pub restore_host_ns: u64,
    /// The same of one that a lookup brought up from the store's drive, the wait for it included.
    pub restore_disk_ns: u64,
    /// The same of one that it brought from the object store.
    pub restore_remote_ns: u64,
    /// Reading one block from a prefill worker.
    pub restore_peer_ns: u64,
    /// From the end of prefill's work to its last block being here, beyond what reading its blocks takes one by one; for
    /// a prefill worker nothing.
    pub handoff_ns: u64,
}

/// How busy a worker is. The default is an idle one that measured nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// Requests in work.
    pub running: u32,
    /// Requests waiting for slots or rows.
    pub waiting: u32,
    /// Prompt rows accepted but not computed yet.
    pub pending_rows: u64,
    /// Slots of the pool that no live sequence owns (free or cached).
    pub slots_available: u32,
    /// Slots of the pool.
    pub slots: u32,
    /// Measured rows per second of a full step: see [`StepPace`](crate::StepPace); 0 while unknown.
    pub rows_per_second: f64,
    /// Rises with rows computed and tokens emitted, and with each look of a worker that has nothing to compute now. While it
    /// stands still, a worker with work is stuck.
    pub progress: u64,
    /// Whether it takes nothing new any more.
    pub draining: bool,
    /// What else it measured.
    pub rates: WorkerRates,
}

/// What workers tell the router.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerEvent {
    /// A cache change.
    Cache(CacheEvent),
    /// A load report.
    Load {
        /// Whose.
        worker: WorkerRank,
        /// The report.
        report: LoadReport,
    },
}
