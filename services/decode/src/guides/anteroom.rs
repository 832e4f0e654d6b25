//! Where a request with a grammar waits until it is compiled. Only then the loop hears of it, so that a refused grammar
//! costs nothing but its own compilation, and a slow one holds up nobody in the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use shared::{
    Clock, Constraint, DecodeEvent, DecodeRequest, Flow, ServeError, Sink, Ticket, Timestamp,
    WorkerRank,
};

use crate::guides::pool::Withdrawn;
use crate::guides::{GuidePool, Guided};
use crate::mailbox::{Command, Mailbox, Refusal};
use crate::scheduler::SequenceKey;

/// See the module's documentation.
pub(crate) struct Anteroom {
    mailbox: Arc<Mailbox>,
    /// Requests in it.
    inside: Arc<AtomicUsize>,
    waiting_max: usize,
    worker: WorkerRank,
    clock: Arc<dyn Clock>,
}

/// Where a request is, for its ticket.
enum Place {
    Compiling,
    Cancelled,
    Queued(SequenceKey),
}

impl Anteroom {
    pub(crate) fn new(
        mailbox: &Arc<Mailbox>,
        waiting_max: usize,
        worker: WorkerRank,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let inside = Arc::new(AtomicUsize::new(0));
        Self { mailbox: Arc::clone(mailbox), inside, waiting_max, worker, clock }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inside.load(Ordering::Acquire) == 0
    }

    /// Takes a request with this constraint. Dropping the ticket cancels it wherever it is.
    pub(crate) fn enter(
        &self,
        pool: &GuidePool,
        constraint: Arc<Constraint>,
        request: DecodeRequest,
        mut sink: Box<dyn Sink<DecodeEvent>>,
    ) -> Ticket {
        if !self.mailbox.is_open() {
            // The only event of a refused request; a closed sink has nothing left to hear.
            let _: Flow = sink.emit(DecodeEvent::Failed(ServeError::Draining));
            return Ticket::empty();
        }
        let place = Arc::new(Mutex::new(Place::Compiling));
        self.inside.fetch_add(1, Ordering::AcqRel);
        let visit = Visit {
            mailbox: Arc::clone(&self.mailbox),
            inside: Arc::clone(&self.inside),
            place: Arc::clone(&place),
            waiting_max: self.waiting_max,
            worker: self.worker,
        };
        let emitted = request.emitted.clone();
        let withdrawn = self.withdrawn(&place, request.deadline);
        let report = move |guided| visit.leave(request, sink, guided);
        pool.begin(constraint, emitted, withdrawn, report);
        let mailbox = Arc::clone(&self.mailbox);
        Ticket::new(move || {
            let before = std::mem::replace(&mut *place.lock(), Place::Cancelled);
            if let Place::Queued(key) = before {
                mailbox.send(Command::Cancel(key));
            }
        })
    }
}

impl Anteroom {
    /// Why a grammar that waits need not be compiled any more. Takes the place's lock and the mailbox's, never both.
    fn withdrawn(&self, place: &Arc<Mutex<Place>>, deadline: Option<Timestamp>) -> Withdrawn {
        let (mailbox, clock) = (Arc::clone(&self.mailbox), Arc::clone(&self.clock));
        let place = Arc::clone(place);
        Box::new(move || {
            let is_late = deadline.is_some_and(|deadline| deadline <= clock.now());
            // Who cancelled is told nothing; any reason will do.
            if is_late || matches!(*place.lock(), Place::Cancelled) {
                return Some(ServeError::DeadlineExceeded { stage: "compiling its grammar" });
            }
            (!mailbox.is_open()).then_some(ServeError::Draining)
        })
    }
}

struct Visit {
    mailbox: Arc<Mailbox>,
    inside: Arc<AtomicUsize>,
    place: Arc<Mutex<Place>>,
    waiting_max: usize,
    worker: WorkerRank,
}

impl Visit {
    fn leave(self, request: DecodeRequest, sink: Box<dyn Sink<DecodeEvent>>, guided: Guided) {
        let refused = {
            let mut place = self.place.lock();
            match guided {
                _ if matches!(*place, Place::Cancelled) => None,
                Err(failure) => Some((failure.into_error(self.waiting_max, self.worker), sink)),
                Ok(guide) => match self.mailbox.submit(request, sink, Some(guide)) {
                    Ok(key) => {
                        *place = Place::Queued(key);
                        None
                    }
                    Err((refusal, sink)) => Some((refusal.into_error(self.waiting_max), sink)),
                },
            }
        };
        self.inside.fetch_sub(1, Ordering::AcqRel);
        if let Some((error, mut sink)) = refused {
            // The only event of the request; a closed sink has nothing left to hear.
            let _: Flow = sink.emit(DecodeEvent::Failed(error));
        }
    }
}

impl Refusal {
    pub(crate) fn into_error(self, waiting_max: usize) -> ServeError {
        match self {
            Self::Draining => ServeError::Draining,
            Self::Full(waiting) => ServeError::Overloaded {
                waiting,
                waiting_max,
                retry_after_ms: crate::scheduler::RETRY_AFTER_MS,
            },
        }
    }
}
