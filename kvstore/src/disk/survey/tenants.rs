//! Evicting a tenant from the files of a store that is stopped.

use std::path::Path;

use shared::TenantTag;

use super::repair::file_error;
use super::{Exclusive, SurveyError};
use crate::disk::free::FreeFiles;
use crate::disk::keys;
use crate::disk::tombstones::{self, Tombstone};

impl Exclusive {
    /// Makes all blocks of a tenant that were written up to this second ones that nobody finds any more; with a folder of
    /// keys its key is deleted first. The next start takes their names out; their bytes leave with their segments.
    /// Durable on return. Blocks.
    ///
    /// # Errors
    /// When a file cannot be changed; it may be tried again.
    pub fn evict_tenant(
        &self,
        tenant: TenantTag,
        unix_seconds: u64,
        tenant_keys: Option<&Path>,
    ) -> Result<(), SurveyError> {
        if let Some(folder) = tenant_keys {
            keys::delete_key(folder, tenant).map_err(file_error("delete a key in", folder))?;
        }
        let survey = self.survey();
        let files = survey.numbers().last().copied();
        let objects = survey.objects()?.last().map(|object| object.number);
        let last = files.max(objects).unwrap_or(0);
        let stone = Tombstone { second: unix_seconds, segments: last.saturating_add(1) };
        let mut stones = survey.tombstones.clone();
        let path = survey.folder().join(tombstones::FILE);
        if !stones.add(tenant, stone) {
            let source = std::io::Error::other("too many tenants were evicted lately");
            return Err(file_error("add a tenant to", &path)(source));
        }
        stones.write(survey.folder()).map_err(file_error("write", &path))?;
        // They may have its bytes.
        let free = FreeFiles::list(survey.folder());
        free.and_then(|mut free| free.shrink(survey.folder(), 0))
            .map_err(file_error("remove the free files of", survey.folder()))
    }
}
