//! Which protocol's words an error is told in. Handlers and everything before them answer errors in OpenAI's shape and leave
//! the error with the response; the outermost layer says it again where the client speaks otherwise, and names the request in
//! the header that its clients look for.

use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use crate::error::ApiError;

/// Anthropic's name for the header with the request's id, and OpenAI's.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// What only Anthropic's clients send.
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// The shapes of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
}

impl Dialect {
    /// The dialect of who asks for this path.
    pub(crate) fn of(path: &str, headers: &HeaderMap) -> Self {
        let is_anthropic = path.starts_with("/anthropic/")
            || path == "/v1/messages"
            || path.starts_with("/v1/messages/")
            || headers.contains_key(ANTHROPIC_VERSION);
        if is_anthropic { Self::Anthropic } else { Self::OpenAi }
    }
}

/// Says errors in the client's dialect.
pub(crate) async fn speak(request: Request, next: Next) -> Response {
    let dialect = Dialect::of(request.uri().path(), request.headers());
    let mut response = next.run(request).await;
    let id: Option<HeaderValue> = response.headers().get(X_REQUEST_ID).cloned();
    let error = response.extensions_mut().remove::<ApiError>();
    if let (Dialect::Anthropic, Some(error)) = (dialect, error) {
        let shown = id.as_ref().and_then(|id| id.to_str().ok());
        let body = error.to_anthropic_json(shown);
        response.headers_mut().remove(CONTENT_LENGTH);
        *response.status_mut() = error.anthropic_status();
        *response.body_mut() = body.into();
    }
    if let (Dialect::Anthropic, Some(id)) = (dialect, id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}
