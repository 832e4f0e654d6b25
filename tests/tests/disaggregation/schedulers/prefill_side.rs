//! A prefill worker in virtual time around the real scheduler: its pool is a number, its blocks are counted.

use std::collections::BTreeMap;
use std::ops::Range;

use decode::SequenceKey;
use prefill::{Chunk, Phase, PrefillId, Scheduler, SchedulerLimits, SchedulerLoad};
use shared::{BLOCK_TOKENS, Random, Timestamp};

/// What a visit announced in one go.
pub(super) struct Announced {
    pub(super) id: PrefillId,
    pub(super) key: SequenceKey,
    pub(super) blocks: Range<u32>,
    /// Whether everything up to S is announced now.
    pub(super) finished: bool,
}

/// One request of the decode worker.
struct Visit {
    key: SequenceKey,
    /// Blocks of `[0, S)`.
    blocks: u32,
    /// First block the decode worker wants.
    wanted: u32,
    /// Whether it owns its slots.
    owns: bool,
    /// First row not computed, once it computes.
    next: Option<u32>,
    announced: u32,
    reads_open: u32,
}

pub(super) struct PrefillSide {
    scheduler: Scheduler,
    limits: SchedulerLimits,
    slots: u32,
    visits: BTreeMap<PrefillId, Visit>,
    /// Slots under open reads of visits that are over.
    lingering: BTreeMap<PrefillId, u32>,
    newest: u64,
    chunks: Vec<Chunk>,
}

impl PrefillSide {
    pub(super) fn new(draws: &mut Random) -> Self {
        let mut bound = |low, high| usize::try_from(draws.between(low, high)).unwrap();
        let limits = SchedulerLimits {
            waiting_max: bound(1, 4),
            running_max: bound(1, 3),
            held_max: bound(1, 3),
            step_rows_max: draws.between(128, 600),
            window_interval: 128 * draws.between(1, 8),
        };
        Self {
            scheduler: Scheduler::new(limits),
            limits,
            slots: draws.between(6, 20),
            visits: BTreeMap::new(),
            lingering: BTreeMap::new(),
            newest: 0,
            chunks: Vec::new(),
        }
    }

    /// Asks for blocks `wanted..blocks`; none when it is refused.
    pub(super) fn submit(
        &mut self,
        key: SequenceKey,
        wanted: Range<u32>,
        now: Timestamp,
    ) -> Option<PrefillId> {
        if self.slots < wanted.end {
            return None;
        }
        self.newest += 1;
        let id = PrefillId(self.newest);
        let rows = (wanted.end - wanted.start) * BLOCK_TOKENS;
        if let Err(full) = self.scheduler.submit(id, rows, now) {
            assert_eq!(full.waiting, self.limits.waiting_max);
            return None;
        }
        let visit = Visit {
            key,
            blocks: wanted.end,
            wanted: wanted.start,
            owns: false,
            next: None,
            announced: 0,
            reads_open: 0,
        };
        self.visits.insert(id, visit);
        Some(id)
    }

    /// Takes visits whose slots are there; their cached prefix is on its way.
    pub(super) fn admit(&mut self, now: Timestamp) -> Vec<PrefillId> {
        let mut admitted = Vec::new();
        while let Some(id) = self.scheduler.next_waiting() {
            let first = self.visits.iter().find(|(_, visit)| !visit.owns);
            assert_eq!(first.map(|(first, _)| *first), Some(id), "first come, first served");
            if self.slots < self.used() + self.visits[&id].blocks {
                break;
            }
            self.scheduler.onboard(id, now);
            self.visits.get_mut(&id).expect("the scheduler names known ones").owns = true;
            admitted.push(id);
        }
        admitted
    }

    /// The cached prefix is there: `cached` blocks, `replayed` rows below it are computed again.
    pub(super) fn onboarded(&mut self, id: PrefillId, draws: &mut Random) -> Option<Announced> {
        let visit = self.visits.get_mut(&id)?;
        let cached = draws.between(0, visit.blocks) * BLOCK_TOKENS;
        let replayed = draws.between(0, cached.min(200));
        visit.next = Some(cached - replayed);
        self.scheduler.start(id, cached - replayed..visit.blocks * BLOCK_TOKENS);
        Some(self.announce(id, cached / BLOCK_TOKENS))
    }

    /// One step: rows in order, chunks that end where a window object can be taken.
    pub(super) fn step(&mut self) -> Vec<Announced> {
        let mut chunks = std::mem::take(&mut self.chunks);
        self.scheduler.plan_step(&mut chunks);
        let rows: u32 = chunks.iter().map(|chunk| chunk.end - chunk.start).sum();
        assert!(rows <= self.limits.step_rows_max);
        let mut announced = Vec::new();
        for chunk in &chunks {
            let visit = self.visits.get_mut(&chunk.id).expect("only known ones have rows");
            assert_eq!(visit.next, Some(chunk.start), "no row twice, none left out");
            assert!(chunk.start < chunk.end && chunk.end <= visit.blocks * BLOCK_TOKENS);
            assert!(chunk.end.is_multiple_of(BLOCK_TOKENS));
            let interval = self.limits.window_interval;
            assert!(chunk.end <= (chunk.start + 1).next_multiple_of(interval));
            visit.next = Some(chunk.end);
            // Rows of a replay complete blocks that were announced before.
            let sealed = visit.announced.max(chunk.end / BLOCK_TOKENS);
            announced.push(self.announce(chunk.id, sealed));
        }
        self.chunks = chunks;
        announced
    }

    fn announce(&mut self, id: PrefillId, sealed: u32) -> Announced {
        let visit = self.visits.get_mut(&id).expect("checked by the callers");
        let blocks = visit.announced.max(visit.wanted)..sealed.max(visit.wanted);
        visit.announced = sealed;
        let finished = visit.next == Some(visit.blocks * BLOCK_TOKENS);
        if finished {
            self.scheduler.hold(id);
        }
        Announced { id, key: visit.key, blocks, finished }
    }

    pub(super) fn read_begins(&mut self, id: PrefillId) {
        let visit = self.visits.get_mut(&id).expect("only announced blocks are read");
        assert!(visit.owns, "a block lies in a slot");
        visit.reads_open += 1;
    }

    /// A read is over. One of a worker that died is unknown.
    pub(super) fn read_ends(&mut self, id: PrefillId) {
        if let Some(visit) = self.visits.get_mut(&id) {
            visit.reads_open -= 1;
        } else if let Some(open) = self.lingering.get_mut(&id) {
            *open -= 1;
        }
    }

    /// The ticket drops: slots are back, but for those under open reads.
    pub(super) fn release(&mut self, id: PrefillId) {
        let Some(visit) = self.visits.remove(&id) else { return };
        let phase = self.scheduler.remove(id).expect("known until its ticket drops");
        assert_eq!(visit.owns, phase != Phase::Waiting);
        assert_eq!(self.scheduler.remove(id), None, "only once");
        self.lingering.insert(id, visit.reads_open);
    }

    /// The process dies and another takes its place. Answers the visits that are lost.
    pub(super) fn die(&mut self) -> Vec<(PrefillId, SequenceKey)> {
        self.scheduler = Scheduler::new(self.limits);
        self.lingering.clear();
        std::mem::take(&mut self.visits).into_iter().map(|(id, visit)| (id, visit.key)).collect()
    }

    fn used(&self) -> u32 {
        let owned = self.visits.values().filter(|visit| visit.owns).map(|visit| visit.blocks);
        owned.chain(self.lingering.values().copied()).sum()
    }

    pub(super) fn check(&self) {
        assert!(self.used() <= self.slots, "a slot beyond the pool");
        let load = self.scheduler.load();
        assert!(load.waiting <= self.limits.waiting_max && load.running <= self.limits.running_max);
        assert!(load.held < self.limits.held_max + self.limits.running_max);
        assert_eq!(load.waiting + load.running + load.held, self.visits.len());
    }

    pub(super) fn check_end(&self) {
        assert_eq!(self.used(), 0, "leaked slots of prefill");
        assert_eq!(self.scheduler.load(), SchedulerLoad::default());
    }
}
