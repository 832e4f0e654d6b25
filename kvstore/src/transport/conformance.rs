//! What every transport has to do, as cases generic over it.
//!
//! A rig says how pools become readable and vanish; [`check`] runs all cases, each on a fresh rig.

use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use shared::{Descriptor, Flow, RegionId, Ticket};

use super::{ReadDone, ReadError, ReadRequest, Transport};
use crate::memory::HostMemory;
use crate::pool::{Pool, PoolConfig};
use crate::testing::{SLOT_BYTES, bytes_of, damage, next, payload, pool, pool_with_memory, store};

/// A transport under test and what lies at its far end.
pub(crate) trait Rig {
    type Transport: Transport;

    fn start() -> Self;
    fn transport(&self) -> &Self::Transport;
    fn publish(&self, pool: &Pool);
    fn withdraw(&self, region: RegionId);
}

/// What a case states, and the case.
type Case<R> = (&'static str, fn(&R));

/// Runs every case.
pub(crate) fn check<R: Rig>() {
    let cases: [Case<R>; 10] = [
        ("bytes arrive in order", bytes_arrive_in_order),
        ("an unknown region is refused", an_unknown_region_is_refused),
        ("a lost peer fails the rest", a_lost_peer_fails_the_rest),
        ("an evicted slot is stale", an_evicted_slot_is_stale),
        ("a reused slot is stale", a_reused_slot_is_stale),
        ("damaged bytes are refused and forgotten", damaged_bytes_are_refused_and_forgotten),
        ("a short target is refused", a_short_target_is_refused),
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
    let ticket = rig.transport().read(requests(sources, target), sink);
    (ticket, sources.iter().map(|_| next(&events)).collect())
}

/// Reads one object and says what became of it.
fn result<R: Rig>(rig: &R, source: Descriptor, target: &Pool) -> Result<(), ReadError> {
    let (_ticket, mut done) = read(rig, &[source], target);
    done.remove(0).result
}

fn bytes_arrive_in_order<R: Rig>(rig: &R) {
    let (source, target) = (pool(1, 20), pool(2, 20));
    rig.publish(&source);
    let held: Vec<_> = (0..20).map(|number| store(&source, number)).collect();
    let sources: Vec<Descriptor> = held.iter().map(|slot| slot.descriptor()).collect();
    let (ticket, done) = read(rig, &sources, &target);
    for (number, done) in (0..).zip(done) {
        assert_eq!(done.result, Ok(()));
        let sealed = target.seal_read(done.target, &done.source).unwrap();
        assert_eq!(bytes_of(&sealed), payload(number));
        assert_eq!(sealed.descriptor().key, sources[usize::try_from(number).unwrap()].key);
    }
    drop((ticket, held));
    assert!(source.audit().is_at_rest() && target.audit().is_at_rest());
    let (sink, events) = answers();
    drop(rig.transport().read(Vec::new(), sink));
    assert!(events.recv().is_err(), "nothing to read, nothing to say");
}

fn an_unknown_region_is_refused<R: Rig>(rig: &R) {
    let (source, target) = (pool(1, 1), pool(2, 1));
    let held = store(&source, 1);
    let unknown = Err(ReadError::UnknownRegion { region: RegionId(1) });
    assert_eq!(result(rig, held.descriptor(), &target), unknown);
    rig.publish(&source);
    assert_eq!(result(rig, held.descriptor(), &target), Ok(()));
    assert_eq!(target.audit().free, 1);
}

fn a_lost_peer_fails_the_rest<R: Rig>(rig: &R) {
    let (source, target) = (pool(1, 3), pool(2, 3));
    rig.publish(&source);
    let held: Vec<_> = (0..3).map(|number| store(&source, number)).collect();
    let sources: Vec<Descriptor> = held.iter().map(|slot| slot.descriptor()).collect();
    let (sink, events, gate) = gated();
    let _ticket = rig.transport().read(requests(&sources, &target), sink);
    assert_eq!(next(&events).result, Ok(()));
    rig.withdraw(RegionId(1));
    gate.send(()).unwrap();
    for _ in 1..3 {
        let unknown = Err(ReadError::UnknownRegion { region: RegionId(1) });
        assert_eq!(next(&events).result, unknown);
    }
    assert_eq!(target.audit().free, 3);
}

fn an_evicted_slot_is_stale<R: Rig>(rig: &R) {
    let (source, target) = (pool(1, 1), pool(2, 1));
    rig.publish(&source);
    let old = store(&source, 1).descriptor();
    assert_eq!(source.evict_all(), 1);
    assert_eq!(result(rig, old, &target), Err(ReadError::Stale));
}

fn a_reused_slot_is_stale<R: Rig>(rig: &R) {
    let (source, target) = (pool(1, 1), pool(2, 1));
    rig.publish(&source);
    let old = store(&source, 1).descriptor();
    for number in [2, 1] {
        let held = store(&source, number);
        assert_eq!(held.index(), old.location.slot);
        assert_eq!(result(rig, old, &target), Err(ReadError::Stale), "tenant {number}");
        assert_eq!(result(rig, held.descriptor(), &target), Ok(()));
    }
}

fn damaged_bytes_are_refused_and_forgotten<R: Rig>(rig: &R) {
    let (source, memory) = pool_with_memory(1, 2);
    let target = pool(2, 1);
    rig.publish(&source);
    let (bad, good) = (store(&source, 1), store(&source, 2));
    damage(&memory, bad.index());
    let refused = result(rig, bad.descriptor(), &target);
    let expected = bad.descriptor().checksum;
    assert!(
        matches!(refused, Err(ReadError::Corrupt { expected: e, found }) if e == expected && found != e),
        "{refused:?}"
    );
    assert!(!source.contains(bad.name()), "nobody shall find it again");
    assert_eq!(result(rig, good.descriptor(), &target), Ok(()));
    drop((bad, good));
    assert!(source.audit().is_at_rest());
}

fn a_short_target_is_refused<R: Rig>(rig: &R) {
    let source = pool(1, 1);
    rig.publish(&source);
    let held = store(&source, 1);
    let memory = Arc::new(HostMemory::with_slots(1, SLOT_BYTES - 1).unwrap());
    let config = PoolConfig { region: RegionId(2), ..source.config() };
    let target = Pool::new(config, memory);
    let expected = ReadError::Length { expected: SLOT_BYTES, found: SLOT_BYTES - 1 };
    assert_eq!(result(rig, held.descriptor(), &target), Err(expected));
    assert_eq!(target.audit().free, 1);
}

fn a_dropped_ticket_gives_the_targets_back<R: Rig>(rig: &R) {
    let (source, target) = (pool(1, 3), pool(2, 3));
    rig.publish(&source);
    let held: Vec<_> = (0..3).map(|number| store(&source, number)).collect();
    let sources: Vec<Descriptor> = held.iter().map(|slot| slot.descriptor()).collect();
    let (sink, events, gate) = gated();
    let ticket = rig.transport().read(requests(&sources, &target), sink);
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
    let (source, target) = (pool(1, 3), pool(2, 3));
    rig.publish(&source);
    let held: Vec<_> = (0..3).map(|number| store(&source, number)).collect();
    let sources: Vec<Descriptor> = held.iter().map(|slot| slot.descriptor()).collect();
    let (alive, gone) = bounded::<()>(0);
    let sink = move |done: ReadDone| {
        let _keeps_the_channel_open = &alive;
        drop(done);
        Flow::Closed
    };
    let ticket = rig.transport().read(requests(&sources, &target), Box::new(sink));
    assert!(gone.recv().is_err(), "the sink is dropped");
    // The next batch starts after the last one ended.
    assert_eq!(result(rig, sources[0], &pool(3, 1)), Ok(()));
    drop((ticket, held));
    assert_eq!(target.audit().free, 3);
    assert!(source.audit().is_at_rest());
}

fn many_readers_share_a_source<R: Rig + Sized>(rig: &R) {
    let source = pool(1, 4);
    rig.publish(&source);
    let held: Vec<_> = (0..4).map(|number| store(&source, number)).collect();
    let sources: Vec<Descriptor> = held.iter().map(|slot| slot.descriptor()).collect();
    let transport: &dyn Transport = rig.transport();
    thread::scope(|scope| {
        for region in 10..14 {
            let sources = &sources;
            scope.spawn(move || {
                let target = pool(region, 4);
                for _ in 0..50 {
                    let (sink, events) = answers();
                    let _ticket = transport.read(requests(sources, &target), sink);
                    for source in sources {
                        let done = next(&events);
                        assert_eq!((done.result, &done.source), (Ok(()), source));
                    }
                }
            });
        }
    });
    drop(held);
    assert!(source.audit().is_at_rest());
}
