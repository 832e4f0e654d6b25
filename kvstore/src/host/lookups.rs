//! Lookups: what is held is pinned at once, what lies on disk is brought into host memory first, for a while.
//!
//! A block is read from disk once, however many lookups want it. A lookup is answered when all its blocks came, when its
//! time is over, or at once when there is nothing to wait for. What comes too late stays cached for the next lookup. A
//! ticket that drops unpins what its lookup has; reads under way end by themselves and leave their blocks cached.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, never};
use parking_lot::Mutex;
use shared::{
    BlockName, Descriptor, Flow, Generation, LocateEvent, Location, ObjectKey, ObjectKind,
    RequestContext, Sink, Timestamp,
};

use super::Pools;
use super::stats::{Counters, count};
use crate::disk::{DiskRead, DiskReadDone, DiskTier};
use crate::pool::SealedSlot;

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
    disk: Option<Disk>,
    /// Who waits for each block being read. At most `reads_max` blocks.
    reading: HashMap<BlockName, Vec<Place>>,
    /// By number, so by age: all wait equally long. At most `onboard_lookups_max`.
    pending: BTreeMap<u64, Pending>,
    number_next: u64,
}

/// The tier below.
struct Disk {
    tier: Arc<DiskTier>,
    done: Sender<DiskReadDone>,
    wait_max: Duration,
    /// Blocks that may wait to be written.
    writes_max: usize,
}

/// One key of a lookup.
#[derive(Clone, Copy)]
struct Place {
    lookup: u64,
    key: usize,
}

struct Pending {
    context: RequestContext,
    found: Vec<Option<Descriptor>>,
    sink: Box<dyn Sink<LocateEvent>>,
    pins: Arc<Mutex<Pins>>,
    /// Blocks that may still come.
    missing: usize,
    answer_at: Timestamp,
}

impl Lookups {
    /// The lookups, and where the answers of the disk arrive, to be handed to [`Lookups::settle`].
    pub(super) fn new(
        pools: Pools,
        counters: Arc<Counters>,
        disk: Option<Arc<DiskTier>>,
    ) -> (Self, Receiver<DiskReadDone>) {
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
        let lookups = Self {
            pools,
            counters,
            disk,
            reading: HashMap::new(),
            pending: BTreeMap::new(),
            number_next: 0,
        };
        (lookups, answers)
    }

    /// Begins a lookup, answers it if nothing is to be waited for, and returns the window objects it found.
    pub(super) fn begin(&mut self, lookup: Lookup, now: Timestamp) -> Vec<Descriptor> {
        let found: Vec<Option<Descriptor>> = {
            let mut pins = lookup.pins.lock();
            if matches!(*pins, Pins::Released) {
                return Vec::new();
            }
            let keys = lookup.keys.iter();
            let slots: Vec<Option<SealedSlot>> =
                keys.map(|key| self.pools.of(key.kind).lookup(key.name)).collect();
            self.keep(slots.iter().flatten());
            let found = slots.iter().map(|slot| slot.as_ref().map(SealedSlot::descriptor));
            let found = found.collect();
            *pins = Pins::Held(slots);
            found
        };
        let windows = found.iter().flatten().filter(|object| object.key.kind == ObjectKind::Window);
        let windows = windows.copied().collect();
        let number = self.number_next;
        self.number_next += 1;
        let missing = self.onboard(number, &lookup.keys, &found);
        let wait_max = self.disk.as_ref().map_or(Duration::ZERO, |disk| disk.wait_max);
        let Lookup { context, sink, pins, .. } = lookup;
        let pending =
            Pending { context, found, sink, pins, missing, answer_at: now.after(wait_max) };
        if missing == 0 {
            self.answer(pending);
        } else {
            self.pending.insert(number, pending);
        }
        windows
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
        let sealed = self.seal(done);
        self.keep(sealed.iter());
        for place in self.reading.remove(&name).unwrap_or_default() {
            let Some(pending) = self.pending.get_mut(&place.lookup) else {
                continue;
            };
            if let Some(slot) = &sealed {
                // A released lookup keeps nothing; it is dropped when its last block came.
                if let Pins::Held(slots) = &mut *pending.pins.lock() {
                    slots[place.key] = Some(slot.clone());
                    pending.found[place.key] = Some(slot.descriptor());
                }
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
    pub(super) fn write_behind(&self, block: SealedSlot) {
        if let Some(disk) = &self.disk {
            disk.tier.store(block, disk.writes_max);
        }
    }

    /// Queues a block that was offered again, if it never reached the disk or does not stay there for long.
    pub(super) fn write_again(&self, key: ObjectKey) {
        if self.disk.is_some() && key.kind == ObjectKind::Block {
            self.keep(self.pools.blocks.lookup(key.name).iter());
        }
    }

    /// Queues those of the found blocks for the disk that are not there, or not for long: they were asked for again.
    fn keep<'a>(&self, found: impl Iterator<Item = &'a SealedSlot> + Clone) {
        let Some(disk) = &self.disk else {
            return;
        };
        let blocks = found.filter(|slot| slot.descriptor().key.kind == ObjectKind::Block);
        let names = blocks.clone().map(|block| block.descriptor().key.name);
        for (block, wanted) in blocks.zip(disk.tier.wants(names)) {
            if wanted {
                disk.tier.keep(block.clone(), disk.writes_max);
            }
        }
    }

    /// Starts reading what is on disk alone, and says how many of the keys are to be waited for.
    fn onboard(&mut self, lookup: u64, keys: &[ObjectKey], found: &[Option<Descriptor>]) -> usize {
        let Some(disk) = &self.disk else {
            return 0;
        };
        let wanted = keys.iter().zip(found).enumerate().filter_map(|(index, (key, found))| {
            let wanted = found.is_none() && key.kind == ObjectKind::Block;
            wanted.then_some((index, key.name))
        });
        let (places, names): (Vec<usize>, Vec<BlockName>) = wanted.unzip();
        let held = disk.tier.contains_all(&names);
        let missing = places.into_iter().zip(names).zip(held);
        let missing: Vec<(usize, BlockName)> =
            missing.filter_map(|(place, held)| held.then_some(place)).collect();
        if !missing.is_empty() && disk.tier.config().onboard_lookups_max <= self.pending.len() {
            count(&self.counters.onboard_refused, missing.len());
            return 0;
        }
        let mut waiting = 0;
        for (key, name) in missing {
            let place = Place { lookup, key };
            if let Some(places) = self.reading.get_mut(&name) {
                // Lookups that were answered late wait no more; a drive that hangs must not let their places pile up.
                let pending = &self.pending;
                places
                    .retain(|place| place.lookup == lookup || pending.contains_key(&place.lookup));
                places.push(place);
            } else if disk.begin(&self.pools, name, self.reading.len()) {
                self.reading.insert(name, vec![place]);
            } else {
                count(&self.counters.onboard_refused, 1);
                continue;
            }
            waiting += 1;
        }
        waiting
    }

    fn seal(&self, done: DiskReadDone) -> Option<SealedSlot> {
        let DiskReadDone { name, target, result } = done;
        let found = result.ok()?;
        let location =
            Location { region: target.region(), slot: target.index(), generation: Generation(0) };
        let key = ObjectKey { kind: ObjectKind::Block, name };
        let (bytes, checksum, exact) = (found.bytes, found.checksum, found.exact);
        let source = Descriptor { key, location, bytes, checksum, exact };
        let sealed = self.pools.blocks.seal_read(target, &source).ok()?;
        count(&self.counters.onboarded, 1);
        Some(sealed)
    }

    fn answer(&self, pending: Pending) {
        let Pending { context, found, mut sink, pins, .. } = pending;
        if matches!(*pins.lock(), Pins::Released) {
            return;
        }
        let hits = found.iter().flatten().count();
        count(&self.counters.hits, hits);
        count(&self.counters.misses, found.len() - hits);
        tracing::debug!(
            request = %context.id, trace = %context.trace, keys = found.len(), hits, "looked up"
        );
        if sink.emit(LocateEvent { found }) == Flow::Closed {
            release(&pins);
        }
    }
}

impl Disk {
    /// Starts reading a block into a slot of its own; false when there is no slot or no room for a read.
    fn begin(&self, pools: &Pools, name: BlockName, reading: usize) -> bool {
        if self.tier.config().reads_max <= reading {
            return false;
        }
        let Some(target) = pools.blocks.reserve(1).ok().and_then(|mut slots| slots.pop()) else {
            return false;
        };
        self.tier.read(DiskRead { name, target }, &self.done).is_ok()
    }
}
