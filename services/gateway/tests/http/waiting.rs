//! What a client is told while it waits for an answer in one piece, and what is left to it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::client::{Reply, head, open, post, read, read_until};
use crate::house::{House, ask};

/// The script says nothing before the clock goes on.
async fn slow_house() -> House {
    let answers = json!([
        {"match": "break", "text": "one two three", "delay_ms": 20, "fail_after": 2},
        {"match": "*", "text": "one two three", "delay_ms": 20},
    ]);
    House::with(answers, |config, _| config.whole_keep_alive_ms = 1).await
}

async fn begin(house: &House, path: &str, body: &Value) -> TcpStream {
    let body = body.to_string();
    open(house.public, &head("POST", path, body.len()), body.as_bytes()).await
}

/// What comes behind two blank lines, once time passes.
async fn reply_behind_lines(house: &House, path: &str, content: &str) -> (String, Reply) {
    let messages = json!([{"role": "user", "content": content}]);
    let body = ask(&json!({"messages": messages, "max_tokens": 9}));
    let mut stream = begin(house, path, &body).await;
    let seen = read_until(&mut stream, "1\r\n\n\r\n1\r\n\n\r\n").await;
    let mut rest = Box::pin(read_rest(stream, seen));
    loop {
        tokio::select! {
            reply = &mut rest => return reply,
            () = sleep(Duration::from_millis(5)) => house.clock.advance(Duration::from_millis(20)),
        }
    }
}

async fn read_rest(stream: TcpStream, seen: Vec<u8>) -> (String, Reply) {
    let reply = crate::client::read_behind(stream, seen).await;
    (reply.text().to_owned(), reply)
}

#[tokio::test]
async fn blank_lines_come_before_a_slow_answer_where_they_are_set() {
    let house = House::new(json!([{"match": "*", "text": "one two three"}])).await;
    let plain = post(house.public, "/v1/chat/completions", &ask(&json!({}))).await;
    assert!(plain.text().starts_with('{'), "by default nothing comes before");
    for path in ["/v1/chat/completions", "/v1/messages"] {
        let (text, reply) = reply_behind_lines(&slow_house().await, path, "hi").await;
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
        assert!(text.starts_with("\n\n") && text.contains("one two three"), "{text:?}");
        assert!(reply.json().is_object(), "it is JSON all the same");
    }
}

#[tokio::test]
async fn an_error_behind_blank_lines_is_told_by_its_object() {
    let house = slow_house().await;
    let (_, reply) = reply_behind_lines(&house, "/v1/chat/completions", "break").await;
    assert_eq!(reply.status, 200, "the head was out");
    assert_eq!(reply.json()["error"]["code"], "internal_error");
    let (_, reply) = reply_behind_lines(&house, "/v1/messages", "break").await;
    assert_eq!(reply.json()["error"]["type"], "api_error", "in Anthropic's words");
}

#[tokio::test]
async fn a_client_that_leaves_between_blank_lines_ends_its_request() {
    let answers = json!([{"match": "*", "text": "one", "then": "hold"}]);
    let mut house = House::with(answers, |config, _| config.whole_keep_alive_ms = 1).await;
    let mut stream = begin(&house, "/v1/chat/completions", &ask(&json!({}))).await;
    house.submitted().await;
    read_until(&mut stream, "\r\n\r\n1\r\n\n").await;
    drop(stream);
    house.released().await;
    house.gateway.drained().await;
}

#[tokio::test]
async fn anthropics_clients_read_their_own_limits() {
    let house = House::with(json!([{"match": "*", "text": "ok"}]), |config, _| {
        config.limits.requests_per_minute = 9;
        config.limits.tokens_per_minute = 900;
    })
    .await;
    let body = ask(&json!({"max_tokens": 9}));
    let reply = post(house.public, "/v1/messages", &body).await;
    for (name, value) in [
        ("anthropic-ratelimit-requests-limit", "9"),
        ("anthropic-ratelimit-requests-remaining", "8"),
        ("anthropic-ratelimit-tokens-limit", "900"),
        ("x-ratelimit-remaining-requests", "8"),
    ] {
        assert_eq!(reply.header(name), Some(value), "{name}");
    }
    let reset = reply.header("anthropic-ratelimit-requests-reset").unwrap();
    assert!(reset.ends_with('Z') && reset.contains('T'), "{reset}");
    let chat = read(begin(&house, "/v1/chat/completions", &body).await).await;
    assert!(chat.header("anthropic-ratelimit-requests-limit").is_none());
}
