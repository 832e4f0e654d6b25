//! The threads that requests of clients live on.
//!
//! Each runs everything of its connections: reading, rendering, placing, the way to the worker and back. A request that is
//! handed from thread to thread pays for waking each of them, which is dearer than most of what is done with it; so a connection
//! stays, and every thread has its own connection to each worker (`wire/link/lane.rs`).

mod busy;

use std::cell::Cell;
use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle, available_parallelism};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

pub(crate) use self::busy::{BusyPoll, counted};

/// Most threads. Each of a router's has a connection to each member, of the 1,024 that one takes: enough for 60 routers.
pub(crate) const LANES_MAX: usize = 16;

/// Sets of threads that were started in this process; 0 is none of them.
static SETS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The set and the number of this thread, on threads that requests live on.
    static HERE: Cell<Option<(u64, usize)>> = const { Cell::new(None) };
}

/// The threads; they end, with everything on them, when this is dropped.
#[derive(Debug)]
pub(crate) struct LaneThreads {
    lanes: Lanes,
    stop: CancellationToken,
    threads: Vec<JoinHandle<()>>,
}

/// Where they are. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes {
    set: u64,
    lanes: Arc<[Lane]>,
}

#[derive(Debug)]
struct Lane {
    runtime: Handle,
    /// Connections of clients.
    busy: AtomicUsize,
}

/// A place on one of the threads. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Place {
    lanes: Lanes,
    number: usize,
}

impl LaneThreads {
    /// Starts them; `wanted` of 0 stands for as many as this process may use processors, of [`LANES_MAX`] at most. They sleep
    /// while they have nothing to do, unless they are told to look for work a while before.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub(crate) fn start(wanted: usize, busy: Option<&BusyPoll>) -> io::Result<Self> {
        let count = match wanted {
            0 => processors().min(LANES_MAX),
            wanted => wanted,
        };
        let set = SETS.fetch_add(1, Ordering::Relaxed) + 1;
        let stop = CancellationToken::new();
        let mut made = Self { lanes: Lanes::default(), stop, threads: Vec::with_capacity(count) };
        let mut lanes = Vec::with_capacity(count);
        for number in 0..count {
            let (tell, told) = mpsc::channel();
            let (stop, busy) = (made.stop.clone(), busy.cloned());
            let thread = thread::Builder::new().name(format!("requests-{number}"));
            // One that was started ends when `made` is dropped, here too.
            made.threads.push(thread.spawn(move || live((set, number), busy, &tell, &stop))?);
            let runtime = told.recv().map_err(|_| io::Error::other("a thread died at once"))??;
            lanes.push(Lane { runtime, busy: AtomicUsize::new(0) });
        }
        made.lanes = Lanes { set, lanes: lanes.into() };
        Ok(made)
    }

    pub(crate) fn lanes(&self) -> Lanes {
        self.lanes.clone()
    }
}

impl Drop for LaneThreads {
    fn drop(&mut self) {
        self.stop.cancel();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of requests died; see its panic above");
            }
        }
    }
}

/// The runtime begins and ends here: nothing else may drop one where others run.
fn live(
    here: (u64, usize),
    busy: Option<BusyPoll>,
    tell: &Sender<io::Result<Handle>>,
    stop: &CancellationToken,
) {
    HERE.set(Some(here));
    let mut builder = Builder::new_current_thread();
    let looking = busy.map(|busy| busy.install(&mut builder));
    let runtime = match builder.enable_all().build() {
        Ok(runtime) => runtime,
        // Whoever started this thread waits for the word, or has ended.
        Err(error) => return drop(tell.send(Err(error))),
    };
    if tell.send(Ok(runtime.handle().clone())).is_ok() {
        match looking {
            Some(looking) => runtime.block_on(looking.blocked_on(stop.cancelled())),
            None => runtime.block_on(stop.cancelled()),
        }
    }
    // What still reads a prompt is left to itself.
    runtime.shutdown_background();
}

/// How many processors this process may use.
pub(crate) fn processors() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

impl Lanes {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lanes.len()
    }

    /// The number of this thread, when it is one of them.
    pub(crate) fn here(&self) -> Option<usize> {
        HERE.get().filter(|(set, _)| *set == self.set).map(|(_, number)| number)
    }

    /// The runtime of one of them.
    ///
    /// # Panics
    /// When there are not so many.
    pub(crate) fn runtime(&self, number: usize) -> &Handle {
        &self.lanes[number].runtime
    }

    /// A place where the fewest are taken; none without threads.
    pub(crate) fn place(&self) -> Option<Place> {
        let taken = self.lanes.iter().map(|lane| lane.busy.load(Ordering::Relaxed));
        let (number, _) = taken.enumerate().min_by_key(|(_, busy)| *busy)?;
        self.lanes[number].busy.fetch_add(1, Ordering::Relaxed);
        Some(Place { lanes: self.clone(), number })
    }
}

impl Place {
    /// The number of its thread.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Where to run what has this place.
    pub(crate) fn runtime(&self) -> &Handle {
        self.lanes.runtime(self.number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lanes.lanes[self.number].busy.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::{LaneThreads, Lanes, Place};

    #[test]
    fn places_are_spread_and_given_back() {
        let threads = LaneThreads::start(3, None).unwrap();
        let lanes = threads.lanes();
        let mut places: Vec<_> = (0..6).map(|_| lanes.place().unwrap()).collect();
        assert_eq!(places.iter().map(Place::number).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
        places.remove(4);
        assert_eq!(lanes.place().unwrap().number, 1);
        assert!(Lanes::default().place().is_none());
    }

    #[test]
    fn what_has_a_place_runs_on_its_thread_until_the_threads_end() {
        let threads = LaneThreads::start(2, None).unwrap();
        let (lanes, runtime) = (threads.lanes(), Builder::new_current_thread().build().unwrap());
        let others = LaneThreads::start(1, None).unwrap().lanes();
        assert_eq!((lanes.len(), lanes.here()), (2, None));
        for number in 0..2 {
            let (asked, others) = (lanes.clone(), others.clone());
            let told = lanes.runtime(number).spawn(async move { (asked.here(), others.here()) });
            assert_eq!(runtime.block_on(told).unwrap(), (Some(number), None));
        }
        let endless = lanes.runtime(0).spawn(std::future::pending::<()>());
        drop(threads);
        assert!(runtime.block_on(endless).unwrap_err().is_cancelled());
    }
}
