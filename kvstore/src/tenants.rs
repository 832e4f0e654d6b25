//! How much each tenant may keep, and what was stored before a tenant was evicted. Pure.
//!
//! A quota bounds bytes, not rights: names decide what a tenant can find. One that is not bounded has what the tiers have.

use std::collections::{BTreeMap, HashMap};

use shared::TenantTag;

/// Evictions that are told apart. Beyond them the oldest one counts for all tenants: what was on its way then is dropped.
const EVICTIONS_MAX: usize = 4_096;

/// What one tenant may keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantQuota {
    /// Payload bytes on the drive of one store node; 0 is no bound.
    pub disk_bytes_max: u64,
    /// Payload bytes in the host memory of one store node, window objects included; 0 is no bound.
    pub host_bytes_max: u64,
}

/// What all tenants may keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantQuotas {
    /// Of those that are not named below.
    pub others: TenantQuota,
    /// Of these.
    pub named: BTreeMap<TenantTag, TenantQuota>,
}

impl TenantQuotas {
    /// What a tenant may keep.
    #[must_use]
    pub fn of(&self, tenant: TenantTag) -> TenantQuota {
        self.named.get(&tenant).copied().unwrap_or(self.others)
    }
}

/// Whether a tenant that has `held` bytes may have `more`. A bound of 0 is none.
pub(crate) fn fits(held: u64, more: u64, bytes_max: u64) -> bool {
    bytes_max == 0 || held.saturating_add(more) <= bytes_max
}

/// Tells what was begun before its tenant was evicted from what was begun after. Whatever is on its way has a number.
#[derive(Debug, Default)]
pub(crate) struct Evictions {
    last: u64,
    /// The last number that each evicted tenant lost. At most [`EVICTIONS_MAX`].
    lost: HashMap<TenantTag, u64>,
    /// All tenants lost what has a number up to this one.
    all_lost: u64,
}

impl Evictions {
    /// A number for something that begins now.
    pub(crate) fn begin(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// What has begun for this tenant is not to be kept.
    pub(crate) fn evict(&mut self, tenant: TenantTag) {
        self.lost.insert(tenant, self.last);
        if EVICTIONS_MAX < self.lost.len()
            && let Some((oldest, number)) = self.lost.iter().min_by_key(|(_, number)| **number)
        {
            let (oldest, number) = (*oldest, *number);
            self.lost.remove(&oldest);
            self.all_lost = self.all_lost.max(number);
        }
    }

    /// Whether what began with this number is not to be kept.
    pub(crate) fn is_lost(&self, tenant: TenantTag, number: u64) -> bool {
        number <= self.all_lost || self.lost.get(&tenant).is_some_and(|lost| number <= *lost)
    }
}

#[cfg(test)]
mod tests {
    use shared::TenantTag;

    use super::{EVICTIONS_MAX, Evictions, TenantQuota, TenantQuotas, fits};

    #[test]
    fn a_quota_counts_what_is_there_and_what_comes() {
        // Held, more, bound, whether it fits.
        let cases = [
            (0, 10, 0, true),
            (u64::MAX, 10, 0, true),
            (0, 10, 10, true),
            (1, 10, 10, false),
            (0, 11, 10, false),
            (u64::MAX, 1, u64::MAX - 1, false),
        ];
        for (held, more, bytes_max, expected) in cases {
            assert_eq!(fits(held, more, bytes_max), expected, "{held} and {more} of {bytes_max}");
        }
    }

    #[test]
    fn a_named_tenant_has_its_own_quota() {
        let others = TenantQuota { disk_bytes_max: 1, host_bytes_max: 2 };
        let own = TenantQuota { disk_bytes_max: 0, host_bytes_max: 3 };
        let quotas = TenantQuotas { others, named: [(TenantTag(7), own)].into() };
        assert_eq!((quotas.of(TenantTag(7)), quotas.of(TenantTag(8))), (own, others));
    }

    #[test]
    fn what_began_before_an_eviction_is_lost_and_nothing_else() {
        let mut evictions = Evictions::default();
        let (one, two) = (TenantTag(1), TenantTag(2));
        let before = evictions.begin();
        evictions.evict(one);
        let after = evictions.begin();
        let cases = [(one, before, true), (one, after, false), (two, before, false)];
        for (tenant, number, lost) in cases {
            assert_eq!(evictions.is_lost(tenant, number), lost, "{tenant} {number}");
        }
        for tenant in 0..=u64::try_from(EVICTIONS_MAX).unwrap() {
            evictions.begin();
            evictions.evict(TenantTag(1_000 + tenant));
        }
        assert!(evictions.lost.len() <= EVICTIONS_MAX);
        assert!(evictions.is_lost(two, before), "beyond the bound all lose the oldest");
        assert!(!evictions.is_lost(two, evictions.last));
    }
}
