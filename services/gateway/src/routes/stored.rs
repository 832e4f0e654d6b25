//! Responses that are kept: to look at, and to forget.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::answers::memory;
use super::json as reply;
use crate::call::Call;
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::stored::{Stored, input_items as list};
use crate::wire;

/// The response object.
pub(super) async fn find(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    call: Extension<Arc<Call>>,
) -> Response {
    show(&shared, (&id, &call), |stored| wire::json(&stored.object))
}

/// The items that the response answered.
pub(super) async fn input_items(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    call: Extension<Arc<Call>>,
) -> Response {
    show(&shared, (&id, &call), |stored| wire::json(&list(&id, stored)))
}

/// Forgets the response.
pub(super) async fn delete(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    call: Extension<Arc<Call>>,
) -> Response {
    if !memory(&shared, &call).delete(&id) {
        return missing(&id).into_response();
    }
    reply(wire::json(&json!({"id": id, "object": "response", "deleted": true})))
}

fn show(
    shared: &Arc<Shared>,
    (id, call): (&str, &Call),
    text: impl FnOnce(&Stored) -> Vec<u8>,
) -> Response {
    match memory(shared, call).find(id) {
        Some(stored) => reply(text(&stored)),
        None => missing(id).into_response(),
    }
}

fn missing(id: &str) -> ApiError {
    let message = format!("the response {id:?} is not stored here (any more)");
    ApiError::not_found("response_not_found", message)
}
