//! Peers on this host that are frozen, or lie, or stall: a bare owner and a bare reader of the protocol.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self, MemfdFlags};
use shared::{Descriptor, RegionId, RequestContext, SlotIndex, SlotMemory};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;

use super::support::{CONFIG, Identity, Node, Pair, SharedPair, peer, publish, result, runtime};
use crate::memory::SharedMemory;
use crate::testing::{SLOT_BYTES, next, payload, pool, store};
use crate::transport::conformance::{Source, answers, gated, requests, settles, spoil};
use crate::transport::peer::PeerTransportConfig;
use crate::transport::shm::{Conversation, Opened, SegmentShape, Turn};
use crate::transport::wire::Status;
use crate::transport::{ReadError, Transport};

/// What an owner does with the first turn of a read of two objects, numbers 0 and 1.
#[derive(Clone)]
enum Lie {
    /// Answers this, with this file, then tells the truth about what it held: whatever is said.
    Answer(Opened, Option<Arc<OwnedFd>>, bool),
    /// Sends these bytes as a message.
    Bytes(Vec<u8>),
    /// Says nothing.
    Stall,
    /// Ends the connection.
    Close,
}

/// A node with a socket where a liar listens in its place.
fn liar(runtime: &Runtime, path: &Path, lie: Lie) {
    let _entered = runtime.enter();
    let listener = UnixListener::bind(path).unwrap();
    // Ends with the runtime.
    drop(runtime.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut conversation = Conversation::new(stream).unwrap();
            let mut told = false;
            while let Ok(message) = conversation.receive().await {
                let turn = Turn::decode(&message).unwrap();
                let answer = match &lie {
                    Lie::Answer(opened, _, held) if told => {
                        let statuses = opened.statuses[..turn.wanted.len()].to_vec();
                        Opened { held: *held, segment: None, statuses }.encode()
                    }
                    Lie::Answer(opened, ..) => opened.encode(),
                    Lie::Bytes(bytes) => bytes.clone(),
                    Lie::Stall => {
                        told = true;
                        continue;
                    }
                    Lie::Close => break,
                };
                let file = match &lie {
                    Lie::Answer(_, file, _) if !told => file.clone(),
                    _ => None,
                };
                told = true;
                let file = file.as_ref().map(|file| file.as_fd());
                if conversation.send(&answer, file).await.is_err() {
                    break;
                }
            }
        }
    }));
}

fn results(lie: Lie, config: PeerTransportConfig) -> [Result<(), ReadError>; 2] {
    let runtime = runtime();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("liar");
    liar(&runtime, &path, lie);
    // Behind the liar's QUIC address is somebody who does not know the region, so that a read which goes there shows.
    let far = Node::start(&runtime, Identity::new("far"), CONFIG, None);
    let near = Node::start(&runtime, Identity::new("near"), config, None);
    let mut lying = peer(&far, "far");
    lying.shm = Some(path);
    near.directory.set(Some(lying));
    let source = pool(1, 2);
    let sources = [0, 1].map(|number| store(&source, number).descriptor());
    let target = pool(2, 2);
    let (sink, events) = answers();
    let _ticket = near.transport.read(RequestContext::NONE, requests(&sources, &target), sink);
    let results = [next(&events).result, next(&events).result];
    assert!(events.recv().is_err(), "the sink is gone");
    assert_eq!(target.audit().free, 2);
    results
}

/// A segment with objects 0 and 1 in slots 0 and 1.
fn segment() -> (SegmentShape, Arc<OwnedFd>) {
    let memory = SharedMemory::with_slots(2, SLOT_BYTES).unwrap();
    for number in 0..2 {
        let slot = SlotIndex(number);
        memory.write(slot, &mut |bytes| bytes.copy_from_slice(&payload(number.into())));
    }
    let shape = SegmentShape { slots: 2, slot_bytes: 37, stride: 64 };
    (shape, Arc::new(memory.file().try_clone_to_owned().unwrap()))
}

fn unsealed() -> Arc<OwnedFd> {
    let file = fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
    fs::ftruncate(&file, 128).unwrap();
    Arc::new(file)
}

#[test]
fn lies_are_seen_through() {
    let lost = [Err(ReadError::PeerLost { region: RegionId(1) }); 2];
    let (shape, file) = segment();
    let ready = vec![Status::Ready; 2];
    let answer = |segment, statuses: &[Status], file: Option<&Arc<OwnedFd>>| {
        let opened = Opened { held: true, segment, statuses: statuses.to_vec() };
        Lie::Answer(opened, file.cloned(), true)
    };
    let late = Err(ReadError::Late { limit_ms: CONFIG.read_ms_max });
    let unheld = Lie::Answer(
        Opened { held: true, segment: Some(shape), statuses: ready.clone() },
        Some(Arc::clone(&file)),
        false,
    );
    let moved = SegmentShape { stride: 63, ..shape };
    let huge = SegmentShape { stride: u64::MAX, ..shape };
    let few = SegmentShape { slots: 1, stride: 128, ..shape };
    let narrow = SegmentShape { slot_bytes: 36, ..shape };
    let elsewhere = [Err(ReadError::UnknownRegion { region: RegionId(1) }); 2];
    let stale = [Ok(()), Err(ReadError::Stale)];
    let cases = [
        ("the truth", answer(Some(shape), &ready, Some(&file)), [Ok(()); 2]),
        ("one is stale", answer(Some(shape), &[Status::Ready, Status::Stale], Some(&file)), stale),
        ("not held until the end", unheld, [late; 2]),
        ("no segment", answer(None, &ready, None), lost),
        ("no file", answer(Some(shape), &ready, None), lost),
        ("a file that may shrink", answer(Some(shape), &ready, Some(&unsealed())), lost),
        ("another size", answer(Some(moved), &ready, Some(&file)), lost),
        ("no size", answer(Some(huge), &ready, Some(&file)), lost),
        ("a slot too few", answer(Some(few), &ready, Some(&file)), lost),
        ("slots too small", answer(Some(narrow), &ready, Some(&file)), lost),
        ("too few statuses", answer(Some(shape), &ready[..1], Some(&file)), lost),
        ("a status of another path", answer(Some(shape), &[Status::Damaged; 2], Some(&file)), lost),
        ("not in shared memory", answer(None, &[Status::NotShared; 2], None), elsewhere),
        ("garbage", Lie::Bytes(vec![7; 40]), lost),
        ("nothing at all", Lie::Bytes(Vec::new()), lost),
        ("a closed connection", Lie::Close, lost),
    ];
    for (what, lie, expected) in cases {
        let found = results(lie, CONFIG);
        // What lies before the first refusal of a slot was copied, but is never confirmed.
        assert_eq!(found, expected, "{what}");
    }
}

#[test]
fn other_bytes_are_corrupt() {
    let memory = SharedMemory::with_slots(2, SLOT_BYTES).unwrap();
    for slot in [SlotIndex(0), SlotIndex(1)] {
        memory.write(slot, &mut |bytes| bytes.copy_from_slice(&payload(1)));
    }
    let file = Arc::new(memory.file().try_clone_to_owned().unwrap());
    let segment = Some(SegmentShape { slots: 2, slot_bytes: 37, stride: 64 });
    let opened = Opened { held: true, segment, statuses: vec![Status::Ready; 2] };
    let (expected, found) = (crc32c::crc32c(&payload(0)), crc32c::crc32c(&payload(1)));
    let corrupt = Err(ReadError::Corrupt { expected, found });
    assert_eq!(results(Lie::Answer(opened, Some(file), true), CONFIG), [corrupt, Ok(())]);
}

#[test]
fn a_frozen_peer_is_late() {
    let config = PeerTransportConfig { read_ms_max: 50, ..CONFIG };
    assert_eq!(results(Lie::Stall, config), [Err(ReadError::Late { limit_ms: 50 }); 2]);
}

/// A bare reader, connected to an owner of one region with `count` objects.
struct Reader {
    far: Node,
    source: Source,
    wanted: Vec<Descriptor>,
    conversation: Conversation,
    runtime: Runtime,
}

impl Reader {
    fn start(count: u32, hold_ms_max: u64) -> Self {
        let runtime = runtime();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("far");
        let config = PeerTransportConfig { hold_ms_max, ..CONFIG };
        let far = Node::start(&runtime, Identity::new("far"), config, Some(path.clone()));
        let source = Source::new::<SharedPair>(1, count, SLOT_BYTES);
        publish(&far, &source);
        let numbers = 0..u64::from(count);
        let wanted = numbers.map(|number| store(&source.pool, number).descriptor()).collect();
        let stream = runtime.block_on(UnixStream::connect(&path)).unwrap();
        let conversation = {
            let _entered = runtime.enter();
            Conversation::new(stream).unwrap()
        };
        Self { far, source, wanted, conversation, runtime }
    }

    fn turn(&mut self, copied: &[bool], wanted: &[Descriptor]) -> Option<Opened> {
        let turn = Turn {
            context: RequestContext::NONE,
            region: RegionId(1),
            copied: copied.to_vec(),
            wanted: wanted.to_vec(),
        };
        self.say(&turn.encode())
    }

    fn say(&mut self, message: &[u8]) -> Option<Opened> {
        self.runtime.block_on(async {
            self.conversation.send(message, None).await.ok()?;
            Opened::decode(&self.conversation.receive().await.ok()?)
        })
    }
}

#[test]
fn the_owner_holds_a_group_until_the_next_turn() {
    let mut reader = Reader::start(2, CONFIG.hold_ms_max);
    let wanted = reader.wanted.clone();
    let first = reader.turn(&[], &wanted).unwrap();
    assert_eq!(first.segment, Some(SegmentShape { slots: 2, slot_bytes: 37, stride: 64 }));
    assert_eq!((first.held, first.statuses), (true, vec![Status::Ready; 2]));
    assert!(reader.conversation.take_file().is_some());
    assert_eq!(reader.source.pool.available(), 0, "both are open");
    let second = reader.turn(&[true, true], &wanted[..1]).unwrap();
    assert_eq!((second.held, second.segment), (true, None), "the segment comes once");
    assert_eq!(reader.source.pool.available(), 1);
    let wrong = reader.turn(&[true, true], &[]).unwrap();
    assert!(!wrong.held, "the reader speaks of other objects than it has open");
    assert!(reader.source.pool.audit().is_at_rest());
    let nothing_open = reader.turn(&[true], &[]).unwrap();
    assert!(!nothing_open.held);
    assert!(reader.far.transport.unregister(RegionId(1)));
    publish(&reader.far, &reader.source);
    let again = reader.turn(&[], &wanted).unwrap();
    assert_eq!(again.segment, first.segment, "it comes again after a new registration");
}

#[test]
fn a_reader_that_stalls_is_released_without_it() {
    let mut reader = Reader::start(2, 50);
    let wanted = reader.wanted.clone();
    reader.turn(&[], &wanted).unwrap();
    let pool = reader.source.pool.clone();
    settles("the owner releases", || pool.audit().is_at_rest());
    assert_eq!(reader.far.transport.stats().holds_expired, 2);
    let late = reader.turn(&[true, true], &[]).unwrap();
    assert!(!late.held, "the reader learns of it");
}

#[test]
fn a_reader_that_dies_is_released() {
    let mut reader = Reader::start(1, CONFIG.hold_ms_max);
    let wanted = reader.wanted.clone();
    reader.turn(&[], &wanted).unwrap();
    let Reader { source, conversation, far, runtime, .. } = reader;
    assert_eq!(source.pool.available(), 0);
    drop(conversation);
    settles("the owner releases", || source.pool.audit().is_at_rest());
    drop((far, runtime));
}

#[test]
fn a_wrong_copy_makes_the_owner_check_its_own() {
    for damaged in [false, true] {
        let mut reader = Reader::start(1, CONFIG.hold_ms_max);
        let wanted = reader.wanted.clone();
        if damaged {
            spoil(&*reader.source.memory, wanted[0].location.slot);
        }
        reader.turn(&[], &wanted).unwrap();
        reader.turn(&[false], &[]).unwrap();
        assert_eq!(reader.source.pool.contains(wanted[0].key.name), !damaged);
    }
}

#[test]
fn a_malformed_turn_ends_the_connection() {
    let long = vec![1; 100_000];
    for bytes in [&b""[..], b"\x09garbage", &long[..70]] {
        let mut reader = Reader::start(1, CONFIG.hold_ms_max);
        assert_eq!(reader.say(bytes), None);
        assert_eq!(reader.far.transport.stats().requests_malformed, 1);
    }
}

#[test]
fn regions_that_are_unknown_or_private_are_said_to_be() {
    let mut reader = Reader::start(1, CONFIG.hold_ms_max);
    let wanted = reader.wanted.clone();
    assert!(reader.far.transport.unregister(RegionId(1)));
    let unknown = reader.turn(&[], &wanted).unwrap();
    assert_eq!((unknown.statuses, unknown.segment), (vec![Status::UnknownRegion], None));
    reader.far.transport.register(&reader.source.pool).unwrap();
    let private = reader.turn(&[], &wanted).unwrap();
    assert_eq!((private.statuses, private.segment), (vec![Status::NotShared], None));
    assert!(reader.source.pool.audit().is_at_rest());
}

#[test]
fn a_cancelled_read_releases_what_the_owner_held() {
    let rig = Pair::start(true);
    let source = Source::new::<SharedPair>(1, 40, SLOT_BYTES);
    publish(&rig.far, &source);
    let sources: Vec<_> = (0..40).map(|number| store(&source.pool, number).descriptor()).collect();
    let target = pool(2, 40);
    let (sink, events, gate) = gated();
    let ticket = rig.near.transport.read(RequestContext::NONE, requests(&sources, &target), sink);
    assert_eq!(next(&events).result, Ok(()));
    assert_eq!(source.pool.available(), 32, "the second group is open already");
    drop(ticket);
    gate.send(()).unwrap();
    for _ in 1..40 {
        assert_eq!(next(&events).result, Err(ReadError::Closed));
    }
    settles("nothing is open", || source.pool.audit().is_at_rest());
    assert_eq!(result(&rig.near.transport, sources[0], &target), Ok(()));
}
