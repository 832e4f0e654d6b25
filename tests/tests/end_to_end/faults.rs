//! What goes wrong: bad requests, clients that leave, workers that fail. Nothing is lost by any of it.

use std::fs;
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::http::{Response, open, post};
use crate::process::{Server, errors_of, run, seedling};

const CHAT: &str = "/v1/chat/completions";

fn body(change: impl FnOnce(&mut Value)) -> String {
    let mut body = json!({
        "model": "seedling", "max_tokens": 32, "temperature": 0, "reasoning_effort": "none",
        "messages": [{"role": "user", "content": "What is 17 + 25?"}],
    });
    change(&mut body);
    body.to_string()
}

/// Waits until nothing is in work; the deadline is the number of tries of a running server.
fn at_rest(server: &Server) -> Value {
    for _ in 0..600 {
        let audit = server.audit();
        if audit["busy"] == 0 {
            return audit;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("still busy after 30 s: {}", server.audit());
}

#[test]
fn bad_requests_are_told_what_is_wrong_and_leave_nothing_behind() {
    let server = Server::start(&[]);
    let long = "word ".repeat(60_000);
    let cases: [(&str, String, &[u16], &str); 8] = [
        ("malformed JSON", "{\"model\": ".to_owned(), &[400], ""),
        ("no messages", body(|b| b["messages"] = json!([])), &[400], "messages"),
        ("unknown model", body(|b| b["model"] = json!("other")), &[400, 404], "seedling"),
        ("temperature", body(|b| b["temperature"] = json!(9)), &[400], "temperature"),
        ("max_tokens", body(|b| b["max_tokens"] = json!(0)), &[400], "max_tokens"),
        ("too long", body(|b| b["messages"][0]["content"] = json!(long)), &[400], "token"),
        ("a body over the limit", "x".repeat(9 << 20), &[413], ""),
        ("wrong type", body(|b| b["messages"] = json!("hello")), &[400], ""),
    ];
    for (name, request, statuses, word) in cases {
        let response = post(server.clients, CHAT, &request);
        assert!(
            statuses.contains(&response.status),
            "{name}: {} {}",
            response.status,
            response.body
        );
        let message = response.error_message();
        assert!(message.contains(word) && !message.contains('\n'), "{name}: {message}");
    }
    let Response { status, body } = post(server.clients, CHAT, &body(|_| ()));
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("42"), "{body}");
    assert_eq!(at_rest(&server)["leaked"], 0);
}

#[test]
fn behaviour_24_what_cannot_be_held_to_is_refused_before_any_answer() {
    let server = Server::start(&[]);
    let schema = |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    for format in [
        schema(json!({"type": 5})),
        schema(json!({"type": "string", "pattern": "(?=a)b"})),
        schema(json!({"$ref": "#/$defs/nothing"})),
        schema(json!({"$ref": "https://example.com/schema"})),
        json!({"type": "regex", "regex": "(a"}),
        json!({"type": "regex", "regex": "a{1000000000}"}),
        json!({"type": "ebnf", "ebnf": "root ::= nothing"}),
        json!({"type": "ebnf", "ebnf": "root ::= \"a"}),
    ] {
        for streamed in [false, true] {
            let request = body(|b| {
                b["response_format"] = format.clone();
                b["stream"] = json!(streamed);
            });
            let response = post(server.clients, CHAT, &request);
            assert_eq!(response.status, 400, "{format}: {}", response.body);
            assert!(!response.error_message().is_empty(), "{format}");
        }
    }
    assert_eq!(post(server.clients, CHAT, &body(|_| ())).status, 200, "others are served");
    assert_eq!(at_rest(&server)["leaked"], 0);
}

#[test]
fn behaviour_25_a_client_that_leaves_ends_the_whole_chain() {
    let server = Server::start(&[]);
    let text = "Anna finds a red ball in the garden. ".repeat(300);
    for streamed in [true, false] {
        let request = body(|b| {
            b["messages"][0]["content"] = json!(format!("{streamed} {text}"));
            b["max_tokens"] = json!(2_000);
            b["stream"] = json!(streamed);
        });
        if streamed {
            let mut stream = open(server.clients, "POST", CHAT, &request);
            stream.next_event().expect("the stream has begun");
        } else {
            crate::http::send_and_leave(server.clients, CHAT, &request);
        }
        let audit = at_rest(&server);
        assert_eq!(audit["leaked"], 0, "{audit}");
    }
}

/// Answers of the scripted engine, chosen by what the prompt says.
const SCRIPT: &str = r#"{"answers": [
    {"match": "plain", "text": "forty-two"},
    {"match": "umlaut", "text": "Grüße 日本"},
    {"match": "lost early", "text": "never", "fail_after": 0, "fail": "worker_lost", "fail_times": 1},
    {"match": "lost late", "text": "one two three four", "fail_after": 3, "fail": "worker_lost"},
    {"match": "full", "text": "no", "fail_after": 0, "fail": "overloaded"},
    {"match": "silent", "text": "one", "then": "hold"}
]}"#;

fn scripted() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().expect("a folder for the script");
    let script = folder.path().join("script.json");
    fs::write(&script, SCRIPT).expect("the script can be written");
    let server = Server::start(&["--scripted", script.to_str().expect("UTF-8")]);
    (folder, server)
}

fn ask(word: &str, stream: bool) -> String {
    body(|b| {
        b["messages"][0]["content"] = json!(word);
        b["stream"] = json!(stream);
    })
}

fn streamed_text(events: &[String]) -> String {
    let parsed = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let texts = parsed
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned));
    texts.collect()
}

#[test]
fn behaviour_11_characters_arrive_whole_however_tokens_cut_them() {
    let (_folder, server) = scripted();
    for (word, expected) in [("plain", "forty-two"), ("umlaut", "Grüße 日本")] {
        let whole = post(server.clients, CHAT, &ask(word, false));
        assert_eq!(whole.json()["choices"][0]["message"]["content"], expected, "{}", whole.body);
        let events = open(server.clients, "POST", CHAT, &ask(word, true)).events();
        assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
        assert_eq!(streamed_text(&events), expected);
    }
}

#[test]
fn a_lost_worker_is_replaced_and_told_when_every_one_is_lost() {
    let (_folder, server) = scripted();
    let retried = post(server.clients, CHAT, &ask("lost early", false));
    assert_eq!(retried.json()["choices"][0]["message"]["content"], "never", "{}", retried.body);
    let whole = post(server.clients, CHAT, &ask("lost late", false));
    assert!(500 <= whole.status, "{}", whole.status);
    assert!(!whole.error_message().is_empty());
    let events = open(server.clients, "POST", CHAT, &ask("lost late", true)).events();
    let last = events.last().expect("the stream had events");
    let told: Value = serde_json::from_str(last).expect("the last event is JSON");
    assert!(told["error"]["message"].is_string(), "the loss is told last: {events:?}");
    let full = post(server.clients, CHAT, &ask("full", false));
    assert_eq!(full.status, 503, "{}", full.body);
}

#[test]
fn a_client_that_leaves_a_silent_worker_is_noticed() {
    let (_folder, server) = scripted();
    let mut stream = open(server.clients, "POST", CHAT, &ask("silent", true));
    stream.next_event().expect("the stream has begun");
    assert_ne!(server.audit()["busy"], 0);
    drop(stream);
    assert_eq!(at_rest(&server)["leaked"], 0);
}

#[test]
fn a_failed_start_is_one_line_that_says_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("a bound socket has an address").to_string();
    let damaged = tempfile::tempdir().expect("a folder for a damaged model");
    let mut weights = Vec::new();
    for entry in fs::read_dir(seedling()).expect("the built-in model is there") {
        let entry = entry.expect("readable");
        if entry.path().is_file() {
            let target = damaged.path().join(entry.file_name());
            fs::copy(entry.path(), &target).expect("a copy fits");
            if target.extension().is_some_and(|e| e == "safetensors") {
                weights.push(target);
            }
        }
    }
    let file = fs::OpenOptions::new().write(true).open(&weights[0]).expect("a copy is writable");
    file.set_len(1_000_000).expect("a file can be cut");
    let (model, damaged) = (seedling(), damaged.path().to_owned());
    let text = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let (model, damaged) = (text(&model), text(&damaged));
    let cases: [(&[&str], &str); 5] = [
        (&["--model", "/no/such/model"], "/no/such/model"),
        (&["--model", &damaged], "safetensors"),
        (&["--model", &model, "--listen", &address], "in use"),
        (&["--model", &model, "--listen", "0.0.0.0:0"], "loopback"),
        (&["--model", &model, "--config", "/no/such/file.toml"], "/no/such/file.toml"),
    ];
    for (arguments, word) in cases {
        let mut all = vec!["serve", "--admin", "127.0.0.1:0"];
        if !arguments.contains(&"--listen") {
            all.extend(["--listen", "127.0.0.1:0"]);
        }
        all.extend(arguments);
        let output = run(&all);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let errors = errors_of(&output);
        let last = errors.lines().last().unwrap_or_default();
        assert!(last.starts_with("kvasir: ") && last.contains(word), "{arguments:?}: {errors}");
    }
}
