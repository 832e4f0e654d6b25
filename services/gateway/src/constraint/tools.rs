//! The grammar of tool calls in DSML, for llguidance.
//!
//! ```text
//! \n\n<S calls>\n
//! <S invoke name="NAME">\n
//! <S parameter name="KEY" string="true">raw text</S parameter>\n
//! <S parameter name="KEY" string="false">JSON</S parameter>\n
//! </S invoke>\n
//! </S calls>
//! ```
//! S, the sentinel, is a token and is written by its id. Terminals are matched greedily, so text of any kind is one terminal
//! together with the `<` or `</` that ends it: text that goes on behind a bracket is still that terminal, and only the
//! sentinel ends it. Source: specs/recipe-and-apis.md §4.5, specs/v41-prompt-encoding.md §4.
//!
//! Parameters of a strict tool come in the order of its schema. A string of no particular form is written raw; a value
//! of any other schema as JSON, a string with a pattern included.

use std::fmt::Write;

use serde_json::{Map, Value};
use shared::TokenId;

use super::lark::{characters, exactly, expression, json};
use super::lark_input::is_kept;
use super::{CallRules, CallableTool, InputLanguage};

/// What the answer may be instead of calls.
pub(super) enum Instead {
    /// A call is made.
    Nothing,
    /// Any text, also before the calls.
    Text,
    /// A value of this schema.
    Json(Value),
}

/// The Lark text. `opened`: the prompt has opened the block.
pub(super) fn grammar(
    rules: &CallRules<'_>,
    instead: &Instead,
    opened: bool,
    sentinel: TokenId,
) -> String {
    let mark = format!("<[{}]>", sentinel.0);
    let mut text = String::from("%llguidance {\"no_forcing\": true}\n");
    let open = exactly("<");
    let start = match instead {
        _ if opened => format!("{open} {mark} calls"),
        // The line feeds before the block may have been part of what came before.
        Instead::Nothing => format!("/\\n{{0,2}}</ {mark} opening calls"),
        Instead::Text => format!("/(.|\\n)*</ {mark} opening calls | /(.|\\n)*/"),
        Instead::Json(schema) => {
            format!("/\\n{{0,2}}</ {mark} opening calls | {}", json(schema))
        }
    };
    let mut rule = |name: &str, body: &str| {
        writeln!(text, "{name}: {body}").expect("a string takes everything");
    };
    rule("start", &start);
    rule("opening", &format!("{} {mark}", exactly(" calls>\n<")));
    let more = if rules.single { "" } else { " (/</ MARK invoke)*" }.replace("MARK", &mark);
    rule("calls", &format!("invoke{more} /<\\// {mark} {}", exactly(" calls>")));
    let tools: Vec<String> = (0..rules.tools.len()).map(|tool| format!("tool{tool}")).collect();
    rule("invoke", &tools.join(" | "));
    for (number, tool) in rules.tools.iter().enumerate() {
        let head = exactly(&format!(" invoke name=\"{}\">\n", tool.name));
        let close = format!("{mark} {}", exactly(" invoke>\n"));
        let input = match tool.input {
            None => None,
            Some(InputLanguage::Regex(text)) => {
                // Terminals of their own: what the client wrote stands alone, and is refused alone.
                rule(&format!("INPUT{number}"), &expression(text));
                rule(&format!("VALUE{number}"), &format!("INPUT{number} \"</\""));
                Some(format!("VALUE{number}"))
            }
            Some(InputLanguage::Lark(text)) if is_kept(text) => {
                rule(&format!("input{number}"), &format!("%lark {{\n{text}\n}}"));
                Some(format!("input{number} /<\\//"))
            }
            Some(InputLanguage::Lark(_)) => Some("/(.|\\n)*<\\//".to_owned()),
        };
        let body = match input {
            None => arguments(tool, &mark),
            Some(input) => {
                let head = exactly(" parameter name=\"input\" string=\"true\">");
                format!("/</ {mark} {head} {input} {mark} {}", exactly(" parameter>\n"))
            }
        };
        // Without a parameter there is an empty line.
        let close = if body.is_empty() {
            format!("/\\n?<\\// {close}")
        } else if body.ends_with(['*', '?']) {
            format!("(/<\\// | /\\n<\\//) {close}")
        } else {
            format!("/<\\// {close}")
        };
        rule(&format!("tool{number}"), &format!("{head} {body} {close}"));
    }
    rule("value", &any_value(&mark));
    text
}

/// The parameters of a call.
fn arguments(tool: &CallableTool<'_>, mark: &str) -> String {
    let properties = tool.parameters.get("properties").and_then(Value::as_object);
    let Some(properties) = properties.filter(|properties| !properties.is_empty()) else {
        let closed = tool.parameters.get("additionalProperties") == Some(&Value::Bool(false));
        if tool.strict && closed {
            return String::new();
        }
        // Nothing is known of them.
        return format!("(/</ {mark} {} /[^\"<>\\n]+/ value)*", exactly(" parameter name=\""));
    };
    if !tool.strict {
        let names: Vec<String> = properties.keys().map(|name| characters(name)).collect();
        let head = characters(" parameter name=\"");
        return format!("(/</ {mark} /{head}({})/ value)*", names.join("|"));
    }
    let required = required(tool.parameters);
    let definitions = Definitions::of(tool.parameters);
    let mut parts = Vec::with_capacity(properties.len());
    for (name, schema) in properties {
        let head = format!(" parameter name=\"{name}\" string=");
        let written = parameter(&head, schema, &definitions, mark);
        let part = format!("/</ {mark} {written}");
        let is_required = required.contains(&name.as_str());
        parts.push(if is_required { part } else { format!("({part})?") });
    }
    parts.join(" ")
}

fn required(schema: &Value) -> Vec<&str> {
    let names = schema.get("required").and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// One parameter of a strict tool, from behind its first sentinel.
fn parameter(head: &str, schema: &Value, definitions: &Definitions, mark: &str) -> String {
    let end = format!("{mark} {}", exactly(" parameter>\n"));
    if let Some(raw) = raw_text(schema) {
        return format!("{} /{raw}<\\// {end}", exactly(&format!("{head}\"true\">")));
    }
    let head = exactly(&format!("{head}\"false\">"));
    format!("{head} {} /<\\// {end}", json(&definitions.with(schema)))
}

/// The regular expression of a string that is written raw; none when its schema asks for more than that shows.
fn raw_text(schema: &Value) -> Option<String> {
    const NOTES: [&str; 5] = ["type", "description", "title", "default", "examples"];
    let map = schema.as_object()?;
    let only = |more: &[&str]| {
        map.keys().all(|key| NOTES.contains(&key.as_str()) || more.contains(&key.as_str()))
    };
    let is_string = map.get("type").is_none_or(|kind| kind == "string");
    if let Some(values) = map.get("enum").and_then(strings)
        && is_string
        && only(&["enum"])
    {
        let values: Vec<String> = values.into_iter().map(characters).collect();
        return Some(format!("({})", values.join("|")));
    }
    if map.get("type")? != "string" || !only(&["minLength", "maxLength"]) {
        return None;
    }
    let bound = |name: &str| map.get(name).map(Value::as_u64);
    match (bound("minLength"), bound("maxLength")) {
        (None, None) => Some("(.|\\n)*".to_owned()),
        (Some(None), _) | (_, Some(None)) => None,
        (min, max) => {
            let min = min.flatten().unwrap_or(0);
            let max = max.flatten().map_or_else(String::new, |max| max.to_string());
            Some(format!("(.|\\n){{{min},{max}}}"))
        }
    }
}

/// The entries of a list of strings; none when it is empty or holds anything else.
fn strings(values: &Value) -> Option<Vec<&str>> {
    let values: Option<Vec<&str>> = values.as_array()?.iter().map(Value::as_str).collect();
    values.filter(|values| !values.is_empty())
}

/// The rest of a parameter whose value can be anything, from behind its name.
fn any_value(mark: &str) -> String {
    let raw = format!("{} /(.|\\n)*<\\//", exactly("\" string=\"true\">"));
    let other = format!("{} %json {{}} /<\\//", exactly("\" string=\"false\">"));
    format!("({raw} | {other}) {mark} {}", exactly(" parameter>\n"))
}

/// The definitions of a tool's schema, to which the schemas of its parameters may refer.
struct Definitions(Map<String, Value>);

impl Definitions {
    fn of(schema: &Value) -> Self {
        let mut found = Map::new();
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = schema.get(name) {
                found.insert(name.to_owned(), definitions.clone());
            }
        }
        Self(found)
    }

    /// The schema of a parameter with the definitions beside it.
    fn with(&self, schema: &Value) -> Value {
        let mut schema = schema.clone();
        if let Some(map) = schema.as_object_mut() {
            for (name, definitions) in &self.0 {
                map.entry(name.clone()).or_insert_with(|| definitions.clone());
            }
        }
        schema
    }
}
