//! The items of a response's output, while they grow.

use serde_json::{Map, Value, json};

use crate::wire::copy_of;
use crate::wire::unquoting::Unquoting;

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
    /// A call to the client's search for tools. Its arguments are told when they are whole.
    Search {
        id: String,
        call_id: String,
        arguments: String,
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

    pub(super) fn search(id: String, call_id: String) -> Self {
        Self::Search { id, call_id, arguments: String::new() }
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. }
            | Self::Message { id, .. }
            | Self::Call { id, .. }
            | Self::Custom { id, .. }
            | Self::Search { id, .. } => id,
        }
    }

    /// What came so far.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Reasoning { text, .. } | Self::Message { text, .. } => text,
            Self::Call { arguments, .. } | Self::Search { arguments, .. } => arguments,
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
            Self::Call { .. } | Self::Custom { .. } | Self::Search { .. } => None,
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
            Self::Search { id, call_id, arguments } => {
                let whole: Option<Map<String, Value>> = serde_json::from_str(arguments).ok();
                json!({"id": id, "type": "tool_search_call", "call_id": call_id,
                    "execution": "client", "arguments": whole.unwrap_or_default(),
                    "status": status})
            }
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
            Self::Search { arguments, .. } => {
                arguments.push_str(new);
                None
            }
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
            Self::Search { .. } => return None,
        })
    }
}
