//! The index against its naive definition, and its bounds.

use std::collections::BTreeMap;

use shared::{BlockName, CacheChange, CacheEvent, DpRank, Tier, WorkerId, WorkerRank};

use super::holders::TIERS;
use super::naive::NaiveIndex;
use super::{Applied, JoinError, PrefixIndex, ViewState};
use crate::role::Role;
use crate::testing::{Random, block, names, rank};

fn event(worker: WorkerRank, incarnation: u64, sequence: u64, change: CacheChange) -> CacheEvent {
    CacheEvent { worker, incarnation, sequence, change }
}

fn stored(tier: Tier, names: &[BlockName]) -> CacheChange {
    CacheChange::Stored { tier, names: names.to_vec() }
}

fn removed(tier: Tier, names: &[BlockName]) -> CacheChange {
    CacheChange::Removed { tier, names: names.to_vec() }
}

#[test]
fn one_walk_counts_own_tiers_and_what_stores_add() {
    let (d0, d1, store) = (rank(0), rank(1), rank(9));
    let mut index = PrefixIndex::new(8, 100);
    for (worker, role) in [(d0, Role::Decode), (d1, Role::Decode), (store, Role::Store)] {
        index.join(worker, role).expect("room");
    }
    let names = names(1, 6);
    index.apply(&event(d0, 1, 0, stored(Tier::Device, &names[..2])));
    index.apply(&event(d0, 1, 1, stored(Tier::Device, &names[4..5])));
    index.apply(&event(store, 1, 0, stored(Tier::Host, &names[1..3])));
    index.apply(&event(store, 1, 1, stored(Tier::Disk, &names[3..4])));
    let matches = index.match_prefix(&names);
    let first = matches.of(d0);
    assert_eq!(first.leading.of(Tier::Device), 2);
    assert_eq!(first.reach, 5, "device, device, host, disk, device");
    assert_eq!(
        TIERS.map(|tier| first.reach_by_tier.of(tier)),
        [3, 1, 1, 0],
        "the nearest copy counts"
    );
    let second = matches.of(d1);
    assert_eq!((second.reach, second.leading.total()), (0, 0), "block 0 is on no store");
    assert_eq!(matches.of(rank(77)).reach, 0, "not a member");
}

#[test]
fn sequences_decide_what_is_applied() {
    use CacheChange::Cleared;
    use ViewState::{Complete, Stale};
    let all = names(1, 4);
    let put = |count: usize| stored(Tier::Device, &all[..count]);
    // (incarnation, sequence, change), expected outcome, state and leading blocks after it.
    let steps = [
        ((1, 0, put(1)), Applied::InOrder, Complete, 1),
        ((1, 1, put(2)), Applied::InOrder, Complete, 2),
        ((1, 1, Cleared), Applied::Duplicate, Complete, 2),
        ((1, 0, removed(Tier::Device, &all)), Applied::Duplicate, Complete, 2),
        ((1, 2, removed(Tier::Host, &all)), Applied::InOrder, Complete, 2),
        ((1, 5, stored(Tier::Device, &all[2..])), Applied::AfterGap, Stale, 0),
        ((1, 6, put(1)), Applied::InOrder, Stale, 1),
        ((1, 9, put(4)), Applied::AfterGap, Stale, 4),
        ((1, 10, Cleared), Applied::InOrder, Complete, 0),
        ((1, 11, put(3)), Applied::InOrder, Complete, 3),
        ((1, 20, Cleared), Applied::InOrder, Complete, 0),
        ((1, 21, put(3)), Applied::InOrder, Complete, 3),
        ((3, 0, put(1)), Applied::InOrder, Complete, 1),
        ((2, 22, put(4)), Applied::OldIncarnation, Complete, 1),
        ((4, 7, put(2)), Applied::AfterGap, Stale, 2),
        ((4, 3, put(4)), Applied::Duplicate, Stale, 2),
        ((5, 0, put(1)), Applied::InOrder, Complete, 1),
    ];
    let mut index = PrefixIndex::new(1, 100);
    index.join(rank(0), Role::Decode).expect("room");
    for (at, ((incarnation, sequence, change), outcome, state, leading)) in
        steps.into_iter().enumerate()
    {
        let found = index.apply(&event(rank(0), incarnation, sequence, change));
        assert_eq!(found, outcome, "step {at}");
        let view = index.view(rank(0)).expect("a member");
        assert_eq!(view.0, state, "step {at}");
        assert_eq!(index.match_prefix(&all).of(rank(0)).reach, leading, "step {at}");
    }
    let counters = index.counters();
    assert_eq!((counters.gaps, counters.restarts), (4, 3));
    assert_eq!((counters.events_duplicate, counters.events_old_incarnation), (3, 1));
}

#[test]
fn a_full_index_claims_less_but_never_more() {
    let mut index = PrefixIndex::new(2, 5);
    index.join(rank(0), Role::Decode).expect("room");
    index.join(rank(1), Role::Decode).expect("room");
    let all = names(1, 8);
    index.apply(&event(rank(0), 1, 0, stored(Tier::Device, &all[..4])));
    index.apply(&event(rank(1), 1, 0, stored(Tier::Device, &all)));
    assert_eq!((index.entries(), index.counters().blocks_dropped_full), (5, 7));
    index.apply(&event(rank(0), 1, 1, stored(Tier::Host, &all[..4])));
    assert_eq!(index.entries(), 5, "another tier of a known holder needs no entry");
    assert_eq!(index.match_prefix(&all).of(rank(1)).reach, 1);
    index.apply(&event(rank(1), 1, 1, removed(Tier::Device, &all)));
    index.apply(&event(rank(1), 1, 2, stored(Tier::Device, &all[..1])));
    assert_eq!(index.match_prefix(&all).of(rank(1)).reach, 1);
    index.leave(rank(0));
    index.leave(rank(1));
    assert_eq!((index.entries(), index.blocks()), (0, 0));
}

#[test]
fn members_are_bounded_and_slots_are_reused() {
    let mut index = PrefixIndex::new(2, 10);
    let one = names(1, 1);
    for round in 0..5 {
        index.join(rank(0), Role::Decode).expect("room");
        index.join(rank(10 + round), Role::Store).expect("room");
        let refused = index.join(rank(99), Role::Decode);
        let expected = JoinError::TooManyWorkers { worker: rank(99), workers_max: 2 };
        assert_eq!(refused, Err(expected));
        assert_eq!(index.match_prefix(&one).of(rank(0)).reach, 0, "round {round}");
        index.apply(&event(rank(10 + round), 1, 0, stored(Tier::Host, &one)));
        assert_eq!(index.match_prefix(&one).of(rank(0)).reach, 1, "round {round}");
        index.leave(rank(10 + round));
    }
    assert_eq!(index.apply(&event(rank(99), 1, 0, CacheChange::Cleared)), Applied::UnknownWorker);
    index.join(rank(0), Role::Store).expect("a changed role takes the same place");
    assert_eq!(index.members().collect::<Vec<_>>(), [(rank(0), Role::Store)]);
}

struct Source {
    incarnation: u64,
    sequence: u64,
}

/// Prefix-sharing sequences: chain c branches off chain c / 2 in the middle.
fn chains() -> Vec<Vec<BlockName>> {
    let mut chains: Vec<Vec<BlockName>> = Vec::new();
    for chain in 0..12_u32 {
        let mut names: Vec<BlockName> = Vec::new();
        if let Some(parent) = chains.get(usize::try_from(chain / 2).expect("small")) {
            names.extend(&parent[..parent.len() / 2]);
        }
        names.extend((0..8).map(|position| block(chain, position)));
        chains.push(names);
    }
    chains
}

fn random_change(random: &mut Random, chains: &[Vec<BlockName>]) -> CacheChange {
    let chain = random.pick(chains);
    let (a, b) = (random.below(chain.len()), random.below(chain.len() + 1));
    let mut names = chain[a.min(b)..a.max(b)].to_vec();
    // The start of the chain is what decides the length of a match: touch it often.
    names.extend(random.chance(2).then_some(chain[0]));
    let tier = *random.pick(&TIERS);
    match random.below(40) {
        0 => CacheChange::Cleared,
        1..=27 => CacheChange::Stored { tier, names },
        _ => CacheChange::Removed { tier, names },
    }
}

/// How often a walk ended with each combination of tiers, as a bit set of tiers reached.
type Seen = BTreeMap<u8, u32>;

fn churn(seed: u64, seen: &mut Seen) {
    let mut random = Random::new(seed);
    let chains = chains();
    let mut real = PrefixIndex::new(6, 10_000);
    let mut naive = NaiveIndex::default();
    let mut sources: Vec<Source> = (0..6).map(|_| Source { incarnation: 1, sequence: 0 }).collect();
    for step in 0..300 {
        let at = random.below(sources.len());
        let worker = WorkerRank {
            worker: WorkerId(u32::try_from(at / 2).expect("small")),
            rank: DpRank(u16::try_from(at % 2).expect("small")),
        };
        match random.below(60) {
            0 => {
                real.leave(worker);
                naive.leave(worker);
            }
            1..=4 => {
                let role = if at < 4 { Role::Decode } else { Role::Store };
                real.join(worker, role).expect("room");
                naive.join(worker, role);
            }
            5 => sources[at] = Source { incarnation: sources[at].incarnation + 1, sequence: 0 },
            6 => sources[at].sequence += 1 + random.next() % 3,
            7 => sources[at].sequence = sources[at].sequence.saturating_sub(2),
            8 => sources[at].incarnation = sources[at].incarnation.saturating_sub(1),
            _ => {}
        }
        let source = &mut sources[at];
        let change = random_change(&mut random, &chains);
        let event = event(worker, source.incarnation, source.sequence, change);
        source.sequence += 1;
        assert_eq!(real.apply(&event), naive.apply(&event), "seed {seed}, step {step}: {event:?}");
        assert_eq!(real.entries(), naive.entries(), "seed {seed}, step {step}");
        let state = real.view(worker).map(|view| view.0);
        assert_eq!(state, naive.state(worker), "seed {seed}, step {step}");
        let names = random.pick(&chains);
        let (found, expected) = (real.match_prefix(names), naive.match_prefix(names));
        assert_eq!(found, expected, "seed {seed}, step {step}");
        for found in found.as_slice() {
            let bits = found.reach_by_tier.iter().zip([1, 2, 4, 8]);
            let tiers = bits.map(|((_, blocks), bit)| if 0 < blocks { bit } else { 0 }).sum();
            *seen.entry(tiers).or_default() += 1;
        }
    }
}

#[test]
fn random_churn_equals_the_naive_index() {
    let mut seen = Seen::new();
    for seed in 0..300 {
        churn(seed, &mut seen);
    }
    assert_eq!(seen.len(), 16, "every combination of tiers occurred: {seen:?}");
}
