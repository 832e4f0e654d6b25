//! A store that never answers.

use parking_lot::Mutex;
use shared::{
    BlockStore, Descriptor, Durability, Grouped, LocateEvent, ObjectKey, OfferEvent,
    RequestContext, Sink, Ticket,
};

/// Keeps every sink and says nothing.
#[derive(Default)]
pub(crate) struct SilentStore {
    lookups: Mutex<Vec<Box<dyn Sink<LocateEvent>>>>,
    offers: Mutex<Vec<Box<dyn Sink<OfferEvent>>>>,
}

impl SilentStore {
    pub(crate) fn lookups(&self) -> usize {
        self.lookups.lock().len()
    }

    /// Drops the sinks of all offers: their outcome will never be known.
    pub(crate) fn drop_offers(&self) -> usize {
        std::mem::take(&mut *self.offers.lock()).len()
    }
}

impl BlockStore for SilentStore {
    fn locate(
        &self,
        _: RequestContext,
        _: Vec<Grouped<ObjectKey>>,
        sink: Box<dyn Sink<LocateEvent>>,
    ) -> Ticket {
        self.lookups.lock().push(sink);
        Ticket::empty()
    }

    fn offer(
        &self,
        _: RequestContext,
        _: Vec<Grouped<Descriptor>>,
        _: Durability,
        sink: Box<dyn Sink<OfferEvent>>,
    ) -> Ticket {
        self.offers.lock().push(sink);
        Ticket::empty()
    }
}
