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
            "tools" => complete_tools(&mut value),
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

/// What tokens are drawn by in the end, where that is not what was asked for: the recipe's modes leave little choice.
pub(crate) fn echo_drawn(echo: &mut Map<String, Value>, temperature: f32, top_p: f32) {
    for (name, drawn) in [("temperature", temperature), ("top_p", top_p)] {
        // As short as the client writes it, and not as the nearest f64 of an f32.
        let drawn: f64 = drawn.to_string().parse().expect("numbers print as numbers");
        if echo.get(name).and_then(Value::as_f64) != Some(drawn) {
            echo.insert(name.to_owned(), drawn.into());
        }
    }
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

/// Searches of the web are no tools of the answer: the prompt does not have them.
fn complete_tools(tools: &mut Value) {
    let Value::Array(tools) = tools else { return };
    tools.retain(|tool| !tool["type"].as_str().is_some_and(|kind| kind.starts_with("web_search")));
    tools.iter_mut().for_each(complete_tool);
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
