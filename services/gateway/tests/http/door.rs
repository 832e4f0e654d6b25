//! Keys, limits, and pages of browsers: what is decided before a request's handler.

use gateway::{ApiKey, KeyHash, KeyRing, RateLimits};
use serde_json::{Value, json};
use shared::{Priority, TenantId};

use crate::client::{Reply, open, open_chat, read, read_until, send};
use crate::house::{House, ask};

fn key(name: &str, tenant: &str, limits: RateLimits) -> ApiKey {
    ApiKey {
        name: name.to_owned(),
        tenant: TenantId(tenant.into()),
        hash: KeyHash::of(format!("secret of {name}").as_bytes()),
        priority: Priority::Normal,
        limits,
    }
}

fn ring(keys: Vec<ApiKey>) -> Option<KeyRing> {
    Some(KeyRing::new(keys).unwrap())
}

async fn house_with(keys: Vec<ApiKey>) -> House {
    let house = House::new(json!([{"match": "*", "text": "ok"}])).await;
    house.gateway.set_keys(ring(keys));
    house
}

/// A request with these header lines.
async fn request(house: &House, method: &str, path: &str, lines: &[&str], body: &str) -> Reply {
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{lines}content-length: {}\r\n\r\n",
        body.len()
    );
    read(open(house.public, &head, body.as_bytes()).await).await
}

async fn chat_with(house: &House, lines: &[&str], change: &Value) -> Reply {
    request(house, "POST", "/v1/chat/completions", lines, &ask(change).to_string()).await
}

fn code(reply: &Reply) -> (u16, Value) {
    (reply.status, reply.json()["error"]["code"].clone())
}

#[tokio::test]
async fn with_keys_nobody_is_answered_without_one() {
    let mut house = house_with(vec![key("a", "acme", RateLimits::default())]).await;
    let cases: [(&[&str], &str); 4] = [
        (&[], "missing_api_key"),
        (&["authorization: Basic c2VjcmV0IG9mIGE="], "missing_api_key"),
        (&["authorization: Bearer secret of b"], "invalid_api_key"),
        (&["x-api-key: secret of"], "invalid_api_key"),
    ];
    for (lines, expected) in cases {
        for (method, path) in
            [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/nothing")]
        {
            let reply = request(&house, method, path, lines, "{}").await;
            assert_eq!(code(&reply), (401, json!(expected)), "{path} {lines:?}");
            assert_eq!(reply.json()["error"]["type"], "authentication_error");
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
            assert!(reply.header("x-request-id").is_some());
        }
    }
    assert_eq!(send(house.public, "GET", "/healthz", b"").await.status, 200);
    assert!(house.seen.try_recv().is_err(), "no worker heard of any of this");
    for line in ["authorization: Bearer secret of a", "x-api-key: secret of a"] {
        assert_eq!(chat_with(&house, &[line], &json!({})).await.status, 200, "{line}");
    }
    let metrics = house.metrics().await;
    let expected = "kvasir_gateway_requests_total{outcome=\"unauthenticated\"} 12";
    assert!(metrics.contains(expected), "{metrics}");
    assert!(!metrics.contains("secret"), "{metrics}");
}

#[tokio::test]
async fn a_keys_tenant_is_the_tenant_of_its_requests_everywhere() {
    let plain = RateLimits::default();
    let mut house = house_with(vec![key("a", "acme", plain), key("b", "bolt", plain)]).await;
    let mut roots = Vec::new();
    for (name, tenant) in [("a", "acme"), ("b", "bolt")] {
        let line = format!("authorization: Bearer secret of {name}");
        assert_eq!(chat_with(&house, &[&line], &json!({})).await.status, 200);
        let submitted = house.submitted().await;
        assert_eq!(submitted.tenant, TenantId(tenant.into()).tag());
        roots.push(submitted.root);
        house.released().await;
    }
    assert!(roots[0] != roots[1], "tenants share no names");
    let metrics = house.metrics().await;
    for tenant in ["acme", "bolt"] {
        let line = format!(
            "kvasir_gateway_tenant_requests_total{{tenant=\"{tenant}\",result=\"served\"}} 1"
        );
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
}

#[tokio::test]
async fn keys_change_while_requests_run() {
    let house = house_with(vec![key("a", "acme", RateLimits::default())]).await;
    let a = ["authorization: Bearer secret of a"];
    assert_eq!(chat_with(&house, &a, &json!({})).await.status, 200);
    house.gateway.set_keys(ring(vec![key("b", "acme", RateLimits::default())]));
    assert_eq!(chat_with(&house, &a, &json!({})).await.status, 401);
    house.gateway.set_keys(None);
    assert_eq!(chat_with(&house, &[], &json!({})).await.status, 200);
}

#[tokio::test]
async fn requests_per_minute_are_bounded_and_the_client_is_told() {
    let limits = RateLimits { requests_per_minute: 2, ..RateLimits::default() };
    let house = house_with(vec![key("a", "acme", limits)]).await;
    let a = ["authorization: Bearer secret of a"];
    for remaining in ["1", "0"] {
        let reply = chat_with(&house, &a, &json!({})).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("x-ratelimit-limit-requests"), Some("2"));
        assert_eq!(reply.header("x-ratelimit-remaining-requests"), Some(remaining));
        assert_eq!(reply.header("x-ratelimit-limit-tokens"), None);
    }
    let reply = chat_with(&house, &a, &json!({})).await;
    assert_eq!(code(&reply), (429, json!("rate_limit_exceeded")));
    assert_eq!(reply.header("retry-after"), Some("30"));
    assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
    let models = request(&house, "GET", "/v1/models", &a, "").await;
    assert_eq!(models.status, 200, "looking around costs nothing");
    let metrics = house.metrics().await;
    let line = "tenant_requests_total{tenant=\"acme\",result=\"requests_per_minute\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test]
async fn tokens_per_minute_count_prompts_and_answers() {
    let limits = RateLimits { tokens_per_minute: 5, ..RateLimits::default() };
    let house = house_with(vec![key("a", "acme", limits)]).await;
    let a = ["authorization: Bearer secret of a"];
    let first = chat_with(&house, &a, &json!({})).await;
    assert_eq!(first.header("x-ratelimit-remaining-tokens"), Some("5"));
    let used = first.json()["usage"]["total_tokens"].as_u64().unwrap();
    assert!(5 < used, "{used}");
    let reply = chat_with(&house, &a, &json!({})).await;
    assert_eq!(code(&reply), (429, json!("rate_limit_exceeded")));
    // Time stands still here: what is owed, and one more.
    let wait = (used - 5 + 1) * 60 / 5;
    assert_eq!(reply.header("retry-after"), Some(wait.to_string().as_str()));
}

#[tokio::test]
async fn requests_at_once_are_counted_until_their_streams_end() {
    let house = House::with(
        json!([{"match": "wait", "text": "one", "then": "hold"}, {"match": "*", "text": "ok"}]),
        |config, _| config.limits.requests_in_flight_max = 1,
    )
    .await;
    let body = ask(&json!({"stream": true, "messages": [{"role": "user", "content": "wait"}]}));
    let mut held = open_chat(house.public, &body).await;
    read_until(&mut held, "one").await;
    let refused = chat_with(&house, &[], &json!({})).await;
    assert_eq!(code(&refused), (429, json!("rate_limit_exceeded")));
    assert_eq!(refused.header("retry-after"), Some("1"));
    drop(held);
    house.gateway.drained().await;
    while chat_with(&house, &[], &json!({})).await.status != 200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn each_answer_counts_as_a_request() {
    let a = ["authorization: Bearer secret of a"];
    let one = json!([{"role": "user", "content": "hi"}]);
    let both = |messages: &Value, n: u32| json!({"messages": messages, "n": n});
    let limits =
        RateLimits { requests_in_flight_max: 4, requests_per_minute: 9, ..RateLimits::default() };
    let mut house = House::new(json!([
        {"match": "wait", "text": "one", "then": "hold"},
        {"match": "*", "text": "ok"},
    ]))
    .await;
    house.gateway.set_keys(ring(vec![key("a", "acme", limits)]));
    let never = chat_with(&house, &a, &both(&one, 5)).await;
    assert_eq!(code(&never), (400, json!("invalid_value")));
    assert_eq!(never.json()["error"]["param"], "n");
    assert!(never.text().contains("requests_in_flight of 4"), "{}", never.text());
    assert!(house.seen.try_recv().is_err(), "no worker heard of it");
    let four = chat_with(&house, &a, &both(&one, 4)).await;
    assert_eq!((four.status, four.header("x-ratelimit-remaining-requests")), (200, Some("4")));
    house.gateway.drained().await;
    let wait = json!([{"role": "user", "content": "wait"}]);
    let body = ask(&json!({"stream": true, "n": 2, "messages": wait})).to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\n{}\r\ncontent-length: {}\r\n\r\n",
        a[0],
        body.len()
    );
    let mut held = open(house.public, &head, body.as_bytes()).await;
    read_until(&mut held, "one").await;
    let refused = chat_with(&house, &a, &both(&one, 3)).await;
    assert_eq!(code(&refused), (429, json!("rate_limit_exceeded")));
    assert!(refused.text().contains("requests_in_flight of 4"), "{}", refused.text());
    drop(held);
    house.gateway.drained().await;
    // Of nine, one each for the two that were refused, four and two.
    let last = chat_with(&house, &a, &json!({})).await;
    assert_eq!((last.status, last.header("x-ratelimit-remaining-requests")), (200, Some("0")));
}

#[tokio::test]
async fn pages_of_listed_origins_may_read_answers_and_others_not() {
    let origins = vec!["https://chat.example".to_owned()];
    let house = House::with(json!([{"match": "*", "text": "ok"}]), |config, _| {
        config.cors_origins = origins;
    })
    .await;
    house.gateway.set_keys(ring(vec![key("a", "acme", RateLimits::default())]));
    let asks =
        ["access-control-request-method: POST", "access-control-request-headers: x-stainless-os"];
    let preflight = |origin: &'static str| {
        let house = &house;
        async move {
            let lines = [origin, asks[0], asks[1]];
            request(house, "OPTIONS", "/v1/chat/completions", &lines, "").await
        }
    };
    let allowed = preflight("origin: https://chat.example").await;
    assert_eq!(allowed.status, 204, "no key is sent with it");
    assert_eq!(allowed.header("access-control-allow-origin"), Some("https://chat.example"));
    assert_eq!(allowed.header("access-control-allow-headers"), Some("x-stainless-os"));
    assert!(allowed.header("access-control-allow-credentials").is_none());
    let other = preflight("origin: https://evil.example").await;
    assert_eq!((other.status, other.header("access-control-allow-origin")), (401, None));
    let lines = ["origin: https://chat.example", "x-api-key: secret of a"];
    let reply = chat_with(&house, &lines, &json!({})).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("access-control-allow-origin"), Some("https://chat.example"));
    assert_eq!(reply.header("vary"), Some("origin"));
    let refused = chat_with(&house, &lines[..1], &json!({})).await;
    assert_eq!(refused.status, 401);
    assert!(refused.header("access-control-allow-origin").is_some(), "a page may read why");
}

#[tokio::test]
async fn whole_answers_keep_their_length() {
    let house = house_with(vec![key("a", "acme", RateLimits::default())]).await;
    let reply = chat_with(&house, &["x-api-key: secret of a"], &json!({})).await;
    let length = reply.header("content-length").map(str::to_owned);
    assert_eq!(length, Some(reply.body.len().to_string()));
}
