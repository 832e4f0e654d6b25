//! Pages of places for blocks, and how far a prefix agrees with what lies there.

use shared::BlockName;

use super::sets::SetId;

/// Places of a group: their sets are two lines of a cache, their names the next eight. What follows each other in a chain is
/// read from one end to the other, which memory is fastest at.
const GROUP: usize = 32;
/// Groups of a page: 20 KB.
const GROUPS: usize = 32;
/// Places of a page.
pub(super) const PAGE: usize = GROUP * GROUPS;
/// A vacant place. No set has this id: there are not more sets than blocks.
pub(super) const VACANT: SetId = SetId(u32::MAX);
/// Names compared at a time.
const STRIDE: usize = 8;

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(pub(super) u32);

impl Place {
    pub(super) fn new(page: usize, group: usize, at: usize) -> Self {
        let number = (page * GROUPS + group) * GROUP + at;
        Self(u32::try_from(number).expect("fewer than 2^32 places"))
    }

    fn number(self) -> usize {
        usize::try_from(self.0).expect("a u32 fits")
    }

    pub(super) fn page(self) -> usize {
        self.number() / PAGE
    }

    pub(super) fn group(self) -> usize {
        self.number() / GROUP % GROUPS
    }

    pub(super) fn at(self) -> usize {
        self.number() % GROUP
    }

    /// The place so many later.
    pub(super) fn later(self, count: usize) -> Self {
        Self(self.0 + u32::try_from(count).expect("fewer than 2^32 places"))
    }

    /// Whether it is the last of its page.
    pub(super) fn ends_page(self) -> bool {
        self.later(1).page() != self.page()
    }

    /// Whether a place is beside the one before. True when that is not known.
    pub(super) fn follows(previous: Option<Self>, place: Option<Self>) -> bool {
        previous.is_none_or(|previous| Some(previous.later(1)) == place)
    }
}

/// A page; without groups when it was given back.
#[derive(Debug)]
pub(super) struct Page {
    groups: Box<[Group]>,
    used: usize,
}

#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Group {
    sets: [SetId; GROUP],
    names: [BlockName; GROUP],
}

const _: () = assert!(size_of::<Group>() == 640, "a group is ten lines of a cache");

impl Page {
    pub(super) const BYTES: usize = GROUPS * size_of::<Group>();

    /// A page that was given back.
    pub(super) fn absent() -> Self {
        Self { groups: Box::default(), used: 0 }
    }

    pub(super) fn vacant() -> Self {
        let group = Group { sets: [VACANT; GROUP], names: [BlockName([0; 16]); GROUP] };
        Self { groups: vec![group; GROUPS].into_boxed_slice(), used: 0 }
    }

    pub(super) fn is_present(&self) -> bool {
        !self.groups.is_empty()
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn name(&self, place: Place) -> BlockName {
        self.groups[place.group()].names[place.at()]
    }

    pub(super) fn set(&self, place: Place) -> SetId {
        self.groups[place.group()].sets[place.at()]
    }

    /// Whether a block with this name lies there.
    pub(super) fn is(&self, place: Place, name: BlockName) -> bool {
        self.groups.get(place.group()).is_some_and(|group| {
            group.names[place.at()] == name && group.sets[place.at()] != VACANT
        })
    }

    /// Gives so many blocks side by side another set.
    pub(super) fn put(&mut self, place: Place, count: usize, set: SetId) {
        let (mut at, mut left) = (place.at(), count);
        for group in &mut self.groups[place.group()..] {
            let len = left.min(GROUP - at);
            group.sets[at..at + len].fill(set);
            left -= len;
            at = 0;
            if left == 0 {
                return;
            }
        }
        unreachable!("blocks side by side lie in one page");
    }

    /// Lays a block into a vacant place.
    pub(super) fn fill(&mut self, place: Place, name: BlockName, set: SetId) {
        let group = &mut self.groups[place.group()];
        group.names[place.at()] = name;
        group.sets[place.at()] = set;
        self.used += 1;
    }

    /// Makes a place vacant. True when it was the last block of the page.
    pub(super) fn vacate(&mut self, place: Place) -> bool {
        self.put(place, 1, VACANT);
        self.used -= 1;
        self.used == 0
    }

    /// The first vacant place from this group and place of it on.
    pub(super) fn vacant_from(&self, group: usize, at: usize) -> Option<(usize, usize)> {
        if self.used == PAGE {
            return None;
        }
        let first = self.groups.get(group)?.sets[at..].iter().position(|&set| set == VACANT);
        if let Some(found) = first {
            return Some((group, at + found));
        }
        (group + 1..self.groups.len()).find_map(|group| {
            let found = self.groups[group].sets.iter().position(|&set| set == VACANT);
            found.map(|at| (group, at))
        })
    }

    /// The first block.
    pub(super) fn first(&self) -> Option<(usize, usize)> {
        self.groups.iter().enumerate().find_map(|(group, it)| {
            let found = it.sets.iter().position(|&set| set != VACANT);
            found.map(|at| (group, at))
        })
    }

    /// How many blocks from `place` on, which is that of the first of `names`, are the blocks of `names` and have its
    /// set. At least 1.
    pub(super) fn stretch(&self, place: Place, names: &[BlockName]) -> usize {
        let set = self.set(place);
        let (mut at, mut done) = (place.at(), 0);
        for group in &self.groups[place.group()..] {
            let len = (GROUP - at).min(names.len() - done);
            let found = group.stretch(at, set, &names[done..done + len]);
            done += found;
            if found < len || done == names.len() {
                break;
            }
            at = 0;
        }
        done
    }
}

impl Group {
    /// How many places from `at` on have this set and these names.
    fn stretch(&self, at: usize, set: SetId, names: &[BlockName]) -> usize {
        let (held, sets) = (&self.names[at..at + names.len()], &self.sets[at..at + names.len()]);
        let strides = held.chunks_exact(STRIDE).zip(sets.chunks_exact(STRIDE));
        let equal = strides.zip(names.chunks_exact(STRIDE)).take_while(|((held, sets), names)| {
            let sets_differ = sets.iter().fold(0, |all, it| all | (it.0 ^ set.0));
            sets_differ == 0 && names_equal(held, names)
        });
        let done = equal.count() * STRIDE;
        let rest = (done..names.len()).take_while(|&at| sets[at] == set && held[at] == names[at]);
        done + rest.count()
    }
}

/// Whether two stretches are equal, without a branch for each name.
fn names_equal(left: &[BlockName], right: &[BlockName]) -> bool {
    let number = |name: &BlockName| u128::from_ne_bytes(name.0);
    left.iter().zip(right).fold(0, |all, (left, right)| all | (number(left) ^ number(right))) == 0
}
