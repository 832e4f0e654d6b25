//! One lookup over several nodes, in rounds: each key is asked of its nodes one after the other.
//!
//! Invariants: one event, in the order of the keys, once every key is found or its nodes are used up; at most as many
//! rounds as a key has nodes, and one call per node and round; everything a node pinned stays pinned until the ticket
//! drops; the worker hears before anything is copied.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use shared::{
    Brought, Descriptor, Durability, Flow, Found, Grouped, LocateEvent, Miss, ObjectKey,
    OfferEvent, RequestContext, Sink, Ticket,
};

use super::tickets::Tickets;
use super::{Counted, Orders, Place, StoreNode};

/// See the module's documentation.
pub(super) struct Lookup {
    context: RequestContext,
    nodes: Vec<StoreNode>,
    counted: Arc<Counted>,
    tickets: Tickets,
    state: Mutex<State>,
}

struct State {
    keys: Vec<Wanted>,
    orders: Orders,
    /// Rounds begun.
    rounds: usize,
    /// Nodes of this round that have not answered.
    open: usize,
    /// What nodes had to bring up, all of them together.
    brought: Brought,
    /// None once the worker was answered or let go.
    sink: Option<Box<dyn Sink<LocateEvent>>>,
}

struct Wanted {
    key: Grouped<ObjectKey>,
    /// Of several nodes' reasons the one that tells most.
    found: Found,
    /// The round in which it was found.
    found_in: usize,
    /// The node that was asked first, once it said that it lacks the object.
    lacking: Option<usize>,
}

impl Wanted {
    fn answered(&mut self, node: usize, round: usize, copy: Found) {
        match (copy, self.found) {
            (Ok(_), _) => (self.found, self.found_in) = (copy, round),
            (Err(miss), Err(before)) => {
                self.found = Err(miss.max(before));
                if round == 1 && miss.is_absent() {
                    self.lacking = Some(node);
                }
            }
            (Err(_), Ok(_)) => {}
        }
    }

    fn place(&self) -> Place {
        match (self.found, self.found_in) {
            (Err(_), _) => Place::Nowhere,
            (Ok(_), 1) => Place::First,
            (Ok(_), _) => Place::Further,
        }
    }
}

impl Lookup {
    /// Begins a lookup. Answers a ticket that keeps what is found pinned.
    pub(super) fn start(
        context: RequestContext,
        nodes: Vec<StoreNode>,
        (keys, orders): (Vec<Grouped<ObjectKey>>, Orders),
        counted: &Arc<Counted>,
        sink: Box<dyn Sink<LocateEvent>>,
    ) -> Ticket {
        let wanted = |key| Wanted { key, found: Err(Miss::NotAsked), found_in: 0, lacking: None };
        let keys = keys.into_iter().map(wanted).collect();
        let state = State {
            keys,
            orders,
            rounds: 0,
            open: 0,
            brought: Brought::default(),
            sink: Some(sink),
        };
        let lookup = Arc::new(Self {
            context,
            nodes,
            counted: Arc::clone(counted),
            tickets: Tickets::default(),
            state: Mutex::new(state),
        });
        lookup.next_round();
        Ticket::new(move || {
            let sink = lookup.state.lock().sink.take();
            drop(sink);
            lookup.tickets.release();
        })
    }

    /// Asks for what is missing, each key at its next node; answers the worker when there is none.
    fn next_round(self: &Arc<Self>) {
        let mut batches: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        {
            let mut state = self.state.lock();
            let State { keys, orders, rounds, open, sink, .. } = &mut *state;
            if sink.is_some() {
                for (index, wanted) in keys.iter().enumerate() {
                    if wanted.found.is_err()
                        && let Some(node) = orders[&wanted.key.group].get(*rounds)
                    {
                        batches.entry(*node).or_default().push(index);
                    }
                }
            }
            *rounds += 1;
            *open = batches.len();
        }
        if batches.is_empty() {
            return self.finish();
        }
        for (node, asked) in batches {
            self.ask(node, asked);
        }
    }

    fn ask(self: &Arc<Self>, node: usize, asked: Vec<usize>) {
        let keys = {
            let state = self.state.lock();
            asked.iter().map(|index| state.keys[*index].key).collect()
        };
        let mut part = Part { lookup: Arc::clone(self), node, asked, done: false };
        let sink = move |event: LocateEvent| {
            part.answer(Some(event));
            Flow::Open
        };
        let ticket = self.nodes[node].store.locate(self.context, keys, Box::new(sink));
        self.tickets.keep(ticket);
    }

    /// Takes one node's answer about the keys with these indices; none when it said nothing.
    fn take(self: &Arc<Self>, node: usize, asked: &[usize], event: Option<LocateEvent>) {
        let round_is_over = {
            let mut state = self.state.lock();
            let round = state.rounds;
            let event = event.filter(|event| {
                let fits = event.found.len() == asked.len();
                if !fits {
                    tracing::warn!("a store node answered a lookup with a wrong number of objects");
                }
                fits
            });
            let nothing = || LocateEvent::at_once(vec![Err(Miss::NoAnswer); asked.len()]);
            let LocateEvent { found, brought } = event.unwrap_or_else(nothing);
            state.brought = state.brought.and(brought);
            for (index, copy) in asked.iter().zip(found) {
                state.keys[*index].answered(node, round, copy);
            }
            state.open -= 1;
            state.open == 0
        };
        if round_is_over {
            self.next_round();
        }
    }

    /// Answers the worker, then has copied what was not found where it belongs.
    fn finish(&self) {
        let mut copies: BTreeMap<usize, Vec<Grouped<Descriptor>>> = BTreeMap::new();
        let (mut sink, event) = {
            let mut state = self.state.lock();
            let Some(sink) = state.sink.take() else { return };
            for wanted in &state.keys {
                self.counted.key(wanted.place());
                if let (Ok(item), Some(node)) = (wanted.found, wanted.lacking) {
                    let group = wanted.key.group;
                    copies.entry(node).or_default().push(Grouped { item, group });
                }
            }
            let found = state.keys.iter().map(|wanted| wanted.found).collect();
            (sink, LocateEvent { found, brought: state.brought })
        };
        if sink.emit(event) == Flow::Closed {
            self.tickets.release();
            return;
        }
        drop(sink);
        for (node, objects) in copies {
            self.copy(node, objects);
        }
    }

    /// Offers a node what others have: it reads from them. What is not read when the worker lets go is withdrawn.
    fn copy(&self, node: usize, mut objects: Vec<Grouped<Descriptor>>) {
        let seats = self.counted.seats(objects.len());
        objects.truncate(seats.count());
        if objects.is_empty() {
            return;
        }
        let sink = move |event: OfferEvent| {
            seats.outcome(event.outcome);
            Flow::Open
        };
        let ticket =
            self.nodes[node].store.offer(self.context, objects, Durability::Memory, Box::new(sink));
        self.tickets.keep(ticket);
    }
}

/// One node's answer. Dropped without an event it counts as one that says nothing.
struct Part {
    lookup: Arc<Lookup>,
    node: usize,
    asked: Vec<usize>,
    done: bool,
}

impl Part {
    fn answer(&mut self, event: Option<LocateEvent>) {
        if !self.done {
            self.done = true;
            self.lookup.take(self.node, &self.asked, event);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.answer(None);
    }
}

#[cfg(test)]
mod tests {
    use shared::{BlockName, Grouped, Miss, ObjectKey, ObjectKind};

    use super::Wanted;

    fn wanted() -> Wanted {
        let item = ObjectKey { kind: ObjectKind::Block, name: BlockName([1; 16]) };
        let key = Grouped { item, group: BlockName([1; 16]) };
        Wanted { key, found: Err(Miss::NotAsked), found_in: 0, lacking: None }
    }

    #[test]
    fn of_several_reasons_the_one_that_tells_most_counts() {
        for (first, second, expected, lacking) in [
            (Miss::NeverStored, Miss::Expired, Miss::Expired, Some(7)),
            (Miss::Evicted, Miss::NeverStored, Miss::Evicted, Some(7)),
            (Miss::NoAnswer, Miss::NeverStored, Miss::NeverStored, None),
            (Miss::TooSlow, Miss::Evicted, Miss::TooSlow, None),
        ] {
            let mut wanted = wanted();
            wanted.answered(7, 1, Err(first));
            wanted.answered(8, 2, Err(second));
            assert_eq!((wanted.found, wanted.lacking), (Err(expected), lacking), "{first:?}");
        }
    }
}
