//! The HTTP routes. What answers is in the files below: `answers` for prompts, `tokens` for their tokens, `stored` for
//! responses that are kept.
//!
//! As DeepSeek has them: OpenAI's paths bare, under `/v1` and under `/beta`, Anthropic's under `/v1` and under `/anthropic`.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use prometheus_client::encoding::prometheus_text;

use crate::dialect::{Dialect, speak};
use crate::door;
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::metrics::MetricsProvider;
use crate::request::Protocol;
use crate::wire;

mod answers;
mod background;
mod body;
mod stored;
mod tokens;
mod whole;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

pub(crate) fn public(shared: Arc<Shared>) -> Router {
    let entered = from_fn_with_state(Arc::clone(&shared), door::enter);
    let mut router = Router::new();
    for root in ["", "/v1", "/beta"] {
        router = open_ai(router, root);
    }
    for root in ["/v1", "/anthropic", "/anthropic/v1"] {
        router = router
            .route(&format!("{root}/messages"), post(answers::messages))
            .route(&format!("{root}/messages/count_tokens"), post(tokens::count));
    }
    for root in ["/anthropic", "/anthropic/v1"] {
        router = router
            .route(&format!("{root}/models"), get(models))
            .route(&format!("{root}/models/{{*model}}"), get(model));
    }
    let api = router
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(entered)
        .layer(from_fn(speak));
    // Who looks whether this process is well needs no key.
    health(api).with_state(shared)
}

fn open_ai(router: Router<Arc<Shared>>, root: &str) -> Router<Arc<Shared>> {
    router
        .route(&format!("{root}/chat/completions"), post(answers::chat))
        .route(&format!("{root}/completions"), post(answers::completions))
        .route(&format!("{root}/responses"), post(answers::responses))
        .route(&format!("{root}/responses/input_tokens"), post(tokens::count_input))
        .route(&format!("{root}/responses/compact"), post(no_compaction))
        .route(&format!("{root}/responses/{{id}}/cancel"), post(stored::cancel))
        .route(&format!("{root}/responses/{{id}}"), get(stored::find).delete(stored::delete))
        .route(&format!("{root}/responses/{{id}}/input_items"), get(stored::input_items))
        .route(&format!("{root}/models"), get(models))
        .route(&format!("{root}/models/{{*model}}"), get(model))
        .route(&format!("{root}/tokenize"), post(tokens::tokenize))
        .route(&format!("{root}/detokenize"), post(tokens::detokenize))
}

pub(crate) fn admin(shared: Arc<Shared>, providers: Vec<MetricsProvider>) -> Router {
    let providers = Arc::new(providers);
    let scrape = move |State(shared): State<Arc<Shared>>| {
        let response = metrics(&shared, &providers);
        async move { response }
    };
    health(Router::new())
        .route("/metrics", get(scrape))
        .route("/debug/prompt", post(answers::prompt))
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

async fn no_compaction() -> ApiError {
    let message = "compaction is not supported by this server; send shorter input, or ask the model for a summary of it";
    ApiError { code: "unsupported", ..ApiError::invalid(None, message) }
}

async fn unknown_path() -> ApiError {
    let paths = "POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /v1/tokenize, GET /v1/models, /healthz, /readyz";
    ApiError::not_found("unknown_path", format!("there is nothing at this path; try {paths}"))
}

async fn unknown_method() -> ApiError {
    ApiError::method_not_allowed()
}

async fn models(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap) -> Response {
    let model = shared.prompter.model();
    json(match Dialect::of(uri.path(), &headers) {
        Dialect::OpenAi => wire::model_list(&model.names, model.created, model.context_tokens),
        Dialect::Anthropic => wire::anthropic_models(&model.names, model.created),
    })
}

async fn model(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let model = shared.prompter.model();
    if !model.names.contains(&name) {
        return ApiError::model_not_found(&name, &model.names).into_response();
    }
    json(match Dialect::of(uri.path(), &headers) {
        Dialect::OpenAi => wire::model(&name, model.created, model.context_tokens),
        Dialect::Anthropic => wire::anthropic_model(&name, model.created),
    })
}

fn metrics(shared: &Shared, providers: &[MetricsProvider]) -> Response {
    let mut text = String::new();
    let in_flight = shared.admission.in_flight();
    shared.metrics.stored(shared.responses.held(), shared.responses.running_count());
    let accounts = shared.door.accounts();
    shared.metrics.encode(in_flight, accounts, shared.prompter.cache_stats(), &mut text);
    for provider in providers {
        provider(&mut text);
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    let kind = HeaderValue::from_static(prometheus_text::CONTENT_TYPE);
    ([(CONTENT_TYPE, kind)], text).into_response()
}

/// The span's name of requests for answers.
fn span_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Chat => "chat",
        Protocol::Messages => "messages",
        Protocol::Responses => "responses",
        Protocol::Completions => "completions",
    }
}

fn json(body: Vec<u8>) -> Response {
    ([(CONTENT_TYPE, JSON)], body).into_response()
}
