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
//! of any other schema as JSON, a string with a pattern included. Its schema goes to the engine as a part of the tool's, which is what
//! references in it are about.

use std::collections::HashSet;

use serde_json::{Map, Value};
use shared::TokenId;

use super::lark::{characters, exactly, expression};
use super::lark_input::is_kept;
use super::server_text::ServerText;
use super::{CallRules, CallableTool, ConstraintError, InputLanguage};

/// Keywords at the root of a tool's schema that say something of the arguments together.
const NOT_HELD: [&str; 18] = [
    "$dynamicRef",
    "$recursiveRef",
    "$ref",
    "allOf",
    "anyOf",
    "const",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "enum",
    "if",
    "maxProperties",
    "minProperties",
    "not",
    "oneOf",
    "patternProperties",
    "propertyNames",
    "x-guidance",
];

/// What the answer may be instead of calls.
pub(super) enum Instead {
    /// A call is made.
    Nothing,
    /// Any text, also before the calls.
    Text,
    /// A value of this schema.
    Json(Value),
}

/// The text of the grammar. `opened`: the prompt has opened the block.
///
/// # Errors
/// When it becomes too large, or a strict tool's schema says what its calls would not be held to.
pub(super) fn grammar(
    rules: &CallRules<'_>,
    instead: &Instead,
    opened: bool,
    sentinel: TokenId,
) -> Result<String, ConstraintError> {
    let mark = format!("<[{}]>", sentinel.0);
    let mut text = ServerText::new("%llguidance {\"no_forcing\": true}\n");
    let open = exactly("<");
    let start = match instead {
        _ if opened => format!("{open} {mark} calls"),
        // The line feeds before the block may have been part of what came before.
        Instead::Nothing => format!("/\\n{{0,2}}</ {mark} opening calls"),
        Instead::Text => format!("/(.|\\n)*</ {mark} opening calls | /(.|\\n)*/"),
        Instead::Json(schema) => {
            let document = text.document("response_format", schema)?;
            let answer = text.value_of(document, String::new())?;
            format!("/\\n{{0,2}}</ {mark} opening calls | {answer}")
        }
    };
    text.rule("start", &start)?;
    text.rule("opening", &format!("{} {mark}", exactly(" calls>\n<")))?;
    let more = if rules.single { "" } else { " (/</ MARK invoke)*" }.replace("MARK", &mark);
    text.rule("calls", &format!("invoke{more} /<\\// {mark} {}", exactly(" calls>")))?;
    let tools: Vec<String> = (0..rules.tools.len()).map(|tool| format!("tool{tool}")).collect();
    text.rule("invoke", &tools.join(" | "))?;
    for (number, tool) in rules.tools.iter().enumerate() {
        text.fits(tool.name.len())?;
        let head = exactly(&format!(" invoke name=\"{}\">\n", tool.name));
        let close = format!("{mark} {}", exactly(" invoke>\n"));
        let body = match input(number, tool, &mut text)? {
            None => arguments(tool, &mark, &mut text)?,
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
        text.rule(&format!("tool{number}"), &format!("{head} {body} {close}"))?;
    }
    let document = text.document("a value", &Value::Object(Map::new()))?;
    let anything = text.value_of(document, String::new())?;
    text.rule("value", &any_value(&anything, &mark))?;
    text.whole()
}

/// What a custom tool's text is made of; none for tools with arguments.
fn input(
    number: usize,
    tool: &CallableTool<'_>,
    text: &mut ServerText,
) -> Result<Option<String>, ConstraintError> {
    Ok(match tool.input {
        None => None,
        Some(InputLanguage::Regex(regex)) => {
            text.fits(regex.len())?;
            // Terminals of their own: what the client wrote stands alone, and is refused alone.
            text.rule(&format!("INPUT{number}"), &expression(regex))?;
            text.rule(&format!("VALUE{number}"), &format!("INPUT{number} \"</\""))?;
            Some(format!("VALUE{number}"))
        }
        Some(InputLanguage::Lark(lark)) => {
            text.fits(lark.len())?;
            if is_kept(lark) {
                text.rule(&format!("input{number}"), &format!("%lark {{\n{lark}\n}}"))?;
                Some(format!("input{number} /<\\//"))
            } else {
                Some("/(.|\\n)*<\\//".to_owned())
            }
        }
    })
}

/// The parameters of a call.
fn arguments(
    tool: &CallableTool<'_>,
    mark: &str,
    text: &mut ServerText,
) -> Result<String, ConstraintError> {
    if tool.strict {
        check_root(tool)?;
    }
    let properties = tool.parameters.get("properties").and_then(Value::as_object);
    let Some(properties) = properties.filter(|properties| !properties.is_empty()) else {
        let closed = tool.parameters.get("additionalProperties") == Some(&Value::Bool(false));
        if tool.strict && closed {
            return Ok(String::new());
        }
        // Nothing is known of them.
        return Ok(format!("(/</ {mark} {} /[^\"<>\\n]+/ value)*", exactly(" parameter name=\"")));
    };
    // Looked at as it grows: what it is made of may be many times what is taken.
    let mut written = String::new();
    if !tool.strict {
        for name in properties.keys() {
            text.fits(written.len() + name.len())?;
            written.push_str(if written.is_empty() { "" } else { "|" });
            written.push_str(&characters(name));
        }
        let head = characters(" parameter name=\"");
        return Ok(format!("(/</ {mark} /{head}({written})/ value)*"));
    }
    let required: HashSet<&str> = required(tool.parameters).collect();
    let mut document = None;
    for (name, schema) in properties {
        text.fits(written.len() + name.len())?;
        let head = format!(" parameter name=\"{name}\" string=");
        let end = format!("{mark} {}", exactly(" parameter>\n"));
        let part = if let Some(raw) = raw_text(schema) {
            format!("{} /{raw}<\\// {end}", exactly(&format!("{head}\"true\">")))
        } else {
            let document = match document {
                Some(document) => document,
                None => *document.insert(text.document(tool.name, tool.parameters)?),
            };
            let value = text.value_of(document, format!("/properties/{}", escaped(name)))?;
            format!("{} {value} /<\\// {end}", exactly(&format!("{head}\"false\">")))
        };
        written.push_str(if written.is_empty() { "" } else { " " });
        let part = format!("/</ {mark} {part}");
        let is_required = required.contains(name.as_str());
        written.push_str(&if is_required { part } else { format!("({part})?") });
    }
    Ok(written)
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    let names = schema.get("required").and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str)
}

/// A name as a part of a JSON pointer. Source: RFC 6901.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Refuses a strict tool whose schema says more of the arguments together than which there are: each is held to its own schema.
fn check_root(tool: &CallableTool<'_>) -> Result<(), ConstraintError> {
    let count = |name: &str| tool.parameters.get(name).and_then(Value::as_u64);
    let properties =
        tool.parameters.get("properties").and_then(Value::as_object).map_or(0, Map::len);
    let least = required(tool.parameters).count();
    let says_nothing = |keyword: &str| match keyword {
        "minProperties" => count(keyword).is_some_and(|min| min <= to_u64(least)),
        "maxProperties" => count(keyword).is_some_and(|max| to_u64(properties) <= max),
        _ => tool.parameters.get(keyword).is_some_and(|value| *value == Value::Object(Map::new())),
    };
    let is_said =
        |keyword: &&str| tool.parameters.get(*keyword).is_some() && !says_nothing(keyword);
    match NOT_HELD.into_iter().find(is_said) {
        None => Ok(()),
        Some(keyword) => Err(ConstraintError::Root { tool: shortened(tool.name), keyword }),
    }
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// As much of a tool's name as an error shows.
fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
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

/// The rest of a parameter whose value can be anything, from behind its name. `anything`: any JSON.
fn any_value(anything: &str, mark: &str) -> String {
    let raw = format!("{} /(.|\\n)*<\\//", exactly("\" string=\"true\">"));
    let other = format!("{} {anything} /<\\//", exactly("\" string=\"false\">"));
    format!("({raw} | {other}) {mark} {}", exactly(" parameter>\n"))
}
