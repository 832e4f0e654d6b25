//! The store as a worker sees it: several nodes behind one [`BlockStore`], nearest first.
//!
//! A lookup asks the nearest node that is there; what it lacks is asked of all others at once, and the nearest that has it
//! wins. An offer goes to the nearest node that is there. A node that is gone has nothing: that costs a recompute.
//!
//! Invariants: one event per lookup, in the order of the keys; everything a node pinned stays pinned until the ticket drops.

use std::sync::Arc;

use parking_lot::Mutex;
use shared::{
    BlockStore, Descriptor, Flow, LocateEvent, ObjectKey, OfferEvent, RequestContext, Sink, Ticket,
};

/// The nodes that can be asked now, nearest first.
pub(crate) type Nodes = Arc<dyn Fn() -> Vec<Arc<dyn BlockStore>> + Send + Sync>;

/// See the module's documentation.
pub(crate) struct Stores {
    nodes: Nodes,
}

impl Stores {
    /// The store behind these nodes; asked anew for every call.
    pub(crate) fn new(nodes: Nodes) -> Self {
        Self { nodes }
    }
}

/// A lookup under way.
struct Lookup {
    context: RequestContext,
    keys: Vec<ObjectKey>,
    /// By key: the place of the node that has it in the order of nearness, and where.
    found: Vec<Option<(usize, Descriptor)>>,
    /// Nodes that have not answered.
    open: usize,
    sink: Option<Box<dyn Sink<LocateEvent>>>,
    /// What the nodes pin. Taken when the worker lets go.
    tickets: Option<Vec<Ticket>>,
}

impl Lookup {
    /// Takes one node's answer about the keys with these indices.
    fn take(&mut self, node: usize, asked: &[usize], found: Vec<Option<Descriptor>>) {
        if found.len() == asked.len() {
            for (index, copy) in asked.iter().zip(found) {
                let place = &mut self.found[*index];
                if let Some(copy) = copy
                    && place.is_none_or(|(other, _)| node < other)
                {
                    *place = Some((node, copy));
                }
            }
        } else {
            tracing::warn!("a store node answered a lookup with a wrong number of objects");
        }
        self.open -= 1;
    }

    /// Answers the worker once no node is left to answer.
    fn finish(&mut self) {
        if self.open != 0 {
            return;
        }
        let Some(mut sink) = self.sink.take() else { return };
        let found = self.found.iter().map(|place| place.map(|(_, copy)| copy)).collect();
        if sink.emit(LocateEvent { found }) == Flow::Closed {
            self.tickets = None;
        }
    }
}

/// One node's answer. Dropped without an event it counts as one that has nothing.
struct Part {
    lookup: Arc<Mutex<Lookup>>,
    node: usize,
    asked: Vec<usize>,
    /// Nodes to ask for what this one lacks; for the nearest one only.
    others: Vec<Arc<dyn BlockStore>>,
    done: bool,
}

impl Part {
    fn answer(&mut self, found: Vec<Option<Descriptor>>) {
        if self.done {
            return;
        }
        self.done = true;
        let others = std::mem::take(&mut self.others);
        let (context, missing, keys) = {
            let mut lookup = self.lookup.lock();
            lookup.take(self.node, &self.asked, found);
            let missing = (0..lookup.keys.len()).filter(|index| lookup.found[*index].is_none());
            let missing: Vec<usize> = missing.collect();
            if missing.is_empty() || others.is_empty() || lookup.tickets.is_none() {
                lookup.finish();
                return;
            }
            lookup.open += others.len();
            let keys: Vec<ObjectKey> = missing.iter().map(|index| lookup.keys[*index]).collect();
            (lookup.context, missing, keys)
        };
        for (node, store) in (self.node + 1..).zip(others) {
            let part = Self {
                lookup: Arc::clone(&self.lookup),
                node,
                asked: missing.clone(),
                others: Vec::new(),
                done: false,
            };
            ask(part, store.as_ref(), context, keys.clone());
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.answer(vec![None; self.asked.len()]);
    }
}

/// Asks one node and keeps what it pins.
fn ask(mut part: Part, store: &dyn BlockStore, context: RequestContext, keys: Vec<ObjectKey>) {
    let lookup = Arc::clone(&part.lookup);
    let sink = move |event: LocateEvent| {
        part.answer(event.found);
        Flow::Open
    };
    let ticket = store.locate(context, keys, Box::new(sink));
    // The worker may have let go meanwhile; then the ticket drops here, outside the lock.
    let late = match &mut lookup.lock().tickets {
        Some(tickets) => {
            tickets.push(ticket);
            None
        }
        None => Some(ticket),
    };
    drop(late);
}

impl BlockStore for Stores {
    fn locate(
        &self,
        context: RequestContext,
        keys: Vec<ObjectKey>,
        mut sink: Box<dyn Sink<LocateEvent>>,
    ) -> Ticket {
        let mut nodes = (self.nodes)().into_iter();
        let Some(nearest) = nodes.next() else {
            // Closed or not, there is nothing more to say.
            let _: Flow = sink.emit(LocateEvent { found: vec![None; keys.len()] });
            return Ticket::empty();
        };
        let lookup = Arc::new(Mutex::new(Lookup {
            context,
            found: vec![None; keys.len()],
            keys: keys.clone(),
            open: 1,
            sink: Some(sink),
            tickets: Some(Vec::new()),
        }));
        let part = Part {
            lookup: Arc::clone(&lookup),
            node: 0,
            asked: (0..keys.len()).collect(),
            others: nodes.collect(),
            done: false,
        };
        ask(part, nearest.as_ref(), context, keys);
        Ticket::new(move || {
            let tickets = {
                let mut lookup = lookup.lock();
                lookup.sink = None;
                lookup.tickets.take()
            };
            drop(tickets);
        })
    }

    fn offer(
        &self,
        context: RequestContext,
        objects: Vec<Descriptor>,
        sink: Box<dyn Sink<OfferEvent>>,
    ) -> Ticket {
        match (self.nodes)().first() {
            Some(nearest) => nearest.offer(context, objects, sink),
            None => kvstore::NoStore.offer(context, objects, sink),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use parking_lot::Mutex;
    use shared::{
        BlockName, BlockStore, Descriptor, Flow, Generation, LocateEvent, Location, ObjectKey,
        ObjectKind, OfferEvent, OfferOutcome, RegionId, RequestContext, Sink, SlotIndex, Ticket,
    };

    use super::Stores;

    /// A node that has some names, answers at once or not at all, and counts what it pins.
    struct Node {
        region: u64,
        names: BTreeSet<u8>,
        silent: bool,
        asked: Mutex<Vec<usize>>,
        pinned: Arc<AtomicUsize>,
    }

    impl Node {
        fn new(region: u64, names: &[u8], silent: bool) -> Arc<Self> {
            let names = names.iter().copied().collect();
            let (asked, pinned) = (Mutex::default(), Arc::default());
            Arc::new(Self { region, names, silent, asked, pinned })
        }

        fn pinned(&self) -> usize {
            self.pinned.load(Ordering::SeqCst)
        }
    }

    fn key(name: u8) -> ObjectKey {
        ObjectKey { kind: ObjectKind::Block, name: BlockName([name; 16]) }
    }

    fn copy(region: u64, key: ObjectKey) -> Descriptor {
        let location =
            Location { region: RegionId(region), slot: SlotIndex(0), generation: Generation(1) };
        Descriptor { key, location, bytes: 1, checksum: 0, exact: true }
    }

    impl BlockStore for Node {
        fn locate(
            &self,
            _: RequestContext,
            keys: Vec<ObjectKey>,
            mut sink: Box<dyn Sink<LocateEvent>>,
        ) -> Ticket {
            self.asked.lock().push(keys.len());
            if self.silent {
                return Ticket::empty();
            }
            let has = |key: &ObjectKey| self.names.contains(&key.name.0[0]);
            let found = keys.iter().map(|key| has(key).then(|| copy(self.region, *key))).collect();
            self.pinned.fetch_add(1, Ordering::SeqCst);
            let pinned = Arc::clone(&self.pinned);
            let _: Flow = sink.emit(LocateEvent { found });
            Ticket::new(move || {
                pinned.fetch_sub(1, Ordering::SeqCst);
            })
        }

        fn offer(
            &self,
            _: RequestContext,
            objects: Vec<Descriptor>,
            mut sink: Box<dyn Sink<OfferEvent>>,
        ) -> Ticket {
            for object in objects {
                let event = OfferEvent { key: object.key, outcome: OfferOutcome::Stored };
                let _: Flow = sink.emit(event);
            }
            Ticket::empty()
        }
    }

    fn stores(nodes: &[Arc<Node>]) -> Stores {
        let nodes: Vec<_> =
            nodes.iter().map(|node| Arc::clone(node) as Arc<dyn BlockStore>).collect();
        Stores::new(Arc::new(move || nodes.clone()))
    }

    fn locate(stores: &Stores, names: &[u8]) -> (Ticket, Vec<Vec<Option<u64>>>) {
        let answers = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&answers);
        let sink = move |event: LocateEvent| {
            let regions = event.found.iter().map(|copy| copy.map(|copy| copy.location.region.0));
            told.lock().push(regions.collect());
            Flow::Open
        };
        let ticket = stores.locate(
            RequestContext::NONE,
            names.iter().copied().map(key).collect(),
            Box::new(sink),
        );
        let answers = answers.lock().clone();
        (ticket, answers)
    }

    #[test]
    fn the_nearest_copy_wins_and_only_what_is_missing_is_asked_further() {
        let nodes = [
            Node::new(1, &[1, 2], false),
            Node::new(2, &[2, 3], false),
            Node::new(3, &[3, 4], false),
        ];
        let stores = stores(&nodes);
        let (ticket, answers) = locate(&stores, &[4, 2, 3, 1, 9]);
        assert_eq!(answers, [[Some(3), Some(1), Some(2), Some(1), None]]);
        let asked: Vec<_> = nodes.iter().map(|node| node.asked.lock().clone()).collect();
        assert_eq!(asked, [[5], [3], [3]]);
        assert_eq!(nodes.iter().map(|node| node.pinned()).sum::<usize>(), 3);
        drop(ticket);
        assert_eq!(nodes.iter().map(|node| node.pinned()).sum::<usize>(), 0);
        let (_ticket, answers) = locate(&stores, &[1, 2]);
        assert_eq!(answers, [[Some(1), Some(1)]]);
        assert_eq!(nodes[1].asked.lock().len(), 1, "nothing was missing");
    }

    #[test]
    fn a_node_that_drops_the_question_has_nothing() {
        for silent in 0..3 {
            let node = |at: usize| Node::new(u64::try_from(at).unwrap(), &[7], silent == at);
            let nodes = [node(0), node(1), node(2)];
            let (ticket, answers) = locate(&stores(&nodes), &[7]);
            assert_eq!(answers, [[Some(if silent == 0 { 1 } else { 0 })]], "node {silent}");
            drop(ticket);
            assert!(nodes.iter().all(|node| node.pinned() == 0));
        }
    }

    #[test]
    fn without_nodes_nothing_is_found_and_nothing_is_taken() {
        let stores = stores(&[]);
        assert_eq!(locate(&stores, &[1, 2]).1, [[None, None]]);
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&outcomes);
        let sink = move |event: OfferEvent| {
            told.lock().push(event.outcome);
            Flow::Open
        };
        drop(stores.offer(RequestContext::NONE, vec![copy(1, key(1))], Box::new(sink)));
        assert_eq!(*outcomes.lock(), [OfferOutcome::Dropped]);
    }
}
