//! What an operator may set, and what the binary tells the gateway about the model it serves.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use shared::{Lineage, Numerics, TenantId};

use crate::cors::are_origins;
use crate::limits::RateLimits;

/// What a start without a window object does, as it is written in configuration and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineageChoice {
    /// Bit-exact restarts: longer replays, and blocks that are a function of their names.
    Exact,
    /// Bounded replay, as the model family was post-trained and is served.
    Bounded,
}

impl From<LineageChoice> for Lineage {
    fn from(choice: LineageChoice) -> Self {
        match choice {
            LineageChoice::Exact => Self::Exact,
            LineageChoice::Bounded => Self::Bounded,
        }
    }
}

/// Bounds and habits of the front door. Unknown keys are refused.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewayConfig {
    /// The lineage of requests that name none. Default `bounded`: the family was post-trained with bounded replay, and
    /// it restarts fastest. `exact` makes a cached answer equal the cold one bit for bit.
    pub lineage: LineageChoice,
    /// Longest request body in bytes, 1024 to 1073741824. Default 8388608 (8 MiB): a prompt of one million tokens is
    /// about 4 MiB of text, and JSON escapes can double it. Larger bodies are answered 413.
    pub body_bytes_max: usize,
    /// Longest time to receive a request body in milliseconds, at least 1. Default 30000: at 8 MiB that is 2.2 Mbit/s;
    /// a slower sender would hold a request slot. Answered 408.
    pub body_wait_ms_max: u64,
    /// Requests in work at once, at least 1. Default 1024: bounds memory (bodies, answers) of this process; the
    /// workers' own queues are bounded by themselves. Beyond it requests are answered 503.
    pub requests_in_flight_max: usize,
    /// Answers one request may ask for, prompts times `n`, 1 to 1024. Default 64: evaluation suites send a few dozen prompts
    /// at once; each answer counts as a request in work.
    pub answers_per_request_max: usize,
    /// Prompts rendered and tokenised at once, at least 1. Default 4: tokenising is pure computation on threads beside
    /// the async ones, so more than the machine has cores only adds waiting.
    pub tokenise_parallel_max: usize,
    /// Bytes of the token cache (token ids of rendered parts), 0 switches it off. Default 67108864 (64 MiB): about
    /// 16 million tokens, the parts of several hundred long conversations.
    pub token_cache_bytes_max: usize,
    /// Tokens of one answer that may wait for its client, at least 2. Default 4096: a client that stops reading for
    /// that many tokens loses its request, so that a worker never waits for a client.
    pub answer_buffer_tokens_max: usize,
    /// How long a streamed request waits for the worker's first word before the response head is sent, in milliseconds.
    /// Default 2000: refusals within it carry an HTTP status; later ones become an error event in the stream.
    pub head_wait_ms_max: u64,
    /// Silence on a stream after which a comment line is sent, in milliseconds, at least 1. Default 10000: well below
    /// the 60 s at which common proxies close idle connections.
    pub keep_alive_ms: u64,
    /// Wait for an answer that is not streamed after which the response's head and blank lines are sent, in milliseconds, 0 for
    /// never. Default 0: once they are out, an error has status 200, and clients that look at the status alone take it for an
    /// answer. DeepSeek's API does so; set it where proxies close silent connections.
    pub whole_keep_alive_ms: u64,
    /// Longest life of a request in milliseconds, at least 1. Default 3600000 (1 h): longer than the longest answer at
    /// the slowest useful rate, so only lost requests meet it.
    pub request_ms_max: u64,
    /// How often a request is placed anew after its worker went away; a stream goes on where it stood. Default 3: more
    /// losses are no longer an accident of one worker, and a request that ends workers must not end all of them.
    pub resumes_max: u32,
    /// How long a request whose worker went away looks for another one, in milliseconds, 0 to 600000. Default 10000: a
    /// process that is started again is back within it.
    pub resume_wait_ms_max: u64,
    /// Bytes of stored responses (`store` of the Responses API), 0 stores none. Default 67108864 (64 MiB): a few thousand
    /// turns of ordinary length. The oldest leave first; what left is refused by name when it is referred to.
    pub stored_bytes_max: usize,
    /// Stored responses, 0 stores none. Default 10000: bounds what small ones cost beside their text.
    pub stored_responses_max: usize,
    /// How long a response stays stored, in seconds, at least 1. Default 3600: a conversation that pauses longer can send
    /// its items.
    pub stored_ttl_s: u64,
    /// Responses made in the background at once (`background` of the Responses API), 0 offers none. Default 64: each is a request
    /// in work that no closed connection ends. Beyond it they are refused with 503. Where keys speak for several tenants, one gets at
    /// most half of them, rounded up; beyond it 429.
    pub background_responses_max: usize,
    /// What clients are told to wait when this process itself refuses (full or draining), in seconds, at least 1.
    /// Default 1: requests are short compared with a client's patience.
    pub retry_after_s: u64,
    /// Origins whose pages in browsers may read answers, 64 at most, such as `https://chat.example`; `*` is all. Default
    /// none: programs need no such permission.
    pub cors_origins: Vec<String>,
    /// Limits of each tenant. Default: no bounds. Keys have limits of their own in their file.
    pub limits: RateLimits,
    /// Limits of the tenants of these names instead, 65536 at most. Default: none.
    pub tenant_limits: BTreeMap<String, RateLimits>,
}

impl Default for GatewayConfig {
    /// The documented default of every field.
    fn default() -> Self {
        Self {
            lineage: LineageChoice::Bounded,
            body_bytes_max: 8 << 20,
            body_wait_ms_max: 30_000,
            requests_in_flight_max: 1_024,
            answers_per_request_max: 64,
            tokenise_parallel_max: 4,
            token_cache_bytes_max: 64 << 20,
            answer_buffer_tokens_max: 4_096,
            head_wait_ms_max: 2_000,
            keep_alive_ms: 10_000,
            whole_keep_alive_ms: 0,
            request_ms_max: 3_600_000,
            resumes_max: 3,
            resume_wait_ms_max: 10_000,
            stored_bytes_max: 64 << 20,
            stored_responses_max: 10_000,
            stored_ttl_s: 3_600,
            background_responses_max: 64,
            retry_after_s: 1,
            cors_origins: Vec::new(),
            limits: RateLimits::default(),
            tenant_limits: BTreeMap::new(),
        }
    }
}

impl GatewayConfig {
    /// Bytes of a refused body that are read all the same, so that its client gets to read why: four times what is taken.
    pub(crate) fn discarded_bytes_max(&self) -> usize {
        self.body_bytes_max.saturating_mul(4)
    }

    /// Names the first field whose value is outside its documented range, and the range.
    #[must_use]
    pub fn out_of_range(&self) -> Option<(&'static str, &'static str)> {
        let checks = [
            (
                (1 << 10..=1 << 30).contains(&self.body_bytes_max),
                "body_bytes_max",
                "1024..=1073741824",
            ),
            (0 < self.body_wait_ms_max, "body_wait_ms_max", "1.."),
            (0 < self.requests_in_flight_max, "requests_in_flight_max", "1.."),
            (
                (1..=1_024).contains(&self.answers_per_request_max),
                "answers_per_request_max",
                "1..=1024",
            ),
            (0 < self.tokenise_parallel_max, "tokenise_parallel_max", "1.."),
            (1 < self.answer_buffer_tokens_max, "answer_buffer_tokens_max", "2.."),
            (0 < self.keep_alive_ms, "keep_alive_ms", "1.."),
            (0 < self.request_ms_max, "request_ms_max", "1.."),
            (self.resume_wait_ms_max <= 600_000, "resume_wait_ms_max", "0..=600000"),
            (0 < self.stored_ttl_s, "stored_ttl_s", "1.."),
            (0 < self.retry_after_s, "retry_after_s", "1.."),
            (
                are_origins(&self.cors_origins),
                "cors_origins",
                "at most 64 of \"*\" or scheme://host, without a path",
            ),
            (self.tenant_limits.len() <= 65_536, "tenant_limits", "at most 65536 tenants"),
        ];
        checks.into_iter().find(|(holds, ..)| !holds).map(|(_, field, range)| (field, range))
    }
}

/// The model behind this gateway, as the binary found it. Holds the cluster secret: no `Debug`.
#[derive(Clone)]
pub struct ServedModel {
    /// Names clients may use in `model`; the first one is the canonical name. Not empty.
    pub names: Vec<String>,
    /// Path of `tokenizer.json`.
    pub tokenizer: PathBuf,
    /// Tokens the model's context holds, prompt and answer together. At least 2.
    pub context_tokens: u32,
    /// Unix seconds reported as the model's creation time.
    pub created: u64,
    /// The cluster's secret, which keys all block names.
    pub cluster_secret: [u8; 32],
    /// Whose cache requests use where no API key names another tenant.
    pub tenant: TenantId,
    /// Digest of configuration, tokenizer and weights.
    pub model_id: [u8; 32],
    /// [`shared::KvLayout::fingerprint`] of the model.
    pub layout: [u8; 32],
    /// The revision of the workers' engine.
    pub numerics: Numerics,
}

#[cfg(test)]
mod tests {
    use super::GatewayConfig;

    #[test]
    fn defaults_are_in_range_and_each_violation_is_named() {
        assert_eq!(GatewayConfig::default().out_of_range(), None);
        type Change = fn(&mut GatewayConfig);
        let cases: [(&str, Change); 12] = [
            ("body_bytes_max", |c| c.body_bytes_max = 1),
            ("body_wait_ms_max", |c| c.body_wait_ms_max = 0),
            ("requests_in_flight_max", |c| c.requests_in_flight_max = 0),
            ("answers_per_request_max", |c| c.answers_per_request_max = 0),
            ("tokenise_parallel_max", |c| c.tokenise_parallel_max = 0),
            ("answer_buffer_tokens_max", |c| c.answer_buffer_tokens_max = 1),
            ("keep_alive_ms", |c| c.keep_alive_ms = 0),
            ("request_ms_max", |c| c.request_ms_max = 0),
            ("resume_wait_ms_max", |c| c.resume_wait_ms_max = 600_001),
            ("stored_ttl_s", |c| c.stored_ttl_s = 0),
            ("retry_after_s", |c| c.retry_after_s = 0),
            ("cors_origins", |c| c.cors_origins.push("a.example".into())),
        ];
        for (field, change) in cases {
            let mut config = GatewayConfig::default();
            change(&mut config);
            assert_eq!(config.out_of_range().map(|(name, _)| name), Some(field));
        }
    }

    #[test]
    fn unknown_keys_are_refused() {
        let parsed: Result<GatewayConfig, _> = serde_json::from_str(r#"{"body_byte_max": 5}"#);
        assert!(parsed.unwrap_err().to_string().contains("body_byte_max"));
        let parsed: GatewayConfig = serde_json::from_str(r#"{"lineage": "exact"}"#).unwrap();
        assert_eq!(parsed.lineage, super::LineageChoice::Exact);
    }
}
