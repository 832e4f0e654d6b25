//! The language an answer is to be of: a format, and the tools it may call.

use serde_json::Value;

use super::fields::{Fields, holds_something, unsupported, wrong};
use crate::error::ApiError;

/// What the answer is to be a member of. Tool calls, if there are any, come instead of text in the format, or before the end.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shape {
    pub(crate) format: Format,
    /// None: no tool can be called.
    pub(crate) calls: Option<CallRules>,
}

/// The format of the answer's text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Format {
    #[default]
    Free,
    /// Any JSON object.
    JsonObject,
    /// JSON of this schema.
    JsonSchema(Value),
    Regex(String),
    Ebnf(String),
}

/// Which tools can be called, and how.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallRules {
    /// At least one.
    pub(crate) tools: Vec<CallableTool>,
    /// At least one call has to be made.
    pub(crate) required: bool,
    /// At most one call may be made.
    pub(crate) single: bool,
    /// The model is told of tools that cannot be called.
    pub(crate) restricted: bool,
}

/// A tool as far as its calls are concerned.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallableTool {
    pub(crate) name: String,
    /// A JSON schema of an object.
    pub(crate) parameters: Value,
    /// Whether calls are held to the schema.
    pub(crate) strict: bool,
    /// The language of a custom tool's input.
    pub(crate) input: Option<InputFormat>,
}

/// How the input of a custom tool is written, where it is not just text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputFormat {
    Lark(String),
    Regex(String),
}

/// Our extension and what clients of other servers send: a language that is not described in the prompt, only kept to.
///
/// # Errors
/// When it is malformed, or there are two.
pub(super) fn read_extensions(fields: &mut Fields) -> Result<Option<Format>, ApiError> {
    let mut found = Vec::new();
    if let Some(value) = fields.take("structured_outputs") {
        let place = "structured_outputs";
        let mut within = Fields::within(value)
            .ok_or_else(|| wrong(place, "an object with json, regex, choice or grammar"))?;
        for (name, kind) in
            [("json", "json"), ("regex", "regex"), ("choice", "choice"), ("grammar", "ebnf")]
        {
            if let Some(value) = within.take(name) {
                found.push(format_of(kind, value, &format!("{place}.{name}"))?);
            }
        }
        if within.read_flag("json_object")?.unwrap_or(false) {
            found.push(Format::JsonObject);
        }
        found.extend(read_typed(&mut within)?);
        within.refuse(&[
            "structural_tag",
            "whitespace_pattern",
            "disable_additional_properties",
            "disable_any_whitespace",
        ])?;
        // An answer that is held to nothing would be no answer to such a request.
        if let Some(name) = within.first_left() {
            let message = format!(
                "structured_outputs.{name} is not known; send json, regex, choice or grammar"
            );
            return Err(ApiError::invalid(Some(place.to_owned()), message));
        }
        if found.is_empty() {
            return Err(wrong(place, "an object with json, regex, choice or grammar"));
        }
    }
    for (name, kind) in [
        ("guided_json", "json"),
        ("guided_regex", "regex"),
        ("guided_choice", "choice"),
        ("guided_grammar", "ebnf"),
        ("regex", "regex"),
        ("ebnf", "ebnf"),
        ("json_schema", "json"),
    ] {
        if let Some(value) = fields.take(name) {
            found.push(format_of(kind, value, name)?);
        }
    }
    found.extend(read_typed(fields)?);
    fields.refuse(&["structural_tag"])?;
    if 1 < found.len() {
        let message = "the request has more than one grammar for its answer; leave all but one out";
        return Err(ApiError::invalid(None, message));
    }
    Ok(found.pop())
}

/// The extension `{schema_type, schema}`.
fn read_typed(fields: &mut Fields) -> Result<Option<Format>, ApiError> {
    let (kind, schema) = match (fields.take("schema_type"), fields.take("schema")) {
        (None, None) => return Ok(None),
        (None, Some(_)) => return Err(wrong("schema_type", "beside schema: json, regex or ebnf")),
        (Some(_), None) => return Err(wrong("schema", "the schema's text")),
        (Some(kind), Some(schema)) => (kind, schema),
    };
    match kind.as_str() {
        Some(kind @ ("json" | "regex" | "ebnf")) => format_of(kind, schema, "schema").map(Some),
        _ => Err(wrong("schema_type", "one of: json, regex, ebnf")),
    }
}

/// The one format of a request that may have one in its protocol's form and one in an extension's.
///
/// # Errors
/// When it has both: one of them would not be kept.
pub(super) fn one_format(described: Format, kept: Option<Format>) -> Result<Format, ApiError> {
    match (described, kept) {
        (described, None) => Ok(described),
        (Format::Free, Some(kept)) => Ok(kept),
        (_, Some(_)) => {
            let message =
                "the request has a format and a grammar for its answer; leave one of them out";
            Err(ApiError::invalid(None, message))
        }
    }
}

fn format_of(kind: &str, value: Value, name: &str) -> Result<Format, ApiError> {
    match (kind, value) {
        // A schema may come as text.
        ("json", Value::String(text)) => serde_json::from_str(&text)
            .map(Format::JsonSchema)
            .map_err(|_| wrong(name, "a JSON schema")),
        ("json", schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Format::JsonSchema(schema)),
        ("json", _) => Err(wrong(name, "a JSON schema")),
        ("regex", Value::String(text)) => Ok(Format::Regex(text)),
        ("ebnf", Value::String(text)) => Ok(Format::Ebnf(text)),
        ("choice", Value::Array(choices))
            if !choices.is_empty() && choices.iter().all(Value::is_string) =>
        {
            let words = choices.iter().filter_map(Value::as_str).map(escaped);
            Ok(Format::Regex(words.collect::<Vec<_>>().join("|")))
        }
        ("choice", _) => Err(wrong(name, "a list of strings")),
        _ => Err(wrong(name, "a string")),
    }
}

/// The text as a regular expression that matches nothing else.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if r"\.+*?()|[]{}^$".contains(character) {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

/// A format in the form that chat completions have: `{"type": ..}`.
///
/// # Errors
/// When the type is unknown or its member is missing.
pub(super) fn read_response_format(value: Value) -> Result<Format, ApiError> {
    let name = "response_format";
    let wanted = "an object whose type is text, json_object, json_schema, regex or ebnf";
    let mut fields = Fields::within(value).ok_or_else(|| wrong(name, wanted))?;
    let kind: String = fields.read("type", wanted)?.unwrap_or_default();
    match kind.as_str() {
        "text" => Ok(Format::Free),
        // Other servers take a schema here.
        "json_object" => match fields.take("schema").filter(holds_something) {
            None => Ok(Format::JsonObject),
            Some(schema) => json_schema(schema, false, "response_format.schema"),
        },
        "json_schema" => {
            let wanted = "an object with a schema";
            let place = "response_format.json_schema";
            let inner = fields.take("json_schema").and_then(Fields::within);
            let mut inner = inner.ok_or_else(|| wrong(place, wanted))?;
            let strict = inner.read_flag("strict")?.unwrap_or(false);
            let schema = inner.take("schema").ok_or_else(|| wrong(place, wanted))?;
            json_schema(schema, strict, place)
        }
        "regex" | "ebnf" | "grammar" => {
            let member = if kind == "grammar" { "grammar" } else { kind.as_str() };
            let value = fields.take(member).unwrap_or_default();
            let kind = if kind == "grammar" { "ebnf" } else { &kind };
            format_of(kind, value, &format!("{name}.{member}"))
        }
        "structural_tag" => Err(unsupported(name, "use json_schema, regex or ebnf")),
        _ => Err(wrong(name, wanted)),
    }
}

/// A schema for the answer's text; a strict one closes its objects.
///
/// # Errors
/// When it is no schema.
pub(super) fn json_schema(
    mut schema: Value,
    strict: bool,
    place: &str,
) -> Result<Format, ApiError> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(wrong(place, "a JSON schema"));
    }
    if strict {
        close_objects(&mut schema);
    }
    Ok(Format::JsonSchema(schema))
}

/// Makes a strict schema what strict means: every object has all of its properties and no others. The crate does this too, but
/// loses `$defs` on the way.
pub(super) fn close_objects(schema: &mut Value) {
    match schema {
        Value::Array(list) => list.iter_mut().for_each(close_objects),
        Value::Object(map) => {
            for name in ["items", "anyOf", "allOf", "oneOf", "prefixItems"] {
                if let Some(inner) = map.get_mut(name) {
                    close_objects(inner);
                }
            }
            for name in ["properties", "$defs", "definitions", "$def"] {
                if let Some(Value::Object(inner)) = map.get_mut(name) {
                    inner.values_mut().for_each(close_objects);
                }
            }
            if let Some(Value::Object(properties)) = map.get("properties") {
                let names: Vec<Value> =
                    properties.keys().map(|key| Value::from(key.as_str())).collect();
                map.insert("required".into(), names.into());
            }
            if map.get("type").is_some_and(|kind| kind == "object") {
                map.insert("additionalProperties".into(), false.into());
            }
        }
        _ => {}
    }
}
