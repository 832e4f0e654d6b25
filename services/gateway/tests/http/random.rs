//! Bodies of all protocols that go wrong in random places: whatever is sent, the reply holds to the claims about replies
//! ([`hold`]): 200 or a status of 400 to 499 that says what is wrong, and the next request is answered.
//!
//! A body begins as one that is right, with everything that its protocol has; then members are replaced, added, taken away and
//! doubled at random. proptest draws the changes, the same in every run, and shows the smallest body that fails.

use std::cell::Cell;

use proptest::collection::vec;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::any::bodies::{Bodies, PATHS};
use crate::any::changes::{apply, bases, change, input, one_of, varied};
use crate::any::claims::{Fault, Heard, hold};
use crate::client::{Reply, send};
use crate::house::{House, tokenizer};

/// Bodies sent; 2 ms each.
const CASES: u32 = 3_000;

/// Parts of bodies without structure.
const PARTS: &str = r#"{ } [ ] , : "model" "seedling" "messages" "role" "user" "content" null 5 -1 1e999 "tools" "type" \ud800
    "function" "input" "prompt" "text" true "max_tokens" "tool_calls" "reasoning""#;

const ANSWER: &str = "Hm.</think>So STO.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">x</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

/// The claims about replies, of one that came over a socket.
fn check(path: &str, reply: &Reply) -> Result<(), String> {
    let kind = reply.header("content-type").unwrap_or_default();
    let streamed = kind.starts_with("text/event-stream");
    let heard = Heard { status: reply.status, streamed, text: reply.text().to_owned() };
    hold(path, &heard, Fault::Client).map(|_| ())
}

fn runner() -> TestRunner {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

#[test]
fn behaviour_19_any_body_is_answered_or_refused() {
    let bodies = Bodies::new(&tokenizer());
    let bases = bases();
    let answered = Cell::new(0);
    let drawn = (0..bases.len(), vec(change(), 0..4));
    let run = runner().run(&drawn, |(base, changes)| {
        let (path, mut body) = bases[base].clone();
        for change in changes {
            apply(&mut body, change);
        }
        let sent = bodies.send(&input(path, body.to_string().as_bytes()));
        let told = sent.map_err(|what| TestCaseError::fail(format!("{body}: {what}")))?;
        answered.set(answered.get() + u32::from(told.is_some()));
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
    // Neither everything nor nothing is refused.
    assert!((CASES / 10..CASES * 9 / 10).contains(&answered.get()), "{}", answered.get());
}

/// Changes of changes, as a fuzzer makes them.
#[test]
fn bodies_that_change_on_and_on_are_answered_or_refused() {
    let bodies = Bodies::new(&tokenizer());
    let mut sent = Vec::new();
    for seed in 0..CASES {
        sent = varied(&sent, seed);
        bodies.send(&sent).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

#[test]
fn text_without_structure_is_refused() {
    let bodies = Bodies::new(&tokenizer());
    let drawn = (0..PATHS.len(), vec(one_of(PARTS), 0..30));
    let run = runner().run(&drawn, |(path, parts)| {
        let body = parts.concat();
        let sent = bodies.send(&input(PATHS[path], body.as_bytes()));
        sent.map(|_| ()).map_err(|what| TestCaseError::fail(format!("{body}: {what}")))
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

/// A body with what each protocol needs, and these members.
fn member(path: &str, text: &str) -> Vec<u8> {
    let (input, bound) = match path.ends_with("responses") {
        true => ("input", "max_output_tokens"),
        false => ("prompt", "max_tokens"),
    };
    let text = format!(
        r#"{{"model": "seedling", "{bound}": 9, "{input}": "a", "messages": [{{"role": "user", "content": "a"}}], {text}}}"#
    );
    text.into_bytes()
}

#[test]
fn bodies_that_are_hardly_json_are_refused() {
    let runtime = Runtime::new().unwrap();
    let house = runtime.block_on(House::new(json!([{"match": "*", "text": ANSWER}])));
    let send = |path: &str, body: &[u8]| runtime.block_on(send(house.public, "POST", path, body));
    let deep = |open: &str, close: &str| {
        format!("\"tools\": {}{}", open.repeat(200_000), close.repeat(200_000))
    };
    let members = [
        deep("[", "]"),
        deep("{\"a\": [", "]}"),
        deep("[", ""),
        r#""temperature": 1e999"#.into(),
        r#""temperature": -1e999"#.into(),
        r#""seed": 99999999999999999999999999"#.into(),
        r#""top_p": 0.000000000000000000000000000000000000000000000000000001e-400"#.into(),
        r#""max_tokens": 1.5, "max_output_tokens": 1.5"#.into(),
        r#""stop": "\ud800", "user_id": "\ud800""#.into(),
    ];
    let bodies: [&[u8]; 6] =
        [b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"{\"model\": \"\xff\"}", b"", b"null", b"{} {}"];
    for path in
        ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions", "/v1/tokenize"]
    {
        let members = members.iter().map(|text| member(path, text));
        for body in members.chain(bodies.map(<[u8]>::to_vec)) {
            let shown = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
            check(path, &send(path, &body)).unwrap_or_else(|what| panic!("{shown}: {what}"));
        }
        let twice = send(path, &member(path, r#""model": "seedling""#));
        assert_eq!(twice.status, 200, "{path}: twice is once: {}", twice.text());
    }
    assert_eq!(send("/v1/tokenize", br#"{"prompt": "still there"}"#).status, 200);
}
