//! The object store below the drive: over a mounted folder, over a real S3 server that the tests start, and over one that
//! fails in ways that are chosen.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::bounded;
use object_store::local::LocalFileSystem;
use shared::ManualClock;

use super::{Below, Connect, ObjectConfig, ObjectStats};
use crate::disk::io::SystemDrive;
use crate::disk::stats::DiskReadError;
use crate::disk::tests::{Folder, config as disk_config, put, wiring};
use crate::disk::{DiskConfig, DiskRead, DiskReadDone, DiskTier};
use crate::pool::{Pool, Seal};
use crate::testing::{bytes_of, name, next, payload, pool, store};

mod damage;
mod faulty;
mod lives;
mod owners;
mod parts;
mod s3;

pub(crate) use faulty::Faults;
use faulty::Faulty;

/// More than anything in a test takes.
const WAIT: Duration = Duration::from_secs(30);
/// Records of a test's segment.
const SEGMENT_RECORDS: u64 = 13;
/// The retention of the drive in tests.
pub(crate) const RETENTION: Duration = Duration::from_secs(1_000);

/// Where the objects of a test lie.
struct Place {
    /// Its objects are files below this folder.
    folder: Folder,
    /// Speaks for the folder; None when it is mounted.
    server: Option<s3::Server>,
}

impl Place {
    fn mounted() -> Self {
        Self { folder: Folder::new(), server: None }
    }

    fn served() -> Self {
        let folder = Folder::new();
        let server = s3::Server::start(folder.path());
        Self { folder, server: Some(server) }
    }

    /// Every kind of it.
    fn all() -> [Self; 2] {
        [Self::mounted(), Self::served()]
    }

    fn config(&self) -> ObjectConfig {
        let config = match &self.server {
            None => {
                let url = format!("file://{}", self.folder.path().display());
                ObjectConfig { url, ..ObjectConfig::default() }
            }
            Some(server) => server.config(),
        };
        ObjectConfig {
            node: "store-1".to_owned(),
            retention_hours: 1,
            read_ms_max: 30_000,
            ..config
        }
    }

    /// The files of all segments, ascending.
    fn objects(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        walk(self.folder.path(), &mut found);
        found.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
        found.sort_unstable();
        found
    }
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// A disk tier over an object store.
struct Rig {
    tier: DiskTier,
    clock: Arc<ManualClock>,
    pool: Pool,
    target: Pool,
}

fn config(folder: &Folder, object: ObjectConfig) -> DiskConfig {
    DiskConfig { retention_s: RETENTION.as_secs(), object, ..disk_config(folder) }
}

impl Rig {
    fn start(config: &DiskConfig, clock: &Arc<ManualClock>) -> Self {
        Self::over(config, clock, None)
    }

    fn over(config: &DiskConfig, clock: &Arc<ManualClock>, connect: Option<Connect>) -> Self {
        let drive = |folder: &Path| Arc::new(SystemDrive::probe(folder)) as _;
        let tier = DiskTier::start_over(config, wiring(clock), drive, connect).unwrap();
        Self { tier, clock: Arc::clone(clock), pool: pool(1, 64), target: pool(2, 1) }
    }

    /// Writes and makes durable, one block after the other.
    fn write(&self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.tier.store(put(store(&self.pool, number)), usize::MAX);
            assert!(self.tier.flush(WAIT));
        }
    }

    fn settle(&self) -> bool {
        self.tier.settle_objects(WAIT)
    }

    /// Lets the retention of the drive pass, and has it look.
    fn outlive(&self, with: u64) {
        self.clock.advance(RETENTION + Duration::from_secs(1));
        self.write([with]);
    }

    fn below(&self, number: u64) -> Option<Below> {
        self.tier.places(&[name(number)])[0]
    }

    fn read(&self, number: u64) -> Result<Vec<u8>, DiskReadError> {
        let (done, answers) = bounded(1);
        let target = self.target.reserve(1).unwrap().pop().unwrap();
        let read = DiskRead { name: name(number), target };
        match self.below(number) {
            None => return Err(DiskReadError::Gone),
            Some(Below::Drive) => self.tier.read(read, &done).unwrap(),
            Some(Below::Objects) => self.tier.read_object(read, &done).unwrap(),
        }
        let DiskReadDone { name: read, target, result } = next(&answers);
        assert_eq!(read, name(number));
        let found = result?;
        let seal = Seal { name: read, exact: found.exact, bytes: found.bytes };
        let sealed = self.target.seal_unnamed(target, seal);
        assert_eq!(sealed.descriptor().checksum, found.checksum);
        Ok(bytes_of(&sealed))
    }

    /// Which of the numbers can be read; what is read has the right bytes.
    fn readable(&self, numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let readable = numbers.into_iter().filter(|number| match self.read(*number) {
            Ok(bytes) => {
                assert_eq!(bytes, payload(*number), "block {number}");
                true
            }
            Err(_) => false,
        });
        readable.collect()
    }

    fn stats(&self) -> ObjectStats {
        self.tier.stats().objects.unwrap()
    }

    fn assert_sound(&self) {
        assert!(self.tier.shared.index.catalog().audit().unwrap().is_sound());
    }
}

/// Two segments whose blocks lie in the object store alone: 0..26. Block 100 lies on the drive.
fn remote_only(config: &DiskConfig, clock: &Arc<ManualClock>, connect: Option<Connect>) -> Rig {
    let rig = Rig::over(config, clock, connect);
    rig.write(0..2 * SEGMENT_RECORDS + 1);
    assert!(rig.settle());
    rig.outlive(100);
    assert_eq!(rig.below(0), Some(Below::Objects));
    assert_eq!(rig.below(100), Some(Below::Drive));
    rig
}

/// A mounted folder behind faults.
fn faulty(place: &Place, faults: &Arc<Faults>) -> Connect {
    let (folder, faults) = (place.folder.path().to_owned(), Arc::clone(faults));
    Arc::new(move || {
        let inner = Arc::new(LocalFileSystem::new_with_prefix(&folder)?);
        Ok(Arc::new(Faulty::new(inner, Arc::clone(&faults))))
    })
}

fn empty(folder: &Folder) {
    fs::remove_dir_all(folder.path()).unwrap();
    fs::create_dir(folder.path()).unwrap();
}

/// A mounted folder behind faults, below a drive, for tests of what lies above.
pub(crate) struct Remote {
    pub(crate) faults: Arc<Faults>,
    pub(crate) clock: Arc<ManualClock>,
    place: Place,
    folder: Folder,
}

impl Remote {
    pub(crate) fn new() -> Self {
        Self {
            faults: Arc::new(Faults::default()),
            clock: Arc::new(ManualClock::new()),
            place: Place::mounted(),
            folder: Folder::new(),
        }
    }

    /// Reads end after half a second, so that those that hang do.
    pub(crate) fn start(&self) -> DiskTier {
        let object = ObjectConfig { read_ms_max: 500, ..self.place.config() };
        let drive = |folder: &Path| Arc::new(SystemDrive::probe(folder)) as _;
        let connect = Some(faulty(&self.place, &self.faults));
        let config = config(&self.folder, object);
        DiskTier::start_over(&config, wiring(&self.clock), drive, connect).unwrap()
    }
}
