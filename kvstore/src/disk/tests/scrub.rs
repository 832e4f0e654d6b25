//! Damage is found before it is needed.

use std::fs;
use std::thread;
use std::time::Duration;

use super::{Folder, Rig, SEGMENT_RECORDS, config, file, flip, stored};
use crate::disk::DiskConfig;
use crate::disk::format::PAGE_BYTES;
use crate::disk::stats::DiskReadError;

/// A rig on a folder, after its first pass.
fn scrubbed(folder: &Folder) -> Rig {
    let rig = Rig::with(&DiskConfig { scrub_mib_per_s: 65_536, ..config(folder) });
    while rig.stats().scrub_passes == 0 {
        thread::yield_now();
    }
    rig
}

#[test]
fn an_intact_store_is_read_once_an_hour() {
    let folder = Folder::new();
    Rig::new(&folder).write(0..20);
    let rig = scrubbed(&folder);
    let stats = rig.stats();
    assert_eq!((stats.scrubbed_bytes, stats.scrub_damaged, stats.quarantined), (20 * 4_096, 0, 0));
    assert_eq!(rig.readable(0..20).len(), 20);
    rig.clock.advance(Duration::from_secs(3_600));
    assert_eq!(rig.stats().scrub_passes, 1, "the hour is waited for, not counted");
}

#[test]
fn damaged_blocks_become_misses_and_their_pages_are_not_read_again() {
    let folder = Folder::new();
    Rig::new(&folder).write(0..SEGMENT_RECORDS + 4);
    // A payload and a record's header of a sealed segment, whose table is believed.
    flip(&folder, 1, 2 * PAGE_BYTES + 130);
    flip(&folder, 1, 5 * PAGE_BYTES + 60);
    let rig = scrubbed(&folder);
    let stats = rig.stats();
    assert_eq!((stats.scrub_damaged, stats.quarantined, stats.objects_held), (2, 2, 15));
    assert_eq!(rig.read(1), Err(DiskReadError::Gone), "nothing is read for it");
    assert_eq!(rig.stats().corrupt, 0);
    let left = || (0..17).filter(|number| ![1, 4].contains(number));
    assert_eq!(rig.tier.drain_changes(), [stored(left())], "who asks later hears nothing of them");
    rig.write([1]);
    let left: Vec<u64> = (0..17).filter(|number| *number != 4).collect();
    assert_eq!(rig.readable(0..17), left, "a new copy is found");
}

#[test]
fn copies_that_do_not_count_are_not_read() {
    let folder = Folder::new();
    let rig = Rig::new(&folder);
    rig.write(0..SEGMENT_RECORDS);
    flip(&folder, 1, PAGE_BYTES + 130);
    assert_eq!(rig.read(0), Err(DiskReadError::Corrupt));
    rig.write([0]);
    drop(rig);
    let rig = scrubbed(&folder);
    assert_eq!((rig.stats().scrub_damaged, rig.stats().scrubbed_bytes), (0, 13 * 4_096));
    assert_eq!(rig.readable(0..13).len(), 13);
}

#[test]
fn what_a_start_does_not_find_is_not_read() {
    let folder = Folder::new();
    Rig::new(&folder).write(0..SEGMENT_RECORDS + 1);
    let bytes = fs::read(file(&folder, 1)).unwrap();
    fs::write(file(&folder, 1), &bytes[..10 * PAGE_BYTES]).unwrap();
    let rig = scrubbed(&folder);
    assert_eq!((rig.stats().scrub_damaged, rig.stats().scrubbed_bytes), (0, 10 * 4_096));
    assert_eq!(rig.readable(0..14), [0, 1, 2, 3, 4, 5, 6, 7, 8, 13]);
}

#[test]
fn the_end_does_not_wait_for_a_slow_scrub() {
    let folder = Folder::new();
    Rig::new(&folder).write(0..30);
    // A clock that stands still makes each wait longer than the one before: 30 blocks take 15 times 120 ms.
    let rig = Rig::with(&DiskConfig { scrub_mib_per_s: 1, ..config(&folder) });
    while rig.stats().scrubbed_bytes == 0 {
        thread::yield_now();
    }
    drop(rig);
    let rig = Rig::new(&folder);
    assert_eq!((rig.stats().scrubbed_bytes, rig.stats().scrub_passes), (0, 0), "0 is off");
}
