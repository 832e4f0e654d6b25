//! Pools: which slot of a memory holds which object, and who holds on to it.
//!
//! A slot is *free*, *owned* (one writer), or *sealed* (immutable, named). A sealed slot is *pinned* while a
//! [`SealedSlot`] lives, *open* while an [`OpenRead`] lives, and otherwise *cached*: it stays findable by name until
//! its memory is needed; `pool/eviction.rs` says who goes first. The guard types are the states: what is not allowed in a
//! state has no method there.
//!
//! A pool moves no bytes except to compute a checksum; the memory behind it does. It never waits for anything but its
//! own mutex, whose sections are short and call nothing foreign.
//!
//! Invariants: a slot's generation rises each time it becomes free, so a descriptor of an earlier tenant never opens;
//! a name is held by at most one slot; first write wins; at rest every slot is free or cached.

mod audit;
mod changes;
mod eviction;
mod guards;
mod lru;
mod state;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use shared::{
    BlockName, CacheChange, CacheQuestion, Descriptor, Location, ObjectKey, ObjectKind, RegionId,
    SlotIndex, SlotMemory, Tier,
};

pub use audit::PoolAudit;
pub use guards::{OpenRead, OwnedSlot, SealedSlot};

use crate::transport::ReadError;
use state::{Contents, State};

/// What a pool is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// The name of its memory towards transports. Unique in the cluster while the process lives.
    pub region: RegionId,
    /// The kind of object that is sealed here. What is read from elsewhere may be of another kind with slots of this one
    /// ([`ObjectKind::slots`]).
    pub kind: ObjectKind,
    /// What kind of memory it is, for reports and the router's index.
    pub tier: Tier,
}

/// What a slot holds, said by the worker that filled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The name.
    pub name: BlockName,
    /// Whether the bytes equal those of a cold run in one process.
    pub exact: bool,
    /// Payload length in bytes, from the start of the slot; at most the slot's size.
    pub bytes: u32,
}

/// Not enough slots: nothing was reserved. Wait for slots, preempt a sequence, or refuse the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{needed} cache slots are needed, {available} can be had; wait for running requests or raise the bound"
)]
pub struct PoolFull {
    /// Slots asked for.
    pub needed: usize,
    /// Slots free or evictable at that moment.
    pub available: usize,
}

/// What became of a copy that was to be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// Its slot is free now.
    Freed,
    /// It was gone already.
    Gone,
    /// Somebody holds it.
    InUse,
}

/// The bookkeeping of one memory. Cloning gives another handle to the same pool.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

/// What handles and guards have in common.
struct Shared {
    config: PoolConfig,
    memory: Arc<dyn SlotMemory>,
    state: Mutex<State>,
}

impl Pool {
    /// A pool over all slots of `memory`, all of them free.
    #[must_use]
    pub fn new(config: PoolConfig, memory: Arc<dyn SlotMemory>) -> Self {
        let state = Mutex::new(State::new(Arc::clone(&memory)));
        Self { shared: Arc::new(Shared { config, memory, state }) }
    }

    /// What the pool is for.
    #[must_use]
    pub fn config(&self) -> PoolConfig {
        self.shared.config
    }

    /// The memory behind the slots.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn SlotMemory> {
        &self.shared.memory
    }

    /// Takes `count` slots for writing, all or nothing. Free slots go first, then cached ones lose their name, in the
    /// order of `pool/eviction.rs`. Their bytes are whatever was there before.
    ///
    /// # Errors
    /// [`PoolFull`] when fewer are free or cached; nothing is evicted then.
    pub fn reserve(&self, count: usize) -> Result<Vec<OwnedSlot>, PoolFull> {
        let mut state = self.shared.state.lock();
        let available = state.available();
        if available < count {
            return Err(PoolFull { needed: count, available });
        }
        let mut slots = Vec::with_capacity(count);
        for _ in 0..count {
            let (index, witness) = state.take_slot().expect("counted above, under the same lock");
            slots.push(OwnedSlot::new(Arc::clone(&self.shared), index, witness));
        }
        Ok(slots)
    }

    /// Pins the object of this name, if the pool holds it. Counts as a use of it.
    #[must_use]
    pub fn lookup(&self, name: BlockName) -> Option<SealedSlot> {
        self.pin(&mut self.shared.state.lock(), name)
    }

    /// Pins the object of this name as [`Pool::lookup`] does, for upkeep: it counts as no use.
    #[must_use]
    pub fn hold(&self, name: BlockName) -> Option<SealedSlot> {
        let mut state = self.shared.state.lock();
        let slot = state.find(name)?;
        Some(self.pin_slot(&mut state, slot))
    }

    /// Pins the longest leading run of `names` that the pool holds, in one short section.
    ///
    /// Give the run back with [`Pool::release`], so that its end is evicted before its beginning.
    #[must_use]
    pub fn lookup_run(&self, names: &[BlockName]) -> Vec<SealedSlot> {
        let mut state = self.shared.state.lock();
        names.iter().map_while(|name| self.pin(&mut state, *name)).collect()
    }

    /// Whether the pool holds this name now. Pins nothing and counts as no use; the answer may be outdated at once.
    #[must_use]
    pub fn contains(&self, name: BlockName) -> bool {
        self.shared.state.lock().find(name).is_some()
    }

    /// Drops a run of guards, last first. A chain is only usable from its beginning, so the beginning must be the
    /// last to be evicted; dropping a `Vec` in its own order does the opposite.
    pub fn release(&self, mut run: Vec<SealedSlot>) {
        while let Some(slot) = run.pop() {
            drop(slot);
        }
    }

    /// Makes an owned slot immutable and gives it its name. The checksum is computed outside the lock.
    ///
    /// First write wins: when the name is already held, `slot` is freed and the held copy is returned, which may have
    /// another `exact` and another checksum.
    ///
    /// # Panics
    /// When `slot` belongs to another pool or `seal.bytes` exceeds the slot.
    #[must_use]
    pub fn seal(&self, slot: OwnedSlot, seal: Seal) -> SealedSlot {
        let Seal { name, exact, bytes } = seal;
        let checksum = self.checksum(&slot, bytes);
        let key = ObjectKey { kind: self.shared.config.kind, name };
        self.register(slot, Contents { key, exact, bytes, checksum })
    }

    /// Makes an owned slot immutable without giving it its name: it can be read through its descriptor while it is
    /// pinned, no lookup finds it, and its last guard frees it. For bytes whose name another copy holds.
    ///
    /// # Panics
    /// When `slot` belongs to another pool or `seal.bytes` exceeds the slot.
    #[must_use]
    pub fn seal_unnamed(&self, mut slot: OwnedSlot, seal: Seal) -> SealedSlot {
        let checksum = self.checksum(&slot, seal.bytes);
        let mut state = self.shared.state.lock();
        slot.disarm();
        let Seal { name, exact, bytes } = seal;
        let key = ObjectKey { kind: self.shared.config.kind, name };
        state.seal_unnamed(slot.index(), Contents { key, exact, bytes, checksum });
        self.pin_slot(&mut state, slot.index())
    }

    /// Seals what a transport read from `source` under the source's own name, after computing the checksum again: a
    /// completion that claims success over wrong bytes is caught here.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] when the bytes are not the source's; the slot is freed. [`ReadError::Length`] when the
    /// source does not fit this pool's slots.
    ///
    /// # Panics
    /// When `slot` belongs to another pool, or objects like `source` lie in slots of another kind.
    pub fn seal_read(&self, slot: OwnedSlot, source: &Descriptor) -> Result<SealedSlot, ReadError> {
        let kinds = [source.key.kind, self.shared.config.kind].map(ObjectKind::slots);
        assert_eq!(kinds[0], kinds[1], "a pool holds one kind of object, and pieces among blocks");
        self.shared.check_fits(source.bytes)?;
        let found = self.checksum(&slot, source.bytes);
        if found != source.checksum {
            return Err(ReadError::Corrupt { expected: source.checksum, found });
        }
        let Descriptor { key, exact, bytes, .. } = *source;
        Ok(self.register(slot, Contents { key, exact, bytes, checksum: found }))
    }

    /// Opens a sealed slot for one read. While the guard lives the slot is neither reused nor evicted.
    ///
    /// # Errors
    /// [`ReadError::UnknownRegion`] when the descriptor is of another pool, [`ReadError::Stale`] when the slot holds
    /// something else by now.
    pub fn open(&self, source: &Descriptor) -> Result<OpenRead, ReadError> {
        if source.location.region != self.shared.config.region {
            return Err(ReadError::UnknownRegion { region: source.location.region });
        }
        let mut state = self.shared.state.lock();
        let slot = source.location.slot;
        if self.describe(&state, slot) != Some(*source) {
            return Err(ReadError::Stale);
        }
        let witness = state.open(slot);
        Ok(OpenRead::new(Arc::clone(&self.shared), *source, witness))
    }

    /// Takes the name from exactly this copy, if it still holds it, so that no later lookup finds it. Who holds the
    /// slot keeps it; its memory returns with the last guard. For copies that failed a check or grew too old.
    pub fn forget(&self, copy: &Descriptor) -> bool {
        let mut state = self.shared.state.lock();
        if self.describe(&state, copy.location.slot) != Some(*copy) {
            return false;
        }
        state.forget(copy.location.slot)
    }

    /// Frees exactly this copy if nobody holds it: for an owner of quotas, who chooses by itself what goes.
    pub(crate) fn drop_idle(&self, copy: &Descriptor) -> Dropped {
        let mut state = self.shared.state.lock();
        let slot = copy.location.slot;
        if self.describe(&state, slot) != Some(*copy) {
            return Dropped::Gone;
        }
        if !state.is_idle(slot) {
            return Dropped::InUse;
        }
        if state.forget(slot) { Dropped::Freed } else { Dropped::Gone }
    }

    /// Slots that [`Pool::reserve`] could give now: free and cached.
    #[must_use]
    pub fn available(&self) -> usize {
        self.shared.state.lock().available()
    }

    /// Slots of the pool.
    #[must_use]
    pub fn total(&self) -> usize {
        SlotIndex(self.shared.memory.slots()).index()
    }

    /// Objects the pool holds by name, pinned ones included.
    #[must_use]
    pub fn held(&self) -> usize {
        self.shared.state.lock().held()
    }

    /// Frees every cached slot that nobody holds, and says how many.
    #[must_use = "the number of evicted slots is the only report of what happened"]
    pub fn evict_all(&self) -> usize {
        self.shared.state.lock().evict_all()
    }

    /// How the set of held names changed since the last call: at most one `Removed` and one `Stored`, each in the order of
    /// its changes, empty ones left out. For one consumer. Of blocks alone: see [`ObjectKind::is_told`].
    ///
    /// Only the net change is kept, so the memory for it is bounded by two names per slot and nothing ever overflows;
    /// a name stored and evicted between two calls does not appear.
    #[must_use = "changes are reported once"]
    pub fn drain_changes(&self) -> Vec<CacheChange> {
        self.shared.state.lock().drain_changes(self.shared.config.tier)
    }

    /// The same as a fresh start: `Cleared` and `Stored` of everything held; pending changes are dropped with it. For
    /// a consumer that lost its place. `Cleared` speaks for all tiers of the sender.
    #[must_use = "changes are reported once"]
    pub fn resync_changes(&self) -> Vec<CacheChange> {
        self.answer(&CacheQuestion::Whole)
    }

    /// What somebody who lost changes is told: the changes since the last call and the digests of all that was reported;
    /// or that these ranges are cleared and what is held of them; or the same as [`Self::resync_changes`]. For the
    /// consumer of [`Self::drain_changes`]. The digests are kept along; the others visit every name under the lock.
    #[must_use = "changes are reported once"]
    pub fn answer(&self, question: &CacheQuestion) -> Vec<CacheChange> {
        self.shared.state.lock().answer(question, self.shared.config.tier)
    }

    /// Names that answers reported once more. Only grows.
    #[must_use]
    pub fn told_again(&self) -> u64 {
        self.shared.state.lock().told_again()
    }

    /// All held names at this moment, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<BlockName> {
        self.shared.state.lock().names()
    }

    /// Recounts every slot from the lists and the living guards. Visits all slots under the lock: for health checks
    /// and tests, not for a step loop.
    #[must_use]
    pub fn audit(&self) -> PoolAudit {
        audit::recount(&self.shared.state.lock())
    }

    fn pin(&self, state: &mut State, name: BlockName) -> Option<SealedSlot> {
        let slot = state.look_up(name)?;
        Some(self.pin_slot(state, slot))
    }

    fn pin_slot(&self, state: &mut State, slot: SlotIndex) -> SealedSlot {
        let witness = state.pin(slot);
        let descriptor = self.describe(state, slot).expect("only a sealed slot is pinned");
        SealedSlot::new(Arc::clone(&self.shared), descriptor, witness)
    }

    fn checksum(&self, slot: &OwnedSlot, bytes: u32) -> u32 {
        assert!(slot.is_of(&self.shared), "a slot is sealed by the pool it came from");
        let bytes = payload_bytes(bytes);
        assert!(bytes <= self.shared.memory.slot_bytes(), "a payload fits its slot");
        let mut checksum = 0;
        self.shared
            .memory
            .read(slot.index(), &mut |slot| checksum = crc32c::crc32c(&slot[..bytes]));
        checksum
    }

    fn register(&self, mut slot: OwnedSlot, contents: Contents) -> SealedSlot {
        let mut state = self.shared.state.lock();
        let (index, name) = (slot.index(), contents.key.name);
        slot.disarm();
        if state.find(name).is_some() {
            state.free_slot(index);
        } else {
            state.seal(index, contents);
        }
        let held = state.find(name).expect("held before, or sealed above");
        self.pin_slot(&mut state, held)
    }

    fn describe(&self, state: &State, slot: SlotIndex) -> Option<Descriptor> {
        let (contents, generation) = state.contents(slot)?;
        let config = self.shared.config;
        Some(Descriptor {
            key: contents.key,
            location: Location { region: config.region, slot, generation },
            bytes: contents.bytes,
            checksum: contents.checksum,
            exact: contents.exact,
        })
    }
}

impl Shared {
    /// Whether a payload of this length fits a slot.
    fn check_fits(&self, bytes: u32) -> Result<(), ReadError> {
        let slot_bytes = self.memory.slot_bytes();
        if payload_bytes(bytes) <= slot_bytes {
            return Ok(());
        }
        Err(ReadError::Length { expected: payload_bytes(bytes), found: slot_bytes })
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

pub(crate) fn payload_bytes(bytes: u32) -> usize {
    usize::try_from(bytes).expect("usize holds 32 bits on every supported target")
}
