//! Objects that are damaged, cut or gone, and stores that do not answer.

use std::fs::{self, OpenOptions};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shared::ManualClock;

use super::{
    Faults, ObjectConfig, Place, Rig, SEGMENT_RECORDS, config, empty, faulty, remote_only,
};
use crate::disk::stats::DiskReadError;
use crate::disk::tests::Folder;

/// Where the record of a block lies: each takes a page, behind that of the header.
fn offset(block: u64) -> usize {
    usize::try_from((1 + block % SEGMENT_RECORDS) * 4_096).unwrap()
}

#[test]
fn damage_of_an_object_costs_what_lies_in_it() {
    for place in Place::all() {
        let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
        let config = config(&folder, place.config());
        let rig = remote_only(&config, &clock, None);
        let objects = place.objects();
        // A bit of the payload of one block, and of the header of another one.
        let mut bytes = fs::read(&objects[0]).unwrap();
        bytes[offset(3) + 130] ^= 4;
        bytes[offset(4) + 50] ^= 4;
        fs::write(&objects[0], bytes).unwrap();
        let intact: Vec<u64> = (0..13).filter(|block| ![3, 4].contains(block)).collect();
        assert_eq!(rig.read(3), Err(DiskReadError::Corrupt));
        assert_eq!(rig.read(3), Err(DiskReadError::Gone), "it is not asked for again");
        assert_eq!(rig.readable(0..13), intact);
        assert_eq!((rig.stats().corrupt, rig.stats().suspended), (2, 0));
        // Cut in the middle of the seventh record.
        let file = OpenOptions::new().write(true).open(&objects[1]).unwrap();
        file.set_len(u64::try_from(offset(6)).unwrap() + 100).unwrap();
        assert_eq!(rig.readable(13..26), (13..19).collect::<Vec<u64>>());
        assert_eq!((rig.stats().corrupt, rig.stats().suspended), (2 + 7, 0));
        // Gone.
        fs::remove_file(&objects[1]).unwrap();
        assert_eq!(rig.readable(0..26), intact);
        assert_eq!(rig.stats().suspended, 0);
        assert_eq!(rig.readable([100]), [100], "the drive goes on");
        rig.write([101]);
        rig.assert_sound();
        drop(rig);
        // What is left of the first one is read in again, whatever was forgotten; a start finds that the second is gone.
        empty(&folder);
        clock.advance(Duration::from_secs(1));
        let rig = Rig::start(&config, &clock);
        assert!(rig.settle());
        assert_eq!(rig.readable(0..26), intact);
    }
}

#[test]
fn an_object_that_is_no_segment_is_deleted_at_the_start() {
    for place in Place::all() {
        let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
        let config = config(&folder, place.config());
        drop(remote_only(&config, &clock, None));
        let objects = place.objects();
        let whole = fs::read(&objects[0]).unwrap();
        // Of the last page, of the table and of the header; each in turn.
        let places = [whole.len() - 4_096, whole.len() - 2 * 4_096 + 200, 20];
        for (round, at) in places.into_iter().enumerate() {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            fs::create_dir_all(objects[0].parent().unwrap()).unwrap();
            fs::write(&objects[0], bytes).unwrap();
            empty(&folder);
            clock.advance(Duration::from_secs(1));
            let rig = Rig::start(&config, &clock);
            assert!(rig.settle(), "{round}");
            assert_eq!((rig.stats().adopted, rig.stats().deleted), (1, 1), "{round}");
            assert_eq!(rig.readable(0..26), (13..26).collect::<Vec<u64>>());
            assert!(!objects[0].exists());
        }
    }
}

#[test]
fn objects_that_vanished_leave_the_catalog_at_the_start() {
    for place in Place::all() {
        let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
        let config = config(&folder, place.config());
        let rig = remote_only(&config, &clock, None);
        rig.write(101..101 + SEGMENT_RECORDS);
        assert!(rig.settle());
        drop(rig);
        // One that lies nowhere else, and one that lies on the drive.
        let objects = place.objects();
        fs::remove_file(&objects[0]).unwrap();
        fs::remove_file(&objects[2]).unwrap();
        let rig = Rig::start(&config, &clock);
        assert!(rig.settle());
        assert_eq!((rig.stats().uploads, rig.stats().objects), (1, 2), "it is uploaded again");
        assert_eq!(rig.readable(0..26), (13..26).collect::<Vec<u64>>());
        assert!(objects[2].exists());
        rig.assert_sound();
    }
}

#[test]
fn a_server_that_is_gone_costs_misses_and_nothing_else() {
    let mut place = Place::served();
    let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
    let settings = ObjectConfig { retries_max: 0, ..place.config() };
    let config = config(&folder, settings);
    let rig = remote_only(&config, &clock, None);
    place.server = None;
    assert_eq!(rig.read(0), Err(DiskReadError::Unanswered));
    assert_eq!((rig.stats().suspended, rig.tier.object_load()), (1, None));
    rig.write(101..101 + SEGMENT_RECORDS);
    assert!(!rig.settle());
    assert!(1 < rig.stats().unreachable);
    assert_eq!(rig.readable(100..114).len(), 14);
    drop(rig);
    // A start does not wait for it, and what it knows it keeps.
    let rig = Rig::start(&config, &clock);
    assert_eq!(rig.readable(100..114).len(), 14);
    assert!(!rig.settle());
    assert_eq!(rig.read(1), Err(DiskReadError::Unanswered));
    assert!(rig.below(1).is_some(), "it is not forgotten");
    rig.assert_sound();
}

#[test]
fn a_store_that_is_back_is_used_again() {
    let (place, faults) = (Place::mounted(), Arc::new(Faults::default()));
    let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
    let config = config(&folder, place.config());
    let rig = remote_only(&config, &clock, Some(faulty(&place, &faults)));
    faults.down.store(true, Ordering::SeqCst);
    assert_eq!(rig.read(0), Err(DiskReadError::Unanswered));
    assert_eq!(rig.tier.object_load(), None);
    faults.down.store(false, Ordering::SeqCst);
    clock.advance(Duration::from_secs(1));
    assert!(rig.tier.object_load().is_some(), "the pause is over");
    assert_eq!(rig.readable(0..26).len(), 26);
    assert_eq!(rig.stats().suspended, 0);
    assert!(rig.settle());
}

#[test]
fn a_read_that_hangs_ends_in_time_and_makes_the_estimate_grow() {
    let (place, faults) = (Place::mounted(), Arc::new(Faults::default()));
    let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
    let settings = ObjectConfig { read_ms_max: 20, ..place.config() };
    let config = config(&folder, settings);
    let rig = remote_only(&config, &clock, Some(faulty(&place, &faults)));
    let before = rig.tier.object_load().unwrap().time_for(1, 4_096);
    assert!(before < Duration::from_millis(200), "{before:?}");
    faults.hanging.store(true, Ordering::SeqCst);
    faults.on_get(&clock, Duration::from_secs(2));
    assert_eq!(rig.read(0), Err(DiskReadError::Unanswered));
    assert_eq!((rig.stats().late, rig.stats().suspended), (1, 0));
    let after = rig.tier.object_load().unwrap().time_for(1, 4_096);
    assert!(Duration::from_millis(200) < after, "{after:?}");
    faults.hanging.store(false, Ordering::SeqCst);
    // The limit is of real time, so that a busy machine may be late once more.
    assert!((0..50).any(|_| rig.readable(0..26).len() == 26));
}
