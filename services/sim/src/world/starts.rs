//! A start at a decode worker: what is cached, what the shipped planner decides, what is read, and who is asked for the rest.

use std::time::Duration;

use decode::{SequenceKey, TailPlan};
use kvstore::{SealedSlot, StartCosts, StartPlan, StartQuery, StartRole, plan_start};
use prefill::PrefillId;
use shared::{BLOCK_TOKENS, Lineage, StartReport, Tier, Timestamp, WindowSource};

use super::World;
use super::decodes::{DecodeHappens, Job};
use super::lookups::{Located, Stored};
use super::prefills::Visitor;
use super::seats::rank;
use crate::fault::Member;
use crate::measure::Origin;
use crate::memory;
use crate::settings::{GEOMETRY, ms, narrow, size, wide};

/// How often one start asks for prefill, and how long a prefill worker may be silent: decode's defaults.
const ATTEMPTS_MAX: u32 = 3;
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A start under way.
pub(super) struct Start {
    /// What lies in the own pool, one place for each block of [0, S).
    held: Vec<Option<SealedSlot>>,
    stored: Vec<Option<Stored>>,
    /// What the prefill worker announced, and whether it had that before.
    announced: Vec<Option<Option<Origin>>>,
    plan: Option<StartPlan>,
    tried: Vec<Tried>,
    attempts: u32,
    exhausted: bool,
    visit: Option<Visit>,
    /// When what the store has is here.
    reads_over: Timestamp,
}

#[derive(Clone, Copy)]
struct Tried {
    prefill: usize,
    /// It answered, if only that it is full: it may be asked again.
    answered: bool,
}

/// A request at a prefill worker.
#[derive(Clone, Copy)]
struct Visit {
    prefill: usize,
    life: u64,
    id: PrefillId,
}

impl Start {
    fn leading(&self, with_store: bool) -> u32 {
        let there =
            |i: &usize| self.held[*i].is_some() || (with_store && self.stored[*i].is_some());
        u32::try_from((0..self.held.len()).take_while(there).count()).expect("blocks of one prompt")
    }

    /// How each attached block was come by: nothing for those that were computed for this request.
    fn origins(&self, blocks: usize) -> [u64; 4] {
        let mut counts = [0; 4];
        for block in 0..blocks {
            let origin = match (&self.held[block], &self.stored[block], self.announced[block]) {
                (Some(_), _, _) => Some(Origin::Device),
                (None, Some(Stored { tier: Tier::Host, .. }), _) => Some(Origin::Host),
                (None, Some(_), _) => Some(Origin::Disk),
                (None, None, Some(announced)) => announced,
                (None, None, None) => unreachable!("a start has all its blocks"),
            };
            for (known, count) in Origin::ALL.into_iter().zip(&mut counts) {
                *count += u64::from(origin == Some(known));
            }
        }
        counts
    }
}

impl World<'_> {
    /// An admitted sequence looks up what is cached.
    pub(super) fn begin_start(&mut self, place: usize, key: SequenceKey) {
        let side = &mut self.decodes[place];
        let job = side.jobs.get_mut(&key).expect("an admitted sequence is known");
        assert!(job.pins.is_empty() && job.start.is_none(), "a start begins with nothing");
        job.round += 1;
        let round = job.round;
        let blocks = size(u64::from(GEOMETRY.boundary(job.prompt_tokens) / BLOCK_TOKENS));
        let names = std::sync::Arc::clone(&job.names);
        let names = &names[..blocks];
        let held: Vec<_> = names.iter().map(|name| side.pool.lookup(*name)).collect();
        let Located { found, at } = self.locate(names, |block| held[block].is_none());
        let start = Start {
            announced: vec![None; blocks],
            held,
            stored: found,
            plan: None,
            tried: Vec::new(),
            attempts: 0,
            exhausted: false,
            visit: None,
            reads_over: at,
        };
        let job = self.decodes[place].jobs.get_mut(&key).expect("known above");
        job.start = Some(Box::new(start));
        if self.now() < at {
            self.enter_decode(at, place, DecodeHappens::Located(key, round));
        } else {
            self.decide(place, key);
        }
    }

    pub(super) fn located(&mut self, place: usize, key: SequenceKey, round: u32) {
        if self.starting(place, key, round).is_some() {
            self.decide(place, key);
        }
    }

    /// The job, if its start is still in this round.
    fn starting(&mut self, place: usize, key: SequenceKey, round: u32) -> Option<&mut Job> {
        let job = self.decodes[place].jobs.get_mut(&key)?;
        (job.round == round && job.start.is_some()).then_some(job)
    }

    /// Lets the planner decide from what is known, and asks for what it wants.
    fn decide(&mut self, place: usize, key: SequenceKey) {
        let now = self.now();
        let job = self.decodes[place].jobs.get_mut(&key).expect("a start has a job");
        job.round += 1;
        let round = job.round;
        let plan = loop {
            let plan = self.query_planner(place, key);
            match &plan.ask {
                Some(asked) if !self.visit(place, key, asked.start) => {}
                _ => break plan,
            }
        };
        let settings = self.settings;
        let side = &mut self.decodes[place];
        let start = side.jobs.get_mut(&key).and_then(|job| job.start.as_mut());
        let start = start.expect("a start is under way");
        let wanted =
            plan.fetch_blocks.clone().filter(|block| start.held[size(u64::from(*block))].is_none());
        let wanted = wide(wanted.count());
        start.reads_over = side.link.bring(now, wanted, settings.restore_host_ms);
        let (reads_over, asks) = (start.reads_over, plan.ask.is_some());
        start.plan = Some(plan);
        if asks {
            self.enter_decode(now.after(SILENCE_MAX), place, DecodeHappens::Watch(key, round));
        } else {
            self.enter_decode(reads_over, place, DecodeHappens::Ready(key, round));
        }
    }

    fn query_planner(&self, place: usize, key: SequenceKey) -> StartPlan {
        let side = &self.decodes[place];
        let job = &side.jobs[&key];
        let start = job.start.as_ref().expect("a start is under way");
        let may_ask = job.prefill.is_some() && !start.exhausted && start.attempts < ATTEMPTS_MAX;
        let measured = side.pace.rows_per_second();
        let rows = if 0.0 < measured { measured } else { self.settings.tail_rows_per_s };
        plan_start(&StartQuery {
            role: if may_ask { StartRole::DecodeWithPrefill } else { StartRole::DecodeAlone },
            geometry: GEOMETRY,
            lineage: Lineage::Bounded,
            bounded_rows: GEOMETRY.window,
            target: GEOMETRY.boundary(job.prompt_tokens),
            device_blocks: start.leading(false),
            reachable_blocks: start.leading(true),
            windows: &[],
            costs: costs(side.link.block_ms, rows),
        })
    }

    /// Asks the next prefill worker for what is missing. Says whether one took the request.
    fn visit(&mut self, place: usize, key: SequenceKey, from: u32) -> bool {
        let job = &self.decodes[place].jobs[&key];
        let Some(prefill) = self.choose_prefill(job, key) else {
            self.measures.fallbacks += 1;
            self.start_of(place, key).exhausted = true;
            return false;
        };
        let visitor = Visitor {
            decode: place,
            life: self.decodes[place].seat.life,
            key,
            number: job.number,
            from,
            to: GEOMETRY.boundary(job.prompt_tokens),
            names: std::sync::Arc::clone(&job.names),
        };
        let start = self.start_of(place, key);
        start.attempts += 1;
        let attempts = start.attempts;
        match attempts {
            1 => self.measures.visits += 1,
            _ => self.measures.visit_retries += 1,
        }
        let taken = self.receive(prefill, visitor);
        let life = self.prefills[prefill].seat.life;
        let start = self.start_of(place, key);
        match taken {
            Some(id) => start.visit = Some(Visit { prefill, life, id }),
            None => start.tried.push(Tried { prefill, answered: true }),
        }
        taken.is_some()
    }

    /// The router's choice first, then members not asked yet, then those that at least answered: as the worker does.
    fn choose_prefill(&self, job: &Job, key: SequenceKey) -> Option<usize> {
        let start = job.start.as_ref().expect("a start is under way");
        let tried = |prefill: usize| start.tried.iter().find(|tried| tried.prefill == prefill);
        let members: Vec<usize> =
            (0..self.prefills.len()).filter(|place| self.prefills[*place].seat.alive).collect();
        let first = size(key.0) % members.len().max(1);
        let (before, after) = members.split_at(first.min(members.len()));
        let others = || after.iter().chain(before).copied();
        let chosen = job.prefill.filter(|place| members.contains(place));
        let fresh = chosen.into_iter().chain(others()).find(|place| tried(*place).is_none());
        let again = || others().find(|place| tried(*place).is_some_and(|tried| tried.answered));
        fresh.or_else(again)
    }

    fn start_of(&mut self, place: usize, key: SequenceKey) -> &mut Start {
        let job = self.decodes[place].jobs.get_mut(&key).expect("a start has a job");
        job.start.as_mut().expect("a start is under way")
    }

    /// Blocks of `[first, ..)` were announced to a start: those it lacks are read.
    pub(super) fn announced(
        &mut self,
        visitor: &Visitor,
        first: usize,
        origins: &[Option<Origin>],
    ) {
        let (now, block_ms) = (self.now(), self.settings.restore_peer_ms);
        let side = &mut self.decodes[visitor.decode];
        let start = side.jobs.get_mut(&visitor.key).and_then(|job| job.start.as_mut());
        let start = start.expect("a visit ends with its start");
        let mut lacking = 0;
        for (block, origin) in (first..).zip(origins) {
            lacking += u64::from(start.held[block].is_none() && start.stored[block].is_none());
            start.announced[block] = Some(*origin);
        }
        start.reads_over = start.reads_over.max(side.link.bring(now, lacking, block_ms));
    }

    /// A prefill worker has announced everything.
    pub(super) fn visit_over(&mut self, visitor: &Visitor) {
        let now = self.now();
        let handoff = ms(self.settings.handoff_ms);
        let job = self.decodes[visitor.decode].jobs.get(&visitor.key).expect("as above");
        let (round, start) = (job.round, job.start.as_ref().expect("as above"));
        let at = start.reads_over.max(now).after(handoff);
        self.enter_decode(at, visitor.decode, DecodeHappens::Ready(visitor.key, round));
    }

    /// A prefill worker is silent or gone: another one is asked.
    pub(super) fn visit_lost(&mut self, place: usize, key: SequenceKey) {
        let start = self.start_of(place, key);
        let Some(visit) = start.visit.take() else { return };
        start.tried.push(Tried { prefill: visit.prefill, answered: false });
        // What it announced goes with it.
        start.announced.fill(None);
        self.release(visit.prefill, visit.life, visit.id);
        self.decide(place, key);
    }

    pub(super) fn end_visit(&mut self, start: &mut Start) {
        if let Some(visit) = start.visit.take() {
            self.release(visit.prefill, visit.life, visit.id);
        }
    }

    pub(super) fn watch(&mut self, place: usize, key: SequenceKey, round: u32) {
        let now = self.now();
        let Some(job) = self.starting(place, key, round) else { return };
        let Some(visit) = job.start.as_ref().and_then(|start| start.visit) else { return };
        let seat = &self.prefills[visit.prefill].seat;
        // A worker that runs gives a sign of life every few seconds.
        let heard = if seat.is_frozen(now) { seat.frozen_at } else { now };
        if SILENCE_MAX <= now.since(heard) {
            self.visit_lost(place, key);
        } else {
            let again = heard.after(SILENCE_MAX);
            self.enter_decode(again, place, DecodeHappens::Watch(key, round));
        }
    }

    /// Everything of a start is here: its rows are planned from now on.
    pub(super) fn ready(&mut self, place: usize, key: SequenceKey, round: u32) {
        let Some(job) = self.starting(place, key, round) else { return };
        let mut start = job.start.take().expect("looked at above");
        let (number, known, prompt_tokens) = (job.number, job.known, job.prompt_tokens);
        let names = std::sync::Arc::clone(&job.names);
        let plan = start.plan.take().expect("a start is decided");
        let blocks = size(u64::from(plan.start / BLOCK_TOKENS));
        let origins = start.origins(blocks);
        let side = &mut self.decodes[place];
        let beyond = start.held.split_off(blocks);
        side.pool.release(beyond.into_iter().flatten().collect());
        let held = std::mem::take(&mut start.held);
        let lacking = held.iter().filter(|slot| slot.is_none()).count();
        let reserved = side.pool.reserve(lacking).expect("slots lie within the reservation");
        let mut free = reserved.into_iter();
        let mut pins = Vec::with_capacity(blocks);
        for (slot, name) in held.into_iter().zip(names.iter()) {
            pins.push(slot.unwrap_or_else(|| {
                let slot = free.next().expect("as many as were lacking");
                side.pool.seal(slot, memory::seal(*name))
            }));
        }
        side.jobs.get_mut(&key).expect("known above").pins = pins;
        let fine_from = GEOMETRY.boundary(known);
        side.scheduler.started(key, TailPlan { next: plan.first_row(), end: known, fine_from });
        let prefill = start.visit.map(|visit| rank(Member::Prefill(visit.prefill)));
        self.end_visit(&mut start);
        self.touch(Member::Decode(place));
        self.wake_decode(place);
        let client = self.clients.get_mut(&number).expect("who starts has a client");
        if !std::mem::replace(&mut client.counted, true) {
            let arrived = client.arrived;
            self.measures.started(arrived, prompt_tokens, &origins);
        }
        let cached: u64 = origins.iter().sum();
        let replayed = plan.start - plan.first_row();
        self.begun(
            number,
            StartReport {
                cached_tokens: narrow(cached) * BLOCK_TOKENS,
                replayed_tokens: replayed,
                window_source: match replayed {
                    0 => WindowSource::Object,
                    rows => WindowSource::Replayed(rows),
                },
                exact: replayed == 0,
                bytes_fetched: 0,
                prefill,
            },
        );
    }
}

/// What reading and computing cost, as a worker measures it.
pub(super) fn costs(block_ms: f64, rows_per_second: f64) -> StartCosts {
    StartCosts {
        block_fetch_ms: block_ms,
        window_fetch_ms: 0.0,
        encoder_row_ms: 1_000.0 / rows_per_second,
    }
}
