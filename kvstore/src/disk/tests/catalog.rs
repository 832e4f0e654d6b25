//! The tier with its catalog: what a start trusts, reads and makes anew, and when a block is entered.

use std::fs;
use std::path::PathBuf;
use std::thread;

use shared::{Numerics, ObjectKind, TenantTag};

use super::{FLUSH, Folder, Rig, SEGMENT_RECORDS, config, file, flip, stored, wiring};
use crate::disk::catalog::{Catalog, Entry, Record, SegmentContents, SegmentState};
use crate::disk::format::{Identity, PAGE_BYTES};
use crate::disk::stats::DiskReadError;
use crate::disk::survey::{CatalogCheck, CatalogState, Exclusive, Rebuilt};
use crate::disk::{DiskConfig, DiskTier, DiskWiring};
use crate::testing::name;

/// Two complete segments and one that is written on.
const BLOCKS: u64 = 30;

fn written() -> Folder {
    let folder = Folder::new();
    Rig::new(&folder).write(0..BLOCKS);
    folder
}

fn catalog(folder: &Folder) -> PathBuf {
    folder.path().join("catalog")
}

fn copy_catalog(source: &Folder, target: &Folder) {
    let _missing = fs::remove_dir_all(catalog(target));
    fs::create_dir(catalog(target)).unwrap();
    for entry in fs::read_dir(catalog(source)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), catalog(target).join(entry.file_name())).unwrap();
    }
}

/// What is wrong with the catalog of a store that is stopped.
fn check(folder: &Folder) -> CatalogCheck {
    match Exclusive::lock(folder.path()).unwrap().check_catalog().unwrap() {
        CatalogState::Compared(check) => check,
        CatalogState::Unusable(reason) => panic!("{reason}"),
    }
}

#[test]
fn a_start_reads_no_segment_that_the_catalog_knows() {
    let folder = written();
    // A payload, and the table of the same segment: who read it would miss the block.
    flip(&folder, 1, 2 * PAGE_BYTES + 130);
    flip(&folder, 1, 14 * PAGE_BYTES + 130);
    let rig = Rig::new(&folder);
    assert_eq!(rig.stats().objects_held, BLOCKS);
    drop(rig);
    fs::remove_dir_all(catalog(&folder)).unwrap();
    let rig = Rig::new(&folder);
    assert_eq!((rig.stats().objects_held, rig.stats().lost_bytes), (BLOCKS - 1, 3 * 4_096));
    assert_eq!(rig.read(1), Err(DiskReadError::Gone));
}

/// The files of the catalog whose names have this part.
fn named(folder: &Folder, part: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(catalog(folder)).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_str().unwrap().contains(part)).collect()
}

/// What is wrong with a catalog, and how it gets so.
type Case = (&'static str, fn(&Folder));

#[test]
fn a_catalog_that_is_of_no_use_is_made_anew() {
    let cases: [Case; 4] = [
        ("missing", |folder| fs::remove_dir_all(catalog(folder)).unwrap()),
        ("cut", |folder| {
            named(folder, "MANIFEST").iter().for_each(|path| fs::write(path, b"x").unwrap());
        }),
        ("without tables", |folder| {
            named(folder, ".sst").iter().for_each(|path| fs::remove_file(path).unwrap());
        }),
        ("of another layout", |folder| {
            let clock = std::sync::Arc::new(shared::ManualClock::new());
            let other = DiskWiring { layout: [8; 32], ..wiring(&clock) };
            let other = DiskTier::start(&config(folder), other).unwrap();
            assert_eq!((other.stats().objects_held, other.stats().segments_foreign), (0, 3));
        }),
    ];
    for (what, spoil) in cases {
        let folder = written();
        spoil(&folder);
        let rig = Rig::new(&folder);
        assert_eq!(rig.tier.drain_changes(), [stored(0..BLOCKS)], "{what}");
        assert_eq!(rig.readable(0..BLOCKS).len(), 30, "{what}");
        rig.write(BLOCKS..BLOCKS + 20);
        drop(rig);
        let rig = Rig::new(&folder);
        assert_eq!(rig.readable(0..BLOCKS + 20).len(), 50, "{what}");
        assert_eq!(rig.stats().catalog_errors, 0, "{what}");
        drop(rig);
        assert_eq!(check(&folder).differences(), 0, "{what}");
    }
}

#[test]
fn a_catalog_of_an_earlier_or_later_moment_is_brought_in_step() {
    let (folder, earlier) = (written(), Folder::new());
    copy_catalog(&folder, &earlier);
    Rig::new(&folder).write(BLOCKS..BLOCKS + 20);
    let later = Folder::new();
    copy_catalog(&folder, &later);
    copy_catalog(&earlier, &folder);
    let rig = Rig::new(&folder);
    assert_eq!(rig.readable(0..BLOCKS + 20).len(), 50, "what it lacks is read");
    drop(rig);
    assert_eq!(check(&folder).differences(), 0);
    // The files of the last two segments are lost, and the number of the third is given out by nobody again.
    copy_catalog(&later, &folder);
    fs::remove_file(file(&folder, 3)).unwrap();
    fs::remove_file(file(&folder, 4)).unwrap();
    let rig = Rig::new(&folder);
    assert_eq!(rig.readable(0..BLOCKS + 20).len(), 26, "what it has too much leaves");
    assert_eq!((rig.stats().objects_held, rig.stats().read_gone), (26, 24));
    rig.write([99]);
    assert!(file(&folder, 5).exists());
}

#[test]
fn a_block_is_found_when_it_is_written_and_told_when_it_is_durable() {
    let folder = Folder::new();
    let rig = Rig::with(&DiskConfig { sync_ms: 60_000, ..config(&folder) });
    rig.queue(1);
    while !rig.tier.contains(name(1)) {
        thread::yield_now();
    }
    assert_eq!(rig.readable([1]), [1]);
    assert_eq!((rig.tier.drain_changes(), rig.stats().objects_held), (vec![], 0));
    rig.queue(1);
    assert!(rig.tier.flush(FLUSH));
    assert_eq!((rig.tier.drain_changes(), rig.stats().objects_held), (vec![stored([1])], 1));
    assert_eq!(rig.stats().written, 1, "it was known before it was durable");
}

#[test]
fn a_block_evicted_before_it_is_durable_does_not_come_back() {
    let folder = Folder::new();
    let rig = Rig::with(&DiskConfig { sync_ms: 60_000, ..config(&folder) });
    rig.queue(1);
    while !rig.tier.contains(name(1)) {
        thread::yield_now();
    }
    assert_eq!(rig.tier.evict_all(), 0, "none of them was told");
    assert!(!rig.tier.contains(name(1)));
    rig.write([2]);
    assert_eq!(rig.readable([1, 2]), [2]);
    drop(rig);
    assert_eq!(Rig::new(&folder).readable([1, 2]), [2]);
}

/// Flips a bit in the first rows of the names.
fn flip_names(folder: &Folder) {
    // The largest table is theirs.
    let tables = named(folder, ".sst").into_iter();
    let names = tables.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&names).unwrap();
    bytes[20] ^= 0xff;
    fs::write(&names, bytes).unwrap();
}

#[test]
fn a_catalog_whose_damage_a_start_meets_is_made_anew_at_once() {
    let folder = written();
    flip_names(&folder);
    let rig = Rig::new(&folder);
    assert_eq!((rig.readable(0..BLOCKS).len(), rig.stats().catalog_errors), (30, 0));
}

#[test]
fn what_the_catalog_cannot_answer_is_a_miss_until_the_next_start() {
    let folder = written();
    // Without a segment to read, a start looks no name up.
    fs::remove_file(file(&folder, 3)).unwrap();
    drop(Rig::new(&folder));
    flip_names(&folder);
    let rig = Rig::new(&folder);
    let lost: Vec<u64> = (0..26).filter(|number| !rig.tier.contains(name(*number))).collect();
    assert!(!lost.is_empty() && 0 < rig.stats().catalog_errors, "{:?}", rig.stats());
    drop(rig);
    let rig = Rig::new(&folder);
    assert_eq!((rig.readable(0..BLOCKS).len(), rig.stats().catalog_errors), (26, 0));
}

#[test]
fn a_check_finds_what_a_start_would_believe_and_mending_enters_it_anew() {
    let folder = written();
    let sound = CatalogCheck { segments: 2, entries: 26, unsettled: 1, ..CatalogCheck::default() };
    assert_eq!(check(&folder), sound);
    // Another store's segment in the place of the second, of the same length.
    let other = Folder::new();
    Rig::new(&other).write(100..100 + BLOCKS);
    fs::copy(file(&other, 2), file(&folder, 2)).unwrap();
    let differs = CatalogCheck {
        entries_without_record: SEGMENT_RECORDS,
        records_without_entry: SEGMENT_RECORDS,
        ..sound
    };
    assert_eq!(check(&folder), differs);
    let found = Exclusive::lock(folder.path()).unwrap().mend_catalog().unwrap();
    assert_eq!(found, CatalogState::Compared(differs));
    assert_eq!(check(&folder), sound);
    let rig = Rig::new(&folder);
    let expected: Vec<u64> = (0..13).chain(26..30).chain(113..126).collect();
    assert_eq!(rig.readable(0..140), expected);
}

#[test]
fn a_rebuilt_catalog_is_that_of_the_segments_and_is_trusted() {
    let folder = written();
    let before = Rig::new(&folder).stats();
    fs::remove_dir_all(catalog(&folder)).unwrap();
    let state = Exclusive::lock(folder.path()).unwrap().check_catalog().unwrap();
    assert!(matches!(state, CatalogState::Unusable(_)), "{state:?}");
    assert!(!catalog(&folder).exists(), "a check makes nothing");
    for _ in 0..2 {
        let rebuilt = Exclusive::lock(folder.path()).unwrap().rebuild_catalog().unwrap();
        let expected =
            Rebuilt { segments: 3, without_blocks: 0, blocks: 30, bytes: before.bytes_held };
        assert_eq!(rebuilt, expected);
    }
    flip(&folder, 1, 14 * PAGE_BYTES + 130);
    let rig = Rig::new(&folder);
    assert_eq!((rig.readable(0..BLOCKS).len(), rig.stats().objects_held), (30, BLOCKS));
    drop(rig);
    let running = Rig::new(&folder);
    assert!(Exclusive::lock(folder.path()).is_err(), "not beside a store");
    drop(running);
}

/// Files without any byte: who read one would find no segment.
#[test]
fn a_full_store_is_there_without_a_byte_read() {
    const SEGMENTS: u64 = 1_000;
    const RECORDS: u64 = 100;
    let folder = Folder::new();
    let config = DiskConfig { bytes_max: 1 << 30, segment_bytes: 1 << 19, ..config(&folder) };
    let identity = Identity::new([7; 32], &Numerics("cpu-exact-1".into())).unwrap();
    let (catalog, _) = Catalog::open(&config.catalog(), identity.fingerprint()).unwrap();
    for number in 1..=SEGMENTS {
        let record = |at: u64| {
            let page = u32::try_from(1 + at).unwrap();
            let (segment, bytes, checksum, exact) = (number, 37, 0, true);
            let entry = Entry {
                segment,
                page,
                bytes,
                checksum,
                exact,
                kind: ObjectKind::Block,
                written_unix_seconds: 0,
                tenant: TenantTag::NONE,
                sealed: false,
            };
            Record { name: name(number * RECORDS + at), entry }
        };
        let bytes = (RECORDS + 6) * 4_096;
        let contents = SegmentContents {
            number,
            state: SegmentState::Sealed,
            bytes,
            changed_unix_seconds: 0,
            records: (0..RECORDS).map(record).collect(),
        };
        catalog.load_segment(&contents).unwrap();
        fs::File::create(file(&folder, number)).unwrap().set_len(bytes).unwrap();
    }
    drop(catalog);
    let rig = Rig::with(&config);
    let stats = rig.stats();
    assert_eq!((stats.objects_held, stats.segments), (SEGMENTS * RECORDS, SEGMENTS));
    assert_eq!((stats.segments_foreign, stats.lost_bytes), (0, 0));
    assert!(rig.tier.contains(name(SEGMENTS * RECORDS)));
    assert_eq!(rig.read(SEGMENTS * RECORDS), Err(DiskReadError::Corrupt), "a hole is no block");
}
