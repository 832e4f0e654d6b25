//! The store as a worker sees it: several nodes behind one [`BlockStore`].
//!
//! Blocks lie by their groups: the nodes that are there now are ranked for each group by [`shared::owners`]. An offer goes
//! to the first of them; a lookup asks the first, and for what it lacks the next ones, because that is where objects
//! lie after a node joined or while one was away. What is found there is offered to the node that was asked first, which
//! reads it from the other. Groups that are looked up often ([`Heat`]) are offered to more than one node, and their lookups
//! take turns among these. A node that is gone has nothing: that costs a recompute.
//!
//! What it is not: it moves nothing by itself when members change, and it does not choose by load or distance.
//!
//! Invariants: see [`Lookup`] and [`Offer`]; a lookup asks at most three nodes for a key; the number of objects being copied
//! is bounded.

mod heat;
mod lookup;
mod offer;
#[cfg(test)]
mod tests;
mod tickets;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use shared::{
    BlockName, BlockStore, Clock, Descriptor, Durability, Flow, Grouped, LocateEvent, Miss,
    ObjectKey, OfferEvent, OfferOutcome, RequestContext, Sink, Ticket, WorkerRank, owners,
};

use crate::config::StoresConfig;
use heat::Heat;
use lookup::Lookup;
use offer::Offer;

/// Nodes that a lookup asks for a key: where it belongs, and where it lies after one or two changes of the members.
const LOOKUP_NODES_MAX: usize = 3;

/// A store node that can be asked.
#[derive(Clone)]
pub(crate) struct StoreNode {
    /// Decides what it owns.
    pub(crate) rank: WorkerRank,
    /// How to ask it.
    pub(crate) store: Arc<dyn BlockStore>,
}

/// The nodes that can be asked now, each once, in any order.
pub(crate) type Nodes = Arc<dyn Fn() -> Vec<StoreNode> + Send + Sync>;

/// By group: places in the list of nodes, the first to ask or offer to first.
type Orders = HashMap<BlockName, Vec<usize>>;

/// See the module's documentation.
pub(crate) struct Stores {
    nodes: Nodes,
    config: StoresConfig,
    clock: Arc<dyn Clock>,
    heat: Mutex<Heat>,
    counted: Arc<Counted>,
}

/// What a worker's lookups found where, and what they had copied. Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoresStats {
    /// Keys found at the node asked first.
    pub(crate) found_first: u64,
    /// Keys found at another node.
    pub(crate) found_further: u64,
    /// Keys found nowhere.
    pub(crate) not_found: u64,
    /// Objects that a node read from another one.
    pub(crate) copies_stored: u64,
    /// Objects that it did not read, because it had them by then, has no room, or came too late.
    pub(crate) copies_dropped: u64,
    /// Objects not copied because enough others were being copied.
    pub(crate) copies_skipped: u64,
}

/// Where a key was found.
#[derive(Clone, Copy)]
enum Place {
    /// At the node asked first.
    First,
    /// At another one.
    Further,
    Nowhere,
}

/// Counters, and the bound on copies.
#[derive(Default)]
struct Counted {
    copies_max: usize,
    copies_open: AtomicUsize,
    found_first: AtomicU64,
    found_further: AtomicU64,
    not_found: AtomicU64,
    copies_stored: AtomicU64,
    copies_dropped: AtomicU64,
    copies_skipped: AtomicU64,
}

impl Counted {
    fn key(&self, place: Place) {
        let counter = match place {
            Place::First => &self.found_first,
            Place::Further => &self.found_further,
            Place::Nowhere => &self.not_found,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes room for as many copies as there is, at most `wanted`.
    fn seats(self: &Arc<Self>, wanted: usize) -> Seats {
        let mut taken = 0;
        let take = |open: usize| {
            taken = wanted.min(self.copies_max.saturating_sub(open));
            Some(open + taken)
        };
        self.copies_open
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
            .expect("the closure always has a value");
        let skipped = u64::try_from(wanted - taken).unwrap_or(u64::MAX);
        self.copies_skipped.fetch_add(skipped, Ordering::Relaxed);
        Seats { counted: Arc::clone(self), taken }
    }
}

/// Room for copies, given back on drop.
struct Seats {
    counted: Arc<Counted>,
    taken: usize,
}

impl Seats {
    fn count(&self) -> usize {
        self.taken
    }

    fn outcome(&self, outcome: OfferOutcome) {
        let counter = match outcome {
            OfferOutcome::Stored | OfferOutcome::MemoryOnly => &self.counted.copies_stored,
            OfferOutcome::AlreadyHeld | OfferOutcome::Dropped => &self.counted.copies_dropped,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        self.counted.copies_open.fetch_sub(self.taken, Ordering::SeqCst);
    }
}

impl Stores {
    /// The store behind these nodes; asked anew for every call.
    pub(crate) fn new(nodes: Nodes, config: StoresConfig, clock: Arc<dyn Clock>) -> Self {
        let counted = Counted { copies_max: config.copies_max, ..Counted::default() };
        let heat = Mutex::new(Heat::new(&config));
        Self { nodes, config, clock, heat, counted: Arc::new(counted) }
    }

    /// Counts so far.
    pub(crate) fn stats(&self) -> StoresStats {
        let counted = &self.counted;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StoresStats {
            found_first: read(&counted.found_first),
            found_further: read(&counted.found_further),
            not_found: read(&counted.not_found),
            copies_stored: read(&counted.copies_stored),
            copies_dropped: read(&counted.copies_dropped),
            copies_skipped: read(&counted.copies_skipped),
        }
    }

    /// The nodes to ask for each group, in this order. Counts the lookup.
    fn orders_of_lookup(
        &self,
        groups: impl Iterator<Item = BlockName>,
        nodes: &[StoreNode],
    ) -> Orders {
        let now = self.clock.now();
        let mut heat = self.heat.lock();
        orders(groups, nodes, |group, ranks| {
            let mut order = owners(group, ranks, LOOKUP_NODES_MAX);
            if let Some(turn) = heat.count(group, now) {
                let replicas = self.config.replicas_max.min(order.len());
                order[..replicas].rotate_left(turn % replicas);
            }
            order
        })
    }

    /// The nodes to offer each group to.
    fn orders_of_offer(
        &self,
        groups: impl Iterator<Item = BlockName>,
        nodes: &[StoreNode],
    ) -> Orders {
        let now = self.clock.now();
        let heat = self.heat.lock();
        orders(groups, nodes, |group, ranks| {
            let hot = heat.is_hot(group, now);
            owners(group, ranks, if hot { self.config.replicas_max } else { 1 })
        })
    }
}

fn orders(
    groups: impl Iterator<Item = BlockName>,
    nodes: &[StoreNode],
    mut order: impl FnMut(BlockName, &[WorkerRank]) -> Vec<usize>,
) -> Orders {
    let ranks: Vec<WorkerRank> = nodes.iter().map(|node| node.rank).collect();
    let mut orders = Orders::new();
    for group in groups {
        orders.entry(group).or_insert_with(|| order(group, &ranks));
    }
    orders
}

impl BlockStore for Stores {
    fn locate(
        &self,
        context: RequestContext,
        keys: Vec<Grouped<ObjectKey>>,
        mut sink: Box<dyn Sink<LocateEvent>>,
    ) -> Ticket {
        let nodes = (self.nodes)();
        if nodes.is_empty() {
            // Closed or not, there is nothing more to say.
            let _: Flow = sink.emit(LocateEvent::at_once(vec![Err(Miss::NotAsked); keys.len()]));
            return Ticket::empty();
        }
        let orders = self.orders_of_lookup(keys.iter().map(|key| key.group), &nodes);
        Lookup::start(context, nodes, (keys, orders), &self.counted, sink)
    }

    fn offer(
        &self,
        context: RequestContext,
        objects: Vec<Grouped<Descriptor>>,
        durability: Durability,
        sink: Box<dyn Sink<OfferEvent>>,
    ) -> Ticket {
        let nodes = (self.nodes)();
        if nodes.is_empty() {
            return kvstore::NoStore.offer(context, objects, durability, sink);
        }
        let orders = self.orders_of_offer(objects.iter().map(|object| object.group), &nodes);
        Offer::start(context, &nodes, durability, (objects, orders), sink)
    }
}
