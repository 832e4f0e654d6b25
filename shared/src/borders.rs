//! The traits between services.
//!
//! All of them are synchronous, object-safe and never block: `submit` hands over a request and a sink and returns a
//! [`Ticket`]; the implementation emits events into the sink from a thread of its own; dropping the ticket cancels.
//! A local and a remote implementation differ in wiring only.

use std::fmt;
use std::sync::Arc;

use crate::events::{DecodeEvent, LegOutcome, LocateEvent, OfferEvent, PlaceEvent, PrefillEvent};
use crate::groups::Grouped;
use crate::ids::{Generation, RequestContext, RequestId, SlotIndex, WorkerRank};
use crate::objects::{Descriptor, ObjectKey};
use crate::requests::{DecodeRequest, PlaceRequest, PrefillRequest};

/// Whether a sink still wants events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Flow {
    /// Go on.
    Open,
    /// Stop: nobody listens any more. Equal to a dropped ticket.
    Closed,
}

/// Receives the events of one request, in order, from one thread at a time.
///
/// `emit` must not block: an implementation that cannot take an event answers [`Flow::Closed`].
pub trait Sink<E>: Send {
    /// Takes one event.
    fn emit(&mut self, event: E) -> Flow;
}

impl<E, F: FnMut(E) -> Flow + Send> Sink<E> for F {
    fn emit(&mut self, event: E) -> Flow {
        self(event)
    }
}

/// Keeps a request alive. Dropping it cancels the request, or releases what a finished request still pins.
#[must_use = "dropping a ticket cancels the request"]
pub struct Ticket(Option<Box<dyn FnOnce() + Send>>);

impl Ticket {
    /// A ticket whose drop runs `release` once. `release` must not block.
    pub fn new(release: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(release)))
    }

    /// A ticket that releases nothing, for requests that are over when `submit` returns.
    pub fn empty() -> Self {
        Self(None)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("armed", &self.0.is_some()).finish()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(release) = self.0.take() {
            release();
        }
    }
}

/// A decode worker: the whole model, tails, decoding and sampling.
pub trait Decode: Send + Sync {
    /// Starts a request. Refusals, too, come through the sink.
    fn submit(&self, request: DecodeRequest, sink: Box<dyn Sink<DecodeEvent>>) -> Ticket;
}

/// A prefill worker: encoder only; sealed blocks and window objects.
pub trait Prefill: Send + Sync {
    /// Starts a request. Announced objects stay readable until the ticket drops.
    fn submit(&self, request: PrefillRequest, sink: Box<dyn Sink<PrefillEvent>>) -> Ticket;
}

/// The router's placement.
pub trait Placer: Send + Sync {
    /// Asks for a placement. The ticket stands for the running request: the load it causes counts until it drops.
    fn submit(&self, request: PlaceRequest, sink: Box<dyn Sink<PlaceEvent>>) -> Ticket;

    /// Tells how the run of a placed request on its decode worker goes: at most `Started` and one more per placement, the
    /// latter before its ticket drops. Never blocks. What is told may be lost, since it only makes later placements
    /// better; implementations that learn nothing ignore it.
    fn outcome(&self, id: RequestId, worker: WorkerRank, outcome: LegOutcome) {
        let _nothing_to_learn = (id, worker, outcome);
    }
}

/// A store of cached objects outside a worker: host memory, drives, other nodes.
///
/// Callers say the group of each object, which decides where it lies among several nodes; one node does without.
pub trait BlockStore: Send + Sync {
    /// Looks keys up and pins what is found until the ticket drops. One event.
    fn locate(
        &self,
        context: RequestContext,
        keys: Vec<Grouped<ObjectKey>>,
        sink: Box<dyn Sink<LocateEvent>>,
    ) -> Ticket;

    /// Offers objects; the store reads those it wants and answers one event per object, in any order, when it is as
    /// durable as asked for or will not be. Dropping the ticket before that withdraws the offers not yet being read; what is
    /// on its way to a disk goes on.
    fn offer(
        &self,
        context: RequestContext,
        objects: Vec<Grouped<Descriptor>>,
        durability: Durability,
        sink: Box<dyn Sink<OfferEvent>>,
    ) -> Ticket;
}

/// Where an offered object is to be before its offer counts as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durability {
    /// In a store's memory. A store with a disk writes it there some time later, if it can.
    Memory,
    /// On a store's disk as well: payload synced, then found by its catalog. Survives the loss of process and power, as
    /// far as the drive keeps what it said to have synced. Window objects are never on disk.
    Disk,
}

/// Finds decode workers by name. Members may come and go between calls.
pub trait DecodeDirectory: Send + Sync {
    /// The worker, if it is a member now.
    fn decode(&self, worker: WorkerRank) -> Option<Arc<dyn Decode>>;
}

/// Finds prefill workers by name. Members may come and go between calls.
pub trait PrefillDirectory: Send + Sync {
    /// The worker, if it is a member now.
    fn prefill(&self, worker: WorkerRank) -> Option<Arc<dyn Prefill>>;

    /// All members now, for a second choice when the router's is gone.
    fn prefill_members(&self) -> Vec<WorkerRank>;
}

/// Memory made of equal slots, each read and written as a whole.
///
/// Contract: a slot is written only by its owner and never while it is sealed; readers come through a transport that
/// holds the slot open. Implementations guard each slot, so that a broken contract shows as waiting, not as torn bytes.
pub trait SlotMemory: Send + Sync {
    /// Number of slots.
    fn slots(&self) -> u32;

    /// Bytes of each slot.
    fn slot_bytes(&self) -> usize;

    /// Shows the bytes of a slot.
    fn read(&self, slot: SlotIndex, visit: &mut dyn FnMut(&[u8]));

    /// Shows the bytes of a slot for writing.
    fn write(&self, slot: SlotIndex, visit: &mut dyn FnMut(&mut [u8]));

    /// Says to readers in other processes which object a slot holds from now on, or that it holds none: before anything
    /// else is written there. Never blocks. Nothing to do for memory that only this process sees; what wraps another
    /// memory passes it on.
    fn mark(&self, slot: SlotIndex, sealed: Option<Generation>) {
        let _nobody_else_sees_it = (slot, sealed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Ticket;

    #[test]
    fn a_ticket_releases_once_on_drop() {
        let released = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&released);
        let ticket = Ticket::new(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(released.load(Ordering::SeqCst), 0);
        drop(ticket);
        assert_eq!(released.load(Ordering::SeqCst), 1);
        drop(Ticket::empty());
    }
}
