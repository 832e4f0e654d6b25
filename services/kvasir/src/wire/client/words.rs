//! Sinks that do not forget their last event: whatever ends a call, a task's drop included, the caller is told once.

use std::collections::BTreeSet;

use shared::{Descriptor, Flow, ObjectKey, OfferEvent, OfferOutcome, Sink};

use crate::wire::streams::{After, BorderEvent};

/// A sink, and what it is told when the call breaks off.
pub(super) struct LastWord<E: BorderEvent> {
    sink: Box<dyn Sink<E>>,
    lost: Option<E>,
}

impl<E: BorderEvent> LastWord<E> {
    pub(super) fn new(sink: Box<dyn Sink<E>>, lost: E) -> Self {
        Self { sink, lost: Some(lost) }
    }

    /// Passes an event on. Behind a last one, or when nobody listens any more, nothing more is said.
    pub(super) fn pass(&mut self, event: E) -> Flow {
        let last = event.after() != After::GoesOn;
        let flow = self.sink.emit(event);
        if last || flow == Flow::Closed {
            self.lost = None;
        }
        flow
    }

    /// Says this instead of what a break would say, unless the last word was said.
    pub(super) fn last(&mut self, event: E) {
        if self.lost.take().is_some() {
            // There is nothing more to say, closed or not.
            let _: Flow = self.sink.emit(event);
        }
    }

    /// Nobody listens any more.
    pub(super) fn forget(&mut self) {
        self.lost = None;
    }
}

impl<E: BorderEvent> Drop for LastWord<E> {
    fn drop(&mut self) {
        if let Some(event) = self.lost.take() {
            // There is nothing more to say, closed or not.
            let _: Flow = self.sink.emit(event);
        }
    }
}

/// The sink of an offer, and the objects without an answer; those are dropped when the call breaks off.
pub(super) struct OfferWords {
    sink: Box<dyn Sink<OfferEvent>>,
    open: BTreeSet<ObjectKey>,
}

impl OfferWords {
    pub(super) fn new(sink: Box<dyn Sink<OfferEvent>>, objects: &[Descriptor]) -> Self {
        Self { sink, open: objects.iter().map(|object| object.key).collect() }
    }

    /// Whether every object has its answer, or nobody listens any more.
    pub(super) fn is_over(&self) -> bool {
        self.open.is_empty()
    }

    /// Passes an answer on, once per object.
    pub(super) fn pass(&mut self, event: OfferEvent) {
        if self.open.remove(&event.key) && self.sink.emit(event) == Flow::Closed {
            self.open.clear();
        }
    }

    /// Nobody listens any more.
    pub(super) fn forget(&mut self) {
        self.open.clear();
    }
}

impl Drop for OfferWords {
    fn drop(&mut self) {
        while let Some(key) = self.open.pop_first() {
            let event = OfferEvent { key, outcome: OfferOutcome::Dropped };
            if self.sink.emit(event) == Flow::Closed {
                break;
            }
        }
    }
}
