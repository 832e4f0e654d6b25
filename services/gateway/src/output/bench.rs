//! The parser and its oracle side by side, for the tests.

use std::sync::Arc;

use deepseek_recipe::stream::{
    ChunkGenerator, InferenceChunk, InferenceFinishReason, OutputChunk, ParsingOptions,
    StreamProcessor, ThinkingInitialStage,
};
use futures::StreamExt;
use shared::TokenId;
use tokenizers::Tokenizer;

use super::{Delta, OutputParser, OutputStart, Piece, Progress, Reading, Scored};
use crate::vocabulary::tests::seedling;
use crate::vocabulary::{TokenText, Vocabulary};

pub(super) struct Case {
    pub(super) text: &'static str,
    pub(super) start: OutputStart,
    pub(super) stops: &'static [&'static str],
}

/// An answer as a client puts it together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) reasoning: String,
    pub(super) content: String,
    /// Names and arguments.
    pub(super) calls: Vec<(String, String)>,
}

impl Said {
    pub(super) fn of(delta: &Delta) -> Self {
        let mut said = Self::default();
        for piece in delta.pieces() {
            match piece {
                Piece::Reasoning(text) => said.reasoning.push_str(text),
                Piece::Content(text) => said.content.push_str(text),
                Piece::Call(name) => said.calls.push((name.clone(), String::new())),
                Piece::Arguments(text) => said.calls.last_mut().unwrap().1.push_str(text),
            }
        }
        said
    }
}

/// Control tokens that texts of cases spell.
const MARKS: [&str; 5] = ["</think>", "<｜box｜>", "<｜/box｜>", "<｜ref｜>", "｜DSML｜"];

pub(super) struct Bench {
    pub(super) tokenizer: Tokenizer,
    pub(super) plain: Tokenizer,
    pub(super) vocabulary: Arc<Vocabulary>,
}

impl Bench {
    pub(super) fn new() -> Self {
        let (tokenizer, vocabulary) = seedling();
        let mut plain = tokenizer.clone();
        plain.with_added_vocabulary(tokenizers::AddedVocabulary::new());
        Self { tokenizer, plain, vocabulary: Arc::new(vocabulary) }
    }

    /// One token per byte of text, so that every character is split at every place.
    pub(super) fn byte_tokens(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(mark) = MARKS.iter().find(|mark| rest.starts_with(**mark)) {
                ids.push(self.vocabulary.control(mark).unwrap().0);
                rest = &rest[mark.len()..];
                continue;
            }
            let next = rest.chars().next().unwrap().len_utf8();
            for byte in rest[..next].bytes() {
                ids.push(self.byte_token(byte));
            }
            rest = &rest[next..];
        }
        ids
    }

    pub(super) fn byte_token(&self, byte: u8) -> u32 {
        let wanted = TokenText::Bytes(Box::new([byte]));
        (0..4_096).find(|id| *self.vocabulary.text(TokenId(*id)) == wanted).unwrap()
    }

    /// The usual tokens, with the text cut at one more place.
    pub(super) fn cut_tokens(&self, text: &str, cut: usize) -> Vec<u32> {
        let mut ids = Vec::new();
        for part in [&text[..cut], &text[cut..]] {
            ids.extend_from_slice(self.tokenizer.encode(part, false).unwrap().get_ids());
        }
        ids
    }

    /// The usual tokens, with the text cut near these places, never within a mark.
    pub(super) fn merged_tokens(&self, text: &str, cuts: &[u16]) -> Vec<u32> {
        let within = |at: usize| {
            let marks = MARKS.iter().flat_map(|mark| text.match_indices(mark));
            !text.is_char_boundary(at)
                || marks
                    .map(|(from, mark)| from + 1..from + mark.len())
                    .any(|mark| mark.contains(&at))
        };
        let mut places: Vec<usize> = cuts
            .iter()
            .map(|cut| usize::from(*cut) % (text.len() + 1))
            .filter(|cut| !within(*cut))
            .collect();
        places.sort_unstable();
        let ends = places.iter().copied().chain([text.len()]);
        let mut from = 0;
        let mut ids = Vec::new();
        for end in ends {
            ids.extend_from_slice(
                self.tokenizer.encode(&text[from..end], false).unwrap().get_ids(),
            );
            from = end;
        }
        ids
    }

    /// What the tokens say, joined.
    pub(super) fn spelled(&self, scored: &[Scored]) -> String {
        let bytes = scored.iter().flat_map(|token| self.vocabulary.bytes(token.id).unwrap());
        String::from_utf8(bytes.copied().collect()).unwrap()
    }

    pub(super) fn reading(&self, case: &Case, calls: bool) -> OutputParser {
        let stops = case.stops.iter().map(|stop| (*stop).into()).collect();
        let reading = Reading { start: case.start, calls, stops };
        OutputParser::new(Arc::clone(&self.vocabulary), &reading)
    }

    pub(super) fn ours(&self, ids: &[u32], case: &Case, calls: bool) -> Said {
        let mut parser = self.reading(case, calls);
        let mut delta = Delta::default();
        for id in ids {
            if parser.push(TokenId(*id), &mut delta) == Progress::StopString {
                break;
            }
        }
        parser.finish(&mut delta);
        Said::of(&delta)
    }

    pub(super) fn oracle(&self, chunks: &[&[u32]], case: &Case, calls: bool) -> Said {
        let options = ParsingOptions {
            parse_tool_calls: calls,
            starts_in_tool_calls: case.start == OutputStart::Calls,
            stop_sequences: case.stops.iter().map(|stop| (*stop).into()).collect(),
            thinking_initial_stage: match case.start {
                OutputStart::Reasoning => Some(ThinkingInitialStage::ReasoningStart),
                OutputStart::ReasoningContinued => {
                    Some(ThinkingInitialStage::ReasoningContinuation)
                }
                OutputStart::Content | OutputStart::Calls => None,
                OutputStart::ContentContinued => Some(ThinkingInitialStage::ContentContinuation),
            },
            ..ParsingOptions::default()
        };
        let mut input: Vec<InferenceChunk> = chunks
            .iter()
            .map(|ids| InferenceChunk::Tokens { token_ids: ids.to_vec(), logprobs: None })
            .collect();
        input.push(InferenceChunk::Finish { finish_reason: InferenceFinishReason::Stop });
        let stream = StreamProcessor::new(Passthrough, options)
            .with_tokenizer(self.tokenizer.clone())
            .into_protocol_stream(futures::stream::iter(input));
        let output: Vec<_> = futures::executor::block_on(stream.collect());
        let mut delta = Delta::default();
        for chunk in output {
            match chunk.unwrap() {
                OutputChunk::Content { content, .. } => delta.push(Piece::Content(content)),
                OutputChunk::Reasoning { content, .. } => delta.push(Piece::Reasoning(content)),
                OutputChunk::ToolCallNamed { tool_name } => delta.push(Piece::Call(tool_name)),
                OutputChunk::ToolCallArgumentsDelta { arguments } => {
                    delta.push(Piece::Arguments(arguments));
                }
                _ => {}
            }
        }
        Said::of(&delta)
    }
}

struct Passthrough;

impl ChunkGenerator for Passthrough {
    type Chunk = OutputChunk;

    async fn generate(&mut self, chunk: OutputChunk) -> Vec<OutputChunk> {
        vec![chunk]
    }
}
