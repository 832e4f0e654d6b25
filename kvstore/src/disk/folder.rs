//! The folders of a disk tier, as its start needs them.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

use super::config::{DiskConfig, DiskError};
use super::keys::TenantKeys;

/// The file that is locked.
pub(super) const LOCK_FILE: &str = "lock";

/// The keys of the tenants, if blocks are encrypted. Blocks for the folder.
///
/// # Errors
/// When the folder cannot be used, or others may read it.
pub(super) fn open_keys(config: &DiskConfig) -> Result<Option<TenantKeys>, DiskError> {
    let folder = &config.tenant_keys;
    if folder.as_os_str().is_empty() {
        return Ok(None);
    }
    let what = "use the folder of the tenants' keys";
    let failed = |source| DiskError::File { what, path: folder.clone(), source };
    TenantKeys::open(folder).map(Some).map_err(failed)
}

/// Makes the folder of the segments and locks it for this process; the lock ends with the file. Blocks for the folder.
///
/// # Errors
/// When it cannot be made or opened, or another store has it.
pub(super) fn lock(folder: &Path) -> Result<File, DiskError> {
    let failed = |what, path| move |source: io::Error| DiskError::File { what, path, source };
    fs::create_dir_all(folder).map_err(failed("make the folder", folder.to_owned()))?;
    let path = folder.join(LOCK_FILE);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(failed("open", path.clone()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DiskError::Locked { folder: folder.to_owned() }),
        Err(TryLockError::Error(source)) => Err(failed("lock", path)(source)),
    }
}
