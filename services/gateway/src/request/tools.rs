//! Tools and the choice among them, for the protocols alike.
//!
//! The crate is told to let the model choose, whatever the client chose: it refuses a forced choice while thinking and turns
//! Anthropic's `any` into a free one. What is forced is kept by the grammar, and by the prompt, which opens the block of calls
//! where there is no thinking. The crate is not told of strict tools either: it loses `$defs` of their schemas.

use serde_json::{Value, json};

use super::fields::{Fields, unsupported, wrong};
use super::shape::{CallRules, CallableTool, InputFormat, close_objects};
use crate::error::ApiError;

/// The most tools of a request. Agents with many servers declare a few hundred.
const TOOLS_MAX: usize = 1_024;

/// Which of the tools are to be called.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Choice {
    #[default]
    Auto,
    None,
    Required,
    Named(String),
    /// Only these, and at least one of them if `required`.
    Allowed {
        names: Vec<String>,
        required: bool,
    },
}

/// A tool in the members that all protocols have.
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) parameters: Option<Value>,
    pub(super) strict: bool,
    /// Of a custom tool: the language of its input.
    pub(super) input: Option<InputFormat>,
}

impl Tool {
    /// Reads a tool; `schema` is its protocol's name for the schema of the parameters.
    ///
    /// # Errors
    /// When a member is malformed. Names and schemas are checked by the crate.
    pub(super) fn read(value: Value, schema: &str, place: &str) -> Result<Self, ApiError> {
        let wanted = "an object with a name";
        let mut fields = Fields::within(value).ok_or_else(|| wrong(place, wanted))?;
        let name = fields.read("name", wanted)?.ok_or_else(|| wrong(place, wanted))?;
        let description = fields.read("description", "a string")?;
        let strict = fields.read_flag("strict")?.unwrap_or(false);
        let mut parameters = fields.take(schema);
        if parameters.as_ref().is_some_and(|schema| *schema == json!({})) {
            parameters = None;
        }
        if strict && let Some(schema) = &mut parameters {
            close_objects(schema);
        }
        Ok(Self { name, description, parameters, strict, input: None })
    }

    /// As the chat protocol of the crate takes it.
    pub(super) fn chat(&self) -> Value {
        json!({"type": "function", "function": self.flat()})
    }

    /// The members alone.
    pub(super) fn flat(&self) -> Value {
        json!({"name": self.name, "description": self.description, "parameters": self.parameters})
    }
}

/// Takes the list of tools out of the request.
///
/// # Errors
/// When it is no list, or too long.
pub(super) fn take_list(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let wanted = "a list of at most 1024 tools";
    let tools: Vec<Value> = fields.read("tools", wanted)?.unwrap_or_default();
    if TOOLS_MAX < tools.len() { Err(wrong("tools", wanted)) } else { Ok(tools) }
}

/// What the client chose, in OpenAI's forms.
///
/// # Errors
/// When the choice is of no known form.
pub(super) fn read_choice(value: Option<Value>) -> Result<Choice, ApiError> {
    let name = "tool_choice";
    let wanted = "none, auto, required, or an object that names a function or allowed tools";
    let mut fields = match value {
        None => return Ok(Choice::Auto),
        Some(Value::String(word)) => {
            return match word.as_str() {
                "auto" => Ok(Choice::Auto),
                "none" => Ok(Choice::None),
                "required" | "any" => Ok(Choice::Required),
                _ => Err(wrong(name, wanted)),
            };
        }
        Some(value) => Fields::within(value).ok_or_else(|| wrong(name, wanted))?,
    };
    let kind: String = fields.read("type", wanted)?.unwrap_or_default();
    match kind.as_str() {
        "function" | "custom" => {
            named(fields).map(Choice::Named).ok_or_else(|| wrong(name, wanted))
        }
        "allowed_tools" => {
            // Chat completions have one more level than responses.
            let mut within =
                fields.take("allowed_tools").and_then(Fields::within).unwrap_or(fields);
            let mode: String = within.read("mode", wanted)?.unwrap_or_else(|| "auto".into());
            let tools: Vec<Value> =
                within.read("tools", wanted)?.ok_or_else(|| wrong(name, wanted))?;
            let names: Option<Vec<String>> =
                tools.into_iter().map(|tool| Fields::within(tool).and_then(named)).collect();
            let names = names.ok_or_else(|| wrong(name, wanted))?;
            if !matches!(mode.as_str(), "auto" | "required") {
                return Err(wrong(name, wanted));
            }
            Ok(Choice::Allowed { names, required: mode == "required" })
        }
        "web_search" | "web_search_preview" | "file_search" | "mcp" | "code_interpreter" => {
            Err(unsupported(name, "this server has no hosted tools; name a function"))
        }
        _ => Err(wrong(name, wanted)),
    }
}

/// The name in `{"name": ..}`, `{"function": {"name": ..}}` or `{"custom": {"name": ..}}`.
fn named(mut fields: Fields) -> Option<String> {
    if let Some(Value::String(name)) = fields.take("name") {
        return Some(name);
    }
    let inner = fields.take("function").or_else(|| fields.take("custom"))?;
    inner.get("name")?.as_str().map(str::to_owned)
}

/// How the tools can be called; none when there are none or none may be.
///
/// # Errors
/// When the choice names a tool that is not there, or forces a call and there are no tools.
pub(super) fn rules(
    tools: &[Tool],
    choice: &Choice,
    single: bool,
) -> Result<Option<CallRules>, ApiError> {
    let (names, required): (Option<&[String]>, bool) = match choice {
        Choice::None => return Ok(None),
        Choice::Auto => (None, false),
        Choice::Required => (None, true),
        Choice::Named(name) => (Some(std::slice::from_ref(name)), true),
        Choice::Allowed { names, required } => (Some(names), *required),
    };
    let unknown = |name: &&String| !tools.iter().any(|tool| tool.name == **name);
    if let Some(name) = names.unwrap_or_default().iter().find(unknown) {
        let message = format!("tool_choice names {name:?}, which is none of tools; declare it");
        return Err(ApiError::invalid(Some("tool_choice".into()), message));
    }
    let callable: Vec<CallableTool> = tools
        .iter()
        .filter(|tool| names.is_none_or(|names| names.contains(&tool.name)))
        .map(|tool| CallableTool {
            name: tool.name.clone(),
            parameters: tool.parameters.clone().unwrap_or_else(|| json!({"type": "object"})),
            strict: tool.strict,
            input: tool.input.clone(),
        })
        .collect();
    if callable.is_empty() {
        return match required {
            true => Err(wrong("tool_choice", "none or auto where there are no tools to call")),
            false => Ok(None),
        };
    }
    let restricted = callable.len() < tools.len();
    Ok(Some(CallRules { tools: callable, required, single, restricted }))
}
