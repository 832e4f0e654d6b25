//! Peers on this host that are frozen, or lie, or stall: a bare owner and a bare reader of the protocol.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self, MemfdFlags};
use shared::{Descriptor, Generation, RegionId, RequestContext, SlotIndex, SlotMemory};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;

use super::support::{CONFIG, Identity, Node, Pair, SharedPair, peer, publish, result, runtime};
use crate::memory::SharedMemory;
use crate::testing::{SLOT_BYTES, next, payload, pool, store};
use crate::transport::conformance::{Source, answers, gated, requests, settles, spoil};
use crate::transport::peer::PeerTransportConfig;
use crate::transport::shm::{Ask, Conversation, SegmentShape, Told};
use crate::transport::wire::Status;
use crate::transport::{ReadError, Transport};

/// What an owner does with the questions of a read of two objects, numbers 0 and 1.
#[derive(Clone)]
enum Lie {
    /// Answers this, with this file the first time.
    Answer(Told, Option<Arc<OwnedFd>>),
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
                assert!(Ask::decode(&message).is_some());
                let answer = match &lie {
                    Lie::Answer(first, _) if told => Told { segment: None, ..*first }.encode(),
                    Lie::Answer(first, _) => first.encode(),
                    Lie::Bytes(bytes) => bytes.clone(),
                    Lie::Stall => continue,
                    Lie::Close => break,
                };
                let file = match &lie {
                    Lie::Answer(_, file) if !told => file.clone(),
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

/// A segment whose slots 0 and 1 hold these objects, by its marks; open or not.
fn segment(numbers: [u64; 2], open: bool) -> (SharedMemory, Arc<OwnedFd>) {
    let memory = SharedMemory::with_slots(2, SLOT_BYTES).unwrap();
    for (slot, number) in [0, 1].map(SlotIndex).into_iter().zip(numbers) {
        memory.write(slot, &mut |bytes| bytes.copy_from_slice(&payload(number)));
        memory.mark(slot, Some(Generation(0)));
    }
    memory.open(open);
    let file = memory.file().try_clone_to_owned().unwrap();
    (memory, Arc::new(file))
}

const SHAPE: SegmentShape = SegmentShape { slots: 2, slot_bytes: 37, stride: 64 };

fn unsealed() -> Arc<OwnedFd> {
    let file = fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
    fs::ftruncate(&file, 128 + 3 * 8).unwrap();
    Arc::new(file)
}

#[test]
fn lies_are_seen_through() {
    let lost = [Err(ReadError::PeerLost { region: RegionId(1) }); 2];
    let (memory, file) = segment([0, 1], true);
    let (_shut_memory, shut) = segment([0, 1], false);
    let (reused_memory, reused) = segment([0, 1], true);
    reused_memory.mark(SlotIndex(1), Some(Generation(1)));
    let answer = |segment, status, file: Option<&Arc<OwnedFd>>| {
        Lie::Answer(Told { status, segment }, file.cloned())
    };
    let ready = |shape, file| answer(Some(shape), Status::Ready, Some(file));
    let refused = |status| answer(None, status, None);
    let moved = SegmentShape { stride: 128, ..SHAPE };
    let huge = SegmentShape { stride: u64::MAX, ..SHAPE };
    let none = SegmentShape { slots: 0, stride: 152, ..SHAPE };
    let narrow = SegmentShape { slot_bytes: 36, ..SHAPE };
    let elsewhere = [Err(ReadError::UnknownRegion { region: RegionId(1) }); 2];
    let stale = [Err(ReadError::Stale); 2];
    let cases = [
        ("the truth", ready(SHAPE, &file), [Ok(()); 2]),
        ("held, with a segment that is shut", ready(SHAPE, &shut), stale),
        ("held, with a slot that has another object", ready(SHAPE, &reused), [Ok(()), stale[1]]),
        ("stale", refused(Status::Stale), stale),
        ("damaged, unasked", refused(Status::Damaged), stale),
        ("no segment", refused(Status::Ready), lost),
        ("no file", answer(Some(SHAPE), Status::Ready, None), lost),
        ("a file that may shrink", ready(SHAPE, &unsealed()), lost),
        ("another size", ready(moved, &file), lost),
        ("no size", ready(huge, &file), lost),
        ("no slots", ready(none, &file), lost),
        ("slots too small", ready(narrow, &file), lost),
        ("not in shared memory", refused(Status::NotShared), elsewhere),
        ("garbage", Lie::Bytes(vec![7; 40]), lost),
        ("nothing at all", Lie::Bytes(Vec::new()), lost),
        ("a closed connection", Lie::Close, lost),
    ];
    for (what, lie, expected) in cases {
        assert_eq!(results(lie, CONFIG), expected, "{what}");
    }
    drop(memory);
}

#[test]
fn other_bytes_are_corrupt() {
    let (_memory, file) = segment([1, 1], true);
    let told = Told { status: Status::Ready, segment: Some(SHAPE) };
    let (expected, found) = (crc32c::crc32c(&payload(0)), crc32c::crc32c(&payload(1)));
    let corrupt = Err(ReadError::Corrupt { expected, found });
    assert_eq!(results(Lie::Answer(told, Some(file)), CONFIG), [corrupt, Ok(())]);
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
    fn start(count: u32) -> Self {
        let runtime = runtime();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("far");
        let far = Node::start(&runtime, Identity::new("far"), CONFIG, Some(path.clone()));
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

    fn ask(&mut self, object: usize, wrong: bool) -> Option<Told> {
        let object = self.wanted[object];
        self.say(&Ask { context: RequestContext::NONE, object, wrong }.encode())
    }

    fn say(&mut self, message: &[u8]) -> Option<Told> {
        self.runtime.block_on(async {
            self.conversation.send(message, None).await.ok()?;
            Told::decode(&self.conversation.receive().await.ok()?)
        })
    }
}

#[test]
fn the_segment_comes_once_for_each_registration() {
    let mut reader = Reader::start(2);
    let ready = |segment| Some(Told { status: Status::Ready, segment });
    assert_eq!(reader.ask(0, false), ready(Some(SHAPE)));
    assert!(reader.conversation.take_file().is_some());
    assert_eq!(reader.ask(1, false), ready(None));
    assert!(reader.source.pool.audit().is_at_rest(), "nothing is held for a reader");
    assert!(reader.far.transport.unregister(RegionId(1)));
    publish(&reader.far, &reader.source);
    assert_eq!(reader.ask(1, false), ready(Some(SHAPE)));
}

#[test]
fn a_wrong_copy_makes_the_owner_check_its_own() {
    for (damaged, wrong) in [(false, true), (true, false), (true, true)] {
        let mut reader = Reader::start(1);
        let wanted = reader.wanted[0];
        if damaged {
            spoil(&*reader.source.memory, wanted.location.slot);
        }
        let lost = damaged && wrong;
        let status = if lost { Status::Damaged } else { Status::Ready };
        assert_eq!(reader.ask(0, wrong).unwrap().status, status);
        assert_eq!(reader.source.pool.contains(wanted.key.name), !lost);
        let status = if lost { Status::Stale } else { Status::Ready };
        assert_eq!(reader.ask(0, false).unwrap().status, status);
    }
}

#[test]
fn a_malformed_question_ends_the_connection() {
    for bytes in [&b""[..], b"\x09garbage", &[1; 70]] {
        let mut reader = Reader::start(1);
        assert_eq!(reader.say(bytes), None);
        assert_eq!(reader.far.transport.stats().requests_malformed, 1);
    }
}

#[test]
fn regions_that_are_unknown_or_private_are_said_to_be() {
    let mut reader = Reader::start(1);
    assert!(reader.far.transport.unregister(RegionId(1)));
    let refused = |status| Some(Told { status, segment: None });
    assert_eq!(reader.ask(0, false), refused(Status::UnknownRegion));
    reader.far.transport.register(&reader.source.pool).unwrap();
    assert_eq!(reader.ask(0, false), refused(Status::NotShared));
    assert!(reader.source.pool.audit().is_at_rest());
}

#[test]
fn a_cancelled_read_ends_at_the_next_object() {
    let rig = Pair::start(true);
    let source = Source::new::<SharedPair>(1, 40, SLOT_BYTES);
    publish(&rig.far, &source);
    let sources: Vec<_> = (0..40).map(|number| store(&source.pool, number).descriptor()).collect();
    let target = pool(2, 40);
    let (sink, events, gate) = gated();
    let ticket = rig.near.transport.read(RequestContext::NONE, requests(&sources, &target), sink);
    assert_eq!(next(&events).result, Ok(()));
    drop(ticket);
    gate.send(()).unwrap();
    for _ in 1..40 {
        assert_eq!(next(&events).result, Err(ReadError::Closed));
    }
    settles("nothing is open", || source.pool.audit().is_at_rest());
    assert_eq!(result(&rig.near.transport, sources[0], &target), Ok(()));
}

/// A slot that changes hands while it is copied is never believed, whatever its checksum says.
#[test]
fn what_is_overwritten_under_a_reader_is_never_taken() {
    let rig = Pair::start(true);
    let source = Source::new::<SharedPair>(1, 1, SLOT_BYTES);
    publish(&rig.far, &source);
    let target = pool(2, 1);
    for round in 0..200 {
        let old = store(&source.pool, round).descriptor();
        let reader = || result(&rig.near.transport, old, &target);
        let found = std::thread::scope(|scope| {
            let reading = scope.spawn(reader);
            drop(store(&source.pool, round + 1_000));
            reading.join().unwrap()
        });
        assert!(matches!(found, Ok(()) | Err(ReadError::Stale)), "round {round}: {found:?}");
    }
}
