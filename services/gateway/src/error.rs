//! What a client is told when a request fails: the OpenAI error shape, one line that says what to do.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use shared::ServeError;

use crate::limits::{Limit, Refusal};
use crate::metrics::Outcome;

/// A failed request, as its client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) param: Option<String>,
    /// Seconds.
    pub(crate) retry_after: Option<u64>,
    pub(crate) outcome: Outcome,
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Detail<'a>,
}

#[derive(Serialize)]
struct Detail<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

impl ApiError {
    /// A request that no retry will make right. The message may repeat what the client wrote: it becomes one line.
    pub(crate) fn invalid(param: impl Into<Option<String>>, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "invalid_request_error",
            code: "invalid_value",
            message: one_line(message.into()),
            param: param.into(),
            retry_after: None,
            outcome: Outcome::Invalid,
        }
    }

    /// Something the protocol has and this server has not.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: "unsupported", ..Self::invalid(Some(param.into()), message) }
    }

    pub(crate) fn context_length(message: impl Into<String>) -> Self {
        let error = Self::invalid(Some("messages".into()), message);
        Self { code: "context_length_exceeded", ..error }
    }

    pub(crate) fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        let status = StatusCode::NOT_FOUND;
        Self { status, code, outcome: Outcome::NotFound, ..Self::invalid(None, message) }
    }

    /// Nobody knows who asks.
    pub(crate) fn unauthenticated(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            kind: "authentication_error",
            code,
            outcome: Outcome::Unauthenticated,
            ..Self::invalid(None, message)
        }
    }

    /// The tenant or the key has used what it may for now.
    pub(crate) fn rate_limited(refusal: &Refusal) -> Self {
        let Refusal { limit, whose, bound, wait } = refusal;
        // A client that waits this long is let in, so the wait is rounded up.
        let seconds = u64::try_from(wait.as_millis().div_ceil(1_000)).unwrap_or(u64::MAX).max(1);
        Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            kind: "rate_limit_error",
            code: "rate_limit_exceeded",
            message: format!(
                "this {whose} has reached its {} of {bound}; retry in {seconds} s",
                limit.as_str()
            ),
            param: None,
            retry_after: Some(seconds),
            outcome: Outcome::RateLimited,
        }
    }

    /// A limit of the tenant or the key is below what one request asks for, so no retry will help.
    pub(crate) fn too_many_answers(
        answers: u32,
        whose: &'static str,
        (limit, bound): (Limit, u32),
    ) -> Self {
        let message = format!(
            "the request asks for {answers} answers, each of which counts as a request, and this {whose} has {} of {bound}; ask for fewer at once",
            limit.as_str()
        );
        Self::invalid(Some("n".into()), message)
    }

    pub(crate) fn model_not_found(asked: &str, names: &[String]) -> Self {
        let message =
            format!("the model {asked:?} is not served here; use one of: {}", names.join(", "));
        Self { param: Some("model".into()), ..Self::not_found("model_not_found", message) }
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "this path does not take that method; chat completions are POST, models GET";
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self { status, code: "method_not_allowed", ..Self::invalid(None, message) }
    }

    pub(crate) fn body_too_large(bytes_max: usize) -> Self {
        let message = format!(
            "the request body is larger than {bytes_max} bytes; shorten the messages or raise body_bytes_max"
        );
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Self {
            status,
            code: "request_too_large",
            outcome: Outcome::TooLarge,
            ..Self::invalid(None, message)
        }
    }

    pub(crate) fn body_unreadable(detail: impl Into<String>) -> Self {
        Self { code: "invalid_body", ..Self::invalid(None, detail) }
    }

    pub(crate) fn body_timeout(wait_ms: u64) -> Self {
        let message = format!("the request body did not arrive within {wait_ms} ms; send it again");
        let status = StatusCode::REQUEST_TIMEOUT;
        Self {
            status,
            code: "body_timeout",
            outcome: Outcome::TimedOut,
            ..Self::invalid(None, message)
        }
    }

    /// This process has as many requests in work as it takes.
    pub(crate) fn full(in_flight_max: usize, retry_after: u64) -> Self {
        let message = format!(
            "{in_flight_max} requests are in work, which is all this server takes; retry later"
        );
        Self::overloaded(message, retry_after)
    }

    /// The tenant has all responses in the background that one of several may have.
    pub(crate) fn over_share_of_running(share: usize) -> Self {
        let message = format!(
            "{share} responses of this tenant run in the background, which is its share; retry later, or leave background out"
        );
        Self::over_share(message, 1)
    }

    /// As many responses as may be are made while nobody waits for them.
    pub(crate) fn too_many_running(running_max: usize) -> Self {
        let message = format!(
            "{running_max} responses run in the background, which is all this server takes; retry later, or leave background out"
        );
        Self::overloaded(message, 1)
    }

    /// All that can be taken is taken, by whomever.
    fn overloaded(message: String, retry_after: u64) -> Self {
        let error = Self::unavailable("overloaded", message, Outcome::Overloaded);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// This client's tenant has more than its share, while others get theirs.
    fn over_share(message: String, retry_after: u64) -> Self {
        Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            kind: "rate_limit_error",
            code: "over_share",
            message,
            param: None,
            retry_after: Some(retry_after),
            outcome: Outcome::OverShare,
        }
    }

    fn unavailable(code: &'static str, message: String, outcome: Outcome) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "service_unavailable_error",
            code,
            message,
            param: None,
            retry_after: Some(1),
            outcome,
        }
    }

    pub(crate) fn draining(retry_after: u64) -> Self {
        let message = "this server is shutting down; retry, and another one will answer".into();
        let error = Self::unavailable("draining", message, Outcome::Draining);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// A role of this process ended; `ended` says which.
    pub(crate) fn role_ended(ended: &str) -> Self {
        let message = format!("this server cannot answer: {ended}; ask another one");
        Self::unavailable("role_ended", message, Outcome::Unavailable)
    }

    /// A client that stopped reading its stream.
    pub(crate) fn slow_client(tokens_max: usize) -> Self {
        let message = format!(
            "the answer was given up: {tokens_max} tokens waited for this client to read; read faster and ask again"
        );
        let error = Self::invalid(None, message);
        Self { code: "slow_client", outcome: Outcome::SlowClient, ..error }
    }

    /// A fault of ours. The cause is for the log; the client gets what helps the operator to find it.
    pub(crate) fn internal(request: shared::RequestId) -> Self {
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            kind: "server_error",
            code: "internal_error",
            message: format!(
                "internal error; tell the operator the request id {request}, whose log lines have the cause"
            ),
            param: None,
            retry_after: None,
            outcome: Outcome::Internal,
        }
    }

    /// A fault of ours that the caller logged; the response's header names the request.
    pub(crate) fn broken() -> Self {
        let message = "internal error; tell the operator the request id in the header x-request-id, whose log lines have the cause";
        Self { message: message.into(), ..Self::internal(shared::RequestId(0)) }
    }

    /// What a refusal by the router or a worker means to the client.
    pub(crate) fn from_serve(error: &ServeError, request: shared::RequestId) -> Self {
        match error {
            ServeError::Overloaded { retry_after_ms, .. } => {
                Self::overloaded(error.to_string(), retry_after_ms.div_ceil(1_000).max(1))
            }
            ServeError::OverShare { retry_after_ms, .. } => {
                Self::over_share(error.to_string(), retry_after_ms.div_ceil(1_000).max(1))
            }
            ServeError::TooLong { .. } => Self::context_length(error.to_string()),
            ServeError::NeverFits { .. } => {
                let refusal = Self::invalid(Some("messages".into()), error.to_string());
                Self { code: "request_too_large", outcome: Outcome::TooLarge, ..refusal }
            }
            ServeError::Unsupported { .. } => {
                Self { code: "unsupported", ..Self::invalid(None, error.to_string()) }
            }
            ServeError::GrammarRefused { .. } => {
                Self { code: "grammar_refused", ..Self::invalid(None, error.to_string()) }
            }
            ServeError::GrammarFailed { .. } => {
                Self { code: "grammar_failed", ..Self::invalid(None, error.to_string()) }
            }
            ServeError::WorkerLost { .. } => {
                let message = format!("{error} and took the answer with it; ask again");
                Self::unavailable("worker_lost", message, Outcome::Unavailable)
            }
            ServeError::NoWorker { .. } => {
                let message = format!("{error}; retry later");
                Self::unavailable("no_worker", message, Outcome::Unavailable)
            }
            ServeError::Draining => {
                let message = format!("{error}; retry, and another one will answer");
                Self::unavailable("draining", message, Outcome::Draining)
            }
            ServeError::DeadlineExceeded { .. } => Self {
                status: StatusCode::GATEWAY_TIMEOUT,
                kind: "timeout_error",
                code: "deadline_exceeded",
                message: format!("{error}; ask for fewer tokens or retry later"),
                param: None,
                retry_after: None,
                outcome: Outcome::TimedOut,
            },
            ServeError::NamesDiffer { .. } | ServeError::Internal { .. } => {
                tracing::error!(%request, %error, "request failed");
                Self::internal(request)
            }
        }
    }

    /// The JSON body of the response, and of an error event in a stream.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let envelope = Envelope {
            error: Detail {
                message: &self.message,
                r#type: self.kind,
                param: self.param.as_deref(),
                code: self.code,
            },
        };
        serde_json::to_vec(&envelope).expect("strings always serialise")
    }
}

impl ApiError {
    /// The status that Anthropic's clients know the error by.
    pub(crate) fn anthropic_status(&self) -> StatusCode {
        match self.status {
            // "Overloaded", which no registry has.
            StatusCode::SERVICE_UNAVAILABLE => StatusCode::from_u16(529).expect("a status"),
            status => status,
        }
    }

    /// The error in Anthropic's shape.
    pub(crate) fn to_anthropic_json(&self, request_id: Option<&str>) -> Vec<u8> {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            402 => "billing_error",
            403 => "permission_error",
            404 => "not_found_error",
            408 | 504 => "timeout_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            400..=499 => "invalid_request_error",
            _ => "api_error",
        };
        let envelope = serde_json::json!({
            "type": "error",
            "error": {"type": kind, "message": self.message},
            "request_id": request_id,
        });
        envelope.to_string().into_bytes()
    }
}

/// The text with a space for each line break and the blanks around it.
fn one_line(text: String) -> String {
    // What lines are to anybody: control characters, and the two separators of Unicode.
    let breaks =
        |character: char| character.is_control() || matches!(character, '\u{2028}' | '\u{2029}');
    if !text.contains(breaks) {
        return text;
    }
    let lines = text.split(breaks).map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_json()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        // For the layer that says it in another protocol's shape.
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use shared::{DpRank, RequestId, ServeError, WorkerId, WorkerRank};

    use super::ApiError;

    #[test]
    fn each_serve_error_has_a_status_and_one_line() {
        let worker = WorkerRank { worker: WorkerId(1), rank: DpRank(0) };
        let overloaded =
            ServeError::Overloaded { waiting: 4, waiting_max: 4, retry_after_ms: 1_500 };
        let cases = [
            (overloaded, 503, "overloaded", Some(2)),
            (
                ServeError::OverShare { waiting: 4, waiting_max: 9, retry_after_ms: 2_500 },
                429,
                "over_share",
                Some(3),
            ),
            (
                ServeError::TooLong { tokens: 9, tokens_max: 8 },
                400,
                "context_length_exceeded",
                None,
            ),
            (ServeError::NeverFits { slots: 9, slots_max: 8 }, 400, "request_too_large", None),
            (ServeError::Unsupported { what: "images".into() }, 400, "unsupported", None),
            (
                ServeError::GrammarRefused { what: "look-ahead".into() },
                400,
                "grammar_refused",
                None,
            ),
            (
                ServeError::GrammarRefused { what: "of the client:\r\n\u{85}a\nb".into() },
                400,
                "grammar_refused",
                None,
            ),
            (ServeError::GrammarFailed { what: "states".into() }, 400, "grammar_failed", None),
            (ServeError::NamesDiffer { index: 0 }, 500, "internal_error", None),
            (ServeError::WorkerLost { worker }, 503, "worker_lost", Some(1)),
            (ServeError::NoWorker { role: "decode" }, 503, "no_worker", Some(1)),
            (ServeError::DeadlineExceeded { stage: "queued" }, 504, "deadline_exceeded", None),
            (ServeError::Draining, 503, "draining", Some(1)),
            (ServeError::Internal { message: "secret".into() }, 500, "internal_error", None),
        ];
        for (error, status, code, retry_after) in cases {
            let api = ApiError::from_serve(&error, RequestId(7));
            assert_eq!(
                (api.status.as_u16(), api.code, api.retry_after),
                (status, code, retry_after)
            );
            assert!(!api.message.contains('\n') && !api.message.contains("secret"));
            let body: serde_json::Value = serde_json::from_slice(&api.to_json()).unwrap();
            for key in ["message", "type", "param", "code"] {
                assert!(body["error"].get(key).is_some(), "{key}");
            }
        }
    }
}
