//! Reads a client's text character by character, with a bound on what it may become.

use super::compile::GrammarRefusal;

/// Nodes of all expressions of one grammar.
const NODES_MAX: usize = 1 << 16;
/// Groups inside of groups: what the recursion of the readers needs of the stack.
const DEPTH_MAX: usize = 128;
/// The largest number between braces. llguidance unrolls some of them.
pub(super) const REPEAT_MAX: u32 = 10_000;

pub(super) struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    nodes: usize,
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// A reader of the grammar that messages call `what`.
    pub(super) fn new(text: &'a str, what: &'static str) -> Self {
        Self { text, at: 0, depth: 0, nodes: 0, what }
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(super) fn next(&mut self) -> Option<char> {
        let sign = self.peek()?;
        self.at += sign.len_utf8();
        Some(sign)
    }

    /// Gives back the last `bytes` bytes, which end between two characters.
    pub(super) fn back(&mut self, bytes: usize) {
        self.at -= bytes;
    }

    /// Takes a piece of text if it comes next.
    pub(super) fn take(&mut self, piece: &str) -> bool {
        let found = self.rest().starts_with(piece);
        if found {
            self.at += piece.len();
        }
        found
    }

    /// Takes the characters that hold.
    pub(super) fn take_while(&mut self, holds: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|sign| !holds(sign)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Counts one more node.
    pub(super) fn node(&mut self) -> Result<(), GrammarRefusal> {
        self.nodes += 1;
        if NODES_MAX < self.nodes {
            return Err(self.refuse(format!("more than {NODES_MAX} parts; send a smaller one")));
        }
        Ok(())
    }

    /// Enters a group. Every entry is left by [`Reader::leave`].
    pub(super) fn enter(&mut self) -> Result<(), GrammarRefusal> {
        self.depth += 1;
        if DEPTH_MAX < self.depth {
            return Err(self.refuse(format!("groups nested deeper than {DEPTH_MAX}")));
        }
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// A refusal that says where.
    pub(super) fn refuse(&self, what: impl AsRef<str>) -> GrammarRefusal {
        let before = &self.text[..self.at];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|sign| *sign != '\n').count() + 1;
        GrammarRefusal::new(format!("{} line {line} column {column}: {}", self.what, what.as_ref()))
    }

    /// The bounds between braces, the opening one being taken: `n}`, `n,}`, `n,m}` or `,m}`.
    pub(super) fn bounds(&mut self) -> Result<(u32, Option<u32>), GrammarRefusal> {
        let min = self.number()?;
        self.spaces();
        let max = if self.take(",") { self.number()? } else { min };
        let unbounded = max.is_none();
        self.spaces();
        if !self.take("}") || (min.is_none() && max.is_none()) {
            return Err(self.refuse("a repetition is written {n}, {n,} or {n,m}"));
        }
        let min = min.unwrap_or(0);
        match max {
            Some(max) if max < min => Err(self.refuse("a repetition's bounds are the wrong way")),
            _ if unbounded => Ok((min, None)),
            max => Ok((min, max)),
        }
    }

    fn number(&mut self) -> Result<Option<u32>, GrammarRefusal> {
        self.spaces();
        let digits = self.take_while(|sign| sign.is_ascii_digit());
        if digits.is_empty() {
            return Ok(None);
        }
        let number = digits.parse().ok().filter(|number| *number <= REPEAT_MAX);
        match number {
            Some(number) => Ok(Some(number)),
            None => Err(self.refuse(format!("a repetition of more than {REPEAT_MAX}"))),
        }
    }

    fn spaces(&mut self) {
        self.take_while(|sign| sign == ' ');
    }

    /// A character given by `digits` hexadecimal digits, or by any number of them between braces.
    pub(super) fn hexadecimal(&mut self, digits: usize) -> Result<char, GrammarRefusal> {
        let braced = self.take("{");
        let text = if braced {
            self.take_while(|sign| sign.is_ascii_hexdigit())
        } else {
            let rest = self.rest();
            let end = rest.char_indices().nth(digits).map_or(rest.len(), |(at, _)| at);
            self.at += end;
            &rest[..end]
        };
        let complete = if braced { self.take("}") } else { text.len() == digits };
        let number = u32::from_str_radix(text, 16).ok().filter(|_| complete);
        number.and_then(char::from_u32).ok_or_else(|| self.refuse("not the number of a character"))
    }
}
