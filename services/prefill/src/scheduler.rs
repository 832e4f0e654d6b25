//! Decides which prefill runs next and by how many rows. Pure: no clock, no pool, no lock.
//!
//! A request is *waiting* (first come, first served), *onboarding* (its slots for `[0, S)` are reserved and its cached
//! prefix is being fetched), *computing*, or *held* (all announced; its ticket still pins the result). The worker
//! asks for the head of the queue with [`Scheduler::next_waiting`], reserves its slots all or nothing, and says so
//! with [`Scheduler::onboard`]; when the slots are not there, the head waits and nobody overtakes it.
//!
//! Invariants: a step never exceeds `step_rows_max` rows; every chunk ends at a multiple of 128, and no chunk
//! crosses a multiple of `window_interval`, so that a window object can be taken right after the step; of two
//! computing requests neither is given more than one quantum (up to 128 rows) ahead of its turn.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use shared::{BLOCK_TOKENS, Timestamp};

/// Names one submitted request inside one worker. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefillId(pub u64);

/// The bounds a scheduler keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerLimits {
    /// Rows of one step over all requests, at least 128.
    pub step_rows_max: u32,
    /// Requests in the queue.
    pub waiting_max: usize,
    /// Requests onboarding or computing, at least 1.
    pub running_max: usize,
    /// Requests whose result is pinned; when reached, no further request starts, so that never more than this and
    /// `running_max` together are held. At least 1.
    pub held_max: usize,
    /// Distance of the boundaries that a chunk does not cross, in tokens: a positive multiple of 128.
    pub window_interval: u32,
}

/// Consecutive rows of one request, computed in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The request.
    pub id: PrefillId,
    /// First position.
    pub start: u32,
    /// One past the last position: a multiple of 128.
    pub end: u32,
}

/// Why a request was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{waiting} requests are waiting already")]
pub struct QueueFull {
    /// Requests in the queue.
    pub waiting: usize,
}

/// Where a request was when it was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In the queue; it owned nothing.
    Waiting,
    /// Slots reserved, cached prefix on its way.
    Onboarding,
    /// Rows left to compute, or computed and not yet held.
    Computing,
    /// Everything announced.
    Held,
}

/// What a scheduler has in hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerLoad {
    /// Requests in the queue.
    pub waiting: usize,
    /// Requests onboarding or computing.
    pub running: usize,
    /// Requests whose result is pinned.
    pub held: usize,
    /// Rows accepted and not computed: an estimate for requests that have not started.
    pub pending_rows: u64,
}

/// The queue and the running prefills of one worker.
#[derive(Debug)]
pub struct Scheduler {
    limits: SchedulerLimits,
    waiting: VecDeque<Waiting>,
    running: Vec<Running>,
    held: HashSet<PrefillId>,
    /// Index into `running` of the request whose turn it is.
    turn: usize,
}

impl Scheduler {
    /// An empty scheduler.
    ///
    /// # Panics
    /// When a limit is outside its range.
    #[must_use]
    pub fn new(limits: SchedulerLimits) -> Self {
        assert!(BLOCK_TOKENS <= limits.step_rows_max, "a step holds at least one block of rows");
        assert!(0 < limits.running_max && 0 < limits.held_max, "something must be able to run");
        assert!(
            0 < limits.window_interval && limits.window_interval.is_multiple_of(BLOCK_TOKENS),
            "window objects belong to block boundaries"
        );
        Self {
            limits,
            waiting: VecDeque::new(),
            running: Vec::with_capacity(limits.running_max),
            held: HashSet::new(),
            turn: 0,
        }
    }

    /// Queues a request of about `rows` rows.
    ///
    /// # Errors
    /// When `waiting_max` requests are queued already.
    pub fn submit(&mut self, id: PrefillId, rows: u32, now: Timestamp) -> Result<(), QueueFull> {
        if self.limits.waiting_max <= self.waiting.len() {
            return Err(QueueFull { waiting: self.waiting.len() });
        }
        self.waiting.push_back(Waiting { id, rows, since: now });
        Ok(())
    }

    /// The one request that may start now, if its slots can be had; none when the queue is empty or as many requests
    /// run, or are held, as the limits allow.
    #[must_use]
    pub fn next_waiting(&self) -> Option<PrefillId> {
        let full = self.limits.running_max <= self.running.len()
            || self.limits.held_max <= self.held.len();
        if full { None } else { self.waiting.front().map(|head| head.id) }
    }

    /// Takes the head of the queue, whose slots are reserved now. Answers how long it waited.
    ///
    /// # Panics
    /// When `id` is not what [`Scheduler::next_waiting`] names.
    pub fn onboard(&mut self, id: PrefillId, now: Timestamp) -> Duration {
        assert_eq!(self.next_waiting(), Some(id), "only the head of the queue starts");
        let head = self.waiting.pop_front().expect("the head was just named");
        self.running.push(Running { id, progress: Progress::Onboarding { rows: head.rows } });
        now.since(head.since)
    }

    /// An onboarding request is ready to compute `rows`, replayed and recomputed rows first. May be empty.
    ///
    /// # Panics
    /// When the request is not onboarding, or `rows` does not end at a multiple of 128.
    pub fn start(&mut self, id: PrefillId, rows: Range<u32>) {
        assert!(rows.start <= rows.end && rows.end.is_multiple_of(BLOCK_TOKENS), "ends at a block");
        let running = self.running.iter_mut().find(|running| running.id == id);
        let running = running.expect("a request that starts is onboarding");
        assert!(matches!(running.progress, Progress::Onboarding { .. }), "a request starts once");
        running.progress = Progress::Computing { next: rows.start, to: rows.end };
    }

    /// Whether [`Scheduler::plan_step`] has something to plan.
    #[must_use]
    pub fn has_rows(&self) -> bool {
        self.running.iter().any(
            |running| matches!(running.progress, Progress::Computing { next, to } if next < to),
        )
    }

    /// Fills `chunks` with the next step, at most one chunk per request, and counts its rows as computed. Empty when
    /// no request has rows to compute.
    pub fn plan_step(&mut self, chunks: &mut Vec<Chunk>) {
        chunks.clear();
        let mut budget = self.limits.step_rows_max;
        let mut idle_turns = 0;
        while idle_turns < self.running.len() {
            let running = &mut self.running[self.turn];
            match running.next_quantum(chunks, self.limits.window_interval) {
                Some(quantum) if budget < quantum.end - quantum.start => break,
                Some(quantum) => {
                    budget -= quantum.end - quantum.start;
                    running.take(quantum, chunks);
                    idle_turns = 0;
                }
                None => idle_turns += 1,
            }
            self.turn = (self.turn + 1) % self.running.len();
        }
    }

    /// A computing request has announced everything; its ticket still pins it.
    ///
    /// # Panics
    /// When the request is not computing or has rows left.
    pub fn hold(&mut self, id: PrefillId) {
        let done = self.running.iter().any(|running| {
            running.id == id
                && matches!(running.progress, Progress::Computing { next, to } if next == to)
        });
        assert!(done, "only a request whose rows are all computed is held");
        self.forget_running(id);
        self.held.insert(id);
    }

    /// Forgets a request in whatever phase it is. None when it is not known.
    pub fn remove(&mut self, id: PrefillId) -> Option<Phase> {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.id == id) {
            self.waiting.remove(at);
            return Some(Phase::Waiting);
        }
        if self.held.remove(&id) {
            return Some(Phase::Held);
        }
        self.forget_running(id)
    }

    /// What is in hand.
    #[must_use]
    pub fn load(&self) -> SchedulerLoad {
        let waiting_rows = self.waiting.iter().map(|waiting| u64::from(waiting.rows));
        let running_rows = self.running.iter().map(|running| u64::from(running.rows_left()));
        SchedulerLoad {
            waiting: self.waiting.len(),
            running: self.running.len(),
            held: self.held.len(),
            pending_rows: waiting_rows.chain(running_rows).sum(),
        }
    }

    fn forget_running(&mut self, id: PrefillId) -> Option<Phase> {
        let at = self.running.iter().position(|running| running.id == id)?;
        let removed = self.running.remove(at);
        if at < self.turn {
            self.turn -= 1;
        }
        if self.running.len() <= self.turn {
            self.turn = 0;
        }
        Some(match removed.progress {
            Progress::Onboarding { .. } => Phase::Onboarding,
            Progress::Computing { .. } => Phase::Computing,
        })
    }
}

#[derive(Debug)]
struct Waiting {
    id: PrefillId,
    rows: u32,
    since: Timestamp,
}

#[derive(Debug)]
struct Running {
    id: PrefillId,
    progress: Progress,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    Onboarding { rows: u32 },
    Computing { next: u32, to: u32 },
}

impl Running {
    fn rows_left(&self) -> u32 {
        match self.progress {
            Progress::Onboarding { rows } => rows,
            Progress::Computing { next, to } => to - next,
        }
    }

    /// The rows of this request's next turn: up to the next multiple of 128. None when it has no rows, or when its
    /// chunk of this step already ends at a boundary that a chunk does not cross.
    fn next_quantum(&self, chunks: &[Chunk], window_interval: u32) -> Option<Range<u32>> {
        let Progress::Computing { next, to } = self.progress else { return None };
        let continues = chunks.iter().any(|chunk| chunk.id == self.id);
        if next == to || (continues && next.is_multiple_of(window_interval)) {
            return None;
        }
        Some(next..(next + 1).next_multiple_of(BLOCK_TOKENS))
    }

    fn take(&mut self, quantum: Range<u32>, chunks: &mut Vec<Chunk>) {
        let Progress::Computing { next, to } = &mut self.progress else {
            unreachable!("only a computing request has a quantum")
        };
        assert!(
            *next == quantum.start && quantum.end <= *to,
            "quanta are consecutive and inside the request"
        );
        *next = quantum.end;
        match chunks.iter_mut().find(|chunk| chunk.id == self.id) {
            Some(chunk) => chunk.end = quantum.end,
            None => chunks.push(Chunk { id: self.id, start: quantum.start, end: quantum.end }),
        }
    }
}

#[cfg(test)]
mod tests;
