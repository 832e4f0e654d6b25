//! Decode workers: the shipped scheduler, planner and pool; steps take the time the settings say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use decode::{Arrival, Scheduler, SchedulerLimits, SequenceKey, StepPlan, TailPiece};
use kvstore::{OwnedSlot, Pool, SealedSlot};
use shared::{BLOCK_TOKENS, BlockName, LoadReport, ServeError, Tier, Timestamp, WorkerRates};

use super::lookups::Link;
use super::pace::Pace;
use super::seats::{Seat, rank};
use super::starts::Start;
use super::{Event, World};
use crate::fault::Member;
use crate::measure::Outcome;
use crate::memory;
use crate::settings::{Settings, ms, narrow, real, seconds, size, wide};

/// Blocks that open offers may pin, which no sequence may need: decode's default.
const OFFERS_MAX: u64 = 16;
/// Weight of the newest step in the measured pace, and the rows from which on a step counts: as in the workers.
const NEWEST: f64 = 0.125;
const MEASURED_ROWS_MIN: u64 = 32;

/// What happens at a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DecodeHappens {
    /// Its loop turns.
    Turn,
    StepOver,
    /// The lookup of a start is answered.
    Located(SequenceKey, u32),
    /// Everything of a start is here.
    Ready(SequenceKey, u32),
    /// A visit is looked at.
    Watch(SequenceKey, u32),
}

/// A worker.
pub(crate) struct DecodeSide {
    pub(crate) seat: Seat,
    pub(crate) pool: Pool,
    pub(crate) scheduler: Scheduler,
    pub(super) limits: SchedulerLimits,
    pub(super) jobs: BTreeMap<SequenceKey, Job>,
    next_key: u64,
    step: StepPlan,
    step_began: Timestamp,
    pub(super) is_stepping: bool,
    turn_entered: bool,
    pub(super) link: Link,
    pub(super) pace: Pace,
    /// Rows of all steps so far.
    progress: u64,
    pub(super) reported: Option<(Timestamp, LoadReport)>,
}

/// A request at a worker.
pub(super) struct Job {
    pub(super) number: usize,
    pub(super) prompt_tokens: u32,
    /// Tokens known: prompt and answer so far.
    pub(super) known: u32,
    pub(super) names: Arc<[BlockName]>,
    pub(super) prefill: Option<usize>,
    /// The leading blocks, attached or sealed here.
    pub(super) pins: Vec<SealedSlot>,
    current: Option<OwnedSlot>,
    pub(super) start: Option<Box<Start>>,
    /// Raised by every decision about its start: tells late answers.
    pub(super) round: u32,
}

impl DecodeSide {
    /// A worker at rest.
    pub(super) fn new(place: usize, settings: &Settings, blocks_max: u64) -> Self {
        // A pool larger than everything that is ever stored behaves alike.
        let blocks = settings.decode_blocks.min(blocks_max.max(64));
        let limits = SchedulerLimits {
            blocks_max: narrow(blocks - OFFERS_MAX),
            sequences_max: size(settings.sequences),
            waiting_max: size(settings.worker_waiting),
            decode_rows_step_max: size(settings.decode_rows_step),
            tail_rows_step_max: narrow(settings.tail_rows_step),
            context_tokens_max: narrow(settings.context_tokens),
        };
        Self {
            seat: Seat::new(),
            pool: memory::pool(rank(Member::Decode(place)), Tier::Device, blocks),
            scheduler: Scheduler::new(limits),
            limits,
            jobs: BTreeMap::new(),
            next_key: 0,
            step: StepPlan::default(),
            step_began: Timestamp(0),
            is_stepping: false,
            turn_entered: false,
            link: Link::new(settings.restore_host_ms),
            pace: Pace::new(settings.pace_by_rows, NEWEST, settings.tail_rows_step),
            progress: 0,
            reported: None,
        }
    }

    /// A new life: nothing is held or in work. Whoever had a request here was told before.
    pub(super) fn restart(&mut self, place: usize) {
        let blocks = wide(self.pool.total());
        self.jobs = BTreeMap::new();
        self.pool = memory::pool(rank(Member::Decode(place)), Tier::Device, blocks);
        self.scheduler = Scheduler::new(self.limits);
        (self.is_stepping, self.turn_entered) = (false, false);
        self.pace.forget();
        (self.progress, self.reported) = (0, None);
    }

    /// Its load as it tells it.
    pub(super) fn load(&self) -> LoadReport {
        LoadReport {
            running: narrow(wide(self.scheduler.live())),
            waiting: narrow(wide(self.scheduler.waiting())),
            pending_rows: self.scheduler.pending_rows(),
            slots_available: narrow(wide(self.pool.available())),
            slots: narrow(wide(self.pool.total())),
            rows_per_second: self.pace.rows_per_second(),
            progress: self.progress,
            draining: false,
            rates: WorkerRates::default(),
        }
    }
}

impl World<'_> {
    pub(super) fn decode_happens(&mut self, place: usize, life: u64, happens: DecodeHappens) {
        let seat = &self.decodes[place].seat;
        if seat.life != life || !seat.alive {
            return;
        }
        if seat.is_frozen(self.now()) {
            let thaw = seat.frozen_until;
            return self.agenda.enter_at(thaw, Event::Decode(place, life, happens));
        }
        self.touch(Member::Decode(place));
        match happens {
            DecodeHappens::Turn => {
                self.decodes[place].turn_entered = false;
                self.decode_turn(place);
            }
            DecodeHappens::StepOver => self.decode_step_over(place),
            DecodeHappens::Located(key, round) => self.located(place, key, round),
            DecodeHappens::Ready(key, round) => self.ready(place, key, round),
            DecodeHappens::Watch(key, round) => self.watch(place, key, round),
        }
    }

    pub(super) fn enter_decode(&mut self, at: Timestamp, place: usize, happens: DecodeHappens) {
        let life = self.decodes[place].seat.life;
        self.agenda.enter_at(at, Event::Decode(place, life, happens));
    }

    /// Lets the loop of a worker turn, when no step keeps it.
    pub(super) fn wake_decode(&mut self, place: usize) {
        let side = &mut self.decodes[place];
        if !side.is_stepping && !side.turn_entered {
            side.turn_entered = true;
            let now = self.now();
            self.enter_decode(now, place, DecodeHappens::Turn);
        }
    }

    /// A request comes in.
    pub(super) fn accept(
        &mut self,
        place: usize,
        number: usize,
        prefill: Option<usize>,
    ) -> Result<SequenceKey, ServeError> {
        let client = &self.clients[&number];
        let known = client.prompt_tokens + client.emitted;
        let wanted = client.prompt_tokens.saturating_add(client.answer_tokens);
        let side = &mut self.decodes[place];
        let tokens_max = side.scheduler.bound(known, wanted)?;
        if tokens_max < wanted {
            // The answer of the trace would be cut off, which would make the request a cheaper one.
            let slots = size(u64::from(wanted.div_ceil(BLOCK_TOKENS)));
            return Err(ServeError::NeverFits { slots, slots_max: side.pool.total() });
        }
        let key = SequenceKey(side.next_key);
        let deadline = client.deadline;
        side.scheduler.submit(Arrival { key, tokens: known, tokens_max, deadline })?;
        side.next_key += 1;
        let job = Job {
            number,
            prompt_tokens: client.prompt_tokens,
            known,
            names: Arc::clone(&client.names),
            prefill,
            pins: Vec::new(),
            current: None,
            start: None,
            round: 0,
        };
        side.jobs.insert(key, job);
        self.touch(Member::Decode(place));
        self.wake_decode(place);
        Ok(key)
    }

    /// A request is over here, whatever it is doing.
    pub(super) fn forget_job(&mut self, place: usize, key: SequenceKey) {
        let Some(mut job) = self.decodes[place].jobs.remove(&key) else { return };
        self.let_go(place, &mut job);
        let side = &mut self.decodes[place];
        if side.scheduler.end(key) {
            side.scheduler.released(key);
        }
        self.touch(Member::Decode(place));
        self.wake_decode(place);
    }

    /// Gives back everything a job holds, here and elsewhere.
    fn let_go(&mut self, place: usize, job: &mut Job) {
        if let Some(mut start) = job.start.take() {
            self.end_visit(&mut start);
        }
        job.current = None;
        job.round += 1;
        let pins = std::mem::take(&mut job.pins);
        self.decodes[place].pool.release(pins);
    }

    fn decode_turn(&mut self, place: usize) {
        if self.decodes[place].is_stepping {
            return;
        }
        while let Some(key) = self.decodes[place].scheduler.admit() {
            self.begin_start(place, key);
        }
        let side = &mut self.decodes[place];
        let mut step = std::mem::take(&mut side.step);
        side.scheduler.plan(&mut step);
        for key in &step.preempt {
            self.measures.preemptions += 1;
            let mut job = self.decodes[place].jobs.remove(key).expect("who gives way is known");
            self.let_go(place, &mut job);
            let side = &mut self.decodes[place];
            side.jobs.insert(*key, job);
            side.scheduler.released(*key);
        }
        let tail_rows: u32 = step.tails.iter().map(|piece| piece.to - piece.from).sum();
        let rows = u64::from(tail_rows) + wide(step.decode.len());
        let preempted = !step.preempt.is_empty();
        let now = self.now();
        let settings = self.settings;
        let side = &mut self.decodes[place];
        if 0 < rows {
            let tail = seconds(f64::from(tail_rows) / settings.tail_rows_per_s);
            let decoding = ms(settings.decode_row_ms).mul_f64(real(wide(step.decode.len())));
            let takes =
                (ms(settings.decode_step_ms) + tail + decoding).max(Duration::from_nanos(1));
            (side.is_stepping, side.step_began) = (true, now);
            side.progress += rows;
            if MEASURED_ROWS_MIN <= rows || side.pace.is_unknown() {
                side.pace.step(rows, takes);
            }
            self.measures.steps += 1;
            self.measures.rows += rows;
            self.enter_decode(now.after(takes), place, DecodeHappens::StepOver);
        } else if preempted {
            self.wake_decode(place);
        }
        self.decodes[place].step = step;
    }

    fn decode_step_over(&mut self, place: usize) {
        let now = self.now();
        let side = &mut self.decodes[place];
        side.is_stepping = false;
        side.seat.busy += now.since(side.step_began);
        let step = std::mem::take(&mut side.step);
        for piece in &step.tails {
            self.tail_over(place, piece);
        }
        for key in &step.decode {
            // Who was cancelled during the step is gone.
            let Some(job) = self.decodes[place].jobs.get(key) else { continue };
            let known = job.known;
            self.rows_done(place, *key, known);
            self.decodes[place].scheduler.decoded(*key);
            self.drawn(place, *key);
        }
        self.decodes[place].step = step;
        self.decode_turn(place);
    }

    fn tail_over(&mut self, place: usize, piece: &TailPiece) {
        let Some(job) = self.decodes[place].jobs.get(&piece.key) else { return };
        let is_last = piece.to == job.known;
        self.rows_done(place, piece.key, piece.to);
        self.decodes[place].scheduler.tail_computed(*piece);
        if is_last {
            self.drawn(place, piece.key);
        }
    }

    /// All rows below `end` are computed: whole blocks are sealed and offered, the next one has its slot.
    fn rows_done(&mut self, place: usize, key: SequenceKey, end: u32) {
        let trace = self.trace;
        let side = &mut self.decodes[place];
        let job = side.jobs.get_mut(&key).expect("who computed is known");
        let whole = size(u64::from(end / BLOCK_TOKENS));
        let first = job.pins.len();
        let free = |pool: &Pool| {
            let slots = pool.reserve(1).expect("slots lie within the reservation");
            slots.into_iter().next().expect("one was asked for")
        };
        while job.pins.len() < whole {
            let block = job.pins.len();
            let name = match job.names.get(block) {
                Some(name) => *name,
                None => trace.requests[job.number].name(job.number, narrow(wide(block))),
            };
            let slot = job.current.take().unwrap_or_else(|| free(&side.pool));
            job.pins.push(side.pool.seal(slot, memory::seal(name)));
        }
        if !end.is_multiple_of(BLOCK_TOKENS) && job.current.is_none() && job.pins.len() == whole {
            job.current = Some(free(&side.pool));
        }
        let (number, sealed) = (job.number, first..job.pins.len());
        if !sealed.is_empty() {
            self.offer(number, sealed);
        }
    }

    /// A token was drawn behind the last row.
    fn drawn(&mut self, place: usize, key: SequenceKey) {
        let job = self.decodes[place].jobs.get_mut(&key).expect("who computed is known");
        job.known += 1;
        let number = job.number;
        if self.token(number) {
            self.end(number, Outcome::Finished);
        }
    }
}
