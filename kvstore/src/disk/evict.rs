//! Evicting one tenant while the tier runs.
//!
//! In this order: the key is deleted, which alone deletes what is encrypted; what is queued or being written is marked as
//! lost; from then on nothing of the tenant is found; that is made durable; free files, which may have its bytes, are removed; and
//! at last its names are taken out. A start that finds names not taken out goes on with it. Bytes in segments leave with their
//! segments, whose files are not kept then; what a recycled file has behind its records goes when the segment is sealed.

use std::io;

use shared::TenantTag;

use super::catalog::{CatalogError, Evicted};
use super::tombstones::Tombstone;
use super::writer::refused;
use super::{DiskTier, Shared};

/// Why a tenant was not evicted from disk.
#[derive(Debug, thiserror::Error)]
pub enum EvictError {
    /// Its key could not be deleted. Nothing else was done.
    #[error("cannot delete the tenant's key: {0}; check the rights of the folder and try again")]
    Key(io::Error),
    /// Too many tenants were evicted whose bytes are still in segments. Nothing was done.
    #[error(
        "too many tenants were evicted lately; their blocks have to leave first, or evict everything on disk"
    )]
    Full,
    /// It is not found any more, but would be after a restart.
    #[error("cannot make the eviction durable: {0}; check the drive and try again")]
    NotDurable(io::Error),
    /// It is gone for good, but its names were not all taken out.
    #[error("{0}; the tenant is gone, and the next start takes the rest of its names out")]
    Catalog(#[from] CatalogError),
}

impl DiskTier {
    /// Removes all blocks of a tenant that are on disk or on their way there, and says how many names were taken out. None of
    /// them is found again, whatever the catalog is made from later; their bytes leave with their segments, or are
    /// unreadable at once when blocks are encrypted. Blocks the caller: goes over all names.
    ///
    /// # Errors
    /// When something of that could not be done; it may be tried again.
    pub fn evict_tenant(&self, tenant: TenantTag) -> Result<usize, EvictError> {
        let shared = &self.shared;
        let _evicting = shared.evicting.lock();
        if !shared.index.can_bury(tenant) {
            return Err(EvictError::Full);
        }
        if let Some(keys) = &shared.keys {
            keys.delete(tenant).map_err(EvictError::Key)?;
        }
        let stone = {
            // Records whose time was read before this are not younger.
            let mut queue = shared.queue.lock();
            queue.evictions.evict(tenant);
            let second = shared.clock.unix_seconds();
            // The writer may be about to begin the next one.
            let segments = shared.index.catalog().number_next().saturating_add(2);
            Tombstone { second, segments }
        };
        let buried = shared.index.bury(tenant, stone);
        assert!(buried, "nobody else adds to the list while this one is evicting");
        let written = shared.index.tombstones().write(&shared.config.folder);
        written.map_err(EvictError::NotDurable)?;
        shared.remove_free_files().map_err(EvictError::NotDurable)?;
        Ok(shared.index.take_out(&[Evicted { tenant, stone, done: false }])?)
    }
}

impl Shared {
    /// Forgets evictions that no segment matters for any more.
    pub(super) fn expire_tombstones(&self) -> io::Result<()> {
        // What lies in the object store is not known before its list was read.
        if self.remote.as_ref().is_some_and(|remote| !remote.is_listed()) {
            return Ok(());
        }
        // One that is under way writes the list itself.
        let Some(_evicting) = self.evicting.try_lock() else { return Ok(()) };
        if self.index.expire_tombstones().map_err(refused)? {
            self.index.tombstones().write(&self.config.folder)?;
        }
        Ok(())
    }
}
