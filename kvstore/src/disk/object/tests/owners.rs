//! Tenants and the object store: who was evicted does not come back from there, and what is encrypted needs its key there too.

use std::fs;
use std::sync::Arc;

use shared::{ManualClock, TenantTag};

use super::{Place, Rig, SEGMENT_RECORDS, WAIT, config};
use crate::disk::tests::Folder;
use crate::disk::{Below, DiskConfig, Put};
use crate::testing::store;

const ONE: TenantTag = TenantTag(1);
const TWO: TenantTag = TenantTag(2);

/// Blocks 0..13 of the one tenant and 13..26 of the other one.
fn write_both(rig: &Rig) {
    for number in 0..2 * SEGMENT_RECORDS {
        let tenant = if number < SEGMENT_RECORDS { ONE } else { TWO };
        let block = store(&rig.pool, number);
        rig.tier.store(Put { block, tenant, ack: None }, usize::MAX);
        assert!(rig.tier.flush(WAIT));
    }
    // Seals the second segment.
    rig.write([99]);
    assert!(rig.settle());
    rig.outlive(100);
    assert_eq!(rig.below(0), Some(Below::Objects));
}

fn all(numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
    numbers.into_iter().collect()
}

#[test]
fn an_evicted_tenant_does_not_come_back_from_the_object_store() {
    for place in Place::all() {
        let (folder, clock) = (Folder::new(), Arc::new(ManualClock::new()));
        let config = config(&folder, place.config());
        let rig = Rig::start(&config, &clock);
        write_both(&rig);
        assert_eq!(rig.readable(0..26), all(0..26));
        assert_eq!(rig.tier.evict_tenant(ONE).unwrap(), 13);
        assert_eq!(rig.readable(0..26), all(13..26));
        drop(rig);
        // The list of objects is read in anew.
        fs::remove_dir_all(folder.path().join("catalog")).unwrap();
        let rig = Rig::start(&config, &clock);
        assert!(rig.settle());
        assert_eq!(rig.readable(0..26), all(13..26));
        assert_eq!(rig.tier.stats().tenants_evicted, 1, "as long as an object holds its bytes");
        rig.assert_sound();
    }
}

#[test]
fn encrypted_blocks_in_the_object_store_need_their_key() {
    for place in Place::all() {
        let (folder, keys, clock) = (Folder::new(), Folder::new(), Arc::new(ManualClock::new()));
        let keys = keys.path().join("keys");
        let config = DiskConfig { tenant_keys: keys.clone(), ..config(&folder, place.config()) };
        let rig = Rig::start(&config, &clock);
        write_both(&rig);
        assert_eq!(rig.readable(0..26), all(0..26));
        drop(rig);
        fs::remove_file(keys.join(format!("{ONE}.key"))).unwrap();
        let rig = Rig::start(&config, &clock);
        assert_eq!(rig.readable(0..26), all(13..26));
        assert_eq!(rig.below(0), None, "what cannot be opened for good is forgotten");
        rig.assert_sound();
    }
}
