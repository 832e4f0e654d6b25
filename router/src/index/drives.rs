//! The second level: blocks in the drives of stores, without their names. Four bytes say who holds a block and 22 bits
//! of its name; where they lie says some twenty more.
//!
//! It is a multiset: storing and removing one block of one member and tier must alternate, as members do. Then nothing
//! held is missed, and an absent block is claimed with a chance of the entries it is compared with, at most about
//! [`GROUP_ENTRIES`] and their spread, in 2^22: 16 in a million at the bound, less below. A wrong claim costs a question to
//! the store, never a wrong answer.

use shared::{BlockName, RANGES, RangeSet, Tier};

use super::Slot;
use super::exact::Outcome;
use super::table::words;
use super::tiers::tier_index;

/// Mean entries of a group when the level is full: their 256 bytes are read in one go, and what a group needs besides
/// is a tenth of that.
const GROUP_ENTRIES: usize = 64;
/// Groups grow by this many entries.
const GROWTH: usize = 8;
const PRINT_BITS: u32 = 22;
/// Most (member, tier) pairs at a time, those cleared and not swept yet among them: what is left of the four bytes.
const OWNERS_MAX: usize = (1 << (32 - PRINT_BITS)) - 1;

/// The drives.
#[derive(Debug)]
pub(super) struct Drives {
    /// In the order of names, as many for each range of them; the first vacant entry, which is 0, ends a group.
    groups: Vec<Box<[u32]>>,
    /// Number 0 is of vacant entries.
    owners: Vec<Owner>,
    /// Entries of members, and entries of pairs that were cleared.
    held: usize,
    cleared: usize,
    blocks_max: usize,
    swept: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Owner {
    /// None when the pair was cleared, or never used.
    of: Option<(Slot, Tier)>,
    entries: usize,
}

/// Where a block's entries lie, and what they have of its name.
#[derive(Clone, Copy)]
struct Print {
    group: usize,
    bits: u32,
}

impl Drives {
    /// Room for at most `blocks_max` (block, member, tier) entries. Memory is taken as they come, except 16 bytes for 64.
    pub(super) fn new(blocks_max: usize) -> Self {
        let groups = blocks_max.div_ceil(GROUP_ENTRIES).next_multiple_of(RANGES);
        Self {
            groups: (0..groups).map(|_| Box::default()).collect(),
            owners: vec![Owner::default()],
            held: 0,
            cleared: 0,
            blocks_max,
            swept: 0,
        }
    }

    /// Whether there is a second level at all.
    pub(super) fn is_on(&self) -> bool {
        0 < self.blocks_max
    }

    /// Entries of members now.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Entries of one member now.
    #[cfg(test)]
    pub(super) fn held_by(&self, slot: Slot) -> usize {
        let owners = self.owners.iter();
        owners.filter(|it| it.of.is_some_and(|(of, _)| of == slot)).map(|it| it.entries).sum()
    }

    /// Adds blocks of one member and tier. Answers how many of them, from the first on, found room.
    pub(super) fn store(&mut self, slot: Slot, tier: Tier, names: &[BlockName]) -> usize {
        let Some(owner) = self.owner(slot, tier) else { return 0 };
        // What was cleared and not swept is not counted: a sweep passes a whole group for each block that comes, so that
        // a full level of it is gone when a sixty-fourth has come.
        let room = names.len().min(self.blocks_max.saturating_sub(self.held));
        for &name in &names[..room] {
            let print = self.print(name);
            push(&mut self.groups[print.group], entry(owner, print));
        }
        self.owners[owner].entries += room;
        self.held += room;
        room
    }

    /// Takes blocks of one member and tier out, and tells for each whether it was there.
    pub(super) fn remove(
        &mut self,
        slot: Slot,
        tier: Tier,
        names: &[BlockName],
        mut told: impl FnMut(BlockName, Outcome),
    ) {
        let found = self.owners.iter().position(|owner| owner.of == Some((slot, tier)));
        let Some(owner) = found else {
            names.iter().for_each(|&name| told(name, Outcome::Same));
            return;
        };
        for &name in names {
            let print = self.print(name);
            let entry = entry(owner, print);
            let group = &mut self.groups[print.group];
            let taken = remove_where(group, Some(1), |it| it == entry);
            self.owners[owner].entries -= taken;
            self.held -= taken;
            told(name, if taken == 0 { Outcome::Same } else { Outcome::Changed });
        }
        self.give_up_if_empty(owner);
    }

    /// Forgets a member's blocks of these ranges. Cost: all entries there.
    pub(super) fn clear_ranges(&mut self, slot: Slot, ranges: RangeSet) {
        let groups = self.groups.len() / RANGES;
        for range in ranges.iter() {
            let first = usize::from(range) * groups;
            for group in &mut self.groups[first..first + groups] {
                let owners = &mut self.owners;
                self.held -= remove_where(group, None, |it| {
                    let owner = &mut owners[owner_of(it)];
                    let gone = owner.of.is_some_and(|(of, _)| of == slot);
                    owner.entries -= usize::from(gone);
                    gone
                });
            }
        }
        (1..self.owners.len()).for_each(|owner| self.give_up_if_empty(owner));
    }

    /// Forgets a member's blocks. Their entries are swept later.
    pub(super) fn clear(&mut self, slot: Slot) {
        for number in 1..self.owners.len() {
            let owner = &mut self.owners[number];
            if owner.of.is_some_and(|(of, _)| of == slot) {
                owner.of = None;
                self.held -= owner.entries;
                self.cleared += owner.entries;
                self.give_up_if_empty(number);
            }
        }
    }

    /// The nearest tier of a store's drives that has the block.
    pub(super) fn nearest(&self, name: BlockName) -> Option<Tier> {
        let print = self.print(name);
        let entries = self.groups[print.group].iter();
        let equal = entries.filter(|&&it| it & PRINT_MASK == print.bits);
        let tiers = equal.filter_map(|&it| self.owners[owner_of(it)].of.map(|(_, tier)| tier));
        tiers.min_by_key(|&tier| tier_index(tier))
    }

    /// Takes entries of cleared pairs out of at most `groups` groups of an endless round.
    pub(super) fn sweep(&mut self, groups: usize) {
        for _ in 0..groups.min(self.groups.len()) {
            if self.cleared == 0 {
                return;
            }
            let owners = &mut self.owners;
            let group = &mut self.groups[self.swept];
            self.cleared -= remove_where(group, None, |it| {
                let owner = &mut owners[owner_of(it)];
                let gone = owner.of.is_none() && it != 0;
                owner.entries -= usize::from(gone);
                gone
            });
            self.swept = (self.swept + 1) % self.groups.len();
        }
    }

    /// Bytes on the heap, the allocator's own left out.
    pub(super) fn bytes(&self) -> usize {
        let entries: usize = self.groups.iter().map(|group| size_of_val(&**group)).sum();
        entries + self.groups.capacity() * size_of::<Box<[u32]>>()
    }

    fn print(&self, name: BlockName) -> Print {
        let [head, tail] = words(name);
        let groups = u64::try_from(self.groups.len()).expect("a count fits");
        let group = ((head >> 32) * groups) >> 32;
        Print {
            group: usize::try_from(group).expect("below the number of groups"),
            bits: u32::try_from(tail & u64::from(PRINT_MASK)).expect("22 bits"),
        }
    }

    /// The number of a pair; a new one when it has none, unless all are in use.
    fn owner(&mut self, slot: Slot, tier: Tier) -> Option<usize> {
        if let Some(found) = self.owners.iter().position(|owner| owner.of == Some((slot, tier))) {
            return Some(found);
        }
        let fresh = Owner { of: Some((slot, tier)), entries: 0 };
        let unused = |owner: &Owner| owner.of.is_none() && owner.entries == 0;
        if let Some(unused) = self.owners.iter().skip(1).position(unused) {
            self.owners[unused + 1] = fresh;
            return Some(unused + 1);
        }
        if self.owners.len() <= OWNERS_MAX {
            self.owners.push(fresh);
            return Some(self.owners.len() - 1);
        }
        None
    }

    fn give_up_if_empty(&mut self, owner: usize) {
        if self.owners[owner].entries == 0 {
            self.owners[owner].of = None;
        }
    }
}

const PRINT_MASK: u32 = (1 << PRINT_BITS) - 1;

fn owner_of(entry: u32) -> usize {
    usize::try_from(entry >> PRINT_BITS).expect("few bits")
}

fn entry(owner: usize, print: Print) -> u32 {
    u32::try_from(owner).expect("at most OWNERS_MAX") << PRINT_BITS | print.bits
}

fn push(group: &mut Box<[u32]>, entry: u32) {
    if let Some(vacant) = group.last_mut().filter(|last| **last == 0) {
        // Vacant entries are at the end, so that the first of them is found from behind in at most GROWTH steps.
        *vacant = entry;
        let mut at = group.len() - 1;
        while 0 < at && group[at - 1] == 0 {
            group.swap(at - 1, at);
            at -= 1;
        }
        return;
    }
    let mut entries = std::mem::take(group).into_vec();
    entries.reserve_exact(GROWTH);
    entries.push(entry);
    entries.resize(entries.len() - 1 + GROWTH, 0);
    *group = entries.into_boxed_slice();
}

/// Takes entries out, at most so many, and gives memory back. Answers how many.
fn remove_where(
    group: &mut Box<[u32]>,
    at_most: Option<usize>,
    mut gone: impl FnMut(u32) -> bool,
) -> usize {
    let mut taken = 0;
    let (mut at, mut len) = (0, group.iter().position(|&it| it == 0).unwrap_or(group.len()));
    while at < len && at_most.is_none_or(|most| taken < most) {
        if gone(group[at]) {
            len -= 1;
            group.swap(at, len);
            group[len] = 0;
            taken += 1;
        } else {
            at += 1;
        }
    }
    if len + 2 * GROWTH <= group.len() {
        let entries = len.next_multiple_of(GROWTH);
        *group = group[..entries].into();
    }
    taken
}
