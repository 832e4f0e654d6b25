//! Why a lookup does not find what was stored here before.

use std::sync::Arc;
use std::time::Duration;

use shared::{ManualClock, Miss, OfferOutcome};

use super::disk::ask;
use super::{Rig, config, key, window_key};
use crate::disk::DiskTier;
use crate::disk::tests::{Folder, config as disk_config, flip, wiring};
use crate::host::BlockPlace;
use crate::testing::next;

const FLUSH: Duration = Duration::from_secs(20);

/// What a lookup says of each, when the tier holds nothing of it any more.
fn reasons(rig: &Rig, numbers: impl IntoIterator<Item = u64>) -> Vec<Result<u64, Miss>> {
    let numbers: Vec<u64> = numbers.into_iter().collect();
    let keys: Vec<_> = numbers.iter().copied().map(key).collect();
    let (ticket, events) = ask(rig, &keys);
    let found = next(&events).found;
    drop(ticket);
    rig.settle();
    assert!(rig.tier.disk.as_ref().is_none_or(|disk| disk.flush(FLUSH)));
    numbers.into_iter().zip(found).map(|(number, found)| found.map(|_| number)).collect()
}

fn store(rig: &Rig, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        let held = rig.block(number);
        assert_eq!(rig.offer(&[held.descriptor()]), [OfferOutcome::Stored]);
    }
}

#[test]
fn without_a_drive_a_block_was_never_stored_or_is_evicted() {
    let rig = Rig::new();
    store(&rig, 0..2);
    assert_eq!(reasons(&rig, 0..3), [Ok(0), Ok(1), Err(Miss::NeverStored)]);
    assert_eq!(rig.tier.evict_all(), 2);
    assert_eq!(reasons(&rig, 0..3), [Miss::Evicted, Miss::Evicted, Miss::NeverStored].map(Err));
    let (_ticket, events) = ask(&rig, &[window_key(0)]);
    assert_eq!(next(&events).found, [Err(Miss::NeverStored)], "a window has the block's name");
}

#[test]
fn with_a_drive_a_block_is_refused_by_the_budget_expired_or_damaged() {
    let folder = Folder::new();
    let disk = DiskTier::start(&disk_config(&folder), wiring(&Arc::new(ManualClock::new())));
    let disk = Arc::new(disk.unwrap());
    let rig = Rig::over(Some(Arc::clone(&disk)), config(), |transport| transport);
    let mut numbers = 0..;
    while disk.stats().dropped_budget == 0 {
        store(&rig, numbers.next());
        assert!(disk.flush(FLUSH));
    }
    let refused = numbers.start - 1;
    assert!(0 < rig.tier.evict_all());
    let found = reasons(&rig, [0, refused, refused + 1]);
    assert_eq!(found, [Ok(0), Err(Miss::NotAdmitted), Err(Miss::NeverStored)]);
    assert!(0 < rig.tier.evict_all());
    flip(&folder, 1, 4_096 + 130);
    for _ in 0..2 {
        assert_eq!(reasons(&rig, [0, 1]), [Err(Miss::Damaged), Ok(1)]);
    }
    assert!(0 < rig.tier.evict_all());
    assert!(0 < disk.evict_all());
    assert_eq!(reasons(&rig, [0, 1]), [Miss::Damaged, Miss::Expired].map(Err));
}

#[test]
fn places_are_told_without_bringing_anything_up() {
    let folder = Folder::new();
    let disk = DiskTier::start(&disk_config(&folder), wiring(&Arc::new(ManualClock::new())));
    let disk = Arc::new(disk.unwrap());
    let rig = Rig::over(Some(Arc::clone(&disk)), config(), |transport| transport);
    store(&rig, 0..2);
    assert!(disk.flush(FLUSH));
    assert_eq!(rig.tier.evict_all(), 2);
    assert_eq!(reasons(&rig, 1..2), [Ok(1)]);
    let before = rig.tier.stats();
    for _ in 0..2 {
        let (told, places) = crossbeam_channel::bounded(1);
        let names = (0..3).map(|number| key(number).name).collect();
        rig.tier.places(names, Box::new(move |places| told.send(places).unwrap()));
        let missing = BlockPlace::Missing(Miss::NeverStored);
        assert_eq!(next(&places), [BlockPlace::Drive, BlockPlace::Memory, missing]);
    }
    assert_eq!(rig.tier.stats(), before, "nothing was pinned, read or counted");
}
