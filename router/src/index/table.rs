//! From a name to the place of its block: an open table of places with one byte of each name, in parts that grow one by
//! one, so that no growth stops the router for long. Names themselves are kept by who owns the places.
//!
//! A bucket is one line of a cache. An entry that found its bucket full lies in a later one, and every bucket it passed
//! counts it: a search ends at a bucket that nobody passed, so removals leave nothing behind.

use shared::{BlockName, RANGES};

use super::page::Place;

const BUCKET_ENTRIES: usize = 12;
/// A thousand parts: one with ten thousand blocks is rebuilt in about half a millisecond.
const SHARD_BITS: u32 = 10;
/// Parts of a range of names, which is a first byte.
const RANGE_SHARDS: usize = (1 << SHARD_BITS) / RANGES;
/// At three quarters full, hardly an entry lies beyond its bucket, so that a search reads one line.
const FULL: (usize, usize) = (3, 4);
const VACANT: u32 = u32::MAX;

/// What a name is found by. Names are keyed hashes under a secret: any of their bits are spread evenly, and nobody outside
/// can choose them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key(u64);

impl Key {
    pub(super) fn of(name: BlockName) -> Self {
        let [head, _] = words(name);
        Self(head)
    }

    /// One of 2^[`SHARD_BITS`] parts, in the order of the names.
    fn shard(self) -> usize {
        usize::try_from(self.0 >> (64 - SHARD_BITS)).expect("few bits")
    }

    fn bucket(self, buckets: usize) -> usize {
        let spread = (self.0 >> 16) & u64::from(u32::MAX);
        let buckets = u64::try_from(buckets).expect("a count fits");
        usize::try_from((spread * buckets) >> 32).expect("below the number of buckets")
    }

    /// One of so many pairs of heads, and other bits.
    pub(super) fn head(self, pairs: usize) -> (usize, u32) {
        let [high, low] = [self.0 >> 32, self.0 & u64::from(u32::MAX)];
        let pairs = u64::try_from(pairs).expect("a count fits");
        let at = usize::try_from((low * pairs) >> 32).expect("below the number of pairs");
        (at, u32::try_from(high).expect("32 bits"))
    }

    fn tag(self) -> u8 {
        self.0.to_le_bytes()[0]
    }
}

/// The two halves of a name as numbers, the first in the order of the names.
pub(super) fn words(BlockName(bytes): BlockName) -> [u64; 2] {
    let number = u128::from_be_bytes(bytes);
    let half = |shift: u32| u64::try_from((number >> shift) & u128::from(u64::MAX));
    [64, 0].map(|shift| half(shift).expect("64 bits"))
}

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Bucket {
    tags: [u8; BUCKET_ENTRIES],
    /// A bit for each entry that is there, and above these the number of entries that found this bucket full and lie further
    /// on.
    state: u32,
    places: [u32; BUCKET_ENTRIES],
}

/// One that passed a bucket.
const PASSED: u32 = 1 << BUCKET_ENTRIES;

const _: () = assert!(size_of::<Bucket>() == 64, "a bucket is one line of a cache");

impl Bucket {
    const VACANT: Self =
        Self { tags: [0; BUCKET_ENTRIES], state: 0, places: [VACANT; BUCKET_ENTRIES] };

    /// The first vacant entry.
    fn vacant(&self) -> Option<usize> {
        let at = usize::try_from(self.state.trailing_ones()).expect("few bits");
        (at < BUCKET_ENTRIES).then_some(at)
    }

    /// The highest bit of a byte for every entry with this tag, and for a few others: vacant ones, and some behind one with
    /// this tag.
    fn tagged(&self, tag: u8) -> u128 {
        const ONES: u128 = u128::from_le_bytes([1; 16]) >> (8 * (16 - BUCKET_ENTRIES));
        const HIGH: u128 = ONES << 7;
        let mut bytes = [0; 16];
        bytes[..BUCKET_ENTRIES].copy_from_slice(&self.tags);
        // A byte is 0 where the tag is equal. Subtracting one borrows from there on.
        let differ = u128::from_le_bytes(bytes) ^ (ONES * u128::from(tag));
        differ.wrapping_sub(ONES) & !differ & HIGH
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[Shard]>,
}

#[derive(Debug, Default)]
struct Shard {
    buckets: Box<[Bucket]>,
    len: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { shards: (0..1 << SHARD_BITS).map(|_| Shard::default()).collect() }
    }

    /// The place of a name, among those that `is_it` accepts.
    pub(super) fn find(&self, key: Key, is_it: impl Fn(Place) -> bool) -> Option<Place> {
        self.shards[key.shard()].find(key, is_it).map(|(_, _, place)| place)
    }

    /// The place of a name, among those that `is_it` accepts; when there is none, the name is added with this place. `key_at` as
    /// for [`Self::insert`].
    pub(super) fn find_or_insert(
        &mut self,
        (key, place): (Key, Place),
        is_it: impl Fn(Place) -> bool,
        key_at: impl Fn(Place) -> Key,
    ) -> Option<Place> {
        let shard = &mut self.shards[key.shard()];
        let found = shard.find(key, is_it).map(|(_, _, place)| place);
        if found.is_none() {
            shard.make_room(key_at);
            shard.place(key, place);
        }
        found
    }

    /// Something of the line that a search of this name reads first.
    pub(super) fn peek(&self, key: Key) -> u32 {
        let buckets = &self.shards[key.shard()].buckets;
        buckets.get(key.bucket(buckets.len())).map_or(0, |bucket| bucket.state)
    }

    /// Adds a name that is not there. `key_at` tells the names of the places that are.
    pub(super) fn insert(&mut self, key: Key, place: Place, key_at: impl Fn(Place) -> Key) {
        let shard = &mut self.shards[key.shard()];
        shard.make_room(key_at);
        shard.place(key, place);
    }

    /// Takes a name out.
    pub(super) fn remove(&mut self, key: Key, place: Place, key_at: impl Fn(Place) -> Key) {
        let shard = &mut self.shards[key.shard()];
        shard.take(key, place);
        // At a third full, growing again is far away.
        let buckets = shard.len.div_ceil(BUCKET_ENTRIES) * 3 / 2;
        if shard.len * 3 < shard.buckets.len() * BUCKET_ENTRIES && buckets < shard.buckets.len() {
            shard.rebuild(buckets, key_at);
        }
    }

    /// The block moved from one place to another.
    pub(super) fn relocate(&mut self, key: Key, from: Place, to: Place) {
        let shard = &mut self.shards[key.shard()];
        let (bucket, at, _) = shard.find(key, |place| place == from).expect("a block is listed");
        shard.buckets[bucket].places[at] = to.0;
    }

    /// The places of the names of a range.
    pub(super) fn of_range(&self, range: u8) -> impl Iterator<Item = Place> + '_ {
        let first = usize::from(range) * RANGE_SHARDS;
        let buckets = self.shards[first..first + RANGE_SHARDS].iter().flat_map(|it| &it.buckets);
        let places = buckets.flat_map(|bucket| bucket.places);
        places.filter(|&place| place != VACANT).map(Place)
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        let buckets: usize = self.shards.iter().map(|shard| size_of_val(&*shard.buckets)).sum();
        buckets + size_of_val(&*self.shards)
    }
}

impl Shard {
    fn find(&self, key: Key, is_it: impl Fn(Place) -> bool) -> Option<(usize, usize, Place)> {
        let home = key.bucket(self.buckets.len());
        for bucket in (home..self.buckets.len()).chain(0..home) {
            let it = &self.buckets[bucket];
            let mut tagged = it.tagged(key.tag());
            while tagged != 0 {
                let at = usize::try_from(tagged.trailing_zeros() / 8).expect("small");
                let place = it.places[at];
                if place != VACANT && is_it(Place(place)) {
                    return Some((bucket, at, Place(place)));
                }
                tagged &= tagged - 1;
            }
            if it.state < PASSED {
                return None;
            }
        }
        None
    }

    fn make_room(&mut self, key_at: impl Fn(Place) -> Key) {
        if self.buckets.len() * BUCKET_ENTRIES * FULL.0 <= self.len * FULL.1 {
            self.rebuild(self.buckets.len() * 3 / 2 + 1, key_at);
        }
    }

    fn place(&mut self, key: Key, place: Place) {
        let home = key.bucket(self.buckets.len());
        for bucket in (home..self.buckets.len()).chain(0..home) {
            let it = &mut self.buckets[bucket];
            if let Some(at) = it.vacant() {
                it.tags[at] = key.tag();
                it.places[at] = place.0;
                it.state |= 1 << at;
                self.len += 1;
                return;
            }
            it.state = it.state.checked_add(PASSED).expect("a part is not full of one bucket's");
        }
        unreachable!("a part has room before a name is added");
    }

    fn take(&mut self, key: Key, place: Place) {
        let (found, at, _) = self.find(key, |it| it == place).expect("a block is listed");
        self.buckets[found].places[at] = VACANT;
        self.buckets[found].state &= !(1 << at);
        self.len -= 1;
        let home = key.bucket(self.buckets.len());
        let passed = (home..self.buckets.len()).chain(0..home).take_while(|&at| at != found);
        for bucket in passed {
            self.buckets[bucket].state -= PASSED;
        }
    }

    fn rebuild(&mut self, buckets: usize, key_at: impl Fn(Place) -> Key) {
        let fresh = vec![Bucket::VACANT; buckets].into_boxed_slice();
        let old = std::mem::replace(self, Self { buckets: fresh, len: 0 });
        let mut places = Vec::with_capacity(old.len);
        for bucket in &old.buckets {
            places.extend(
                bucket.places.iter().filter(|&&place| place != VACANT).map(|&it| Place(it)),
            );
        }
        // Names are read in a loop of their own, where no read waits for another.
        let keys: Vec<Key> = places.iter().map(|&place| key_at(place)).collect();
        for (key, place) in keys.into_iter().zip(places) {
            self.place(key, place);
        }
    }
}
