//! What the tests of several modules need: a seeded generator, small pools, recorded bytes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use shared::{
    BlockName, CacheChange, Descriptor, Grouped, ObjectKey, ObjectKind, Random, RangeDigests,
    RegionId, SlotIndex, SlotMemory, Tier, range_of,
};

use crate::memory::HostMemory;
use crate::pool::{Pool, PoolConfig, Seal, SealedSlot};

/// Bytes of a slot in tests: odd, so that no power of two hides a mistake.
pub(crate) const SLOT_BYTES: usize = 37;

pub(crate) fn name(number: u64) -> BlockName {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    BlockName(bytes)
}

/// A pool of blocks over fresh memory. The memory is returned too, so that a test can damage bytes behind the pool.
pub(crate) fn pool_with_memory(region: u64, slots: u32) -> (Pool, Arc<HostMemory>) {
    pool_of(region, slots, ObjectKind::Block)
}

pub(crate) fn pool_of(region: u64, slots: u32, kind: ObjectKind) -> (Pool, Arc<HostMemory>) {
    let memory = Arc::new(HostMemory::with_slots(slots, SLOT_BYTES).unwrap());
    let config = PoolConfig { region: RegionId(region), kind, tier: Tier::Device };
    let pool = Pool::new(config, Arc::clone(&memory) as Arc<dyn SlotMemory>);
    (pool, memory)
}

pub(crate) fn pool(region: u64, slots: u32) -> Pool {
    pool_with_memory(region, slots).0
}

/// The payload of the object with this number: bytes that no other number has.
pub(crate) fn payload(number: u64) -> Vec<u8> {
    let mut generator = Random::new(number);
    (0..SLOT_BYTES).map(|_| generator.word().to_le_bytes()[0]).collect()
}

/// Stores the object with this number and returns it pinned.
pub(crate) fn store(pool: &Pool, number: u64) -> SealedSlot {
    let mut slot = pool.reserve(1).unwrap().pop().unwrap();
    slot.write(&mut |bytes| bytes.copy_from_slice(&payload(number)));
    let bytes = u32::try_from(SLOT_BYTES).unwrap();
    pool.seal(slot, Seal { name: name(number), exact: true, bytes })
}

pub(crate) fn bytes_of(slot: &SealedSlot) -> Vec<u8> {
    let mut bytes = Vec::new();
    slot.read(&mut |payload| bytes.extend_from_slice(payload));
    bytes
}

/// Flips one bit behind the pool's back.
pub(crate) fn damage(memory: &HostMemory, slot: SlotIndex) {
    memory.write(slot, &mut |bytes| bytes[3] ^= 0x10);
}

/// Keys, each as a group of its own.
pub(crate) fn asked(keys: &[ObjectKey]) -> Vec<Grouped<ObjectKey>> {
    keys.iter().copied().map(Grouped::<ObjectKey>::alone).collect()
}

/// Objects, each as a group of its own.
pub(crate) fn offers(objects: &[Descriptor]) -> Vec<Grouped<Descriptor>> {
    objects.iter().copied().map(Grouped::<Descriptor>::alone).collect()
}

/// Somebody who follows what is told, and holds it to the rules: changes are net, digests are of what was told.
#[derive(Default)]
pub(crate) struct Follower(BTreeSet<(BlockName, Tier)>);

impl Follower {
    pub(crate) fn follow(&mut self, changes: Vec<CacheChange>) {
        for change in changes {
            match change {
                CacheChange::Stored { tier, names } => {
                    for name in names {
                        assert!(self.0.insert((name, tier)), "{name} is stored twice");
                    }
                }
                CacheChange::Removed { tier, names } => {
                    for name in names {
                        assert!(self.0.remove(&(name, tier)), "{name} was never stored");
                    }
                }
                CacheChange::Cleared => self.0.clear(),
                CacheChange::RangesCleared(ranges) => {
                    self.0.retain(|held| !ranges.contains(range_of(held.0)));
                }
                CacheChange::Digests(digests) => {
                    let mut own = RangeDigests::default();
                    self.0.iter().for_each(|&(name, tier)| own.add(name, tier));
                    assert_eq!(own, digests);
                }
            }
        }
    }

    /// What is held in a tier, ascending.
    pub(crate) fn names_in(&self, tier: Tier) -> Vec<BlockName> {
        self.0.iter().filter(|held| held.1 == tier).map(|held| held.0).collect()
    }
}

/// The next event, or a failed test instead of a hanging one.
pub(crate) fn next<T>(events: &Receiver<T>) -> T {
    events.recv_timeout(Duration::from_secs(20)).expect("an answer within 20 s")
}
