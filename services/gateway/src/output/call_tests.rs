use serde_json::Value;
use shared::TokenId;

use super::bench::{Bench, Case, Said};
use super::{Delta, OutputStart, Piece, Progress};

const SENTINEL: &str = "｜DSML｜";

const fn case(text: &'static str, start: OutputStart) -> Case {
    Case { text, start, stops: &["STOP"] }
}

const TWO_CALLS: &str = "I look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter name=\"city\" string=\"true\">杭州 \"x\"\\ </b> < / </ STOP\n\t🤭</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"days\" string=\"false\">[1, {\"a\": \"<\"}]</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"get_time\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

/// Where the oracle and we agree.
const CASES: &[Case] = &[
    case(TWO_CALLS, OutputStart::Content),
    case(
        "think\n\n</think>\n\nI look <\n<b>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>late",
        OutputStart::Reasoning,
    ),
    case(
        "think <x> << \n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\"></｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
        OutputStart::Reasoning,
    ),
    case(
        "<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"false\">-1.5e3</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"b\" string=\"false\">null</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
        OutputStart::Calls,
    ),
    case(
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        OutputStart::Content,
    ),
    case("no calls <\n\n<\n", OutputStart::Content),
    case("a STOP<｜DSML｜ calls>", OutputStart::Content),
];

#[test]
fn behaviour_07_08_calls_agree_with_the_oracle_at_every_split_point() {
    let bench = Bench::new();
    for case in CASES {
        for cut in (0..=case.text.len()).filter(|cut| case.text.is_char_boundary(*cut)) {
            // Cut in two, the sentinel is text, and what it was to end holds the next one: there we differ on purpose.
            let inside = |at: usize| at < cut && cut < at + SENTINEL.len();
            let ids = bench.cut_tokens(case.text, cut);
            if case.text.match_indices(SENTINEL).any(|(at, _)| inside(at)) {
                check_arguments(&bench.ours(&ids, case, true), cut);
                continue;
            }
            let one_by_one: Vec<&[u32]> = ids.chunks(1).collect();
            let oracle = bench.oracle(&one_by_one, case, true);
            assert_eq!(bench.ours(&ids, case, true), oracle, "{:?} at {cut}", case.text);
        }
        let bytes = bench.byte_tokens(case.text);
        let one_by_one: Vec<&[u32]> = bytes.chunks(1).collect();
        let oracle = bench.oracle(&one_by_one, case, true);
        assert_eq!(bench.ours(&bytes, case, true), oracle, "{:?}, byte by byte", case.text);
    }
}

#[test]
fn two_calls_are_read_whole() {
    let bench = Bench::new();
    let case = &CASES[0];
    let said = bench.ours(&bench.byte_tokens(case.text), case, true);
    assert_eq!(said.content, "I look.");
    assert_eq!(said.calls.len(), 2);
    assert_eq!(said.calls[0].0, "get_weather");
    let arguments: Value = serde_json::from_str(&said.calls[0].1).unwrap();
    assert_eq!(arguments["city"], "杭州 \"x\"\\ </b> < / </ STOP\n\t🤭");
    assert_eq!(arguments["days"], serde_json::json!([1, {"a": "<"}]));
    assert_eq!(said.calls[1], ("get_time".into(), "{}".into()));
}

/// Where we leave the oracle on purpose: what it would say, and what we do.
#[test]
fn intended_divergences_from_the_oracle() {
    let bench = Bench::new();
    let call = |inner: &str| {
        format!(
            "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n{inner}\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
        )
    };
    let parameter = |key: &str, string: bool, value: &str| {
        format!(
            "<｜DSML｜ parameter name=\"{key}\" string=\"{string}\">{value}</｜DSML｜ parameter>"
        )
    };
    let cases = [
        // A key with a space or a quote.
        (parameter("a b", true, "x"), r#"{"a b": "x"}"#),
        (parameter("a\"b", true, "x"), r#"{"a\"b": "x"}"#),
        // A value that is no JSON although it was promised to be.
        (parameter("a", false, "hello"), r#"{"a": "hello"}"#),
        (parameter("a", false, "[1, 2"), r#"{"a": [1, 2]}"#),
        (parameter("a", false, "{\"b\": tru}"), r#"{"a": {"b": true}}"#),
        (parameter("a", false, ""), r#"{"a": ""}"#),
        // A parameter that ends before its value.
        ("<｜DSML｜ parameter name=\"a</｜DSML｜ parameter>".to_owned(), "{}"),
        // One that ends before its value, when its name is out.
        (
            "<｜DSML｜ parameter name=\"a\" string=\"</｜DSML｜ parameter>".to_owned(),
            r#"{"a": null}"#,
        ),
        // A control token within a value is hidden.
        (parameter("a", true, "x｜DSML｜y"), r#"{"a": "xy"}"#),
    ];
    let start = OutputStart::Content;
    for (inner, expected) in cases {
        let text = call(&inner);
        let ids = bench.byte_tokens(&text);
        let ours = bench.ours(&ids, &case("", start), true);
        assert_eq!(ours.calls, [("f".to_owned(), expected.to_owned())], "{inner}");
        let one_by_one: Vec<&[u32]> = ids.chunks(1).collect();
        let oracle = bench.oracle(&one_by_one, &case("", start), true);
        assert_ne!(oracle.calls, ours.calls, "{inner}: no divergence any more");
    }
}

#[test]
fn newlines_before_a_block_are_dropped_also_behind_a_bracket() {
    let bench = Bench::new();
    let case = case("a <\n\n<｜DSML｜ calls>", OutputStart::Content);
    let ids = bench.byte_tokens(case.text);
    assert_eq!(bench.ours(&ids, &case, true).content, "a <");
    let one_by_one: Vec<&[u32]> = ids.chunks(1).collect();
    assert_eq!(bench.oracle(&one_by_one, &case, true).content, "a <\n", "the oracle forgets one");
}

#[test]
fn behaviour_27_markup_spelled_as_text_is_text() {
    let bench = Bench::new();
    let text = CASES[0].text;
    let ids = bench.plain.encode(text, false).unwrap().get_ids().to_vec();
    let said = bench.ours(&ids, &Case { text: "", start: OutputStart::Content, stops: &[] }, true);
    assert_eq!((said.content.as_str(), said.calls.len()), (text, 0));
    // Within a value the spelling of the end is part of the value.
    let mut ids = bench.byte_tokens(
        "<｜DSML｜ invoke name=\"f\"><｜DSML｜ parameter name=\"a\" string=\"true\">x",
    );
    ids.extend(bench.plain.encode("</｜DSML｜ parameter>", false).unwrap().get_ids());
    ids.extend(bench.byte_tokens("</｜DSML｜ parameter></｜DSML｜ invoke></｜DSML｜ calls>"));
    let said = bench.ours(&ids, &case("", OutputStart::Calls), true);
    assert_eq!(said.calls[0].1, r#"{"a": "x</｜DSML｜ parameter>"}"#);
}

#[test]
fn without_tools_the_sentinel_is_hidden() {
    let bench = Bench::new();
    let ids = bench.byte_tokens("a <｜DSML｜ calls> b");
    assert_eq!(bench.ours(&ids, &case("", OutputStart::Content), false).content, "a < calls> b");
}

#[test]
fn behaviour_07_arguments_come_as_they_are_written() {
    let bench = Bench::new();
    let mut parser = bench.reading(&case("", OutputStart::Calls), true);
    let head = "<｜DSML｜ invoke name=\"f\"><｜DSML｜ parameter name=\"a\" string=\"true\">";
    for id in bench.byte_tokens(head) {
        parser.push(TokenId(id), &mut Delta::default());
    }
    for (text, shown) in
        [("a", "a"), ("\"", "\\\""), ("<", ""), ("/", ""), ("b", "</b"), ("\n", "\\n")]
    {
        let mut delta = Delta::default();
        for id in bench.byte_tokens(text) {
            assert_eq!(parser.push(TokenId(id), &mut delta), Progress::Continues);
        }
        let expected = [Piece::Arguments(shown.into())];
        let expected = if shown.is_empty() { &expected[..0] } else { &expected[..] };
        assert_eq!(delta.pieces(), expected, "{text}");
    }
}

/// All calls but the last are complete, because only the end of the answer leaves one open.
fn check_arguments(said: &Said, round: usize) {
    for (name, arguments) in said.calls.iter().rev().skip(1) {
        let parsed: Result<Value, _> = serde_json::from_str(arguments);
        assert!(parsed.is_ok_and(|value| value.is_object()), "round {round}: {name} {arguments}");
    }
}
