//! Whole requests through the crates alone and through us: the same ids, where we do not mean to differ.

use deepseek_recipe::anthropic::MessagesRequest;
use deepseek_recipe::openai::{ChatCompletionRequest, ResponsesRequest};
use deepseek_recipe::request::{ConversionOptions, ModelVersion, ProtocolRequest};
use deepseek_recipe_encoding::dsv41::DeepseekV41Encoding;
use deepseek_recipe_encoding::{PromptEncoding, PromptTokenizer};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::tests::{plan, prompter};
use crate::request::Protocol;
use crate::vocabulary::tests::seedling;

/// The ids by the crates alone; none when they refuse.
fn oracle<R: ProtocolRequest + DeserializeOwned>(body: &Value) -> Option<Vec<u32>> {
    let (tokenizer, _) = seedling();
    let encoding = DeepseekV41Encoding::new().with_tokenizer(PromptTokenizer::new(&tokenizer));
    let options =
        ConversionOptions::new().with_model_alias("seedling", ModelVersion::DeepseekV41Flash);
    let request: R = serde_json::from_value(body.clone()).ok()?;
    let conversation = request.convert(options).ok()?.conversation;
    encoding.encode(&conversation).ok()
}

fn ours(protocol: Protocol, body: &Value) -> Option<Vec<u32>> {
    let plan = plan(&prompter(1 << 20), protocol, 1, body).ok()?;
    Some(plan.runs[0].prompt.iter().map(|id| id.0).collect())
}

fn function(name: &str) -> Value {
    json!({"name": name, "description": "Does it.", "parameters": {"type": "object",
        "properties": {"a": {"type": "string"}, "b": {"enum": [1, null]}}}})
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": function(name)})
}

#[test]
fn chats_are_rendered_as_the_crates_render_them() {
    let user = json!([{"role": "user", "content": "Give me json."}]);
    let call = json!({"id": "1", "type": "function",
        "function": {"name": "f", "arguments": "{\"a\": \"x\", \"b\": [1, {}]}"}});
    let turns = json!([
        {"role": "system", "content": "S"}, {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "", "reasoning_content": "R", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "T"}]},
    ]);
    let off = json!({"type": "disabled"});
    let named = json!({"type": "function", "function": {"name": "g"}});
    let schema =
        json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}});
    for change in [
        json!({"messages": user, "tools": [tool("f"), tool("g")]}),
        json!({"messages": turns, "tools": [tool("f")]}),
        json!({"messages": turns, "tools": [tool("f")], "thinking": off}),
        json!({"messages": turns}),
        json!({"messages": user, "tools": [tool("f"), tool("g")], "tool_choice": named, "thinking": off}),
        json!({"messages": user, "tools": [tool("f")], "tool_choice": "required", "thinking": off}),
        json!({"messages": user, "tools": [tool("f")], "tool_choice": "none"}),
        json!({"messages": user, "response_format": {"type": "json_object"}}),
        json!({"messages": user, "response_format": schema, "thinking": off}),
        json!({"messages": user, "response_format": {"type": "regex", "regex": "a"}}),
        json!({"messages": user, "reasoning_effort": "max"}),
        json!({"messages": [{"role": "tool", "tool_call_id": "1", "content": "x"}]}),
        json!({"messages": user, "tools": [tool("bad name")]}),
    ] {
        let mut body = change;
        body["model"] = "seedling".into();
        let expected = oracle::<ChatCompletionRequest>(&body);
        assert_eq!(ours(Protocol::Chat, &body), expected, "{body}");
    }
}

#[test]
fn messages_are_rendered_as_the_crates_render_them() {
    let tool = json!({"name": "f", "description": "d", "input_schema": {"type": "object"}});
    let turns = json!([
        {"role": "user", "content": [{"type": "text", "text": "Q", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "R", "signature": "s"},
            {"type": "text", "text": "so"}, {"type": "tool_use", "id": "1", "name": "f", "input": {"a": [1]}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1",
            "content": [{"type": "text", "text": "T"}]}, {"type": "text", "text": "more"}]},
    ]);
    for change in [
        json!({"messages": [{"role": "user", "content": "Q"}]}),
        json!({"messages": turns, "tools": [tool], "system": [{"type": "text", "text": "S"}]}),
        json!({"messages": turns, "tools": [tool], "thinking": {"type": "disabled"}}),
        json!({"messages": turns, "tools": [tool], "tool_choice": {"type": "none"}}),
        json!({"messages": [{"role": "user", "content": "Q"}], "output_config": {"effort": "max"}}),
        json!({"messages": [{"role": "user", "content": []}]}),
    ] {
        let mut body = change;
        body["model"] = "seedling".into();
        body["max_tokens"] = 64.into();
        let expected = oracle::<MessagesRequest>(&body);
        assert_eq!(ours(Protocol::Messages, &body), expected, "{body}");
    }
}

#[test]
fn responses_are_rendered_as_the_crates_render_them() {
    let mut flat = function("f");
    flat["type"] = "function".into();
    let namespace = json!({"type": "namespace", "name": "ns", "description": "n", "tools": [flat]});
    let items = json!([
        {"role": "developer", "content": "D"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Q"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"a\": \"x\"}"},
        {"type": "function_call_output", "call_id": "1", "output": "T"},
    ]);
    let format =
        json!({"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}});
    for change in [
        json!({"input": "Q"}),
        json!({"input": "Q", "instructions": "S", "reasoning": {"effort": "none"}}),
        json!({"input": items, "tools": [flat]}),
        json!({"input": items, "tools": [namespace, {"type": "web_search"}]}),
        json!({"input": "Q", "tools": [{"type": "custom", "name": "apply_patch"}]}),
        json!({"input": "Q", "text": format}),
        json!({"input": "Q", "tools": [flat], "tool_choice": "required", "reasoning": {"effort": "none"}}),
        json!({"instructions": "S"}),
        json!({"input": [{"type": "function_call_output", "call_id": "9", "output": "T"}]}),
    ] {
        let mut body = change;
        body["model"] = "seedling".into();
        let expected = oracle::<ResponsesRequest>(&body);
        assert_eq!(ours(Protocol::Responses, &body), expected, "{body}");
    }
}
