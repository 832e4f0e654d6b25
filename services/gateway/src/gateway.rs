//! The front door as the binary sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use parking_lot::Mutex;
use shared::{Clock, DecodeDirectory, Placer, RequestId, TraceContext};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::admission::Admission;
use crate::config::{GatewayConfig, ServedModel};
use crate::dispatch::Cluster;
use crate::door::Door;
use crate::evidence::EvidencePolicy;
use crate::keys::KeyRing;
use crate::metrics::{Metrics, MetricsProvider};
use crate::prompt::Prompter;
use crate::routes;
use crate::stored::{ResponseStore, StoredBounds};
use crate::stream::Streams;
use crate::vocabulary::VocabularyError;

/// Why a gateway cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The tokenizer cannot be served.
    #[error(transparent)]
    Tokenizer(#[from] VocabularyError),
    /// A setting is out of range.
    #[error("gateway setting {field} is out of range; set it within {range}")]
    Setting {
        /// The field of [`GatewayConfig`].
        field: &'static str,
        /// What is allowed.
        range: &'static str,
    },
    /// The description of the model cannot be served.
    #[error("the served model is not usable: {what}")]
    Model {
        /// What is wrong, and what would be right.
        what: &'static str,
    },
}

/// Says whether every role of the process still runs; an error names those that do not, in one line without a full stop.
/// Called for every request and every readiness check, so it must neither block nor compute.
pub type HealthCheck = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What a gateway needs of the process around it.
#[derive(Clone)]
pub struct GatewayParts {
    /// The router.
    pub placer: Arc<dyn Placer>,
    /// The decode workers.
    pub directory: Arc<dyn DecodeDirectory>,
    /// Whether the roles behind both still run.
    pub health: HealthCheck,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Fresh random bytes of this process, from which request ids are derived. Two processes with equal seeds would
    /// give equal ids.
    pub request_id_seed: [u8; 32],
    /// Who is told by a header why a request was placed where it was.
    pub evidence: EvidencePolicy,
}

/// The HTTP front door. A cheap handle: clones share one gateway.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
}

/// One gateway.
pub(crate) struct Shared {
    pub(crate) config: GatewayConfig,
    pub(crate) prompter: Arc<Prompter>,
    pub(crate) cluster: Cluster,
    pub(crate) health: HealthCheck,
    pub(crate) evidence: EvidencePolicy,
    pub(crate) door: Door,
    pub(crate) admission: Arc<Admission>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tokenisers: Arc<Semaphore>,
    pub(crate) responses: Arc<ResponseStore>,
    pub(crate) streams: Arc<Streams>,
    /// Responses made in the background; at most as many as requests in flight.
    background: Mutex<JoinSet<()>>,
    request_id_seed: [u8; 32],
    requests: AtomicU64,
}

impl Gateway {
    /// Makes a gateway; reads the tokenizer, so it blocks on a file and computes for up to seconds.
    ///
    /// # Errors
    /// When a setting is out of range or the tokenizer cannot be served.
    pub fn new(
        config: GatewayConfig,
        model: ServedModel,
        parts: GatewayParts,
    ) -> Result<Self, GatewayError> {
        if let Some((field, range)) = config.out_of_range() {
            return Err(GatewayError::Setting { field, range });
        }
        if model.names.is_empty() || model.names.iter().any(String::is_empty) {
            return Err(GatewayError::Model { what: "it has no name; give it at least one" });
        }
        if model.context_tokens < 2 {
            return Err(GatewayError::Model { what: "its context holds less than 2 tokens" });
        }
        let metrics = Arc::new(Metrics::new());
        let prompter = Prompter::new(&config, model)?;
        let cluster = Cluster {
            placer: parts.placer,
            directory: parts.directory,
            clock: parts.clock,
            metrics: Arc::clone(&metrics),
            buffer_events_max: config.answer_buffer_tokens_max,
            resumes_max: config.resumes_max,
            resume_wait_max: Duration::from_millis(config.resume_wait_ms_max),
            request_max: Duration::from_millis(config.request_ms_max),
        };
        let admission = Admission::new(
            config.requests_in_flight_max,
            config.retry_after_s,
            Arc::clone(&metrics),
        );
        let bounds = StoredBounds {
            bytes_max: config.stored_bytes_max,
            responses_max: config.stored_responses_max,
            kept_for: Duration::from_secs(config.stored_ttl_s),
            running_max: config.background_responses_max,
            recalled_bytes_max: config.body_bytes_max,
        };
        let responses = ResponseStore::new(bounds, Arc::clone(&cluster.clock));
        let door = Door::new(&config, prompter.model().tenant.clone());
        let shared = Shared {
            responses: Arc::new(responses),
            tokenisers: Arc::new(Semaphore::new(config.tokenise_parallel_max)),
            config,
            prompter: Arc::new(prompter),
            cluster,
            health: parts.health,
            evidence: parts.evidence,
            door,
            admission: Arc::new(admission),
            metrics,
            streams: Arc::default(),
            background: Mutex::new(JoinSet::new()),
            request_id_seed: parts.request_id_seed,
            requests: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// What clients may call: chat completions, models, `/healthz` and `/readyz`.
    pub fn public_router(&self) -> Router {
        routes::public(Arc::clone(&self.shared))
    }

    /// What only operators may call: `/metrics` with the gateway's own metrics and those of `providers`, and the two
    /// health checks. To be bound to another address than the public one.
    pub fn admin_router(&self, providers: Vec<MetricsProvider>) -> Router {
        routes::admin(Arc::clone(&self.shared), providers)
    }

    /// From now on only the bearers of these keys are answered on the public router; without a ring, as at the beginning,
    /// anybody is. Requests in work go on. Does not block.
    pub fn set_keys(&self, keys: Option<KeyRing>) {
        self.shared.door.set_keys(keys);
    }

    /// From now on new requests are answered 503 and `/readyz` says no; requests in work go on.
    pub fn begin_drain(&self) {
        self.shared.admission.begin_drain();
    }

    /// Requests in work.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.admission.in_flight()
    }

    /// Waits until no request is in work. Cancel-safe; the caller brings the deadline.
    pub async fn drained(&self) {
        self.shared.admission.drained().await;
    }

    /// Cancels the streams and background responses still running and waits for their tasks; answers how many there were. Requests that are
    /// not streamed end with their connections, which the caller owns.
    pub async fn cut_off(&self) -> usize {
        let mut running = self.shared.streams.cut_off();
        let mut background = std::mem::take(&mut *self.shared.background.lock());
        background.abort_all();
        while let Some(joined) = background.join_next().await {
            running += usize::from(joined.is_err());
        }
        running
    }
}

impl Shared {
    /// A new request id: unique and, to those who do not know the seed, random.
    pub(crate) fn next_request_id(&self) -> RequestId {
        let count = self.requests.fetch_add(1, Ordering::Relaxed);
        let hash = blake3::keyed_hash(&self.request_id_seed, &count.to_le_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&hash.as_bytes()[..16]);
        RequestId(u128::from_le_bytes(id))
    }

    /// The trace that a request's header names, or a new one that nobody is asked to record.
    pub(crate) fn trace(header: Option<&str>, id: RequestId) -> TraceContext {
        let given = header.and_then(TraceContext::parse);
        // A request id is unique and random enough to name a trace, and makes it easy to find.
        let low = id.0 & u128::from(u64::MAX);
        given.unwrap_or_else(|| TraceContext {
            trace: id.0.max(1),
            span: u64::try_from(low).unwrap_or(1).max(1),
            sampled: false,
        })
    }

    /// Runs what is made in the background; it is joined when a later one is spawned, or by [`Gateway::cut_off`].
    pub(crate) fn spawn(&self, made: impl Future<Output = ()> + Send + 'static) {
        let mut background = self.background.lock();
        while let Some(joined) = background.try_join_next() {
            if let Err(error) = joined {
                tracing::error!(%error, "a task in the background failed");
            }
        }
        background.spawn(made);
    }
}
