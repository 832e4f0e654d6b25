//! Legacy completions and their chunks.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use shared::TokenId;

use super::{DONE, Finished, Head, Report, Usage, Writer, frame, logprobs};
use crate::answer::{Bill, End};
use crate::error::ApiError;
use crate::output::{Delta, Piece};

/// Writes legacy completions.
pub(crate) struct CompletionsWriter {
    head: Head,
    /// Whether the client asked for a usage chunk.
    include_usage: bool,
    /// What is shown before each answer.
    echoes: Vec<Option<Arc<str>>>,
    /// Characters of each answer's text so far.
    offsets: Vec<usize>,
    /// Answers whose prompt's ids were told, if any are.
    prompts_told: HashSet<usize>,
}

impl CompletionsWriter {
    pub(crate) fn new(mut head: Head, include_usage: bool, echoes: Vec<Option<Arc<str>>>) -> Self {
        head.id = format!("cmpl-{}", head.id);
        let offsets = vec![0; head.answers];
        Self { head, include_usage, echoes, offsets, prompts_told: HashSet::new() }
    }

    fn object(&self, choices: Value) -> Value {
        json!({
            "id": self.head.id,
            "object": "text_completion",
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": self.head.fingerprint,
            "choices": choices,
        })
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = self.object(choices);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// The log probabilities of what was said, if they are told.
    fn logprobs(&mut self, index: usize, said: &Delta) -> Value {
        if !self.head.logprobs {
            return Value::Null;
        }
        let offset = &mut self.offsets[index];
        logprobs::legacy(&said.content_scores, &self.head.vocabulary, offset)
    }

    fn text_event(&mut self, index: usize, text: &str, logprobs: &Value, ids: &[TokenId]) -> Bytes {
        let mut choice =
            json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": null});
        let prompt = self.prompts_told.insert(index).then(|| self.head.prompt_ids(index));
        self.tell_ids(&mut choice, prompt.flatten(), ids);
        frame(&super::json(&self.chunk(json!([choice]))))
    }

    /// The ids of a prompt and of what was said, as vLLM tells them.
    fn tell_ids(&self, choice: &mut Value, prompt: Option<Vec<u32>>, ids: &[TokenId]) {
        if let Some(prompt) = prompt {
            choice["prompt_token_ids"] = prompt.into();
        }
        if let Some(ids) = self.head.answer_ids(ids) {
            choice["token_ids"] = ids.into();
        }
    }
}

impl Writer for CompletionsWriter {
    fn open(&mut self) -> Bytes {
        Bytes::new()
    }

    fn began(&mut self, index: usize, _bill: &Bill) -> Bytes {
        match self.echoes[index].take() {
            Some(echo) if !echo.is_empty() => self.text_event(index, &echo, &Value::Null, &[]),
            _ => Bytes::new(),
        }
    }

    fn show(&mut self, index: usize, delta: &Delta) -> Bytes {
        let text = text_of(delta);
        if text.is_empty() && delta.ids.is_empty() {
            return Bytes::new();
        }
        let logprobs = self.logprobs(index, delta);
        self.text_event(index, &text, &logprobs, &delta.ids)
    }

    fn end(&mut self, index: usize, end: &End, bill: &Bill) -> Bytes {
        let mut chunk = self.chunk(
            json!([{"index": index, "text": "", "logprobs": null, "finish_reason": word(end)}]),
        );
        if !self.include_usage {
            chunk["kvasir"] = json!(Report::of(bill));
        }
        frame(&super::json(&chunk))
    }

    fn close(&mut self, total: &Bill) -> Bytes {
        let mut events = Vec::new();
        if self.include_usage {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = json!(Usage::of(total));
            chunk["kvasir"] = json!(Report::of(total));
            events.extend_from_slice(&frame(&super::json(&chunk)));
        }
        events.extend_from_slice(DONE);
        events.into()
    }

    fn fail(&mut self, error: &ApiError) -> Bytes {
        frame(&error.to_json())
    }

    fn whole(&mut self, answers: &[Finished], total: &Bill) -> Vec<u8> {
        let mut choices = Vec::with_capacity(answers.len());
        for (index, answer) in answers.iter().enumerate() {
            let logprobs = self.logprobs(index, &answer.said);
            let echo = self.echoes[index].as_deref().unwrap_or_default();
            let text = format!("{echo}{}", text_of(&answer.said));
            let finish_reason = word(&answer.end);
            let mut choice = json!({"index": index, "text": text, "logprobs": logprobs,
                "finish_reason": finish_reason});
            self.tell_ids(&mut choice, self.head.prompt_ids(index), &answer.said.ids);
            choices.push(choice);
        }
        let mut object = self.object(choices.into());
        object["usage"] = json!(Usage::of(total));
        object["kvasir"] = json!(Report::of(total));
        super::json(&object)
    }
}

/// A plain answer has no reasoning and no calls.
fn text_of(delta: &Delta) -> String {
    let text = |piece: &Piece| match piece {
        Piece::Content(text) => Some(text.clone()),
        Piece::Reasoning(_) | Piece::Call(_) | Piece::Arguments(_) => None,
    };
    delta.pieces().iter().filter_map(text).collect()
}

fn word(end: &End) -> &'static str {
    match end {
        End::Stop | End::StopString(_) | End::Calls => "stop",
        End::Length => "length",
    }
}
