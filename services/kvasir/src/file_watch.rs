//! Files that a running server reads again when they change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// When and as what a file was last changed: content, permissions or name. None when there is no such file.
type Stamp = Option<(i64, i64, u64, u64)>;

/// What was last taken of some files that belong together.
#[derive(Debug)]
pub(crate) struct FileWatch {
    paths: Vec<PathBuf>,
    taken: Vec<Stamp>,
    /// The files as they were when the last fault was told.
    told: Option<Vec<Stamp>>,
}

impl FileWatch {
    /// To be made before the files are read for the first time, so that no change in between is missed. Blocks on them.
    pub(crate) fn new(paths: &[&Path]) -> Self {
        let paths: Vec<_> = paths.iter().map(|path| path.to_path_buf()).collect();
        let taken = paths.iter().map(|path| stamp(path)).collect();
        Self { paths, taken, told: None }
    }

    /// Reads the files unless they are what was last taken; a read that failed is tried again with every look. A fault is
    /// told once per change. Blocks on them.
    pub(crate) fn look<T>(
        &mut self,
        read: impl FnOnce(&[PathBuf]) -> anyhow::Result<T>,
    ) -> Option<anyhow::Result<T>> {
        let now: Vec<_> = self.paths.iter().map(|path| stamp(path)).collect();
        if now == self.taken {
            return None;
        }
        match read(&self.paths) {
            Ok(value) => {
                (self.taken, self.told) = (now, None);
                Some(Ok(value))
            }
            Err(_) if self.told.as_ref() == Some(&now) => None,
            Err(error) => {
                self.told = Some(now);
                Some(Err(error))
            }
        }
    }
}

fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).ok()?;
    Some((found.ctime(), found.ctime_nsec(), found.ino(), found.len()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use anyhow::bail;

    use super::FileWatch;

    #[test]
    fn a_change_is_read_until_it_is_taken_and_its_fault_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "1").unwrap();
        let mut watch = FileWatch::new(&[&path]);
        assert!(watch.look(|_| Ok(())).is_none(), "nothing changed");
        fs::write(&path, "22").unwrap();
        assert!(watch.look::<()>(|_| bail!("no descriptor is left")).unwrap().is_err());
        assert!(watch.look::<()>(|_| bail!("no descriptor is left")).is_none(), "told once");
        let text = watch.look(|paths| Ok(fs::read_to_string(&paths[0])?)).unwrap().unwrap();
        assert_eq!(text, "22", "it was not forgotten");
        assert!(watch.look(|_| Ok(())).is_none());
        fs::remove_file(&path).unwrap();
        assert!(watch.look::<()>(|_| bail!("gone")).unwrap().is_err());
    }
}
