//! Why a request went where it went, as the admin listener of one process tells it.

use serde_json::{Value, json};

use crate::http::{get, post};
use crate::process::Server;

/// Asks a chat, and what is told about it.
fn asked(server: &Server) -> Value {
    let text = "Anna finds a red ball in the garden. ".repeat(60);
    let body = json!({
        "model": "seedling", "max_tokens": 4, "temperature": 0, "reasoning_effort": "none",
        "messages": [{"role": "user", "content": format!("{text}Who finds it?")}],
    });
    let answer = post(server.clients, "/v1/chat/completions", &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    let told = get(server.admin, "/debug/routing?last=1").json();
    told["decisions"][0].clone()
}

/// Cached tokens of a decision: predicted, and had.
fn cached(decision: &Value) -> (Option<u64>, Option<u64>) {
    let actual = decision["outcome"]["started"]["cached_tokens"].as_u64();
    (decision["predicted_cached_tokens"].as_u64(), actual)
}

/// An operator drains the only decode worker, which refuses everything, and takes it back.
fn drained(server: &Server) {
    let told = |path: &str| post(server.admin, &format!("/debug/workers/{path}"), "");
    for (path, status) in [("decode-9/drain", 404), ("decode/drain?within_s=0", 400)] {
        assert_eq!(told(path).status, status, "{path}");
    }
    let drains = told("decode/drain?within_s=600").json();
    assert_eq!(drains["draining_by"], "operator", "{drains}");
    let state = get(server.admin, "/debug/routing?last=0").json();
    let workers = state["workers"].as_array().expect("a list");
    let shown = workers.iter().filter(|worker| worker["load"]["draining_by"] == "operator");
    assert_eq!(shown.count(), 1, "{state}");
    let body = json!({
        "model": "seedling", "max_tokens": 1, "messages": [{"role": "user", "content": "A ball."}],
    });
    let ask = || post(server.clients, "/v1/chat/completions", &body.to_string()).status;
    assert_eq!(ask(), 503, "nobody takes it");
    assert!(told("decode/undrain").json()["draining_by"].is_null());
    assert_eq!(ask(), 200);
}

#[test]
fn placements_are_told_with_terms_prediction_and_outcome() {
    let server = Server::start(&[]);
    let cold = asked(&server);
    assert_eq!(cached(&cold), (Some(0), Some(0)), "{cold}");
    assert!(cold["chosen"]["cost_ms"]["total"].is_number(), "{cold}");
    // The router hears of new blocks some moments later.
    let warm = (0..50).map(|_| asked(&server)).find(|decision| {
        let (predicted, actual) = cached(decision);
        Some(0) < predicted && predicted == actual
    });
    let warm = warm.expect("what is cached is predicted");
    assert_eq!(warm["outcome"]["ended"]["how"], "finished", "{warm}");
    assert!(warm["outcome"]["ended"]["tokens"].as_u64() <= Some(4), "{warm}");

    let id = warm["id"].as_str().expect("an id");
    let same = get(server.admin, &format!("/debug/routing/{id}")).json();
    assert_eq!(same[0]["predicted_cached_tokens"], warm["predicted_cached_tokens"]);
    drained(&server);
    for (path, status) in [("/0123", 404), ("/no-id", 400), ("?first=3", 400)] {
        let refused = get(server.admin, &format!("/debug/routing{path}"));
        assert_eq!(refused.status, status, "{}", refused.body);
    }
}
