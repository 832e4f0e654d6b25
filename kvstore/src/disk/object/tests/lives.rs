//! What a segment lives through: sealed, uploaded, off the drive, found again, deleted.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use shared::{CacheChange, ManualClock, Tier};

use super::{ObjectConfig, Place, Rig, SEGMENT_RECORDS, config, empty, remote_only};
use crate::disk::survey::{CatalogState, Exclusive};
use crate::disk::tests::{Folder, put};
use crate::disk::{Below, DiskConfig, segment};
use crate::testing::name;

fn told(rig: &Rig) -> Vec<CacheChange> {
    rig.tier.drain_changes()
}

fn stored(numbers: impl IntoIterator<Item = u64>) -> CacheChange {
    CacheChange::Stored { tier: Tier::Disk, names: numbers.into_iter().map(name).collect() }
}

fn removed(numbers: impl IntoIterator<Item = u64>) -> CacheChange {
    CacheChange::Removed { tier: Tier::Disk, names: numbers.into_iter().map(name).collect() }
}

#[test]
fn what_leaves_the_drive_is_read_from_the_object_store() {
    for place in Place::all() {
        let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
        let config = config(&folder, place.config());
        let rig = Rig::start(&config, &clock);
        rig.write(0..30);
        assert!(rig.settle());
        let stats = rig.stats();
        assert_eq!((stats.uploads, stats.objects, stats.objects_remote_only), (2, 2, 0));
        assert_eq!((stats.upload_bytes, stats.bytes), (2 << 16, 2 << 16));
        let objects = place.objects();
        for (number, object) in (1..).zip(&objects) {
            let file = segment::path(folder.path(), number);
            assert_eq!(fs::read(object).unwrap(), fs::read(file).unwrap(), "byte by byte");
        }
        assert_eq!(told(&rig), [stored(0..30)]);
        rig.outlive(30);
        assert_eq!(told(&rig), [removed(26..30), stored([30])], "the last one was not sealed");
        assert_eq!(rig.below(25), Some(Below::Objects));
        assert_eq!(rig.readable(0..31), (0..26).chain([30]).collect::<Vec<u64>>());
        let stats = rig.stats();
        assert_eq!((stats.objects_remote_only, stats.records_remote_only), (2, 26));
        assert_eq!((stats.left_uncopied, stats.read, stats.corrupt), (1, 26, 0));
        assert_eq!(rig.tier.stats().file_bytes, 2 << 12, "objects are no files");
        assert_eq!(rig.tier.stats().retention_violations, 0);
        rig.assert_sound();
        drop(rig);
        let rig = Rig::start(&config, &clock);
        assert_eq!(rig.readable(0..31), (0..26).chain([30]).collect::<Vec<u64>>(), "a restart");
        assert!(rig.settle());
        assert_eq!((rig.stats().uploads, rig.stats().adopted), (0, 0), "all of it is known");
    }
}

#[test]
fn an_empty_drive_gets_its_blocks_back() {
    for place in Place::all() {
        let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
        let config = config(&folder, place.config());
        let rig = Rig::start(&config, &clock);
        rig.write(0..30);
        assert!(rig.settle());
        drop(rig);
        empty(&folder);
        clock.advance(Duration::from_secs(10));
        let rig = Rig::start(&config, &clock);
        assert!(rig.settle());
        assert_eq!((rig.stats().adopted, rig.stats().objects_remote_only), (2, 2));
        assert_eq!(told(&rig), [stored(0..26)]);
        assert_eq!(rig.readable(0..31), (0..26).collect::<Vec<u64>>());
        rig.assert_sound();
        // What is written now never takes the place of what was there.
        rig.write(50..50 + SEGMENT_RECORDS + 1);
        assert!(rig.settle());
        assert_eq!((rig.stats().uploads, place.objects().len()), (1, 3));
        assert_eq!(rig.readable(0..100).len(), 26 + 14);
    }
}

#[test]
fn a_lost_catalog_costs_no_second_upload() {
    for place in Place::all() {
        let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
        let config = config(&folder, place.config());
        drop(remote_only(&config, &clock, None));
        let rig = Rig::start(&config, &clock);
        rig.write(101..101 + SEGMENT_RECORDS);
        assert!(rig.settle());
        assert_eq!(rig.stats().uploads, 1);
        drop(rig);
        fs::remove_dir_all(folder.path().join("catalog")).unwrap();
        let rig = Rig::start(&config, &clock);
        assert!(rig.settle());
        let stats = rig.stats();
        assert_eq!((stats.uploads, stats.uploads_spared, stats.adopted), (0, 1, 2));
        assert_eq!(rig.readable(0..200).len(), 26 + 14);
        rig.assert_sound();
    }
}

#[test]
fn objects_leave_after_their_own_retention_or_for_their_bound() {
    for place in Place::all() {
        let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
        let bounded = ObjectConfig { bytes_max: 3 << 16, ..place.config() };
        let config = config(&folder, bounded);
        let rig = remote_only(&config, &clock, None);
        // The third fits, the fourth takes the place of the first.
        rig.write(101..101 + 2 * SEGMENT_RECORDS);
        assert!(rig.settle());
        let stats = rig.stats();
        assert_eq!((stats.uploads, stats.dropped, stats.objects), (4, 1, 3));
        assert_eq!(rig.readable(0..26), (13..26).collect::<Vec<u64>>());
        clock.advance(Duration::from_secs(300));
        // The second one, and then none is left that lies on no drive.
        rig.write(200..200 + 2 * SEGMENT_RECORDS);
        assert!(rig.settle());
        let stats = rig.stats();
        assert_eq!((stats.uploads, stats.dropped, stats.objects), (5, 2, 3));
        assert!(0 < stats.uploads_no_room);
        assert!(rig.readable(0..26).is_empty());
        assert_eq!(rig.readable(100..300).len(), 27 + 26, "the drive keeps what it has");
        clock.advance(Duration::from_secs(3_601));
        assert!(rig.settle());
        assert_eq!((rig.stats().expired, rig.stats().objects), (3, 0));
        assert!(place.objects().is_empty());
        rig.assert_sound();
    }
}

#[test]
fn an_eviction_deletes_the_objects_too() {
    for place in Place::all() {
        let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
        let config = config(&folder, place.config());
        let rig = remote_only(&config, &clock, None);
        rig.write(101..101 + SEGMENT_RECORDS);
        assert!(rig.settle());
        let _changes = told(&rig);
        assert_eq!(rig.tier.evict_all(), 26 + 14);
        assert!(rig.readable(0..200).is_empty());
        assert!(rig.settle());
        assert_eq!((rig.stats().deleted, rig.stats().objects), (3, 0));
        assert!(place.objects().is_empty());
        assert_eq!(told(&rig), [removed((0..26).chain(100..114))]);
        rig.assert_sound();
    }
}

#[test]
fn without_the_object_store_its_names_leave_and_with_it_they_are_back() {
    let place = Place::mounted();
    let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
    let on = config(&folder, place.config());
    drop(remote_only(&on, &clock, None));
    let off = DiskConfig { object: ObjectConfig::default(), ..on.clone() };
    let rig = Rig::start(&off, &clock);
    assert_eq!(rig.readable(0..200), [100]);
    assert!(rig.settle(), "there is nothing to wait for");
    drop(rig);
    let rig = Rig::start(&on, &clock);
    assert!(rig.settle());
    assert_eq!(rig.readable(0..200).len(), 27);
}

#[test]
fn a_block_that_is_written_again_is_read_from_the_drive() {
    let place = Place::mounted();
    let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
    let rig = remote_only(&config(&folder, place.config()), &clock, None);
    rig.tier.keep(put(crate::testing::store(&rig.pool, 5)), usize::MAX);
    assert!(rig.tier.flush(super::WAIT));
    assert_eq!((rig.below(5), rig.below(6)), (Some(Below::Drive), Some(Below::Objects)));
    assert_eq!(rig.readable([5, 6]), [5, 6]);
    assert_eq!((rig.stats().read, rig.tier.stats().read), (1, 1));
}

#[test]
fn tools_tell_objects_from_files_and_have_them_deleted() {
    let place = Place::mounted();
    let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
    let config = config(&folder, place.config());
    let rig = remote_only(&config, &clock, None);
    rig.write(101..101 + SEGMENT_RECORDS);
    assert!(rig.settle());
    drop(rig);
    let tool = Exclusive::lock(folder.path()).unwrap();
    let objects = tool.survey().objects().unwrap();
    let on_drive: Vec<bool> = objects.iter().map(|object| object.on_drive).collect();
    assert_eq!(on_drive, [false, false, true]);
    assert_eq!((objects[0].records, objects[0].bytes), (13, 1 << 16));
    let CatalogState::Compared(check) = tool.check_catalog().unwrap() else { panic!("no catalog") };
    assert_eq!((check.differences(), check.segments), (0, 1), "objects are no missing files");
    assert_eq!(tool.doom_objects(&[objects[0].number, 77]).unwrap(), 13);
    // A copied segment without its file lies in the object store alone.
    assert!(0 < tool.remove(objects[2].number).unwrap());
    drop(tool);
    let rig = Rig::start(&config, &clock);
    assert!(rig.settle());
    assert_eq!((rig.stats().deleted, rig.stats().objects_remote_only), (1, 2));
    assert_eq!(rig.readable(0..200).len(), 13 + 14);
    rig.assert_sound();
    drop(rig);
    let tool = Exclusive::lock(folder.path()).unwrap();
    let blocks = tool.rebuild_catalog().unwrap().blocks;
    assert_eq!(blocks, 1, "what the files have");
    drop(tool);
    let rig = Rig::start(&config, &clock);
    assert!(rig.settle());
    assert_eq!((rig.stats().adopted, rig.stats().uploads), (2, 0));
    assert_eq!(rig.readable(0..200).len(), 13 + 14);
}
