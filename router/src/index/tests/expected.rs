//! Expectations: when they begin and end, and their bound.

use std::sync::Arc;

use shared::{BlockName, CacheChange, Tier, Timestamp};

use super::{event, removed, stored};
use crate::index::PrefixIndex;
use crate::role::Role;
use crate::testing::{names, rank};

fn at(millis: u64) -> Timestamp {
    Timestamp(millis * 1_000_000)
}

fn index(expected_max: usize) -> PrefixIndex {
    let mut index = PrefixIndex::new(4, 100).with_expectations(expected_max);
    index.join(rank(0), Role::Decode).expect("room");
    index.join(rank(1), Role::Decode).expect("room");
    index.join(rank(9), Role::Store).expect("room");
    index
}

/// Blocks that worker 0 can have, those of them in device memory or expected there, those only expected.
fn found(index: &PrefixIndex, names: &[BlockName]) -> [u32; 3] {
    let found = index.match_prefix(names).of(rank(0));
    [found.reach, found.reach_by_tier.of(Tier::Device), found.expected]
}

#[test]
fn expected_blocks_count_for_their_worker_until_confirmed_or_over() {
    let mut index = index(1_000);
    let prefix: Arc<[BlockName]> = Arc::from(names(1, 10));
    index.expect(rank(0), &prefix, at(50));
    assert_eq!(found(&index, &prefix), [10, 10, 10]);
    assert_eq!(index.match_prefix(&prefix).of(rank(1)).reach, 0, "of nobody else");
    assert_eq!(
        (index.entries(), index.expected(), index.view(rank(0)).map(|view| view.1)),
        (0, 10, Some(0))
    );
    index.apply(&event(rank(0), 1, 0, stored(Tier::Host, &prefix[..4])));
    assert_eq!(found(&index, &prefix), [10, 6, 6], "what is held is where it was said to be");
    index.expire(at(49));
    assert_eq!(found(&index, &prefix), [10, 6, 6]);
    index.expire(at(50));
    assert_eq!(found(&index, &prefix), [4, 0, 0]);
    assert_eq!((index.expected(), index.expectation_blocks()), (0, 0));
}

#[test]
fn the_last_of_several_expectations_counts() {
    let mut index = index(1_000);
    let prefix: Arc<[BlockName]> = Arc::from(names(1, 6));
    index.expect(rank(0), &prefix, at(30));
    index.expect(rank(0), &prefix, at(10));
    index.expire(at(20));
    assert_eq!(found(&index, &prefix), [6, 6, 6]);
    index.expire(at(30));
    assert_eq!(found(&index, &prefix), [0, 0, 0]);
}

#[test]
fn a_store_counts_beside_what_is_expected() {
    let mut index = index(1_000);
    let prefix: Arc<[BlockName]> = Arc::from(names(1, 6));
    index.apply(&event(rank(9), 1, 0, stored(Tier::Host, &prefix)));
    index.expect(rank(0), &Arc::from(&prefix[..2]), at(30));
    assert_eq!(found(&index, &prefix), [6, 2, 2]);
}

#[test]
fn a_member_that_says_it_holds_nothing_or_leaves_ends_what_was_expected() {
    let mut index = index(1_000);
    let prefix: Arc<[BlockName]> = Arc::from(names(1, 6));
    index.expect(rank(0), &prefix, at(30));
    index.apply(&event(rank(0), 1, 0, CacheChange::Cleared));
    assert_eq!(found(&index, &prefix), [0, 0, 0]);
    index.expect(rank(0), &prefix, at(30));
    index.apply(&event(rank(0), 1, 1, removed(Tier::Device, &prefix)));
    assert_eq!(found(&index, &prefix), [6, 6, 6], "it may have been evicted before it comes again");
    index.leave(rank(0));
    index.join(rank(0), Role::Decode).expect("room");
    assert_eq!((found(&index, &prefix), index.expectation_blocks()), ([0, 0, 0], 0));
}

#[test]
fn expectations_beyond_the_bound_are_dropped_whole_and_counted() {
    let mut index = index(15);
    let prefix: Arc<[BlockName]> = Arc::from(names(1, 10));
    index.expect(rank(0), &prefix, at(30));
    index.expect(rank(1), &prefix, at(30));
    assert_eq!((index.expected(), index.expectation_blocks()), (10, 10));
    assert_eq!(index.counters().expected_dropped_full, 10);
    index.expire(at(30));
    index.expect(rank(1), &prefix, at(60));
    assert_eq!(index.expected(), 10);
    index.expire(at(60));
    index.expect_soon([Some(rank(1)), Some(rank(0))], &prefix, at(90));
    index.settle();
    assert_eq!(index.counters().expected_dropped_full, 20);
    assert_eq!([0, 1].map(|worker| index.match_prefix(&prefix).of(rank(worker)).reach), [0, 10]);
    assert_eq!(index.expectation_blocks(), 10, "the first of two that has room is expected");
}

#[test]
fn what_is_expected_of_two_ends_for_both_and_goes_with_each() {
    let mut index = index(1_000);
    let prefix: Arc<[BlockName]> = Arc::from(names(1, 10));
    let reaches = |index: &PrefixIndex| {
        [0, 1].map(|worker| index.match_prefix(&prefix).of(rank(worker)).expected)
    };
    index.apply(&event(rank(1), 1, 0, stored(Tier::Device, &prefix[..3])));
    index.expect_soon([Some(rank(1)), Some(rank(0))], &prefix, at(30));
    index.expect_soon([Some(rank(0)), Some(rank(0))], &prefix, at(50));
    index.expect_soon([Some(rank(9)), None], &prefix, at(50));
    assert_eq!(reaches(&index), [0, 0], "not settled");
    index.expire(at(10));
    assert_eq!((reaches(&index), index.expected(), index.blocks()), ([10, 7], 17, 10));
    assert_eq!(index.expectation_blocks(), 30, "one worker twice is one, a store none");
    index.expire(at(30));
    assert_eq!((reaches(&index), index.expectation_blocks()), ([10, 0], 10));
    index.expect_soon([Some(rank(0)), Some(rank(1))], &prefix, at(50));
    index.leave(rank(0));
    assert_eq!((index.expected(), index.expectation_blocks()), (7, 10));
    index.expire(at(50));
    assert_eq!((index.expected(), index.expectation_blocks(), index.blocks()), (0, 0, 3));
}

/// Workers tell their blocks in the order of names. A request knows the order of the chain: then its blocks are laid side
/// by side.
#[test]
fn a_request_teaches_the_order_of_its_chain() {
    let mut index = PrefixIndex::new(4, 10_000).with_expectations(10_000);
    index.join(rank(0), Role::Decode).expect("room");
    let chain = names(1, 500);
    let mut sorted = chain.clone();
    sorted.sort_unstable();
    index.apply(&event(rank(0), 1, 0, stored(Tier::Device, &sorted)));
    let stretches = |index: &PrefixIndex| {
        let (mut count, mut rest, mut previous) = (0, &chain[..], None);
        while let Some(stretch) = index.exact.stretch(previous, rest) {
            previous = Some(stretch.last);
            rest = &rest[stretch.count..];
            count += 1;
        }
        assert!(rest.is_empty(), "all are found");
        count
    };
    assert!(400 < stretches(&index));
    index.expect(rank(0), &Arc::from(&chain[..]), at(10));
    assert!(stretches(&index) <= 2, "one more where a page ends");
    assert_eq!((index.entries(), index.blocks()), (500, 500));
    index.apply(&event(rank(0), 1, 1, removed(Tier::Device, &sorted)));
    assert_eq!((index.entries(), index.blocks()), (0, 0));
}
