//! Tokens of text, text of tokens, and how many tokens messages have.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::{answers, body, json as reply};
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::metrics::Outcome;
use crate::prompt::Prompter;
use crate::request::Protocol;
use crate::wire;

/// `{"prompt": ..}` or `{"messages": ..}` to its tokens. The members are vLLM's.
pub(super) async fn tokenize(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    work(&shared, request, |prompter, body| {
        let tokens = prompter.tokens_of(body)?;
        let tokens: Vec<u32> = tokens.iter().map(|token| token.0).collect();
        let (count, context) = (tokens.len(), prompter.model().context_tokens);
        Ok(wire::json(&json!({"count": count, "max_model_len": context, "tokens": tokens})))
    })
    .await
}

/// `{"tokens": [..]}` to its text.
pub(super) async fn detokenize(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    work(&shared, request, |prompter, body| {
        prompter.text_of(body).map(|text| wire::json(&json!({"prompt": text})))
    })
    .await
}

/// What a request for messages would be billed as input, whatever of it is cached.
pub(super) async fn count(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let memory = answers::memory(&shared, &answers::call_of(&shared, &request));
    work(&shared, request, move |prompter, body| {
        let tokens = prompter.count(Protocol::Messages, body, &memory)?;
        Ok(wire::json(&json!({"input_tokens": tokens})))
    })
    .await
}

/// The same of a request for a response.
pub(super) async fn count_input(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let memory = answers::memory(&shared, &answers::call_of(&shared, &request));
    work(&shared, request, move |prompter, body| {
        let tokens = prompter.count(Protocol::Responses, body, &memory)?;
        let object = "response.input_tokens";
        Ok(wire::json(&json!({"object": object, "input_tokens": tokens})))
    })
    .await
}

async fn work(
    shared: &Arc<Shared>,
    request: Request,
    task: impl FnOnce(&Prompter, &[u8]) -> Result<Vec<u8>, ApiError> + Send + 'static,
) -> Response {
    let id = shared.next_request_id();
    let done = async {
        let flight = answers::admit(shared)?;
        let body = body::read(shared, request).await?;
        let done = answers::compute(shared, id, move |prompter| task(prompter, &body)).await;
        flight.end(match &done {
            Ok(_) => Outcome::Stop,
            Err(error) => error.outcome,
        });
        done
    };
    let mut response = match done.await {
        Ok(body) => reply(body),
        Err(error) => error.into_response(),
    };
    answers::name(&mut response, id);
    response
}
