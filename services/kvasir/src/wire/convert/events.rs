//! Events of requests, and what members tell about themselves.
//!
//! A cache event may name millions of blocks. It travels as parts of at most [`PART_NAMES_MAX`] names, of which all but
//! the last say that more follows; an [`Assembler`] puts them together again.

use shared::{
    BlockName, Brought, CacheChange, CacheEvent, CacheQuestion, DecodeEvent, FinishReason,
    LoadReport, LocateEvent, Miss, OfferEvent, OfferOutcome, PrefillEvent, RANGES, RangeDigests,
    RangeSet, StartReport, Tier, TokenId, WindowSource, WorkerEvent, WorkerRates,
};

use super::constraints::{scored_from_wire, scored_to_wire};
use super::{
    CHANGE_NAMES_MAX, OBJECTS_MAX, PART_NAMES_MAX, WireError, bounded, names_from_wire,
    names_to_wire, required, v1,
};
use v1::ask_request::Question;
use v1::cache_event::Change;
use v1::decode_event::Event as Decoded;
use v1::prefill_event::Event as Prefilled;
use v1::window_source::Source;
use v1::worker_event::Event as Told;

impl From<WindowSource> for v1::WindowSource {
    fn from(source: WindowSource) -> Self {
        let source = match source {
            WindowSource::Cold => Source::Cold(v1::Empty {}),
            WindowSource::Object => Source::Object(v1::Empty {}),
            WindowSource::Recomputed => Source::Recomputed(v1::Empty {}),
            WindowSource::Replayed(rows) => Source::Replayed(rows),
        };
        Self { source: Some(source) }
    }
}

impl TryFrom<v1::WindowSource> for WindowSource {
    type Error = WireError;

    fn try_from(message: v1::WindowSource) -> Result<Self, WireError> {
        Ok(match required(message.source, "window_source.source")? {
            Source::Cold(_) => Self::Cold,
            Source::Object(_) => Self::Object,
            Source::Recomputed(_) => Self::Recomputed,
            Source::Replayed(rows) => Self::Replayed(rows),
        })
    }
}

impl From<StartReport> for v1::StartReport {
    fn from(report: StartReport) -> Self {
        Self {
            cached_tokens: report.cached_tokens,
            replayed_tokens: report.replayed_tokens,
            window_source: Some(report.window_source.into()),
            exact: report.exact,
            bytes_fetched: report.bytes_fetched,
            prefill: report.prefill.map(Into::into),
        }
    }
}

impl TryFrom<v1::StartReport> for StartReport {
    type Error = WireError;

    fn try_from(message: v1::StartReport) -> Result<Self, WireError> {
        Ok(Self {
            cached_tokens: message.cached_tokens,
            replayed_tokens: message.replayed_tokens,
            window_source: required(message.window_source, "started.window_source")?.try_into()?,
            exact: message.exact,
            bytes_fetched: message.bytes_fetched,
            prefill: message.prefill.map(TryInto::try_into).transpose()?,
        })
    }
}

impl From<DecodeEvent> for v1::DecodeEvent {
    fn from(event: DecodeEvent) -> Self {
        let event = match event {
            DecodeEvent::Started(report) => Decoded::Started(report.into()),
            DecodeEvent::Token(token, None) => Decoded::Token(token.0),
            DecodeEvent::Token(token, Some(logprobs)) => {
                Decoded::Scored(scored_to_wire(token, &logprobs))
            }
            DecodeEvent::Finished(FinishReason::Stop) => {
                Decoded::Finished(v1::FinishReason::Stop.into())
            }
            DecodeEvent::Finished(FinishReason::Length) => {
                Decoded::Finished(v1::FinishReason::Length.into())
            }
            DecodeEvent::Failed(error) => Decoded::Failed(error.into()),
        };
        Self { event: Some(event) }
    }
}

impl TryFrom<v1::DecodeEvent> for DecodeEvent {
    type Error = WireError;

    fn try_from(message: v1::DecodeEvent) -> Result<Self, WireError> {
        Ok(match required(message.event, "event")? {
            Decoded::Started(report) => Self::Started(report.try_into()?),
            Decoded::Token(token) => Self::Token(TokenId(token), None),
            Decoded::Scored(scored) => {
                let (token, logprobs) = scored_from_wire(scored)?;
                Self::Token(token, Some(Box::new(logprobs)))
            }
            Decoded::Finished(reason) => match v1::FinishReason::try_from(reason) {
                Ok(v1::FinishReason::Stop) => Self::Finished(FinishReason::Stop),
                Ok(v1::FinishReason::Length) => Self::Finished(FinishReason::Length),
                Ok(v1::FinishReason::Unspecified) | Err(_) => {
                    let found = reason.to_string();
                    return Err(WireError::Unknown { field: "finished", found });
                }
            },
            Decoded::Failed(error) => Self::Failed(error.try_into()?),
        })
    }
}

impl From<PrefillEvent> for v1::PrefillEvent {
    fn from(event: PrefillEvent) -> Self {
        let event = match event {
            PrefillEvent::Waiting => Prefilled::Waiting(v1::Empty {}),
            PrefillEvent::Sealed { index, block, cached } => {
                let block = Some(block.into());
                Prefilled::Sealed(v1::SealedBlock { index, block, cached })
            }
            PrefillEvent::Window(window) => Prefilled::Window(window.into()),
            PrefillEvent::Finished { replayed_tokens, window_source } => {
                let window_source = Some(window_source.into());
                Prefilled::Finished(v1::PrefillFinished { replayed_tokens, window_source })
            }
            PrefillEvent::Failed(error) => Prefilled::Failed(error.into()),
        };
        Self { event: Some(event) }
    }
}

impl TryFrom<v1::PrefillEvent> for PrefillEvent {
    type Error = WireError;

    fn try_from(message: v1::PrefillEvent) -> Result<Self, WireError> {
        Ok(match required(message.event, "event")? {
            Prefilled::Waiting(_) => Self::Waiting,
            Prefilled::Sealed(v1::SealedBlock { index, block, cached }) => {
                let block = required(block, "sealed.block")?.try_into()?;
                Self::Sealed { index, block, cached }
            }
            Prefilled::Window(window) => Self::Window(window.try_into()?),
            Prefilled::Finished(v1::PrefillFinished { replayed_tokens, window_source }) => {
                let window_source = required(window_source, "finished.window_source")?;
                Self::Finished { replayed_tokens, window_source: window_source.try_into()? }
            }
            Prefilled::Failed(error) => Self::Failed(error.try_into()?),
        })
    }
}

impl From<LocateEvent> for v1::LocateEvent {
    fn from(event: LocateEvent) -> Self {
        let found = event
            .found
            .into_iter()
            .map(|found| match found {
                Ok(descriptor) => v1::Found {
                    descriptor: Some(descriptor.into()),
                    miss: v1::Miss::Unspecified.into(),
                },
                Err(miss) => v1::Found { descriptor: None, miss: v1::Miss::from(miss).into() },
            })
            .collect();
        let Brought { disk, remote } = event.brought;
        Self { found, brought_disk: disk, brought_remote: remote }
    }
}

impl TryFrom<v1::LocateEvent> for LocateEvent {
    type Error = WireError;

    fn try_from(message: v1::LocateEvent) -> Result<Self, WireError> {
        bounded(message.found.len(), OBJECTS_MAX, "found")?;
        let found = message
            .found
            .into_iter()
            .map(|v1::Found { descriptor, miss }| match descriptor {
                Some(descriptor) => Ok(Ok(descriptor.try_into()?)),
                None => Ok(Err(miss_from_wire(miss)?)),
            })
            .collect::<Result<_, WireError>>()?;
        let brought = Brought { disk: message.brought_disk, remote: message.brought_remote };
        Ok(Self { found, brought })
    }
}

impl From<Miss> for v1::Miss {
    fn from(miss: Miss) -> Self {
        match miss {
            Miss::NotAsked => Self::NotAsked,
            Miss::NoAnswer => Self::NoAnswer,
            Miss::NeverStored => Self::NeverStored,
            Miss::Evicted => Self::Evicted,
            Miss::NotAdmitted => Self::NotAdmitted,
            Miss::Expired => Self::Expired,
            Miss::Damaged => Self::Damaged,
            Miss::NoRoom => Self::NoRoom,
            Miss::TooSlow => Self::TooSlow,
        }
    }
}

fn miss_from_wire(miss: i32) -> Result<Miss, WireError> {
    Ok(match v1::Miss::try_from(miss) {
        Ok(v1::Miss::NotAsked) => Miss::NotAsked,
        Ok(v1::Miss::NoAnswer) => Miss::NoAnswer,
        Ok(v1::Miss::NeverStored) => Miss::NeverStored,
        Ok(v1::Miss::Evicted) => Miss::Evicted,
        Ok(v1::Miss::NotAdmitted) => Miss::NotAdmitted,
        Ok(v1::Miss::Expired) => Miss::Expired,
        Ok(v1::Miss::Damaged) => Miss::Damaged,
        Ok(v1::Miss::NoRoom) => Miss::NoRoom,
        Ok(v1::Miss::TooSlow) => Miss::TooSlow,
        Ok(v1::Miss::Unspecified) | Err(_) => {
            return Err(WireError::Unknown { field: "found.miss", found: miss.to_string() });
        }
    })
}

impl From<OfferEvent> for v1::OfferEvent {
    fn from(event: OfferEvent) -> Self {
        let outcome = match event.outcome {
            OfferOutcome::Stored => v1::OfferOutcome::Stored,
            OfferOutcome::AlreadyHeld => v1::OfferOutcome::AlreadyHeld,
            OfferOutcome::Dropped => v1::OfferOutcome::Dropped,
            OfferOutcome::MemoryOnly => v1::OfferOutcome::MemoryOnly,
        };
        Self { key: Some(event.key.into()), outcome: outcome.into() }
    }
}

impl TryFrom<v1::OfferEvent> for OfferEvent {
    type Error = WireError;

    fn try_from(message: v1::OfferEvent) -> Result<Self, WireError> {
        let outcome = match v1::OfferOutcome::try_from(message.outcome) {
            Ok(v1::OfferOutcome::Stored) => OfferOutcome::Stored,
            Ok(v1::OfferOutcome::AlreadyHeld) => OfferOutcome::AlreadyHeld,
            Ok(v1::OfferOutcome::Dropped) => OfferOutcome::Dropped,
            Ok(v1::OfferOutcome::MemoryOnly) => OfferOutcome::MemoryOnly,
            Ok(v1::OfferOutcome::Unspecified) | Err(_) => {
                let found = message.outcome.to_string();
                return Err(WireError::Unknown { field: "outcome", found });
            }
        };
        Ok(Self { key: required(message.key, "key")?.try_into()?, outcome })
    }
}

/// Part `part` of an event, counted from 0, and whether another one follows.
pub(in crate::wire) fn worker_event_part(
    event: &WorkerEvent,
    part: usize,
) -> (v1::WorkerEvent, bool) {
    let (event, more) = match event {
        WorkerEvent::Cache(event) => {
            let (change, more) = match &event.change {
                CacheChange::Cleared => (Change::Cleared(v1::Empty {}), false),
                CacheChange::RangesCleared(ranges) => {
                    (Change::RangesCleared(ranges_to_wire(*ranges)), false)
                }
                CacheChange::Digests(digests) => {
                    let digests = v1::Digests { values: digests.values().to_vec() };
                    (Change::Digests(digests), false)
                }
                CacheChange::Stored { tier, names } => {
                    let (blocks, more) = blocks_part(*tier, names, part);
                    (Change::Stored(blocks), more)
                }
                CacheChange::Removed { tier, names } => {
                    let (blocks, more) = blocks_part(*tier, names, part);
                    (Change::Removed(blocks), more)
                }
            };
            let message = v1::CacheEvent {
                worker: Some(event.worker.into()),
                incarnation: event.incarnation,
                sequence: event.sequence,
                change: Some(change),
                more,
            };
            (Told::Cache(message), more)
        }
        WorkerEvent::Load { worker, report } => {
            let message = v1::Load {
                worker: Some((*worker).into()),
                running: report.running,
                waiting: report.waiting,
                pending_rows: report.pending_rows,
                slots_available: report.slots_available,
                slots: report.slots,
                rows_per_second: report.rows_per_second,
                progress: report.progress,
                draining: report.draining,
                rates: Some(rates_to_wire(report.rates)),
            };
            (Told::Load(message), false)
        }
    };
    (v1::WorkerEvent { event: Some(event) }, more)
}

fn blocks_part(tier: Tier, names: &[BlockName], part: usize) -> (v1::Blocks, bool) {
    let tier = match tier {
        Tier::Device => v1::Tier::Device,
        Tier::Host => v1::Tier::Host,
        Tier::Disk => v1::Tier::Disk,
        Tier::Remote => v1::Tier::Remote,
    };
    let start = names.len().min(part * PART_NAMES_MAX);
    let end = names.len().min(start + PART_NAMES_MAX);
    let blocks = v1::Blocks { tier: tier.into(), names: names_to_wire(&names[start..end]) };
    (blocks, end < names.len())
}

/// Puts the parts of events together. Holds at most [`CHANGE_NAMES_MAX`] names.
#[derive(Debug, Default)]
pub(in crate::wire) struct Assembler {
    begun: Option<CacheEvent>,
}

impl Assembler {
    /// Takes the next message; gives the event it completes.
    pub(in crate::wire) fn push(
        &mut self,
        message: v1::WorkerEvent,
    ) -> Result<Option<WorkerEvent>, WireError> {
        let message = match required(message.event, "event")? {
            Told::Cache(message) => message,
            Told::Load(_) if self.begun.is_some() => {
                return Err(WireError::Parts { field: "event" });
            }
            Told::Load(message) => return load(message).map(Some),
        };
        let more = message.more;
        let part = cache_event(message)?;
        let event = match self.begun.take() {
            None => part,
            Some(begun) => joined(begun, part)?,
        };
        if more {
            self.begun = Some(event);
            return Ok(None);
        }
        Ok(Some(WorkerEvent::Cache(event)))
    }
}

fn load(message: v1::Load) -> Result<WorkerEvent, WireError> {
    let worker = required(message.worker, "load.worker")?.try_into()?;
    let rows_per_second = message.rows_per_second;
    if !rows_per_second.is_finite() || rows_per_second < 0.0 {
        return Err(WireError::Range {
            field: "load.rows_per_second",
            found: rows_per_second.to_string(),
            expected: "a finite number from 0",
        });
    }
    let report = LoadReport {
        running: message.running,
        waiting: message.waiting,
        pending_rows: message.pending_rows,
        slots_available: message.slots_available,
        slots: message.slots,
        rows_per_second,
        progress: message.progress,
        draining: message.draining,
        rates: message.rates.map_or_else(WorkerRates::default, rates_from_wire),
    };
    Ok(WorkerEvent::Load { worker, report })
}

fn rates_to_wire(rates: WorkerRates) -> v1::Rates {
    let WorkerRates {
        step_ns,
        restore_host_ns,
        restore_disk_ns,
        restore_remote_ns,
        restore_peer_ns,
        handoff_ns,
    } = rates;
    v1::Rates {
        step_ns,
        restore_host_ns,
        restore_disk_ns,
        restore_remote_ns,
        restore_peer_ns,
        handoff_ns,
    }
}

fn rates_from_wire(message: v1::Rates) -> WorkerRates {
    let v1::Rates {
        step_ns,
        restore_host_ns,
        restore_disk_ns,
        restore_remote_ns,
        restore_peer_ns,
        handoff_ns,
    } = message;
    WorkerRates {
        step_ns,
        restore_host_ns,
        restore_disk_ns,
        restore_remote_ns,
        restore_peer_ns,
        handoff_ns,
    }
}

fn cache_event(message: v1::CacheEvent) -> Result<CacheEvent, WireError> {
    let change = match required(message.change, "cache.change")? {
        Change::Stored(blocks) => {
            let (tier, names) = blocks_from_wire(&blocks)?;
            CacheChange::Stored { tier, names }
        }
        Change::Removed(blocks) => {
            let (tier, names) = blocks_from_wire(&blocks)?;
            CacheChange::Removed { tier, names }
        }
        Change::Cleared(_) => CacheChange::Cleared,
        Change::RangesCleared(ranges) => {
            CacheChange::RangesCleared(ranges_from_wire(&ranges, "ranges_cleared.words")?)
        }
        Change::Digests(digests) => {
            let (found, field) = (digests.values.len(), "digests.values");
            let values = digests.values.try_into();
            let values = values.map_err(|_| WireError::Count { field, found, expected: RANGES })?;
            CacheChange::Digests(RangeDigests::from_values(values))
        }
    };
    Ok(CacheEvent {
        worker: required(message.worker, "cache.worker")?.try_into()?,
        incarnation: message.incarnation,
        sequence: message.sequence,
        change,
    })
}

/// A question that goes as a call of its own; none for one that a new beginning of the watch asks.
pub(in crate::wire) fn question_to_wire(question: &CacheQuestion) -> Option<v1::AskRequest> {
    let question = match question {
        CacheQuestion::Digests => Question::Digests(v1::Empty {}),
        CacheQuestion::Ranges(ranges) => Question::Ranges(ranges_to_wire(*ranges)),
        CacheQuestion::Whole => return None,
    };
    Some(v1::AskRequest { question: Some(question) })
}

pub(in crate::wire) fn question_from_wire(
    message: v1::AskRequest,
) -> Result<CacheQuestion, WireError> {
    Ok(match required(message.question, "question")? {
        Question::Digests(_) => CacheQuestion::Digests,
        Question::Ranges(ranges) => {
            CacheQuestion::Ranges(ranges_from_wire(&ranges, "ranges.words")?)
        }
    })
}

fn ranges_to_wire(ranges: RangeSet) -> v1::Ranges {
    v1::Ranges { words: ranges.words().to_vec() }
}

fn ranges_from_wire(message: &v1::Ranges, field: &'static str) -> Result<RangeSet, WireError> {
    let words = message.words.as_slice().try_into();
    let found = message.words.len();
    let words = words.map_err(|_| WireError::Count { field, found, expected: 4 })?;
    Ok(RangeSet::from_words(words))
}

fn blocks_from_wire(message: &v1::Blocks) -> Result<(Tier, Vec<BlockName>), WireError> {
    let tier = match v1::Tier::try_from(message.tier) {
        Ok(v1::Tier::Device) => Tier::Device,
        Ok(v1::Tier::Host) => Tier::Host,
        Ok(v1::Tier::Disk) => Tier::Disk,
        Ok(v1::Tier::Remote) => Tier::Remote,
        Ok(v1::Tier::Unspecified) | Err(_) => {
            let found = message.tier.to_string();
            return Err(WireError::Unknown { field: "blocks.tier", found });
        }
    };
    Ok((tier, names_from_wire(&message.names, PART_NAMES_MAX, "blocks.names")?))
}

/// The event made of what came so far and the next part of it.
fn joined(mut begun: CacheEvent, part: CacheEvent) -> Result<CacheEvent, WireError> {
    let place = |event: &CacheEvent| (event.worker, event.incarnation, event.sequence);
    if place(&begun) != place(&part) {
        return Err(WireError::Parts { field: "cache.sequence" });
    }
    let (names, more) = match (&mut begun.change, part.change) {
        (
            CacheChange::Stored { tier, names },
            CacheChange::Stored { tier: part_tier, names: more },
        )
        | (
            CacheChange::Removed { tier, names },
            CacheChange::Removed { tier: part_tier, names: more },
        ) if *tier == part_tier => (names, more),
        _ => return Err(WireError::Parts { field: "cache.change" }),
    };
    bounded(names.len() + more.len(), CHANGE_NAMES_MAX, "blocks.names")?;
    names.extend(more);
    Ok(begun)
}
