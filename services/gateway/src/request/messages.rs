//! Anthropic's Messages.

use deepseek_recipe::anthropic::MessagesRequest;
use serde_json::{Map, Value, json};

use super::draws::Draws;
use super::effort::{self, Effort};
use super::fields::{Fields, wrong};
use super::shape::{self, Format, Shape};
use super::tools::{self, Choice, Tool};
use super::{ApiRequest, Form, Source, ThinkingDisplay};
use crate::error::ApiError;

mod blocks;

/// # Errors
/// The first field that is malformed, out of range or not supported.
pub(super) fn read(mut fields: Fields, model: String) -> Result<ApiRequest, ApiError> {
    let isolation = fields.read_isolation(&["metadata", "user_id"])?;
    fields.refuse(&["mcp_servers"])?;
    let wanted = "an integer, at least 1";
    let tokens_max: u64 =
        fields.read("max_tokens", wanted)?.ok_or_else(|| wrong("max_tokens", wanted))?;
    if tokens_max == 0 {
        return Err(wrong("max_tokens", wanted));
    }
    let stream = fields.read_flag("stream")?.unwrap_or(false);
    let mut draws = Draws::read(&mut fields)?;
    draws.logprobs = None;
    let messages = read_messages(&mut fields)?;
    let (effort, format) = read_output_config(&mut fields)?;
    let (thinking, display) = read_thinking(&mut fields)?;
    let (tools, declared) = read_tools(&mut fields)?;
    let (choice, single) = read_choice(fields.take("tool_choice"))?;
    let calls = tools::rules(&tools, &choice, single)?;
    let kept = shape::read_extensions(&mut fields)?;
    let tool_choice = if choice == Choice::None { json!({"type": "none"}) } else { Value::Null };
    let body = json!({
        "model": model,
        "messages": messages,
        "system": fields.take("system"),
        // The crate lowers it to its own bound.
        "max_tokens": u32::try_from(tokens_max).unwrap_or(u32::MAX),
        "temperature": fields.read_temperature()?,
        "top_p": fields.read_top_p()?,
        "stop_sequences": fields.read_stops("stop_sequences")?,
        "stream": stream,
        "tools": declared,
        "tool_choice": tool_choice,
        "thinking": thinking,
        "output_config": effort.map(|(word, _)| json!({"effort": word})),
    });
    let recipe: MessagesRequest = serde_json::from_value(body)
        .map_err(|error| ApiError::invalid(None, format!("the request is malformed: {error}")))?;
    Ok(ApiRequest {
        model,
        source: Source::Messages(Box::new(recipe)),
        form: Form::Messages { thinking: display },
        stream,
        answers: 1,
        draws,
        shape: Shape { format: shape::one_format(format, kept)?, calls },
        effort: effort.and_then(|(_, number)| number),
        lineage: fields.read_lineage()?,
        isolation,
    })
}

/// Effort and format, which may also stand by themselves.
fn read_output_config(fields: &mut Fields) -> Result<(Option<Effort>, Format), ApiError> {
    let wanted = r#"an object like {"effort": "high"}"#;
    let mut config = match fields.take("output_config") {
        None => Fields::within(Map::new().into()).expect("an object"),
        Some(value) => Fields::within(value).ok_or_else(|| wrong("output_config", wanted))?,
    };
    let effort = effort::read(config.take("effort"), "output_config.effort")?;
    let format = match config.take("format").or_else(|| fields.take("output_format")) {
        None => Format::Free,
        Some(mut format) => {
            let schema = format.get_mut("schema").map(Value::take);
            match schema {
                Some(schema) if format["type"] == "json_schema" => {
                    shape::json_schema(schema, false, "output_config.format")?
                }
                _ => {
                    let wanted = r#"an object like {"type": "json_schema", "schema": {}}"#;
                    return Err(wrong("output_config.format", wanted));
                }
            }
        }
    };
    Ok((effort, format))
}

/// Whether to think, and how the thinking is shown. `between_tools` is thinking like any other to this model; it is told an
/// effort and no budget, so that the budget, which clients have to send, is checked and no more.
fn read_thinking(fields: &mut Fields) -> Result<(Option<Value>, ThinkingDisplay), ApiError> {
    let name = "thinking";
    let wanted = "an object whose type is enabled, adaptive, between_tools or disabled";
    let Some(value) = fields.take(name) else { return Ok((None, ThinkingDisplay::Shown)) };
    let mut value = Fields::within(value).ok_or_else(|| wrong(name, wanted))?;
    let kind = match value.take("type").as_ref().and_then(Value::as_str) {
        Some("enabled" | "adaptive" | "between_tools") => "enabled",
        Some("disabled") => "disabled",
        _ => return Err(wrong(name, wanted)),
    };
    value
        .read_integer("budget_tokens", 1, u64::MAX)
        .map_err(|_| wrong("thinking.budget_tokens", "an integer, at least 1"))?;
    let display = value.take("display");
    let display = match display.as_ref().map(Value::as_str) {
        None | Some(Some("summarized")) => ThinkingDisplay::Shown,
        Some(Some("omitted")) => ThinkingDisplay::Omitted,
        Some(_) => return Err(wrong("thinking.display", "summarized (all of it) or omitted")),
    };
    Ok((Some(json!({"type": kind})), display))
}

/// The client's tools, and as the crate takes them. A type of `custom` is the client's own.
fn read_tools(fields: &mut Fields) -> Result<(Vec<Tool>, Vec<Value>), ApiError> {
    let list = tools::take_list(fields)?;
    let mut tools = Vec::with_capacity(list.len());
    let mut declared = Vec::with_capacity(list.len());
    for (index, value) in list.into_iter().enumerate() {
        let place = format!("tools[{index}]");
        let kind = value.get("type").and_then(Value::as_str).unwrap_or("custom");
        if kind != "custom" {
            let message =
                format!("{place} is a hosted tool ({kind}); this server calls the client's only");
            return Err(ApiError::unsupported(place, message));
        }
        let deferred = value.get("defer_loading").cloned();
        let tool = Tool::read(value, "input_schema", &place)?;
        let mut shown = tool.flat();
        let schema = shown["parameters"].take();
        shown["input_schema"] = if schema.is_null() { json!({"type": "object"}) } else { schema };
        if let Some(deferred) = deferred {
            shown["defer_loading"] = deferred;
        }
        declared.push(shown);
        tools.push(tool);
    }
    Ok((tools, declared))
}

fn read_choice(value: Option<Value>) -> Result<(Choice, bool), ApiError> {
    let wanted = "an object whose type is auto, any, tool (with a name) or none";
    let bad = || wrong("tool_choice", wanted);
    let Some(value) = value else { return Ok((Choice::Auto, false)) };
    let mut fields = Fields::within(value).ok_or_else(bad)?;
    let kind: String = fields.read("type", wanted)?.unwrap_or_default();
    let single = fields.read_flag("disable_parallel_tool_use")?.unwrap_or(false);
    let choice = match kind.as_str() {
        "auto" => Choice::Auto,
        "any" => Choice::Required,
        "none" => Choice::None,
        "tool" => Choice::Named(fields.read("name", "a string")?.ok_or_else(bad)?),
        _ => return Err(bad()),
    };
    Ok((choice, single))
}

fn read_messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let wanted = "a list of at least one message";
    let mut list: Vec<Value> =
        fields.read("messages", wanted)?.ok_or_else(|| wrong("messages", wanted))?;
    if list.is_empty() {
        return Err(wrong("messages", wanted));
    }
    for (index, message) in list.iter_mut().enumerate() {
        let place = format!("messages[{index}]");
        if !message.is_object() {
            return Err(wrong(&place, "an object with a role and content"));
        }
        if let Some(Value::Array(blocks)) = message.get_mut("content") {
            blocks::adapt(blocks, &place)?;
        }
    }
    Ok(join_tools(list))
}

/// Makes neighbours of one role that call tools, or have results of calls, one message, as the protocol has it: the crate looks
/// for the results of all calls in the one message that follows them.
fn join_tools(list: Vec<Value>) -> Vec<Value> {
    let is_of_tools =
        |block: &Value| matches!(block["type"].as_str(), Some("tool_use" | "tool_result"));
    let blocks = |message: &Value| {
        message["content"].as_array().is_some_and(|blocks| blocks.iter().any(is_of_tools))
    };
    let mut joined: Vec<Value> = Vec::with_capacity(list.len());
    for mut message in list {
        match joined.last_mut() {
            Some(last) if last["role"] == message["role"] && blocks(last) && blocks(&message) => {
                let more = message["content"].as_array_mut().map(std::mem::take);
                if let Some(content) = last["content"].as_array_mut() {
                    content.extend(more.unwrap_or_default());
                }
            }
            _ => joined.push(message),
        }
    }
    joined
}
