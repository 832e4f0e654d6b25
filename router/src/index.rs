//! Which member holds which block: an exact index built from the members' own sequence-numbered events.
//!
//! What it claims is a subset of what the members said: an event lost (a gap in the sequence) clears the member's
//! entries, because a removal may be among what was lost; what follows the gap is applied again, and the view counts
//! as stale until a `Cleared` event or a restart gives it a base. A member answers a request for its whole state with
//! `Cleared` and then `Stored` events in its ordinary sequence.
//!
//! A block that does not fit is not indexed. Nothing is evicted to make room: the members' removals do that.

mod holders;
mod matching;
#[cfg(test)]
mod naive;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use shared::{BlockName, CacheChange, CacheEvent, Tier, WorkerRank};

use crate::role::Role;
use holders::{Holders, NameHashing};
use matching::Walk;

pub use matching::{PrefixMatch, PrefixMatches, TierCounts};

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
    /// Events before it were lost: the member's entries were cleared first. Ask the member for its whole state.
    AfterGap,
    /// It is not newer than what was applied before, and was ignored.
    Duplicate,
    /// It was sent before the member's last restart, and was ignored.
    OldIncarnation,
    /// Its sender is not a member, and it was ignored.
    UnknownWorker,
}

/// How far a member's entries can be trusted to be all there is. What is there can always be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewState {
    /// No event yet.
    Unseen,
    /// No event was lost since the last known base.
    Complete,
    /// Events were lost and the member has not sent its whole state since.
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
}

/// The index. One per router, owned by one thread.
#[derive(Debug)]
pub struct PrefixIndex {
    blocks: HashMap<BlockName, Holders, NameHashing>,
    members: Vec<Option<Member>>,
    slots: BTreeMap<WorkerRank, Slot>,
    workers_max: u16,
    entries: usize,
    entries_max: usize,
    counters: IndexCounters,
}

#[derive(Debug)]
struct Member {
    role: Role,
    state: ViewState,
    incarnation: u64,
    sequence_next: u64,
    entries: usize,
}

impl PrefixIndex {
    /// An empty index for at most `workers_max` members and `entries_max` (block, holder) pairs.
    #[must_use]
    pub fn new(workers_max: u16, entries_max: usize) -> Self {
        Self {
            blocks: HashMap::with_hasher(NameHashing::default()),
            members: Vec::new(),
            slots: BTreeMap::new(),
            workers_max,
            entries: 0,
            entries_max,
            counters: IndexCounters::default(),
        }
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
        }
        self.members[free] = Some(Member {
            role,
            state: ViewState::Unseen,
            incarnation: 0,
            sequence_next: 0,
            entries: 0,
        });
        self.slots.insert(worker, slot);
        Ok(())
    }

    /// Forgets a member and all it holds. Unknown members are ignored.
    pub fn leave(&mut self, worker: WorkerRank) {
        let Some(&slot) = self.slots.get(&worker) else { return };
        self.clear(slot);
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

    /// Applies one event. Cost: its names; after a gap, restart or clear also a walk over the whole index, unless the
    /// member held nothing.
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
        let expected = if seen && !restarted { member.sequence_next } else { 0 };
        let was_complete = !seen || restarted || member.state == ViewState::Complete;
        if event.sequence < expected {
            self.counters.events_duplicate += 1;
            return Applied::Duplicate;
        }
        let gap = expected < event.sequence;
        self.counters.restarts += u64::from(restarted);
        self.counters.gaps += u64::from(gap);
        self.counters.events_applied += 1;
        if gap || restarted {
            self.clear(slot);
        }
        self.change(slot, &event.change);
        let based = event.change == CacheChange::Cleared;
        let complete = based || (was_complete && !gap);
        let member = self.member_mut(slot);
        member.incarnation = event.incarnation;
        member.sequence_next = event.sequence.saturating_add(1);
        member.state = if complete { ViewState::Complete } else { ViewState::Stale };
        if gap && !complete { Applied::AfterGap } else { Applied::InOrder }
    }

    /// For every member, how far the prefix made of `names` can be had. One walk, which ends at the first block that
    /// nobody can have.
    #[must_use]
    pub fn match_prefix(&self, names: &[BlockName]) -> PrefixMatches {
        let members = self.slots.iter().map(|(&worker, &slot)| (worker, slot));
        let mut walk = Walk::new(members, self.members.len());
        for name in names {
            let Some(holders) = self.blocks.get(name) else { break };
            let store = self.nearest_in_stores(holders);
            if !walk.step(holders.as_slice(), store) {
                break;
            }
        }
        walk.finish()
    }

    /// (block, holder) pairs now.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Distinct blocks now.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> IndexCounters {
        self.counters
    }

    fn change(&mut self, slot: Slot, change: &CacheChange) {
        match change {
            CacheChange::Stored { tier, names } => {
                for &name in names {
                    self.store(slot, *tier, name);
                }
            }
            CacheChange::Removed { tier, names } => {
                for &name in names {
                    self.remove(slot, *tier, name);
                }
            }
            CacheChange::Cleared => self.clear(slot),
        }
    }

    fn store(&mut self, slot: Slot, tier: Tier, name: BlockName) {
        if let Some(holders) = self.blocks.get_mut(&name)
            && holders.add_tier(slot, tier)
        {
            return;
        }
        if self.entries_max <= self.entries {
            self.counters.blocks_dropped_full += 1;
            return;
        }
        self.blocks
            .entry(name)
            .and_modify(|holders| holders.push(slot, tier))
            .or_insert_with(|| Holders::one(slot, tier));
        self.entries += 1;
        self.member_mut(slot).entries += 1;
    }

    fn remove(&mut self, slot: Slot, tier: Tier, name: BlockName) {
        let Some(holders) = self.blocks.get_mut(&name) else { return };
        if !holders.remove_tier(slot, tier) {
            return;
        }
        if holders.as_slice().is_empty() {
            self.blocks.remove(&name);
        }
        self.entries -= 1;
        self.member_mut(slot).entries -= 1;
    }

    fn clear(&mut self, slot: Slot) {
        let held = self.member(slot).entries;
        if held == 0 {
            return;
        }
        let mut removed = 0;
        self.blocks.retain(|_, holders| {
            removed += usize::from(holders.remove_holder(slot));
            !holders.as_slice().is_empty()
        });
        assert_eq!(removed, held, "a member's count matches its entries");
        self.entries -= removed;
        self.member_mut(slot).entries = 0;
        // Give memory back after a large member left; rehashing a quarter of the table costs less than the walk above.
        if self.blocks.len() < self.blocks.capacity() / 4 {
            self.blocks.shrink_to(self.blocks.len() * 2);
        }
    }

    fn nearest_in_stores(&self, holders: &Holders) -> Option<Tier> {
        let stores =
            holders.as_slice().iter().filter(|held| self.member(held.slot).role == Role::Store);
        stores.map(|held| held.tiers.nearest()).min()
    }

    fn member(&self, slot: Slot) -> &Member {
        self.members[usize::from(slot)].as_ref().expect("a slot in use has a member")
    }

    fn member_mut(&mut self, slot: Slot) -> &mut Member {
        self.members[usize::from(slot)].as_mut().expect("a slot in use has a member")
    }
}
