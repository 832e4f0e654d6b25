//! How other threads speak to the worker's loop.
//!
//! Only requests can be refused here. Everything else answers an operation that the loop itself began, or a request it
//! accepted, and is bounded by it: one `Release` per ticket, one `Located` per lookup, one `Read` per read, one `Offered`
//! per offered object. Refusing those would lose a dropped ticket, or a slot that comes back from a transport.
//!
//! The bound: whoever may send is counted before it can. A request promises two commands, itself and the release of its
//! ticket; a sink of n answers promises n, that of an offer one more for its end, and gives back what it did not use when
//! it drops. So the commands waiting never exceed what is promised by submissions (at most `submissions_max` per turn),
//! tickets that callers keep, and sinks of lookups, reads and offers, each bounded by its setting while it is open. Checked
//! with every turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use kvstore::ReadDone;
use parking_lot::{Condvar, Mutex};
use shared::{Flow, LocateEvent, OfferEvent, PrefillEvent, PrefillRequest, Sink};

use crate::scheduler::PrefillId;

/// What the loop is told.
pub(crate) enum Command {
    /// A new request.
    Submit(Submission),
    /// The ticket of a request dropped.
    Release(PrefillId),
    /// The answer to a lookup.
    Located(PrefillId, LocateEvent),
    /// A read came back.
    Read(PrefillId, ReadDone),
    /// The outcome of one object of an offer.
    Offered(OfferId, OfferEvent),
    /// No further outcome of this offer comes.
    OfferOver(OfferId),
}

/// A request and where its events go.
pub(crate) struct Submission {
    pub(crate) id: PrefillId,
    pub(crate) request: PrefillRequest,
    pub(crate) sink: Box<dyn Sink<PrefillEvent>>,
}

/// Names one call of `BlockStore::offer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OfferId(pub(crate) u64);

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// As many requests as this have not been seen by the loop yet.
    Full(usize),
    /// The worker takes no new requests.
    Draining,
}

/// How far the worker is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Life {
    /// Serving.
    Open,
    /// Finishing what it has.
    Draining,
    /// The loop ends now.
    Stopping,
}

/// Whether the loop has anything in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Nothing queued, running, held or offered.
    Idle,
    /// Something of it.
    Busy,
}

/// The queue between the loop and everybody else.
pub(crate) struct Mailbox {
    inbox: Mutex<Inbox>,
    wake: Condvar,
    submissions_max: usize,
}

struct Inbox {
    commands: VecDeque<Command>,
    submissions: usize,
    /// Commands that wait or may still be sent.
    promised: usize,
    next_id: u64,
    life: Life,
    work: Work,
}

impl Mailbox {
    pub(crate) fn new(submissions_max: usize) -> Self {
        let inbox = Inbox {
            commands: VecDeque::new(),
            submissions: 0,
            promised: 0,
            next_id: 0,
            life: Life::Open,
            work: Work::Idle,
        };
        Self { inbox: Mutex::new(inbox), wake: Condvar::new(), submissions_max }
    }

    /// Takes a request and names it, or gives the sink back.
    pub(crate) fn submit(
        &self,
        request: PrefillRequest,
        sink: Box<dyn Sink<PrefillEvent>>,
    ) -> Result<PrefillId, (Refusal, Box<dyn Sink<PrefillEvent>>)> {
        let mut inbox = self.inbox.lock();
        if Life::Open < inbox.life {
            return Err((Refusal::Draining, sink));
        }
        if self.submissions_max <= inbox.submissions {
            return Err((Refusal::Full(inbox.submissions), sink));
        }
        let id = PrefillId(inbox.next_id);
        inbox.next_id += 1;
        inbox.submissions += 1;
        // The request and its release.
        inbox.promised += 2;
        inbox.commands.push_back(Command::Submit(Submission { id, request, sink }));
        drop(inbox);
        self.wake.notify_one();
        Ok(id)
    }

    /// Takes anything that is not a request. Never refuses, never blocks for longer than a push. Once the loop ends, what
    /// arrives is dropped: nobody would take it any more.
    pub(crate) fn send(&self, command: Command) {
        let mut inbox = self.inbox.lock();
        if inbox.life == Life::Stopping {
            inbox.promised -= 1;
            drop(inbox);
            drop(command);
            return;
        }
        inbox.commands.push_back(command);
        drop(inbox);
        self.wake.notify_one();
    }

    /// Counts commands that somebody may send from now on.
    pub(crate) fn promise(&self, commands: usize) {
        self.inbox.lock().promised += commands;
    }

    /// Gives back promises that nobody will use any more.
    pub(crate) fn forgo(&self, commands: usize) {
        self.inbox.lock().promised -= commands;
    }

    /// Commands that wait or may still be sent.
    pub(crate) fn promised(&self) -> usize {
        self.inbox.lock().promised
    }

    /// Moves the worker towards its end. Never back.
    pub(crate) fn advance(&self, life: Life) {
        let mut inbox = self.inbox.lock();
        inbox.life = inbox.life.max(life);
        drop(inbox);
        self.wake.notify_one();
    }

    /// Moves what has arrived to the end of `commands`, and waits up to `wait` when nothing has.
    pub(crate) fn take(&self, wait: Duration, commands: &mut VecDeque<Command>) -> Life {
        let mut inbox = self.inbox.lock();
        if inbox.commands.is_empty() && inbox.life < Life::Stopping && !wait.is_zero() {
            self.wake.wait_for(&mut inbox, wait);
        }
        if !inbox.commands.is_empty() {
            inbox.work = Work::Busy;
        }
        inbox.submissions = 0;
        assert!(inbox.commands.len() <= inbox.promised, "every command was promised");
        inbox.promised -= inbox.commands.len();
        commands.append(&mut inbox.commands);
        inbox.life
    }

    /// Says what the loop has in hand now that it dealt with everything it took.
    pub(crate) fn settle(&self, work: Work) {
        self.inbox.lock().work = work;
    }

    /// Whether neither the loop nor the queue holds anything.
    pub(crate) fn is_idle(&self) -> bool {
        let inbox = self.inbox.lock();
        inbox.commands.is_empty() && inbox.work == Work::Idle
    }
}

/// A sink that turns each event into a command, and takes at most `events_max` of them.
pub(crate) fn replies<E: 'static>(
    mailbox: &Arc<Mailbox>,
    events_max: usize,
    command: impl Fn(E) -> Command + Send + 'static,
) -> Box<dyn Sink<E>> {
    mailbox.promise(events_max);
    Box::new(Replies { mailbox: Arc::clone(mailbox), left: events_max, command })
}

/// See [`replies`].
struct Replies<F> {
    mailbox: Arc<Mailbox>,
    left: usize,
    command: F,
}

impl<E, F: Fn(E) -> Command + Send> Sink<E> for Replies<F> {
    fn emit(&mut self, event: E) -> Flow {
        let Some(left) = self.left.checked_sub(1) else { return Flow::Closed };
        self.left = left;
        self.mailbox.send((self.command)(event));
        Flow::Open
    }
}

impl<F> Drop for Replies<F> {
    fn drop(&mut self) {
        self.mailbox.forgo(self.left);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::time::Duration;

    use shared::{Flow, LocateEvent};

    use super::{Command, Mailbox, replies};
    use crate::scheduler::PrefillId;

    #[test]
    fn a_sink_promises_its_answers_and_gives_back_what_it_did_not_use() {
        let mailbox = Arc::new(Mailbox::new(1));
        let mut sink = replies(&mailbox, 3, |event| Command::Located(PrefillId(0), event));
        assert_eq!(mailbox.promised(), 3);
        assert_eq!(sink.emit(LocateEvent::at_once(Vec::new())), Flow::Open);
        assert_eq!(mailbox.promised(), 3, "one waits, two may come");
        let mut commands = VecDeque::new();
        mailbox.take(Duration::ZERO, &mut commands);
        assert_eq!((commands.len(), mailbox.promised()), (1, 2));
        drop(sink);
        assert_eq!(mailbox.promised(), 0);
    }
}
