//! Turns the tokens of an answer into reasoning, content and tool calls.
//!
//! The rules are those of `deepseek-recipe`'s stream processor, which serves as the oracle in the tests; where this parser
//! leaves them on purpose is listed in the README. Text is released as soon as it is known to be neither a stop string nor
//! half a character nor markup, instead of when a whole token chunk decodes.

use std::collections::VecDeque;
use std::sync::Arc;

use shared::{TokenId, TokenLogprobs};

use crate::utf8::Utf8Assembler;
use crate::vocabulary::{TokenText, Vocabulary};
use calls::CallsText;
use text::{ContentText, ReasoningText, TextRules};

mod calls;
mod json_value;
mod text;

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
    /// Within a block of tool calls that the prompt opened.
    Calls,
}

/// How an answer is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) start: OutputStart,
    /// Whether markup of tool calls is read; otherwise its sentinel is hidden like any control token.
    pub(crate) calls: bool,
    /// What ends the answer; none of them empty. Shared by all answers of a request.
    pub(crate) stops: Arc<[String]>,
}

/// A part of an answer that became visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Reasoning(String),
    Content(String),
    /// A tool call begins; this is its name.
    Call(String),
    /// A part of the JSON arguments of the call that began last.
    Arguments(String),
}

/// A token of the answer and its log probabilities.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scored {
    pub(crate) id: TokenId,
    pub(crate) scores: Box<TokenLogprobs>,
}

/// What became visible, in order, and the tokens it came from, where the client asked for their log probabilities.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Delta {
    pieces: Vec<Piece>,
    /// Tokens of content, each with its first byte that is shown.
    pub(crate) content_scores: Vec<Scored>,
    /// Tokens of reasoning.
    pub(crate) reasoning_scores: Vec<Scored>,
    /// All tokens that came, also those that show nothing yet or ever, where the client asked for their ids.
    pub(crate) ids: Vec<TokenId>,
}

impl Delta {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
            && self.content_scores.is_empty()
            && self.reasoning_scores.is_empty()
            && self.ids.is_empty()
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Appends a piece; text joins text of its kind, and no text is no piece.
    pub(crate) fn push(&mut self, piece: Piece) {
        match (self.pieces.last_mut(), piece) {
            (_, Piece::Reasoning(new) | Piece::Content(new) | Piece::Arguments(new))
                if new.is_empty() => {}
            (Some(Piece::Reasoning(text)), Piece::Reasoning(new))
            | (Some(Piece::Content(text)), Piece::Content(new))
            | (Some(Piece::Arguments(text)), Piece::Arguments(new)) => text.push_str(&new),
            (_, piece) => self.pieces.push(piece),
        }
    }

    /// Bytes of reasoning and content.
    fn text_bytes(&self) -> usize {
        let bytes = |piece: &Piece| match piece {
            Piece::Reasoning(text) | Piece::Content(text) => text.len(),
            Piece::Call(_) | Piece::Arguments(_) => 0,
        };
        self.pieces.iter().map(bytes).sum()
    }

    /// Appends what became visible later.
    pub(crate) fn append(&mut self, later: Self) {
        for piece in later.pieces {
            self.push(piece);
        }
        self.content_scores.extend(later.content_scores);
        self.reasoning_scores.extend(later.reasoning_scores);
        self.ids.extend(later.ids);
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
    stops: Arc<[String]>,
    calls: bool,
    reasoning_tokens: u32,
    /// Tokens whose text is not shown yet, and where in their stage's text they begin.
    unsettled: VecDeque<(usize, Scored)>,
}

/// The number of the first stage.
const REASONING: u8 = 0;

enum Stage {
    Reasoning(ReasoningText),
    Content,
    Calls(Box<CallsText>),
    Ended,
}

impl OutputParser {
    /// A parser for an answer that is to be read like this.
    pub(crate) fn new(vocabulary: Arc<Vocabulary>, reading: &Reading) -> Self {
        let calls = reading.calls;
        let reasoning = |strip| Stage::Reasoning(ReasoningText::new(TextRules { strip, calls }));
        let stage = match reading.start {
            OutputStart::Reasoning => reasoning(true),
            OutputStart::ReasoningContinued => reasoning(false),
            OutputStart::Content | OutputStart::ContentContinued => Stage::Content,
            OutputStart::Calls => Stage::Calls(Box::new(CallsText::new())),
        };
        let strip = reading.start != OutputStart::ContentContinued;
        Self {
            vocabulary,
            characters: Utf8Assembler::default(),
            stage,
            content: ContentText::new(TextRules { strip, calls }, &reading.stops),
            stops: Arc::clone(&reading.stops),
            calls,
            reasoning_tokens: 0,
            unsettled: VecDeque::new(),
        }
    }

    /// Tokens taken while reasoning, the closing mark not counted.
    pub(crate) fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }

    /// The stop string that ended the answer.
    pub(crate) fn stop_string(&self) -> Option<&str> {
        self.content.stopped().map(|index| self.stops[index].as_str())
    }

    /// Takes the next token and its log probabilities, and appends what became visible.
    pub(crate) fn push_scored(
        &mut self,
        id: TokenId,
        scored: Option<Scored>,
        delta: &mut Delta,
    ) -> Progress {
        let Some(scored) = scored else { return self.push(id, delta) };
        let stage = self.stage_number();
        let passed = self.passed();
        if matches!(self.vocabulary.text(id), TokenText::Bytes(_) | TokenText::Mark(_)) {
            let start = passed + self.held() + self.characters.pending();
            self.unsettled.push_back((start, scored));
        }
        let pieces = delta.pieces.len();
        let shown = delta.text_bytes();
        let progress = self.push(id, delta);
        if stage == self.stage_number() || progress == Progress::StopString {
            self.settle(pieces < delta.pieces.len(), delta);
        } else {
            // What the stage before still had to show came first.
            let until = passed + delta.text_bytes() - shown;
            let told = match stage {
                REASONING => &mut delta.reasoning_scores,
                _ => &mut delta.content_scores,
            };
            told.extend(take_before(&mut self.unsettled, until));
            self.unsettled.clear();
        }
        progress
    }

    /// Tells the tokens whose text was shown. What passed and was not shown is told to nobody.
    fn settle(&mut self, shown: bool, delta: &mut Delta) {
        let passed = self.passed();
        let is_content = match self.stage {
            Stage::Content | Stage::Ended => true,
            Stage::Reasoning(_) => false,
            Stage::Calls(_) => {
                self.unsettled.clear();
                return;
            }
        };
        let settled = take_before(&mut self.unsettled, passed);
        match (shown, is_content) {
            (false, _) => drop(settled),
            (true, true) => delta.content_scores.extend(settled),
            (true, false) => delta.reasoning_scores.extend(settled),
        }
    }

    fn stage_number(&self) -> u8 {
        match self.stage {
            Stage::Reasoning(_) => REASONING,
            Stage::Content => 1,
            Stage::Calls(_) => 2,
            Stage::Ended => 3,
        }
    }

    /// Bytes of the stage's text that were shown or dropped.
    fn passed(&self) -> usize {
        match &self.stage {
            Stage::Reasoning(reasoning) => reasoning.passed(),
            Stage::Content | Stage::Ended => self.content.passed(),
            Stage::Calls(_) => 0,
        }
    }

    /// Bytes of the stage's text that are held back.
    fn held(&self) -> usize {
        match &self.stage {
            Stage::Reasoning(reasoning) => reasoning.held(),
            Stage::Content => self.content.held(),
            Stage::Calls(_) | Stage::Ended => 0,
        }
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
        let mut out = String::new();
        match &mut self.stage {
            Stage::Reasoning(reasoning) => {
                reasoning.release(&mut out);
                delta.push(Piece::Reasoning(out));
            }
            Stage::Content => {
                self.content.release(&mut out);
                delta.push(Piece::Content(out));
            }
            Stage::Calls(calls) => calls.finish(delta),
            Stage::Ended => {}
        }
        if !matches!(self.stage, Stage::Ended) {
            self.settle(true, delta);
        }
        self.stage = Stage::Ended;
    }

    fn show(&mut self, text: &str, delta: &mut Delta) -> Progress {
        let mut out = String::new();
        match &mut self.stage {
            Stage::Reasoning(reasoning) => {
                reasoning.push(text, &mut out);
                delta.push(Piece::Reasoning(out));
            }
            Stage::Content => {
                let progress = self.content.push(text, &mut out);
                delta.push(Piece::Content(out));
                if progress == Progress::StopString {
                    self.stage = Stage::Ended;
                    return progress;
                }
            }
            Stage::Calls(calls) => calls.push(text, delta),
            Stage::Ended => {}
        }
        Progress::Continues
    }

    fn take_control(&mut self, text: &TokenText, delta: &mut Delta) {
        let shown = if let TokenText::Mark(mark) = text { Some(mark.as_ref()) } else { None };
        let sentinel = self.calls && *text == TokenText::Sentinel;
        let mut out = String::new();
        match &mut self.stage {
            Stage::Reasoning(reasoning) => {
                if sentinel && reasoning.is_led() {
                    self.stage = Stage::Calls(Box::new(CallsText::new()));
                    return;
                }
                reasoning.interrupt(&mut out);
                reasoning.push(shown.unwrap_or_default(), &mut out);
                delta.push(Piece::Reasoning(out));
                // The newlines before the mark are dropped with the state that holds them.
                if *text == TokenText::ThinkEnd {
                    self.content.strip = true;
                    self.stage = Stage::Content;
                }
            }
            Stage::Content => {
                if sentinel && self.content.is_led() {
                    self.content.begin_calls(&mut out);
                    delta.push(Piece::Content(out));
                    self.stage = Stage::Calls(Box::new(CallsText::new()));
                    return;
                }
                // A hidden token separates: a stop string does not reach across it.
                self.content.release(&mut out);
                if shown.is_some() || *text == TokenText::ThinkEnd {
                    self.content.strip = false;
                }
                let mark = shown.unwrap_or_default();
                self.content.pass(mark.len());
                out.push_str(mark);
                delta.push(Piece::Content(out));
            }
            Stage::Calls(calls) if sentinel => calls.sentinel(delta),
            Stage::Calls(calls) => calls.control(shown, delta),
            Stage::Ended => {}
        }
    }
}

/// Takes out the tokens that begin before this place.
fn take_before(tokens: &mut VecDeque<(usize, Scored)>, end: usize) -> Vec<Scored> {
    let count = tokens.iter().take_while(|(start, _)| *start < end).count();
    tokens.drain(..count).map(|(_, scored)| scored).collect()
}

#[cfg(test)]
mod bench;
#[cfg(test)]
mod call_tests;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;
