//! Threads that compute guides, and the watcher that writes off those that do not come back.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use engine::{GRAMMAR_STACK_BYTES, Stopper};
use parking_lot::{Condvar, Mutex};
use shared::{Clock, ServeError, Timestamp};

use crate::config::DecodeConfig;
use crate::guides::{GuideFailure, GuideStats, Guided};

/// How often the watcher looks while something is being computed. A limit is overrun by at most this.
const WATCH_INTERVAL: Duration = Duration::from_millis(5);

/// What a job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A new request: compile, or follow from the cache.
    Begin,
    /// The next mask of a running answer. Comes first.
    Mask,
}

/// One call.
pub(crate) struct Job {
    pub(super) kind: Kind,
    /// How long it may take from when a thread takes it.
    pub(super) limit: Duration,
    /// Stops it; none when it cannot be stopped.
    pub(super) stopper: Option<Stopper>,
    /// Why nobody wants it any more, if so; asked before it is computed, and when there is no room for others. May be
    /// called while the pool is locked, so it must not call the pool.
    pub(super) withdrawn: Withdrawn,
    pub(super) compute: Compute,
    /// Called exactly once, never while the pool is locked.
    pub(super) report: Report,
}

type Compute = Box<dyn FnOnce() -> Guided + Send>;

type Report = Box<dyn FnOnce(Guided) + Send>;

/// Why a call is not wanted any more.
pub(super) type Withdrawn = Box<dyn Fn() -> Option<ServeError> + Send>;

pub(crate) struct Pool {
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    watch: Condvar,
    clock: Arc<dyn Clock>,
    begins_max: usize,
    lost_max: usize,
}

#[derive(Default)]
struct State {
    masks: VecDeque<Job>,
    begins: VecDeque<Job>,
    busy: BTreeMap<u64, Busy>,
    threads: BTreeMap<u64, Seat>,
    /// Threads written off that still run.
    lost: Vec<JoinHandle<()>>,
    /// What seats without a thread take: masks only, or everything. Filled again when a lost thread comes back.
    vacant: Vec<bool>,
    next_thread: u64,
    closing: bool,
    stats: GuideStats,
}

/// A thread that serves.
struct Seat {
    thread: JoinHandle<()>,
    masks_only: bool,
}

/// What a thread is at.
struct Busy {
    kind: Kind,
    since: Timestamp,
    limit: Duration,
    stopper: Option<Stopper>,
    report: Report,
    masks_only: bool,
}

impl Pool {
    pub(super) fn start(config: &DecodeConfig, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            watch: Condvar::new(),
            clock,
            begins_max: config.waiting_max,
            lost_max: config.grammar_threads_lost_max,
        });
        // From here on a failure drops the pool, which ends what was started.
        let mut pool = Self { shared: Arc::clone(&shared), watcher: None };
        for number in 0..config.grammar_threads {
            shared.spawn(&mut shared.state.lock(), number == 0)?;
        }
        let watched = Arc::clone(&shared);
        let watcher = Builder::new().name("grammar-watch".to_owned());
        pool.watcher = Some(watcher.spawn(move || watched.keep_watch())?);
        Ok(pool)
    }

    /// Queues a call, or reports that too many wait.
    pub(super) fn submit(&self, job: Job) {
        let mut state = self.shared.state.lock();
        let mut over = Vec::new();
        if job.kind == Kind::Begin && self.shared.begins_max <= state.begins.len() {
            over = state.withdraw();
        }
        let waiting = state.begins.len();
        let refused = match job.kind {
            _ if state.closing => Some(GuideFailure::Closing),
            kind if !state.serves(kind) => Some(GuideFailure::Deserted),
            Kind::Begin if self.shared.begins_max <= waiting => Some(GuideFailure::Full(waiting)),
            Kind::Begin | Kind::Mask => None,
        };
        match (refused, job.kind) {
            (Some(refused), _) => {
                state.stats.note(job.kind, Some(&refused));
                over.push((job.report, refused));
            }
            (None, Kind::Begin) => state.begins.push_back(job),
            (None, Kind::Mask) => state.masks.push_back(job),
        }
        drop(state);
        for (report, failure) in over {
            report(Err(failure));
        }
        // All, because the one that is woken may be one that takes masks only.
        self.shared.work.notify_all();
        self.shared.watch.notify_one();
    }

    pub(super) fn stats(&self) -> GuideStats {
        let state = self.shared.state.lock();
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let begun = state.busy.values().filter(|busy| busy.kind == Kind::Begin).count();
        GuideStats {
            threads_lost: count(state.lost.iter().filter(|lost| !lost.is_finished()).count()),
            compiling: count(state.begins.len() + begun),
            ..state.stats
        }
    }
}

impl Shared {
    fn spawn(self: &Arc<Self>, state: &mut State, masks_only: bool) -> io::Result<()> {
        let number = state.next_thread;
        state.next_thread += 1;
        let shared = Arc::clone(self);
        let thread =
            Builder::new().name(format!("grammar-{number}")).stack_size(GRAMMAR_STACK_BYTES);
        let thread = thread.spawn(move || shared.work(number, masks_only))?;
        state.threads.insert(number, Seat { thread, masks_only });
        Ok(())
    }

    /// A thread's life: until the end, or until it was written off.
    fn work(self: &Arc<Self>, number: u64, masks_only: bool) {
        while let Some(compute) = self.take(number, masks_only) {
            let guided = catch_unwind(AssertUnwindSafe(compute)).unwrap_or_else(|_| {
                tracing::error!("a grammar met a broken invariant; its answer ends");
                Err(GuideFailure::Failed("the grammar engine failed; simplify the grammar".into()))
            });
            let report = {
                let mut state = self.state.lock();
                let Some(busy) = state.busy.remove(&number) else {
                    // Written off while it computed. Somebody else sits here now, or nobody could.
                    tracing::warn!(number, "a grammar thread came back after it was written off");
                    self.fill_a_seat(&mut state);
                    return;
                };
                state.stats.note(busy.kind, guided.as_ref().err());
                busy.report
            };
            report(guided);
        }
    }

    /// Gives one of the seats that were left empty a thread again.
    fn fill_a_seat(self: &Arc<Self>, state: &mut State) {
        if state.closing {
            return;
        }
        let Some(masks_only) = state.vacant.pop() else { return };
        if let Err(error) = self.spawn(state, masks_only) {
            state.vacant.push(masks_only);
            tracing::error!(%error, "no thread for a seat of the grammar pool");
        }
    }

    /// Waits for the next call; none at the end.
    fn take(&self, number: u64, masks_only: bool) -> Option<Compute> {
        let mut state = self.state.lock();
        loop {
            if state.closing {
                return None;
            }
            let job = match state.masks.pop_front() {
                None if !masks_only => state.begins.pop_front(),
                job => job,
            };
            let Some(Job { kind, limit, stopper, withdrawn, compute, report }) = job else {
                self.work.wait(&mut state);
                continue;
            };
            let compute: Compute = match withdrawn() {
                None => compute,
                Some(error) => Box::new(move || Err(GuideFailure::Withdrawn(error))),
            };
            let since = self.clock.now();
            let busy = Busy { kind, since, limit, stopper, report, masks_only };
            state.busy.insert(number, busy);
            return Some(compute);
        }
    }

    /// The watcher's life.
    fn keep_watch(self: &Arc<Self>) {
        let mut state = self.state.lock();
        // At the end calls under way are still watched, so that the end does not wait for one that does not come back.
        while !state.closing || !state.busy.is_empty() {
            if state.busy.is_empty() && state.masks.is_empty() && state.begins.is_empty() {
                self.watch.wait(&mut state);
            } else {
                self.watch.wait_for(&mut state, WATCH_INTERVAL);
            }
            let now = self.clock.now();
            // What cannot be stopped is not waited for at the end.
            let closing = state.closing;
            let over = |busy: &Busy| {
                busy.limit < now.since(busy.since) || (closing && busy.stopper.is_none())
            };
            let late: Vec<u64> = state
                .busy
                .iter()
                .filter(|(_, busy)| over(busy))
                .map(|(number, _)| *number)
                .collect();
            let mut reports: Vec<(Report, GuideFailure)> = Vec::new();
            for number in late {
                reports.push(self.write_off(&mut state, number));
            }
            for job in state.unserved() {
                state.stats.note(job.kind, Some(&GuideFailure::Deserted));
                reports.push((job.report, GuideFailure::Deserted));
            }
            if reports.is_empty() {
                continue;
            }
            parking_lot::MutexGuard::unlocked(&mut state, || {
                for (report, failure) in reports {
                    report(Err(failure));
                }
            });
        }
    }

    fn write_off(self: &Arc<Self>, state: &mut State, number: u64) -> (Report, GuideFailure) {
        let busy = state.busy.remove(&number).expect("found among the busy ones");
        if let Some(stopper) = &busy.stopper {
            stopper.stop();
        }
        let limit_ms = busy.limit.as_millis();
        state.lost.retain(|lost| !lost.is_finished());
        state.lost.extend(state.threads.remove(&number).map(|seat| seat.thread));
        if state.closing {
            return (busy.report, GuideFailure::Closing);
        }
        let failure = match busy.kind {
            Kind::Begin => GuideFailure::Refused(format!(
                "it could not be compiled within {limit_ms} ms; simplify it"
            )),
            Kind::Mask => GuideFailure::Failed(format!(
                "the grammar's next tokens were not found within {limit_ms} ms; simplify it"
            )),
        };
        state.stats.timeouts += 1;
        state.stats.note(busy.kind, Some(&failure));
        state.vacant.push(busy.masks_only);
        if state.lost.len() <= self.lost_max {
            self.fill_a_seat(state);
        } else {
            tracing::error!(
                lost = state.lost.len(),
                "too many grammar threads do not come back; fewer are left until they do, or until this worker is restarted"
            );
        }
        (busy.report, failure)
    }
}

impl State {
    /// Whether a thread is left that takes such calls.
    fn serves(&self, kind: Kind) -> bool {
        self.threads.values().any(|seat| kind == Kind::Mask || !seat.masks_only)
    }

    /// Takes what waits to be compiled and is not wanted any more.
    fn withdraw(&mut self) -> Vec<(Report, GuideFailure)> {
        let mut over = Vec::new();
        for job in std::mem::take(&mut self.begins) {
            match (job.withdrawn)() {
                None => self.begins.push_back(job),
                Some(error) => over.push((job.report, GuideFailure::Withdrawn(error))),
            }
        }
        over
    }

    /// Takes what waits for threads that are not there any more.
    fn unserved(&mut self) -> Vec<Job> {
        let mut jobs = Vec::new();
        if !self.serves(Kind::Begin) {
            jobs.extend(self.begins.drain(..));
        }
        if !self.serves(Kind::Mask) {
            jobs.extend(self.masks.drain(..));
        }
        jobs
    }
}

impl GuideStats {
    fn note(&mut self, kind: Kind, failure: Option<&GuideFailure>) {
        match failure {
            None => self.masks += 1,
            Some(GuideFailure::Refused(_)) => self.refused += 1,
            Some(GuideFailure::Failed(_)) if kind == Kind::Begin => self.refused += 1,
            Some(GuideFailure::Failed(_)) => self.failed += 1,
            Some(GuideFailure::Full(_)) => self.refused_full += 1,
            Some(GuideFailure::Deserted) => self.deserted += 1,
            Some(GuideFailure::Withdrawn(_) | GuideFailure::Closing) => (),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closing = true;
        let queued: Vec<Job> = std::mem::take(&mut state.masks)
            .into_iter()
            .chain(std::mem::take(&mut state.begins))
            .collect();
        for busy in state.busy.values() {
            if let Some(stopper) = &busy.stopper {
                stopper.stop();
            }
        }
        drop(state);
        self.shared.work.notify_all();
        self.shared.watch.notify_all();
        for job in queued {
            (job.report)(Err(GuideFailure::Closing));
        }
        // The watcher ends when nothing is under way any more, or what is was written off.
        join(self.watcher.take());
        let mut state = self.shared.state.lock();
        let threads = std::mem::take(&mut state.threads);
        let lost = std::mem::take(&mut state.lost);
        drop(state);
        join(threads.into_values().map(|seat| seat.thread));
        // One that does not come back cannot be waited for; it ends with the process.
        join(lost.into_iter().filter(JoinHandle::is_finished));
    }
}

/// Waits for threads to end. The last handle may drop on one of them, which then cannot wait for itself.
fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    let me = std::thread::current().id();
    for thread in threads.into_iter().filter(|thread| thread.thread().id() != me) {
        if thread.join().is_err() {
            tracing::error!("a grammar thread died");
        }
    }
}
