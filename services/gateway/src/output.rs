//! Turns the tokens of an answer into reasoning and content.
//!
//! The rules are those of `deepseek-recipe`'s stream processor, which serves as the oracle in the tests; two things
//! differ on purpose: control tokens are hidden instead of shown by their spelling, and text is released as soon as it
//! is known to be neither a stop string nor half a character, instead of when a whole token chunk decodes.

use std::sync::Arc;

use shared::TokenId;

use crate::utf8::Utf8Assembler;
use crate::vocabulary::{TokenText, Vocabulary};

/// Where the prompt left off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputStart {
    /// Behind `<think>`: reasoning begins, its leading newlines are dropped.
    Reasoning,
    /// In the middle of reasoning given by the client: newlines count.
    ReasoningContinued,
    /// Behind `</think>`: the answer begins, its leading newlines are dropped.
    Content,
    /// In the middle of an answer given by the client: newlines count.
    ContentContinued,
}

/// What became visible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    pub(crate) reasoning: String,
    pub(crate) content: String,
}

impl Delta {
    pub(crate) fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty()
    }
}

/// Whether the answer goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Continues,
    /// A stop string was completed. Nothing behind its beginning is ever shown.
    StopString,
}

/// The incremental parser of one answer.
pub(crate) struct OutputParser {
    vocabulary: Arc<Vocabulary>,
    characters: Utf8Assembler,
    stage: Stage,
    content: ContentText,
    reasoning_tokens: u32,
}

enum Stage {
    Reasoning(ReasoningText),
    Content,
    Ended,
}

impl OutputParser {
    /// A parser for an answer that begins at `start` and ends at any of `stops` (not empty strings).
    pub(crate) fn new(vocabulary: Arc<Vocabulary>, start: OutputStart, stops: &[String]) -> Self {
        let reasoning = |strip| Stage::Reasoning(ReasoningText { strip, newlines: 0 });
        let stage = match start {
            OutputStart::Reasoning => reasoning(true),
            OutputStart::ReasoningContinued => reasoning(false),
            OutputStart::Content | OutputStart::ContentContinued => Stage::Content,
        };
        let strip = start != OutputStart::ContentContinued;
        let content = ContentText::new(strip, stops);
        let characters = Utf8Assembler::default();
        Self { vocabulary, characters, stage, content, reasoning_tokens: 0 }
    }

    /// Tokens taken while reasoning, the closing mark not counted.
    pub(crate) fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }

    /// Takes the next token and appends what became visible.
    pub(crate) fn push(&mut self, id: TokenId, delta: &mut Delta) -> Progress {
        let vocabulary = Arc::clone(&self.vocabulary);
        let text = vocabulary.text(id);
        if matches!(self.stage, Stage::Reasoning(_)) && *text != TokenText::ThinkEnd {
            self.reasoning_tokens += 1;
        }
        let mut shown = String::new();
        if let TokenText::Bytes(bytes) = text {
            self.characters.push(bytes, &mut shown);
            return self.show(&shown, delta);
        }
        self.characters.interrupt(&mut shown);
        if self.show(&shown, delta) == Progress::StopString {
            return Progress::StopString;
        }
        self.take_control(text, delta);
        Progress::Continues
    }

    /// Shows what was held back, at the end of the answer. Half a character at the very end is dropped.
    pub(crate) fn finish(&mut self, delta: &mut Delta) {
        match &mut self.stage {
            Stage::Reasoning(reasoning) => reasoning.release(&mut delta.reasoning),
            Stage::Content => self.content.release(&mut delta.content),
            Stage::Ended => {}
        }
        self.stage = Stage::Ended;
    }

    fn show(&mut self, text: &str, delta: &mut Delta) -> Progress {
        match &mut self.stage {
            Stage::Reasoning(reasoning) => reasoning.push(text, &mut delta.reasoning),
            Stage::Content => {
                if self.content.push(text, &mut delta.content) == Progress::StopString {
                    self.stage = Stage::Ended;
                    return Progress::StopString;
                }
            }
            Stage::Ended => {}
        }
        Progress::Continues
    }

    fn take_control(&mut self, text: &TokenText, delta: &mut Delta) {
        match (&mut self.stage, text) {
            // The newlines before the mark are dropped with the state that holds them.
            (Stage::Reasoning(_), TokenText::ThinkEnd) => {
                self.content.strip = true;
                self.stage = Stage::Content;
            }
            (Stage::Reasoning(reasoning), TokenText::Mark(mark)) => {
                reasoning.push(mark, &mut delta.reasoning);
            }
            (Stage::Content, TokenText::ThinkEnd) => {
                self.content.release(&mut delta.content);
                self.content.strip = false;
            }
            (Stage::Content, TokenText::Mark(mark)) => {
                self.content.release(&mut delta.content);
                self.content.strip = false;
                delta.content.push_str(mark);
            }
            // A hidden token separates: a stop string does not reach across it.
            (Stage::Content, TokenText::Hidden) => self.content.release(&mut delta.content),
            (_, TokenText::Hidden | TokenText::Bytes(_)) | (Stage::Ended, _) => {}
        }
    }
}

/// Reasoning: leading newlines are dropped, others held back until something follows that is not the closing mark.
struct ReasoningText {
    strip: bool,
    newlines: usize,
}

impl ReasoningText {
    fn push(&mut self, text: &str, out: &mut String) {
        for character in text.chars() {
            if character == '\n' {
                self.newlines += usize::from(!self.strip);
                continue;
            }
            self.strip = false;
            self.release(out);
            out.push(character);
        }
    }

    fn release(&mut self, out: &mut String) {
        out.extend(std::iter::repeat_n('\n', self.newlines));
        self.newlines = 0;
    }
}

/// Content: leading newlines are dropped, and what may become a stop string is held back.
struct ContentText {
    strip: bool,
    /// Text not shown yet: always the longest beginning of a stop string that the text so far ends with.
    held: Vec<u8>,
    stops: Vec<StopString>,
}

impl ContentText {
    fn new(strip: bool, stops: &[String]) -> Self {
        let stops = stops.iter().map(|stop| StopString::new(stop.as_bytes())).collect();
        Self { strip, held: Vec::new(), stops }
    }

    fn push(&mut self, text: &str, out: &mut String) -> Progress {
        for byte in text.bytes() {
            self.held.push(byte);
            if let Some(stop_bytes) = self.stops.iter_mut().find_map(|stop| stop.feed(byte)) {
                self.show_all_but(stop_bytes, out);
                return Progress::StopString;
            }
            if self.strip && byte == b'\n' {
                self.held.clear();
                self.restart();
                continue;
            }
            self.strip = false;
        }
        let begun = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        self.show_all_but(begun, out);
        Progress::Continues
    }

    fn release(&mut self, out: &mut String) {
        self.show_all_but(0, out);
        self.restart();
    }

    fn restart(&mut self) {
        for stop in &mut self.stops {
            stop.matched = 0;
        }
    }

    /// A stop string begins with the first byte of a character, so the cut never divides one.
    fn show_all_but(&mut self, kept: usize, out: &mut String) {
        let shown = self.held.len() - kept;
        out.push_str(std::str::from_utf8(&self.held[..shown]).expect("cut between characters"));
        self.held.drain(..shown);
    }
}

/// One stop string and how much of it the text ends with (Knuth, Morris and Pratt, 1977).
struct StopString {
    bytes: Box<[u8]>,
    /// For each length, the longest shorter beginning that is also its end.
    borders: Box<[usize]>,
    matched: usize,
}

impl StopString {
    fn new(bytes: &[u8]) -> Self {
        assert!(!bytes.is_empty(), "an empty stop string is refused with the request");
        let mut borders = vec![0; bytes.len()];
        let mut border = 0;
        for index in 1..bytes.len() {
            while border > 0 && bytes[index] != bytes[border] {
                border = borders[border - 1];
            }
            border += usize::from(bytes[index] == bytes[border]);
            borders[index] = border;
        }
        Self { bytes: bytes.into(), borders: borders.into(), matched: 0 }
    }

    /// The length of the stop string, once it is complete.
    fn feed(&mut self, byte: u8) -> Option<usize> {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        (self.matched == self.bytes.len()).then_some(self.matched)
    }
}

#[cfg(test)]
mod tests;
