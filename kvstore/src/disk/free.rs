//! Free files: those of segments that left, kept to be written on again.
//!
//! A new segment that takes one over has its extents already, so that the file system neither looks for space nor keeps a
//! journal of blocks that are written for the first time. A free file is called by the number its segment had, and every
//! number in its bytes is at most that: a segment that takes it over has a higher one, so nothing that lies in it is ever
//! taken for a record, table or seal of the new segment; but for the header of one that was about to take it over, which has no
//! records yet. Numbers begin above those of free files for the same reason.
//!
//! Free files count against the bound on bytes, and are the first to go when it is tight. There are none over an object
//! store, which may be reading a file that leaves, and none as long as bytes of an evicted tenant may lie in one.

use std::fs;
use std::io;
use std::path::Path;

use super::Shared;
use super::catalog::SegmentFile;
use super::format::wide;
use super::segment::{free_number_of, free_path, path};

/// Free files that are kept: segments leave one by one, at the pace at which others are begun.
pub(super) const FREE_FILES_MAX: usize = 4;

/// The free files of a folder, lowest number first. At most [`FREE_FILES_MAX`].
#[derive(Debug, Default)]
pub(super) struct FreeFiles(Vec<SegmentFile>);

impl FreeFiles {
    /// Those of a folder, ascending. More than are kept may have been there before a change of the bound.
    pub(super) fn list(folder: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder)? {
            let Some(number) = free_number_of(&entry?.file_name()) else { continue };
            let bytes = fs::metadata(free_path(folder, number)).map_or(0, |file| file.len());
            files.push(SegmentFile { number, bytes });
        }
        files.sort_unstable_by_key(|file| file.number);
        Ok(Self(files))
    }

    /// The highest number of one.
    pub(super) fn last(&self) -> Option<u64> {
        self.0.last().map(|file| file.number)
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Bytes of all.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|file| file.bytes).sum()
    }

    /// Bytes of the one that is taken next.
    fn next_bytes(&self) -> u64 {
        self.0.first().map_or(0, |file| file.bytes)
    }

    /// Removes files until so many are left, the last one first.
    pub(super) fn shrink(&mut self, folder: &Path, count_max: usize) -> io::Result<()> {
        while count_max < self.0.len() {
            let Some(file) = self.0.last() else { break };
            match fs::remove_file(free_path(folder, file.number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => self.0.pop(),
            };
        }
        Ok(())
    }
}

impl Shared {
    /// Makes the file of a segment that leaves a free one, if it is worth it and allowed. Else it stays.
    pub(super) fn free_file(&self, number: u64) -> io::Result<()> {
        let folder = &self.config.folder;
        let row = self.index.catalog().segment(number);
        let Some(row) = row.filter(|row| row.state.is_sealed()) else { return Ok(()) };
        let mut free = self.free.lock();
        // Under the lock: who evicts a tenant buries it first and then takes all free files away.
        let allowed = self.remote.is_none() && self.index.tombstone_count() == 0;
        // One that is much shorter has little of what it is kept for.
        let is_whole = self.config.segment_bytes / 2 <= row.bytes;
        if !allowed || !is_whole || FREE_FILES_MAX <= free.count() {
            return Ok(());
        }
        match fs::rename(path(folder, number), free_path(folder, number)) {
            // It is gone already.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                free.0.push(SegmentFile { number, bytes: row.bytes });
                free.0.sort_unstable_by_key(|file| file.number);
                Ok(())
            }
        }
    }

    /// A free file for a new segment. Its bytes are not counted any more.
    pub(super) fn take_free_file(&self) -> Option<u64> {
        let mut free = self.free.lock();
        (0 < free.count()).then(|| free.0.remove(0).number)
    }

    /// One was taken and may be there still: counts what there is.
    pub(super) fn list_free_files(&self) {
        // Refused: what is not counted is at most one file, until the next start.
        if let Ok(free) = FreeFiles::list(&self.config.folder) {
            *self.free.lock() = free;
        }
    }

    /// Removes all free files.
    pub(super) fn remove_free_files(&self) -> io::Result<()> {
        self.free.lock().shrink(&self.config.folder, 0)
    }

    /// Free files and their bytes.
    pub(super) fn free_files(&self) -> (u64, u64) {
        let free = self.free.lock();
        (wide(free.count()), free.bytes())
    }

    /// Bytes of all files. With a new segment in mind, that which takes over a free file has its bytes already.
    pub(super) fn file_bytes(&self) -> u64 {
        self.index.catalog().file_bytes() + self.free.lock().bytes()
    }

    /// Whether another segment fits so many bytes, after free files were removed that would not be taken over.
    pub(super) fn fits(&self, bytes_max: u64) -> io::Result<bool> {
        let held = self.index.catalog().file_bytes();
        let mut free = self.free.lock();
        while bytes_max < held + free.bytes() - free.next_bytes() && 1 < free.count() {
            let rest = free.count() - 1;
            free.shrink(&self.config.folder, rest)?;
        }
        Ok(held + free.bytes() - free.next_bytes() <= bytes_max)
    }
}
