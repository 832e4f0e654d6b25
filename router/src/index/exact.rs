//! The first level: blocks with their names, and for each the exact set of its holders.

use shared::{BlockName, RangeSet, Tier};

use super::Slot;
use super::blocks::{APPROACHED, Blocks};
use super::expected::Slots;
use super::page::Place;
use super::sets::{Holder, HolderSets, SetId};
use super::tiers::TierSet;

/// Blocks moved in one call to give memory back, as a part of the places that are looked at.
const MOVED_PART: usize = 8;

/// The first level.
#[derive(Debug)]
pub(super) struct Exact {
    blocks: Blocks,
    sets: HolderSets,
    /// Blocks whose last holders were cleared. Swept a few at a time.
    dead: usize,
    /// (block, holder) pairs.
    entries: usize,
    entries_max: usize,
    /// (block, member) pairs that are expected and not held.
    expected: usize,
}

/// What a call changed, in (block, holder) pairs of one member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Altered {
    pub(super) gained: usize,
    pub(super) lost: usize,
    /// Blocks that did not lie beside their predecessor.
    jumps: usize,
    /// Blocks that were not there.
    absent: usize,
}

/// What became of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The member's part in it was as the change wants it.
    Same,
    Changed,
    /// The member's part was to be added, and the level is full.
    NoRoom,
}

/// Blocks that lie side by side and have the same holders.
pub(super) struct Stretch<'a> {
    pub(super) count: usize,
    pub(super) holders: &'a [Holder],
    /// The nearest tier of a store among the holders.
    pub(super) store: Option<Tier>,
    /// The last one.
    pub(super) last: Place,
}

/// One change of a set, kept because the next block has mostly the same set.
#[derive(Clone, Copy)]
struct Step {
    from: SetId,
    to: SetId,
    old: Holder,
    new: Holder,
}

/// What a change of expectations makes of a set, kept for the same reason.
#[derive(Clone, Copy)]
struct Shift {
    from: SetId,
    to: SetId,
    /// Members that are expected to bring a block of it from now on.
    begun: usize,
    /// Those that no more are.
    over: usize,
}

impl Exact {
    pub(super) fn new(entries_max: usize) -> Self {
        Self {
            blocks: Blocks::new(),
            sets: HolderSets::new(),
            dead: 0,
            entries: 0,
            entries_max,
            expected: 0,
        }
    }

    /// Says what kind of member has this slot, which holds nothing.
    pub(super) fn set_store(&mut self, slot: Slot, is_store: bool) {
        self.sets.set_store(slot, is_store);
    }

    /// Whether the member of this slot is a store.
    pub(super) fn is_store(&self, slot: Slot) -> bool {
        self.sets.is_store(slot)
    }

    /// Changes one member's part in these blocks, and tells for each what became of it. Blocks that lie side by side and have
    /// the same holders are changed together.
    pub(super) fn alter(
        &mut self,
        slot: Slot,
        names: &[BlockName],
        change: impl Fn(Holder) -> Holder,
        mut told: impl FnMut(BlockName, Outcome),
    ) -> Altered {
        let mut altered = Altered::default();
        let (mut previous, mut memo) = (None, None::<Step>);
        let (mut at, mut approached, mut seen) = (0, 0, 0);
        while at < names.len() {
            // Blocks in sight of each other need no table.
            if approached <= at && altered.jumps + altered.absent != seen {
                seen = altered.jumps + altered.absent;
                approached = at + APPROACHED;
                self.blocks.approach(&names[at..names.len().min(approached)]);
            }
            let found = self.blocks.find(previous, names[at]);
            let (from, found_count) = match found {
                Some(place) => (self.blocks.set(place), self.blocks.stretch(place, &names[at..])),
                None => (SetId::EMPTY, 1),
            };
            let step = match memo {
                Some(step) if step.from == from => step,
                _ => {
                    let old = self.sets.holder(from, slot);
                    Step { from, to: from, old, new: change(old) }
                }
            };
            memo = Some(step);
            altered.absent += usize::from(found.is_none());
            altered.jumps += usize::from(found.is_some() && !Place::follows(previous, found));
            let gains = !step.old.holds() && step.new.holds();
            let room = if gains { self.entries_max - self.entries } else { found_count };
            if step.old == step.new || room == 0 {
                let outcome = if step.old == step.new { Outcome::Same } else { Outcome::NoRoom };
                let run = &names[at..at + found_count];
                run.iter().for_each(|&name| told(name, outcome));
                previous = found.map(|place| place.later(found_count - 1));
                at += found_count;
                continue;
            }
            let run = &names[at..at + found_count.min(room)];
            run.iter().for_each(|&name| told(name, Outcome::Changed));
            // A set that was computed for the blocks before has those now, so it is still the right one.
            let to = if step.to == from { self.sets.with(from, &[step.new]) } else { step.to };
            memo = Some(Step { to, ..step });
            previous = self.set_holders(found, run, (from, to));
            self.count(&Step { to, ..step }, run.len(), &mut altered);
            at += run.len();
        }
        altered
    }

    /// Counts what changed in a run of blocks.
    fn count(&mut self, step: &Step, blocks: usize, altered: &mut Altered) {
        let of = |happened: bool| if happened { blocks } else { 0 };
        let gained = of(!step.old.holds() && step.new.holds());
        let lost = of(step.old.holds() && !step.new.holds());
        altered.gained += gained;
        altered.lost += lost;
        self.entries = self.entries + gained - lost;
        self.expected = self.expected + of(step.new.expected != 0) - of(step.old.expected != 0);
    }

    /// Expects these blocks, a prefix in its order, of some members. Blocks that a member holds already are left as they are
    /// for it.
    pub(super) fn expect(&mut self, slots: Slots, names: &[BlockName]) {
        let expect = |part: Holder| {
            let expected = if part.holds() { 0 } else { part.expected.saturating_add(1) };
            Holder { expected, ..part }
        };
        let jumps = self.reckon(slots, names, expect);
        // The members told of these blocks in another order. Now the order is known.
        if names.len() < 4 * jumps {
            let places = names.iter().filter_map(|&name| self.blocks.find(None, name));
            let places: Vec<Place> = places.collect();
            self.blocks.gather(&places);
        }
    }

    /// Ends one expectation of a prefix.
    pub(super) fn unexpect(&mut self, slots: Slots, names: &[BlockName]) {
        let unexpect = |part: Holder| Holder { expected: part.expected.saturating_sub(1), ..part };
        self.reckon(slots, names, unexpect);
    }

    /// Changes what is expected of some members, in one walk for all of them: what they hold, and whether they hold it, stays.
    /// Answers how many blocks did not lie beside their predecessor.
    fn reckon(
        &mut self,
        slots: Slots,
        names: &[BlockName],
        change: impl Fn(Holder) -> Holder,
    ) -> usize {
        let (mut at, mut jumps) = (0, 0);
        let (mut previous, mut memo) = (None, None::<Shift>);
        while at < names.len() {
            let found = self.blocks.look_up(previous, names[at]);
            jumps += usize::from(found.is_some() && !Place::follows(previous, found));
            let from = found.map_or(SetId::EMPTY, |place| self.blocks.set(place));
            let shift = match memo {
                Some(shift) if shift.from == from => shift,
                _ => self.shift(from, slots, &change),
            };
            memo = Some(shift);
            let (run, last) = match found {
                None if shift.to == SetId::EMPTY => (1, None),
                None => {
                    let (run, last) = self.blocks.insert_run(&names[at..], shift.to);
                    self.sets.moved(SetId::EMPTY, shift.to, run);
                    (run, Some(last))
                }
                Some(place) => {
                    let run = self.blocks.stretch(place, &names[at..]);
                    let names = &names[at..at + run];
                    let last = if shift.to == from {
                        Some(place.later(run - 1))
                    } else {
                        self.set_holders(found, names, (from, shift.to))
                    };
                    (run, last)
                }
            };
            previous = last;
            self.expected = self.expected + run * shift.begun - run * shift.over;
            at += run;
        }
        jumps
    }

    /// What a change makes of a set.
    fn shift(&mut self, from: SetId, slots: Slots, change: impl Fn(Holder) -> Holder) -> Shift {
        let (mut parts, mut count) = ([Holder::none(0); 2], 0);
        let mut shift = Shift { from, to: from, begun: 0, over: 0 };
        for slot in slots.iter() {
            let old = self.sets.holder(from, slot);
            let new = change(old);
            if new != old {
                shift.begun += usize::from(new.expected != 0 && old.expected == 0);
                shift.over += usize::from(new.expected == 0 && old.expected != 0);
                parts[count] = new;
                count += 1;
            }
        }
        if count != 0 {
            shift.to = self.sets.with(from, &parts[..count]);
        }
        shift
    }

    /// Forgets all that a member holds or is expected to hold. Cost: the sets it is in. Answers the pairs it held.
    pub(super) fn clear(&mut self, slot: Slot) -> usize {
        let taken = self.sets.take_out(slot);
        self.entries -= taken.held;
        self.expected -= taken.expected;
        self.dead += taken.emptied;
        taken.held
    }

    /// Forgets what a member holds in these ranges. Cost: all blocks there. Answers the pairs it held.
    pub(super) fn clear_ranges(&mut self, slot: Slot, ranges: RangeSet) -> usize {
        let mut lost = 0;
        for range in ranges.iter() {
            let blocks = self.blocks.of_range(range);
            let held = blocks.filter(|&(_, set)| self.sets.holder(set, slot).holds());
            let names: Vec<BlockName> = held.map(|(name, _)| name).collect();
            let emptied = |part: Holder| Holder { tiers: TierSet::EMPTY, ..part };
            lost += self.alter(slot, &names, emptied, |_, _| ()).lost;
        }
        lost
    }

    /// Takes out blocks without holders and gives memory back, looking at no more than `steps` places.
    pub(super) fn maintain(&mut self, steps: usize) {
        let mut left = steps;
        while 0 < self.dead
            && let Some((place, set)) = self.blocks.sweep(&mut left)
        {
            if self.sets.holders(set).is_empty() {
                self.blocks.remove(place);
                self.sets.moved(set, SetId::EMPTY, 1);
                self.dead -= 1;
            }
        }
        self.blocks.compact(steps / MOVED_PART);
    }

    /// The holders of the first of `names`, and how many of them lie side by side and have the same holders. `previous`
    /// is where the name before lies, when that is known. None when nobody holds the first one.
    pub(super) fn stretch(
        &self,
        previous: Option<Place>,
        names: &[BlockName],
    ) -> Option<Stretch<'_>> {
        let first = self.blocks.look_up(previous, *names.first()?)?;
        let set = self.blocks.set(first);
        let count = self.blocks.stretch(first, names);
        let last = first.later(count - 1);
        let (holders, store) = (self.sets.holders(set), self.sets.store_tier(set));
        Some(Stretch { count, holders, store, last })
    }

    /// (block, holder) pairs now.
    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    /// Expected (block, member) pairs now.
    pub(super) fn expected(&self) -> usize {
        self.expected
    }

    /// Distinct blocks that are held or expected.
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len() - self.dead
    }

    /// Blocks and sets that are there, those of cleared members among them.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.blocks.len() + self.sets.len() + self.blocks.pages()
    }

    /// Bytes on the heap, the allocator's own left out.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.bytes() + self.sets.bytes()
    }

    /// Gives a run of blocks another set; a run that is not there is one block. Says where its last block lies then.
    fn set_holders(
        &mut self,
        found: Option<Place>,
        run: &[BlockName],
        (from, to): (SetId, SetId),
    ) -> Option<Place> {
        let was_dead = from != SetId::EMPTY && self.sets.holders(from).is_empty();
        self.dead -= if was_dead { run.len() } else { 0 };
        self.sets.moved(from, to, run.len());
        match found {
            Some(place) if to == SetId::EMPTY => {
                (0..run.len()).for_each(|at| self.blocks.remove(place.later(at)));
                None
            }
            Some(place) => {
                self.blocks.put(place, run.len(), to);
                Some(place.later(run.len() - 1))
            }
            None => Some(self.blocks.insert(run[0], to)),
        }
    }
}
