//! Chat completions and their chunks.
//!
//! Shapes follow the OpenAI API; `reasoning_content`, the `prompt_cache_*` counts and the `kvasir` object are additions (the
//! first two as DeepSeek's API has them).

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::{DONE, Finished, Head, Report, Usage, Writer, call_id, frame, json, logprobs};
use crate::answer::{Bill, End};
use crate::error::ApiError;
use crate::output::{Delta, Piece, Scored};

/// Writes chat completions.
pub(crate) struct ChatWriter {
    head: Head,
    /// Whether the client asked for a usage chunk.
    include_usage: bool,
    /// Calls of each answer so far.
    calls: Vec<usize>,
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
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: usize,
    delta: ChunkDelta<'a>,
    logprobs: Option<&'a Logprobs>,
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
    function: FunctionDelta<'a>,
}

#[derive(Serialize)]
struct FunctionDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
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
    function: Function,
}

#[derive(Serialize)]
struct Function {
    name: String,
    arguments: String,
}

impl ChatWriter {
    pub(crate) fn new(mut head: Head, include_usage: bool) -> Self {
        head.id = format!("chatcmpl-{}", head.id);
        let calls = vec![0; head.answers];
        Self { head, include_usage, calls }
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
        let choice = ChunkChoice { index, delta, logprobs, finish_reason: None };
        events.extend_from_slice(&frame(&json(&self.chunk(&[choice]))));
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
                    let function = Function { name: name.clone(), arguments: String::new() };
                    tool_calls.push(Call { id, r#type: "function", function });
                }
                Piece::Arguments(text) => {
                    let call = tool_calls.last_mut().expect("arguments follow their call's name");
                    call.function.arguments.push_str(text);
                }
            }
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
            self.push_delta(index, delta, None, &mut events);
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
        for piece in delta.pieces() {
            let mut shown = ChunkDelta::default();
            match piece {
                Piece::Reasoning(text) => {
                    shown.content = Some(None);
                    shown.reasoning_content = Some(Some(text));
                }
                Piece::Content(text) => shown.content = Some(Some(text)),
                Piece::Call(name) => {
                    let call = self.calls[index];
                    self.calls[index] += 1;
                    shown.tool_calls = Some([CallDelta {
                        index: call,
                        id: Some(format!("call_{}", call_id(&self.head, index, call))),
                        r#type: Some("function"),
                        function: FunctionDelta { name: Some(name), arguments: "" },
                    }]);
                }
                Piece::Arguments(text) => {
                    let call = self.calls[index] - 1;
                    let function = FunctionDelta { name: None, arguments: text };
                    shown.tool_calls =
                        Some([CallDelta { index: call, id: None, r#type: None, function }]);
                }
            }
            self.push_delta(index, shown, logprobs.take().as_ref(), &mut events);
        }
        events.into()
    }

    fn end(&mut self, index: usize, end: &End, bill: &Bill) -> Bytes {
        let finish_reason = Some(word(end));
        let delta = ChunkDelta::default();
        let choices = [ChunkChoice { index, delta, logprobs: None, finish_reason }];
        let mut chunk = self.chunk(&choices);
        if !self.include_usage {
            chunk.kvasir = Some(Report::of(bill));
        }
        frame(&json(&chunk))
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
