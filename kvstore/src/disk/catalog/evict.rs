//! Tenants that were evicted: who, and their names taken out some at a time.

use shared::{BlockName, TenantTag};

use super::config::{CatalogError, SMALL};
use super::rows::{self, EVICTED, Record};
use super::scan::Rows;
use super::{Catalog, synced};
use crate::disk::tombstones::{Tombstone, Tombstones};

/// Names looked at, with the lock on writing held.
const PAGE_NAMES: usize = 4_096;
const LAST: BlockName = BlockName([0xff; 16]);

/// A row about an evicted tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::disk) struct Evicted {
    pub(in crate::disk) tenant: TenantTag,
    pub(in crate::disk) stone: Tombstone,
    /// Whether its names were taken out.
    pub(in crate::disk) done: bool,
}

impl Catalog {
    /// Notes an eviction. Durable on return.
    pub(in crate::disk) fn note_evicted(&self, evicted: Evicted) -> Result<(), CatalogError> {
        let Evicted { tenant, stone: Tombstone { second, segments }, done } = evicted;
        let mut row = [second.to_le_bytes(), segments.to_le_bytes()].concat();
        row.push(u8::from(done));
        let _writing = self.writing.lock();
        let written =
            self.db.put_cf_opt(self.family(SMALL), rows::evicted_key(tenant), row, &synced());
        written.map_err(|source| self.failed("note an eviction", source))
    }

    /// Forgets that a tenant was evicted: nothing of it is left.
    pub(in crate::disk) fn forget_evicted(&self, tenant: TenantTag) -> Result<(), CatalogError> {
        let _writing = self.writing.lock();
        let deleted = self.db.delete_cf(self.family(SMALL), rows::evicted_key(tenant));
        deleted.map_err(|source| self.failed("forget an eviction", source))
    }

    /// All evictions that were noted.
    pub(in crate::disk) fn evicted(&self) -> Result<Vec<Evicted>, CatalogError> {
        let (from, until) = (rows::evicted_key(TenantTag::NONE), vec![EVICTED + 1]);
        let rows = Rows { family: SMALL, from, until, count_max: usize::MAX };
        self.scan(rows, "a row of an evicted tenant", |key, value| {
            let (second, rest) = value.split_first_chunk()?;
            let (segments, rest) = rest.split_first_chunk()?;
            let done = match rest {
                [0] => false,
                [1] => true,
                _ => return None,
            };
            let (second, segments) = (u64::from_le_bytes(*second), u64::from_le_bytes(*segments));
            let stone = Tombstone { second, segments };
            Some(Evicted { tenant: rows::evicted_of(key)?, stone, done })
        })
    }

    /// Takes the names of dead records out: looks at a page of all names from `first` on, shows what went, and says where to
    /// go on. Their segments' rows stay, as with [`Catalog::forget`].
    pub(in crate::disk) fn evict_page(
        &self,
        first: BlockName,
        dead: &Tombstones,
    ) -> Result<(Vec<Record>, Option<BlockName>), CatalogError> {
        let _writing = self.writing.lock();
        let (mut names, next) = self.names(first..=LAST, PAGE_NAMES)?;
        names.retain(|Record { entry, .. }| dead.covers(entry.tenant, entry.written_unix_seconds));
        if !names.is_empty() {
            let mut change = self.change();
            for Record { name, entry } in &names {
                self.take_out(&mut change, *name, entry);
            }
            self.commit(change)?;
        }
        Ok((names, next))
    }
}
