use shared::{TokenId, TokenLogprobs};

use super::bench::{Bench, Case, Said};
use super::{Delta, OutputStart, Progress, Scored};

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

#[test]
fn agrees_with_the_oracle_when_every_byte_is_a_token() {
    let bench = Bench::new();
    for case in CASES {
        let ids = bench.byte_tokens(case.text);
        let ours = bench.ours(&ids, case, false);
        let one_by_one: Vec<&[u32]> = ids.chunks(1).collect();
        assert_eq!(ours, bench.oracle(&one_by_one, case, false), "{:?}", case.text);
    }
}

#[test]
fn agrees_with_the_oracle_at_every_split_point() {
    let bench = Bench::new();
    for case in CASES {
        for cut in (0..=case.text.len()).filter(|cut| case.text.is_char_boundary(*cut)) {
            // Inside a mark the cut makes it plain text, for both sides alike.
            let ids = bench.cut_tokens(case.text, cut);
            let ours = bench.ours(&ids, case, false);
            let one_by_one: Vec<&[u32]> = ids.chunks(1).collect();
            assert_eq!(ours, bench.oracle(&one_by_one, case, false), "{:?} at {cut}", case.text);
            let middle = ids.len() / 2;
            let halves = [&ids[..middle], &ids[middle..]];
            assert_eq!(
                ours,
                bench.oracle(&halves, case, false),
                "{:?} at {cut}, halves",
                case.text
            );
        }
    }
}

#[test]
fn control_tokens_are_hidden_where_the_oracle_spells_them() {
    let bench = Bench::new();
    let text = "a<｜User｜>b<think>c｜DSML｜d<｜end▁of▁sentence｜>";
    let ids = bench.tokenizer.encode(text, false).unwrap().get_ids().to_vec();
    let case = Case { text: "", start: OutputStart::Content, stops: &[] };
    assert_eq!(bench.ours(&ids, &case, false).content, "abcd");
    assert_eq!(bench.oracle(&[&ids], &case, false).content, text, "the divergence is deliberate");
    let spelled = bench.plain.encode(text, false).unwrap().get_ids().to_vec();
    assert_eq!(bench.ours(&spelled, &case, false).content, text, "spelled out, it is text");
}

#[test]
fn text_is_shown_as_soon_as_it_is_safe() {
    let bench = Bench::new();
    let case = Case { text: "", start: OutputStart::Content, stops: &["STOP"] };
    let mut parser = bench.reading(&case, false);
    let mut shown = Vec::new();
    for id in bench.byte_tokens("a é STO!") {
        let mut delta = Delta::default();
        assert_eq!(parser.push(TokenId(id), &mut delta), Progress::Continues);
        shown.push(Said::of(&delta).content);
    }
    assert_eq!(shown, ["a", " ", "", "é", " ", "", "", "", "STO!"]);
}

#[test]
fn reasoning_tokens_end_with_the_mark() {
    let bench = Bench::new();
    let case = Case { text: "", start: OutputStart::Reasoning, stops: &[] };
    let mut parser = bench.reading(&case, false);
    for id in bench.byte_tokens("abc</think>de") {
        assert_eq!(parser.push(TokenId(id), &mut Delta::default()), Progress::Continues);
    }
    assert_eq!(parser.reasoning_tokens(), 3);
}

/// Behaviour 12: the bytes of the tokens told, joined, are the text, however it was held back.
#[test]
fn scored_tokens_join_to_the_text_that_was_shown() {
    let bench = Bench::new();
    let cases = [
        ("a \u{1f92d}é STO b<\n\n<c", OutputStart::Content, "", true),
        ("think\n\n</think>\n\nanswer STOP rest", OutputStart::Reasoning, "think", true),
        ("x\n\n<｜DSML｜ calls>", OutputStart::Content, "", true),
        ("hidden ｜DSML｜between <｜box｜>1", OutputStart::Content, "", true),
        ("held <</think>back", OutputStart::Reasoning, "held <", true),
        ("", OutputStart::Content, "", false),
    ];
    for (text, start, reasoning, calls) in cases {
        let case = Case { text: "", start, stops: &["STOP"] };
        let mut parser = bench.reading(&case, calls);
        let mut delta = Delta::default();
        for id in bench.byte_tokens(text) {
            let id = TokenId(id);
            let scores = Box::new(TokenLogprobs { logprob: -1.0, top: Vec::new() });
            let mut new = Delta::default();
            let progress = parser.push_scored(id, Some(Scored { id, scores }), &mut new);
            delta.append(new);
            if progress == Progress::StopString {
                break;
            }
        }
        parser.finish(&mut delta);
        let said = Said::of(&delta);
        assert_eq!(bench.spelled(&delta.content_scores), said.content, "{text}");
        assert_eq!(bench.spelled(&delta.reasoning_scores), reasoning, "{text}");
        assert_eq!(said.reasoning, reasoning, "{text}");
    }
}
