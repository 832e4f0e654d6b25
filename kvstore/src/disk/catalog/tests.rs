//! The catalog against a model of it, through restarts, crashes and damage.

mod crash;
mod model;

use shared::{BlockName, ObjectKind, TenantTag};
use tempfile::TempDir;

use super::{
    Catalog, CatalogConfig, CatalogError, Entry, Found, Inserted, RebuildReason, Record,
    SegmentContents, SegmentSeal, SegmentState, Usage,
};

const IDENTITY: [u8; 32] = [7; 32];
const PAYLOAD: u32 = 5_000;

fn config(folder: &TempDir) -> CatalogConfig {
    CatalogConfig {
        cache_bytes: 1 << 20,
        write_buffer_bytes: 1 << 20,
        ..CatalogConfig::in_folder(folder.path().join("catalog"))
    }
}

fn open(folder: &TempDir) -> (Catalog, Found) {
    Catalog::open(&config(folder), IDENTITY).unwrap()
}

fn fresh() -> (TempDir, Catalog) {
    let folder = tempfile::tempdir().unwrap();
    let (catalog, found) = open(&folder);
    assert_eq!(found, Found::Rebuild(RebuildReason::Missing));
    (folder, catalog)
}

fn name(index: u32) -> BlockName {
    let mut bytes = [0; 16];
    // Spread over the range, as hashes are.
    bytes[..4].copy_from_slice(&index.wrapping_mul(0x9e37_79b1).to_be_bytes());
    bytes[12..].copy_from_slice(&index.to_be_bytes());
    BlockName(bytes)
}

/// The copy of name `index` in a segment; its page is its place in the order of writing.
fn record(index: u32, segment: u64, page: u32) -> Record {
    let entry = Entry {
        segment,
        page,
        bytes: PAYLOAD + index % 3,
        checksum: index,
        exact: index.is_multiple_of(2),
        kind: [ObjectKind::Block, ObjectKind::Media][usize::from(index % 5 == 4)],
        written_unix_seconds: 1_000 + u64::from(page),
        tenant: TenantTag(u64::from(index % 4)),
        sealed: index % 2 == 1,
    };
    Record { name: name(index), entry }
}

/// Records of names `first..first + count`, two pages each.
fn records(first: u32, count: u32, segment: u64) -> Vec<Record> {
    (0..count).map(|offset| record(first + offset, segment, 1 + 2 * offset)).collect()
}

fn contents(number: u64, state: SegmentState, records: Vec<Record>) -> SegmentContents {
    SegmentContents { number, state, bytes: 1 << 20, changed_unix_seconds: 0, records }
}

fn seal(records: u64) -> SegmentSeal {
    SegmentSeal { bytes: 1 << 20, records, oldest_unix_seconds: 5, newest_unix_seconds: 9 }
}

fn usage(records: &[Record]) -> Usage {
    Usage {
        objects: u64::try_from(records.len()).unwrap(),
        payload_bytes: records.iter().map(|record| u64::from(record.entry.bytes)).sum(),
    }
}

fn check_sound(catalog: &Catalog) {
    let audit = catalog.audit().unwrap();
    assert!(audit.is_sound(), "{audit:?}");
    assert_eq!(audit.usage, catalog.usage());
}

/// Everything by name, in pages of three.
fn all_names(catalog: &Catalog) -> Vec<Record> {
    let (mut found, mut from) = (Vec::new(), Some(BlockName([0; 16])));
    while let Some(first) = from {
        let (page, next) = catalog.names(first..=BlockName([0xff; 16]), 3).unwrap();
        found.extend(page);
        from = next;
    }
    found
}

fn sorted(mut records: Vec<Record>) -> Vec<Record> {
    records.sort_unstable_by_key(|record| record.name);
    records
}

#[test]
fn what_was_inserted_is_found_and_counted() {
    let (_folder, catalog) = fresh();
    catalog.begin_segment(1, 4_096, 0).unwrap();
    let records = records(0, 10, 1);
    let inserted = catalog.insert(&records).unwrap();
    let new = records.iter().map(|record| record.name).collect();
    assert_eq!(inserted, Inserted { entered: 10, new });
    for Record { name, entry } in &records {
        assert_eq!(catalog.find(*name).unwrap(), Some(*entry));
    }
    assert_eq!(catalog.find(name(10)).unwrap(), None);
    let found = catalog.find_all(&[name(3), name(77), name(0)]).unwrap();
    assert_eq!(found, [Some(records[3].entry), None, Some(records[0].entry)]);
    assert_eq!(catalog.usage(), usage(&records));
    let mine: Vec<Record> =
        records.iter().filter(|r| r.entry.tenant == TenantTag(1)).copied().collect();
    assert_eq!(catalog.tenant(TenantTag(1)).unwrap(), usage(&mine));
    assert_eq!(catalog.tenant(TenantTag(99)).unwrap(), Usage::default());
    assert_eq!(catalog.tenants(TenantTag(2), 10).unwrap().len(), 2, "tenants 2 and 3");
    let segment = catalog.segment(1).unwrap();
    assert_eq!((segment.records, segment.bytes), (10, records[9].entry.end()));
    assert_eq!(catalog.file_bytes(), segment.bytes);
    check_sound(&catalog);
}

#[test]
fn the_copy_in_the_later_place_counts_whatever_comes_first() {
    for order in [[1, 2], [2, 1]] {
        let (_folder, catalog) = fresh();
        catalog.begin_segment(1, 4_096, 0).unwrap();
        catalog.begin_segment(2, 4_096, 0).unwrap();
        for segment in order {
            catalog.insert(&[record(5, segment, 1)]).unwrap();
        }
        let later = record(5, 2, 1);
        assert_eq!(catalog.find(later.name).unwrap(), Some(later.entry));
        assert_eq!(catalog.usage(), usage(&[later]));
        // The older copy leaves with its segment and takes nothing along.
        assert_eq!(catalog.remove_segment(1, &mut |_| {}).unwrap(), 0);
        assert_eq!(catalog.find(later.name).unwrap(), Some(later.entry));
        check_sound(&catalog);
    }
}

#[test]
fn a_name_twice_in_one_batch_counts_once() {
    let (_folder, catalog) = fresh();
    catalog.begin_segment(1, 4_096, 0).unwrap();
    let twice = [record(5, 1, 1), record(5, 1, 3)];
    let inserted = catalog.insert(&twice).unwrap();
    assert_eq!(inserted, Inserted { entered: 2, new: vec![name(5)] });
    assert_eq!(catalog.find(name(5)).unwrap(), Some(twice[1].entry));
    assert_eq!(catalog.usage(), usage(&twice[1..]));
    check_sound(&catalog);
}

#[test]
fn records_of_unlisted_segments_are_left_out() {
    let (_folder, catalog) = fresh();
    catalog.begin_segment(2, 4_096, 0).unwrap();
    let inserted = catalog.insert(&[record(1, 1, 1), record(2, 2, 1)]).unwrap();
    assert_eq!(inserted, Inserted { entered: 1, new: vec![name(2)] });
    assert_eq!(catalog.find(name(1)).unwrap(), None);
    check_sound(&catalog);
}

#[test]
fn only_the_very_copy_is_forgotten() {
    let (_folder, catalog) = fresh();
    catalog.begin_segment(1, 4_096, 0).unwrap();
    let (held, other) = (record(1, 1, 1), record(1, 1, 3));
    catalog.insert(&[held]).unwrap();
    assert!(!catalog.forget(held.name, &other.entry).unwrap());
    assert!(catalog.forget(held.name, &held.entry).unwrap());
    assert!(!catalog.forget(held.name, &held.entry).unwrap(), "it is gone");
    assert_eq!(catalog.find(held.name).unwrap(), None);
    assert_eq!(
        (catalog.usage(), catalog.tenants(TenantTag(0), 9).unwrap()),
        (Usage::default(), vec![])
    );
    check_sound(&catalog);
}

#[test]
fn a_removed_segment_takes_its_names_along_in_batches() {
    let (_folder, catalog) = fresh();
    let all = records(0, 2_500, 1);
    catalog.load_segment(&contents(1, SegmentState::Sealed, all.clone())).unwrap();
    catalog.load_segment(&contents(2, SegmentState::Sealed, records(2_400, 200, 2))).unwrap();
    let (mut names, mut largest) = (Vec::new(), 0);
    let count = catalog
        .remove_segment(1, &mut |removed| {
            largest = largest.max(removed.len());
            names.extend(removed.iter().map(|record| record.name));
        })
        .unwrap();
    let expected: Vec<BlockName> = all[..2_400].iter().map(|record| record.name).collect();
    assert_eq!((count, names, largest), (2_400, expected, 1_024));
    assert_eq!(catalog.segments().iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2]);
    assert_eq!(catalog.usage(), usage(&records(2_400, 200, 2)));
    assert_eq!(catalog.remove_segment(1, &mut |_| {}).unwrap(), 0, "it is gone");
    check_sound(&catalog);
}

#[test]
fn a_segment_is_sealed_only_with_all_its_records() {
    let (_folder, catalog) = fresh();
    catalog.begin_segment(1, 4_096, 0).unwrap();
    catalog.insert(&records(0, 3, 1)).unwrap();
    assert!(!catalog.seal_segment(1, &seal(4)).unwrap());
    assert_eq!(catalog.segment(1).unwrap().state, SegmentState::Open);
    assert!(catalog.seal_segment(1, &seal(3)).unwrap());
    let segment = catalog.segment(1).unwrap();
    assert_eq!((segment.state, segment.bytes), (SegmentState::Sealed, 1 << 20));
    assert_eq!((segment.oldest_unix_seconds, segment.newest_unix_seconds), (5, 9));
    assert!(!catalog.seal_segment(9, &seal(0)).unwrap(), "it is not listed");
}

#[test]
fn pages_of_names_are_sorted_and_complete() {
    let (_folder, catalog) = fresh();
    catalog.begin_segment(1, 4_096, 0).unwrap();
    let records = records(0, 10, 1);
    catalog.insert(&records).unwrap();
    let sorted = sorted(records);
    assert_eq!(all_names(&catalog), sorted);
    let part = sorted[2].name..=sorted[6].name;
    assert_eq!(catalog.names(part.clone(), 100).unwrap(), (sorted[2..=6].to_vec(), None));
    assert_eq!(catalog.names(part, 5).unwrap(), (sorted[2..=6].to_vec(), None), "a full page");
    let (page, next) = catalog.names(sorted[2].name..=sorted[6].name, 2).unwrap();
    assert_eq!(page, sorted[2..4]);
    let next = next.unwrap();
    assert!(sorted[3].name < next && next <= sorted[4].name);
}

#[test]
fn a_cleared_catalog_is_empty_and_uses_no_number_twice() {
    let (folder, catalog) = fresh();
    catalog.load_segment(&contents(8, SegmentState::Sealed, records(0, 50, 8))).unwrap();
    catalog.load_segment(&contents(9, SegmentState::Foreign, Vec::new())).unwrap();
    assert_eq!(catalog.file_bytes(), 2 << 20);
    catalog.clear().unwrap();
    let check = |catalog: &Catalog| {
        assert_eq!((all_names(catalog), catalog.segments()), (vec![], vec![]));
        assert_eq!((catalog.usage(), catalog.file_bytes()), (Usage::default(), 0));
        assert_eq!(catalog.number_next(), 10);
        check_sound(catalog);
    };
    check(&catalog);
    catalog.close().unwrap();
    let (catalog, found) = open(&folder);
    assert_eq!(found, Found::Clean);
    check(&catalog);
}

#[test]
fn a_rebuild_gives_what_the_segments_hold() {
    let (_folder, catalog) = fresh();
    catalog.load_segment(&contents(1, SegmentState::Sealed, records(700, 30, 1))).unwrap();
    let segments = [
        contents(3, SegmentState::Open, records(20, 20, 3)),
        contents(1, SegmentState::Sealed, records(0, 30, 1)),
        contents(2, SegmentState::Foreign, Vec::new()),
    ];
    catalog.rebuild(segments).unwrap();
    let mut expected = records(0, 20, 1);
    expected.extend(records(20, 20, 3));
    assert_eq!(all_names(&catalog), sorted(expected));
    let states: Vec<_> = catalog.segments().iter().map(|(_, segment)| segment.state).collect();
    let expected = [SegmentState::Sealed, SegmentState::Foreign, SegmentState::Open];
    assert_eq!(states, expected);
    check_sound(&catalog);
}

#[test]
fn a_segment_loaded_again_holds_what_was_read_last() {
    let (_folder, catalog) = fresh();
    catalog.begin_segment(1, 4_096, 0).unwrap();
    catalog.insert(&records(0, 9, 1)).unwrap();
    // The end of the file was torn.
    catalog.load_segment(&contents(1, SegmentState::Open, records(0, 5, 1))).unwrap();
    assert_eq!(all_names(&catalog), sorted(records(0, 5, 1)));
    assert_eq!(catalog.segment(1).unwrap().records, 5);
    check_sound(&catalog);
}

/// A setting, and how it gets out of its range.
type Change = (&'static str, fn(&mut CatalogConfig));

#[test]
fn settings_out_of_range_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [Change; 4] = [
        ("cache_bytes", |config| config.cache_bytes = 1),
        ("write_buffer_bytes", |config| config.write_buffer_bytes = 1 << 33),
        ("open_files_max", |config| config.open_files_max = 1),
        ("background_jobs", |config| config.background_jobs = 0),
    ];
    for (expected, change) in cases {
        let mut config = config(&folder);
        change(&mut config);
        match Catalog::open(&config, IDENTITY) {
            Err(CatalogError::Config { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    assert_eq!(CatalogConfig::in_folder("x".into()).check().map_err(|e| e.to_string()), Ok(()));
}

#[test]
fn memory_stays_in_its_bounds() {
    let (_folder, catalog) = fresh();
    for segment in 1..=20 {
        let first = u32::try_from(segment).unwrap() * 1_000;
        let records = records(first, 1_000, segment);
        catalog.load_segment(&contents(segment, SegmentState::Sealed, records)).unwrap();
        let sizes = catalog.sizes().unwrap();
        assert!(sizes.write_buffer_bytes <= 2 << 20, "{sizes:?}");
        assert!(sizes.cache_bytes <= 2 << 20, "{sizes:?}");
    }
    assert!(0 < catalog.sizes().unwrap().disk_bytes);
}
