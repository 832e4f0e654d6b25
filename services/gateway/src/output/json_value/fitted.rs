//! What is JSON by its grammar and no common parser holds: half of a surrogate pair, which is no character, and a number beyond
//! the largest double. The first becomes U+FFFD, the second is cut to one that fits; everything else goes out as it comes.

use std::fmt::Write;

use serde_json::Value;

/// U+FFFD, as an escape where an escape stood.
const REPLACEMENT: &str = "\\ufffd";
/// Digits of the largest double.
const WHOLE_DIGITS_MAX: usize = 309;
/// The exponent of the largest double.
const EXPONENT_MAX: u32 = 308;

/// The text of one value, given character by character, each of which can follow.
#[derive(Default)]
pub(super) struct Fitted {
    place: Place,
    /// What does not go out yet: an escape behind half of a pair, or the exponent of a number.
    held: String,
    /// Where the escape begins in what is held; half of a pair is before it.
    escape: usize,
    /// The number so far.
    number: String,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Plain,
    String,
    Escape,
    Number,
}

impl Fitted {
    /// Takes the next character and appends what can go out.
    pub(super) fn push(&mut self, character: char, out: &mut String) {
        match self.place {
            Place::String => self.push_in_string(character, out),
            Place::Escape => self.push_in_escape(character, out),
            Place::Number if matches!(character, '0'..='9' | '.' | 'e' | 'E' | '+' | '-') => {
                self.push_in_number(character, out);
            }
            Place::Plain | Place::Number => {
                self.end(out);
                match character {
                    '"' => self.place = Place::String,
                    '-' | '0'..='9' => {
                        self.place = Place::Number;
                        self.number.push(character);
                    }
                    _ => {}
                }
                out.push(character);
            }
        }
    }

    /// The value is complete: appends the end of a number.
    pub(super) fn end(&mut self, out: &mut String) {
        if self.place == Place::Number {
            self.end_number(out);
            self.place = Place::Plain;
        }
    }

    /// The value is not complete and never will be: what is held, as it came.
    pub(super) fn held(&self) -> &str {
        &self.held
    }

    fn push_in_string(&mut self, character: char, out: &mut String) {
        if character == '\\' {
            self.escape = self.held.len();
            self.held.push(character);
            self.place = Place::Escape;
            return;
        }
        self.give_up_half(out);
        out.push(character);
        if character == '"' {
            self.place = Place::Plain;
        }
    }

    fn push_in_escape(&mut self, character: char, out: &mut String) {
        self.held.push(character);
        let escape = &self.held[self.escape..];
        let length = if escape.starts_with("\\u") { 6 } else { 2 };
        if escape.len() < length {
            return;
        }
        self.place = Place::String;
        let unit = escape.get(2..6).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let follows_half = 0 < self.escape;
        match unit {
            Some(0xDC00..=0xDFFF) if follows_half => {
                out.push_str(&self.held);
                self.held.clear();
            }
            _ => {
                let escape = self.held.split_off(self.escape);
                self.give_up_half(out);
                match unit {
                    Some(0xD800..=0xDBFF) => self.held = escape,
                    Some(0xDC00..=0xDFFF) => out.push_str(REPLACEMENT),
                    _ => out.push_str(&escape),
                }
            }
        }
    }

    /// The first half of a pair has no second one.
    fn give_up_half(&mut self, out: &mut String) {
        if !self.held.is_empty() {
            out.push_str(REPLACEMENT);
            self.held.clear();
        }
    }

    fn push_in_number(&mut self, character: char, out: &mut String) {
        self.number.push(character);
        let is_exponent = !self.held.is_empty() || matches!(character, 'e' | 'E');
        if is_exponent {
            self.held.push(character);
            return;
        }
        let whole = self.number.trim_start_matches('-');
        let is_long = WHOLE_DIGITS_MAX <= whole.len() && !whole.contains('.');
        if is_long && !holds(&self.number) {
            self.number.pop();
            return;
        }
        out.push(character);
    }

    fn end_number(&mut self, out: &mut String) {
        let number = std::mem::take(&mut self.number);
        let exponent = std::mem::take(&mut self.held);
        if exponent.is_empty() || holds(&number) {
            out.push_str(&exponent);
            return;
        }
        let without = &number[..number.len() - exponent.len()];
        let (mut fits, mut too_large) = (0, EXPONENT_MAX + 1);
        while fits + 1 < too_large {
            let middle = fits.midpoint(too_large);
            if holds(&format!("{without}e{middle}")) {
                fits = middle;
            } else {
                too_large = middle;
            }
        }
        write!(out, "e{fits}").expect("a string takes everything");
    }
}

fn holds(number: &str) -> bool {
    serde_json::from_str::<Value>(number).is_ok()
}
