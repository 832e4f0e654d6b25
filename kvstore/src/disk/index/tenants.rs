//! Tenants in the index: how much each has, and taking one out.

use shared::{BlockName, TenantTag};

use super::Index;
use crate::disk::catalog::{CatalogError, Evicted};
use crate::disk::tombstones::{Tombstone, Tombstones};

const FIRST: BlockName = BlockName([0; 16]);

impl Index {
    /// Payload bytes of a tenant that are written, durable or not. 0 when the catalog cannot say: a quota refuses nothing
    /// because of an error.
    pub(in crate::disk) fn tenant_bytes(&self, tenant: TenantTag) -> u64 {
        // In this order: what leaves the one is in the other already. It may be counted twice, but is never missing.
        let unsynced = self.unsynced.lock().tenant_bytes.get(&tenant).copied().unwrap_or(0);
        let entered =
            self.catalog.tenant(tenant).unwrap_or_else(|_| self.failed(Default::default()));
        unsynced + entered.payload_bytes
    }

    /// Whether a record of a tenant that is written now would be dead.
    pub(in crate::disk) fn is_evicted(&self, tenant: TenantTag, unix_seconds: u64) -> bool {
        self.tombstones.read().covers(tenant, unix_seconds)
    }

    /// What was evicted and still matters.
    pub(in crate::disk) fn tombstones(&self) -> Tombstones {
        self.tombstones.read().clone()
    }

    pub(in crate::disk) fn tombstone_count(&self) -> usize {
        self.tombstones.read().len()
    }

    /// Whether another tenant can be buried.
    pub(in crate::disk) fn can_bury(&self, tenant: TenantTag) -> bool {
        self.tombstones.read().has_room(tenant)
    }

    /// From now on nothing of the tenant is found that was written up to the second. False when there is no room.
    pub(in crate::disk) fn bury(&self, tenant: TenantTag, stone: Tombstone) -> bool {
        let room = self.tombstones.write().add(tenant, stone);
        if room {
            let mut unsynced = self.unsynced.lock();
            let theirs = unsynced.places.iter().filter(|(_, entry)| entry.tenant == tenant);
            let theirs: Vec<BlockName> = theirs.map(|(name, _)| *name).collect();
            for name in theirs {
                unsynced.remove(name);
            }
        }
        room
    }

    /// Forgets evictions that no segment matters for any more, and says whether there were some.
    pub(in crate::disk) fn expire_tombstones(&self) -> Result<bool, CatalogError> {
        if self.tombstone_count() == 0 {
            return Ok(false);
        }
        let segments = self.catalog.segments();
        let oldest =
            segments.first().map_or_else(|| self.catalog.number_next(), |(number, _)| *number);
        let over = self.tombstones.write().expire(oldest);
        for tenant in &over {
            self.catalog.forget_evicted(*tenant)?;
        }
        Ok(!over.is_empty())
    }

    /// Takes the names of evicted tenants out of the catalog, which is told to routers, and says how many those were. Goes over
    /// all names once; others change the catalog in between.
    pub(in crate::disk) fn take_out(&self, evicted: &[Evicted]) -> Result<usize, CatalogError> {
        let mut dead = Tombstones::default();
        for Evicted { tenant, stone, .. } in evicted {
            let added = dead.add(*tenant, *stone);
            assert!(added, "they are part of a list with the same bound");
        }
        for one in evicted {
            self.catalog.note_evicted(*one)?;
        }
        let (mut count, mut next) = (0, Some(FIRST).filter(|_| !evicted.is_empty()));
        while let Some(first) = next {
            let mut changes = self.changes.lock();
            let (gone, behind) = self.catalog.evict_page(first, &dead)?;
            let told = gone.iter().filter(|record| self.is_told(&record.entry));
            told.for_each(|record| changes.removed(record.name));
            count += gone.len();
            next = behind;
        }
        for one in evicted {
            self.catalog.note_evicted(Evicted { done: true, ..*one })?;
        }
        Ok(count)
    }
}
