//! What both dialects are read into, and how it is written for llguidance.
//!
//! Everything a client wrote comes out as numbers of characters (`\x{..}`) between signs of our own: nothing of its text
//! is passed on.

use std::collections::HashSet;
use std::fmt::Write;

/// An expression over characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Expression {
    /// The empty text.
    Empty,
    /// These characters, one after another. Not empty.
    Literal(Vec<char>),
    /// One character of these ranges, or of none of them.
    Class(Class),
    Sequence(Vec<Self>),
    Choice(Vec<Self>),
    Repeat {
        what: Box<Self>,
        min: u32,
        max: Option<u32>,
    },
    /// The rule of this number.
    Rule(usize),
}

/// A set of characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Class {
    pub(super) ranges: Vec<(char, char)>,
    pub(super) negated: bool,
}

impl Expression {
    /// Whether the empty text matches.
    ///
    /// # Panics
    /// When it has a rule.
    pub(super) fn is_nullable(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Literal(_) | Self::Class(_) => false,
            Self::Sequence(parts) => parts.iter().all(Self::is_nullable),
            Self::Choice(parts) => parts.iter().any(Self::is_nullable),
            Self::Repeat { what, min, .. } => *min == 0 || what.is_nullable(),
            Self::Rule(_) => panic!("a rule is looked up by those who know it"),
        }
    }

    /// What matches the same texts but the empty one; none when that is nothing at all.
    ///
    /// # Panics
    /// When it has a rule.
    pub(super) fn without_empty(&self) -> Option<Self> {
        match self {
            Self::Empty => None,
            Self::Literal(_) | Self::Class(_) => Some(self.clone()),
            Self::Sequence(_) if !self.is_nullable() => Some(self.clone()),
            Self::Sequence(parts) => {
                // The first part that is not empty, whichever it is, and all behind it.
                let begins = |index: usize| {
                    let first = parts[index].without_empty()?;
                    let rest = parts[index + 1..].iter().cloned();
                    Some(Self::Sequence([first].into_iter().chain(rest).collect()))
                };
                Self::choice((0..parts.len()).filter_map(begins).collect())
            }
            Self::Choice(parts) => {
                Self::choice(parts.iter().filter_map(Self::without_empty).collect())
            }
            Self::Repeat { what, min, max } => {
                let min = if what.is_nullable() { 1 } else { (*min).max(1) };
                let what = Box::new(what.without_empty()?);
                Some(Self::Repeat { what, min, max: *max })
            }
            Self::Rule(_) => panic!("a rule is looked up by those who know it"),
        }
    }

    /// The same texts without parts that say nothing and alternatives that are there twice. llguidance compiles the
    /// plainer one faster, and fails for some of the others.
    pub(super) fn simplified(&self) -> Self {
        match self {
            Self::Empty | Self::Literal(_) | Self::Class(_) | Self::Rule(_) => self.clone(),
            Self::Sequence(parts) => {
                let mut parts: Vec<Self> = parts.iter().map(Self::simplified).collect();
                parts.retain(|part| *part != Self::Empty);
                match parts.len() {
                    0 => Self::Empty,
                    1 => parts.remove(0),
                    _ => Self::Sequence(parts),
                }
            }
            Self::Choice(parts) => {
                let parts: Vec<Self> = parts.iter().map(Self::simplified).collect();
                let mut seen = HashSet::new();
                let is_new: Vec<bool> = parts.iter().map(|part| seen.insert(part)).collect();
                let kept = parts.into_iter().zip(is_new).filter(|(_, is_new)| *is_new);
                Self::choice(kept.map(|(part, _)| part).collect()).unwrap_or(Self::Empty)
            }
            Self::Repeat { what, min, max } => match what.simplified() {
                Self::Empty => Self::Empty,
                what if (*min, *max) == (1, Some(1)) => what,
                what => Self::Repeat { what: Box::new(what), min: *min, max: *max },
            },
        }
    }

    /// Parts, characters and ranges: what a copy costs.
    pub(super) fn size(&self) -> usize {
        1 + match self {
            Self::Empty | Self::Rule(_) => 0,
            Self::Literal(signs) => signs.len(),
            Self::Class(class) => class.ranges.len(),
            Self::Sequence(parts) | Self::Choice(parts) => parts.iter().map(Self::size).sum(),
            Self::Repeat { what, .. } => what.size(),
        }
    }

    /// One of these; none of none.
    pub(super) fn choice(mut parts: Vec<Self>) -> Option<Self> {
        match parts.len() {
            0 => None,
            1 => parts.pop(),
            _ => Some(Self::Choice(parts)),
        }
    }
}

impl Class {
    /// One character.
    pub(super) fn one(sign: char) -> Self {
        Self { ranges: vec![(sign, sign)], negated: false }
    }

    /// All characters but the line feed.
    pub(super) fn any() -> Self {
        Self { ranges: vec![('\n', '\n')], negated: true }
    }

    /// Whether it has no character at all.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty() && !self.negated
    }

    fn write(&self, text: &mut String) {
        if self.ranges.is_empty() {
            // Negated and without ranges: every character.
            text.push_str("[\\x{0}-\\x{10FFFF}]");
            return;
        }
        text.push_str(if self.negated { "[^" } else { "[" });
        for (first, last) in &self.ranges {
            write_character(*first, text);
            text.push('-');
            write_character(*last, text);
        }
        text.push(']');
    }
}

/// The characters that `\d`, `\w` and `\s` stand for: ASCII alone, as in JavaScript and in xgrammar. Source:
/// specs/recipe-and-apis.md §4.4.
pub(super) fn shorthand(sign: char) -> Option<Vec<(char, char)>> {
    Some(match sign {
        'd' => vec![('0', '9')],
        'w' => vec![('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')],
        's' => vec![('\t', '\r'), (' ', ' ')],
        _ => return None,
    })
}

/// The characters outside of ranges.
pub(super) fn complement(ranges: &[(char, char)]) -> Vec<(char, char)> {
    let mut sorted: Vec<(u32, u32)> =
        ranges.iter().map(|(first, last)| (u32::from(*first), u32::from(*last))).collect();
    sorted.sort_unstable();
    let mut result = Vec::new();
    let mut next = 0;
    for (first, last) in sorted.into_iter().chain([(0x11_0000, 0x11_0000)]) {
        if next < first {
            push_scalars(next, first - 1, &mut result);
        }
        next = next.max(last.saturating_add(1));
    }
    result
}

/// A range of code points without the surrogates, which are no characters.
fn push_scalars(first: u32, last: u32, ranges: &mut Vec<(char, char)>) {
    for (low, high) in [(first, last.min(0xD7FF)), (first.max(0xE000), last)] {
        if low <= high
            && let (Some(low), Some(high)) = (char::from_u32(low), char::from_u32(high))
        {
            ranges.push((low, high));
        }
    }
}

/// Writes an expression without rules as a regular expression.
///
/// # Panics
/// When it has a rule: a regular expression has none.
pub(super) fn write_regex(expression: &Expression, text: &mut String) {
    match expression {
        Expression::Empty => text.push_str("(?:)"),
        Expression::Literal(signs) => signs.iter().for_each(|sign| write_character(*sign, text)),
        Expression::Class(class) => class.write(text),
        Expression::Sequence(parts) => parts.iter().for_each(|part| write_regex(part, text)),
        Expression::Choice(parts) => {
            text.push_str("(?:");
            for (index, part) in parts.iter().enumerate() {
                if 0 < index {
                    text.push('|');
                }
                write_regex(part, text);
            }
            text.push(')');
        }
        Expression::Repeat { what, min, max } => {
            text.push_str("(?:");
            write_regex(what, text);
            text.push(')');
            write_bounds(*min, *max, text);
        }
        Expression::Rule(_) => panic!("a regular expression has no rules"),
    }
}

/// Writes an expression as the right side of a Lark rule in which every terminal is one character, so that the lexer's
/// greed has nothing to take. Source: specs/recipe-and-apis.md §4.3, item 2.
pub(super) fn write_rule(expression: &Expression, text: &mut String) {
    match expression {
        Expression::Empty => text.push_str("\"\""),
        Expression::Literal(signs) => {
            for (index, sign) in signs.iter().enumerate() {
                if 0 < index {
                    text.push(' ');
                }
                text.push('/');
                write_character(*sign, text);
                text.push('/');
            }
        }
        Expression::Class(class) => {
            text.push('/');
            class.write(text);
            text.push('/');
        }
        Expression::Sequence(parts) => write_parts(parts, " ", text),
        Expression::Choice(parts) => {
            text.push('(');
            write_parts(parts, " | ", text);
            text.push(')');
        }
        Expression::Repeat { what, min, max } => {
            text.push('(');
            write_rule(what, text);
            text.push(')');
            write_bounds(*min, *max, text);
        }
        Expression::Rule(number) => {
            write!(text, "r{number}").expect("a string takes everything");
        }
    }
}

fn write_parts(parts: &[Expression], between: &str, text: &mut String) {
    for (index, part) in parts.iter().enumerate() {
        if 0 < index {
            text.push_str(between);
        }
        write_rule(part, text);
    }
}

pub(super) fn write_bounds(min: u32, max: Option<u32>, text: &mut String) {
    let written = match (min, max) {
        (0, None) => write!(text, "*"),
        (1, None) => write!(text, "+"),
        (0, Some(1)) => write!(text, "?"),
        (min, None) => write!(text, "{{{min},}}"),
        (min, Some(max)) => write!(text, "{{{min},{max}}}"),
    };
    written.expect("a string takes everything");
}

fn write_character(sign: char, text: &mut String) {
    if sign.is_ascii_alphanumeric() {
        text.push(sign);
    } else {
        write!(text, "\\x{{{:X}}}", u32::from(sign)).expect("a string takes everything");
    }
}
