//! One embedding on its way to the store.

use std::sync::Arc;

use parking_lot::Mutex;
use shared::{
    BlockStore, Descriptor, Durability, Flow, Grouped, OfferEvent, OfferOutcome, RequestContext,
    Sink, Ticket,
};

use super::piece::{Cut, HEADER_BYTES};
use super::{MediaEmbedding, MediaError, Shared, count, keys};
use crate::pool::{Seal, SealedSlot};

/// See the module's documentation.
pub(super) struct Putting {
    shared: Arc<Shared>,
    state: Mutex<State>,
}

struct State {
    /// None once the caller was answered or let go.
    sink: Option<Box<dyn Sink<OfferOutcome>>>,
    /// What is offered, kept readable until it is answered.
    pieces: Vec<Grouped<SealedSlot>>,
    unanswered: usize,
    worst: OfferOutcome,
    ticket: Option<Ticket>,
}

impl Putting {
    /// Writes the pieces into slots of the client's pool.
    pub(super) fn seal(
        shared: &Arc<Shared>,
        cut: &Cut,
        embedding: &MediaEmbedding,
        bytes: &[u8],
        sink: Box<dyn Sink<OfferOutcome>>,
    ) -> Result<Arc<Self>, MediaError> {
        let pool = &shared.pool;
        let keys = keys(embedding, 0..cut.pieces());
        let slots = pool.reserve(keys.len())?;
        let checksum = crc32c::crc32c(bytes);
        let mut pieces = Vec::with_capacity(keys.len());
        for ((piece, mut slot), key) in (0..).zip(slots).zip(keys) {
            let part = &bytes[cut.part(piece)];
            slot.write(&mut |target| {
                target[..HEADER_BYTES].copy_from_slice(&cut.header(piece, checksum));
                target[HEADER_BYTES..HEADER_BYTES + part.len()].copy_from_slice(part);
            });
            let bytes = cut.payload_bytes(piece);
            let sealed = pool.seal(slot, Seal { name: key.item.name, exact: true, bytes });
            pieces.push(Grouped { item: sealed, group: key.group });
        }
        let state = State {
            sink: Some(sink),
            unanswered: pieces.len(),
            pieces,
            worst: OfferOutcome::AlreadyHeld,
            ticket: None,
        };
        Ok(Arc::new(Self { shared: Arc::clone(shared), state: Mutex::new(state) }))
    }

    /// Offers them. Answers a ticket that withdraws them.
    pub(super) fn offer(
        self: Arc<Self>,
        store: &dyn BlockStore,
        context: RequestContext,
        durability: Durability,
    ) -> Ticket {
        let objects: Vec<Grouped<Descriptor>> = {
            let state = self.state.lock();
            let pieces = state.pieces.iter();
            let offered = pieces.map(|Grouped { item, group }| (item.descriptor(), *group));
            offered.map(|(item, group)| Grouped { item, group }).collect()
        };
        let sink = Box::new(Answers(Arc::clone(&self)));
        // It may answer on this thread, so nothing is locked here.
        let ticket = store.offer(context, objects, durability, sink);
        self.state.lock().ticket = Some(ticket);
        Ticket::new(move || self.release())
    }

    fn answered(&self, event: OfferEvent) -> Flow {
        if event.outcome == OfferOutcome::Stored {
            // What the store took now was read from here.
            self.shared.quarantine.lock().take(event.key.name);
        }
        let mut state = self.state.lock();
        state.worst = worse(state.worst, event.outcome);
        state.unanswered = state.unanswered.saturating_sub(1);
        let (worst, is_over) = (state.worst, state.unanswered == 0 || state.sink.is_none());
        drop(state);
        if is_over {
            self.answer(worst);
            return Flow::Closed;
        }
        Flow::Open
    }

    /// Answers the caller, unless that was done or nobody listens.
    fn answer(&self, outcome: OfferOutcome) {
        let (sink, pieces) = {
            let mut state = self.state.lock();
            (state.sink.take(), std::mem::take(&mut state.pieces))
        };
        drop(pieces);
        let Some(mut sink) = sink else { return };
        let counters = &self.shared.counters;
        count(if outcome == OfferOutcome::Dropped { &counters.dropped } else { &counters.stored });
        // It is the last event.
        let _: Flow = sink.emit(outcome);
    }

    fn release(&self) {
        let (sink, pieces, ticket) = {
            let mut state = self.state.lock();
            (state.sink.take(), std::mem::take(&mut state.pieces), state.ticket.take())
        };
        // The offer first: what it promises is readable until it is withdrawn.
        drop(ticket);
        drop((sink, pieces));
    }
}

/// Hears what became of the pieces. A store that goes without a word took none of the others.
struct Answers(Arc<Putting>);

impl Sink<OfferEvent> for Answers {
    fn emit(&mut self, event: OfferEvent) -> Flow {
        self.0.answered(event)
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.0.answer(OfferOutcome::Dropped);
    }
}

/// Of what became of two pieces, that of both together.
fn worse(one: OfferOutcome, two: OfferOutcome) -> OfferOutcome {
    let rank = |outcome: &OfferOutcome| match outcome {
        OfferOutcome::AlreadyHeld => 0,
        OfferOutcome::Stored => 1,
        OfferOutcome::MemoryOnly => 2,
        OfferOutcome::Dropped => 3,
    };
    if rank(&one) < rank(&two) { two } else { one }
}
