//! What the pool's mutex guards. Nothing here locks, waits or calls outside, but for the marks of the memory.

use std::collections::HashMap;
use std::sync::Arc;

use shared::{
    BlockName, CacheChange, CacheQuestion, Generation, ObjectKey, RangeSet, SlotIndex, SlotMemory,
    Tier, range_of,
};

use super::changes::Changes;
use super::eviction::Cached;

/// The whole state of a pool.
pub(super) struct State {
    pub(super) slots: Vec<Slot>,
    pub(super) free: Vec<SlotIndex>,
    pub(super) by_name: HashMap<BlockName, SlotIndex>,
    pub(super) cached: Cached,
    changes: Changes,
    /// Says to readers in other processes what its slots hold.
    memory: Arc<dyn SlotMemory>,
}

/// One slot.
pub(super) struct Slot {
    pub(super) phase: Phase,
    generation: Generation,
    /// One count per kind of guard, kept by the guards' own existence and compared with `phase` by the audit.
    pub(super) living: Living,
}

/// The states a slot can be in.
pub(super) enum Phase {
    Free,
    Owned,
    Sealed(Sealed),
}

/// A sealed slot.
pub(super) struct Sealed {
    pub(super) contents: Contents,
    pub(super) pins: u32,
    pub(super) reads: u32,
    /// False once the name was taken away: the slot is freed by its last guard instead of being cached.
    pub(super) named: bool,
}

/// What a sealed slot holds.
#[derive(Clone, Copy)]
pub(super) struct Contents {
    pub(super) key: ObjectKey,
    pub(super) exact: bool,
    pub(super) bytes: u32,
    pub(super) checksum: u32,
}

/// Which of the two counts of a sealed slot a guard stands for.
#[derive(Clone, Copy)]
pub(super) enum Hold {
    Pin,
    Read,
}

/// Every guard holds a clone of one of these, so `strong_count - 1` guards are alive.
#[derive(Default)]
pub(super) struct Living {
    pub(super) owner: Arc<()>,
    pub(super) pins: Arc<()>,
    pub(super) reads: Arc<()>,
}

impl State {
    pub(super) fn new(memory: Arc<dyn SlotMemory>) -> Self {
        let free: Vec<SlotIndex> = (0..memory.slots()).rev().map(SlotIndex).collect();
        let slot =
            || Slot { phase: Phase::Free, generation: Generation(0), living: Living::default() };
        Self {
            slots: free.iter().map(|_| slot()).collect(),
            cached: Cached::new(free.len()),
            by_name: HashMap::with_capacity(free.len()),
            free,
            changes: Changes::default(),
            memory,
        }
    }

    pub(super) fn available(&self) -> usize {
        self.free.len() + self.cached.len()
    }

    pub(super) fn held(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn find(&self, name: BlockName) -> Option<SlotIndex> {
        self.by_name.get(&name).copied()
    }

    /// As `find`, for somebody who will use the object: it counts for how long it stays.
    pub(super) fn look_up(&mut self, name: BlockName) -> Option<SlotIndex> {
        let index = self.find(name)?;
        self.cached.used(index);
        Some(index)
    }

    /// What a slot holds, if it is sealed.
    pub(super) fn contents(&self, slot: SlotIndex) -> Option<(Contents, Generation)> {
        let slot = self.slots.get(slot.index())?;
        match &slot.phase {
            Phase::Sealed(sealed) => Some((sealed.contents, slot.generation)),
            Phase::Free | Phase::Owned => None,
        }
    }

    /// A slot for writing: a free one, else a cached one.
    pub(super) fn take_slot(&mut self) -> Option<(SlotIndex, Arc<()>)> {
        if self.free.is_empty() {
            self.evict_one();
        }
        let index = self.free.pop()?;
        let slot = &mut self.slots[index.index()];
        assert!(matches!(slot.phase, Phase::Free), "the free list holds free slots");
        slot.phase = Phase::Owned;
        Some((index, Arc::clone(&slot.living.owner)))
    }

    /// An owned slot becomes sealed. The name must not be held.
    pub(super) fn seal(&mut self, index: SlotIndex, contents: Contents) {
        self.become_sealed(index, Sealed { contents, pins: 0, reads: 0, named: true });
        let ObjectKey { kind, name } = contents.key;
        let before = self.by_name.insert(name, index);
        assert!(before.is_none(), "a name is held by one slot");
        if kind.is_told() {
            self.changes.stored(name);
        }
        self.cached.named(index, name);
        self.cached.push(index);
    }

    /// An owned slot becomes sealed without its name. It is in no list, so the caller must pin it.
    pub(super) fn seal_unnamed(&mut self, index: SlotIndex, contents: Contents) {
        self.become_sealed(index, Sealed { contents, pins: 0, reads: 0, named: false });
    }

    fn become_sealed(&mut self, index: SlotIndex, sealed: Sealed) {
        let slot = &mut self.slots[index.index()];
        assert!(matches!(slot.phase, Phase::Owned), "only an owned slot is sealed");
        slot.phase = Phase::Sealed(sealed);
        self.memory.mark(index, Some(slot.generation));
    }

    pub(super) fn pin(&mut self, index: SlotIndex) -> Arc<()> {
        self.hold(index).pins += 1;
        Arc::clone(&self.slots[index.index()].living.pins)
    }

    pub(super) fn open(&mut self, index: SlotIndex) -> Arc<()> {
        self.hold(index).reads += 1;
        Arc::clone(&self.slots[index.index()].living.reads)
    }

    /// Ends a pin or a read. Runs in drops, so a broken count is left for the audit to find instead of panicking.
    pub(super) fn release(&mut self, index: SlotIndex, hold: Hold) {
        let Phase::Sealed(sealed) = &mut self.slots[index.index()].phase else {
            return;
        };
        let count = match hold {
            Hold::Pin => &mut sealed.pins,
            Hold::Read => &mut sealed.reads,
        };
        let Some(rest) = count.checked_sub(1) else {
            return;
        };
        *count = rest;
        if sealed.pins != 0 || sealed.reads != 0 {
            return;
        }
        if sealed.named {
            self.cached.push(index);
        } else {
            self.free_slot(index);
        }
    }

    /// Whether nobody holds a sealed slot.
    pub(super) fn is_idle(&self, index: SlotIndex) -> bool {
        let Phase::Sealed(sealed) = &self.slots[index.index()].phase else {
            return false;
        };
        sealed.pins == 0 && sealed.reads == 0
    }

    /// Takes the name from a sealed slot; false when it has none any more.
    pub(super) fn forget(&mut self, index: SlotIndex) -> bool {
        let Phase::Sealed(sealed) = &mut self.slots[index.index()].phase else {
            return false;
        };
        if !sealed.named {
            return false;
        }
        sealed.named = false;
        let (key, idle) = (sealed.contents.key, sealed.pins == 0 && sealed.reads == 0);
        self.lose_name(key);
        if idle {
            self.cached.remove(index);
            self.free_slot(index);
        }
        true
    }

    pub(super) fn evict_all(&mut self) -> usize {
        let mut evicted = 0;
        while self.evict_one() {
            evicted += 1;
        }
        self.cached.forget_ghosts();
        evicted
    }

    pub(super) fn drain_changes(&mut self, tier: Tier) -> Vec<CacheChange> {
        self.changes.drain(tier)
    }

    pub(super) fn answer(&mut self, question: &CacheQuestion, tier: Tier) -> Vec<CacheChange> {
        let (base, ranges) = match question {
            CacheQuestion::Digests => {
                let mut changes = self.changes.drain(tier);
                changes.push(CacheChange::Digests(self.changes.digests()));
                return changes;
            }
            CacheQuestion::Ranges(ranges) => (CacheChange::RangesCleared(*ranges), *ranges),
            CacheQuestion::Whole => (CacheChange::Cleared, RangeSet::ALL),
        };
        let is_told = |slot: SlotIndex| {
            self.contents(slot).is_some_and(|(contents, _)| contents.key.kind.is_told())
        };
        let held = self
            .by_name
            .iter()
            .filter(|&(&name, &slot)| ranges.contains(range_of(name)) && is_told(slot));
        let mut names: Vec<BlockName> = held.map(|(&name, _)| name).collect();
        names.sort_unstable();
        self.changes.tell_again(ranges, &names, tier);
        let mut changes = vec![base];
        if !names.is_empty() {
            changes.push(CacheChange::Stored { tier, names });
        }
        changes
    }

    pub(super) fn told_again(&self) -> u64 {
        self.changes.told_again()
    }

    pub(super) fn names(&self) -> Vec<BlockName> {
        let mut names: Vec<BlockName> = self.by_name.keys().copied().collect();
        names.sort_unstable();
        names
    }

    /// Entries waiting to be reported.
    #[cfg(test)]
    pub(super) fn pending_changes(&self) -> usize {
        self.changes.len()
    }

    fn evict_one(&mut self) -> bool {
        let key_of = |index: SlotIndex| match &self.slots[index.index()].phase {
            Phase::Sealed(sealed) => sealed.contents.key,
            Phase::Free | Phase::Owned => unreachable!("cached slots are sealed"),
        };
        let Some(index) = self.cached.pop(|index| key_of(index).name) else {
            return false;
        };
        self.lose_name(key_of(index));
        self.free_slot(index);
        true
    }

    fn lose_name(&mut self, key: ObjectKey) {
        self.by_name.remove(&key.name);
        if key.kind.is_told() {
            self.changes.removed(key.name);
        }
    }

    /// A sealed slot about to be held by one more guard: no longer evictable.
    fn hold(&mut self, index: SlotIndex) -> &mut Sealed {
        self.cached.remove(index);
        match &mut self.slots[index.index()].phase {
            Phase::Sealed(sealed) => sealed,
            Phase::Free | Phase::Owned => unreachable!("only a sealed slot is pinned or opened"),
        }
    }

    /// The one place where a slot becomes free, so the one place where its generation rises. The slot must be owned,
    /// or sealed and in no list.
    pub(super) fn free_slot(&mut self, index: SlotIndex) {
        let slot = &mut self.slots[index.index()];
        self.memory.mark(index, None);
        slot.phase = Phase::Free;
        slot.generation.0 += 1;
        self.free.push(index);
    }
}
