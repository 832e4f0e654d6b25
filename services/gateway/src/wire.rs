//! The JSON that clients see. One file per protocol, behind one trait: what an answer is made of is common, how it is said is
//! not.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use shared::{BLOCK_TOKENS, BlockName, TokenId};

use crate::answer::{Bill, End};
use crate::error::ApiError;
use crate::output::Delta;
use crate::request::REASONING_COPY;
use crate::vocabulary::Vocabulary;

mod chat;
mod completions;
mod logprobs;
mod messages;
mod models;
mod responses;
mod unquoting;

pub(crate) use chat::ChatWriter;
pub(crate) use completions::CompletionsWriter;
pub(crate) use messages::MessagesWriter;
pub(crate) use models::{anthropic_model, anthropic_models, date, model, model_list};
pub(crate) use responses::ResponsesWriter;

/// Says the answers to one request in the words of its protocol, as events or as one object. Answers are told apart by index;
/// for each one `began` comes before `show`, and `end` once. Nothing is called after `close` or `fail`.
pub(crate) trait Writer: Send {
    /// The first events, before anything is known of the answers.
    fn open(&mut self) -> Bytes;

    /// The prompt is processed.
    fn began(&mut self, index: usize, bill: &Bill) -> Bytes;

    /// Something became visible.
    fn show(&mut self, index: usize, delta: &Delta) -> Bytes;

    /// An answer ended.
    fn end(&mut self, index: usize, end: &End, bill: &Bill) -> Bytes;

    /// All answers ended; what they cost together.
    fn close(&mut self, total: &Bill) -> Bytes;

    /// The request failed. Nothing follows.
    fn fail(&mut self, error: &ApiError) -> Bytes;

    /// What is sent in silences once the stream began; before, it is [`KEEP_ALIVE`].
    fn keep_alive(&self) -> &'static [u8] {
        KEEP_ALIVE
    }

    /// Everything in one object, in the order of the answers.
    fn whole(&mut self, answers: &[Finished], total: &Bill) -> Vec<u8>;
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) said: Delta,
    pub(crate) end: End,
}

/// What all that is said about one request has in common.
#[derive(Clone)]
pub(crate) struct Head {
    /// The request's id, hexadecimal.
    pub(crate) id: String,
    /// Unix seconds.
    pub(crate) created: u64,
    pub(crate) model: String,
    /// Names the numerics of the engine.
    pub(crate) fingerprint: String,
    pub(crate) thinking: bool,
    /// How many answers there are.
    pub(crate) answers: usize,
    /// Whether log probabilities are told.
    pub(crate) logprobs: bool,
    /// The prompt of each answer, where its ids and those of the answer are told.
    pub(crate) prompts: Option<Vec<Arc<[TokenId]>>>,
    /// What tokens say.
    pub(crate) vocabulary: Arc<Vocabulary>,
}

impl Head {
    /// The ids of an answer's prompt, if they are told.
    fn prompt_ids(&self, index: usize) -> Option<Vec<u32>> {
        self.prompts.as_ref().map(|prompts| numbers(&prompts[index]))
    }

    /// The ids of an answer's tokens, if they are told.
    fn answer_ids(&self, ids: &[TokenId]) -> Option<Vec<u32>> {
        self.prompts.as_ref().map(|_| numbers(ids))
    }
}

fn numbers(ids: &[TokenId]) -> Vec<u32> {
    ids.iter().map(|id| id.0).collect()
}

/// A comment that keeps connections open.
pub(crate) const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";
/// The end of every complete stream of chat and legacy completions.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// What a prompt is looked up by, for operators.
#[derive(Serialize)]
struct Prompt {
    prompt_tokens: u32,
    block_tokens: u32,
    /// Hexadecimal, in the order of the prompt. Tokens behind the last whole block have none.
    names: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<u32>>,
}

/// Usage as chat and legacy completions have it; the `prompt_cache_*` counts are DeepSeek's.
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
    #[serde(flatten)]
    none: NoPromptDetails,
}

#[derive(Serialize)]
struct CompletionDetails {
    reasoning_tokens: u32,
    #[serde(flatten)]
    none: NoCompletionDetails,
}

/// What OpenAI's usage counts and this server has none of.
#[derive(Default, Serialize)]
struct NoPromptDetails {
    audio_tokens: u32,
    cache_write_tokens: u32,
    image_tokens: u32,
}

/// As [`NoPromptDetails`], of answers.
#[derive(Default, Serialize)]
struct NoCompletionDetails {
    accepted_prediction_tokens: u32,
    audio_tokens: u32,
    rejected_prediction_tokens: u32,
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

impl Usage {
    fn of(bill: &Bill) -> Self {
        let cached = bill.cached_tokens();
        Self {
            prompt_tokens: bill.prompt_tokens,
            completion_tokens: bill.completion_tokens,
            total_tokens: bill.prompt_tokens.saturating_add(bill.completion_tokens),
            prompt_tokens_details: PromptDetails {
                cached_tokens: cached,
                none: NoPromptDetails::default(),
            },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: bill.reasoning_tokens,
                none: NoCompletionDetails::default(),
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

/// A prompt's length and names, and its tokens where they are wanted.
pub(crate) fn prompt(
    prompt_tokens: u32,
    names: &[BlockName],
    tokens: Option<&[TokenId]>,
) -> Vec<u8> {
    let names = names.iter().map(ToString::to_string).collect();
    let tokens = tokens.map(|tokens| tokens.iter().map(|token| token.0).collect());
    json(&Prompt { prompt_tokens, block_tokens: BLOCK_TOKENS, names, tokens })
}

/// The id of a tool call: unlike all others of the request, and the same for who asks twice.
fn call_id(head: &Head, answer: usize, call: usize) -> String {
    let hash = blake3::hash(format!("{}/{answer}/{call}", head.id).as_bytes());
    format!("{call:02}_{}", &hash.to_hex()[..24])
}

/// The opaque copy of reasoning that a client gives back.
fn copy_of(text: &str) -> String {
    format!("{REASONING_COPY}{text}")
}

/// An event without a name.
fn frame(json: &[u8]) -> Bytes {
    let mut frame = Vec::with_capacity(json.len() + 8);
    frame.extend_from_slice(b"data: ");
    frame.extend_from_slice(json);
    frame.extend_from_slice(b"\n\n");
    frame.into()
}

/// An event with a name.
fn push_named(events: &mut Vec<u8>, name: &str, value: &impl Serialize) {
    events.extend_from_slice(b"event: ");
    events.extend_from_slice(name.as_bytes());
    events.extend_from_slice(b"\ndata: ");
    events.extend_from_slice(&json(value));
    events.extend_from_slice(b"\n\n");
}

/// A value as JSON text.
pub(crate) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("strings and numbers always serialise")
}
