//! The scripted engine: given token sequences behind the same [`Decode`] border as the real one, so that protocol and
//! fault tests, and conformance suites nobody here wrote, run in milliseconds and without a model.
//!
//! It is a whole cluster of one worker: [`ScriptedEngine`] decodes, [`ScriptedCluster`] places and finds it. What it is
//! not: it caches nothing, and what it reports about its start is what the script says.
//!
//! Invariants: events come from one named thread; at most [`REQUESTS_MAX`] requests are in work; a dropped ticket ends
//! its request at the next token at the latest.

use std::collections::VecDeque;
use std::f32::consts::LN_2;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use shared::{
    Clock, Decode, DecodeDirectory, DecodeEvent, DecodeRequest, DpRank, FinishReason, Flow,
    PlaceEvent, PlaceRequest, Placement, Placer, ServeError, Sink, StartReport, Ticket, Timestamp,
    TokenId, TokenLogprobs, WorkerId, WorkerRank,
};
use tokenizers::Tokenizer;

use crate::vocabulary::read_tokenizer;

mod script;

pub use script::{Ending, Failure, Pattern, Script, ScriptError, ScriptedAnswer, Started, Windows};

/// The one worker of a scripted cluster.
pub const SCRIPTED_WORKER: WorkerRank = WorkerRank { worker: WorkerId(0), rank: DpRank(0) };

/// Requests in work at once; more are refused as overload. As many as the gateway lets in by default.
pub const REQUESTS_MAX: usize = 1_024;

/// A decode worker that reads its answers from a script. Dropping it ends its thread; requests in work are lost.
pub struct ScriptedEngine {
    desk: Arc<Desk>,
    tokenizer: Tokenizer,
    plans: Vec<Plan>,
    clock: Arc<dyn Clock>,
    thread: Option<JoinHandle<()>>,
}

/// An answer of the script, ready to be said.
struct Plan {
    answer: ScriptedAnswer,
    tokens: Arc<[TokenId]>,
    failures_left: AtomicU32,
}

/// Where callers leave requests for the thread.
struct Desk {
    state: Mutex<DeskState>,
    changed: Condvar,
}

#[derive(Default)]
struct DeskState {
    arrived: VecDeque<Live>,
    in_work: usize,
    closed: bool,
}

/// A request in work.
struct Live {
    sink: Box<dyn Sink<DecodeEvent>>,
    cancelled: Arc<AtomicBool>,
    tokens: Arc<[TokenId]>,
    /// Tokens still to say, over all repetitions.
    said: usize,
    total: usize,
    started: Option<StartReport>,
    delay: Duration,
    /// When the next event is due; none while holding.
    due: Option<Timestamp>,
    fail: Option<(usize, ServeError)>,
    then: Ending,
    stop_ids: Vec<TokenId>,
    output_max: usize,
    /// How many alternatives are told with each token; none: nothing is told.
    logprobs: Option<u8>,
}

impl ScriptedEngine {
    /// Starts the engine's thread. Reads the tokenizer, so it blocks on a file.
    ///
    /// # Errors
    /// When the tokenizer cannot be used, a text cannot be tokenised, or no thread can be had.
    pub fn start(
        script: Script,
        tokenizer: &Path,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ScriptError> {
        let (tokenizer, _) = read_tokenizer(tokenizer)?;
        let mut plans = Vec::with_capacity(script.answers.len());
        for answer in script.answers {
            plans.push(Plan::new(answer, &tokenizer)?);
        }
        let desk = Arc::new(Desk { state: Mutex::default(), changed: Condvar::new() });
        let (thread_desk, thread_clock) = (Arc::clone(&desk), Arc::clone(&clock));
        let thread = Builder::new()
            .name("kvasir-scripted".into())
            .spawn(move || thread_desk.serve(thread_clock.as_ref()))
            .map_err(ScriptError::Thread)?;
        Ok(Self { desk, tokenizer, plans, clock, thread: Some(thread) })
    }

    /// Requests in work.
    #[must_use]
    pub fn in_work(&self) -> usize {
        self.desk.state.lock().in_work
    }

    fn plan_for(&self, prompt: &[TokenId]) -> Option<&Plan> {
        let ids: Vec<u32> = prompt.iter().map(|id| id.0).collect();
        let text = self.tokenizer.decode(&ids, false).unwrap_or_default();
        self.plans.iter().find(|plan| match &plan.answer.r#match {
            Pattern::Text(part) => part == "*" || text.contains(part),
            Pattern::Tokens(beginning) => ids.starts_with(beginning),
        })
    }
}

impl Drop for ScriptedEngine {
    fn drop(&mut self) {
        self.desk.state.lock().closed = true;
        self.desk.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the scripted engine's thread panicked");
        }
    }
}

impl Decode for ScriptedEngine {
    fn submit(&self, request: DecodeRequest, mut sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        let Some(plan) = self.plan_for(&request.prompt) else {
            let what = "the script has no answer for this prompt; add one that matches \"*\"";
            return refuse(sink.as_mut(), ServeError::Unsupported { what: what.into() });
        };
        let cancelled = Arc::new(AtomicBool::new(false));
        let live = plan.live(request, sink, Arc::clone(&cancelled), self.clock.now());
        if let Err(mut live) = self.desk.leave(live) {
            let error = ServeError::Overloaded {
                waiting: REQUESTS_MAX,
                waiting_max: REQUESTS_MAX,
                retry_after_ms: 1_000,
            };
            return refuse(live.sink.as_mut(), error);
        }
        let desk = Arc::clone(&self.desk);
        Ticket::new(move || {
            cancelled.store(true, Ordering::SeqCst);
            // Under the lock, so that the thread is either before its look at the flag or waiting to be told.
            let _state = desk.state.lock();
            desk.changed.notify_all();
        })
    }
}

fn refuse(sink: &mut dyn Sink<DecodeEvent>, error: ServeError) -> Ticket {
    // Nothing follows a refusal, so it does not matter whether anybody listens.
    let _flow = sink.emit(DecodeEvent::Failed(error));
    Ticket::empty()
}

impl Plan {
    fn new(answer: ScriptedAnswer, tokenizer: &Tokenizer) -> Result<Self, ScriptError> {
        let mut ids = answer.tokens.clone().unwrap_or_default();
        if let Some(text) = &answer.text {
            let encoding = tokenizer.encode_fast(text.as_str(), false);
            let encoding = encoding.map_err(|error| ScriptError::Malformed(error.to_string()))?;
            ids = encoding.get_ids().to_vec();
        }
        let failures_left = AtomicU32::new(answer.fail_times.unwrap_or(u32::MAX));
        Ok(Self { tokens: ids.into_iter().map(TokenId).collect(), answer, failures_left })
    }

    fn live(
        &self,
        request: DecodeRequest,
        sink: Box<dyn Sink<DecodeEvent>>,
        cancelled: Arc<AtomicBool>,
        now: Timestamp,
    ) -> Live {
        let delay = Duration::from_millis(self.answer.delay_ms);
        let repeat = usize::try_from(self.answer.repeat).expect("usize holds 32 bits");
        let fail = self.answer.fail_after.filter(|_| self.takes_a_failure()).map(|after| {
            let after = usize::try_from(after).expect("usize holds 32 bits");
            (after, self.answer.fail.error(SCRIPTED_WORKER))
        });
        Live {
            sink,
            cancelled,
            tokens: Arc::clone(&self.tokens),
            said: request.emitted.len(),
            total: self.tokens.len().saturating_mul(repeat),
            started: Some(self.answer.started.report()),
            delay,
            due: Some(now.after(delay)),
            fail,
            then: self.answer.then,
            stop_ids: request.stop_ids,
            output_max: usize::try_from(request.output_tokens_max).expect("usize holds 32 bits"),
            logprobs: request.logprobs,
        }
    }

    fn takes_a_failure(&self) -> bool {
        if self.answer.fail_times.is_none() {
            return true;
        }
        let order = Ordering::SeqCst;
        self.failures_left.fetch_update(order, order, |left| left.checked_sub(1)).is_ok()
    }
}

impl Desk {
    fn leave(&self, live: Live) -> Result<(), Box<Live>> {
        let mut state = self.state.lock();
        if REQUESTS_MAX <= state.in_work || state.closed {
            return Err(Box::new(live));
        }
        state.in_work += 1;
        state.arrived.push_back(live);
        self.changed.notify_all();
        Ok(())
    }

    fn serve(&self, clock: &dyn Clock) {
        let mut live: Vec<Live> = Vec::new();
        while self.wait_for_work(&mut live, clock) {
            let now = clock.now();
            let before = live.len();
            live.retain_mut(|request| !request.is_due(now) || request.step(now));
            self.state.lock().in_work -= before - live.len();
        }
    }

    /// Waits until an event is due; false when the engine is dropped.
    fn wait_for_work(&self, live: &mut Vec<Live>, clock: &dyn Clock) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return false;
            }
            live.extend(state.arrived.drain(..));
            let before = live.len();
            live.retain(|request| !request.cancelled.load(Ordering::SeqCst));
            state.in_work -= before - live.len();
            let now = clock.now();
            match live.iter().filter_map(|request| request.due).min() {
                Some(due) if due <= now => return true,
                Some(due) => {
                    // Whether the time passed or something changed is found out by looking again.
                    let _timed_out = self.changed.wait_for(&mut state, due.since(now));
                }
                None => self.changed.wait(&mut state),
            }
        }
    }
}

impl Live {
    fn is_due(&self, now: Timestamp) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Says the next thing; false when nothing follows.
    fn step(&mut self, now: Timestamp) -> bool {
        if let Some((_, error)) = self.fail.take_if(|(after, _)| *after <= self.said) {
            return self.end(DecodeEvent::Failed(error));
        }
        if let Some(report) = self.started.take() {
            return self.sink.emit(DecodeEvent::Started(report)) == Flow::Open;
        }
        if self.output_max <= self.said {
            return self.end(DecodeEvent::Finished(FinishReason::Length));
        }
        let next = if self.said < self.total {
            self.tokens[self.said % self.tokens.len()]
        } else {
            match (self.then, self.stop_ids.first()) {
                (Ending::Stop, Some(stop)) => *stop,
                (Ending::Stop, None) => {
                    return self.end(DecodeEvent::Finished(FinishReason::Stop));
                }
                (Ending::Length, _) => {
                    return self.end(DecodeEvent::Finished(FinishReason::Length));
                }
                (Ending::Hold, _) => {
                    self.due = None;
                    return true;
                }
            }
        };
        self.said += 1;
        self.due = Some(now.after(self.delay));
        let scores = self.logprobs.map(|alternatives| Box::new(scores(next, alternatives)));
        if self.sink.emit(DecodeEvent::Token(next, scores)) == Flow::Closed {
            return false;
        }
        if self.stop_ids.contains(&next) {
            return self.end(DecodeEvent::Finished(FinishReason::Stop));
        }
        true
    }

    fn end(&mut self, event: DecodeEvent) -> bool {
        // Nothing follows the last event, so it does not matter whether anybody listens.
        let _flow = self.sink.emit(event);
        false
    }
}

/// A script is sure by half of what it says; the ids that follow share the rest, each half of what is left.
fn scores(said: TokenId, alternatives: u8) -> TokenLogprobs {
    let logprob = |place: u8| -f32::from(place + 1) * LN_2;
    let alternative = |place: u8| (TokenId(said.0.wrapping_add(place.into())), logprob(place));
    TokenLogprobs { logprob: logprob(0), top: (0..alternatives).map(alternative).collect() }
}

/// Places every request on the one scripted worker, and finds it.
#[derive(Clone)]
pub struct ScriptedCluster {
    engine: Arc<ScriptedEngine>,
}

impl ScriptedCluster {
    /// The cluster of this engine alone.
    #[must_use]
    pub fn new(engine: Arc<ScriptedEngine>) -> Self {
        Self { engine }
    }
}

impl Placer for ScriptedCluster {
    fn submit(&self, _request: PlaceRequest, mut sink: Box<dyn Sink<PlaceEvent>>) -> Ticket {
        let placement = Placement {
            decode: SCRIPTED_WORKER,
            prefill: None,
            expected_cached_tokens: 0,
            reason: "a script has one worker".into(),
        };
        // One event; nothing depends on whether anybody listens.
        let _flow = sink.emit(PlaceEvent::Placed(placement));
        Ticket::empty()
    }
}

impl DecodeDirectory for ScriptedCluster {
    fn decode(&self, worker: WorkerRank) -> Option<Arc<dyn Decode>> {
        (worker == SCRIPTED_WORKER).then(|| Arc::clone(&self.engine) as Arc<dyn Decode>)
    }
}
