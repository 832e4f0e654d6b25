//! What every transport has to do, as cases generic over it.
//!
//! A rig says how pools become readable and vanish; [`check`] runs all cases, each on a fresh rig.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, never, unbounded};
use shared::{
    Descriptor, Flow, ObjectKind, RegionId, RequestContext, SlotIndex, SlotMemory, Ticket, Tier,
};

use super::{ReadDone, ReadError, ReadRequest, Transport};
use crate::memory::{HostMemory, SharedMemory};
use crate::pool::{Pool, PoolConfig, Seal, SealedSlot};
use crate::testing::{SLOT_BYTES, bytes_of, name, next, payload, pool, store};

/// A transport under test and what lies at its far end.
pub(crate) trait Rig {
    type Transport: Transport;

    /// Whether later reads of a batch may have begun when an earlier one is answered.
    const READS_AHEAD: bool;

    /// Whether the slots of its sources are visible to other processes.
    const SHARES_MEMORY: bool;

    fn start() -> Self;
    fn transport(&self) -> &Self::Transport;
    fn publish(&self, source: &Source);
    fn withdraw(&self, region: RegionId);
}

/// A pool to read from.
pub(crate) struct Source {
    pub(crate) pool: Pool,
    pub(crate) memory: Arc<dyn SlotMemory>,
    /// The same memory, when other processes can see it.
    pub(crate) segment: Option<Arc<SharedMemory>>,
}

impl Source {
    /// A pool under this region, not published yet.
    pub(crate) fn new<R: Rig>(region: u64, slots: u32, slot_bytes: usize) -> Self {
        let segment = R::SHARES_MEMORY
            .then(|| Arc::new(SharedMemory::with_slots(slots, slot_bytes).unwrap()));
        let memory: Arc<dyn SlotMemory> = match &segment {
            Some(segment) => Arc::clone(segment) as Arc<dyn SlotMemory>,
            None => Arc::new(HostMemory::with_slots(slots, slot_bytes).unwrap()),
        };
        let config =
            PoolConfig { region: RegionId(region), kind: ObjectKind::Block, tier: Tier::Device };
        Self { pool: Pool::new(config, Arc::clone(&memory)), memory, segment }
    }

    /// Objects 0 to `count`, pinned, and their descriptors.
    fn fill(&self, count: u64) -> (Vec<SealedSlot>, Vec<Descriptor>) {
        let held: Vec<_> = (0..count).map(|number| store(&self.pool, number)).collect();
        let sources = held.iter().map(|slot| slot.descriptor()).collect();
        (held, sources)
    }
}

/// Flips one bit behind the pool's back.
pub(crate) fn spoil(memory: &dyn SlotMemory, slot: SlotIndex) {
    memory.write(slot, &mut |bytes| bytes[3] ^= 0x10);
}

/// Waits until something becomes true that the other side does in its own time.
pub(crate) fn settles(what: &str, is_so: impl Fn() -> bool) {
    let tick = never::<()>();
    for _ in 0..20_000 {
        if is_so() {
            return;
        }
        assert!(tick.recv_timeout(Duration::from_millis(1)).is_err(), "nothing is ever sent");
    }
    panic!("not within 20 s: {what}");
}

/// What a case states, and the case.
type Case<R> = (&'static str, fn(&R));

/// Runs every case.
pub(crate) fn check<R: Rig>() {
    let cases: [Case<R>; 14] = [
        ("bytes arrive in order", bytes_arrive_in_order),
        ("a batch mixes regions", a_batch_mixes_regions),
        ("large objects arrive whole", large_objects_arrive_whole),
        ("an unknown region is refused", an_unknown_region_is_refused),
        ("a lost peer fails the rest", a_lost_peer_fails_the_rest),
        ("an evicted slot is stale", an_evicted_slot_is_stale),
        ("a reused slot is stale", a_reused_slot_is_stale),
        ("damaged bytes are refused and forgotten", damaged_bytes_are_refused_and_forgotten),
        ("a short target is refused", a_short_target_is_refused),
        ("faults in a long batch cost themselves", faults_in_a_long_batch_cost_themselves),
        ("a source is free once it was read", a_source_is_free_once_it_was_read),
        ("a dropped ticket gives the targets back", a_dropped_ticket_gives_the_targets_back),
        ("a closed sink frees the targets", a_closed_sink_frees_the_targets),
        ("many readers share a source", many_readers_share_a_source),
    ];
    for (what, case) in cases {
        println!("case: {what}");
        case(&R::start());
    }
}

/// A sink that sends every answer on.
pub(crate) fn answers() -> (Box<dyn shared::Sink<ReadDone>>, Receiver<ReadDone>) {
    let (sender, receiver) = unbounded();
    let sink = move |done: ReadDone| match sender.send(done) {
        Ok(()) => Flow::Open,
        Err(_) => Flow::Closed,
    };
    (Box::new(sink), receiver)
}

/// A sink that stops at its first answer until the gate opens, and says when it got there.
pub(crate) fn gated() -> (Box<dyn shared::Sink<ReadDone>>, Receiver<ReadDone>, Sender<()>) {
    let (sender, receiver) = unbounded();
    let (open, gate) = bounded::<()>(1);
    let mut gate = Some(gate);
    let sink = move |done: ReadDone| {
        let sent = sender.send(done);
        if let Some(gate) = gate.take() {
            next(&gate);
        }
        sent.map_or(Flow::Closed, |()| Flow::Open)
    };
    (Box::new(sink), receiver, open)
}

/// Requests for these sources into fresh slots of `target`.
pub(crate) fn requests(sources: &[Descriptor], target: &Pool) -> Vec<ReadRequest> {
    let targets = target.reserve(sources.len()).unwrap();
    let pairs = sources.iter().zip(targets);
    pairs.map(|(source, target)| ReadRequest { source: *source, target }).collect()
}

fn read<R: Rig>(rig: &R, sources: &[Descriptor], target: &Pool) -> (Ticket, Vec<ReadDone>) {
    let (sink, events) = answers();
    let ticket = rig.transport().read(RequestContext::NONE, requests(sources, target), sink);
    (ticket, sources.iter().map(|_| next(&events)).collect())
}

/// Reads one object and says what became of it.
fn result<R: Rig>(rig: &R, source: Descriptor, target: &Pool) -> Result<(), ReadError> {
    let (_ticket, mut done) = read(rig, &[source], target);
    done.remove(0).result
}

fn bytes_arrive_in_order<R: Rig>(rig: &R) {
    let (source, target) = (Source::new::<R>(1, 100, SLOT_BYTES), pool(2, 100));
    rig.publish(&source);
    let (held, sources) = source.fill(100);
    let (ticket, done) = read(rig, &sources, &target);
    for (number, done) in (0..).zip(done) {
        assert_eq!(done.result, Ok(()));
        let sealed = target.seal_read(done.target, &done.source).unwrap();
        assert_eq!(bytes_of(&sealed), payload(number));
        assert_eq!(sealed.descriptor().key, sources[usize::try_from(number).unwrap()].key);
    }
    drop((ticket, held));
    settles("all slots are at rest", || {
        source.pool.audit().is_at_rest() && target.audit().is_at_rest()
    });
    let (sink, events) = answers();
    drop(rig.transport().read(RequestContext::NONE, Vec::new(), sink));
    assert!(events.recv().is_err(), "nothing to read, nothing to say");
}

fn a_batch_mixes_regions<R: Rig>(rig: &R) {
    let (one, two) = (Source::new::<R>(1, 4, SLOT_BYTES), Source::new::<R>(3, 4, SLOT_BYTES));
    rig.publish(&one);
    rig.publish(&two);
    let ((_first, ones), (_second, twos)) = (one.fill(4), two.fill(4));
    let strange = pool(9, 1);
    let unknown = store(&strange, 8).descriptor();
    let sources = [ones[0], ones[1], twos[2], unknown, ones[3], twos[0], twos[1], unknown, ones[2]];
    let (_ticket, done) = read(rig, &sources, &pool(2, 9));
    for (source, done) in sources.iter().zip(done) {
        let expected = match source.location.region {
            RegionId(9) => Err(ReadError::UnknownRegion { region: RegionId(9) }),
            _ => Ok(()),
        };
        assert_eq!((&done.source, done.result), (source, expected));
    }
}

fn large_objects_arrive_whole<R: Rig>(rig: &R) {
    // A window object of the Flash layout.
    let bytes = 1_351_680;
    let (source, target) = (Source::new::<R>(1, 4, bytes), Source::new::<R>(2, 4, bytes));
    rig.publish(&source);
    let held: Vec<_> = (0..4)
        .map(|number| {
            let mut slot = source.pool.reserve(1).unwrap().remove(0);
            slot.write(&mut |bytes| {
                for (at, byte) in (0_u32..).zip(bytes) {
                    [*byte, ..] = at.wrapping_mul(0x9e37_79b9 + number).to_be_bytes();
                }
            });
            let bytes = u32::try_from(bytes - 5).unwrap();
            source.pool.seal(slot, Seal { name: name(number.into()), exact: false, bytes })
        })
        .collect();
    let sources: Vec<Descriptor> = held.iter().map(|slot| slot.descriptor()).collect();
    let (_ticket, done) = read(rig, &sources, &target.pool);
    for (held, done) in held.iter().zip(done) {
        assert_eq!(done.result, Ok(()));
        let sealed = target.pool.seal_read(done.target, &done.source).unwrap();
        assert_eq!(bytes_of(&sealed), bytes_of(held));
        assert!(!sealed.exact());
    }
}

fn an_unknown_region_is_refused<R: Rig>(rig: &R) {
    let (source, target) = (Source::new::<R>(1, 1, SLOT_BYTES), pool(2, 1));
    let held = store(&source.pool, 1);
    let unknown = Err(ReadError::UnknownRegion { region: RegionId(1) });
    assert_eq!(result(rig, held.descriptor(), &target), unknown);
    rig.publish(&source);
    assert_eq!(result(rig, held.descriptor(), &target), Ok(()));
    rig.withdraw(RegionId(1));
    assert_eq!(result(rig, held.descriptor(), &target), unknown);
    rig.publish(&source);
    assert_eq!(result(rig, held.descriptor(), &target), Ok(()), "it came back");
    assert_eq!(target.audit().free, 1);
}

fn a_lost_peer_fails_the_rest<R: Rig>(rig: &R) {
    let (source, target) = (Source::new::<R>(1, 100, SLOT_BYTES), pool(2, 100));
    rig.publish(&source);
    let (_held, sources) = source.fill(100);
    let (sink, events, gate) = gated();
    let _ticket = rig.transport().read(RequestContext::NONE, requests(&sources, &target), sink);
    assert_eq!(next(&events).result, Ok(()));
    rig.withdraw(RegionId(1));
    gate.send(()).unwrap();
    let unknown = Err(ReadError::UnknownRegion { region: RegionId(1) });
    let rest: Vec<_> = sources[1..].iter().map(|_| next(&events).result).collect();
    let lost = rest.iter().position(|result| *result == unknown).expect("the peer was lost");
    assert!(R::READS_AHEAD || lost == 0, "{lost} reads had begun");
    assert!(rest[..lost].iter().all(|result| *result == Ok(())), "these had begun");
    assert!(rest[lost..].iter().all(|result| *result == unknown), "these had not");
    assert!(events.recv().is_err(), "the sink is gone");
    assert_eq!(target.audit().free, 100);
}

fn an_evicted_slot_is_stale<R: Rig>(rig: &R) {
    let (source, target) = (Source::new::<R>(1, 1, SLOT_BYTES), pool(2, 1));
    rig.publish(&source);
    let old = store(&source.pool, 1).descriptor();
    assert_eq!(source.pool.evict_all(), 1);
    assert_eq!(result(rig, old, &target), Err(ReadError::Stale));
}

fn a_reused_slot_is_stale<R: Rig>(rig: &R) {
    let (source, target) = (Source::new::<R>(1, 1, SLOT_BYTES), pool(2, 1));
    rig.publish(&source);
    let old = store(&source.pool, 1).descriptor();
    for number in [2, 1] {
        settles("the slot can be had", || source.pool.available() == 1);
        let held = store(&source.pool, number);
        assert_eq!(held.index(), old.location.slot);
        assert_eq!(result(rig, old, &target), Err(ReadError::Stale), "tenant {number}");
        assert_eq!(result(rig, held.descriptor(), &target), Ok(()));
    }
}

fn damaged_bytes_are_refused_and_forgotten<R: Rig>(rig: &R) {
    let (source, target) = (Source::new::<R>(1, 2, SLOT_BYTES), pool(2, 2));
    rig.publish(&source);
    let (bad, good) = (store(&source.pool, 1), store(&source.pool, 2));
    spoil(&*source.memory, bad.index());
    let (_ticket, done) = read(rig, &[bad.descriptor(), good.descriptor()], &target);
    let (refused, expected) = (done[0].result, bad.descriptor().checksum);
    assert!(
        matches!(refused, Err(ReadError::Corrupt { expected: e, found }) if e == expected && found != e),
        "{refused:?}"
    );
    assert_eq!(done[1].result, Ok(()), "the next one is fine");
    assert!(!source.pool.contains(bad.name()), "nobody shall find it again");
    assert!(source.pool.contains(good.name()));
    drop((bad, good));
    settles("the source is at rest", || source.pool.audit().is_at_rest());
}

fn a_short_target_is_refused<R: Rig>(rig: &R) {
    let source = Source::new::<R>(1, 1, SLOT_BYTES);
    rig.publish(&source);
    let held = store(&source.pool, 1);
    let short = Source::new::<R>(2, 1, SLOT_BYTES - 1).pool;
    let expected = ReadError::Length { expected: SLOT_BYTES, found: SLOT_BYTES - 1 };
    assert_eq!(result(rig, held.descriptor(), &short), Err(expected));
    assert_eq!(short.audit().free, 1);
    let long = Source::new::<R>(2, 2, SLOT_BYTES + 1).pool;
    let mut mixed = requests(&[held.descriptor(), held.descriptor()], &long);
    mixed.extend(requests(&[held.descriptor()], &short));
    mixed.swap(1, 2);
    let (sink, events) = answers();
    let _ticket = rig.transport().read(RequestContext::NONE, mixed, sink);
    for expected in [Ok(()), Err(expected), Ok(())] {
        assert_eq!(next(&events).result, expected);
    }
}

fn faults_in_a_long_batch_cost_themselves<R: Rig>(rig: &R) {
    const COUNT: u64 = 64;
    let (source, target) = (Source::new::<R>(1, 64, SLOT_BYTES), pool(2, 62));
    let short = Source::new::<R>(3, 2, SLOT_BYTES - 1).pool;
    rig.publish(&source);
    let (held, mut sources) = source.fill(COUNT);
    let (short_at, stale_at, bad_at) = ([9, 40], [0, 17, 18, 63], [5, 33]);
    for place in stale_at {
        sources[place].location.generation.0 += 1;
    }
    for place in bad_at {
        spoil(&*source.memory, held[place].index());
    }
    let pools = |place: &usize| if short_at.contains(place) { &short } else { &target };
    let reads =
        (0..sources.len()).flat_map(|place| requests(&sources[place..=place], pools(&place)));
    let (sink, events) = answers();
    let _ticket = rig.transport().read(RequestContext::NONE, reads.collect(), sink);
    for (place, source) in sources.iter().enumerate() {
        let done = next(&events);
        assert_eq!(&done.source, source, "{place}");
        match done.result {
            Err(ReadError::Length { .. }) => assert!(short_at.contains(&place), "{place}"),
            Err(ReadError::Stale) => assert!(stale_at.contains(&place), "{place}"),
            Err(ReadError::Corrupt { .. }) => assert!(bad_at.contains(&place), "{place}"),
            other => {
                assert_eq!(other, Ok(()), "{place}");
                let sealed = target.seal_read(done.target, &done.source).unwrap();
                assert_eq!(bytes_of(&sealed), payload(u64::try_from(place).unwrap()));
            }
        }
    }
    assert!(events.recv().is_err(), "the sink is gone");
    assert_eq!((target.audit().cached, short.audit().free), (56, 2));
}

fn a_source_is_free_once_it_was_read<R: Rig>(rig: &R) {
    let (source, target) = (Source::new::<R>(1, 3, SLOT_BYTES), pool(2, 3));
    rig.publish(&source);
    let (held, sources) = source.fill(3);
    drop(held);
    let (_ticket, done) = read(rig, &sources, &target);
    assert!(done.iter().all(|done| done.result == Ok(())));
    settles("nothing is open", || source.pool.audit().is_at_rest());
    assert_eq!(source.pool.evict_all(), 3);
    let (_ticket, done) = read(rig, &sources, &pool(3, 3));
    assert!(done.iter().all(|done| done.result == Err(ReadError::Stale)));
}

fn a_dropped_ticket_gives_the_targets_back<R: Rig>(rig: &R) {
    let (source, target) = (Source::new::<R>(1, 3, SLOT_BYTES), pool(2, 3));
    rig.publish(&source);
    let (_held, sources) = source.fill(3);
    let (sink, events, gate) = gated();
    let ticket = rig.transport().read(RequestContext::NONE, requests(&sources, &target), sink);
    assert_eq!(next(&events).result, Ok(()));
    drop(ticket);
    gate.send(()).unwrap();
    for _ in 1..3 {
        assert_eq!(next(&events).result, Err(ReadError::Closed));
    }
    assert!(events.recv().is_err(), "the sink is gone");
    assert_eq!(target.audit().free, 3);
    assert_eq!(result(rig, sources[0], &target), Ok(()), "others go on");
}

fn a_closed_sink_frees_the_targets<R: Rig>(rig: &R) {
    let (source, target) = (Source::new::<R>(1, 3, SLOT_BYTES), pool(2, 3));
    rig.publish(&source);
    let (held, sources) = source.fill(3);
    let (alive, gone) = bounded::<()>(0);
    let sink = move |done: ReadDone| {
        let _keeps_the_channel_open = &alive;
        drop(done);
        Flow::Closed
    };
    let ticket =
        rig.transport().read(RequestContext::NONE, requests(&sources, &target), Box::new(sink));
    assert!(gone.recv().is_err(), "the sink is dropped");
    assert_eq!(result(rig, sources[0], &pool(3, 1)), Ok(()), "others go on");
    drop((ticket, held));
    settles("the targets are free", || target.audit().free == 3);
    settles("the source is at rest", || source.pool.audit().is_at_rest());
}

fn many_readers_share_a_source<R: Rig + Sized>(rig: &R) {
    let source = Source::new::<R>(1, 4, SLOT_BYTES);
    rig.publish(&source);
    let (held, sources) = source.fill(4);
    let transport: &dyn Transport = rig.transport();
    thread::scope(|scope| {
        for region in 10..14 {
            let sources = &sources;
            scope.spawn(move || {
                let target = pool(region, 4);
                for _ in 0..50 {
                    let (sink, events) = answers();
                    let _ticket =
                        transport.read(RequestContext::NONE, requests(sources, &target), sink);
                    for source in sources {
                        let done = next(&events);
                        assert_eq!((done.result, &done.source), (Ok(()), source));
                    }
                }
            });
        }
    });
    drop(held);
    settles("the source is at rest", || source.pool.audit().is_at_rest());
}
