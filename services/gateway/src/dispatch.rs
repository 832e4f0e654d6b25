//! One request's way through the cluster: placed by the router, run by a decode worker, and resumed on another one when
//! that worker goes away: the tokens it emitted go along, so the client's stream goes on where it stood. The router hears
//! how each run on a worker goes, and which workers failed this request.
//!
//! Workers call the sinks here from threads of their own and are never made to wait: events go into a bounded channel,
//! and an answer whose client lets it fill up is given up.

use std::sync::Arc;
use std::time::Duration;

use shared::{
    Clock, DecodeDirectory, DecodeEvent, DecodeRequest, Flow, LegOutcome, PlaceEvent, PlaceRequest,
    Placement, Placer, ServeError, Sink, Ticket, Timestamp, TokenId, WorkerRank,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};

use crate::alarm::Alarm;
use crate::evidence::Evidence;
use crate::metrics::Metrics;
use crate::prompt::Prepared;

/// How long after the deadline a worker may still say that it passed.
const DEADLINE_GRACE: Duration = Duration::from_secs(1);
/// Between two attempts to find a worker for a request whose worker was lost: short first, so that a cluster with another
/// worker goes on at once, then as long as one process takes to notice another one's return.
const RESUME_PAUSE_MIN: Duration = Duration::from_millis(20);
const RESUME_PAUSE_MAX: Duration = Duration::from_millis(500);

/// The rest of the cluster, as a request sees it.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) placer: Arc<dyn Placer>,
    pub(crate) directory: Arc<dyn DecodeDirectory>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) buffer_events_max: usize,
    pub(crate) resumes_max: u32,
    pub(crate) resume_wait_max: Duration,
    pub(crate) request_max: Duration,
}

/// The next thing to know about an answer.
#[derive(Debug)]
pub(crate) enum Word {
    Event(DecodeEvent),
    /// Too many events waited; the worker was told to stop.
    Overflow,
}

/// A running request. Dropping it cancels the whole chain.
pub(crate) struct Session {
    cluster: Cluster,
    prepared: Arc<Prepared>,
    deadline: Timestamp,
    /// When even a silent worker is given up. Workers keep the deadline by themselves and are given a moment to say so.
    silence_ends: Instant,
    overflow: Arc<Alarm>,
    evidence: Evidence,
    leg: Option<Leg>,
    resumes_left: u32,
    /// Whether some worker began with the answer.
    started: bool,
    /// Whether a worker went away before any had begun with an answer that follows a grammar.
    suspected: bool,
    /// Tokens of the answer so far. At most `output_tokens_max`.
    emitted: Vec<TokenId>,
    /// Workers that failed this request. Each once, so at most as many as there were losses.
    excluded: Vec<WorkerRank>,
    /// The search for another worker, from the loss of one to the first event of the next.
    search: Option<Search>,
}

/// A search for another worker.
struct Search {
    ends: Instant,
    pause: Duration,
    lost: ServeError,
}

impl Search {
    fn after(lost: &ServeError, wait: Duration) -> Self {
        Self { ends: Instant::now() + wait, pause: RESUME_PAUSE_MIN, lost: lost.clone() }
    }
}

/// One placement and the worker's events. The worker is cancelled before the router forgets the load.
struct Leg {
    worker: WorkerRank,
    /// Tokens emitted before it.
    emitted_before: usize,
    events: mpsc::Receiver<DecodeEvent>,
    overflown: oneshot::Receiver<()>,
    _decode: Ticket,
    _place: Ticket,
}

impl Session {
    /// A session that has not begun; it does with the first call of [`Self::next`]. `overflow` rings when a worker was
    /// stopped because too many events waited.
    pub(crate) fn new(cluster: Cluster, prepared: Arc<Prepared>, overflow: Arc<Alarm>) -> Self {
        let deadline = cluster.clock.now().after(cluster.request_max);
        let silence_ends = Instant::now() + cluster.request_max + DEADLINE_GRACE;
        let resumes_left = cluster.resumes_max;
        Self {
            cluster,
            prepared,
            deadline,
            silence_ends,
            overflow,
            evidence: Evidence::default(),
            leg: None,
            resumes_left,
            started: false,
            suspected: false,
            emitted: Vec::new(),
            excluded: Vec::new(),
            search: None,
        }
    }

    /// Tells why the request is where it is, now and later.
    pub(crate) fn evidence(&self) -> Evidence {
        self.evidence.clone()
    }

    /// Waits for the next word. Not to be called again after the last one, nor after being cancelled.
    pub(crate) async fn next(&mut self) -> Word {
        let silence_ends = self.silence_ends;
        timeout_at(silence_ends, self.next_word()).await.unwrap_or_else(|_| {
            let stage = "waiting for its worker";
            Word::Event(DecodeEvent::Failed(ServeError::DeadlineExceeded { stage }))
        })
    }

    async fn next_word(&mut self) -> Word {
        loop {
            let event = match self.leg.as_mut() {
                None => match self.begin().await {
                    Ok(leg) => {
                        self.leg = Some(leg);
                        continue;
                    }
                    Err(error) if self.search_on(&error).await => continue,
                    Err(error) => return Word::Event(DecodeEvent::Failed(self.told(error))),
                },
                Some(leg) => match leg.events.recv().await {
                    Some(event) => event,
                    None if leg.overflown.try_recv().is_ok() => return Word::Overflow,
                    // A sink that was dropped without a last event is a worker that went away.
                    None => DecodeEvent::Failed(ServeError::WorkerLost { worker: leg.worker }),
                },
            };
            self.tell(&event);
            self.started |= matches!(event, DecodeEvent::Started(_));
            if let DecodeEvent::Failed(error) = &event
                && self.search.is_some()
                && is_full(error)
            {
                // The worker found has no room for it. It did nothing, so this is no resume.
                self.leg = None;
                if self.search_on(error).await {
                    continue;
                }
                return Word::Event(DecodeEvent::Failed(self.told(error.clone())));
            }
            if let DecodeEvent::Failed(
                error @ (ServeError::WorkerLost { .. } | ServeError::Draining),
            ) = &event
                && self.may_resume(error)
            {
                self.resumes_left -= 1;
                self.leg = None;
                self.cluster.metrics.resumed();
                tracing::warn!(
                    request = %self.prepared.id,
                    %error,
                    emitted = self.emitted.len(),
                    "placing a request anew"
                );
                self.search = Some(Search::after(error, self.cluster.resume_wait_max));
                self.search_on(error).await;
                continue;
            }
            self.search = None;
            if let DecodeEvent::Token(token, _) = event {
                self.emitted.push(token);
            }
            return Word::Event(event);
        }
    }

    /// Whether a request whose worker went away may try another one. The grammar of an answer may be what ended the worker: as long as
    /// none has begun with the answer, one more is tried and not all of them.
    fn may_resume(&mut self, error: &ServeError) -> bool {
        let is_suspect = !self.started
            && self.prepared.constraint.is_some()
            && matches!(error, ServeError::WorkerLost { .. });
        if is_suspect && std::mem::replace(&mut self.suspected, true) {
            tracing::warn!(request = %self.prepared.id, "a grammar may have ended two workers");
            return false;
        }
        0 < self.resumes_left
    }

    /// Tells the router what an event says about the worker. Refusals for want of room, and requests that no worker could
    /// serve, say nothing.
    fn tell(&mut self, event: &DecodeEvent) {
        let Some(leg) = &self.leg else { return };
        let outcome = match event {
            DecodeEvent::Token(..) => return,
            DecodeEvent::Started(report) => LegOutcome::Started(*report),
            DecodeEvent::Finished(_) => {
                let tokens = self.emitted.len() - leg.emitted_before;
                LegOutcome::Completed { tokens: u32::try_from(tokens).unwrap_or(u32::MAX) }
            }
            DecodeEvent::Failed(error) => match failure(error) {
                Some(outcome) => outcome,
                None => return,
            },
        };
        let worker = leg.worker;
        self.tell_of(worker, outcome);
    }

    fn tell_of(&mut self, worker: WorkerRank, outcome: LegOutcome) {
        if matches!(outcome, LegOutcome::Failed | LegOutcome::Draining)
            && !self.excluded.contains(&worker)
        {
            self.excluded.push(worker);
        }
        self.cluster.placer.outcome(self.prepared.id, worker, outcome);
    }

    /// Whether it is worth looking for a worker again, after a pause. The first request of a client is told at once that
    /// there is none, or none with room; one whose worker was lost is given a while.
    async fn search_on(&mut self, error: &ServeError) -> bool {
        let goes_on = match error {
            ServeError::WorkerLost { .. } => true,
            ServeError::NoWorker { .. } | ServeError::Draining => self.search.is_some(),
            error => self.search.is_some() && is_full(error),
        };
        if !goes_on {
            return false;
        }
        let wait = self.cluster.resume_wait_max;
        let search = self.search.get_or_insert_with(|| Search::after(error, wait));
        if search.ends <= Instant::now() {
            return false;
        }
        sleep(search.pause).await;
        search.pause = (2 * search.pause).min(RESUME_PAUSE_MAX);
        true
    }

    /// What a client is told at the end of a search: that its worker was lost, not that there is no other one, or none with room.
    fn told(&self, error: ServeError) -> ServeError {
        match &self.search {
            Some(search) if is_full(&error) || matches!(error, ServeError::NoWorker { .. }) => {
                search.lost.clone()
            }
            _ => error,
        }
    }

    async fn begin(&mut self) -> Result<Leg, ServeError> {
        let asked = self.cluster.clock.now();
        let (placement, place) = self.place().await?;
        self.cluster.metrics.placed(self.cluster.clock.now().since(asked));
        tracing::debug!(
            request = %self.prepared.id,
            decode = %placement.decode,
            reason = placement.reason,
            "placed"
        );
        self.evidence.note(&placement.reason);
        let worker = placement.decode;
        let Some(decode) = self.cluster.directory.decode(worker) else {
            self.tell_of(worker, LegOutcome::Failed);
            return Err(ServeError::WorkerLost { worker });
        };
        let (sender, events) = mpsc::channel(self.cluster.buffer_events_max);
        let (overflow_sender, overflown) = oneshot::channel();
        let sink = EventSink {
            sender: Some((sender, overflow_sender)),
            overflow: Arc::clone(&self.overflow),
        };
        let ticket = decode.submit(self.decode_request(&placement), Box::new(sink));
        let emitted_before = self.emitted.len();
        Ok(Leg { worker, emitted_before, events, overflown, _decode: ticket, _place: place })
    }

    async fn place(&mut self) -> Result<(Placement, Ticket), ServeError> {
        let (sender, answer) = oneshot::channel();
        let mut sender = Some(sender);
        let sink = move |event: PlaceEvent| {
            let sent = sender.take().map(|sender| sender.send(event).is_ok());
            if sent == Some(true) { Flow::Open } else { Flow::Closed }
        };
        let request = PlaceRequest {
            id: self.prepared.id,
            tenant: self.prepared.call.caller.tenant.clone(),
            names: Arc::clone(&self.prepared.names),
            prompt_tokens: self.prepared.prompt_tokens,
            output_tokens_max: self.prepared.output_tokens_max,
            deadline: Some(self.deadline),
            priority: self.prepared.priority,
            session: self.prepared.session,
            excluded: self.excluded.clone(),
        };
        let ticket = self.cluster.placer.submit(request, Box::new(sink));
        match answer.await {
            Ok(PlaceEvent::Placed(placement)) => Ok((placement, ticket)),
            Ok(PlaceEvent::Refused(error)) => Err(error),
            Err(_) => {
                let message = "the router went away without placing the request".into();
                Err(ServeError::Internal { message })
            }
        }
    }

    fn decode_request(&self, placement: &Placement) -> DecodeRequest {
        DecodeRequest {
            id: self.prepared.id,
            trace: self.prepared.trace,
            tenant: self.prepared.call.caller.tenant.tag(),
            prompt: Arc::clone(&self.prepared.prompt),
            emitted: self.emitted.clone(),
            root: self.prepared.root,
            names: Arc::clone(&self.prepared.names),
            lineage: self.prepared.lineage,
            sampling: self.prepared.sampling,
            logit_bias: Arc::clone(&self.prepared.logit_bias),
            logprobs: self.prepared.logprobs,
            constraint: self.prepared.constraint.clone(),
            stop_ids: self.prepared.stop_ids.clone(),
            output_tokens_max: self.prepared.output_tokens_max,
            prefill: placement.prefill,
            deadline: Some(self.deadline),
        }
    }
}

/// Whether there is a worker, and no room for the request now.
fn is_full(error: &ServeError) -> bool {
    matches!(error, ServeError::Overloaded { .. } | ServeError::OverShare { .. })
}

/// What a failure says about its worker.
fn failure(error: &ServeError) -> Option<LegOutcome> {
    match error {
        ServeError::WorkerLost { .. } | ServeError::Internal { .. } => Some(LegOutcome::Failed),
        ServeError::Draining => Some(LegOutcome::Draining),
        ServeError::Overloaded { .. }
        | ServeError::OverShare { .. }
        | ServeError::TooLong { .. }
        | ServeError::NeverFits { .. }
        | ServeError::Unsupported { .. }
        | ServeError::GrammarRefused { .. }
        | ServeError::GrammarFailed { .. }
        | ServeError::NamesDiffer { .. }
        | ServeError::NoWorker { .. }
        | ServeError::DeadlineExceeded { .. } => None,
    }
}

/// The worker's end of the channel. Gone once the channel is full or nobody listens.
struct EventSink {
    sender: Option<(mpsc::Sender<DecodeEvent>, oneshot::Sender<()>)>,
    overflow: Arc<Alarm>,
}

impl Sink<DecodeEvent> for EventSink {
    fn emit(&mut self, event: DecodeEvent) -> Flow {
        let Some((events, overflown)) = self.sender.take() else { return Flow::Closed };
        match events.try_send(event) {
            Ok(()) => {
                self.sender = Some((events, overflown));
                Flow::Open
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Flow::Closed,
            Err(mpsc::error::TrySendError::Full(_)) => {
                // Said before the channel ends, so that its end is not taken for a lost worker. Nobody listens when
                // the client left at the same moment, which is as good.
                let _unheard = overflown.send(());
                self.overflow.ring();
                Flow::Closed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shared::{DecodeEvent, Flow, Sink, TokenId};
    use tokio::sync::{mpsc, oneshot};

    use super::EventSink;
    use crate::alarm::Alarm;

    fn sink(capacity: usize) -> (EventSink, mpsc::Receiver<DecodeEvent>, oneshot::Receiver<()>) {
        let (events, receiver) = mpsc::channel(capacity);
        let (overflow, overflown) = oneshot::channel();
        let sender = Some((events, overflow));
        (EventSink { sender, overflow: Arc::new(Alarm::default()) }, receiver, overflown)
    }

    #[test]
    fn a_full_buffer_closes_the_sink_and_keeps_what_it_held() {
        let (mut sink, mut events, mut overflown) = sink(2);
        let token = |id| DecodeEvent::Token(TokenId(id), None);
        assert_eq!(sink.emit(token(0)), Flow::Open);
        assert_eq!(sink.emit(token(1)), Flow::Open);
        assert!(overflown.try_recv().is_err());
        assert_eq!(sink.emit(token(2)), Flow::Closed);
        assert_eq!(sink.emit(token(3)), Flow::Closed);
        assert_eq!(events.blocking_recv(), Some(token(0)));
        assert_eq!(events.blocking_recv(), Some(token(1)));
        assert_eq!(events.blocking_recv(), None);
        assert!(overflown.try_recv().is_ok());
    }

    #[test]
    fn a_sink_nobody_listens_to_is_closed() {
        let (mut sink, events, _overflown) = sink(2);
        drop(events);
        assert_eq!(sink.emit(DecodeEvent::Token(TokenId(0), None)), Flow::Closed);
    }
}
