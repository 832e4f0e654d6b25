//! Anthropic's protocol.

use serde_json::{Value, json};

use crate::client::{Reply, post, send};
use crate::house::House;

fn ask(change: &Value) -> Value {
    let mut body = json!({"model": "seedling", "max_tokens": 100,
        "messages": [{"role": "user", "content": "hi"}], "thinking": {"type": "disabled"}});
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn tools() -> Value {
    json!([{"name": "get_time", "input_schema": {"type": "object"}}])
}

const ANSWER: &str = "Hm.\n</think>\n\nI look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_time\">\n<｜DSML｜ parameter name=\"zone\" string=\"true\">UTC</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

#[tokio::test]
async fn behaviour_15_16_blocks_come_in_order_with_indexes_and_names() {
    let started = json!({"cached_tokens": 4});
    let house = House::new(json!([{"match": "*", "text": ANSWER, "started": started}])).await;
    let body = ask(&json!({"stream": true, "thinking": {"type": "enabled"}, "tools": tools()}));
    let reply = post(house.public, "/anthropic/v1/messages", &body).await;
    let events = reply.named_events();
    assert_eq!(events[0].0, "message_start");
    assert!(events.iter().all(|(name, event)| event["type"] == *name));
    let mut open: Option<u64> = None;
    let mut kinds = Vec::new();
    let (mut thinking, mut text, mut input) = (String::new(), String::new(), String::new());
    for (name, event) in &events {
        let index = event["index"].as_u64();
        match *name {
            "content_block_start" => {
                assert_eq!((open, index), (None, Some(u64::try_from(kinds.len()).unwrap())));
                open = index;
                kinds.push(event["content_block"]["type"].as_str().unwrap());
            }
            "content_block_delta" => {
                assert_eq!(index, open);
                let delta = &event["delta"];
                thinking.push_str(delta["thinking"].as_str().unwrap_or_default());
                text.push_str(delta["text"].as_str().unwrap_or_default());
                input.push_str(delta["partial_json"].as_str().unwrap_or_default());
            }
            "content_block_stop" => {
                assert_eq!(index, open.take());
            }
            _ => {}
        }
    }
    assert_eq!(kinds, ["thinking", "text", "tool_use"]);
    assert_eq!((thinking.as_str(), text.as_str()), ("Hm.", "I look."));
    assert_eq!(serde_json::from_str::<Value>(&input).unwrap(), json!({"zone": "UTC"}));
    let [.., (_, delta), (last, _)] = events.as_slice() else { panic!() };
    assert_eq!((*last, &delta["delta"]["stop_reason"]), ("message_stop", &json!("tool_use")));
    // Input tokens are those that were not cached, in the first event and the last.
    let start = &events[0].1["message"]["usage"];
    assert_eq!(
        (&start["cache_read_input_tokens"], &start["output_tokens"]),
        (&json!(4), &json!(0))
    );
    assert_eq!(delta["usage"]["input_tokens"], start["input_tokens"]);
    assert_eq!(delta["usage"]["cache_read_input_tokens"], 4);
    assert!(0 < delta["usage"]["output_tokens"].as_u64().unwrap());
    assert_eq!(events.iter().filter(|(name, _)| *name == "ping").count(), 1);
}

#[tokio::test]
async fn behaviour_16_28_counted_tokens_are_those_of_the_later_usage() {
    let started = json!({"cached_tokens": 2});
    let house = House::new(json!([{"match": "*", "text": "ok", "started": started}])).await;
    let body = ask(&json!({"tools": tools(), "system": "Be brief."}));
    let reply = post(house.public, "/v1/messages", &body).await;
    let whole = reply.json();
    assert_eq!(whole["content"], json!([{"type": "text", "text": "ok"}]));
    assert_eq!((&whole["type"], &whole["stop_reason"]), (&json!("message"), &json!("end_turn")));
    assert_eq!(reply.header("request-id"), reply.header("x-request-id"));
    let usage = &whole["usage"];
    let sum = usage["input_tokens"].as_u64().unwrap()
        + usage["cache_read_input_tokens"].as_u64().unwrap();
    let mut count = body.clone();
    count.as_object_mut().unwrap().remove("max_tokens");
    for path in ["/v1/messages/count_tokens", "/anthropic/v1/messages/count_tokens"] {
        let counted = post(house.public, path, &count).await.json();
        assert_eq!(counted, json!({"input_tokens": sum}));
    }
}

#[tokio::test]
async fn behaviour_17_a_stop_sequence_is_named() {
    let house = House::new(json!([{"match": "*", "text": "one STOP two"}])).await;
    for stream in [false, true] {
        let body = ask(&json!({"stop_sequences": ["x", "STOP"], "stream": stream}));
        let reply = post(house.public, "/v1/messages", &body).await;
        let (end, text) = if stream {
            let events = reply.named_events();
            let end = events.iter().find(|(name, _)| *name == "message_delta").unwrap();
            let texts = events.iter().filter_map(|(_, event)| event["delta"]["text"].as_str());
            (end.1["delta"].clone(), texts.collect())
        } else {
            (reply.json(), reply.json()["content"][0]["text"].as_str().unwrap().to_owned())
        };
        assert_eq!(text, "one ");
        assert_eq!(end["stop_reason"], "stop_sequence");
        assert_eq!(end["stop_sequence"], "STOP");
    }
}

#[tokio::test]
async fn a_whole_answer_has_blocks_and_a_tool_loop_goes_on() {
    let house = House::new(json!([
        {"match": "<tool_result>noon</tool_result>", "text": "It is noon."},
        {"match": "*", "text": ANSWER},
    ]))
    .await;
    let thinking = json!({"type": "enabled", "budget_tokens": 1_024});
    let mut body = ask(&json!({"thinking": thinking, "tools": tools()}));
    let first = post(house.public, "/v1/messages", &body).await.json();
    let blocks = first["content"].as_array().unwrap().clone();
    assert_eq!(blocks[0]["thinking"], "Hm.");
    assert_eq!(blocks[2]["input"], json!({"zone": "UTC"}));
    let id = &blocks[2]["id"];
    assert!(id.as_str().unwrap().starts_with("toolu_"));
    let mut given = blocks.clone();
    given.insert(0, json!({"type": "redacted_thinking", "data": "x"}));
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": given}));
    messages.push(json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": id, "content": "noon", "cache_control": {"type": "ephemeral"}}]}));
    let second = post(house.public, "/v1/messages", &body).await;
    assert_eq!(second.status, 200, "{}", second.text());
    let text =
        json!([{"type": "thinking", "thinking": "It is noon.", "signature": second.json()["id"]}]);
    assert_eq!(second.json()["content"], text);
}

#[tokio::test]
async fn neighbours_of_one_role_that_hold_tool_blocks_are_one_message() {
    let house = House::new(json!([{"match": "*", "text": "Done."}])).await;
    let used = |id: &str| json!({"type": "tool_use", "id": id, "name": "clock", "input": {}});
    let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "noon"});
    let message = |role: &str, blocks: Value| json!({"role": role, "content": blocks});
    let asked = json!({"role": "user", "content": "What time is it?"});
    let whole = json!([
        asked,
        message("assistant", json!([used("a"), used("b")])),
        message("user", json!([result("a"), result("b")]))
    ]);
    let apart = [
        json!([
            asked,
            message("assistant", json!([used("a"), used("b")])),
            message("user", json!([result("a")])),
            message("user", json!([result("b")]))
        ]),
        json!([
            asked,
            message("assistant", json!([used("a")])),
            message("assistant", json!([used("b")])),
            message("user", json!([result("a"), result("b")]))
        ]),
    ];
    let tokens = |messages: Value| {
        let body = ask(&json!({"tools": tools(), "messages": messages}));
        let at = house.public;
        async move {
            let reply = post(at, "/v1/messages", &body).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            reply.json()["usage"]["input_tokens"].as_u64().unwrap()
        }
    };
    let expected = tokens(whole).await;
    for messages in apart {
        assert_eq!(tokens(messages).await, expected);
    }
}

/// Anthropic's shape.
fn error(reply: &Reply) -> Value {
    let body = reply.json();
    assert_eq!(body["type"], "error", "{body}");
    assert!(body["error"]["message"].is_string());
    body["error"]["type"].clone()
}

#[tokio::test]
async fn behaviour_18_errors_have_anthropics_shape_also_in_streams() {
    let house = House::new(json!([
        {"match": "busy", "text": "x", "fail_after": 0, "fail": "overloaded"},
        {"match": "*", "text": "one two", "fail_after": 1, "fail": "internal"},
    ]))
    .await;
    let cases = [
        (json!({"max_tokens": null}), 400, "invalid_request_error"),
        (json!({"model": "claude-x"}), 404, "not_found_error"),
        (json!({"messages": [{"role": "user", "content": "busy"}]}), 529, "overloaded_error"),
        (json!({}), 500, "api_error"),
    ];
    for (change, status, kind) in cases {
        let reply = post(house.public, "/v1/messages", &ask(&change)).await;
        assert_eq!((reply.status, error(&reply)), (status, json!(kind)), "{change}");
        assert_eq!(reply.json()["request_id"], reply.header("request-id").unwrap());
    }
    let reply = post(house.public, "/v1/messages", &ask(&json!({"stream": true}))).await;
    let events = reply.named_events();
    let (name, event) = events.last().unwrap();
    assert_eq!((*name, &event["error"]["type"]), ("error", &json!("api_error")));
    for (method, path, status) in [
        ("GET", "/v1/messages", 405),
        ("POST", "/anthropic/v1/nothing", 404),
        ("POST", "/v1/messages/batches", 404),
    ] {
        let reply = send(house.public, method, path, b"").await;
        assert_eq!(reply.status, status, "{path}");
        error(&reply);
    }
}

#[tokio::test]
async fn behaviour_30_silence_is_a_comment_before_the_first_event_and_a_ping_later() {
    let house = House::with(
        json!([
            {"match": "queued", "text": "one", "delay_ms": 60_000},
            {"match": "*", "text": "one", "then": "hold"},
        ]),
        |config, _| {
            config.keep_alive_ms = 5;
            config.head_wait_ms_max = 1;
        },
    )
    .await;
    for (content, parts) in
        [("queued", [": keep-alive", ": keep-alive"]), ("x", ["one", "event: ping"])]
    {
        let messages = json!([{"role": "user", "content": content}]);
        let body = ask(&json!({"stream": true, "messages": messages})).to_string();
        let head = crate::client::head("POST", "/v1/messages", body.len());
        let mut stream = crate::client::open(house.public, &head, body.as_bytes()).await;
        for part in parts {
            crate::client::read_until(&mut stream, part).await;
        }
    }
}
