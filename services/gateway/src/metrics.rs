//! What the gateway counts. Names are `kvasir_gateway_<noun>_<unit>[_total]`; every label has a fixed set of values, but for
//! `tenant`, of which the first 256 are shown by name.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use shared::{StartReport, TenantId};

use crate::call::Used;
use crate::limits::Limit;
use crate::token_cache::TokenCacheStats;

/// Appends metrics in the Prometheus text format (0.0.4) to the answer of `/metrics`. Called once per scrape, must not
/// block.
pub type MetricsProvider = Arc<dyn Fn(&mut String) + Send + Sync>;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Stop,
    Length,
    ClientGone,
    SlowClient,
    Invalid,
    NotFound,
    TooLarge,
    Overloaded,
    OverShare,
    Unauthenticated,
    RateLimited,
    Unavailable,
    Draining,
    TimedOut,
    Internal,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ClientGone => "client_gone",
            Self::SlowClient => "slow_client",
            Self::Invalid => "invalid",
            Self::NotFound => "not_found",
            Self::TooLarge => "too_large",
            Self::Overloaded => "overloaded",
            Self::OverShare => "over_share",
            Self::Unauthenticated => "unauthenticated",
            Self::RateLimited => "rate_limited",
            Self::Unavailable => "unavailable",
            Self::Draining => "draining",
            Self::TimedOut => "timed_out",
            Self::Internal => "internal",
        }
    }
}

/// One label with a value from a fixed set.
type Label = [(&'static str, &'static str); 1];
/// A tenant, by its name or as one of the others, and one more label.
type TenantLabel = [(&'static str, Cow<'static, str>); 2];

/// Tenants that have figures of their own; later ones are counted together. A scrape stays below 200 kB by it.
const TENANTS_SHOWN_MAX: usize = 256;
/// What the others are called; no tenant can have that name.
const OTHERS: &str = "(others)";

/// Bucket bounds in seconds for waiting times: 1 ms, the shortest prefill, to about two minutes.
const WAIT_SECONDS: [f64; 17] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
    120.0,
];

/// Bucket bounds in seconds between two tokens: 0.2 ms, a scripted engine, to 5 s, a stall.
const TOKEN_SECONDS: [f64; 14] =
    [0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0];

/// The gateway's registry and its metrics.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Label, Counter>,
    first_token: Histogram,
    between_tokens: Histogram,
    queue: Histogram,
    prompt_tokens: Family<Label, Counter>,
    output_tokens: Counter,
    resumes: Counter,
    tenants_shown: Mutex<HashSet<TenantId>>,
    tenant_requests: Family<TenantLabel, Counter>,
    tenant_tokens: Family<TenantLabel, Counter>,
    accounts: Gauge,
    in_flight: Gauge,
    stored_responses: Gauge,
    running_responses: Gauge,
    stored_bytes: Gauge,
    token_cache_bytes: Gauge,
    token_cache_words: Gauge,
    token_cache_lookups: Family<Label, Counter<u64, AtomicU64>>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("kvasir_gateway"),
            requests: Family::default(),
            first_token: Histogram::new(WAIT_SECONDS),
            between_tokens: Histogram::new(TOKEN_SECONDS),
            queue: Histogram::new(WAIT_SECONDS),
            prompt_tokens: Family::default(),
            output_tokens: Counter::default(),
            resumes: Counter::default(),
            tenants_shown: Mutex::default(),
            tenant_requests: Family::default(),
            tenant_tokens: Family::default(),
            accounts: Gauge::default(),
            in_flight: Gauge::default(),
            stored_responses: Gauge::default(),
            running_responses: Gauge::default(),
            stored_bytes: Gauge::default(),
            token_cache_bytes: Gauge::default(),
            token_cache_words: Gauge::default(),
            token_cache_lookups: Family::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("requests", "Requests by how they ended", self.requests.clone());
        registry.register(
            "first_token_seconds",
            "From the request's arrival to its first token",
            self.first_token.clone(),
        );
        registry.register(
            "token_interval_seconds",
            "From one token of an answer to the next",
            self.between_tokens.clone(),
        );
        registry.register(
            "queue_seconds",
            "From asking the router for a place to getting one",
            self.queue.clone(),
        );
        registry.register(
            "prompt_tokens",
            "Prompt rows: computed cold, found cached, or replayed to rebuild windows",
            self.prompt_tokens.clone(),
        );
        registry.register("output_tokens", "Tokens of answers", self.output_tokens.clone());
        registry.register(
            "resumes",
            "Requests placed anew after a lost worker",
            self.resumes.clone(),
        );
        registry.register(
            "tenant_requests",
            "Requests of a tenant: served, or refused by which of its limits",
            self.tenant_requests.clone(),
        );
        registry.register("tenant_tokens", "Tokens of a tenant", self.tenant_tokens.clone());
        registry.register("accounts", "Tenants and keys with limits", self.accounts.clone());
        registry.register("in_flight_requests", "Requests in work", self.in_flight.clone());
        registry.register(
            "stored_responses",
            "Responses kept for who refers to them",
            self.stored_responses.clone(),
        );
        registry.register(
            "background_responses",
            "Responses being made while nobody waits for them",
            self.running_responses.clone(),
        );
        registry.register("stored_bytes", "Bytes they take", self.stored_bytes.clone());
        registry.register(
            "token_cache_bytes",
            "Bytes held by the token cache",
            self.token_cache_bytes.clone(),
        );
        registry.register(
            "token_cache_words",
            "Words whose tokens are kept; at 65536 all are forgotten",
            self.token_cache_words.clone(),
        );
        registry.register(
            "token_cache_lookups",
            "Rendered parts looked up in the token cache",
            self.token_cache_lookups.clone(),
        );
    }

    pub(crate) fn request_ended(&self, outcome: Outcome) {
        self.requests.get_or_create(&[("outcome", outcome.as_str())]).inc();
    }

    pub(crate) fn first_token(&self, wait: Duration) {
        self.first_token.observe(wait.as_secs_f64());
    }

    pub(crate) fn next_token(&self, wait: Duration) {
        self.between_tokens.observe(wait.as_secs_f64());
    }

    pub(crate) fn placed(&self, wait: Duration) {
        self.queue.observe(wait.as_secs_f64());
    }

    pub(crate) fn output_token(&self) {
        self.output_tokens.inc();
    }

    pub(crate) fn resumed(&self) {
        self.resumes.inc();
    }

    /// A request of a tenant that was let in is over.
    pub(crate) fn tenant_used(&self, tenant: &TenantId, used: &Used) {
        let shown = self.shown(tenant);
        let label = |name, value: &'static str| [("tenant", shown.clone()), (name, value.into())];
        self.tenant_requests.get_or_create(&label("result", "served")).inc();
        let counts = [
            ("prompt", used.prompt_tokens),
            ("cached", used.cached_tokens),
            ("output", used.output_tokens),
        ];
        for (kind, count) in counts {
            self.tenant_tokens.get_or_create(&label("kind", kind)).inc_by(count);
        }
    }

    /// A limit of a tenant or of one of its keys was reached.
    pub(crate) fn tenant_refused(&self, tenant: &TenantId, limit: Limit) {
        let labels = [("tenant", self.shown(tenant)), ("result", limit.as_str().into())];
        self.tenant_requests.get_or_create(&labels).inc();
    }

    fn shown(&self, tenant: &TenantId) -> Cow<'static, str> {
        let mut shown = self.tenants_shown.lock();
        if shown.len() < TENANTS_SHOWN_MAX {
            shown.insert(tenant.clone());
        }
        if shown.contains(tenant) { (*tenant.0).to_owned().into() } else { OTHERS.into() }
    }

    pub(crate) fn started(&self, prompt_tokens: u32, start: &StartReport) {
        let cold = prompt_tokens.saturating_sub(start.cached_tokens);
        let counts =
            [("cold", cold), ("cached", start.cached_tokens), ("replayed", start.replayed_tokens)];
        for (source, tokens) in counts {
            self.prompt_tokens.get_or_create(&[("source", source)]).inc_by(u64::from(tokens));
        }
    }

    /// Notes number and bytes of stored responses, and how many are made in the background.
    pub(crate) fn stored(&self, (responses, bytes): (usize, usize), running: usize) {
        self.running_responses.set(i64::try_from(running).unwrap_or(i64::MAX));
        self.stored_responses.set(i64::try_from(responses).unwrap_or(i64::MAX));
        self.stored_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// All metrics of the gateway in the Prometheus text format.
    pub(crate) fn encode(
        &self,
        in_flight: usize,
        accounts: usize,
        cache: TokenCacheStats,
        text: &mut String,
    ) {
        self.accounts.set(i64::try_from(accounts).unwrap_or(i64::MAX));
        self.in_flight.set(i64::try_from(in_flight).unwrap_or(i64::MAX));
        self.token_cache_bytes.set(i64::try_from(cache.bytes).unwrap_or(i64::MAX));
        self.token_cache_words.set(i64::try_from(cache.words).unwrap_or(i64::MAX));
        for (result, count) in [("hit", cache.hits), ("miss", cache.misses)] {
            // The cache counts by itself; the counter follows, and never falls.
            let counter = self.token_cache_lookups.get_or_create(&[("result", result)]);
            counter.inner().fetch_max(count, Ordering::Relaxed);
        }
        prometheus_text::encode(text, &self.registry).expect("writing to a string never fails");
    }
}
