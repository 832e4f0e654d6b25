//! Lookups: what is held is pinned at once, what lies on disk is brought into host memory first, for a while.
//!
//! A block is read from disk once, however many lookups want it. A lookup is answered when all its blocks came, when its
//! time is over, or at once when there is nothing to wait for. What comes too late stays cached for the next lookup. A
//! ticket that drops unpins what its lookup has; reads under way end by themselves and leave their blocks cached.
//!
//! What is not found is answered with the reason, as far as it is remembered: of blocks that were stored here lately it is
//! known how they were kept.
//!
//! Reads decide: what the drive could not bring within the time of a lookup, as busy and as fast as it is now, is answered
//! as not found at once; the same holds for the object store below it. Then a block is read now and then that nobody waits for, to notice when the drive is fast again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, never};
use parking_lot::Mutex;
use shared::{
    BlockName, Brought, Descriptor, Flow, Found, Generation, LocateEvent, Location, Miss,
    ObjectKey, ObjectKind, RequestContext, Sink, TenantTag, Timestamp,
};

use super::owners::Owners;
use super::stats::{Counters, count};
use super::{Common, Pools};
use crate::disk::{
    Ack, Below, DiskLoad, DiskRead, DiskReadDone, DiskReadError, DiskTier, Put, Taken,
};
use crate::pool::SealedSlot;
use crate::recent::Recent;

/// Blocks whose fate is remembered, for each slot of host memory.
const REMEMBERED_PER_SLOT: usize = 4;

/// How often a drive that is too slow for lookups is tried.
const TRIAL_INTERVAL: Duration = Duration::from_secs(1);

/// Where a store node has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPlace {
    /// In host memory.
    Memory,
    /// On the drive alone.
    Drive,
    /// Nowhere, and why, as far as that is remembered.
    Missing(Miss),
}

/// A lookup that waits for its turn.
pub(super) struct Lookup {
    pub(super) context: RequestContext,
    pub(super) keys: Vec<ObjectKey>,
    pub(super) sink: Box<dyn Sink<LocateEvent>>,
    pub(super) pins: Arc<Mutex<Pins>>,
}

/// What a lookup pins; shared with its ticket.
pub(super) enum Pins {
    /// Its turn has not come.
    Waiting,
    /// What was found so far, one place per key.
    Held(Vec<Option<SealedSlot>>),
    /// The ticket dropped.
    Released,
}

/// Ends a lookup: unpins, last object first, or keeps a waiting lookup from pinning.
pub(super) fn release(pins: &Mutex<Pins>) {
    let before = std::mem::replace(&mut *pins.lock(), Pins::Released);
    if let Pins::Held(mut slots) = before {
        while let Some(slot) = slots.pop() {
            drop(slot);
        }
    }
}

/// All lookups whose turn has come and that are not answered yet.
pub(super) struct Lookups {
    pools: Pools,
    counters: Arc<Counters>,
    owners: Arc<Mutex<Owners>>,
    disk: Option<Disk>,
    /// Who waits for each block being read. At most `reads_max` blocks.
    reading: HashMap<BlockName, Reading>,
    /// By number, so by age: all wait equally long. At most `onboard_lookups_max`.
    pending: BTreeMap<u64, Pending>,
    number_next: u64,
    /// When a drive that is too slow is tried next, and when the object store is.
    trial_at: [Timestamp; 2],
    /// How the blocks that were stored last were kept, those that left included.
    kept: Recent<Kept>,
}

/// How a block was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// In memory alone.
    Memory,
    /// In memory, and the write budget of the drive left nothing for it.
    NotAdmitted,
    /// On the drive too, or on the way there.
    Drive,
    /// On the drive, where it could not be read.
    Damaged,
}

/// The tier below.
struct Disk {
    tier: Arc<DiskTier>,
    done: Sender<DiskReadDone>,
    wait_max: Duration,
    /// Blocks that may wait to be written.
    writes_max: usize,
}

/// A block that is being read.
struct Reading {
    places: Vec<Place>,
    /// Its number among what began: tells whether its tenant was evicted since.
    began: u64,
}

/// One key of a lookup.
#[derive(Clone, Copy)]
struct Place {
    lookup: u64,
    key: usize,
    kind: ObjectKind,
}

struct Pending {
    context: RequestContext,
    found: Vec<Found>,
    sink: Box<dyn Sink<LocateEvent>>,
    pins: Arc<Mutex<Pins>>,
    /// Blocks that may still come.
    missing: usize,
    brought: Brought,
    answer_at: Timestamp,
}

impl Lookups {
    /// The lookups, and where the answers of the disk arrive, to be handed to [`Lookups::settle`].
    pub(super) fn new(
        common: Common,
        disk: Option<Arc<DiskTier>>,
    ) -> (Self, Receiver<DiskReadDone>) {
        let Common { pools, counters, owners } = common;
        let (disk, answers) = match disk {
            None => (None, never()),
            Some(tier) => {
                let config = tier.config();
                let (done, answers) = bounded(config.reads_max);
                let wait_max = Duration::from_millis(config.onboard_ms_max);
                let writes_max = (pools.blocks.total() / 2).max(1);
                (Some(Disk { tier, done, wait_max, writes_max }), answers)
            }
        };
        let remembered = pools.blocks.total().saturating_mul(REMEMBERED_PER_SLOT);
        let lookups = Self {
            kept: Recent::new(remembered),
            pools,
            counters,
            owners,
            disk,
            reading: HashMap::new(),
            pending: BTreeMap::new(),
            number_next: 0,
            trial_at: [Timestamp(0); 2],
        };
        (lookups, answers)
    }

    /// Begins a lookup, answers it if nothing is to be waited for, and returns the window objects it found. What is in memory
    /// is answered before the drive is asked for anything.
    pub(super) fn begin(&mut self, lookup: Lookup, now: Timestamp) -> Vec<Descriptor> {
        let (mut found, blocks): (Vec<Found>, Vec<SealedSlot>) = {
            let mut pins = lookup.pins.lock();
            if matches!(*pins, Pins::Released) {
                return Vec::new();
            }
            let keys = lookup.keys.iter();
            let held = keys.map(|key| {
                let slot = self.pools.of(key.kind).lookup(key.name)?;
                (slot.descriptor().key == *key).then_some(slot)
            });
            let slots: Vec<Option<SealedSlot>> = held.collect();
            let held = slots.iter().flatten();
            let on_disk = |slot: &&SealedSlot| {
                self.disk.is_some() && slot.descriptor().key.kind.goes_to_disk()
            };
            let blocks = held.filter(on_disk).cloned().collect();
            let found = lookup.keys.iter().zip(&slots).map(|(key, slot)| match slot {
                Some(slot) => Ok(slot.descriptor()),
                None => Err(self.reason(*key)),
            });
            let found = found.collect();
            *pins = Pins::Held(slots);
            (found, blocks)
        };
        let windows = found.iter().flatten().filter(|object| object.key.kind == ObjectKind::Window);
        let windows = windows.copied().collect();
        let number = self.number_next;
        self.number_next += 1;
        let brought = self.onboard(number, &lookup.keys, &mut found, now);
        let missing = brought.blocks();
        let wait_max = self.disk.as_ref().map_or(Duration::ZERO, |disk| disk.wait_max);
        let Lookup { context, sink, pins, .. } = lookup;
        let answer_at = now.after(wait_max);
        let pending = Pending { context, found, sink, pins, missing, brought, answer_at };
        if missing == 0 {
            self.answer(pending);
        } else {
            self.pending.insert(number, pending);
        }
        self.keep(blocks.iter());
        self.pools.blocks.release(blocks);
        windows
    }

    /// Where each block is. Nothing is pinned, read or counted.
    pub(super) fn places(&self, names: &[BlockName]) -> Vec<BlockPlace> {
        let in_memory: Vec<bool> =
            names.iter().map(|name| self.pools.blocks.contains(*name)).collect();
        let on_drive = match &self.disk {
            Some(disk) => disk.tier.contains_all(names),
            None => vec![false; names.len()],
        };
        let held = in_memory.into_iter().zip(on_drive);
        let places = names.iter().zip(held).map(|(name, held)| match held {
            (true, _) => BlockPlace::Memory,
            (false, true) => BlockPlace::Drive,
            (false, false) => {
                let key = ObjectKey { kind: ObjectKind::Block, name: *name };
                BlockPlace::Missing(self.reason(key))
            }
        });
        places.collect()
    }

    /// When the next lookup is to be answered with what it has.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.pending.first_key_value().map(|(_, pending)| pending.answer_at)
    }

    /// Answers the lookups whose time is over.
    pub(super) fn answer_late(&mut self, now: Timestamp) {
        while let Some(oldest) = self.pending.first_entry() {
            if now < oldest.get().answer_at {
                return;
            }
            let pending = oldest.remove();
            count(&self.counters.lookups_late, 1);
            tracing::debug!(
                request = %pending.context.id, missing = pending.missing,
                "blocks did not come from disk in time; the lookup is answered without them"
            );
            self.answer(pending);
        }
    }

    /// A read from disk came back: seals the block and gives it to all lookups that wait for it.
    pub(super) fn settle(&mut self, done: DiskReadDone) {
        let name = done.name;
        let unanswered = matches!(done.result, Err(DiskReadError::Unanswered));
        let unknown = Reading { places: Vec::new(), began: 0 };
        let Reading { places, began } = self.reading.remove(&name).unwrap_or(unknown);
        let sealed = self.seal(done, began);
        let is_kept = sealed.is_some() || unanswered;
        self.kept.put(name, if is_kept { Kept::Drive } else { Kept::Damaged });
        self.keep(sealed.iter());
        for place in places {
            let Some(pending) = self.pending.get_mut(&place.lookup) else {
                continue;
            };
            match &sealed {
                Some(slot) if slot.descriptor().key.kind == place.kind => {
                    // A released lookup keeps nothing; it is dropped when its last block came.
                    if let Pins::Held(slots) = &mut *pending.pins.lock() {
                        slots[place.key] = Some(slot.clone());
                        pending.found[place.key] = Ok(slot.descriptor());
                    }
                }
                Some(_) => pending.found[place.key] = Err(Miss::NeverStored),
                None if unanswered => pending.found[place.key] = Err(Miss::TooSlow),
                None => pending.found[place.key] = Err(Miss::Damaged),
            }
            pending.missing -= 1;
            if pending.missing == 0
                && let Some(pending) = self.pending.remove(&place.lookup)
            {
                self.answer(pending);
            }
        }
    }

    /// Queues a block for the disk, unless it is there.
    pub(super) fn write_behind(&mut self, block: SealedSlot, tenant: TenantTag, ack: Option<Ack>) {
        let name = block.name();
        let kept = match &self.disk {
            Some(disk) => Kept::from(disk.tier.store(Put { block, tenant, ack }, disk.writes_max)),
            None => Kept::Memory,
        };
        self.kept.put(name, kept);
    }

    /// Why an object is not in memory, if it is not on the drive either.
    fn reason(&self, key: ObjectKey) -> Miss {
        let kept = if key.kind.goes_to_disk() { self.kept.get(key.name) } else { None };
        match kept {
            None => Miss::NeverStored,
            Some(Kept::Memory) => Miss::Evicted,
            Some(Kept::NotAdmitted) => Miss::NotAdmitted,
            Some(Kept::Drive) => Miss::Expired,
            Some(Kept::Damaged) => Miss::Damaged,
        }
    }

    /// Queues a block that was offered again, if it never reached the disk or does not stay there for long. Whoever waits for
    /// it to be durable is told.
    pub(super) fn write_again(&mut self, key: ObjectKey, ack: Option<Ack>) {
        if let (Some(ack), Some(disk)) = (ack, &self.disk) {
            let block = self.pools.blocks.hold(key.name);
            let owned = block.and_then(|block| {
                let tenant = self.owners.lock().of(&block.descriptor())?;
                Some(Put { block, tenant, ack: Some(ack) })
            });
            if let Some(put) = owned {
                let taken = disk.tier.keep(put, disk.writes_max);
                self.kept.put(key.name, Kept::from(taken));
            }
            return;
        }
        if self.disk.is_some() && key.kind.goes_to_disk() {
            let block = self.pools.blocks.hold(key.name);
            self.keep(block.iter());
        }
    }

    /// Queues those of the found blocks for the disk that are not there, or not for long: they were asked for again.
    fn keep<'a>(&mut self, found: impl Iterator<Item = &'a SealedSlot> + Clone) {
        let Some(disk) = &self.disk else {
            return;
        };
        let blocks = found.filter(|slot| slot.descriptor().key.kind.goes_to_disk());
        let names = blocks.clone().map(|block| block.descriptor().key.name);
        for (block, wanted) in blocks.zip(disk.tier.wants(names)) {
            // One without an owner was evicted with its tenant, and is only held by who found it before.
            let tenant = if wanted { self.owners.lock().of(&block.descriptor()) } else { None };
            if let Some(tenant) = tenant {
                let put = Put { block: block.clone(), tenant, ack: None };
                let taken = disk.tier.keep(put, disk.writes_max);
                self.kept.put(block.name(), Kept::from(taken));
            }
        }
    }

    /// Starts reading what is below host memory alone, and says how many of the keys are to be waited for, by tier.
    fn onboard(
        &mut self,
        lookup: u64,
        keys: &[ObjectKey],
        found: &mut [Found],
        now: Timestamp,
    ) -> Brought {
        let Some(disk) = &self.disk else {
            return Brought::default();
        };
        let wanted = keys.iter().zip(&*found).enumerate().filter_map(|(index, (key, found))| {
            let wanted = found.is_err() && key.kind.goes_to_disk();
            wanted.then_some(((index, key.kind), key.name))
        });
        let (places, names): (Vec<(usize, ObjectKind)>, Vec<BlockName>) = wanted.unzip();
        let held = disk.tier.places(&names);
        let (mut drive, mut objects) = (Vec::new(), Vec::new());
        for (((index, kind), name), below) in places.into_iter().zip(names).zip(held) {
            let place = (Place { lookup, key: index, kind }, name);
            match below {
                Some(Below::Drive) => drive.push(place),
                Some(Below::Objects) => objects.push(place),
                None => continue,
            }
            found[index] = Err(Miss::NoRoom);
        }
        let missing = drive.len() + objects.len();
        if missing != 0 && disk.tier.config().onboard_lookups_max <= self.pending.len() {
            count(&self.counters.onboard_refused, missing);
            return Brought::default();
        }
        // The drive first: what is had from it takes the slots that there are.
        let disk = self.onboard_from(Below::Drive, &drive, found, now);
        Brought { disk, remote: self.onboard_from(Below::Objects, &objects, found, now) }
    }

    /// The same of objects that lie in one place, as many as come in time from there, for one lookup.
    fn onboard_from(
        &mut self,
        below: Below,
        missing: &[(Place, BlockName)],
        found: &mut [Found],
        now: Timestamp,
    ) -> u32 {
        let Some(disk) = &self.disk else { return 0 };
        let (too_slow, trial_at) = match below {
            Below::Drive => (&self.counters.disk_too_slow, &mut self.trial_at[0]),
            Below::Objects => (&self.counters.object_too_slow, &mut self.trial_at[1]),
        };
        let in_time = disk.in_time(below, missing.len());
        count(too_slow, missing.len() - in_time);
        let (missing, slow) = missing.split_at(in_time);
        for (place, _) in slow {
            found[place.key] = Err(Miss::TooSlow);
        }
        let mut waiting = 0;
        for (place, name) in missing.iter().copied() {
            if let Some(Reading { places, .. }) = self.reading.get_mut(&name) {
                // Lookups that were answered late wait no more; a drive that hangs must not let their places pile up.
                let pending = &self.pending;
                places.retain(|other| {
                    other.lookup == place.lookup || pending.contains_key(&other.lookup)
                });
                places.push(place);
            } else if disk.begin(below, &self.pools, name, self.reading.len()) {
                let began = self.owners.lock().begin();
                self.reading.insert(name, Reading { places: vec![place], began });
            } else {
                count(&self.counters.onboard_refused, 1);
                continue;
            }
            // Until it comes; who waits in vain says so.
            found[place.key] = Err(Miss::TooSlow);
            waiting += 1;
        }
        // Whatever is being read already tells how fast the drive is.
        if let [(_, name), ..] = slow
            && disk.load(below).is_some_and(|load| load.queued_reads == 0)
            && !self.reading.contains_key(name)
            && *trial_at <= now
        {
            *trial_at = now.after(TRIAL_INTERVAL);
            if disk.begin(below, &self.pools, *name, self.reading.len()) {
                let began = self.owners.lock().begin();
                self.reading.insert(*name, Reading { places: Vec::new(), began });
            }
        }
        waiting
    }

    fn seal(&self, done: DiskReadDone, began: u64) -> Option<SealedSlot> {
        let DiskReadDone { name, target, result } = done;
        let found = result.ok()?;
        let location =
            Location { region: target.region(), slot: target.index(), generation: Generation(0) };
        let key = ObjectKey { kind: found.kind, name };
        let (bytes, checksum, exact) = (found.bytes, found.checksum, found.exact);
        let source = Descriptor { key, location, bytes, checksum, exact };
        let slot = target.index();
        let sealed = self.pools.blocks.seal_read(target, &source).ok()?;
        // Held already: it has its owner.
        if sealed.index() == slot {
            let mut owners = self.owners.lock();
            if owners.is_lost(found.tenant, began) {
                self.pools.blocks.forget(&sealed.descriptor());
                return None;
            }
            owners.store(sealed.descriptor(), found.tenant);
            // It is pinned: others of its tenant make room for it, as far as nobody holds them.
            owners.make_room(found.tenant, 0);
        }
        count(&self.counters.onboarded, 1);
        Some(sealed)
    }

    fn answer(&self, pending: Pending) {
        let Pending { context, found, brought, mut sink, pins, .. } = pending;
        if matches!(*pins.lock(), Pins::Released) {
            return;
        }
        let hits = found.iter().flatten().count();
        count(&self.counters.hits, hits);
        count(&self.counters.misses, found.len() - hits);
        tracing::debug!(
            request = %context.id, trace = %context.trace, keys = found.len(), hits, "looked up"
        );
        if sink.emit(LocateEvent { found, brought }) == Flow::Closed {
            release(&pins);
        }
    }
}

impl From<Taken> for Kept {
    fn from(taken: Taken) -> Self {
        match taken {
            Taken::Queued => Self::Drive,
            Taken::OverBudget => Self::NotAdmitted,
            Taken::Dropped => Self::Memory,
        }
    }
}

impl Disk {
    /// How many of so many blocks, in their order, can come from there within the time of a lookup.
    fn in_time(&self, below: Below, blocks: usize) -> usize {
        let block_bytes = self.tier.read_bytes();
        let Some(load) = self.load(below) else { return 0 };
        let is_in_time =
            |reads: &u64| load.time_for(*reads, reads.saturating_mul(block_bytes)) <= self.wait_max;
        (1..).take(blocks).take_while(is_in_time).count()
    }

    /// None while it is left alone.
    fn load(&self, below: Below) -> Option<DiskLoad> {
        match below {
            Below::Drive => Some(self.tier.load()),
            Below::Objects => self.tier.object_load(),
        }
    }

    /// Starts reading a block into a slot of its own; false when there is no slot or no room for a read.
    fn begin(&self, below: Below, pools: &Pools, name: BlockName, reading: usize) -> bool {
        if self.tier.config().reads_max <= reading {
            return false;
        }
        let Some(target) = pools.blocks.reserve(1).ok().and_then(|mut slots| slots.pop()) else {
            return false;
        };
        let read = DiskRead { name, target };
        match below {
            Below::Drive => self.tier.read(read, &self.done).is_ok(),
            Below::Objects => self.tier.read_object(read, &self.done).is_ok(),
        }
    }
}
