//! Tool calls, several answers, and what is told of tokens, in chat completions.

use serde_json::{Value, json};
use shared::Grammar;

use crate::client::{Reply, chat, open_chat, post, read_until};
use crate::house::{House, Seen, ask};

const CALLS: &str = "I look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter name=\"city\" string=\"true\">杭州 \"x\" </b></｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"days\" string=\"false\">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"get_time\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

pub(crate) fn tools() -> Value {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    json!([tool("get_weather"), tool("get_time")])
}

/// The calls of a streamed answer, put together as clients do.
fn assembled(reply: &Reply) -> Vec<(String, String, String)> {
    let mut calls: Vec<(String, String, String)> = Vec::new();
    for chunk in reply.chunks() {
        let Some(parts) = chunk["choices"][0]["delta"]["tool_calls"].as_array().cloned() else {
            continue;
        };
        for part in parts {
            let index = usize::try_from(part["index"].as_u64().unwrap()).unwrap();
            if let Some(id) = part["id"].as_str() {
                assert_eq!(index, calls.len(), "calls come one after another");
                assert_eq!(part["type"], "function");
                let name = part["function"]["name"].as_str().unwrap();
                calls.push((id.into(), name.into(), String::new()));
            } else {
                assert_eq!(index + 1, calls.len(), "parts belong to the last call");
                assert!(part["function"].get("name").is_none() && part.get("type").is_none());
            }
            calls[index].2.push_str(part["function"]["arguments"].as_str().unwrap());
        }
    }
    calls
}

#[tokio::test]
async fn behaviour_06_07_08_09_calls_have_id_and_name_once_and_arguments_as_they_come() {
    let house = House::new(json!([{"match": "*", "text": CALLS}])).await;
    let body = ask(&json!({"stream": true, "tools": tools()}));
    let reply = chat(house.public, &body).await;
    let calls = assembled(&reply);
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0].0, calls[1].0);
    assert!(calls.iter().all(|call| call.0.starts_with("call_")));
    let arguments: Value = serde_json::from_str(&calls[0].2).unwrap();
    assert_eq!(arguments, json!({"city": "杭州 \"x\" </b>", "days": 3}));
    assert_eq!((calls[1].1.as_str(), calls[1].2.as_str()), ("get_time", "{}"));
    let chunks = reply.chunks();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    let parts = chunks.iter().filter(|chunk| !chunk["choices"][0]["delta"]["tool_calls"].is_null());
    assert!(5 < parts.count(), "arguments are streamed");
    let content: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(content, "I look.");
    assert!(!reply.text().contains("DSML") && !reply.text().contains("invoke"));
    let whole = chat(house.public, &ask(&json!({"tools": tools()}))).await.json();
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], calls[0].2);
    assert_eq!(message["tool_calls"][1]["function"]["name"], "get_time");
    assert!(message["tool_calls"][0].get("index").is_none(), "complete calls have no index");
    assert_eq!((&message["content"], &message["refusal"]), (&json!("I look."), &Value::Null));
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn behaviour_09_a_truncated_call_ends_with_length() {
    let house = House::new(json!([{"match": "*", "text": CALLS}])).await;
    let body = ask(&json!({"tools": tools(), "max_tokens": 40}));
    let whole = chat(house.public, &body).await.json();
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn behaviour_22_calls_can_be_forced_also_while_thinking() {
    let call = "<｜DSML｜ invoke name=\"get_time\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
    let thinking = format!("Hm.\n</think>\n\n<｜DSML｜ calls>\n{call}");
    for kind in ["enabled", "disabled"] {
        let answers = if kind == "enabled" { thinking.as_str() } else { call };
        let house = House::new(json!([{"match": "*", "text": answers}])).await;
        for choice in
            [json!("required"), json!({"type": "function", "function": {"name": "get_time"}})]
        {
            let body =
                ask(&json!({"tools": tools(), "tool_choice": choice, "thinking": {"type": kind}}));
            let whole = chat(house.public, &body).await.json();
            let message = &whole["choices"][0]["message"];
            assert_eq!(message["tool_calls"][0]["function"]["name"], "get_time", "{kind}");
            assert_eq!(message["content"], Value::Null);
            assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
        }
        let body =
            ask(&json!({"tools": tools(), "tool_choice": "none", "thinking": {"type": kind}}));
        let whole = chat(house.public, &body).await.json();
        assert!(whole["choices"][0]["message"].get("tool_calls").is_none(), "{kind}");
    }
}

#[tokio::test]
async fn behaviour_21_several_answers_have_indexes_and_ends_of_their_own() {
    let started = json!({"cached_tokens": 3});
    let house = House::new(json!([{"match": "*", "text": "one two", "started": started}])).await;
    for stream in [false, true] {
        let mut change = json!({"n": 3, "stream": stream});
        if stream {
            change["stream_options"] = json!({"include_usage": true});
        }
        let reply = chat(house.public, &ask(&change)).await;
        let (usage, texts) = if stream {
            let chunks = reply.chunks();
            let mut texts = vec![String::new(); 3];
            let mut ends = [0; 3];
            let mut roles = [0; 3];
            for chunk in &chunks {
                for choice in chunk["choices"].as_array().unwrap() {
                    let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
                    texts[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
                    ends[index] += usize::from(choice["finish_reason"] == "stop");
                    roles[index] += usize::from(choice["delta"].get("role").is_some());
                }
            }
            assert_eq!((ends, roles), ([1; 3], [1; 3]));
            (chunks.last().unwrap()["usage"].clone(), texts)
        } else {
            let whole = reply.json();
            let choices = whole["choices"].as_array().unwrap();
            let texts = choices.iter().enumerate().map(|(index, choice)| {
                assert_eq!(
                    (&choice["index"], &choice["finish_reason"]),
                    (&json!(index), &json!("stop"))
                );
                choice["message"]["content"].as_str().unwrap().to_owned()
            });
            let texts = texts.collect();
            (whole["usage"].clone(), texts)
        };
        assert_eq!(texts, ["one two"; 3]);
        let one = chat(house.public, &ask(&json!({}))).await.json()["usage"].clone();
        assert_eq!(usage["prompt_tokens"], one["prompt_tokens"], "the prompt counts once");
        let each = one["completion_tokens"].as_u64().unwrap();
        assert_eq!(usage["completion_tokens"], 3 * each);
        assert_eq!(usage["prompt_cache_hit_tokens"], 3);
    }
    house.gateway.drained().await;
    assert_eq!(house.gateway.in_flight(), 0);
}

#[tokio::test]
async fn behaviour_25_a_client_that_leaves_ends_all_its_answers() {
    let mut house = House::new(json!([{"match": "*", "text": "word", "then": "hold"}])).await;
    let body = ask(&json!({"stream": true, "n": 3}));
    let mut stream = open_chat(house.public, &body).await;
    read_until(&mut stream, "\"index\":2,\"delta\":{\"content\":\"word").await;
    assert_eq!((house.gateway.in_flight(), house.engine.in_work()), (3, 3));
    drop(stream);
    house.gateway.drained().await;
    let mut released = 0;
    while released < 3 {
        released += usize::from(matches!(house.next_seen().await, Seen::PlaceReleased));
    }
}

#[tokio::test]
async fn behaviour_20_contents_come_as_parts_or_null_and_developers_are_heard() {
    let house = House::new(json!([{"match": "Obey.<｜User｜>a", "text": "ok"}])).await;
    let messages = json!([
        {"role": "developer", "content": [{"type": "text", "text": "Obey."}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "function": {"name": "get_time", "arguments": {"zone": "x"}}}]},
        {"role": "tool", "tool_call_id": "1", "content": null},
    ]);
    let reply = chat(house.public, &ask(&json!({"messages": messages, "tools": tools()}))).await;
    assert_eq!(reply.status, 400, "tools are shown between, so the script does not match");
    let reply = chat(house.public, &ask(&json!({"messages": messages}))).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[tokio::test]
async fn behaviour_23_24_formats_and_calls_go_to_the_worker_as_constraints() {
    let mut house = House::new(json!([{"match": "*", "text": "</think>{}"}])).await;
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    for (thinking, triggers) in [("enabled", 1), ("disabled", 0)] {
        let body = ask(&json!({"response_format": format, "thinking": {"type": thinking}}));
        assert_eq!(chat(house.public, &body).await.status, 200);
        let constraint = house.submitted().await.constraint.unwrap();
        assert_eq!(constraint.grammar, Grammar::Json(schema.to_string()));
        assert_eq!(constraint.trigger.len(), triggers, "only the answer is kept to the schema");
        house.released().await;
    }
    for (change, is_bound) in [
        (json!({"tools": tools()}), false),
        (json!({"tools": tools(), "tool_choice": "required"}), true),
        (json!({"tools": tools(), "parallel_tool_calls": false}), true),
    ] {
        chat(house.public, &ask(&change)).await;
        let constraint = house.submitted().await.constraint;
        let by_server =
            constraint.as_ref().is_some_and(|c| matches!(c.grammar, Grammar::Server(_)));
        assert_eq!(by_server, is_bound, "{change}");
        house.released().await;
    }
    let body = ask(&json!({"tools": tools(), "response_format": {"type": "regex", "regex": "a"}}));
    let refused = chat(house.public, &body).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (400, &json!("grammar_refused"))
    );
}

/// A tool that takes text, and how its input is told: as text, whole and piece by piece.
#[tokio::test]
async fn custom_tools_take_text_and_their_calls_say_so() {
    let answer = "Ok.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"run\">\n<｜DSML｜ parameter name=\"input\" string=\"true\">echo \"é\" </b>\nexit</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"look\">\n<｜DSML｜ parameter name=\"at\" string=\"true\">x</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
    let input = "echo \"é\" </b>\nexit";
    let mut house = House::new(json!([
        {"match": "done", "text": "Good."},
        {"match": "*", "text": answer},
    ]))
    .await;
    let grammar = json!({"syntax": "regex", "definition": "[^$]+"});
    let custom = json!({"type": "custom", "custom": {"name": "run", "description": "Runs it.",
        "format": {"type": "grammar", "grammar": grammar}}});
    let function = json!({"type": "function", "function": {"name": "look"}});
    let change = json!({"tools": [custom, function]});
    let whole = chat(house.public, &ask(&change)).await.json();
    let calls = &whole["choices"][0]["message"]["tool_calls"];
    assert_eq!(calls[0]["custom"], json!({"name": "run", "input": input}));
    assert_eq!((&calls[0]["type"], calls[0].get("function")), (&json!("custom"), None));
    assert_eq!((&calls[1]["type"], calls[1].get("custom")), (&json!("function"), None));
    assert_eq!(calls[1]["function"]["arguments"], "{\"at\": \"x\"}");
    let constraint = house.submitted().await.constraint.expect("the input has a language");
    assert!(constraint.grammar.text().contains("INPUT0: /[^$]+/"), "{:?}", constraint.grammar);

    let mut streamed = change.clone();
    streamed["stream"] = true.into();
    let chunks = chat(house.public, &ask(&streamed)).await.chunks();
    let deltas: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array())
        .flatten()
        .cloned()
        .collect();
    let of = |index: usize| deltas.iter().filter(move |delta| delta["index"] == index);
    let joined: String = of(0).filter_map(|delta| delta["custom"]["input"].as_str()).collect();
    assert_eq!(joined, input);
    assert!(2 < of(0).count(), "it comes piece by piece");
    let named: Vec<&Value> = of(0).filter(|delta| delta.get("id").is_some()).collect();
    assert_eq!((named.len(), &named[0]["custom"]["name"]), (1, &json!("run")));
    assert_eq!(named[0]["type"], "custom");
    let arguments: String =
        of(1).filter_map(|delta| delta["function"]["arguments"].as_str()).collect();
    assert_eq!(arguments, "{\"at\": \"x\"}");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    // The call comes back as it was said, and is rendered as the model wrote it.
    let mut turns =
        vec![json!({"role": "user", "content": "go"}), whole["choices"][0]["message"].clone()];
    turns[1]["tool_calls"].as_array_mut().unwrap().truncate(1);
    let id = turns[1]["tool_calls"][0]["id"].clone();
    turns.push(json!({"role": "tool", "tool_call_id": id, "content": "done"}));
    let next = json!({"messages": turns, "tools": [custom]});
    let reply = chat(house.public, &ask(&next)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let prompt = chat_prompt(&house, &ask(&next)).await;
    assert!(prompt.contains("name=\"input\" string=\"true\">echo \"é\" </b>\nexit</"), "{prompt}");
}

/// The prompt of a chat, control tokens spelled out.
async fn chat_prompt(house: &House, body: &Value) -> String {
    let told = post(house.public, "/v1/tokenize", body).await.json();
    let back = post(house.public, "/v1/detokenize", &json!({"tokens": told["tokens"]})).await;
    back.json()["prompt"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn custom_tools_can_be_chosen_and_what_clients_may_not_say_is_refused() {
    let mut house = House::new(json!([{"match": "*", "text": " invoke name=\"run\">"}])).await;
    let custom = |name: &str, syntax: &str, definition: &str| {
        let grammar = json!({"syntax": syntax, "definition": definition});
        json!({"type": "custom", "custom": {"name": name, "format": {"type": "grammar", "grammar": grammar}}})
    };
    let tools = json!([custom("run", "lark", "start: \"x\""), custom("look", "regex", "a/b+")]);
    let choices = [
        (json!({"type": "custom", "custom": {"name": "look"}}), "look"),
        (
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "required",
            "tools": [{"type": "custom", "custom": {"name": "run"}}]}}),
            "run",
        ),
    ];
    for (choice, name) in choices {
        let change = json!({"tools": tools, "tool_choice": choice});
        assert_eq!(chat(house.public, &ask(&change)).await.status, 200);
        let text = house.submitted().await.constraint.unwrap().grammar.text().to_owned();
        let other = if name == "run" { "look" } else { "run" };
        assert!(text.contains(name) && !text.contains(other), "{text}");
        assert_eq!(text.contains("/a\\/b+/"), name == "look", "a slash of the client ends nothing");
        house.released().await;
    }
    for (tool, param) in [
        (custom("run", "lark", "start: <[128800]>"), "tools[0].format"),
        (custom("run", "lark", "%llguidance {}\nstart: \"x\""), "tools[0].format"),
        (custom("run", "peg", "x"), "tools[0].format"),
        (json!({"type": "custom"}), "tools[0]"),
        (json!({"type": "mcp"}), "tools[0]"),
    ] {
        let reply = chat(house.public, &ask(&json!({"tools": [tool]}))).await;
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)));
    }
}
