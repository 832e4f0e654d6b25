//! What operators see and do: figures of pools, router and workers for `/metrics`, and `/debug`.
//!
//! Nothing here waits for a worker: gauges are read from what the workers last published.

mod figures;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::response::Json;
use axum::routing::{get, post};
use gateway::{Gateway, MetricsProvider};
use kvstore::PoolAudit;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::wiring::Cluster;

/// What the handlers look at.
#[derive(Clone)]
struct Operated {
    cluster: Arc<Cluster>,
    gateway: Gateway,
}

/// Which copies to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EvictTier {
    /// What the workers hold, window objects included.
    Device,
    /// What the store holds in host memory.
    Host,
    /// Both.
    All,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EvictQuery {
    tier: EvictTier,
}

/// The admin routes of a cluster: health, `/metrics`, `GET /debug/audit`, `POST /debug/cache/evict?tier=device|host|all`.
pub(crate) fn router(cluster: &Arc<Cluster>, gateway: &Gateway) -> Router {
    let figures = Arc::clone(cluster);
    let provider: MetricsProvider = Arc::new(move |text| figures::write(&figures, text));
    let operated = Operated { cluster: Arc::clone(cluster), gateway: gateway.clone() };
    let debug = Router::new()
        .route("/debug/audit", get(audit))
        .route("/debug/cache/evict", post(evict))
        .with_state(operated);
    gateway.admin_router(vec![provider]).merge(debug)
}

/// The admin routes of a scripted server: there are no pools, so only what is in work is told.
pub(crate) fn scripted_router(gateway: &Gateway) -> Router {
    let counted = gateway.clone();
    let audit = move || {
        let busy = counted.in_flight();
        async move { Json(json!({"busy": busy, "leaked": 0})) }
    };
    gateway.admin_router(Vec::new()).merge(Router::new().route("/debug/audit", get(audit)))
}

/// Everything that keeps the process from being at rest, and what is lost.
async fn audit(State(operated): State<Operated>) -> Json<Value> {
    let Operated { cluster, gateway } = operated;
    let audits = cluster.pools().iter().map(|named| (named.name, named.pool.audit()));
    let mut busy = gateway.in_flight();
    busy += usize::from(!cluster.decode().idle()) + usize::from(!cluster.prefill().idle());
    let mut leaked = 0;
    let mut pools = serde_json::Map::new();
    for (name, audit) in audits {
        leaked += audit.leaked;
        busy += audit.pinned + audit.owned + audit.open_reads;
        pools.insert(name.to_owned(), pool_json(audit));
    }
    Json(json!({
        "busy": busy,
        "leaked": leaked,
        "in_flight": gateway.in_flight(),
        "prefill_loaded_share": cluster.prefill_loaded_share().with_tables,
        "pools": pools,
    }))
}

fn pool_json(audit: PoolAudit) -> Value {
    json!({
        "free": audit.free,
        "cached": audit.cached,
        "pinned": audit.pinned,
        "owned": audit.owned,
        "open_reads": audit.open_reads,
        "leaked": audit.leaked,
    })
}

/// Drops every cached copy of a tier that nobody holds. What is in use stays.
async fn evict(State(operated): State<Operated>, Query(query): Query<EvictQuery>) -> Json<Value> {
    let chosen = |name: &str| {
        let host = name.starts_with("store_");
        match query.tier {
            EvictTier::Device => !host,
            EvictTier::Host => host,
            EvictTier::All => true,
        }
    };
    let pools = operated.cluster.pools().iter().filter(|named| chosen(named.name));
    let evicted: usize = pools.map(|named| named.pool.evict_all()).sum();
    tracing::info!(tier = ?query.tier, evicted, "cache evicted by an operator");
    Json(json!({"evicted": evicted}))
}
