//! A long run copied by two threads: one core does not reach what the memory can do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc::{self, Receiver};
use tokio::task;

use super::client::{Copied, Mapped};
use crate::transport::ReadRequest;
use crate::transport::peer::{Run, misfit};

/// From this many reads on a second thread is worth its wake-up, some 50 µs against 25 for a copy.
const READS_MIN: usize = 8;

/// How many copies the second thread is ahead of the answers at most, so that little is copied for a request that is
/// cancelled or a sink that does not keep up.
const LEAD_MAX: usize = 8;

/// Reads of one run on their way, each with its place in it.
type Queue = Arc<Mutex<VecDeque<(usize, ReadRequest)>>>;

/// The reads of a run that two threads take from one queue: the task that answers, and a thread beside it.
#[derive(Default)]
pub(super) struct Ahead(Option<Copies>);

struct Copies {
    mapped: Arc<Mapped>,
    queue: Queue,
    /// Copied before their turn to be answered: at most one more than [`LEAD_MAX`].
    early: BTreeMap<usize, (ReadRequest, Copied)>,
    beside: Receiver<(usize, ReadRequest, Copied)>,
    /// The place of the next answer, and of the first read that is not here.
    turn: usize,
    end: usize,
}

impl Ahead {
    /// Begins to copy what is left of the run out of its segment, when that is enough for two and copying has not begun.
    pub(super) fn begin(&mut self, mapped: Option<&Arc<Mapped>>, run: &mut Run<'_>) {
        let reads = run.reads();
        let Some(mapped) = mapped.filter(|_| self.0.is_none() && READS_MIN <= reads.len()) else {
            return;
        };
        let end = reads.len();
        let queue: Queue = Arc::new(Mutex::new(reads.drain(..).enumerate().collect()));
        let (told, beside) = mpsc::channel(LEAD_MAX);
        let (others, from) = (Arc::clone(&queue), Arc::clone(mapped));
        // It ends with the queue, or with whoever would hear of its copies.
        drop(task::spawn_blocking(move || {
            while let Some((place, read, copied)) = copy_next(&others, &from) {
                if told.blocking_send((place, read, copied)).is_err() {
                    return;
                }
            }
        }));
        let mapped = Arc::clone(mapped);
        self.0 = Some(Copies { mapped, queue, early: BTreeMap::new(), beside, turn: 0, end });
    }

    /// Whether no read is left here.
    pub(super) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|copies| copies.turn == copies.end)
    }

    /// Puts the next read at the front of the run and says what its copy came to; none when nothing was tried.
    pub(super) async fn next(&mut self, run: &mut Run<'_>) -> Option<Copied> {
        let copies = self.0.as_mut()?;
        let (read, copied) = copies.next().await?;
        run.reads().push_front(read);
        Some(copied)
    }

    /// Ends: what is not answered is in the run again, in its order.
    pub(super) async fn end(self, run: &mut Run<'_>) {
        let Some(mut copies) = self.0 else {
            return;
        };
        let mut left: BTreeMap<usize, ReadRequest> = copies.queue.lock().drain(..).collect();
        // What the other thread has in its hands comes after the copy of one object.
        while let Some((place, read, _)) = copies.beside.recv().await {
            left.insert(place, read);
        }
        left.extend(copies.early.into_iter().map(|(place, (read, _))| (place, read)));
        run.reads().extend(left.into_values());
    }
}

impl Copies {
    async fn next(&mut self) -> Option<(ReadRequest, Copied)> {
        if self.turn == self.end {
            return None;
        }
        loop {
            while let Ok((place, read, copied)) = self.beside.try_recv() {
                self.early.insert(place, (read, copied));
            }
            if let Some(next) = self.early.remove(&self.turn) {
                self.turn += 1;
                return Some(next);
            }
            let copied = match copy_next(&self.queue, &self.mapped) {
                Some(copied) => copied,
                None => self.beside.recv().await.expect("each read comes from one of the two"),
            };
            self.early.insert(copied.0, (copied.1, copied.2));
        }
    }
}

fn copy_next(
    queue: &Mutex<VecDeque<(usize, ReadRequest)>>,
    mapped: &Mapped,
) -> Option<(usize, ReadRequest, Copied)> {
    let (place, mut read) = queue.lock().pop_front()?;
    // What does not fit is refused when its turn to be answered comes.
    let copied = match misfit(&read) {
        Some(_) => Copied::Moved,
        None => mapped.copy(&read.source, &mut read.target),
    };
    Some((place, read, copied))
}
