//! The prefill worker: one named thread that turns requests into sealed blocks and window objects.
//!
//! What it is not: it decides nothing by itself. Which request runs is the [scheduler](crate::scheduler)'s decision, how
//! a request starts is the planner's (`kvstore`), what a row computes is the engine's.
//!
//! Invariants: every accepted request ends with exactly one of `Finished` and `Failed`, or with nothing when its ticket
//! dropped or its sink closed; what was announced stays pinned until the ticket drops; a slot is owned by the request
//! that writes it, by a read in flight, or by the pool.
//!
//! Start reading at `worker/turn.rs`, then `worker/onboard.rs`, then `worker/compute.rs`.

mod begin;
mod compute;
mod job;
mod offers;
mod onboard;
mod report;
mod speed;
mod turn;

#[cfg(test)]
mod tests;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, Builder, JoinHandle};

use engine::{Engine, KvSlab};
use kvstore::{Pool, PoolAudit, StartRecord, StartRecords, Transport};
use parking_lot::Mutex;
use shared::{
    BlockStore, Clock, Flow, Prefill, PrefillEvent, PrefillRequest, RequestId, ServeError, Sink,
    Ticket, WorkerEvent, WorkerRank,
};

use crate::config::{ConfigError, PrefillConfig};
use crate::mailbox::{Command, Life, Mailbox, Refusal};
use crate::stats::PrefillStats;
use crate::worker::turn::Loop;

/// What a worker is made of.
pub struct PrefillParts {
    /// The name under which it reports.
    pub rank: WorkerRank,
    /// The loaded model; the encoder part is enough.
    pub engine: Arc<Engine>,
    /// The memory of the blocks.
    pub slab: Arc<KvSlab>,
    /// The bookkeeping of `slab`.
    pub pool: Pool,
    /// Host memory for window objects.
    pub windows: Pool,
    /// Reads from the store's regions.
    pub transport: Arc<dyn Transport>,
    /// Where cached objects outlive this worker.
    pub store: Arc<dyn BlockStore>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Takes cache changes and load reports. A closed sink ends the reports, not the worker.
    pub events: Box<dyn Sink<WorkerEvent>>,
}

/// Why a worker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting is outside its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system gave no thread.
    #[error("cannot start the prefill worker's thread: {0}")]
    Thread(#[from] io::Error),
}

/// A running prefill worker. Dropping it fails what is unfinished with [`ServeError::WorkerLost`] and joins its thread
/// after the current step.
pub struct PrefillWorker {
    mailbox: Arc<Mailbox>,
    stats: Arc<Mutex<PrefillStats>>,
    records: Arc<StartRecords>,
    waiting_max: usize,
    retry_after_ms: u64,
    pool: Pool,
    windows: Pool,
    thread: Option<JoinHandle<()>>,
}

impl PrefillWorker {
    /// Starts the thread `prefill`.
    ///
    /// # Errors
    /// When a setting is outside its range or the system refuses a thread.
    ///
    /// # Panics
    /// When `pool` is not the bookkeeping of blocks of the engine's layout in `slab`, or `windows` not that of window
    /// objects.
    pub fn start(config: PrefillConfig, parts: PrefillParts) -> Result<Self, StartError> {
        config.check()?;
        let mailbox = Arc::new(Mailbox::new(config.waiting_max));
        let stats = Arc::new(Mutex::new(PrefillStats::default()));
        let (waiting_max, retry_after_ms) = (config.waiting_max, config.report_interval_ms);
        let (pool, windows) = (parts.pool.clone(), parts.windows.clone());
        let records = Arc::new(StartRecords::default());
        let state = Loop::new(
            config,
            parts,
            Arc::clone(&mailbox),
            Arc::clone(&stats),
            Arc::clone(&records),
        );
        let thread = Builder::new().name("prefill".to_owned()).spawn(move || run(state))?;
        let thread = Some(thread);
        Ok(Self { mailbox, stats, records, waiting_max, retry_after_ms, pool, windows, thread })
    }

    /// Counters and gauges as of the end of the last turn of the loop.
    #[must_use]
    pub fn stats(&self) -> PrefillStats {
        self.stats.lock().clone()
    }

    /// How the starts of a request went, as far as they are remembered.
    #[must_use]
    pub fn starts_of(&self, request: RequestId) -> Vec<StartRecord> {
        self.records.of(request)
    }

    /// Where every slot is: of the blocks, then of the window objects. Visits all slots: for health checks and tests.
    #[must_use]
    pub fn audit(&self) -> [PoolAudit; 2] {
        [self.pool.audit(), self.windows.audit()]
    }

    /// Refuses new requests from now on. What was accepted is finished.
    pub fn begin_drain(&self) {
        self.mailbox.advance(Life::Draining);
    }

    /// Whether the thread still runs. Without it a broken invariant ended the worker, which only a new process makes good.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Whether nothing is queued, running, held for a decode worker, or offered and not answered.
    #[must_use]
    pub fn idle(&self) -> bool {
        self.mailbox.is_idle()
    }
}

impl Prefill for PrefillWorker {
    fn submit(&self, request: PrefillRequest, sink: Box<dyn Sink<PrefillEvent>>) -> Ticket {
        match self.mailbox.submit(request, sink) {
            Ok(id) => {
                let mailbox = Arc::clone(&self.mailbox);
                Ticket::new(move || mailbox.send(Command::Release(id)))
            }
            Err((refusal, mut sink)) => {
                let error = match refusal {
                    Refusal::Draining => ServeError::Draining,
                    Refusal::Full(waiting) => ServeError::Overloaded {
                        waiting,
                        waiting_max: self.waiting_max,
                        retry_after_ms: self.retry_after_ms,
                    },
                };
                // The request is over either way; a closed sink has nothing left to hear.
                let _: Flow = sink.emit(PrefillEvent::Failed(error));
                Ticket::empty()
            }
        }
    }
}

impl Drop for PrefillWorker {
    fn drop(&mut self) {
        self.mailbox.advance(Life::Stopping);
        let Some(thread) = self.thread.take() else { return };
        // A sink may hold the last handle; its drop then runs on the thread that would be joined.
        if thread.thread().id() == thread::current().id() {
            return;
        }
        if thread.join().is_err() {
            tracing::error!("the prefill thread died while it told its callers that it ends");
        }
    }
}

/// The thread. A broken invariant ends this worker, not the process: its callers are told and go elsewhere.
fn run(mut state: Loop) {
    let ended = catch_unwind(AssertUnwindSafe(|| while state.turn() == Flow::Open {}));
    let error = match ended {
        Ok(()) => ServeError::WorkerLost { worker: state.rank() },
        Err(_) => {
            tracing::error!(worker = %state.rank(), "a broken invariant ended the prefill worker; restart it");
            ServeError::Internal { message: "the prefill worker met a broken invariant".to_owned() }
        }
    };
    state.end(&error);
}
