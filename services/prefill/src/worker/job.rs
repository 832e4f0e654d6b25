//! One request and everything it holds.

use std::collections::VecDeque;

use engine::{Floors, RowPlan, Sequence};
use kvstore::{BlockFate, OwnedSlot, Pool, SealedSlot};
use shared::{
    BLOCK_TOKENS, BlockName, Flow, PrefillEvent, PrefillRequest, Sink, Ticket, Timestamp,
    WindowSource,
};

/// A request from its submission until its ticket drops.
pub(super) struct Job {
    pub(super) request: PrefillRequest,
    /// Where events go; none once the request is over.
    pub(super) sink: Option<Box<dyn Sink<PrefillEvent>>>,
    /// The leading blocks that exist, pinned.
    pub(super) run: Vec<SealedSlot>,
    /// How each block of `[0, S)` was come by so far; empty while the request is queued.
    pub(super) fates: Vec<BlockFate>,
    /// How many of `run` existed before this request; all of them until it computes.
    pub(super) cached_blocks: usize,
    /// Index of the next block to announce.
    pub(super) announced: usize,
    /// Reserved slots for the blocks behind `run`, in block order once the request computes.
    pub(super) spare: VecDeque<OwnedSlot>,
    /// The window object at the end, once it exists.
    pub(super) window: Option<SealedSlot>,
    /// The slot reserved for it.
    pub(super) window_slot: Option<OwnedSlot>,
    pub(super) stage: Stage,
}

/// Where a request is.
pub(super) enum Stage {
    /// In the scheduler's queue, holding nothing.
    Queued,
    /// The store is asked what it has.
    Locating(Locating),
    /// Blocks and window objects are being read.
    Reading(Reading),
    /// Rows are being computed.
    Computing(Box<Computing>),
    /// Everything is announced.
    Held,
}

pub(super) struct Locating {
    /// Pins what was found until the reads are over.
    pub(super) ticket: Ticket,
    pub(super) since: Timestamp,
    pub(super) deadline: Timestamp,
    /// The positions of the window objects that were asked for, in the order asked, behind the blocks.
    pub(super) windows_at: Vec<u32>,
}

pub(super) struct Reading {
    /// None once the reads were cancelled for being late.
    pub(super) reads: Option<Ticket>,
    pub(super) _located: Ticket,
    pub(super) deadline: Timestamp,
    pub(super) started: Timestamp,
    pub(super) outstanding: usize,
    pub(super) bytes: u32,
    /// A window object that came, kept from eviction until the start is planned.
    pub(super) window: Option<SealedSlot>,
}

pub(super) struct Computing {
    pub(super) sequence: Sequence,
    pub(super) floors: Floors,
    /// The rows of one step; kept to reuse its memory.
    pub(super) rows: Vec<RowPlan>,
    /// Whether everything computed so far is what a cold run computes.
    pub(super) exact: bool,
    pub(super) replayed_tokens: u32,
    pub(super) window_source: WindowSource,
}

impl Job {
    pub(super) fn new(request: PrefillRequest, sink: Box<dyn Sink<PrefillEvent>>) -> Self {
        let announced = blocks(request.from);
        Self {
            request,
            sink: Some(sink),
            run: Vec::new(),
            fates: Vec::new(),
            cached_blocks: usize::MAX,
            announced,
            spare: VecDeque::new(),
            window: None,
            window_slot: None,
            stage: Stage::Queued,
        }
    }

    /// Blocks of `[0, S)`.
    pub(super) fn block_count(&self) -> usize {
        self.request.names.len()
    }

    /// The name of the window object at S.
    pub(super) fn last_name(&self) -> BlockName {
        *self.request.names.last().expect("a request has at least one block")
    }

    /// One past the last token of `run`.
    pub(super) fn run_end(&self) -> u32 {
        tokens(self.run.len())
    }

    /// Announces the blocks of `run` that were not announced yet.
    pub(super) fn announce(&mut self) -> Flow {
        let Some(sink) = &mut self.sink else { return Flow::Closed };
        while let Some(slot) = self.run.get(self.announced) {
            let event = PrefillEvent::Sealed {
                index: u32::try_from(self.announced).expect("positions have 32 bits"),
                block: slot.descriptor(),
                cached: self.announced < self.cached_blocks,
            };
            self.announced += 1;
            if sink.emit(event) == Flow::Closed {
                return Flow::Closed;
            }
        }
        Flow::Open
    }

    /// Gives everything back: reads are cancelled first, the run is released last block first.
    pub(super) fn release(self, pool: &Pool) {
        let Self { stage, run, .. } = self;
        drop(stage);
        pool.release(run);
    }
}

/// Blocks before a block boundary.
pub(super) fn blocks(position: u32) -> usize {
    usize::try_from(position / BLOCK_TOKENS).expect("usize holds 32 bits on every target")
}

/// Tokens of so many blocks.
pub(super) fn tokens(blocks: usize) -> u32 {
    u32::try_from(blocks).expect("positions have 32 bits") * BLOCK_TOKENS
}
