//! Any answer in every protocol: markup of calls, marks, stop strings, broken bytes and ids that are no tokens, in any order, said to
//! requests with and without tools, thinking, log probabilities and stop strings; workers are lost and fail in between. Whole and
//! streamed it is the same answer, and well formed.
//!
//! proptest draws the same answers in every run, and shows the smallest that fails.

use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::any::answers::Answers;
use crate::any::claims::{Answer, Fault, Heard, Part, hold};
use crate::house::tokenizer;

/// Answers, each asked for twice; 2 ms each.
const CASES: u32 = 2_000;

/// What answers are made of, the marks of calls first.
const PARTS: [&str; 28] = [
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n",
    "<｜DSML｜ invoke name=\"c\">\n<｜DSML｜ parameter name=\"input\" string=\"true\">",
    "<｜DSML｜ invoke name=\"g\">\n</｜DSML｜ invoke>",
    "<｜DSML｜ invoke name=\"tool_search\">\n",
    "<｜DSML｜ parameter name=\"a\" string=\"true\">",
    "<｜DSML｜ parameter name=\"b\" string=\"false\">",
    "</｜DSML｜ parameter>\n",
    "</｜DSML｜ invoke>\n",
    "</｜DSML｜ calls>",
    "<｜DSML｜",
    "</",
    " invoke name=\"",
    "\" string=\"",
    "false\">",
    "{\"a\": [1, ",
    "}",
    "\\ud83e",
    "\\",
    "-1.5e",
    "1e999",
    "\"",
    "\n",
    "</think>",
    "<think>",
    "STOP",
    "é🤭",
    "<｜box｜>",
    "<｜end▁of▁sentence｜>",
];

fn answer() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        12 => (0..PARTS.len()).prop_map(|part| PARTS[part].as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..4),
        1 => any::<u16>().prop_map(|id| [&[0xff], &id.to_be_bytes()[..]].concat()),
        1 => Just(vec![0xfd]),
        1 => Just(vec![0xfe]),
    ];
    vec(part, 0..24).prop_map(|parts| parts.concat())
}

#[test]
fn any_answer_is_told_alike_whole_and_streamed() {
    let answers = Answers::new(&tokenizer());
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let loss = prop_oneof![Just(0), 1..20_u8];
    let drawn = ((any::<u8>(), any::<u8>(), loss), answer());
    let (told, called) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new_with_rng(config, rng);
    let run = runner.run(&drawn, |((request, manner, loss), answer)| {
        let input = [&[request, manner, loss], answer.as_slice()].concat();
        if let Some(heard) = answers.hear(&input).map_err(TestCaseError::fail)? {
            told.set(told.get() + 1);
            called.set(called.get() + u32::from(heard.answers.iter().any(Answer::calls)));
        }
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
    // Workers fail in half of the cases, most of them before the answer ended.
    assert!(CASES / 3 < told.get() && CASES / 10 < called.get(), "{told:?} {called:?}");
}

/// The input of a text tool that was cut before its text began: `fuzz` found that the end of the item had what no delta had said.
#[test]
fn an_input_that_is_cut_is_what_its_deltas_said() {
    let answers = Answers::new(&tokenizer());
    let text = "</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"c\">\n<｜DSML｜ parameter name=\"input\" string=\"";
    for (protocol, ending) in [(0, 0), (0, 1), (2, 0), (2, 1)] {
        // With tools, a custom one among them, and thinking.
        let input = [&[protocol | 0b1100, ending | 0x20, 0], text.as_bytes()].concat();
        let told = answers.hear(&input).unwrap_or_else(|what| panic!("{what}")).unwrap();
        let [.., Part::Call { kind, arguments, .. }] = told.answers[0].parts.as_slice() else {
            panic!("{told:?}")
        };
        assert!(kind.starts_with("custom") && arguments.is_empty(), "{told:?}");
    }
}

/// Whether the claims hold of a stream.
fn holds(path: &str, text: &str) -> bool {
    hold(path, &Heard { status: 200, streamed: true, text: text.to_owned() }, Fault::Client).is_ok()
}

#[test]
fn a_stream_out_of_order_is_seen() {
    let begun = r#"data: {"id": "a", "choices": [{"index": 0, "delta": {"role": "assistant"}}]}"#;
    let call = |index: u8, arguments: &str| {
        format!(
            r#"data: {{"id": "a", "choices": [{{"index": 0, "delta": {{"tool_calls": [{{"index": {index}, "id": "{index}", "type": "function", "function": {{"name": "f", "arguments": "{arguments}"}}}}]}}}}]}}"#
        )
    };
    let (first, open, second) = (call(0, "{}"), call(0, "{"), call(1, "{"));
    let end = r#"data: {"id": "a", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}"#;
    let done = "data: [DONE]";
    let cases: [(&[&str], bool); 8] = [
        (&[begun, &first, &second, end, done], true),
        (&[begun, &first, end, done], true),
        (&[begun, &first, end], false),
        (&[begun, &first, done], false),
        (&[&first, end, done], false),
        (&[begun, &open, &second, end, done], false),
        (&[begun, end, done], false),
        (&[begun, &first, end, &second, done], false),
    ];
    for (events, expected) in cases {
        let text = events.join("\n\n") + "\n\n";
        assert_eq!(holds("/v1/chat/completions", &text), expected, "{text}");
        assert!(!holds("/v1/chat/completions", text.trim_end()), "the last event is not closed");
    }
}

#[test]
fn a_message_out_of_order_is_seen() {
    let event =
        |kind: &str, rest: &str| format!("event: {kind}\ndata: {{\"type\": \"{kind}\"{rest}}}\n\n");
    let start = event("message_start", r#", "message": {"content": []}"#);
    let block = event(
        "content_block_start",
        r#", "index": 0, "content_block": {"type": "text", "text": ""}"#,
    );
    let text = r#", "index": 0, "delta": {"type": "text_delta", "text": "a"}"#;
    let other = r#", "index": 0, "delta": {"type": "thinking_delta", "thinking": "a"}"#;
    let (text, other) = (event("content_block_delta", text), event("content_block_delta", other));
    let stop = event("content_block_stop", r#", "index": 0"#);
    let delta =
        event("message_delta", r#", "delta": {"stop_reason": "end_turn", "stop_sequence": null}"#);
    let end = event("message_stop", "");
    let cases: [(&[&str], bool); 6] = [
        (&[&start, &block, &text, &stop, &delta, &end], true),
        (&[&block, &text, &stop, &delta, &end], false),
        (&[&start, &block, &other, &stop, &delta, &end], false),
        (&[&start, &block, &text, &delta, &end], false),
        (&[&start, &block, &text, &stop, &end], false),
        (&[&start, &block, &text, &stop, &delta], false),
    ];
    for (events, expected) in cases {
        assert_eq!(holds("/v1/messages", &events.concat()), expected, "{events:?}");
    }
}
