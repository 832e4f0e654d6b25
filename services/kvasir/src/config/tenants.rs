//! How much each tenant may keep in a store node.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::ensure;
use kvstore::{TenantQuota, TenantQuotas};
use serde::Deserialize;
use shared::TenantId;

/// Tenants that may be named: a table in memory, looked up with every block.
const LIMITS_MAX: usize = 65_536;

/// Quotas of tenants, per store node. What exceeds one is not stored; it costs no other tenant anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TenantsConfig {
    /// Bytes of blocks that a tenant may have on a node's drive; 0 is no bound. Default 0: whoever comes first has what the
    /// write budget leaves.
    pub disk_bytes_max: u64,
    /// Bytes of objects that a tenant may have in a node's host memory; 0 is no bound. Default 0. A tenant that has as much
    /// loses its own oldest objects to its next ones.
    pub host_bytes_max: u64,
    /// The same for tenants by their names, 65,536 at most; what is not said there is as above. Default: none.
    pub limits: BTreeMap<String, TenantLimit>,
}

/// What one tenant may keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantLimit {
    /// Bytes of blocks on a node's drive; 0 is no bound. Default: that of all tenants.
    pub disk_bytes_max: Option<u64>,
    /// Bytes of objects in a node's host memory; 0 is no bound. Default: that of all tenants.
    pub host_bytes_max: Option<u64>,
}

impl TenantsConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// When too many tenants are named.
    pub fn check(&self) -> anyhow::Result<()> {
        let count = self.limits.len();
        ensure!(count <= LIMITS_MAX, "tenants.limits names {count} tenants, at most {LIMITS_MAX}");
        Ok(())
    }

    /// What stores go by.
    #[must_use]
    pub fn quotas(&self) -> Arc<TenantQuotas> {
        let Self { disk_bytes_max, host_bytes_max, limits } = self;
        let others =
            TenantQuota { disk_bytes_max: *disk_bytes_max, host_bytes_max: *host_bytes_max };
        let named = limits.iter().map(|(name, limit)| {
            let quota = TenantQuota {
                disk_bytes_max: limit.disk_bytes_max.unwrap_or(others.disk_bytes_max),
                host_bytes_max: limit.host_bytes_max.unwrap_or(others.host_bytes_max),
            };
            (TenantId(name.as_str().into()).tag(), quota)
        });
        Arc::new(TenantQuotas { others, named: named.collect() })
    }
}

#[cfg(test)]
mod tests {
    use kvstore::TenantQuota;
    use shared::TenantId;

    use crate::config::Config;

    #[test]
    fn a_named_tenant_has_its_own_limits_and_the_rest_of_the_others() {
        let text = "[tenants]\ndisk_bytes_max = 10\nhost_bytes_max = 20\n\
                    [tenants.limits.acme]\ndisk_bytes_max = 0\n";
        let quotas = Config::parse(text).unwrap().tenants.quotas();
        let of = |name: &str| quotas.of(TenantId(name.into()).tag());
        assert_eq!(of("acme"), TenantQuota { disk_bytes_max: 0, host_bytes_max: 20 });
        assert_eq!(of("other"), TenantQuota { disk_bytes_max: 10, host_bytes_max: 20 });
        for (text, expected) in [
            ("[tenants]\ndisk_bytes = 1\n", "disk_bytes"),
            ("[tenants.limits.acme]\nbytes_max = 1\n", "bytes_max"),
        ] {
            let error = format!("{:#}", Config::parse(text).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
