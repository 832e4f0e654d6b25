//! What holds for every reply, whatever was sent and whatever the model said: a status that says whose fault it was, JSON where
//! JSON is promised, and events in the order of their protocol.

use serde_json::{Map, Value};

pub(crate) use super::spoken::Heard;
use super::{streams, told};

/// Who may be at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Only who asked.
    Client,
    /// A worker, too.
    Worker,
}

/// The protocols of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Chat,
    Messages,
    Responses,
    Completions,
}

impl Protocol {
    /// The protocol of who asks for this path; none where nothing is answered but counts and ids.
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/messages" => Some(Self::Messages),
            "/v1/responses" => Some(Self::Responses),
            "/v1/completions" => Some(Self::Completions),
            _ => None,
        }
    }
}

/// The answers of one request, as a client puts them together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Told {
    /// By their index.
    pub(crate) answers: Vec<Answer>,
    /// Tokens of all answers, as they are billed.
    pub(crate) tokens: Option<u64>,
    /// Whether an error ended the stream.
    pub(crate) failed: bool,
}

/// One answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) parts: Vec<Part>,
    /// Why it ended, in its protocol's words. Empty until then.
    pub(crate) end: String,
    /// Log probabilities of content, and of reasoning.
    pub(crate) scores: [Vec<Value>; 2],
    /// Ids of its tokens, where they are told.
    pub(crate) ids: Vec<Value>,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Reasoning(String),
    Text(String),
    Call { kind: String, name: String, arguments: String },
}

impl Answer {
    /// Its calls, but for those whose input is text.
    pub(crate) fn arguments(&self) -> Vec<&str> {
        let mut all = Vec::new();
        for part in &self.parts {
            match part {
                Part::Call { kind, arguments, .. } if !kind.starts_with("custom") => {
                    all.push(arguments.as_str());
                }
                Part::Call { .. } | Part::Reasoning(_) | Part::Text(_) => {}
            }
        }
        all
    }

    /// Whether it calls something.
    pub(crate) fn calls(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Call { .. }))
    }
}

/// Whether this is one JSON object.
pub(crate) fn is_object(text: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(text).is_ok()
}

/// The JSON object that the text is.
pub(crate) fn object(text: &str) -> Result<Value, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if value.is_object() { Ok(value) } else { Err("not an object".into()) }
}

/// Reads a reply; none when the request was refused.
///
/// # Errors
/// What does not hold of it.
pub(crate) fn hold(path: &str, heard: &Heard, fault: Fault) -> Result<Option<Told>, String> {
    let checked = match heard.status {
        200 if heard.streamed => streams::read(path, &heard.text).map(Some),
        200 => told::read(path, &heard.text).map(Some),
        400..=499 => refused(path, &heard.text).map(|()| None),
        500..=599 if fault == Fault::Worker => refused(path, &heard.text).map(|()| None),
        _ => Err("a fault of ours".into()),
    };
    let checked = checked.and_then(|told| told.as_ref().map_or(Ok(()), sound).map(|()| told));
    checked.map_err(|what| format!("{path}: {what}: {} {}", heard.status, heard.text))
}

/// A refusal is an error of one line in the client's words.
fn refused(path: &str, text: &str) -> Result<(), String> {
    let error = object(text)?;
    let is_anthropic = path.starts_with("/v1/messages");
    if is_anthropic && error["type"] != "error" {
        return Err("an error in other words".into());
    }
    match error["error"]["message"].as_str() {
        Some(line) if !line.is_empty() && !line.contains('\n') => Ok(()),
        _ => Err("no error in one line".into()),
    }
}

/// Only the end of an answer leaves a call open, which is then the last one; and whoever is told to call has something to call.
fn sound(told: &Told) -> Result<(), String> {
    for answer in &told.answers {
        let arguments = answer.arguments();
        let closed = arguments.split_last().map_or(&[][..], |(_, closed)| closed);
        if let Some(open) = closed.iter().find(|text| !is_object(text)) {
            return Err(format!("a call that is not the last one has the arguments {open:?}"));
        }
        if !told.failed && answer.end.is_empty() {
            return Err("an answer without an end".into());
        }
        if matches!(answer.end.as_str(), "tool_calls" | "tool_use") && !answer.calls() {
            return Err("an end by calls without one".into());
        }
        let numbers = answer.scores.iter().flatten().flat_map(logprobs);
        if let Some(other) = numbers.into_iter().find(|value| !value.is_number()) {
            return Err(format!("{other} is told as a log probability"));
        }
    }
    Ok(())
}

/// All log probabilities that are told with a token.
fn logprobs(token: &Value) -> Vec<&Value> {
    let top = token["top_logprobs"].as_array().into_iter().flatten();
    top.chain([token]).map(|token| &token["logprob"]).collect()
}
