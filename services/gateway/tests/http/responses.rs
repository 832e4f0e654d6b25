//! OpenAI's Responses.

use serde_json::{Value, json};

use crate::client::{post, send};
use crate::house::House;

const ANSWER: &str = "Hm.\n</think>\n\nI look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_time\">\n<｜DSML｜ parameter name=\"zone\" string=\"true\">UTC</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

fn ask(change: &Value) -> Value {
    let mut body = json!({"model": "seedling", "input": "hi"});
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn tools() -> Value {
    json!([{"type": "function", "name": "get_time", "parameters": {"type": "object"}}])
}

/// Asserts that the events of an item name it by one id.
fn items_have_one_id(events: &[(&str, Value)]) {
    let mut item = &Value::Null;
    for (name, event) in events {
        if *name == "response.output_item.added" {
            item = &event["item"]["id"];
            assert!(item.is_string(), "{event}");
        }
        let named = event.get("item_id").or_else(|| event.get("item").map(|item| &item["id"]));
        match event.get("output_index") {
            Some(_) => assert_eq!(named, Some(item), "{event}"),
            None => assert_eq!(named, None, "{event}"),
        }
    }
}

#[tokio::test]
async fn behaviour_13_14_events_are_in_order_and_numbered_without_gaps() {
    let house = House::new(json!([{"match": "*", "text": ANSWER}])).await;
    let body = ask(&json!({"stream": true, "tools": tools()}));
    let reply = post(house.public, "/v1/responses", &body).await;
    let events = reply.named_events();
    for (number, (name, event)) in events.iter().enumerate() {
        assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(number)));
    }
    let mut names: Vec<&str> = events.iter().map(|(name, _)| *name).collect();
    names.dedup();
    assert_eq!(
        names,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    items_have_one_id(&events);
    let last = &events.last().unwrap().1["response"];
    let mut done = Vec::new();
    let mut joined = String::new();
    for (name, event) in &events {
        match *name {
            "response.output_item.added" => {
                joined.clear();
                assert_eq!(event["output_index"], done.len());
            }
            "response.output_item.done" => done.push(event["item"].clone()),
            name if name.ends_with(".delta") => {
                assert_eq!(event["output_index"], done.len());
                joined.push_str(event["delta"].as_str().unwrap());
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(event["text"], joined);
            }
            "response.function_call_arguments.done" => {
                assert_eq!(event["arguments"], joined);
                assert_eq!(event["name"], "get_time");
            }
            _ => {}
        }
    }
    assert_eq!(last["output"], json!(done), "items are the same to the end");
    assert_eq!(last["status"], "completed");
    assert!(last["usage"]["input_tokens_details"]["cache_write_tokens"].is_u64());
    assert!(last.get("user").is_none(), "nobody was named");
    assert_eq!(done[1]["content"][0]["annotations"], json!([]));
}

#[tokio::test]
async fn a_whole_response_has_what_the_schema_requires() {
    let house = House::new(json!([{"match": "*", "text": ANSWER}])).await;
    let whole = post(house.public, "/responses", &ask(&json!({"tools": tools()}))).await.json();
    assert_eq!(whole["output"].as_array().unwrap().len(), 3);
    for name in [
        "error",
        "incomplete_details",
        "instructions",
        "metadata",
        "temperature",
        "top_p",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "created_at",
    ] {
        assert!(whole.get(name).is_some(), "{name} is missing");
    }
    assert_eq!(whole["tools"][0]["name"], tools()[0]["name"]);
}

#[tokio::test]
async fn behaviour_18_an_answer_that_was_cut_is_incomplete_and_a_failure_is_failed() {
    let house = House::new(json!([
        {"match": "break", "text": "one two", "fail_after": 2},
        {"match": "*", "text": "x</think>one two three four"},
    ]))
    .await;
    let body = ask(&json!({"max_output_tokens": 4, "stream": true}));
    let events = post(house.public, "/v1/responses", &body).await;
    let (name, event) = events.named_events().pop().unwrap();
    assert_eq!(name, "response.incomplete");
    let response = &event["response"];
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(response["output"].as_array().unwrap().last().unwrap()["status"], "incomplete");
    let broken = ask(&json!({"input": "break", "stream": true}));
    let events = post(house.public, "/v1/responses", &broken).await;
    let (name, event) = events.named_events().pop().unwrap();
    assert_eq!((name, &event["response"]["status"]), ("response.failed", &json!("failed")));
    assert_eq!(event["response"]["error"]["code"], "internal_error");
}

#[tokio::test]
async fn a_stored_response_can_be_continued_looked_at_and_deleted() {
    let house = House::new(json!([
        {"match": "<｜User｜>again", "text": "</think>Twice."},
        {"match": "*", "text": "Hm.</think>Once."},
    ]))
    .await;
    let first = post(house.public, "/v1/responses", &ask(&json!({}))).await.json();
    let id = first["id"].as_str().unwrap();
    let change = json!({"input": "again", "previous_response_id": id, "store": false});
    let second = post(house.public, "/v1/responses", &ask(&change)).await.json();
    assert_eq!(second["previous_response_id"], *id);
    let short = post(house.public, "/v1/responses", &ask(&json!({"input": "again"}))).await.json();
    assert!(short["usage"]["input_tokens"].as_u64() < second["usage"]["input_tokens"].as_u64());
    let path = format!("/v1/responses/{id}");
    assert_eq!(send(house.public, "GET", &path, b"").await.json(), first);
    let streamed = send(house.public, "GET", &format!("{path}?stream=true"), b"").await;
    assert_eq!(
        (streamed.status, streamed.json()["error"]["param"].as_str()),
        (400, Some("stream"))
    );
    let items = send(house.public, "GET", &format!("{path}/input_items"), b"").await.json();
    assert_eq!(items["data"][0]["content"][0]["text"], "hi");
    let unstored = format!("/v1/responses/{}", second["id"].as_str().unwrap());
    assert_eq!(send(house.public, "GET", &unstored, b"").await.status, 404);
    assert_eq!(send(house.public, "DELETE", &path, b"").await.json()["deleted"], true);
    for _ in 0..2 {
        let gone = post(house.public, "/v1/responses", &ask(&change)).await;
        assert_eq!(gone.status, 400);
        assert_eq!(gone.json()["error"]["code"], "previous_response_not_found");
    }
}

#[tokio::test]
async fn reasoning_comes_back_by_its_opaque_copy_alone() {
    let house = House::new(json!([
        {"match": "<think>Hm.</think>", "text": "</think>remembered"},
        {"match": "*", "text": ANSWER},
    ]))
    .await;
    let include = json!(["reasoning.encrypted_content"]);
    let body = ask(&json!({"tools": tools(), "include": include, "store": false}));
    let mut first = post(house.public, "/v1/responses", &body).await.json();
    let output = first["output"].as_array_mut().unwrap();
    output[0].as_object_mut().unwrap().remove("content");
    let mut input = vec![json!({"role": "user", "content": "hi"})];
    input.append(output);
    let call = &input[3]["call_id"];
    input.push(json!({"type": "function_call_output", "call_id": call, "output": "noon"}));
    let body = ask(&json!({"tools": tools(), "input": input, "store": false}));
    let second = post(house.public, "/v1/responses", &body).await;
    assert_eq!(second.status, 200, "{}", second.text());
    assert_eq!(second.json()["output"][0]["content"][0]["text"], "remembered");
}

#[tokio::test]
async fn custom_tools_get_text_and_namespaces_their_names() {
    let call = |name: &str, key: &str| {
        format!(
            "</think><｜DSML｜ calls>\n<｜DSML｜ invoke name=\"{name}\">\n<｜DSML｜ parameter name=\"{key}\" string=\"true\">a \"b\"\nc</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
        )
    };
    let house = House::new(json!([
        {"match": "one", "text": call("patch", "input")},
        {"match": "two", "text": call("ns::f", "x")},
    ]))
    .await;
    let tools = json!([
        {"type": "custom", "name": "patch", "description": "d", "format": {"type": "text"}},
        {"type": "namespace", "name": "ns", "description": "n", "tools": [
            {"type": "function", "name": "f", "parameters": {"type": "object"}}]},
        {"type": "web_search"},
    ]);
    let body = ask(&json!({"input": "one", "tools": tools}));
    let item = &post(house.public, "/v1/responses", &body).await.json()["output"][0];
    assert_eq!((&item["type"], &item["input"]), (&json!("custom_tool_call"), &json!("a \"b\"\nc")));
    let body = ask(&json!({"input": "two", "tools": tools}));
    let item = &post(house.public, "/v1/responses", &body).await.json()["output"][0];
    assert_eq!((&item["name"], &item["namespace"]), (&json!("f"), &json!("ns")));
}
