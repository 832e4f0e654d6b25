//! Prefill workers: the shipped scheduler, planner and pool; steps take the time the settings say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use decode::SequenceKey;
use kvstore::{OwnedSlot, Pool, SealedSlot, StartPlan, StartQuery, StartRole, plan_start};
use prefill::{Chunk, PrefillId, Scheduler, SchedulerLimits};
use shared::{BLOCK_TOKENS, BlockName, Lineage, LoadReport, Tier, Timestamp, WorkerRates};

use super::lookups::{Link, Located, Stored};
use super::pace::Pace;
use super::seats::{Seat, rank};
use super::starts::costs;
use super::{Event, World};
use crate::fault::Member;
use crate::measure::Origin;
use crate::memory;
use crate::settings::{GEOMETRY, Settings, ms, narrow, seconds, size, wide};

/// Finished requests that stay pinned, and the distance of window objects: prefill's defaults.
const HELD_MAX: usize = 256;
const WINDOW_INTERVAL: u32 = 2_048;
/// Weight of the newest step in the measured pace: as in the workers.
const NEWEST: f64 = 0.1;

/// What happens at a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PrefillHappens {
    /// Its loop turns.
    Turn,
    StepOver,
    /// The cached prefix of a request is here.
    Onboarded(PrefillId),
}

/// A worker.
pub(crate) struct PrefillSide {
    pub(crate) seat: Seat,
    pub(crate) pool: Pool,
    pub(crate) scheduler: Scheduler,
    pub(super) limits: SchedulerLimits,
    pub(super) jobs: BTreeMap<PrefillId, PrefillJob>,
    next_id: u64,
    chunks: Vec<Chunk>,
    step_began: Timestamp,
    pub(super) is_stepping: bool,
    turn_entered: bool,
    link: Link,
    pace: Pace,
    /// Rows of all steps so far.
    progress: u64,
    pub(super) reported: Option<(Timestamp, LoadReport)>,
}

/// Who asks, for what.
#[derive(Clone, Debug)]
pub(super) struct Visitor {
    pub(super) decode: usize,
    pub(super) life: u64,
    pub(super) key: SequenceKey,
    pub(super) number: usize,
    /// The first token that is asked for.
    pub(super) from: u32,
    /// S.
    pub(super) to: u32,
    pub(super) names: Arc<[BlockName]>,
}

/// A request at a worker.
pub(super) struct PrefillJob {
    pub(super) visitor: Visitor,
    slots: Vec<Option<SealedSlot>>,
    owned: Vec<OwnedSlot>,
    stored: Vec<Option<Stored>>,
    plan: Option<StartPlan>,
}

impl PrefillSide {
    /// A worker at rest.
    pub(super) fn new(place: usize, settings: &Settings, blocks_max: u64) -> Self {
        let blocks = settings.prefill_blocks.min(blocks_max.max(64));
        let limits = SchedulerLimits {
            step_rows_max: narrow(settings.prefill_rows_step),
            waiting_max: size(settings.worker_waiting),
            running_max: size(settings.prefill_running),
            held_max: HELD_MAX,
            window_interval: WINDOW_INTERVAL,
        };
        Self {
            seat: Seat::new(),
            pool: memory::pool(rank(Member::Prefill(place)), Tier::Device, blocks),
            scheduler: Scheduler::new(limits),
            limits,
            jobs: BTreeMap::new(),
            next_id: 0,
            chunks: Vec::new(),
            step_began: Timestamp(0),
            is_stepping: false,
            turn_entered: false,
            link: Link::new(settings.restore_host_ms),
            pace: Pace::new(settings.pace_by_rows, NEWEST, settings.prefill_rows_step),
            progress: 0,
            reported: None,
        }
    }

    /// A new life: nothing is held or in work.
    pub(super) fn restart(&mut self, place: usize) {
        let blocks = wide(self.pool.total());
        self.jobs = BTreeMap::new();
        self.pool = memory::pool(rank(Member::Prefill(place)), Tier::Device, blocks);
        self.scheduler = Scheduler::new(self.limits);
        (self.is_stepping, self.turn_entered) = (false, false);
        self.pace.forget();
        (self.progress, self.reported) = (0, None);
        self.chunks.clear();
    }

    /// Its load as it tells it.
    pub(super) fn load(&self) -> LoadReport {
        let load = self.scheduler.load();
        LoadReport {
            running: narrow(wide(load.running)),
            waiting: narrow(wide(load.waiting)),
            pending_rows: load.pending_rows,
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
    pub(super) fn prefill_happens(&mut self, place: usize, life: u64, happens: PrefillHappens) {
        let seat = &self.prefills[place].seat;
        if seat.life != life || !seat.alive {
            return;
        }
        if seat.is_frozen(self.now()) {
            let thaw = seat.frozen_until;
            return self.agenda.enter_at(thaw, Event::Prefill(place, life, happens));
        }
        self.touch(Member::Prefill(place));
        match happens {
            PrefillHappens::Turn => {
                self.prefills[place].turn_entered = false;
                self.prefill_turn(place);
            }
            PrefillHappens::StepOver => self.prefill_step_over(place),
            PrefillHappens::Onboarded(id) => self.onboarded(place, id),
        }
    }

    fn enter_prefill(&mut self, at: Timestamp, place: usize, happens: PrefillHappens) {
        let life = self.prefills[place].seat.life;
        self.agenda.enter_at(at, Event::Prefill(place, life, happens));
    }

    fn wake_prefill(&mut self, place: usize) {
        let side = &mut self.prefills[place];
        if !side.is_stepping && !side.turn_entered {
            side.turn_entered = true;
            let now = self.now();
            self.enter_prefill(now, place, PrefillHappens::Turn);
        }
    }

    /// A request comes in; none when the queue is full.
    pub(super) fn receive(&mut self, place: usize, visitor: Visitor) -> Option<PrefillId> {
        let now = self.now();
        let side = &mut self.prefills[place];
        let blocks = visitor.to / BLOCK_TOKENS;
        // Nobody can wait for slots that will never be there.
        if side.pool.total() < size(u64::from(blocks)) {
            return None;
        }
        let id = PrefillId(side.next_id);
        side.scheduler.submit(id, visitor.to - visitor.from, now).ok()?;
        side.next_id += 1;
        let job = PrefillJob {
            visitor,
            slots: Vec::new(),
            owned: Vec::new(),
            stored: Vec::new(),
            plan: None,
        };
        side.jobs.insert(id, job);
        self.touch(Member::Prefill(place));
        self.wake_prefill(place);
        Some(id)
    }

    /// Nobody needs a request any more.
    pub(super) fn release(&mut self, place: usize, life: u64, id: PrefillId) {
        let side = &mut self.prefills[place];
        if side.seat.life != life || !side.seat.alive {
            return;
        }
        side.scheduler.remove(id).expect("a visit is known until it is released");
        let job = side.jobs.remove(&id).expect("as above");
        side.pool.release(job.slots.into_iter().flatten().collect());
        self.touch(Member::Prefill(place));
        self.wake_prefill(place);
    }

    fn prefill_turn(&mut self, place: usize) {
        if self.prefills[place].is_stepping {
            return;
        }
        while let Some(id) = self.prefills[place].scheduler.next_waiting() {
            if !self.onboard(place, id) {
                break;
            }
        }
        let now = self.now();
        let settings = self.settings;
        let side = &mut self.prefills[place];
        side.scheduler.plan_step(&mut side.chunks);
        let rows: u32 = side.chunks.iter().map(|chunk| chunk.end - chunk.start).sum();
        if rows == 0 {
            return;
        }
        let computing = seconds(f64::from(rows) / settings.encoder_rows_per_s);
        let takes = (ms(settings.prefill_step_ms) + computing).max(Duration::from_nanos(1));
        (side.is_stepping, side.step_began) = (true, now);
        side.progress += u64::from(rows);
        side.pace.step(u64::from(rows), takes);
        self.measures.steps += 1;
        self.measures.rows += u64::from(rows);
        self.enter_prefill(now.after(takes), place, PrefillHappens::StepOver);
    }

    /// Reserves the slots of the head of the queue and begins to bring its cached prefix. False when slots are lacking.
    fn onboard(&mut self, place: usize, id: PrefillId) -> bool {
        let now = self.now();
        let side = &mut self.prefills[place];
        let job = &side.jobs[&id];
        let (to, all) = (job.visitor.to, Arc::clone(&job.visitor.names));
        let names = &all[..size(u64::from(to / BLOCK_TOKENS))];
        let slots: Vec<_> = names.iter().map(|name| side.pool.lookup(*name)).collect();
        let missing = slots.iter().filter(|slot| slot.is_none()).count();
        let Ok(owned) = side.pool.reserve(missing) else {
            side.pool.release(slots.into_iter().flatten().collect());
            return false;
        };
        side.scheduler.onboard(id, now);
        let Located { found: stored, at } = self.locate(names, |block| slots[block].is_none());
        let settings = self.settings;
        let side = &mut self.prefills[place];
        let leading = |there: &dyn Fn(usize) -> bool| {
            let count = (0..names.len()).take_while(|block| there(*block)).count();
            narrow(wide(count))
        };
        let measured = side.pace.rows_per_second();
        let rows = if 0.0 < measured { measured } else { settings.encoder_rows_per_s };
        let plan = plan_start(&StartQuery {
            role: StartRole::Prefill,
            geometry: GEOMETRY,
            lineage: Lineage::Bounded,
            bounded_rows: GEOMETRY.window,
            target: to,
            device_blocks: leading(&|block| slots[block].is_some()),
            reachable_blocks: leading(&|block| slots[block].is_some() || stored[block].is_some()),
            windows: &[],
            costs: costs(side.link.block_ms, rows),
        });
        let read = plan.fetch_blocks.clone();
        let read = wide(read.filter(|block| slots[size(u64::from(*block))].is_none()).count());
        let over = side.link.bring(at.max(now), read, settings.restore_host_ms);
        let job = side.jobs.get_mut(&id).expect("the head of the queue is known");
        (job.slots, job.owned, job.stored, job.plan) = (slots, owned, stored, Some(plan));
        self.enter_prefill(over.max(at), place, PrefillHappens::Onboarded(id));
        true
    }

    /// The cached prefix is here and announced; the rest is to be computed.
    fn onboarded(&mut self, place: usize, id: PrefillId) {
        let side = &mut self.prefills[place];
        // Who was cancelled meanwhile is gone.
        let Some(job) = side.jobs.get_mut(&id) else { return };
        let plan = job.plan.as_ref().expect("an onboarding request has a plan");
        let (first_row, blocks) = (plan.first_row(), size(u64::from(plan.start / BLOCK_TOKENS)));
        let mut origins = Vec::with_capacity(blocks);
        for block in 0..blocks {
            let origin = match (&job.slots[block], &job.stored[block]) {
                (Some(_), _) => Origin::Peer,
                (None, Some(Stored { tier: Tier::Host, .. })) => Origin::Host,
                (None, _) => Origin::Disk,
            };
            origins.push(Some(origin));
            if job.slots[block].is_none() {
                let slot = job.owned.pop().expect("one for each missing block");
                let name = job.visitor.names[block];
                job.slots[block] = Some(side.pool.seal(slot, memory::seal(name)));
            }
        }
        job.stored = Vec::new();
        let visitor = job.visitor.clone();
        side.scheduler.start(id, first_row..visitor.to);
        let from = size(u64::from(visitor.from / BLOCK_TOKENS));
        if from < blocks {
            self.announced(&visitor, from, &origins[from..]);
        }
        if first_row == visitor.to {
            self.complete(place, id, &visitor);
        }
        self.wake_prefill(place);
    }

    fn prefill_step_over(&mut self, place: usize) {
        let now = self.now();
        let side = &mut self.prefills[place];
        side.is_stepping = false;
        side.seat.busy += now.since(side.step_began);
        let chunks = std::mem::take(&mut side.chunks);
        for chunk in &chunks {
            self.chunk_over(place, chunk);
        }
        self.prefills[place].chunks = chunks;
        self.prefill_turn(place);
    }

    fn chunk_over(&mut self, place: usize, chunk: &Chunk) {
        let side = &mut self.prefills[place];
        let Some(job) = side.jobs.get_mut(&chunk.id) else { return };
        let begun = job.plan.as_ref().map_or(0, |plan| plan.start);
        let block = |tokens: u32| size(u64::from(tokens / BLOCK_TOKENS));
        // Rows below the start rebuild windows and write nothing.
        let sealed = block(chunk.start.max(begun))..block(chunk.end).max(block(begun));
        for block in sealed.clone() {
            if job.slots[block].is_none() {
                let slot = job.owned.pop().expect("one for each missing block");
                let name = job.visitor.names[block];
                job.slots[block] = Some(side.pool.seal(slot, memory::seal(name)));
            }
        }
        let visitor = job.visitor.clone();
        if !sealed.is_empty() {
            self.offer(visitor.number, sealed.clone());
        }
        let asked = sealed.start.max(block(visitor.from))..sealed.end;
        if !asked.is_empty() {
            self.announced(&visitor, asked.start, &vec![None; asked.len()]);
        }
        if chunk.end == visitor.to {
            self.complete(place, chunk.id, &visitor);
        }
    }

    fn complete(&mut self, place: usize, id: PrefillId, visitor: &Visitor) {
        self.prefills[place].scheduler.hold(id);
        assert_eq!(
            self.decodes[visitor.decode].seat.life, visitor.life,
            "a visit ends with its worker"
        );
        self.visit_over(visitor);
    }
}
