//! Two tenants in one store over real files: what one may keep, loses and hides concerns the other nowhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use shared::{CacheChange, Clock, Durability, ManualClock, OfferOutcome, TenantTag, Tier};

use super::support::{Rig, block, config, version_of};
use crate::disk::survey::{
    CatalogState, Checked, Exclusive, Finding, Survey, Usage, Watcher, fsck, tenants,
};
use crate::disk::tests::{Folder, wiring};
use crate::disk::{DiskConfig, DiskTier, DiskWiring};
use crate::tenants::{TenantQuota, TenantQuotas};
use crate::testing::{SLOT_BYTES, name};

const ONE: TenantTag = TenantTag(0x1111);
const TWO: TenantTag = TenantTag(0x2222);
const FLUSH: Duration = Duration::from_secs(20);
/// Records of a segment of this test.
const SEGMENT_RECORDS: u64 = 13;

struct Store {
    rig: Rig,
    disk: Arc<DiskTier>,
    clock: Arc<ManualClock>,
}

/// A store over a folder, so many seconds after the clock's beginning.
fn open(folder: &Folder, keys: Option<&Path>, quotas: TenantQuotas, second: u64) -> Store {
    let clock = Arc::new(ManualClock::new());
    clock.advance(Duration::from_secs(second));
    let disk = DiskConfig {
        bytes_max: 1 << 28,
        segment_bytes: 1 << 16,
        sync_ms: 0,
        onboard_ms_max: 60_000,
        scrub_mib_per_s: 0,
        tenant_keys: keys.map_or_else(PathBuf::new, Path::to_owned),
        ..DiskConfig::in_folder(folder.path().to_owned())
    };
    let quotas = Arc::new(quotas);
    let wiring = DiskWiring { quotas: Arc::clone(&quotas), ..wiring(&clock) };
    let disk = Arc::new(DiskTier::start(&disk, wiring).unwrap());
    let rig = Rig::bounded(Some(Arc::clone(&disk)), config(), quotas, |transport| transport);
    Store { rig, disk, clock }
}

fn unbounded() -> TenantQuotas {
    TenantQuotas::default()
}

fn bytes(blocks: u64) -> u64 {
    blocks * u64::try_from(SLOT_BYTES).unwrap()
}

impl Store {
    /// Stores blocks one after the other and waits until each is durable, if it is taken at all.
    fn write(&self, tenant: TenantTag, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            assert_eq!(
                self.rig.store_for(tenant, Durability::Memory, [number]),
                [OfferOutcome::Stored],
                "{number}"
            );
            assert!(self.disk.flush(FLUSH));
        }
    }

    /// Which blocks are found on disk with their right bytes; nothing is in memory.
    fn on_disk(&self, numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut found = Vec::new();
        for number in numbers {
            let _evicted = self.rig.tier.evict_all();
            found.extend(self.rig.versions([number]).into_iter().map(|(number, _)| number));
            assert!(self.disk.flush(FLUSH));
        }
        let _evicted = self.rig.tier.evict_all();
        found
    }

    fn in_memory(&self, numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let blocks = self.rig.tier.blocks();
        numbers.into_iter().filter(|number| blocks.contains(name(*number))).collect()
    }
}

fn all(numbers: std::ops::Range<u64>) -> Vec<u64> {
    numbers.collect()
}

#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Watcher for Findings {
    fn read(&mut self, _: u64) {}

    fn found(&mut self, finding: &Finding) {
        self.0.push(finding.clone());
    }
}

/// The files are whole, and the catalog agrees with them.
fn check_files(folder: &Folder) -> Checked {
    let exclusive = Exclusive::lock(folder.path()).unwrap();
    let mut findings = Findings::default();
    let checked = fsck(exclusive.survey(), &mut findings);
    assert_eq!(checked.damaged, 0, "{findings:?}");
    if let CatalogState::Compared(check) = exclusive.check_catalog().unwrap() {
        assert_eq!(check.differences(), 0, "{check:?}");
    }
    checked
}

#[test]
fn a_tenant_at_its_quota_costs_the_other_nothing() {
    let folder = Folder::new();
    let quota = TenantQuota { disk_bytes_max: bytes(5), host_bytes_max: bytes(3) };
    let quotas = TenantQuotas { named: [(ONE, quota)].into(), ..unbounded() };
    let store = open(&folder, None, quotas, 100);
    store.write(TWO, 100..108);
    store.write(ONE, 0..8);
    assert_eq!(store.in_memory(0..8), [5, 6, 7], "its own oldest left");
    assert_eq!(store.in_memory(100..108), all(100..108));
    assert_eq!(store.rig.tier.tenant_bytes(ONE), bytes(3));
    let stats = store.rig.tier.stats();
    let disk = stats.disk.unwrap();
    assert_eq!((disk.dropped_quota, disk.dropped_budget, stats.tenants), (3, 0, 2));
    assert_eq!(store.on_disk(0..8), all(0..5), "what came first stays");
    assert_eq!(store.on_disk(100..108), all(100..108));
    // Pinned blocks stay: what comes is dropped then.
    store.write(ONE, 5..8);
    let (_pins, found) = store.rig.locate(&[block(5), block(6), block(7)]);
    assert!(found.iter().all(Option::is_some));
    assert_eq!(store.rig.store_for(ONE, Durability::Memory, [9]), [OfferOutcome::Dropped]);
    assert_eq!(store.rig.store_for(TWO, Durability::Memory, [109]), [OfferOutcome::Stored]);
    assert_eq!(store.rig.tier.stats().dropped_quota, 1);
}

#[test]
fn an_evicted_tenant_never_comes_back_whatever_the_catalog_is_made_from() {
    let folder = Folder::new();
    let (ones, twos) = (0..SEGMENT_RECORDS + 4, 100..100 + SEGMENT_RECORDS + 4);
    {
        let store = open(&folder, None, unbounded(), 100);
        for (one, two) in ones.clone().zip(twos.clone()) {
            store.write(ONE, [one]);
            store.write(TWO, [two]);
        }
        let _told = store.rig.tier.drain_changes();
        let evicted = store.rig.tier.evict_tenant(ONE).unwrap();
        assert!(usize::try_from(ones.end).unwrap() <= evicted, "{evicted}");
        let told: Vec<CacheChange> = store.rig.tier.drain_changes();
        let names = ones.clone().filter(|number| block(*number).kind.is_told()).map(name);
        let gone = CacheChange::Removed { tier: Tier::Disk, names: names.collect() };
        assert!(told.contains(&gone), "{told:?}");
        assert_eq!(store.in_memory(ones.clone()), [0_u64; 0]);
        assert_eq!(store.on_disk(ones.clone()), [0_u64; 0]);
        assert_eq!(store.on_disk(twos.clone()), all(twos.clone()));
        assert_eq!(store.rig.tier.tenant_bytes(ONE), 0);
        // In the same second nothing of it goes to disk, later it does.
        assert_eq!(store.rig.store_for(ONE, Durability::Memory, [0]), [OfferOutcome::Stored]);
        assert!(store.disk.flush(FLUSH));
        assert_eq!(store.disk.stats().dropped_evicted, 1);
        let _evicted = store.rig.tier.evict_all();
        store.clock.advance(Duration::from_secs(1));
        store.write(ONE, [1]);
        assert_eq!(store.on_disk(ones.clone()), [1]);
    }
    let check = || {
        let store = open(&folder, None, unbounded(), 102);
        assert_eq!(store.on_disk(ones.clone()), [1], "written after the eviction");
        assert_eq!(store.on_disk(twos.clone()), all(twos.clone()));
        assert_eq!(store.disk.stats().tenants_evicted, 1);
        drop(store);
        check_files(&folder);
    };
    check();
    Exclusive::lock(folder.path()).unwrap().rebuild_catalog().unwrap();
    check();
    fs::remove_dir_all(folder.path().join("catalog")).unwrap();
    check();
    let survey = Survey::open(folder.path()).unwrap();
    let usage = Usage::of(&survey, 2_000_000_000);
    assert_eq!((usage.evicted_blocks, usage.live_blocks), (ones.end, 1 + twos.end - 100));
    let held = tenants(&survey, TenantTag::NONE, 10);
    assert_eq!(
        held.iter().map(|(tag, held)| (*tag, held.blocks)).collect::<Vec<_>>(),
        [(ONE, 1), (TWO, twos.end - 100)]
    );
    assert_eq!(tenants(&survey, TenantTag(ONE.0 + 1), 10).keys().collect::<Vec<_>>(), [&TWO]);
    assert_eq!(tenants(&survey, TenantTag::NONE, 1)[&ONE].blocks, 1);
    drop(survey);
    // The copy in the catalog stands in for a list that was damaged.
    fs::write(folder.path().join("evicted"), b"damaged").unwrap();
    let store = open(&folder, None, unbounded(), 102);
    assert_eq!(store.on_disk(ones), [1]);
}

#[test]
fn the_list_of_evicted_tenants_ends_with_their_segments() {
    let folder = Folder::new();
    let store = open(&folder, None, unbounded(), 1_000);
    store.write(ONE, 0..3);
    store.rig.tier.evict_tenant(ONE).unwrap();
    drop(store);
    // Numbers of segments go on; all that is there by then is younger than the eviction.
    let week = 1_000 + 7 * 24 * 3_600;
    let store = open(&folder, None, unbounded(), week);
    store.write(TWO, 100..100 + 3 * SEGMENT_RECORDS);
    drop(store);
    let store = open(&folder, None, unbounded(), week + 7 * 24 * 3_600);
    assert_eq!(store.disk.stats().tenants_evicted, 0);
}

#[test]
fn a_stopped_store_can_lose_a_tenant_too() {
    let folder = Folder::new();
    let keys = folder.path().join("keys");
    let now = {
        let store = open(&folder, Some(&keys), unbounded(), 100);
        store.write(ONE, 0..4);
        store.write(TWO, 100..104);
        store.clock.unix_seconds()
    };
    let exclusive = Exclusive::lock(folder.path()).unwrap();
    exclusive.evict_tenant(ONE, now, Some(&keys)).unwrap();
    drop(exclusive);
    check_files(&folder);
    assert!(!keys.join(format!("{ONE}.key")).exists() && keys.join(format!("{TWO}.key")).exists());
    let store = open(&folder, Some(&keys), unbounded(), 101);
    assert_eq!((store.on_disk(0..4), store.on_disk(100..104)), (vec![], all(100..104)));
    drop(store);
    check_files(&folder);
}

/// The segment files' bytes.
fn segments(folder: &Folder) -> Vec<(PathBuf, Vec<u8>)> {
    let survey = Survey::open(folder.path()).unwrap();
    let paths = survey.numbers().iter().map(|number| survey.path(*number));
    paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

#[test]
fn encrypted_blocks_come_back_and_only_with_their_key() {
    let folder = Folder::new();
    let keys = folder.path().join("keys");
    {
        let store = open(&folder, Some(&keys), unbounded(), 100);
        store.write(ONE, 0..6);
        store.write(TWO, 100..103);
        assert_eq!(store.on_disk(0..6), all(0..6));
        assert_eq!(store.disk.stats().keys_loaded, 2);
    }
    for (path, bytes) in segments(&folder) {
        for number in 0..6 {
            let payload = version_of(name(number), 0);
            assert_eq!(find(&bytes, &payload[..16]), None, "{number} in {}", path.display());
        }
    }
    assert_eq!(check_files(&folder).intact, 9, "checked without keys");
    let store = open(&folder, Some(&keys), unbounded(), 100);
    assert_eq!(store.on_disk(0..6), all(0..6));
    drop(store);
    // Without keys they are there, and not found; plain blocks come beside them.
    let plain = open(&folder, None, unbounded(), 100);
    assert_eq!(plain.on_disk(0..6), [0_u64; 0]);
    plain.write(ONE, 6..8);
    drop(plain);
    let store = open(&folder, Some(&keys), unbounded(), 100);
    assert_eq!(store.on_disk(0..8), all(0..8));
    drop(store);
    fs::remove_file(keys.join(format!("{ONE}.key"))).unwrap();
    let store = open(&folder, Some(&keys), unbounded(), 100);
    assert_eq!(store.on_disk(0..8), [6, 7], "those that are plain");
    assert_eq!(store.on_disk(100..103), all(100..103));
    let stats = store.disk.stats();
    assert_eq!((stats.read_keyless, stats.corrupt, stats.read_errors), (6, 0, 0));
    drop(store);
    check_files(&folder);
}

#[test]
fn encrypted_bytes_that_were_changed_or_exchanged_are_misses() {
    let folder = Folder::new();
    let keys = folder.path().join("keys");
    {
        let store = open(&folder, Some(&keys), unbounded(), 100);
        store.write(ONE, 1..5);
    }
    // Record headers carry a checksum of their own, so an attacker would make a new one; so does this test.
    let (path, mut file) = segments(&folder).pop().unwrap();
    let page = 4_096;
    let records: Vec<usize> =
        (1..5).map(|number| find(&file, &name(number).0).unwrap() / page * page).collect();
    // Two payloads change places, each with its checksum, nonce and tag.
    let (first, second) = (records[0], records[1]);
    for range in [24..28, 72..100, 128..128 + SLOT_BYTES] {
        for at in range {
            file.swap(first + at, second + at);
        }
    }
    // One bit of a payload, with a checksum that agrees.
    file[records[2] + 130] ^= 1;
    let payload = records[2] + 128..records[2] + 128 + SLOT_BYTES;
    let checksum = crc32c::crc32c(&file[payload]).to_le_bytes();
    file[records[2] + 24..records[2] + 28].copy_from_slice(&checksum);
    for record in &records {
        let checksum = crc32c::crc32c(&file[*record..record + 124]).to_le_bytes();
        file[record + 124..record + 128].copy_from_slice(&checksum);
    }
    fs::write(&path, file).unwrap();
    // The catalog would notice by the checksums alone; made anew it believes them.
    fs::remove_dir_all(folder.path().join("catalog")).unwrap();
    let store = open(&folder, Some(&keys), unbounded(), 100);
    assert_eq!(store.on_disk(1..5), [4]);
    assert_eq!(store.disk.stats().corrupt, 3);
    assert_eq!(store.on_disk(1..5), [4], "forgotten");
    assert_eq!(store.disk.stats().corrupt, 3);
}
