//! Responses that are kept: referred to, listed, counted, made in the background and cancelled.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use crate::client::{Reply, post, send};
use crate::house::{House, Seen};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

fn ask(change: &Value) -> Value {
    let mut body = json!({"model": "seedling", "input": "hi"});
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

async fn respond(house: &House, change: &Value) -> Reply {
    post(house.public, "/v1/responses", &ask(change)).await
}

async fn look(house: &House, id: &str) -> Reply {
    send(house.public, "GET", &format!("/v1/responses/{id}"), b"").await
}

async fn cancel(house: &House, id: &str) -> Reply {
    send(house.public, "POST", &format!("/v1/responses/{id}/cancel"), b"").await
}

fn id(reply: &Reply) -> String {
    reply.json()["id"].as_str().unwrap_or_else(|| panic!("{}", reply.text())).to_owned()
}

/// Looks until a response is over.
async fn over(house: &House, id: &str) -> Value {
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        let seen = look(house, id).await.json();
        if seen["status"] != "in_progress" {
            return seen;
        }
        sleep(Duration::from_millis(2)).await;
    }
    panic!("{id} is not over");
}

fn code(reply: &Reply) -> (u16, Value) {
    (reply.status, reply.json()["error"]["code"].clone())
}

#[tokio::test]
async fn an_item_is_referred_to_by_its_id() {
    let house = House::new(json!([
        {"match": "Once.<", "text": "</think>Twice."},
        {"match": "<｜User｜>hi", "text": "Hm.</think>Once."},
        {"match": "*", "text": "</think>What?"},
    ]))
    .await;
    let first = respond(&house, &json!({})).await.json();
    let said = &first["output"][1]["id"];
    let again = json!({"role": "user", "content": "again"});
    for reference in [json!({"type": "item_reference", "id": said}), json!({"id": said})] {
        let input = json!([{"role": "user", "content": "hi"}, reference, again]);
        let second = respond(&house, &json!({"input": input})).await.json();
        assert_eq!(second["output"][0]["content"][0]["text"], "Twice.", "{second}");
    }
    let path = format!("/v1/responses/{}/input_items", first["id"].as_str().unwrap());
    let listed = send(house.public, "GET", &path, b"").await.json();
    let input = json!([{"type": "item_reference", "id": listed["data"][0]["id"]}]);
    let third = respond(&house, &json!({"input": input})).await.json();
    assert_eq!(third["output"][1]["content"][0]["text"], "Once.");
    let unknown = json!({"input": [again, {"type": "item_reference", "id": "msg_x"}]});
    let refused = respond(&house, &unknown).await;
    assert_eq!(code(&refused), (404, json!("item_not_found")));
    assert_eq!(refused.json()["error"]["param"], "input[1]");
    for (query, param) in [("limit=0", "limit"), ("order=x", "order"), ("after=x", "after")] {
        let refused = send(house.public, "GET", &format!("{path}?{query}"), b"").await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)));
    }
}

#[tokio::test]
async fn what_a_request_refers_to_is_bounded_like_its_body() {
    let house = House::with(json!([{"match": "*", "text": "</think>Long."}]), |config, _| {
        config.body_bytes_max = 8 << 10;
    })
    .await;
    // Blanks: many bytes, few tokens.
    let long = json!([{"role": "user", "content": format!("x{}", " ".repeat(3_000))}]);
    let first = respond(&house, &json!({"input": long})).await;
    let item = json!({"type": "item_reference", "id": format!("item_0_{}", id(&first))});
    let refer = |times: usize| json!({"input": vec![item.clone(); times]});
    assert_eq!(respond(&house, &refer(2)).await.status, 200);
    let follow = json!({"input": vec![item.clone(); 3], "previous_response_id": id(&first)});
    for (body, param) in [(refer(4), "input"), (refer(40), "input"), (follow, "input")] {
        for path in ["/v1/responses", "/v1/responses/input_tokens"] {
            let refused = post(house.public, path, &ask(&body)).await;
            assert_eq!(code(&refused), (400, json!("invalid_value")), "{}", refused.text());
            assert_eq!(refused.json()["error"]["param"], param);
            assert!(refused.text().contains("8192 bytes"), "{}", refused.text());
        }
    }
}

#[tokio::test]
async fn behaviour_28_counted_input_is_what_is_billed() {
    let house = House::new(json!([{"match": "*", "text": "Hm.</think>Once."}])).await;
    let first = respond(&house, &json!({})).await;
    for change in [
        json!({}),
        json!({"instructions": "Be brief.", "reasoning": {"effort": "none"}}),
        json!({"previous_response_id": id(&first), "input": "again"}),
        json!({"tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]}),
    ] {
        let counted = post(house.public, "/v1/responses/input_tokens", &ask(&change)).await.json();
        assert_eq!(counted["object"], "response.input_tokens");
        let billed = respond(&house, &change).await.json();
        assert_eq!(counted["input_tokens"], billed["usage"]["input_tokens"], "{change}");
    }
    let nameless = post(house.public, "/v1/responses/input_tokens", &json!({"input": "hi"})).await;
    assert_eq!(nameless.status, 200, "{}", nameless.text());
}

#[tokio::test]
async fn a_background_response_is_polled_until_it_is_there() {
    let house = House::new(json!([
        {"match": "break", "text": "one two", "fail_after": 1},
        {"match": "*", "text": "Hm.</think>Once."},
    ]))
    .await;
    let begun = respond(&house, &json!({"background": true, "metadata": {"a": "b"}})).await;
    let object = begun.json();
    assert_eq!((begun.status, &object["status"]), (200, &json!("in_progress")));
    assert_eq!((&object["background"], &object["output"]), (&json!(true), &json!([])));
    let done = over(&house, &id(&begun)).await;
    assert_eq!(done["status"], "completed");
    assert_eq!(done["output"][1]["content"][0]["text"], "Once.");
    assert_eq!(
        (&done["created_at"], &done["metadata"]),
        (&object["created_at"], &json!({"a": "b"}))
    );
    let next = json!({"previous_response_id": id(&begun), "input": "again"});
    assert_eq!(respond(&house, &next).await.status, 200);
    let broken = respond(&house, &json!({"background": true, "input": "break"})).await;
    let failed = over(&house, &id(&broken)).await;
    assert_eq!(failed["status"], "failed");
    assert_eq!(failed["error"]["code"], "internal_error");
    house.gateway.drained().await;
    assert!(house.metrics().await.contains("kvasir_gateway_background_responses 0"));
}

#[tokio::test]
async fn a_cancel_stops_the_worker_and_only_what_is_in_the_background() {
    let mut house = House::new(json!([
        {"match": "hold", "text": "one two", "then": "hold"},
        {"match": "*", "text": "Hm.</think>Once."},
    ]))
    .await;
    let begun = respond(&house, &json!({"background": true, "input": "hold"})).await;
    let id_ = id(&begun);
    house.submitted().await;
    assert_eq!(look(&house, &id_).await.json()["status"], "in_progress");
    assert!(house.metrics().await.contains("kvasir_gateway_background_responses 1"));
    let early = json!({"previous_response_id": id_, "input": "again"});
    assert_eq!(code(&respond(&house, &early).await), (400, json!("previous_response_not_found")));
    for _ in 0..2 {
        let cancelled = cancel(&house, &id_).await;
        assert_eq!((cancelled.status, &cancelled.json()["status"]), (200, &json!("cancelled")));
    }
    house.released().await;
    assert_eq!(look(&house, &id_).await.json()["status"], "cancelled");
    let plain = respond(&house, &json!({})).await;
    let refused = cancel(&house, &id(&plain)).await;
    assert!(refused.status == 400 && refused.text().contains("background"), "{}", refused.text());
    assert_eq!(code(&cancel(&house, "resp_x").await), (404, json!("response_not_found")));
}

#[tokio::test]
async fn a_deletion_ends_what_is_in_the_background() {
    let mut house = House::new(json!([{"match": "*", "text": "one", "then": "hold"}])).await;
    let begun = respond(&house, &json!({"background": true})).await;
    house.submitted().await;
    let path = format!("/v1/responses/{}", id(&begun));
    assert_eq!(send(house.public, "DELETE", &path, b"").await.status, 200);
    house.released().await;
    assert_eq!(look(&house, &id(&begun)).await.status, 404);
}

#[tokio::test]
async fn responses_in_the_background_are_bounded_and_count_as_work() {
    let answers = json!([{"match": "*", "text": "one", "then": "hold"}]);
    let mut house = House::with(answers, |config, _| {
        config.background_responses_max = 1;
        config.limits.requests_in_flight_max = 1;
    })
    .await;
    let background = json!({"background": true});
    let begun = respond(&house, &background).await;
    assert_eq!((begun.status, house.gateway.in_flight()), (200, 1));
    house.submitted().await;
    // The tenant's one place is taken, although its client has its reply.
    assert_eq!(code(&respond(&house, &background).await), (429, json!("rate_limit_exceeded")));
    assert_eq!(house.gateway.cut_off().await, 1);
    let since = Instant::now();
    while house.gateway.in_flight() != 0 && since.elapsed() < PATIENCE {
        yield_now().await;
    }
    assert_eq!(house.gateway.in_flight(), 0);
    assert_eq!(look(&house, &id(&begun)).await.json()["status"], "failed", "it was cut off");
    let refusals = [
        (json!({"background": true, "stream": true}), "background"),
        (json!({"background": true, "store": false}), "background"),
        (json!({"conversation": "conv_1"}), "conversation"),
    ];
    for (change, param) in refusals {
        let refused = respond(&house, &change).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)));
    }
    let none = House::with(json!([{"match": "*", "text": "x"}]), |config, _| {
        config.background_responses_max = 0;
    })
    .await;
    assert_eq!(code(&respond(&none, &background).await), (400, json!("unsupported")));
    assert!(none.seen.is_empty(), "no worker heard of it: {:?}", none.seen);
}

#[tokio::test]
async fn one_more_in_the_background_is_refused() {
    let answers = json!([{"match": "*", "text": "one", "then": "hold"}]);
    let mut house = House::with(answers, |config, _| config.background_responses_max = 1).await;
    let background = json!({"background": true});
    assert_eq!(respond(&house, &background).await.status, 200);
    assert!(matches!(house.next_seen().await, Seen::Submitted(_)));
    let refused = respond(&house, &background).await;
    assert_eq!(code(&refused), (503, json!("overloaded")));
    assert!(refused.header("retry-after").is_some());
    house.gateway.cut_off().await;
}
