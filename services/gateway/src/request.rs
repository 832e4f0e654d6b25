//! Reads and checks request bodies, field by field, so that every refusal names its field. One file per protocol.
//!
//! The rules are those of DeepSeek's API as the `deepseek-recipe` crates hold them; these files add what the crates leave to
//! their host or get wrong (README). Unknown fields are ignored; known ones are served, or refused by name when ignoring them
//! would change the answer.

use std::collections::HashMap;

use deepseek_recipe::anthropic::MessagesRequest;
use deepseek_recipe::openai::{ChatCompletionRequest, ResponsesRequest};
use serde_json::{Map, Value};
use shared::TokenId;

use crate::config::LineageChoice;
use crate::error::ApiError;
use crate::isolation::Isolation;
use fields::Fields;

mod chat;
mod completions;
mod custom;
mod draws;
mod effort;
mod fields;
mod messages;
mod responses;
mod shape;
mod tools;

pub(crate) use draws::Draws;
pub(crate) use effort::EffortNumber;
pub(crate) use responses::{REASONING_COPY, echo_drawn};
pub(crate) use shape::{Format, InputFormat, Shape};

/// The protocols of requests for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Chat,
    Messages,
    Responses,
    Completions,
}

/// A request of any protocol whose fields are each well-formed.
pub(crate) struct ApiRequest {
    pub(crate) model: String,
    /// What becomes the prompt.
    pub(crate) source: Source,
    /// How the answer is shown.
    pub(crate) form: Form,
    pub(crate) stream: bool,
    /// How many answers each prompt gets, at least 1.
    pub(crate) answers: u32,
    pub(crate) draws: Draws,
    pub(crate) shape: Shape,
    pub(crate) effort: Option<EffortNumber>,
    /// The client's choice of lineage.
    pub(crate) lineage: Option<LineageChoice>,
    /// Whose cache it may share.
    pub(crate) isolation: Isolation,
}

/// What becomes the prompt.
pub(crate) enum Source {
    Chat(Box<ChatCompletionRequest>),
    Messages(Box<MessagesRequest>),
    Responses(Box<ResponsesRequest>),
    /// Text or tokens as they are.
    Plain(Plain),
}

impl Source {
    /// How many prompts it has.
    pub(crate) fn prompts(&self) -> usize {
        match self {
            Self::Chat(_) | Self::Messages(_) | Self::Responses(_) => 1,
            Self::Plain(plain) => plain.prompts.len(),
        }
    }
}

/// Prompts of legacy completions.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    /// At least one.
    pub(crate) prompts: Vec<PlainPrompt>,
    /// What follows the hole that is to be filled.
    pub(crate) suffix: Option<String>,
    /// Bound of the answer in tokens, at least 1.
    pub(crate) output_tokens_max: u32,
    /// As asked for; defaults apply to absent ones.
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) stops: Vec<String>,
}

/// One prompt of a legacy completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlainPrompt {
    Text(String),
    Tokens(Vec<TokenId>),
}

/// What the answer looks like, and what of the request it repeats.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    Chat {
        include_usage: bool,
        /// Tools whose input is text and not JSON.
        custom_tools: Vec<String>,
        repeated: Repeated,
    },
    Completions {
        include_usage: bool,
        echo: bool,
    },
    Messages {
        thinking: ThinkingDisplay,
    },
    Responses(Box<Echo>),
}

/// What a chat completion repeats of its request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Repeated {
    /// The tier that served it, where the client asked for one.
    pub(crate) service_tier: Option<&'static str>,
    pub(crate) metadata: Option<Value>,
}

/// What of the reasoning an answer shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThinkingDisplay {
    Shown,
    /// Only the opaque copy that the client gives back.
    Omitted,
}

/// What a response object repeats of its request, and what a stored one keeps of it.
#[derive(Clone, Debug)]
pub(crate) struct Echo {
    /// Members of the response object, by name.
    pub(crate) fields: Map<String, Value>,
    /// The input as items, those of earlier responses included.
    pub(crate) input: Vec<Value>,
    pub(crate) store: bool,
    /// Whether reasoning items carry the opaque copy that clients give back.
    pub(crate) encrypted_reasoning: bool,
    /// Tools whose input is text and not JSON.
    pub(crate) custom_tools: Vec<String>,
    /// The tool whose calls are told as searches for tools, if the client searches.
    pub(crate) search_tool: Option<&'static str>,
    /// Namespace and own name of tools, by the name that the model knows.
    pub(crate) namespaces: HashMap<String, (String, String)>,
    /// Whether it is made while nobody waits for it.
    pub(crate) background: bool,
}

/// Finds what earlier responses had.
pub(crate) trait Memory {
    /// Input and output items of a stored response, in order; none when it is not there (any more).
    fn items(&self, id: &str) -> Option<Vec<Value>>;

    /// One item of a stored response, by its own id; none when it is not there (any more).
    fn item(&self, id: &str) -> Option<Value>;

    /// Bytes that the items which one request refers to may have together.
    fn recalled_bytes_max(&self) -> usize;
}

/// Reads a request for one of the models `names`.
///
/// # Errors
/// The first field that is malformed, out of range or not supported.
pub(crate) fn parse(
    protocol: Protocol,
    body: &[u8],
    names: &[String],
    memory: &dyn Memory,
) -> Result<ApiRequest, ApiError> {
    let mut fields = Fields::of(body)?;
    let model = read_model(&mut fields, names)?;
    match protocol {
        Protocol::Chat => chat::read(fields, model),
        Protocol::Messages => messages::read(fields, model),
        Protocol::Responses => responses::read(fields, model, memory),
        Protocol::Completions => completions::read(fields, model),
    }
}

/// Reads a request for messages or for a response whose tokens are only counted: it needs no bound of the answer, and a response
/// no model.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_to_count(
    protocol: Protocol,
    body: &[u8],
    names: &[String],
    memory: &dyn Memory,
) -> Result<ApiRequest, ApiError> {
    let mut fields = Fields::of(body)?;
    if protocol == Protocol::Responses {
        fields.set_default("model", names[0].as_str());
        let model = read_model(&mut fields, names)?;
        return responses::read(fields, model, memory);
    }
    let model = read_model(&mut fields, names)?;
    fields.set_default("max_tokens", 1);
    messages::read(fields, model)
}

fn read_model(fields: &mut Fields, names: &[String]) -> Result<String, ApiError> {
    let wanted = format!("one of: {}", names.join(", "));
    let model: String =
        fields.read("model", &wanted)?.ok_or_else(|| fields::wrong("model", &wanted))?;
    if !names.contains(&model) {
        return Err(ApiError::model_not_found(&model, names));
    }
    Ok(model)
}

#[cfg(test)]
mod tests;
