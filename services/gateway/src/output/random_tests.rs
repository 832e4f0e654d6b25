//! Random answers: markup of calls, marks, stop strings and broken bytes at random places, however their tokens are cut. proptest
//! draws the same ones in every run, and shows the smallest that fails.

use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use serde_json::Value;
use shared::{TokenId, TokenLogprobs};

use super::bench::{Bench, Case, Said};
use super::{Delta, OutputStart, Progress, Scored};

const CASES: u32 = 3_000;

/// What answers are made of, the marks of calls first.
const PARTS: [&str; 32] = [
    "<｜DSML｜",
    "</｜DSML｜",
    " calls>",
    " calls>\n<｜DSML｜ invoke name=\"f\">\n",
    "<｜DSML｜ parameter name=\"a\" string=\"true\">",
    "<｜DSML｜ parameter name=\"b\" string=\"false\">",
    "</｜DSML｜ parameter>\n",
    "</｜DSML｜ invoke>\n",
    "</｜DSML｜ calls>",
    " invoke name=\"",
    " invoke>",
    " parameter name=\"",
    "\" string=\"",
    "true\">",
    "false\">",
    " parameter>",
    "tool_calls>",
    "f",
    "\"",
    "{\"a\": [1, ",
    "}",
    "\\u00",
    "-1.5e",
    "\n",
    "\n\n",
    "</think>",
    "<",
    "/",
    "STOP",
    "é",
    "｜DSML｜",
    "<｜box｜>",
];

const STARTS: [OutputStart; 5] = [
    OutputStart::Reasoning,
    OutputStart::ReasoningContinued,
    OutputStart::Content,
    OutputStart::ContentContinued,
    OutputStart::Calls,
];

fn text() -> impl Strategy<Value = String> {
    let odd = vec(any::<char>(), 0..3).prop_map(|signs| signs.into_iter().collect::<String>());
    let part = prop_oneof![8 => (0..PARTS.len()).prop_map(|part| PARTS[part].to_owned()), 1 => odd];
    vec(part, 0..40).prop_map(|parts| parts.concat())
}

fn runner() -> TestRunner {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

fn fails(what: String) -> TestCaseError {
    TestCaseError::fail(what)
}

/// No mark of calls is shown, and all calls but the last are complete: only the end of the answer leaves one open.
fn check(said: &Said) -> Result<(), TestCaseError> {
    for text in [&said.reasoning, &said.content] {
        if text.contains("｜DSML｜") {
            return Err(fails(format!("shown: {text:?}")));
        }
    }
    for (name, arguments) in said.calls.iter().rev().skip(1) {
        let parsed: Result<Value, _> = serde_json::from_str(arguments);
        if !parsed.is_ok_and(|value| value.is_object()) {
            return Err(fails(format!("{name}: {arguments}")));
        }
    }
    Ok(())
}

#[test]
fn any_answer_is_read_alike_however_its_text_is_cut() {
    let bench = Bench::new();
    let drawn = (text(), 0..STARTS.len(), vec(any::<u16>(), 0..6));
    let run = runner().run(&drawn, |(text, start, cuts)| {
        let case = Case { text: "", start: STARTS[start], stops: &["STOP"] };
        let bytes = bench.byte_tokens(&text);
        let said = bench.ours(&bytes, &case, true);
        check(&said)?;
        let marked = bench.merged_tokens(&text, &cuts);
        let merged = bench.ours(&marked, &case, true);
        if merged != said {
            return Err(fails(format!("{merged:?} is not {said:?}")));
        }
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

/// A call that is complete is JSON also when it is the last one.
#[test]
fn the_arguments_of_a_closed_call_are_an_object() {
    let bench = Bench::new();
    let run = runner().run(&text(), |inner| {
        let open = " invoke name=\"f\">\n";
        let closed = "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
        let case = Case { text: "", start: OutputStart::Calls, stops: &[] };
        let mut ids = bench.byte_tokens(open);
        ids.extend(bench.byte_tokens(&inner));
        ids.extend(bench.byte_tokens(closed));
        let said = bench.ours(&ids, &case, true);
        let whole = |(_, arguments): &(String, String)| {
            serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object())
        };
        match said.calls.iter().find(|call| !whole(call)) {
            Some((name, arguments)) => Err(fails(format!("{name}: {arguments}"))),
            None => Ok(()),
        }
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn bytes_that_are_no_text_agree_with_the_oracle() {
    let bench = Bench::new();
    let alphabet: [&[u8]; 8] =
        [b"\n", b"a", b"b", b"\xf0\x9f", b"\xa4\xad", b"\xff", b"ab", "é".as_bytes()];
    let think_end = bench.vocabulary.control("</think>").unwrap().0;
    let starts = [OutputStart::Reasoning, OutputStart::Content, OutputStart::ContentContinued];
    let stops: [&[&str]; 3] = [&[], &["aba", "bb"], &["a\nb", "é"]];
    let drawn = (vec(0..9_usize, 0..30), 0..3_usize, 0..3_usize);
    let run = runner().run(&drawn, |(picks, start, stop)| {
        let mut ids = Vec::new();
        for pick in picks {
            match alphabet.get(pick) {
                Some(bytes) => ids.extend(bytes.iter().map(|byte| bench.byte_token(*byte))),
                None => ids.push(think_end),
            }
        }
        let case = Case { text: "", start: starts[start], stops: stops[stop] };
        let one_by_one: Vec<&[u32]> = ids.chunks(1).collect();
        // The oracle keeps a broken byte at the very end back for ever, ours is shown once it is known to be broken.
        let whole = |said: Said| {
            let cut = |text: String| text.trim_end_matches('\u{fffd}').to_owned();
            (cut(said.reasoning), cut(said.content))
        };
        let oracle = whole(bench.oracle(&one_by_one, &case, false));
        let ours = whole(bench.ours(&ids, &case, false));
        if ours == oracle { Ok(()) } else { Err(fails(format!("{ours:?} is not {oracle:?}"))) }
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Behaviour 12: what is told of tokens is told in their order, each once, and joins to what is shown, however it was held back.
#[test]
fn scored_tokens_of_any_answer_join_to_its_text() {
    let bench = Bench::new();
    let drawn = (text(), 0..STARTS.len());
    let run = runner().run(&drawn, |(text, start)| {
        let case = Case { text: "", start: STARTS[start], stops: &["STOP"] };
        let mut parser = bench.reading(&case, true);
        let mut delta = Delta::default();
        for id in bench.byte_tokens(&text) {
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
        let told = bench.spelled(&delta.content_scores);
        let said = Said::of(&delta).content;
        if told == said { Ok(()) } else { Err(fails(format!("{told:?} is told of {said:?}"))) }
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}
