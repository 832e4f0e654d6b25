use std::collections::{BTreeMap, HashMap};

use shared::Timestamp;

use super::{Chunk, Phase, PrefillId, QueueFull, Scheduler, SchedulerLimits, SchedulerLoad};

const LIMITS: SchedulerLimits = SchedulerLimits {
    step_rows_max: 512,
    waiting_max: 4,
    running_max: 3,
    held_max: 3,
    window_interval: 1_024,
};

fn scheduler(step_rows_max: u32) -> Scheduler {
    Scheduler::new(SchedulerLimits { step_rows_max, ..LIMITS })
}

fn begin(scheduler: &mut Scheduler, id: u64, start: u32, to: u32) {
    scheduler.submit(PrefillId(id), to - start, Timestamp(0)).unwrap();
    assert_eq!(scheduler.next_waiting(), Some(PrefillId(id)));
    scheduler.onboard(PrefillId(id), Timestamp(0));
    scheduler.start(PrefillId(id), start..to);
}

/// Steps until nothing is left, as `(id, start, end)` per chunk.
fn steps(scheduler: &mut Scheduler) -> Vec<Vec<(u64, u32, u32)>> {
    let mut chunks = Vec::new();
    let mut steps = Vec::new();
    loop {
        scheduler.plan_step(&mut chunks);
        if chunks.is_empty() {
            return steps;
        }
        steps.push(chunks.iter().map(|chunk| (chunk.id.0, chunk.start, chunk.end)).collect());
    }
}

#[test]
fn one_request_gets_whole_steps_that_end_at_blocks_and_window_boundaries() {
    let cases = [
        (512, 0, 768, vec![(0, 512), (512, 768)]),
        (512, 56, 768, vec![(56, 512), (512, 768)]),
        (600, 184, 1_280, vec![(184, 768), (768, 1_024), (1_024, 1_280)]),
        (128, 100, 256, vec![(100, 128), (128, 256)]),
        (512, 512, 512, vec![]),
    ];
    for (step_rows_max, start, to, expected) in cases {
        let mut scheduler = scheduler(step_rows_max);
        begin(&mut scheduler, 7, start, to);
        let expected: Vec<_> = expected.iter().map(|&(start, end)| vec![(7, start, end)]).collect();
        assert_eq!(steps(&mut scheduler), expected, "[{start}, {to}) by {step_rows_max}");
    }
}

#[test]
fn a_short_prompt_is_not_stuck_behind_a_long_one() {
    let mut scheduler = scheduler(256);
    begin(&mut scheduler, 0, 0, 65_536);
    let mut chunks = Vec::new();
    scheduler.plan_step(&mut chunks);
    assert_eq!(chunks, [Chunk { id: PrefillId(0), start: 0, end: 256 }]);
    begin(&mut scheduler, 1, 0, 256);
    for start in [0, 128] {
        scheduler.plan_step(&mut chunks);
        let short = chunks.iter().find(|chunk| chunk.id == PrefillId(1)).copied();
        assert_eq!(short, Some(Chunk { id: PrefillId(1), start, end: start + 128 }));
    }
}

#[test]
fn a_turn_that_does_not_fit_keeps_its_place() {
    let mut scheduler = scheduler(200);
    begin(&mut scheduler, 0, 28, 256);
    begin(&mut scheduler, 1, 0, 256);
    let expected =
        [vec![(0, 28, 128)], vec![(1, 0, 128)], vec![(0, 128, 256)], vec![(1, 128, 256)]];
    assert_eq!(steps(&mut scheduler), expected);
}

#[test]
fn full_queue_rejects() {
    let mut scheduler = scheduler(512);
    for id in 0..4 {
        scheduler.submit(PrefillId(id), 128, Timestamp(0)).unwrap();
    }
    let refused = scheduler.submit(PrefillId(4), 128, Timestamp(0));
    assert_eq!(refused, Err(QueueFull { waiting: 4 }));
}

#[test]
fn start_is_first_come_first_served_and_bounded() {
    let mut scheduler = scheduler(512);
    for id in 0..4 {
        scheduler.submit(PrefillId(id), 128, Timestamp(id)).unwrap();
    }
    for id in 0..3 {
        assert_eq!(scheduler.next_waiting(), Some(PrefillId(id)));
        let waited = scheduler.onboard(PrefillId(id), Timestamp(10));
        assert_eq!(waited.as_nanos(), u128::from(10 - id));
    }
    assert_eq!(scheduler.next_waiting(), None, "three run");
    let load = SchedulerLoad { waiting: 1, running: 3, held: 0, pending_rows: 512 };
    assert_eq!(scheduler.load(), load);
    for id in 0..3 {
        scheduler.start(PrefillId(id), 128..128);
        scheduler.hold(PrefillId(id));
    }
    assert_eq!(scheduler.next_waiting(), None, "three are held");
    assert_eq!(scheduler.remove(PrefillId(1)), Some(Phase::Held));
    assert_eq!(scheduler.next_waiting(), Some(PrefillId(3)));
}

#[test]
fn a_request_can_be_removed_in_every_phase() {
    let mut scheduler = scheduler(512);
    for id in 0..4 {
        scheduler.submit(PrefillId(id), 128, Timestamp(0)).unwrap();
    }
    for id in 0..3 {
        scheduler.onboard(PrefillId(id), Timestamp(0));
    }
    scheduler.start(PrefillId(1), 0..128);
    scheduler.start(PrefillId(2), 128..128);
    scheduler.hold(PrefillId(2));
    let phases =
        [Some(Phase::Onboarding), Some(Phase::Computing), Some(Phase::Held), Some(Phase::Waiting)];
    for (id, phase) in (0..).zip(phases) {
        assert_eq!(scheduler.remove(PrefillId(id)), phase);
        assert_eq!(scheduler.remove(PrefillId(id)), None, "only once");
    }
    assert_eq!(scheduler.load(), SchedulerLoad::default());
}

/// A sequence of numbers that looks random and is the same for the same seed.
struct Noise(u64);

impl Noise {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The worker in miniature: a pool that is only a number, requests that finish, tickets that drop at any time.
struct World {
    scheduler: Scheduler,
    slots_free: u32,
    /// Blocks of each live request, and whether it owns them.
    live: BTreeMap<PrefillId, (u32, bool)>,
    /// Next row and last row of each computing request, and the step of its last turn.
    computing: HashMap<PrefillId, (u32, u32, u64)>,
    /// Requests in the order in which they were queued and not started.
    queue: Vec<PrefillId>,
}

const SLOTS: u32 = 64;

impl World {
    fn arrive(&mut self, id: PrefillId, blocks: u32, now: Timestamp) {
        match self.scheduler.submit(id, blocks * 128, now) {
            Ok(()) => {
                self.live.insert(id, (blocks, false));
                self.queue.push(id);
            }
            Err(QueueFull { waiting }) => assert_eq!(waiting, LIMITS.waiting_max),
        }
    }

    fn start_what_fits(&mut self, noise: &mut Noise, step: u64) {
        while let Some(id) = self.scheduler.next_waiting() {
            let (blocks, owns) = self.live[&id];
            assert!(!owns && self.queue[0] == id, "first come, first served");
            if self.slots_free < blocks {
                return;
            }
            self.slots_free -= blocks;
            self.live.insert(id, (blocks, true));
            self.queue.remove(0);
            self.scheduler.onboard(id, Timestamp(step));
            let start = u32::try_from(noise.below(u64::from(blocks) * 128 + 1)).unwrap();
            self.scheduler.start(id, start..blocks * 128);
            self.computing.insert(id, (start, blocks * 128, step));
        }
    }

    fn step(&mut self, chunks: &mut Vec<Chunk>, step: u64) {
        self.scheduler.plan_step(chunks);
        let rows: u32 = chunks.iter().map(|chunk| chunk.end - chunk.start).sum();
        assert!(rows <= LIMITS.step_rows_max);
        for chunk in chunks.iter() {
            let (next, to, last) = self.computing.get_mut(&chunk.id).unwrap();
            assert!(chunk.start == *next && chunk.start < chunk.end && chunk.end <= *to);
            assert_eq!(chunk.end % 128, 0);
            assert!(chunk.end <= (chunk.start + 1).next_multiple_of(LIMITS.window_interval));
            assert!(step - *last <= 2, "no request waits for its turn longer than the others take");
            (*next, *last) = (chunk.end, step);
        }
        let done = self.computing.iter().filter(|(_, (next, to, _))| next == to);
        for id in done.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.computing.remove(&id);
            self.scheduler.hold(id);
        }
    }

    fn drop_ticket(&mut self, id: PrefillId) {
        let (blocks, owns) = self.live.remove(&id).unwrap();
        let phase = self.scheduler.remove(id).unwrap();
        assert_eq!(owns, phase != Phase::Waiting);
        self.slots_free += if owns { blocks } else { 0 };
        self.computing.remove(&id);
        self.queue.retain(|&waiting| waiting != id);
    }

    fn check(&self) {
        let owned: u32 = self.live.values().filter(|(_, owns)| *owns).map(|(n, _)| n).sum();
        assert_eq!(owned + self.slots_free, SLOTS, "no slot is leaked");
        let load = self.scheduler.load();
        assert!(load.waiting <= LIMITS.waiting_max && load.running <= LIMITS.running_max);
        assert!(load.held <= LIMITS.held_max + LIMITS.running_max);
        assert_eq!(load.waiting + load.running + load.held, self.live.len());
    }
}

#[test]
fn random_arrivals_and_cancels_leak_nothing_and_starve_nobody() {
    for seed in 1..=200 {
        let mut noise = Noise(seed);
        let mut chunks = Vec::new();
        let mut world = World {
            scheduler: Scheduler::new(LIMITS),
            slots_free: SLOTS,
            live: BTreeMap::new(),
            computing: HashMap::new(),
            queue: Vec::new(),
        };
        for step in 0..400 {
            if step < 300 && noise.below(2) == 0 {
                let blocks = 1 + u32::try_from(noise.below(u64::from(SLOTS))).unwrap();
                world.arrive(PrefillId(step), blocks, Timestamp(step));
            }
            let drop_one = noise.below(8) == 0 || LIMITS.held_max <= world.scheduler.load().held;
            if drop_one && !world.live.is_empty() {
                let at = usize::try_from(noise.below(world.live.len() as u64)).unwrap();
                let id = *world.live.keys().nth(at).unwrap();
                world.drop_ticket(id);
            }
            world.start_what_fits(&mut noise, step);
            world.step(&mut chunks, step);
            world.check();
        }
        while let Some((&id, _)) = world.live.iter().next() {
            world.drop_ticket(id);
            world.check();
        }
        assert_eq!(world.slots_free, SLOTS, "seed {seed}");
        assert_eq!(world.scheduler.load(), SchedulerLoad::default(), "seed {seed}");
    }
}
