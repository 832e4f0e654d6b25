//! Damaged, torn, foreign and half written files.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::Duration;

use shared::{BlockName, ManualClock, Numerics, TenantTag};

use super::{Folder, Rig, SEGMENT_RECORDS, config, file, files, flip, wiring};
use crate::disk::append::Appender;
use crate::disk::format::{
    FileOrigin, Identity, PAGE_BYTES, RecordHeader, RecordKind, SegmentHeader,
};
use crate::disk::io::{DiskIo, SystemDrive};
use crate::disk::segment::{OpenSegment, frame, read_table, walk};
use crate::disk::stats::DiskReadError;
use crate::disk::{DiskConfig, DiskTier, DiskWiring};
use crate::testing::{SLOT_BYTES, name};

/// A segment with three records of one, two and two pages, and the offsets at which they end.
fn three_records(folder: &Folder) -> (OpenSegment, Appender, [usize; 3]) {
    let identity = Identity::new([7; 32], &Numerics("x".into())).unwrap();
    let origin = FileOrigin::Made;
    let header = SegmentHeader { number: 1, created_unix_seconds: 5, identity, origin };
    let mut appender = Appender::new(&SystemDrive::of(DiskIo::Threads), 1 << 16);
    let mut segment = OpenSegment::create(folder.path(), &header, 1 << 16, &mut appender).unwrap();
    let ends = [100, 5_000, 8_000].map(|bytes: u32| {
        let payload: Vec<u8> =
            (0..bytes).map(|at| at.wrapping_mul(bytes).to_le_bytes()[1]).collect();
        let header = RecordHeader {
            tenant: TenantTag::NONE,
            sealing: None,
            kind: RecordKind::Block,
            exact: true,
            segment: 1,
            page: segment.next_page(),
            bytes,
            checksum: crc32c::crc32c(&payload),
            written_unix_seconds: u64::from(bytes),
            name: name(u64::from(bytes)),
        };
        let mut record = Vec::new();
        frame(&header, &mut record, |record| record.extend_from_slice(&payload));
        segment.append(header, &record, &mut appender).unwrap();
        usize::try_from(segment.bytes()).unwrap()
    });
    segment.sync(&mut appender).unwrap();
    segment.trim(segment.bytes()).unwrap();
    (segment, appender, ends)
}

fn writable(folder: &Folder) -> File {
    File::options().read(true).write(true).open(file(folder, 1)).unwrap()
}

fn names(records: &[RecordHeader]) -> Vec<BlockName> {
    records.iter().map(|record| record.name).collect()
}

#[test]
fn a_segment_cut_anywhere_keeps_its_whole_records() {
    let folder = Folder::new();
    let (_segment, _, ends) = three_records(&folder);
    let all = [100, 5_000, 8_000].map(name);
    let cut = writable(&folder);
    for length in (ends[1]..=ends[2]).rev() {
        cut.set_len(length.try_into().unwrap()).unwrap();
        let found = walk(&cut, 1, FileOrigin::Made).unwrap();
        let kept = if length == ends[2] { 3 } else { 2 };
        assert_eq!(names(&found.records), all[..kept], "cut to {length} bytes");
        assert_eq!((found.end, found.lost_bytes), (u64::try_from(ends[kept - 1]).unwrap(), 0));
    }
}

#[test]
fn a_segment_whose_end_was_not_written_keeps_its_whole_records() {
    let folder = Folder::new();
    let (_segment, _, ends) = three_records(&folder);
    let whole = fs::read(file(&folder, 1)).unwrap();
    let last = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let cut = writable(&folder);
    for length in (ends[1]..ends[2]).rev() {
        cut.write_all_at(&[0], length.try_into().unwrap()).unwrap();
        let found = walk(&cut, 1, FileOrigin::Made).unwrap();
        let kept = if last < length { 3 } else { 2 };
        assert_eq!(found.records.len(), kept, "zeros from {length} on");
    }
}

#[test]
fn damage_in_the_middle_costs_the_records_it_hits() {
    let folder = Folder::new();
    let (_segment, _, ends) = three_records(&folder);
    let whole = fs::read(file(&folder, 1)).unwrap();
    let damaged = writable(&folder);
    let record = ends[0]..ends[0] + 128 + 5_000;
    for (offset, byte) in record.clone().zip(&whole[record]) {
        let at = offset.try_into().unwrap();
        damaged.write_all_at(&[byte ^ 1], at).unwrap();
        let found = walk(&damaged, 1, FileOrigin::Made).unwrap();
        assert_eq!(names(&found.records), [100, 8_000].map(name), "a bit of byte {offset}");
        assert_eq!(found.lost_bytes, 8_192);
        damaged.write_all_at(&[*byte], at).unwrap();
    }
}

#[test]
fn a_seal_is_believed_when_all_of_it_agrees() {
    let folder = Folder::new();
    let (mut segment, mut appender, ends) = three_records(&folder);
    let reading = File::open(file(&folder, 1)).unwrap();
    assert_eq!(read_table(&reading, 1).unwrap(), None, "no seal yet");
    segment.seal(&mut appender).unwrap();
    let sealed = read_table(&reading, 1).unwrap().unwrap();
    assert_eq!(sealed, walk(&reading, 1, FileOrigin::Made).unwrap().records);
    assert_eq!(read_table(&reading, 2).unwrap(), None, "of another segment");
    let whole = fs::read(file(&folder, 1)).unwrap();
    assert_eq!(whole.len(), ends[2] + 2 * PAGE_BYTES);
    let spoiled = writable(&folder);
    let (table, seal) = (ends[2], ends[2] + PAGE_BYTES);
    let check = |what: &str, at: usize| {
        assert_eq!(read_table(&spoiled, 1).unwrap(), None, "{what} {at}");
        let found = walk(&spoiled, 1, FileOrigin::Made).unwrap();
        assert_eq!((names(&found.records), found.end), (names(&sealed), table.try_into().unwrap()));
    };
    for offset in (table..table + 4 * 128).chain(seal..seal + 128) {
        let at = offset.try_into().unwrap();
        spoiled.write_all_at(&[whole[offset] ^ 1], at).unwrap();
        check("a bit of byte", offset);
        spoiled.write_all_at(&[whole[offset]], at).unwrap();
    }
    for length in (table..whole.len()).rev() {
        spoiled.set_len(length.try_into().unwrap()).unwrap();
        check("cut to", length);
    }
}

#[test]
fn a_restart_cuts_the_torn_end_off_and_writes_on() {
    let folder = Folder::new();
    Rig::new(&folder).write(0..5);
    let path = file(&folder, 1);
    let whole = fs::read(&path).unwrap();
    for torn in [1, 4_000, PAGE_BYTES] {
        fs::write(&path, &whole[..whole.len() - torn]).unwrap();
        let rig = Rig::new(&folder);
        assert_eq!(rig.readable(0..5), [0, 1, 2, 3], "{torn} bytes are missing");
        assert_eq!(rig.stats().lost_bytes, u64::try_from(PAGE_BYTES - torn).unwrap());
        rig.write([4, 5]);
        drop(rig);
        let rig = Rig::new(&folder);
        assert_eq!(rig.readable(0..6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(rig.stats().lost_bytes, 0);
    }
}

#[test]
fn a_file_that_was_only_begun_is_removed() {
    let folder = Folder::new();
    Rig::new(&folder).write([1]);
    fs::write(file(&folder, 2), b"KVSR").unwrap();
    let rig = Rig::new(&folder);
    assert_eq!((files(&folder).len(), rig.stats().segments), (1, 1));
    rig.write([2]);
    assert_eq!(rig.readable([1, 2]), [1, 2]);
}

#[test]
fn a_damaged_block_is_a_miss_and_may_be_written_again() {
    // A bit of the header's name, of the padding behind it, of the payload, all of the second record.
    let header = 2 * PAGE_BYTES;
    for (what, offset, lost) in [
        ("name", header + 50, true),
        ("payload", header + 128 + 3, true),
        ("padding", header + 128 + SLOT_BYTES, false),
    ] {
        for sealed in [false, true] {
            let folder = Folder::new();
            let rig = Rig::new(&folder);
            rig.write(if sealed { 0..SEGMENT_RECORDS + 1 } else { 0..3 });
            flip(&folder, 1, offset);
            assert_eq!(rig.read(1).is_err(), lost, "{what}");
            assert_eq!(rig.readable([0, 2]), [0, 2]);
            let corrupt = u64::from(lost);
            assert_eq!((rig.stats().corrupt, rig.tier.contains(name(1))), (corrupt, !lost));
            if lost {
                assert_eq!(rig.read(1), Err(DiskReadError::Gone), "it is not tried again");
                rig.write([1]);
            }
            assert_eq!(rig.readable(0..3), [0, 1, 2]);
            drop(rig);
            let rig = Rig::new(&folder);
            assert_eq!(rig.readable(0..3), [0, 1, 2], "the newer copy counts, {what}");
        }
    }
}

#[test]
fn damage_of_a_sealed_segment_is_found_when_it_is_read() {
    let folder = Folder::new();
    Rig::new(&folder).write(0..SEGMENT_RECORDS + 1);
    flip(&folder, 1, PAGE_BYTES + 128);
    flip(&folder, 1, 3 * PAGE_BYTES);
    fs::write(file(&folder, 2), &fs::read(file(&folder, 2)).unwrap()[..PAGE_BYTES]).unwrap();
    let rig = Rig::new(&folder);
    assert_eq!(rig.stats().objects_held, 13, "the table was believed");
    let left: Vec<u64> = (0..14).filter(|number| ![0, 2, 13].contains(number)).collect();
    assert_eq!(rig.readable(0..14), left);
    assert_eq!((rig.stats().corrupt, rig.stats().objects_held), (2, 11));
}

#[test]
fn segments_cut_or_removed_behind_the_tiers_back_are_misses() {
    let folder = Folder::new();
    let rig = Rig::new(&folder);
    rig.write(0..SEGMENT_RECORDS + 1);
    File::options().write(true).open(file(&folder, 1)).unwrap().set_len(5_000).unwrap();
    assert_eq!(rig.read(1), Err(DiskReadError::Corrupt));
    fs::remove_file(file(&folder, 1)).unwrap();
    // A reader that still had the file open finds it too short.
    assert!(matches!(rig.read(2), Err(DiskReadError::Gone | DiskReadError::Corrupt)));
    assert_eq!(rig.readable([13]), [13]);
    assert!(!rig.tier.contains(name(1)) && !rig.tier.contains(name(2)));
}

#[test]
fn foreign_segments_are_left_alone_until_their_space_is_needed() {
    let folder = Folder::new();
    let clock = Arc::new(ManualClock::new());
    let others = [
        DiskWiring { layout: [8; 32], ..wiring(&clock) },
        DiskWiring { numerics: Numerics("cpu-fast-1".into()), ..wiring(&clock) },
    ];
    Rig::new(&folder).write([1]);
    for other in others {
        let foreign = DiskTier::start(&config(&folder), other).unwrap();
        assert!(!foreign.contains(name(1)));
        assert_eq!((foreign.stats().segments_foreign, foreign.stats().objects_held), (1, 0));
    }
    let whole = fs::read(file(&folder, 1)).unwrap();
    let spoil = |number: u64, offset: usize| {
        let mut bytes = whole.clone();
        bytes[offset] ^= 2;
        fs::write(file(&folder, number), bytes).unwrap();
    };
    spoil(2, 8);
    spoil(3, 100);
    // Room for one more segment is left, to the page.
    File::create(file(&folder, 4)).unwrap().set_len(1_000 * 4_096).unwrap();
    fs::copy(file(&folder, 1), file(&folder, 5)).unwrap();
    fs::write(folder.path().join("notes.txt"), "not ours").unwrap();
    let rig = Rig::new(&folder);
    assert_eq!((rig.stats().segments_foreign, rig.stats().segments), (4, 5));
    assert_eq!(rig.readable([1]), [1]);
    rig.write(10..10 + SEGMENT_RECORDS);
    assert_eq!(files(&folder).len(), 7, "nothing was touched: {:?}", files(&folder));
    rig.write([30]);
    let stats = rig.stats();
    assert_eq!((stats.segments_foreign, stats.segments_dropped), (1, 3));
    assert_eq!((stats.objects_dropped, stats.retention_violations), (0, 0));
    assert_eq!(rig.readable(0..40), [1].into_iter().chain(10..23).chain([30]).collect::<Vec<_>>());
    let left = [1, 5, 6, 7].map(|number| format!("{number:016x}.segment"));
    assert_eq!(files(&folder), [&left[..], &["notes.txt".to_owned()]].concat());
}

#[test]
fn foreign_segments_leave_by_the_age_of_their_files() {
    let folder = Folder::new();
    fs::write(file(&folder, 1), vec![1; 8_192]).unwrap();
    fs::write(file(&folder, 2), vec![1; 8_192]).unwrap();
    let changed = fs::metadata(file(&folder, 2)).unwrap().mtime();
    let clock = Arc::new(ManualClock::new());
    // The clock stands at the change, and what is asked for is the age of that.
    clock.advance(Duration::from_secs(changed.try_into().unwrap()));
    let config = DiskConfig { retention_s: 10, ..config(&folder) };
    let rig = Rig::at(&config, Arc::clone(&clock));
    assert_eq!(rig.stats().segments_foreign, 2);
    clock.advance(Duration::from_secs(11));
    rig.write([1]);
    let stats = rig.stats();
    assert_eq!((stats.segments_foreign, stats.segments_expired, stats.objects_expired), (0, 2, 0));
}
