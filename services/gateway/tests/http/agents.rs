//! What agents, benchmark clients and other people's test suites send beyond the protocols' examples.

use serde_json::{Value, json};

use crate::client::{chat, post};
use crate::house::{House, ask};

#[tokio::test]
async fn a_response_says_when_it_was_complete_and_repeats_tools_and_text_whole() {
    let house = House::new(json!([{"match": "*", "text": "x</think>one two three"}])).await;
    let schema = json!({"type": "json_schema", "name": "a", "schema": {"type": "object"}});
    let body = json!({
        "model": "seedling",
        "input": "hi",
        "tools": [{"type": "function", "name": "f"}],
        "text": {"verbosity": "low"},
    });
    let whole = post(house.public, "/v1/responses", &body).await.json();
    assert_eq!(whole["completed_at"], whole["created_at"], "the clock stands");
    let tool = json!({"type": "function", "name": "f", "description": null, "parameters": null,
        "strict": false});
    assert_eq!(whole["tools"], json!([tool]));
    assert_eq!(whole["text"], json!({"verbosity": "low", "format": {"type": "text"}}));
    let body = json!({"model": "seedling", "input": "hi", "text": {"format": schema},
        "max_output_tokens": 3, "stream": true});
    let events = post(house.public, "/v1/responses", &body).await;
    let events = events.named_events();
    for (name, event) in [events.first().unwrap(), events.last().unwrap()] {
        let response = &event["response"];
        assert_eq!(response.get("completed_at"), Some(&Value::Null), "{name}");
        let format = &response["text"]["format"];
        assert_eq!((&format["strict"], &format["description"]), (&json!(false), &Value::Null));
    }
}

#[tokio::test]
async fn ids_of_prompt_and_answer_are_told_to_who_asks_for_them() {
    let house = House::new(json!([{"match": "*", "text": "one two"}])).await;
    let body = ask(&json!({"return_token_ids": true}));
    let whole = chat(house.public, &body).await.json();
    let tokens = post(house.public, "/tokenize", &ask(&json!({}))).await.json();
    let prompt = tokens["tokens"].clone();
    assert_eq!(whole["prompt_token_ids"], prompt);
    let said = whole["choices"][0]["token_ids"].clone();
    let spelled = post(house.public, "/detokenize", &json!({"tokens": said})).await.json();
    assert_eq!(spelled["prompt"], "one two<｜end▁of▁sentence｜>");
    let body = ask(&json!({"return_token_ids": true, "stream": true}));
    let chunks = chat(house.public, &body).await.chunks();
    assert_eq!(chunks[0]["prompt_token_ids"], prompt);
    assert!(chunks[1..].iter().all(|chunk| chunk.get("prompt_token_ids").is_none()));
    let told = chunks.iter().filter_map(|chunk| chunk["choices"][0]["token_ids"].as_array());
    assert_eq!(Value::from(told.flatten().cloned().collect::<Vec<_>>()), said);
    let plain = chat(house.public, &ask(&json!({}))).await.json();
    assert!(plain.get("prompt_token_ids").is_none());
    assert!(plain["choices"][0].get("token_ids").is_none());
}

#[tokio::test]
async fn a_completion_tells_ids_by_choice() {
    let house = House::new(json!([{"match": "*", "text": "one two"}])).await;
    let body = json!({"model": "seedling", "prompt": ["a", "b"], "return_token_ids": true});
    let whole = post(house.public, "/v1/completions", &body).await.json();
    let second = &whole["choices"][1];
    let prompt = post(house.public, "/tokenize", &json!({"prompt": "b"})).await.json();
    assert_eq!(second["prompt_token_ids"], prompt["tokens"]);
    let mut body = body.clone();
    body["stream"] = true.into();
    let chunks = post(house.public, "/v1/completions", &body).await.chunks();
    let of_second: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0])
        .filter(|choice| choice["index"] == 1)
        .collect();
    assert_eq!(of_second[0]["prompt_token_ids"], prompt["tokens"]);
    let told = of_second.iter().filter_map(|choice| choice["token_ids"].as_array());
    assert_eq!(Value::from(told.flatten().cloned().collect::<Vec<_>>()), second["token_ids"]);
}

#[tokio::test]
async fn a_stop_token_ends_the_answer_and_is_one_of_its_tokens() {
    let house = House::new(json!([{"match": "*", "text": "one two"}])).await;
    let body = ask(&json!({"return_token_ids": true}));
    let all = chat(house.public, &body).await.json()["choices"][0]["token_ids"].clone();
    let body = ask(&json!({"return_token_ids": true, "stop_token_ids": [all[0]]}));
    let choice = chat(house.public, &body).await.json()["choices"][0].take();
    assert_eq!(
        (&choice["token_ids"], &choice["finish_reason"]),
        (&json!([all[0]]), &json!("stop"))
    );
    assert_eq!(choice["message"]["content"], "one");
}

#[tokio::test]
async fn a_client_that_searches_for_tools_is_called_to_and_may_have_called_what_it_found() {
    let call = |name: &str, key: &str| {
        format!(
            "</think><｜DSML｜ calls>\n<｜DSML｜ invoke name=\"{name}\">\n<｜DSML｜ parameter name=\"{key}\" string=\"true\">mail</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
        )
    };
    let house = House::new(json!([
        {"match": "found a tool", "text": call("mail::send", "to")},
        {"match": "*", "text": call("tool_search", "query")},
    ]))
    .await;
    let parameters = json!({"type": "object", "properties": {"query": {"type": "string"}}});
    let search = json!({"type": "tool_search", "execution": "client", "description": "Finds tools.",
        "parameters": parameters});
    let body = json!({"model": "seedling", "input": "hi", "tools": [search], "stream": true});
    let reply = post(house.public, "/v1/responses", &body).await;
    let events = reply.named_events();
    let names: Vec<&str> = events.iter().map(|(name, _)| *name).collect();
    assert_eq!(names[2..4], ["response.output_item.added", "response.output_item.done"]);
    assert_eq!(events[2].1["item"]["arguments"], json!({}));
    let item = &events[3].1["item"];
    assert_eq!((&item["type"], &item["execution"]), (&json!("tool_search_call"), &json!("client")));
    assert_eq!(item["arguments"], json!({"query": "mail"}));
    let found = json!({"type": "namespace", "name": "mail", "description": "found a tool",
        "tools": [{"type": "function", "name": "send", "defer_loading": true,
            "parameters": {"type": "object"}}]});
    let output = json!({"type": "tool_search_output", "call_id": item["call_id"],
        "execution": "client", "status": "completed", "tools": [found]});
    let input = json!([{"role": "user", "content": "hi"}, item, output]);
    let body = json!({"model": "seedling", "input": input, "tools": [search]});
    let reply = post(house.public, "/v1/responses", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let call = &reply.json()["output"][0];
    assert_eq!((&call["namespace"], &call["name"]), (&json!("mail"), &json!("send")));
    let hosted = json!({"model": "seedling", "input": "hi", "tools": [{"type": "tool_search"}]});
    let refused = post(house.public, "/v1/responses", &hosted).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tools[0]")));
}
