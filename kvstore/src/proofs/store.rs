//! The whole store under seeded schedules: host tier, drive, catalog, crashes, time, and a second node.
//!
//! The threads of the tiers are real, everything around them is not: the drive fails, waits and forgets as the schedule says
//! ([`super::drive`]), time stands still until it is moved, and after every step all threads wait for something, so that a
//! seed gives the same operations, faults and answers each time.
//!
//! After every step: what is found has the bytes of a version that was stored under its name; every block that a flush
//! acknowledged is on disk until its retention is over, over any number of crashes, unless it was damaged on purpose;
//! files and queues stay within their bounds; nothing leaked; no retention was violated.

mod life;
mod model;
mod node;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use shared::{BlockStore, Clock, LocateEvent, ManualClock, Miss, ObjectKey, ObjectKind, Random};
use shared::{OfferOutcome, RequestContext, Ticket};

use super::drive::{Lie, ReadFault, SimulatedDrive, WriteFault, free_files, segment_files};
use super::support::sending;
use crate::disk::DiskConfig;
use crate::disk::survey::{SegmentState, Survey};
use crate::disk::tests::Folder;
use crate::testing::{asked, next};
use crate::transport::{LocalTransport, LocalTransportConfig};
use model::Model;
use node::{Logs, Node, OBJECT_BYTES, Worker, name};

const SCHEDULES: u64 = 240;
/// Schedules at a time: most of each is waiting for threads and for the files of the catalog.
const LANES: u64 = 6;
/// Until a lie is found out; most schedules do.
const LYING_SCHEDULES: u64 = 12;
const STEPS: usize = 70;
/// Different blocks, and window objects: more than a store has slots.
const BLOCKS: u64 = 20;
const WINDOWS: u64 = 5;
/// How many versions of an object are told apart.
const VERSIONS: u64 = 4;
const LOOKUPS_MAX: usize = 3;
const RETENTION_S: u64 = 3_600;
const SEGMENT_BYTES: u64 = 1 << 16;
const PAGE: u64 = 4_096;
const FLUSH: Duration = Duration::from_secs(20);

struct World {
    seed: u64,
    generator: Random,
    clock: Arc<ManualClock>,
    transport: Arc<LocalTransport>,
    worker: Worker,
    folder: Folder,
    config: DiskConfig,
    drive: SimulatedDrive,
    /// None while it is down.
    node: Option<Node>,
    /// Has no drive.
    replica: Node,
    /// Of earlier steps, with what they pin.
    lookups: Vec<Ticket>,
    model: Model,
    logs: Logs,
    region_next: u64,
    /// What was done, and what came of it.
    history: Vec<String>,
}

/// A failed schedule tells what it did.
impl Drop for World {
    fn drop(&mut self) {
        self.drive.release();
        if thread::panicking() {
            println!("seed {} failed after:\n{}", self.seed, self.history.join("\n"));
        }
    }
}

impl World {
    fn new(seed: u64, drive: SimulatedDrive) -> Self {
        let mut generator = Random::new(seed);
        let transport = LocalTransport::start(LocalTransportConfig { queue_max: 64 }).unwrap();
        let (transport, clock) = (Arc::new(transport), Arc::new(ManualClock::new()));
        clock.advance(Duration::from_secs(1_000_000));
        let folder = Folder::in_memory();
        let segments = [12, 20, 48][generator.below(3)];
        let config = config(&folder, segments);
        let mut world = Self {
            seed,
            generator,
            worker: Worker::new(&transport),
            replica: Node::start(None, &transport, &clock, 10),
            clock,
            transport,
            folder,
            config,
            drive,
            node: None,
            lookups: Vec::new(),
            model: Model::new(),
            logs: Logs::new(),
            region_next: 20,
            history: vec![format!("{segments} segments")],
        };
        world.start();
        world
    }

    fn below(&mut self, bound: usize) -> usize {
        self.generator.below(bound)
    }

    fn node(&self) -> &Node {
        self.node.as_ref().expect("the store is up between steps")
    }

    fn tell(&mut self, text: String) {
        self.history.push(text);
    }

    /// Waits until all threads wait, and notes what the drive did until then.
    fn quiesce(&mut self) {
        self.node().quiesce(&self.drive);
        let mut faults = self.drive.take_log();
        // Two threads write it.
        faults.sort_unstable();
        self.history.extend(faults.into_iter().map(|fault| format!("    {fault}")));
    }

    fn key(&mut self) -> ObjectKey {
        let number = self.generator.word();
        if self.below(6) == 0 { window(1 + number % WINDOWS) } else { block(1 + number % BLOCKS) }
    }

    fn step(&mut self) {
        match self.below(40) {
            0..12 => self.offer(),
            12..18 => self.look_up(),
            18 => self.look_up_by_a_faulty_drive(),
            19 => self.look_up_by_a_slow_drive(),
            20 => {
                self.lookups.pop();
            }
            21..26 => self.flush(),
            26 => self.fail_a_write(),
            27 => self.damage(),
            28 | 29 => {
                let spared = self.below(5);
                self.drive.hold_writes(spared);
                self.tell(format!("hold the write after {spared}"));
            }
            30 | 31 => {
                self.drive.release();
                self.tell("release".to_owned());
            }
            32..35 => self.advance(),
            35 => {
                let memory = self.node().tier.evict_all();
                let drive = if self.below(8) == 0 { self.evict_disk() } else { 0 };
                self.tell(format!("evict {memory} from memory, {drive} from the drive"));
            }
            36 => self.exchange(),
            _ => self.restart(),
        }
        self.quiesce();
        self.check();
    }

    fn offer(&mut self) {
        let (key, version) = (self.key(), self.generator.word() % VERSIONS);
        let room = self.node().pool(key.kind).available();
        let held = self.worker.compute(key, version);
        let outcome = self.node().offer(held.descriptor());
        assert!(outcome != OfferOutcome::Dropped || room == 0, "{room} slots were there");
        if outcome == OfferOutcome::Stored {
            self.model.stored.entry(key).or_default().insert(version);
        }
        self.tell(format!("offer {} in version {version}: {outcome:?}", words(key)));
    }

    fn look_up(&mut self) {
        let keys: Vec<ObjectKey> = (0..1 + self.below(4)).map(|_| self.key()).collect();
        self.look_up_these(&keys, None);
    }

    /// Everything that must be found is, but for what the drive is told not to read.
    fn look_up_these(&mut self, keys: &[ObjectKey], unreadable: Option<ObjectKey>) -> Vec<Miss> {
        let node = self.node();
        let room = node.tier.blocks().available();
        let in_memory: Vec<bool> =
            keys.iter().map(|key| node.pool(key.kind).contains(key.name)).collect();
        let promised = self.promised();
        let (ticket, found) = node.locate(keys);
        let mut answers = Vec::new();
        for ((key, found), in_memory) in keys.iter().zip(&found).zip(in_memory) {
            let answer = match found {
                Ok(found) => Ok(self.node().read_found(*found)),
                Err(miss) => Err(*miss),
            };
            match answer {
                Ok(version) => self.check_version(*key, version),
                Err(miss) => {
                    let is_excused = match miss {
                        Miss::NoRoom => room < keys.len(),
                        Miss::TooSlow => self.model.slowed,
                        _ => Some(*key) == unreadable,
                    };
                    let must =
                        in_memory || number_of(*key).is_some_and(|it| promised.contains(&it));
                    assert!(!must || is_excused, "{} is not found: {miss:?}", words(*key));
                }
            }
            answers.push(format!("{} {answer:?}", words(*key)));
        }
        if self.lookups.len() < LOOKUPS_MAX && self.below(3) == 0 {
            self.lookups.push(ticket);
        }
        self.tell(format!("look up: {}", answers.join(", ")));
        found.into_iter().filter_map(Result::err).collect()
    }

    fn look_up_by_a_faulty_drive(&mut self) {
        let promised: Vec<u64> = self.promised().into_iter().collect();
        if promised.is_empty() {
            return;
        }
        let key = block(promised[self.below(promised.len())]);
        let faults =
            [ReadFault::Error(Errno::IO), ReadFault::Short, ReadFault::Flip, ReadFault::Again];
        let fault = faults[self.below(faults.len())];
        let _in_memory = self.node().tier.evict_all();
        self.drive.fail_reads(key.name, fault);
        let mut keys: BTreeSet<ObjectKey> = (0..self.below(4)).map(|_| self.key()).collect();
        keys.insert(key);
        let keys: Vec<ObjectKey> = keys.into_iter().collect();
        self.tell(format!("reads of {} fail: {fault:?}", words(key)));
        let unreadable = (fault != ReadFault::Again).then_some(key);
        let missed = self.look_up_these(&keys, unreadable);
        self.quiesce();
        self.drive.mend();
        if missed.contains(&Miss::Damaged) {
            self.model.given_up(number_of(key).expect("a block"));
        }
    }

    /// The answer comes late and without what the drive did not bring; that comes later.
    fn look_up_by_a_slow_drive(&mut self) {
        let keys: Vec<ObjectKey> = (0..2).map(|_| self.key()).collect();
        self.drive.hold_reads();
        let (sink, events) = sending();
        let node = self.node();
        let ticket = node.tier.locate(RequestContext::NONE, asked(&keys), sink);
        while events.is_empty() && !self.drive.reader_waits() {
            thread::yield_now();
        }
        let is_late = events.is_empty();
        if is_late {
            self.clock.advance(Duration::from_millis(self.config.onboard_ms_max + 1));
            // Any command makes the thread look at the clock.
            node.quiesce(&self.drive);
        }
        let LocateEvent { found, .. } = next(&events);
        for found in found.iter().flatten() {
            self.check_version(found.key, self.node().read_found(*found));
        }
        self.model.slowed |= is_late;
        self.drive.release();
        drop(ticket);
        self.tell(format!("look up by a slow drive: late {is_late}"));
    }

    fn check_version(&self, key: ObjectKey, version: u64) {
        let stored = self.model.stored.get(&key);
        let is_known = stored.is_some_and(|versions| versions.contains(&version));
        assert!(is_known, "{} was never stored in version {version}", words(key));
    }

    /// Makes everything durable; sometimes the store crashes in the middle of it.
    fn flush(&mut self) {
        if self.drive.writer_waits() {
            if self.below(2) == 0 {
                return self.crash();
            }
            self.drive.release();
        }
        let crashes = self.below(2) == 0;
        let disk = Arc::clone(self.node().disk.as_ref().expect("it has a drive"));
        let mut image = None;
        let flushed = thread::scope(|scope| {
            let flushing = scope.spawn(|| disk.flush(FLUSH));
            while !flushing.is_finished() && !self.drive.writer_waits() {
                thread::yield_now();
            }
            if self.drive.writer_waits() && crashes {
                image = Some(self.image());
            }
            self.drive.release();
            flushing.join().expect("a flush does not panic")
        });
        drop(disk);
        if let Some(image) = image {
            self.tell("crash in the middle of a flush".to_owned());
            return self.go_on_with(image);
        }
        self.tell(format!("flush: {flushed}"));
        if flushed {
            let disk = self.node.as_ref().and_then(|node| node.disk.as_ref());
            let is_held = |number| disk.is_some_and(|disk| disk.contains(name(number)));
            self.model.acknowledge(self.folder.path(), is_held);
        }
    }

    fn fail_a_write(&mut self) {
        let pages = self.below(3);
        let faults = [
            WriteFault::Error(Errno::IO),
            WriteFault::Error(Errno::NOSPC),
            WriteFault::Torn(pages),
            WriteFault::Short(pages),
            WriteFault::Again,
        ];
        let (spared, fault) = (self.below(4), faults[self.below(5)]);
        self.drive.fail_write(spared, fault);
        self.model.files_whole = false;
        self.tell(format!("fail the write after {spared}: {fault:?}"));
    }

    /// Flips a bit of a file behind the store's back: of a record, a header, or the end of a complete segment.
    fn damage(&mut self) {
        let survey = Survey::open(self.folder.path()).unwrap();
        let Some(number) =
            survey.numbers().get(self.generator.below(survey.numbers().len().max(1)))
        else {
            return;
        };
        let Some(segment) = survey.segment(*number) else { return };
        let blocks: Vec<_> = segment.blocks().collect();
        let (offset, page) = match self.below(8) {
            0 => (self.generator.word() % 100, None),
            1 if *segment.state() == SegmentState::Sealed => {
                let back = 1 + self.generator.word() % (2 * PAGE);
                (segment.file_bytes() - back, Some(0))
            }
            _ if blocks.is_empty() => return,
            _ => {
                let copy = &blocks[self.below(blocks.len())];
                let inside = self.generator.word() % u64::try_from(128 + OBJECT_BYTES).unwrap();
                (u64::from(copy.page) * PAGE + inside, Some(copy.page))
            }
        };
        let file = fs::File::options().read(true).write(true).open(survey.path(*number)).unwrap();
        let mut byte = [0];
        if file.read_exact_at(&mut byte, offset).is_err() {
            return;
        }
        byte[0] ^= 1 << self.below(8);
        file.write_all_at(&byte, offset).unwrap();
        self.model.damage((*number, page), blocks.iter());
        self.tell(format!("damage segment {number} at {offset}"));
    }

    fn evict_disk(&mut self) -> usize {
        self.model.evicted();
        self.node().tier.evict_disk()
    }

    fn advance(&mut self) {
        let most = [30, 300, RETENTION_S, 2 * RETENTION_S][self.generator.below(10).min(3)];
        let most = if most == 2 * RETENTION_S && self.below(3) != 0 { 900 } else { most };
        let seconds = 1 + self.generator.word() % most;
        self.clock.advance(Duration::from_secs(seconds));
        self.tell(format!("{seconds} s pass"));
    }

    /// One node offers to the other what it has.
    fn exchange(&mut self) {
        let key = self.key();
        let to_replica = self.below(2) == 0;
        let node = self.node();
        let (source, target) =
            if to_replica { (node, &self.replica) } else { (&self.replica, node) };
        let (ticket, found) = source.locate(&[key]);
        let (found, room) = (found[0].ok(), target.pool(key.kind).available());
        let outcome = found.map(|found| target.offer(found));
        drop(ticket);
        assert!(outcome != Some(OfferOutcome::Dropped) || room == 0, "{room} slots were there");
        let (_pins, found) = target.locate(&[key]);
        if let Some(found) = found.first().and_then(|found| found.ok()) {
            self.check_version(key, target.read_found(found));
        }
        self.tell(format!("exchange {}, to the replica {to_replica}: {outcome:?}", words(key)));
    }

    /// Every block on disk is read: what was promised is there, and nothing has wrong bytes.
    fn check_drive(&self) {
        let promised = self.promised();
        for number in 1..=BLOCKS {
            match self.node().read_disk(block(number)) {
                Some(version) => self.check_version(block(number), version),
                None => assert!(!promised.contains(&number), "block {number} is lost"),
            }
        }
    }

    fn promised(&self) -> BTreeSet<u64> {
        self.model.promised(self.clock.unix_seconds(), RETENTION_S)
    }

    fn check(&self) {
        let node = self.node();
        assert!(node.tier.is_running() && self.replica.tier.is_running());
        for audit in node.tier.audit().into_iter().chain(self.replica.tier.audit()) {
            assert_eq!((audit.leaked, audit.owned, audit.open_reads), (0, 0, 0), "{audit:?}");
        }
        let disk = node.disk.as_ref().expect("it has a drive");
        let stats = disk.stats();
        assert_eq!(stats.retention_violations, 0, "{stats:?}");
        assert_eq!((stats.catalog_errors, stats.dropped_corrupt), (0, 0), "{stats:?}");
        assert!(stats.file_bytes <= stats.file_bytes_max, "{stats:?}");
        let files =
            segment_files(self.folder.path()).into_iter().chain(free_files(self.folder.path()));
        let bytes: u64 = files.map(|path| fs::metadata(path).map_or(0, |it| it.len())).sum();
        assert!(bytes <= self.config.bytes_max, "{bytes} in files, {stats:?}");
        for number in self.promised() {
            assert!(disk.contains(name(number)), "block {number} is not on disk any more");
        }
    }
}

/// Small segments of six blocks; synced by flushes and by age alone, and never by the thread's own clock.
fn config(folder: &Folder, segments: u64) -> DiskConfig {
    DiskConfig {
        bytes_max: segments * SEGMENT_BYTES,
        segment_bytes: SEGMENT_BYTES,
        retention_s: RETENTION_S,
        queue_objects_max: 32,
        queue_bytes_max: 1 << 20,
        sync_ms: 60_000,
        readers: 1,
        reads_max: 32,
        onboard_ms_max: 60_000,
        scrub_mib_per_s: 0,
        catalog_cache_bytes: 1 << 20,
        catalog_write_buffer_bytes: 1 << 20,
        ..DiskConfig::in_folder(folder.path().to_owned())
    }
}

/// A block, or a piece of a media embedding, which a store keeps alike: every fourth number is one.
fn block(number: u64) -> ObjectKey {
    let kind = if number % 4 == 3 { ObjectKind::Media } else { ObjectKind::Block };
    ObjectKey { kind, name: name(number) }
}

fn window(number: u64) -> ObjectKey {
    ObjectKey { kind: ObjectKind::Window, name: name(number) }
}

/// The number of a block; None of a window object.
fn number_of(key: ObjectKey) -> Option<u64> {
    (1..=BLOCKS).find(|number| block(*number) == key)
}

fn words(key: ObjectKey) -> String {
    match number_of(key) {
        Some(number) => format!("block {number}"),
        None => format!("window {key:?}"),
    }
}

/// The bytes of a version of an object: those of no other version and no other object.
fn payload(key: ObjectKey, version: u64) -> Vec<u8> {
    let first = u64::from_be_bytes(key.name.0[..8].try_into().unwrap());
    let mut generator =
        Random::new(first ^ version ^ (u64::from(key.kind == ObjectKind::Window) << 40));
    let words = (0..OBJECT_BYTES / 8).flat_map(|_| generator.word().to_le_bytes());
    words.collect()
}

/// Those of every run, or those that the executable was told: `seeds=FIRST..END` behind the name of the test.
fn seeds() -> Range<u64> {
    let told = env::args().find_map(|argument| {
        let (first, end) = argument.strip_prefix("seeds=")?.split_once("..")?;
        Some(first.parse().ok()?..end.parse().ok()?)
    });
    told.unwrap_or(20_261_130..20_261_130 + SCHEDULES)
}

fn run(seed: u64) -> Vec<String> {
    run_on(SimulatedDrive::default(), seed)
}

fn run_on(drive: SimulatedDrive, seed: u64) -> Vec<String> {
    let mut world = World::new(seed, drive);
    for _ in 0..STEPS {
        world.step();
    }
    world.end()
}

#[test]
fn every_schedule_of_the_whole_store_keeps_what_was_acknowledged() {
    let seeds = seeds();
    println!("seeds {seeds:?}");
    thread::scope(|scope| {
        for lane in 0..LANES {
            let seeds = seeds.clone().filter(move |seed| seed % LANES == lane);
            scope.spawn(move || {
                for seed in seeds {
                    run(seed);
                }
            });
        }
    });
}

#[test]
fn a_seed_gives_the_same_schedule_each_time() {
    for seed in 20_261_201..20_261_205 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

/// Else a schedule would not notice a store that does not write or sync.
#[test]
fn a_drive_that_lies_is_found_out() {
    for lie in [Lie::Synced, Lie::Written] {
        let is_found_out = |seed: &u64| {
            let drive = SimulatedDrive::lying(lie);
            catch_unwind(AssertUnwindSafe(|| run_on(drive, *seed))).is_err()
        };
        let found = (1..=LYING_SCHEDULES).find(is_found_out);
        assert!(found.is_some(), "{lie:?} by none of {LYING_SCHEDULES}");
    }
}
