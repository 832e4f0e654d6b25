//! The client's side of requests: placed, begun, resumed on another worker, ended. As the gateway's dispatch does it.

use std::sync::Arc;
use std::time::Duration;

use decode::SequenceKey;
use shared::{
    BlockName, LegOutcome, PlaceRequest, Placement, Priority, ServeError, StartReport, TenantId,
    Timestamp, WorkerRank,
};

use super::seats::member_of;
use super::{Event, World, id_of};
use crate::fault::Member;
use crate::measure::Outcome;
use crate::settings::{ms, seconds};

/// How often a request is placed anew, how long it looks for a worker, and how long it waits between two attempts:
/// the gateway's defaults.
const RESUMES_MAX: u32 = 3;
const RESUME_WAIT: Duration = Duration::from_secs(10);
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// A request that has no outcome yet.
pub(crate) struct Client {
    pub(crate) arrived: Timestamp,
    pub(crate) prompt_tokens: u32,
    pub(crate) answer_tokens: u32,
    /// Of the whole blocks of the prompt.
    pub(crate) names: Arc<[BlockName]>,
    pub(crate) deadline: Option<Timestamp>,
    router: usize,
    /// When its router was asked first.
    submitted: Option<Timestamp>,
    /// Tokens it has.
    pub(crate) emitted: u32,
    /// Whether its start was counted.
    pub(crate) counted: bool,
    /// Of the placement that counts.
    leg: u32,
    placed: Option<Placed>,
    resumes: u32,
    search: Option<Search>,
    /// Workers that failed it.
    excluded: Vec<WorkerRank>,
    first_token: Option<Timestamp>,
    last_token: Timestamp,
}

#[derive(Clone, Copy)]
struct Placed {
    decode: WorkerRank,
    prefill: Option<WorkerRank>,
    /// Its sequence there, once it got there.
    key: Option<SequenceKey>,
    /// Tokens that it had before.
    emitted_before: u32,
}

#[derive(Clone, Copy)]
struct Search {
    ends: Timestamp,
    pause: Duration,
}

impl Client {
    /// The request of this number, which arrives now.
    pub(super) fn new(number: usize, world: &World<'_>) -> Self {
        let request = &world.trace.requests[number];
        let (now, deadline_s) = (world.now(), world.settings.deadline_s);
        Self {
            arrived: now,
            prompt_tokens: request.prompt_tokens,
            answer_tokens: request.answer_tokens,
            names: request.prompt_names(number),
            deadline: (0.0 < deadline_s).then(|| now.after(seconds(deadline_s))),
            router: number % world.router_count(),
            submitted: None,
            emitted: 0,
            counted: false,
            leg: 0,
            placed: None,
            resumes: 0,
            search: None,
            excluded: Vec::new(),
            first_token: None,
            last_token: now,
        }
    }

    pub(super) fn router(&self) -> usize {
        self.router
    }

    /// The decode worker it is placed on.
    pub(super) fn decode(&self) -> Option<WorkerRank> {
        self.placed.map(|placed| placed.decode)
    }

    /// Whether no worker was found for it yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.placed.is_none()
    }

    fn place_request(&self, number: usize) -> PlaceRequest {
        PlaceRequest {
            id: id_of(number),
            tenant: TenantId(Arc::from("simulated")),
            names: Arc::clone(&self.names),
            prompt_tokens: self.prompt_tokens,
            output_tokens_max: self.answer_tokens,
            deadline: self.deadline,
            priority: Priority::default(),
            session: None,
            excluded: self.excluded.clone(),
        }
    }
}

impl World<'_> {
    pub(super) fn submit(&mut self, number: usize) {
        let now = self.now();
        let client = self.clients.get_mut(&number).expect("who asks has a client");
        client.submitted.get_or_insert(now);
        let (router, request) = (client.router, client.place_request(number));
        self.ask_router(router, |router, now| router.submit(request, now));
    }

    pub(super) fn placed(&mut self, number: usize, placement: &Placement) {
        let now = self.now();
        let client = self.clients.get_mut(&number).expect("only open requests are placed");
        assert!(client.placed.is_none(), "request {number} is placed once at a time");
        client.leg += 1;
        let Placement { decode, prefill, .. } = *placement;
        let emitted_before = client.emitted;
        client.placed = Some(Placed { decode, prefill, key: None, emitted_before });
        if client.leg == 1 {
            self.measures.placed += 1;
            self.measures.queued.add(now.since(client.submitted.unwrap_or(now)));
            self.measures.expected_tokens += u64::from(placement.expected_cached_tokens);
        }
        let reach = Event::Reach { number, leg: client.leg };
        self.agenda.enter(ms(self.settings.hop_ms), reach);
    }

    pub(super) fn refused(&mut self, number: usize, error: &ServeError) {
        let now = self.now();
        let Some(client) = self.clients.get_mut(&number) else { return };
        let outcome = match (error, &mut client.search) {
            (ServeError::NoWorker { .. }, Some(search)) if now < search.ends => {
                let pause = search.pause;
                search.pause = (2 * pause).min(PAUSE_MAX);
                self.agenda.enter(pause, Event::Retry(number));
                return;
            }
            (ServeError::NoWorker { .. }, _) => Outcome::Lost,
            (ServeError::DeadlineExceeded { .. }, _) => Outcome::Late,
            _ => Outcome::Overloaded,
        };
        self.end(number, outcome);
    }

    /// The worker of a request has its prompt ready.
    pub(super) fn begun(&mut self, number: usize, report: StartReport) {
        let client = &self.clients[&number];
        let placed = client.placed.expect("who starts is placed");
        let (router, started) = (client.router, LegOutcome::Started(report));
        self.tell_outcome(router, number, placed.decode, started);
    }

    fn tell_outcome(
        &mut self,
        router: usize,
        number: usize,
        worker: WorkerRank,
        outcome: LegOutcome,
    ) {
        self.ask_router(router, |router, now| router.outcome(id_of(number), worker, outcome, now));
    }

    /// The request is at its worker's door.
    pub(super) fn reach(&mut self, number: usize, leg: u32) {
        let Some(client) = self.clients.get(&number).filter(|client| client.leg == leg) else {
            return;
        };
        let Some(placed) = client.placed.filter(|placed| placed.key.is_none()) else { return };
        let Member::Decode(place) = member_of(placed.decode) else {
            unreachable!("requests are placed on decode workers")
        };
        let seat = &self.decodes[place].seat;
        if !seat.alive {
            return self.lost(number);
        }
        if seat.is_frozen(self.now()) {
            let thaw = seat.frozen_until;
            return self.agenda.enter_at(thaw, Event::Reach { number, leg });
        }
        let prefill = placed.prefill.map(|rank| match member_of(rank) {
            Member::Prefill(place) => place,
            Member::Decode(_) | Member::Store(_) | Member::Router(_) => {
                unreachable!("prefill is on prefill workers")
            }
        });
        match self.accept(place, number, prefill) {
            Ok(key) => {
                let client = self.clients.get_mut(&number).expect("looked at above");
                client.search = None;
                if let Some(placed) = &mut client.placed {
                    placed.key = Some(key);
                }
            }
            Err(_) => self.end(number, Outcome::Refused),
        }
    }

    /// The worker of a request went away.
    pub(super) fn lost(&mut self, number: usize) {
        let now = self.now();
        let Some(client) = self.clients.get_mut(&number) else { return };
        let placed = client.placed.take();
        client.resumes += 1;
        let search = || Search { ends: now.after(RESUME_WAIT), pause: 2 * PAUSE_MIN };
        client.search.get_or_insert_with(search);
        let (router, over) = (client.router, RESUMES_MAX < client.resumes);
        self.measures.resumed += 1;
        if let Some(Placed { decode, .. }) = placed {
            if !client.excluded.contains(&decode) {
                client.excluded.push(decode);
            }
            self.tell_outcome(router, number, decode, LegOutcome::Failed);
        }
        self.finish_at(router, number);
        if over {
            self.end(number, Outcome::Lost);
        } else {
            self.agenda.enter(PAUSE_MIN, Event::Retry(number));
        }
    }

    pub(super) fn retry(&mut self, number: usize) {
        if self.clients.get(&number).is_some_and(|client| client.placed.is_none()) {
            self.submit(number);
        }
    }

    pub(super) fn late(&mut self, number: usize) {
        if self.clients.contains_key(&number) {
            self.end(number, Outcome::Late);
        }
    }

    /// A token reached the client. Says whether it was the last one.
    pub(super) fn token(&mut self, number: usize) -> bool {
        let now = self.now().after(ms(self.settings.hop_ms));
        let client = self.clients.get_mut(&number).expect("who computes has a client");
        client.emitted += 1;
        assert!(client.emitted <= client.answer_tokens, "no token behind the end");
        if client.first_token.is_none() {
            client.first_token = Some(now);
            self.measures.first_token(client.arrived, now.since(client.arrived));
        } else {
            self.measures.itl.add(now.since(client.last_token));
        }
        client.last_token = now;
        client.emitted == client.answer_tokens
    }

    /// The one end of every request. Its worker forgets it first, then its router.
    pub(super) fn end(&mut self, number: usize, outcome: Outcome) {
        let now = self.now();
        let client = self.clients.remove(&number).expect("a request ends once");
        if let Some(Placed { decode, key: Some(key), .. }) = client.placed
            && let Member::Decode(place) = member_of(decode)
        {
            self.forget_job(place, key);
        }
        if let (Outcome::Finished, Some(placed)) = (outcome, client.placed) {
            let tokens = client.answer_tokens - placed.emitted_before;
            let completed = LegOutcome::Completed { tokens };
            self.tell_outcome(client.router, number, placed.decode, completed);
        }
        self.finish_at(client.router, number);
        self.outcome_at(now);
        self.measures.ended(outcome);
        if outcome != Outcome::Finished {
            return;
        }
        self.measures.answer_tokens += u64::from(client.answer_tokens);
        let first = client.first_token.expect("an answer has a first token");
        let ttft_ms = first.since(client.arrived).as_secs_f64() * 1_000.0;
        let between_s = client.last_token.since(first).as_secs_f64();
        let itl_ms = between_s * 1_000.0 / f64::from((client.answer_tokens - 1).max(1));
        if ttft_ms <= self.settings.slo_ttft_ms && itl_ms <= self.settings.slo_itl_ms {
            self.measures.good += 1;
            self.measures.good_tokens += u64::from(client.answer_tokens);
        }
    }
}
