//! Chat completions.

use deepseek_recipe::openai::ChatCompletionRequest;
use deepseek_recipe::openai::chat_completion::request::{
    ChatCompletionRequestMessage, ChatCompletionResponseFormat,
    ChatCompletionResponseFormatJsonSchema, ChatCompletionStopSequences, ChatCompletionThinking,
    ChatCompletionTool, ChatCompletionToolChoiceOption,
};
use serde_json::{Value, json};

use super::draws::{self, Draws};
use super::fields::{Fields, REMARKS, holds_something, is_verbosity, unsupported, wrong};
use super::shape::{self, Format, Shape};
use super::tools::{self, Choice, Tool};
use super::{ApiRequest, Form, Repeated, Source, effort};
use crate::error::ApiError;

/// # Errors
/// The first field that is malformed, out of range or not supported.
pub(super) fn read(mut fields: Fields, model: String) -> Result<ApiRequest, ApiError> {
    let isolation = fields.read_isolation(&["user_id"])?;
    refuse_unsupported(&mut fields)?;
    let messages = read_messages(&mut fields)?;
    let stream = fields.read_flag("stream")?.unwrap_or(false);
    let include_usage = fields.read_include_usage(stream)?;
    let mut draws = Draws::read(&mut fields)?;
    draws.logprobs = draws::read_logprobs(&mut fields)?;
    draws.tell_ids = draws::read_tell_ids(&mut fields)?;
    let (effort, thinking) = read_thinking(&mut fields)?;
    let (Tools { tools, custom }, choice) = read_tools(&mut fields)?;
    let single = fields.read_flag("parallel_tool_calls")? == Some(false);
    let calls = tools::rules(&tools, &choice, single)?;
    let described = match fields.take("response_format") {
        None => Format::Free,
        Some(value) => shape::read_response_format(value)?,
    };
    let kept = shape::read_extensions(&mut fields)?;
    let recipe = ChatCompletionRequest {
        messages,
        model: model.clone(),
        frequency_penalty: None,
        logprobs: None,
        top_logprobs: None,
        max_tokens: read_tokens_max(&mut fields)?,
        n: None,
        presence_penalty: None,
        seed: None,
        stop: Some(ChatCompletionStopSequences::Array(fields.read_stops("stop")?)),
        stream: Some(stream),
        stream_options: None,
        temperature: fields.read_temperature()?,
        top_p: fields.read_top_p()?,
        response_format: recipe_format(&described),
        tools: recipe_tools(&tools)?,
        tool_choice: Some(match choice {
            Choice::None => ChatCompletionToolChoiceOption::None,
            _ => ChatCompletionToolChoiceOption::Auto,
        }),
        reasoning_effort: effort.map(|(word, _)| word),
        thinking,
        parallel_tool_calls: None,
    };
    Ok(ApiRequest {
        model,
        source: Source::Chat(Box::new(recipe)),
        form: Form::Chat {
            include_usage,
            custom_tools: custom,
            repeated: read_repeated(&mut fields),
        },
        stream,
        answers: draws::read_answers(&mut fields)?,
        draws,
        shape: Shape { format: shape::one_format(described, kept)?, calls },
        effort: effort.and_then(|(_, number)| number),
        lineage: fields.read_lineage()?,
        isolation,
    })
}

/// `max_completion_tokens` beats `max_tokens`; both are checked.
fn read_tokens_max(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let old = fields.read_tokens_max("max_tokens")?;
    let new = fields.read_tokens_max("max_completion_tokens")?;
    Ok(new.or(old))
}

/// How much to think, and whether: DeepSeek's members before those of others.
fn read_thinking(
    fields: &mut Fields,
) -> Result<(Option<effort::Effort>, Option<ChatCompletionThinking>), ApiError> {
    let wanted = r#"an object like {"type": "enabled"} or {"type": "disabled"}"#;
    let thinking = fields.read::<ChatCompletionThinking>("thinking", wanted)?;
    let (template, routed) = (read_template(fields)?, read_routed(fields)?);
    let effort = fields.take("reasoning_effort").or(template.effort).or(routed.effort);
    let on = template.on.or(routed.on).or(fields.read_flag("enable_thinking")?);
    let kind = on.map(|on| if on { "enabled" } else { "disabled" });
    let switched = kind
        .map(|kind| serde_json::from_value(json!({"type": kind})).expect("the crate's own words"));
    Ok((effort::read(effort, "reasoning_effort")?, thinking.or(switched)))
}

/// What another server's form says about thinking.
#[derive(Default)]
struct Wish {
    effort: Option<Value>,
    on: Option<bool>,
}

/// What clients of other servers pass to the template. The template here has nothing else to be told.
fn read_template(fields: &mut Fields) -> Result<Wish, ApiError> {
    let name = "chat_template_kwargs";
    let Some(template) = fields.take(name) else { return Ok(Wish::default()) };
    let wanted = r#"an object like {"thinking": true}"#;
    let mut template = Fields::within(template).ok_or_else(|| wrong(name, wanted))?;
    let (first, second) = (template.read_flag("thinking")?, template.read_flag("enable_thinking")?);
    Ok(Wish { effort: template.take("reasoning_effort"), on: first.or(second) })
}

/// The form that routers of other vendors have.
fn read_routed(fields: &mut Fields) -> Result<Wish, ApiError> {
    let name = "reasoning";
    let Some(routed) = fields.take(name) else { return Ok(Wish::default()) };
    let wanted = r#"an object like {"effort": "high"}"#;
    let mut routed = Fields::within(routed).ok_or_else(|| wrong(name, wanted))?;
    for member in ["exclude", "max_tokens"] {
        if routed.take(member).is_some_and(|value| holds_something(&value)) {
            let advice = "leave it out; the effort says how much is thought";
            return Err(unsupported(&format!("{name}.{member}"), advice));
        }
    }
    Ok(Wish { effort: routed.take("effort"), on: routed.read_flag("enabled")? })
}

/// What the answer repeats. There is one tier, which is told to who asks for one.
fn read_repeated(fields: &mut Fields) -> Repeated {
    Repeated {
        service_tier: fields.take("service_tier").map(|_| "default"),
        metadata: fields.take("metadata"),
    }
}

/// The tools of a request.
#[derive(Default)]
struct Tools {
    tools: Vec<Tool>,
    /// Names of those whose input is text.
    custom: Vec<String>,
}

fn read_tools(fields: &mut Fields) -> Result<(Tools, Choice), ApiError> {
    let choice = tools::read_choice(fields.take("tool_choice"))?;
    let mut read = Tools::default();
    for (index, mut value) in tools::take_list(fields)?.into_iter().enumerate() {
        let place = format!("tools[{index}]");
        let kind = value.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let inner = value.get_mut(kind.as_str()).map(Value::take).unwrap_or_default();
        match kind.as_str() {
            "function" => read.tools.push(Tool::read(inner, "parameters", &place)?),
            "custom" => {
                let tool = Tool::read_custom(inner, &place)?;
                read.custom.push(tool.name.clone());
                read.tools.push(tool);
            }
            _ if choice == Choice::None => {}
            _ => {
                let message = format!(
                    "{place} is of type {kind:?}; this server calls function and custom tools only"
                );
                return Err(ApiError::unsupported(place, message));
            }
        }
    }
    Ok((read, choice))
}

fn recipe_tools(tools: &[Tool]) -> Result<Option<Vec<ChatCompletionTool>>, ApiError> {
    if tools.is_empty() {
        return Ok(None);
    }
    let tools: Vec<Value> = tools.iter().map(Tool::chat).collect();
    let parsed = serde_json::from_value(tools.into());
    parsed.map(Some).map_err(|error| {
        ApiError::invalid(Some("tools".into()), format!("tools are malformed: {error}"))
    })
}

/// What the prompt describes of a format.
fn recipe_format(format: &Format) -> Option<ChatCompletionResponseFormat> {
    match format {
        Format::JsonObject => Some(ChatCompletionResponseFormat::JsonObject),
        Format::JsonSchema(schema) => {
            let schema = schema.clone();
            let json_schema =
                ChatCompletionResponseFormatJsonSchema { schema, name: None, strict: None };
            Some(ChatCompletionResponseFormat::JsonSchema { json_schema })
        }
        Format::Free | Format::Regex(_) | Format::Ebnf(_) => None,
    }
}

fn read_messages(fields: &mut Fields) -> Result<Vec<ChatCompletionRequestMessage>, ApiError> {
    let wanted = "a list of at least one message";
    let list: Vec<Value> =
        fields.read("messages", wanted)?.ok_or_else(|| wrong("messages", wanted))?;
    if list.is_empty() {
        return Err(wrong("messages", wanted));
    }
    let mut messages = Vec::with_capacity(list.len());
    for (index, mut value) in list.into_iter().enumerate() {
        let place = format!("messages[{index}]");
        refuse_unread(&value, &place)?;
        adapt(&mut value);
        let message = serde_json::from_value(value).map_err(|error| {
            let message = format!("{place} is malformed: {error}");
            ApiError::invalid(Some(place), message)
        })?;
        messages.push(message);
    }
    Ok(messages)
}

/// Refuses what the prompt would not have.
fn refuse_unread(message: &Value, place: &str) -> Result<(), ApiError> {
    if message["role"] == "function" {
        let advice = "the role function is not supported; use tools and the role tool";
        return Err(ApiError::unsupported(place, advice));
    }
    for (member, advice) in [
        ("function_call", "use tool_calls"),
        ("audio", "send its text as content"),
        ("task", "leave it out; the tokens of such tasks are not served"),
    ] {
        if holds_something(&message[member]) {
            let message = format!("{place}.{member} is not supported by this server; {advice}");
            return Err(ApiError::unsupported(place, message));
        }
    }
    let Some(Value::Array(parts)) = message.get("content") else { return Ok(()) };
    let texts = ["text", "refusal"];
    let is_media = |part: &Value| {
        part["type"].as_str().is_some_and(|kind| !texts.contains(&kind)) && part.is_object()
    };
    if parts.iter().any(is_media) {
        let message =
            "images, sound and files are not supported by this server yet; send text parts only";
        return Err(ApiError::unsupported(place, message));
    }
    Ok(())
}

/// Puts a message into the form that the crate takes: no developer role, no content that is null, arguments as text.
fn adapt(message: &mut Value) {
    let Value::Object(map) = message else { return };
    // The crate knows no developer role; its place in the hierarchy is the system's.
    if map.get("role").is_some_and(|role| role == "developer") {
        map.insert("role".into(), "system".into());
    }
    if let Some(Value::Array(parts)) = map.get_mut("content") {
        for part in parts {
            if part["type"] == "refusal" {
                let text = part["refusal"].take();
                *part = json!({"type": "text", "text": text});
            }
        }
    }
    let is_assistant = map.get("role").is_some_and(|role| role == "assistant");
    if is_assistant {
        adapt_assistant(map);
    }
    if map.get("content").is_some_and(Value::is_null) && !map.contains_key("tool_calls") {
        map.insert("content".into(), "".into());
    }
}

fn adapt_assistant(map: &mut serde_json::Map<String, Value>) {
    if map.get("tool_calls").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        map.remove("tool_calls");
    }
    if let Some(Value::Array(calls)) = map.get_mut("tool_calls") {
        for call in calls {
            if call["custom"].is_object() {
                adapt_custom(call);
            }
            if let Value::Object(call) = call {
                call.entry("type").or_insert_with(|| "function".into());
            }
            if let Some(arguments) = call.get_mut("function").and_then(|f| f.get_mut("arguments"))
                && !arguments.is_string()
            {
                *arguments = arguments.to_string().into();
            }
        }
    }
    // Another server's name for the same.
    if map.get("reasoning_content").is_none_or(Value::is_null)
        && let Some(Value::String(reasoning)) = map.remove("reasoning")
    {
        map.insert("reasoning_content".into(), reasoning.into());
    }
}

/// The call of a custom tool becomes the one that the model made: of a function with one argument.
fn adapt_custom(call: &mut Value) {
    let mut custom = call["custom"].take();
    let (name, input) = (custom["name"].take(), custom["input"].take());
    if let Value::Object(call) = call {
        call.remove("custom");
        call.insert("type".into(), "function".into());
        let arguments = json!({"input": input}).to_string();
        call.insert("function".into(), json!({"name": name, "arguments": arguments}));
    }
}

/// Answers 400 to what would otherwise be ignored silently and change what the client gets.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    fields.refuse(&["functions", "function_call", "audio", "web_search_options"])?;
    // Other servers' ways to leave the template or to change what is shown.
    fields.refuse(&["chat_template", "continue_final_message", "documents", "echo", "grammar"])?;
    fields.check_remarks(&REMARKS)?;
    fields.check_remarks(&[("verbosity", is_verbosity, "low, medium or high")])?;
    for name in ["add_generation_prompt", "include_reasoning", "separate_reasoning"] {
        if fields.read_flag(name)? == Some(false) {
            return Err(unsupported(name, "leave it out or set it to true"));
        }
    }
    if fields.take("modalities").is_some_and(|kinds| kinds != json!(["text"])) {
        return Err(unsupported("modalities", "leave it out or set it to [\"text\"]"));
    }
    Ok(())
}
