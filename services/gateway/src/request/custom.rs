//! Custom tools: their input is text and no JSON.
//!
//! To the model such a tool is a function of one string, `input`, whose description has the format of the text. What of it is kept
//! while calls are decoded is said in `constraint/lark_input.rs`.

use serde_json::{Value, json};

use super::fields::{Fields, wrong};
use super::shape::InputFormat;
use super::tools::Tool;
use crate::error::ApiError;

impl Tool {
    /// Reads a custom tool from its members: name, description, format.
    ///
    /// # Errors
    /// When a member is malformed, or a grammar has what no client may say.
    pub(super) fn read_custom(mut value: Value, place: &str) -> Result<Self, ApiError> {
        let format = value.get_mut("format").map(Value::take).unwrap_or_default();
        let format = read_format(format, &format!("{place}.format"))?;
        let mut tool = Self::read(value, "parameters", place)?;
        let about = "The whole input of the tool, as text.";
        tool.parameters = Some(json!({
            "type": "object",
            "properties": {"input": {"type": "string", "description": about}},
            "required": ["input"],
            "additionalProperties": false,
        }));
        tool.strict = true;
        let described = match &format {
            None => return Ok(tool),
            Some(InputFormat::Lark(grammar)) => format!("grammar:\n{grammar}"),
            Some(InputFormat::Regex(expression)) => format!("regex:\n{expression}"),
        };
        let about = tool.description.take().unwrap_or_default();
        tool.description = Some(format!("{about}\n\nThe input follows this {described}"));
        tool.input = match format {
            Some(InputFormat::Regex(expression)) => match unanchored(&expression) {
                "" => None,
                text => Some(InputFormat::Regex(text.to_owned())),
            },
            other => other,
        };
        Ok(tool)
    }
}

/// `{"type": "grammar", ..}` with syntax and definition beside the type (Responses) or one level below (chat completions).
fn read_format(value: Value, place: &str) -> Result<Option<InputFormat>, ApiError> {
    let wanted =
        "an object whose type is text or grammar (with a syntax, lark or regex, and a definition)";
    let bad = || wrong(place, wanted);
    if value.is_null() {
        return Ok(None);
    }
    let mut fields = Fields::within(value).ok_or_else(bad)?;
    let kind: String = fields.read("type", wanted)?.unwrap_or_default();
    match kind.as_str() {
        "text" => return Ok(None),
        "grammar" => {}
        _ => return Err(bad()),
    }
    let mut fields = match fields.take("grammar") {
        None => fields,
        Some(inner) => Fields::within(inner).ok_or_else(bad)?,
    };
    let syntax: String = fields.read("syntax", wanted)?.ok_or_else(bad)?;
    let definition: String = fields.read("definition", wanted)?.ok_or_else(bad)?;
    match syntax.as_str() {
        "regex" => Ok(Some(InputFormat::Regex(definition))),
        "lark" => match control_in(&definition) {
            None => Ok(Some(InputFormat::Lark(definition))),
            Some(what) => {
                let message = format!("{place} has {what}, which no request may say; leave it out");
                Err(ApiError::unsupported(place, message))
            }
        },
        _ => Err(bad()),
    }
}

/// The whole input is matched, so anchors at its ends say nothing.
fn unanchored(expression: &str) -> &str {
    let text = expression.strip_prefix('^').unwrap_or(expression);
    let Some(without) = text.strip_suffix('$') else { return text };
    let backslashes = without.bytes().rev().take_while(|byte| *byte == b'\\').count();
    if backslashes % 2 == 0 { without } else { text }
}

/// What of a Lark text would address tokens or other grammars, or set options of the engine: the part outside of strings,
/// regular expressions and comments is looked at.
fn control_in(grammar: &str) -> Option<&'static str> {
    let mut bare = String::with_capacity(grammar.len());
    let mut rest = grammar.chars().peekable();
    while let Some(sign) = rest.next() {
        match sign {
            '/' if rest.peek() == Some(&'/') => skip_line(&mut rest),
            '#' => skip_line(&mut rest),
            '"' | '/' => skip_quoted(&mut rest, sign),
            other => bare.push(other),
        }
    }
    let controls = [
        ("<", "a token literal"),
        ("@", "a reference to another grammar"),
        ("%llguidance", "options of the engine"),
        ("%lark", "a grammar within a grammar"),
    ];
    controls.into_iter().find(|(sign, _)| bare.contains(sign)).map(|(_, what)| what)
}

type Signs<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn skip_line(rest: &mut Signs<'_>) {
    while rest.next_if(|sign| *sign != '\n').is_some() {}
}

fn skip_quoted(rest: &mut Signs<'_>, end: char) {
    while let Some(sign) = rest.next() {
        match sign {
            '\\' => drop(rest.next()),
            sign if sign == end || sign == '\n' => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{InputFormat, Tool, control_in, unanchored};

    fn read(format: Value) -> Result<Tool, String> {
        let value = json!({"name": "t", "description": "d", "format": format});
        Tool::read_custom(value, "tools[0]").map_err(|error| error.param.unwrap_or_default())
    }

    #[test]
    fn formats_of_both_protocols_are_read() {
        let grammar = |syntax: &str| json!({"syntax": syntax, "definition": "^a+$"});
        let mut flat = grammar("regex");
        flat["type"] = "grammar".into();
        for format in [flat, json!({"type": "grammar", "grammar": grammar("regex")})] {
            let tool = read(format).ok().unwrap();
            assert_eq!(tool.input, Some(InputFormat::Regex("a+".into())));
            assert_eq!(tool.description.unwrap(), "d\n\nThe input follows this regex:\n^a+$");
        }
        for format in [Value::Null, json!({"type": "text"})] {
            let tool = read(format).ok().unwrap();
            assert_eq!((&tool.input, tool.description.as_deref()), (&None, Some("d")));
        }
        let lark = json!({"type": "grammar", "syntax": "lark", "definition": "start: \"x\""});
        assert_eq!(read(lark).ok().unwrap().input, Some(InputFormat::Lark("start: \"x\"".into())));
        for bad in [
            json!("text"),
            json!({"type": "x"}),
            json!({"type": "grammar"}),
            json!({"type": "grammar", "syntax": "ebnf", "definition": "x"}),
            json!({"type": "grammar", "syntax": "lark", "definition": "start: <[1]>"}),
        ] {
            assert_eq!(read(bad.clone()).err().as_deref(), Some("tools[0].format"), "{bad}");
        }
    }

    #[test]
    fn what_only_servers_may_say_is_found_outside_of_text() {
        let refused = [
            "%llguidance {}\nstart: a",
            "start: <[128800]>",
            "start: <think>",
            "start: @x",
            "start: %lark {\nstart: a\n}",
            "a: \"\\\"\" <[1]>",
            "a: /x/ <[1]>",
        ];
        for text in refused {
            assert!(control_in(text).is_some(), "{text}");
        }
        let taken = [
            "start: \"<[1]>\"",
            "start: /<[1]>@/",
            "start: a // <[1]>\na: \"x\"",
            "a: /\\/<x>/",
            "start: begin hunk+\n%import common.LF\nbegin: \"*** Begin Patch\" LF",
        ];
        for text in taken {
            assert_eq!(control_in(text), None, "{text}");
        }
    }

    #[test]
    fn only_anchors_at_the_ends_are_dropped() {
        for (text, expected) in
            [("^a$", "a"), ("a\\$", "a\\$"), ("a\\\\$", "a\\\\"), ("a", "a"), ("^$", "")]
        {
            assert_eq!(unanchored(text), expected);
        }
    }
}
