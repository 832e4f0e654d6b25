use std::sync::Arc;

use deepseek_recipe::stream::{
    ChunkGenerator, InferenceChunk, InferenceFinishReason, OutputChunk, ParsingOptions,
    StreamProcessor, ThinkingInitialStage,
};
use futures::StreamExt;
use shared::TokenId;
use tokenizers::Tokenizer;

use super::{Delta, OutputParser, OutputStart, Progress};
use crate::vocabulary::Vocabulary;
use crate::vocabulary::tests::seedling;

struct Case {
    text: &'static str,
    start: OutputStart,
    stops: &'static [&'static str],
}

const fn case(text: &'static str, start: OutputStart, stops: &'static [&'static str]) -> Case {
    Case { text, start, stops }
}

/// Control tokens are spelled as text and become tokens below.
const CASES: &[Case] = &[
    case("Hello, world!", OutputStart::Content, &[]),
    case("\n\n\nHello\n\n", OutputStart::Content, &[]),
    case("\n\nHello", OutputStart::ContentContinued, &[]),
    case("\n\nthink\n\nmore\n\n</think>\n\nanswer\n", OutputStart::Reasoning, &[]),
    case("\nstill</think>answer", OutputStart::ReasoningContinued, &[]),
    case("never closed\n\n", OutputStart::Reasoning, &[]),
    case("</think>only an answer", OutputStart::Reasoning, &[]),
    case("a</think>b</think>\nc</think>", OutputStart::Reasoning, &[]),
    case("\n</think>\n\nx", OutputStart::Content, &[]),
    case("one STOP two", OutputStart::Content, &["STOP"]),
    case("one ST two S", OutputStart::Content, &["STOP"]),
    case("aabaabaaab", OutputStart::Content, &["aabaaa", "aaab"]),
    case("abcabd", OutputStart::Content, &["abd", "bcab"]),
    case("think STOP</think>answer STOP rest", OutputStart::Reasoning, &["STOP"]),
    case("\n\nx\n\ny", OutputStart::Content, &["\n\n"]),
    case("\n\nx", OutputStart::Content, &["\n"]),
    case("x</think>\n\ny", OutputStart::Reasoning, &["\n\ny"]),
    case("天气很好🤭!", OutputStart::Content, &["好🤭?"]),
    case("天气很好🤭!", OutputStart::Content, &["🤭"]),
    case("ST</think>OP", OutputStart::Content, &["STOP"]),
    case("the <｜box｜>1 2<｜/box｜> box\n<｜ref｜>", OutputStart::Content, &["box\n<"]),
    case("look <｜box｜>\n\n<｜/box｜>\n</think>here", OutputStart::Reasoning, &[]),
    case("👩‍👩‍👧 a🤭", OutputStart::Reasoning, &[]),
    case("", OutputStart::Reasoning, &[]),
];

const MARKS: [&str; 4] = ["</think>", "<｜box｜>", "<｜/box｜>", "<｜ref｜>"];

struct Bench {
    tokenizer: Tokenizer,
    plain: Tokenizer,
    vocabulary: Arc<Vocabulary>,
}

impl Bench {
    fn new() -> Self {
        let (tokenizer, vocabulary) = seedling();
        let mut plain = tokenizer.clone();
        plain.with_added_vocabulary(tokenizers::AddedVocabulary::new());
        Self { tokenizer, plain, vocabulary: Arc::new(vocabulary) }
    }

    /// One token per byte of text, so that every character is split at every place.
    fn byte_tokens(&self, text: &str) -> Vec<u32> {
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

    fn byte_token(&self, byte: u8) -> u32 {
        let wanted = super::TokenText::Bytes(Box::new([byte]));
        (0..4_096).find(|id| *self.vocabulary.text(TokenId(*id)) == wanted).unwrap()
    }

    /// The usual tokens, with the text cut at one more place.
    fn cut_tokens(&self, text: &str, cut: usize) -> Vec<u32> {
        let mut ids = Vec::new();
        for part in [&text[..cut], &text[cut..]] {
            ids.extend_from_slice(self.tokenizer.encode(part, false).unwrap().get_ids());
        }
        ids
    }

    fn ours(&self, ids: &[u32], case: &Case) -> Delta {
        let stops: Vec<String> = case.stops.iter().map(|stop| (*stop).into()).collect();
        let mut parser = OutputParser::new(Arc::clone(&self.vocabulary), case.start, &stops);
        let mut delta = Delta::default();
        for id in ids {
            if parser.push(TokenId(*id), &mut delta) == Progress::StopString {
                break;
            }
        }
        parser.finish(&mut delta);
        delta
    }

    fn oracle(&self, chunks: &[&[u32]], case: &Case) -> Delta {
        let options = ParsingOptions {
            parse_tool_calls: false,
            stop_sequences: case.stops.iter().map(|stop| (*stop).into()).collect(),
            thinking_initial_stage: match case.start {
                OutputStart::Reasoning => Some(ThinkingInitialStage::ReasoningStart),
                OutputStart::ReasoningContinued => {
                    Some(ThinkingInitialStage::ReasoningContinuation)
                }
                OutputStart::Content => None,
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
                OutputChunk::Content { content, .. } => delta.content.push_str(&content),
                OutputChunk::Reasoning { content, .. } => delta.reasoning.push_str(&content),
                _ => {}
            }
        }
        delta
    }
}

struct Passthrough;

impl ChunkGenerator for Passthrough {
    type Chunk = OutputChunk;

    async fn generate(&mut self, chunk: OutputChunk) -> Vec<OutputChunk> {
        vec![chunk]
    }
}

#[test]
fn agrees_with_the_oracle_when_every_byte_is_a_token() {
    let bench = Bench::new();
    for case in CASES {
        let ids = bench.byte_tokens(case.text);
        let ours = bench.ours(&ids, case);
        let one_by_one: Vec<&[u32]> = ids.chunks(1).collect();
        assert_eq!(ours, bench.oracle(&one_by_one, case), "{:?}", case.text);
    }
}

#[test]
fn agrees_with_the_oracle_at_every_split_point() {
    let bench = Bench::new();
    for case in CASES {
        for cut in (0..=case.text.len()).filter(|cut| case.text.is_char_boundary(*cut)) {
            // Inside a mark the cut makes it plain text, for both sides alike.
            let ids = bench.cut_tokens(case.text, cut);
            let ours = bench.ours(&ids, case);
            let one_by_one: Vec<&[u32]> = ids.chunks(1).collect();
            assert_eq!(ours, bench.oracle(&one_by_one, case), "{:?} at {cut}", case.text);
            let middle = ids.len() / 2;
            let halves = [&ids[..middle], &ids[middle..]];
            assert_eq!(ours, bench.oracle(&halves, case), "{:?} at {cut}, halves", case.text);
        }
    }
}

#[test]
fn random_bytes_agree_with_the_oracle() {
    let bench = Bench::new();
    let alphabet: [&[u8]; 8] =
        [b"\n", b"a", b"b", b"\xf0\x9f", b"\xa4\xad", b"\xff", b"ab", "é".as_bytes()];
    let think_end = bench.vocabulary.control("</think>").unwrap().0;
    let mut state = 1_u32;
    for round in 0..400 {
        let mut ids = Vec::new();
        for _ in 0..24 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let pick = usize::try_from(state >> 24).unwrap() % 9;
            match alphabet.get(pick) {
                Some(bytes) => ids.extend(bytes.iter().map(|byte| bench.byte_token(*byte))),
                None => ids.push(think_end),
            }
        }
        let starts = [OutputStart::Reasoning, OutputStart::Content, OutputStart::ContentContinued];
        let stops: [&[&str]; 3] = [&[], &["aba", "bb"], &["a\nb", "é"]];
        let case = Case { text: "", start: starts[round % 3], stops: stops[round / 3 % 3] };
        let one_by_one: Vec<&[u32]> = ids.chunks(1).collect();
        // The oracle keeps a broken byte at the very end back for ever, ours is shown once it is known to be broken.
        let whole = |delta: Delta| {
            let cut = |text: String| text.trim_end_matches('\u{fffd}').to_owned();
            (cut(delta.reasoning), cut(delta.content))
        };
        let oracle = whole(bench.oracle(&one_by_one, &case));
        assert_eq!(whole(bench.ours(&ids, &case)), oracle, "round {round}");
    }
}

#[test]
fn control_tokens_are_hidden_where_the_oracle_spells_them() {
    let bench = Bench::new();
    let text = "a<｜User｜>b<think>c｜DSML｜d<｜end▁of▁sentence｜>";
    let ids = bench.tokenizer.encode(text, false).unwrap().get_ids().to_vec();
    let case = Case { text: "", start: OutputStart::Content, stops: &[] };
    assert_eq!(bench.ours(&ids, &case).content, "abcd");
    assert_eq!(bench.oracle(&[&ids], &case).content, text, "the divergence is deliberate");
    let spelled = bench.plain.encode(text, false).unwrap().get_ids().to_vec();
    assert_eq!(bench.ours(&spelled, &case).content, text, "spelled out, it is text");
}

#[test]
fn text_is_shown_as_soon_as_it_is_safe() {
    let bench = Bench::new();
    let stops = ["STOP".into()];
    let mut parser = OutputParser::new(Arc::clone(&bench.vocabulary), OutputStart::Content, &stops);
    let mut shown = Vec::new();
    for id in bench.byte_tokens("a é STO!") {
        let mut delta = Delta::default();
        assert_eq!(parser.push(TokenId(id), &mut delta), Progress::Continues);
        shown.push(delta.content);
    }
    assert_eq!(shown, ["a", " ", "", "é", " ", "", "", "", "STO!"]);
}

#[test]
fn reasoning_tokens_end_with_the_mark() {
    let bench = Bench::new();
    let mut parser = OutputParser::new(Arc::clone(&bench.vocabulary), OutputStart::Reasoning, &[]);
    for id in bench.byte_tokens("abc</think>de") {
        assert_eq!(parser.push(TokenId(id), &mut Delta::default()), Progress::Continues);
    }
    assert_eq!(parser.reasoning_tokens(), 3);
}
