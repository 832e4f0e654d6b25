//! Which pages of browsers may read answers.
//!
//! Off unless origins are listed. It protects users of browsers from pages, not this server from anybody: that is what keys
//! are for, and they are never sent by a browser on its own, so no credentials of the browser's are ever allowed.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::Response;

/// Most origins of a list: it is searched with every request.
const ORIGINS_MAX: usize = 64;
/// Headers of answers that a page may read.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "anthropic-ratelimit-requests-limit, anthropic-ratelimit-requests-remaining, anthropic-ratelimit-requests-reset, anthropic-ratelimit-tokens-limit, anthropic-ratelimit-tokens-remaining, anthropic-ratelimit-tokens-reset, request-id, retry-after, x-request-id, x-kvasir-routing, x-ratelimit-limit-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-requests, x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, x-ratelimit-reset-tokens",
);
/// How long a browser may remember what a page may do, in seconds: as long as browsers keep it at most by themselves.
const REMEMBERED: HeaderValue = HeaderValue::from_static("7200");

/// The origins whose pages may read answers.
#[derive(Debug)]
pub(crate) struct Cors {
    origins: Vec<String>,
}

/// Whether a list of origins can be used.
pub(crate) fn are_origins(origins: &[String]) -> bool {
    let is_origin = |origin: &String| {
        let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        let fits = |sign: char| {
            sign.is_ascii_alphanumeric() || matches!(sign, '.' | '-' | ':' | '[' | ']')
        };
        origin == "*" || host.is_some_and(|host| !host.is_empty() && host.chars().all(fits))
    };
    origins.len() <= ORIGINS_MAX && origins.iter().all(is_origin)
}

impl Cors {
    pub(crate) fn new(origins: &[String]) -> Self {
        Self { origins: origins.to_vec() }
    }

    /// The origin of a request whose page may read the answer.
    pub(crate) fn origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        let allowed = |listed: &String| listed == "*" || listed.as_bytes() == origin.as_bytes();
        self.origins.iter().any(allowed).then(|| origin.clone())
    }

    /// The answer to a browser that asks beforehand what a page may do.
    pub(crate) fn preflight(&self, request: &Request) -> Option<Response> {
        let headers = request.headers();
        let asks = request.method() == Method::OPTIONS
            && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        let origin = self.origin(headers).filter(|_| asks)?;
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let answered = response.headers_mut();
        let methods = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
        answered.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
        answered.insert(ACCESS_CONTROL_MAX_AGE, REMEMBERED);
        // Client libraries send a dozen headers of their own; none of them means anything to a browser's credentials.
        if let Some(asked) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            answered.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
        }
        self.mark(Some(origin), &mut response);
        Some(response)
    }

    /// Lets the page of that origin read an answer.
    pub(crate) fn mark(&self, origin: Option<HeaderValue>, response: &mut Response) {
        if self.origins.is_empty() {
            return;
        }
        let headers = response.headers_mut();
        headers.append(VARY, HeaderValue::from_static("origin"));
        if let Some(origin) = origin {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::are_origins;

    #[test]
    fn origins_are_schemes_with_hosts() {
        let cases = [
            (vec![], true),
            (vec!["*"], true),
            (vec!["https://a.example", "http://localhost:3000", "http://[::1]:80"], true),
            (vec!["https://a.example/"], false),
            (vec!["a.example"], false),
            (vec!["https://"], false),
            (vec!["https://a b"], false),
            (vec!["*"; 65], false),
        ];
        for (origins, expected) in cases {
            let origins: Vec<String> = origins.into_iter().map(str::to_owned).collect();
            assert_eq!(are_origins(&origins), expected, "{origins:?}");
        }
    }
}
