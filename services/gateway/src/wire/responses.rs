//! OpenAI's response objects and their events.
//!
//! Sequence numbers count from 0 without gaps. An item has one id from its first event to the last response object, and is
//! done before the next one is added.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use shared::Clock;

use super::{Finished, Head, Report, Writer, call_id, logprobs, push_named};
use crate::answer::{Bill, End};
use crate::error::ApiError;
use crate::output::{Delta, Piece};
use crate::request::Echo;
use crate::stored::{Stored, TenantResponses};
use items::Item;

mod items;

/// Writes responses.
pub(crate) struct ResponsesWriter {
    head: Head,
    echo: Echo,
    memory: Arc<TenantResponses>,
    clock: Arc<dyn Clock>,
    sequence: u64,
    /// Items that are done, as the response object shows them.
    output: Vec<Value>,
    open: Option<Item>,
    end: End,
    calls: usize,
    /// Log probabilities of the text that is shown next.
    logprobs: Vec<Value>,
}

impl ResponsesWriter {
    pub(crate) fn new(
        mut head: Head,
        echo: Echo,
        memory: Arc<TenantResponses>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        head.id = format!("resp_{}", head.id);
        Self {
            head,
            echo,
            memory,
            clock,
            sequence: 0,
            output: Vec::new(),
            open: None,
            end: End::Stop,
            calls: 0,
            logprobs: Vec::new(),
        }
    }

    /// The response's id.
    pub(crate) fn id(&self) -> &str {
        &self.head.id
    }

    /// The response before anything of it was said.
    pub(crate) fn begun(&self) -> Stored {
        Stored { object: self.object("in_progress"), input: self.echo.input.clone() }
    }

    /// The object of a response whose answer is complete. Nothing is kept of it here.
    pub(crate) fn finished(&mut self, answers: &[Finished], total: &Bill) -> Value {
        let answer = answers.first().expect("a response has one answer");
        self.show(0, &answer.said);
        self.end(0, &answer.end, total);
        self.last_object(total)
    }

    fn object(&self, status: &str) -> Value {
        let mut object = json!({
            "id": self.head.id,
            "object": "response",
            "created_at": self.head.created,
            "completed_at": null,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "model": self.head.model,
            "output": self.output,
            "usage": null,
        });
        for (name, value) in &self.echo.fields {
            object[name.as_str()] = value.clone();
        }
        object
    }

    /// The object of a response that ended.
    fn last_object(&self, total: &Bill) -> Value {
        let complete = self.end != End::Length;
        let mut object = self.object(if complete { "completed" } else { "incomplete" });
        if complete {
            object["completed_at"] = self.clock.unix_seconds().into();
        } else {
            object["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        object["usage"] = usage(total);
        object["kvasir"] = json!(Report::of(total));
        object
    }

    /// Keeps the response for who refers to it later.
    fn store(&self, object: &Value) {
        if self.echo.store {
            let stored = Stored { object: object.clone(), input: self.echo.input.clone() };
            self.memory.put(&self.head.id, stored);
        }
    }

    fn push(&mut self, name: &str, mut event: Value, events: &mut Vec<u8>) {
        event["type"] = name.into();
        event["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        push_named(events, name, &event);
    }

    /// The item that a piece belongs to: the open one, or a new one.
    fn add(&mut self, item: Item, events: &mut Vec<u8>) {
        self.finish_item("completed", events);
        let output_index = self.output.len();
        let shown = item.shown("in_progress");
        let event = json!({"output_index": output_index, "item": shown});
        self.push("response.output_item.added", event, events);
        if let Some(part) = item.part("") {
            let event = json!({"item_id": item.id(), "output_index": output_index,
                "content_index": 0, "part": part});
            self.push("response.content_part.added", event, events);
        }
        self.open = Some(item);
    }

    fn finish_item(&mut self, status: &str, events: &mut Vec<u8>) {
        let Some(item) = self.open.take() else { return };
        let output_index = self.output.len();
        let place = json!({"item_id": item.id(), "output_index": output_index});
        if let Some((name, members)) = item.done() {
            self.push(name, joined(&place, members), events);
        }
        if let Some(part) = item.part(item.text()) {
            let members = json!({"content_index": 0, "part": part});
            self.push("response.content_part.done", joined(&place, members), events);
        }
        let shown = item.shown(status);
        let event = json!({"output_index": output_index, "item": shown});
        self.push("response.output_item.done", event, events);
        self.output.push(shown);
    }

    fn show_piece(&mut self, piece: &Piece, events: &mut Vec<u8>) {
        let count = self.output.len() + usize::from(self.open.is_some());
        let id = |prefix: &str| format!("{prefix}_{}", call_id(&self.head, 1, count));
        let text = match piece {
            Piece::Reasoning(text) => {
                if !matches!(self.open, Some(Item::Reasoning { .. })) {
                    let copy = self.echo.encrypted_reasoning;
                    self.add(Item::reasoning(id("rs"), copy), events);
                }
                text
            }
            Piece::Content(text) => {
                if !matches!(self.open, Some(Item::Message { .. })) {
                    self.add(Item::message(id("msg")), events);
                }
                text
            }
            Piece::Call(name) => {
                let call_id = format!("call_{}", call_id(&self.head, 0, self.calls));
                self.calls += 1;
                let item = if self.echo.custom_tools.contains(name) {
                    Item::custom(id("ctc"), call_id, name.clone())
                } else if self.echo.search_tool == Some(name.as_str()) {
                    Item::search(id("tsc"), call_id)
                } else {
                    let place = self.echo.namespaces.get(name);
                    let (namespace, name) = match place {
                        Some((namespace, local)) => (Some(namespace.clone()), local.clone()),
                        None => (None, name.clone()),
                    };
                    Item::call(id("fc"), call_id, name, namespace)
                };
                self.add(item, events);
                return;
            }
            Piece::Arguments(text) => text,
        };
        let output_index = self.output.len();
        let Some(item) = &mut self.open else { return };
        let told = match item {
            Item::Message { .. } => std::mem::take(&mut self.logprobs),
            _ => Vec::new(),
        };
        let Some((name, members)) = item.take(text, told) else { return };
        let place = json!({"item_id": item.id(), "output_index": output_index});
        self.push(name, joined(&place, members), events);
    }
}

impl Writer for ResponsesWriter {
    fn open(&mut self) -> Bytes {
        let mut events = Vec::new();
        let object = self.object("in_progress");
        for name in ["response.created", "response.in_progress"] {
            self.push(name, json!({"response": object}), &mut events);
        }
        events.into()
    }

    fn began(&mut self, _index: usize, _bill: &Bill) -> Bytes {
        Bytes::new()
    }

    fn show(&mut self, _index: usize, delta: &Delta) -> Bytes {
        let mut events = Vec::new();
        if self.head.logprobs {
            self.logprobs = logprobs::tokens(&delta.content_scores, &self.head.vocabulary);
        }
        for piece in delta.pieces() {
            self.show_piece(piece, &mut events);
        }
        events.into()
    }

    fn end(&mut self, _index: usize, end: &End, _bill: &Bill) -> Bytes {
        let mut events = Vec::new();
        let status = if *end == End::Length { "incomplete" } else { "completed" };
        self.finish_item(status, &mut events);
        self.end = end.clone();
        events.into()
    }

    fn close(&mut self, total: &Bill) -> Bytes {
        let object = self.last_object(total);
        self.store(&object);
        let complete = self.end != End::Length;
        let name = if complete { "response.completed" } else { "response.incomplete" };
        let mut events = Vec::new();
        self.push(name, json!({"response": object}), &mut events);
        events.into()
    }

    fn fail(&mut self, error: &ApiError) -> Bytes {
        let mut events = Vec::new();
        let mut object = self.object("failed");
        object["error"] = json!({"code": error.code, "message": error.message});
        self.push("response.failed", json!({"response": object}), &mut events);
        events.into()
    }

    fn whole(&mut self, answers: &[Finished], total: &Bill) -> Vec<u8> {
        let object = self.finished(answers, total);
        self.store(&object);
        super::json(&object)
    }
}

/// The members of both objects.
fn joined(place: &Value, mut members: Value) -> Value {
    if let (Some(place), Some(members)) = (place.as_object(), members.as_object_mut()) {
        members.extend(place.clone());
    }
    members
}

fn usage(bill: &Bill) -> Value {
    json!({
        "input_tokens": bill.prompt_tokens,
        "input_tokens_details": {"cached_tokens": bill.cached_tokens(), "cache_write_tokens": 0},
        "output_tokens": bill.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": bill.reasoning_tokens},
        "total_tokens": bill.prompt_tokens.saturating_add(bill.completion_tokens),
    })
}
