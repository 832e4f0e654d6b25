//! Transports that lie, lose and delay, between a worker and the store and between the store and a worker.
//!
//! A [`Faulty`] transport reads over an honest one and spoils the answer to one read. Whatever it does costs that object
//! at most: every sink gets its answers, no wrong byte is sealed on either side, and nothing stays held.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use shared::{
    BlockStore, Descriptor, Durability, Flow, ObjectKind, OfferEvent, OfferOutcome, RegionId,
    RequestContext, Sink, Ticket,
};

use super::support::{Rig, block, config, sending, version_found, window};
use crate::host::{HostStats, HostTierConfig};
use crate::pool::{OwnedSlot, SealedSlot};
use crate::testing::{SLOT_BYTES, bytes_of, next, offers, payload, pool_of};
use crate::transport::{ReadDone, ReadError, ReadRequest, Transport};

/// Objects of one batch.
const OBJECTS: u64 = 4;

/// What becomes of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// One bit of the payload arrives flipped, and the read claims success.
    Flip {
        byte: usize,
        bit: u8,
    },
    /// Success is claimed over a target nobody wrote to.
    Untouched,
    /// Success is claimed over a part of the payload.
    Short {
        bytes: usize,
    },
    /// Success is claimed over the bytes of another object.
    Foreign,
    /// Success is claimed over bytes one place further on.
    Shifted,
    Error(ReadError),
    /// No answer to this read and to those behind it: the sink is dropped.
    Lost,
    /// No answer to this read and to those behind it until the test lets them go.
    Late,
}

/// Reads honestly, but for the read with this place in its batch.
struct Faulty {
    honest: Arc<dyn Transport>,
    place: usize,
    fault: Mutex<Fault>,
    late: Mutex<Vec<Held>>,
    /// Says that answers are being held.
    holding: Sender<()>,
}

/// Answers that come late.
type Held = (Box<dyn Sink<ReadDone>>, Vec<ReadDone>);

impl Faulty {
    fn new(honest: Arc<dyn Transport>, place: usize, fault: Fault) -> (Arc<Self>, Receiver<()>) {
        let (holding, held) = unbounded();
        let (fault, late) = (Mutex::new(fault), Mutex::default());
        (Arc::new(Self { honest, place, fault, late, holding }), held)
    }

    /// All late answers arrive now.
    fn let_go(&self) {
        let late = std::mem::take(&mut *self.late.lock());
        for (mut sink, answers) in late {
            for answer in answers {
                if sink.emit(answer) == Flow::Closed {
                    break;
                }
            }
        }
    }
}

impl Transport for Faulty {
    /// Waits for the honest answers, so this blocks: fine for a test, whose batches are small.
    fn read(
        &self,
        context: RequestContext,
        reads: Vec<ReadRequest>,
        mut sink: Box<dyn Sink<ReadDone>>,
    ) -> Ticket {
        let count = reads.len();
        let (honest, answers) = sending();
        let ticket = self.honest.read(context, reads, honest);
        let fault = *self.fault.lock();
        let mut held = Vec::new();
        for index in 0..count {
            let mut answer: ReadDone = next(&answers);
            if index < self.place || fault == Fault::None {
                let _: Flow = sink.emit(answer);
                continue;
            }
            match fault {
                Fault::Lost => break,
                Fault::Late => {
                    held.push(answer);
                    continue;
                }
                _ if index == self.place => spoil(fault, &mut answer),
                _ => {}
            }
            let _: Flow = sink.emit(answer);
        }
        drop(ticket);
        if !held.is_empty() {
            self.late.lock().push((sink, held));
            self.holding.send(()).unwrap();
        }
        Ticket::empty()
    }
}

fn spoil(fault: Fault, answer: &mut ReadDone) {
    let target: &mut OwnedSlot = &mut answer.target;
    let mut write = |change: &dyn Fn(&mut [u8])| target.write(&mut |bytes| change(bytes));
    match fault {
        Fault::Flip { byte, bit } => write(&|bytes| bytes[byte] ^= 1 << bit),
        Fault::Untouched => write(&|bytes| bytes.fill(0)),
        Fault::Short { bytes: kept } => write(&|bytes| bytes[kept..].fill(0)),
        Fault::Foreign => write(&|bytes| bytes.copy_from_slice(&payload(77))),
        Fault::Shifted => write(&|bytes| bytes.rotate_right(1)),
        Fault::Error(error) => answer.result = Err(error),
        Fault::None | Fault::Lost | Fault::Late => unreachable!("answered elsewhere"),
    }
}

fn faults() -> Vec<Fault> {
    let flips =
        (0..SLOT_BYTES).map(|byte| Fault::Flip { byte, bit: u8::try_from(byte % 8).unwrap() });
    let region = RegionId(1);
    let errors = [
        ReadError::UnknownRegion { region },
        ReadError::Stale,
        ReadError::Corrupt { expected: 1, found: 2 },
        ReadError::Length { expected: 1, found: 2 },
        ReadError::Busy { waiting_max: 1 },
        ReadError::Late { limit_ms: 1 },
        ReadError::PeerLost { region },
        ReadError::Closed,
    ];
    let short = [0, 1, 18, SLOT_BYTES - 1].map(|bytes| Fault::Short { bytes });
    let others = [Fault::Untouched, Fault::Foreign, Fault::Shifted, Fault::Lost, Fault::Late];
    flips.chain(errors.map(Fault::Error)).chain(short).chain(others).collect()
}

/// Offers not taken, over all reasons.
fn dropped(stats: &HostStats) -> u64 {
    stats.dropped_queue
        + stats.dropped_space
        + stats.dropped_gone
        + stats.dropped_late
        + stats.dropped_corrupt
}

/// Offers four objects of a kind through a faulty transport, and then honestly.
fn check_store(kind: ObjectKind, place: usize, fault: Fault) {
    let context = format!("{fault:?} at place {place}, {kind:?}");
    let (mut faulty, mut held) = (None, None);
    let config = HostTierConfig { batch_max: 8, ..config() };
    let rig = Rig::new(None, config, |honest| {
        let (transport, holding) = Faulty::new(honest, place, fault);
        held = Some(holding);
        let handle = Arc::clone(&transport);
        faulty = Some(transport);
        handle
    });
    let (faulty, held) = (faulty.unwrap(), held.unwrap());
    let key = match kind {
        ObjectKind::Block | ObjectKind::Media => block,
        ObjectKind::Window => window,
    };
    let sealed: Vec<SealedSlot> =
        (0..OBJECTS).map(|number| rig.compute(key(number), number)).collect();
    let objects: Vec<Descriptor> = sealed.iter().map(SealedSlot::descriptor).collect();
    let (sink, events) = sending();
    let ticket = rig.tier.offer(RequestContext::NONE, offers(&objects), Durability::Memory, sink);
    let mut early: Vec<OfferEvent> = Vec::new();
    if fault == Fault::Late {
        next(&held);
        // What came in time must be settled before time goes on.
        early.extend((0..place).map(|_| next(&events)));
        rig.clock.advance(Duration::from_secs(30));
        // Any command makes the thread look at the clock.
        assert_eq!(rig.locate(&[key(99)]).1, [None]);
    }
    let spoilt = |index: usize| match fault {
        Fault::None => false,
        Fault::Lost | Fault::Late => place <= index,
        _ => index == place,
    };
    for (index, object) in objects.iter().enumerate() {
        let OfferEvent { key, outcome } =
            early.get(index).copied().unwrap_or_else(|| next(&events));
        let expected = if spoilt(index) { OfferOutcome::Dropped } else { OfferOutcome::Stored };
        assert_eq!((key, outcome), (object.key, expected), "{context}");
    }
    let lost = (0..objects.len()).filter(|index| spoilt(*index)).count();
    assert_eq!(dropped(&rig.tier.stats()), u64::try_from(lost).unwrap(), "{context}");
    assert!(rig.tier.is_running(), "{context}");
    faulty.let_go();
    *faulty.fault.lock() = Fault::None;
    let again = rig.offer(&objects);
    for (index, outcome) in again.into_iter().enumerate() {
        let expected = if spoilt(index) { OfferOutcome::Stored } else { OfferOutcome::AlreadyHeld };
        assert_eq!(outcome, expected, "{context}");
    }
    drop((ticket, sealed));
    let keys: Vec<_> = objects.iter().map(|object| object.key).collect();
    let (ticket, found) = rig.locate(&keys);
    for (number, found) in (0..).zip(found) {
        let open = rig.tier.blocks().open(&found.unwrap());
        let open = open.or_else(|_| rig.tier.windows().open(&found.unwrap())).unwrap();
        let mut bytes = Vec::new();
        open.read(&mut |payload| bytes.extend_from_slice(payload));
        let version = version_found(found.unwrap().key.name, &bytes, found.unwrap().exact);
        assert_eq!(version, number, "{context}");
    }
    drop(ticket);
    rig.assert_at_rest();
}

#[test]
fn whatever_a_transport_does_the_store_seals_right_bytes_and_answers() {
    for fault in faults().into_iter().chain([Fault::None]) {
        for (place, kind) in
            [(0, ObjectKind::Block), (1, ObjectKind::Window), (3, ObjectKind::Block)]
        {
            check_store(kind, place, fault);
        }
    }
}

/// The other direction: a worker reads what it found in the store.
#[test]
fn whatever_a_transport_does_a_worker_seals_right_bytes_or_none() {
    let rig = Rig::new(None, config(), |honest| honest);
    assert_eq!(rig.store(0..OBJECTS), [OfferOutcome::Stored; 4]);
    let keys: Vec<_> = (0..OBJECTS).map(block).collect();
    for fault in faults() {
        let (faulty, _held) =
            Faulty::new(Arc::clone(&rig.transport) as Arc<dyn Transport>, 2, fault);
        let (target, _) = pool_of(5, 4, ObjectKind::Block);
        let (ticket, found) = rig.locate(&keys);
        let slots = target.reserve(4).unwrap();
        let found = found.into_iter().flatten();
        let reads = found.zip(slots).map(|(source, target)| ReadRequest { source, target });
        let (sink, answers) = sending();
        let read = faulty.read(RequestContext::NONE, reads.collect(), sink);
        faulty.let_go();
        drop(read);
        let mut sealed = 0;
        for (index, done) in answers.try_iter().enumerate() {
            let ReadDone { source, target: slot, result } = done;
            let seal = result.and_then(|()| target.seal_read(slot, &source));
            if let Ok(seal) = seal {
                assert_eq!(version_found(seal.name(), &bytes_of(&seal), seal.exact()), 0);
                assert!(index != 2 || fault == Fault::Late, "{fault:?} was sealed");
                sealed += 1;
            }
        }
        let expected = match fault {
            Fault::Late => 4,
            Fault::Lost => 2,
            _ => 3,
        };
        assert_eq!(sealed, expected, "{fault:?}");
        drop(ticket);
        assert!(target.audit().is_at_rest(), "{fault:?}");
        rig.assert_at_rest();
    }
}
