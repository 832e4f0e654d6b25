//! The two workers, their clients, and time.

use std::collections::BTreeMap;

use decode::{Arrival, Scheduler, SchedulerLimits, SequenceKey, Stage, StepPlan, TailPlan};
use prefill::PrefillId;
use shared::{BLOCK_TOKENS, Random, ServeError, Timestamp};

use super::decode_side::{self, GEOMETRY, Outcome, Request, Starting};
use super::prefill_side::{Announced, PrefillSide};

/// Prefill attempts of one start.
const ATTEMPTS_MAX: u32 = 3;
/// A run that takes longer does not end.
const EVENTS_MAX: u32 = 400_000;
/// Requests all arrive before this.
const LAST_ARRIVAL: u32 = 1_000;

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrive(SequenceKey),
    Cancel(SequenceKey),
    /// Everything of a start is here.
    Ready(SequenceKey, u32),
    /// A read of a block of a visit is over.
    Read(SequenceKey, PrefillId, u32),
    Onboarded(PrefillId),
    SlotsBack(SequenceKey),
    DecodeStep,
    PrefillStep,
    PrefillDies,
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    tokens: u32,
    preemptions: u32,
    visits: u32,
    blocks_read: u32,
    retries: u32,
    fallbacks: u32,
    reads_abandoned: u32,
}

impl Counts {
    pub(super) fn all(&self) -> [(&'static str, u32); 7] {
        [
            ("tokens", self.tokens),
            ("preemptions", self.preemptions),
            ("visits", self.visits),
            ("blocks read", self.blocks_read),
            ("retries", self.retries),
            ("fallbacks", self.fallbacks),
            ("reads abandoned", self.reads_abandoned),
        ]
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.preemptions += other.preemptions;
        self.visits += other.visits;
        self.blocks_read += other.blocks_read;
        self.retries += other.retries;
        self.fallbacks += other.fallbacks;
        self.reads_abandoned += other.reads_abandoned;
    }
}

pub(super) struct World {
    draws: Random,
    now: Timestamp,
    entered: u64,
    agenda: BTreeMap<(Timestamp, u64), Event>,
    scheduler: Scheduler,
    limits: SchedulerLimits,
    requests: BTreeMap<SequenceKey, Request>,
    prefill: PrefillSide,
    step: StepPlan,
    pub(super) counts: Counts,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut draws = Random::new(seed);
        let limits = decode_side::limits(&mut draws);
        let prefill = PrefillSide::new(&mut draws);
        let mut world = Self {
            draws,
            now: Timestamp(0),
            entered: 0,
            agenda: BTreeMap::new(),
            scheduler: Scheduler::new(limits),
            limits,
            requests: BTreeMap::new(),
            prefill,
            step: StepPlan::default(),
            counts: Counts::default(),
        };
        let mut at = 0;
        for key in 0..u64::from(world.draws.between(4, 20)) {
            at += world.draws.between(0, LAST_ARRIVAL / 50);
            world.enter(at, Event::Arrive(SequenceKey(key)));
        }
        world.enter(0, Event::DecodeStep);
        world.enter(0, Event::PrefillStep);
        if world.draws.happens(0.3) {
            let at = world.draws.between(0, LAST_ARRIVAL);
            world.enter(at, Event::PrefillDies);
        }
        world
    }

    /// Runs to the end and checks it.
    pub(super) fn run(mut self) -> Self {
        let mut events = 0;
        while let Some(((at, _), event)) = self.agenda.pop_first() {
            events += 1;
            assert!(events < EVENTS_MAX, "the run does not end");
            self.now = at;
            self.take(event);
            self.check();
        }
        self.prefill.check_end();
        assert_eq!(self.scheduler.blocks_reserved(), 0);
        assert_eq!((self.scheduler.live(), self.scheduler.waiting()), (0, 0));
        self.requests.iter().for_each(|(key, request)| request.check_end(*key));
        self
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    pub(super) fn outcomes(&self) -> impl Iterator<Item = Outcome> {
        self.requests.values().map(|request| request.outcome)
    }

    fn enter(&mut self, delay: u32, event: Event) {
        self.entered += 1;
        self.agenda.insert((Timestamp(self.now.0 + u64::from(delay)), self.entered), event);
    }

    fn enter_soon(&mut self, delay_max: u32, event: Event) {
        let delay = self.draws.between(0, delay_max);
        self.enter(delay, event);
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Arrive(key) => self.arrive(key),
            Event::Cancel(key) => self.end(key, Outcome::Cancelled),
            Event::Ready(key, life) => self.started(key, life),
            Event::Read(key, id, block) => self.read_is_over(key, id, block),
            Event::Onboarded(id) => {
                if let Some(announced) = self.prefill.onboarded(id, &mut self.draws) {
                    self.read(&announced);
                }
            }
            Event::SlotsBack(key) => {
                let request = self.requests.get_mut(&key).expect("known");
                assert!(request.leaving && request.reads_open == 0);
                (request.leaving, request.owned) = (false, 0);
                self.scheduler.released(key);
            }
            Event::DecodeStep => {
                self.decode_step();
                self.again(3, Event::DecodeStep);
            }
            Event::PrefillStep => {
                for id in self.prefill.admit(self.now) {
                    self.enter_soon(12, Event::Onboarded(id));
                }
                for announced in self.prefill.step() {
                    self.read(&announced);
                }
                self.again(6, Event::PrefillStep);
            }
            Event::PrefillDies => {
                for (id, key) in self.prefill.die() {
                    let request = self.requests.get_mut(&key).expect("known");
                    let starting = request.starting.as_mut().expect("its ticket lives");
                    assert_eq!(starting.visit.take(), Some(id));
                    self.go_on(key);
                }
            }
        }
    }

    /// A worker's loop goes on while there is, or will be, something to do.
    fn again(&mut self, pause_max: u32, event: Event) {
        let open = self.requests.values().any(|request| request.outcome == Outcome::Open);
        let live = self.scheduler.live() != 0;
        if open || live || self.now <= Timestamp(u64::from(LAST_ARRIVAL)) {
            let pause = self.draws.between(1, pause_max);
            self.enter(pause, event);
        }
    }

    fn arrive(&mut self, key: SequenceKey) {
        let mut request = Request::new(&mut self.draws);
        let wanted = request.prompt + self.draws.between(1, 700);
        let expires = self.draws.happens(0.12);
        let patience = self.draws.between(1, 500);
        let deadline = expires.then_some(Timestamp(self.now.0 + u64::from(patience)));
        let tokens = request.prompt;
        let queued = self.scheduler.bound(tokens, wanted).and_then(|tokens_max| {
            request.tokens_max = tokens_max;
            self.scheduler.submit(Arrival { key, tokens, tokens_max, deadline })
        });
        match queued {
            Ok(()) if self.draws.happens(0.25) => self.enter_soon(250, Event::Cancel(key)),
            Ok(()) => {}
            Err(ServeError::TooLong { .. }) => assert!(self.limits.context_tokens_max <= tokens),
            Err(ServeError::NeverFits { .. }) => {
                assert!(self.limits.blocks_max < tokens.div_ceil(BLOCK_TOKENS));
            }
            Err(ServeError::Overloaded { .. }) => {
                assert!(self.limits.waiting_max <= self.scheduler.waiting());
            }
            Err(other) => panic!("unexpected refusal: {other}"),
        }
        if request.tokens_max == 0 || self.scheduler.stage(key).is_none() {
            request.outcome = Outcome::Refused;
        }
        self.requests.insert(key, request);
    }

    fn end(&mut self, key: SequenceKey, outcome: Outcome) {
        let request = self.requests.get_mut(&key).expect("known");
        if request.outcome != Outcome::Open {
            return;
        }
        request.outcome = outcome;
        // One that gives way already reports its slots once only.
        let live = self.scheduler.end(key);
        if live && !self.requests[&key].leaving {
            self.leave(key);
        }
        assert!(matches!(self.scheduler.stage(key), None | Some(Stage::Leaving)));
    }

    /// A live sequence lets everything go: its ticket drops now, its slots come back when no read holds them.
    fn leave(&mut self, key: SequenceKey) {
        let request = self.requests.get_mut(&key).expect("known");
        request.leaving = true;
        let visit = request.starting.take().and_then(|starting| starting.visit);
        self.counts.reads_abandoned += request.reads_open;
        if request.reads_open == 0 {
            self.enter_soon(4, Event::SlotsBack(key));
        }
        if let Some(id) = visit {
            self.prefill.release(id);
        }
    }

    /// An admitted sequence looks up what is cached and decides.
    fn begin(&mut self, key: SequenceKey) {
        let request = self.requests.get_mut(&key).expect("known");
        assert!(request.starting.is_none() && request.owned == 0 && request.reads_open == 0);
        request.life += 1;
        let cached = self.draws.between(0, request.boundary_blocks());
        request.owned = cached;
        let alone = self.draws.happens(0.1);
        request.starting = Some(Starting {
            here: (0..cached).collect(),
            attempts: if alone { ATTEMPTS_MAX } else { 0 },
            ..Starting::default()
        });
        self.go_on(key);
    }

    /// Moves a start on: waits, asks prefill for what is missing, or begins with what is here.
    fn go_on(&mut self, key: SequenceKey) {
        let request = self.requests.get_mut(&key).expect("known");
        let (blocks, life) = (request.boundary_blocks(), request.life);
        let starting = request.starting.as_mut().expect("called for starts only");
        if request.reads_open != 0 || (starting.visit.is_some() && !starting.announced) {
            return;
        }
        let run = starting.run();
        // A visit that announced everything and from which everything was read is over.
        let visit = starting.visit.take();
        starting.announced = false;
        if let Some(id) = visit {
            self.prefill.release(id);
        }
        while run < blocks && starting.attempts < ATTEMPTS_MAX {
            starting.attempts += 1;
            self.counts.retries += u32::from(1 < starting.attempts);
            if let Some(id) = self.prefill.submit(key, run..blocks, self.now) {
                self.counts.visits += 1;
                starting.visit = Some(id);
                return;
            }
        }
        self.counts.fallbacks += u32::from(run < blocks);
        // Blocks behind a gap are of no use.
        request.owned = run;
        self.enter_soon(5, Event::Ready(key, life));
    }

    /// Reads what a visit announced.
    fn read(&mut self, announced: &Announced) {
        let Announced { id, key, .. } = *announced;
        let request = self.requests.get_mut(&key).expect("known");
        let starting = request.starting.as_mut().expect("its ticket lives");
        assert_eq!(starting.visit, Some(id));
        starting.announced |= announced.finished;
        let missing = announced.blocks.clone().filter(|block| !starting.here.contains(block));
        let missing: Vec<_> = missing.collect();
        let count = u32::try_from(missing.len()).unwrap();
        request.owned += count;
        request.reads_open += count;
        for block in missing {
            self.prefill.read_begins(id);
            self.enter_soon(40, Event::Read(key, id, block));
        }
        self.go_on(key);
    }

    fn read_is_over(&mut self, key: SequenceKey, id: PrefillId, block: u32) {
        self.prefill.read_ends(id);
        let request = self.requests.get_mut(&key).expect("known");
        request.reads_open -= 1;
        if request.leaving {
            if request.reads_open == 0 {
                self.enter(0, Event::SlotsBack(key));
            }
            return;
        }
        let starting = request.starting.as_mut().expect("a start ends behind its reads");
        if starting.visit == Some(id) {
            assert!(starting.here.insert(block), "no block is read twice");
            self.counts.blocks_read += 1;
        } else {
            // The worker died under the read.
            request.owned -= 1;
        }
        self.go_on(key);
    }

    fn started(&mut self, key: SequenceKey, life: u32) {
        let request = self.requests.get_mut(&key).expect("known");
        if request.life != life || request.starting.is_none() {
            return;
        }
        request.starting = None;
        let start = request.owned * BLOCK_TOKENS;
        let replayed = self.draws.between(0, start.min(300));
        request.processed = start - replayed;
        let end = request.known();
        let fine_from = GEOMETRY.boundary(end);
        self.scheduler.started(key, TailPlan { next: start - replayed, end, fine_from });
    }

    fn decode_step(&mut self) {
        let mut expired = Vec::new();
        self.scheduler.expired(self.now, &mut expired);
        expired.into_iter().for_each(|(key, _)| self.end(key, Outcome::Expired));
        while let Some(key) = self.scheduler.admit() {
            self.begin(key);
        }
        let mut step = std::mem::take(&mut self.step);
        self.scheduler.plan(&mut step);
        for key in &step.preempt {
            self.counts.preemptions += 1;
            self.leave(*key);
        }
        let rows: u32 = step.tails.iter().map(|piece| piece.to - piece.from).sum();
        assert!(rows <= self.limits.tail_rows_step_max);
        assert!(step.decode.len() <= self.limits.decode_rows_step_max);
        for piece in &step.tails {
            let known = self.requests[&piece.key].known();
            assert!(piece.to.is_multiple_of(BLOCK_TOKENS) || piece.to == known);
            (piece.from..piece.to).for_each(|position| self.row(piece.key, position));
            self.scheduler.tail_computed(*piece);
            if piece.to == known {
                self.draw(piece.key);
            }
        }
        for key in &step.decode {
            self.row(*key, self.requests[key].known() - 1);
            self.scheduler.decoded(*key);
            self.draw(*key);
        }
        self.step = step;
    }

    fn row(&mut self, key: SequenceKey, position: u32) {
        let reserved = self.scheduler.blocks_of(key);
        self.requests.get_mut(&key).expect("known").row(position, reserved);
    }

    fn draw(&mut self, key: SequenceKey) {
        let request = self.requests.get_mut(&key).expect("known");
        let over = request.draw();
        self.counts.tokens += 1;
        assert_eq!(self.scheduler.tokens(key), Some(request.known()));
        if over {
            self.end(key, Outcome::Finished);
        }
    }

    fn check(&self) {
        decode_side::check(&self.scheduler, self.limits);
        self.prefill.check();
        let mut owned = 0;
        for (key, request) in &self.requests {
            let reserved = self.scheduler.blocks_of(*key);
            assert!(request.owned <= reserved, "{key:?} owns more than it reserved");
            owned += request.owned;
        }
        assert!(owned <= self.limits.blocks_max, "a slot beyond the pool");
    }
}
