//! What a put that asks for the disk is answered, over real files. That it survives a kill is shown by [`super::kill`].

use std::sync::Arc;

use shared::{Durability, ManualClock, OfferOutcome, TenantTag};

use super::support::{Rig, config, window};
use crate::disk::io::Drive;
use crate::disk::tests::io::unsyncable;
use crate::disk::tests::{Folder, config as disk_config, wiring};
use crate::disk::{DiskConfig, DiskTier, DiskWiring};
use crate::tenants::{TenantQuota, TenantQuotas};

const NOBODY: TenantTag = TenantTag::NONE;

fn open(config: &DiskConfig, quotas: TenantQuotas) -> (Rig, Arc<DiskTier>) {
    let wiring = DiskWiring { quotas: Arc::new(quotas), ..wiring(&Arc::new(ManualClock::new())) };
    over(DiskTier::start(config, wiring).unwrap())
}

fn over(disk: DiskTier) -> (Rig, Arc<DiskTier>) {
    let disk = Arc::new(disk);
    (Rig::new(Some(Arc::clone(&disk)), config(), |transport| transport), disk)
}

#[test]
fn an_answer_comes_when_the_block_is_synced_and_in_the_catalog() {
    let folder = Folder::new();
    // Nothing is synced for a minute unless somebody waits for it.
    let slow = DiskConfig { sync_ms: 60_000, ..disk_config(&folder) };
    let (rig, disk) = open(&slow, TenantQuotas::default());
    assert_eq!(rig.store_for(NOBODY, Durability::Memory, [0]), [OfferOutcome::Stored]);
    assert_eq!(disk.stats().objects_held, 0, "nobody waited");
    let stored = rig.store_for(NOBODY, Durability::Disk, 1..4);
    assert_eq!(stored, [OfferOutcome::Stored; 3]);
    let stats = disk.stats();
    assert_eq!(stats.objects_held, 4, "with what was written before them");
    assert!(stats.syncs <= 3, "{stats:?}");
    let again = rig.store_for(NOBODY, Durability::Disk, 0..4);
    assert_eq!(again, [OfferOutcome::AlreadyHeld; 4]);
    // One that memory alone has becomes durable when that is asked for.
    assert_eq!(rig.store_for(NOBODY, Durability::Memory, [4]), [OfferOutcome::Stored]);
    assert_eq!(disk.stats().objects_held, 4);
    assert_eq!(rig.store_for(NOBODY, Durability::Disk, [4]), [OfferOutcome::AlreadyHeld]);
    assert_eq!(disk.stats().objects_held, 5);
    let host = rig.tier.stats();
    assert_eq!((host.acknowledged, host.memory_only), (8, 0));
    rig.assert_at_rest();
}

#[test]
fn what_the_disk_does_not_take_is_in_memory_only_and_said_to_be() {
    let memory_only = |rig: &Rig, what: &str| {
        let outcomes = rig.store_for(NOBODY, Durability::Disk, 0..2);
        assert_eq!(outcomes, [OfferOutcome::MemoryOnly; 2], "{what}");
        let again = rig.store_for(NOBODY, Durability::Disk, [0]);
        assert_eq!(again, [OfferOutcome::MemoryOnly], "{what}, again");
        assert_eq!(rig.versions(0..2), [(0, 0), (1, 0)], "{what}");
        assert_eq!(rig.tier.stats().memory_only, 3, "{what}");
        rig.assert_at_rest();
    };
    memory_only(&Rig::new(None, config(), |transport| transport), "no disk");
    let folder = Folder::new();
    let byte = TenantQuota { disk_bytes_max: 1, host_bytes_max: 0 };
    let quotas = TenantQuotas { others: byte, ..TenantQuotas::default() };
    memory_only(&open(&disk_config(&folder), quotas).0, "over its quota");
    let folder = Folder::new();
    let clock = Arc::new(ManualClock::new());
    let drive = |_: &std::path::Path| -> Arc<dyn Drive> { unsyncable() };
    let disk = DiskTier::start_on(&disk_config(&folder), wiring(&clock), drive).unwrap();
    memory_only(&over(disk).0, "an error");
    let folder = Folder::new();
    let (rig, _disk) = open(&disk_config(&folder), TenantQuotas::default());
    let object = rig.compute(window(1), 0);
    let outcome = rig.offer_for(NOBODY, Durability::Disk, &[object.descriptor()]);
    assert_eq!(outcome, [OfferOutcome::MemoryOnly], "a window object");
}
