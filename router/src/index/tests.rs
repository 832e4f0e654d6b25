//! The index case by case, and its bounds; its parts against the naive definition.

mod chains;
mod churn;
mod drives;
mod expected;
mod traces;

use shared::{
    BlockName, CacheChange, CacheEvent, RangeDigests, RangeSet, Tier, WorkerRank, range_of,
};

use super::tiers::TIERS;
use super::{Applied, JoinError, PrefixIndex, ViewState};
use crate::role::Role;
use crate::testing::{names, rank};

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
    let held: Vec<_> = matches.iter().map(|found| found.worker).collect();
    assert_eq!(held, [d0], "the others hold nothing that helps: the walk has one row");
    let offered = index.match_prefix(&names[1..]).of(d1);
    assert_eq!((offered.reach, offered.leading.total()), (3, 0), "what the store has");
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
        ((1, 5, stored(Tier::Device, &all[2..])), Applied::AfterGap, Stale, 4),
        ((1, 6, put(1)), Applied::InOrder, Stale, 4),
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

#[test]
fn digests_find_the_ranges_that_differ_and_only_these_are_told_again() {
    let (all, tier) = (names(1, 40), Tier::Disk);
    let ranges = |names: &[BlockName]| names.iter().map(|&name| range_of(name)).collect();
    let digests = |names: &[BlockName]| {
        let mut digests = RangeDigests::default();
        names.iter().for_each(|&name| digests.add(name, tier));
        CacheChange::Digests(digests)
    };
    let mut index = PrefixIndex::new(1, 100);
    index.join(rank(0), Role::Store).expect("room");
    let mut apply = |sequence, change| {
        let applied = index.apply(&event(rank(0), 1, sequence, change));
        (applied, index.view(rank(0)).expect("a member"), index.suspect(rank(0)))
    };
    let complete = |entries| (ViewState::Complete, entries);
    let stale = |entries| (ViewState::Stale, entries);
    assert_eq!(
        apply(0, stored(tier, &all[..30])),
        (Applied::InOrder, complete(30), RangeSet::default())
    );
    // Lost: that the first four are gone, and that two more are there.
    assert_eq!(
        apply(3, stored(tier, &all[32..])),
        (Applied::AfterGap, stale(38), RangeSet::ALL),
        "what was said before stays"
    );
    let differing: RangeSet = RangeSet::union(ranges(&all[..4]), ranges(&all[30..32]));
    assert_eq!(apply(4, digests(&all[4..])), (Applied::InOrder, stale(38), differing));
    let told: Vec<BlockName> = all[4..].to_vec();
    let again: Vec<BlockName> =
        told.iter().copied().filter(|&name| differing.contains(range_of(name))).collect();
    let (applied, view, suspect) = apply(5, CacheChange::RangesCleared(differing));
    assert_eq!(
        (applied, view.0, suspect),
        (Applied::InOrder, ViewState::Complete, RangeSet::default())
    );
    assert_eq!(apply(6, stored(tier, &again)).1, complete(36));
    assert_eq!(apply(7, digests(&told)).1, complete(36), "asked by somebody else");
    // Digests themselves may be the first that is heard after a loss.
    assert_eq!(apply(9, digests(&told)), (Applied::InOrder, complete(36), RangeSet::default()));
    assert_eq!(apply(11, digests(&all)), (Applied::AfterGap, stale(36), ranges(&all[..4])));
    index.distrust(rank(0));
    assert_eq!((index.view(rank(0)), index.suspect(rank(0))), (Some(stale(0)), RangeSet::ALL));
    index.apply(&event(rank(0), 1, 12, CacheChange::RangesCleared(RangeSet::ALL)));
    index.distrust(rank(0));
    assert_eq!(index.view(rank(0)), Some(complete(0)), "it said what it holds");
    let counters = index.counters();
    assert_eq!(counters.ranges_cleared, u64::from(differing.len()) + 256);
    assert_eq!(
        counters.blocks_cleared_by_ranges,
        38 + u64::try_from(again.len()).expect("few") - 36
    );
}

#[test]
fn what_does_not_fit_is_not_asked_for_again_and_again() {
    let (all, tier) = (names(1, 20), Tier::Disk);
    let mut index = PrefixIndex::new(1, 5);
    index.join(rank(0), Role::Store).expect("room");
    let mut digests = RangeDigests::default();
    all.iter().for_each(|&name| digests.add(name, tier));
    index.apply(&event(rank(0), 1, 0, stored(tier, &all)));
    assert_eq!((index.unindexed(rank(0)), index.suspect(rank(0))), (15, RangeSet::default()));
    for sequence in [2, 4, 6] {
        index.apply(&event(rank(0), 1, sequence, CacheChange::Digests(digests.clone())));
        assert_eq!(
            index.view(rank(0)),
            Some((ViewState::Complete, 5)),
            "nothing was lost in the gap"
        );
    }
    index.apply(&event(rank(0), 1, 7, removed(tier, &all)));
    assert_eq!((index.entries(), index.unindexed(rank(0))), (0, 0));
}
