//! Read-only mapping of weight files: the one unsafe operation a loader needs, kept inside this crate's fence.
#![expect(unsafe_code, reason = "mapping a file is unsafe in every crate; it is fenced here")]

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::{Mmap, MmapOptions};

/// A range of a file, mapped read-only. Pages are read on first use and shared between processes.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps `bytes` bytes from `begin` on; neither needs to be aligned.
    ///
    /// # Errors
    /// When the file cannot be opened or mapped; `UnexpectedEof` when it ends before the range does.
    pub fn open_range(path: &Path, begin: u64, bytes: usize) -> io::Result<Self> {
        let file = File::open(path)?;
        let end = begin.checked_add(bytes as u64).ok_or(io::ErrorKind::InvalidInput)?;
        if file.metadata()?.len() < end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut options = MmapOptions::new();
        options.offset(begin).len(bytes);
        // SAFETY: the map is read-only and private to this value, and the range was inside the file. What could break
        // it is another process truncating the file; the README of this crate tells operators to replace checkpoints
        // by rename, never in place.
        let map = unsafe { options.map(&file) }?;
        Ok(Self { map })
    }

    /// The bytes of the range.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use super::MappedFile;

    #[test]
    fn a_range_shows_its_bytes_and_no_others() {
        let path = std::env::temp_dir().join(format!("kvasir-map-{}", std::process::id()));
        let bytes: Vec<u8> = (0..10_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        fs::write(&path, &bytes).unwrap();
        for (begin, length) in [(0, 10_000), (1, 3), (4_097, 5_000), (9_999, 1)] {
            let map = MappedFile::open_range(&path, begin as u64, length).unwrap();
            assert_eq!(map.bytes(), &bytes[begin..begin + length]);
        }
        let beyond = MappedFile::open_range(&path, 9_999, 2).unwrap_err();
        fs::remove_file(&path).unwrap();
        assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);
    }
}
