//! What operators see and do: figures of pools, router and workers for `/metrics`, and `/debug`.
//!
//! One form for every process: it says which pools and figures it has, and what keeps it busy. Nothing here waits for a
//! worker: gauges are read from what the workers last published.

mod capture;
mod drains;
mod figures;
mod places;
mod routing;

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::Json;
use axum::routing::{get, post};
use gateway::{Gateway, MetricsProvider};
use kvstore::{BlockFate, EvictError, PoolAudit, StartRecord};
use serde::Deserialize;
use serde_json::{Value, json};
use shared::{RequestId, TenantId, TenantTag};

use crate::capture::Recorder;
use crate::wiring::{Cluster, NamedPool};

pub(crate) use routing::Routing;

pub(crate) use places::{NAMES_MAX, Places, of_store as places_in};

pub(crate) use figures::{
    decode, grammars, other_routers, prediction, prefill, reads, router as routing_figures, store,
    stores,
};

/// Text of the Prometheus format.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a process shows and lets operators do.
#[derive(Default)]
pub(crate) struct Observed {
    /// Its pools, each under the name of its holder and kind.
    pub(crate) pools: Vec<NamedPool>,
    /// Writes figures besides the pools'.
    pub(crate) figures: Vec<MetricsProvider>,
    /// How much is in work, each in its own unit; all 0 at rest.
    pub(crate) busy: Vec<Count>,
    /// Share of the checkpoint that the prefill worker of this process maps.
    pub(crate) prefill_loaded_share: Option<f64>,
    /// Drops what is on its drive, and says how many blocks that were.
    pub(crate) evict_disk: Option<Count>,
    /// Drops what its store has of a tenant, in memory and on the drive, and says how many names that were. Blocks.
    pub(crate) evict_tenant: Option<EvictTenant>,
    /// Whether the role's own thread still runs; `/healthz` says so.
    pub(crate) is_running: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// How its workers started a request, as far as they remember.
    pub(crate) starts: Vec<(String, Starts)>,
    /// Says where its store has blocks. Without it the pools are asked.
    pub(crate) places: Option<Places>,
    /// Its router, and what became of placements.
    pub(crate) routing: Option<Routing>,
    /// What it remembers of requests that ended.
    pub(crate) capture: Option<Arc<Recorder>>,
    /// The members it is linked to.
    pub(crate) members: Option<Arc<dyn Fn() -> Value + Send + Sync>>,
}

/// Tells the starts of a request.
pub(crate) type Starts = Arc<dyn Fn(RequestId) -> Vec<StartRecord> + Send + Sync>;

/// Drops what is a tenant's.
pub(crate) type EvictTenant = Arc<dyn Fn(TenantTag) -> Result<usize, EvictError> + Send + Sync>;

/// Counts something now.
pub(crate) type Count = Arc<dyn Fn() -> usize + Send + Sync>;

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").field("pools", &self.pools).finish_non_exhaustive()
    }
}

impl Observed {
    /// What all roles of one process show together.
    pub(crate) fn of_cluster(cluster: &Arc<Cluster>) -> Self {
        let figures = Arc::clone(cluster);
        let busy = Arc::clone(cluster);
        let (of_prefill, of_decode) = (Arc::clone(cluster), Arc::clone(cluster));
        let of_store = Arc::clone(cluster);
        let prefill: Starts = Arc::new(move |id| of_prefill.prefill().starts_of(id));
        let decode: Starts = Arc::new(move |id| of_decode.decode().starts_of(id));
        Self {
            pools: cluster.pools().to_vec(),
            figures: vec![Arc::new(move |text| figures::write(&figures, text))],
            busy: vec![Arc::new(move || {
                usize::from(!busy.decode().idle()) + usize::from(!busy.prefill().idle())
            })],
            prefill_loaded_share: Some(cluster.prefill_loaded_share().with_tables),
            evict_disk: None,
            evict_tenant: Some(Arc::new(move |tenant| of_store.store().evict_tenant(tenant))),
            is_running: None,
            starts: vec![("prefill".to_owned(), prefill), ("decode".to_owned(), decode)],
            places: None,
            routing: Some(cluster.routing()),
            capture: None,
            members: None,
        }
    }

    fn write_figures(&self, text: &mut String) {
        figures::pools(&self.pools, text);
        if let Some(recorder) = &self.capture {
            capture::figures(recorder.recorded(), text);
        }
        for figures in &self.figures {
            figures(text);
        }
    }
}

/// What the handlers look at.
#[derive(Clone)]
struct Operated {
    observed: Arc<Observed>,
    gateway: Option<Gateway>,
}

/// Which copies to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EvictTier {
    /// What the workers hold, window objects included.
    Device,
    /// What the store holds in host memory.
    Host,
    /// What the store holds on its drive.
    Disk,
    /// All of it.
    All,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EvictQuery {
    tier: EvictTier,
    /// The tenant's name: only what a store has of it, in all of its tiers.
    tenant: Option<String>,
}

/// The admin routes of a process: health, `/metrics`, `GET /debug/audit`, `GET /debug/members`, `GET /debug/starts/{id}`,
/// `GET /debug/routing?last=N`, `GET /debug/routing/{id}`, `GET /debug/capture?after=N`,
/// `POST /debug/blocks`, `POST /debug/prompt`, `POST /debug/cache/evict?tier=device|host|disk|all`,
/// `POST /debug/cache/evict?tier=all&tenant=NAME`, `POST /debug/workers/{name}/drain` and `/undrain`.
pub(crate) fn router(observed: Observed, gateway: Option<&Gateway>) -> Router {
    let observed = Arc::new(observed);
    let figures = Arc::clone(&observed);
    let provider: MetricsProvider = Arc::new(move |text| figures.write_figures(text));
    let is_running = observed.is_running.clone();
    let operated = Operated { observed, gateway: gateway.cloned() };
    let debug = Router::new()
        .route("/debug/audit", get(audit))
        .route("/debug/members", get(members))
        .route("/debug/starts/{id}", get(starts))
        .route("/debug/routing", get(routing::last))
        .route("/debug/routing/{id}", get(routing::of))
        .route("/debug/workers/{name}/drain", post(drains::drain))
        .route("/debug/workers/{name}/undrain", post(drains::undrain))
        .route("/debug/capture", get(capture::lines))
        .route("/debug/blocks", post(places::blocks))
        .route("/debug/cache/evict", post(evict))
        .with_state(operated);
    let own = match gateway {
        Some(gateway) => gateway.admin_router(vec![provider]),
        None => Router::new()
            .route(
                "/healthz",
                get(move || {
                    let answer = healthz(is_running.as_ref());
                    async move { answer }
                }),
            )
            .route(
                "/metrics",
                get(move || {
                    let mut text = String::new();
                    provider(&mut text);
                    async move { ([(CONTENT_TYPE, PROMETHEUS)], text) }
                }),
            ),
    };
    own.merge(debug)
}

/// Everything that keeps the process from being at rest, and what is lost.
async fn audit(State(operated): State<Operated>) -> Json<Value> {
    let Operated { observed, gateway } = operated;
    let in_flight = gateway.map_or(0, |gateway| gateway.in_flight());
    let mut busy = in_flight + observed.busy.iter().map(|count| count()).sum::<usize>();
    let mut leaked = 0;
    let mut pools = serde_json::Map::new();
    for NamedPool { name, pool } in &observed.pools {
        let audit = pool.audit();
        leaked += audit.leaked;
        busy += audit.pinned + audit.owned + audit.open_reads;
        pools.insert((*name).to_owned(), pool_json(audit));
    }
    Json(json!({
        "busy": busy,
        "leaked": leaked,
        "in_flight": in_flight,
        "prefill_loaded_share": observed.prefill_loaded_share,
        "pools": pools,
    }))
}

/// Whether the process can still do what it is there for.
fn healthz(is_running: Option<&Arc<dyn Fn() -> bool + Send + Sync>>) -> (StatusCode, &'static str) {
    if is_running.is_none_or(|is_running| is_running()) {
        (StatusCode::OK, "ok\n")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the role's thread ended by a fault; start the process again\n",
        )
    }
}

async fn members(State(operated): State<Operated>) -> Json<Value> {
    let members = operated.observed.members.as_ref().map(|members| members());
    Json(members.unwrap_or_else(|| json!({})))
}

/// How a request started at the workers of this process: one entry per start, oldest first.
async fn starts(State(operated): State<Operated>, Path(id): Path<String>) -> Json<Value> {
    let Ok(id) = u128::from_str_radix(&id, 16) else { return Json(json!([])) };
    let told = operated.observed.starts.iter().flat_map(|(worker, starts)| {
        starts(RequestId(id)).into_iter().map(|start| start_json(worker, &start))
    });
    Json(told.collect())
}

fn start_json(worker: &str, start: &StartRecord) -> Value {
    let mut from = 0;
    let runs = start.runs.iter().map(|run| {
        let to = from + run.blocks;
        let reason = match run.fate {
            BlockFate::Missed(miss) => Some(miss.as_str()),
            _ => None,
        };
        let run = json!({"from": from, "to": to, "fate": run.fate.as_str(), "reason": reason});
        from = to;
        run
    });
    let blocks: Vec<Value> = runs.collect();
    json!({
        "worker": worker,
        "start": start.start,
        "window_source": start.window_source.as_str(),
        "replayed_rows": start.replayed_rows,
        "exact": start.exact,
        "blocks": blocks,
    })
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

/// What evictions answer: how many objects left, or why not.
type Evicted = (StatusCode, Json<Value>);

async fn evict(State(operated): State<Operated>, Query(query): Query<EvictQuery>) -> Evicted {
    match query.tenant {
        Some(name) => evict_tenant(&operated.observed, query.tier, name).await,
        None => (StatusCode::OK, evict_tier(&operated.observed, query.tier)),
    }
}

/// Drops what is a tenant's. The thread of the request waits meanwhile, so that is left to another one.
async fn evict_tenant(observed: &Observed, tier: EvictTier, name: String) -> Evicted {
    let refused = |status, text: &str| (status, Json(json!({"error": text})));
    if tier != EvictTier::All {
        return refused(StatusCode::BAD_REQUEST, "a tenant leaves all tiers: say tier=all");
    }
    let Some(evict) = observed.evict_tenant.clone() else {
        let text = "this process has no store; ask the admin listeners of the store nodes";
        return refused(StatusCode::NOT_FOUND, text);
    };
    let tenant = TenantId(name.into()).tag();
    match tokio::task::spawn_blocking(move || evict(tenant)).await {
        Ok(Ok(evicted)) => {
            tracing::info!(%tenant, evicted, "a tenant was evicted by an operator");
            (StatusCode::OK, Json(json!({"evicted": evicted, "tenant": tenant.to_string()})))
        }
        Ok(Err(error)) => {
            tracing::error!(%tenant, %error, "a tenant was not evicted");
            refused(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())
        }
        Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "the eviction broke off; try again"),
    }
}

/// Drops every cached copy of a tier that nobody holds. What is in use stays.
fn evict_tier(observed: &Observed, tier: EvictTier) -> Json<Value> {
    let chosen = |name: &str| {
        let host = name.starts_with("store_");
        match tier {
            EvictTier::Device => !host,
            EvictTier::Host => host,
            EvictTier::Disk => false,
            EvictTier::All => true,
        }
    };
    let pools = observed.pools.iter().filter(|named| chosen(named.name));
    let mut evicted: usize = pools.map(|named| named.pool.evict_all()).sum();
    if let (Some(disk), EvictTier::Disk | EvictTier::All) = (&observed.evict_disk, tier) {
        evicted += disk();
    }
    tracing::info!(?tier, evicted, "cache evicted by an operator");
    Json(json!({"evicted": evicted}))
}
