//! Where a request with a grammar waits until it is compiled. Only then the loop hears of it, so that a refused grammar
//! costs nothing but its own compilation, and a slow one holds up nobody in the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use shared::{Constraint, DecodeEvent, DecodeRequest, Flow, ServeError, Sink, Ticket};

use crate::guides::{GuidePool, Guided};
use crate::mailbox::{Command, Mailbox, Refusal};
use crate::scheduler::SequenceKey;

/// See the module's documentation.
pub(crate) struct Anteroom {
    mailbox: Arc<Mailbox>,
    /// Requests in it.
    inside: Arc<AtomicUsize>,
    waiting_max: usize,
}

/// Where a request is, for its ticket.
enum Place {
    Compiling,
    Cancelled,
    Queued(SequenceKey),
}

impl Anteroom {
    pub(crate) fn new(mailbox: &Arc<Mailbox>, waiting_max: usize) -> Self {
        let inside = Arc::new(AtomicUsize::new(0));
        Self { mailbox: Arc::clone(mailbox), inside, waiting_max }
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
        sink: Box<dyn Sink<DecodeEvent>>,
    ) -> Ticket {
        let place = Arc::new(Mutex::new(Place::Compiling));
        self.inside.fetch_add(1, Ordering::AcqRel);
        let visit = Visit {
            mailbox: Arc::clone(&self.mailbox),
            inside: Arc::clone(&self.inside),
            place: Arc::clone(&place),
            waiting_max: self.waiting_max,
        };
        let emitted = request.emitted.clone();
        pool.begin(constraint, emitted, move |guided| visit.leave(request, sink, guided));
        let mailbox = Arc::clone(&self.mailbox);
        Ticket::new(move || {
            let before = std::mem::replace(&mut *place.lock(), Place::Cancelled);
            if let Place::Queued(key) = before {
                mailbox.send(Command::Cancel(key));
            }
        })
    }
}

struct Visit {
    mailbox: Arc<Mailbox>,
    inside: Arc<AtomicUsize>,
    place: Arc<Mutex<Place>>,
    waiting_max: usize,
}

impl Visit {
    fn leave(self, request: DecodeRequest, sink: Box<dyn Sink<DecodeEvent>>, guided: Guided) {
        let refused = {
            let mut place = self.place.lock();
            match guided {
                _ if matches!(*place, Place::Cancelled) => None,
                Err(failure) => {
                    let error = failure.into_error(self.waiting_max);
                    Some((error.unwrap_or(ServeError::Draining), sink))
                }
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
