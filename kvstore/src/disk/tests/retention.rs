//! The retention contract with real files. The decider alone, for a month: `disk/retention/tests.rs`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use shared::{ManualClock, Random};

use super::{
    FLUSH, Folder, Rig, SEGMENT_RECORDS, config, file, files, put, removed, store, stored,
};
use crate::disk::DiskConfig;
use crate::testing::name;

const HOUR: Duration = Duration::from_secs(3_600);

fn advance(rig: &Rig, seconds: u64) {
    rig.clock.advance(Duration::from_secs(seconds));
}

#[test]
fn a_segment_leaves_when_its_newest_write_is_older_than_the_retention_and_not_before() {
    let folder = Folder::new();
    let rig = Rig::with(&DiskConfig { retention_s: 1_000, ..config(&folder) });
    rig.write(0..SEGMENT_RECORDS + 1);
    advance(&rig, 900);
    // The second segment is written to again, the first is not.
    rig.write([20]);
    assert_eq!(rig.tier.drain_changes(), [stored((0..14).chain([20]))]);
    advance(&rig, 100);
    rig.write([]);
    assert!(rig.tier.flush(FLUSH));
    assert_eq!(rig.readable(0..14).len(), 14, "1,000 seconds are not over");
    advance(&rig, 100);
    assert!(rig.tier.flush(FLUSH));
    assert_eq!(rig.readable(0..21), [13, 20]);
    assert_eq!(rig.tier.drain_changes(), [removed(0..13)]);
    advance(&rig, 1_000);
    assert!(rig.tier.flush(FLUSH));
    assert!(rig.readable(0..21).is_empty());
    assert!(files(&folder).is_empty(), "the open segment left, too");
    let stats = rig.stats();
    assert_eq!((stats.segments_expired, stats.objects_expired), (2, 15));
    assert_eq!((stats.segments_dropped, stats.retention_violations), (0, 0));
    rig.write([30]);
    assert_eq!(rig.readable([30]), [30], "and a new one is begun");
}

#[test]
fn what_grew_too_old_while_nobody_ran_leaves_at_the_start() {
    let folder = Folder::new();
    let config = DiskConfig { retention_s: 1_000, ..config(&folder) };
    Rig::with(&config).write(0..3);
    for (seconds, expected) in [(1_000, 3), (1_001, 0)] {
        let clock = Arc::new(ManualClock::new());
        clock.advance(Duration::from_secs(seconds));
        let rig = Rig::at(&config, clock);
        assert_eq!(rig.readable(0..3).len(), expected, "after {seconds} s");
        assert_eq!(rig.stats().retention_violations, 0);
    }
}

#[test]
fn a_clock_set_back_keeps_blocks_for_one_retention_more() {
    let folder = Folder::new();
    let config = DiskConfig { retention_s: 1_000, ..config(&folder) };
    let future = Arc::new(ManualClock::new());
    future.advance(Duration::from_secs(1 << 30));
    Rig::at(&config, future).write([1]);
    let rig = Rig::with(&config);
    advance(&rig, 1_000);
    assert!(rig.tier.flush(FLUSH));
    assert_eq!(rig.readable([1]), [1]);
    advance(&rig, 1_000);
    assert!(rig.tier.flush(FLUSH));
    assert!(rig.readable([1]).is_empty());
}

/// Twenty new blocks a minute, of which the budget admits eleven; two hours, restarts among them.
#[test]
fn an_overloaded_disk_keeps_what_it_admitted_and_drops_the_rest() {
    let folder = Folder::new();
    let config = DiskConfig { retention_s: 3_600, ..config(&folder) };
    let clock = Arc::new(ManualClock::new());
    let mut rig = Rig::at(&config, Arc::clone(&clock));
    let mut admitted = VecDeque::new();
    let (mut refused, mut expired) = (0, 0);
    let mut generator = Random::new(11);
    for minute in 0..130_u64 {
        let numbers = minute * 20..minute * 20 + 20;
        numbers.clone().for_each(|number| rig.queue(number));
        assert!(rig.tier.flush(FLUSH));
        let now = clock_seconds(&clock);
        admitted.extend(
            numbers.filter(|number| rig.tier.contains(name(*number))).map(|number| (number, now)),
        );
        while admitted.front().is_some_and(|(_, written)| written + 3_600 < now) {
            admitted.pop_front();
        }
        assert!(admitted.iter().all(|(number, _)| rig.tier.contains(name(*number))), "{minute}");
        let some = [0, 0, 0].map(|_| admitted[generator.below(admitted.len())].0);
        assert_eq!(rig.readable(some), some);
        let stats = rig.stats();
        assert!(stats.file_bytes <= stats.file_bytes_max, "{stats:?}");
        assert_eq!((stats.retention_violations, stats.segments_dropped, stats.corrupt), (0, 0, 0));
        if minute % 40 == 39 {
            (refused, expired) = (refused + stats.dropped_budget, expired + stats.segments_expired);
            drop(rig);
            rig = Rig::at(&config, Arc::clone(&clock));
        }
        clock.advance(Duration::from_secs(60));
    }
    assert!(800 < refused && 40 < expired, "{refused} {expired}");
    // The budget is used: 62 segments less the burst and the rounding of the last hour.
    assert!(600 < admitted.len(), "{}", admitted.len());
}

fn clock_seconds(clock: &ManualClock) -> u64 {
    shared::Clock::unix_seconds(clock)
}

#[test]
fn a_restart_gives_no_second_burst() {
    let folder = Folder::new();
    let rig = Rig::new(&folder);
    rig.write(0..60);
    let before = rig.stats();
    assert!(0 < before.dropped_budget && before.budget_bytes < before.budget_bytes_max / 2 + 6_000);
    assert_eq!(before.dropped_budget_bytes, before.dropped_budget * 37);
    drop(rig);
    let rig = Rig::new(&folder);
    assert_eq!(rig.stats().budget_bytes, before.budget_bytes);
    rig.write(100..110);
    assert_eq!(rig.stats().written, 0);
    assert!(0 < rig.tier.evict_all());
    assert_eq!(rig.stats().budget_bytes, before.budget_bytes_max, "an empty disk owes nothing");
}

#[test]
fn a_smaller_disk_counts_every_block_that_leaves_early_and_no_other() {
    let folder = Folder::new();
    let config = |bytes_max| DiskConfig { bytes_max, retention_s: 1_000, ..config(&folder) };
    let clock = Arc::new(ManualClock::new());
    let rig = Rig::at(&config(256 << 16), Arc::clone(&clock));
    // Two segments and four blocks at the beginning, the rest of seven segments later.
    rig.write(0..30);
    clock.advance(Duration::from_secs(600));
    rig.write(30..7 * SEGMENT_RECORDS - 3);
    let all = 0..7 * SEGMENT_RECORDS - 3;
    assert_eq!(rig.readable(all.clone()).len(), 88);
    drop(rig);
    let rig = Rig::at(&config(256 << 16), Arc::clone(&clock));
    assert_eq!((rig.readable(all.clone()).len(), rig.stats().retention_violations), (88, 0));
    drop(rig);
    clock.advance(Duration::from_secs(500));
    let rig = Rig::at(&config(4 << 16), Arc::clone(&clock));
    let stats = rig.stats();
    // Segments 1 and 2 were due. Of segment 3 nine blocks were not, of segment 4 none.
    assert_eq!((stats.segments_expired, stats.objects_expired), (2, 26));
    let left = rig.readable(all.clone());
    let gone = all.filter(|number| 30 <= *number && !left.contains(number)).count();
    assert_eq!(stats.retention_violations, u64::try_from(gone).unwrap());
    assert_eq!(stats.objects_dropped, stats.retention_violations + 4);
    assert!(0 < gone && !left.is_empty() && stats.file_bytes <= 4 << 16, "{stats:?}");
    rig.write(200..230);
    assert_eq!(rig.stats().retention_violations, stats.retention_violations, "no more of them");
    assert_eq!(rig.readable(left.iter().copied()), left);
}

#[test]
fn ages_of_hits_are_counted() {
    let folder = Folder::new();
    let rig = Rig::with(&DiskConfig { retention_s: 100 * 3_600, ..config(&folder) });
    rig.write([1]);
    for hours in [0, 1, 1, 22, 1, 47, 1] {
        rig.clock.advance(HOUR * hours);
        assert_eq!(rig.readable([1]), [1]);
    }
    assert_eq!(rig.stats().read_by_age, [2, 2, 2, 1]);
}

#[test]
fn a_block_is_written_again_in_the_last_quarter_alone_and_its_newest_copy_counts() {
    let folder = Folder::new();
    let rig = Rig::with(&DiskConfig { retention_s: 1_000, ..config(&folder) });
    rig.write(0..SEGMENT_RECORDS);
    let keep = |number| {
        let block = store(&rig.pool, number);
        let wanted = rig.tier.wants([name(number)].into_iter());
        rig.tier.keep(put(block), usize::MAX);
        assert!(rig.tier.flush(FLUSH));
        (wanted == [true], rig.stats().reput)
    };
    advance(&rig, 749);
    assert_eq!(keep(1), (false, 0));
    advance(&rig, 1);
    rig.write([2]);
    assert_eq!(rig.stats().written, 13, "a first offer writes nothing again");
    assert_eq!(keep(1), (true, 1));
    assert_eq!(keep(1), (false, 1), "the new copy lasts");
    assert_eq!((rig.stats().written, rig.stats().objects_held), (14, 13));
    advance(&rig, 251);
    assert!(rig.tier.flush(FLUSH));
    assert_eq!((rig.readable(0..SEGMENT_RECORDS), rig.stats().objects_expired), (vec![1], 12));
    assert!(!file(&folder, 1).exists());
    drop(rig);
    assert_eq!(Rig::new(&folder).readable(0..SEGMENT_RECORDS), [1]);
}
