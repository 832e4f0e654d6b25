//! The files as an operator's tool sees them: whole, torn, damaged, foreign, of a running and of a killed store.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use shared::{ManualClock, Numerics, Random, TenantTag};

use super::{Folder, Rig, SEGMENT_RECORDS, config, file, files, flip, put, wiring};
use crate::disk::append::Appender;
use crate::disk::format::{
    FileOrigin, Identity, PAGE, PAGE_BYTES, RecordHeader, RecordKind, SegmentHeader,
};
use crate::disk::io::{DiskIo, SystemDrive};
use crate::disk::segment::{OpenSegment, Walk, frame};
use crate::disk::survey::{
    Ages, BlockCopy, BlockFault, Checked, Checker, Damage, Exclusive, Finding, Repair,
    SegmentState, Survey, SurveyError, Usage, Watcher, fsck, segment_number,
};
use crate::disk::{DiskConfig, DiskTier, DiskWiring};
use crate::testing::{name, payload};

/// Keeps what is found.
#[derive(Default)]
struct Found {
    findings: Vec<Finding>,
    bytes: u64,
}

impl Watcher for Found {
    fn read(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    fn found(&mut self, finding: &Finding) {
        self.findings.push(finding.clone());
    }
}

fn survey(folder: &Folder) -> Survey {
    Survey::open(folder.path()).unwrap()
}

fn check(folder: &Folder) -> (Checked, Vec<(u64, Damage)>) {
    let mut found = Found::default();
    let checked = fsck(&survey(folder), &mut found);
    assert_eq!(checked.read_bytes, found.bytes);
    assert_eq!(checked.damaged, u64::try_from(found.findings.len()).unwrap());
    (checked, found.findings.iter().map(|finding| (finding.segment, finding.damage)).collect())
}

fn repair(folder: &Folder) -> Vec<Repair> {
    let mut repairs = Vec::new();
    let exclusive = Exclusive::lock(folder.path()).unwrap();
    exclusive.repair(&mut Found::default(), &mut |repair| repairs.push(repair.clone())).unwrap();
    let _found = exclusive.mend_catalog().unwrap();
    repairs
}

fn states(folder: &Folder) -> Vec<(u64, &'static str, usize)> {
    let survey = survey(folder);
    let segments = survey.segments();
    segments
        .map(|segment| (segment.number(), segment.state().as_str(), segment.blocks().len()))
        .collect()
}

fn cut(folder: &Folder, number: u64, pages: u64, bytes: u64) {
    let file = OpenOptions::new().write(true).open(file(folder, number)).unwrap();
    file.set_len(pages * PAGE + bytes).unwrap();
}

#[test]
fn a_store_that_was_stopped_is_whole() {
    let folder = Folder::new();
    Rig::new(&folder).write(0..30);
    assert_eq!(states(&folder), [(1, "sealed", 13), (2, "sealed", 13), (3, "open", 4)]);
    let (checked, found) = check(&folder);
    assert_eq!(found, []);
    let expected = Checked {
        segments: 3,
        blocks: 30,
        intact: 30,
        read_bytes: 30 * PAGE,
        ..Checked::default()
    };
    assert_eq!(checked, expected);
    let survey = survey(&folder);
    let segment = survey.segment(2).unwrap();
    let origin = segment.origin().unwrap();
    assert_eq!((origin.layout, origin.numerics), ([7; 32], Numerics("cpu-exact-1".into())));
    assert_eq!((segment.version(), segment.written()), (Some(1), Some((0, 0))));
    assert_eq!(segment.file_bytes(), fs::metadata(survey.path(2)).unwrap().len());
    let mut checker = Checker::new();
    for (number, copy) in (13..).zip(segment.blocks()) {
        assert_eq!((copy.name, copy.segment, copy.exact), (name(number), 2, true));
        segment.check(&copy, &mut checker).unwrap();
        assert_eq!(checker.payload(), payload(number));
        let other = BlockCopy { name: name(99), ..copy };
        assert_eq!(segment.check(&other, &mut checker), Err(BlockFault::Record));
    }
    assert_eq!(repair(&folder), []);
    assert_eq!(Rig::new(&folder).readable(0..30).len(), 30);
}

#[test]
fn folders_without_a_store_are_told_apart() {
    let folder = Folder::new();
    for refused in
        [Survey::open(folder.path()).unwrap_err(), Exclusive::lock(folder.path()).unwrap_err()]
    {
        assert!(refused.to_string().contains("no store ever wrote there"), "{refused}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
    let missing = Survey::open(&folder.path().join("nowhere")).unwrap_err();
    assert!(missing.to_string().contains("give the folder of a store node's disk"), "{missing}");
    for (name, number) in [
        ("0000000000000010.segment", Some(16)),
        ("0000000000000010.segment.damaged", None),
        ("16.segment", None),
    ] {
        assert_eq!(segment_number(name), number, "{name}");
    }
}

#[test]
fn a_running_store_can_be_looked_at_and_not_changed() {
    let folder = Folder::new();
    let rig = Rig::new(&folder);
    rig.write(0..15);
    assert_eq!(check(&folder).1, []);
    let refused = Exclusive::lock(folder.path()).unwrap_err();
    assert!(
        matches!(&refused, SurveyError::Locked { lock } if *lock == folder.path().join("lock"))
    );
    assert!(refused.to_string().contains("/lock; stop it first"), "{refused}");
    let survey = survey(&folder);
    let segment = survey.segment(1).unwrap();
    assert_eq!(rig.tier.evict_all(), 15);
    let copy = segment.blocks().next().unwrap();
    assert_eq!(segment.check(&copy, &mut Checker::new()), Ok(()), "it is held open");
    assert!(survey.segment(1).is_none() && survey.segments().next().is_none());
    assert_eq!(fsck(&survey, &mut Found::default()), Checked::default());
}

#[test]
fn a_store_that_is_being_written_shows_no_damage() {
    let folder = Folder::new();
    let rig = Rig::with(&DiskConfig { bytes_max: 1 << 20, ..config(&folder) });
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            rig.write(0..400);
            over.store(true, Ordering::SeqCst);
        });
        while !over.load(Ordering::SeqCst) {
            let mut found = Found::default();
            fsck(&survey(&folder), &mut found);
            assert_eq!(found.findings, []);
            let _usage = Usage::of(&survey(&folder), 0);
        }
    });
}

#[test]
fn a_torn_end_is_no_damage_and_can_be_cut() {
    for missing in [1, 4_000, PAGE - 1] {
        let folder = Folder::new();
        Rig::new(&folder).write(0..SEGMENT_RECORDS + 4);
        cut(&folder, 2, 4, PAGE - missing);
        let (checked, found) = check(&folder);
        assert_eq!((found, checked.torn_bytes), (vec![], PAGE - missing));
        assert_eq!(states(&folder)[1].1, "open");
        assert_eq!(repair(&folder), [Repair::Cut { segment: 2, bytes: PAGE - missing }]);
        assert_eq!(check(&folder).0.torn_bytes, 0);
        let rig = Rig::new(&folder);
        assert_eq!((rig.stats().lost_bytes, rig.readable(0..17).len()), (0, 16));
    }
}

/// What is done to a store of two sealed segments of 13 blocks and an open one with 4; what that is called, and which
/// blocks are left after it was mended.
struct Case {
    what: &'static str,
    harm: fn(&Folder),
    found: &'static [(u64, Damage)],
    lost: &'static [u64],
}

const FIRST: &[u64] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
const TABLE: usize = 14 * PAGE_BYTES;
const SEAL: usize = 15 * PAGE_BYTES;

const CASES: [Case; 16] = [
    Case {
        what: "header",
        harm: |folder| flip(folder, 1, 100),
        found: &[(1, Damage::Header)],
        lost: FIRST,
    },
    Case {
        what: "zeros",
        harm: |folder| fs::write(file(folder, 1), vec![0; 40_000]).unwrap(),
        found: &[(1, Damage::Header)],
        lost: FIRST,
    },
    Case {
        what: "another file's header",
        harm: |folder| _ = fs::copy(file(folder, 1), file(folder, 4)).unwrap(),
        found: &[(4, Damage::Header)],
        lost: &[],
    },
    Case {
        what: "a folder where a file should be",
        harm: |folder| fs::create_dir(file(folder, 4)).unwrap(),
        found: &[(4, Damage::Read)],
        lost: &[],
    },
    Case {
        what: "a payload",
        harm: |folder| flip(folder, 1, 2 * PAGE_BYTES + 130),
        found: &[(1, Damage::Payload)],
        lost: &[1],
    },
    Case {
        what: "the last payload",
        harm: |folder| flip(folder, 1, 13 * PAGE_BYTES + 130),
        found: &[(1, Damage::Payload)],
        lost: &[12],
    },
    Case {
        what: "a record's header",
        harm: |folder| flip(folder, 2, 3 * PAGE_BYTES + 50),
        found: &[(2, Damage::Record)],
        lost: &[15],
    },
    Case {
        what: "a payload of the open segment",
        harm: |folder| flip(folder, 3, 2 * PAGE_BYTES + 130),
        found: &[(3, Damage::Payload)],
        lost: &[27],
    },
    Case {
        what: "a record's header of the open segment",
        harm: |folder| flip(folder, 3, 2 * PAGE_BYTES + 50),
        found: &[(3, Damage::Record)],
        lost: &[27],
    },
    Case {
        what: "every payload of the open segment",
        harm: |folder| (1..5).for_each(|page| flip(folder, 3, page * PAGE_BYTES + 130)),
        // The last one may be what a stopped process left.
        found: &[(3, Damage::Payload), (3, Damage::Payload), (3, Damage::Payload)],
        lost: &[26, 27, 28, 29],
    },
    Case {
        what: "the seal",
        harm: |folder| flip(folder, 1, SEAL + 9),
        found: &[(1, Damage::Seal)],
        lost: &[],
    },
    Case {
        what: "the seal is missing",
        harm: |folder| cut(folder, 1, 15, 0),
        found: &[(1, Damage::Seal)],
        lost: &[],
    },
    Case {
        what: "the table",
        harm: |folder| flip(folder, 1, TABLE + 400),
        found: &[(1, Damage::Table)],
        lost: &[],
    },
    Case {
        what: "the table's header and a payload",
        harm: |folder| {
            flip(folder, 1, TABLE + 9);
            flip(folder, 1, 13 * PAGE_BYTES + 130);
        },
        found: &[(1, Damage::Table), (1, Damage::Payload)],
        lost: &[12],
    },
    Case {
        what: "the end is missing",
        harm: |folder| cut(folder, 2, 10, 77),
        found: &[(2, Damage::Unsealed)],
        lost: &[22, 23, 24, 25],
    },
    Case {
        what: "several",
        harm: |folder| {
            flip(folder, 1, PAGE_BYTES + 130);
            flip(folder, 1, 2 * PAGE_BYTES);
            flip(folder, 2, SEAL);
        },
        found: &[(1, Damage::Payload), (1, Damage::Record), (2, Damage::Seal)],
        lost: &[0, 1],
    },
];

#[test]
fn every_kind_of_damage_is_named_and_mended() {
    for Case { what, harm, found, lost } in CASES {
        let folder = Folder::new();
        Rig::new(&folder).write(0..30);
        harm(&folder);
        let findings = check(&folder).1;
        assert_eq!(findings, found, "{what}");
        let before: Vec<String> = files(&folder);
        assert!(!repair(&folder).is_empty(), "{what}");
        assert_eq!(files(&folder).len(), before.len(), "{what}: no file is removed");
        let (checked, left) = check(&folder);
        assert_eq!((left, checked.torn_bytes), (vec![], 0), "{what}");
        let rig = Rig::with(&DiskConfig { bytes_max: 1 << 20, ..config(&folder) });
        let expected: Vec<u64> = (0..30).filter(|number| !lost.contains(number)).collect();
        assert_eq!(rig.readable(0..30), expected, "{what}");
        assert_eq!(rig.stats().corrupt, 0, "{what}");
    }
}

#[test]
fn records_listed_where_none_can_lie_are_named() {
    let cases = [([1, 1], Damage::Overlap), ([0, 1], Damage::Bounds)];
    for (pages, expected) in cases {
        let folder = Folder::new();
        let identity = Identity::new([7; 32], &Numerics("x".into())).unwrap();
        let origin = FileOrigin::Made;
        let header = SegmentHeader { number: 1, created_unix_seconds: 5, identity, origin };
        let mut appender = Appender::new(&SystemDrive::of(DiskIo::Threads), 1 << 16);
        let mut segment =
            OpenSegment::create(folder.path(), &header, 1 << 16, &mut appender).unwrap();
        let record = |page| RecordHeader {
            tenant: TenantTag::NONE,
            sealing: None,
            kind: RecordKind::Block,
            exact: true,
            segment: 1,
            page,
            bytes: 20,
            checksum: crc32c::crc32c(&[3; 20]),
            written_unix_seconds: 1,
            name: name(1),
        };
        let mut bytes = Vec::new();
        frame(&record(1), &mut bytes, |bytes| bytes.extend_from_slice(&[3; 20]));
        segment.append(record(1), &bytes, &mut appender).unwrap();
        segment.settle(&mut appender).unwrap();
        let writable = File::options().read(true).write(true).open(file(&folder, 1)).unwrap();
        let walk = Walk { records: pages.map(record).to_vec(), end: 2 * PAGE, lost_bytes: 0 };
        OpenSegment::resume(writable, 1, walk).seal(&mut appender).unwrap();
        assert_eq!(check(&folder).1[0], (1, expected));
        assert!(!repair(&folder).is_empty());
        assert_eq!((check(&folder).1, states(&folder)), (vec![], vec![(1, "sealed", 1)]));
    }
}

#[test]
fn a_crash_while_a_segment_is_sealed_is_a_torn_end() {
    for harm in [
        (|folder| cut(folder, 2, 15, 0)) as fn(&Folder),
        |folder| cut(folder, 2, 14, 900),
        |folder| {
            let file = OpenOptions::new().write(true).open(file(folder, 2)).unwrap();
            file.write_all_at(&[0; PAGE_BYTES], 15 * PAGE).unwrap();
        },
    ] {
        let folder = Folder::new();
        Rig::new(&folder).write(0..27);
        fs::remove_file(file(&folder, 3)).unwrap();
        assert_eq!(states(&folder)[1], (2, "sealed", 13));
        harm(&folder);
        let (checked, found) = check(&folder);
        assert_eq!((found, states(&folder)[1]), (vec![], (2, "open", 13)));
        assert!(0 < checked.torn_bytes);
        assert!(matches!(repair(&folder)[..], [Repair::Cut { segment: 2, .. }]));
        assert_eq!(Rig::new(&folder).readable(0..26).len(), 26);
    }
}

#[test]
fn segments_of_others_and_begun_ones_are_no_damage() {
    let folder = Folder::new();
    Rig::new(&folder).write(0..3);
    // Left unsealed by another engine, which is no sign of damage.
    let clock = Arc::new(ManualClock::new());
    let other = DiskWiring { numerics: Numerics("cpu-fast-1".into()), ..wiring(&clock) };
    let tier = DiskTier::start(&config(&folder), other).unwrap();
    drop(tier);
    let rig = Rig::with(&config(&folder));
    rig.write(3..20);
    drop(rig);
    let whole = fs::read(file(&folder, 1)).unwrap();
    fs::write(file(&folder, 8), &whole[..100]).unwrap();
    let mut newer = whole;
    newer[8] = 2;
    fs::write(file(&folder, 7), newer).unwrap();
    let (checked, found) = check(&folder);
    assert_eq!((found, checked.foreign, checked.unborn), (vec![], 1, 1));
    let survey = survey(&folder);
    assert_eq!(survey.segment(7).unwrap().state(), &SegmentState::Foreign { version: 2 });
    assert_eq!(survey.segment(7).unwrap().version(), Some(2));
    let before = files(&folder);
    assert_eq!((repair(&folder), files(&folder)), (vec![], before));
}

#[test]
fn all_bytes_are_accounted_for() {
    let folder = Folder::new();
    let rig = Rig::new(&folder);
    rig.clock.advance(std::time::Duration::from_secs(1_000));
    rig.write(0..20);
    flip(&folder, 1, PAGE_BYTES + 130);
    assert!(rig.read(0).is_err());
    rig.clock.advance(std::time::Duration::from_secs(7_200));
    rig.write([0, 20]);
    drop(rig);
    cut(&folder, 2, 11, 50);
    let usage = Usage::of(&survey(&folder), 8_300);
    let slot = u64::try_from(crate::testing::SLOT_BYTES).unwrap();
    assert_eq!((usage.live_blocks, usage.live_bytes), (21, 21 * slot));
    assert_eq!((usage.superseded_blocks, usage.superseded_bytes), (1, slot));
    assert_eq!(usage.ages, Ages { hour: 2 * slot, day: 19 * slot, ..Ages::default() });
    assert_eq!(usage.lost_bytes, PAGE + 50);
    let parts = usage.live_bytes + usage.superseded_bytes + usage.padding_bytes;
    assert_eq!(parts + usage.structure_bytes + usage.lost_bytes, usage.file_bytes);
    let on_disk: u64 =
        (1..3).map(|number| fs::metadata(file(&folder, number)).unwrap().len()).sum();
    assert_eq!(usage.file_bytes, on_disk);
    assert_eq!((usage.states["sealed"].segments, usage.states["open"].bytes), (1, 11 * PAGE + 50));
    assert!(usage.amplification().unwrap() > 100.0, "tiny blocks in whole pages");
    assert_eq!(Usage::default().amplification(), None);
}

#[test]
fn removed_segments_are_gone_for_the_next_start() {
    let folder = Folder::new();
    Rig::new(&folder).write(0..30);
    let exclusive = Exclusive::lock(folder.path()).unwrap();
    let bytes = exclusive.remove(1).unwrap();
    assert_eq!((bytes, exclusive.remove(1).unwrap()), (16 * PAGE, 0));
    drop(exclusive);
    assert_eq!(Rig::new(&folder).readable(0..30), (13..30).collect::<Vec<_>>());
}

#[test]
fn random_damage_is_found_mended_and_never_read() {
    for seed in 0..20 {
        let folder = Folder::new();
        Rig::new(&folder).write(0..30);
        let mut generator = Random::new(seed);
        for _ in 0..1 + generator.below(6) {
            let number = 1 + u64::try_from(generator.below(3)).unwrap();
            let length = fs::read(file(&folder, number)).unwrap().len();
            flip(&folder, number, generator.below(length));
        }
        check(&folder);
        repair(&folder);
        let (checked, found) = check(&folder);
        assert_eq!((found, checked.torn_bytes), (vec![], 0), "seed {seed}");
        let rig = Rig::new(&folder);
        let readable = rig.readable(0..30);
        assert_eq!(u64::try_from(readable.len()).unwrap(), checked.blocks, "seed {seed}");
        assert_eq!(rig.stats().corrupt, 0, "seed {seed}");
    }
}

/// The file that makes the test below write, in the folder it is started in.
const WRITE_HERE: &str = "write-here";

/// Not a test by itself: the process that the next one kills. It writes when it is told to by a file.
#[test]
fn a_process_that_writes_until_it_is_killed() {
    let here = std::env::current_dir().unwrap();
    if !here.join(WRITE_HERE).exists() {
        return;
    }
    let clock = Arc::new(ManualClock::new());
    let config =
        DiskConfig { folder: here.join("store"), bytes_max: 1 << 30, ..config(&Folder::new()) };
    let tier = DiskTier::start(&config, wiring(&clock)).unwrap();
    let pool = crate::testing::pool(1, 64);
    // New blocks every time, and fewer than the write budget takes in all rounds.
    let first = 500 * tier.stats().segments;
    for number in first..first + 500 {
        tier.store(put(crate::testing::store(&pool, number)), usize::MAX);
    }
    // Ends with the process that reads along, if it does not kill this one.
    assert_eq!(std::io::stdin().lines().count(), 0);
}

#[test]
fn a_killed_store_has_no_damage() {
    let folder = Folder::new();
    fs::write(folder.path().join(WRITE_HERE), "").unwrap();
    let store = folder.path().join("store");
    for round in 0..12 {
        let bytes = |path: &Path| {
            let survey = Survey::open(path).ok()?;
            Some((*survey.numbers().last()?, survey.segments().last()?.blocks().len()))
        };
        let before = bytes(&store);
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "disk::tests::survey::a_process_that_writes_until_it_is_killed"])
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while bytes(&store) == before {
            assert_eq!(writer.try_wait().unwrap(), None, "it writes");
            thread::yield_now();
        }
        writer.kill().unwrap();
        writer.wait().unwrap();
        let mut found = Found::default();
        let checked = fsck(&Survey::open(&store).unwrap(), &mut found);
        assert_eq!(found.findings, [], "round {round}");
        assert!(0 < checked.segments, "round {round}");
    }
}
