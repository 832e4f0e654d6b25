//! A gateway without sockets, before a worker that says what it is told to say.

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Request};
use gateway::{EvidencePolicy, Gateway, GatewayConfig, GatewayParts, ServedModel};
use parking_lot::Mutex;
use shared::{
    Decode, DecodeDirectory, DecodeEvent, DecodeRequest, DpRank, FinishReason, Flow, ManualClock,
    Numerics, PlaceEvent, PlaceRequest, Placement, Placer, ServeError, Sink, StartReport, TenantId,
    Ticket, TokenId, TokenLogprobs, WindowSource, WorkerId, WorkerRank,
};
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

/// Longest reply in bytes. A request of 64 answers repeats the longest input of a fuzzer, escaped, for each of its tokens.
const REPLY_BYTES_MAX: usize = 256 << 20;
/// Bytes that are kept of responses, and of known text: small, so that what grows without bound shows.
const KEPT_BYTES_MAX: usize = 1 << 20;
const WORKER: WorkerRank = WorkerRank { worker: WorkerId(1), rank: DpRank(0) };
const MODEL: &str = "seedling";

/// What a worker says to every request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Speech {
    pub(crate) tokens: Vec<TokenId>,
    /// Before these tokens, ascending, the worker is lost; another one goes on.
    pub(crate) losses: Vec<usize>,
    pub(crate) ending: Ending,
}

/// What follows the tokens of a speech, where neither a stop token nor the answer's bound ended it before.
#[derive(Clone, Debug, Default)]
pub(crate) enum Ending {
    #[default]
    Stop,
    Length,
    Failed(ServeError),
}

/// A reply, read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) status: u16,
    /// Whether it is a stream of events.
    pub(crate) streamed: bool,
    pub(crate) text: String,
}

/// The gateway and its runtime. One request at a time.
pub(crate) struct Spoken {
    gateway: Gateway,
    public: Router,
    admin: Router,
    speech: Arc<Mutex<Arc<Speech>>>,
    runtime: Runtime,
}

impl Spoken {
    /// Reads the tokenizer of the built-in model, which lies in the repository.
    ///
    /// # Panics
    /// When it cannot be read.
    pub(crate) fn new(tokenizer: &Path) -> Self {
        let model = ServedModel {
            names: vec![MODEL.into()],
            tokenizer: tokenizer.to_path_buf(),
            context_tokens: 32_768,
            created: 0,
            cluster_secret: [1; 32],
            tenant: TenantId("default".into()),
            model_id: [2; 32],
            layout: [3; 32],
            numerics: Numerics("spoken-1".into()),
        };
        let speech = Arc::default();
        let worker = Arc::new(Worker { speech: Arc::clone(&speech) });
        let parts = GatewayParts {
            placer: Arc::clone(&worker) as _,
            directory: worker,
            health: Arc::new(|| Ok(())),
            clock: Arc::new(ManualClock::new()),
            request_id_seed: [4; 32],
            evidence: EvidencePolicy::NOBODY,
        };
        let config = GatewayConfig {
            // A worker says all at once.
            answer_buffer_tokens_max: 1 << 17,
            token_cache_bytes_max: KEPT_BYTES_MAX,
            stored_bytes_max: KEPT_BYTES_MAX,
            resume_wait_ms_max: 0,
            ..GatewayConfig::default()
        };
        let gateway = Gateway::new(config, model, parts).expect("the built-in model is served");
        let runtime = Builder::new_current_thread().enable_time().build();
        Self {
            public: gateway.public_router(),
            admin: gateway.admin_router(Vec::new()),
            gateway,
            speech,
            runtime: runtime.expect("a runtime of one thread needs a file or two"),
        }
    }

    /// What the worker says from now on.
    pub(crate) fn say(&self, speech: Speech) {
        *self.speech.lock() = Arc::new(speech);
    }

    /// Sends a request and reads the reply. Nothing of the request is in work any more when this returns.
    ///
    /// # Errors
    /// When the reply does not come to its end or is no text.
    pub(crate) fn ask(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Heard, String> {
        let router = if path.starts_with("/debug/") { &self.admin } else { &self.public };
        let request = Request::builder().method(method).uri(path).body(Body::from(body));
        let request = request.map_err(|error| error.to_string())?;
        self.runtime.block_on(async {
            let Ok(response) = router.clone().oneshot(request).await;
            let status = response.status().as_u16();
            let kind = response.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes().to_vec());
            let streamed = kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"));
            let bytes = to_bytes(response.into_body(), REPLY_BYTES_MAX).await;
            self.gateway.drained().await;
            let bytes = bytes.map_err(|error| format!("the reply broke off: {error}"))?;
            let text = String::from_utf8(bytes.into()).map_err(|error| error.to_string())?;
            Ok(Heard { status, streamed, text })
        })
    }
}

/// A cluster of one worker, which answers where it is asked.
struct Worker {
    speech: Arc<Mutex<Arc<Speech>>>,
}

impl Placer for Worker {
    fn submit(&self, _request: PlaceRequest, mut sink: Box<dyn Sink<PlaceEvent>>) -> Ticket {
        let placement = Placement {
            decode: WORKER,
            prefill: None,
            expected_cached_tokens: 0,
            reason: String::new(),
        };
        // Whoever asked and left needs no place.
        let _left = sink.emit(PlaceEvent::Placed(placement));
        Ticket::empty()
    }
}

impl DecodeDirectory for Worker {
    fn decode(&self, _worker: WorkerRank) -> Option<Arc<dyn Decode>> {
        Some(Arc::new(Self { speech: Arc::clone(&self.speech) }))
    }
}

impl Decode for Worker {
    fn submit(&self, request: DecodeRequest, mut sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        let speech = Arc::clone(&self.speech.lock());
        for event in speech.events(&request) {
            if sink.emit(event) == Flow::Closed {
                break;
            }
        }
        Ticket::empty()
    }
}

impl Speech {
    /// What is said to a request whose first tokens others said, as [`DecodeEvent`] orders it.
    fn events(&self, request: &DecodeRequest) -> Vec<DecodeEvent> {
        let said = request.emitted.len();
        let report = StartReport {
            cached_tokens: 0,
            replayed_tokens: 0,
            window_source: WindowSource::Cold,
            exact: true,
            bytes_fetched: 0,
            prefill: None,
        };
        let mut events = vec![DecodeEvent::Started(report)];
        let bound = usize::try_from(request.output_tokens_max).unwrap_or(usize::MAX);
        let last = match self.ending {
            Ending::Stop => request.stop_ids.first().copied(),
            Ending::Length | Ending::Failed(_) => None,
        };
        let all = self.tokens.iter().copied().chain(last);
        for (index, token) in all.enumerate().skip(said).take(bound.saturating_sub(said)) {
            if said < index && self.losses.contains(&index) {
                events.push(DecodeEvent::Failed(ServeError::WorkerLost { worker: WORKER }));
                return events;
            }
            let scores = request.logprobs.map(|top| Box::new(scores(token, top)));
            events.push(DecodeEvent::Token(token, scores));
            if request.stop_ids.contains(&token) {
                events.push(DecodeEvent::Finished(FinishReason::Stop));
                return events;
            }
        }
        events.push(match &self.ending {
            Ending::Failed(error) if self.tokens.len() < bound => {
                DecodeEvent::Failed(error.clone())
            }
            Ending::Stop | Ending::Length | Ending::Failed(_) => {
                DecodeEvent::Finished(FinishReason::Length)
            }
        });
        events
    }
}

/// Log probabilities that tell tokens apart, some of what is impossible.
fn scores(token: TokenId, top: u8) -> TokenLogprobs {
    let logprob = |id: TokenId| match id.0 % 7 {
        0 => f32::NEG_INFINITY,
        rest => -f32::from(u8::try_from(rest).unwrap_or(0)),
    };
    let others = (0..u32::from(top)).map(|place| TokenId(token.0.wrapping_add(place)));
    TokenLogprobs {
        logprob: logprob(token),
        top: others.map(|other| (other, logprob(other))).collect(),
    }
}
