//! Any tokens as the answer to a request of any protocol.
//!
//! Three bytes of an input choose the request, how the answer ends and where workers are lost, the rest spells its tokens ([`Words`]). Each
//! answer is asked for whole, from a worker that stays, and streamed, from workers that are lost: both have to say the same.

use std::path::Path;

use axum::http::Method;
use serde_json::{Value, json};
use shared::ServeError;

use super::claims::{Answer, Fault, Part, Told, hold, is_object};
use super::spoken::{Ending, Speech, Spoken};
use super::words::Words;

/// What opens a call where the prompt opened the block, and what closes whatever is open.
const OPEN: &[u8] = b" invoke name=\"f\">\n";
const CLOSED: &str = "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

/// What the first byte asks for, beside the protocol in its two lowest bits.
const TOOLS: u8 = 1 << 2;
const THINKING: u8 = 1 << 3;
const LOGPROBS: u8 = 1 << 4;
const STOPS: u8 = 1 << 5;
const REQUIRED: u8 = 1 << 6;
/// A call is opened before the tokens and closed behind them.
const ENCLOSED: u8 = 1 << 7;
/// What the second one asks for, beside the ending in its two lowest bits.
const IDS: u8 = 1 << 2;
const USAGE: u8 = 1 << 3;
const TWICE: u8 = 1 << 4;
const OTHER_TOOLS: u8 = 1 << 5;
const SHORT: u8 = 1 << 6;
const HIDDEN: u8 = 1 << 7;

/// A gateway that is answered by anything.
pub(crate) struct Answers {
    spoken: Spoken,
    words: Words,
}

/// What an input asks for.
#[derive(Clone, Copy)]
struct Wish {
    request: u8,
    manner: u8,
}

impl Wish {
    fn asks(self, flag: u8) -> bool {
        self.request & flag == flag
    }

    fn wants(self, flag: u8) -> bool {
        self.manner & flag == flag
    }

    /// Whether the prompt opens a call that the answer has to close.
    fn is_enclosed(self) -> bool {
        let held = self.asks(TOOLS | REQUIRED | ENCLOSED) && !self.asks(THINKING);
        held && self.request & 3 != 3
    }

    fn ending(self) -> Ending {
        match self.manner & 3 {
            0 => Ending::Stop,
            1 => Ending::Length,
            2 => Ending::Failed(ServeError::Internal { message: "said".into() }),
            _ => Ending::Failed(ServeError::GrammarFailed { what: "said".into() }),
        }
    }

    /// The most tokens of an answer.
    fn bound(self) -> u32 {
        if self.wants(SHORT) { 9 } else { 16_000 }
    }

    fn function(self, strict: bool) -> Value {
        json!({"name": "f", "strict": strict, "parameters": {"type": "object", "properties":
            {"a": {"type": "string"}, "b": {}}, "additionalProperties": false}})
    }

    fn body(self) -> (&'static str, Value) {
        match self.request & 3 {
            0 => ("/v1/chat/completions", self.chat()),
            1 => ("/v1/messages", self.messages()),
            2 => ("/v1/responses", self.responses()),
            _ => ("/v1/completions", self.completions()),
        }
    }

    fn chat(self) -> Value {
        let kind = if self.asks(THINKING) { "enabled" } else { "disabled" };
        let mut body = json!({"model": "seedling", "messages": [{"role": "user", "content": "hi"}],
            "thinking": {"type": kind}, "max_tokens": self.bound(), "return_token_ids": self.wants(IDS),
            "n": if self.wants(TWICE) { 2 } else { 1 }});
        if self.asks(LOGPROBS) {
            body["logprobs"] = true.into();
            body["top_logprobs"] = 2.into();
        }
        if self.asks(STOPS) {
            body["stop"] = json!(["STOP", "\n\nab", "é"]);
        }
        if self.asks(TOOLS) {
            let named = |name: &str| json!({"type": "function", "function": {"name": name}});
            body["tools"] =
                json!([{"type": "function", "function": self.function(false)}, named("g")]);
            if self.wants(OTHER_TOOLS) {
                let custom = json!({"type": "custom", "custom": {"name": "c"}});
                body["tools"] =
                    json!([{"type": "function", "function": self.function(true)}, custom]);
            }
            body["tool_choice"] = if self.asks(REQUIRED) { "required" } else { "auto" }.into();
        }
        body
    }

    fn messages(self) -> Value {
        let shown = if self.wants(HIDDEN) { "omitted" } else { "summarized" };
        let thinking = match self.asks(THINKING) {
            true => json!({"type": "adaptive", "display": shown}),
            false => json!({"type": "disabled"}),
        };
        let mut body = json!({"model": "seedling", "messages": [{"role": "user", "content": "hi"}],
            "thinking": thinking, "max_tokens": self.bound()});
        if self.asks(STOPS) {
            body["stop_sequences"] = json!(["STOP", "\n\nab", "é"]);
        }
        if self.asks(TOOLS) {
            let function = self.function(self.wants(OTHER_TOOLS));
            body["tools"] = json!([{"name": "f", "input_schema": function["parameters"]}, {"name": "g",
                "input_schema": {"type": "object"}}]);
            body["tool_choice"] = json!({"type": if self.asks(REQUIRED) { "any" } else { "auto" }});
        }
        body
    }

    fn responses(self) -> Value {
        let effort = if self.asks(THINKING) { "high" } else { "none" };
        let mut include = Vec::new();
        if self.asks(LOGPROBS) {
            include.push("message.output_text.logprobs");
        }
        if self.wants(HIDDEN) {
            include.push("reasoning.encrypted_content");
        }
        let mut body = json!({"model": "seedling", "input": "hi", "reasoning": {"effort": effort},
            "max_output_tokens": self.bound(), "include": include, "store": self.asks(STOPS)});
        if self.asks(TOOLS) {
            let mut function = self.function(false);
            function["type"] = "function".into();
            body["tools"] = json!([function]);
            if self.wants(OTHER_TOOLS) {
                body["tools"] = json!([function, {"type": "custom", "name": "c"},
                    {"type": "namespace", "name": "s", "description": "d", "tools": [{"type": "function", "name": "g"}]},
                    {"type": "tool_search", "execution": "client"}]);
            }
            body["tool_choice"] = if self.asks(REQUIRED) { "required" } else { "auto" }.into();
        }
        body
    }

    fn completions(self) -> Value {
        let mut body = json!({"model": "seedling", "prompt": "Once", "max_tokens": self.bound(),
            "return_token_ids": self.wants(IDS), "n": if self.wants(TWICE) { 2 } else { 1 }});
        if self.asks(LOGPROBS) {
            body["logprobs"] = 2.into();
        } else {
            body["echo"] = self.asks(ENCLOSED).into();
        }
        if self.asks(STOPS) {
            body["stop"] = json!(["STOP", "\n\nab", "é"]);
        }
        body
    }
}

impl Answers {
    /// # Panics
    /// When the tokenizer cannot be read.
    pub(crate) fn new(tokenizer: &Path) -> Self {
        Self { spoken: Spoken::new(tokenizer), words: Words::new(tokenizer) }
    }

    /// Asks for the answer that an input spells, whole and streamed; what both told, if they were not refused.
    ///
    /// # Errors
    /// What does not hold of a reply, or of both.
    pub(crate) fn hear(&self, input: &[u8]) -> Result<Option<Told>, String> {
        let [request, manner, loss, rest @ ..] = input else { return Ok(None) };
        let wish = Wish { request: *request, manner: *manner };
        let speech = self.speech(wish, *loss, rest);
        // The end is a token, too.
        let all_said = speech.tokens.len() + 1;
        self.spoken.say(Speech { losses: Vec::new(), ..speech.clone() });
        let (path, mut body) = wish.body();
        let whole = self.ask(path, &body)?;
        self.spoken.say(speech);
        body["stream"] = true.into();
        if wish.wants(USAGE) && matches!(wish.request & 3, 0 | 3) {
            body["stream_options"] = json!({"include_usage": true});
        }
        let streamed = self.ask(path, &body)?;
        let fails = matches!(wish.ending(), Ending::Failed(_));
        let (whole, streamed) = match (whole, streamed) {
            (Some(whole), Some(streamed)) if !streamed.failed => (whole, streamed),
            (None, Some(Told { failed: true, .. }) | None) if fails => return Ok(None),
            (whole, streamed) => {
                return Err(format!("{path} {body}: {whole:?} is whole, {streamed:?} streamed"));
            }
        };
        let (read, again) = (comparable(&whole), comparable(&streamed));
        if read.answers != again.answers
            || again.tokens.is_some_and(|_| read.tokens != again.tokens)
        {
            return Err(format!("{path} {body}: {read:?} is whole, {again:?} streamed"));
        }
        if wish.is_enclosed() && wish.manner & 3 == 0 {
            closed(all_said, &whole)?;
            closed(all_said, &Told { tokens: whole.tokens, ..streamed })?;
        }
        Ok(Some(whole))
    }

    fn ask(&self, path: &str, body: &Value) -> Result<Option<Told>, String> {
        let heard = self.spoken.ask(Method::POST, path, body.to_string().into_bytes())?;
        let told = hold(path, &heard, Fault::Worker).map_err(|what| format!("{body}: {what}"))?;
        match heard.status {
            400 if !heard.text.contains("the answer ends here") => {
                Err(format!("{path} {body} is refused: {}", heard.text))
            }
            _ => Ok(told),
        }
    }

    fn speech(&self, wish: Wish, loss: u8, rest: &[u8]) -> Speech {
        let mut tokens = Vec::new();
        if wish.is_enclosed() {
            tokens.extend(self.words.tokens(OPEN));
        }
        tokens.extend(self.words.tokens(rest));
        if wish.is_enclosed() {
            tokens.extend(self.words.tokens(CLOSED.as_bytes()));
        }
        let loss = usize::from(loss);
        let losses = if loss == 0 { Vec::new() } else { vec![loss, loss + 1, 3 * loss] };
        Speech { tokens, losses, ending: wish.ending() }
    }
}

/// Both forms in one: arguments of messages are values when they are whole, and text when they are streamed, of which no value
/// becomes an empty object.
fn comparable(told: &Told) -> Told {
    let mut told = told.clone();
    for part in told.answers.iter_mut().flat_map(|answer| &mut answer.parts) {
        if let Part::Call { kind, arguments, .. } = part
            && kind == "tool_use"
        {
            let value: Option<Value> = serde_json::from_str(arguments).ok();
            *arguments = value.unwrap_or_else(|| json!({})).to_string();
        }
    }
    told
}

/// Whatever was said within a call, it was closed: where the answers came to their ends, its arguments are an object.
fn closed(all_said: usize, told: &Told) -> Result<(), String> {
    let tokens = u64::try_from(all_said * told.answers.len()).ok();
    let open = |answer: &&Answer| answer.arguments().iter().any(|text| !is_object(text));
    match told.answers.iter().find(open) {
        Some(answer) if told.tokens == tokens => {
            Err(format!("a closed call is no object: {answer:?}"))
        }
        _ => Ok(()),
    }
}
