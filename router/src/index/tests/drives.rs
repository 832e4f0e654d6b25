//! The second level: what it finds, what it claims, what it forgets.

use shared::{CacheChange, RangeSet, Tier, range_of};

use super::{event, removed, stored};
use crate::index::PrefixIndex;
use crate::index::drives::Drives;
use crate::index::exact::Outcome;
use crate::role::Role;
use crate::testing::{names, rank};

#[test]
fn drives_of_stores_are_found_without_names_and_leave_with_their_store() {
    let (worker, one, two) = (rank(0), rank(8), rank(9));
    let mut index = PrefixIndex::new(4, 100).with_drives(1_000);
    for (member, role) in [(worker, Role::Decode), (one, Role::Store), (two, Role::Store)] {
        index.join(member, role).expect("room");
    }
    let names = names(1, 40);
    let reach = |index: &PrefixIndex| {
        let found = index.match_prefix(&names).of(worker);
        [Tier::Device, Tier::Host, Tier::Disk, Tier::Remote]
            .map(|tier| found.reach_by_tier.of(tier))
    };
    index.apply(&event(one, 1, 0, stored(Tier::Disk, &names[..20])));
    index.apply(&event(two, 1, 0, stored(Tier::Remote, &names[10..])));
    assert_eq!((index.entries(), index.drive_blocks()), (0, 50));
    assert_eq!(reach(&index), [0, 0, 20, 20]);
    index.apply(&event(one, 1, 1, stored(Tier::Host, &names[..5])));
    index.apply(&event(worker, 1, 0, stored(Tier::Device, &names[3..7])));
    assert_eq!(reach(&index), [4, 3, 13, 20], "the nearest of both levels");
    index.apply(&event(one, 1, 2, removed(Tier::Disk, &names[15..20])));
    assert_eq!(reach(&index), [4, 3, 8, 25]);
    index.apply(&event(two, 1, 1, CacheChange::Cleared));
    assert_eq!(reach(&index), [4, 3, 8, 0]);
    index.apply(&event(one, 1, 9, stored(Tier::Disk, &[])));
    assert_eq!(reach(&index), [4, 3, 8, 0], "a gap takes nothing away");
    let first = RangeSet::from_iter(names[8..].iter().map(|&name| range_of(name)));
    let left = names[..8].iter().filter(|&&name| !first.contains(range_of(name))).count();
    assert!(0 < left, "not every range of names is cleared");
    index.apply(&event(one, 1, 10, CacheChange::RangesCleared(first)));
    assert_eq!(index.drive_blocks(), left, "ranges are cleared in both levels");
    index.leave(one);
    assert_eq!((reach(&index), index.drive_blocks()), ([0; 4], 0));
}

#[test]
fn what_a_worker_holds_on_its_own_drive_stays_exact() {
    let mut index = PrefixIndex::new(4, 100).with_drives(1_000);
    index.join(rank(0), Role::Decode).expect("room");
    index.apply(&event(rank(0), 1, 0, stored(Tier::Disk, &names(1, 3))));
    assert_eq!((index.entries(), index.drive_blocks()), (3, 0));
}

#[test]
fn a_full_second_level_drops_and_counts() {
    let mut index = PrefixIndex::new(4, 100).with_drives(10);
    index.join(rank(9), Role::Store).expect("room");
    let all = names(1, 16);
    index.apply(&event(rank(9), 1, 0, stored(Tier::Disk, &all)));
    assert_eq!((index.drive_blocks(), index.counters().drive_blocks_dropped_full), (10, 6));
    assert_eq!(index.match_prefix(&all).of(rank(0)).reach, 10);
    index.apply(&event(rank(9), 1, 1, CacheChange::Cleared));
    index.apply(&event(rank(9), 1, 2, stored(Tier::Disk, &all[6..])));
    assert_eq!(index.drive_blocks(), 10, "what was cleared made room");
}

/// At the bound: no false negative, false claims as rare as said, at most five bytes a block, all given back.
#[test]
fn a_full_level_claims_what_it_should() {
    const BLOCKS: u32 = 400_000;
    let bound = usize::try_from(BLOCKS).expect("fits");
    let mut drives = Drives::new(bound);
    let held = names(1, BLOCKS);
    for (chunk, slot) in held.chunks(1_000).zip((0..8).cycle()) {
        assert_eq!(drives.store(slot, Tier::Disk, chunk), chunk.len());
    }
    assert_eq!(drives.store(0, Tier::Disk, &held[..1]), 0, "full");
    assert!(held.iter().all(|&name| drives.nearest(name) == Some(Tier::Disk)), "nothing is missed");
    assert!(drives.bytes() < 5 * bound, "{} bytes", drives.bytes());
    let absent = names(2, 4_000_000);
    let claimed = absent.iter().filter(|&&name| drives.nearest(name).is_some()).count();
    assert!((20..120).contains(&claimed), "16 in a million are 64: {claimed}");

    for (chunk, slot) in held.chunks(1_000).zip((0..8).cycle()) {
        drives.remove(slot, Tier::Disk, &chunk[..500], |_, _| ());
    }
    let mut halves =
        held.chunks(500).map(|half| half.iter().filter(|&&name| drives.nearest(name).is_some()));
    let kept: Vec<usize> = (&mut halves).map(Iterator::count).collect();
    assert!(
        kept.chunks(2).all(|pair| pair[0] < 5 && pair[1] == 500),
        "one half of each chunk went"
    );
    for slot in 0..8 {
        drives.clear(slot);
        assert_eq!(drives.held_by(slot), 0);
    }
    assert_eq!(drives.held(), 0);
    drives.sweep(bound);
    let empty = Drives::new(bound).bytes();
    assert_eq!(drives.bytes(), empty, "memory is given back");
}

#[test]
fn pairs_of_members_and_tiers_are_bounded_and_reused() {
    let mut drives = Drives::new(100_000);
    let names = names(1, 2);
    for slot in 0..1_023 {
        assert_eq!(drives.store(slot, Tier::Disk, &names), 2, "member {slot}");
    }
    assert_eq!(drives.store(2_000, Tier::Disk, &names), 0, "no number is left");
    drives.clear(7);
    drives.sweep(100_000);
    assert_eq!(drives.store(2_000, Tier::Disk, &names), 2);
    drives.remove(2_000, Tier::Disk, &names, |_, outcome| assert_eq!(outcome, Outcome::Changed));
    drives.remove(2_000, Tier::Disk, &names, |_, outcome| assert_eq!(outcome, Outcome::Same));
    assert_eq!(drives.store(2_001, Tier::Remote, &names), 2, "an empty pair gives its number up");
}
