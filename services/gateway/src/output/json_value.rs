//! A JSON value that comes in parts and was promised to be one, but comes from a model.
//!
//! What goes out, joined, is always one JSON value. Strings, lists and objects go out as they come, for as long as they are
//! the beginning of some value; from the first byte that cannot follow, the rest is dropped and what is open is closed.
//! Numbers and words are short: they wait for their end, and go out as a string when they are none. What parsers would refuse although
//! it is JSON is put right on the way ([`fitted`]).

use fitted::Fitted;

mod fitted;

/// Lists and objects within each other: as many as common parsers take.
const DEPTH_MAX: usize = 100;

/// One value in the making.
#[derive(Default)]
pub(super) struct JsonValue {
    /// A number or a word, or white space before the value.
    waiting: String,
    shape: Option<Shape>,
    fitted: Fitted,
    broken: bool,
}

impl JsonValue {
    /// Takes the next part and appends what can go out.
    pub(super) fn push(&mut self, text: &str, out: &mut String) {
        let mut rest = text;
        if self.shape.is_none() {
            let begun = self.waiting.trim_start().is_empty();
            let first = rest.trim_start_matches([' ', '\n', '\t', '\r']);
            if !begun || !first.starts_with(['{', '[', '"']) {
                self.waiting.push_str(rest);
                return;
            }
            self.waiting.clear();
            self.shape = Some(Shape::default());
            rest = first;
        }
        let Some(shape) = &mut self.shape else { return };
        for character in rest.chars() {
            if self.broken {
                return;
            }
            if shape.take(character) {
                self.fitted.push(character, out);
            } else {
                self.broken = true;
            }
        }
    }

    /// Ends the value and appends what it lacks.
    pub(super) fn end(mut self, out: &mut String) {
        match self.shape {
            Some(shape) => {
                let mut rest = String::new();
                shape.complete(&mut rest);
                rest.chars().for_each(|character| self.fitted.push(character, out));
                self.fitted.end(out);
            }
            None => {
                let text = self.waiting.trim();
                if serde_json::from_str::<serde_json::Value>(text).is_ok() {
                    out.push_str(text);
                } else {
                    out.push_str(&serde_json::Value::from(self.waiting).to_string());
                }
            }
        }
    }

    /// The answer broke off within the value: appends what waits, and closes nothing.
    pub(super) fn break_off(self, out: &mut String) {
        if self.shape.is_none() {
            out.push_str(self.waiting.trim_start());
        } else {
            out.push_str(self.fitted.held());
        }
    }
}

/// What may follow the text so far.
#[derive(Default)]
struct Shape {
    /// What is open, the outermost first; true for objects.
    open: Vec<bool>,
    expect: Expect,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Expect {
    /// A value; directly behind `[` also its end.
    #[default]
    Value,
    FirstItem,
    /// A key; directly behind `{` also its end.
    Key,
    FirstKey,
    Colon,
    /// A comma or the end of what is open.
    Next,
    InString {
        key: bool,
        escape: Escape,
    },
    InNumber(Number),
    /// Within a word, so many bytes of it taken.
    InWord(&'static str, usize),
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Escape {
    #[default]
    None,
    Begun,
    /// So many hexadecimal digits are to come.
    Digits(u8),
}

/// How far a number has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Number {
    Sign,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl Number {
    fn is_complete(self) -> bool {
        matches!(self, Self::Zero | Self::Whole | Self::Fraction | Self::ExponentDigits)
    }

    fn next(self, character: char) -> Option<Self> {
        let digit = character.is_ascii_digit();
        match self {
            Self::Sign if character == '0' => Some(Self::Zero),
            Self::Sign | Self::Whole if digit => Some(Self::Whole),
            Self::Zero | Self::Whole if character == '.' => Some(Self::Point),
            Self::Point | Self::Fraction if digit => Some(Self::Fraction),
            Self::Zero | Self::Whole | Self::Fraction if matches!(character, 'e' | 'E') => {
                Some(Self::Exponent)
            }
            Self::Exponent if matches!(character, '+' | '-') => Some(Self::ExponentSign),
            Self::Exponent | Self::ExponentSign | Self::ExponentDigits if digit => {
                Some(Self::ExponentDigits)
            }
            _ => None,
        }
    }
}

impl Shape {
    /// Whether the character can follow; takes it then.
    fn take(&mut self, character: char) -> bool {
        match self.expect {
            Expect::InString { key, escape } => return self.take_in_string(key, escape, character),
            Expect::InNumber(number) => {
                if let Some(number) = number.next(character) {
                    self.expect = Expect::InNumber(number);
                    return true;
                }
                if !number.is_complete() {
                    return false;
                }
                self.expect = Expect::Next;
            }
            Expect::InWord(word, taken) => {
                if !word[taken..].starts_with(character) {
                    return false;
                }
                let whole = taken + 1 == word.len();
                self.expect = if whole { Expect::Next } else { Expect::InWord(word, taken + 1) };
                return true;
            }
            Expect::Value
            | Expect::FirstItem
            | Expect::Key
            | Expect::FirstKey
            | Expect::Colon
            | Expect::Next => {}
        }
        matches!(character, ' ' | '\n' | '\t' | '\r') || self.take_sign(character)
    }

    fn take_in_string(&mut self, key: bool, escape: Escape, character: char) -> bool {
        let next = match (escape, character) {
            (Escape::None, '"') => {
                self.expect = if key { Expect::Colon } else { Expect::Next };
                return true;
            }
            (Escape::None, '\\') => Escape::Begun,
            (Escape::None, character) if character < ' ' => return false,
            (Escape::None, _) => Escape::None,
            (Escape::Begun, 'u') => Escape::Digits(4),
            (Escape::Begun, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Escape::None,
            (Escape::Begun, _) => return false,
            (Escape::Digits(left), digit) if digit.is_ascii_hexdigit() => {
                if left == 1 {
                    Escape::None
                } else {
                    Escape::Digits(left - 1)
                }
            }
            (Escape::Digits(_), _) => return false,
        };
        self.expect = Expect::InString { key, escape: next };
        true
    }

    fn take_sign(&mut self, character: char) -> bool {
        let next = match (self.expect, character) {
            (Expect::FirstKey, '}') | (Expect::FirstItem, ']') => return self.close(),
            (Expect::Next, '}') if self.open.last() == Some(&true) => return self.close(),
            (Expect::Next, ']') if self.open.last() == Some(&false) => return self.close(),
            (Expect::Next, ',') => match self.open.last() {
                Some(true) => Expect::Key,
                Some(false) => Expect::Value,
                None => return false,
            },
            (Expect::Key | Expect::FirstKey, '"') => {
                Expect::InString { key: true, escape: Escape::None }
            }
            (Expect::Colon, ':') => Expect::Value,
            (Expect::Value | Expect::FirstItem, character) => return self.begin_value(character),
            _ => return false,
        };
        self.expect = next;
        true
    }

    fn begin_value(&mut self, character: char) -> bool {
        self.expect = match character {
            '{' | '[' if self.open.len() < DEPTH_MAX => {
                self.open.push(character == '{');
                if character == '{' { Expect::FirstKey } else { Expect::FirstItem }
            }
            '"' => Expect::InString { key: false, escape: Escape::None },
            '-' => Expect::InNumber(Number::Sign),
            '0' => Expect::InNumber(Number::Zero),
            '1'..='9' => Expect::InNumber(Number::Whole),
            't' => Expect::InWord("true", 1),
            'f' => Expect::InWord("false", 1),
            'n' => Expect::InWord("null", 1),
            _ => return false,
        };
        true
    }

    fn close(&mut self) -> bool {
        self.open.pop();
        self.expect = Expect::Next;
        true
    }

    /// Appends what makes the text so far a value.
    fn complete(self, out: &mut String) {
        let mut left = self.open.len();
        match self.expect {
            Expect::Value => out.push_str("null"),
            Expect::Key => out.push_str("\"\": null"),
            Expect::Colon => out.push_str(": null"),
            Expect::FirstItem | Expect::FirstKey | Expect::Next => {}
            Expect::InString { key, escape } => {
                match escape {
                    Escape::None => {}
                    Escape::Begun => out.push('\\'),
                    Escape::Digits(digits) => {
                        out.extend(std::iter::repeat_n('0', usize::from(digits)));
                    }
                }
                out.push('"');
                if key {
                    out.push_str(": null");
                }
            }
            Expect::InNumber(number) => {
                if !number.is_complete() {
                    out.push('0');
                }
            }
            Expect::InWord(word, taken) => out.push_str(&word[taken..]),
        }
        while 0 < left {
            left -= 1;
            out.push(if self.open[left] { '}' } else { ']' });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::JsonValue;

    fn whole(parts: &[&str]) -> String {
        let mut value = JsonValue::default();
        let mut out = String::new();
        for part in parts {
            value.push(part, &mut out);
        }
        value.end(&mut out);
        out
    }

    #[test]
    fn what_is_json_passes_unchanged_at_every_split() {
        for text in [
            "12",
            "-0.5e+10",
            "true",
            "null",
            r#""a\"\u00e9\n""#,
            r#"{"a": [1, 2.5, {"b": null}], "c": "d", "e": {}, "f": [], "g": -1e5, "h": false}"#,
            "[[[[]]]]",
        ] {
            for cut in (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)) {
                assert_eq!(whole(&[&text[..cut], &text[cut..]]), text);
            }
        }
    }

    #[test]
    fn every_beginning_and_every_damage_ends_as_json() {
        let text =
            r#" {"a": [1, -2.5e-3, {"b\u00e9\\": null}], "c": "d", "e": true, "f": [0.1, false]}"#;
        for cut in (0..text.len()).filter(|cut| text.is_char_boundary(*cut)) {
            for damage in ["", "x", "}", "]", ",", "\"", "\\", "\n", ":", "1", "-", "{", "é"] {
                for rest in ["", &text[cut..]] {
                    let got = whole(&[&text[..cut], damage, rest]);
                    let parsed: Result<Value, _> = serde_json::from_str(&got);
                    assert!(parsed.is_ok(), "{cut} {damage} {rest}: {got}");
                }
            }
        }
    }

    #[test]
    fn what_no_parser_holds_is_put_right() {
        let digits = "9".repeat(400);
        let cases = [
            (
                r#"["\ud83d", "\ude00x", "\ud83d\ud83d\ude00", "\ud83d\n"]"#.to_owned(),
                r#"["\ufffd", "\ufffdx", "\ufffd\ud83d\ude00", "\ufffd\n"]"#.to_owned(),
            ),
            (r#""\uD83D"#.to_owned(), r#""\ufffd""#.to_owned()),
            (r#"{"\ud83d": "\ud8"#.to_owned(), r#"{"\ufffd": "\ufffd"}"#.to_owned()),
            (r#"{"\uDFFF": 1}"#.to_owned(), r#"{"\ufffd": 1}"#.to_owned()),
            ("[1e999, -2.5E+400, 1e5]".to_owned(), "[1e308, -2.5e307, 1e5]".to_owned()),
            ("[0.0001e310, 1e-999, 0e99]".to_owned(), "[0.0001e310, 1e-999, 0e99]".to_owned()),
            (format!("[{digits}]"), format!("[{}]", "9".repeat(308))),
            (format!("[1{}]", "0".repeat(308)), format!("[1{}]", "0".repeat(308))),
            (format!("[{digits}.5e9"), format!("[{}.5e0]", "9".repeat(308))),
            ("1e999".to_owned(), "\"1e999\"".to_owned()),
        ];
        for (text, expected) in cases {
            for cut in (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)) {
                let got = whole(&[&text[..cut], &text[cut..]]);
                assert_eq!(got, expected, "{text} at {cut}");
                assert!(serde_json::from_str::<Value>(&got).is_ok(), "{got}");
            }
        }
    }

    #[test]
    fn words_that_are_no_value_become_strings() {
        for (text, expected) in [
            ("hello", "\"hello\""),
            ("", "\"\""),
            ("12 apples", "\"12 apples\""),
            ("\n 5 \n", "5"),
            ("True", "\"True\""),
        ] {
            assert_eq!(whole(&[text]), expected);
        }
    }

    #[test]
    fn objects_go_out_as_they_come() {
        let mut value = JsonValue::default();
        let mut shown = Vec::new();
        for part in ["{\"a", "\": [1", ", 2]", "}"] {
            let mut out = String::new();
            value.push(part, &mut out);
            shown.push(out);
        }
        assert_eq!(shown, ["{\"a", "\": [1", ", 2]", "}"]);
        assert_eq!(whole(&["[".repeat(500).as_str()]).len(), 200, "depth is bounded");
    }
}
