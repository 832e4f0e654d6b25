//! What a client is told when something is wrong.

use serde_json::{Value, json};
use shared::{DecodeDirectory, WorkerRank};

use crate::client::{Reply, chat, head, open, post, read, send};
use crate::house::{House, ask};

/// The OpenAI shape: all four keys, one line.
fn error(reply: &Reply) -> Value {
    let body = reply.json();
    let error = body["error"].as_object().expect("an error object");
    let keys: Vec<&String> = error.keys().collect();
    assert_eq!(keys, ["message", "type", "param", "code"]);
    assert!(!error["message"].as_str().unwrap().contains('\n'));
    assert!(reply.header("x-request-id").is_some());
    body["error"].clone()
}

#[tokio::test]
async fn bad_requests_are_refused_and_nothing_is_lost() {
    let mut house = House::new(json!([{"match": "*", "text": "ok"}])).await;
    let long = "word ".repeat(40_000);
    let cases = [
        (json!({"messages": []}), 400, "invalid_value", json!("messages")),
        (json!({"model": "gpt-4"}), 404, "model_not_found", json!("model")),
        (json!({"n": 0}), 400, "invalid_value", json!("n")),
        (json!({"temperature": 3}), 400, "invalid_value", json!("temperature")),
        (json!({"top_p": -1}), 400, "invalid_value", json!("top_p")),
        (json!({"max_tokens": 0}), 400, "invalid_value", json!("max_tokens")),
        (json!({"stop": [""]}), 400, "invalid_value", json!("stop")),
        (json!({"functions": [{}]}), 400, "unsupported", json!("functions")),
        (json!({"stream_options": {}}), 400, "invalid_value", json!("stream_options")),
        (
            json!({"messages": [{"role": "user", "content": long}]}),
            400,
            "context_length_exceeded",
            json!("messages"),
        ),
        (json!({"max_tokens": 40_000}), 400, "context_length_exceeded", json!("messages")),
    ];
    for (change, status, code, param) in cases {
        for stream in [false, true] {
            let mut body = ask(&change);
            body["stream"] = json!(stream);
            let streams_too = stream && change.get("stream_options").is_none();
            if stream && !streams_too {
                continue;
            }
            let reply = chat(house.public, &body).await;
            let error = error(&reply);
            let label = change.to_string().chars().take(80).collect::<String>();
            assert_eq!(reply.status, status, "{label}");
            assert_eq!((&error["code"], &error["param"]), (&json!(code), &param), "{label}");
            assert_eq!(error["type"], "invalid_request_error", "{label}");
        }
    }
    let reply = chat(house.public, &ask(&json!({"model": "gpt-4"}))).await;
    let message = error(&reply)["message"].as_str().unwrap().to_owned();
    assert!(message.contains("seedling") && message.contains("deepseek-flash"), "{message}");
    assert!(house.seen.try_recv().is_err(), "no worker heard of any of this");
    assert_eq!(house.gateway.in_flight(), 0);
    assert_eq!(chat(house.public, &ask(&json!({}))).await.status, 200);
}

#[tokio::test]
async fn malformed_bodies_are_named() {
    let house = House::new(json!([])).await;
    for body in ["", "{", "nonsense", "[]", "{\"model\": 5", "\u{fffe}"] {
        let reply = send(house.public, "POST", "/v1/chat/completions", body.as_bytes()).await;
        assert_eq!((reply.status, &error(&reply)["code"]), (400, &json!("invalid_body")), "{body}");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_whether_its_length_is_declared_or_not() {
    let house = House::with(json!([]), |config, _| config.body_bytes_max = 1_024).await;
    let body = vec![b' '; 1_025];
    let declared = send(house.public, "POST", "/v1/chat/completions", &body).await;
    let chunked = "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut parts = format!("{:x}\r\n", body.len()).into_bytes();
    parts.extend_from_slice(&body);
    parts.extend_from_slice(b"\r\n0\r\n\r\n");
    let undeclared = read(open(house.public, chunked, &parts).await).await;
    for reply in [declared, undeclared] {
        assert_eq!((reply.status, &error(&reply)["code"]), (413, &json!("request_too_large")));
    }
    let fits = send(house.public, "POST", "/v1/chat/completions", &body[..1_024]).await;
    assert_eq!(fits.status, 400, "within the limit it is read");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_408() {
    let house = House::with(json!([]), |config, _| config.body_wait_ms_max = 1).await;
    let reply =
        read(open(house.public, &head("POST", "/v1/chat/completions", 50), b"{").await).await;
    assert_eq!((reply.status, &error(&reply)["code"]), (408, &json!("body_timeout")));
}

#[tokio::test]
async fn wrong_paths_and_methods_have_the_same_shape() {
    let house = House::new(json!([])).await;
    for (method, path, status) in [
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/metrics", 404),
    ] {
        let reply = send(house.public, method, path, b"").await;
        assert_eq!(reply.status, status, "{method} {path}");
        assert!(reply.json()["error"]["message"].is_string());
    }
}

#[tokio::test]
async fn refusals_of_the_worker_carry_a_status_streamed_or_not() {
    let cases = [
        ("overloaded", 503, "overloaded", Some("2")),
        ("over_share", 429, "over_share", Some("2")),
        ("draining", 503, "draining", Some("1")),
        ("no_worker", 503, "no_worker", Some("1")),
        ("too_long", 400, "context_length_exceeded", None),
        ("never_fits", 400, "request_too_large", None),
        ("names_differ", 500, "internal_error", None),
        ("deadline_exceeded", 504, "deadline_exceeded", None),
        ("internal", 500, "internal_error", None),
        ("worker_lost", 503, "worker_lost", Some("1")),
    ];
    for (failure, status, code, retry_after) in cases {
        let answers = json!([{"match": "*", "text": "x", "fail_after": 0, "fail": failure}]);
        let mut house = House::new(answers).await;
        for stream in [false, true] {
            let reply = chat(house.public, &ask(&json!({"stream": stream}))).await;
            assert_eq!((reply.status, &error(&reply)["code"]), (status, &json!(code)), "{failure}");
            assert_eq!(reply.header("retry-after"), retry_after, "{failure}");
        }
        house.gateway.drained().await;
        let legs = if matches!(failure, "worker_lost" | "draining") { 4 } else { 1 };
        for _ in 0..2 * legs {
            house.submitted().await;
            house.released().await;
        }
    }
}

#[tokio::test]
async fn behaviour_18_a_failure_within_a_stream_is_its_last_event() {
    let answers =
        json!([{"match": "*", "text": "one two three", "fail_after": 2, "fail": "internal"}]);
    let house = House::new(answers).await;
    let reply = chat(house.public, &ask(&json!({"stream": true}))).await;
    assert_eq!(reply.status, 200);
    let events = reply.events();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "internal_error");
    let id = reply.header("x-request-id").unwrap();
    assert!(last["error"]["message"].as_str().unwrap().contains(id));
    assert!(events.iter().any(|event| event.contains("one")), "what came before stays");
    let whole = chat(house.public, &ask(&json!({}))).await;
    assert_eq!(whole.status, 500, "an answer that is not streamed fails as a whole");
}

#[tokio::test]
async fn an_answer_goes_on_where_its_lost_worker_left_it() {
    // Losses, tokens before each, what becomes of it, resumes.
    let cases = [
        (1, 0, 200, 1),
        (3, 0, 200, 3),
        (4, 0, 503, 3),
        (1, 1, 200, 1),
        (3, 2, 200, 3),
        (1, 3, 200, 1),
        (4, 1, 503, 3),
    ];
    for (times, after, status, resumes) in cases {
        for stream in [false, true] {
            let house = House::new(json!([{"match": "*", "text": "a b c", "fail": "worker_lost",
                "fail_after": after, "fail_times": times}]))
            .await;
            let reply = chat(house.public, &ask(&json!({"stream": stream}))).await;
            let shown = match stream {
                false => reply.json()["choices"][0]["message"]["content"].clone(),
                true => json!(streamed(&reply)),
            };
            if status == 200 {
                assert_eq!((reply.status, &shown), (200, &json!("a b c")), "{times} {after}");
            } else {
                let told = if stream && 0 < after { 200 } else { status };
                assert_eq!(reply.status, told, "{times} {after} {stream}");
            }
            let line = format!("kvasir_gateway_resumes_total {resumes}");
            assert!(house.metrics().await.lines().any(|other| other == line), "{times} {after}");
        }
    }
}

#[tokio::test]
async fn an_end_that_is_ignored_and_one_that_is_given_do_not_go_together() {
    let house = House::new(json!([{"match": "*", "text": "{}"}])).await;
    let tool = |strict: bool| {
        let function = json!({"name": "f", "strict": strict, "parameters": {"type": "object"}});
        json!({"tools": [{"type": "function", "function": function}]})
    };
    let cases = [
        (json!({"response_format": {"type": "regex", "regex": "a+"}}), 400),
        (json!({"guided_regex": "a+"}), 400),
        (tool(true), 400),
        (tool(false), 200),
        (json!({}), 200),
    ];
    for (mut change, status) in cases {
        change["ignore_eos"] = true.into();
        let reply = chat(house.public, &ask(&change)).await;
        assert_eq!(reply.status, status, "{change}: {}", reply.text());
        if status == 400 {
            assert_eq!(error(&reply)["param"], "ignore_eos");
        }
    }
}

#[tokio::test]
async fn a_grammar_that_may_end_workers_is_tried_on_two() {
    let lost = json!([{"match": "*", "text": "a", "fail": "worker_lost", "fail_after": 0,
        "fail_times": 9}]);
    let format = json!({"guided_regex": "a+"});
    for (change, workers) in [(&json!({}), 4), (&format, 2)] {
        let mut house = House::new(lost.clone()).await;
        let reply = chat(house.public, &ask(change)).await;
        assert_eq!((reply.status, &error(&reply)["code"]), (503, &json!("worker_lost")));
        house.gateway.drained().await;
        for _ in 0..workers {
            house.submitted().await;
            house.released().await;
        }
        assert!(house.seen.try_recv().is_err(), "no other worker heard of it");
    }
    // One that has begun with the answer proved the grammar harmless.
    let later = json!([{"match": "*", "text": "a b", "fail": "worker_lost", "fail_after": 1,
        "fail_times": 3}]);
    let house = House::new(later).await;
    assert_eq!(chat(house.public, &ask(&format)).await.status, 200);
}

#[tokio::test]
async fn every_protocol_streams_on_after_a_lost_worker_as_if_nothing_had_happened() {
    let script = json!([{"match": "*", "text": "</think>a b c", "fail": "worker_lost",
        "fail_after": 2, "fail_times": 2}]);
    let message = json!([{"role": "user", "content": "hi"}]);
    let cases = [
        ("/v1/chat/completions", json!({"messages": message}), "\"role\":\"assistant\""),
        ("/v1/messages", json!({"messages": message, "max_tokens": 9}), "message_start"),
        ("/v1/responses", json!({"input": "hi"}), "response.created"),
        ("/v1/completions", json!({"prompt": "hi", "echo": true}), "\"hi\""),
    ];
    for (path, mut body, opening) in cases {
        body["model"] = "seedling".into();
        body["stream"] = true.into();
        let house = House::new(script.clone()).await;
        let reply = post(house.public, path, &body).await;
        let text = reply.text().replace(": ", ":");
        let events = text.split("\n\n").filter(|event| event.contains(opening)).count();
        assert_eq!((reply.status, events), (200, 1), "{path}: {text}");
        let resumes = "kvasir_gateway_resumes_total 2";
        assert!(house.metrics().await.lines().any(|line| line == resumes), "{path}");
    }
}

/// The text of a streamed answer.
fn streamed(reply: &Reply) -> String {
    let chunks = reply.events().into_iter();
    let chunks = chunks.filter_map(|event| serde_json::from_str::<Value>(event).ok());
    chunks
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect()
}

#[tokio::test]
async fn a_placed_worker_that_is_no_member_is_a_lost_one() {
    struct Nobody;
    impl DecodeDirectory for Nobody {
        fn decode(&self, _worker: WorkerRank) -> Option<std::sync::Arc<dyn shared::Decode>> {
            None
        }
    }
    let house = House::with(json!([]), |config, parts| {
        config.resume_wait_ms_max = 50;
        parts.directory = std::sync::Arc::new(Nobody);
    });
    let house = house.await;
    let reply = chat(house.public, &ask(&json!({}))).await;
    assert_eq!((reply.status, &error(&reply)["code"]), (503, &json!("worker_lost")));
    assert!(house.metrics().await.contains("kvasir_gateway_resumes_total 0\n"));
}

#[tokio::test]
async fn a_prompt_the_script_does_not_know_is_unsupported() {
    let house = House::new(json!([{"match": "other", "text": "x"}])).await;
    let reply = chat(house.public, &ask(&json!({}))).await;
    assert_eq!((reply.status, &error(&reply)["code"]), (400, &json!("unsupported")));
}

/// Libraries repeat what they could not read; a line break in it would make two lines of one error.
#[tokio::test]
async fn errors_have_one_line_whatever_the_client_wrote() {
    let house = House::new(json!([])).await;
    let odd = "x\ny\u{2028}z\r";
    let user = json!([{"role": "user", "content": "hi"}]);
    for (path, change) in [
        ("/v1/messages", json!({"messages": [{"role": odd, "content": "a"}]})),
        ("/v1/messages", json!({"messages": user, "tools": [{"type": odd, "name": "f"}]})),
        ("/v1/messages/count_tokens", json!({"messages": [{"role": odd, "content": "a"}]})),
        ("/v1/chat/completions", json!({"messages": [{"role": odd, "content": "a"}]})),
        ("/v1/chat/completions", json!({"messages": user, "tools": [{"type": odd}]})),
        ("/v1/responses", json!({"input": [{"role": odd, "content": "a"}]})),
        ("/v1/responses", json!({"input": [{"type": odd}]})),
        ("/v1/responses/input_tokens", json!({"input": [{"role": odd, "content": "a"}]})),
        ("/v1/tokenize", json!({"messages": [{"role": odd, "content": "a"}]})),
        ("/v1/completions", json!({"prompt": "a", "structured_outputs": {odd: "a"}})),
    ] {
        let mut body = json!({"model": "seedling", "max_tokens": 5});
        if path.contains("responses") || path.contains("tokenize") {
            body = json!({"model": "seedling"});
        }
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        let reply = post(house.public, path, &body).await.json();
        let message =
            reply["error"]["message"].as_str().unwrap_or_else(|| panic!("{body}: {reply}"));
        assert!(!message.contains(['\n', '\r', '\u{2028}']), "{path} {message:?}");
    }
}
