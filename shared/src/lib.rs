//! The vocabulary of Kvasir: identifiers, names of blocks, the byte layout of cached state, requests, events and
//! the traits at the borders between services.
//!
//! What it is not: it performs no I/O, knows no runtime, serialises nothing and never looks at a clock by itself.
//! Wire formats live in `services/kvasir`; everything here is plain data and pure functions.
//!
//! Invariants: block names depend on content alone ([`names`]); [`KvLayout`] is the only place that knows where a
//! byte of a block lies; a border trait never blocks its caller ([`borders`]).
//!
//! Start reading at [`names`], then [`start`], then [`borders`].
#![forbid(unsafe_code)]

pub mod borders;
pub mod clock;
pub mod constraints;
pub mod errors;
pub mod events;
pub mod groups;
pub mod ids;
pub mod layout;
pub mod name_cache;
pub mod names;
pub mod objects;
pub mod pace;
pub mod random;
pub mod ranges;
pub mod requests;
pub mod restores;
pub mod start;

pub use borders::{
    BlockStore, Decode, DecodeDirectory, Durability, Flow, Placer, Prefill, PrefillDirectory, Sink,
    SlotMemory, Ticket,
};
pub use clock::{Clock, ManualClock, MeanTime, Timestamp};
pub use constraints::{
    Constraint, GRAMMAR_BYTES_MAX, Grammar, LOGIT_BIAS_MAX, LOGPROBS_MAX, LogitBias,
    TRIGGER_TOKENS_MAX, TokenLogprobs,
};
pub use errors::ServeError;
pub use events::{
    CacheChange, CacheEvent, CacheQuestion, DecodeEvent, FinishReason, Found, LegOutcome,
    LoadReport, LocateEvent, Miss, OfferEvent, OfferOutcome, PlaceEvent, PrefillEvent, StartReport,
    WindowSource, WorkerEvent, WorkerRates,
};
pub use groups::{GROUP_BLOCKS, Grouped, group_of, owners, ungrouped};
pub use ids::{
    DpRank, Generation, MediaId, RegionId, RequestContext, RequestId, SlotIndex, TenantId,
    TenantTag, TokenId, TraceContext, WorkerId, WorkerRank,
};
pub use layout::{BLOCK_TOKENS, KvLayout, KvShape, LayoutError, SourceLayout, SourceShape};
pub use name_cache::{NameCache, PrefixDigest, prefix_digests};
pub use names::{
    BlockName, Lineage, MediaRun, Numerics, Root, RootInputs, block_names, media_piece_name,
    names_after, next_name,
};
pub use objects::{Descriptor, Location, ObjectKey, ObjectKind, Tier};
pub use pace::StepPace;
pub use random::Random;
pub use ranges::{RANGES, RangeDigests, RangeSet, range_of};
pub use requests::{
    DecodeRequest, PlaceRequest, Placement, PrefillRequest, Priority, Sampling, SessionKey,
};
pub use restores::{Brought, RestoreTimes};
pub use start::StartGeometry;
