//! What a decode worker knows about its requests in virtual time: which blocks it has, which rows it computed, what its
//! clients were told.

use std::collections::BTreeSet;

use decode::{Scheduler, SchedulerLimits, SequenceKey};
use prefill::PrefillId;
use shared::{BLOCK_TOKENS, Random, StartGeometry};

pub(super) const GEOMETRY: StartGeometry =
    StartGeometry { window: 128, rollback: 12, encoder_layers: 5 };

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Open,
    Finished,
    Refused,
    Cancelled,
    Expired,
}

/// A start under way.
#[derive(Default)]
pub(super) struct Starting {
    /// Blocks that are here.
    pub(super) here: BTreeSet<u32>,
    pub(super) visit: Option<PrefillId>,
    /// Whether the visit announced everything.
    pub(super) announced: bool,
    pub(super) attempts: u32,
}

impl Starting {
    /// Leading blocks that are here.
    pub(super) fn run(&self) -> u32 {
        (0..).take_while(|block| self.here.contains(block)).count().try_into().unwrap()
    }
}

/// One request and its client.
pub(super) struct Request {
    pub(super) prompt: u32,
    pub(super) tokens_max: u32,
    /// Tokens the model would say if nothing cut it.
    pub(super) answer: u32,
    /// What the client received: numbers of tokens.
    pub(super) received: Vec<u32>,
    pub(super) outcome: Outcome,
    pub(super) starting: Option<Starting>,
    /// Rows below are computed, or their blocks attached.
    pub(super) processed: u32,
    /// Blocks in own slots, those being read included.
    pub(super) owned: u32,
    /// Reads under way. A sequence that leaves has its slots back when none is.
    pub(super) reads_open: u32,
    /// Whether it leaves and its slots are to be reported.
    pub(super) leaving: bool,
    /// Raised by every admission.
    pub(super) life: u32,
}

impl Request {
    pub(super) fn new(draws: &mut Random) -> Self {
        let longest = if draws.happens(0.4) { 300 } else { 1_400 };
        Self {
            prompt: draws.between(1, longest),
            tokens_max: 0,
            answer: draws.between(1, 600),
            received: Vec::new(),
            outcome: Outcome::Open,
            starting: None,
            processed: 0,
            owned: 0,
            reads_open: 0,
            leaving: false,
            life: 0,
        }
    }

    /// Tokens known so far.
    pub(super) fn known(&self) -> u32 {
        self.prompt + u32::try_from(self.received.len()).unwrap()
    }

    /// Blocks of `[0, S)`, which a resumed request keeps.
    pub(super) fn boundary_blocks(&self) -> u32 {
        GEOMETRY.boundary(self.prompt) / BLOCK_TOKENS
    }

    /// Computes the row at `position`, which must be the next one, into a slot that is reserved.
    pub(super) fn row(&mut self, position: u32, reserved: u32) {
        assert_eq!(self.outcome, Outcome::Open, "no row behind the end");
        assert_eq!(self.processed, position, "no row twice, none left out");
        assert!(position < self.known(), "a row has its token");
        self.processed += 1;
        self.owned = self.owned.max(position / BLOCK_TOKENS + 1);
        assert!(self.owned <= reserved, "a row beyond the reservation");
    }

    /// Draws the token behind the last row. Says whether it ends the answer.
    pub(super) fn draw(&mut self) -> bool {
        let number = self.processed - self.prompt;
        assert_eq!(number, u32::try_from(self.received.len()).unwrap(), "lost or repeated");
        self.received.push(number);
        assert!(self.known() <= self.tokens_max);
        self.received.len() == usize::try_from(self.answer).unwrap()
            || self.known() == self.tokens_max
    }

    pub(super) fn check_end(&self, key: SequenceKey) {
        assert_ne!(self.outcome, Outcome::Open, "{key:?} never got an answer");
        assert_eq!((self.owned, self.reads_open), (0, 0), "leaked slots of {key:?}");
        if self.outcome == Outcome::Finished {
            let expected = self.answer.min(self.tokens_max - self.prompt);
            assert!(self.received.iter().copied().eq(0..expected), "{key:?}");
        }
    }
}

pub(super) fn limits(draws: &mut Random) -> SchedulerLimits {
    let mut bound = |low, high| usize::try_from(draws.between(low, high)).unwrap();
    SchedulerLimits {
        sequences_max: bound(2, 10),
        waiting_max: bound(2, 16),
        decode_rows_step_max: bound(1, 6),
        blocks_max: draws.between(6, 24),
        tail_rows_step_max: draws.between(128, 700),
        context_tokens_max: draws.between(600, 3_000),
    }
}

pub(super) fn check(scheduler: &Scheduler, limits: SchedulerLimits) {
    assert!(scheduler.live() <= limits.sequences_max);
    assert!(scheduler.blocks_reserved() <= limits.blocks_max);
}
