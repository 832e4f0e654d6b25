//! Virtual time for pure deciders: a seeded generator, an agenda of events, and a pool that knows who owns which slot.
//!
//! Nothing here knows which scheduler is driven: the model of a worker around it brings its own event type.

use std::collections::BTreeMap;
use std::fmt::Debug;

use shared::Timestamp;

/// What will happen when. Events of one instant keep the order in which they were entered.
pub(crate) struct Agenda<E> {
    now: Timestamp,
    entered: u64,
    events: BTreeMap<(Timestamp, u64), E>,
}

impl<E> Agenda<E> {
    pub(crate) fn new() -> Self {
        Self { now: Timestamp(0), entered: 0, events: BTreeMap::new() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    pub(crate) fn enter(&mut self, delay: u32, event: E) {
        self.entered += 1;
        self.events.insert((Timestamp(self.now.0 + u64::from(delay)), self.entered), event);
    }

    /// The next event; time moves to it.
    pub(crate) fn next(&mut self) -> Option<E> {
        let ((at, _), event) = self.events.pop_first()?;
        self.now = at;
        Some(event)
    }
}

/// Counts slots per owner; owning more than there are is a failed test.
pub(crate) struct SlotLedger<K> {
    slots: u32,
    owned: BTreeMap<K, u32>,
}

impl<K: Ord + Copy + Debug> SlotLedger<K> {
    pub(crate) fn new(slots: u32) -> Self {
        Self { slots, owned: BTreeMap::new() }
    }

    pub(crate) fn own(&mut self, key: K, slots: u32) {
        let owned = self.owned.entry(key).or_insert(0);
        *owned = slots.max(*owned);
        assert!(self.total() <= self.slots, "{key:?} took a slot that was not there");
    }

    pub(crate) fn owned(&self, key: K) -> u32 {
        self.owned.get(&key).copied().unwrap_or(0)
    }

    pub(crate) fn give_back(&mut self, key: K) {
        self.owned.remove(&key);
    }

    pub(crate) fn total(&self) -> u32 {
        self.owned.values().sum()
    }
}
