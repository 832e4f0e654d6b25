//! One offer over several nodes.
//!
//! Invariants: one event per object, once every node that was offered it has said what became of it, or is gone: until
//! then the object must stay readable; the best outcome counts. Events come from one thread at a time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use shared::{
    Descriptor, Durability, Flow, Grouped, ObjectKey, OfferEvent, OfferOutcome, RequestContext,
    Sink, Ticket,
};

use super::tickets::Tickets;
use super::{Orders, StoreNode};

/// See the module's documentation.
pub(super) struct Offer {
    tickets: Tickets,
    state: Mutex<State>,
}

struct State {
    open: HashMap<ObjectKey, Open>,
    /// None once everything was said or nobody listens.
    sink: Option<Box<dyn Sink<OfferEvent>>>,
}

/// An object that not all of its nodes have spoken about.
struct Open {
    nodes: usize,
    best: OfferOutcome,
}

impl Offer {
    /// Offers each object to all nodes in the order of its group. The objects have different keys, and each has a node.
    pub(super) fn start(
        context: RequestContext,
        nodes: &[StoreNode],
        durability: Durability,
        (objects, orders): (Vec<Grouped<Descriptor>>, Orders),
        sink: Box<dyn Sink<OfferEvent>>,
    ) -> Ticket {
        let mut batches: BTreeMap<usize, Vec<Grouped<Descriptor>>> = BTreeMap::new();
        let mut open = HashMap::with_capacity(objects.len());
        for object in objects {
            let order = &orders[&object.group];
            for node in order {
                batches.entry(*node).or_default().push(object);
            }
            let waits = Open { nodes: order.len(), best: OfferOutcome::Dropped };
            open.insert(object.item.key, waits);
        }
        // Without objects everything is said.
        let sink = (!open.is_empty()).then_some(sink);
        let state = Mutex::new(State { open, sink });
        let offer = Arc::new(Self { tickets: Tickets::default(), state });
        for (node, objects) in batches {
            let left = objects.iter().map(|object| object.item.key).collect();
            let part = Part { offer: Arc::clone(&offer), left };
            offer.tickets.keep(nodes[node].store.offer(
                context,
                objects,
                durability,
                Box::new(part),
            ));
        }
        Ticket::new(move || {
            let sink = offer.state.lock().sink.take();
            drop(sink);
            offer.tickets.release();
        })
    }

    /// One node said what became of one object.
    fn settle(&self, key: ObjectKey, outcome: OfferOutcome) -> Flow {
        let (flow, ended) = {
            let mut state = self.state.lock();
            let State { open, sink } = &mut *state;
            let Some(listener) = sink else { return Flow::Closed };
            let mut flow = Flow::Open;
            if let Some(waits) = open.get_mut(&key) {
                waits.nodes -= 1;
                waits.best = better(waits.best, outcome);
                if waits.nodes == 0 {
                    let outcome = waits.best;
                    open.remove(&key);
                    flow = listener.emit(OfferEvent { key, outcome });
                }
            }
            let over = flow == Flow::Closed || open.is_empty();
            (flow, if over { sink.take() } else { None })
        };
        drop(ended);
        if flow == Flow::Closed {
            self.tickets.release();
        }
        flow
    }
}

/// One node's answers. Objects that it is silent about when it is dropped count as not taken.
struct Part {
    offer: Arc<Offer>,
    left: HashSet<ObjectKey>,
}

impl Sink<OfferEvent> for Part {
    fn emit(&mut self, event: OfferEvent) -> Flow {
        if self.left.remove(&event.key) {
            return self.offer.settle(event.key, event.outcome);
        }
        Flow::Open
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        for key in std::mem::take(&mut self.left) {
            if self.offer.settle(key, OfferOutcome::Dropped) == Flow::Closed {
                return;
            }
        }
    }
}

fn better(one: OfferOutcome, other: OfferOutcome) -> OfferOutcome {
    let rank = |outcome| match outcome {
        OfferOutcome::Stored => 0,
        OfferOutcome::AlreadyHeld => 1,
        OfferOutcome::MemoryOnly => 2,
        OfferOutcome::Dropped => 3,
    };
    if rank(other) < rank(one) { other } else { one }
}
