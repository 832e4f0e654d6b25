//! The definition of the index, written so that it can be read and believed: kept for ever, compared with the real one.

use std::collections::{BTreeMap, BTreeSet};

use shared::{
    BlockName, CacheChange, CacheEvent, RangeDigests, RangeSet, Tier, Timestamp, WorkerRank,
    range_of,
};

use super::matching::{PrefixMatch, TierCounts};
use super::tiers::TIERS;
use super::{Applied, ViewState};
use crate::role::Role;

#[derive(Default)]
pub(super) struct NaiveIndex {
    members: BTreeMap<WorkerRank, NaiveMember>,
    pending: Vec<(Timestamp, WorkerRank, Vec<BlockName>)>,
}

struct NaiveMember {
    role: Role,
    state: ViewState,
    suspect: RangeSet,
    last: Option<(u64, u64)>,
    held: BTreeSet<(BlockName, Tier)>,
    /// Expectations of blocks it did not hold, since it last said something about the block.
    expected: BTreeMap<BlockName, u8>,
}

impl NaiveMember {
    fn nearest(&self, name: BlockName) -> Option<Tier> {
        TIERS.into_iter().find(|&tier| self.held.contains(&(name, tier)))
    }

    fn forget_all(&mut self) {
        self.held.clear();
        self.expected.clear();
    }
}

impl NaiveIndex {
    pub(super) fn join(&mut self, worker: WorkerRank, role: Role) {
        if self.members.get(&worker).is_none_or(|member| member.role != role) {
            self.leave(worker);
            let member = NaiveMember {
                role,
                state: ViewState::Unseen,
                suspect: RangeSet::default(),
                last: None,
                held: BTreeSet::new(),
                expected: BTreeMap::new(),
            };
            self.members.insert(worker, member);
        }
    }

    pub(super) fn leave(&mut self, worker: WorkerRank) {
        self.members.remove(&worker);
        self.pending.retain(|&(_, of, _)| of != worker);
    }

    pub(super) fn expect(&mut self, worker: WorkerRank, names: &[BlockName], until: Timestamp) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        for &name in names {
            if member.nearest(name).is_none() {
                let count = member.expected.entry(name).or_default();
                *count = count.saturating_add(1);
            }
        }
        self.pending.push((until, worker, names.to_vec()));
    }

    pub(super) fn expire(&mut self, now: Timestamp) {
        let pending = std::mem::take(&mut self.pending);
        for (until, worker, names) in pending {
            if now < until {
                self.pending.push((until, worker, names));
                continue;
            }
            let member = self.members.get_mut(&worker).expect("a member");
            for name in names {
                if let Some(count) = member.expected.get_mut(&name) {
                    *count -= 1;
                }
                member.expected.retain(|_, count| 0 < *count);
            }
        }
    }

    pub(super) fn expected(&self) -> usize {
        self.members.values().map(|member| member.expected.len()).sum()
    }

    pub(super) fn entries(&self) -> usize {
        let names = |member: &NaiveMember| {
            member.held.iter().map(|&(name, _)| name).collect::<BTreeSet<_>>().len()
        };
        self.members.values().map(names).sum()
    }

    pub(super) fn suspect(&self, worker: WorkerRank) -> RangeSet {
        self.members.get(&worker).map_or_else(RangeSet::default, |member| member.suspect)
    }

    pub(super) fn doubt(&mut self, worker: WorkerRank) {
        let member = self.members.get_mut(&worker);
        if let Some(member) = member.filter(|member| member.state != ViewState::Unseen) {
            (member.state, member.suspect) = (ViewState::Stale, RangeSet::ALL);
        }
    }

    pub(super) fn distrust(&mut self, worker: WorkerRank) {
        let member = self.members.get_mut(&worker);
        if let Some(member) = member.filter(|member| member.state == ViewState::Stale) {
            member.forget_all();
            member.suspect = RangeSet::ALL;
        }
    }

    pub(super) fn state(&self, worker: WorkerRank) -> Option<ViewState> {
        self.members.get(&worker).map(|member| member.state)
    }

    pub(super) fn apply(&mut self, event: &CacheEvent) -> Applied {
        let Some(member) = self.members.get_mut(&event.worker) else {
            return Applied::UnknownWorker;
        };
        let expected = match member.last {
            Some((incarnation, _)) if event.incarnation < incarnation => {
                return Applied::OldIncarnation;
            }
            Some((incarnation, sequence)) if event.incarnation == incarnation => sequence + 1,
            Some(_) | None => {
                member.forget_all();
                member.suspect = RangeSet::default();
                0
            }
        };
        if event.sequence < expected {
            return Applied::Duplicate;
        }
        if expected < event.sequence {
            member.suspect = RangeSet::ALL;
        }
        member.last = Some((event.incarnation, event.sequence));
        match &event.change {
            CacheChange::Stored { tier, names } => {
                member.held.extend(names.iter().map(|&name| (name, *tier)));
                member.expected.retain(|name, _| !names.contains(name));
            }
            CacheChange::Removed { tier, names } => {
                for &name in names {
                    member.held.remove(&(name, *tier));
                }
            }
            CacheChange::Cleared => {
                member.forget_all();
                member.suspect = RangeSet::default();
            }
            CacheChange::RangesCleared(ranges) => {
                member.held.retain(|&(name, _)| !ranges.contains(range_of(name)));
                member.suspect = member.suspect.without(*ranges);
                if *ranges == RangeSet::ALL {
                    member.expected.clear();
                }
            }
            CacheChange::Digests(told) => {
                let mut own = RangeDigests::default();
                for &(name, tier) in &member.held {
                    own.add(name, tier);
                }
                member.suspect = own.differing(told);
            }
        }
        let complete = member.suspect.is_empty();
        member.state = if complete { ViewState::Complete } else { ViewState::Stale };
        if expected < event.sequence && !complete { Applied::AfterGap } else { Applied::InOrder }
    }

    /// Takes out of a change what the member said before.
    pub(super) fn keep_net(&self, worker: WorkerRank, change: &mut CacheChange) {
        let Some(member) = self.members.get(&worker) else { return };
        let (tier, names, stored) = match change {
            CacheChange::Stored { tier, names } => (*tier, names, true),
            CacheChange::Removed { tier, names } => (*tier, names, false),
            CacheChange::Cleared | CacheChange::RangesCleared(_) | CacheChange::Digests(_) => {
                return;
            }
        };
        let mut seen = BTreeSet::new();
        names.retain(|&name| member.held.contains(&(name, tier)) != stored && seen.insert(name));
    }

    /// What one member holds and can have. `leading` is of all its tiers.
    pub(super) fn match_prefix(&self, worker: WorkerRank, names: &[BlockName]) -> PrefixMatch {
        let member = &self.members[&worker];
        let mut leading = TierCounts::default();
        for tier in TIERS {
            for _ in names.iter().take_while(|&&name| member.held.contains(&(name, tier))) {
                *leading.at(tier) += 1;
            }
        }
        let (mut reach_by_tier, mut expected) = (TierCounts::default(), 0);
        for &name in names {
            let stores = self.members.values().filter(|other| other.role == Role::Store);
            let in_stores = stores.filter_map(|store| store.nearest(name)).min();
            let is_expected = member.expected.contains_key(&name);
            let own = member.nearest(name).or_else(|| is_expected.then_some(Tier::Device));
            let Some(nearest) = own.into_iter().chain(in_stores).min() else { break };
            *reach_by_tier.at(nearest) += 1;
            let in_device_of_store = in_stores == Some(Tier::Device);
            expected += u32::from(is_expected && !in_device_of_store);
        }
        let reach = reach_by_tier.total();
        PrefixMatch { worker, leading, reach, reach_by_tier, expected }
    }
}
