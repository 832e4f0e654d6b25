//! Reads a block of tool calls, in the markup the model writes them in, and turns their parameters into JSON arguments.
//!
//! ```text
//! <SENTINEL calls>
//! <SENTINEL invoke name="NAME">
//! <SENTINEL parameter name="KEY" string="true">raw text</SENTINEL parameter>
//! <SENTINEL parameter name="KEY" string="false">JSON</SENTINEL parameter>
//! </SENTINEL invoke>
//! </SENTINEL calls>
//! ```
//! The sentinel is one token, known by its id; text that spells it is text. A value ends at `</` and the sentinel, and
//! nowhere else: values are not escaped. Each call's arguments, joined, are one JSON object however the text was cut.

use super::json_value::JsonValue;
use super::text::Needle;
use super::{Delta, Piece};

/// The parser of one block, from behind its first sentinel.
pub(super) struct CallsText {
    stage: Stage,
    /// How much of `</` the text ends with.
    closing: u8,
    invoke: Needle,
    parameter: Needle,
    separator: Needle,
    is_string: Needle,
    is_json: Needle,
}

enum Stage {
    /// Between calls; the text behind a closing tag's sentinel while it may name the block.
    Between(Option<String>),
    Name(String),
    /// Between the parameters of a call; how many it has so far.
    Parameters(usize),
    Key(usize, String),
    Attribute(usize),
    StringValue(usize),
    JsonValue(usize, JsonValue),
    Ended,
}

/// The names of a block of calls, in this model's markup and in its predecessor's.
const BLOCK_NAMES: [&str; 2] = [" calls", "tool_calls"];

impl CallsText {
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Between(None),
            closing: 0,
            invoke: Needle::new(b"invoke name=\""),
            parameter: Needle::new(b"parameter name="),
            separator: Needle::new(b"\" string=\""),
            is_string: Needle::new(b"true\">"),
            is_json: Needle::new(b"false\">"),
        }
    }

    /// Takes text.
    pub(super) fn push(&mut self, text: &str, delta: &mut Delta) {
        let mut value = String::new();
        for character in text.chars() {
            if matches!(self.stage, Stage::StringValue(_) | Stage::JsonValue(..)) {
                self.push_value(character, &mut value, delta);
                continue;
            }
            self.closing = match (character, self.closing) {
                ('<', _) => 1,
                ('/', 1) => 2,
                _ => 0,
            };
            self.push_markup(character, delta);
        }
        self.show_value(&value, delta);
    }

    /// The sentinel: part of a tag when a bracket precedes it, and nothing otherwise.
    pub(super) fn sentinel(&mut self, delta: &mut Delta) {
        if self.closing != 2 {
            self.interrupt(delta);
            return;
        }
        self.closing = 0;
        self.restart();
        let stage = std::mem::replace(&mut self.stage, Stage::Ended);
        self.stage = match stage {
            Stage::Between(_) => Stage::Between(Some(String::new())),
            // A parameter that ends within its name is none; one whose name went out has no value.
            Stage::Parameters(count) | Stage::Key(count, _) => {
                delta.push(Piece::Arguments(if count == 0 { "{}" } else { "}" }.into()));
                Stage::Between(None)
            }
            Stage::Attribute(_) => {
                delta.push(Piece::Arguments("null}".into()));
                Stage::Between(None)
            }
            Stage::StringValue(count) => {
                delta.push(Piece::Arguments("\"".into()));
                Stage::Parameters(count + 1)
            }
            Stage::JsonValue(count, value) => {
                let mut rest = String::new();
                value.end(&mut rest);
                delta.push(Piece::Arguments(rest));
                Stage::Parameters(count + 1)
            }
            stage @ (Stage::Name(_) | Stage::Ended) => stage,
        };
    }

    /// A control token other than the sentinel: no tag reaches across it. `shown` is its spelling, if it is part of what
    /// the model says.
    pub(super) fn control(&mut self, shown: Option<&str>, delta: &mut Delta) {
        self.interrupt(delta);
        if let Some(text) = shown {
            self.push(text, delta);
        }
    }

    /// The answer ended. A call that is not complete stays so: its arguments must not look as if they were.
    pub(super) fn finish(&mut self, delta: &mut Delta) {
        self.interrupt(delta);
        if let Stage::JsonValue(_, value) = std::mem::replace(&mut self.stage, Stage::Ended) {
            let mut rest = String::new();
            value.break_off(&mut rest);
            delta.push(Piece::Arguments(rest));
        }
    }

    fn interrupt(&mut self, delta: &mut Delta) {
        let held = self.held();
        self.closing = 0;
        self.show_value(held, delta);
        self.restart();
        if let Stage::Between(name) = &mut self.stage {
            *name = None;
        }
    }

    fn restart(&mut self) {
        for needle in [
            &mut self.invoke,
            &mut self.parameter,
            &mut self.separator,
            &mut self.is_string,
            &mut self.is_json,
        ] {
            needle.restart();
        }
    }

    /// What is held back because it may begin the end of a value.
    fn held(&self) -> &'static str {
        match self.closing {
            0 => "",
            1 => "<",
            _ => "</",
        }
    }

    fn push_value(&mut self, character: char, value: &mut String, delta: &mut Delta) {
        match (character, self.closing) {
            ('/', 1) => self.closing = 2,
            ('<', _) => {
                value.push_str(self.held());
                self.closing = 1;
            }
            _ => {
                value.push_str(self.held());
                self.closing = 0;
                value.push(character);
            }
        }
        // Keeps the copy short; a value is shown in pieces of the text's parts anyway.
        if 4_096 < value.len() {
            self.show_value(value, delta);
            value.clear();
        }
    }

    fn show_value(&mut self, text: &str, delta: &mut Delta) {
        if text.is_empty() {
            return;
        }
        match &mut self.stage {
            Stage::StringValue(_) => {
                let quoted = serde_json::Value::from(text).to_string();
                delta.push(Piece::Arguments(quoted[1..quoted.len() - 1].to_owned()));
            }
            Stage::JsonValue(_, value) => {
                let mut shown = String::new();
                value.push(text, &mut shown);
                delta.push(Piece::Arguments(shown));
            }
            Stage::Between(_)
            | Stage::Name(_)
            | Stage::Parameters(_)
            | Stage::Key(..)
            | Stage::Attribute(_)
            | Stage::Ended => {}
        }
    }

    fn push_markup(&mut self, character: char, delta: &mut Delta) {
        let mut bytes = [0; 4];
        let bytes = character.encode_utf8(&mut bytes).as_bytes();
        let found = |needle: &mut Needle| bytes.iter().any(|byte| needle.feed(*byte).is_some());
        let next = match &mut self.stage {
            Stage::Between(name) => {
                let ended = names_block(name, character);
                let begun = found(&mut self.invoke);
                match (ended, begun) {
                    (true, _) => Some(Stage::Ended),
                    (false, true) => Some(Stage::Name(String::new())),
                    (false, false) => None,
                }
            }
            Stage::Name(name) if character == '"' => {
                delta.push(Piece::Call(std::mem::take(name)));
                Some(Stage::Parameters(0))
            }
            Stage::Name(name) => {
                name.push(character);
                None
            }
            Stage::Parameters(count) => {
                found(&mut self.parameter).then(|| Stage::Key(*count, String::new()))
            }
            Stage::Key(count, key) => {
                key.push(character);
                if found(&mut self.separator) {
                    key.truncate(key.len() - "\" string=\"".len());
                    delta.push(Piece::Arguments(opened(*count, key)));
                    Some(Stage::Attribute(*count))
                } else {
                    None
                }
            }
            Stage::Attribute(count) => {
                let count = *count;
                let (string, json) = (found(&mut self.is_string), found(&mut self.is_json));
                if string {
                    delta.push(Piece::Arguments("\"".into()));
                }
                match (string, json) {
                    (true, _) => Some(Stage::StringValue(count)),
                    (false, true) => Some(Stage::JsonValue(count, JsonValue::default())),
                    (false, false) => None,
                }
            }
            Stage::StringValue(_) | Stage::JsonValue(..) | Stage::Ended => None,
        };
        if let Some(stage) = next {
            self.stage = stage;
            self.closing = 0;
            self.restart();
        }
    }
}

/// Whether a closing tag that goes on with this character ends the block.
fn names_block(name: &mut Option<String>, character: char) -> bool {
    let Some(text) = name else { return false };
    if character == '>' {
        let ended = BLOCK_NAMES.contains(&text.as_str());
        *name = None;
        return ended;
    }
    text.push(character);
    if !BLOCK_NAMES.iter().any(|block| block.starts_with(text.as_str())) {
        *name = None;
    }
    false
}

/// The arguments up to the value of the next key. The key keeps its opening quote, which is not part of it.
fn opened(count: usize, key: &str) -> String {
    let before = if count == 0 { "{" } else { ", " };
    let key = serde_json::Value::from(key.strip_prefix('"').unwrap_or(key));
    format!("{before}{key}: ")
}
