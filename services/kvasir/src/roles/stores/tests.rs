//! Several nodes in one process that answer when told to.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use shared::{
    BlockName, BlockStore, Brought, Descriptor, DpRank, Durability, Flow, Found, Generation,
    Grouped, LocateEvent, Location, ManualClock, Miss, ObjectKey, ObjectKind, OfferEvent,
    OfferOutcome, Random, RegionId, RequestContext, Sink, SlotIndex, Ticket, WorkerId, WorkerRank,
    owners,
};

use super::{StoreNode, Stores, StoresStats};
use crate::config::StoresConfig;

/// A question to a node.
enum Asked {
    Locate(Vec<ObjectKey>, Box<dyn Sink<LocateEvent>>, Arc<Mutex<Pin>>),
    Offer(Vec<Descriptor>, Box<dyn Sink<OfferEvent>>, Arc<Mutex<Pin>>),
}

/// What a ticket stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pin {
    Waiting,
    Held,
    Released,
}

/// A node that holds what it is offered, and answers questions one by one when it is told to, or at once.
struct Node {
    rank: WorkerRank,
    at_once: bool,
    /// Questions to it are dropped.
    gone: AtomicBool,
    held: Mutex<BTreeMap<ObjectKey, Descriptor>>,
    asked: Mutex<VecDeque<Asked>>,
    /// Keys of each lookup.
    lookups: Mutex<Vec<usize>>,
    /// Objects of each offer, with the place they were to be read from.
    offers: Mutex<Vec<Vec<Descriptor>>>,
    pinned: Arc<AtomicUsize>,
}

fn rank(worker: u32) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), rank: DpRank(0) }
}

impl Node {
    fn new(worker: u32, at_once: bool) -> Arc<Self> {
        Arc::new(Self {
            rank: rank(worker),
            at_once,
            gone: AtomicBool::new(false),
            held: Mutex::default(),
            asked: Mutex::default(),
            lookups: Mutex::default(),
            offers: Mutex::default(),
            pinned: Arc::default(),
        })
    }

    fn copy(&self, key: ObjectKey) -> Descriptor {
        descriptor(RegionId::of(self.rank, key.kind), key)
    }

    fn hold(&self, key: Grouped<ObjectKey>) {
        self.held.lock().insert(key.item, self.copy(key.item));
    }

    fn holds(&self, key: Grouped<ObjectKey>) -> bool {
        self.held.lock().contains_key(&key.item)
    }

    /// Answers the oldest question. False when there is none.
    fn answer(&self) -> bool {
        let Some(asked) = self.asked.lock().pop_front() else { return false };
        match asked {
            Asked::Locate(keys, mut sink, pin) => {
                {
                    let mut pin = pin.lock();
                    if *pin == Pin::Waiting {
                        *pin = Pin::Held;
                        self.pinned.fetch_add(1, Ordering::SeqCst);
                    }
                }
                let held = self.held.lock();
                let found = |key: &ObjectKey| held.get(key).copied().ok_or(Miss::NeverStored);
                let found: Vec<Found> = keys.iter().map(found).collect();
                let disk = u32::try_from(found.iter().flatten().count()).unwrap();
                drop(held);
                let _: Flow =
                    sink.emit(LocateEvent { found, brought: Brought { disk, remote: 0 } });
            }
            Asked::Offer(objects, mut sink, pin) => {
                for object in objects {
                    if *pin.lock() == Pin::Released {
                        break;
                    }
                    let copy = self.copy(object.key);
                    let outcome = match self.held.lock().insert(object.key, copy) {
                        None => OfferOutcome::Stored,
                        Some(_) => OfferOutcome::AlreadyHeld,
                    };
                    let _: Flow = sink.emit(OfferEvent { key: object.key, outcome });
                }
            }
        }
        true
    }

    /// Takes a question, and answers it if that is its way.
    fn take(&self, asked: Asked, pin: Arc<Mutex<Pin>>) -> Ticket {
        if self.gone.load(Ordering::SeqCst) {
            return Ticket::empty();
        }
        self.asked.lock().push_back(asked);
        if self.at_once {
            self.answer();
        }
        let pinned = Arc::clone(&self.pinned);
        Ticket::new(move || {
            let before = std::mem::replace(&mut *pin.lock(), Pin::Released);
            if before == Pin::Held {
                pinned.fetch_sub(1, Ordering::SeqCst);
            }
        })
    }
}

impl BlockStore for Node {
    fn locate(
        &self,
        _: RequestContext,
        keys: Vec<Grouped<ObjectKey>>,
        sink: Box<dyn Sink<LocateEvent>>,
    ) -> Ticket {
        self.lookups.lock().push(keys.len());
        let pin = Arc::new(Mutex::new(Pin::Waiting));
        self.take(Asked::Locate(shared::ungrouped(keys), sink, Arc::clone(&pin)), pin)
    }

    fn offer(
        &self,
        _: RequestContext,
        objects: Vec<Grouped<Descriptor>>,
        _: Durability,
        sink: Box<dyn Sink<OfferEvent>>,
    ) -> Ticket {
        let objects = shared::ungrouped(objects);
        self.offers.lock().push(objects.clone());
        let pin = Arc::new(Mutex::new(Pin::Waiting));
        self.take(Asked::Offer(objects, sink, Arc::clone(&pin)), pin)
    }
}

/// What the worker holds; nodes read it from there.
const WORKER_REGION: RegionId = RegionId(9);

fn descriptor(region: RegionId, key: ObjectKey) -> Descriptor {
    let location = Location { region, slot: SlotIndex(0), generation: Generation(1) };
    Descriptor { key, location, bytes: 1, checksum: 0, exact: true }
}

/// Block `index` of the chain of this number, and its group.
fn key(chain: u8, index: u8) -> Grouped<ObjectKey> {
    let name = |index: u8| {
        let mut name = [chain; 16];
        name[15] = index;
        BlockName(name)
    };
    let item = ObjectKey { kind: ObjectKind::Block, name: name(index) };
    Grouped { item, group: name(index / 32 * 32) }
}

fn object(key: Grouped<ObjectKey>) -> Grouped<Descriptor> {
    Grouped { item: descriptor(WORKER_REGION, key.item), group: key.group }
}

type Members = Arc<Mutex<Vec<Arc<Node>>>>;

fn stores(members: &Members, config: StoresConfig) -> Stores {
    let members = Arc::clone(members);
    let nodes = move || {
        let node = |node: &Arc<Node>| StoreNode {
            rank: node.rank,
            store: Arc::clone(node) as Arc<dyn BlockStore>,
        };
        members.lock().iter().map(node).collect()
    };
    Stores::new(Arc::new(nodes), config, Arc::new(ManualClock::new()))
}

fn members(workers: std::ops::Range<u32>) -> Members {
    Arc::new(Mutex::new(workers.map(|worker| Node::new(worker, true)).collect()))
}

/// The members in the order in which they own a group.
fn ranked(members: &Members, group: BlockName) -> Vec<Arc<Node>> {
    let members = members.lock();
    let ranks: Vec<_> = members.iter().map(|node| node.rank).collect();
    let places = owners(group, &ranks, ranks.len());
    places.into_iter().map(|place| Arc::clone(&members[place])).collect()
}

/// Collects events; counts as over when the sink is dropped.
struct Events<E> {
    events: Arc<Mutex<Vec<E>>>,
}

impl<E: Send + 'static> Events<E> {
    fn new() -> (Self, Box<dyn Sink<E>>) {
        let events = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&events);
        let sink = move |event| {
            told.lock().push(event);
            Flow::Open
        };
        (Self { events }, Box::new(sink))
    }

    fn is_over(&self) -> bool {
        Arc::strong_count(&self.events) == 1
    }
}

/// Looks up, and says by worker where each key was found.
fn locate(stores: &Stores, keys: &[Grouped<ObjectKey>]) -> (Ticket, Vec<Option<u32>>) {
    let (events, sink) = Events::new();
    let ticket = stores.locate(RequestContext::NONE, keys.to_vec(), sink);
    assert!(events.is_over());
    let events = events.events.lock();
    let [LocateEvent { found, brought }] = &events[..] else { panic!("{} events", events.len()) };
    assert_eq!(usize::try_from(brought.disk), Ok(found.iter().flatten().count()));
    let worker = |copy: &Found| copy.ok().map(|copy| copy.location.region.owner().worker.0);
    (ticket, found.iter().map(worker).collect())
}

fn offer(stores: &Stores, keys: &[Grouped<ObjectKey>]) -> Vec<OfferOutcome> {
    let (events, sink) = Events::<OfferEvent>::new();
    let objects = keys.iter().copied().map(object).collect();
    drop(stores.offer(RequestContext::NONE, objects, Durability::Memory, sink));
    assert!(events.is_over());
    let events = events.events.lock();
    let told = |key: &Grouped<ObjectKey>| {
        let mut own = events.iter().filter(|event| event.key == key.item);
        let outcome = own.next().expect("each object has an event").outcome;
        assert!(own.next().is_none(), "each object has one event");
        outcome
    };
    keys.iter().map(told).collect()
}

fn chain(number: u8, blocks: u8) -> Vec<Grouped<ObjectKey>> {
    (0..blocks).map(|index| key(number, index)).collect()
}

#[test]
fn offers_go_to_the_owner_of_their_group_and_are_found_there_at_once() {
    let members = members(1..6);
    let stores = stores(&members, StoresConfig::default());
    let keys = chain(3, 200);
    assert!(offer(&stores, &keys).iter().all(|outcome| *outcome == OfferOutcome::Stored));
    for key in &keys {
        let holders: Vec<_> =
            members.lock().iter().filter(|node| node.holds(*key)).cloned().collect();
        assert_eq!(holders.len(), 1);
        assert_eq!(holders[0].rank, ranked(&members, key.group)[0].rank);
    }
    let (_ticket, found) = locate(&stores, &keys);
    assert!(found.iter().all(Option::is_some));
    let calls: usize = members.lock().iter().map(|node| node.lookups.lock().len()).sum();
    let mut asked: Vec<_> = found.clone();
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(calls, asked.len(), "one call per owner");
    assert!(1 < calls, "seven groups lie on several nodes");
    assert_eq!(offer(&stores, &keys[..1]), [OfferOutcome::AlreadyHeld]);
}

#[test]
fn what_its_owner_lacks_is_asked_of_two_further_nodes_in_their_order() {
    let keys = chain(3, 32);
    for (place, expected) in [(0, true), (1, true), (2, true), (3, false)] {
        let members = members(1..6);
        let stores = stores(&members, StoresConfig { copies_max: 0, ..StoresConfig::default() });
        let order = ranked(&members, keys[0].group);
        // The last key is at home.
        order[0].hold(keys[31]);
        keys.iter().for_each(|key| order[place].hold(*key));
        let (ticket, found) = locate(&stores, &keys);
        let at = expected.then_some(order[place].rank.worker.0);
        assert!(found[..31].iter().all(|worker| *worker == at), "{place}: {found:?}");
        assert_eq!(found[31], Some(order[0].rank.worker.0));
        let asked: Vec<_> = order.iter().map(|node| node.lookups.lock().clone()).collect();
        let further = |node: usize| if node <= place.min(2) { vec![31] } else { vec![] };
        let mut wanted = vec![vec![32], further(1), further(2), vec![], vec![]];
        if place == 0 {
            wanted[1..].fill(Vec::new());
        }
        assert_eq!(asked, wanted, "{place}");
        let pins = || order.iter().map(|node| node.pinned.load(Ordering::SeqCst)).sum::<usize>();
        assert_eq!(pins(), place.min(2) + 1);
        drop(ticket);
        assert_eq!(pins(), 0);
    }
}

#[test]
fn a_node_that_joined_gets_what_is_found_elsewhere() {
    let members = members(1..4);
    let stores = stores(&members, StoresConfig { copies_max: 40, ..StoresConfig::default() });
    let keys = chain(3, 200);
    offer(&stores, &keys);
    let before = ranked(&members, keys[0].group);
    // A node that owns the first group from now on.
    let joined = (4..).map(|worker| Node::new(worker, true)).find(|node| {
        let ranks: Vec<_> = before.iter().map(|node| node.rank).chain([node.rank]).collect();
        owners(keys[0].group, &ranks, 1) == [3]
    });
    let joined = joined.unwrap();
    members.lock().push(Arc::clone(&joined));
    let moved: Vec<_> =
        keys.iter().filter(|key| ranked(&members, key.group)[0].rank == joined.rank).collect();
    let (ticket, found) = locate(&stores, &keys);
    assert!(found.iter().all(Option::is_some), "nothing is lost");
    let copied = moved.len().min(40);
    let offers = std::mem::take(&mut *joined.offers.lock());
    assert_eq!(offers.iter().map(Vec::len).collect::<Vec<_>>(), [copied]);
    let read_from = offers[0][0].location.region.owner();
    assert_eq!(read_from, before[0].rank, "the new node reads from the old one");
    let stats = StoresStats {
        found_first: u64::try_from(200 - moved.len()).unwrap(),
        found_further: u64::try_from(moved.len()).unwrap(),
        copies_stored: u64::try_from(copied).unwrap(),
        copies_skipped: u64::try_from(moved.len() - copied).unwrap(),
        ..StoresStats::default()
    };
    assert_eq!(stores.stats(), stats);
    drop(ticket);
    let (_ticket, found) = locate(&stores, &keys[..32]);
    assert!(found.iter().all(|worker| *worker == Some(joined.rank.worker.0)));
    assert_eq!(stores.counted.copies_open.load(Ordering::SeqCst), 0);
}

#[test]
fn copies_are_withdrawn_when_the_worker_lets_go() {
    let members = members(1..3);
    let stores = stores(&members, StoresConfig::default());
    let keys = chain(3, 4);
    let order = ranked(&members, keys[0].group);
    let slow = Node::new(order[0].rank.worker.0, false);
    keys.iter().for_each(|key| order[1].hold(*key));
    *members.lock() = vec![Arc::clone(&slow), Arc::clone(&order[1])];
    let (events, sink) = Events::new();
    let ticket = stores.locate(RequestContext::NONE, keys.clone(), sink);
    assert!(slow.answer() && events.is_over(), "the lookup is over");
    assert_eq!(stores.counted.copies_open.load(Ordering::SeqCst), 4);
    drop(ticket);
    assert!(slow.answer() && !slow.answer());
    assert!(!slow.holds(keys[0]));
    assert_eq!(stores.counted.copies_open.load(Ordering::SeqCst), 0);
}

#[test]
fn a_hot_group_lies_on_two_nodes_and_its_lookups_take_turns() {
    let members = members(1..6);
    let config = StoresConfig { hot_lookups_min: 4, ..StoresConfig::default() };
    let stores = stores(&members, config);
    let keys = chain(3, 40);
    offer(&stores, &keys);
    let order = ranked(&members, keys[0].group);
    let [owner, second] = [order[0].rank.worker.0, order[1].rank.worker.0];
    let found = |stores: &Stores| locate(stores, &keys[..1]).1[0].unwrap();
    let nodes: Vec<_> = (0..3).map(|_| found(&stores)).collect();
    assert_eq!(nodes, [owner; 3], "it is cold");
    // The fourth and fifth: one of them asks the second node, which lacks it and is offered it.
    let nodes: Vec<_> = (0..2).map(|_| found(&stores)).collect();
    assert_eq!(nodes, [owner; 2]);
    assert!(order[1].holds(keys[0]) && !order[1].holds(keys[1]));
    let mut nodes: Vec<_> = (0..6).map(|_| found(&stores)).collect();
    assert!(nodes.windows(2).all(|pair| pair[0] != pair[1]), "{nodes:?}");
    nodes.sort_unstable();
    nodes.dedup();
    assert_eq!(nodes.len(), 2);
    assert!(nodes.contains(&owner) && nodes.contains(&second));
    // New blocks of the group go to both: the better outcome counts.
    assert_eq!(offer(&stores, &[key(3, 1), key(3, 31)]), [OfferOutcome::Stored; 2]);
    assert!(order[..2].iter().all(|node| node.holds(key(3, 31))));
    assert!(!order[2].holds(key(3, 31)));
    // Others lie where they did.
    let cold = ranked(&members, key(4, 0).group);
    offer(&stores, &[key(4, 0)]);
    assert!(cold[0].holds(key(4, 0)) && !cold[1].holds(key(4, 0)));
}

#[test]
fn a_node_that_drops_the_question_has_nothing_and_takes_nothing() {
    let members = members(1..4);
    let stores = stores(&members, StoresConfig::default());
    let keys = chain(3, 1);
    let order = ranked(&members, keys[0].group);
    order[1].hold(keys[0]);
    let silent = Node::new(order[0].rank.worker.0, false);
    *members.lock() = vec![Arc::clone(&order[1]), Arc::clone(&silent), Arc::clone(&order[2])];
    let (events, sink) = Events::new();
    let ticket = stores.locate(RequestContext::NONE, keys.clone(), sink);
    let (offered, sink) = Events::<OfferEvent>::new();
    let offer = stores.offer(RequestContext::NONE, vec![object(keys[0])], Durability::Memory, sink);
    assert!(!events.is_over() && !offered.is_over());
    let questions = std::mem::take(&mut *silent.asked.lock());
    drop(questions);
    assert!(events.is_over() && offered.is_over());
    assert!(events.events.lock()[0].found[0].is_ok());
    assert_eq!(offered.events.lock()[0].outcome, OfferOutcome::Dropped);
    assert!(silent.offers.lock().len() == 1, "nothing is copied to a node that said nothing");
    drop((ticket, offer));
    assert!(order.iter().all(|node| node.pinned.load(Ordering::SeqCst) == 0));
}

#[test]
fn without_nodes_nothing_is_found_and_nothing_is_taken() {
    let stores = stores(&members(0..0), StoresConfig::default());
    assert_eq!(locate(&stores, &chain(1, 2)).1, [None, None]);
    assert_eq!(offer(&stores, &chain(1, 1)), [OfferOutcome::Dropped]);
}

#[test]
fn calls_without_keys_and_objects_are_over_at_once() {
    let stores = stores(&members(1..3), StoresConfig::default());
    assert!(locate(&stores, &[]).1.is_empty());
    assert!(offer(&stores, &[]).is_empty());
}

/// A call under way, with what its worker heard.
enum Call {
    Locate(Events<LocateEvent>, usize, Ticket),
    Offer(Events<OfferEvent>, usize, Ticket),
}

impl Call {
    fn is_over(&self) -> bool {
        match self {
            Self::Locate(events, ..) => events.is_over(),
            Self::Offer(events, ..) => events.is_over(),
        }
    }

    fn check(self) {
        match self {
            Self::Locate(events, keys, ticket) => {
                let events = events.events.lock();
                let found: Vec<_> = events.iter().map(|event| event.found.len()).collect();
                assert_eq!(found, [keys], "one answer about every key");
                drop(ticket);
            }
            Self::Offer(events, objects, ticket) => {
                let mut told: Vec<_> = events.events.lock().iter().map(|event| event.key).collect();
                told.sort_unstable();
                told.dedup();
                assert_eq!((told.len(), events.events.lock().len()), (objects, objects));
                drop(ticket);
            }
        }
    }
}

/// Nodes that come and go in the middle of lookups and offers.
struct Churn {
    random: Random,
    members: Members,
    stores: Stores,
    calls: Vec<Call>,
    /// All nodes that ever were.
    nodes: Vec<Arc<Node>>,
    checked: usize,
}

impl Churn {
    fn new(seed: u64) -> Self {
        let members = Members::default();
        let config = StoresConfig { hot_lookups_min: 5, copies_max: 16, ..StoresConfig::default() };
        let stores = stores(&members, config);
        let mut churn = Self {
            random: Random::new(seed),
            members,
            stores,
            calls: vec![],
            nodes: vec![],
            checked: 0,
        };
        (0..3).for_each(|_| churn.join());
        churn
    }

    fn join(&mut self) {
        let node = Node::new(u32::try_from(self.nodes.len()).unwrap(), false);
        self.nodes.push(Arc::clone(&node));
        self.members.lock().push(node);
    }

    /// A node is lost, with all questions to it.
    fn leave(&mut self) {
        let count = self.members.lock().len();
        if count != 0 {
            let place = self.random.below(count);
            let node = self.members.lock().swap_remove(place);
            node.gone.store(true, Ordering::SeqCst);
            let questions = std::mem::take(&mut *node.asked.lock());
            drop(questions);
        }
    }

    fn call(&mut self) {
        let number = u8::try_from(self.random.below(4)).unwrap();
        let blocks = u8::try_from(self.random.below(100)).unwrap();
        let keys = chain(number, blocks);
        if self.random.below(2) == 0 {
            let (events, sink) = Events::new();
            let count = keys.len();
            let ticket = self.stores.locate(RequestContext::NONE, keys, sink);
            self.calls.push(Call::Locate(events, count, ticket));
        } else {
            let (events, sink) = Events::new();
            let objects: Vec<_> = keys.into_iter().map(object).collect();
            let count = objects.len();
            let ticket = self.stores.offer(RequestContext::NONE, objects, Durability::Memory, sink);
            self.calls.push(Call::Offer(events, count, ticket));
        }
    }

    fn answer(&mut self) {
        let nodes = self.members.lock().clone();
        if !nodes.is_empty() {
            nodes[self.random.below(nodes.len())].answer();
        }
    }

    /// A worker lets go of a call, over or not.
    fn let_go(&mut self) {
        if !self.calls.is_empty() {
            let place = self.random.below(self.calls.len());
            let call = self.calls.swap_remove(place);
            if call.is_over() {
                self.checked += 1;
                call.check();
            }
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..2 => self.join(),
            2..4 => self.leave(),
            4..30 => self.call(),
            30..50 => self.let_go(),
            _ => self.answer(),
        }
    }
}

#[test]
fn members_that_come_and_go_lose_no_answer_and_leave_no_pin() {
    let (mut further, mut copied) = (0, 0);
    for seed in 0..40 {
        println!("seed {seed}");
        let mut churn = Churn::new(seed);
        (0..1_000).for_each(|_| churn.step());
        while churn.members.lock().clone().iter().any(|node| node.answer()) {}
        assert!(churn.calls.iter().all(Call::is_over), "every sink gets its last event");
        let rest = std::mem::take(&mut churn.calls);
        churn.checked += rest.len();
        rest.into_iter().for_each(Call::check);
        // Copies that were still under way are withdrawn, which their nodes notice at the next question.
        while churn.members.lock().clone().iter().any(|node| node.answer()) {}
        assert!(50 < churn.checked, "{} calls were answered", churn.checked);
        let pinned = |node: &Arc<Node>| node.pinned.load(Ordering::SeqCst);
        assert_eq!(churn.nodes.iter().map(pinned).sum::<usize>(), 0);
        assert_eq!(churn.stores.counted.copies_open.load(Ordering::SeqCst), 0);
        let stats = churn.stores.stats();
        further += stats.found_further;
        copied += stats.copies_stored;
    }
    assert!(1_000 < further && 100 < copied, "{further} found further on, {copied} copied");
}
