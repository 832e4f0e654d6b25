//! A worker in virtual time around the real scheduler.

use std::collections::BTreeMap;

use decode::{
    Arrival, Scheduler, SchedulerLimits, SequenceKey, Stage, StepPlan, TailPiece, TailPlan,
};
use shared::{BLOCK_TOKENS, Random, ServeError, StartGeometry, Timestamp};

use crate::harness::{Agenda, SlotLedger};

const GEOMETRY: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 5 };
const STEPS_MAX: u32 = 200_000;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Arrive(u64),
    Cancel(SequenceKey),
    Started(SequenceKey, u32),
    SlotsBack(SequenceKey),
    Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Open,
    Finished,
    Refused,
    Cancelled,
    Expired,
}

pub(crate) struct Model {
    prompt: u32,
    tokens_max: u32,
    /// The answer's length if nothing cuts it; what the "model" would say.
    answer: u32,
    emitted: u32,
    processed: u32,
    /// Raised by every admission, so that a start that was overtaken by a preemption is ignored.
    life: u32,
    pub(crate) outcome: Outcome,
}

pub(crate) struct World {
    draws: Random,
    pub(crate) agenda: Agenda<Event>,
    scheduler: Scheduler,
    limits: SchedulerLimits,
    ledger: SlotLedger<SequenceKey>,
    pub(crate) models: BTreeMap<SequenceKey, Model>,
    step: StepPlan,
    pub(crate) preemptions: u32,
    pub(crate) tokens: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut draws = Random::new(seed);
        let limits = SchedulerLimits {
            blocks_max: draws.between(4, 24),
            sequences_max: usize::try_from(draws.between(1, 8)).unwrap(),
            waiting_max: usize::try_from(draws.between(1, 12)).unwrap(),
            decode_rows_step_max: usize::try_from(draws.between(1, 6)).unwrap(),
            tail_rows_step_max: draws.between(128, 700),
            context_tokens_max: draws.between(600, 4_000),
        };
        let mut agenda = Agenda::new();
        let mut at = 0;
        for request in 0..u64::from(draws.between(4, 24)) {
            at += draws.between(0, 60);
            agenda.enter(at, Event::Arrive(request));
        }
        agenda.enter(0, Event::Step);
        Self {
            draws,
            agenda,
            scheduler: Scheduler::new(limits),
            limits,
            ledger: SlotLedger::new(limits.blocks_max),
            models: BTreeMap::new(),
            step: StepPlan::default(),
            preemptions: 0,
            tokens: 0,
        }
    }

    pub(crate) fn run(mut self) -> Self {
        let mut steps = 0;
        while let Some(event) = self.agenda.next() {
            match event {
                Event::Arrive(request) => self.arrive(SequenceKey(request)),
                Event::Cancel(key) => self.leave(key, Outcome::Cancelled),
                Event::Started(key, life) => self.start(key, life),
                Event::SlotsBack(key) => {
                    self.ledger.give_back(key);
                    self.scheduler.released(key);
                }
                Event::Step => {
                    steps += 1;
                    assert!(steps < STEPS_MAX, "the run does not end");
                    self.step();
                    if self.models.values().any(|model| model.outcome == Outcome::Open)
                        || self.scheduler.live() != 0
                        || self.agenda.now() < Timestamp(24 * 60)
                    {
                        let pause = self.draws.between(1, 3);
                        self.agenda.enter(pause, Event::Step);
                    }
                }
            }
            self.check();
        }
        self
    }

    fn arrive(&mut self, key: SequenceKey) {
        let longest = if self.draws.happens(0.7) { 300 } else { 1_600 };
        let prompt = self.draws.between(1, longest);
        let wanted = prompt + self.draws.between(1, 900);
        let deadline = self
            .draws
            .happens(0.1)
            .then(|| Timestamp(self.agenda.now().0 + u64::from(self.draws.between(1, 400))));
        let mut model = Model {
            prompt,
            tokens_max: 0,
            answer: self.draws.between(1, 700),
            emitted: 0,
            processed: 0,
            life: 0,
            outcome: Outcome::Open,
        };
        let accepted = self.scheduler.bound(prompt, wanted).and_then(|tokens_max| {
            model.tokens_max = tokens_max;
            self.scheduler.submit(Arrival { key, tokens: prompt, tokens_max, deadline })
        });
        if let Err(refusal) = accepted {
            match refusal {
                ServeError::TooLong { .. } => assert!(self.limits.context_tokens_max <= prompt),
                ServeError::NeverFits { .. } => {
                    assert!(self.limits.blocks_max < prompt.div_ceil(BLOCK_TOKENS));
                }
                ServeError::Overloaded { .. } => {
                    assert!(self.limits.waiting_max <= self.scheduler.waiting());
                }
                other => panic!("unexpected refusal: {other}"),
            }
            model.outcome = Outcome::Refused;
        } else if self.draws.happens(0.2) {
            let delay = self.draws.between(0, 500);
            self.agenda.enter(delay, Event::Cancel(key));
        }
        self.models.insert(key, model);
    }

    /// Ends a sequence the way the loop does: slots come back now or, with reads open, a while later.
    fn leave(&mut self, key: SequenceKey, outcome: Outcome) {
        let model = self.models.get_mut(&key).expect("known");
        if model.outcome != Outcome::Open {
            return;
        }
        model.outcome = outcome;
        // A preempted sequence whose slots are already on their way reports them once only.
        let on_their_way = self.scheduler.stage(key) == Some(Stage::Leaving);
        if self.scheduler.end(key) && !on_their_way {
            let delay = if self.draws.happens(0.5) { 0 } else { self.draws.between(1, 9) };
            self.agenda.enter(delay, Event::SlotsBack(key));
        }
        assert!(matches!(self.scheduler.stage(key), None | Some(Stage::Leaving)));
    }

    fn start(&mut self, key: SequenceKey, life: u32) {
        let model = self.models.get_mut(&key).expect("known");
        if model.life != life || self.scheduler.stage(key) != Some(Stage::Starting) {
            return;
        }
        let tokens = model.prompt + model.emitted;
        let boundary = GEOMETRY.boundary(model.prompt);
        let at = self.draws.between(0, boundary / BLOCK_TOKENS) * BLOCK_TOKENS;
        let replayed = self.draws.between(0, at.min(300));
        model.processed = at - replayed;
        self.ledger.own(key, at / BLOCK_TOKENS);
        let fine_from = GEOMETRY.boundary(tokens);
        self.scheduler.started(key, TailPlan { next: at - replayed, end: tokens, fine_from });
    }

    fn step(&mut self) {
        let now = self.agenda.now();
        let mut expired = Vec::new();
        self.scheduler.expired(now, &mut expired);
        for (key, _) in expired {
            self.leave(key, Outcome::Expired);
        }
        while let Some(key) = self.scheduler.admit() {
            let model = self.models.get_mut(&key).expect("known");
            model.life += 1;
            let life = model.life;
            let delay = self.draws.between(0, 40);
            self.agenda.enter(delay, Event::Started(key, life));
        }
        let mut step = std::mem::take(&mut self.step);
        self.scheduler.plan(&mut step);
        for key in &step.preempt {
            self.preemptions += 1;
            let delay = self.draws.between(0, 4);
            self.agenda.enter(delay, Event::SlotsBack(*key));
        }
        let rows: u32 = step.tails.iter().map(|piece| piece.to - piece.from).sum();
        assert!(rows <= self.limits.tail_rows_step_max);
        for piece in &step.tails {
            self.compute_tail(*piece);
        }
        for key in &step.decode {
            self.row(*key);
            self.scheduler.decoded(*key);
            self.emit(*key);
        }
        self.step = step;
    }

    fn compute_tail(&mut self, piece: TailPiece) {
        assert!(piece.to.is_multiple_of(BLOCK_TOKENS) || piece.to == self.known(piece.key));
        for _ in piece.from..piece.to {
            self.row(piece.key);
        }
        assert_eq!(self.models[&piece.key].processed, piece.to);
        self.scheduler.tail_computed(piece);
        if piece.to == self.known(piece.key) {
            self.emit(piece.key);
        }
    }

    /// Processes the next row of a sequence in a slot that must be reserved and there.
    fn row(&mut self, key: SequenceKey) {
        let known = self.known(key);
        let model = self.models.get_mut(&key).expect("known");
        assert!(model.processed < known, "a row needs its token");
        let blocks = model.processed / BLOCK_TOKENS + 1;
        model.processed += 1;
        assert!(blocks <= self.scheduler.blocks_of(key), "a row beyond the reservation");
        self.ledger.own(key, blocks);
    }

    fn emit(&mut self, key: SequenceKey) {
        let model = self.models.get_mut(&key).expect("known");
        assert_eq!(model.outcome, Outcome::Open, "nothing follows the end");
        assert_eq!(model.processed, model.prompt + model.emitted, "drawn behind the last row");
        model.emitted += 1;
        self.tokens += 1;
        let tokens = model.prompt + model.emitted;
        assert_eq!(self.scheduler.tokens(key), Some(tokens), "no token lost or repeated");
        assert!(tokens <= model.tokens_max);
        if model.emitted == model.answer || tokens == model.tokens_max {
            self.leave(key, Outcome::Finished);
        }
    }

    fn known(&self, key: SequenceKey) -> u32 {
        self.models[&key].prompt + self.models[&key].emitted
    }

    fn check(&self) {
        assert!(self.scheduler.live() <= self.limits.sequences_max);
        assert!(self.scheduler.blocks_reserved() <= self.limits.blocks_max);
        for key in self.models.keys() {
            let reserved = self.scheduler.blocks_of(*key);
            assert!(self.ledger.owned(*key) <= reserved, "{key:?} owns more than it reserved");
        }
    }

    pub(crate) fn check_end(&self) {
        assert_eq!(self.ledger.total(), 0, "leaked slots");
        assert_eq!(self.scheduler.blocks_reserved(), 0);
        assert_eq!((self.scheduler.live(), self.scheduler.waiting()), (0, 0));
        for (key, model) in &self.models {
            assert_ne!(model.outcome, Outcome::Open, "{key:?} never got an answer");
            if model.outcome == Outcome::Finished {
                assert_eq!(model.emitted, model.answer.min(model.tokens_max - model.prompt));
            }
        }
    }
}
