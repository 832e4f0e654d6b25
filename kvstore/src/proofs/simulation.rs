//! The host tier and its pools under seeded schedules, step by step.
//!
//! The tier's thread is real, everything around it is not: reads end when the schedule says so, time stands still until
//! it moves it, and after every step the thread is waited for, so that a seed is a schedule. Sources are real pools; the
//! drive is in the second test, real as well, and flushed before anything is asked of it.
//!
//! After every step: no slot leaked, exactly what the schedule holds is pinned, owned or open, and what is found is what
//! was stored, byte for byte.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use shared::{
    BlockStore, Clock, Descriptor, Durability, Flow, ManualClock, ObjectKey, ObjectKind,
    OfferEvent, OfferOutcome, Random, RequestContext, Sink, SlotIndex, Ticket, Timestamp,
};

use super::support::{Rig, VERSIONS, block, config, version_found, window};
use crate::disk::tests::{Folder, wiring};
use crate::disk::{DiskConfig, DiskTier};
use crate::host::HostTierConfig;
use crate::pool::{OwnedSlot, Pool, SealedSlot};
use crate::testing::{bytes_of, next, offers};
use crate::transport::{ReadDone, ReadError, ReadRequest, Transport};

const SCHEDULES: u64 = 1_200;
const DISK_SCHEDULES: u64 = 40;
const STEPS: usize = 60;
/// Different names; more than the tier has slots.
const NUMBERS: usize = 24;
const OFFERS_MAX: usize = 4;
const LOOKUPS_MAX: usize = 4;
const FLUSH: Duration = Duration::from_secs(20);

/// A transport whose reads end when the schedule says so.
#[derive(Default)]
struct Stage(Mutex<VecDeque<Batch>>);

struct Batch {
    reads: VecDeque<ReadRequest>,
    sink: Box<dyn Sink<ReadDone>>,
    cancelled: Arc<AtomicBool>,
}

impl Transport for Stage {
    fn read(
        &self,
        _: RequestContext,
        reads: Vec<ReadRequest>,
        sink: Box<dyn Sink<ReadDone>>,
    ) -> Ticket {
        if reads.is_empty() {
            return Ticket::empty();
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&cancelled);
        self.0.lock().push_back(Batch { reads: reads.into(), sink, cancelled });
        Ticket::new(move || flag.store(true, Ordering::SeqCst))
    }
}

/// An offer that is not over.
struct Offer {
    ticket: Option<Ticket>,
    /// What is offered, with its version; pinned while the ticket lives.
    objects: Vec<(Descriptor, u64)>,
    pins: Vec<SealedSlot>,
    answered: usize,
    until: Timestamp,
}

/// What an offer's sink says: an event, or that it is gone.
type Heard = (u64, Option<OfferEvent>);

struct OfferSink {
    number: u64,
    heard: Sender<Heard>,
    /// Events until it closes.
    left: usize,
}

impl Sink<OfferEvent> for OfferSink {
    fn emit(&mut self, event: OfferEvent) -> Flow {
        self.left -= 1;
        self.heard.send((self.number, Some(event))).unwrap();
        if self.left == 0 { Flow::Closed } else { Flow::Open }
    }
}

impl Drop for OfferSink {
    fn drop(&mut self) {
        // The schedule may be over before the tier lets go.
        let _ignored = self.heard.send((self.number, None));
    }
}

struct Lookup {
    found: Vec<Descriptor>,
    _ticket: Ticket,
}

struct Simulation {
    rig: Rig,
    disk: Option<Arc<DiskTier>>,
    stage: Arc<Stage>,
    generator: Random,
    offers: BTreeMap<u64, Offer>,
    offer_next: u64,
    heard: (Sender<Heard>, Receiver<Heard>),
    lookups: Vec<Lookup>,
    /// Which version of each key the tier took last.
    stored: BTreeMap<ObjectKey, BTreeSet<u64>>,
    /// When each window object was last used.
    used: BTreeMap<ObjectKey, Timestamp>,
    /// Descriptors of earlier lookups, most of them outdated.
    old: VecDeque<Descriptor>,
}

impl Simulation {
    fn new(seed: u64, disk: Option<Arc<DiskTier>>) -> Self {
        let stage = Arc::new(Stage::default());
        let config = HostTierConfig { queue_max: 8, ..config() };
        let handle = Arc::clone(&stage);
        let rig = Rig::new(disk.clone(), config, |_| handle);
        Self {
            rig,
            disk,
            stage,
            generator: Random::new(seed),
            offers: BTreeMap::new(),
            offer_next: 0,
            heard: unbounded(),
            lookups: Vec::new(),
            stored: BTreeMap::new(),
            used: BTreeMap::new(),
            old: VecDeque::new(),
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.generator.below(bound)
    }

    fn key(&mut self) -> ObjectKey {
        let number = u64::try_from(self.below(NUMBERS)).unwrap();
        if self.below(4) == 0 { window(number) } else { block(number) }
    }

    fn step(&mut self) {
        match self.below(20) {
            0..5 => self.offer(),
            5..12 => self.deliver(),
            12..15 => self.look_up(),
            15 => self.read(),
            16 => {
                let lookup = self.below(LOOKUPS_MAX);
                if lookup < self.lookups.len() {
                    drop(self.lookups.swap_remove(lookup));
                }
            }
            17 => self.withdraw(),
            18 => match self.below(4) {
                0 => _ = self.rig.tier.evict_all(),
                1 => {
                    let Rig { blocks, windows, media, .. } = &self.rig;
                    let _evicted = [blocks, windows, media].map(Pool::evict_all);
                }
                2 => self.lose(),
                _ => self.expire_all(),
            },
            _ => {
                let seconds = u64::try_from(self.below(25)).unwrap();
                self.advance(seconds);
            }
        }
        self.settle();
        self.check();
    }

    /// Computes objects and offers them, each name once.
    fn offer(&mut self) {
        if OFFERS_MAX <= self.offers.len() {
            return;
        }
        let keys: BTreeSet<ObjectKey> = (0..1 + self.below(5)).map(|_| self.key()).collect();
        let pins: Vec<SealedSlot> = keys
            .into_iter()
            .filter(|key| 0 < self.rig.pool(key.kind).available())
            .map(|key| {
                let version = self.generator.word() % VERSIONS;
                self.rig.compute(key, version)
            })
            .collect();
        let version = |slot: &SealedSlot| version_found(slot.name(), &bytes_of(slot), slot.exact());
        let objects: Vec<_> = pins.iter().map(|slot| (slot.descriptor(), version(slot))).collect();
        if objects.is_empty() {
            return;
        }
        let closes = if self.below(8) == 0 { 1 + self.below(objects.len()) } else { usize::MAX };
        let (number, heard) = (self.offer_next, self.heard.0.clone());
        self.offer_next += 1;
        let sink = OfferSink { number, heard, left: closes };
        let until = self.rig.clock.now().after(config().offer_wait_max);
        let offer = Offer { ticket: None, objects, pins, answered: 0, until };
        let descriptors: Vec<Descriptor> =
            offer.objects.iter().map(|(object, _)| *object).collect();
        self.offers.insert(number, offer);
        let ticket = self.rig.tier.offer(
            RequestContext::NONE,
            offers(&descriptors),
            Durability::Memory,
            Box::new(sink),
        );
        if let Some(offer) = self.offers.get_mut(&number) {
            offer.ticket = Some(ticket);
        }
    }

    /// Ends one read, honestly most of the time.
    fn deliver(&mut self) {
        let Some(mut batch) = self.stage.0.lock().pop_front() else { return };
        let ReadRequest { source, mut target } = batch.reads.pop_front().expect("never empty");
        let cancelled = batch.cancelled.load(Ordering::SeqCst);
        let result =
            if cancelled { Err(ReadError::Closed) } else { self.copy(source, &mut target) };
        let flow = batch.sink.emit(ReadDone { source, target, result });
        assert_eq!(flow == Flow::Closed, cancelled, "the tier hears what it waits for");
        if !batch.reads.is_empty() {
            self.stage.0.lock().push_front(batch);
        }
        if !cancelled {
            let heard = next(&self.heard.1);
            self.hear(heard);
        }
    }

    fn copy(&mut self, source: Descriptor, target: &mut OwnedSlot) -> Result<(), ReadError> {
        let fault = self.below(40);
        if fault == 0 {
            return Err(ReadError::Late { limit_ms: 1 });
        }
        // It claims to have read what it did not touch.
        if fault == 1 {
            return Ok(());
        }
        let open = self.rig.pool(source.key.kind).open(&source)?;
        let mut bytes = Vec::new();
        open.read(&mut |payload| bytes.extend_from_slice(payload));
        match fault {
            2 => bytes[self.below(30)] ^= 8,
            3 => bytes.truncate(11),
            4 => bytes.reverse(),
            _ => {}
        }
        target.write(&mut |slot| slot[..bytes.len()].copy_from_slice(&bytes));
        Ok(())
    }

    /// The transport breaks: a batch goes without an answer.
    fn lose(&mut self) {
        let Some(batch) = self.stage.0.lock().pop_front() else { return };
        let unanswered = if batch.cancelled.load(Ordering::SeqCst) { 0 } else { batch.reads.len() };
        drop(batch);
        // An offer that closes early stops listening.
        for _ in 0..unanswered {
            let heard = next(&self.heard.1);
            let over = heard.1.is_none();
            self.hear(heard);
            if over {
                break;
            }
        }
    }

    fn look_up(&mut self) {
        if LOOKUPS_MAX <= self.lookups.len() {
            return;
        }
        if let Some(disk) = &self.disk {
            assert!(disk.flush(FLUSH));
        }
        let keys: Vec<ObjectKey> = (0..1 + self.below(5)).map(|_| self.key()).collect();
        let (now, ttl) = (self.rig.clock.now(), config().window_ttl);
        let mut expected = Vec::new();
        for key in &keys {
            let fresh = key.kind != ObjectKind::Window
                || self.used.get(key).is_some_and(|used| now.since(*used) < ttl);
            let pool = match key.kind {
                ObjectKind::Block | ObjectKind::Media => self.rig.tier.blocks(),
                ObjectKind::Window => self.rig.tier.windows(),
            };
            expected.push(fresh && pool.contains(key.name));
        }
        let (ticket, found) = self.rig.locate(&keys);
        let there: Vec<bool> = found.iter().map(Option::is_some).collect();
        if self.disk.is_none() {
            assert_eq!(there, expected, "{keys:?}");
        } else {
            assert!(expected.iter().zip(&there).all(|(memory, there)| !memory || *there));
        }
        for found in found.iter().flatten() {
            let version = self.version(*found).expect("a found object is pinned");
            assert!(self.stored[&found.key].contains(&version), "{found:?} is version {version}");
            if found.key.kind == ObjectKind::Window {
                self.used.insert(found.key, now);
            }
            self.old.push_back(*found);
        }
        self.old.truncate(64);
        self.lookups.push(Lookup { found: found.into_iter().flatten().collect(), _ticket: ticket });
    }

    /// Reads something that was found, now or long ago: what is pinned can be read, the rest is right or stale.
    fn read(&mut self) {
        for found in self.lookups.iter().flat_map(|lookup| &lookup.found) {
            assert!(self.version(*found).is_some(), "{found:?} is pinned");
        }
        if let Some(old) = self.old.pop_front() {
            let _version: Option<u64> = self.version(old);
        }
    }

    /// The version that a descriptor opens.
    fn version(&self, source: Descriptor) -> Option<u64> {
        let pool = match source.key.kind {
            ObjectKind::Block | ObjectKind::Media => self.rig.tier.blocks(),
            ObjectKind::Window => self.rig.tier.windows(),
        };
        let open = pool.open(&source).ok()?;
        let mut bytes = Vec::new();
        open.read(&mut |payload| bytes.extend_from_slice(payload));
        Some(version_found(source.key.name, &bytes, source.exact))
    }

    /// Takes an offer back and unpins what it offered.
    fn withdraw(&mut self) {
        let index = self.below(OFFERS_MAX);
        if let Some(offer) = self.offers.values_mut().nth(index) {
            offer.ticket = None;
            offer.pins.clear();
        }
    }

    fn expire_all(&mut self) {
        self.advance(61);
    }

    fn advance(&mut self, seconds: u64) {
        self.rig.clock.advance(Duration::from_secs(seconds));
        // The thread waits by the time it knew; any command wakes it.
        self.barrier();
        let now = self.rig.clock.now();
        while self.offers.values().any(|offer| offer.until <= now) {
            let heard = next(&self.heard.1);
            self.hear(heard);
        }
    }

    /// One thing an offer's sink said.
    fn hear(&mut self, (number, event): Heard) {
        let Some(event) = event else {
            let offer = self.offers.remove(&number).expect("a sink drops once");
            assert!(offer.answered <= offer.objects.len());
            return;
        };
        let offer = self.offers.get_mut(&number).expect("no event after the end");
        let object = offer.objects.iter().find(|(object, _)| object.key == event.key);
        let (source, version) = *object.expect("an answer to an offered object");
        offer.answered += 1;
        if event.outcome == OfferOutcome::Stored {
            if self.disk.is_none() {
                self.stored.remove(&source.key);
            }
            self.stored.entry(source.key).or_default().insert(version);
            if source.key.kind == ObjectKind::Window {
                self.used.insert(source.key, self.rig.clock.now());
            }
        }
    }

    /// The thread has dealt with all commands so far and waits for a read, or for anything.
    fn barrier(&self) {
        let (_ticket, found) = self.rig.locate(&[window(u64::MAX / 64)]);
        assert_eq!(found, [None]);
    }

    fn settle(&mut self) {
        self.barrier();
        while let Ok(heard) = self.heard.1.try_recv() {
            self.hear(heard);
        }
    }

    /// The slots of the tier are where the schedule put them.
    fn check(&self) {
        let [blocks, windows] = self.rig.tier.audit();
        let found = || self.lookups.iter().flat_map(|lookup| &lookup.found);
        for (kind, audit) in [(ObjectKind::Block, blocks), (ObjectKind::Window, windows)] {
            let pinned: BTreeSet<SlotIndex> = found()
                .filter(|found| found.key.kind.slots() == kind)
                .map(|found| found.location.slot)
                .collect();
            let batches = self.stage.0.lock();
            let reads = batches.iter().flat_map(|batch| &batch.reads);
            let owned = reads.filter(|read| read.source.key.kind.slots() == kind).count();
            assert_eq!((audit.leaked, audit.owned, audit.open_reads), (0, owned, 0), "{audit:?}");
            // Blocks that wait to be written are pinned too.
            let enough = pinned.len() <= audit.pinned;
            assert!(enough && (self.disk.is_some() || pinned.len() == audit.pinned), "{audit:?}");
        }
        for pool in [&self.rig.blocks, &self.rig.windows, &self.rig.media] {
            assert_eq!(pool.audit().leaked, 0);
        }
    }

    /// Everything is let go of, in one order or another; nothing is left. Answers what was stored.
    fn end(mut self) -> BTreeMap<ObjectKey, BTreeSet<u64>> {
        self.lookups.clear();
        if self.below(3) != 0 {
            while !self.stage.0.lock().is_empty() {
                self.deliver();
                self.settle();
            }
            self.settle();
            assert!(self.offers.is_empty(), "every offer was answered");
            if let Some(disk) = &self.disk {
                assert!(disk.flush(FLUSH));
            }
            self.rig.assert_at_rest();
        }
        let Self { rig, disk, stage, offers, stored, .. } = self;
        let own = [&rig.blocks, &rig.windows, &rig.media];
        let pools = own.into_iter().chain([rig.tier.blocks(), rig.tier.windows()]);
        let pools: Vec<Pool> = pools.cloned().collect();
        drop((offers, rig));
        stage.0.lock().clear();
        drop(disk);
        for pool in pools {
            assert!(pool.audit().is_at_rest(), "{:?}", pool.audit());
        }
        stored
    }
}

#[test]
fn every_schedule_keeps_the_rules_of_the_store() {
    let first = 20_261_201;
    println!("seeds from {first} on");
    for seed in first..first + SCHEDULES {
        let mut simulation = Simulation::new(seed, None);
        for _ in 0..STEPS {
            simulation.step();
        }
        let _stored: BTreeMap<_, _> = simulation.end();
    }
}

#[test]
fn schedules_over_a_drive_keep_the_rules_and_survive_restarts() {
    let first = 20_261_202;
    println!("seeds from {first} on");
    for seed in first..first + DISK_SCHEDULES {
        let folder = Folder::new();
        let config = DiskConfig {
            bytes_max: 1 << 28,
            segment_bytes: 1 << 16,
            sync_ms: 60_000,
            onboard_ms_max: 60_000,
            ..DiskConfig::in_folder(folder.path().to_owned())
        };
        let mut stored = BTreeMap::new();
        for restart in 0..3 {
            let disk = DiskTier::start(&config, wiring(&Arc::new(ManualClock::new()))).unwrap();
            let mut simulation = Simulation::new(seed + restart * 1_000, Some(Arc::new(disk)));
            simulation.stored = stored;
            for _ in 0..STEPS / 2 {
                simulation.step();
            }
            stored = simulation.end();
        }
    }
}
