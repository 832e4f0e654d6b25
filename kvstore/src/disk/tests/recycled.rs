//! Files of segments that left are written on again, and nothing of what lay in them is ever found.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use shared::TenantTag;

use super::{FLUSH, Folder, Rig, SEGMENT_RECORDS, config, file, files};
use crate::disk::DiskConfig;
use crate::disk::format::{FileOrigin, PAGE_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::disk::segment::{Steps, free_path, number_of};
use crate::disk::survey::{Exclusive, Finding, SegmentState, Survey, Usage, Watcher, fsck};

const RETENTION_S: u64 = 1_000;

fn keeping(folder: &Folder) -> DiskConfig {
    DiskConfig { retention_s: RETENTION_S, ..config(folder) }
}

fn age(rig: &Rig) {
    rig.clock.advance(Duration::from_secs(RETENTION_S + 1));
    assert!(rig.tier.flush(FLUSH));
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

fn free(folder: &Folder) -> Vec<PathBuf> {
    let all = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut free: Vec<PathBuf> =
        all.filter(|path| path.extension().is_some_and(|it| it == "free")).collect();
    free.sort();
    free
}

/// A tier whose open segment is a recycled one: it is number 3 in the file of number 1, and has the blocks 100 and 101.
fn recycled(folder: &Folder) -> Rig {
    let rig = Rig::with(&keeping(folder));
    rig.write(0..SEGMENT_RECORDS + 1);
    let first = inode(&file(folder, 1));
    age(&rig);
    assert_eq!(free(folder), [free_path(folder.path(), 1)]);
    rig.write([100, 101]);
    assert_eq!((inode(&file(folder, 3)), free(folder)), (first, vec![]));
    rig
}

#[test]
fn a_segment_takes_over_the_file_of_one_that_left() {
    let folder = Folder::new();
    let rig = recycled(&folder);
    let stats = rig.stats();
    assert_eq!((stats.segments_recycled, stats.files_free), (1, 0));
    assert_eq!(rig.readable((0..14).chain(100..102)), [100, 101]);
    // Enough for the seal, and for another one.
    rig.write(102..100 + 2 * SEGMENT_RECORDS);
    assert_eq!(rig.readable(100..200).len(), 26);
    drop(rig);
    let survey = Survey::open(folder.path()).unwrap();
    let states: Vec<_> = survey.segments().map(|segment| segment.state().clone()).collect();
    assert_eq!(states, [SegmentState::Sealed, SegmentState::Open]);
    fs::remove_dir_all(folder.path().join("catalog")).unwrap();
    let rig = Rig::with(&keeping(&folder));
    assert_eq!(rig.readable((0..14).chain(100..200)).len(), 26, "from the files alone, too");
    assert_eq!(rig.stats().lost_bytes, 0);
}

#[test]
fn what_lay_in_a_recycled_file_is_not_found_wherever_a_crash_stops() {
    let folder = Folder::new();
    let rig = Rig::with(&keeping(&folder));
    rig.write(0..SEGMENT_RECORDS + 1);
    let before = fs::read(file(&folder, 1)).unwrap();
    age(&rig);
    rig.write([100, 101]);
    let after = fs::read(file(&folder, 3)).unwrap();
    drop(rig);
    // Pages of the new segment that were written; the others are what they were in the old one. Until the header is there it
    // has no other name, and with it what is whole counts.
    let pages = |written: &[usize]| {
        let mut bytes = before.clone();
        for page in written {
            let range = page * PAGE_BYTES..(page + 1) * PAGE_BYTES;
            bytes[range.clone()].copy_from_slice(&after[range]);
        }
        bytes
    };
    let (segment, old) = (file(&folder, 3), free_path(folder.path(), 1));
    let (segment, old) = (segment.file_name().unwrap(), old.file_name().unwrap());
    let cases: [(&[usize], _, &[u64]); 6] = [
        (&[], old, &[]),
        (&[0], old, &[]),
        (&[0], segment, &[]),
        (&[0, 1], segment, &[100]),
        (&[0, 2], segment, &[101]),
        (&[0, 1, 2], segment, &[100, 101]),
    ];
    for (written, name, expected) in cases {
        let crashed = Folder::new();
        fs::write(crashed.path().join(name), pages(written)).unwrap();
        let segments = usize::from(name == segment);
        let survey = Survey::open(crashed.path()).unwrap();
        assert_eq!(
            (survey.numbers().len(), survey.free_files().0 == 0),
            (segments, name == segment)
        );
        let rig = Rig::with(&keeping(&crashed));
        assert_eq!(rig.readable((0..14).chain(100..102)), expected, "{written:?}");
        assert_eq!(files(&crashed).len(), segments, "{written:?}");
        // It goes on behind, and the next start finds all of it.
        rig.write(200..203);
        drop(rig);
        let rig = Rig::with(&keeping(&crashed));
        let all: Vec<u64> = expected.iter().copied().chain(200..203).collect();
        assert_eq!(rig.readable((0..14).chain(100..102).chain(200..203)), all, "{written:?}");
    }
}

#[test]
fn the_header_says_so_and_the_records_end_before_those_of_the_old_segment() {
    let folder = Folder::new();
    drop_without_trim(recycled(&folder), &folder);
    let path = file(&folder, 3);
    let open = File::open(&path).unwrap();
    let mut header = [0; SEGMENT_HEADER_BYTES];
    open.read_exact_at(&mut header, 0).unwrap();
    let header = SegmentHeader::decode(&header).unwrap();
    assert_eq!((header.number, header.origin), (3, FileOrigin::Recycled));
    let bytes = open.metadata().unwrap().len();
    let mut old = Steps::new(&open, 1, bytes, FileOrigin::Made);
    assert!(old.step().unwrap().is_some(), "the old records are there");
    let survey = Survey::open(folder.path()).unwrap();
    let checked = fsck(&survey, &mut Silent);
    assert_eq!((checked.damaged, checked.torn_bytes), (0, 0));
}

/// As a crash leaves it: with everything that was reserved.
fn drop_without_trim(rig: Rig, folder: &Folder) {
    let bytes = fs::read(file(folder, 3)).unwrap();
    drop(rig);
    fs::write(file(folder, 3), bytes).unwrap();
}

#[test]
fn free_files_are_few_and_count_against_the_bound() {
    let folder = Folder::new();
    let config = DiskConfig { bytes_max: 8 << 16, ..keeping(&folder) };
    let rig = Rig::with(&config);
    let mut kept = 0;
    for step in 0..150_u64 {
        // Bursts, so that several segments leave at a time.
        let count = if step % 30 < 15 { 4 } else { 0 };
        rig.write((0..count).map(|number| step * 10 + number));
        rig.clock.advance(Duration::from_secs(50));
        assert!(rig.tier.flush(FLUSH));
        let stats = rig.stats();
        assert!(stats.files_free <= 4 && stats.file_bytes <= stats.file_bytes_max, "{stats:?}");
        assert_eq!(free(&folder).len(), usize::try_from(stats.files_free).unwrap());
        let segments = files(&folder).into_iter().map(|name| folder.path().join(name));
        let all = segments.chain(free(&folder));
        let bytes: u64 = all.map(|path| fs::metadata(path).unwrap().len()).sum();
        assert!(bytes <= config.bytes_max, "{bytes}");
        kept = kept.max(stats.files_free);
    }
    let recycled = rig.stats().segments_recycled;
    assert!(3 < recycled && 1 < kept, "{recycled} {kept}");
    assert_eq!(rig.stats().retention_violations, 0);
    age(&rig);
    let kept = free(&folder).len();
    assert!(0 < kept);
    let usage = Usage::of(&Survey::open(folder.path()).unwrap(), 0);
    assert_eq!(usage.states["free"].segments, u64::try_from(kept).unwrap());
    assert_eq!(usage.states["free"].bytes, usage.free_bytes);
    drop(rig);
    // A smaller drive has no room for them.
    let rig = Rig::with(&DiskConfig { bytes_max: usage.free_bytes.max(4 << 16) - 1, ..config });
    assert!(rig.stats().file_bytes < usage.free_bytes.max(4 << 16));
}

#[test]
fn numbers_begin_above_what_lies_in_free_files() {
    let folder = Folder::new();
    let rig = recycled(&folder);
    rig.write(102..100 + SEGMENT_RECORDS + 1);
    age(&rig);
    assert_eq!(rig.tier.evict_all(), 0);
    assert_eq!((free(&folder), files(&folder).len()), (vec![], 0), "evicting takes them away");
    rig.write(0..SEGMENT_RECORDS + 1);
    age(&rig);
    drop(rig);
    let kept = free(&folder);
    let number = kept[0].file_stem().unwrap().to_str().unwrap().to_owned();
    let number = number_of(format!("{number}.segment").as_ref()).unwrap();
    assert!(4 < number);
    for name in files(&folder) {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    fs::remove_dir_all(folder.path().join("catalog")).unwrap();
    let rig = Rig::with(&keeping(&folder));
    rig.write([1]);
    let begun = files(&folder).pop().unwrap();
    assert_eq!(number_of(begun.as_ref()), Some(number + 1));
    assert_eq!((free(&folder), rig.readable(0..14)), (vec![], vec![1]));
}

#[test]
fn bytes_of_an_evicted_tenant_stay_in_no_free_file() {
    let folder = Folder::new();
    let rig = Rig::with(&keeping(&folder));
    rig.write(0..SEGMENT_RECORDS + 1);
    age(&rig);
    assert_eq!(free(&folder).len(), 1);
    rig.write([100]);
    age(&rig);
    rig.write(200..200 + SEGMENT_RECORDS + 1);
    rig.tier.evict_tenant(TenantTag(7)).unwrap();
    assert_eq!(free(&folder), [] as [PathBuf; 0], "it may have lain there");
    age(&rig);
    assert_eq!(free(&folder), [] as [PathBuf; 0], "or there");
    drop(rig);
    let rig = Rig::with(&keeping(&folder));
    rig.write(300..300 + SEGMENT_RECORDS + 1);
    age(&rig);
    drop(rig);
    let kept = free(&folder).len();
    let exclusive = Exclusive::lock(folder.path()).unwrap();
    exclusive.evict_tenant(TenantTag(8), 1 << 40, None).unwrap();
    assert_eq!(free(&folder), [] as [PathBuf; 0], "{kept} before");
}

struct Silent;

impl Watcher for Silent {
    fn read(&mut self, _bytes: u64) {}

    fn found(&mut self, finding: &Finding) {
        panic!("{finding:?}");
    }
}
