//! Errors of the drive, kills, and many threads at once.

use shared::Random;
use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::{FLUSH, Folder, Rig, SEGMENT_RECORDS, config, damage, file, put, store};
use crate::disk::DiskConfig;
use crate::testing::name;

#[test]
fn an_error_suspends_writing_and_leaves_reading() {
    let folder = Folder::new();
    let rig = Rig::new(&folder);
    rig.write(0..SEGMENT_RECORDS);
    // The file that comes next cannot be made.
    fs::create_dir(file(&folder, 2)).unwrap();
    rig.write([20]);
    let stats = rig.stats();
    assert_eq!((stats.write_errors, stats.dropped_error, stats.suspended), (1, 1, 1));
    rig.write([21, 22]);
    let stats = rig.stats();
    assert_eq!((stats.write_errors, stats.dropped_error), (1, 3), "nothing is tried");
    assert_eq!(rig.readable(0..SEGMENT_RECORDS).len(), 13);
    // The pauses: 1, 2, 4, ... 32, 60, 60 seconds.
    for (retry, pause) in (2..).zip([1, 2, 4, 8, 16, 32, 60, 60]) {
        rig.clock.advance(Duration::from_millis(pause * 1_000 - 1));
        rig.write([20]);
        assert_eq!(rig.stats().write_errors, retry - 1, "{pause} s are not over");
        rig.clock.advance(Duration::from_millis(1));
        rig.write([20]);
        assert_eq!(rig.stats().write_errors, retry);
    }
    fs::remove_dir(file(&folder, 2)).unwrap();
    rig.clock.advance(Duration::from_secs(60));
    rig.write([20, 21]);
    assert_eq!((rig.readable([20, 21]).len(), rig.stats().suspended), (2, 0));
    assert!(rig.pool.audit().is_at_rest());
    drop(rig);
    assert_eq!(Rig::new(&folder).readable(0..22).len(), 15);
}

#[test]
fn a_block_damaged_in_memory_is_not_written() {
    let folder = Folder::new();
    let rig = Rig::new(&folder);
    let block = store(&rig.pool, 1);
    damage(&rig.memory, block.index());
    rig.tier.store(put(block), usize::MAX);
    rig.write([2]);
    assert_eq!((rig.stats().dropped_corrupt, rig.readable([1, 2])), (1, vec![2]));
}

/// A copy of the files at any moment is what a killed process leaves behind.
#[test]
fn a_store_killed_at_any_moment_has_all_that_was_synced_and_nothing_wrong() {
    let folder = Folder::new();
    let rig = Rig::with(&DiskConfig { bytes_max: 256 << 16, ..config(&folder) });
    let durable = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..150 {
                rig.write([number]);
                durable.store(number + 1, Ordering::SeqCst);
            }
            over.store(true, Ordering::SeqCst);
        });
        let mut rounds = 0;
        while !over.load(Ordering::SeqCst) || rounds < 3 {
            let killed = Folder::new();
            let before = durable.load(Ordering::SeqCst);
            let mut numbers: Vec<u64> = (1..20).collect();
            numbers
                .retain(|number| fs::copy(file(&folder, *number), file(&killed, *number)).is_ok());
            let rig = Rig::with(&DiskConfig { bytes_max: 256 << 16, ..config(&killed) });
            let found = rig.readable(0..150);
            assert!((0..before).all(|number| found.contains(&number)), "{before}: {found:?}");
            assert_eq!(rig.stats().corrupt, 0);
            rounds += 1;
        }
    });
}

#[test]
fn many_threads_write_read_and_evict_at_once() {
    let folder = Folder::new();
    let rig = Rig::with(&DiskConfig { readers: 3, ..config(&folder) });
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut generator = Random::new(1);
            for round in 0..400 {
                let number = u64::try_from(generator.below(60)).unwrap();
                rig.tier.store(put(store(&rig.pool, number)), 16);
                if round % 100 == 99 {
                    assert!(rig.tier.flush(FLUSH));
                    let _evicted = rig.tier.evict_all();
                }
            }
            over.store(true, Ordering::SeqCst);
        });
        while !over.load(Ordering::SeqCst) {
            rig.readable(0..60);
            let stats = rig.stats();
            assert!(stats.file_bytes <= stats.file_bytes_max, "{stats:?}");
        }
    });
    assert!(rig.tier.flush(FLUSH));
    assert_eq!(rig.stats().corrupt, 0);
    assert!(rig.pool.audit().is_at_rest() && rig.target.audit().is_at_rest());
    rig.write(0..20);
    let found: BTreeSet<u64> = rig.readable(0..60).into_iter().collect();
    assert_eq!(u64::try_from(found.len()).unwrap(), rig.stats().objects_held);
    drop(rig);
    let rig = Rig::new(&folder);
    assert!(found.iter().all(|number| rig.tier.contains(name(*number))));
}

#[test]
fn blocks_are_synced_in_time() {
    let folder = Folder::new();
    let rig = Rig::with(&DiskConfig { sync_ms: 60_000, ..config(&folder) });
    rig.write([1]);
    assert_eq!(rig.stats().syncs, 1, "a flush syncs at once");
    rig.queue(2);
    while !rig.tier.contains(name(2)) {
        thread::yield_now();
    }
    rig.clock.advance(Duration::from_secs(60));
    rig.queue(3);
    // The sync comes with whatever is looked at first: block 3, or the time after block 2.
    while rig.stats().syncs < 2 {
        thread::yield_now();
    }
}
