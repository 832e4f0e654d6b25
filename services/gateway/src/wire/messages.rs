//! Anthropic's messages and their events.
//!
//! Input tokens that were cached are told apart from the others and not among them. The usage of the last event counts
//! everything, and repeats what the first one said.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Finished, Head, Report, Writer, call_id, copy_of, push_named};
use crate::answer::{Bill, End};
use crate::error::ApiError;
use crate::output::{Delta, Piece};
use crate::request::ThinkingDisplay;

const PING: &[u8] = b"event: ping\ndata: {\"type\": \"ping\"}\n\n";

/// Writes messages.
pub(crate) struct MessagesWriter {
    head: Head,
    /// Blocks that began.
    blocks: usize,
    open: Option<Block>,
    calls: usize,
    /// The reasoning so far, where the client is shown its opaque copy alone.
    hidden: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    ToolUse,
}

impl MessagesWriter {
    pub(crate) fn new(mut head: Head, thinking: ThinkingDisplay) -> Self {
        head.id = format!("msg_{}", head.id);
        let hidden = match thinking {
            ThinkingDisplay::Shown => None,
            ThinkingDisplay::Omitted => Some(String::new()),
        };
        Self { head, blocks: 0, open: None, calls: 0, hidden }
    }

    fn message(&self, content: &[Value], usage: Value) -> Value {
        json!({
            "id": self.head.id,
            "type": "message",
            "role": "assistant",
            "model": self.head.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage,
        })
    }

    fn tool_use(&mut self, name: &str, input: &Value) -> Value {
        let id = format!("toolu_{}", call_id(&self.head, 0, self.calls));
        self.calls += 1;
        json!({"type": "tool_use", "id": id, "name": name, "input": input})
    }

    fn begin(&mut self, block: Block, shown: &Value, events: &mut Vec<u8>) {
        self.finish_block(events);
        let index = self.blocks;
        let event = json!({"type": "content_block_start", "index": index, "content_block": shown});
        push_named(events, "content_block_start", &event);
        if index == 0 {
            events.extend_from_slice(PING);
        }
        self.blocks += 1;
        self.open = Some(block);
    }

    fn push_delta(&self, delta: &Value, events: &mut Vec<u8>) {
        let index = self.blocks - 1;
        let event = json!({"type": "content_block_delta", "index": index, "delta": delta});
        push_named(events, "content_block_delta", &event);
    }

    fn finish_block(&mut self, events: &mut Vec<u8>) {
        let Some(block) = self.open.take() else { return };
        if block == Block::Thinking {
            // Nobody checks it: reasoning that comes back is text like any other.
            let signature = match &self.hidden {
                None => self.head.id.clone(),
                Some(text) => copy_of(text),
            };
            self.push_delta(&json!({"type": "signature_delta", "signature": signature}), events);
        }
        let event = json!({"type": "content_block_stop", "index": self.blocks - 1});
        push_named(events, "content_block_stop", &event);
    }

    fn show_piece(&mut self, piece: &Piece, events: &mut Vec<u8>) {
        match piece {
            Piece::Reasoning(text) => {
                if self.open != Some(Block::Thinking) {
                    let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                    self.begin(Block::Thinking, &block, events);
                }
                if let Some(hidden) = &mut self.hidden {
                    hidden.push_str(text);
                    return;
                }
                self.push_delta(&json!({"type": "thinking_delta", "thinking": text}), events);
            }
            Piece::Content(text) => {
                if self.open != Some(Block::Text) {
                    self.begin(Block::Text, &json!({"type": "text", "text": ""}), events);
                }
                self.push_delta(&json!({"type": "text_delta", "text": text}), events);
            }
            Piece::Call(name) => {
                let block = self.tool_use(name, &json!({}));
                self.begin(Block::ToolUse, &block, events);
            }
            Piece::Arguments(text) => {
                self.push_delta(&json!({"type": "input_json_delta", "partial_json": text}), events);
            }
        }
    }

    fn content(&mut self, said: &Delta) -> Vec<Value> {
        let mut content = Vec::new();
        let mut pieces = said.pieces().iter().peekable();
        while let Some(piece) = pieces.next() {
            content.push(match piece {
                Piece::Reasoning(text) if self.hidden.is_some() => {
                    json!({"type": "thinking", "thinking": "", "signature": copy_of(text)})
                }
                Piece::Reasoning(text) => {
                    json!({"type": "thinking", "thinking": text, "signature": self.head.id})
                }
                Piece::Content(text) => json!({"type": "text", "text": text}),
                Piece::Call(name) => {
                    let arguments = pieces.next_if(|next| matches!(next, Piece::Arguments(_)));
                    let input = match arguments {
                        // A call that broke off has no input that anybody should act upon.
                        Some(Piece::Arguments(text)) => serde_json::from_str(text).ok(),
                        _ => None,
                    };
                    self.tool_use(name, &input.unwrap_or_else(|| json!({})))
                }
                Piece::Arguments(_) => continue,
            });
        }
        content
    }
}

impl Writer for MessagesWriter {
    /// The first event says what was cached, so it waits for the worker.
    fn open(&mut self) -> Bytes {
        Bytes::new()
    }

    fn began(&mut self, _index: usize, bill: &Bill) -> Bytes {
        let mut events = Vec::new();
        let message = self.message(&[], usage(bill));
        push_named(
            &mut events,
            "message_start",
            &json!({"type": "message_start", "message": message}),
        );
        events.into()
    }

    fn show(&mut self, _index: usize, delta: &Delta) -> Bytes {
        let mut events = Vec::new();
        for piece in delta.pieces() {
            self.show_piece(piece, &mut events);
        }
        events.into()
    }

    fn end(&mut self, _index: usize, end: &End, bill: &Bill) -> Bytes {
        let mut events = Vec::new();
        self.finish_block(&mut events);
        let (stop_reason, stop_sequence) = reason(end);
        let event = json!({
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason, "stop_sequence": stop_sequence},
            "usage": usage(bill),
            "kvasir": Report::of(bill),
        });
        push_named(&mut events, "message_delta", &event);
        events.into()
    }

    fn close(&mut self, _total: &Bill) -> Bytes {
        let mut events = Vec::new();
        push_named(&mut events, "message_stop", &json!({"type": "message_stop"}));
        events.into()
    }

    fn fail(&mut self, error: &ApiError) -> Bytes {
        let id = self.head.id.trim_start_matches("msg_");
        let mut events = b"event: error\n".to_vec();
        events.extend_from_slice(&super::frame(&error.to_anthropic_json(Some(id))));
        events.into()
    }

    fn keep_alive(&self) -> &'static [u8] {
        PING
    }

    fn whole(&mut self, answers: &[Finished], total: &Bill) -> Vec<u8> {
        let answer = answers.first().expect("messages have one answer");
        let content = self.content(&answer.said);
        let mut message = self.message(&content, usage(total));
        let (stop_reason, stop_sequence) = reason(&answer.end);
        message["stop_reason"] = stop_reason.into();
        message["stop_sequence"] = stop_sequence.into();
        message["kvasir"] = json!(Report::of(total));
        super::json(&message)
    }
}

fn usage(bill: &Bill) -> Value {
    let cached = bill.cached_tokens();
    json!({
        "input_tokens": bill.prompt_tokens - cached,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": bill.completion_tokens,
        "output_tokens_details": {"thinking_tokens": bill.reasoning_tokens},
        "server_tool_use": null,
        "service_tier": "standard",
    })
}

fn reason(end: &End) -> (&'static str, Option<&str>) {
    match end {
        End::Stop => ("end_turn", None),
        End::Length => ("max_tokens", None),
        End::StopString(stop) => ("stop_sequence", Some(stop)),
        End::Calls => ("tool_use", None),
    }
}
