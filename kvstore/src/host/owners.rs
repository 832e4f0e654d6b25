//! Whose the objects in host memory are: bounds what each tenant has there, and takes a tenant out. Touches pools, and no
//! drive.
//!
//! Pools do not say when they evict. An object that is gone is counted until its slot is used again or its tenant needs
//! room, whichever comes first, so a tenant is never above its quota because of that.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use shared::{Descriptor, ObjectKind, TenantTag};

use super::Pools;
use crate::pool::Dropped;
use crate::tenants::{Evictions, TenantQuotas, fits};

/// What every slot holds, as of the last time it was filled: one entry per slot.
#[derive(Debug)]
pub(super) struct Owners {
    pools: Pools,
    quotas: Arc<TenantQuotas>,
    slots: BTreeMap<ObjectKind, Vec<Option<Owned>>>,
    /// Of the tenants that have something.
    tenants: HashMap<TenantTag, Held>,
    stored_next: u64,
    evictions: Evictions,
}

#[derive(Clone, Copy, Debug)]
struct Owned {
    object: Descriptor,
    tenant: TenantTag,
    /// Its number among all that was stored.
    stored: u64,
}

#[derive(Debug, Default)]
struct Held {
    bytes: u64,
    /// Oldest first. As many as slots at most.
    order: BTreeMap<u64, Descriptor>,
}

impl Owners {
    pub(super) fn new(pools: Pools, quotas: Arc<TenantQuotas>) -> Self {
        let slots = [ObjectKind::Block, ObjectKind::Window]
            .map(|kind| (kind, vec![None; pools.of(kind).total()]));
        Self {
            pools,
            quotas,
            slots: slots.into(),
            tenants: HashMap::new(),
            stored_next: 0,
            evictions: Evictions::default(),
        }
    }

    /// A number for something that begins now, to be shown when it is stored.
    pub(super) fn begin(&mut self) -> u64 {
        self.evictions.begin()
    }

    /// Whether the tenant was evicted since that began.
    pub(super) fn is_lost(&self, tenant: TenantTag, began: u64) -> bool {
        self.evictions.is_lost(tenant, began)
    }

    /// Makes room for so many bytes of a tenant, by freeing its own oldest objects that nobody holds; false when that does not
    /// suffice.
    pub(super) fn make_room(&mut self, tenant: TenantTag, bytes: u64) -> bool {
        let bytes_max = self.quotas.of(tenant).host_bytes_max;
        if bytes_max == 0 {
            return true;
        }
        let mut after = 0;
        // Bounded by what the tenant has: each round goes to a younger one.
        while !fits(self.held_bytes(tenant), bytes, bytes_max) {
            let held = self.tenants.get(&tenant);
            let Some((stored, object)) = held.and_then(|held| {
                held.order.range(after..).next().map(|(stored, object)| (*stored, *object))
            }) else {
                return false;
            };
            after = stored + 1;
            if self.pools.of(object.key.kind).drop_idle(&object) != Dropped::InUse {
                self.remove(&object);
            }
        }
        true
    }

    /// An object was stored for a tenant.
    pub(super) fn store(&mut self, object: Descriptor, tenant: TenantTag) {
        self.remove(&object);
        let stored = self.stored_next;
        self.stored_next += 1;
        if let Some(slot) = self.slot(&object) {
            *slot = Some(Owned { object, tenant, stored });
        }
        let held = self.tenants.entry(tenant).or_default();
        held.bytes += u64::from(object.bytes);
        held.order.insert(stored, object);
    }

    /// Whose an object is. None when it was evicted with its tenant.
    pub(super) fn of(&mut self, object: &Descriptor) -> Option<TenantTag> {
        let owned = (*self.slot(object)?)?;
        (owned.object == *object).then_some(owned.tenant)
    }

    /// Takes all objects of a tenant out, and what has begun for it is lost. Who reads one keeps it until it is done.
    pub(super) fn evict(&mut self, tenant: TenantTag) -> usize {
        self.evictions.evict(tenant);
        let order = self.tenants.get(&tenant).map(|held| held.order.clone()).unwrap_or_default();
        let mut evicted = 0;
        for object in order.values() {
            evicted += usize::from(self.pools.of(object.key.kind).forget(object));
            self.remove(object);
        }
        evicted
    }

    /// Bytes that a tenant has here.
    pub(super) fn held_bytes(&self, tenant: TenantTag) -> u64 {
        self.tenants.get(&tenant).map_or(0, |held| held.bytes)
    }

    /// Tenants that have something here.
    pub(super) fn tenants(&self) -> usize {
        self.tenants.len()
    }

    /// Forgets what was in an object's slot.
    fn remove(&mut self, object: &Descriptor) {
        let Some(owned) = self.slot(object).and_then(Option::take) else { return };
        let Some(held) = self.tenants.get_mut(&owned.tenant) else { return };
        held.bytes -= u64::from(owned.object.bytes);
        held.order.remove(&owned.stored);
        if held.order.is_empty() {
            self.tenants.remove(&owned.tenant);
        }
    }

    fn slot(&mut self, object: &Descriptor) -> Option<&mut Option<Owned>> {
        self.slots.get_mut(&object.key.kind.slots())?.get_mut(object.location.slot.index())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shared::{ObjectKind, TenantTag};

    use super::super::Pools;
    use super::Owners;
    use crate::pool::Pool;
    use crate::tenants::{TenantQuota, TenantQuotas};
    use crate::testing::{SLOT_BYTES, name, pool, pool_of, store};

    const ONE: TenantTag = TenantTag(1);
    const TWO: TenantTag = TenantTag(2);

    /// Each tenant may have three blocks.
    fn owners(slots: u32) -> (Owners, Pool) {
        let blocks = pool(1, slots);
        let windows = pool_of(2, 1, ObjectKind::Window).0;
        let host_bytes_max = 3 * u64::try_from(SLOT_BYTES).unwrap();
        let others = TenantQuota { disk_bytes_max: 0, host_bytes_max };
        let quotas = Arc::new(TenantQuotas { others, ..TenantQuotas::default() });
        (Owners::new(Pools { blocks: blocks.clone(), windows }, quotas), blocks)
    }

    fn bytes(blocks: usize) -> u64 {
        u64::try_from(blocks * SLOT_BYTES).unwrap()
    }

    fn held(blocks: &Pool, numbers: std::ops::Range<u64>) -> Vec<u64> {
        numbers.filter(|number| blocks.contains(name(*number))).collect()
    }

    #[test]
    fn a_tenant_above_its_quota_loses_its_own_oldest_blocks() {
        let (mut owners, blocks) = owners(8);
        let mut pinned = Vec::new();
        for (number, tenant, pin) in
            [(0, ONE, true), (1, ONE, false), (2, TWO, false), (3, ONE, false)]
        {
            assert!(owners.make_room(tenant, bytes(1)));
            let slot = store(&blocks, number);
            owners.store(slot.descriptor(), tenant);
            pinned.extend(pin.then_some(slot));
        }
        assert!(owners.make_room(ONE, bytes(1)));
        assert_eq!(held(&blocks, 0..4), [0, 2, 3], "the oldest that nobody holds");
        assert_eq!((owners.held_bytes(ONE), owners.held_bytes(TWO)), (bytes(2), bytes(1)));
        assert!(!owners.make_room(ONE, bytes(3)), "a pinned one stays");
        assert_eq!(held(&blocks, 0..4), [0, 2]);
        assert!(!owners.make_room(TWO, bytes(4)));
    }

    #[test]
    fn what_the_pool_evicted_counts_until_its_slot_is_used_again() {
        let (mut owners, blocks) = owners(2);
        for number in 0..2 {
            owners.store(store(&blocks, number).descriptor(), ONE);
        }
        owners.store(store(&blocks, 2).descriptor(), TWO);
        assert_eq!((owners.held_bytes(ONE), owners.held_bytes(TWO)), (bytes(1), bytes(1)));
        assert_eq!(blocks.evict_all(), 2);
        assert_eq!(owners.held_bytes(ONE), bytes(1));
        assert!(owners.make_room(ONE, bytes(3)));
        assert_eq!((owners.held_bytes(ONE), owners.tenants()), (0, 1));
    }

    #[test]
    fn an_evicted_tenant_has_nothing_and_what_began_before_is_lost() {
        let (mut owners, blocks) = owners(4);
        let slots: Vec<_> = (0..3).map(|number| store(&blocks, number)).collect();
        for (slot, tenant) in slots.iter().zip([ONE, TWO, ONE]) {
            owners.store(slot.descriptor(), tenant);
        }
        let began = owners.begin();
        assert_eq!(owners.evict(ONE), 2);
        assert_eq!(held(&blocks, 0..3), [1], "pinned ones are not found either");
        assert_eq!(owners.of(&slots[0].descriptor()), None);
        assert_eq!(owners.of(&slots[1].descriptor()), Some(TWO));
        assert!(owners.is_lost(ONE, began) && !owners.is_lost(TWO, began));
        let began = owners.begin();
        assert!(!owners.is_lost(ONE, began));
        drop(slots);
        assert_eq!(blocks.audit().leaked, 0);
    }
}
