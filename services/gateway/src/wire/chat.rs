//! Chat completions and their chunks.
//!
//! Shapes follow the OpenAI API; `reasoning_content`, the `prompt_cache_*` counts and the `kvasir` object are additions (the
//! first two as DeepSeek's API has them).

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::unquoting::Unquoting;
use super::{DONE, Finished, Head, Report, Usage, Writer, call_id, frame, json, logprobs};
use crate::answer::{Bill, End};
use crate::error::ApiError;
use crate::output::{Delta, Piece, Scored};
use crate::request::Repeated;

/// Writes chat completions.
pub(crate) struct ChatWriter {
    head: Head,
    /// Whether the client asked for a usage chunk.
    include_usage: bool,
    /// Tools whose input is text and not JSON.
    custom_tools: Vec<String>,
    /// Calls of each answer so far.
    calls: Vec<Calls>,
    repeated: Repeated,
}

/// The calls of an answer that is streamed.
#[derive(Default)]
struct Calls {
    count: usize,
    /// How the input of the last one is had from its arguments, if it is a custom tool's.
    input: Option<Unquoting>,
}

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
    /// With the first chunk only, as vLLM has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_tier: Option<&'static str>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    delta: ChunkDelta<'a>,
    logprobs: Option<&'a Logprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta<'a>; 1]>,
}

/// Id, type and name come with the first part of a call, and never again.
#[derive(Serialize)]
struct CallDelta<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<FunctionDelta<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom: Option<CustomDelta<'a>>,
}

#[derive(Serialize)]
struct FunctionDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

#[derive(Serialize)]
struct CustomDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    input: &'a str,
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: Vec<Choice>,
    usage: Usage,
    kvasir: Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_tier: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a Value>,
}

/// Of reasoning they stand apart, as DeepSeek has them.
#[derive(Serialize)]
struct Logprobs {
    content: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<Vec<Value>>,
    refusal: Option<()>,
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    message: Message,
    logprobs: Option<Logprobs>,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

#[derive(Serialize)]
struct Call {
    id: String,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<Function>,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom: Option<Custom>,
}

#[derive(Serialize)]
struct Function {
    name: String,
    arguments: String,
}

#[derive(Serialize)]
struct Custom {
    name: String,
    input: String,
}

impl ChatWriter {
    pub(crate) fn new(
        mut head: Head,
        include_usage: bool,
        custom_tools: Vec<String>,
        repeated: Repeated,
    ) -> Self {
        head.id = format!("chatcmpl-{}", head.id);
        let mut calls = Vec::new();
        calls.resize_with(head.answers, Calls::default);
        Self { head, include_usage, custom_tools, calls, repeated }
    }

    fn chunk<'a>(&'a self, choices: &'a [ChunkChoice<'a>]) -> Chunk<'a> {
        Chunk {
            id: &self.head.id,
            object: "chat.completion.chunk",
            created: self.head.created,
            model: &self.head.model,
            system_fingerprint: &self.head.fingerprint,
            choices,
            usage: self.include_usage.then_some(None),
            kvasir: None,
            prompt_token_ids: None,
            service_tier: self.repeated.service_tier,
        }
    }

    /// The log probabilities of what was said, if they are told.
    fn logprobs(&self, said: &Delta) -> Option<Logprobs> {
        let vocabulary = &self.head.vocabulary;
        let told = |scored: &[Scored]| {
            let tokens = logprobs::tokens(scored, vocabulary);
            (!tokens.is_empty()).then_some(tokens)
        };
        self.head.logprobs.then(|| Logprobs {
            content: told(&said.content_scores),
            reasoning_content: told(&said.reasoning_scores),
            refusal: None,
        })
    }

    fn push_delta(
        &self,
        index: usize,
        delta: ChunkDelta<'_>,
        logprobs: Option<&Logprobs>,
        events: &mut Vec<u8>,
    ) {
        let choice = ChunkChoice { index, delta, logprobs, finish_reason: None, token_ids: None };
        events.extend_from_slice(&frame(&json(&self.chunk(&[choice]))));
    }

    /// The ids of the tokens that came, if they are told, in a chunk of their own: some show nothing, some more than one thing.
    fn push_ids(&self, index: usize, said: &Delta, events: &mut Vec<u8>) {
        let token_ids = self.head.answer_ids(&said.ids).filter(|ids| !ids.is_empty());
        if token_ids.is_some() {
            let delta = ChunkDelta::default();
            let choice =
                ChunkChoice { index, delta, logprobs: None, finish_reason: None, token_ids };
            events.extend_from_slice(&frame(&json(&self.chunk(&[choice]))));
        }
    }

    fn message(&self, index: usize, said: &Delta) -> Message {
        let (mut content, mut reasoning) = (String::new(), String::new());
        let mut tool_calls: Vec<Call> = Vec::new();
        for piece in said.pieces() {
            match piece {
                Piece::Content(text) => content.push_str(text),
                Piece::Reasoning(text) => reasoning.push_str(text),
                Piece::Call(name) => {
                    let id = format!("call_{}", call_id(&self.head, index, tool_calls.len()));
                    tool_calls.push(self.call(id, name));
                }
                Piece::Arguments(text) => {
                    let call = tool_calls.last_mut().expect("arguments follow their call's name");
                    match (&mut call.function, &mut call.custom) {
                        (Some(function), _) => function.arguments.push_str(text),
                        (None, Some(custom)) => custom.input.push_str(text),
                        (None, None) => {}
                    }
                }
            }
        }
        for custom in tool_calls.iter_mut().filter_map(|call| call.custom.as_mut()) {
            custom.input = text_of(&custom.input);
        }
        let silent = content.is_empty() && !tool_calls.is_empty();
        Message {
            role: "assistant",
            content: (!silent).then_some(content),
            reasoning_content: self.head.thinking.then_some(reasoning),
            refusal: None,
            tool_calls,
        }
    }
}

impl ChatWriter {
    /// A call without its arguments, or its input.
    fn call(&self, id: String, name: &str) -> Call {
        let name = name.to_owned();
        if self.custom_tools.contains(&name) {
            let custom = Some(Custom { name, input: String::new() });
            return Call { id, r#type: "custom", function: None, custom };
        }
        let function = Some(Function { name, arguments: String::new() });
        Call { id, r#type: "function", function, custom: None }
    }

    /// The last call's arguments, or what of them is the input of a custom tool; nothing when that is nothing.
    fn push_arguments(&mut self, index: usize, text: &str, shown: Shown<'_, '_>) {
        let Shown { logprobs, events } = shown;
        let Calls { count, input } = &mut self.calls[index];
        let Some(call) = count.checked_sub(1) else { return };
        let mut taken = String::new();
        let (function, custom) = match input {
            Some(unquoting) => {
                unquoting.push(text, &mut taken);
                if taken.is_empty() {
                    return;
                }
                (None, Some(CustomDelta { name: None, input: &taken }))
            }
            None => (Some(FunctionDelta { name: None, arguments: text }), None),
        };
        let delta = CallDelta { index: call, id: None, r#type: None, function, custom };
        let delta = ChunkDelta { tool_calls: Some([delta]), ..ChunkDelta::default() };
        self.push_delta(index, delta, logprobs, events);
    }

    fn push_call(&mut self, index: usize, name: &str, shown: Shown<'_, '_>) {
        let Shown { logprobs, events } = shown;
        let is_custom = self.custom_tools.iter().any(|tool| tool == name);
        let calls = &mut self.calls[index];
        let call = calls.count;
        calls.count += 1;
        calls.input = is_custom.then(Unquoting::default);
        let (kind, function, custom) = if is_custom {
            ("custom", None, Some(CustomDelta { name: Some(name), input: "" }))
        } else {
            ("function", Some(FunctionDelta { name: Some(name), arguments: "" }), None)
        };
        let id = Some(format!("call_{}", call_id(&self.head, index, call)));
        let delta = CallDelta { index: call, id, r#type: Some(kind), function, custom };
        let delta = ChunkDelta { tool_calls: Some([delta]), ..ChunkDelta::default() };
        self.push_delta(index, delta, logprobs, events);
    }
}

/// Where a chunk goes, and what is told with it.
struct Shown<'a, 'b> {
    logprobs: Option<&'a Logprobs>,
    events: &'b mut Vec<u8>,
}

/// The input of a custom tool in the arguments of its call.
fn text_of(arguments: &str) -> String {
    let (mut unquoting, mut text) = (Unquoting::default(), String::new());
    unquoting.push(arguments, &mut text);
    text
}

impl Writer for ChatWriter {
    /// Who speaks.
    fn open(&mut self) -> Bytes {
        let mut events = Vec::new();
        for index in 0..self.head.answers {
            let (content, reasoning_content) =
                if self.head.thinking { (None, Some(Some(""))) } else { (Some(""), None) };
            let role = Some("assistant");
            let content = Some(content);
            let delta = ChunkDelta { role, content, reasoning_content, tool_calls: None };
            let choices = [ChunkChoice {
                index,
                delta,
                logprobs: None,
                finish_reason: None,
                token_ids: None,
            }];
            let mut chunk = self.chunk(&choices);
            chunk.prompt_token_ids = self.head.prompt_ids(index).filter(|_| index == 0);
            events.extend_from_slice(&frame(&json(&chunk)));
        }
        events.into()
    }

    fn began(&mut self, _index: usize, _bill: &Bill) -> Bytes {
        Bytes::new()
    }

    fn show(&mut self, index: usize, delta: &Delta) -> Bytes {
        let mut events = Vec::new();
        // They stand with the first part; there is a second one only where a kind of text ends within a token.
        let mut logprobs = self.logprobs(delta);
        logprobs.take_if(|told| told.content.is_none() && told.reasoning_content.is_none());
        self.push_ids(index, delta, &mut events);
        for piece in delta.pieces() {
            let told = logprobs.take();
            let logprobs = told.as_ref();
            let text = match piece {
                Piece::Reasoning(text) => ChunkDelta {
                    content: Some(None),
                    reasoning_content: Some(Some(text)),
                    ..ChunkDelta::default()
                },
                Piece::Content(text) => {
                    ChunkDelta { content: Some(Some(text)), ..ChunkDelta::default() }
                }
                Piece::Call(name) => {
                    self.push_call(index, name, Shown { logprobs, events: &mut events });
                    continue;
                }
                Piece::Arguments(text) => {
                    let shown = Shown { logprobs, events: &mut events };
                    self.push_arguments(index, text, shown);
                    continue;
                }
            };
            self.push_delta(index, text, logprobs, &mut events);
        }
        events.into()
    }

    fn end(&mut self, index: usize, end: &End, bill: &Bill) -> Bytes {
        let mut events = Vec::new();
        let finish_reason = Some(word(end));
        let delta = ChunkDelta::default();
        let choices =
            [ChunkChoice { index, delta, logprobs: None, finish_reason, token_ids: None }];
        let mut chunk = self.chunk(&choices);
        if !self.include_usage {
            chunk.kvasir = Some(Report::of(bill));
        }
        events.extend_from_slice(&frame(&json(&chunk)));
        events.into()
    }

    fn close(&mut self, total: &Bill) -> Bytes {
        let mut events = Vec::new();
        if self.include_usage {
            let mut chunk = self.chunk(&[]);
            chunk.usage = Some(Some(Usage::of(total)));
            chunk.kvasir = Some(Report::of(total));
            events.extend_from_slice(&frame(&json(&chunk)));
        }
        events.extend_from_slice(DONE);
        events.into()
    }

    fn fail(&mut self, error: &ApiError) -> Bytes {
        frame(&error.to_json())
    }

    fn whole(&mut self, answers: &[Finished], total: &Bill) -> Vec<u8> {
        let choice = |(index, answer): (usize, &Finished)| Choice {
            index,
            message: self.message(index, &answer.said),
            logprobs: self.logprobs(&answer.said),
            finish_reason: word(&answer.end),
            token_ids: self.head.answer_ids(&answer.said.ids),
        };
        json(&Completion {
            id: &self.head.id,
            object: "chat.completion",
            created: self.head.created,
            model: &self.head.model,
            system_fingerprint: &self.head.fingerprint,
            choices: answers.iter().enumerate().map(choice).collect(),
            usage: Usage::of(total),
            kvasir: Report::of(total),
            prompt_token_ids: self.head.prompt_ids(0),
            service_tier: self.repeated.service_tier,
            metadata: self.repeated.metadata.as_ref(),
        })
    }
}

fn word(end: &End) -> &'static str {
    match end {
        End::Stop | End::StopString(_) => "stop",
        End::Length => "length",
        End::Calls => "tool_calls",
    }
}
