use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, unbounded};
use parking_lot::Mutex;
use shared::{
    BlockStore, CacheChange, Descriptor, Durability, Flow, LocateEvent, ManualClock, Miss,
    ObjectKey, ObjectKind, OfferEvent, OfferOutcome, RegionId, RequestContext, Sink, Ticket, Tier,
};

use super::{HostStats, HostTier, HostTierConfig, HostTierError, HostWiring};
use crate::disk::DiskTier;
use crate::memory::{HostMemory, MemoryError};
use crate::pool::{Pool, SealedSlot};
use crate::testing::{
    SLOT_BYTES, asked, damage, name, next, offers, payload, pool, pool_of, store,
};
use crate::transport::{
    LocalTransport, LocalTransportConfig, ReadDone, ReadError, ReadRequest, Transport,
};

mod disk;
mod late;
mod none;
mod objects;
mod reasons;

const TTL: Duration = Duration::from_secs(60);

/// A worker with a pool of blocks and one of windows, a host tier with four slots of each kind, and the transport
/// between them. The tier reads through `decorate(transport)`.
struct Rig {
    tier: HostTier,
    transport: Arc<LocalTransport>,
    clock: Arc<ManualClock>,
    blocks: Pool,
    block_memory: Arc<HostMemory>,
    windows: Pool,
}

impl Rig {
    fn new() -> Self {
        Self::with(config(), |transport| transport)
    }

    fn with(
        config: HostTierConfig,
        decorate: impl FnOnce(Arc<dyn Transport>) -> Arc<dyn Transport>,
    ) -> Self {
        Self::over(None, config, decorate)
    }

    fn over(
        disk: Option<Arc<DiskTier>>,
        config: HostTierConfig,
        decorate: impl FnOnce(Arc<dyn Transport>) -> Arc<dyn Transport>,
    ) -> Self {
        let transport = LocalTransport::start(LocalTransportConfig { queue_max: 64 }).unwrap();
        let transport = Arc::new(transport);
        let clock = Arc::new(ManualClock::new());
        let tier = HostTier::start(
            &config,
            HostWiring {
                quotas: Arc::default(),
                block_slot_bytes: SLOT_BYTES,
                window_slot_bytes: SLOT_BYTES,
                block_region: RegionId(10),
                window_region: RegionId(11),
                transport: decorate(Arc::clone(&transport) as Arc<dyn Transport>),
                clock: Arc::clone(&clock) as Arc<dyn shared::Clock>,
                disk,
            },
        )
        .unwrap();
        let (blocks, block_memory) = pool_of(1, 8, ObjectKind::Block);
        let (windows, _) = pool_of(2, 8, ObjectKind::Window);
        for pool in [&blocks, &windows, tier.blocks(), tier.windows()] {
            transport.register(pool).unwrap();
        }
        Self { tier, transport, clock, blocks, block_memory, windows }
    }

    fn block(&self, number: u64) -> SealedSlot {
        store(&self.blocks, number)
    }

    /// Offers and waits for all answers.
    fn offer(&self, objects: &[Descriptor]) -> Vec<OfferOutcome> {
        let (sink, events) = sending();
        let _ticket =
            self.tier.offer(RequestContext::NONE, offers(objects), Durability::Memory, sink);
        objects
            .iter()
            .map(|object| {
                let event: OfferEvent = next(&events);
                assert_eq!(event.key, object.key);
                event.outcome
            })
            .collect()
    }

    fn locate(&self, keys: &[ObjectKey]) -> (Ticket, Vec<Option<Descriptor>>) {
        let (sink, events) = sending();
        let ticket = self.tier.locate(RequestContext::NONE, asked(keys), sink);
        let event: LocateEvent = next(&events);
        assert_eq!(event.found.len(), keys.len());
        (ticket, copies(event))
    }

    fn holds(&self, key: ObjectKey) -> bool {
        self.locate(&[key]).1[0].is_some()
    }

    /// Nobody holds anything, in the worker's pools and in the tier's.
    fn assert_at_rest(&self) {
        self.settle();
        for pool in [&self.blocks, &self.windows, self.tier.blocks(), self.tier.windows()] {
            assert!(pool.audit().is_at_rest(), "{pool:?}: {:?}", pool.audit());
        }
    }
}

fn config() -> HostTierConfig {
    HostTierConfig {
        block_bytes_max: 4 * u64::try_from(SLOT_BYTES).unwrap(),
        window_bytes_max: 4 * u64::try_from(SLOT_BYTES).unwrap(),
        window_ttl: TTL,
        offer_wait_max: Duration::from_secs(30),
        queue_max: 8,
        batch_max: 2,
    }
}

fn key(number: u64) -> ObjectKey {
    ObjectKey { kind: ObjectKind::Block, name: name(number) }
}

fn window_key(number: u64) -> ObjectKey {
    ObjectKey { kind: ObjectKind::Window, name: name(number) }
}

fn sending<E: Send + 'static>() -> (Box<dyn Sink<E>>, Receiver<E>) {
    let (sender, receiver) = unbounded();
    let sink = move |event: E| sender.send(event).map_or(Flow::Closed, |()| Flow::Open);
    (Box::new(sink), receiver)
}

/// A sink that stops at its first event until the gate opens.
fn gated<E: Send + 'static>() -> (Box<dyn Sink<E>>, Receiver<E>, Sender<()>) {
    let (sender, receiver) = unbounded();
    let (open, gate) = bounded::<()>(1);
    let mut gate = Some(gate);
    let sink = move |event: E| {
        let sent = sender.send(event);
        if let Some(gate) = gate.take() {
            next(&gate);
        }
        sent.map_or(Flow::Closed, |()| Flow::Open)
    };
    (Box::new(sink), receiver, open)
}

/// Answers every read in a way of its own.
struct Answering(fn(ReadRequest) -> ReadDone);

impl Transport for Answering {
    fn read(
        &self,
        _: RequestContext,
        reads: Vec<ReadRequest>,
        mut sink: Box<dyn Sink<ReadDone>>,
    ) -> Ticket {
        for read in reads {
            if sink.emit((self.0)(read)) == Flow::Closed {
                break;
            }
        }
        Ticket::empty()
    }
}

/// Keeps every read and never answers.
#[derive(Default)]
struct Silent(Mutex<Vec<Batch>>, Option<Sender<()>>);

type Batch = (Vec<ReadRequest>, Box<dyn Sink<ReadDone>>);

impl Transport for Silent {
    fn read(
        &self,
        _: RequestContext,
        reads: Vec<ReadRequest>,
        sink: Box<dyn Sink<ReadDone>>,
    ) -> Ticket {
        self.0.lock().push((reads, sink));
        if let Some(started) = &self.1 {
            started.send(()).unwrap();
        }
        Ticket::empty()
    }
}

/// The copies that a lookup found.
fn copies(event: LocateEvent) -> Vec<Option<Descriptor>> {
    event.found.into_iter().map(Result::ok).collect()
}

#[test]
fn an_offered_object_is_found_and_read_back_bit_for_bit() {
    let rig = Rig::new();
    let held = [rig.block(1), rig.block(2), store(&rig.windows, 1)];
    let offered = held.each_ref().map(SealedSlot::descriptor);
    assert_eq!(rig.offer(&offered), [OfferOutcome::Stored; 3]);
    drop(held);
    let (ticket, found) = rig.locate(&[key(2), key(3), window_key(1), window_key(2)]);
    let expected = [Some(10), None, Some(11), None].map(|region| region.map(RegionId));
    assert_eq!(found.iter().map(|f| f.map(|d| d.location.region)).collect::<Vec<_>>(), expected);
    let target = pool(3, 1);
    let slot = target.reserve(1).unwrap().pop().unwrap();
    let (sink, events) = sending();
    let source = found[0].unwrap();
    let _read =
        rig.transport.read(RequestContext::NONE, vec![ReadRequest { source, target: slot }], sink);
    let done: ReadDone = next(&events);
    let sealed = target.seal_read(done.target, &done.source).unwrap();
    assert_eq!(crate::testing::bytes_of(&sealed), payload(2));
    let [blocks, windows] = rig.tier.audit();
    assert_eq!((blocks.pinned, blocks.cached, windows.pinned), (1, 1, 1));
    drop(ticket);
    rig.assert_at_rest();
    let bytes = u64::try_from(SLOT_BYTES).unwrap();
    let expected = HostStats {
        tenants: 1,
        stored: 3,
        stored_bytes: 3 * bytes,
        hits: 2,
        misses: 2,
        blocks_held: 2,
        blocks_max: 4,
        windows_held: 1,
        windows_max: 4,
        bytes_held: 3 * bytes,
        ..HostStats::default()
    };
    assert_eq!(rig.tier.stats(), expected);
    assert_eq!(rig.tier.evict_all(), 3);
    assert!(!rig.holds(key(1)));
}

#[test]
fn flags_travel_and_the_first_write_wins() {
    let rig = Rig::new();
    let seal = |number, fill: u8, exact| {
        let mut slot = rig.blocks.reserve(1).unwrap().pop().unwrap();
        slot.write(&mut |bytes| bytes.fill(fill));
        rig.blocks.seal(slot, crate::pool::Seal { name: name(number), exact, bytes: 20 })
    };
    let first = seal(1, 5, false);
    assert_eq!(rig.offer(&[first.descriptor()]), [OfferOutcome::Stored]);
    drop(first);
    assert_eq!(rig.blocks.evict_all(), 1);
    let second = seal(1, 6, true);
    assert_eq!(rig.offer(&[second.descriptor()]), [OfferOutcome::AlreadyHeld]);
    let (_ticket, found) = rig.locate(&[key(1)]);
    let found = found[0].unwrap();
    assert_eq!((found.exact, found.bytes, found.checksum), (false, 20, crc32c::crc32c(&[5; 20])));
    let twice = seal(2, 7, true).descriptor();
    let outcomes = rig.offer(&[twice, twice]);
    assert_eq!(outcomes, [OfferOutcome::Stored, OfferOutcome::AlreadyHeld]);
}

#[test]
fn a_full_tier_evicts_the_least_recently_used_but_nothing_pinned() {
    let rig = Rig::new();
    for number in 0..4 {
        let held = rig.block(number);
        assert_eq!(rig.offer(&[held.descriptor()]), [OfferOutcome::Stored]);
    }
    let (ticket, _) = rig.locate(&[key(0), key(1), key(2), key(3)]);
    let (five, six) = (rig.block(5), rig.block(6));
    assert_eq!(rig.offer(&[five.descriptor()]), [OfferOutcome::Dropped]);
    assert_eq!(rig.tier.stats().dropped_space, 1);
    drop(ticket);
    assert!(rig.holds(key(3)));
    let outcomes = rig.offer(&[five.descriptor(), six.descriptor()]);
    assert_eq!(outcomes, [OfferOutcome::Stored; 2]);
    let left = [0, 1, 2, 3, 5, 6].map(|number| rig.holds(key(number)));
    assert_eq!(left, [true, false, false, true, true, true], "a chain is evicted from its end");
    drop((five, six));
    rig.assert_at_rest();
}

#[test]
fn what_cannot_be_read_is_not_held() {
    type Spoil = fn(&Rig, &SealedSlot) -> Descriptor;
    type Count = fn(&HostStats) -> u64;
    let cases: [(&str, Spoil, Count); 4] = [
        (
            "damaged",
            |rig, slot| {
                damage(&rig.block_memory, slot.index());
                slot.descriptor()
            },
            |stats| stats.dropped_corrupt,
        ),
        (
            "evicted",
            |rig, slot| {
                let mut old = slot.descriptor();
                old.location.generation.0 += 1;
                assert!(rig.blocks.open(&old).is_err());
                old
            },
            |stats| stats.dropped_gone,
        ),
        (
            "unregistered",
            |rig, slot| {
                assert!(rig.transport.unregister(RegionId(1)));
                slot.descriptor()
            },
            |stats| stats.dropped_gone,
        ),
        (
            "of another kind than its region",
            |_, slot| {
                let mut wrong = slot.descriptor();
                wrong.key.kind = ObjectKind::Window;
                wrong
            },
            |stats| stats.dropped_gone,
        ),
    ];
    for (what, spoil, count) in cases {
        let rig = Rig::new();
        let held = rig.block(1);
        let offered = spoil(&rig, &held);
        assert_eq!(rig.offer(&[offered]), [OfferOutcome::Dropped], "{what}");
        assert_eq!(count(&rig.tier.stats()), 1, "{what}");
        assert!(!rig.holds(key(1)) && !rig.holds(window_key(1)), "{what}");
        drop(held);
        rig.assert_at_rest();
    }
}

#[test]
fn failing_and_lying_transports_cost_the_object_only() {
    type Answer = fn(ReadRequest) -> ReadDone;
    type Count = fn(&HostStats) -> u64;
    let cases: [(&str, Answer, Count); 4] = [
        (
            "closed",
            |ReadRequest { source, target }| ReadDone {
                source,
                target,
                result: Err(ReadError::Closed),
            },
            |stats| stats.dropped_gone,
        ),
        (
            "busy",
            |ReadRequest { source, target }| ReadDone {
                source,
                target,
                result: Err(ReadError::Busy { waiting_max: 1 }),
            },
            |stats| stats.dropped_queue,
        ),
        (
            "claims success over nothing",
            |ReadRequest { source, target }| ReadDone { source, target, result: Ok(()) },
            |stats| stats.dropped_corrupt,
        ),
        (
            "claims success over other bytes",
            |ReadRequest { source, mut target }| {
                target.write(&mut |bytes| bytes.copy_from_slice(&payload(2)));
                ReadDone { source, target, result: Ok(()) }
            },
            |stats| stats.dropped_corrupt,
        ),
    ];
    for (what, answer, count) in cases {
        let rig = Rig::with(config(), |_| Arc::new(Answering(answer)));
        let held = rig.block(1);
        assert_eq!(rig.offer(&[held.descriptor()]), [OfferOutcome::Dropped], "{what}");
        assert_eq!(count(&rig.tier.stats()), 1, "{what}");
        assert!(!rig.holds(key(1)), "{what}");
        drop(held);
        rig.assert_at_rest();
    }
}

#[test]
fn a_transport_that_loses_its_reads_drops_the_offer() {
    struct Losing;
    impl Transport for Losing {
        fn read(
            &self,
            _: RequestContext,
            reads: Vec<ReadRequest>,
            mut sink: Box<dyn Sink<ReadDone>>,
        ) -> Ticket {
            let ReadRequest { source, target } = reads.into_iter().next().unwrap();
            let result = Err(ReadError::Stale);
            assert_eq!(sink.emit(ReadDone { source, target, result }), Flow::Open);
            Ticket::empty()
        }
    }
    let rig = Rig::with(config(), |_| Arc::new(Losing));
    let held = [1, 2, 3].map(|number| rig.block(number));
    let offered = held.each_ref().map(SealedSlot::descriptor);
    assert_eq!(rig.offer(&offered), [OfferOutcome::Dropped; 3]);
    assert_eq!(rig.tier.stats().dropped_gone, 3);
}

#[test]
fn lookups_are_answered_and_the_tier_stops_while_a_read_hangs() {
    let (started, reading) = unbounded();
    let silent = Arc::new(Silent(Mutex::default(), Some(started)));
    let handle = Arc::clone(&silent);
    let rig = Rig::with(config(), |_| handle);
    let held = rig.block(1);
    let (sink, events) = sending::<OfferEvent>();
    let ticket = rig.tier.offer(
        RequestContext::NONE,
        offers(&[held.descriptor()]),
        Durability::Memory,
        sink,
    );
    next(&reading);
    assert!(!rig.holds(key(1)));
    assert_eq!(rig.tier.blocks().audit().owned, 1);
    let blocks = rig.tier.blocks().clone();
    drop(rig);
    assert!(events.recv().is_err(), "the offer's sink was dropped");
    let batch = silent.0.lock().pop();
    drop((ticket, batch));
    assert!(blocks.audit().is_at_rest());
}

#[test]
fn a_lookup_whose_ticket_dropped_before_its_turn_pins_nothing() {
    let rig = Rig::new();
    let held = [rig.block(1), rig.block(2)];
    assert_eq!(rig.offer(&[held[0].descriptor()]), [OfferOutcome::Stored]);
    let (sink, offered, gate) = gated::<OfferEvent>();
    let offer = rig.tier.offer(
        RequestContext::NONE,
        offers(&[held[1].descriptor()]),
        Durability::Memory,
        sink,
    );
    assert_eq!(next(&offered).outcome, OfferOutcome::Stored);
    let (sink, located) = sending::<LocateEvent>();
    drop(rig.tier.locate(RequestContext::NONE, asked(&[key(1)]), sink));
    gate.send(()).unwrap();
    assert!(located.recv().is_err(), "the sink was dropped unanswered");
    drop((offer, held));
    rig.assert_at_rest();
    let (sink, kept) = sending::<LocateEvent>();
    drop(kept);
    let ticket = rig.tier.locate(RequestContext::NONE, asked(&[key(1)]), sink);
    assert!(rig.holds(key(2)), "the thread is past the closed sink");
    rig.assert_at_rest();
    drop(ticket);
}

#[test]
fn a_withdrawn_offer_is_not_read() {
    let rig = Rig::new();
    let held = [1, 2, 3, 4].map(|number| rig.block(number));
    let offered = held.each_ref().map(SealedSlot::descriptor);
    let (sink, events, gate) = gated();
    let ticket = rig.tier.offer(RequestContext::NONE, offers(&offered), Durability::Memory, sink);
    let first: OfferEvent = next(&events);
    assert_eq!(first.outcome, OfferOutcome::Stored);
    drop(ticket);
    gate.send(()).unwrap();
    let answered: Vec<OfferEvent> = events.iter().collect();
    assert_eq!(answered.len(), 1, "the batch being read is finished: two objects");
    let stats = rig.tier.stats();
    assert_eq!((stats.stored, stats.withdrawn), (2, 2));
    drop(held);
    rig.assert_at_rest();
}

#[test]
fn a_full_queue_drops_offers_and_answers_lookups_with_nothing() {
    let rig = Rig::with(HostTierConfig { queue_max: 2, batch_max: 1, ..config() }, |t| t);
    let held = [1, 2, 3, 4].map(|number| rig.block(number));
    let object = |index: usize| held[index].descriptor();
    let (sink, first, gate) = gated::<OfferEvent>();
    let one = rig.tier.offer(RequestContext::NONE, offers(&[object(0)]), Durability::Memory, sink);
    assert_eq!(next(&first).outcome, OfferOutcome::Stored);
    // The thread is stopped, the first object no longer waits: two may.
    let (sink, events) = sending::<OfferEvent>();
    let two = rig.tier.offer(
        RequestContext::NONE,
        offers(&[object(1), object(2), object(3)]),
        Durability::Memory,
        sink,
    );
    let refused = next(&events);
    assert_eq!((refused.key, refused.outcome), (key(4), OfferOutcome::Dropped));
    let (sink, late) = sending::<OfferEvent>();
    drop(rig.tier.offer(RequestContext::NONE, offers(&[object(3)]), Durability::Memory, sink));
    assert_eq!(next(&late).outcome, OfferOutcome::Dropped);
    // The offer took one of the two places for commands.
    let (sink, queued) = sending::<LocateEvent>();
    let three = rig.tier.locate(RequestContext::NONE, asked(&[key(1)]), sink);
    let (sink, full) = sending::<LocateEvent>();
    drop(rig.tier.locate(RequestContext::NONE, asked(&[key(1), key(2)]), sink));
    assert_eq!(next(&full).found, [Err(Miss::NoRoom); 2]);
    assert_eq!(queued.try_recv(), Err(TryRecvError::Empty));
    gate.send(()).unwrap();
    assert!(next(&queued).found[0].is_ok());
    assert_eq!([next(&events), next(&events)].map(|e| e.outcome), [OfferOutcome::Stored; 2]);
    let stats = rig.tier.stats();
    assert_eq!((stats.dropped_queue, stats.lookups_refused), (2, 1));
    drop((one, two, three, held));
    rig.assert_at_rest();
}

#[test]
fn unused_windows_expire_and_used_ones_stay() {
    let rig = Rig::new();
    let held = [1, 2].map(|number| store(&rig.windows, number));
    let block = rig.block(1);
    let offered = [held[0].descriptor(), held[1].descriptor(), block.descriptor()];
    assert_eq!(rig.offer(&offered), [OfferOutcome::Stored; 3]);
    rig.clock.advance(TTL / 2);
    let (ticket, found) = rig.locate(&[window_key(1)]);
    assert!(found[0].is_some());
    rig.clock.advance(TTL / 2);
    assert_eq!([1, 2].map(|n| rig.holds(window_key(n))), [true, false], "2 was not used");
    rig.clock.advance(TTL);
    assert!(!rig.holds(window_key(1)), "not found any more");
    assert!(rig.tier.windows().open(&found[0].unwrap()).is_ok(), "but kept for who pinned it");
    drop(ticket);
    assert!(rig.tier.windows().open(&found[0].unwrap()).is_err());
    assert!(rig.holds(key(1)), "blocks do not expire");
    assert_eq!(rig.tier.stats().windows_expired, 2);
    assert_eq!(rig.offer(&offered[..1]), [OfferOutcome::Stored], "and it may come again");
}

#[test]
fn changes_name_blocks_only() {
    let rig = Rig::new();
    let held = [rig.block(1), store(&rig.windows, 1)];
    let offered = held.each_ref().map(SealedSlot::descriptor);
    assert_eq!(rig.offer(&offered), [OfferOutcome::Stored; 2]);
    let (tier, names) = (Tier::Host, vec![name(1)]);
    let stored = CacheChange::Stored { tier, names: names.clone() };
    assert_eq!(rig.tier.drain_changes(), std::slice::from_ref(&stored));
    assert_eq!(rig.tier.resync_changes(), [CacheChange::Cleared, stored]);
    assert_eq!(rig.tier.evict_all(), 2);
    assert_eq!(rig.tier.drain_changes(), [CacheChange::Removed { tier, names }]);
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let start = |config: HostTierConfig| {
        let wiring = HostWiring {
            quotas: Arc::default(),
            block_slot_bytes: SLOT_BYTES,
            window_slot_bytes: SLOT_BYTES,
            block_region: RegionId(10),
            window_region: RegionId(11),
            transport: Arc::new(Silent::default()),
            clock: Arc::new(ManualClock::new()),
            disk: None,
        };
        HostTier::start(&config, wiring).unwrap_err()
    };
    let hour = Duration::from_secs(3_601);
    let cases = [
        (HostTierConfig { queue_max: 0, ..config() }, "queue_max"),
        (HostTierConfig { batch_max: 1_025, ..config() }, "batch_max"),
        (HostTierConfig { window_ttl: Duration::ZERO, ..config() }, "window_ttl"),
        (HostTierConfig { window_ttl: hour, ..config() }, "window_ttl"),
    ];
    for (config, expected) in cases {
        let error = start(config);
        assert!(
            matches!(error, HostTierError::Config { field, .. } if field == expected),
            "{error}"
        );
    }
    let small = start(HostTierConfig { window_bytes_max: 36, ..config() });
    assert!(matches!(
        small,
        HostTierError::Memory { source: MemoryError::TooSmall { bytes_max: 36, .. }, .. }
    ));
}
