//! Reads request bodies, within their bounds of bytes and time.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use futures::StreamExt;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::gateway::Shared;
use crate::linger::{discard, discard_request};

/// Bytes that are set aside for a body whose length is declared, at most: who declares more has to send it first.
const RESERVED_MAX: usize = 1 << 20;

/// # Errors
/// When the body is too large, too slow or broken off.
pub(super) async fn read(shared: &Shared, request: Request) -> Result<Vec<u8>, ApiError> {
    let bytes_max = shared.config.body_bytes_max;
    let wait_ms = shared.config.body_wait_ms_max;
    let declared = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let declared: Option<usize> = declared.and_then(|text| text.parse().ok());
    if declared.is_some_and(|declared| bytes_max < declared) {
        discard_request(request, shared.config.discarded_bytes_max()).await;
        return Err(ApiError::body_too_large(bytes_max));
    }
    let reserved = declared.unwrap_or(0).min(RESERVED_MAX);
    let reading = collect(request.into_body(), Vec::with_capacity(reserved), bytes_max);
    let read = timeout(Duration::from_millis(wait_ms), reading).await;
    read.unwrap_or_else(|_| Err(ApiError::body_timeout(wait_ms)))
}

async fn collect(body: Body, mut bytes: Vec<u8>, bytes_max: usize) -> Result<Vec<u8>, ApiError> {
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| {
            let message = format!("the body broke off: {error}; send it again");
            ApiError::body_unreadable(message)
        })?;
        if bytes_max - bytes.len() < part.len() {
            discard(Body::from_stream(parts), bytes_max.saturating_mul(4)).await;
            return Err(ApiError::body_too_large(bytes_max));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}
