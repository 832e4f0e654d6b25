//! The processes of a schedule: a store with a drive, one without, and a worker that offers to both.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use crossbeam_channel::bounded;
use shared::{
    BlockName, BlockStore, Clock, Descriptor, Durability, Found, LocateEvent, ManualClock,
    Numerics, ObjectKey, ObjectKind, OfferEvent, OfferOutcome, Random, RegionId, RequestContext,
    SlotMemory, Ticket, Tier,
};

use super::super::drive::{Crash, SimulatedDrive};
use super::super::support::sending;
use super::{FLUSH, block, payload, window};
use crate::disk::{DiskConfig, DiskError, DiskRead, DiskTier, DiskWiring};
use crate::host::{HostTier, HostTierConfig, HostWiring};
use crate::memory::HostMemory;
use crate::pool::{OwnedSlot, Pool, PoolConfig, Seal, SealedSlot};
use crate::testing::{asked, next, offers};
use crate::transport::{LocalTransport, Transport};

/// Bytes of an object: two pages with its header, so that a record can be torn.
pub(super) const OBJECT_BYTES: usize = 6_000;
/// Slots of a store, of each kind.
const SLOTS: u64 = 12;
/// Nobody ever stores it.
const ABSENT: u64 = 999_999;

/// A store, with a drive or without one.
pub(super) struct Node {
    pub(super) tier: HostTier,
    pub(super) disk: Option<Arc<DiskTier>>,
    transport: Arc<LocalTransport>,
    /// Where blocks are read to past the host tier.
    target: Pool,
}

impl Node {
    /// Regions are used once.
    pub(super) fn start(
        disk: Option<Arc<DiskTier>>,
        transport: &Arc<LocalTransport>,
        clock: &Arc<ManualClock>,
        region: u64,
    ) -> Self {
        let bytes = u64::try_from(OBJECT_BYTES).unwrap();
        let config = HostTierConfig {
            block_bytes_max: SLOTS * bytes,
            window_bytes_max: SLOTS * bytes,
            ..HostTierConfig::DEFAULT
        };
        let wiring = HostWiring {
            block_slot_bytes: OBJECT_BYTES,
            window_slot_bytes: OBJECT_BYTES,
            block_region: RegionId(region),
            window_region: RegionId(region + 1),
            transport: Arc::clone(transport) as Arc<dyn Transport>,
            clock: Arc::clone(clock) as Arc<dyn Clock>,
            disk: disk.clone(),
            quotas: Arc::default(),
        };
        let tier = HostTier::start(&config, wiring).unwrap();
        for pool in [tier.blocks(), tier.windows()] {
            transport.register(pool).unwrap();
        }
        let target = pool(region + 2, 1, ObjectKind::Block);
        Self { tier, disk, transport: Arc::clone(transport), target }
    }

    pub(super) fn pool(&self, kind: ObjectKind) -> &Pool {
        match kind {
            ObjectKind::Block | ObjectKind::Media => self.tier.blocks(),
            ObjectKind::Window => self.tier.windows(),
        }
    }

    /// Offers one object, which the caller holds, and waits for the answer.
    pub(super) fn offer(&self, object: Descriptor) -> OfferOutcome {
        let (sink, events) = sending();
        let _ticket =
            self.tier.offer(RequestContext::NONE, offers(&[object]), Durability::Memory, sink);
        let event: OfferEvent = next(&events);
        event.outcome
    }

    /// Looks objects up, and waits for the answer.
    pub(super) fn locate(&self, keys: &[ObjectKey]) -> (Ticket, Vec<Found>) {
        let (sink, events) = sending();
        let ticket = self.tier.locate(RequestContext::NONE, asked(keys), sink);
        let event: LocateEvent = next(&events);
        (ticket, event.found)
    }

    /// Reads what a lookup found and still pins.
    pub(super) fn read_found(&self, found: Descriptor) -> u64 {
        let open = self.pool(found.key.kind).open(&found).expect("what was found is pinned");
        let mut bytes = Vec::new();
        open.read(&mut |payload| bytes.extend_from_slice(payload));
        version_of(found.key, &bytes)
    }

    /// Reads a block from the drive, past the host tier. None when it cannot be read.
    pub(super) fn read_disk(&self, key: ObjectKey) -> Option<u64> {
        let disk = self.disk.as_ref()?;
        let (done, answers) = bounded(1);
        let target = self.target.reserve(1).unwrap().pop().unwrap();
        disk.read(DiskRead { name: key.name, target }, &done).unwrap();
        let answer = next(&answers);
        let found = answer.result.ok()?;
        let seal = Seal { name: key.name, exact: found.exact, bytes: found.bytes };
        let sealed = self.target.seal_unnamed(answer.target, seal);
        let mut bytes = Vec::new();
        sealed.read(&mut |payload| bytes.extend_from_slice(payload));
        Some(version_of(key, &bytes))
    }

    /// Waits until all threads wait: for a command, or for a drive that holds them.
    pub(super) fn quiesce(&self, drive: &SimulatedDrive) {
        self.pass();
        if !drive.reader_waits() {
            assert_eq!(self.read_disk(block(ABSENT)), None);
            // What was read for lookups has arrived where it was to go.
            while self.tier.audit()[0].owned != 0 {
                thread::yield_now();
            }
            self.pass();
        }
        let Some(disk) = &self.disk else { return };
        while !drive.writer_waits() && 0 < disk.stats().queue_objects {
            thread::yield_now();
        }
    }

    /// Whatever the host tier was asked for before, it has done, what follows its answers included.
    fn pass(&self) {
        let _answered = self.locate(&[window(ABSENT)]);
    }

    /// Its pools, to be looked at when it is gone.
    pub(super) fn stop(self) -> [Pool; 2] {
        let pools = [ObjectKind::Block, ObjectKind::Window].map(|kind| self.pool(kind).clone());
        for pool in &pools {
            assert!(self.transport.unregister(pool.config().region));
        }
        pools
    }
}

/// Starts the drive's tier, mends the drive and waits until its threads wait.
///
/// # Errors
/// When the drive refuses.
pub(super) fn start_disk(
    config: &DiskConfig,
    clock: &Arc<ManualClock>,
    drive: &SimulatedDrive,
) -> Result<Arc<DiskTier>, DiskError> {
    let wiring = DiskWiring {
        block_bytes: OBJECT_BYTES,
        layout: [7; 32],
        numerics: Numerics("cpu-exact-1".into()),
        clock: Arc::clone(clock) as Arc<dyn Clock>,
        quotas: Arc::default(),
    };
    let started = DiskTier::start_on(config, wiring, |_| Arc::new(drive.clone()));
    drive.mend();
    let disk = started?;
    assert!(disk.flush(FLUSH));
    Ok(Arc::new(disk))
}

/// A worker's pools.
pub(super) struct Worker([Pool; 3]);

impl Worker {
    pub(super) fn new(transport: &LocalTransport) -> Self {
        let pools = [(1, ObjectKind::Block), (2, ObjectKind::Window), (3, ObjectKind::Media)];
        let pools = pools.map(|(region, kind)| pool(region, 4, kind));
        for pool in &pools {
            transport.register(pool).unwrap();
        }
        Self(pools)
    }

    /// Computes an object in this version, exact if that is even.
    pub(super) fn compute(&self, key: ObjectKey, version: u64) -> SealedSlot {
        let mut pools = self.0.iter();
        let pool = pools.find(|pool| pool.config().kind == key.kind).expect("one for each kind");
        let _forgotten = pool.evict_all();
        let mut slot: OwnedSlot = pool.reserve(1).unwrap().pop().unwrap();
        slot.write(&mut |bytes| bytes.copy_from_slice(&payload(key, version)));
        let bytes = u32::try_from(OBJECT_BYTES).unwrap();
        pool.seal(slot, Seal { name: key.name, exact: version.is_multiple_of(2), bytes })
    }

    pub(super) fn assert_at_rest(&self) {
        for pool in &self.0 {
            assert!(pool.audit().is_at_rest(), "{:?}", pool.audit());
        }
    }
}

fn pool(region: u64, slots: u32, kind: ObjectKind) -> Pool {
    let memory = Arc::new(HostMemory::with_slots(slots, OBJECT_BYTES).unwrap());
    let config = PoolConfig { region: RegionId(region), kind, tier: Tier::Device };
    Pool::new(config, memory as Arc<dyn SlotMemory>)
}

/// Which version of an object these bytes are. Fails when they are none.
fn version_of(key: ObjectKey, bytes: &[u8]) -> u64 {
    let version = (0..super::VERSIONS).find(|version| payload(key, *version) == bytes);
    version.unwrap_or_else(|| panic!("{key:?} has bytes that nobody stored under its name"))
}

/// The name of an object: one whose bytes stand nowhere by accident.
pub(super) fn name(number: u64) -> BlockName {
    let mut generator = Random::new(number);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&generator.word().to_be_bytes());
    bytes[8..].copy_from_slice(&generator.word().to_be_bytes());
    BlockName(bytes)
}

/// Lengths of the catalog's logs, by the names of their files. After a start all of that is durable.
pub(super) type Logs = BTreeMap<OsString, u64>;

pub(super) fn catalog_logs(folder: &Path) -> Logs {
    let entries = fs::read_dir(folder.join("catalog")).unwrap().map(|entry| entry.unwrap());
    let logs = entries.filter(|entry| entry.path().extension().is_some_and(|it| it == "log"));
    logs.map(|entry| (entry.file_name(), entry.metadata().unwrap().len())).collect()
}

/// Copies the catalog as a crash leaves it. Its log is in order, so that of what is not durable the end may be missing.
pub(super) fn crash_catalog(
    crash: Crash,
    durable: &Logs,
    (from, to): (&Path, &Path),
    generator: &mut Random,
) {
    let target = to.join("catalog");
    fs::create_dir(&target).unwrap();
    let lengths = catalog_logs(from);
    for entry in fs::read_dir(from.join("catalog")).unwrap() {
        let (path, file) = (entry.as_ref().unwrap().path(), entry.unwrap().file_name());
        let copy = target.join(&file);
        match fs::copy(path, &copy) {
            // The database removes files that it needs no more, when it finds the time.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => panic!("the catalog cannot be copied: {error}"),
            Ok(_) => {}
        }
        if crash == Crash::Machine
            && let Some(length) = lengths.get(&file)
        {
            let synced = durable.get(&file).copied().unwrap_or(0).min(*length);
            let open = usize::try_from(length - synced).unwrap();
            let kept = [0, open, generator.below(open + 1)][generator.below(3)];
            let cut = fs::File::options().write(true).open(copy).unwrap();
            cut.set_len(synced + u64::try_from(kept).unwrap()).unwrap();
        }
    }
}
