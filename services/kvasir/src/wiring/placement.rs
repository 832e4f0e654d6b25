//! The placement thread: feeds the router time and events, carries out its actions.
//!
//! Everything reaches it through the bounded queues of its mailbox, but for a request that finds the thread asleep and nothing
//! to read first but short words: that one is placed by who submits it (`inline.rs`). Members come and go through the queue of their events, so
//! that the order of both is that of their sender. A request takes at most two places in the queue of commands, its
//! submission and its end, and at most `requests_max` requests are accepted, so neither can ever be lost or wait. Events
//! of workers may be lost when their queue is full: their sequence numbers show the gap, and the router asks again. Should
//! the thread die by a panic, its places are given back and every later request is refused.

mod inline;
mod mailbox;
mod routers;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use router::{Action, DrainSource, LifeSnapshot, PEER_REFRESH, Role, Router, RouterSnapshot};
use shared::{
    CacheQuestion, Clock, Flow, LegOutcome, PlaceEvent, PlaceRequest, Placer, RequestId,
    ServeError, Sink, Ticket, Timestamp, WorkerEvent, WorkerRank,
};
use tokio::sync::oneshot;

use crate::explain::Predictions;
use crate::wire::{HeardRouter, RouterHub, RouterNews};
use mailbox::{Letter, Mailbox, Sent, Sleeper};

/// Longest sleep of the thread: what is polled (the store's changes, the snapshot) is at most this old.
const PERIOD: Duration = Duration::from_millis(50);
/// Events of workers that may wait; each is small, and a worker sends a few per step.
const EVENTS_MAX: usize = 65_536;
/// Looks at the router that may wait: an operator's, so a few.
const LOOKS_MAX: usize = 16;
/// What a refused client is told to wait when this queue itself is full.
const RETRY_AFTER_MS: u64 = 1_000;

/// The way to ask a member something.
pub(crate) type Ask = Box<dyn FnMut(WorkerRank, &CacheQuestion) + Send>;

/// What the thread is made of.
pub(crate) struct PlacementParts {
    pub(crate) router: Router,
    /// The members at the start.
    pub(crate) members: Vec<(WorkerRank, Role)>,
    /// Most requests waiting or running at a time.
    pub(crate) requests_max: usize,
    pub(crate) clock: Arc<dyn Clock>,
    /// Polled once per period: events of members that do not push them.
    pub(crate) poll: Box<dyn FnMut() -> Vec<WorkerEvent> + Send>,
    /// Called with each member whose events have a gap, and what to ask it for. Must not block.
    pub(crate) resync: Ask,
    /// What each start is compared in with what the router had expected of it.
    pub(crate) predictions: Arc<Predictions>,
    /// Where other routers hear of placements; none without others.
    pub(crate) hub: Option<Arc<RouterHub>>,
}

/// What the thread is told about members.
#[derive(Debug)]
pub(crate) enum Told {
    /// It can take requests, or holds blocks, from now on.
    Joined(WorkerRank, Role),
    /// It is gone, and with it what it held.
    Left(WorkerRank),
    /// Its events begin anew, and it tells all it holds; what runs there goes on.
    Interrupted(WorkerRank),
    /// Something it says about itself.
    Event(WorkerEvent),
    /// How a request fares on it.
    Outcome(RequestId, WorkerRank, LegOutcome),
    /// Who else than the worker says that it drains, or that it does not.
    Drain(WorkerRank, DrainSource, DrainWord),
    /// Something another router says, or that it is not heard any more.
    Router(WorkerRank, HeardRouter),
}

/// What is said about the drain of a worker.
#[derive(Debug)]
pub(crate) enum DrainWord {
    /// It takes nothing new. For so long it may take for what it has; none: as long as it needs.
    Begin(Option<Duration>),
    /// It takes requests again, as far as this source is concerned.
    End,
}

/// The way to the thread for what members say. Clones share one bounded queue.
#[derive(Clone)]
pub(crate) struct Teller {
    mailbox: Arc<Mailbox>,
    lost: Arc<AtomicU64>,
}

impl Teller {
    /// Passes an event on. Never blocks: one that finds the queue full is lost, counted, and shows as a gap.
    pub(crate) fn event(&self, event: WorkerEvent) -> Flow {
        self.tell(Told::Event(event))
    }

    fn tell(&self, told: Told) -> Flow {
        match self.mailbox.put(Letter::Told(told)) {
            Sent::Taken => Flow::Open,
            Sent::Full(_) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                Flow::Open
            }
            Sent::Ended(_) => Flow::Closed,
        }
    }

    /// Passes on what another router says. Never blocks: what finds the queue full is lost, and the router's next refresh
    /// mends it.
    pub(crate) fn router(&self, router: WorkerRank, heard: HeardRouter) -> Flow {
        self.tell(Told::Router(router, heard))
    }

    /// Tells of a change in the membership. Gives it back when there is no room now: it must not be lost.
    pub(crate) fn membership(&self, change: Told) -> Result<(), Told> {
        match self.mailbox.put(Letter::Told(change)) {
            Sent::Full(Letter::Told(change)) => Err(change),
            // Without the thread there is nobody to tell.
            _ => Ok(()),
        }
    }
}

/// Sees the router between two of its steps.
type Look = Box<dyn FnOnce(&Router, Timestamp) + Send>;

/// One of the places for requests; given back when it drops, wherever that is.
struct Seat(Arc<AtomicUsize>);

impl Seat {
    fn take(outstanding: &Arc<AtomicUsize>, requests_max: usize) -> Option<Self> {
        let admit = |count: usize| (count < requests_max).then_some(count + 1);
        let taken = outstanding.fetch_update(Ordering::AcqRel, Ordering::Acquire, admit);
        taken.ok().map(|_| Self(Arc::clone(outstanding)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The router behind its thread. Dropping it refuses what waits and joins the thread.
pub struct Placement {
    mailbox: Arc<Mailbox>,
    teller: Teller,
    hub: Option<Arc<RouterHub>>,
    outstanding: Arc<AtomicUsize>,
    requests_max: usize,
    snapshot: Arc<Mutex<RouterSnapshot>>,
    state: Arc<Mutex<Loop>>,
    thread: Option<JoinHandle<()>>,
}

impl Placement {
    /// Starts the thread `placement`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(parts: PlacementParts) -> io::Result<Self> {
        let requests_max = parts.requests_max;
        let mailbox = Arc::new(Mailbox::new(2 * requests_max, EVENTS_MAX, LOOKS_MAX));
        let snapshot = Arc::new(Mutex::new(parts.router.snapshot(parts.clock.now())));
        let hub = parts.hub.clone();
        let mut state = Loop { parts, sinks: HashMap::new(), snapshot: Arc::clone(&snapshot) };
        state.join_members();
        let state = Arc::new(Mutex::new(state));
        let thread = thread::Builder::new().name("placement".to_owned()).spawn({
            let end = EndOfThread { mailbox: Arc::clone(&mailbox), state: Arc::clone(&state) };
            move || {
                let end = end;
                run(&end.mailbox, &end.state);
            }
        })?;
        Ok(Self {
            teller: Teller { mailbox: Arc::clone(&mailbox), lost: Arc::new(AtomicU64::new(0)) },
            mailbox,
            hub,
            outstanding: Arc::new(AtomicUsize::new(0)),
            requests_max,
            snapshot,
            state,
            thread: Some(thread),
        })
    }

    /// The way for members to be heard.
    pub(crate) fn teller(&self) -> Teller {
        self.teller.clone()
    }

    /// The router in numbers, at most a period old. Does not wait for the thread.
    #[must_use]
    pub fn snapshot(&self) -> RouterSnapshot {
        self.snapshot.lock().clone()
    }

    /// Asks the thread something about its router. Does not wait: the answer comes within a period, or the receiver ends
    /// when the thread does. None while too many questions wait.
    pub(crate) fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Router, Timestamp) -> T + Send + 'static,
    ) -> Option<oneshot::Receiver<T>> {
        let (told, answer) = oneshot::channel();
        let look: Look = Box::new(move |router, now| {
            // Who asked may have gone away.
            drop(told.send(look(router, now)));
        });
        matches!(self.mailbox.put(Letter::Look(look)), Sent::Taken).then_some(answer)
    }

    /// Takes an operator's word about the drain of a worker. Does not wait: the answer is what the router knows of the worker
    /// then, none of one that is no member. None while the queue of the thread is full.
    pub(crate) fn drain(
        &self,
        worker: WorkerRank,
        word: DrainWord,
    ) -> Option<oneshot::Receiver<Option<LifeSnapshot>>> {
        let told = Told::Drain(worker, DrainSource::Operator, word);
        self.teller.membership(told).ok()?;
        // Who looks sees what was told before.
        self.look(move |router, now| router.life(worker, now))
    }

    /// Worker events that found their queue full.
    #[must_use]
    pub fn events_lost(&self) -> u64 {
        self.teller.lost.load(Ordering::Relaxed)
    }

    /// Other routers that were cut off because they took news too slowly.
    #[must_use]
    pub fn routers_cut_off(&self) -> u64 {
        self.hub.as_ref().map_or(0, |hub| hub.cut_off())
    }

    /// Whether the thread still runs. Without it every request is refused.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Placer for Placement {
    fn submit(&self, request: PlaceRequest, mut sink: Box<dyn Sink<PlaceEvent>>) -> Ticket {
        let Some(seat) = Seat::take(&self.outstanding, self.requests_max) else {
            let error = ServeError::Overloaded {
                waiting: self.requests_max,
                waiting_max: self.requests_max,
                retry_after_ms: RETRY_AFTER_MS,
            };
            // Ends of requests may lie there unread.
            self.mailbox.hurry();
            // The request is over either way.
            let _: Flow = sink.emit(PlaceEvent::Refused(error));
            return Ticket::empty();
        };
        let id = request.id;
        if let Some(letter) = self.place_here(Letter::Submit(request, sink))
            // There is room by construction while the thread lives.
            && let Sent::Full(letter) | Sent::Ended(letter) = self.mailbox.put(letter)
        {
            refuse(letter, ServeError::NoWorker { role: "placement" });
            return Ticket::empty();
        }
        let mailbox = Arc::clone(&self.mailbox);
        Ticket::new(move || {
            // What is not taken gives its place back here.
            if !matches!(mailbox.put(Letter::Finished(id, seat)), Sent::Taken) {
                tracing::debug!(request = %id, "finished after the placement thread ended");
            }
        })
    }

    /// Lost, and counted, when the queue of events is full.
    fn outcome(&self, id: RequestId, worker: WorkerRank, outcome: LegOutcome) {
        // Without the thread there is nobody to learn.
        let _: Flow = self.teller.tell(Told::Outcome(id, worker, outcome));
    }
}

/// Refuses what is not read and what waits when the thread ends, by a panic too; what comes later is refused by who writes it.
struct EndOfThread {
    mailbox: Arc<Mailbox>,
    state: Arc<Mutex<Loop>>,
}

impl Drop for EndOfThread {
    fn drop(&mut self) {
        refuse_all(&self.mailbox, &self.state, &ServeError::NoWorker { role: "placement" });
    }
}

/// Ends the mailbox, and refuses what lies there and who waits for a place.
fn refuse_all(mailbox: &Mailbox, state: &Mutex<Loop>, error: &ServeError) {
    for letter in mailbox.end() {
        refuse(letter, error.clone());
    }
    let waiting = std::mem::take(&mut state.lock().sinks);
    for mut sink in waiting.into_values() {
        // Nobody listens any more when it is closed.
        let _: Flow = sink.emit(PlaceEvent::Refused(error.clone()));
    }
}

fn refuse(letter: Letter, error: ServeError) {
    if let Letter::Submit(_, mut sink) = letter {
        // Nobody listens any more when it is closed.
        let _: Flow = sink.emit(PlaceEvent::Refused(error));
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        self.mailbox.stop();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the placement thread died; see its panic above");
        }
    }
}

/// The router and who waits for it. Its lock is held for as long as letters are read, by the thread or by who places here.
struct Loop {
    parts: PlacementParts,
    /// Who waits for a place. At most `requests_max`.
    sinks: HashMap<RequestId, Box<dyn Sink<PlaceEvent>>>,
    snapshot: Arc<Mutex<RouterSnapshot>>,
}

/// The thread.
fn run(mailbox: &Mailbox, state: &Mutex<Loop>) {
    let mut polled = state.lock().parts.clock.now();
    let mut refreshed = polled;
    let mut letters = VecDeque::new();
    loop {
        let (wait, sleeper) = state.lock().rest();
        if !mailbox.take(&mut letters, wait, sleeper) {
            break;
        }
        let mut state = state.lock();
        while let Some(letter) = letters.pop_front() {
            state.read(letter);
        }
        let now = state.parts.clock.now();
        let actions = state.parts.router.tick(now);
        state.carry_out(actions);
        if PERIOD <= now.since(polled) {
            polled = now;
            if state.look_around(now, PEER_REFRESH <= now.since(refreshed)) {
                refreshed = now;
            }
        }
    }
    // What was not looked at yet waits, too.
    for letter in letters {
        refuse(letter, ServeError::Draining);
    }
    refuse_all(mailbox, state, &ServeError::Draining);
}

impl Loop {
    /// What is done once per period. Whether other routers were told everything, which is due or not.
    fn look_around(&mut self, now: Timestamp, is_due: bool) -> bool {
        for event in (self.parts.poll)() {
            self.event(&event);
        }
        let told = self.tell_all(is_due);
        let snapshot = self.parts.router.snapshot(now);
        *self.snapshot.lock() = snapshot;
        told
    }

    fn read(&mut self, letter: Letter) {
        match letter {
            Letter::Submit(request, sink) => {
                self.sinks.insert(request.id, sink);
                let now = self.parts.clock.now();
                let actions = self.parts.router.submit(request, now);
                self.carry_out(actions);
            }
            Letter::Finished(id, seat) => self.finished(id, seat),
            Letter::Look(look) => look(&self.parts.router, self.parts.clock.now()),
            Letter::Told(told) => self.told(told),
        }
    }

    /// How long nothing needs to be done, and what the thread sleeps for: who waits for a place is in `sinks`.
    fn rest(&self) -> (Duration, Sleeper) {
        let now = self.parts.clock.now();
        let due = self.parts.router.next_deadline();
        let wait = due.map_or(PERIOD, |due| due.since(now).min(PERIOD));
        (wait, if self.sinks.is_empty() { Sleeper::Idle } else { Sleeper::Watching })
    }

    fn join_members(&mut self) {
        for (worker, role) in std::mem::take(&mut self.parts.members) {
            self.told(Told::Joined(worker, role));
        }
    }

    fn told(&mut self, told: Told) {
        let now = self.parts.clock.now();
        match told {
            Told::Event(event) => self.event(&event),
            Told::Router(router, heard) => self.router_told(router, &heard),
            Told::Joined(worker, role) => {
                match self.parts.router.worker_joined(worker, role, now) {
                    Ok(actions) => self.carry_out(actions),
                    Err(error) => {
                        tracing::error!(%worker, %error, "a member cannot join the router");
                    }
                }
            }
            Told::Interrupted(worker) => self.parts.router.view_lost(worker),
            Told::Left(worker) => {
                let actions = self.parts.router.worker_left(worker, now);
                self.carry_out(actions);
            }
            Told::Drain(worker, by, word) => {
                let actions = self.drained(worker, by, &word, now);
                self.carry_out(actions);
            }
            Told::Outcome(id, worker, outcome) => {
                if let LegOutcome::Started(report) = outcome
                    && let Some(expected) = self.parts.router.expected_cached_tokens(id, worker)
                {
                    self.parts.predictions.started(worker, expected, report.cached_tokens);
                }
                let actions = self.parts.router.outcome(id, worker, outcome, now);
                self.carry_out(actions);
            }
        }
    }

    fn drained(
        &mut self,
        worker: WorkerRank,
        by: DrainSource,
        word: &DrainWord,
        now: Timestamp,
    ) -> Vec<Action> {
        let router = &mut self.parts.router;
        let source = by.as_str();
        match word {
            DrainWord::Begin(within) => {
                let until = within.map_or(Timestamp(u64::MAX), |within| now.after(within));
                tracing::info!(%worker, source, "a worker is to drain: it gets nothing new");
                router.worker_draining(worker, (by, until), now)
            }
            DrainWord::End => {
                tracing::info!(%worker, source, "a worker is to take requests again");
                router.worker_undrained(worker, by, now)
            }
        }
    }

    fn finished(&mut self, id: RequestId, seat: Seat) {
        self.sinks.remove(&id);
        drop(seat);
        self.tell(|_| Some(RouterNews::Finished(id)));
        let now = self.parts.clock.now();
        let actions = self.parts.router.finished(id, now);
        self.carry_out(actions);
    }

    fn event(&mut self, event: &WorkerEvent) {
        let now = self.parts.clock.now();
        let actions = self.parts.router.worker_event(event, now);
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            let (id, event) = match action {
                Action::Place { id, placement } => {
                    tracing::debug!(request = %id, decode = %placement.decode, reason = placement.reason, "placed");
                    self.tell(|router| router.reservation(id).map(RouterNews::Placed));
                    (id, PlaceEvent::Placed(placement))
                }
                Action::Refuse { id, error } => (id, PlaceEvent::Refused(error)),
                Action::Resync { worker, question } => {
                    let wanted = match &question {
                        CacheQuestion::Digests => "digests".to_owned(),
                        CacheQuestion::Ranges(ranges) => format!("{} of 256 ranges", ranges.len()),
                        CacheQuestion::Whole => "everything it holds".to_owned(),
                    };
                    tracing::warn!(%worker, wanted, "events of a member were lost; asking it");
                    (self.parts.resync)(worker, &question);
                    continue;
                }
            };
            if let Some(mut sink) = self.sinks.remove(&id) {
                // A closed sink drops its ticket, which ends the request here too.
                let _: Flow = sink.emit(event);
            }
        }
    }
}

#[cfg(test)]
mod tests;
