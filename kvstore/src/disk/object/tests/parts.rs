//! Uploads in parts, and those that fail on the way.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shared::{BlockName, ManualClock, Random, SlotMemory};

use super::{Below, Faults, ObjectConfig, Place, Rig, SEGMENT_RECORDS, WAIT, config, faulty};
use crate::disk::tests::{Folder, put, wiring};
use crate::disk::{DiskConfig, DiskTier, DiskWiring, segment};
use crate::memory::HostMemory;
use crate::pool::{Pool, PoolConfig, Seal};
use crate::testing::name;

/// Bytes of a large block.
const LARGE: usize = 200_000;

#[test]
fn an_upload_that_fails_is_withdrawn_and_tried_again() {
    for (parts, completions) in [(1, 0), (0, 1), (3, 0)] {
        let (place, faults) = (Place::mounted(), Arc::new(Faults::default()));
        let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
        let config = config(&folder, place.config());
        faults.parts.store(parts, Ordering::SeqCst);
        faults.completions.store(completions, Ordering::SeqCst);
        let rig = Rig::over(&config, &clock, Some(faulty(&place, &faults)));
        rig.write(0..SEGMENT_RECORDS + 1);
        let failures = parts + completions;
        let mut rounds = 0;
        while !rig.settle() {
            rounds += 1;
            assert!(rounds <= failures);
        }
        let stats = rig.stats();
        assert_eq!((stats.uploads, stats.uploads_failed), (1, u64::from(failures)));
        assert_eq!(faults.aborted.load(Ordering::SeqCst), failures);
        assert_eq!((stats.suspended, place.objects().len()), (0, 1));
        rig.outlive(100);
        assert_eq!(rig.readable(0..13).len(), 13);
        let left: Vec<_> = fs::read_dir(place.objects()[0].parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "nothing else stays: {left:?}");
    }
}

#[test]
fn a_segment_that_is_refused_again_and_again_is_given_up() {
    let (place, faults) = (Place::mounted(), Arc::new(Faults::default()));
    let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
    let rig = Rig::over(&config(&folder, place.config()), &clock, Some(faulty(&place, &faults)));
    faults.refusing.store(true, Ordering::SeqCst);
    rig.write(0..SEGMENT_RECORDS + 1);
    let mut rounds = 0;
    while !rig.settle() {
        rounds += 1;
        assert!(rounds <= 10);
    }
    let stats = rig.stats();
    assert_eq!((stats.uploads, stats.uploads_given_up, stats.refused), (0, 1, 5));
    assert_eq!(rig.readable(0..14).len(), 14);
}

#[test]
fn large_segments_go_up_in_parts_and_come_down_in_ranges() {
    for place in Place::all() {
        let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
        let settings = ObjectConfig { part_bytes: 5 << 20, parts_max: 2, ..place.config() };
        let config = DiskConfig {
            bytes_max: 512 << 20,
            segment_bytes: 12 << 20,
            queue_objects_max: 128,
            queue_bytes_max: 64 << 20,
            reads_max: 128,
            ..config(&folder, settings)
        };
        let wiring = DiskWiring { block_bytes: LARGE, ..wiring(&clock) };
        let tier = DiskTier::start(&config, wiring).unwrap();
        let memory = Arc::new(HostMemory::with_slots(80, LARGE).unwrap());
        let region = PoolConfig {
            region: shared::RegionId(1),
            kind: shared::ObjectKind::Block,
            tier: shared::Tier::Host,
        };
        let pool = Pool::new(region, Arc::clone(&memory) as Arc<dyn SlotMemory>);
        let names: Vec<BlockName> = (0..70).map(name).collect();
        for (number, name) in (0..).zip(&names) {
            let mut slot = pool.reserve(1).unwrap().pop().unwrap();
            slot.write(&mut |bytes| bytes.copy_from_slice(&large(number)));
            let bytes = u32::try_from(LARGE).unwrap();
            tier.store(put(pool.seal(slot, Seal { name: *name, exact: true, bytes })), usize::MAX);
        }
        assert!(tier.flush(WAIT) && tier.settle_objects(WAIT));
        let stats = tier.stats().objects.unwrap();
        assert_eq!((stats.uploads, stats.uploads_failed), (1, 0));
        let file = fs::read(segment::path(folder.path(), 1)).unwrap();
        assert!(10 << 20 < file.len(), "three parts");
        assert!(fs::read(&place.objects()[0]).unwrap() == file);
        clock.advance(super::RETENTION + Duration::from_secs(1));
        tier.keep(put(pool.hold(name(69)).unwrap()), usize::MAX);
        assert!(tier.flush(WAIT));
        let far = tier.places(&names).iter().filter(|at| **at == Some(Below::Objects)).count();
        let _evicted = pool.evict_all();
        // All at once, out of order.
        let (done, answers) = crossbeam_channel::bounded(128);
        for name in names[..far].iter().rev() {
            let target = pool.reserve(1).unwrap().pop().unwrap();
            let read = crate::disk::DiskRead { name: *name, target };
            tier.read_object(read, &done).unwrap();
        }
        for _ in 0..far {
            let answer = crate::testing::next(&answers);
            assert!(answer.result.is_ok());
            let number = names.iter().position(|name| *name == answer.name).unwrap();
            let expected = large(u64::try_from(number).unwrap());
            let mut target = answer.target;
            target.write(&mut |bytes| assert!(*bytes == *expected));
        }
        let stats = tier.stats().objects.unwrap();
        assert_eq!(stats.read, u64::try_from(far).unwrap());
        assert!(stats.gets < stats.read, "{} reads for {} blocks", stats.gets, stats.read);
    }
}

fn large(number: u64) -> Vec<u8> {
    let mut generator = Random::new(number);
    (0..LARGE / 8).flat_map(|_| generator.word().to_le_bytes()).collect()
}
