//! Responses that are kept: to look at, and to forget.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::answers::memory;
use super::json as reply;
use crate::call::Call;
use crate::error::ApiError;
use crate::gateway::Shared;
use crate::stored::{Cancelled, Page, page};
use crate::wire;

/// The response object.
pub(super) async fn find(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    query: Result<Query<HashMap<String, String>>, QueryRejection>,
    call: Extension<Arc<Call>>,
) -> Response {
    // A client that asks for events takes the object for a stream without any.
    if query.is_ok_and(|query| query.get("stream").is_some_and(|asked| asked != "false")) {
        let message = "stored responses are not told as a stream; leave stream out";
        return ApiError::unsupported("stream", message).into_response();
    }
    match memory(&shared, &call).find(&id) {
        Some(stored) => reply(wire::json(&stored.object)),
        None => missing(&id).into_response(),
    }
}

/// The items that the response answered, page by page.
pub(super) async fn input_items(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    query: Result<Query<HashMap<String, String>>, QueryRejection>,
    call: Extension<Arc<Call>>,
) -> Response {
    let list = || {
        let query = query.map_err(|_| ApiError::invalid(None, "the query is malformed"))?;
        let asked = Page::read(&query)?;
        let stored = memory(&shared, &call).find(&id).ok_or_else(|| missing(&id))?;
        page(&id, &stored, &asked)
    };
    match list() {
        Ok(list) => reply(wire::json(&list)),
        Err(error) => error.into_response(),
    }
}

/// Stops a response that is made in the background.
pub(super) async fn cancel(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    call: Extension<Arc<Call>>,
) -> Response {
    match memory(&shared, &call).cancel(&id) {
        Cancelled::Over(stored) => reply(wire::json(&stored.object)),
        Cancelled::Attended => {
            let message = "only responses that were asked for with background: true can be cancelled; close the connection of others";
            ApiError::invalid(None, message).into_response()
        }
        Cancelled::Missing => missing(&id).into_response(),
    }
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

fn missing(id: &str) -> ApiError {
    let message = format!("the response {id:?} is not stored here (any more)");
    ApiError::not_found("response_not_found", message)
}
