//! Rows of one embedding on their way from the store.
//!
//! A piece is copied to its place when it comes, so that no thread of store or transport copies an embedding at once.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use shared::{
    BlockStore, Flow, Grouped, LocateEvent, Miss, ObjectKey, RequestContext, Sink, Ticket,
};

use super::piece::Cut;
use super::{MediaEmbedding, MediaMiss, Shared, count, keys};
use crate::pool::SealedSlot;
use crate::transport::{ReadDone, ReadError, ReadRequest};

type Answer = Result<Vec<u8>, MediaMiss>;

/// See the module's documentation.
pub(super) struct Reading {
    shared: Arc<Shared>,
    context: RequestContext,
    cut: Cut,
    /// Which bytes of the embedding are wanted.
    wanted: Range<usize>,
    /// The pieces that are not in the client's own pool.
    missing: Vec<(u32, ObjectKey)>,
    state: Mutex<State>,
}

struct State {
    /// None once the caller was answered or let go.
    sink: Option<Box<dyn Sink<Answer>>>,
    bytes: Vec<u8>,
    /// Of the pieces so far: the checksum of all rows.
    checksum: Option<u32>,
    unread: usize,
    /// What the client's own pool holds, until it was taken.
    own: Vec<(u32, SealedSlot)>,
    tickets: Vec<Ticket>,
}

impl Reading {
    /// Prepares a read: the keys are of what the client's own pool lacks.
    pub(super) fn new(
        shared: &Arc<Shared>,
        cut: Cut,
        context: RequestContext,
        (embedding, rows): (&MediaEmbedding, Range<u32>),
        sink: Box<dyn Sink<Answer>>,
    ) -> (Self, Vec<Grouped<ObjectKey>>) {
        let wanted = cut.at(rows.start)..cut.at(rows.end);
        let pieces = cut.pieces_of(rows);
        let (mut own, mut asked, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for (piece, key) in pieces.clone().zip(keys(embedding, pieces)) {
            if let Some(slot) = shared.pool.lookup(key.item.name) {
                own.push((piece, slot));
            } else {
                missing.push((piece, key.item));
                asked.push(key);
            }
        }
        let state = Mutex::new(State {
            sink: Some(sink),
            bytes: vec![0; wanted.len()],
            checksum: None,
            unread: missing.len(),
            own,
            tickets: Vec::new(),
        });
        (Self { shared: Arc::clone(shared), context, cut, wanted, missing, state }, asked)
    }

    /// Takes what the client's own pool holds, and asks for the rest. Answers a ticket that cancels.
    pub(super) fn start(self, store: &dyn BlockStore, asked: Vec<Grouped<ObjectKey>>) -> Ticket {
        let reading = Arc::new(self);
        let own = std::mem::take(&mut reading.state.lock().own);
        let taken: Result<(), MediaMiss> =
            own.into_iter().try_for_each(|(piece, slot)| reading.take(piece, &slot));
        match taken {
            Err(miss) => reading.answer(Err(miss)),
            Ok(()) if asked.is_empty() => reading.answer(Ok(())),
            Ok(()) if reading.is_quarantined() => reading.answer(Err(MediaMiss::Differs)),
            Ok(()) => {
                let sink = Box::new(Places { reading: Arc::clone(&reading), told: false });
                // It may answer on this thread, so nothing is locked here.
                let ticket = store.locate(reading.context, asked, sink);
                reading.keep(ticket);
            }
        }
        Ticket::new(move || reading.release())
    }

    /// The store said where the missing pieces are: all of them are read, or none.
    fn located(self: &Arc<Self>, event: &LocateEvent) -> Flow {
        if self.state.lock().sink.is_none() {
            return Flow::Closed;
        }
        let sources: Result<Vec<_>, Miss> = event.found.iter().copied().collect();
        let sources = match sources {
            Ok(sources) if sources.len() == self.missing.len() => sources,
            Ok(_) => return self.fail(MediaMiss::NotFound(Miss::NoAnswer)),
            Err(miss) => return self.fail(MediaMiss::NotFound(miss)),
        };
        for (source, (piece, key)) in sources.iter().zip(&self.missing) {
            if source.key != *key || source.bytes != self.cut.payload_bytes(*piece) {
                self.differs(*key);
                return self.fail(MediaMiss::Differs);
            }
        }
        let Shared { transport, pool, .. } = &*self.shared;
        let slots = match pool.reserve(sources.len()) {
            Ok(slots) => slots,
            Err(full) => return self.fail(MediaMiss::NoSlots(full)),
        };
        let reads = sources.into_iter().zip(slots);
        let reads = reads.map(|(source, target)| ReadRequest { source, target }).collect();
        let sink = Box::new(Arrivals(Arc::clone(self)));
        self.keep(transport.read(self.context, reads, sink));
        Flow::Open
    }

    fn arrived(&self, done: ReadDone) -> Flow {
        let ReadDone { source, target, result } = done;
        if self.state.lock().sink.is_none() {
            return Flow::Closed;
        }
        let sealed = result.and_then(|()| self.shared.pool.seal_read(target, &source));
        let slot = match sealed {
            Ok(slot) => slot,
            Err(error) => return self.fail(MediaMiss::NotRead(error)),
        };
        let (piece, _) = self
            .missing
            .iter()
            .find(|(_, key)| *key == source.key)
            .expect("what is answered was asked for");
        let taken = self.take(*piece, &slot);
        // Whoever hears the answer finds nothing in use.
        drop(slot);
        if let Err(miss) = taken {
            return self.fail(miss);
        }
        let unread = {
            let mut state = self.state.lock();
            state.unread -= 1;
            state.unread
        };
        if unread == 0 {
            self.answer(Ok(()));
            return Flow::Closed;
        }
        Flow::Open
    }

    /// Checks a piece and copies what of it is wanted.
    fn take(&self, piece: u32, slot: &SealedSlot) -> Result<(), MediaMiss> {
        let part = self.cut.part(piece);
        let from = part.start.max(self.wanted.start);
        let until = part.end.min(self.wanted.end);
        let mut is_it = false;
        slot.read(&mut |payload| {
            let Some((checksum, bytes)) = self.cut.open(piece, payload) else { return };
            let mut state = self.state.lock();
            is_it = *state.checksum.get_or_insert(checksum) == checksum;
            if is_it && !state.bytes.is_empty() {
                let target = from - self.wanted.start..until - self.wanted.start;
                state.bytes[target].copy_from_slice(&bytes[from - part.start..until - part.start]);
            }
        });
        if is_it {
            return Ok(());
        }
        let object = slot.descriptor();
        self.shared.pool.forget(&object);
        self.differs(object.key);
        Err(MediaMiss::Differs)
    }

    /// A piece is another one's: it is not asked for again.
    fn differs(&self, key: ObjectKey) {
        count(&self.shared.counters.mismatches);
        self.shared.quarantine.lock().put(key.name, ());
        tracing::error!(
            request = %self.context.id, name = %key.name,
            "a piece of a media embedding is another one's; it is left alone, and the image is embedded again"
        );
    }

    fn is_quarantined(&self) -> bool {
        let quarantine = self.shared.quarantine.lock();
        self.missing.iter().any(|(_, key)| quarantine.get(key.name).is_some())
    }

    fn fail(&self, miss: MediaMiss) -> Flow {
        self.answer(Err(miss));
        Flow::Closed
    }

    fn answer(&self, result: Result<(), MediaMiss>) {
        let (sink, bytes) = {
            let mut state = self.state.lock();
            (state.sink.take(), std::mem::take(&mut state.bytes))
        };
        let Some(mut sink) = sink else { return };
        let counters = &self.shared.counters;
        count(if result.is_ok() { &counters.hits } else { &counters.misses });
        // It is the last event.
        let _: Flow = sink.emit(result.map(|()| bytes));
    }

    /// Keeps a ticket until the caller's own drops, unless that was before.
    fn keep(&self, ticket: Ticket) {
        let mut state = self.state.lock();
        if state.sink.is_some() {
            state.tickets.push(ticket);
            return;
        }
        drop(state);
        drop(ticket);
    }

    fn release(&self) {
        let (sink, tickets) = {
            let mut state = self.state.lock();
            (state.sink.take(), std::mem::take(&mut state.tickets))
        };
        drop((sink, tickets));
    }
}

/// Hears where the pieces are. A store that goes without a word has none of them.
struct Places {
    reading: Arc<Reading>,
    told: bool,
}

impl Sink<LocateEvent> for Places {
    fn emit(&mut self, event: LocateEvent) -> Flow {
        self.told = true;
        self.reading.located(&event)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        if !self.told {
            self.reading.answer(Err(MediaMiss::NotFound(Miss::NoAnswer)));
        }
    }
}

/// Takes the pieces. What a transport that goes did not bring is not read.
struct Arrivals(Arc<Reading>);

impl Sink<ReadDone> for Arrivals {
    fn emit(&mut self, done: ReadDone) -> Flow {
        self.0.arrived(done)
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        // Whoever was answered is not answered again.
        self.0.answer(Err(MediaMiss::NotRead(ReadError::Closed)));
    }
}
