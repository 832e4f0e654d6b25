//! Embeddings on a drive: over restarts and kills, damaged, encrypted, evicted, and as tools see them.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use shared::{
    CacheChange, CacheQuestion, Durability, ManualClock, Miss, Numerics, ObjectKind, OfferOutcome,
    TenantTag,
};

use super::{PIECE_BYTES, PIECES, Rig, embedding, found_as, put, put_for, read, rows};
use crate::disk::survey::{
    CatalogState, Checked, Exclusive, Finding, Survey, Usage, Watcher, fsck,
};
use crate::disk::tests::Folder;
use crate::disk::{DiskConfig, DiskTier, DiskWiring};
use crate::media::MediaMiss;
use crate::tenants::TenantQuotas;

const FLUSH: Duration = Duration::from_secs(20);
/// What the child is started with besides its own name.
const CHILD: &str = "as-a-store-that-is-killed";
const CHILD_TEST: &str = "media::tests::disk::a_child_stores_embeddings_until_it_is_killed";
const NUMBERS: std::ops::Range<u8> = 1..4;

fn open(folder: &Path, keys: Option<&Path>) -> (Rig, Arc<DiskTier>) {
    let config = DiskConfig {
        bytes_max: 1 << 28,
        segment_bytes: 1 << 16,
        sync_ms: 0,
        onboard_ms_max: 60_000,
        scrub_mib_per_s: 0,
        tenant_keys: keys.map_or_else(PathBuf::new, Path::to_owned),
        ..DiskConfig::in_folder(folder.to_owned())
    };
    let wiring = DiskWiring {
        quotas: Arc::default(),
        block_bytes: PIECE_BYTES,
        layout: [7; 32],
        numerics: Numerics("cpu-exact-1".into()),
        clock: Arc::new(ManualClock::new()),
    };
    let disk = Arc::new(DiskTier::start(&config, wiring).unwrap());
    (Rig::over(Some(Arc::clone(&disk)), TenantQuotas::default()), disk)
}

#[test]
fn a_child_stores_embeddings_until_it_is_killed() {
    // In an ordinary run of the tests there is no parent, so there is nothing to do.
    let mut arguments = env::args().skip_while(|argument| argument != CHILD);
    if arguments.next().is_none() {
        return;
    }
    let mut folder = String::new();
    std::io::stdin().read_line(&mut folder).unwrap();
    let (rig, _disk) = open(Path::new(folder.trim()), None);
    for number in NUMBERS {
        assert_eq!(put(&rig.client, number, Durability::Disk), OfferOutcome::Stored);
    }
    println!("\nstored");
    // Until the kill.
    let _end = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn what_a_killed_process_stored_is_restored_byte_for_byte() {
    let folder = Folder::new();
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", CHILD_TEST, CHILD, "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut told, format!("{}\n", folder.path().display()).as_bytes())
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let stored = lines.map_while(Result::ok).any(|line| line == "stored");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(stored, "the child stored nothing");
    let (rig, disk) = open(folder.path(), None);
    for number in NUMBERS {
        assert_eq!(read(&rig.client, &embedding(number)), Ok(rows(number)));
    }
    assert_eq!(disk.stats().objects_held, 3 * u64::from(PIECES));
    assert_eq!(rig.tier.stats().onboarded, 3 * u64::from(PIECES));
    rig.assert_at_rest();
}

#[test]
fn encrypted_embeddings_come_back_and_leave_with_their_key() {
    let (folder, keys) = (Folder::new(), Folder::new());
    let tenant = TenantTag(5);
    let keys_folder = keys.path().join("keys");
    {
        let (rig, _disk) = open(folder.path(), Some(&keys_folder));
        let outcome = put_for(&rig.client, tenant, 1, Durability::Disk);
        assert_eq!(outcome, OfferOutcome::Stored);
    }
    let file = segments(folder.path()).remove(0);
    let (bytes, plain) = (fs::read(&file).unwrap(), rows(1));
    assert!(!bytes.windows(32).any(|some| some == &plain[..32]), "rows lie there plainly");
    {
        let (rig, _disk) = open(folder.path(), Some(&keys_folder));
        assert_eq!(read(&rig.client, &embedding(1)), Ok(rows(1)));
    }
    fs::remove_file(keys_folder.join(format!("{tenant}.key"))).unwrap();
    let (rig, disk) = open(folder.path(), Some(&keys_folder));
    assert_eq!(read(&rig.client, &embedding(1)), Err(MediaMiss::NotFound(Miss::Damaged)));
    assert_eq!(disk.stats().read_keyless, u64::from(PIECES));
}

#[test]
fn a_piece_that_is_damaged_on_the_drive_is_a_miss_and_counted() {
    let folder = Folder::new();
    let (rig, disk) = open(folder.path(), None);
    assert_eq!(put(&rig.client, 1, Durability::Disk), OfferOutcome::Stored);
    let path = segments(folder.path()).remove(0);
    let (bytes, part) = (fs::read(&path).unwrap(), &rows(1)[300..330]);
    let at = bytes.windows(part.len()).position(|some| some == part).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[bytes[at] ^ 1], u64::try_from(at).unwrap()).unwrap();
    file.sync_all().unwrap();
    rig.forget_own();
    let _evicted = rig.tier.evict_all();
    assert_eq!(read(&rig.client, &embedding(1)), Err(MediaMiss::NotFound(Miss::Damaged)));
    assert_eq!((disk.stats().corrupt, rig.client.stats().misses), (1, 1));
    // Embedded again, it is whole again.
    assert_eq!(put(&rig.client, 1, Durability::Disk), OfferOutcome::Stored);
    drop((rig, disk));
    let (rig, _disk) = open(folder.path(), None);
    assert_eq!(read(&rig.client, &embedding(1)), Ok(rows(1)));
}

#[test]
fn routers_hear_nothing_of_pieces_on_the_drive() {
    let folder = Folder::new();
    let none = |changes: Vec<CacheChange>| {
        assert!(
            changes.iter().all(|change| matches!(
                change,
                CacheChange::Cleared | CacheChange::RangesCleared(_) | CacheChange::Digests(_)
            )),
            "{changes:?}"
        );
    };
    for _ in 0..2 {
        let (rig, disk) = open(folder.path(), None);
        none(disk.drain_changes());
        put(&rig.client, 1, Durability::Disk);
        none(disk.drain_changes());
        none(disk.answer(&CacheQuestion::Whole));
        none(disk.answer(&CacheQuestion::Digests));
    }
    let (rig, disk) = open(folder.path(), None);
    assert_eq!(disk.stats().objects_held, u64::from(PIECES));
    assert_eq!(rig.tier.evict_disk(), usize::try_from(PIECES).unwrap());
    none(disk.drain_changes());
}

#[test]
fn a_piece_on_the_drive_is_found_as_a_piece_only() {
    let folder = Folder::new();
    {
        let (rig, _disk) = open(folder.path(), None);
        assert_eq!(put(&rig.client, 1, Durability::Disk), OfferOutcome::Stored);
    }
    let (rig, _disk) = open(folder.path(), None);
    assert_eq!(found_as(&rig, ObjectKind::Block), Err(Miss::NeverStored));
    assert_eq!(found_as(&rig, ObjectKind::Media), Ok(ObjectKind::Media));
}

#[test]
fn an_evicted_tenant_loses_its_embeddings_on_the_drive() {
    let folder = Folder::new();
    let (rig, disk) = open(folder.path(), None);
    for (tenant, number) in [(TenantTag(1), 1), (TenantTag(2), 2)] {
        let outcome = put_for(&rig.client, tenant, number, Durability::Disk);
        assert_eq!(outcome, OfferOutcome::Stored);
    }
    assert!(0 < rig.tier.evict_tenant(TenantTag(1)).unwrap());
    rig.forget_own();
    assert!(read(&rig.client, &embedding(1)).is_err());
    assert_eq!(read(&rig.client, &embedding(2)), Ok(rows(2)));
    drop((rig, disk));
    let (rig, _disk) = open(folder.path(), None);
    assert!(read(&rig.client, &embedding(1)).is_err());
    assert_eq!(read(&rig.client, &embedding(2)), Ok(rows(2)));
}

#[derive(Default)]
struct Silent;

impl Watcher for Silent {
    fn read(&mut self, _: u64) {}

    fn found(&mut self, finding: &Finding) {
        panic!("{finding:?}");
    }
}

#[test]
fn tools_see_pieces_by_their_kind_and_rebuild_their_names() {
    let folder = Folder::new();
    {
        let (rig, disk) = open(folder.path(), None);
        // More than one segment of 16 pages holds.
        for number in NUMBERS {
            assert_eq!(put(&rig.client, number, Durability::Disk), OfferOutcome::Stored);
        }
        assert!(disk.flush(FLUSH));
    }
    let pieces = 3 * u64::from(PIECES);
    let survey = Survey::open(folder.path()).unwrap();
    let usage = Usage::of(&survey, 0);
    assert_eq!((usage.live_blocks, usage.media_pieces), (pieces, pieces));
    assert_eq!(usage.media_bytes, usage.live_bytes);
    for segment in survey.segments() {
        assert!(segment.blocks().all(|block| block.kind == ObjectKind::Media));
    }
    let Checked { damaged, .. } = fsck(&survey, &mut Silent);
    assert_eq!(damaged, 0);
    fs::remove_dir_all(folder.path().join("catalog")).unwrap();
    {
        let exclusive = Exclusive::lock(folder.path()).unwrap();
        exclusive.rebuild_catalog().unwrap();
        let CatalogState::Compared(check) = exclusive.check_catalog().unwrap() else {
            panic!("there is a catalog")
        };
        assert_eq!(check.differences(), 0);
    }
    let (rig, _disk) = open(folder.path(), None);
    for number in NUMBERS {
        assert_eq!(read(&rig.client, &embedding(number)), Ok(rows(number)));
    }
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|end| end == "segment");
    let mut segments: Vec<PathBuf> = files.filter(is_segment).collect();
    segments.sort();
    segments
}
