use std::thread;

use shared::{
    BlockName, CacheChange, CacheQuestion, Descriptor, Generation, ObjectKind, Random, RangeSet,
    RegionId, Tier,
};

use super::state::Phase;
use super::{OpenRead, OwnedSlot, Pool, PoolFull, Seal, SealedSlot};
use crate::testing::{
    Follower, SLOT_BYTES, bytes_of, damage, name, payload, pool, pool_of, pool_with_memory, store,
};
use crate::transport::ReadError;

fn seal_as(number: u64) -> Seal {
    Seal { name: name(number), exact: true, bytes: u32::try_from(SLOT_BYTES).unwrap() }
}

#[test]
fn reserve_is_all_or_nothing_and_evicts_the_least_recently_used() {
    let pool = pool(1, 4);
    for number in 0..3 {
        drop(store(&pool, number));
    }
    drop(pool.lookup(name(0)));
    let pinned = pool.lookup(name(1)).unwrap();
    assert_eq!(pool.reserve(4).unwrap_err(), PoolFull { needed: 4, available: 3 });
    assert_eq!(pool.held(), 3, "a refused reservation evicts nothing");
    let slots = pool.reserve(2).unwrap();
    assert_eq!(pool.names(), [name(0), name(1)], "2 was used before 0");
    assert_eq!((slots.len(), pool.available()), (2, 1));
    drop((slots, pinned));
    assert_eq!(pool.available(), 4);
    assert!(pool.audit().is_at_rest());
}

#[test]
fn sealing_a_held_name_returns_the_held_copy() {
    let pool = pool(1, 3);
    let first = store(&pool, 7);
    let mut slot = pool.reserve(1).unwrap().pop().unwrap();
    slot.write(&mut |bytes| bytes.fill(9));
    let second = pool.seal(slot, Seal { exact: false, ..seal_as(7) });
    assert_eq!(second.descriptor(), first.descriptor());
    assert_eq!(bytes_of(&second), payload(7));
    assert!(second.exact());
    assert_eq!(pool.audit().free, 2, "the new copy was freed");
}

#[test]
fn a_run_is_looked_up_to_its_first_gap_and_released_from_its_end() {
    let pool = pool(1, 4);
    let run: Vec<SealedSlot> = (0..4).map(|number| store(&pool, number)).collect();
    pool.release(run);
    let taken = pool.reserve(1).unwrap();
    assert_eq!(pool.names(), [0, 1, 2].map(name), "the end of the chain went first");
    let names: Vec<BlockName> = [0, 1, 9, 2].map(name).to_vec();
    let run = pool.lookup_run(&names);
    assert_eq!(run.iter().map(SealedSlot::name).collect::<Vec<_>>(), [name(0), name(1)]);
    assert_eq!(pool.audit().pinned, 2);
    drop((run, taken));
}

#[test]
fn a_descriptor_opens_only_the_copy_it_describes() {
    let pool = pool(1, 1);
    let old = store(&pool, 1).descriptor();
    let open = pool.open(&old).unwrap();
    assert_eq!(pool.reserve(1).unwrap_err(), PoolFull { needed: 1, available: 0 });
    assert_eq!(pool.audit().open_reads, 1);
    drop(open);
    drop(store(&pool, 1));
    let fresh = pool.lookup(name(1)).unwrap().descriptor();
    let with = |change: fn(&mut Descriptor)| {
        let mut descriptor = fresh;
        change(&mut descriptor);
        descriptor
    };
    let elsewhere = with(|d| d.location.region = RegionId(2));
    let foreign = ReadError::UnknownRegion { region: RegionId(2) };
    let cases = [
        (fresh, None),
        (old, Some(ReadError::Stale)),
        (elsewhere, Some(foreign)),
        (with(|d| d.location.slot.0 = 1), Some(ReadError::Stale)),
        (with(|d| d.location.generation = Generation(99)), Some(ReadError::Stale)),
        (with(|d| d.key.name = name(2)), Some(ReadError::Stale)),
        (with(|d| d.key.kind = ObjectKind::Window), Some(ReadError::Stale)),
        (with(|d| d.checksum ^= 1), Some(ReadError::Stale)),
        (with(|d| d.bytes -= 1), Some(ReadError::Stale)),
        (with(|d| d.exact = false), Some(ReadError::Stale)),
    ];
    for (descriptor, expected) in cases {
        assert_eq!(pool.open(&descriptor).err(), expected, "{descriptor:?}");
    }
    let owned = pool.reserve(1).unwrap();
    assert_eq!(pool.open(&fresh).err(), Some(ReadError::Stale), "the slot is being written");
    drop(owned);
    assert_eq!(pool.open(&fresh).err(), Some(ReadError::Stale), "the slot is free");
}

#[test]
fn what_was_read_is_sealed_only_with_the_right_bytes() {
    let source = pool(1, 1);
    let (target, memory) = pool_with_memory(2, 2);
    let held = store(&source, 5);
    let copy = || {
        let mut slot = target.reserve(1).unwrap().pop().unwrap();
        slot.write(&mut |bytes| bytes.copy_from_slice(&payload(5)));
        slot
    };
    let bad = copy();
    damage(&memory, bad.index());
    let refused = target.seal_read(bad, &held.descriptor()).unwrap_err();
    assert!(matches!(refused, ReadError::Corrupt { expected, found }
        if expected == held.descriptor().checksum && found != expected));
    let mut long = held.descriptor();
    long.bytes += 1;
    let expected = ReadError::Length { expected: SLOT_BYTES + 1, found: SLOT_BYTES };
    assert_eq!(target.seal_read(copy(), &long).unwrap_err(), expected);
    let sealed = target.seal_read(copy(), &held.descriptor()).unwrap();
    assert_eq!((sealed.name(), bytes_of(&sealed)), (name(5), payload(5)));
    assert_eq!(target.audit().free, 1);
}

#[test]
fn a_forgotten_copy_stays_with_its_holders_and_is_found_by_nobody() {
    let pool = pool(1, 2);
    let held = store(&pool, 1);
    let idle = store(&pool, 2).descriptor();
    assert!(pool.forget(&held.descriptor()));
    assert!(!pool.forget(&held.descriptor()), "once");
    assert!(pool.forget(&idle));
    assert!(!pool.forget(&idle), "the slot is free by now");
    assert!(pool.lookup(name(1)).is_none() && pool.names().is_empty());
    let clone = held.clone();
    drop(held);
    assert_eq!(bytes_of(&clone), payload(1));
    let again = store(&pool, 1);
    assert_ne!(again.index(), clone.index());
    drop((clone, again));
    let audit = pool.audit();
    assert_eq!((audit.free, audit.cached, audit.leaked), (1, 1, 0));
}

#[test]
fn an_unnamed_copy_is_readable_while_pinned_and_found_by_nobody() {
    let pool = pool(1, 2);
    let named = store(&pool, 1);
    let mut slot = pool.reserve(1).unwrap().pop().unwrap();
    slot.write(&mut |bytes| bytes.copy_from_slice(&payload(2)));
    let unnamed = pool.seal_unnamed(slot, seal_as(1));
    assert_eq!((unnamed.name(), bytes_of(&unnamed)), (name(1), payload(2)));
    assert_eq!(pool.lookup(name(1)).unwrap().index(), named.index());
    assert_eq!((pool.held(), pool.audit().pinned), (1, 2));
    let descriptor = unnamed.descriptor();
    assert!(pool.open(&descriptor).unwrap().is_intact());
    assert!(!pool.forget(&descriptor), "it has no name to lose");
    drop((unnamed, named));
    assert_eq!(pool.open(&descriptor).unwrap_err(), ReadError::Stale);
    let audit = pool.audit();
    assert_eq!((audit.free, audit.cached, audit.leaked), (1, 1, 0));
}

#[test]
fn changes_are_net_and_a_resync_starts_afresh() {
    let pool = pool(1, 2);
    let tier = Tier::Device;
    assert_eq!(pool.drain_changes(), []);
    drop(store(&pool, 1));
    assert_eq!(pool.drain_changes(), [CacheChange::Stored { tier, names: vec![name(1)] }]);
    drop(store(&pool, 2));
    assert_eq!(pool.evict_all(), 2);
    drop(store(&pool, 3));
    let expected = [
        CacheChange::Removed { tier, names: vec![name(1)] },
        CacheChange::Stored { tier, names: vec![name(3)] },
    ];
    assert_eq!(pool.drain_changes(), expected, "2 came and went unseen");
    assert_eq!(pool.evict_all(), 1);
    drop(store(&pool, 3));
    assert_eq!(pool.drain_changes(), [], "3 left and came back unseen");
    drop(store(&pool, 4));
    let names = vec![name(3), name(4)];
    let expected = [CacheChange::Cleared, CacheChange::Stored { tier, names }];
    assert_eq!(pool.resync_changes(), expected);
    assert_eq!(pool.drain_changes(), []);
    assert_eq!(pool.evict_all(), 2);
    assert_eq!(pool.resync_changes(), [CacheChange::Cleared]);
}

#[test]
fn the_audit_finds_planted_leaks() {
    type Plant = fn(&Pool);
    let plants: [(&str, Plant); 6] = [
        ("a free slot in no list", |pool| {
            pool.shared.state.lock().free.pop();
        }),
        ("a cached slot in no list", |pool| {
            let mut state = pool.shared.state.lock();
            let slot = state.find(name(1)).unwrap();
            state.cached.remove(slot);
        }),
        ("a pin without a guard", |pool| {
            let mut state = pool.shared.state.lock();
            let slot = state.find(name(1)).unwrap();
            drop(state.pin(slot));
        }),
        ("a read without a guard", |pool| {
            let mut state = pool.shared.state.lock();
            let slot = state.find(name(1)).unwrap();
            drop(state.open(slot));
        }),
        ("an owner without a guard", |pool| {
            let mut state = pool.shared.state.lock();
            let (_, witness) = state.take_slot().unwrap();
            drop(witness);
        }),
        ("a cached slot without its name", |pool| {
            pool.shared.state.lock().by_name.clear();
        }),
    ];
    for (what, plant) in plants {
        let pool = pool(1, 3);
        drop(store(&pool, 1));
        assert!(pool.audit().is_at_rest(), "{what}");
        plant(&pool);
        assert_eq!(pool.audit().leaked, 1, "{what}");
    }
}

#[test]
#[should_panic(expected = "sealed by the pool it came from")]
fn a_slot_of_another_pool_is_not_sealed() {
    let slot = pool(1, 1).reserve(1).unwrap().pop().unwrap();
    drop(pool(2, 1).seal(slot, seal_as(1)));
}

#[test]
#[should_panic(expected = "one kind of object")]
fn an_object_of_another_kind_is_not_sealed() {
    let source = store(&pool_of(1, 1, ObjectKind::Window).0, 1).descriptor();
    let target = pool(2, 1);
    let slot = target.reserve(1).unwrap().pop().unwrap();
    assert!(target.seal_read(slot, &source).is_err());
}

/// A copy as the naive model knows it.
#[derive(Clone, Debug)]
struct Copy {
    descriptor: Descriptor,
    version: u64,
    pins: usize,
    reads: usize,
    named: bool,
    main: bool,
    used: bool,
}

/// The pool, the guards a test holds on it, and a model in plain vectors.
struct Twin {
    pool: Pool,
    generator: Random,
    owned: Vec<OwnedSlot>,
    sealed: Vec<SealedSlot>,
    open: Vec<OpenRead>,
    copies: Vec<Copy>,
    /// Descriptors of idle named copies, in the order of their release: those of both queues.
    idle: Vec<Descriptor>,
    /// Names that left the small queue, the last ones; none where one came back.
    ghosts: Vec<Option<BlockName>>,
    /// Every descriptor ever given out.
    seen: Vec<(Descriptor, u64)>,
    versions: u64,
    follower: Follower,
}

const SLOTS: usize = 6;
const NAMES: usize = 10;

impl Twin {
    fn new(seed: u64) -> Self {
        Self {
            pool: pool(1, u32::try_from(SLOTS).unwrap()),
            generator: Random::new(seed),
            owned: Vec::new(),
            sealed: Vec::new(),
            open: Vec::new(),
            copies: Vec::new(),
            idle: Vec::new(),
            ghosts: Vec::new(),
            seen: Vec::new(),
            versions: 0,
            follower: Follower::default(),
        }
    }

    fn step(&mut self) {
        match self.generator.below(12) {
            0 | 1 => self.reserve(),
            2 | 3 => self.seal(),
            4 => self.lookup(),
            5 => self.clone_one(),
            6 | 7 => self.drop_sealed(),
            8 => self.open(),
            9 => self.drop_open(),
            10 => match self.generator.below(4) {
                0 => self.evict_all(),
                1 => self.forget(),
                _ => drop(pick(&mut self.generator, &mut self.owned)),
            },
            _ => self.tell(),
        }
        self.check();
    }

    fn free(&self) -> usize {
        SLOTS - self.owned.len() - self.copies.len()
    }

    fn find(&mut self, descriptor: &Descriptor) -> Option<&mut Copy> {
        self.copies.iter_mut().find(|copy| copy.descriptor == *descriptor)
    }

    fn hold(&mut self, descriptor: &Descriptor) -> &mut Copy {
        self.idle.retain(|idle| idle != descriptor);
        self.find(descriptor).unwrap()
    }

    fn release(&mut self, descriptor: &Descriptor, pin: bool) {
        let copy = self.find(descriptor).unwrap();
        *(if pin { &mut copy.pins } else { &mut copy.reads }) -= 1;
        if copy.pins + copy.reads != 0 {
            return;
        }
        if copy.named {
            self.idle.push(*descriptor);
        } else {
            self.copies.retain(|copy| copy.descriptor != *descriptor);
        }
    }

    fn reserve(&mut self) {
        let count = self.generator.below(4);
        let available = self.free() + self.idle.len();
        match self.pool.reserve(count) {
            Ok(slots) => {
                assert!(count <= available);
                for _ in self.free()..count {
                    self.evict();
                }
                self.owned.extend(slots);
            }
            Err(full) => assert_eq!(full, PoolFull { needed: count, available }),
        }
    }

    fn evict(&mut self) {
        loop {
            let main: Vec<bool> =
                self.idle.clone().iter().map(|idle| self.find(idle).unwrap().main).collect();
            let from_main = main.len() < 2 * main.iter().filter(|main| **main).count();
            let at = main.iter().position(|main| *main == from_main).unwrap();
            let descriptor = self.idle.remove(at);
            let copy = self.find(&descriptor).unwrap();
            if std::mem::take(&mut copy.used) {
                copy.main = true;
                self.idle.push(descriptor);
                continue;
            }
            if !from_main {
                let before = (self.ghosts.len() + 1).saturating_sub(SLOTS);
                self.ghosts.drain(..before);
                self.ghosts.push(Some(descriptor.key.name));
            }
            self.copies.retain(|copy| copy.descriptor != descriptor);
            return;
        }
    }

    fn seal(&mut self) {
        let Some(mut slot) = pick(&mut self.generator, &mut self.owned) else {
            return;
        };
        self.versions += 1;
        let version = self.versions;
        slot.write(&mut |bytes| bytes.copy_from_slice(&payload(version)));
        let number = u64::try_from(self.generator.below(NAMES)).unwrap();
        let held =
            self.copies.iter().find(|copy| copy.named && copy.descriptor.key.name == name(number));
        let held = held.map(|copy| copy.descriptor);
        let sealed = self.pool.seal(slot, seal_as(number));
        let descriptor = sealed.descriptor();
        match held {
            Some(held) => assert_eq!(descriptor, held, "first write wins"),
            None => {
                assert!(self.seen.iter().all(|(seen, _)| *seen != descriptor), "never again");
                let ghost = self.ghosts.iter_mut().find(|ghost| **ghost == Some(name(number)));
                let main = ghost.is_some_and(|ghost| ghost.take().is_some());
                let (pins, reads, named, used) = (0, 0, true, false);
                let copy = Copy { descriptor, version, pins, reads, named, main, used };
                self.copies.push(copy);
                self.seen.push((descriptor, version));
            }
        }
        self.hold(&descriptor).pins += 1;
        self.sealed.push(sealed);
    }

    fn lookup(&mut self) {
        let number = u64::try_from(self.generator.below(NAMES)).unwrap();
        let held =
            self.copies.iter().find(|copy| copy.named && copy.descriptor.key.name == name(number));
        let held = held.map(|copy| copy.descriptor);
        let upkeep = self.generator.below(3) == 0;
        let found =
            if upkeep { self.pool.hold(name(number)) } else { self.pool.lookup(name(number)) };
        assert_eq!(found.as_ref().map(SealedSlot::descriptor), held);
        if let Some(found) = found {
            let copy = self.hold(&found.descriptor());
            (copy.pins, copy.used) = (copy.pins + 1, copy.used || !upkeep);
            self.sealed.push(found);
        }
    }

    fn clone_one(&mut self) {
        if let Some(slot) = self.sealed.last().cloned() {
            self.hold(&slot.descriptor()).pins += 1;
            self.sealed.push(slot);
        }
    }

    fn drop_sealed(&mut self) {
        if let Some(slot) = pick(&mut self.generator, &mut self.sealed) {
            let descriptor = slot.descriptor();
            drop(slot);
            self.release(&descriptor, true);
        }
    }

    fn open(&mut self) {
        if self.seen.is_empty() {
            return;
        }
        let (descriptor, _) = self.seen[self.generator.below(self.seen.len())];
        let alive = self.find(&descriptor).is_some();
        match self.pool.open(&descriptor) {
            Ok(open) => {
                assert!(alive, "a stale read opened");
                self.hold(&descriptor).reads += 1;
                self.open.push(open);
            }
            Err(error) => assert!(!alive && error == ReadError::Stale),
        }
    }

    fn drop_open(&mut self) {
        if let Some(open) = pick(&mut self.generator, &mut self.open) {
            let descriptor = open.descriptor();
            drop(open);
            self.release(&descriptor, false);
        }
    }

    fn evict_all(&mut self) {
        assert_eq!(self.pool.evict_all(), self.idle.len());
        let idle = std::mem::take(&mut self.idle);
        self.ghosts.clear();
        self.copies.retain(|copy| !idle.contains(&copy.descriptor));
    }

    fn forget(&mut self) {
        if self.seen.is_empty() {
            return;
        }
        let (descriptor, _) = self.seen[self.generator.below(self.seen.len())];
        let named = self.find(&descriptor).is_some_and(|copy| copy.named);
        assert_eq!(self.pool.forget(&descriptor), named);
        if !named {
            return;
        }
        let copy = self.hold(&descriptor);
        copy.named = false;
        if copy.pins + copy.reads == 0 {
            self.copies.retain(|copy| copy.descriptor != descriptor);
        }
    }

    fn check(&mut self) {
        let audit = self.pool.audit();
        assert_eq!(audit.leaked, 0);
        assert_eq!((audit.free, audit.cached), (self.free(), self.idle.len()));
        assert_eq!(audit.owned, self.owned.len());
        assert_eq!(audit.pinned, self.copies.iter().filter(|copy| 0 < copy.pins).count());
        let reading = |copy: &&Copy| copy.pins == 0 && 0 < copy.reads;
        assert_eq!(audit.open_reads, self.copies.iter().filter(reading).count());
        assert_eq!(self.pool.available(), self.free() + self.idle.len());
        let named = self.copies.iter().filter(|copy| copy.named);
        let mut names: Vec<BlockName> = named.map(|copy| copy.descriptor.key.name).collect();
        names.sort_unstable();
        assert_eq!(self.pool.names(), names);
        assert!(self.pool.shared.state.lock().pending_changes() <= 2 * SLOTS);
        for slot in &self.sealed {
            let version = self.copies.iter().find(|copy| copy.descriptor == slot.descriptor());
            assert_eq!(bytes_of(slot), payload(version.unwrap().version));
        }
        for open in &self.open {
            let mut bytes = Vec::new();
            open.read(&mut |payload| bytes.extend_from_slice(payload));
            let version = self.copies.iter().find(|copy| copy.descriptor == open.descriptor());
            assert_eq!(bytes, payload(version.unwrap().version));
        }
    }

    fn tell(&mut self) {
        let changes = match self.generator.below(6) {
            0 => self.pool.answer(&CacheQuestion::Digests),
            1 => self.pool.answer(&CacheQuestion::Ranges(RangeSet::from_words([1, 0, 0, 0]))),
            2 => self.pool.answer(&CacheQuestion::Whole),
            _ => self.pool.drain_changes(),
        };
        self.follower.follow(changes);
    }

    /// Everything is dropped: only free and cached slots stay, and the followed changes name exactly those.
    fn finish(mut self) {
        self.owned.clear();
        self.sealed.clear();
        self.open.clear();
        assert!(self.pool.audit().is_at_rest());
        self.follower.follow(self.pool.drain_changes());
        assert_eq!(self.follower.names_in(Tier::Device), self.pool.names());
        let held = self.pool.held();
        assert_eq!(self.pool.evict_all(), held);
        self.follower.follow(self.pool.drain_changes());
        assert_eq!(self.follower.names_in(Tier::Device), []);
        let state = self.pool.shared.state.lock();
        assert!(state.slots.iter().all(|slot| matches!(slot.phase, Phase::Free)));
    }
}

fn pick<T>(generator: &mut Random, from: &mut Vec<T>) -> Option<T> {
    if from.is_empty() {
        return None;
    }
    let index = generator.below(from.len());
    Some(from.swap_remove(index))
}

#[test]
fn random_histories_agree_with_a_naive_model() {
    for seed in 0..150 {
        println!("seed {seed}");
        let mut twin = Twin::new(seed);
        for _ in 0..300 {
            twin.step();
        }
        twin.finish();
    }
}

#[test]
fn threads_never_see_foreign_bytes() {
    let pool = pool(1, 8);
    thread::scope(|scope| {
        for seed in 0..4 {
            let pool = pool.clone();
            scope.spawn(move || {
                let mut generator = Random::new(seed);
                let mut seen: Vec<Descriptor> = Vec::new();
                for _ in 0..2_000 {
                    let number = u64::try_from(generator.below(16)).unwrap();
                    let slot = match pool.lookup(name(number)) {
                        Some(slot) => slot,
                        None if pool.available() < 4 => continue,
                        None => store(&pool, number),
                    };
                    assert_eq!(bytes_of(&slot), payload(number));
                    seen.push(slot.descriptor());
                    drop(slot);
                    let old = seen[generator.below(seen.len())];
                    if let Ok(open) = pool.open(&old) {
                        assert!(open.is_intact());
                    }
                }
            });
        }
    });
    assert!(pool.audit().is_at_rest());
    assert_eq!(pool.audit().leaked, 0);
}
