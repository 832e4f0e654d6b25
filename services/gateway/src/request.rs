//! Reads and checks the body of a chat completion request, field by field, so that every refusal names its field.
//!
//! The rules are those of DeepSeek's API as the `deepseek-recipe` crate holds them; this file adds what the crate
//! leaves to its host: names of fields in errors, `max_completion_tokens`, the developer role, and honest refusals of
//! what is not built yet. Unknown fields are ignored.

use deepseek_recipe::openai::chat_completion::request::{
    ChatCompletionRequest, ChatCompletionRequestContent, ChatCompletionRequestContentBlock,
    ChatCompletionRequestMessage, ChatCompletionStopSequences, ChatCompletionThinking,
    ChatCompletionToolChoiceOption, RequestReasoningEffort,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::config::LineageChoice;
use crate::error::ApiError;

/// A request whose fields are each well-formed.
pub(crate) struct ChatRequest {
    /// What the crate converts.
    pub(crate) recipe: ChatCompletionRequest,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// The client's choice of lineage.
    pub(crate) lineage: Option<LineageChoice>,
}

/// The request's `kvasir` object.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Extension {
    lineage: Option<LineageChoice>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// The most output tokens the API takes, and the most stop strings. Source: DeepSeek's API rules.
const OUTPUT_TOKENS_MAX: u64 = 393_216;
const STOPS_MAX: usize = 16;

/// Reads a request for one of the models `names`.
///
/// # Errors
/// The first field that is malformed, out of range or not supported.
pub(crate) fn parse(body: &[u8], names: &[String]) -> Result<ChatRequest, ApiError> {
    let value: Value = serde_json::from_slice(body).map_err(|error| {
        ApiError::body_unreadable(format!("the body is not valid JSON: {error}; send one object"))
    })?;
    let Value::Object(map) = value else {
        return Err(ApiError::body_unreadable("the body is not a JSON object; send one object"));
    };
    let mut fields = Fields(map);
    let model = read_model(&mut fields, names)?;
    refuse_unsupported(&mut fields)?;
    let messages = read_messages(&mut fields)?;
    let stream: bool = fields.read("stream", "true or false")?.unwrap_or(false);
    let include_usage = read_stream_options(&mut fields, stream)?;
    let extension: Extension =
        fields.read("kvasir", r#"an object like {"lineage": "exact"}"#)?.unwrap_or_default();
    let recipe = ChatCompletionRequest {
        messages,
        model,
        frequency_penalty: None,
        logprobs: None,
        top_logprobs: None,
        max_tokens: read_max_tokens(&mut fields)?,
        n: None,
        presence_penalty: None,
        seed: fields.read_integer("seed", 0, i64::MAX.unsigned_abs())?,
        stop: read_stop(&mut fields)?,
        stream: Some(stream),
        stream_options: None,
        temperature: fields.read_number("temperature", |t| (0.0..=2.0).contains(&t), "0 to 2")?,
        top_p: fields.read_number("top_p", |p| 0.0 < p && p <= 1.0, "above 0 to 1")?,
        response_format: None,
        tools: None,
        // Tools were refused unless the choice is `none`, which renders none.
        tool_choice: Some(ChatCompletionToolChoiceOption::None),
        reasoning_effort: read_effort(&mut fields)?,
        thinking: fields.read::<ChatCompletionThinking>(
            "thinking",
            r#"an object like {"type": "enabled"} or {"type": "disabled"}"#,
        )?,
        parallel_tool_calls: None,
    };
    Ok(ChatRequest { recipe, stream, include_usage, lineage: extension.lineage })
}

/// The members of the request, taken out one by one. `null` counts as absent.
struct Fields(Map<String, Value>);

impl Fields {
    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.get_mut(name).map(Value::take).filter(|value| !value.is_null())
    }

    fn read<T: DeserializeOwned>(
        &mut self,
        name: &str,
        wanted: &str,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let parsed = serde_json::from_value(value);
        parsed.map(Some).map_err(|_| wrong(name, wanted))
    }

    fn read_number(
        &mut self,
        name: &str,
        holds: impl Fn(f32) -> bool,
        range: &str,
    ) -> Result<Option<f32>, ApiError> {
        let wanted = format!("a number, {range}");
        let number: Option<f32> = self.read(name, &wanted)?;
        if number.is_some_and(|number| !holds(number)) {
            return Err(wrong(name, &wanted));
        }
        Ok(number)
    }

    fn read_integer(&mut self, name: &str, min: u64, max: u64) -> Result<Option<u64>, ApiError> {
        let wanted = format!("an integer, {min} to {max}");
        let number: Option<u64> = self.read(name, &wanted)?;
        if number.is_some_and(|number| number < min || max < number) {
            return Err(wrong(name, &wanted));
        }
        Ok(number)
    }
}

fn wrong(name: &str, wanted: &str) -> ApiError {
    ApiError::invalid(Some(name.to_owned()), format!("{name} must be {wanted}"))
}

fn read_model(fields: &mut Fields, names: &[String]) -> Result<String, ApiError> {
    let wanted = format!("one of: {}", names.join(", "));
    let model: String = fields.read("model", &wanted)?.ok_or_else(|| wrong("model", &wanted))?;
    if !names.contains(&model) {
        return Err(ApiError::model_not_found(&model, names));
    }
    Ok(model)
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
        // The crate knows no developer role; its place in the hierarchy is the system's.
        if let Some(role) = value.get_mut("role").filter(|role| *role == "developer") {
            *role = Value::from("system");
        }
        let message: ChatCompletionRequestMessage =
            serde_json::from_value(value).map_err(|error| {
                let message = format!("{place} is malformed: {error}");
                ApiError::invalid(Some(place.clone()), message)
            })?;
        if holds_image(&message) {
            let message = "images are not supported by this server yet; send text parts only";
            return Err(ApiError::unsupported(place, message));
        }
        messages.push(message);
    }
    Ok(messages)
}

fn holds_image(message: &ChatCompletionRequestMessage) -> bool {
    let content = match message {
        ChatCompletionRequestMessage::System { content, .. }
        | ChatCompletionRequestMessage::User { content, .. }
        | ChatCompletionRequestMessage::Tool { content, .. } => Some(content),
        ChatCompletionRequestMessage::Assistant { content, .. } => content.as_ref(),
        ChatCompletionRequestMessage::LatestReminder { .. } => None,
    };
    let Some(ChatCompletionRequestContent::List(blocks)) = content else { return false };
    blocks.iter().any(|block| !matches!(block, ChatCompletionRequestContentBlock::Text { .. }))
}

fn read_stream_options(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let wanted = r#"an object like {"include_usage": true}"#;
    let options: Option<StreamOptions> = fields.read("stream_options", wanted)?;
    if options.is_some() && !stream {
        let message = "stream_options needs stream to be true; set it or leave stream_options out";
        return Err(ApiError::invalid(Some("stream_options".into()), message));
    }
    Ok(options.and_then(|options| options.include_usage).unwrap_or(false))
}

/// `max_completion_tokens` beats `max_tokens`; both are checked.
fn read_max_tokens(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let old = fields.read_integer("max_tokens", 1, OUTPUT_TOKENS_MAX)?;
    let new = fields.read_integer("max_completion_tokens", 1, OUTPUT_TOKENS_MAX)?;
    Ok(new.or(old).map(|tokens| u32::try_from(tokens).expect("checked against the bound")))
}

fn read_stop(fields: &mut Fields) -> Result<Option<ChatCompletionStopSequences>, ApiError> {
    let wanted = "a string, or a list of at most 16 strings, none of them empty";
    let stop: Option<ChatCompletionStopSequences> = fields.read("stop", wanted)?;
    let bad = match &stop {
        None => false,
        Some(ChatCompletionStopSequences::String(stop)) => stop.is_empty(),
        Some(ChatCompletionStopSequences::Array(stops)) => {
            STOPS_MAX < stops.len() || stops.iter().any(String::is_empty)
        }
    };
    if bad { Err(wrong("stop", wanted)) } else { Ok(stop) }
}

fn read_effort(fields: &mut Fields) -> Result<Option<RequestReasoningEffort>, ApiError> {
    let wanted = "one of: none, minimal, low, medium, high, xhigh, ultra, max";
    fields.read("reasoning_effort", wanted)
}

/// Answers 400 to what would otherwise be ignored silently and change what the client gets.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    if fields.read_integer("n", 0, u64::MAX)?.is_some_and(|n| n != 1) {
        return Err(wrong("n", "1: this server gives one answer per request"));
    }
    for name in ["frequency_penalty", "presence_penalty"] {
        let range = "-2 to 2";
        let penalty = fields.read_number(name, |p| (-2.0..=2.0).contains(&p), range)?;
        if penalty.is_some_and(|penalty| penalty != 0.0) {
            return Err(not_yet(name, "leave it out or set it to 0"));
        }
    }
    let logprobs: Option<bool> = fields.read("logprobs", "true or false")?;
    if logprobs == Some(true) || fields.take("top_logprobs").is_some() {
        return Err(not_yet("logprobs", "leave logprobs and top_logprobs out"));
    }
    let choice = fields.take("tool_choice");
    let no_calls = choice.as_ref().is_some_and(|choice| choice == "none");
    if holds_something(fields.take("tools")) && !no_calls {
        return Err(not_yet("tools", "leave them out or set tool_choice to \"none\""));
    }
    for name in ["logit_bias", "functions", "function_call", "audio", "web_search_options"] {
        if holds_something(fields.take(name)) {
            return Err(not_yet(name, "leave it out"));
        }
    }
    if fields.take("response_format").is_some_and(|format| format["type"] != "text") {
        return Err(not_yet(
            "response_format",
            "leave it out and describe the format in a message",
        ));
    }
    if fields.take("modalities").is_some_and(|kinds| kinds != Value::from(["text"].as_slice())) {
        return Err(not_yet("modalities", "leave it out or set it to [\"text\"]"));
    }
    Ok(())
}

fn not_yet(name: &str, advice: &str) -> ApiError {
    ApiError::unsupported(name, format!("{name} is not supported by this server yet; {advice}"))
}

fn holds_something(value: Option<Value>) -> bool {
    match value {
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::Object(map)) => !map.is_empty(),
        value => value.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{ChatRequest, parse};
    use crate::error::ApiError;

    fn check(change: Value) -> Result<ChatRequest, ApiError> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        parse(&serde_json::to_vec(&body).unwrap(), &["m".into(), "alias".into()])
    }

    #[test]
    fn each_bad_field_is_named() {
        let cases = [
            (json!({"model": null}), "model", 400),
            (json!({"model": "other"}), "model", 404),
            (json!({"messages": []}), "messages", 400),
            (json!({"messages": null}), "messages", 400),
            (json!({"messages": "hi"}), "messages", 400),
            (
                json!({"messages": [{"role": "user", "content": "a"}, {"role": "x"}]}),
                "messages[1]",
                400,
            ),
            (json!({"messages": [{"role": "user"}]}), "messages[0]", 400),
            (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0]", 400),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}),
                "messages[0]",
                400,
            ),
            (json!({"n": 2}), "n", 400),
            (json!({"n": "1"}), "n", 400),
            (json!({"temperature": 2.1}), "temperature", 400),
            (json!({"temperature": -0.1}), "temperature", 400),
            (json!({"temperature": "hot"}), "temperature", 400),
            (json!({"top_p": 0}), "top_p", 400),
            (json!({"top_p": 1.5}), "top_p", 400),
            (json!({"max_tokens": 0}), "max_tokens", 400),
            (json!({"max_tokens": 393_217}), "max_tokens", 400),
            (json!({"max_completion_tokens": -1}), "max_completion_tokens", 400),
            (json!({"seed": -1}), "seed", 400),
            (json!({"seed": 9_223_372_036_854_775_808_u64}), "seed", 400),
            (json!({"stop": ""}), "stop", 400),
            (json!({"stop": ["a", ""]}), "stop", 400),
            (json!({"stop": vec!["a"; 17]}), "stop", 400),
            (json!({"stop": 5}), "stop", 400),
            (json!({"stream": "yes"}), "stream", 400),
            (json!({"stream_options": {"include_usage": true}}), "stream_options", 400),
            (json!({"stream": true, "stream_options": []}), "stream_options", 400),
            (json!({"thinking": true}), "thinking", 400),
            (json!({"reasoning_effort": "huge"}), "reasoning_effort", 400),
            (json!({"kvasir": {"lineage": "near"}}), "kvasir", 400),
            (json!({"kvasir": {"linage": "exact"}}), "kvasir", 400),
            (json!({"frequency_penalty": 0.5}), "frequency_penalty", 400),
            (json!({"presence_penalty": 3}), "presence_penalty", 400),
            (json!({"logprobs": true}), "logprobs", 400),
            (json!({"top_logprobs": 3}), "logprobs", 400),
            (json!({"logit_bias": {"5": 1}}), "logit_bias", 400),
            (json!({"tools": [{"type": "function", "function": {"name": "f"}}]}), "tools", 400),
            (json!({"functions": [{}]}), "functions", 400),
            (json!({"response_format": {"type": "json_object"}}), "response_format", 400),
            (json!({"response_format": "json"}), "response_format", 400),
            (json!({"modalities": ["text", "audio"]}), "modalities", 400),
        ];
        for (change, param, status) in cases {
            let Err(error) = check(change.clone()) else { panic!("{change} was accepted") };
            assert_eq!(error.param.as_deref(), Some(param), "{change}");
            assert_eq!(error.status.as_u16(), status, "{change}");
            assert!(!error.message.contains('\n'), "{change}");
        }
    }

    #[test]
    fn harmless_fields_are_accepted() {
        for change in [
            json!({}),
            json!({"n": 1, "logprobs": false, "tools": [], "logit_bias": {}, "stop": null}),
            json!({"tools": [{"x": 1}], "tool_choice": "none", "user": "u", "unheard_of": [1]}),
            json!({"frequency_penalty": 0, "presence_penalty": 0.0, "modalities": ["text"]}),
            json!({"response_format": {"type": "text"}, "parallel_tool_calls": true}),
            json!({"model": "alias", "metadata": {"a": "b"}, "store": false}),
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
        ] {
            assert!(check(change.clone()).is_ok(), "{change}");
        }
    }

    #[test]
    fn max_completion_tokens_beats_max_tokens() {
        let read = |change| check(change).unwrap().recipe.max_tokens;
        assert_eq!(read(json!({"max_tokens": 5})), Some(5));
        assert_eq!(read(json!({"max_tokens": 5, "max_completion_tokens": 9})), Some(9));
        assert_eq!(read(json!({})), None);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for body in ["", "{", "[]", "5", "{\"model\": \"m\",}", "\u{feff}{}"] {
            let Err(error) = parse(body.as_bytes(), &["m".into()]) else { panic!("{body}") };
            assert_eq!((error.status.as_u16(), error.code), (400, "invalid_body"), "{body}");
        }
    }
}
