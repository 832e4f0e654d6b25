//! What works: answers, streams, caching, reports.

use serde_json::{Value, json};

use crate::http::{get, open, post};
use crate::process::{Server, errors_of, run, seedling};

const CHAT: &str = "/v1/chat/completions";

/// A greedy chat without reasoning.
fn chat(messages: &Value, output_tokens_max: u32, stream: bool) -> Value {
    let mut body = json!({
        "model": "seedling", "messages": messages, "max_tokens": output_tokens_max,
        "temperature": 0, "seed": 7, "reasoning_effort": "none", "stream": stream,
    });
    if stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

fn answer(server: &Server, messages: &Value) -> Value {
    let response = post(server.clients, CHAT, &chat(messages, 64, false).to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("an answer has content")
}

/// A prompt of about 7 tokens per sentence.
fn long_text(sentences: usize) -> String {
    let sentence = |n| format!("On day {n} Anna finds {} red balls in the garden. ", n % 9 + 2);
    (0..sentences).map(sentence).collect()
}

#[test]
fn the_model_answers_and_the_usage_adds_up() {
    let server = Server::start(&[]);
    let found = answer(&server, &user("What is 17 + 25?"));
    assert!(content(&found).contains("42"), "{found}");
    assert_eq!(found["choices"][0]["finish_reason"], "stop");
    assert_eq!(found["object"], "chat.completion");
    let usage = &found["usage"];
    let count = |name: &str| usage[name].as_u64().unwrap_or_else(|| panic!("{name}: {usage}"));
    assert_eq!(count("prompt_tokens") + count("completion_tokens"), count("total_tokens"));
    let (hit, miss) = (count("prompt_cache_hit_tokens"), count("prompt_cache_miss_tokens"));
    assert_eq!(hit + miss, count("prompt_tokens"));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], hit);
}

#[test]
fn a_stream_says_the_same_as_a_whole_answer() {
    let server = Server::start(&[]);
    let messages = user("Tell me a short story.");
    let whole = answer(&server, &messages);
    let stream = open(server.clients, "POST", CHAT, &chat(&messages, 64, true).to_string());
    assert_eq!(stream.status, 200);
    let mut events = stream.events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let chunks: Vec<Value> =
        events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect();
    let text: String =
        chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, content(&whole));
    let ids: std::collections::BTreeSet<_> = chunks.iter().map(|c| c["id"].as_str()).collect();
    assert_eq!(ids.len(), 1, "one id throughout: {ids:?}");
    let usage = chunks.iter().rev().find(|chunk| chunk["usage"].is_object()).expect("usage");
    assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
}

#[test]
fn a_conversation_remembers_what_was_said() {
    let server = Server::start(&[]);
    let messages = json!([
        {"role": "user", "content": "My name is Lena. I live in Oslo."},
        {"role": "assistant", "content": "Nice to meet you, Lena!"},
        {"role": "user", "content": "Where do I live?"},
    ]);
    let found = answer(&server, &messages);
    assert!(content(&found).contains("Oslo"), "{found}");
}

#[test]
fn a_repeated_long_prompt_is_cached_and_answered_alike() {
    for lineage in ["exact", "bounded"] {
        let server = Server::start(&["--lineage", lineage]);
        let messages = user(&long_text(120));
        let cold = answer(&server, &messages);
        let warm = answer(&server, &messages);
        let cached = |a: &Value| a["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        assert_eq!(cached(&cold), Some(0), "{cold}");
        let prompt = cold["usage"]["prompt_tokens"].as_u64().expect("a count");
        let expected = (prompt - 140) / 128 * 128;
        assert!(1_000 < prompt, "the prompt is long enough to visit prefill: {prompt}");
        assert_eq!(cached(&warm), Some(expected), "{warm}");
        assert_eq!(content(&warm), content(&cold));
        assert_eq!(server.audit()["leaked"], 0);
    }
}

#[test]
fn behaviour_21_29_later_answers_to_a_prompt_find_its_blocks() {
    let server = Server::start(&[]);
    let mut body = chat(&user(&long_text(120)), 8, false);
    body["n"] = json!(3);
    let response = post(server.clients, CHAT, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    let found = response.json();
    let choices = found["choices"].as_array().expect("a list");
    assert_eq!(choices.len(), 3);
    assert!(choices.iter().all(|choice| choice["message"] == choices[0]["message"]), "{found}");
    let usage = &found["usage"];
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0, "as the first found it");
    let prompt = usage["prompt_tokens"].as_u64().expect("a count");
    let hit = (prompt - 140) / 128 * 128;
    let metrics = get(server.admin, "/metrics").body;
    let count = |source: &str| {
        let name = format!("kvasir_gateway_prompt_tokens_total{{source=\"{source}\"}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
        value.and_then(|value| value.parse::<u64>().ok()).expect("a count")
    };
    assert_eq!(count("cached") + count("replayed") + count("cold"), 3 * prompt, "{metrics}");
    assert!(2 * hit <= count("cached") + count("replayed"), "{hit} of {prompt} twice: {metrics}");
    assert!(prompt <= count("cold") && count("cold") <= 3 * prompt - 2 * hit, "{metrics}");
}

#[test]
fn the_next_turn_hits_through_the_answer_or_through_the_prompt_of_a_thinking_one() {
    let server = Server::start(&["--lineage", "exact"]);
    for thinking in [false, true] {
        let mut messages = json!([{"role": "user", "content": long_text(120)}]);
        let ask = |messages: &Value| {
            let mut body = chat(messages, 200, false);
            body["reasoning_effort"] = json!(if thinking { "high" } else { "none" });
            let response = post(server.clients, CHAT, &body.to_string());
            assert_eq!(response.status, 200, "{}", response.body);
            response.json()
        };
        let first = ask(&messages);
        let count = |answer: &Value, name: &str| answer["usage"][name].as_u64().expect("a count");
        let turns = messages.as_array_mut().expect("messages are a list");
        turns.push(json!({"role": "assistant", "content": content(&first)}));
        turns.push(json!({"role": "user", "content": format!("And then? {}", long_text(60))}));
        let second = ask(&messages);
        let prompt = count(&first, "prompt_tokens");
        // The template drops the reasoning of earlier turns: what follows the prompt's last token differs then. Without
        // reasoning all tokens but the last of the answer were processed and can be found.
        let common =
            if thinking { prompt - 1 } else { prompt + count(&first, "completion_tokens") - 1 };
        let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        assert_eq!(cached, Some(common / 128 * 128), "thinking {thinking}: {first} {second}");
    }
    assert_eq!(server.audit()["leaked"], 0);
}

#[test]
fn models_health_and_metrics_are_there() {
    let server = Server::start(&[]);
    let models = get(server.clients, "/v1/models");
    assert_eq!(models.json()["data"][0]["id"], "seedling");
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(server.clients, path).status, 200, "{path}");
    }
    answer(&server, &user("What color is the sky?"));
    let metrics = get(server.admin, "/metrics");
    assert_eq!(metrics.status, 200);
    let names = [
        "first_token_seconds",
        "token_interval_seconds",
        "queue_seconds",
        "\"cold\"",
        "\"cached\"",
        "\"replayed\"",
        "kvasir_kvstore_blocks{tier=\"device\"}",
        "kvasir_kvstore_leaked_slots 0",
    ];
    for name in names {
        assert!(metrics.body.contains(name), "no metric about {name}:\n{}", metrics.body);
    }
    assert_eq!(get(server.clients, "/metrics").status, 404, "metrics are for the admin listener");
    assert_eq!(get(server.clients, "/debug/audit").status, 404);
}

#[test]
fn a_prompt_is_answered_without_a_server() {
    let model = seedling();
    let model = model.to_str().expect("the path is UTF-8");
    let output = run(&["generate", "--model", model, "--prompt", "What is 8 times 7?"]);
    assert!(output.status.success(), "{}", errors_of(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("56"), "{text}");
}

#[test]
fn explain_says_how_each_block_of_a_prompt_was_had() {
    let server = Server::start(&[]);
    let messages = user(&long_text(60));
    let [first, second] = [0, 1].map(|_| answer(&server, &messages));
    let admin = format!("http://{}", server.admin);
    let explain = |answer: &Value| -> Vec<Value> {
        let id = answer["id"].as_str().expect("an answer has an id");
        let output = run(&["kv", "explain", id, "--admin", &admin, "--json"]);
        assert!(output.status.success(), "{}", errors_of(&output));
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let block = |starts: &[Value], worker: &str| {
        let start = starts.iter().find(|start| start["worker"] == worker);
        let start = start.unwrap_or_else(|| panic!("{worker} is missing: {starts:?}"));
        (start["blocks"][0]["fate"].clone(), start["blocks"][0]["reason"].clone())
    };
    let cold = explain(&first);
    assert_eq!(block(&cold, "prefill"), (json!("missed"), json!("never stored")));
    let handed = json!("handed over, computed by prefill");
    assert_eq!(block(&cold, "decode"), (handed, Value::Null));
    assert_eq!(block(&explain(&second), "decode"), (json!("held"), Value::Null));
    let unknown = run(&["kv", "explain", &"0".repeat(32), "--admin", &admin]);
    assert!(!unknown.status.success());
    assert!(errors_of(&unknown).contains("remembers"), "{}", errors_of(&unknown));
}

#[test]
fn explain_says_where_the_blocks_of_a_prompt_are() {
    let server = Server::start(&[]);
    let messages = user(&long_text(60));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("prompt.json");
    std::fs::write(&file, chat(&messages, 64, false).to_string()).expect("the prompt is written");
    let file = file.to_str().expect("the path is UTF-8");
    let admin = format!("http://{}", server.admin);
    let explain = || -> Vec<Value> {
        let output = run(&[
            "kv", "explain", "--prompt", file, "--router", &admin, "--admin", &admin, "--json",
        ]);
        assert!(output.status.success(), "{}", errors_of(&output));
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let before = explain();
    assert_eq!(before[0]["blocks"][0]["place"], "missing");
    assert_eq!(before[1]["held_prefix_blocks"], 0);
    let first = answer(&server, &messages);
    let after = explain();
    assert_eq!(after[1]["prompt_tokens"], first["usage"]["prompt_tokens"]);
    assert_eq!(after[0]["blocks"][0]["place"], "in memory");
    assert!(0 < after[1]["held_prefix_blocks"].as_u64().expect("a number"));
    let nothing = run(&["kv", "explain", "--prompt", file, "--admin", &admin]);
    assert!(!nothing.status.success(), "a prompt needs a router");
}
