//! The host tier with a drive and an object store below it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shared::{Brought, Miss, OfferOutcome};

use super::disk::{ask, fetch, keys, settled};
use super::{Rig, config};
use crate::disk::object_tests::{Faults, RETENTION, Remote};
use crate::disk::{Below, DiskTier};
use crate::testing::{name, next};

const WAIT: Duration = Duration::from_secs(20);

/// A host tier with four slots; blocks 0..13 lie in the object store alone, block 50 on the drive.
fn over(remote: &Remote) -> (Rig, Arc<DiskTier>) {
    let disk = Arc::new(remote.start());
    let rig = Rig::over(Some(Arc::clone(&disk)), config(), |transport| transport);
    let store = |number| {
        let held = rig.block(number);
        assert_eq!(rig.offer(&[held.descriptor()]), [OfferOutcome::Stored]);
        assert!(disk.flush(WAIT));
    };
    (0..14).for_each(store);
    assert!(disk.settle_objects(WAIT));
    remote.clock.advance(RETENTION + Duration::from_secs(1));
    store(50);
    let names: Vec<_> = [0, 12, 13, 50].map(name).to_vec();
    let places = disk.places(&names);
    assert_eq!(places, [Some(Below::Objects), Some(Below::Objects), None, Some(Below::Drive)]);
    let _evicted = rig.tier.evict_all();
    (rig, disk)
}

#[test]
fn blocks_come_from_the_object_store_bit_for_bit_and_go_to_the_drive_again() {
    let remote = Remote::new();
    let (rig, disk) = over(&remote);
    let (ticket, found) = rig.locate(&keys([0, 1, 13, 50]));
    assert_eq!(fetch(&rig, &found), [Some(0), Some(1), None, Some(50)]);
    drop(ticket);
    // They were old, so that the hits wrote them again; until that is done their slots are held.
    settled(&rig);
    assert!(disk.flush(WAIT));
    rig.assert_at_rest();
    let stats = rig.tier.stats();
    assert_eq!((stats.onboarded, stats.object_too_slow, stats.disk_too_slow), (3, 0, 0));
    let objects = stats.disk.unwrap().objects.unwrap();
    // Neighbours come together when both wait before the first is begun (`object::tests::parts`).
    assert!(objects.read == 2 && objects.gets <= 2, "{objects:?}");
    assert_eq!(disk.places(&[name(0), name(1)]), [Some(Below::Drive); 2]);
}

/// Where blocks 0 to 2 (object store), 13 (nowhere) and 50 (drive) come from: once from below, then from memory.
#[test]
fn an_answer_says_what_was_brought_from_where() {
    let remote = Remote::new();
    let (rig, _disk) = over(&remote);
    let cases: [(&[u64], u32, u32); 5] =
        [(&[13], 0, 0), (&[50, 13], 1, 0), (&[50, 0], 0, 1), (&[50, 0], 0, 0), (&[1, 2, 0], 0, 2)];
    for (asked, disk, remote) in cases {
        let (ticket, events) = ask(&rig, &keys(asked.iter().copied()));
        assert_eq!(next(&events).brought, Brought { disk, remote }, "{asked:?}");
        drop(ticket);
    }
}

#[test]
fn a_slow_object_store_makes_no_hit_slower_than_a_miss() {
    let remote = Remote::new();
    let (rig, disk) = over(&remote);
    let faults: &Arc<Faults> = &remote.faults;
    faults.on_get(&remote.clock, Duration::from_secs(3));
    faults.hanging.store(true, Ordering::SeqCst);
    // The first one learns it. Its answer comes when the read ends, which the clock of the lookup does not measure.
    let (_first, events) = ask(&rig, &keys([0]));
    assert_eq!(next(&events).found, [Err(Miss::TooSlow)]);
    faults.hanging.store(false, Ordering::SeqCst);
    faults.on_get(&remote.clock, Duration::ZERO);
    let (_second, events) = ask(&rig, &keys([1, 50]));
    let found = next(&events).found;
    assert_eq!(found[0], Err(Miss::TooSlow));
    assert!(found[1].is_ok(), "the drive goes on");
    assert_eq!(rig.tier.stats().object_too_slow, 1, "answered at once");
    // One is tried now and then, and when it is fast again that is noticed. What was tried lies on the drive then.
    let is_fast = || {
        let load = disk.object_load().unwrap();
        load.time_for(1, disk.read_bytes()) < Duration::from_millis(200)
    };
    let is_idle = || disk.object_load().unwrap().queued_reads == 0;
    for number in 2..12 {
        while !is_idle() {
            std::thread::yield_now();
        }
        if is_fast() {
            break;
        }
        rig.clock.advance(Duration::from_secs(1));
        let (_ticket, events) = ask(&rig, &keys([number]));
        assert_eq!(next(&events).found, [Err(Miss::TooSlow)]);
    }
    let (_ticket, found) = rig.locate(&keys([12]));
    assert_eq!(fetch(&rig, &found), [Some(12)]);
}

#[test]
fn an_object_store_that_is_down_makes_misses_at_once() {
    let remote = Remote::new();
    let (rig, disk) = over(&remote);
    remote.faults.down.store(true, Ordering::SeqCst);
    let (_ticket, events) = ask(&rig, &keys([0, 50]));
    let found = next(&events).found;
    assert_eq!((found[0], found[1].is_ok()), (Err(Miss::TooSlow), true));
    assert_eq!(disk.object_load(), None);
    let (_ticket, events) = ask(&rig, &keys([1]));
    assert_eq!(next(&events).found, [Err(Miss::TooSlow)]);
    assert_eq!(rig.tier.stats().object_too_slow, 1, "nothing was asked for");
    remote.faults.down.store(false, Ordering::SeqCst);
    remote.clock.advance(Duration::from_secs(2));
    let (_ticket, found) = rig.locate(&keys([0, 1]));
    assert_eq!(fetch(&rig, &found), [Some(0), Some(1)]);
}
