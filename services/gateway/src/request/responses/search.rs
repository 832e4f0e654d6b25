//! Tools that the client finds for the model: a search is a call like any other, whose output declares tools.
//!
//! The crate renders both; what is found has to be callable too.

use serde_json::{Map, Value, json};

use super::Declared;
use crate::error::ApiError;
use crate::request::tools::Tool;

/// What the model calls to search; the crate's name for it.
const TOOL_SEARCH: &str = "tool_search";

/// Declares the search itself, if the client carries it out.
///
/// # Errors
/// When this server is to search.
pub(super) fn declare(
    mut value: Value,
    place: &str,
    declared: &mut Declared,
) -> Result<(), ApiError> {
    if value["execution"] != "client" {
        let message = format!(
            "{place} asks this server to search for tools; set execution to \"client\", or list the tools"
        );
        return Err(ApiError::unsupported(place, message));
    }
    value["name"] = TOOL_SEARCH.into();
    let tool = Tool::read(value, "parameters", place)?;
    declared.recipe.push(json!({"type": TOOL_SEARCH, "execution": "client",
        "description": tool.description, "parameters": tool.parameters}));
    declared.callable.push(tool);
    declared.search = Some(TOOL_SEARCH);
    Ok(())
}

/// Makes callable what earlier searches found, and puts it into the form that the crate takes.
///
/// # Errors
/// As for tools of the request.
pub(super) fn declare_found(items: &mut [Value], declared: &mut Declared) -> Result<(), ApiError> {
    for (index, item) in items.iter_mut().enumerate() {
        if item["type"] != "tool_search_output" {
            continue;
        }
        let list = match item["tools"].take() {
            Value::Array(list) => list,
            _ => Vec::new(),
        };
        let mut found = Declared::default();
        super::declare(list, &format!("input[{index}].tools"), &mut found)?;
        item["tools"] = found.recipe.into();
        let is_new = |tool: &Tool| !declared.callable.iter().any(|old| old.name == tool.name);
        found.callable.retain(is_new);
        declared.callable.append(&mut found.callable);
        declared.custom.append(&mut found.custom);
    }
    Ok(())
}

/// Arguments are an object here; some clients keep them as text.
pub(super) fn adapt_call(item: &mut Value) {
    if let Some(text) = item["arguments"].as_str() {
        item["arguments"] = serde_json::from_str(text).unwrap_or_default();
    }
    if !item["arguments"].is_object() {
        item["arguments"] = Map::new().into();
    }
}
