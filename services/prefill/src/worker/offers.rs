//! Objects offered to the store and not answered yet: each stays pinned until its outcome came.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kvstore::SealedSlot;
use shared::{
    BlockStore, Durability, Flow, Grouped, ObjectKey, OfferEvent, OfferOutcome, RequestContext,
    Sink, Ticket, Timestamp, ungrouped,
};

use crate::mailbox::{Command, Mailbox, OfferId};

/// The outstanding offers of a worker.
pub(super) struct Offers {
    open: HashMap<OfferId, Offer>,
    outstanding: usize,
    outstanding_max: usize,
    durability: Durability,
    next_id: u64,
}

/// One call of `BlockStore::offer`.
struct Offer {
    /// Dropping it withdraws the offer; it goes before the pins do.
    _ticket: Ticket,
    pinned: HashMap<ObjectKey, SealedSlot>,
    since: Timestamp,
}

impl Offers {
    pub(super) fn new(outstanding_max: usize, durability: Durability) -> Self {
        Self { open: HashMap::new(), outstanding: 0, outstanding_max, durability, next_id: 0 }
    }

    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Offers as many of `objects` as the bound leaves room for, and answers how many were skipped: the last ones, because
    /// later blocks of a chain are of no use without the earlier ones.
    pub(super) fn offer(
        &mut self,
        context: RequestContext,
        mut objects: Vec<Grouped<SealedSlot>>,
        store: &dyn BlockStore,
        mailbox: &Arc<Mailbox>,
        now: Timestamp,
    ) -> usize {
        let room = self.outstanding_max - self.outstanding;
        let skipped = objects.len().saturating_sub(room);
        objects.truncate(room);
        if objects.is_empty() {
            return skipped;
        }
        let id = OfferId(self.next_id);
        self.next_id += 1;
        let descriptor = |Grouped { item, group }: &Grouped<SealedSlot>| Grouped {
            item: item.descriptor(),
            group: *group,
        };
        let descriptors: Vec<_> = objects.iter().map(descriptor).collect();
        let count = descriptors.len();
        let pinned: HashMap<_, _> =
            ungrouped(objects).into_iter().map(|slot| (slot.descriptor().key, slot)).collect();
        assert_eq!(pinned.len(), count, "an offer names each object once");
        self.outstanding += count;
        // The outcomes and the end.
        mailbox.promise(count + 1);
        let sink = OfferSink { id, mailbox: Arc::clone(mailbox), events_left: count };
        // Outcomes come through the mailbox, so the offer is in the map before one of them is handled.
        let ticket = store.offer(context, descriptors, self.durability, Box::new(sink));
        self.open.insert(id, Offer { _ticket: ticket, pinned, since: now });
        skipped
    }

    /// An outcome came: the object is unpinned. Answers what it was, none when the object was not outstanding.
    pub(super) fn settle(&mut self, id: OfferId, event: OfferEvent) -> Option<OfferOutcome> {
        let offer = self.open.get_mut(&id)?;
        offer.pinned.remove(&event.key)?;
        self.outstanding -= 1;
        if offer.pinned.is_empty() {
            self.open.remove(&id);
        }
        Some(event.outcome)
    }

    /// The store will say no more about this offer. Answers how many objects it never spoke about.
    pub(super) fn close(&mut self, id: OfferId) -> usize {
        let unanswered = self.open.remove(&id).map_or(0, |offer| offer.pinned.len());
        self.outstanding -= unanswered;
        unanswered
    }

    /// Withdraws the offers that were not answered completely within `wait`. Answers how many objects they still pinned.
    pub(super) fn withdraw(&mut self, now: Timestamp, wait: Duration) -> usize {
        let mut withdrawn = 0;
        self.open.retain(|_, offer| {
            let late = wait < now.since(offer.since);
            withdrawn += if late { offer.pinned.len() } else { 0 };
            !late
        });
        self.outstanding -= withdrawn;
        withdrawn
    }

    /// Withdraws everything.
    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.outstanding = 0;
    }
}

/// Passes outcomes on, and says so when the store lets go of it: a lost offer must not pin for ever.
struct OfferSink {
    id: OfferId,
    mailbox: Arc<Mailbox>,
    events_left: usize,
}

impl Sink<OfferEvent> for OfferSink {
    fn emit(&mut self, event: OfferEvent) -> Flow {
        let Some(left) = self.events_left.checked_sub(1) else { return Flow::Closed };
        self.events_left = left;
        self.mailbox.send(Command::Offered(self.id, event));
        Flow::Open
    }
}

impl Drop for OfferSink {
    fn drop(&mut self) {
        self.mailbox.forgo(self.events_left);
        self.mailbox.send(Command::OfferOver(self.id));
    }
}
