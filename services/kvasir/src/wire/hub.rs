//! What the workers of this process tell, for every router that listens.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use shared::{CacheChange, CacheQuestion, Flow, Sink, WorkerEvent, WorkerRank};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Events a watcher may lag behind. A worker tells a few per step, so this is seconds; who is slower begins anew.
const QUEUE_MAX: usize = 4_096;
/// Most watchers at a time: every router of a large cluster, and some that are gone and not noticed yet.
const WATCHERS_MAX: usize = 64;

/// Fans the events of this process's workers out to every watcher.
///
/// A watcher's first cache event of each worker is a `Cleared`: what comes before it is withheld, since it builds on
/// something the watcher never saw. Whoever makes the hub gives it a way to ask for that fresh start; it comes as
/// ordinary events, with ordinary numbers, and older watchers take it as well.
pub struct EventHub {
    watchers: Mutex<Vec<Watcher>>,
    ask: Box<dyn Fn(CacheQuestion) + Send + Sync>,
    cut_off: AtomicU64,
}

struct Watcher {
    events: mpsc::Sender<Arc<WorkerEvent>>,
    /// Whose `Cleared` went through.
    based: BTreeSet<WorkerRank>,
}

impl fmt::Debug for EventHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventHub").field("watchers", &self.watchers.lock().len()).finish()
    }
}

/// Why a watcher was not taken: the bound is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyWatchers;

impl EventHub {
    /// A hub without watchers. `ask` is called with the question for everything once per new watcher, from the thread that
    /// serves it, after the watcher is in place, and with what watchers that lost events ask: it must make every worker of
    /// this process emit the answer, soon, and must not block.
    #[must_use]
    pub fn new(ask: impl Fn(CacheQuestion) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            watchers: Mutex::new(Vec::new()),
            ask: Box::new(ask),
            cut_off: AtomicU64::new(0),
        })
    }

    /// A sink for a worker of this process. Always open; never blocks.
    #[must_use]
    pub fn sink(self: &Arc<Self>) -> Box<dyn Sink<WorkerEvent>> {
        let hub = Arc::clone(self);
        Box::new(move |event| {
            hub.emit(event);
            Flow::Open
        })
    }

    /// Tells every watcher. Never blocks: a watcher whose queue is full is cut off, and begins anew when it comes back.
    /// Events of one worker must come from one thread at a time.
    pub fn emit(&self, event: WorkerEvent) {
        let event = Arc::new(event);
        self.watchers.lock().retain_mut(|watcher| match watcher.tell(&event) {
            Ok(()) => true,
            Err(TrySendError::Closed(_)) => false,
            Err(TrySendError::Full(_)) => {
                self.cut_off.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("a router takes events too slowly and must begin anew");
                false
            }
        });
    }

    /// Watchers now, those included that went away and were not noticed yet.
    #[must_use]
    pub fn watchers(&self) -> usize {
        self.watchers.lock().len()
    }

    /// Watchers that were cut off because they fell behind. Only grows.
    #[must_use]
    pub fn cut_off(&self) -> u64 {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// The queue of a new watcher; it ends when the watcher is cut off.
    pub(super) fn watch(&self) -> Result<mpsc::Receiver<Arc<WorkerEvent>>, TooManyWatchers> {
        let (sender, events) = mpsc::channel(QUEUE_MAX);
        {
            let mut watchers = self.watchers.lock();
            watchers.retain(|watcher| !watcher.events.is_closed());
            if WATCHERS_MAX <= watchers.len() {
                return Err(TooManyWatchers);
            }
            watchers.push(Watcher { events: sender, based: BTreeSet::new() });
        }
        (self.ask)(CacheQuestion::Whole);
        Ok(events)
    }

    /// Passes on what a watcher asks.
    pub(super) fn ask(&self, question: CacheQuestion) {
        (self.ask)(question);
    }
}

impl Watcher {
    fn tell(&mut self, event: &Arc<WorkerEvent>) -> Result<(), TrySendError<Arc<WorkerEvent>>> {
        if let WorkerEvent::Cache(cache) = event.as_ref() {
            if cache.change == CacheChange::Cleared {
                self.based.insert(cache.worker);
            } else if !self.based.contains(&cache.worker) {
                return Ok(());
            }
        }
        self.events.try_send(Arc::clone(event))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use shared::{
        BlockName, CacheChange, CacheEvent, CacheQuestion, DpRank, Flow, Tier, WorkerEvent,
        WorkerId, WorkerRank,
    };

    use super::{EventHub, QUEUE_MAX, WATCHERS_MAX};

    fn event(worker: u32, sequence: u64, change: CacheChange) -> WorkerEvent {
        let worker = WorkerRank { worker: WorkerId(worker), rank: DpRank(0) };
        WorkerEvent::Cache(CacheEvent { worker, incarnation: 1, sequence, change })
    }

    fn stored() -> CacheChange {
        CacheChange::Stored { tier: Tier::Device, names: vec![BlockName([1; 16])] }
    }

    #[test]
    fn a_new_watcher_is_asked_for_and_begins_with_a_cleared_of_each_worker() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let hub = EventHub::new(move |question| {
            assert_eq!(question, CacheQuestion::Whole);
            counter.fetch_add(1, Ordering::SeqCst);
        });
        let mut sink = hub.sink();
        let mut watcher = hub.watch().unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        let told = [
            event(1, 5, stored()),
            event(1, 6, CacheChange::Cleared),
            event(2, 9, stored()),
            event(1, 7, stored()),
        ];
        for event in &told {
            assert_eq!(sink.emit(event.clone()), Flow::Open);
        }
        assert_eq!(*watcher.try_recv().unwrap(), told[1]);
        assert_eq!(*watcher.try_recv().unwrap(), told[3]);
        assert!(watcher.try_recv().is_err());
        let _second = hub.watch().unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_slow_watcher_is_cut_off_and_the_others_go_on() {
        let hub = EventHub::new(|_| {});
        let mut slow = hub.watch().unwrap();
        let mut quick = hub.watch().unwrap();
        let gone = hub.watch().unwrap();
        drop(gone);
        for _ in 0..=QUEUE_MAX {
            hub.emit(event(1, 0, CacheChange::Cleared));
            assert!(quick.try_recv().is_ok());
        }
        assert_eq!((hub.watchers(), hub.cut_off()), (1, 1));
        let held = std::iter::from_fn(|| slow.try_recv().ok()).count();
        assert_eq!(held, QUEUE_MAX);
        assert!(slow.is_closed());
    }

    #[test]
    fn watchers_are_bounded_and_places_come_back() {
        let hub = EventHub::new(|_| {});
        let mut watchers: Vec<_> = (0..WATCHERS_MAX).map(|_| hub.watch().unwrap()).collect();
        assert!(hub.watch().is_err());
        drop(watchers.pop());
        assert!(hub.watch().is_ok());
    }
}
