//! The transport between processes, with both ends in one: the suite on every path, and what only it can get wrong.

mod hostile_quic;
mod hostile_shm;
mod media;
mod support;

use std::net::UdpSocket;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crossbeam_channel::unbounded;
use shared::{Flow, RegionId, RequestContext};

use super::{PeerTransport, PeerTransportConfig, PeerTransportError};
use crate::testing::{SLOT_BYTES, next, pool, store};
use crate::transport::conformance::{Source, answers, check, gated, requests, settles};
use crate::transport::{ReadDone, ReadError, Transport};
use support::{
    CONFIG, Identity, Node, OwnProcess, Pair, QuicPair, SharedPair, SharedSocketPair, peer,
    publish, result, runtime,
};

#[test]
fn reads_inside_the_process_conform() {
    check::<OwnProcess>();
}

#[test]
fn reads_over_quic_conform() {
    check::<QuicPair>();
}

#[test]
fn reads_through_shared_memory_conform() {
    check::<SharedPair>();
}

#[test]
fn pools_outside_shared_memory_conform_although_the_peer_has_a_socket() {
    check::<SharedSocketPair>();
}

/// What is read from `far` and how often each way was taken: local, shared memory, QUIC.
fn paths(rig: &Pair) -> [u64; 3] {
    let stats = rig.near.transport.stats();
    [stats.local.objects, stats.shared_memory.objects, stats.quic.objects]
}

#[test]
fn the_way_is_chosen_by_where_the_region_is() {
    let rig = Pair::start(true);
    let shared = Source::new::<SharedPair>(1, 1, SLOT_BYTES);
    let private = Source::new::<QuicPair>(2, 1, SLOT_BYTES);
    let own = Source::new::<QuicPair>(3, 1, SLOT_BYTES);
    publish(&rig.far, &shared);
    publish(&rig.far, &private);
    publish(&rig.near, &own);
    let target = pool(4, 1);
    let expected = [[0, 1, 0], [0, 1, 1], [1, 1, 1]];
    for (source, expected) in [&shared, &private, &own].into_iter().zip(expected) {
        let held = store(&source.pool, 1);
        assert_eq!(result(&rig.near.transport, held.descriptor(), &target), Ok(()));
        assert_eq!(paths(&rig), expected);
    }
    let (near, far) = (rig.near.transport.stats(), rig.far.transport.stats());
    let bytes = u64::try_from(SLOT_BYTES).unwrap();
    assert_eq!((near.shared_memory.bytes, near.quic.bytes), (bytes, bytes));
    assert_eq!(far.served_quic, near.quic);
    assert_eq!((near.open_reads, near.connections_made, far.connections_served), (0, 2, 2));
}

#[test]
fn without_a_usable_socket_quic_is_used() {
    let rig = Pair::start(true);
    let mut elsewhere = peer(&rig.far, "far");
    elsewhere.shm = Some(rig.folder.path().join("nobody"));
    rig.near.directory.set(Some(elsewhere));
    let source = Source::new::<SharedPair>(1, 1, SLOT_BYTES);
    publish(&rig.far, &source);
    let held = store(&source.pool, 1);
    assert_eq!(result(&rig.near.transport, held.descriptor(), &pool(2, 1)), Ok(()));
    assert_eq!(paths(&rig), [0, 0, 1]);
}

#[test]
fn memory_that_changed_under_a_region_is_mapped_anew() {
    let rig = Pair::start(true);
    for number in 0..3 {
        let source = Source::new::<SharedPair>(1, 1, SLOT_BYTES);
        publish(&rig.far, &source);
        let held = store(&source.pool, number);
        assert_eq!(result(&rig.near.transport, held.descriptor(), &pool(2, 1)), Ok(()));
        assert!(rig.far.transport.unregister(RegionId(1)));
    }
    assert_eq!(paths(&rig), [0, 3, 0]);
}

#[test]
fn an_unknown_peer_is_an_unknown_region() {
    let rig = Pair::start(false);
    rig.near.directory.set(None);
    let held = store(&pool(1, 1), 1);
    let unknown = Err(ReadError::UnknownRegion { region: RegionId(1) });
    assert_eq!(result(&rig.near.transport, held.descriptor(), &pool(2, 1)), unknown);
}

#[test]
fn a_peer_that_dies_in_mid_batch_costs_the_rest_of_it() {
    for shm in [false, true] {
        let Pair { near, far, runtime: _runtime, folder: _folder } = Pair::start(shm);
        let source = match shm {
            true => Source::new::<SharedPair>(1, 200, SLOT_BYTES),
            false => Source::new::<QuicPair>(1, 200, SLOT_BYTES),
        };
        publish(&far, &source);
        let held: Vec<_> = (0..200).map(|number| store(&source.pool, number)).collect();
        let sources: Vec<_> = held.iter().map(|slot| slot.descriptor()).collect();
        let target = pool(2, 200);
        let (sink, events, gate) = gated();
        let _ticket = near.transport.read(RequestContext::NONE, requests(&sources, &target), sink);
        assert_eq!(next(&events).result, Ok(()));
        drop(far);
        gate.send(()).unwrap();
        let rest: Vec<_> = sources[1..].iter().map(|_| next(&events).result).collect();
        let lost = Err(ReadError::PeerLost { region: RegionId(1) });
        assert_eq!(rest.last(), Some(&lost), "shm {shm}");
        assert!(rest.iter().all(|result| *result == Ok(()) || *result == lost), "{rest:?}");
        drop((held, sources));
        settles("all slots are free", || target.audit().free == 200);
        settles("nothing is open", || source.pool.audit().is_at_rest());
    }
}

#[test]
fn a_peer_that_came_back_is_read_again_after_its_time() {
    for shm in [false, true] {
        let rig = Pair::start(shm);
        let source = Source::new::<SharedPair>(1, 1, SLOT_BYTES);
        let held = store(&source.pool, 1);
        publish(&rig.far, &source);
        let read = || result(&rig.near.transport, held.descriptor(), &pool(2, 1));
        assert_eq!(read(), Ok(()));
        let Pair { near, far, runtime, folder } = &rig;
        let address = far.transport.address();
        runtime.block_on(far.transport.close());
        let lost = Err(ReadError::PeerLost { region: RegionId(1) });
        assert_eq!(read(), lost, "shm {shm}");
        let made = near.transport.stats().connections_made;
        let socket = shm.then(|| folder.path().join("far-2"));
        let again = Node::start(runtime, Identity::new("far"), CONFIG, socket);
        publish(&again, &source);
        assert_ne!(again.transport.address(), address);
        near.directory.set(Some(peer(&again, "far")));
        assert_eq!(read(), lost, "it is left alone for a while");
        assert_eq!(near.transport.stats().connections_made, made);
        near.clock.advance(Duration::from_secs(1));
        assert_eq!(read(), Ok(()), "shm {shm}");
    }
}

#[test]
fn one_slow_batch_does_not_stop_the_others() {
    let rig = Pair::start(false);
    let (slow, fast) =
        (Source::new::<QuicPair>(1, 1, SLOT_BYTES), Source::new::<QuicPair>(2, 1, SLOT_BYTES));
    publish(&rig.far, &slow);
    publish(&rig.far, &fast);
    let (one, two) = (store(&slow.pool, 1), store(&fast.pool, 2));
    let target = pool(3, 2);
    let (sink, events, gate) = gated();
    let _ticket =
        rig.near.transport.read(RequestContext::NONE, requests(&[one.descriptor()], &target), sink);
    assert_eq!(next(&events).result, Ok(()), "its sink stands still now");
    assert_eq!(result(&rig.near.transport, two.descriptor(), &target), Ok(()));
    gate.send(()).unwrap();
}

#[test]
fn a_full_queue_answers_at_once_and_gives_the_targets_back() {
    let runtime = runtime();
    let config = PeerTransportConfig { queue_max: 1, batches_max: 1, ..CONFIG };
    let node = Node::start(&runtime, Identity::new("near"), config, None);
    let source = Source::new::<QuicPair>(1, 1, SLOT_BYTES);
    publish(&node, &source);
    let (sources, target) = ([store(&source.pool, 1).descriptor()], pool(2, 3));
    let (sink, first, gate) = gated();
    let _one = node.transport.read(RequestContext::NONE, requests(&sources, &target), sink);
    let one = next(&first);
    let (sink, second) = answers();
    let _two = node.transport.read(RequestContext::NONE, requests(&sources, &target), sink);
    let (sink, third) = answers();
    let _three = node.transport.read(RequestContext::NONE, requests(&sources, &target), sink);
    assert_eq!(next(&third).result, Err(ReadError::Busy { waiting_max: 1 }));
    assert_eq!(node.transport.stats().open_reads, 1, "the one that waits");
    gate.send(()).unwrap();
    assert_eq!((one.result, next(&second).result), (Ok(()), Ok(())));
    let stats = node.transport.stats();
    assert_eq!((stats.failures.busy, stats.local.objects), (1, 2));
}

#[test]
fn dropping_it_answers_what_waits_and_leaves_nothing_behind() {
    let runtime = runtime();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let config = PeerTransportConfig { batches_max: 1, ..CONFIG };
    let node = Node::start(&runtime, Identity::new("near"), config, Some(socket.clone()));
    let source = Source::new::<QuicPair>(1, 1, SLOT_BYTES);
    publish(&node, &source);
    let (sources, target) = ([store(&source.pool, 1).descriptor()], pool(2, 2));
    let (sink, first, gate) = gated();
    let one = node.transport.read(RequestContext::NONE, requests(&sources, &target), sink);
    assert_eq!(next(&first).result, Ok(()));
    let (sink, second) = answers();
    let two = node.transport.read(RequestContext::NONE, requests(&sources, &target), sink);
    assert!(socket.exists());
    let address = node.transport.address();
    let dropped = thread::spawn(move || drop(node));
    settles("it is closing", || !socket.exists());
    gate.send(()).unwrap();
    dropped.join().unwrap();
    assert_eq!(next(&second).result, Err(ReadError::Closed));
    drop((one, two));
    assert_eq!(target.audit().free, 2);
    settles("the port is free again", || UdpSocket::bind(address).is_ok());
}

#[test]
fn after_closing_reads_are_refused_at_once() {
    let rig = Pair::start(true);
    let source = Source::new::<SharedPair>(1, 1, SLOT_BYTES);
    publish(&rig.far, &source);
    let held = store(&source.pool, 1);
    rig.runtime.block_on(rig.near.transport.close());
    rig.runtime.block_on(rig.near.transport.close());
    let closed = result(&rig.near.transport, held.descriptor(), &pool(2, 1));
    assert_eq!(closed, Err(ReadError::Closed));
}

#[test]
fn a_socket_file_is_taken_over_from_the_dead_alone() {
    let runtime = runtime();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a dead process leaves its file");
    let start = |path: &Path| {
        let wiring = Identity::new("near").wiring(&runtime, Some(path.to_owned()));
        PeerTransport::start(CONFIG, wiring.1)
    };
    let first = start(&path).unwrap();
    for bad in [path.clone(), folder.path().join("x".repeat(200)), folder.path().join("none/x")] {
        let refused = start(&bad).unwrap_err();
        assert!(matches!(refused, PeerTransportError::Unix { .. }), "{refused}");
    }
    assert!(path.exists(), "the living one keeps its file");
    drop(first);
    drop(start(&path).unwrap());
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let runtime = runtime();
    let bad = [
        ("queue_max", PeerTransportConfig { queue_max: 0, ..CONFIG }),
        ("batches_max", PeerTransportConfig { batches_max: 1_025, ..CONFIG }),
        ("run_max", PeerTransportConfig { run_max: 257, ..CONFIG }),
        ("read_ms_max", PeerTransportConfig { read_ms_max: 0, ..CONFIG }),
        ("hold_ms_max", PeerTransportConfig { hold_ms_max: 0, ..CONFIG }),
        ("idle_ms_max", PeerTransportConfig { idle_ms_max: 1_000, ..CONFIG }),
        ("socket_bytes", PeerTransportConfig { socket_bytes: 0, ..CONFIG }),
        ("stream_window_bytes", PeerTransportConfig { stream_window_bytes: 0, ..CONFIG }),
        ("connections_max", PeerTransportConfig { connections_max: 0, ..CONFIG }),
        ("peers_max", PeerTransportConfig { peers_max: 0, ..CONFIG }),
    ];
    for (name, config) in bad {
        let wiring = Identity::new("near").wiring(&runtime, None).1;
        match PeerTransport::start(config, wiring) {
            Err(PeerTransportError::Config { field, .. }) => assert_eq!(field, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    for config in [CONFIG, PeerTransportConfig::DEFAULT] {
        PeerTransport::start(config, Identity::new("near").wiring(&runtime, None).1).unwrap();
    }
}

#[test]
fn a_region_is_registered_once() {
    let runtime = runtime();
    let node = Node::start(&runtime, Identity::new("near"), CONFIG, None);
    let region = RegionId(1);
    node.transport.register(&pool(1, 1)).unwrap();
    assert_eq!(node.transport.register(&pool(1, 1)).unwrap_err().region, region);
    assert!(node.transport.unregister(region));
    assert!(!node.transport.unregister(region));
    node.transport.register(&pool(1, 1)).unwrap();
}

#[test]
fn who_may_not_read_gets_nothing() {
    let runtime = runtime();
    let source = Source::new::<QuicPair>(1, 1, SLOT_BYTES);
    let held = store(&source.pool, 1);
    let lost = Err(ReadError::PeerLost { region: RegionId(1) });
    let stranger = Identity::new("near").of_another_authority();
    let cases = [
        (
            "its role may not read",
            Identity::new("near"),
            Identity::new("far").without_readers(),
            "far",
        ),
        ("another authority made it", stranger, Identity::new("far"), "far"),
        ("the server has another name", Identity::new("near"), Identity::new("other"), "far"),
    ];
    for (what, near, far, name) in cases {
        let far = Node::start(&runtime, far, CONFIG, None);
        publish(&far, &source);
        let near = Node::start(&runtime, near, CONFIG, None);
        near.directory.set(Some(peer(&far, name)));
        assert_eq!(result(&near.transport, held.descriptor(), &pool(2, 1)), lost, "{what}");
        settles("it was refused", || far.transport.stats().connections_refused == 1);
        let stats = far.transport.stats();
        assert_eq!((stats.served_quic.objects, stats.connections_served), (0, 0), "{what}");
    }
}

#[test]
fn connections_beyond_the_bound_are_refused() {
    let runtime = runtime();
    let config = PeerTransportConfig { connections_max: 1, ..CONFIG };
    for shm in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let socket = shm.then(|| folder.path().join("far"));
        let far = Node::start(&runtime, Identity::new("far"), config, socket);
        let source = Source::new::<SharedPair>(1, 1, SLOT_BYTES);
        publish(&far, &source);
        let held = store(&source.pool, 1);
        let readers = ["one", "two"].map(|name| {
            let near = Node::start(&runtime, Identity::new(name), CONFIG, None);
            near.directory.set(Some(peer(&far, "far")));
            near
        });
        let read = |near: &Node| result(&near.transport, held.descriptor(), &pool(2, 1));
        assert_eq!(read(&readers[0]), Ok(()));
        let lost = Err(ReadError::PeerLost { region: RegionId(1) });
        assert_eq!(read(&readers[1]), lost, "shm {shm}");
        assert_eq!(far.transport.stats().connections_refused, 1, "shm {shm}");
        let [first, second] = readers;
        drop(first);
        settles("the first one left", || far.transport.stats().connections_served == 0);
        second.clock.advance(Duration::from_secs(1));
        settles("there is room again", || {
            second.clock.advance(Duration::from_secs(1));
            read(&second) == Ok(())
        });
    }
}

#[test]
fn the_last_handle_may_drop_on_a_task_of_its_own() {
    let runtime = runtime();
    let Node { transport, .. } = Node::start(&runtime, Identity::new("near"), CONFIG, None);
    let source = Source::new::<QuicPair>(1, 2, SLOT_BYTES);
    transport.register(&source.pool).unwrap();
    let (sources, target) = ([store(&source.pool, 1).descriptor()], pool(2, 1));
    let (handles, received) = unbounded::<PeerTransport>();
    let (sink, events) = {
        let (sender, events) = unbounded();
        let sink = move |done: ReadDone| {
            drop(next(&received));
            sender.send(done.result).map_or(Flow::Closed, |()| Flow::Open)
        };
        (Box::new(sink), events)
    };
    let ticket = transport.read(RequestContext::NONE, requests(&sources, &target), sink);
    handles.send(transport).unwrap();
    assert_eq!(next(&events), Ok(()));
    drop(ticket);
    settles("the target is free", || target.audit().free == 1);
}
