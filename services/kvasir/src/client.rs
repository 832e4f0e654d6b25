//! A client of any OpenAI-compatible server, and of our own gateway without a socket between.
//!
//! It streams one chat at a time and measures what a user would feel: the time to the first token and between tokens.
//! It never retries: a benchmark that retries measures something else.

use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Context, bail};
use axum::Router;
use axum::body::{Body, Bytes};
use futures::{Stream, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use shared::{Clock, Timestamp};
use tower::ServiceExt;

/// Bytes of one server-sent event; a server that sends more is broken.
const EVENT_BYTES_MAX: usize = 1 << 20;
/// Bytes of an answer that is read as a whole: model lists, audits, error bodies.
const BODY_BYTES_MAX: usize = 4 << 20;

type ByteStream = Pin<Box<dyn Stream<Item = anyhow::Result<Bytes>> + Send>>;

/// Where requests go.
enum Target {
    /// A server behind a URL.
    Http { http: reqwest::Client, api_key: Option<String> },
    /// A router in this process; the URL's host is not used.
    Local(Router),
}

/// Talks to one server.
pub struct Client {
    target: Target,
    base: String,
    clock: Arc<dyn Clock>,
}

/// One message of a conversation.
#[derive(Clone, Debug)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// The text.
    pub text: String,
}

/// What to ask for.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    /// A model the server lists.
    pub model: String,
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// Bound of the answer in tokens.
    pub output_tokens_max: u32,
    /// 0 is greedy.
    pub temperature: f32,
    /// Key of the sampling noise.
    pub seed: u64,
    /// Whether the model may reason first.
    pub thinking: bool,
}

/// How our server says a request started. Other servers say nothing of the kind.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub struct StartFields {
    /// Rows below the start that were computed again.
    pub replayed_tokens: u64,
    /// Where the windows at the start came from.
    pub window_source: String,
    /// Whether the answer equals a cold run bit for bit.
    pub exact: bool,
    /// Bytes read from other memory than the decode worker's.
    #[serde(default)]
    pub bytes_fetched: u64,
}

/// A piece of an answer as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Of the reasoning.
    Reasoning(&'a str),
    /// Of the visible answer.
    Text(&'a str),
}

/// One answer as the client saw it.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The visible answer.
    pub text: String,
    /// The reasoning before it.
    pub reasoning: String,
    /// `stop`, `length`, ..
    pub finish_reason: String,
    /// Tokens of the rendered prompt.
    pub prompt_tokens: u64,
    /// Of these, tokens taken from a cache.
    pub cached_tokens: u64,
    /// Tokens of the answer.
    pub completion_tokens: u64,
    /// Milliseconds from sending to the first piece of text (or to the end, of an empty answer).
    pub ttft_ms: f64,
    /// Mean milliseconds between tokens after the first; 0 for answers of one token.
    pub itl_ms: f64,
    /// Our server's report.
    pub start: Option<StartFields>,
}

impl Client {
    /// A client of the server at `url`, which may end in `/v1`.
    ///
    /// # Errors
    /// When the URL is not a plain `http` one: this build has no TLS.
    pub fn http(url: &str, api_key: Option<String>, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        if !url.starts_with("http://") {
            bail!("{url} is not an http:// URL; this client has no TLS, use a plain endpoint");
        }
        let base = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let http = reqwest::Client::builder().no_proxy().build().context("no HTTP client")?;
        Ok(Self { target: Target::Http { http, api_key }, base, clock })
    }

    /// A client of a router in this process.
    #[must_use]
    pub fn local(router: Router, clock: Arc<dyn Clock>) -> Self {
        Self { target: Target::Local(router), base: "http://local".to_owned(), clock }
    }

    /// The first model the server lists.
    ///
    /// # Errors
    /// When the server cannot be reached or lists none.
    pub async fn first_model(&self) -> anyhow::Result<String> {
        let models = self.json("GET", "/v1/models").await?;
        let id = models["data"][0]["id"].as_str();
        Ok(id.with_context(|| format!("{} lists no model", self.base))?.to_owned())
    }

    /// One request with an empty body, answered with JSON.
    ///
    /// # Errors
    /// When the server cannot be reached, refuses, or answers something else than JSON.
    pub async fn json(&self, method: &str, path: &str) -> anyhow::Result<Value> {
        let bytes = collect(self.send(method, path, None).await?).await?;
        serde_json::from_slice(&bytes).with_context(|| format!("{path} did not answer with JSON"))
    }

    /// One request with this body, answered with JSON.
    ///
    /// # Errors
    /// When the server cannot be reached, refuses, or answers something else than JSON.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let bytes = collect(self.send("POST", path, Some(body.to_string())).await?).await?;
        serde_json::from_slice(&bytes).with_context(|| format!("{path} did not answer with JSON"))
    }

    /// Streams one chat to its end. `piece` sees each piece of visible text or reasoning as it comes.
    ///
    /// # Errors
    /// When the server cannot be reached, refuses, breaks off, or sends an error event.
    pub async fn chat(
        &self,
        request: &ChatRequest,
        mut piece: impl FnMut(Piece<'_>),
    ) -> anyhow::Result<Answer> {
        let sent = self.clock.now();
        let body = request_body(request).to_string();
        let mut stream = self.send("POST", "/v1/chat/completions", Some(body)).await?;
        let mut events = EventReader::default();
        let mut progress = Progress::new(sent);
        while let Some(bytes) = stream.next().await {
            events.push(&bytes?)?;
            while let Some(data) = events.next_event() {
                if data == "[DONE]" {
                    return Ok(progress.finish());
                }
                let chunk = serde_json::from_str(&data).context("an event is not JSON")?;
                progress.take(&chunk, self.clock.now(), &mut piece)?;
            }
        }
        bail!("the server broke off in the middle of an answer")
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<String>,
    ) -> anyhow::Result<ByteStream> {
        let url = format!("{}{path}", self.base);
        let (status, stream): (u16, ByteStream) = match &self.target {
            Target::Http { http, api_key } => {
                let method = method.parse().context("a method of this file")?;
                let mut request = http.request(method, &url);
                if let Some(key) = api_key {
                    request = request.bearer_auth(key);
                }
                if let Some(body) = body {
                    request = request.header("content-type", "application/json").body(body);
                }
                let response =
                    request.send().await.with_context(|| format!("{url} cannot be reached"))?;
                let status = response.status().as_u16();
                (status, Box::pin(response.bytes_stream().map(|r| r.map_err(Into::into))))
            }
            Target::Local(router) => {
                let request = axum::http::Request::builder()
                    .method(method)
                    .uri(&url)
                    .header("content-type", "application/json")
                    .body(body.map_or_else(Body::empty, Body::from))?;
                let Ok(response) = router.clone().oneshot(request).await;
                let status = response.status().as_u16();
                let stream = response.into_body().into_data_stream();
                (status, Box::pin(stream.map(|r| r.map_err(Into::into))))
            }
        };
        if (200..300).contains(&status) {
            return Ok(stream);
        }
        let bytes = collect(stream).await?;
        bail!("{url} answered {status}: {}", error_text(&bytes))
    }
}

fn request_body(request: &ChatRequest) -> Value {
    let messages: Vec<_> = request
        .messages
        .iter()
        .map(|message| json!({"role": message.role, "content": message.text}))
        .collect();
    let mut body = json!({
        "model": request.model,
        "messages": messages,
        "max_tokens": request.output_tokens_max,
        "temperature": request.temperature,
        "seed": request.seed,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    if !request.thinking {
        body["reasoning_effort"] = json!("none");
    }
    body
}

async fn collect(mut stream: ByteStream) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await {
        bytes.extend_from_slice(&piece?);
        if BODY_BYTES_MAX < bytes.len() {
            bail!("the server's answer is longer than {BODY_BYTES_MAX} bytes");
        }
    }
    Ok(bytes)
}

/// The message of an error body in OpenAI's shape, else the body itself, on one line.
fn error_text(body: &[u8]) -> String {
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    let message = parsed.as_ref().and_then(|value| value["error"]["message"].as_str());
    let text = message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Cuts a byte stream into the data of server-sent events.
#[derive(Default)]
struct EventReader {
    bytes: Vec<u8>,
    /// Where the next event begins in `bytes`.
    start: usize,
}

impl EventReader {
    fn push(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
        if EVENT_BYTES_MAX < self.bytes.len() {
            bail!("the server sent an event of more than {EVENT_BYTES_MAX} bytes");
        }
        Ok(())
    }

    /// The data of the next complete `data:` line; comments and other fields are skipped.
    fn next_event(&mut self) -> Option<String> {
        loop {
            let rest = &self.bytes[self.start..];
            let length = rest.iter().position(|byte| *byte == b'\n')?;
            let line = String::from_utf8_lossy(&rest[..length]).trim_end().to_owned();
            self.start += length + 1;
            if let Some(data) = line.strip_prefix("data:") {
                return Some(data.trim_start().to_owned());
            }
        }
    }
}

/// Builds the answer from chunks.
struct Progress {
    answer: Answer,
    sent: Timestamp,
    first: Option<Timestamp>,
    last: Timestamp,
}

impl Progress {
    fn new(sent: Timestamp) -> Self {
        Self { answer: Answer::default(), sent, first: None, last: sent }
    }

    fn take(
        &mut self,
        chunk: &Value,
        now: Timestamp,
        show: &mut impl FnMut(Piece<'_>),
    ) -> anyhow::Result<()> {
        if let Some(message) = chunk["error"]["message"].as_str() {
            bail!("the server broke off: {message}");
        }
        let choice = &chunk["choices"][0];
        let reasoning = choice["delta"]["reasoning_content"].as_str().unwrap_or_default();
        let text = choice["delta"]["content"].as_str().unwrap_or_default();
        for piece in [Piece::Reasoning(reasoning), Piece::Text(text)] {
            let (part, whole) = match piece {
                Piece::Reasoning(part) => (part, &mut self.answer.reasoning),
                Piece::Text(part) => (part, &mut self.answer.text),
            };
            if !part.is_empty() {
                whole.push_str(part);
                show(piece);
                self.last = now;
                self.first.get_or_insert(now);
            }
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.answer.finish_reason = reason.to_owned();
            self.last = now;
            self.first.get_or_insert(now);
        }
        self.take_usage(&chunk["usage"]);
        let start = [&chunk["kvasir"], &chunk["usage"]["kvasir"]];
        if let Some(fields) = start.into_iter().find(|value| value.is_object()) {
            let fields =
                StartFields::deserialize(fields).context("a start report of other shape")?;
            self.answer.start = Some(fields);
        }
        Ok(())
    }

    fn take_usage(&mut self, usage: &Value) {
        if !usage.is_object() {
            return;
        }
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        self.answer.prompt_tokens = count(&usage["prompt_tokens"]);
        self.answer.completion_tokens = count(&usage["completion_tokens"]);
        self.answer.cached_tokens = count(&usage["prompt_tokens_details"]["cached_tokens"]);
    }

    fn finish(mut self) -> Answer {
        let first = self.first.unwrap_or(self.last);
        self.answer.ttft_ms = milliseconds(self.sent, first);
        let gaps = u32::try_from(self.answer.completion_tokens.saturating_sub(1)).unwrap_or(0);
        if 0 < gaps {
            self.answer.itl_ms = milliseconds(first, self.last) / f64::from(gaps);
        }
        self.answer
    }
}

/// The time between two moments in milliseconds.
pub(crate) fn milliseconds(from: Timestamp, to: Timestamp) -> f64 {
    to.since(from).as_secs_f64() * 1_000.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shared::Timestamp;

    use super::{EventReader, Piece, Progress, error_text};

    #[test]
    fn events_survive_any_cut_of_the_stream() {
        let text = ": ping\r\n\r\ndata: {\"a\":1}\n\ndata:[DONE]\n\n";
        for cut in 0..text.len() {
            let mut reader = EventReader::default();
            let mut events = Vec::new();
            for part in [&text[..cut], &text[cut..]] {
                reader.push(part.as_bytes()).unwrap();
                while let Some(event) = reader.next_event() {
                    events.push(event);
                }
            }
            assert_eq!(events, ["{\"a\":1}", "[DONE]"], "cut at {cut}");
        }
    }

    #[test]
    fn times_count_from_the_first_text_and_not_from_the_role() {
        let mut progress = Progress::new(Timestamp(0));
        let chunk = |delta| json!({"choices": [{"delta": delta, "finish_reason": null}]});
        let chunks = [
            (1_000_000, chunk(json!({"role": "assistant", "content": ""}))),
            (5_000_000, chunk(json!({"content": "a"}))),
            (7_000_000, chunk(json!({"content": "b"}))),
            (
                9_000_000,
                json!({"choices": [{"delta": {}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 9, "completion_tokens": 3,
                          "prompt_tokens_details": {"cached_tokens": 4}}}),
            ),
        ];
        let mut seen = String::new();
        let mut show = |piece: Piece<'_>| {
            let Piece::Text(text) = piece else { panic!("no reasoning was sent") };
            seen.push_str(text);
        };
        for (time, chunk) in chunks {
            progress.take(&chunk, Timestamp(time), &mut show).unwrap();
        }
        let answer = progress.finish();
        assert_eq!((seen.as_str(), answer.text.as_str()), ("ab", "ab"));
        assert_eq!((answer.prompt_tokens, answer.cached_tokens), (9, 4));
        assert!((answer.ttft_ms - 5.0).abs() < 1e-9 && (answer.itl_ms - 2.0).abs() < 1e-9);
    }

    #[test]
    fn an_error_event_ends_the_chat() {
        let mut progress = Progress::new(Timestamp(0));
        let chunk = json!({"error": {"message": "worker 1.0 is gone"}});
        let error = progress.take(&chunk, Timestamp(1), &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains("worker 1.0 is gone"));
    }

    #[test]
    fn error_bodies_become_one_line() {
        assert_eq!(error_text(br#"{"error":{"message":"no such model"}}"#), "no such model");
        assert_eq!(error_text(b"<p>bad\n gateway</p>"), "<p>bad gateway</p>");
    }
}
