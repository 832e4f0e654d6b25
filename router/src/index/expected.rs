//! Blocks that placed requests are expected to bring, until when. What counts is kept in the sets of holders; this is the
//! list of what has to be taken back.

use std::collections::BTreeMap;
use std::sync::Arc;

use shared::{BlockName, Timestamp};

use super::Slot;

/// The members that one request is to bring its blocks to: one, or two different ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    first: Slot,
    second: Option<Slot>,
}

impl Slots {
    pub(super) fn one(slot: Slot) -> Self {
        Self { first: slot, second: None }
    }

    /// With a second one.
    pub(super) fn and(self, slot: Slot) -> Self {
        assert!(self.second.is_none() && self.first != slot, "two different members");
        Self { first: self.first.min(slot), second: Some(self.first.max(slot)) }
    }

    /// Ascending.
    pub(super) fn iter(self) -> impl Iterator<Item = Slot> {
        [Some(self.first), self.second].into_iter().flatten()
    }

    fn without(self, slot: Slot) -> Option<Self> {
        match (self.first == slot, self.second) {
            (true, second) => second.map(Self::one),
            (false, second) => Some(Self { second: second.filter(|&it| it != slot), ..self }),
        }
    }

    fn len(self) -> usize {
        1 + usize::from(self.second.is_some())
    }
}

/// What is expected for one request.
#[derive(Clone, Debug)]
pub(super) struct Expectation {
    pub(super) slots: Slots,
    pub(super) names: Arc<[BlockName]>,
}

impl Expectation {
    fn blocks(&self) -> usize {
        self.names.len() * self.slots.len()
    }
}

/// All expectations that did not end, by their end.
#[derive(Debug)]
pub(super) struct Expectations {
    pending: BTreeMap<(Timestamp, u64), Expectation>,
    next: u64,
    blocks: usize,
    blocks_max: usize,
}

impl Expectations {
    pub(super) fn new(blocks_max: usize) -> Self {
        Self { pending: BTreeMap::new(), next: 0, blocks: 0, blocks_max }
    }

    /// For how many members there is room to expect so many blocks of each.
    pub(super) fn room(&self, blocks: usize) -> usize {
        (self.blocks_max - self.blocks).checked_div(blocks).unwrap_or(usize::MAX)
    }

    /// Keeps an expectation. There is room for it.
    pub(super) fn push(&mut self, until: Timestamp, expectation: Expectation) {
        self.blocks += expectation.blocks();
        assert!(self.blocks <= self.blocks_max, "who expects asked for room");
        self.pending.insert((until, self.next), expectation);
        self.next += 1;
    }

    /// The next one that ended.
    pub(super) fn pop_ended(&mut self, now: Timestamp) -> Option<Expectation> {
        let first = self.pending.first_entry().filter(|first| first.key().0 <= now)?;
        let ended = first.remove();
        self.blocks -= ended.blocks();
        Some(ended)
    }

    /// Forgets what is expected of one member.
    pub(super) fn forget(&mut self, slot: Slot) {
        let blocks = &mut self.blocks;
        self.pending.retain(|_, expectation| {
            *blocks -= expectation.blocks();
            let Some(slots) = expectation.slots.without(slot) else { return false };
            expectation.slots = slots;
            *blocks += expectation.blocks();
            true
        });
    }

    /// Blocks of all expectations, those confirmed since among them.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }
}
