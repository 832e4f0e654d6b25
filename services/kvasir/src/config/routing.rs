//! The parts of `[router]` that are more than one value each: the policy, the tenants' weights, and the lives of workers.

use std::collections::BTreeMap;

use anyhow::bail;
use router::{LifeConfig, Policy};
use shared::TenantId;

use super::reader::{Reader, Unit};

/// The policy, by its word.
pub(super) fn policy(reader: &mut Reader, policy: &mut Policy) -> anyhow::Result<()> {
    let mut word: Option<String> = None;
    reader.set_some("policy", &mut word)?;
    let Some(word) = word else { return Ok(()) };
    let Some(named) = Policy::parse(&word) else {
        let words = Policy::ALL.map(Policy::as_str);
        bail!("router.policy is {word:?}; use one of: {}", words.join(", "));
    };
    *policy = named;
    Ok(())
}

/// One key per tenant.
pub(super) fn tenant_weights(
    reader: &mut Reader,
    weights: &mut BTreeMap<TenantId, u32>,
) -> anyhow::Result<()> {
    let mut named: BTreeMap<String, u32> = BTreeMap::new();
    reader.set("tenant_weights", &mut named)?;
    weights.extend(named.into_iter().map(|(name, weight)| (TenantId(name.into()), weight)));
    Ok(())
}

/// When workers are steered away from.
pub(super) fn life(mut reader: Reader, config: &mut LifeConfig) -> anyhow::Result<()> {
    let LifeConfig {
        failures_max,
        open_min,
        open_max,
        wedged_after,
        drain_max,
        remember,
        warm_up_requests,
        warm_up_percent,
    } = config;
    reader.set("failures_max", failures_max)?;
    reader.set_time("open_min_ms", Unit::Milliseconds, open_min)?;
    reader.set_time("open_max_ms", Unit::Milliseconds, open_max)?;
    reader.set_time("wedged_after_ms", Unit::Milliseconds, wedged_after)?;
    reader.set_time("drain_max_s", Unit::Seconds, drain_max)?;
    reader.set_time("remember_s", Unit::Seconds, remember)?;
    reader.set("warm_up_requests", warm_up_requests)?;
    reader.set("warm_up_percent", warm_up_percent)?;
    reader.finish()
}

#[cfg(test)]
mod tests {
    use router::Policy;
    use shared::{StartGeometry, TenantId};

    use crate::config::Config;

    const GEOMETRY: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 5 };

    #[test]
    fn policy_and_weights_reach_the_router() {
        let text = "[router]\npolicy = \"session\"\n[router.tenant_weights]\nacme = 4\n\
                    [router.life]\nwedged_after_ms = 900\n";
        let config = Config::parse(text).unwrap().router(GEOMETRY).unwrap();
        assert_eq!(config.policy, Policy::Session);
        assert_eq!(config.tenant_weights.get(&TenantId("acme".into())), Some(&4));
        assert_eq!(config.life.wedged_after.as_millis(), 900);
        for (text, expected) in [
            ("[router]\npolicy = \"best\"\n", "use one of: cost, cache_aware"),
            ("[router.tenant_weights]\nacme = 0\n", "tenant_weights"),
            ("[router.tenant_weights]\nacme = \"much\"\n", "router.tenant_weights"),
            ("[router.life]\nwarm_up_percent = 0\n", "life.warm_up_percent"),
            ("[router.life]\nwarm_up = 0\n", "router.life.warm_up"),
            ("[router.cost]\ndirect_percent = 300\n", "direct_percent"),
        ] {
            let error = format!("{:#}", Config::parse(text).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
