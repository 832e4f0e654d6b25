//! The JSON that clients see: chat completion objects, their chunks, and the list of models.
//!
//! Shapes follow the OpenAI API; `reasoning_content`, the `prompt_cache_*` counts and the `kvasir` object are additions
//! (the first two as DeepSeek's API has them).

use bytes::Bytes;
use serde::Serialize;
use shared::{BLOCK_TOKENS, BlockName, FinishReason};

use crate::answer::Bill;
use crate::error::ApiError;
use crate::output::Delta;

/// What all chunks of one answer have in common.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// `chatcmpl-` and the request's id.
    pub(crate) id: String,
    /// Unix seconds.
    pub(crate) created: u64,
    pub(crate) model: String,
    /// Names the numerics of the engine.
    pub(crate) fingerprint: String,
    pub(crate) thinking: bool,
    /// Whether the client asked for a usage chunk.
    pub(crate) include_usage: bool,
}

/// The end of every complete stream.
pub(crate) const DONE: &[u8] = b"data: [DONE]\n\n";

/// What a prompt is looked up by, for operators.
#[derive(Serialize)]
struct Prompt {
    prompt_tokens: u32,
    block_tokens: u32,
    /// Hexadecimal, in the order of the prompt. Tokens behind the last whole block have none.
    names: Vec<String>,
}

/// A comment that keeps connections open.
pub(crate) const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: &'a [ChunkChoice<'a>],
    /// Absent when the client did not ask, null until the last chunk when it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kvasir: Option<Report>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: u32,
    delta: ChunkDelta<'a>,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

/// An absent field is not sent; a present one may be null.
#[derive(Default, Serialize)]
struct ChunkDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Option<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<Option<&'a str>>,
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: [Choice<'a>; 1],
    usage: Usage,
    kvasir: Report,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    message: Message<'a>,
    logprobs: Option<()>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    refusal: Option<()>,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
    prompt_cache_hit_tokens: u32,
    prompt_cache_miss_tokens: u32,
}

#[derive(Serialize)]
struct PromptDetails {
    cached_tokens: u32,
}

#[derive(Serialize)]
struct CompletionDetails {
    reasoning_tokens: u32,
}

/// How the request started, for who wants to know whether the cache worked.
#[derive(Serialize)]
struct Report {
    cached_tokens: u32,
    replayed_tokens: u32,
    window_source: &'static str,
    exact: bool,
    bytes_fetched: u64,
    ttft_ms: f64,
}

#[derive(Serialize)]
struct ModelList<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    context_length: u32,
}

impl Usage {
    fn of(bill: &Bill) -> Self {
        // More than the prompt cannot be cached; the sum of hit and miss is always the prompt.
        let cached = bill.start.map_or(0, |start| start.cached_tokens).min(bill.prompt_tokens);
        Self {
            prompt_tokens: bill.prompt_tokens,
            completion_tokens: bill.completion_tokens,
            total_tokens: bill.prompt_tokens.saturating_add(bill.completion_tokens),
            prompt_tokens_details: PromptDetails { cached_tokens: cached },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: bill.reasoning_tokens,
            },
            prompt_cache_hit_tokens: cached,
            prompt_cache_miss_tokens: bill.prompt_tokens - cached,
        }
    }
}

impl Report {
    fn of(bill: &Bill) -> Self {
        Self {
            cached_tokens: bill.start.map_or(0, |start| start.cached_tokens),
            replayed_tokens: bill.start.map_or(0, |start| start.replayed_tokens),
            window_source: bill.start.map_or("cold", |start| start.window_source.as_str()),
            exact: bill.start.is_some_and(|start| start.exact),
            bytes_fetched: bill.start.map_or(0, |start| start.bytes_fetched),
            ttft_ms: bill.ttft_ms,
        }
    }
}

impl Head {
    fn chunk<'a>(&'a self, choices: &'a [ChunkChoice<'a>]) -> Chunk<'a> {
        Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.fingerprint,
            choices,
            usage: self.include_usage.then_some(None),
            kvasir: None,
        }
    }

    fn delta_event(&self, delta: ChunkDelta<'_>) -> Bytes {
        let choice = ChunkChoice { index: 0, delta, logprobs: None, finish_reason: None };
        event(&self.chunk(&[choice]))
    }

    /// The first event: who speaks.
    pub(crate) fn role_event(&self) -> Bytes {
        let (content, reasoning_content) =
            if self.thinking { (None, Some(Some(""))) } else { (Some(""), None) };
        let content = Some(content);
        self.delta_event(ChunkDelta { role: Some("assistant"), content, reasoning_content })
    }

    /// The events for what became visible: none, one, or one of each kind.
    pub(crate) fn text_events(&self, delta: &Delta) -> Bytes {
        let mut events = Vec::new();
        if !delta.reasoning.is_empty() {
            let reasoning_content = Some(Some(delta.reasoning.as_str()));
            let delta = ChunkDelta { role: None, content: Some(None), reasoning_content };
            events.extend_from_slice(&self.delta_event(delta));
        }
        if !delta.content.is_empty() {
            let content = Some(Some(delta.content.as_str()));
            let delta = ChunkDelta { role: None, content, reasoning_content: None };
            events.extend_from_slice(&self.delta_event(delta));
        }
        events.into()
    }

    /// The last events: why the answer ended, what it cost, and the end of the stream.
    pub(crate) fn last_events(&self, reason: FinishReason, bill: &Bill) -> Bytes {
        let finish_reason = Some(word(reason));
        let choices =
            [ChunkChoice { index: 0, delta: ChunkDelta::default(), logprobs: None, finish_reason }];
        let mut chunk = self.chunk(&choices);
        if !self.include_usage {
            chunk.kvasir = Some(Report::of(bill));
        }
        let mut events = event(&chunk).to_vec();
        if self.include_usage {
            let mut chunk = self.chunk(&[]);
            chunk.usage = Some(Some(Usage::of(bill)));
            chunk.kvasir = Some(Report::of(bill));
            events.extend_from_slice(&event(&chunk));
        }
        events.extend_from_slice(DONE);
        events.into()
    }

    /// The whole answer in one object.
    pub(crate) fn completion(&self, text: &Delta, reason: FinishReason, bill: &Bill) -> Vec<u8> {
        let message = Message {
            role: "assistant",
            content: &text.content,
            reasoning_content: self.thinking.then_some(text.reasoning.as_str()),
            refusal: None,
        };
        let choice = Choice { index: 0, message, logprobs: None, finish_reason: word(reason) };
        json(&Completion {
            id: &self.id,
            object: "chat.completion",
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.fingerprint,
            choices: [choice],
            usage: Usage::of(bill),
            kvasir: Report::of(bill),
        })
    }
}

/// An error inside a stream that already began. Nothing follows it.
pub(crate) fn error_event(error: &ApiError) -> Bytes {
    frame(&error.to_json())
}

/// A prompt's length and names.
pub(crate) fn prompt(prompt_tokens: u32, names: &[BlockName]) -> Vec<u8> {
    let names = names.iter().map(ToString::to_string).collect();
    json(&Prompt { prompt_tokens, block_tokens: BLOCK_TOKENS, names })
}

/// The models `names`, or the one of them that was asked for.
pub(crate) fn model_list(names: &[String], created: u64, context_length: u32) -> Vec<u8> {
    let data = names.iter().map(|id| model_object(id, created, context_length)).collect();
    json(&ModelList { object: "list", data })
}

/// One model.
pub(crate) fn model(id: &str, created: u64, context_length: u32) -> Vec<u8> {
    json(&model_object(id, created, context_length))
}

fn model_object(id: &str, created: u64, context_length: u32) -> Model<'_> {
    Model { id, object: "model", created, owned_by: "kvasir", context_length }
}

fn word(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

fn event(chunk: &Chunk<'_>) -> Bytes {
    frame(&json(chunk))
}

fn frame(json: &[u8]) -> Bytes {
    let mut frame = Vec::with_capacity(json.len() + 8);
    frame.extend_from_slice(b"data: ");
    frame.extend_from_slice(json);
    frame.extend_from_slice(b"\n\n");
    frame.into()
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("strings and numbers always serialise")
}
