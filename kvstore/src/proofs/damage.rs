//! Files that were torn, flipped, cut, swapped or put back behind the store's back, before a start and while it runs.
//!
//! Whatever happened to a file costs what lies in it at most: what is found has the bytes of a version of its name, every
//! block of an untouched file is found, and the store goes on writing and starts again.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use shared::{ManualClock, OfferOutcome, Random};

use super::support::{Rig, block, config};
use crate::disk::io::{Drive, SystemDrive};
use crate::disk::tests::{Folder, wiring};
use crate::disk::{DiskConfig, DiskIo, DiskTier};
use crate::pool::SealedSlot;
use crate::testing::name;

const CASES: u64 = 120;
/// Cases at a time: most of each is waiting for the drive.
const LANES: u64 = 4;
/// Blocks: two complete segments and one that is written on.
const BLOCKS: u64 = 30;
const PAGE: usize = 4_096;
const FLUSH: Duration = Duration::from_secs(20);

/// The files of a store, by name.
type Segments = Vec<(String, Vec<u8>)>;

/// The files of a store, and two other states in which the same blocks had other bytes.
struct Files {
    now: Segments,
    /// Earlier segments of the same store: they have lower numbers.
    before: Segments,
    /// Segments with the same numbers, as from a backup of another time.
    aside: Segments,
}

fn open(folder: &Path) -> (Rig, Arc<DiskTier>) {
    open_by(folder, DiskIo::RingDirect)
}

fn open_by(folder: &Path, io: DiskIo) -> (Rig, Arc<DiskTier>) {
    let disk = DiskConfig {
        bytes_max: 1 << 30,
        segment_bytes: 1 << 16,
        queue_objects_max: 64,
        sync_ms: 60_000,
        reads_max: 64,
        onboard_ms_max: 60_000,
        ..DiskConfig::in_folder(folder.to_owned())
    };
    let wiring = wiring(&Arc::new(ManualClock::new()));
    let drive = |_: &Path| -> Arc<dyn Drive> { Arc::new(SystemDrive::of(io)) };
    let disk = Arc::new(DiskTier::start_on(&disk, wiring, drive).unwrap());
    (Rig::new(Some(Arc::clone(&disk)), config(), |transport| transport), disk)
}

/// Writes all blocks in this version and makes them durable.
fn write(rig: &Rig, disk: &DiskTier, version: u64) {
    for number in 0..BLOCKS {
        let held: SealedSlot = rig.compute(block(number), version);
        assert_eq!(rig.offer(&[held.descriptor()]), [OfferOutcome::Stored]);
        drop(held);
        assert!(disk.flush(FLUSH));
        assert!(disk.contains(name(number)), "block {number}");
    }
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "segment"))
        .collect();
    paths.sort_unstable();
    paths
}

fn contents(folder: &Path) -> Segments {
    let file_name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    segments(folder).iter().map(|path| (file_name(path), fs::read(path).unwrap())).collect()
}

impl Files {
    fn new() -> Self {
        let (before, now) = Self::written([0, 1]);
        let (_, aside) = Self::written([2, 3]);
        Self { now, before, aside }
    }

    /// The files after all blocks were written in one version, and after they were evicted and written in another.
    fn written(versions: [u64; 2]) -> (Segments, Segments) {
        let folder = Folder::new();
        let (rig, disk) = open(folder.path());
        let [first, second] = versions.map(|version| {
            write(&rig, &disk, version);
            let files = contents(folder.path());
            assert_eq!(files.len(), 3, "two complete segments and the last");
            assert_eq!(u64::try_from(rig.tier.evict_disk()), Ok(BLOCKS));
            let _evicted = rig.tier.evict_all() + rig.blocks.evict_all();
            files
        });
        (first, second)
    }

    fn put(&self, folder: &Path) {
        for (name, bytes) in &self.now {
            fs::write(folder.join(name), bytes).unwrap();
        }
    }

    /// The blocks that have a record in a file: its record begins at a page with magic and kind, and has the name 48 bytes
    /// behind.
    fn blocks(&self, file: usize) -> BTreeSet<u64> {
        let (_, bytes) = &self.now[file];
        let there = |number: &u64| {
            let wanted = name(*number).0;
            bytes
                .chunks(PAGE)
                .skip(1)
                .any(|page| page.starts_with(b"KVRC\x01") && page.get(48..64) == Some(&wanted[..]))
        };
        (0..BLOCKS).filter(there).collect()
    }
}

/// Does one thing to the files of a store, and says what and which files are not as they were.
fn damage(files: &Files, folder: &Path, generator: &mut Random) -> (String, BTreeSet<usize>) {
    let file = generator.below(files.now.len());
    let other = (file + 1 + generator.below(files.now.len() - 1)) % files.now.len();
    let path = |index: usize| folder.join(&files.now[index].0);
    let (bytes, length) = (&files.now[file].1, files.now[file].1.len());
    let pages = length / PAGE;
    let handle = File::options().read(true).write(true).open(path(file)).unwrap();
    let write = |bytes: &[u8], at: usize| handle.write_all_at(bytes, u64::try_from(at).unwrap());
    let page = |index: usize| &bytes[index * PAGE..(index + 1) * PAGE];
    let kind = generator.below(13);
    let at = generator.below(length);
    // Half of all places within the first bytes of a page, where the headers are.
    let at = if generator.below(2) == 0 { at } else { at / PAGE * PAGE + at % 180 };
    let (one, two) = (generator.below(pages), generator.below(pages));
    let what = match kind {
        0..4 => {
            write(&[bytes[at] ^ (1 << generator.below(8))], at).unwrap();
            format!("a bit of byte {at} of file {file}")
        }
        4 => {
            handle.set_len(u64::try_from(at).unwrap()).unwrap();
            format!("file {file} cut to {at} bytes")
        }
        5 => {
            write(&vec![0; length - at], at).unwrap();
            format!("file {file} torn: zeros from {at} on")
        }
        6 => {
            write(&[0; PAGE], one * PAGE).unwrap();
            format!("page {one} of file {file} was never written")
        }
        7 => {
            write(page(one), two * PAGE).unwrap();
            write(page(two), one * PAGE).unwrap();
            format!("pages {one} and {two} of file {file} swapped")
        }
        8 => {
            let (_, foreign) = &files.now[other];
            let page = &foreign[two % (foreign.len() / PAGE) * PAGE..][..PAGE];
            write(page, one * PAGE).unwrap();
            format!("page {one} of file {file} comes from file {other}")
        }
        9 => {
            fs::write(path(file), &files.now[other].1).unwrap();
            fs::write(path(other), bytes).unwrap();
            return (format!("files {file} and {other} swapped"), BTreeSet::from([file, other]));
        }
        10 => {
            let (what, others) = [("earlier", &files.before), ("other", &files.aside)][one % 2];
            fs::write(path(file), &others[file].1).unwrap();
            format!("an {what} segment in the place of file {file}")
        }
        11 => {
            let (name, stale) = &files.before[file];
            fs::write(folder.join(name), stale).unwrap();
            return (format!("an earlier segment {name} put back"), BTreeSet::new());
        }
        _ => {
            fs::remove_file(path(file)).unwrap();
            format!("file {file} removed")
        }
    };
    (what, BTreeSet::from([file]))
}

/// What is found is right, and of untouched files everything is found. Answers how many blocks were found.
fn check(files: &Files, rig: &Rig, touched: &BTreeSet<usize>, what: &str) -> usize {
    let found: BTreeSet<u64> =
        rig.versions(0..BLOCKS).into_iter().map(|(number, _)| number).collect();
    for file in (0..files.now.len()).filter(|file| !touched.contains(file)) {
        let lost: Vec<u64> = files.blocks(file).difference(&found).copied().collect();
        assert!(lost.is_empty(), "{what}: blocks {lost:?} of file {file} are lost");
    }
    found.len()
}

/// The store takes more, and has it after a restart.
fn goes_on(rig: &Rig, disk: &DiskTier, what: &str) {
    assert_eq!(rig.store(500..504), [OfferOutcome::Stored; 4], "{what}");
    assert!(disk.flush(FLUSH), "{what}");
    assert!((500..504).all(|number| disk.contains(name(number))), "{what}");
    rig.assert_at_rest();
}

/// Damages a copy of the files, before a start or while it runs, and asks for everything, also after one more
/// start. Answers how many blocks were found then.
fn check_case(files: &Files, seed: u64) -> usize {
    let mut generator = Random::new(seed);
    let folder = Folder::new();
    files.put(folder.path());
    let before_start = generator.below(3) != 0;
    let io = [DiskIo::RingDirect, DiskIo::Threads][usize::try_from(seed % 3 / 2).unwrap()];
    let open = |folder: &Path| open_by(folder, io);
    let (what, touched, rig, disk) = if before_start {
        // Half of the stores have a catalog, which believes what it was told of the files.
        if generator.below(2) == 0 {
            drop(open(folder.path()));
        }
        let (what, touched) = damage(files, folder.path(), &mut generator);
        let (rig, disk) = open(folder.path());
        (format!("{what}, before a start"), touched, rig, disk)
    } else {
        let (rig, disk) = open(folder.path());
        let (what, touched) = damage(files, folder.path(), &mut generator);
        (format!("{what}, while running"), touched, rig, disk)
    };
    let what = format!("{what}, seed {seed}");
    // Whoever spoils the very file that is being written may lose what is written to it.
    let spoilt = !before_start && touched.contains(&(files.now.len() - 1));
    let _found: usize = check(files, &rig, &touched, &what);
    goes_on(&rig, &disk, &what);
    drop((rig, disk));
    let (rig, disk) = open(folder.path());
    let found = check(files, &rig, &touched, &what);
    let later = rig.versions(500..504).len();
    assert!(later == 4 || spoilt, "{what}: written after it, lost by a restart");
    drop((rig, disk));
    found
}

#[test]
fn damaged_files_cost_what_lies_in_them_and_no_wrong_byte() {
    let files = Files::new();
    assert_eq!((0..3).map(|file| files.blocks(file).len()).sum::<usize>(), 30);
    let first = 20_261_203;
    println!("seeds from {first} on");
    let found: Vec<usize> = thread::scope(|scope| {
        let lane = |lane: u64| {
            let seeds = (first..first + CASES).filter(move |seed| seed % LANES == lane);
            scope.spawn(|| seeds.map(|seed| check_case(&files, seed)).sum::<usize>())
        };
        let lanes: Vec<_> = (0..LANES).map(lane).collect();
        lanes.into_iter().map(|lane| lane.join().expect("the failure is printed above")).collect()
    });
    let all = usize::try_from(CASES * BLOCKS).unwrap();
    let found: usize = found.into_iter().sum();
    println!("{found} of {all} blocks survived");
    assert!(found < all * 9 / 10 && all / 2 < found, "damage that damages too little, or too much");
}
