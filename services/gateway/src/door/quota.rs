//! What is left to who asks, in the headers that clients know. As of the arrival: this prompt is not counted yet.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::dialect::Dialect;
use crate::limits::{Left, Quota};
use crate::wire::date;

/// Names of limit, remainder and time of one kind, OpenAI's.
const OPEN_AI: [[&str; 3]; 2] = [
    ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
    ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
];
/// The same of Anthropic.
const ANTHROPIC: [[&str; 3]; 2] = [
    [
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    ],
    [
        "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-remaining",
        "anthropic-ratelimit-tokens-reset",
    ],
];

/// Says it in OpenAI's headers, and to Anthropic's clients in theirs besides: a date instead of a duration, rounded up. `now` in
/// Unix seconds.
pub(super) fn say(quota: Quota, dialect: Dialect, now: u64, headers: &mut HeaderMap) {
    for (kind, left) in [quota.requests, quota.tokens].into_iter().enumerate() {
        let Some(Left { limit, remaining, reset }) = left else { continue };
        say_one(OPEN_AI[kind], [limit, remaining], &format!("{}ms", reset.as_millis()), headers);
        if dialect == Dialect::Anthropic {
            let seconds = u64::try_from(reset.as_millis().div_ceil(1_000)).unwrap_or(u64::MAX);
            let at = date(now.saturating_add(seconds));
            say_one(ANTHROPIC[kind], [limit, remaining], &at, headers);
        }
    }
}

fn say_one(
    names: [&'static str; 3],
    [limit, remaining]: [u32; 2],
    reset: &str,
    headers: &mut HeaderMap,
) {
    let reset = HeaderValue::try_from(reset).expect("digits and letters");
    let values = [HeaderValue::from(limit), HeaderValue::from(remaining), reset];
    for (name, value) in names.into_iter().zip(values) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::HeaderMap;

    use super::say;
    use crate::dialect::Dialect;
    use crate::limits::{Left, Quota};

    #[test]
    fn each_dialect_reads_its_own_headers() {
        let left = Left { limit: 9, remaining: 4, reset: Duration::from_millis(1_500) };
        let quota = Quota { requests: Some(left), tokens: None };
        for (dialect, count) in [(Dialect::OpenAi, 3), (Dialect::Anthropic, 6)] {
            let mut headers = HeaderMap::new();
            say(quota, dialect, 1_700_000_000, &mut headers);
            assert_eq!(headers.len(), count);
            assert_eq!(headers["x-ratelimit-reset-requests"], "1500ms");
            if dialect == Dialect::Anthropic {
                assert_eq!(headers["anthropic-ratelimit-requests-remaining"], "4");
                assert_eq!(headers["anthropic-ratelimit-requests-reset"], "2023-11-14T22:13:22Z");
            }
        }
    }
}
