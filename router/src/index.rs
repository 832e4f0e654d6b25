//! Which member holds which block: built from the members' own sequence-numbered events, and from what placed requests are
//! expected to bring.
//!
//! What it claims is what the members said last of each block, and what is expected, told apart in every answer. While no
//! event is missing, that is what they hold, but for what did not fit. An event lost (a gap in the sequence) makes the
//! member's view stale: its entries stay, since most of them are still right, but a removal may be among what was lost, so
//! that some may claim a block that is gone. Such a claim costs a lookup and a recompute, never a wrong answer. The view is
//! complete again once digests say in which ranges of names it differs, and the member told these anew (`RangesCleared`,
//! then `Stored`, in its ordinary sequence); or by a `Cleared` event or a restart. A member that answers none of this is
//! [distrusted](PrefixIndex::distrust): its entries go.
//!
//! Two levels. `exact.rs` keeps names. `drives.rs`, when it has room at all, keeps what the drives of stores hold, which may
//! be a hundred times more, in four bytes a block, and may claim a block that is not there; the store says so when asked.
//!
//! A block that does not fit is not indexed. Nothing is evicted to make room: the members' removals do that.
//!
//! Start reading at [`PrefixIndex::match_prefix`], then `exact.rs`, `blocks.rs`, `sets.rs`.

mod blocks;
mod digests;
mod drives;
mod exact;
mod expected;
mod heads;
mod matching;
#[cfg(test)]
mod naive;
mod page;
mod sets;
mod table;
#[cfg(test)]
mod tests;
mod tiers;
mod walk;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use shared::{BlockName, CacheChange, CacheEvent, RangeSet, Tier, Timestamp, WorkerRank};

use crate::role::Role;
use digests::MemberDigests;
use drives::Drives;
use exact::{Exact, Outcome, Stretch};
use expected::{Expectation, Expectations, Slots};
use page::Place;
use sets::Holder;
use walk::{Scratch, Walk};

pub use matching::{PrefixMatch, PrefixMatches, TierCounts};

/// Places of the first level that are looked at after each call, to take out what a cleared member left: this many, and
/// [`STEPS_PER_NAME`] for each name, so that what is left shrinks faster than anything grows.
const STEPS: usize = 64;
const STEPS_PER_NAME: usize = 4;
/// Groups of the second level that are looked at after each call, for the same reason.
const GROUPS: usize = 16;
/// Most entries of the first level: half of what numbers of places can tell apart.
const ENTRIES_LIMIT: usize = 1 << 31;

/// Index of a member in the table of members; reused after it left and its entries are gone.
pub(crate) type Slot = u16;

/// A member was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The table of members is full.
    #[error(
        "worker {worker} cannot join: {workers_max} members are there already; raise workers_max"
    )]
    TooManyWorkers {
        /// Who wanted to join.
        worker: WorkerRank,
        /// The bound.
        workers_max: u16,
    },
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It was the next one.
    InOrder,
    /// Events before it were lost, and it does not make up for them: ask the member for its digests.
    AfterGap,
    /// It is not newer than what was applied before, and was ignored.
    Duplicate,
    /// It was sent before the member's last restart, and was ignored.
    OldIncarnation,
    /// Its sender is not a member, and it was ignored.
    UnknownWorker,
}

/// How far a member's entries can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewState {
    /// No event yet.
    Unseen,
    /// No event was lost since the last known base.
    Complete,
    /// Events were lost: blocks may be missing, and some that are gone may be there still. See
    /// [`PrefixIndex::suspect`].
    Stale,
}

/// What happened to the index since it was made. All values only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexCounters {
    /// Events applied, those after a gap included.
    pub events_applied: u64,
    /// Events ignored because they were not newer than the last one.
    pub events_duplicate: u64,
    /// Events ignored because they came from before a restart.
    pub events_old_incarnation: u64,
    /// Events ignored because their sender is not a member.
    pub events_unknown_worker: u64,
    /// Gaps seen in a sequence.
    pub gaps: u64,
    /// Restarts seen: a known member with a new incarnation.
    pub restarts: u64,
    /// Blocks not indexed because the index was full.
    pub blocks_dropped_full: u64,
    /// Ranges that members told anew.
    pub ranges_cleared: u64,
    /// Entries of these ranges that were there before: about as many are told again.
    pub blocks_cleared_by_ranges: u64,
    /// Blocks in drives of stores not indexed because the second level was full.
    pub drive_blocks_dropped_full: u64,
    /// Blocks of placed requests not expected because there was no room for more.
    pub expected_dropped_full: u64,
}

/// The index. One per router, owned by one thread.
#[derive(Debug)]
pub struct PrefixIndex {
    exact: Exact,
    drives: Drives,
    expectations: Expectations,
    /// Expectations that do not count yet; see [`PrefixIndex::expect_soon`].
    unsettled: Vec<Expectation>,
    members: Vec<Option<Member>>,
    /// By slot, also of members that left.
    names: Vec<WorkerRank>,
    /// Whether `names` ascend, as when members join in the order of their names and none was replaced.
    names_in_order: bool,
    slots: BTreeMap<WorkerRank, Slot>,
    workers_max: u16,
    counters: IndexCounters,
    scratch: RefCell<Scratch>,
}

#[derive(Debug)]
struct Member {
    role: Role,
    state: ViewState,
    incarnation: u64,
    sequence_next: u64,
    entries: usize,
    digests: MemberDigests,
}

impl PrefixIndex {
    /// An empty index for at most `workers_max` members and `entries_max` (block, holder) pairs, at most 2^31, without a
    /// second level and without room for expectations.
    #[must_use]
    pub fn new(workers_max: u16, entries_max: usize) -> Self {
        Self {
            exact: Exact::new(entries_max.min(ENTRIES_LIMIT)),
            drives: Drives::new(0),
            expectations: Expectations::new(0),
            unsettled: Vec::new(),
            members: Vec::new(),
            names: Vec::new(),
            names_in_order: true,
            slots: BTreeMap::new(),
            workers_max,
            counters: IndexCounters::default(),
            scratch: RefCell::default(),
        }
    }

    /// The same, still empty, with a second level for at most `blocks_max` (block, store, tier) entries: what stores hold
    /// in `Disk` and `Remote` goes there instead of the first level. 0 is no second level. Memory: 0.25 bytes for each of
    /// `blocks_max`, and 4.4 more for each that is held.
    #[must_use]
    pub fn with_drives(self, blocks_max: usize) -> Self {
        assert_eq!(self.slots.len(), 0, "levels are chosen before members join");
        Self { drives: Drives::new(blocks_max), ..self }
    }

    /// The same, with room for `blocks_max` blocks in [`Self::expect`]ations.
    #[must_use]
    pub fn with_expectations(self, blocks_max: usize) -> Self {
        Self { expectations: Expectations::new(blocks_max), ..self }
    }

    /// Takes a member. A member that is there already, with the same role, stays as it is; with another role it is
    /// taken as new.
    ///
    /// # Errors
    /// `workers_max` members are there already.
    pub fn join(&mut self, worker: WorkerRank, role: Role) -> Result<(), JoinError> {
        match self.role(worker) {
            Some(known) if known == role => return Ok(()),
            Some(_) => self.leave(worker),
            None => {}
        }
        if usize::from(self.workers_max) <= self.slots.len() {
            return Err(JoinError::TooManyWorkers { worker, workers_max: self.workers_max });
        }
        let free = self.members.iter().position(Option::is_none).unwrap_or(self.members.len());
        let slot = Slot::try_from(free).expect("a free slot is below workers_max");
        if free == self.members.len() {
            self.members.push(None);
            self.names.push(worker);
        }
        self.names[free] = worker;
        self.names_in_order = self.names.is_sorted();
        self.exact.set_store(slot, role == Role::Store);
        self.members[free] = Some(Member {
            role,
            state: ViewState::Unseen,
            incarnation: 0,
            sequence_next: 0,
            entries: 0,
            digests: MemberDigests::new(),
        });
        self.slots.insert(worker, slot);
        Ok(())
    }

    /// Forgets a member and all it holds. Unknown members are ignored.
    pub fn leave(&mut self, worker: WorkerRank) {
        let Some(&slot) = self.slots.get(&worker) else { return };
        self.settle();
        self.clear(slot);
        self.expectations.forget(slot);
        self.slots.remove(&worker);
        self.members[usize::from(slot)] = None;
    }

    /// The role of a member.
    #[must_use]
    pub fn role(&self, worker: WorkerRank) -> Option<Role> {
        self.slots.get(&worker).map(|&slot| self.member(slot).role)
    }

    /// All members with their roles, in the order of their names.
    pub fn members(&self) -> impl Iterator<Item = (WorkerRank, Role)> + '_ {
        self.slots.iter().map(|(&worker, &slot)| (worker, self.member(slot).role))
    }

    /// How complete a member's entries are, and how many there are.
    #[must_use]
    pub fn view(&self, worker: WorkerRank) -> Option<(ViewState, usize)> {
        let slot = *self.slots.get(&worker)?;
        let member = self.member(slot);
        Some((member.state, member.entries))
    }

    /// The ranges of names in which a member's entries may differ from what it holds: all after a lost event, then those
    /// whose digests differ, none once it told these anew.
    #[must_use]
    pub fn suspect(&self, worker: WorkerRank) -> RangeSet {
        let slot = self.slots.get(&worker);
        slot.map_or_else(RangeSet::default, |&slot| self.member(slot).digests.suspect())
    }

    /// (block, tier) pairs that a member told and that found no room.
    #[must_use]
    pub fn unindexed(&self, worker: WorkerRank) -> u64 {
        let slot = self.slots.get(&worker);
        slot.map_or(0, |&slot| self.member(slot).digests.unindexed_pairs())
    }

    /// Takes the view of a member that told something as stale: what it tells from now on may not follow what it told.
    pub fn doubt(&mut self, worker: WorkerRank) {
        if let Some(&slot) = self.slots.get(&worker)
            && self.member(slot).state != ViewState::Unseen
        {
            let member = self.member_mut(slot);
            member.digests.lost();
            member.state = ViewState::Stale;
        }
    }

    /// Drops the entries of a stale member that does not say what it holds. Its view stays stale. Cost as for a clear.
    pub fn distrust(&mut self, worker: WorkerRank) {
        self.settle();
        if let Some(&slot) = self.slots.get(&worker)
            && self.member(slot).state == ViewState::Stale
        {
            self.clear(slot);
            self.member_mut(slot).digests.lost();
        }
    }

    /// Applies one event. Cost: its names; for a restart or clear also the distinct sets of holders that the member
    /// was in, not its blocks; for cleared ranges also all blocks of these. Each call also takes out a few blocks that a cleared member left.
    pub fn apply(&mut self, event: &CacheEvent) -> Applied {
        let Some(&slot) = self.slots.get(&event.worker) else {
            self.counters.events_unknown_worker += 1;
            return Applied::UnknownWorker;
        };
        let member = self.member(slot);
        let seen = member.state != ViewState::Unseen;
        if seen && event.incarnation < member.incarnation {
            self.counters.events_old_incarnation += 1;
            return Applied::OldIncarnation;
        }
        let restarted = seen && member.incarnation < event.incarnation;
        let sequence_next = member.sequence_next;
        self.settle();
        let expected = if seen && !restarted { sequence_next } else { 0 };
        if event.sequence < expected {
            self.counters.events_duplicate += 1;
            return Applied::Duplicate;
        }
        let gap = expected < event.sequence;
        self.counters.restarts += u64::from(restarted);
        self.counters.gaps += u64::from(gap);
        self.counters.events_applied += 1;
        if restarted {
            self.clear(slot);
        }
        if gap {
            self.member_mut(slot).digests.lost();
        }
        self.change(slot, &event.change);
        self.maintain(names_in(&event.change));
        let member = self.member_mut(slot);
        member.incarnation = event.incarnation;
        member.sequence_next = event.sequence.saturating_add(1);
        let complete = member.digests.suspect().is_empty();
        member.state = if complete { ViewState::Complete } else { ViewState::Stale };
        if gap && !complete { Applied::AfterGap } else { Applied::InOrder }
    }

    /// Expects of a member that it holds these blocks soon: a request that has them as its prefix, in this order, was
    /// placed there. They count as in its device memory until one of its events says more, or until `until`; an expectation
    /// may end early when the block is removed and expected again meanwhile, never late. Strangers and stores are ignored; what
    /// does not fit `with_expectations` is counted.
    pub fn expect(&mut self, worker: WorkerRank, names: &Arc<[BlockName]>, until: Timestamp) {
        self.expect_soon([Some(worker), None], names, until);
        self.settle();
    }

    /// The same of one or two members, but it counts from the next call of [`Self::settle`] on, or of another method that
    /// changes the index. So a placement can be told before the time is spent that this takes.
    pub fn expect_soon(
        &mut self,
        workers: [Option<WorkerRank>; 2],
        names: &Arc<[BlockName]>,
        until: Timestamp,
    ) {
        let [first, second] = workers.map(|worker| {
            let slot = *self.slots.get(&worker?)?;
            (!self.exact.is_store(slot)).then_some(slot)
        });
        let room = self.expectations.room(names.len());
        let second = second.filter(|_| first != second);
        let wanted = first.into_iter().chain(second);
        self.counters.expected_dropped_full +=
            counted(names.len() * wanted.clone().skip(room).count());
        let slots = wanted.take(room).fold(None, |slots: Option<Slots>, slot| {
            Some(slots.map_or_else(|| Slots::one(slot), |slots| slots.and(slot)))
        });
        let Some(slots) = slots else { return };
        let expectation = Expectation { slots, names: Arc::clone(names) };
        self.expectations.push(until, expectation.clone());
        self.unsettled.push(expectation);
    }

    /// Counts what is expected by now. Call it before a match that must count it.
    pub fn settle(&mut self) {
        for Expectation { slots, names } in self.unsettled.drain(..) {
            self.exact.expect(slots, &names);
        }
    }

    /// Ends the expectations whose time came. Call it before a match that must not count them.
    pub fn expire(&mut self, now: Timestamp) {
        self.settle();
        while let Some(ended) = self.expectations.pop_ended(now) {
            self.exact.unexpect(ended.slots, &ended.names);
        }
        self.maintain(0);
    }

    /// For every member, how far the prefix made of `names` can be had. One walk, which ends at the first block that
    /// nobody can have. Cost: the blocks, read side by side for the most part, and the members that hold some of them.
    #[must_use]
    pub fn match_prefix(&self, names: &[BlockName]) -> PrefixMatches {
        let mut scratch = self.scratch.borrow_mut();
        let mut walk = Walk::new(&mut scratch, self.members.len());
        let drives = Some(&self.drives).filter(|drives| 0 < drives.held());
        let (mut rest, mut previous) = (names, None::<Place>);
        while let Some(&first) = rest.first() {
            let found = self.exact.stretch(previous, rest);
            let count = found.as_ref().map_or(1, |stretch| stretch.count);
            let goes_on = match (&found, drives) {
                (Some(Stretch { holders, store, .. }), None) => {
                    walk.step(holders, *store, blocks(count))
                }
                (Some(Stretch { holders, store: Some(tier), .. }), _) => {
                    walk.step(holders, Some(*tier), blocks(count))
                }
                (Some(Stretch { holders, store: None, .. }), Some(drives)) => {
                    rest[..count].iter().all(|&name| walk.step(holders, drives.nearest(name), 1))
                }
                (None, Some(drives)) => {
                    let tier = drives.nearest(first);
                    tier.is_some() && walk.step(&[], tier, 1)
                }
                (None, None) => false,
            };
            if !goes_on {
                break;
            }
            previous = found.map(|stretch| stretch.last);
            rest = &rest[count..];
        }
        walk.finish(&self.names, self.names_in_order)
    }

    /// (block, holder) pairs of the first level now.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.exact.entries()
    }

    /// Distinct blocks of the first level now, those only expected among them.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.exact.blocks()
    }

    /// (block, store, tier) entries of the second level now.
    #[must_use]
    pub fn drive_blocks(&self) -> usize {
        self.drives.held()
    }

    /// (block, member) pairs expected and not held now.
    #[must_use]
    pub fn expected(&self) -> usize {
        self.exact.expected()
    }

    /// Blocks of all expectations that did not end, what was confirmed since among them: what their bound counts.
    #[must_use]
    pub fn expectation_blocks(&self) -> usize {
        self.expectations.blocks()
    }

    /// Bytes of both levels on the heap, what the allocator adds left out. Cost: a walk over their parts, not their blocks.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.exact.bytes() + self.drives.bytes()
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> IndexCounters {
        self.counters
    }

    fn change(&mut self, slot: Slot, change: &CacheChange) {
        match change {
            CacheChange::Stored { tier, names } => self.stored(slot, *tier, names),
            CacheChange::Removed { tier, names } => self.removed(slot, *tier, names),
            CacheChange::Cleared => {
                self.clear_ranges(slot, RangeSet::ALL);
            }
            CacheChange::RangesCleared(ranges) => {
                self.counters.ranges_cleared += u64::from(ranges.len());
                let cleared = self.clear_ranges(slot, *ranges);
                self.counters.blocks_cleared_by_ranges += counted(cleared);
            }
            CacheChange::Digests(held) => self.member_mut(slot).digests.compare(held),
        }
    }

    fn stored(&mut self, slot: Slot, tier: Tier, names: &[BlockName]) {
        let is_drive = self.is_drive(slot, tier);
        let Self { exact, drives, counters, members, .. } = self;
        let member = members[usize::from(slot)].as_mut().expect("a slot in use has a member");
        if is_drive {
            let room = drives.store(slot, tier, names);
            counters.drive_blocks_dropped_full += counted(names.len() - room);
            names[..room].iter().for_each(|&name| member.digests.indexed(name, tier));
            names[room..].iter().for_each(|&name| member.digests.unindexed(name, tier));
            return;
        }
        let stored = |part: Holder| Holder { tiers: part.tiers.with(tier), expected: 0, ..part };
        let altered = exact.alter(slot, names, stored, |name, outcome| match outcome {
            Outcome::Same => {}
            Outcome::Changed => member.digests.indexed(name, tier),
            Outcome::NoRoom => {
                counters.blocks_dropped_full += 1;
                member.digests.unindexed(name, tier);
            }
        });
        member.entries += altered.gained;
    }

    fn removed(&mut self, slot: Slot, tier: Tier, names: &[BlockName]) {
        let is_drive = self.is_drive(slot, tier);
        let Self { exact, drives, members, .. } = self;
        let member = members[usize::from(slot)].as_mut().expect("a slot in use has a member");
        let mut told = |name, outcome| match outcome {
            Outcome::Changed => member.digests.removed(name, tier),
            Outcome::Same | Outcome::NoRoom => member.digests.removed_unindexed(name, tier),
        };
        if is_drive {
            drives.remove(slot, tier, names, told);
        } else {
            let removed = |part: Holder| Holder { tiers: part.tiers.without(tier), ..part };
            let altered = exact.alter(slot, names, removed, &mut told);
            member.entries -= altered.lost;
        }
    }

    /// Whether what this member holds in this tier goes to the second level.
    fn is_drive(&self, slot: Slot, tier: Tier) -> bool {
        self.drives.is_on()
            && self.exact.is_store(slot)
            && matches!(tier, Tier::Disk | Tier::Remote)
    }

    fn clear(&mut self, slot: Slot) {
        self.clear_ranges(slot, RangeSet::ALL);
        assert_eq!(self.member(slot).entries, 0, "a member's count matches its entries");
    }

    /// Takes a member out of every block of these ranges, and says of how many, both levels together.
    fn clear_ranges(&mut self, slot: Slot, ranges: RangeSet) -> usize {
        self.member_mut(slot).digests.cleared(ranges);
        let held = self.drives.held();
        let cleared = if ranges == RangeSet::ALL {
            self.drives.clear(slot);
            self.exact.clear(slot)
        } else {
            self.drives.clear_ranges(slot, ranges);
            self.exact.clear_ranges(slot, ranges)
        };
        self.member_mut(slot).entries -= cleared;
        cleared + held - self.drives.held()
    }

    fn maintain(&mut self, names: usize) {
        self.exact.maintain(STEPS + STEPS_PER_NAME * names);
        self.drives.sweep(GROUPS + names);
    }

    fn member(&self, slot: Slot) -> &Member {
        self.members[usize::from(slot)].as_ref().expect("a slot in use has a member")
    }

    fn member_mut(&mut self, slot: Slot) -> &mut Member {
        self.members[usize::from(slot)].as_mut().expect("a slot in use has a member")
    }
}

fn names_in(change: &CacheChange) -> usize {
    match change {
        CacheChange::Stored { names, .. } | CacheChange::Removed { names, .. } => names.len(),
        CacheChange::Cleared | CacheChange::RangesCleared(_) | CacheChange::Digests(_) => 0,
    }
}

fn counted(blocks: usize) -> u64 {
    u64::try_from(blocks).expect("a count fits")
}

fn blocks(count: usize) -> u32 {
    u32::try_from(count).expect("a prefix has fewer blocks than tokens")
}
