//! The HTTP routes and their handlers.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::StreamExt;
use prometheus_client::encoding::prometheus_text;
use serde_json::Value;
use shared::{Priority, RequestId, SessionKey};
use tokio::time::timeout;
use tracing::Instrument;

use crate::admission::Flight;
use crate::answer::{Answer, Step, outcome_of};
use crate::dispatch::{Session, Word};
use crate::error::ApiError;
use crate::evidence::ROUTING;
use crate::gateway::Shared;
use crate::metrics::MetricsProvider;
use crate::output::Delta;
use crate::prompt::{Asked, Prepared};
use crate::stream::stream;
use crate::wire::{self, Head};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// W3C Trace Context.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The request's class while it waits for a worker.
const PRIORITY: HeaderName = HeaderName::from_static("x-kvasir-priority");
/// The client's name for the conversation.
const SESSION: HeaderName = HeaderName::from_static("x-kvasir-session");
/// Longest name of a conversation: more than identifiers of any scheme take.
const SESSION_BYTES_MAX: usize = 256;

pub(crate) fn public(shared: Arc<Shared>) -> Router {
    health(Router::new())
        .route("/v1/chat/completions", post(chat))
        .route("/v1/models", get(models))
        .route("/v1/models/{*model}", get(model))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .with_state(shared)
}

pub(crate) fn admin(shared: Arc<Shared>, providers: Vec<MetricsProvider>) -> Router {
    let providers = Arc::new(providers);
    let scrape = move |State(shared): State<Arc<Shared>>| {
        let response = metrics(&shared, &providers);
        async move { response }
    };
    health(Router::new())
        .route("/metrics", get(scrape))
        .route("/debug/prompt", post(prompt))
        .fallback(unknown_path)
        .with_state(shared)
}

fn health(router: Router<Arc<Shared>>) -> Router<Arc<Shared>> {
    router.route("/healthz", get(|| async { "ok\n" })).route("/readyz", get(ready))
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    if shared.admission.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response();
    }
    if let Err(ended) = (shared.health)() {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{ended}\n")).into_response();
    }
    "ready\n".into_response()
}

async fn unknown_path() -> ApiError {
    let paths = "POST /v1/chat/completions, GET /v1/models, /healthz, /readyz";
    ApiError::not_found("unknown_path", format!("there is nothing at this path; try {paths}"))
}

async fn unknown_method() -> ApiError {
    ApiError::method_not_allowed()
}

async fn models(State(shared): State<Arc<Shared>>) -> Response {
    let model = shared.prompter.model();
    json(wire::model_list(&model.names, model.created, model.context_tokens))
}

async fn model(State(shared): State<Arc<Shared>>, Path(name): Path<String>) -> Response {
    let model = shared.prompter.model();
    if !model.names.contains(&name) {
        return ApiError::model_not_found(&name, &model.names).into_response();
    }
    json(wire::model(&name, model.created, model.context_tokens))
}

fn metrics(shared: &Shared, providers: &[MetricsProvider]) -> Response {
    let mut text = String::new();
    let in_flight = shared.admission.in_flight();
    shared.metrics.encode(in_flight, shared.prompter.cache_stats(), &mut text);
    for provider in providers {
        provider(&mut text);
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    let kind = HeaderValue::from_static(prometheus_text::CONTENT_TYPE);
    ([(CONTENT_TYPE, kind)], text).into_response()
}

async fn chat(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let id = shared.next_request_id();
    let span = tracing::info_span!("chat", request = %id);
    let mut response = match admit(&shared) {
        Ok(flight) => complete(&shared, id, request, flight).instrument(span).await,
        Err(error) => error.into_response(),
    };
    let header = HeaderValue::try_from(id.to_string()).expect("hexadecimal digits");
    response.headers_mut().insert(REQUEST_ID, header);
    response
}

/// Takes a request into work, if every role that it may need still runs.
fn admit(shared: &Shared) -> Result<Flight, ApiError> {
    let flight = shared.admission.admit()?;
    let Err(ended) = (shared.health)() else { return Ok(flight) };
    let error = ApiError::role_ended(&ended);
    flight.end(error.outcome);
    Err(error)
}

async fn complete(
    shared: &Arc<Shared>,
    id: RequestId,
    request: Request,
    flight: Flight,
) -> Response {
    let arrived = shared.cluster.clock.now();
    let with_evidence = shared.evidence.admits(request.headers());
    let prepared = match prepare(shared, id, request).await {
        Ok(prepared) => Arc::new(prepared),
        Err(error) => return refuse(flight, error),
    };
    let clock = Arc::clone(&shared.cluster.clock);
    let metrics = Arc::clone(&shared.metrics);
    let answer = Answer::new(&prepared, shared.prompter.vocabulary(), clock, metrics, arrived);
    let session = Session::new(shared.cluster.clone(), Arc::clone(&prepared));
    let evidence = session.evidence();
    let head = head(shared, &prepared);
    let mut response = if prepared.stream {
        respond_streaming(shared, (session, answer), head, flight, id).await
    } else {
        respond_whole((session, answer), head, flight, id).await
    };
    if with_evidence && let Some(reason) = evidence.header() {
        response.headers_mut().insert(ROUTING, reason);
    }
    response
}

fn refuse(flight: Flight, error: ApiError) -> Response {
    flight.end(error.outcome);
    error.into_response()
}

fn head(shared: &Shared, prepared: &Prepared) -> Head {
    Head {
        id: format!("chatcmpl-{}", prepared.id),
        created: shared.cluster.clock.unix_seconds(),
        model: prepared.model.clone(),
        fingerprint: format!("kvasir-{}", shared.prompter.model().numerics.0),
        thinking: prepared.thinking,
        include_usage: prepared.include_usage,
    }
}

/// What a chat request would be looked up by: the names of its prompt's whole blocks. Without a model it is the first one.
async fn prompt(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let id = shared.next_request_id();
    let named = async {
        let mut body = read_body(&shared, request).await?;
        if let Ok(Value::Object(mut fields)) = serde_json::from_slice(&body) {
            let first = &shared.prompter.model().names[0];
            fields.entry("model").or_insert_with(|| first.clone().into());
            body = Value::Object(fields).to_string().into_bytes();
        }
        let (trace, priority) = (Shared::trace(None, id), Priority::Normal);
        prepare_body(&shared, id, Asked { trace, priority, session: None }, body).await
    };
    match named.await {
        Ok(prepared) => json(wire::prompt(prepared.prompt_tokens, &prepared.names)),
        Err(error) => error.into_response(),
    }
}

async fn prepare(
    shared: &Arc<Shared>,
    id: RequestId,
    request: Request,
) -> Result<Prepared, ApiError> {
    let asked = asked(shared, id, request.headers())?;
    let body = read_body(shared, request).await?;
    prepare_body(shared, id, asked, body).await
}

/// Reads the headers that say how a request is to be treated.
fn asked(shared: &Shared, id: RequestId, headers: &HeaderMap) -> Result<Asked, ApiError> {
    let trace = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
    let priority = match headers.get(PRIORITY) {
        None => Priority::Normal,
        Some(value) => value.to_str().ok().and_then(Priority::parse).ok_or_else(|| {
            let message = "the header x-kvasir-priority is none of: high, normal, low; leave it out for normal";
            ApiError::invalid(None, message)
        })?,
    };
    let session = headers.get(SESSION).map(HeaderValue::as_bytes);
    if session.is_some_and(|name| SESSION_BYTES_MAX < name.len()) {
        let message = format!(
            "the header x-kvasir-session has more than {SESSION_BYTES_MAX} bytes; send a shorter name"
        );
        return Err(ApiError::invalid(None, message));
    }
    let tenant = &shared.prompter.model().tenant;
    let session = session.map(|name| SessionKey::of(tenant, name));
    Ok(Asked { trace: Shared::trace(trace, id), priority, session })
}

async fn prepare_body(
    shared: &Arc<Shared>,
    id: RequestId,
    asked: Asked,
    body: Vec<u8>,
) -> Result<Prepared, ApiError> {
    let permit = Arc::clone(&shared.tokenisers).acquire_owned().await;
    let permit = permit.expect("the semaphore is never closed");
    let prompter = Arc::clone(&shared.prompter);
    let work = move || {
        let prepared = prompter.prepare(id, asked, &body);
        drop(permit);
        prepared
    };
    // Bounded by the permits, and joined here; when the client goes away meanwhile, it ends by itself and its result is
    // dropped.
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        tracing::error!(request = %id, %error, "preparing a prompt failed");
        Err(ApiError::internal(id))
    })
}

async fn read_body(shared: &Shared, request: Request) -> Result<Vec<u8>, ApiError> {
    let bytes_max = shared.config.body_bytes_max;
    let wait_ms = shared.config.body_wait_ms_max;
    let declared = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let declared: Option<usize> = declared.and_then(|text| text.parse().ok());
    if declared.is_some_and(|declared| bytes_max < declared) {
        return Err(ApiError::body_too_large(bytes_max));
    }
    let reading = collect(request.into_body(), bytes_max);
    let read = timeout(Duration::from_millis(wait_ms), reading).await;
    read.unwrap_or_else(|_| Err(ApiError::body_timeout(wait_ms)))
}

async fn collect(body: Body, bytes_max: usize) -> Result<Vec<u8>, ApiError> {
    let mut parts = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| {
            let message = format!("the body broke off: {error}; send it again");
            ApiError::body_unreadable(message)
        })?;
        if bytes_max - bytes.len() < part.len() {
            return Err(ApiError::body_too_large(bytes_max));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

async fn respond_whole(
    (mut session, mut answer): (Session, Answer),
    head: Head,
    flight: Flight,
    id: RequestId,
) -> Response {
    let mut text = Delta::default();
    loop {
        let Word::Event(event) = session.next().await else {
            // The handler reads as fast as it can, so only a runtime without a free thread gets here.
            tracing::error!(request = %id, "the answer came faster than it was read");
            return refuse(flight, ApiError::internal(id));
        };
        match answer.take(event) {
            Step::Shown(delta) => append(&mut text, &delta),
            Step::Ended(delta, reason) => {
                append(&mut text, &delta);
                drop(session);
                flight.end(outcome_of(reason));
                return json(head.completion(&text, reason, &answer.bill()));
            }
            Step::Failed(error) => {
                drop(session);
                return refuse(flight, ApiError::from_serve(&error, id));
            }
        }
    }
}

fn append(text: &mut Delta, delta: &Delta) {
    text.reasoning.push_str(&delta.reasoning);
    text.content.push_str(&delta.content);
}

async fn respond_streaming(
    shared: &Arc<Shared>,
    request: (Session, Answer),
    head: Head,
    flight: Flight,
    id: RequestId,
) -> Response {
    let config = &shared.config;
    let keep_alive = Duration::from_millis(config.keep_alive_ms);
    let (pump, body) = stream(request, head, id, config.answer_buffer_tokens_max, keep_alive);
    shared.spawn_pump(pump.run(flight).in_current_span());
    let head_wait = Duration::from_millis(config.head_wait_ms_max);
    let mut began = body.began;
    let waited = timeout(head_wait, &mut began).await;
    // A pump that was cut off says nothing and ends the stream. What it said in the very moment the wait ended counts.
    began.close();
    let said = waited.ok().and_then(Result::ok).or_else(|| began.try_recv().ok());
    if let Some(Err(error)) = said {
        // The pump counted the failure already.
        return error.into_response();
    }
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, Body::from_stream(body.frames.into_stream())).into_response()
}

fn json(body: Vec<u8>) -> Response {
    ([(CONTENT_TYPE, JSON)], body).into_response()
}
