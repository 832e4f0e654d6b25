//! Looking for work for a while before a thread sleeps: waking one takes as long as much of what a request needs.
//!
//! Linux calls it busy polling. It pays where waits are short and wastes a processor where they are not; so a thread looks only
//! while its last waits were all short, and on half of the processors. It does not yield between its looks: in some runs the
//! kernel then left client, router and worker on one processor (benches/results/2026-12-01-router-busy.md).

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use shared::{Clock, Timestamp};
use tokio::runtime::Builder;

/// After so many short waits in a row the next one is taken to be short: more than the two of a request that comes alone, of
/// which one is for the worker and short, the other for the next request.
const SHORT_IN_A_ROW: u8 = 4;

thread_local! {
    /// Times that something was done on this thread.
    static DONE: Cell<u64> = const { Cell::new(0) };
}

/// The same future, whose turns count as work of their thread.
pub(crate) async fn counted<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        DONE.set(DONE.get().wrapping_add(1));
        future.as_mut().poll(context)
    })
    .await
}

/// How the threads of one set look for work.
#[derive(Clone)]
pub(crate) struct BusyPoll {
    longest: Duration,
    clock: Arc<dyn Clock>,
    /// Threads that may begin to look.
    free: Arc<AtomicUsize>,
}

impl BusyPoll {
    /// For at most so many microseconds before they sleep, and on at most half of so many processors at a time; none where
    /// that is never.
    pub(crate) fn new(longest_us: u64, processors: usize, clock: &Arc<dyn Clock>) -> Option<Self> {
        let longest = Duration::from_micros(longest_us);
        let free = Arc::new(AtomicUsize::new(processors / 2));
        let is_ever = !longest.is_zero() && 2 <= processors;
        is_ever.then(|| Self { longest, clock: Arc::clone(clock), free })
    }

    /// Has the runtime of one thread look before it sleeps.
    pub(super) fn install(self, runtime: &mut Builder) -> Arc<Looking> {
        let Self { longest, clock, free } = self;
        let looking = Arc::new(Looking {
            waits: Mutex::new(Waits::new(longest, clock.now())),
            place: Mutex::new(Place { free, is_taken: false }),
            waker: Mutex::new(None),
        });
        let (before, clock_before) = (Arc::clone(&looking), Arc::clone(&clock));
        runtime.on_thread_park(move || before.idle(clock_before.now()));
        let after = Arc::clone(&looking);
        runtime.on_thread_unpark(move || after.waits.lock().woke(clock.now()));
        looking
    }
}

/// How one thread looks.
pub(super) struct Looking {
    waits: Mutex<Waits>,
    place: Mutex<Place>,
    /// Of what the thread blocks on, from its first turn to its last: whoever holds it keeps the runtime, and that keeps us.
    waker: Mutex<Option<Waker>>,
}

impl Looking {
    /// The same future, to be what the thread blocks on.
    pub(super) async fn blocked_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let told = poll_fn(|context| {
            self.waker.lock().get_or_insert_with(|| context.waker().clone());
            future.as_mut().poll(context)
        })
        .await;
        drop(self.waker.lock().take());
        self.place.lock().give();
        told
    }

    /// The thread has nothing to do.
    fn idle(&self, now: Timestamp) {
        let is_worth_it = self.waits.lock().idle(now, DONE.get());
        let (mut place, waker) = (self.place.lock(), self.waker.lock());
        match &*waker {
            // The thread finds its own future ready, and so asks for events without waiting for them.
            Some(waker) if is_worth_it && place.take() => waker.wake_by_ref(),
            _ => place.give(),
        }
    }
}

/// One of the places of threads that look.
struct Place {
    free: Arc<AtomicUsize>,
    is_taken: bool,
}

impl Place {
    /// Whether the thread has one, now or since before.
    fn take(&mut self) -> bool {
        let take = |free: usize| free.checked_sub(1);
        self.is_taken |= !self.is_taken
            && self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        self.is_taken
    }

    fn give(&mut self) {
        if self.is_taken {
            self.free.fetch_add(1, Ordering::Relaxed);
            self.is_taken = false;
        }
    }
}

/// Foretells whether a wait is short. Pure.
#[derive(Debug)]
struct Waits {
    longest: Duration,
    /// Short waits since the last long one, [`SHORT_IN_A_ROW`] at most.
    short: u8,
    /// When the thread last ran out of work.
    began: Timestamp,
    /// When it last looked for events.
    woke: Timestamp,
    /// What was done up to then.
    done: u64,
}

impl Waits {
    fn new(longest: Duration, now: Timestamp) -> Self {
        Self { longest, short: 0, began: now, woke: now, done: 0 }
    }

    /// The thread looked for events, or was woken by one.
    fn woke(&mut self, now: Timestamp) {
        self.woke = now;
    }

    /// The thread has nothing to do, having done so much in all: whether it is to look again instead of sleeping.
    fn idle(&mut self, now: Timestamp, done: u64) -> bool {
        if done != self.done {
            let is_short = self.woke.since(self.began) <= self.longest;
            self.short = if is_short { (self.short + 1).min(SHORT_IN_A_ROW) } else { 0 };
            (self.began, self.done) = (now, done);
        }
        self.short == SHORT_IN_A_ROW && now.since(self.began) < self.longest
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use shared::{ManualClock, Timestamp};
    use tokio::runtime::Builder;
    use tokio::task::yield_now;

    use super::{BusyPoll, Place, SHORT_IN_A_ROW, Waits, counted};
    use crate::lanes::LaneThreads;

    const LONGEST: Duration = Duration::from_micros(200);

    /// Waits of so many microseconds, each followed by work: whether the thread looks again after the work.
    fn looks(waits: impl IntoIterator<Item = u64>) -> Vec<bool> {
        let mut now = Timestamp(0);
        let mut foretold = Waits::new(LONGEST, now);
        let after = waits.into_iter().zip(1..).map(|(wait, done)| {
            now = now.after(Duration::from_micros(wait));
            foretold.woke(now);
            now = now.after(Duration::from_micros(1_000));
            foretold.idle(now, done)
        });
        after.collect()
    }

    #[test]
    fn it_looks_while_its_last_waits_were_short() {
        let row = usize::from(SHORT_IN_A_ROW);
        let mut expected = vec![false; row - 1];
        expected.extend([true, true]);
        assert_eq!(looks(vec![200; row + 1]), expected);
        assert!(looks([50, 10_000].repeat(100)).iter().all(|looks| !looks), "one at a time");
        let mut waits = vec![20; row];
        waits.extend([201, 20, 20, 20, 20]);
        let mut expected = vec![false; 2 * row + 1];
        (expected[row - 1], expected[2 * row]) = (true, true);
        assert_eq!(looks(waits), expected, "one long wait ends it until they are short again");
    }

    #[test]
    fn it_sleeps_when_nothing_came_for_the_longest_time() {
        let mut waits = Waits::new(LONGEST, Timestamp(0));
        let at = |us| Timestamp(0).after(Duration::from_micros(us));
        for done in 1..=u64::from(SHORT_IN_A_ROW) {
            waits.woke(at(0));
            waits.idle(at(0), done);
        }
        let done = u64::from(SHORT_IN_A_ROW);
        for (now, expected) in [(0, true), (199, true), (200, false), (5_000, false)] {
            waits.woke(at(now));
            assert_eq!(waits.idle(at(now), done), expected, "at {now}");
        }
        waits.woke(at(5_000));
        assert!(!waits.idle(at(5_000), done + 1), "that wait was long");
    }

    #[test]
    fn places_are_never_more_than_there_are() {
        let free = Arc::new(AtomicUsize::new(1));
        let place = || Place { free: Arc::clone(&free), is_taken: false };
        let (mut one, mut other) = (place(), place());
        assert!(one.take() && one.take() && !other.take());
        one.give();
        one.give();
        assert!(other.take() && !one.take());
        other.give();
        assert_eq!(free.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_thread_that_looks_does_its_work_and_ends() {
        // Time stands still: every wait is short, and none comes to its end.
        let clock = Arc::new(ManualClock::new()) as Arc<dyn shared::Clock>;
        assert!(BusyPoll::new(0, 64, &clock).is_none());
        assert!(BusyPoll::new(200, 1, &clock).is_none());
        let busy = BusyPoll::new(200, 2, &clock).unwrap();
        let threads = LaneThreads::start(2, Some(&busy)).unwrap();
        let lanes = threads.lanes();
        let here = Builder::new_current_thread().build().unwrap();
        let mut rounds = 0;
        while busy.free.load(Ordering::Relaxed) == 1 {
            for number in 0..2 {
                let work = counted(async { yield_now().await });
                here.block_on(lanes.runtime(number).spawn(work)).unwrap();
            }
            rounds += 1;
            assert!(rounds < 1_000_000, "no thread looks for work");
        }
        for number in [0, 1, 0, 1] {
            let work = counted(async move { number });
            assert_eq!(here.block_on(lanes.runtime(number).spawn(work)).unwrap(), number);
        }
        drop(threads);
        assert_eq!(busy.free.load(Ordering::Relaxed), 1, "the place is given back");
    }
}
