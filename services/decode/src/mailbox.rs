//! How other threads speak to the worker's loop.
//!
//! Only requests can be refused here. Everything else answers an operation that the loop itself began, and is bounded
//! by it: one answer per object of a read, offer or lookup, a fixed number per prefill attempt, and one `Over` when the
//! other side drops the sink. Refusing those would lose a slot that comes back from a transport.
//!
//! The bound: whoever may send is counted before it can. A request promises two commands, itself and the cancel of its
//! ticket; a sink of n events promises n + 1, the last for `Over`, and gives back what it did not use when it drops. So the
//! commands waiting never exceed what is promised by submissions (at most `submissions_max` per turn), tickets that
//! callers keep, and sinks of lookups, reads, offers and prefill attempts, each bounded by its setting while it is open.
//! A prefill's sign of life is a flag, not a command, because there may be any number. Checked with every turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::Guide;
use kvstore::ReadDone;
use parking_lot::{Condvar, Mutex};
use shared::{DecodeEvent, DecodeRequest, Flow, LocateEvent, OfferEvent, PrefillEvent, Sink};

use crate::scheduler::SequenceKey;

/// What the loop is told.
pub(crate) enum Command {
    /// A new request.
    Submit(Submission),
    /// The ticket of a request dropped.
    Cancel(SequenceKey),
    /// Something happened to an operation of the loop.
    Note(OperationId, Note),
}

/// A request and where its events go.
pub(crate) struct Submission {
    pub(crate) key: SequenceKey,
    pub(crate) request: DecodeRequest,
    pub(crate) sink: Box<dyn Sink<DecodeEvent>>,
    /// Of a request with a grammar: compiled, with the first mask.
    pub(crate) guide: Option<Box<Guide>>,
}

/// Names one call through a border: a lookup, a batch of reads, an offer, a prefill attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OperationId(pub(crate) u64);

/// What happened to an operation.
pub(crate) enum Note {
    Located(LocateEvent),
    Read(ReadDone),
    Offered(OfferEvent),
    Prefill(PrefillEvent),
    /// Nothing further comes.
    Over,
}

impl From<LocateEvent> for Note {
    fn from(event: LocateEvent) -> Self {
        Self::Located(event)
    }
}

impl From<ReadDone> for Note {
    fn from(done: ReadDone) -> Self {
        Self::Read(done)
    }
}

impl From<OfferEvent> for Note {
    fn from(event: OfferEvent) -> Self {
        Self::Offered(event)
    }
}

impl From<PrefillEvent> for Note {
    fn from(event: PrefillEvent) -> Self {
        Self::Prefill(event)
    }
}

/// The sink of one operation. Passes on at most as many events as the operation can have, and says when it is over.
pub(crate) struct NoteSink {
    mailbox: Arc<Mailbox>,
    operation: OperationId,
    events_left: usize,
}

impl NoteSink {
    pub(crate) fn new(mailbox: &Arc<Mailbox>, operation: OperationId, events_max: usize) -> Self {
        mailbox.inbox.lock().promised += events_max + 1;
        Self { mailbox: Arc::clone(mailbox), operation, events_left: events_max }
    }
}

impl<E: Into<Note>> Sink<E> for NoteSink {
    fn emit(&mut self, event: E) -> Flow {
        let Some(left) = self.events_left.checked_sub(1) else { return Flow::Closed };
        self.events_left = left;
        self.mailbox.send(Command::Note(self.operation, event.into()));
        Flow::Open
    }
}

impl Drop for NoteSink {
    fn drop(&mut self) {
        self.mailbox.deliver(Command::Note(self.operation, Note::Over), self.events_left);
    }
}

/// The sink of a prefill attempt: signs of life set a flag, everything else is a note.
pub(crate) struct PrefillSink {
    pub(crate) notes: NoteSink,
    pub(crate) alive: Arc<AtomicBool>,
}

impl Sink<PrefillEvent> for PrefillSink {
    fn emit(&mut self, event: PrefillEvent) -> Flow {
        if event == PrefillEvent::Waiting {
            self.alive.store(true, Ordering::Release);
            return Flow::Open;
        }
        self.notes.emit(event)
    }
}

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
    next_key: u64,
    life: Life,
    /// Whether something changed that is no command.
    nudged: bool,
    /// Requests and operations that the loop had open at the end of its last turn; none while a turn is under way.
    open: Option<usize>,
}

impl Mailbox {
    pub(crate) fn new(submissions_max: usize) -> Self {
        let commands = VecDeque::new();
        let (life, open) = (Life::Open, Some(0));
        let (submissions, promised, next_key, nudged) = (0, 0, 0, false);
        let inbox = Inbox { commands, submissions, promised, next_key, life, nudged, open };
        Self { inbox: Mutex::new(inbox), wake: Condvar::new(), submissions_max }
    }

    /// Takes a request and names it, or gives the sink back.
    pub(crate) fn submit(
        &self,
        request: DecodeRequest,
        sink: Box<dyn Sink<DecodeEvent>>,
        guide: Option<Box<Guide>>,
    ) -> Result<SequenceKey, (Refusal, Box<dyn Sink<DecodeEvent>>)> {
        let mut inbox = self.inbox.lock();
        if Life::Open < inbox.life {
            return Err((Refusal::Draining, sink));
        }
        if self.submissions_max <= inbox.submissions {
            return Err((Refusal::Full(inbox.submissions), sink));
        }
        let key = SequenceKey(inbox.next_key);
        inbox.next_key += 1;
        inbox.submissions += 1;
        // The request and its cancel.
        inbox.promised += 2;
        inbox.commands.push_back(Command::Submit(Submission { key, request, sink, guide }));
        drop(inbox);
        self.wake.notify_one();
        Ok(key)
    }

    /// Takes anything that is not a request. Never refuses, never blocks for longer than a push. After the end it is
    /// dropped, which returns the slots in it.
    pub(crate) fn send(&self, command: Command) {
        self.deliver(command, 0);
    }

    /// The same, giving back promises that nobody will use any more.
    fn deliver(&self, command: Command, forgone: usize) {
        let mut inbox = self.inbox.lock();
        inbox.promised -= forgone;
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

    /// Wakes the loop because something it looks at by itself has changed. Any number is one.
    pub(crate) fn nudge(&self) {
        self.inbox.lock().nudged = true;
        self.wake.notify_one();
    }

    /// Whether new requests are taken.
    pub(crate) fn is_open(&self) -> bool {
        self.inbox.lock().life == Life::Open
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
        let quiet = inbox.commands.is_empty() && !inbox.nudged;
        if quiet && inbox.life < Life::Stopping && !wait.is_zero() {
            self.wake.wait_for(&mut inbox, wait);
        }
        inbox.nudged = false;
        inbox.submissions = 0;
        inbox.open = None;
        inbox.redeem();
        commands.append(&mut inbox.commands);
        inbox.life
    }

    /// Commands that wait or may still be sent.
    pub(crate) fn promised(&self) -> usize {
        self.inbox.lock().promised
    }

    /// The loop's turn is over, with this many requests and operations open.
    pub(crate) fn rest(&self, open: usize) {
        self.inbox.lock().open = Some(open);
    }

    /// Whether nothing has arrived and nothing is open.
    pub(crate) fn is_quiet(&self) -> bool {
        let inbox = self.inbox.lock();
        inbox.commands.is_empty() && inbox.open == Some(0)
    }

    /// The loop is over: takes what it will not see any more.
    pub(crate) fn close(&self) -> VecDeque<Command> {
        let mut inbox = self.inbox.lock();
        inbox.life = Life::Stopping;
        inbox.open = Some(0);
        inbox.redeem();
        std::mem::take(&mut inbox.commands)
    }
}

impl Inbox {
    /// What waits is about to be taken: its promises are kept.
    fn redeem(&mut self) {
        assert!(self.commands.len() <= self.promised, "every command was promised");
        self.promised -= self.commands.len();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use shared::{Flow, LocateEvent, PrefillEvent, ServeError, Sink};

    use super::{Life, Mailbox, NoteSink, OperationId, PrefillSink};

    fn taken(mailbox: &Mailbox) -> usize {
        let mut commands = VecDeque::new();
        assert_eq!(mailbox.take(Duration::ZERO, &mut commands), Life::Open);
        commands.len()
    }

    #[test]
    fn a_sink_promises_its_events_and_gives_back_what_it_did_not_use() {
        let mailbox = Arc::new(Mailbox::new(1));
        let mut sink = NoteSink::new(&mailbox, OperationId(0), 3);
        assert_eq!(mailbox.promised(), 4);
        assert_eq!(sink.emit(LocateEvent::at_once(Vec::new())), Flow::Open);
        assert_eq!((mailbox.promised(), taken(&mailbox), mailbox.promised()), (4, 1, 3));
        drop(sink);
        assert_eq!((mailbox.promised(), taken(&mailbox), mailbox.promised()), (1, 1, 0));
    }

    #[test]
    fn any_number_of_signs_of_life_is_one_flag() {
        let mailbox = Arc::new(Mailbox::new(1));
        let alive = Arc::new(AtomicBool::new(false));
        let notes = NoteSink::new(&mailbox, OperationId(0), 1);
        let mut sink = PrefillSink { notes, alive: Arc::clone(&alive) };
        for _ in 0..100 {
            assert_eq!(sink.emit(PrefillEvent::Waiting), Flow::Open);
        }
        assert!(alive.load(Ordering::Acquire) && taken(&mailbox) == 0);
        assert_eq!(sink.emit(PrefillEvent::Failed(ServeError::Draining)), Flow::Open);
        assert_eq!(sink.emit(PrefillEvent::Failed(ServeError::Draining)), Flow::Closed);
        assert_eq!(taken(&mailbox), 1);
    }
}
