//! OpenAI's Responses.

use std::collections::HashMap;

use deepseek_recipe::openai::ResponsesRequest;
use serde_json::{Value, json};

use super::draws::{self, Draws};
use super::fields::{Fields, REMARKS, holds_something, is_verbosity, unsupported, wrong};
use super::shape::{self, Format, Shape};
use super::tools::{self, Choice, Tool};
use super::{ApiRequest, Echo, Form, Memory, Source, effort};
use crate::error::ApiError;
use echo::echoed;
use recalled::Recalled;

mod echo;
mod recalled;
mod search;

pub(crate) use echo::echo_drawn;

/// Begins the opaque copy of reasoning that clients give back. It keeps nothing from them: they have the text.
pub(crate) const REASONING_COPY: &str = "kvasir-reasoning-1:";

/// # Errors
/// The first field that is malformed, out of range or not supported.
pub(super) fn read(
    mut fields: Fields,
    model: String,
    memory: &dyn Memory,
) -> Result<ApiRequest, ApiError> {
    let isolation = fields.read_isolation(&["user_id"])?;
    refuse_unsupported(&mut fields)?;
    let mut echoed = echoed(&fields);
    let mut input = read_input(&mut fields, memory)?;
    let Manner { stream, store, background } = read_manner(&mut fields)?;
    let mut draws = Draws::read(&mut fields)?;
    let include: Vec<String> = fields.read("include", "a list of strings")?.unwrap_or_default();
    let includes = |name: &str| include.iter().any(|other| other == name);
    let top = draws::read_top_logprobs(&mut fields)?;
    draws.logprobs = top.or_else(|| includes("message.output_text.logprobs").then_some(0));
    let (effort, reasoning) = read_reasoning(&mut fields)?;
    let mut declared = read_tools(&mut fields)?;
    search::declare_found(&mut input, &mut declared)?;
    let choice = tools::read_choice(fields.take("tool_choice"))?;
    let single = fields.read_flag("parallel_tool_calls")? == Some(false);
    let calls = tools::rules(&declared.callable, &choice, single)?;
    let (format, text) = read_text(&mut fields)?;
    let kept = shape::read_extensions(&mut fields)?;
    let body = json!({
        "model": model,
        "input": if input.is_empty() { Value::Null } else { input.clone().into() },
        "instructions": fields.read::<String>("instructions", "a string")?,
        "max_output_tokens": fields.read_tokens_max("max_output_tokens")?,
        "reasoning": {"effort": effort.map(|(word, _)| word)},
        "temperature": fields.read_temperature()?,
        "top_p": fields.read_top_p()?,
        "text": text,
        "tools": declared.recipe,
        "tool_choice": if choice == Choice::None { "none" } else { "auto" },
    });
    let recipe: ResponsesRequest = serde_json::from_value(body)
        .map_err(|error| ApiError::invalid(None, format!("the request is malformed: {error}")))?;
    echoed.insert("reasoning".into(), reasoning);
    echoed.insert("store".into(), store.into());
    echoed.insert("background".into(), background.into());
    let echo = Echo {
        fields: echoed,
        input,
        store,
        encrypted_reasoning: includes("reasoning.encrypted_content"),
        custom_tools: declared.custom,
        search_tool: declared.search,
        namespaces: HashMap::new(),
        background,
    };
    Ok(ApiRequest {
        model,
        source: Source::Responses(Box::new(recipe)),
        form: Form::Responses(Box::new(echo)),
        stream,
        answers: 1,
        draws,
        shape: Shape { format: shape::one_format(format, kept)?, calls },
        effort: effort.and_then(|(_, number)| number),
        lineage: fields.read_lineage()?,
        isolation,
    })
}

/// Nothing is cut here: what does not fit the context is refused either way.
fn is_truncation(value: &Value) -> bool {
    matches!(value.as_str(), Some("auto" | "disabled"))
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    fields.refuse(&["conversation", "prompt", "context_management"])?;
    fields.check_remarks(&REMARKS)?;
    fields.check_remarks(&[
        ("text", Value::is_object, "an object"),
        ("truncation", is_truncation, "auto or disabled"),
        ("max_tool_calls", Value::is_u64, "an integer"),
    ])?;
    if let Some(text) = fields.peek("text").cloned().and_then(Fields::within) {
        text.check_remarks(&[("verbosity", is_verbosity, "low, medium or high")])?;
    }
    // What other protocols call what this one has by another name or not at all. OpenAI refuses them too.
    for (name, advice) in [
        ("max_tokens", "use max_output_tokens"),
        ("max_completion_tokens", "use max_output_tokens"),
        ("reasoning_effort", "use reasoning.effort"),
        ("thinking", "use reasoning.effort, which may be none"),
        ("response_format", "use text.format"),
        ("logprobs", "use top_logprobs, or include message.output_text.logprobs"),
        ("stop", "leave it out; responses end by themselves"),
    ] {
        if fields.take(name).is_some_and(|value| holds_something(&value)) {
            return Err(unsupported(name, advice));
        }
    }
    if fields.take("n").is_some_and(|answers| answers != 1) {
        return Err(unsupported("n", "a response has one answer; ask more than once"));
    }
    Ok(())
}

/// How a response comes to its client.
struct Manner {
    stream: bool,
    store: bool,
    /// Nobody waits for it, so it has to be kept, to be looked at.
    background: bool,
}

fn read_manner(fields: &mut Fields) -> Result<Manner, ApiError> {
    let stream = fields.read_flag("stream")?.unwrap_or(false);
    let store = fields.read_flag("store")?.unwrap_or(true);
    let background = fields.read_flag("background")?.unwrap_or(false);
    if background && !store {
        return Err(wrong("background", "false where store is false; or leave store out"));
    }
    if background && stream {
        let advice = "a response is streamed or made in the background; leave one of them out";
        return Err(unsupported("background", advice));
    }
    Ok(Manner { stream, store, background })
}

/// The effort, and the object that the response repeats.
fn read_reasoning(fields: &mut Fields) -> Result<(Option<effort::Effort>, Value), ApiError> {
    let name = "reasoning";
    let given = fields.take(name);
    let mut shown = json!({"effort": null, "summary": null});
    let Some(mut value) = given else { return Ok((None, shown)) };
    if !value.is_object() {
        return Err(wrong(name, r#"an object like {"effort": "high"}"#));
    }
    // The older name.
    if value["summary"].is_null() {
        value["summary"] = value["generate_summary"].take();
    }
    for member in ["effort", "summary"] {
        shown[member] = value[member].clone();
    }
    // Which reasoning the prompt keeps is the template's choice, and there is one way to reason.
    for (member, only) in [("context", "auto"), ("mode", "standard")] {
        if value[member].is_null() {
            continue;
        }
        if value[member] != only {
            let advice = format!("leave it out or set it to {only:?}");
            return Err(unsupported(&format!("{name}.{member}"), &advice));
        }
        shown[member] = only.into();
    }
    let effort = Some(value["effort"].clone()).filter(|effort| !effort.is_null());
    Ok((effort::read(effort, "reasoning.effort")?, shown))
}

/// The format of the text, and what of it the prompt describes.
fn read_text(fields: &mut Fields) -> Result<(Format, Value), ApiError> {
    let name = "text.format";
    let wanted = "an object whose type is text, json_object or json_schema (with name and schema)";
    let Some(mut text) = fields.take("text") else { return Ok((Format::Free, Value::Null)) };
    let Some(value) = text.get_mut("format").map(Value::take).filter(|value| !value.is_null())
    else {
        return Ok((Format::Free, Value::Null));
    };
    let mut format = Fields::within(value).ok_or_else(|| wrong(name, wanted))?;
    let kind: String = format.read("type", wanted)?.unwrap_or_default();
    match kind.as_str() {
        "text" => Ok((Format::Free, Value::Null)),
        "json_object" => Ok((Format::JsonObject, json!({"format": {"type": "json_object"}}))),
        "json_schema" => {
            let strict = format.read_flag("strict")?.unwrap_or(false);
            let schema = format.take("schema").ok_or_else(|| wrong(name, wanted))?;
            let schema_name = format.read::<String>("name", "a string")?;
            let kept = shape::json_schema(schema, strict, name)?;
            let Format::JsonSchema(schema) = &kept else { return Ok((kept, Value::Null)) };
            let described = json!({"format": {
                "type": "json_schema",
                "name": schema_name.unwrap_or_else(|| "answer".into()),
                "schema": schema,
            }});
            Ok((kept, described))
        }
        _ => Err(wrong(name, wanted)),
    }
}

/// The tools of a request.
#[derive(Default)]
struct Declared {
    /// By the names that the model knows.
    callable: Vec<Tool>,
    /// As the crate takes them.
    recipe: Vec<Value>,
    /// Tools whose input is text.
    custom: Vec<String>,
    /// The tool that the client searches for others with.
    search: Option<&'static str>,
}

fn read_tools(fields: &mut Fields) -> Result<Declared, ApiError> {
    let mut declared = Declared::default();
    declare(tools::take_list(fields)?, "tools", &mut declared)?;
    Ok(declared)
}

/// Declares the tools of a list that stands at `place`.
fn declare(list: Vec<Value>, place: &str, declared: &mut Declared) -> Result<(), ApiError> {
    for (index, value) in list.into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        let kind = value.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        match kind.as_str() {
            "function" => {
                let tool = Tool::read(value, "parameters", &place)?;
                declared.recipe.push(function(&tool));
                declared.callable.push(tool);
            }
            "custom" => declare_custom(value, &place, declared)?,
            "namespace" => declare_namespace(value, &place, declared)?,
            "tool_search" => search::declare(value, &place, declared)?,
            // The crate drops it: a hint that the client would like searches, not that it can do them.
            _ if kind.starts_with("web_search") => {}
            _ => {
                let message = format!(
                    "{place} is of type {kind:?}; this server calls function and custom tools only"
                );
                return Err(ApiError::unsupported(place, message));
            }
        }
    }
    Ok(())
}

fn function(tool: &Tool) -> Value {
    let mut value = tool.flat();
    value["type"] = "function".into();
    value
}

/// A tool that takes text becomes a function of one string. `apply_patch` the crate knows itself.
fn declare_custom(value: Value, place: &str, declared: &mut Declared) -> Result<(), ApiError> {
    let tool = Tool::read_custom(value, place)?;
    declared.recipe.push(match tool.name.as_str() {
        "apply_patch" => json!({"type": "custom", "name": tool.name}),
        _ => function(&tool),
    });
    declared.custom.push(tool.name.clone());
    declared.callable.push(tool);
    Ok(())
}

fn declare_namespace(value: Value, place: &str, declared: &mut Declared) -> Result<(), ApiError> {
    let wanted = "an object with a name and a list of function tools";
    let mut fields = Fields::within(value).ok_or_else(|| wrong(place, wanted))?;
    let name: String = fields.read("name", wanted)?.ok_or_else(|| wrong(place, wanted))?;
    let description: Option<String> = fields.read("description", "a string")?;
    let inner: Vec<Value> = fields.read("tools", wanted)?.ok_or_else(|| wrong(place, wanted))?;
    let mut recipe = Vec::with_capacity(inner.len());
    for (index, value) in inner.into_iter().enumerate() {
        let place = format!("{place}.tools[{index}]");
        if value["type"] != "function" {
            return Err(ApiError::unsupported(place, "a namespace holds functions only here"));
        }
        let mut tool = Tool::read(value, "parameters", &place)?;
        recipe.push(function(&tool));
        // As the prompt has it.
        tool.name = format!("{name}::{}", tool.name);
        declared.callable.push(tool);
    }
    declared.recipe.push(json!({
        "type": "namespace", "name": name, "description": description, "tools": recipe,
    }));
    Ok(())
}

/// The items of the input, those of the response that it follows first.
fn read_input(fields: &mut Fields, memory: &dyn Memory) -> Result<Vec<Value>, ApiError> {
    let mut recalled = Recalled::new(memory);
    let mut items = match fields.read::<String>("previous_response_id", "a string")? {
        None => Vec::new(),
        Some(id) => recalled.response(&id)?,
    };
    let wanted = "a string or a list of items, not empty";
    match fields.take("input") {
        None => {}
        Some(Value::String(text)) => {
            let content = json!([{"type": "input_text", "text": text}]);
            items.push(json!({"type": "message", "role": "user", "content": content}));
        }
        Some(Value::Array(list)) if !list.is_empty() => {
            for (index, item) in list.into_iter().enumerate() {
                items.push(recalled.resolved(item, &format!("input[{index}]"))?);
            }
        }
        Some(_) => return Err(wrong("input", wanted)),
    }
    for (index, item) in items.iter_mut().enumerate() {
        adapt(item, &format!("input[{index}]"))?;
    }
    Ok(items)
}

/// Puts an item into the form that the crate takes.
fn adapt(item: &mut Value, place: &str) -> Result<(), ApiError> {
    if !item.is_object() {
        return Err(wrong(place, "an object"));
    }
    if item["type"].is_null() && item["role"].is_string() {
        item["type"] = "message".into();
    }
    match item["type"].as_str().unwrap_or_default() {
        "message" => adapt_parts(item, "content", place)?,
        "function_call" => as_text(item, "arguments"),
        "custom_tool_call" => as_text(item, "input"),
        "tool_search_call" => search::adapt_call(item),
        "function_call_output" | "custom_tool_call_output" => {
            if !item["output"].is_array() {
                as_text(item, "output");
            }
            adapt_parts(item, "output", place)?;
        }
        "reasoning" => restore_reasoning(item),
        // The crate leaves searches of other servers out: what they found stands in the message that followed.
        "tool_search_output" | "web_search_call" => {}
        other => {
            let message = format!(
                "{place} is of type {other:?}, which this server does not read; send messages, calls of functions, custom tools and tool_search with their outputs, and reasoning"
            );
            return Err(ApiError::unsupported(place, message));
        }
    }
    Ok(())
}

fn as_text(item: &mut Value, member: &str) {
    if !item[member].is_string() {
        let text = item[member].take();
        let text = if text.is_null() { String::new() } else { text.to_string() };
        item[member] = text.into();
    }
}

fn adapt_parts(item: &mut Value, member: &str, place: &str) -> Result<(), ApiError> {
    let Some(Value::Array(parts)) = item.get_mut(member) else { return Ok(()) };
    for part in parts {
        match part["type"].as_str().unwrap_or_default() {
            "input_text" | "output_text" => {}
            "refusal" => {
                let text = part["refusal"].take();
                *part = json!({"type": "output_text", "text": text});
            }
            "text" => part["type"] = "input_text".into(),
            other => {
                let message = format!(
                    "{place} has a part of type {other:?}; images, sound and files are not supported by this server yet, send text only"
                );
                return Err(ApiError::unsupported(place, message));
            }
        }
    }
    Ok(())
}

/// Clients that keep only the opaque copy of their reasoning get the text back.
fn restore_reasoning(item: &mut Value) {
    if item.get("content").is_some_and(holds_something) {
        return;
    }
    let copy =
        item["encrypted_content"].as_str().and_then(|copy| copy.strip_prefix(REASONING_COPY));
    if let Some(text) = copy {
        item["content"] = json!([{"type": "reasoning_text", "text": text}]);
    } else if item["content"].is_null()
        && let Some(map) = item.as_object_mut()
    {
        map.remove("content");
    }
}
