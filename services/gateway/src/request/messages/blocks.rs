//! The content blocks of messages, in the form that the crate takes.
//!
//! The crate writes a stub where a document stood. Here what a block says as text is rendered as text, and what has none is
//! refused by its type: nothing that the client sent is left out unseen, but for what was redacted for us.

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::request::REASONING_COPY;

/// Puts the blocks of the message at `place` into the form that the crate takes.
///
/// # Errors
/// The first block that cannot be read, by the place of its message.
pub(super) fn adapt(blocks: &mut Vec<Value>, place: &str) -> Result<(), ApiError> {
    let had_blocks = !blocks.is_empty();
    // What was redacted for us means nothing to the model.
    blocks.retain(|block| block["type"] != "redacted_thinking");
    for block in blocks.iter_mut() {
        match kind(block) {
            "text" | "tool_use" | "tool_addition" => {}
            "thinking" => restore_thinking(block),
            "tool_result" => adapt_result(block, place)?,
            _ => become_text(block, place)?,
        }
    }
    if had_blocks && blocks.is_empty() {
        blocks.push(json!({"type": "text", "text": ""}));
    }
    Ok(())
}

/// What a tool answered, in blocks.
fn adapt_result(block: &mut Value, place: &str) -> Result<(), ApiError> {
    let Some(Value::Array(parts)) = block.get_mut("content") else { return Ok(()) };
    for part in parts {
        if !matches!(kind(part), "text" | "tool_reference") {
            become_text(part, place)?;
        }
    }
    Ok(())
}

fn become_text(block: &mut Value, place: &str) -> Result<(), ApiError> {
    let text = match kind(block) {
        "search_result" => search_result_text(block, place)?,
        "document" => document_text(block, place)?,
        other => {
            let what = format!("a block of type {other:?}");
            return Err(refused(&what, "send text blocks only", place));
        }
    };
    *block = json!({"type": "text", "text": text});
    Ok(())
}

fn search_result_text(block: &Value, place: &str) -> Result<String, ApiError> {
    refuse_citations(block, place)?;
    let head = [&block["title"], &block["source"]];
    Ok(joined(head, &texts(&block["content"], "search_result.content", place)?))
}

fn document_text(block: &Value, place: &str) -> Result<String, ApiError> {
    refuse_citations(block, place)?;
    let source = &block["source"];
    let body = match kind(source) {
        "text" => match &source["data"] {
            Value::String(text) => vec![text.as_str()],
            _ => return Err(malformed("document.source.data", "a string", place)),
        },
        "content" => texts(&source["content"], "document.source.content", place)?,
        other => {
            let advice = "send its text, as a source of type text";
            return Err(refused(&format!("a document of type {other:?}"), advice, place));
        }
    };
    Ok(joined([&block["title"], &block["context"]], &body))
}

/// A text, or the texts of a list of blocks that are nothing else.
fn texts<'a>(content: &'a Value, name: &str, place: &str) -> Result<Vec<&'a str>, ApiError> {
    let wanted = "a string or a list of text blocks";
    match content {
        Value::String(text) => Ok(vec![text]),
        Value::Array(parts) => {
            let text = |part: &'a Value| part["text"].as_str().filter(|_| kind(part) == "text");
            let texts: Option<Vec<&str>> = parts.iter().map(text).collect();
            texts.ok_or_else(|| malformed(name, wanted, place))
        }
        _ => Err(malformed(name, wanted, place)),
    }
}

/// The head's members that are there, and the body, a line each.
fn joined(head: [&Value; 2], body: &[&str]) -> String {
    let head = head.into_iter().filter_map(Value::as_str);
    head.chain(body.iter().copied()).collect::<Vec<&str>>().join("\n")
}

fn refuse_citations(block: &Value, place: &str) -> Result<(), ApiError> {
    match block["citations"]["enabled"] {
        Value::Bool(true) => Err(refused("citations", "set enabled to false", place)),
        _ => Ok(()),
    }
}

/// Clients that were not shown the reasoning give its opaque copy back in its place.
fn restore_thinking(block: &mut Value) {
    if block["thinking"].as_str().is_some_and(|text| !text.is_empty()) {
        return;
    }
    let copy = block["signature"].as_str().and_then(|copy| copy.strip_prefix(REASONING_COPY));
    if let Some(text) = copy {
        block["thinking"] = text.into();
    }
}

fn kind(block: &Value) -> &str {
    block["type"].as_str().unwrap_or_default()
}

// Anthropic's errors name no parameter, so the text says where it is.

fn refused(what: &str, advice: &str, place: &str) -> ApiError {
    let message = format!("{place}: {what} is not supported by this server; {advice}");
    ApiError::unsupported(place, message)
}

fn malformed(name: &str, wanted: &str, place: &str) -> ApiError {
    ApiError::invalid(Some(place.to_owned()), format!("{place}: {name} must be {wanted}"))
}
