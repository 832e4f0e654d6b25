//! Reads streamed answers, and holds their events to the order of their protocol.

use serde_json::{Value, json};

use super::claims::{Answer, Part, Protocol, Told, object};
use super::told::{
    copy, end_of_message, legacy_scores, list, list_or_none, parts, response, take_item, text,
    text_or_none,
};

/// An event: its name, where its protocol gives it one, and its payload.
type Event<'a> = (Option<&'a str>, &'a str);

/// # Errors
/// The first event that is not well formed or out of order.
pub(crate) fn read(path: &str, stream: &str) -> Result<Told, String> {
    let events = events(stream)?;
    match Protocol::of(path) {
        Some(Protocol::Chat) => chunks(&events, Chunks { calls: true }),
        Some(Protocol::Completions) => chunks(&events, Chunks { calls: false }),
        Some(Protocol::Messages) => message(&events),
        Some(Protocol::Responses) => Reading::default().read(&events),
        None => Err("nothing is streamed here".into()),
    }
}

/// Each event is lines that begin with a field's name, and an empty line.
fn events(stream: &str) -> Result<Vec<Event<'_>>, String> {
    let whole = stream.strip_suffix("\n\n").ok_or("the last event is not closed")?;
    let mut events = Vec::new();
    for event in whole.split("\n\n").filter(|event| !event.starts_with(':')) {
        let (name, data) = match event.strip_prefix("event: ") {
            None => (None, event),
            Some(rest) => {
                let (name, data) = rest.split_once('\n').ok_or("an event without a payload")?;
                (Some(name), data)
            }
        };
        let data = data.strip_prefix("data: ").ok_or("an event without a payload")?;
        if data.contains(['\n', '\r']) {
            return Err("a payload of several lines".into());
        }
        events.push((name, data));
    }
    Ok(events)
}

/// What chunks may hold.
struct Chunks {
    calls: bool,
}

/// One answer that comes in chunks.
#[derive(Default)]
struct Growing {
    begun: bool,
    reasoning: String,
    content: String,
    calls: Vec<Part>,
    answer: Answer,
}

/// Chunks of chat and legacy completions, and the mark of the end.
fn chunks(events: &[Event<'_>], rules: Chunks) -> Result<Told, String> {
    let (last, chunks) = events.split_last().ok_or("no event")?;
    let mut told = Told { failed: last.1 != "[DONE]", ..Told::default() };
    if told.failed {
        text(&object(last.1)?["error"], "message")?;
    }
    let mut growing: Vec<Growing> = Vec::new();
    let mut id = None;
    for (name, data) in chunks {
        let chunk = object(data)?;
        let own = text(&chunk, "id")?;
        if name.is_some() || id.get_or_insert_with(|| own.clone()) != &own {
            return Err("a chunk of another answer".into());
        }
        let choices = list(&chunk, "choices")?;
        if told.tokens.is_some() || (choices.is_empty() && chunk["usage"].is_null()) {
            return Err("a chunk that says nothing, or behind the last one".into());
        }
        told.tokens = chunk["usage"]["completion_tokens"].as_u64();
        for choice in choices {
            let index = choice["index"].as_u64().and_then(|index| usize::try_from(index).ok());
            let index = index.filter(|index| *index < 128).ok_or("a choice without an index")?;
            if growing.len() <= index {
                growing.resize_with(index + 1, Growing::default);
            }
            growing[index].take(choice, &rules)?;
        }
    }
    told.answers = growing.into_iter().map(Growing::finish).collect();
    Ok(told)
}

impl Growing {
    fn take(&mut self, choice: &Value, rules: &Chunks) -> Result<(), String> {
        if !self.answer.end.is_empty() {
            return Err("an answer goes on behind its end".into());
        }
        if rules.calls {
            let delta = &choice["delta"];
            if std::mem::replace(&mut self.begun, true) != delta["role"].is_null() {
                return Err("the role comes first, and once".into());
            }
            self.content += &text_or_none(delta, "content")?.unwrap_or_default();
            self.reasoning += &text_or_none(delta, "reasoning_content")?.unwrap_or_default();
            for call in list_or_none(delta, "tool_calls")? {
                self.take_call(&call)?;
            }
            let logprobs = &choice["logprobs"];
            for (scores, kind) in
                self.answer.scores.iter_mut().zip(["content", "reasoning_content"])
            {
                scores.extend(list_or_none(logprobs, kind)?);
            }
        } else {
            self.content += &text(choice, "text")?;
            self.answer.scores[0].extend(legacy_scores(&choice["logprobs"])?);
        }
        self.answer.ids.extend(list_or_none(choice, "token_ids")?);
        self.answer.end = text_or_none(choice, "finish_reason")?.unwrap_or_default();
        Ok(())
    }

    /// Id, kind and name come with the first part of a call, and never again.
    fn take_call(&mut self, part: &Value) -> Result<(), String> {
        let begins = !part["id"].is_null();
        let custom = !part["custom"].is_null();
        let (member, input) = if custom { ("custom", "input") } else { ("function", "arguments") };
        let new = text(&part[member], input)?;
        if begins {
            text(part, "id")?;
            let (kind, name) = (text(part, "type")?, text(&part[member], "name")?);
            self.calls.push(Part::Call { kind, name, arguments: String::new() });
        }
        if Some(part["index"].clone()) != self.calls.len().checked_sub(1).map(Value::from) {
            return Err("a part of a call that is not the last one".into());
        }
        if let (false, Value::Object(members)) = (begins, &part[member])
            && (members.contains_key("name") || !part["type"].is_null())
        {
            return Err("a call is named twice".into());
        }
        match self.calls.last_mut() {
            Some(Part::Call { kind, arguments, .. }) if kind == member => arguments.push_str(&new),
            _ => return Err("a part of another kind of call".into()),
        }
        Ok(())
    }

    fn finish(self) -> Answer {
        Answer { parts: parts(self.reasoning, self.content, self.calls), ..self.answer }
    }
}

/// A message: its start, blocks one after another, its end.
fn message(events: &[Event<'_>]) -> Result<Told, String> {
    let mut told = Told::default();
    let mut answer = Answer::default();
    let mut open: Option<Part> = None;
    let mut begun = false;
    let mut over = false;
    for (name, data) in events {
        let event = object(data)?;
        let kind = text(&event, "type")?;
        if *name != Some(kind.as_str()) || over {
            return Err(format!("{kind} by another name, or behind the end"));
        }
        let index_holds = event["index"] == answer.parts.len();
        match kind.as_str() {
            "message_start" if !begun && event["message"]["content"] == json!([]) => begun = true,
            "ping" => {}
            "error" => {
                text(&event["error"], "message")?;
                (told.failed, over) = (true, true);
            }
            "content_block_start" if begun && open.is_none() && index_holds => {
                open = Some(block(&event["content_block"])?);
            }
            "content_block_delta" if index_holds => {
                let open = open.as_mut().ok_or("a delta without a block")?;
                grow(open, &event["delta"])?;
            }
            "content_block_stop" if index_holds => {
                answer.parts.extend(open.take());
            }
            "message_delta" if begun && open.is_none() && answer.end.is_empty() => {
                answer.end = end_of_message(&event["delta"])?;
                told.tokens = event["usage"]["output_tokens"].as_u64();
            }
            "message_stop" if !answer.end.is_empty() => over = true,
            _ => return Err(format!("{kind} out of order")),
        }
    }
    if !over {
        return Err("a stream without an end".into());
    }
    told.answers.push(answer);
    Ok(told)
}

/// A block that begins has nothing in it yet.
fn block(shown: &Value) -> Result<Part, String> {
    match shown["type"].as_str() {
        Some("text") => text(shown, "text").map(Part::Text),
        Some("thinking") => text(shown, "thinking").map(Part::Reasoning),
        Some("tool_use") if shown["input"] == json!({}) => Ok(Part::Call {
            kind: text(shown, "id").map(|_| "tool_use".into())?,
            name: text(shown, "name")?,
            arguments: String::new(),
        }),
        _ => Err(format!("a block of another kind: {shown}")),
    }
}

fn grow(open: &mut Part, delta: &Value) -> Result<(), String> {
    match (open, delta["type"].as_str()) {
        (Part::Text(so_far), Some("text_delta")) => so_far.push_str(&text(delta, "text")?),
        (Part::Reasoning(so_far), Some("thinking_delta")) => {
            so_far.push_str(&text(delta, "thinking")?);
        }
        (Part::Reasoning(so_far), Some("signature_delta")) => {
            so_far.push_str(&copy(text(delta, "signature")?));
        }
        (Part::Call { arguments, .. }, Some("input_json_delta")) => {
            arguments.push_str(&text(delta, "partial_json")?);
        }
        _ => return Err(format!("a delta of another kind: {delta}")),
    }
    Ok(())
}

/// A response whose events come one after another.
#[derive(Default)]
struct Reading {
    answer: Answer,
    /// The open item as it was added, and its deltas joined.
    open: Option<(Value, String)>,
    /// Items that are done.
    output: Vec<Value>,
}

impl Reading {
    fn read(mut self, events: &[Event<'_>]) -> Result<Told, String> {
        let (last, others) = events.split_last().ok_or("no event")?;
        let mut told = Told::default();
        for (sequence, (name, data)) in events.iter().enumerate() {
            let event = object(data)?;
            if event["sequence_number"] != sequence || *name != event["type"].as_str() {
                return Err(format!("event {sequence} has another number or name"));
            }
        }
        for (sequence, (name, data)) in others.iter().enumerate() {
            let expected = ["response.created", "response.in_progress"].get(sequence).copied();
            if expected.is_some_and(|expected| *name != Some(expected)) {
                return Err("a response begins otherwise".into());
            }
            if expected.is_none() {
                self.take(name.unwrap_or_default(), &object(data)?)?;
            }
        }
        let object = &object(last.1)?["response"];
        let name = last.0.and_then(|name| name.strip_prefix("response.")).unwrap_or_default();
        if object["status"] != name {
            return Err(format!("{name} is said of {}", object["status"]));
        }
        told.failed = name == "failed";
        if told.failed {
            text(&object["error"], "message")?;
        } else if self.open.is_some() || object["output"] != json!(self.output) {
            return Err("the last object has other items than the events".into());
        }
        let whole = response(object)?;
        told.tokens = whole.tokens;
        self.answer.end = name.into();
        told.answers.push(self.answer);
        Ok(told)
    }

    fn take(&mut self, name: &str, event: &Value) -> Result<(), String> {
        if event["output_index"] != self.output.len() {
            return Err(format!("{name} of another item"));
        }
        if name == "response.output_item.added" {
            let before = self.open.replace((event["item"].clone(), String::new()));
            return if before.is_none() { Ok(()) } else { Err("an item within an item".into()) };
        }
        let (item, so_far) = self.open.as_mut().ok_or("an event without an item")?;
        let own = event["item_id"] == item["id"] || event["item"]["id"] == item["id"];
        let parts = ["message", "reasoning"].contains(&item["type"].as_str().unwrap_or_default());
        let (stem, last) = name.rsplit_once('.').unwrap_or_default();
        match (stem, last) {
            _ if !own => return Err(format!("{name} of another item")),
            ("response.content_part", "added") if parts && so_far.is_empty() => {
                text(&event["part"], "text")?;
            }
            ("response.content_part", "done") if parts => {
                if event["part"]["text"] != so_far.as_str() {
                    return Err("a part with other text than its deltas".into());
                }
            }
            ("response.output_item", "done") => {
                let item = event["item"].clone();
                take_item(&item, &mut self.answer)?;
                self.output.push(item);
                self.open = None;
            }
            (_, "delta") => so_far.push_str(&text(event, "delta")?),
            (_, "done") => {
                let whole = ["text", "arguments", "input"].map(|member| event[member].as_str());
                if whole.into_iter().flatten().next() != Some(so_far) {
                    return Err(format!("{name} differs from its deltas"));
                }
            }
            _ => return Err(format!("{name} out of order")),
        }
        Ok(())
    }
}
