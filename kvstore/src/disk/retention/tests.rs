//! The decider over a simulated month, and the bound it rests on. Traffic is synthetic: its parameters are stated where it
//! is made, and come from no measurement.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::f64::consts::TAU;
use std::ops::Range;
use std::time::Duration;

use shared::{BlockName, ObjectKind, Random, TenantTag, Timestamp};

use super::{Limits, Retention, Reuse, blocks_per_segment};
use crate::disk::catalog::Entry;
use crate::disk::format::{PAGE, record_bytes, seal_bytes};
use crate::disk::queue::{Candidate, Queue, QueueBounds, Refused};
use crate::testing::name;

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;
const FLASH: u32 = 113_920;

#[test]
fn a_full_segment_is_paid_for() {
    for block_bytes in [1, 37, 4_000, 5_000, 60_000, FLASH] {
        for segment_bytes in [64 << 10, 1 << 20, 256 << 20, 16 << 30] {
            let Some(blocks) = blocks_per_segment(segment_bytes, block_bytes) else {
                assert!(segment_bytes < PAGE + record_bytes(block_bytes) + seal_bytes(1));
                continue;
            };
            let bytes = |blocks: u64| {
                let table = seal_bytes(usize::try_from(blocks).unwrap());
                PAGE + blocks * record_bytes(block_bytes) + table
            };
            assert!(bytes(blocks) <= segment_bytes && segment_bytes < bytes(blocks + 1));
            let limits = Limits::new(64 * segment_bytes, segment_bytes, block_bytes, 1).unwrap();
            assert!(bytes(blocks) <= blocks * limits.block_cost());
        }
    }
}

/// Random bursts, pauses and queues: no window of a retention ever takes more than the usable bytes.
#[test]
fn no_retention_ever_takes_more_than_the_usable_bytes() {
    for seed in 0..20 {
        let mut generator = Random::new(seed);
        let retention_s = [10, 1_000, 72 * HOUR][generator.below(3)];
        let limits = Limits::new(32 << 20, 1 << 20, FLASH, retention_s).unwrap();
        let mut retention = Retention::new(limits);
        let mut written: VecDeque<u64> = VecDeque::new();
        let (mut now, mut queued, mut most) = (0, 0, 0);
        for step in 0..20_000 {
            now += match generator.below(8) {
                0 => u64::try_from(generator.below(usize::try_from(retention_s).unwrap())).unwrap(),
                1..4 => retention_s / 1_000,
                _ => 0,
            };
            let reuse = [Reuse::Unknown, Reuse::Expected][generator.below(2)];
            queued += usize::from(retention.admits(name(step), reuse, queued, now));
            while 0 < queued && generator.below(3) != 0 {
                assert!(limits.block_cost() <= retention.budget_bytes(now), "it was set aside");
                retention.spend(1, now);
                written.push_back(now);
                queued -= 1;
            }
            while written.front().is_some_and(|at| at + retention_s < now) {
                written.pop_front();
            }
            let bytes = u64::try_from(written.len()).unwrap() * limits.block_cost();
            assert!(bytes <= limits.usable_bytes(), "seed {seed}, step {step}");
            most = most.max(bytes);
            if generator.below(500) == 0 {
                let blocks = written.iter().map(|at| (1, *at));
                retention.restart(blocks.collect::<Vec<_>>(), now);
            }
        }
        assert!(limits.usable_bytes() / 8 < most, "seed {seed}: the budget was used");
    }
}

#[test]
fn new_blocks_leave_half_of_the_budget_to_those_asked_for_before() {
    let limits = Limits::new(66 << 20, 1 << 20, FLASH, 72 * HOUR).unwrap();
    let mut retention = Retention::new(limits);
    let mut admitted = |reuse, numbers: Range<u64>, now| {
        let admitted = numbers.filter(|number| {
            let admitted = retention.admits(name(*number), reuse, 0, now);
            retention.spend(usize::from(admitted), now);
            admitted
        });
        admitted.count()
    };
    // 64 MiB are usable, 8 MiB are the burst; nine blocks fit a segment, so one costs 116,509 bytes.
    assert_eq!(admitted(Reuse::Unknown, 0..100, 0), 35);
    assert_eq!(admitted(Reuse::Unknown, 200..300, 0), 0);
    assert_eq!(admitted(Reuse::Unknown, 90..100, 0), 10, "they were refused before");
    assert_eq!(admitted(Reuse::Expected, 300..400, 0), 26);
    // Forty bytes are missing; 226.5 come in a second.
    assert_eq!(admitted(Reuse::Expected, 400..500, 0), 0);
    assert_eq!(admitted(Reuse::Expected, 400..500, 1), 1);
    assert_eq!(admitted(Reuse::Expected, 400..500, 514), 0);
    assert_eq!(admitted(Reuse::Expected, 400..500, 515), 1);
    assert_eq!(admitted(Reuse::Unknown, 600..700, 72 * HOUR), 35, "a full bucket again");
}

/// What the writer and the catalog do, without files: segments of 16 MiB in 1 GiB.
struct Disk {
    limits: Limits,
    admission: Queue,
    names: HashMap<BlockName, Entry>,
    segments: BTreeMap<u64, Segment>,
    segment: Option<(u64, u64, usize)>,
    segments_made: u64,
    queue: VecDeque<BlockName>,
    bytes_max: u64,
    outcome: Outcome,
}

struct Segment {
    bytes: u64,
    newest: u64,
    names: Vec<BlockName>,
}

#[derive(Debug, Default)]
struct Outcome {
    admitted: [u64; 2],
    refused: [u64; 2],
    reput: u64,
    expired_segments: u64,
    violations: usize,
    no_room: u64,
    hits: u64,
    misses: u64,
}

const SEGMENT: u64 = 16 << 20;
const RETENTION: u64 = 72 * HOUR;

impl Disk {
    fn new(bytes_max: u64) -> Self {
        let limits = Limits::new(bytes_max, SEGMENT, FLASH, RETENTION).unwrap();
        Self {
            limits,
            admission: Queue::new(Retention::new(limits)),
            names: HashMap::new(),
            segments: BTreeMap::new(),
            segment: None,
            segments_made: 0,
            queue: VecDeque::new(),
            bytes_max,
            outcome: Outcome::default(),
        }
    }

    /// Removes what is due, and checks that nothing else leaves.
    fn expire(&mut self, now: u64) {
        let limits = self.limits;
        let due = |segment: &Segment| limits.is_over(segment.newest, now);
        let expired: Vec<u64> =
            self.segments.iter().filter(|(_, row)| due(row)).map(|(number, _)| *number).collect();
        for number in expired {
            for name in self.segments.remove(&number).unwrap().names {
                let Some(entry) = self.names.get(&name).filter(|entry| entry.segment == number)
                else {
                    continue;
                };
                let early = !limits.is_over(entry.written_unix_seconds, now);
                self.outcome.violations += usize::from(early);
                self.names.remove(&name);
            }
            self.outcome.expired_segments += 1;
            self.segment = self.segment.filter(|(open, ..)| *open != number);
        }
    }

    fn file_bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum()
    }

    fn restart(&mut self, now: u64) {
        let written = self.segments.values().map(|segment| (segment.names.len(), segment.newest));
        self.admission.retention.restart(written, now);
    }

    fn write(&mut self, now: u64) {
        while let Some(name) = self.queue.pop_front() {
            self.write_one(name, now);
            self.admission.leave(name, FLASH);
        }
        assert!(self.file_bytes() <= self.bytes_max);
    }

    fn write_one(&mut self, name: BlockName, now: u64) {
        let full = |(_, end, records): &(u64, u64, usize)| {
            SEGMENT < end + record_bytes(FLASH) + seal_bytes(records + 1)
        };
        if let Some((number, end, records)) = self.segment.filter(full) {
            self.segments.get_mut(&number).unwrap().bytes = end + seal_bytes(records);
            self.segment = None;
        }
        if self.segment.is_none() {
            self.expire(now);
            if self.bytes_max - SEGMENT < self.file_bytes() {
                self.outcome.no_room += 1;
                return;
            }
            self.segments_made += 1;
            let made = Segment { bytes: PAGE, newest: now, names: Vec::new() };
            self.segments.insert(self.segments_made, made);
            self.segment = Some((self.segments_made, PAGE, 0));
        }
        let (segment, end, records) = self.segment.unwrap();
        let entry = Entry {
            segment,
            page: u32::try_from(end / PAGE).unwrap(),
            bytes: FLASH,
            checksum: 0,
            exact: true,
            kind: ObjectKind::Block,
            written_unix_seconds: now,
            tenant: TenantTag::NONE,
            sealed: false,
        };
        self.outcome.reput += u64::from(self.names.insert(name, entry).is_some());
        let end = end + record_bytes(FLASH);
        let row = self.segments.get_mut(&segment).unwrap();
        (row.bytes, row.newest) = (end, now);
        row.names.push(name);
        self.admission.retention.spend(1, now);
        self.segment = Some((segment, end, records + 1));
    }

    fn offer(&mut self, name: BlockName, reuse: Reuse, now: u64) {
        let bounds = QueueBounds { objects: 1 << 20, bytes: u64::MAX };
        let held = self.names.get(&name).copied();
        let candidate = Candidate {
            name,
            bytes: FLASH,
            reuse,
            unix_seconds: now,
            held,
            tenant: TenantTag::NONE,
            tenant_bytes: 0,
            tenant_bytes_max: 0,
        };
        let class = usize::from(reuse == Reuse::Expected);
        match self.admission.admit(candidate, bounds, Timestamp(0)) {
            Ok(_) => {
                self.outcome.admitted[class] += 1;
                self.queue.push_back(name);
            }
            Err(Refused::Budget) => self.outcome.refused[class] += 1,
            Err(Refused::Known) => {}
            Err(Refused::Full | Refused::Suspended | Refused::Quota) => {
                unreachable!("there is room")
            }
        }
    }

    /// A prompt whose first `known` blocks were computed before. What is found is read, the rest is computed.
    fn serve(&mut self, names: &[BlockName], known: usize, now: u64) {
        for (index, name) in names.iter().enumerate() {
            if self.names.contains_key(name) {
                self.outcome.hits += 1;
                self.offer(*name, Reuse::Expected, now);
            } else {
                self.outcome.misses += u64::from(index < known);
                self.offer(*name, Reuse::Unknown, now);
            }
        }
    }
}

/// Exponential with this mean, and log-normal with this median and shape.
fn exponential(generator: &mut Random, mean: f64) -> f64 {
    -mean * unit(generator).ln()
}

fn log_normal(generator: &mut Random, median: f64, shape: f64) -> f64 {
    let (radius, angle) = (unit(generator), unit(generator));
    let normal = (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos();
    median * (shape * normal).exp()
}

/// Above 0, at most 1.
fn unit(generator: &mut Random) -> f64 {
    let bits = u32::try_from(generator.word() >> 32).unwrap();
    (f64::from(bits) + 1.0) / 4_294_967_296.0
}

fn whole(value: f64) -> u64 {
    Duration::from_secs_f64(value.min(1e9)).as_secs()
}

/// Thirty days of conversations. They arrive as a Poisson process, one in `mean_s` seconds on average, twice as often at
/// noon as on average and never at midnight; a turn adds a log-normal number of blocks, 8 in the median with shape 1.2,
/// at most 256; three of four turns are followed by another one, after a log-normal time of one hour in the median with
/// shape 2 (one in six after more than seven hours, one in seventy after more than 72).
fn month(seed: u64, mean_s: f64, restarts: bool) -> Outcome {
    let mut generator = Random::new(seed);
    let mut disk = Disk::new(1 << 30);
    let mut conversations: Vec<Vec<BlockName>> = Vec::new();
    let mut turns: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut arrival = 0.0;
    let mut kept: VecDeque<(u64, BlockName)> = VecDeque::new();
    let (mut names, mut restarted) = (0, 0);
    while whole(arrival) < 30 * DAY {
        let now = turns.peek().map_or(u64::MAX, |Reverse((at, _))| *at).min(whole(arrival));
        disk.expire(now);
        disk.write(now);
        while kept.front().is_some_and(|(written, _)| written + RETENTION < now) {
            kept.pop_front();
        }
        if restarted + DAY / 3 < now {
            if restarts {
                disk.restart(now);
            }
            assert!(kept.iter().all(|(_, name)| disk.names.contains_key(name)));
            restarted = now;
        }
        let conversation = if let Some(Reverse((_, number))) =
            turns.peek().copied().filter(|Reverse((at, _))| *at == now)
        {
            turns.pop();
            number
        } else {
            arrival += exponential(&mut generator, mean_s / 2.0);
            let hour = TAU * arrival / 86_400.0;
            if (1.0 - hour.cos()) / 2.0 < unit(&mut generator) {
                continue;
            }
            conversations.push(Vec::new());
            conversations.len() - 1
        };
        let known = conversations[conversation].len();
        let added = whole(log_normal(&mut generator, 8.0, 1.2)).clamp(1, 256);
        conversations[conversation].extend((names..names + added).map(name));
        names += added;
        let queued = disk.queue.len();
        disk.serve(&conversations[conversation], known, now);
        // Written a moment later, in the same second: the queue is looked at here.
        kept.extend(disk.queue.iter().skip(queued).map(|name| (now, *name)));
        disk.write(now);
        if unit(&mut generator) < 0.75 {
            let pause = whole(log_normal(&mut generator, 3_600.0, 2.0)).max(1);
            turns.push(Reverse((now + pause, conversation)));
        }
    }
    disk.outcome
}

#[test]
fn thirty_days_of_traffic_break_no_promise() {
    // New blocks a second at one conversation a second: about 4 turns of 16 blocks. The budget takes 0.029 a second.
    for (seed, mean_s) in [(1, 25_000.0), (2, 2_500.0), (3, 1_200.0), (4, 300.0)] {
        for restarts in [false, true] {
            let outcome = month(seed, mean_s, restarts);
            let what = format!("seed {seed}, one in {mean_s} s: {outcome:?}");
            assert_eq!((outcome.violations, outcome.no_room), (0, 0), "{what}");
            let refused = outcome.refused.iter().sum::<u64>();
            match seed {
                1 => assert_eq!(refused, 0, "a light load is admitted whole; {what}"),
                4 => assert!(outcome.admitted.iter().sum::<u64>() < refused, "{what}"),
                _ => {}
            }
            assert!(0 < outcome.reput && 40 < outcome.expired_segments, "{what}");
        }
    }
}
