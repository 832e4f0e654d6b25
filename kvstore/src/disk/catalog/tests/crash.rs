//! Copies of a live database's files are what a killed process leaves; a log cut short is what a crash of the machine
//! leaves at worst.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::super::config::NAMES;
use super::super::{
    Catalog, CatalogError, Found, RebuildReason, SegmentFile, SegmentSeal, SegmentState, StartPlan,
    Usage,
};
use super::{IDENTITY, all_names, check_sound, config, contents, fresh, open, records, sorted};

/// The files of a folder, copied while its owner is alive.
fn copy(folder: &TempDir) -> TempDir {
    let target = tempfile::tempdir().unwrap();
    fs::create_dir(target.path().join("catalog")).unwrap();
    for path in files(folder) {
        fs::copy(&path, target.path().join("catalog").join(path.file_name().unwrap())).unwrap();
    }
    target
}

fn files(folder: &TempDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.path().join("catalog")).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn of_kind(folder: &TempDir, kind: &str) -> Vec<PathBuf> {
    let named = |path: &Path| path.file_name().unwrap().to_str().unwrap().contains(kind);
    files(folder).into_iter().filter(|path| named(path)).collect()
}

fn cut(path: &Path, bytes: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0xff;
    fs::write(path, bytes).unwrap();
}

/// Three segments of ten names, the last one open; clean on disk.
fn closed() -> TempDir {
    let (folder, catalog) = fresh();
    fill(&catalog, |_| {});
    catalog.close().unwrap();
    folder
}

/// One change after another; `after` sees each.
fn fill(catalog: &Catalog, mut after: impl FnMut(&Catalog)) {
    for number in 1..=3 {
        catalog.begin_segment(number, 4_096, 0).unwrap();
        after(catalog);
        let first = u32::try_from(number).unwrap() * 10;
        for record in records(first, 10, number) {
            catalog.insert(&[record]).unwrap();
            after(catalog);
        }
        if number < 3 {
            let seal = SegmentSeal {
                bytes: 1 << 20,
                records: 10,
                oldest_unix_seconds: 1_001,
                newest_unix_seconds: 1_019,
            };
            assert!(catalog.seal_segment(number, &seal).unwrap());
            after(catalog);
        }
    }
}

fn file(number: u64, bytes: u64) -> SegmentFile {
    SegmentFile { number, bytes }
}

#[test]
fn a_killed_process_loses_nothing() {
    let (folder, catalog) = fresh();
    let mut copies = Vec::new();
    fill(&catalog, |catalog| copies.push((copy(&folder), all_names(catalog), catalog.segments())));
    for (folder, names, segments) in copies.iter().step_by(5) {
        let (catalog, found) = open(folder);
        assert_eq!(found, Found::Crashed);
        assert_eq!((all_names(&catalog), catalog.segments()), (names.clone(), segments.clone()));
        check_sound(&catalog);
    }
}

#[test]
fn a_log_cut_anywhere_gives_an_earlier_state_and_trusts_no_incomplete_segment() {
    let (folder, catalog) = fresh();
    let mut states = vec![Vec::new()];
    fill(&catalog, |catalog| states.push(all_names(catalog)));
    let live = copy(&folder);
    let log = of_kind(&live, ".log").pop().unwrap();
    let bytes = fs::metadata(&log).unwrap().len();
    assert!(1_000 < bytes, "the changes are in the log");
    let mut counts = BTreeSet::new();
    for part in 0..=12 {
        let torn = copy(&live);
        let log = of_kind(&torn, ".log").pop().unwrap();
        // The format row was synced and is never lost.
        cut(&log, 100 + (bytes - 100) * part / 12);
        let (catalog, found) = open(&torn);
        assert_eq!(found, Found::Crashed, "{part}");
        let names = all_names(&catalog);
        assert!(states.contains(&names), "{part}");
        counts.insert(names.len());
        check_sound(&catalog);
        let plan = catalog.plan_start(&[file(1, 1 << 20), file(2, 1 << 20)]);
        for number in plan.trusted {
            assert_eq!(catalog.segment(number).unwrap().records, 10, "{part}");
        }
    }
    assert!(8 < counts.len(), "the cuts are spread over the changes: {counts:?}");
}

#[test]
fn a_start_reads_only_what_is_not_trusted() {
    let folder = closed();
    let (catalog, found) = open(&folder);
    assert_eq!(found, Found::Clean);
    let open_bytes = catalog.segment(3).unwrap().bytes;
    let plan =
        catalog.plan_start(&[file(1, 1 << 20), file(2, 999), file(3, open_bytes), file(4, 4_096)]);
    let expected =
        StartPlan { trusted: vec![1], load: vec![2, 3, 4], gone: vec![], remote: vec![] };
    assert_eq!(plan, expected);
    let plan = catalog.plan_start(&[file(2, 1 << 20)]);
    let expected = StartPlan { trusted: vec![2], load: vec![], gone: vec![1, 3], remote: vec![] };
    assert_eq!(plan, expected);
    // The file of segment 1 went, then the process died.
    for number in plan.gone {
        catalog.remove_segment(number, &mut |_| {}).unwrap();
    }
    assert_eq!(all_names(&catalog), sorted(records(20, 10, 2)));
    check_sound(&catalog);
}

#[test]
fn an_interrupted_rebuild_goes_on_where_it_was() {
    let (folder, catalog) = fresh();
    catalog.load_segment(&contents(1, SegmentState::Sealed, records(0, 10, 1))).unwrap();
    let crashed = copy(&folder);
    drop(catalog);
    let (catalog, found) = open(&crashed);
    assert_eq!(found, Found::Crashed);
    let plan = catalog.plan_start(&[file(1, 1 << 20), file(2, 1 << 20)]);
    assert_eq!(plan, StartPlan { trusted: vec![1], load: vec![2], gone: vec![], remote: vec![] });
}

#[test]
fn a_clean_end_is_not_clean_any_more_once_it_was_opened() {
    let folder = closed();
    let (catalog, found) = open(&folder);
    assert_eq!(found, Found::Clean);
    drop(catalog);
    assert_eq!(open(&folder).1, Found::Crashed);
}

#[test]
fn another_identity_or_version_is_rebuilt() {
    let folder = closed();
    let (catalog, found) = Catalog::open(&config(&folder), [8; 32]).unwrap();
    assert_eq!(found, Found::Rebuild(RebuildReason::Foreign));
    assert_eq!((all_names(&catalog), catalog.usage()), (vec![], Usage::default()));
    catalog.close().unwrap();
    assert_eq!(open(&folder).1, Found::Rebuild(RebuildReason::Foreign), "and back again");
}

/// A kind of file, and what happens to one of it.
type Damage = (&'static str, fn(&Path));

#[test]
fn a_catalog_that_cannot_be_opened_is_rebuilt() {
    let cases: [Damage; 6] = [
        ("CURRENT", |path| fs::remove_file(path).unwrap()),
        ("CURRENT", |path| fs::write(path, "nonsense").unwrap()),
        ("MANIFEST", |path| fs::remove_file(path).unwrap()),
        ("MANIFEST", |path| cut(path, 20)),
        ("MANIFEST", |path| flip(path, 30)),
        (".sst", |path| fs::remove_file(path).unwrap()),
    ];
    for (number, (kind, damage)) in cases.into_iter().enumerate() {
        let folder = closed();
        for path in of_kind(&folder, kind) {
            damage(&path);
        }
        let (catalog, found) = open(&folder);
        assert!(matches!(found, Found::Rebuild(_)), "{number}: {found:?}");
        let plan = catalog.plan_start(&[file(1, 1 << 20)]);
        assert_eq!(plan.load, [1], "{number}");
        catalog.load_segment(&contents(1, SegmentState::Sealed, records(0, 10, 1))).unwrap();
        check_sound(&catalog);
        catalog.close().unwrap();
        assert_eq!(open(&folder).1, Found::Clean, "{number}");
    }
}

#[test]
fn damage_met_by_a_lookup_is_an_error_now_and_a_rebuild_at_the_next_start() {
    let folder = closed();
    let (catalog, _) = open(&folder);
    let names = catalog.db.live_files().unwrap().into_iter();
    let names: Vec<_> = names.filter(|file| file.column_family_name == NAMES).collect();
    assert!(!names.is_empty());
    drop(catalog);
    for file in names {
        // In the first rows; index and filters lie at the end.
        flip(&folder.path().join("catalog").join(file.name.trim_start_matches('/')), 20);
    }
    let (catalog, found) = open(&folder);
    assert_eq!(found, Found::Crashed);
    let name = records(10, 1, 1)[0].name;
    let error = catalog.find(name).unwrap_err();
    assert!(matches!(error, CatalogError::Database { .. }), "{error}");
    assert!(catalog.find_all(&[name]).is_err());
    drop(catalog);
    assert_eq!(open(&folder).1, Found::Rebuild(RebuildReason::Damaged));
}

#[test]
fn a_folder_in_use_or_not_to_be_made_is_an_error_and_stays_as_it_is() {
    let (folder, catalog) = fresh();
    fill(&catalog, |_| {});
    let error = Catalog::open(&config(&folder), IDENTITY).unwrap_err();
    assert!(error.to_string().contains("lock"), "{error}");
    assert_eq!(all_names(&catalog).len(), 30);
    let mut config = config(&folder);
    config.folder = folder.path().join("a file");
    fs::write(&config.folder, "x").unwrap();
    assert!(Catalog::open(&config, IDENTITY).is_err());
}
