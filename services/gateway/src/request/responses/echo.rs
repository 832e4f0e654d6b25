//! What a response object repeats of its request.

use serde_json::{Map, Value, json};

use crate::request::fields::Fields;

/// The members, with OpenAI's defaults. A user that was not named is not repeated as null.
pub(super) fn echoed(fields: &Fields) -> Map<String, Value> {
    let mut echo = Map::new();
    for (name, default) in [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("max_tool_calls", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", true.into()),
        ("previous_response_id", Value::Null),
        ("prompt_cache_key", Value::Null),
        ("safety_identifier", Value::Null),
        ("temperature", json!(1.0)),
        ("text", json!({})),
        ("tool_choice", "auto".into()),
        ("tools", json!([])),
        ("top_logprobs", 0.into()),
        ("top_p", json!(1.0)),
        ("truncation", "disabled".into()),
        ("frequency_penalty", json!(0.0)),
        ("presence_penalty", json!(0.0)),
    ] {
        let mut value = fields.peek(name).cloned().unwrap_or(default);
        match name {
            "text" => complete_text(&mut value),
            "tools" => value.as_array_mut().into_iter().flatten().for_each(complete_tool),
            _ => {}
        }
        echo.insert(name.to_owned(), value);
    }
    echo.insert("service_tier".into(), "default".into());
    if let Some(user) = fields.peek("user") {
        echo.insert("user".into(), user.clone());
    }
    echo
}

/// Clients that ask for a verbosity alone name no format, and read one.
fn complete_text(text: &mut Value) {
    let Value::Object(text) = text else { return };
    let format = text.entry("format").or_insert(Value::Null);
    if format.is_null() {
        *format = json!({"type": "text"});
    }
    if format["type"] == "json_schema" {
        complete(format, [("description", Value::Null), ("strict", false.into())]);
    }
}

/// The members that a request may leave out of a function and a response may not.
fn complete_tool(tool: &mut Value) {
    if tool["type"] == "function" {
        let missing = [("description", Value::Null), ("parameters", Value::Null)];
        complete(tool, missing.into_iter().chain([("strict", false.into())]));
    }
}

fn complete(value: &mut Value, members: impl IntoIterator<Item = (&'static str, Value)>) {
    let Value::Object(map) = value else { return };
    for (name, default) in members {
        map.entry(name).or_insert(default);
    }
}
