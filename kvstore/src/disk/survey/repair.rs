//! What changes files, under the store's own lock. Nothing is deleted but by [`Exclusive::remove`].

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::fsck::check_segment;
use super::{Checked, Checker, Segment, SegmentState, Survey, SurveyError, Watcher};
use crate::disk::DiskError;
use crate::disk::append::Appender;
use crate::disk::folder::{LOCK_FILE, lock};
use crate::disk::format::{FileOrigin, wide};
use crate::disk::io::{DiskIo, SystemDrive};
use crate::disk::segment::{self, OpenSegment};

/// Names that are tried for a file that is set aside; more of one segment are not there by accident.
const ASIDE_MAX: u32 = 100;

/// What was done to a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// What lay behind its last whole record was cut off.
    Cut {
        /// The segment.
        segment: u64,
        /// The bytes.
        bytes: u64,
    },
    /// A new table of its intact records and a new seal took the place of what lay behind them.
    Sealed {
        /// The segment.
        segment: u64,
        /// The records that are left.
        records: u64,
    },
    /// Its file has another name and is no segment any more.
    SetAside {
        /// The segment.
        segment: u64,
        /// The new name.
        path: PathBuf,
    },
}

/// The folder, locked against stores and other tools until it is dropped.
#[derive(Debug)]
pub struct Exclusive {
    survey: Survey,
    _lock: File,
}

impl Exclusive {
    /// Takes the store's lock and lists the folder, which must be there.
    ///
    /// # Errors
    /// [`SurveyError::Locked`] while a store runs on it; others when it cannot be listed or locked.
    pub fn lock(folder: &Path) -> Result<Self, SurveyError> {
        // First, so that no lock file is made where there is no store.
        drop(Survey::open(folder)?);
        let path = folder.join(LOCK_FILE);
        let lock = lock(folder).map_err(|error| match error {
            DiskError::Locked { .. } => SurveyError::Locked { lock: path.clone() },
            DiskError::File { what, path, source } => SurveyError::File { what, path, source },
            other => file_error("lock", &path)(io::Error::other(other)),
        })?;
        // Again: a store may have written until it was locked.
        Ok(Self { survey: Survey::open(folder)?, _lock: lock })
    }

    /// What is in it.
    #[must_use]
    pub fn survey(&self) -> &Survey {
        &self.survey
    }

    /// Removes a segment's file for good and gives its size. One that is gone is no error. Durable on return. Blocks.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn remove(&self, number: u64) -> Result<u64, SurveyError> {
        let path = self.survey.path(number);
        let bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            removed => removed.map_err(file_error("remove", &path))?,
        }
        self.sync()?;
        Ok(bytes)
    }

    /// Checks every segment as [`super::fsck`] does and mends each damaged one: a torn end is cut off, blocks that fail
    /// their check leave the table, and a file that cannot be read as a segment gets another name. Segments of another
    /// version and unborn ones are left alone. The catalog still knows what was there before: call
    /// [`Exclusive::mend_catalog`] behind it. Blocks.
    ///
    /// # Errors
    /// When the system refuses a change; what was mended before stays so.
    pub fn repair(
        &self,
        watcher: &mut dyn Watcher,
        repaired: &mut dyn FnMut(&Repair),
    ) -> Result<Checked, SurveyError> {
        let mut checked = Checked::default();
        let mut checker = Checker::new();
        for segment in self.survey.segments() {
            let found = check_segment(&self.survey, &segment, &mut checker, watcher);
            if let Some(repair) = self.mend(&segment, &found)? {
                repaired(&repair);
            }
            checked.add(&found);
        }
        Ok(checked)
    }

    fn mend(&self, segment: &Segment, found: &Checked) -> Result<Option<Repair>, SurveyError> {
        let number = segment.number;
        if found.damaged == 0 && found.torn_bytes == 0 {
            return Ok(None);
        }
        if matches!(segment.state, SegmentState::Damaged { .. }) {
            return self.set_aside(number).map(Some);
        }
        match self.rewrite_end(segment, found) {
            Ok(repair) => Ok(Some(repair)),
            // It was read before the change, and is not any more.
            Err(error) if is_unreadable(&error) => self.set_aside(number).map(Some),
            Err(error) => Err(file_error("mend", &self.survey.path(number))(error)),
        }
    }

    fn rewrite_end(&self, segment: &Segment, found: &Checked) -> io::Result<Repair> {
        let number = segment.number;
        let file = OpenOptions::new().read(true).write(true).open(self.survey.path(number))?;
        let origin = segment.header.map_or(FileOrigin::Made, |header| header.origin);
        let walk = segment::walk(&file, number, origin)?;
        file.set_len(walk.end)?;
        file.sync_all()?;
        if found.damaged == 0 {
            return Ok(Repair::Cut { segment: number, bytes: segment.file_bytes - walk.end });
        }
        let records = wide(walk.records.len());
        let mut appender = Appender::new(&SystemDrive::of(DiskIo::Threads), segment.file_bytes);
        OpenSegment::resume(file, number, walk).seal(&mut appender)?;
        Ok(Repair::Sealed { segment: number, records })
    }

    fn set_aside(&self, number: u64) -> Result<Repair, SurveyError> {
        let from = self.survey.path(number);
        let name = |count: u32| match count {
            0 => from.with_extension("segment.damaged"),
            count => from.with_extension(format!("segment.{count}.damaged")),
        };
        let free = (0..ASIDE_MAX).map(name).find(|path| fs::symlink_metadata(path).is_err());
        let path = free.ok_or_else(|| {
            let source =
                io::Error::new(io::ErrorKind::AlreadyExists, "move older *.damaged files away");
            file_error("set aside", &from)(source)
        })?;
        fs::rename(&from, &path).map_err(file_error("set aside", &from))?;
        self.sync()?;
        Ok(Repair::SetAside { segment: number, path })
    }

    fn sync(&self) -> Result<(), SurveyError> {
        let folder = &self.survey.folder;
        segment::sync_folder(folder).map_err(file_error("make changes durable in", folder))
    }
}

/// Whether reading failed, rather than the change: a full or read-only drive is no reason to set a file aside.
fn is_unreadable(error: &io::Error) -> bool {
    let input_output = rustix::io::Errno::IO.raw_os_error();
    error.raw_os_error() == Some(input_output) || error.kind() == io::ErrorKind::UnexpectedEof
}

pub(super) fn file_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SurveyError {
    let path = path.to_owned();
    move |source| SurveyError::File { what, path, source }
}
