//! Reads whole answers.

use serde_json::{Value, json};

use super::claims::{Answer, Part, Protocol, Told, object};

/// # Errors
/// What is missing, or not as its protocol has it.
pub(crate) fn read(path: &str, text: &str) -> Result<Told, String> {
    let value = object(text)?;
    match Protocol::of(path) {
        Some(Protocol::Chat) => chat(&value),
        Some(Protocol::Messages) => message(&value),
        Some(Protocol::Responses) => response(&value),
        Some(Protocol::Completions) => completion(&value),
        None => Ok(Told::default()),
    }
}

/// The text of a member.
pub(super) fn text(value: &Value, member: &str) -> Result<String, String> {
    let text = value[member].as_str().map(str::to_owned);
    text.ok_or_else(|| format!("no text as {member} in {value}"))
}

/// The text of a member that may be null or absent.
pub(super) fn text_or_none(value: &Value, member: &str) -> Result<Option<String>, String> {
    if value[member].is_null() { Ok(None) } else { text(value, member).map(Some) }
}

/// The members of a list.
pub(super) fn list<'a>(value: &'a Value, member: &str) -> Result<&'a Vec<Value>, String> {
    value[member].as_array().ok_or_else(|| format!("no list as {member} in {value}"))
}

/// The members of a list that may be null or absent.
pub(super) fn list_or_none(value: &Value, member: &str) -> Result<Vec<Value>, String> {
    if value[member].is_null() { Ok(Vec::new()) } else { list(value, member).cloned() }
}

/// Reasoning, text and calls, each only where there is some.
pub(super) fn parts(reasoning: String, text: String, calls: Vec<Part>) -> Vec<Part> {
    let reasoning = Some(reasoning).filter(|text| !text.is_empty()).map(Part::Reasoning);
    let text = Some(text).filter(|text| !text.is_empty()).map(Part::Text);
    reasoning.into_iter().chain(text).chain(calls).collect()
}

fn expect_kind(value: &Value, member: &str, kind: &str) -> Result<(), String> {
    if value[member] == kind { Ok(()) } else { Err(format!("{member} is not {kind}")) }
}

fn chat(value: &Value) -> Result<Told, String> {
    expect_kind(value, "object", "chat.completion")?;
    let mut answers = Vec::new();
    for (index, choice) in list(value, "choices")?.iter().enumerate() {
        if choice["index"] != index {
            return Err("choices out of order".into());
        }
        let message = &choice["message"];
        let mut calls = Vec::new();
        for call in list_or_none(message, "tool_calls")? {
            text(&call, "id")?;
            let kind = text(&call, "type")?;
            let what = &call[&kind];
            let arguments = if kind == "custom" { "input" } else { "arguments" };
            let (name, arguments) = (text(what, "name")?, text(what, arguments)?);
            calls.push(Part::Call { kind, name, arguments });
        }
        let reasoning = text_or_none(message, "reasoning_content")?.unwrap_or_default();
        let content = text_or_none(message, "content")?;
        if content.is_none() && calls.is_empty() {
            return Err("neither content nor calls".into());
        }
        let logprobs = &choice["logprobs"];
        answers.push(Answer {
            parts: parts(reasoning, content.unwrap_or_default(), calls),
            end: text(choice, "finish_reason")?,
            scores: [
                list_or_none(logprobs, "content")?,
                list_or_none(logprobs, "reasoning_content")?,
            ],
            ids: list_or_none(choice, "token_ids")?,
        });
    }
    Ok(Told { answers, tokens: value["usage"]["completion_tokens"].as_u64(), failed: false })
}

fn completion(value: &Value) -> Result<Told, String> {
    expect_kind(value, "object", "text_completion")?;
    let mut answers = Vec::new();
    for (index, choice) in list(value, "choices")?.iter().enumerate() {
        if choice["index"] != index {
            return Err("choices out of order".into());
        }
        answers.push(Answer {
            parts: parts(String::new(), text(choice, "text")?, Vec::new()),
            end: text(choice, "finish_reason")?,
            scores: [legacy_scores(&choice["logprobs"])?, Vec::new()],
            ids: list_or_none(choice, "token_ids")?,
        });
    }
    Ok(Told { answers, tokens: value["usage"]["completion_tokens"].as_u64(), failed: false })
}

/// Log probabilities of legacy completions, token by token.
pub(super) fn legacy_scores(value: &Value) -> Result<Vec<Value>, String> {
    if value.is_null() {
        return Ok(Vec::new());
    }
    let columns = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
    let columns = columns.map(|name| list(value, name));
    let [tokens, logprobs, top, offsets] = columns;
    let (tokens, logprobs, top, offsets) = (tokens?, logprobs?, top?, offsets?);
    if [logprobs.len(), top.len(), offsets.len()] != [tokens.len(); 3] {
        return Err("log probabilities of unequal length".into());
    }
    let row = |row: usize| json!({"token": tokens[row], "logprob": logprobs[row], "top": top[row], "offset": offsets[row]});
    Ok((0..tokens.len()).map(row).collect())
}

fn message(value: &Value) -> Result<Told, String> {
    expect_kind(value, "type", "message")?;
    let mut parts = Vec::new();
    for block in list(value, "content")? {
        parts.push(match block["type"].as_str() {
            Some("text") => Part::Text(text(block, "text")?),
            Some("thinking") => {
                Part::Reasoning(text(block, "thinking")? + &copy(text(block, "signature")?))
            }
            Some("tool_use") if block["input"].is_object() => Part::Call {
                kind: "tool_use".into(),
                name: text(block, "name")?,
                arguments: block["input"].to_string(),
            },
            _ => return Err(format!("a block of another kind: {block}")),
        });
    }
    let end = end_of_message(value)?;
    let answer = Answer { parts, end, ..Answer::default() };
    let tokens = value["usage"]["output_tokens"].as_u64();
    Ok(Told { answers: vec![answer], tokens, failed: false })
}

/// The opaque copy of reasoning that a signature is where the reasoning is not shown; elsewhere it names the message.
pub(super) fn copy(signature: String) -> String {
    if signature.starts_with("msg_") { String::new() } else { signature }
}

/// Why a message ended, with the stop string that did it.
pub(super) fn end_of_message(value: &Value) -> Result<String, String> {
    let stop = text_or_none(value, "stop_sequence")?;
    let end = text(value, "stop_reason")?;
    match (end.as_str(), stop) {
        ("stop_sequence", Some(stop)) => Ok(format!("{end} {stop}")),
        ("end_turn" | "max_tokens" | "tool_use", None) => Ok(end),
        (_, stop) => Err(format!("{end} does not go with {stop:?}")),
    }
}

/// A response that is over, or was only begun because nobody waits for it.
pub(super) fn response(value: &Value) -> Result<Told, String> {
    expect_kind(value, "object", "response")?;
    let end = text(value, "status")?;
    let known = ["completed", "incomplete", "failed", "in_progress"].contains(&end.as_str());
    if !known || (end == "in_progress" && value["background"] != true) {
        return Err(format!("the status {end}"));
    }
    let mut answer = Answer { end, ..Answer::default() };
    for item in list(value, "output")? {
        take_item(item, &mut answer)?;
    }
    let tokens = value["usage"]["output_tokens"].as_u64();
    Ok(Told { answers: vec![answer], tokens, failed: false })
}

/// Takes an item that is done into the answer.
pub(super) fn take_item(item: &Value, answer: &mut Answer) -> Result<(), String> {
    text(item, "id")?;
    let kind = text(item, "type")?;
    let part = |kind: &str| match list(item, "content")?.as_slice() {
        [part] if part["type"] == kind => Ok(part),
        _ => Err(format!("not one part of {kind} in {item}")),
    };
    let call = |arguments: String| -> Result<Part, String> {
        text(item, "call_id")?;
        let name = text_or_none(item, "name")?.unwrap_or_default();
        let space = text_or_none(item, "namespace")?.unwrap_or_default();
        Ok(Part::Call { kind: kind.clone(), name: format!("{space}{name}"), arguments })
    };
    let taken = match kind.as_str() {
        "reasoning" => {
            let copy = text_or_none(item, "encrypted_content")?.unwrap_or_default();
            Part::Reasoning(text(part("reasoning_text")?, "text")? + &copy)
        }
        "message" => {
            let part = part("output_text")?;
            answer.scores[0].extend(list_or_none(part, "logprobs")?);
            Part::Text(text(part, "text")?)
        }
        "function_call" => call(text(item, "arguments")?)?,
        "custom_tool_call" => call(text(item, "input")?)?,
        "tool_search_call" if item["arguments"].is_object() => call(item["arguments"].to_string())?,
        _ => return Err(format!("an item of another kind: {item}")),
    };
    answer.parts.push(taken);
    Ok(())
}
