//! Interned sets of holders. Blocks with equal holders share one set, so that a block needs four bytes for its holders,
//! however many there are, and a member is taken out of all its blocks by taking it out of its sets.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use shared::Tier;

use super::Slot;
use super::tiers::{TierSet, tier_index};
use shared::random::mix;

/// A set of holders. The empty set is [`SetId::EMPTY`]; other sets become empty only when a member is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SetId(pub(super) u32);

impl SetId {
    pub(super) const EMPTY: Self = Self(0);

    fn index(self) -> usize {
        usize::try_from(self.0).expect("a u32 fits")
    }
}

/// One member, where it holds the block, and how many placed requests are expected to bring it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) slot: Slot,
    pub(super) tiers: TierSet,
    /// Not 0 only while `tiers` is empty.
    pub(super) expected: u8,
}

impl Holder {
    /// A member that holds nothing.
    pub(super) fn none(slot: Slot) -> Self {
        Self { slot, tiers: TierSet::EMPTY, expected: 0 }
    }

    pub(super) fn holds(self) -> bool {
        !self.tiers.is_empty()
    }

    fn is_none(self) -> bool {
        self.tiers.is_empty() && self.expected == 0
    }

    fn hash(self) -> u64 {
        if self.is_none() {
            return 0;
        }
        let [low, high] = self.slot.to_le_bytes();
        mix(u64::from(u32::from_le_bytes([low, high, self.tiers.bits(), self.expected])))
    }
}

/// What changed when a member was taken out of its sets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TakenOut {
    /// Blocks it held.
    pub(super) held: usize,
    /// Blocks it was expected to hold.
    pub(super) expected: usize,
    /// Blocks that nobody holds any more.
    pub(super) emptied: usize,
}

/// All sets in use.
#[derive(Debug)]
pub(super) struct HolderSets {
    sets: Vec<Set>,
    free: Vec<SetId>,
    /// From the hash of a set's holders. Two sets may have equal holders after a member was cleared; one is found.
    interned: HashMap<u64, SetId, BuildHasherDefault<Hashed>>,
    by_slot: Vec<SlotSets>,
    scratch: Vec<Holder>,
}

/// Of what is a hash already: the exclusive or of [`Holder`]s' hashes, which spread as well as each of them.
#[derive(Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a hash is one number");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[derive(Debug, Default)]
struct Set {
    /// In the order of their slots.
    holders: Box<[Holder]>,
    /// The exclusive or of the holders' hashes.
    hash: u64,
    /// How many blocks have this set.
    blocks: usize,
    /// The nearest tier of a store.
    store: Option<Tier>,
}

#[derive(Debug, Default)]
struct SlotSets {
    is_store: bool,
    /// Every set that has the member, and some that had it.
    listed: Vec<SetId>,
    /// How many sets have it.
    live: usize,
}

impl HolderSets {
    pub(super) fn new() -> Self {
        Self {
            sets: vec![Set::default()],
            free: Vec::new(),
            interned: HashMap::default(),
            by_slot: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Says what kind of member has this slot. Nothing may have it as holder.
    pub(super) fn set_store(&mut self, slot: Slot, is_store: bool) {
        let slot = usize::from(slot);
        if self.by_slot.len() <= slot {
            self.by_slot.resize_with(slot + 1, SlotSets::default);
        }
        assert_eq!(self.by_slot[slot].live, 0, "a slot is reused after its member was cleared");
        self.by_slot[slot] = SlotSets { is_store, ..SlotSets::default() };
    }

    pub(super) fn is_store(&self, slot: Slot) -> bool {
        self.by_slot[usize::from(slot)].is_store
    }

    /// The holders, in the order of their slots.
    pub(super) fn holders(&self, id: SetId) -> &[Holder] {
        &self.sets[id.index()].holders
    }

    /// The nearest tier of a store among the holders.
    pub(super) fn store_tier(&self, id: SetId) -> Option<Tier> {
        self.sets[id.index()].store
    }

    /// The part of one member.
    pub(super) fn holder(&self, id: SetId, slot: Slot) -> Holder {
        let holders = self.holders(id);
        match holders.binary_search_by_key(&slot, |holder| holder.slot) {
            Ok(at) => holders[at],
            Err(_) => Holder::none(slot),
        }
    }

    /// The set that differs from `from` in the parts of these members, which are in the order of their slots. Made when it is
    /// not there; unless a block gets it with [`Self::moved`], the next call may give another one.
    pub(super) fn with(&mut self, from: SetId, parts: &[Holder]) -> SetId {
        let source = &self.sets[from.index()];
        let (mut hash, mut rest) = (source.hash, &*source.holders);
        let mut holders = std::mem::take(&mut self.scratch);
        holders.clear();
        for &part in parts {
            let before = rest.partition_point(|holder| holder.slot < part.slot);
            holders.extend_from_slice(&rest[..before]);
            rest = &rest[before..];
            if let Some((old, behind)) = rest.split_first().filter(|(it, _)| it.slot == part.slot) {
                hash ^= old.hash();
                rest = behind;
            }
            hash ^= part.hash();
            holders.extend((!part.is_none()).then_some(part));
        }
        holders.extend_from_slice(rest);
        let id = self.intern(hash, &holders);
        self.scratch = holders;
        id
    }

    /// So many blocks that had the set `from` have `to` now. A set without blocks is given up.
    pub(super) fn moved(&mut self, from: SetId, to: SetId, blocks: usize) {
        if to != SetId::EMPTY {
            self.sets[to.index()].blocks += blocks;
        }
        if from == SetId::EMPTY {
            return;
        }
        let set = &mut self.sets[from.index()];
        set.blocks -= blocks;
        if set.blocks == 0 {
            self.give_up(from);
        }
    }

    /// Takes a member out of all its sets, in place: no block is touched. Cost: its sets and their holders.
    pub(super) fn take_out(&mut self, slot: Slot) -> TakenOut {
        let mut taken = TakenOut::default();
        let listed = std::mem::take(&mut self.by_slot[usize::from(slot)].listed);
        for id in listed {
            let part = self.holder(id, slot);
            if part.is_none() {
                continue;
            }
            self.forget(id);
            let mut holders = std::mem::take(&mut self.sets[id.index()].holders).into_vec();
            holders.retain(|holder| holder.slot != slot);
            let store = self.nearest_in_stores(&holders);
            let set = &mut self.sets[id.index()];
            set.holders = holders.into_boxed_slice();
            set.hash ^= part.hash();
            set.store = store;
            if part.holds() {
                taken.held += set.blocks;
            } else {
                taken.expected += set.blocks;
            }
            if set.holders.is_empty() {
                taken.emptied += set.blocks;
            } else {
                self.interned.entry(set.hash).or_insert(id);
            }
            self.by_slot[usize::from(slot)].live -= 1;
        }
        assert_eq!(self.by_slot[usize::from(slot)].live, 0, "every set of a member is listed");
        taken
    }

    /// Sets in use.
    pub(super) fn len(&self) -> usize {
        self.sets.len() - 1 - self.free.len()
    }

    /// Bytes on the heap, those of the allocator's own bookkeeping left out.
    pub(super) fn bytes(&self) -> usize {
        let holders: usize = self.sets.iter().map(|set| size_of_val(&*set.holders)).sum();
        let listed: usize = self.by_slot.iter().map(|of| of.listed.capacity()).sum();
        let ids = listed + self.free.capacity();
        holders
            + ids * size_of::<SetId>()
            + self.sets.capacity() * size_of::<Set>()
            + self.interned.capacity() * size_of::<(u64, SetId, u8)>()
    }

    fn intern(&mut self, hash: u64, holders: &[Holder]) -> SetId {
        if holders.is_empty() {
            return SetId::EMPTY;
        }
        if let Some(&id) = self.interned.get(&hash)
            && *self.holders(id) == *holders
        {
            return id;
        }
        let store = self.nearest_in_stores(holders);
        let set = Set { holders: holders.into(), hash, blocks: 0, store };
        let id = if let Some(id) = self.free.pop() {
            self.sets[id.index()] = set;
            id
        } else {
            self.sets.push(set);
            SetId(u32::try_from(self.sets.len() - 1).expect("not more sets than blocks"))
        };
        self.interned.entry(hash).or_insert(id);
        for holder in holders {
            self.list(holder.slot, id);
        }
        id
    }

    fn list(&mut self, slot: Slot, id: SetId) {
        let of = &mut self.by_slot[usize::from(slot)];
        of.live += 1;
        if of.listed.len() < 2 * of.live + 16 {
            of.listed.push(id);
            return;
        }
        // Half of the list is out of date: what is left of it costs no more than what was pushed since the last time.
        let mut listed = std::mem::take(&mut of.listed);
        listed.push(id);
        listed.retain(|&id| !self.holder(id, slot).is_none());
        listed.sort_unstable_by_key(|id| id.0);
        listed.dedup();
        listed.shrink_to(2 * listed.len());
        self.by_slot[usize::from(slot)].listed = listed;
    }

    fn give_up(&mut self, id: SetId) {
        self.forget(id);
        let set = std::mem::take(&mut self.sets[id.index()]);
        for holder in &*set.holders {
            self.by_slot[usize::from(holder.slot)].live -= 1;
        }
        self.free.push(id);
        if self.len() == 0 {
            self.sets.truncate(1);
            self.sets.shrink_to_fit();
            self.free = Vec::new();
            self.interned = HashMap::default();
            for of in &mut self.by_slot {
                of.listed = Vec::new();
            }
        }
    }

    /// Takes a set out of the table of hashes.
    fn forget(&mut self, id: SetId) {
        let hash = self.sets[id.index()].hash;
        if self.interned.get(&hash) == Some(&id) {
            self.interned.remove(&hash);
        }
    }

    fn nearest_in_stores(&self, holders: &[Holder]) -> Option<Tier> {
        let stores = holders.iter().filter(|holder| holder.holds() && self.is_store(holder.slot));
        stores.filter_map(|holder| holder.tiers.nearest()).min_by_key(|&tier| tier_index(tier))
    }
}
