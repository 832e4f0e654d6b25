//! The prefill side of one start: whom to ask, how long to listen, when to ask somebody else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use shared::{
    BLOCK_TOKENS, Prefill, PrefillEvent, PrefillRequest, RequestId, Ticket, Timestamp,
    WindowSource, WorkerRank,
};

use crate::mailbox::OperationId;
use crate::worker::core::{Core, index};
use crate::worker::start::{Asked, Start};

/// Events of one attempt besides one per block: the window object and the end.
const CLOSING_EVENTS: usize = 2;

/// See the module's documentation.
pub(super) struct Visit {
    /// The router's choice; none when this start must not visit prefill.
    chosen: Option<WorkerRank>,
    /// Who was asked, and whether it never ended its attempt.
    tried: Vec<(WorkerRank, Ending)>,
    attempts: u32,
    /// Nobody is left to ask.
    exhausted: bool,
    attempt: Option<Attempt>,
    outcome: Option<(u32, WindowSource)>,
    /// When prefill said that it announced everything.
    finished_at: Option<Timestamp>,
    took_part: Option<WorkerRank>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// It ended its answer, well or not. It may be asked again when nobody else is left.
    Answered,
    /// It fell silent or was gone.
    Lost,
}

struct Attempt {
    worker: WorkerRank,
    operation: OperationId,
    /// Keeps what was announced readable. Dropped to cancel.
    ticket: Option<Ticket>,
    heard: Timestamp,
    /// Set by each sign of life since the last look.
    alive: Arc<AtomicBool>,
    ended: Option<Ending>,
}

impl Visit {
    pub(super) fn new(chosen: Option<WorkerRank>) -> Self {
        Self {
            chosen,
            tried: Vec::new(),
            attempts: 0,
            exhausted: false,
            attempt: None,
            outcome: None,
            finished_at: None,
            took_part: None,
        }
    }

    /// Whether prefill may be asked for what is missing.
    pub(super) fn may_ask(&self, core: &Core) -> bool {
        self.chosen.is_some() && !self.exhausted && self.attempts < core.config.prefill_attempts_max
    }

    /// Asks the next worker for the blocks of `[from, S)`. Says whether there was one.
    pub(super) fn ask(
        &mut self,
        core: &mut Core,
        asked: &Asked,
        from: u32,
        now: Timestamp,
    ) -> bool {
        assert!(self.attempt.is_none(), "one attempt at a time");
        let Some((worker, prefill)) = self.choose(core, asked.key.0) else {
            self.exhausted = true;
            core.stats.prefill_fallbacks += 1;
            tracing::warn!(id = %asked.context.id, "no prefill worker is left to ask; computing the prompt here");
            return false;
        };
        match self.attempts {
            0 => core.stats.prefill_visits += 1,
            _ => core.stats.prefill_retries += 1,
        }
        self.attempts += 1;
        let blocks = (asked.basis.boundary - from) / BLOCK_TOKENS;
        let alive = Arc::new(AtomicBool::new(false));
        let events_max = index(blocks) + CLOSING_EVENTS;
        let (operation, sink) = core.prefill_sink(asked.key, events_max, &alive);
        let request = PrefillRequest {
            id: asked.context.id,
            trace: asked.context.trace,
            tenant: asked.context.tenant,
            ids: Arc::clone(&asked.ids),
            root: asked.root,
            names: Arc::clone(&asked.names),
            lineage: asked.lineage,
            from,
            to: asked.basis.boundary,
        };
        let ticket = Some(prefill.submit(request, sink));
        self.attempt = Some(Attempt { worker, operation, ticket, heard: now, alive, ended: None });
        true
    }

    /// The router's choice first, then members not asked yet, then those that at least answered.
    fn choose(&self, core: &Core, spread: u64) -> Option<(WorkerRank, Arc<dyn Prefill>)> {
        let tried = |worker: WorkerRank| self.tried.iter().find(|(other, _)| *other == worker);
        let members = core.prefill.prefill_members();
        let first = usize::try_from(spread).unwrap_or(0) % members.len().max(1);
        let (before, after) = members.split_at(first.min(members.len()));
        let others = || after.iter().chain(before).copied();
        let fresh = self.chosen.into_iter().chain(others()).filter(|w| tried(*w).is_none());
        let again = others().filter(|w| matches!(tried(*w), Some((_, Ending::Answered))));
        fresh.chain(again).find_map(|worker| Some((worker, core.prefill.prefill(worker)?)))
    }

    /// Whether an attempt is under way and may still announce something.
    pub(super) fn is_open(&self) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.ended.is_none())
    }

    /// Whether an attempt is under way or has ended and was not given up.
    pub(super) fn is_asked(&self) -> bool {
        self.attempt.is_some()
    }

    /// Gives up on a worker that says nothing, not even that the request waits.
    pub(super) fn watch(&mut self, core: &Core, id: RequestId, now: Timestamp) {
        let Some(attempt) = &mut self.attempt else { return };
        if attempt.alive.swap(false, Ordering::AcqRel) {
            attempt.heard = now;
        }
        if attempt.ended.is_none() && core.config.prefill_silence() < now.since(attempt.heard) {
            tracing::warn!(
                %id, worker = %attempt.worker, "a prefill worker fell silent; asking another one"
            );
            (attempt.ended, attempt.ticket) = (Some(Ending::Lost), None);
        }
    }

    /// Lets the current attempt go: it did not bring everything. Nothing of it may be under way any more.
    pub(super) fn lost(&mut self, core: &mut Core) {
        let Some(attempt) = self.attempt.take() else { return };
        core.operations.remove(&attempt.operation);
        self.tried.push((attempt.worker, attempt.ended.unwrap_or(Ending::Lost)));
        if !self.may_ask(core) {
            core.stats.prefill_fallbacks += 1;
        }
    }

    /// What prefill reported about its own start: rows recomputed, and the source of its windows.
    pub(super) fn outcome(&self) -> (u32, Option<WindowSource>) {
        self.outcome.map_or((0, None), |(rows, source)| (rows, Some(source)))
    }

    /// When prefill ended its work, if it did.
    pub(super) fn finished_at(&self) -> Option<Timestamp> {
        self.finished_at
    }

    /// The worker whose announcements were taken last.
    pub(super) fn took_part(&self) -> Option<WorkerRank> {
        self.took_part
    }

    /// Notes a sign of life. None when the event is of an attempt given up.
    fn hear(&mut self, operation: OperationId, now: Timestamp) -> Option<&mut Attempt> {
        let attempt = self.attempt.as_mut()?;
        if attempt.operation != operation || attempt.ended.is_some() {
            return None;
        }
        attempt.heard = now;
        Some(attempt)
    }
}

impl Start {
    /// An event of a prefill attempt.
    pub(super) fn prefill_event(
        &mut self,
        operation: OperationId,
        event: PrefillEvent,
        now: Timestamp,
    ) {
        let Some(attempt) = self.visit.hear(operation, now) else { return };
        let worker = attempt.worker;
        let accepted = match event {
            // Its sink keeps it as a flag; either way it is a sign of life and nothing else.
            PrefillEvent::Waiting => return,
            PrefillEvent::Sealed { index: block, block: source, cached } => {
                self.announced(index(block), source, cached)
            }
            PrefillEvent::Window(source) => self.window_announced(source),
            PrefillEvent::Finished { replayed_tokens, window_source } => {
                attempt.ended = Some(Ending::Answered);
                self.visit.outcome = Some((replayed_tokens, window_source));
                self.visit.finished_at = Some(now);
                return;
            }
            PrefillEvent::Failed(error) => {
                tracing::warn!(id = %self.asked.context.id, %worker, %error, "prefill failed");
                attempt.ended = Some(Ending::Answered);
                return;
            }
        };
        if accepted {
            self.visit.took_part = Some(worker);
            return;
        }
        tracing::warn!(id = %self.asked.context.id, %worker, "prefill announced an object of another name");
        if let Some(attempt) = &mut self.visit.attempt {
            attempt.ended = Some(Ending::Lost);
        }
    }

    /// The other side dropped the attempt's sink.
    pub(super) fn prefill_over(&mut self, operation: OperationId, now: Timestamp) {
        if let Some(attempt) = self.visit.hear(operation, now) {
            tracing::warn!(id = %self.asked.context.id, worker = %attempt.worker, "a prefill worker is gone");
            attempt.ended = Some(Ending::Lost);
        }
    }
}
