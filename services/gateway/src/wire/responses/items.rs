//! The items of a response's output, while they grow.

use serde_json::{Value, json};

use super::copy_of;

/// An item that is not done.
pub(super) enum Item {
    Reasoning {
        id: String,
        text: String,
        /// Whether the opaque copy is shown.
        copy: bool,
    },
    Message {
        id: String,
        text: String,
        logprobs: Vec<Value>,
    },
    Call {
        id: String,
        call_id: String,
        name: String,
        namespace: Option<String>,
        arguments: String,
    },
    /// A call of a tool that takes text: the one string in the arguments.
    Custom {
        id: String,
        call_id: String,
        name: String,
        input: String,
        unquoting: Unquoting,
    },
}

impl Item {
    pub(super) fn reasoning(id: String, copy: bool) -> Self {
        Self::Reasoning { id, text: String::new(), copy }
    }

    pub(super) fn message(id: String) -> Self {
        Self::Message { id, text: String::new(), logprobs: Vec::new() }
    }

    pub(super) fn call(
        id: String,
        call_id: String,
        name: String,
        namespace: Option<String>,
    ) -> Self {
        Self::Call { id, call_id, name, namespace, arguments: String::new() }
    }

    pub(super) fn custom(id: String, call_id: String, name: String) -> Self {
        let unquoting = Unquoting::default();
        Self::Custom { id, call_id, name, input: String::new(), unquoting }
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. }
            | Self::Message { id, .. }
            | Self::Call { id, .. }
            | Self::Custom { id, .. } => id,
        }
    }

    /// What came so far.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Reasoning { text, .. } | Self::Message { text, .. } => text,
            Self::Call { arguments, .. } => arguments,
            Self::Custom { input, .. } => input,
        }
    }

    /// The item's only content part with this text, if it has parts.
    pub(super) fn part(&self, text: &str) -> Option<Value> {
        match self {
            Self::Reasoning { .. } => Some(json!({"type": "reasoning_text", "text": text})),
            Self::Message { logprobs, .. } => {
                // The part begins without text, and without what is told of it.
                let told = if text.is_empty() { &[] } else { logprobs.as_slice() };
                Some(json!({"type": "output_text", "text": text, "annotations": [],
                    "logprobs": told}))
            }
            Self::Call { .. } | Self::Custom { .. } => None,
        }
    }

    /// The item as it stands. While it is in progress its parts are not shown with it, but by events.
    pub(super) fn shown(&self, status: &str) -> Value {
        let done = status != "in_progress";
        let parts: Vec<Value> = self.part(self.text()).into_iter().filter(|_| done).collect();
        match self {
            Self::Reasoning { id, text, copy } => {
                let mut item = json!({"id": id, "type": "reasoning", "summary": [],
                    "content": parts, "status": status});
                if *copy {
                    let copy = if done { copy_of(text) } else { String::new() };
                    item["encrypted_content"] = copy.into();
                }
                item
            }
            Self::Message { id, .. } => json!({"id": id, "type": "message", "role": "assistant",
                "content": parts, "status": status}),
            Self::Call { id, call_id, name, namespace, arguments } => {
                let mut item = json!({"id": id, "type": "function_call", "call_id": call_id,
                    "name": name, "arguments": arguments, "status": status});
                if let Some(namespace) = namespace {
                    item["namespace"] = namespace.as_str().into();
                }
                item
            }
            Self::Custom { id, call_id, name, input, .. } => json!({"id": id,
                "type": "custom_tool_call", "call_id": call_id, "name": name, "input": input,
                "status": status}),
        }
    }

    /// Takes text; the event that says so, if there is something to say.
    pub(super) fn take(&mut self, new: &str, told: Vec<Value>) -> Option<(&'static str, Value)> {
        match self {
            Self::Reasoning { text, .. } => {
                text.push_str(new);
                let members = json!({"content_index": 0, "delta": new});
                Some(("response.reasoning_text.delta", members))
            }
            Self::Message { text, logprobs, .. } => {
                text.push_str(new);
                let members = json!({"content_index": 0, "delta": new, "logprobs": told});
                logprobs.extend(told);
                Some(("response.output_text.delta", members))
            }
            Self::Call { arguments, .. } => {
                arguments.push_str(new);
                Some(("response.function_call_arguments.delta", json!({"delta": new})))
            }
            Self::Custom { input, unquoting, .. } => {
                let before = input.len();
                unquoting.push(new, input);
                let delta = &input[before..];
                let event = "response.custom_tool_call_input.delta";
                (!delta.is_empty()).then(|| (event, json!({"delta": delta})))
            }
        }
    }

    /// Nothing more comes. Arguments that never came are those of a call without any.
    pub(super) fn finish(&mut self) {
        if let Self::Custom { input, unquoting, .. } = self {
            unquoting.finish(input);
        }
    }

    /// The event that repeats the whole.
    pub(super) fn done(&self) -> Option<(&'static str, Value)> {
        Some(match self {
            Self::Reasoning { text, .. } => {
                ("response.reasoning_text.done", json!({"content_index": 0, "text": text}))
            }
            Self::Message { text, logprobs, .. } => (
                "response.output_text.done",
                json!({"content_index": 0, "text": text, "logprobs": logprobs}),
            ),
            Self::Call { name, arguments, .. } => (
                "response.function_call_arguments.done",
                json!({"name": name, "arguments": arguments}),
            ),
            Self::Custom { input, .. } => {
                ("response.custom_tool_call_input.done", json!({"input": input}))
            }
        })
    }
}

/// Takes the string out of `{"input": "..."}` as it comes. Arguments of another form pass unchanged.
#[derive(Default)]
pub(super) struct Unquoting {
    state: State,
    /// The part of the frame, or of an escape, that is not decided.
    held: String,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Frame,
    Text,
    Escape,
    Ended,
    Unchanged,
}

/// How our parser writes the beginning of an object whose only key is `input`.
const FRAME: &str = "{\"input\": \"";

impl Unquoting {
    fn push(&mut self, text: &str, out: &mut String) {
        for character in text.chars() {
            match self.state {
                State::Frame => {
                    self.held.push(character);
                    if self.held == FRAME {
                        self.state = State::Text;
                        self.held.clear();
                    } else if !FRAME.starts_with(&self.held) {
                        self.state = State::Unchanged;
                        out.push_str(&std::mem::take(&mut self.held));
                    }
                }
                State::Text => match character {
                    '"' => self.state = State::Ended,
                    '\\' => {
                        self.held.push('\\');
                        self.state = State::Escape;
                    }
                    other => out.push(other),
                },
                State::Escape => {
                    self.held.push(character);
                    let quoted = format!("\"{}\"", self.held);
                    if let Ok(decoded) = serde_json::from_str::<String>(&quoted) {
                        out.push_str(&decoded);
                        self.held.clear();
                        self.state = State::Text;
                    } else if ESCAPE_BYTES_MAX <= self.held.len() {
                        out.push_str(&std::mem::take(&mut self.held));
                        self.state = State::Text;
                    }
                }
                State::Unchanged => out.push(character),
                State::Ended => {}
            }
        }
    }

    fn finish(&mut self, out: &mut String) {
        if self.state == State::Frame {
            out.push_str(&std::mem::take(&mut self.held));
        }
        self.state = State::Ended;
    }
}

/// The longest escape: two halves of a character beyond the basic plane.
const ESCAPE_BYTES_MAX: usize = 12;

#[cfg(test)]
mod tests {
    use super::Unquoting;

    #[test]
    fn the_string_comes_out_at_every_split() {
        let text = "*** Begin\n\"a\\b\"\t🤭é\u{1}";
        let arguments = serde_json::json!({"input": text}).to_string().replacen(":", ": ", 1);
        let others = ["{}", "{\"other\": \"x\"}", "[1]"];
        for (arguments, expected) in
            others.map(|text| (text, text)).into_iter().chain([(arguments.as_str(), text)])
        {
            for cut in (0..=arguments.len()).filter(|cut| arguments.is_char_boundary(*cut)) {
                let mut unquoting = Unquoting::default();
                let mut out = String::new();
                unquoting.push(&arguments[..cut], &mut out);
                unquoting.push(&arguments[cut..], &mut out);
                unquoting.finish(&mut out);
                assert_eq!(out, expected, "{cut}");
            }
        }
    }
}
