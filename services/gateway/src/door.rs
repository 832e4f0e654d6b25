//! What every request passes before its handler: who asks, how much they may, and which page asks. And after it: what is left
//! to them, and one line of the access log.
//!
//! Invariants: nobody without an accepted key reaches a handler once there are keys; the line is written exactly once, when
//! the last byte of the answer is out or its client is gone, and what goes on in the background ended; it holds nothing of
//! prompt, answer or key.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use parking_lot::{Mutex, RwLock};
use shared::{TenantId, Timestamp};

use crate::call::{Call, Caller};
use crate::config::GatewayConfig;
use crate::cors::Cors;
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::keys::KeyRing;
use crate::limits::{Accounts, Quota, RateLimits, Refusal, Subject, too_low_for};
use crate::linger::discard_request;
use crate::routes::REQUEST_ID;
use crate::stored::Tenancy;

mod quota;

/// Where the access log goes: `--log kvasir::access=info` shows it, and nothing else of that level.
const ACCESS: &str = "kvasir::access";
/// What stands in the log for a client that left before its answer had a status. As common proxies have it.
const CLIENT_LEFT: u16 = 499;

/// Who may ask, and how much.
pub(crate) struct Door {
    /// None while no keys are needed.
    keys: RwLock<Option<Arc<KeyRing>>>,
    accounts: Mutex<Accounts>,
    cors: Cors,
    /// The tenant of those who need no key.
    tenant: TenantId,
}

impl Door {
    pub(crate) fn new(config: &GatewayConfig, tenant: TenantId) -> Self {
        Self {
            keys: RwLock::new(None),
            accounts: Mutex::default(),
            cors: Cors::new(&config.cors_origins),
            tenant,
        }
    }

    /// From now on only the bearers of these keys are let in; with none of them, anybody.
    pub(crate) fn set_keys(&self, ring: Option<KeyRing>) {
        let ring = ring.map(Arc::new);
        self.keys.write().clone_from(&ring);
        let is_there = |subject: &Subject| match (&ring, subject) {
            (None, Subject::Tenant(tenant)) => *tenant == self.tenant,
            (None, Subject::Key(_)) => false,
            (Some(ring), Subject::Tenant(tenant)) => ring.keys().any(|key| key.tenant == *tenant),
            (Some(ring), Subject::Key(name)) => ring.keys().any(|key| key.name == **name),
        };
        self.accounts.lock().keep(is_there);
    }

    /// A prompt was counted and goes to work: its tokens are paid now.
    pub(crate) fn pay_prompt(&self, call: &Call, tokens: u32, now: Timestamp) {
        call.note_prompt(tokens);
        self.accounts.lock().charge(call.caller.subjects(), tokens.into(), now);
    }

    /// Whether the keys speak for more than one tenant.
    pub(crate) fn tenancy(&self) -> Tenancy {
        match &*self.keys.read() {
            Some(ring) if ring.is_shared() => Tenancy::Shared,
            Some(_) | None => Tenancy::Sole,
        }
    }

    pub(crate) fn accounts(&self) -> usize {
        self.accounts.lock().len()
    }

    /// Whoever asks on a listener that needs no key.
    pub(crate) fn anybody(&self, config: &GatewayConfig) -> Caller {
        Caller::anybody(&self.tenant, config.limits_of(&self.tenant))
    }

    fn identify(&self, headers: &HeaderMap, config: &GatewayConfig) -> Result<Caller, ApiError> {
        let ring = self.keys.read().clone();
        match ring {
            None => Ok(self.anybody(config)),
            Some(ring) => {
                let key = ring.identify(headers)?;
                let limits = config.limits_of(&key.tenant);
                Ok(Caller::bearer(key, limits))
            }
        }
    }
}

impl GatewayConfig {
    /// The limits of a tenant.
    pub(crate) fn limits_of(&self, tenant: &TenantId) -> RateLimits {
        self.tenant_limits.get(&*tenant.0).copied().unwrap_or(self.limits)
    }
}

/// Lets a request in, or answers it here.
pub(crate) async fn enter(
    State(shared): State<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Some(response) = shared.door.cors.preflight(&request) {
        return response;
    }
    let origin = shared.door.cors.origin(request.headers());
    let dialect = Dialect::of(request.uri().path(), request.headers());
    let mut visit = Visit::begin(&shared, request.uri().path());
    let admitted = visit.admit(&request);
    let visit = Arc::new(visit);
    let mut response = match admitted {
        Ok(call) => {
            request.extensions_mut().insert(call);
            request.extensions_mut().insert(Arc::clone(&visit));
            let mut response = next.run(request).await;
            let now = shared.cluster.clock.unix_seconds();
            quota::say(visit.quota(), dialect, now, response.headers_mut());
            response
        }
        Err(error) => {
            discard_request(request, shared.config.discarded_bytes_max()).await;
            shared.metrics.request_ended(error.outcome);
            error.into_response()
        }
    };
    if !response.headers().contains_key(REQUEST_ID) {
        let id = shared.next_request_id().to_string();
        response.headers_mut().insert(REQUEST_ID, HeaderValue::try_from(id).expect("digits"));
    }
    shared.door.cors.mark(origin, &mut response);
    visit.answered(&response);
    response.map(|body| Body::new(Watched { body, _visit: visit }))
}

/// A request from its arrival to the last byte of its answer, and to the end of what goes on without its client.
pub(crate) struct Visit {
    shared: Arc<Shared>,
    protocol: &'static str,
    /// None while nobody knows who asks.
    call: Option<Arc<Call>>,
    /// None while it is not let in.
    admitted: Mutex<Option<Admitted>>,
    arrived: Timestamp,
    /// None before the answer began.
    answer: Mutex<Option<(u16, String)>>,
}

/// What a request that was let in takes of its accounts.
#[derive(Clone, Copy)]
struct Admitted {
    answers: u32,
    /// What was left to its tenant and key then.
    quota: Quota,
}

impl Visit {
    fn begin(shared: &Arc<Shared>, path: &str) -> Self {
        Self {
            shared: Arc::clone(shared),
            protocol: protocol_of(path),
            call: None,
            admitted: Mutex::default(),
            arrived: shared.cluster.clock.now(),
            answer: Mutex::default(),
        }
    }

    /// Says who asks and takes the request in.
    fn admit(&mut self, request: &Request) -> Result<Arc<Call>, ApiError> {
        let Self { shared, arrived, .. } = self;
        let caller = shared.door.identify(request.headers(), &shared.config)?;
        let call = Arc::new(Call::new(caller, *arrived));
        self.call = Some(Arc::clone(&call));
        // Looking around costs nothing.
        if request.method() != Method::POST {
            return Ok(call);
        }
        let caller = &call.caller;
        let admitted = shared.door.accounts.lock().admit(caller.subjects(), *arrived);
        let quota = admitted.map_err(|refusal| refused(shared, caller, &refusal))?;
        *self.admitted.get_mut() = Some(Admitted { answers: 1, quota });
        Ok(call)
    }

    /// Takes the other answers in, of a request that asks for so many: each counts as a request.
    ///
    /// # Errors
    /// When a limit is reached, or can never let so many in.
    pub(crate) fn admit_answers(&self, answers: u32) -> Result<(), ApiError> {
        let mut admitted = self.admitted.lock();
        let (Some(admitted), Some(call)) = (admitted.as_mut(), &self.call) else { return Ok(()) };
        let (shared, caller) = (&self.shared, &call.caller);
        let others = answers.saturating_sub(admitted.answers);
        if others == 0 {
            return Ok(());
        }
        if let Some((whose, limit, bound)) = too_low_for(caller.subjects(), answers) {
            shared.metrics.tenant_refused(&caller.tenant, limit);
            return Err(ApiError::too_many_answers(answers, whose, (limit, bound)));
        }
        let now = shared.cluster.clock.now();
        let taken = shared.door.accounts.lock().admit_answers(caller.subjects(), others, now);
        let quota = taken.map_err(|refusal| refused(shared, caller, &refusal))?;
        *admitted = Admitted { answers, quota };
        Ok(())
    }

    /// What is left to tenant and key.
    fn quota(&self) -> Quota {
        self.admitted.lock().map(|admitted| admitted.quota).unwrap_or_default()
    }

    fn answered(&self, response: &Response) {
        let id = response.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
        *self.answer.lock() = Some((response.status().as_u16(), id.unwrap_or("-").to_owned()));
    }
}

fn refused(shared: &Shared, caller: &Caller, refusal: &Refusal) -> ApiError {
    shared.metrics.tenant_refused(&caller.tenant, refusal.limit);
    ApiError::rate_limited(refusal)
}

impl Drop for Visit {
    fn drop(&mut self) {
        let answer = self.answer.get_mut().take();
        let admitted = self.admitted.get_mut().take();
        let Self { shared, call, .. } = &*self;
        let now = shared.cluster.clock.now();
        let used = call.as_ref().map(|call| call.used()).unwrap_or_default();
        if let Some((call, admitted)) = call.as_ref().zip(admitted) {
            let mut accounts = shared.door.accounts.lock();
            accounts.leave(call.caller.subjects(), admitted.answers);
            accounts.charge(call.caller.subjects(), used.output_tokens, now);
            drop(accounts);
            shared.metrics.tenant_used(&call.caller.tenant, &used);
        }
        let (status, request) = match &answer {
            Some((status, id)) => (*status, id.as_str()),
            None => (CLIENT_LEFT, "-"),
        };
        let caller = call.as_ref().map(|call| &call.caller);
        let milliseconds = |time: Duration| time.as_secs_f64() * 1_000.0;
        tracing::info!(
            target: ACCESS,
            request,
            tenant = caller.map_or("-", |caller| &*caller.tenant.0),
            key = caller.map_or("-", Caller::key_name),
            protocol = self.protocol,
            model = used.model.as_deref().unwrap_or("-"),
            status,
            prompt_tokens = used.prompt_tokens,
            cached_tokens = used.cached_tokens,
            output_tokens = used.output_tokens,
            ttft_ms = milliseconds(Duration::from_nanos(used.first_token)),
            total_ms = milliseconds(now.since(self.arrived)),
            "served"
        );
    }
}

/// The protocol of a path, whatever root it has.
fn protocol_of(path: &str) -> &'static str {
    let ends = [
        ("/chat/completions", "chat"),
        ("/completions", "completions"),
        ("/messages", "messages"),
        ("/messages/count_tokens", "count_tokens"),
        ("/tokenize", "tokenize"),
        ("/detokenize", "tokenize"),
    ];
    let found = ends.into_iter().find(|(end, _)| path.ends_with(end));
    match found {
        Some((_, protocol)) => protocol,
        None if path.contains("/responses") => "responses",
        None if path.contains("/models") => "models",
        None => "other",
    }
}

/// An answer's body that ends the visit with itself.
struct Watched {
    body: Body,
    _visit: Arc<Visit>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::protocol_of;

    #[test]
    fn protocols_are_told_by_their_paths_under_any_root() {
        let cases = [
            ("/v1/chat/completions", "chat"),
            ("/chat/completions", "chat"),
            ("/v1/completions", "completions"),
            ("/beta/completions", "completions"),
            ("/anthropic/v1/messages", "messages"),
            ("/v1/messages/count_tokens", "count_tokens"),
            ("/v1/responses/resp_1", "responses"),
            ("/v1/models", "models"),
            ("/tokenize", "tokenize"),
            ("/", "other"),
        ];
        for (path, expected) in cases {
            assert_eq!(protocol_of(path), expected, "{path}");
        }
    }
}
