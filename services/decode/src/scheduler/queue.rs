//! The queue before admission: preempted sequences in order of arrival, then new ones in order of arrival.

use std::collections::{BTreeMap, VecDeque};

use crate::scheduler::{Arrival, SequenceKey, Stage};

#[derive(Debug, Default)]
pub(super) struct Queue {
    preempted: BTreeMap<SequenceKey, Arrival>,
    waiting: VecDeque<Arrival>,
}

impl Queue {
    pub(super) fn push(&mut self, arrival: Arrival) {
        self.waiting.push_back(arrival);
    }

    pub(super) fn push_preempted(&mut self, arrival: Arrival) {
        self.preempted.insert(arrival.key, arrival);
    }

    pub(super) fn head(&self) -> Option<&Arrival> {
        self.preempted.values().next().or_else(|| self.waiting.front())
    }

    pub(super) fn pop(&mut self) {
        if self.preempted.pop_first().is_none() {
            self.waiting.pop_front();
        }
    }

    pub(super) fn remove(&mut self, key: SequenceKey) {
        if self.preempted.remove(&key).is_none() {
            self.waiting.retain(|arrival| arrival.key != key);
        }
    }

    pub(super) fn stage(&self, key: SequenceKey) -> Option<Stage> {
        self.iter().find(|(arrival, _)| arrival.key == key).map(|(_, stage)| stage)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arrival, Stage)> {
        let preempted = self.preempted.values().map(|arrival| (arrival, Stage::Preempted));
        preempted.chain(self.waiting.iter().map(|arrival| (arrival, Stage::Queued)))
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn preempted(&self) -> usize {
        self.preempted.len()
    }
}
