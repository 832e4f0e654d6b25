//! The decode worker: one named thread that turns requests into tokens.
//!
//! What it is not: it decides nothing by itself. Which rows a step computes is the [scheduler](crate::scheduler)'s
//! decision, how a request starts is the planner's (`kvstore`), what a row computes is the engine's.
//!
//! Invariants: every accepted request ends with exactly one of `Finished` and `Failed`, or with nothing when its ticket
//! dropped or its sink closed; no token is emitted twice; a slot is owned by the sequence that writes it, by a read in
//! flight, or by the pool; what a sequence computes depends on its tokens, its start and its window source alone.
//!
//! Start reading at `worker/turn.rs`, then `worker/start.rs`, then `worker/step.rs`.

mod active;
mod basis;
mod core;
mod gather;
mod job;
mod rates;
mod start;
mod step;
mod turn;
mod visit;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, Builder, JoinHandle};

use engine::{Engine, GrammarCompiler, KvSlab};
use kvstore::{Pool, PoolAudit, StartRecord, StartRecords, Transport};
use parking_lot::Mutex;
use shared::{
    BlockStore, Clock, Decode, DecodeEvent, DecodeRequest, Flow, PrefillDirectory, RequestId,
    ServeError, Sink, Ticket, WorkerEvent, WorkerRank,
};

use crate::config::{ConfigError, DecodeConfig};
use crate::guides::{Anteroom, GuidePool, GuideStats};
use crate::mailbox::{Command, Life, Mailbox};
use crate::stats::DecodeStats;
use crate::worker::turn::Loop;

/// What a worker is made of.
pub struct DecodeParts {
    /// The name under which it reports.
    pub rank: WorkerRank,
    /// The loaded model, whole.
    pub engine: Arc<Engine>,
    /// The memory of the blocks.
    pub slab: Arc<KvSlab>,
    /// The bookkeeping of `slab`.
    pub pool: Pool,
    /// Host memory for window objects.
    pub windows: Pool,
    /// Reads from the regions of prefill workers and of the store.
    pub transport: Arc<dyn Transport>,
    /// Where cached objects outlive this worker.
    pub store: Arc<dyn BlockStore>,
    /// Whom to ask for missing blocks.
    pub prefill: Arc<dyn PrefillDirectory>,
    /// Compiles the grammars of requests that have one; none refuses those requests.
    pub grammars: Option<Arc<GrammarCompiler>>,
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
    /// The pool is too small for the open offers beside one sequence.
    #[error(
        "{slots} cache slots are too few beside decode.offers_max = {offers_max}; raise device_blocks or lower offers_max"
    )]
    Slots {
        /// Slots of the pool.
        slots: usize,
        /// The setting.
        offers_max: usize,
    },
    /// The system gave no thread.
    #[error("the system refused a thread for the decode worker: {0}")]
    Thread(#[from] io::Error),
}

/// A running decode worker. Dropping it fails what is unfinished with [`ServeError::WorkerLost`] and joins its thread
/// after the current step.
pub struct DecodeWorker {
    shared: Arc<Shared>,
    pool: Pool,
    windows: Pool,
    thread: Option<JoinHandle<()>>,
    guides: Option<Arc<GuidePool>>,
    anteroom: Anteroom,
}

/// What handle and loop have in common.
struct Shared {
    mailbox: Arc<Mailbox>,
    stats: Mutex<DecodeStats>,
    records: StartRecords,
    waiting_max: usize,
}

impl DecodeWorker {
    /// Starts the thread `decode`.
    ///
    /// # Errors
    /// When a setting is outside its range, the pool is too small for the settings, or there is no thread.
    ///
    /// # Panics
    /// When `pool` is not the bookkeeping of blocks of the engine's layout in `slab`, `windows` has slots too small for
    /// a window object, or the engine holds only a part of the model.
    pub fn start(config: DecodeConfig, parts: DecodeParts) -> Result<Self, StartError> {
        config.check()?;
        check_parts(&parts);
        let slots = parts.pool.total();
        if slots <= config.offers_max {
            return Err(StartError::Slots { slots, offers_max: config.offers_max });
        }
        let shared = Arc::new(Shared {
            mailbox: Arc::new(Mailbox::new(config.waiting_max)),
            stats: Mutex::new(DecodeStats::default()),
            records: StartRecords::default(),
            waiting_max: config.waiting_max,
        });
        let (pool, windows) = (parts.pool.clone(), parts.windows.clone());
        let grammars = parts.grammars.as_ref();
        let guides = grammars
            .map(|compiler| {
                GuidePool::start(&config, Arc::clone(compiler), Arc::clone(&parts.clock))
            })
            .transpose()?
            .map(Arc::new);
        let anteroom = Anteroom::new(
            &shared.mailbox,
            config.waiting_max,
            parts.rank,
            Arc::clone(&parts.clock),
        );
        let state = Loop::new(config, parts, guides.clone(), Arc::clone(&shared));
        let thread = Builder::new().name("decode".to_owned()).spawn(move || run(state))?;
        Ok(Self { shared, pool, windows, thread: Some(thread), guides, anteroom })
    }

    /// Counters and gauges as of the end of the last turn of the loop.
    #[must_use]
    pub fn stats(&self) -> DecodeStats {
        *self.shared.stats.lock()
    }

    /// What its grammars did and hold.
    #[must_use]
    pub fn guide_stats(&self) -> GuideStats {
        self.guides.as_ref().map(|guides| guides.stats()).unwrap_or_default()
    }

    /// How the starts of a request went, as far as they are remembered.
    #[must_use]
    pub fn starts_of(&self, request: RequestId) -> Vec<StartRecord> {
        self.shared.records.of(request)
    }

    /// Where every slot is: of the blocks, then of the window objects.
    #[must_use]
    pub fn audit(&self) -> [PoolAudit; 2] {
        [self.pool.audit(), self.windows.audit()]
    }

    /// Refuses new requests from now on. What was accepted is finished.
    pub fn begin_drain(&self) {
        self.shared.mailbox.advance(Life::Draining);
    }

    /// Whether the thread still runs. Without it a broken invariant ended the worker, which only a new process makes good.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Whether nothing is queued, running, being read, or offered and not answered.
    #[must_use]
    pub fn idle(&self) -> bool {
        self.anteroom.is_empty() && self.shared.mailbox.is_quiet()
    }
}

impl Decode for DecodeWorker {
    /// A refusal for want of room or because of draining comes on the calling thread, before this returns; that of a grammar, and of
    /// what had to wait for its grammar, comes from a thread of the guides.
    fn submit(&self, request: DecodeRequest, mut sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        if let Some(constraint) = request.constraint.clone() {
            let Some(guides) = &self.guides else {
                let what = "grammars; this worker has no vocabulary for them".to_owned();
                // The only event of a refused request; a closed sink has nothing left to hear.
                let _: Flow = sink.emit(DecodeEvent::Failed(ServeError::Unsupported { what }));
                return Ticket::empty();
            };
            return self.anteroom.enter(guides, constraint, request, sink);
        }
        match self.shared.mailbox.submit(request, sink, None) {
            Ok(key) => {
                let mailbox = Arc::clone(&self.shared.mailbox);
                Ticket::new(move || mailbox.send(Command::Cancel(key)))
            }
            Err((refusal, mut sink)) => {
                let error = refusal.into_error(self.shared.waiting_max);
                // The request is over either way; a closed sink has nothing left to hear.
                let _: Flow = sink.emit(DecodeEvent::Failed(error));
                Ticket::empty()
            }
        }
    }
}

impl Drop for DecodeWorker {
    fn drop(&mut self) {
        self.shared.mailbox.advance(Life::Stopping);
        let Some(thread) = self.thread.take() else { return };
        // A sink may hold the last handle; its drop then runs on the thread that would be joined.
        if thread.thread().id() == thread::current().id() {
            return;
        }
        if thread.join().is_err() {
            tracing::error!("the decode thread died while it failed its requests");
        }
    }
}

fn check_parts(parts: &DecodeParts) {
    let layout = parts.engine.layout();
    assert_eq!(parts.engine.part(), engine::Part::Whole, "decoding needs the whole model");
    assert_eq!(parts.pool.memory().slot_bytes(), layout.block_bytes(), "a slot holds one block");
    assert!(
        layout.window_bytes() <= parts.windows.memory().slot_bytes(),
        "window slots are large enough"
    );
    assert_eq!(parts.pool.config().kind, shared::ObjectKind::Block);
    assert_eq!(parts.windows.config().kind, shared::ObjectKind::Window);
}

/// The thread. A broken invariant ends this worker, not the process: its callers are told and go elsewhere.
fn run(mut state: Loop) {
    let ended = catch_unwind(AssertUnwindSafe(|| while state.turn() == Flow::Open {}));
    let error = match ended {
        Ok(()) => ServeError::WorkerLost { worker: state.rank() },
        Err(_) => {
            tracing::error!(worker = %state.rank(), "a broken invariant ended the decode worker; restart it");
            ServeError::Internal { message: "the decode worker met a broken invariant".to_owned() }
        }
    };
    state.shut_down(&error);
}
