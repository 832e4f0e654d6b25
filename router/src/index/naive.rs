//! The definition of the index, written so that it can be read and believed: kept for ever, compared with the real one.

use std::collections::{BTreeMap, BTreeSet};

use shared::{BlockName, CacheChange, CacheEvent, Tier, WorkerRank};

use super::holders::TIERS;
use super::matching::{PrefixMatch, PrefixMatches, TierCounts, Walk};
use super::{Applied, ViewState};
use crate::role::Role;

#[derive(Default)]
pub(super) struct NaiveIndex {
    members: BTreeMap<WorkerRank, NaiveMember>,
}

struct NaiveMember {
    role: Role,
    state: ViewState,
    last: Option<(u64, u64)>,
    held: BTreeSet<(BlockName, Tier)>,
}

impl NaiveIndex {
    pub(super) fn join(&mut self, worker: WorkerRank, role: Role) {
        if self.members.get(&worker).is_none_or(|member| member.role != role) {
            let member =
                NaiveMember { role, state: ViewState::Unseen, last: None, held: BTreeSet::new() };
            self.members.insert(worker, member);
        }
    }

    pub(super) fn leave(&mut self, worker: WorkerRank) {
        self.members.remove(&worker);
    }

    pub(super) fn entries(&self) -> usize {
        let names = |member: &NaiveMember| {
            member.held.iter().map(|&(name, _)| name).collect::<BTreeSet<_>>().len()
        };
        self.members.values().map(names).sum()
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
                member.held.clear();
                member.state = ViewState::Complete;
                0
            }
        };
        if event.sequence < expected {
            return Applied::Duplicate;
        }
        if expected < event.sequence {
            member.held.clear();
            member.state = ViewState::Stale;
        }
        member.last = Some((event.incarnation, event.sequence));
        match &event.change {
            CacheChange::Stored { tier, names } => {
                member.held.extend(names.iter().map(|&name| (name, *tier)));
            }
            CacheChange::Removed { tier, names } => {
                for &name in names {
                    member.held.remove(&(name, *tier));
                }
            }
            CacheChange::Cleared => {
                member.held.clear();
                member.state = ViewState::Complete;
            }
        }
        let lost = expected < event.sequence && member.state == ViewState::Stale;
        if lost { Applied::AfterGap } else { Applied::InOrder }
    }

    pub(super) fn match_prefix(&self, names: &[BlockName]) -> PrefixMatches {
        let answers = self.members.iter().map(|(&worker, member)| {
            let mut leading = TierCounts::default();
            for tier in TIERS {
                for _ in names.iter().take_while(|&&name| member.held.contains(&(name, tier))) {
                    Walk::count(&mut leading, tier);
                }
            }
            let nearest = |name: BlockName| {
                TIERS.into_iter().find(|&tier| {
                    let has = |holder: &NaiveMember| holder.held.contains(&(name, tier));
                    let mut stores =
                        self.members.values().filter(|other| other.role == Role::Store);
                    has(member) || stores.any(has)
                })
            };
            let mut reach_by_tier = TierCounts::default();
            for tier in names.iter().map_while(|&name| nearest(name)) {
                Walk::count(&mut reach_by_tier, tier);
            }
            PrefixMatch { worker, leading, reach: reach_by_tier.total(), reach_by_tier }
        });
        PrefixMatches::from_unordered(answers.collect())
    }
}
