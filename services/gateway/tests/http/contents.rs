//! What clients put into requests is in the prompt, or is refused by name; what answers repeat is what held.

use serde_json::{Value, json};

use crate::client::{Reply, post};
use crate::house::House;

fn message(change: &Value) -> Value {
    merged(
        json!({"model": "seedling", "max_tokens": 100, "thinking": {"type": "disabled"},
        "messages": [{"role": "user", "content": "hi"}]}),
        change,
    )
}

fn response(change: &Value) -> Value {
    merged(json!({"model": "seedling", "input": "hi", "reasoning": {"effort": "none"}}), change)
}

fn merged(mut body: Value, change: &Value) -> Value {
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Who knows its prompt's end by heart.
async fn house(matched: &str) -> House {
    House::new(json!([{"match": matched, "text": "read"}])).await
}

/// Refused with 400, naming this place, and this in words.
fn refused(reply: &Reply, param: &str, word: &str) {
    assert_eq!(reply.status, 400, "{}", reply.text());
    let error = &reply.json()["error"];
    assert!(error["message"].as_str().unwrap().contains(word), "{error}");
    // Anthropic's errors have no such member: there the message names the place, or what stands in it.
    assert!(error["param"].is_null() || error["param"] == param, "{error}");
}

fn in_messages(block: &Value) -> Value {
    message(
        &json!({"messages": [{"role": "user", "content": [block, {"type": "text", "text": "?"}]}]}),
    )
}

fn in_result(block: &Value) -> Value {
    let call = json!({"type": "tool_use", "id": "t", "name": "look", "input": {}});
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [block]});
    message(&json!({"tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]}]}))
}

#[tokio::test]
async fn documents_and_search_results_are_read_wherever_they_stand() {
    let text = json!({"type": "document", "title": "Codes", "context": "secret",
        "source": {"type": "text", "media_type": "text/plain", "data": "The code is 7."}});
    let parts = json!({"type": "document", "source": {"type": "content",
        "content": [{"type": "text", "text": "The code"}, {"type": "text", "text": "is 7."}]}});
    let plain = json!({"type": "document", "citations": {"enabled": false},
        "source": {"type": "content", "content": "The code is 7."}});
    let found = json!({"type": "search_result", "title": "Codes", "source": "http://x",
        "content": [{"type": "text", "text": "The code is 7."}]});
    for (block, expected) in [
        (text, "Codes\nsecret\nThe code is 7."),
        (parts, "The code\nis 7."),
        (plain, "The code is 7."),
        (found, "Codes\nhttp://x\nThe code is 7."),
    ] {
        let house = house(expected).await;
        for body in [in_messages(&block), in_result(&block)] {
            let reply = post(house.public, "/v1/messages", &body).await;
            assert_eq!(reply.status, 200, "{block}: {}", reply.text());
        }
    }
}

#[tokio::test]
async fn blocks_without_text_are_refused_by_name() {
    let house = house("*").await;
    let document = |source: Value| json!({"type": "document", "source": source});
    let text = json!({"type": "text", "data": "a"});
    for (block, word) in [
        (
            document(json!({"type": "base64", "media_type": "application/pdf", "data": "AA"})),
            "base64",
        ),
        (document(json!({"type": "url", "url": "http://x"})), "url"),
        (document(json!({"type": "file", "file_id": "f"})), "file"),
        (document(json!({"type": "text", "data": 5})), "document.source.data"),
        (
            document(json!({"type": "content", "content": [{"type": "image"}]})),
            "document.source.content",
        ),
        (json!({"type": "document"}), "document"),
        (json!({"type": "document", "source": text, "citations": {"enabled": true}}), "citations"),
        (json!({"type": "search_result", "content": 5}), "search_result.content"),
        (json!({"type": "image", "source": {"type": "url", "url": "http://x"}}), "image"),
        (json!({"type": "container_upload", "file_id": "f"}), "container_upload"),
        (json!({"type": "txt", "text": "a"}), "txt"),
        (json!({"text": "a"}), "block"),
    ] {
        for body in [in_messages(&block), in_result(&block)] {
            let reply = post(house.public, "/v1/messages", &body).await;
            refused(&reply, "", word);
        }
    }
}

#[tokio::test]
async fn items_that_nobody_reads_are_refused_by_name() {
    let house = house("*").await;
    let user = json!({"type": "message", "role": "user", "content": "hi"});
    for item in [
        json!({"type": "input_text", "text": "hi"}),
        json!({"type": "input_image", "image_url": "http://x"}),
        json!({"type": "local_shell_call", "call_id": "c", "action": {}}),
        json!({"type": "local_shell_call_output", "id": "c", "output": "x"}),
        json!({"type": "shell_call_output", "call_id": "c", "output": []}),
        json!({"type": "apply_patch_call_output", "call_id": "c", "output": "x"}),
        json!({"type": "agent_message", "content": []}),
        json!({"type": "mcp_call", "id": "m", "name": "x"}),
        json!({"type": "compaction", "encrypted_content": "x"}),
        json!({"type": "mesage", "role": "user", "content": "hi"}),
        json!({"text": "hi"}),
    ] {
        for (input, place) in [(json!([item]), "input[0]"), (json!([user, item]), "input[1]")] {
            let reply =
                post(house.public, "/v1/responses", &response(&json!({"input": input}))).await;
            refused(&reply, place, item["type"].as_str().unwrap_or("type"));
            assert_eq!(reply.json()["error"]["param"], place);
        }
    }
    for part in ["input_image", "input_file", "input_audio", "image_url"] {
        let parts = json!([{"type": part}]);
        let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
        for input in [
            json!([{"role": "user", "content": parts}]),
            json!([call, {"type": "function_call_output", "call_id": "c", "output": parts}]),
        ] {
            let place = format!("input[{}]", input.as_array().unwrap().len() - 1);
            let reply =
                post(house.public, "/v1/responses", &response(&json!({"input": input}))).await;
            refused(&reply, &place, part);
            assert_eq!(reply.json()["error"]["param"], place);
        }
    }
    // What another server found stands in the message that follows.
    let search = json!({"type": "web_search_call", "id": "w", "status": "completed"});
    let body = response(&json!({"input": [user, search, user]}));
    assert_eq!(post(house.public, "/v1/responses", &body).await.status, 200);
}

#[tokio::test]
async fn thinking_is_left_out_where_the_client_says_so_and_comes_back() {
    let house = House::new(json!([
        {"match": "<think>Hm, 7.</think>", "text": "</think>remembered"},
        {"match": "*", "text": "Hm, 7.\n</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"look\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"},
    ]))
    .await;
    let tools = json!([{"name": "look", "input_schema": {"type": "object"}}]);
    let thinking = json!({"type": "enabled", "budget_tokens": 2_000, "display": "omitted"});
    let body = message(&json!({"thinking": thinking, "tools": tools}));
    let first = post(house.public, "/v1/messages", &body).await.json();
    let blocks = first["content"].as_array().unwrap().clone();
    assert_eq!((&blocks[0]["type"], &blocks[0]["thinking"]), (&json!("thinking"), &json!("")));
    let streamed = merged(body.clone(), &json!({"stream": true}));
    let reply = post(house.public, "/v1/messages", &streamed).await;
    let events = reply.named_events();
    let of_block = |kind: &str| {
        events.iter().filter(|(_, event)| event["delta"]["type"] == kind).collect::<Vec<_>>()
    };
    assert!(of_block("thinking_delta").is_empty(), "{}", reply.text());
    let [(_, signed)] = of_block("signature_delta")[..] else { panic!("{}", reply.text()) };
    assert_eq!(signed["delta"]["signature"], blocks[0]["signature"]);
    let result = json!({"type": "tool_result", "tool_use_id": blocks[1]["id"], "content": "noon"});
    let messages = json!([{"role": "user", "content": "hi"},
        {"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]);
    let second =
        post(house.public, "/v1/messages", &merged(body, &json!({"messages": messages}))).await;
    assert_eq!(second.json()["content"][0]["text"], "remembered", "{}", second.text());
}

#[tokio::test]
async fn a_response_repeats_what_its_tokens_were_drawn_by() {
    let house = house("*").await;
    for (change, temperature, top_p) in [
        (json!({"temperature": 0, "top_p": 0.5, "reasoning": {"effort": "high"}}), 1.0, 0.95),
        (json!({"temperature": 1, "top_p": 0.97, "reasoning": {"effort": "high"}}), 1.0, 0.97),
        (json!({"temperature": 0.7, "top_p": 0.5}), 0.7, 1.0),
        (json!({}), 1.0, 1.0),
    ] {
        let body = response(&change);
        let whole = post(house.public, "/v1/responses", &body).await.json();
        assert_eq!(
            (whole["temperature"].as_f64(), whole["top_p"].as_f64()),
            (Some(temperature), Some(top_p)),
            "{change}"
        );
    }
}

#[tokio::test]
async fn a_response_repeats_the_tools_and_the_reasoning_that_it_has() {
    let house = house("*").await;
    let change = json!({
        "tools": [{"type": "web_search"}, {"type": "function", "name": "f"},
            {"type": "web_search_2025_08_26"}],
        "reasoning": {"effort": "low", "generate_summary": "auto", "context": "auto", "mode": "standard"},
    });
    let whole = post(house.public, "/v1/responses", &response(&change)).await.json();
    let tools = whole["tools"].as_array().unwrap();
    assert_eq!((tools.len(), &tools[0]["name"]), (1, &json!("f")));
    assert_eq!(
        whole["reasoning"],
        json!({"effort": "low", "summary": "auto", "context": "auto", "mode": "standard"})
    );
}

#[tokio::test]
async fn a_chat_repeats_the_tier_and_the_metadata_it_was_given() {
    let house = house("*").await;
    let body = crate::house::ask(&json!({"service_tier": "flex", "metadata": {"a": "b"}}));
    let whole = crate::client::chat(house.public, &body).await.json();
    assert_eq!(
        (&whole["service_tier"], &whole["metadata"]),
        (&json!("default"), &json!({"a": "b"}))
    );
    let streamed = merged(body, &json!({"stream": true}));
    let reply = crate::client::chat(house.public, &streamed).await;
    assert!(reply.chunks().iter().all(|chunk| chunk["service_tier"] == "default"));
    let bare = crate::client::chat(house.public, &crate::house::ask(&json!({}))).await.json();
    assert!(bare.get("service_tier").is_none() && bare.get("metadata").is_none(), "{bare}");
    let details = &bare["usage"]["completion_tokens_details"];
    assert_eq!(details["rejected_prediction_tokens"], 0);
}

/// By path: a request that is answered, and what it is refused with.
#[tokio::test]
async fn fields_of_other_protocols_are_read_or_refused_by_name() {
    let house = house("*").await;
    let chat = |change: Value| ("/v1/chat/completions", crate::house::ask(&change));
    let plain = |change: Value| {
        ("/v1/completions", merged(json!({"model": "seedling", "prompt": "hi"}), &change))
    };
    let items = |change: Value| ("/v1/responses", response(&change));
    let talk = |change: Value| ("/v1/messages", message(&change));
    let tokens = |change: Value| {
        ("/v1/tokenize", merged(json!({"model": "seedling", "prompt": "hi"}), &change))
    };
    let said = |member: &str, value: Value| json!({"messages": [{"role": "user", "content": "hi", member: value}]});
    for ((path, body), param) in [
        (chat(json!({"add_generation_prompt": false})), "add_generation_prompt"),
        (chat(json!({"continue_final_message": true})), "continue_final_message"),
        (chat(json!({"echo": true})), "echo"),
        (chat(json!({"documents": [{"text": "a"}]})), "documents"),
        (chat(json!({"include_reasoning": false})), "include_reasoning"),
        (chat(json!({"reasoning": {"max_tokens": 5}})), "reasoning.max_tokens"),
        (chat(json!({"reasoning": {"exclude": true}})), "reasoning.exclude"),
        (chat(json!({"chat_template_kwargs": {"reasoning_effort": "huge"}})), "reasoning_effort"),
        (chat(json!({"stop_regex": "a"})), "stop_regex"),
        (chat(json!({"no_stop_trim": true})), "no_stop_trim"),
        (
            chat(json!({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}})),
            "whitespace_pattern",
        ),
        (chat(said("task", json!("query"))), "messages[0]"),
        (chat(said("function_call", json!({"name": "f"}))), "messages[0]"),
        (chat(said("audio", json!({"id": "a"}))), "messages[0]"),
        (plain(json!({"response_format": {"type": "xml"}})), "response_format"),
        (items(json!({"max_tokens": 5})), "max_tokens"),
        (items(json!({"reasoning_effort": "low"})), "reasoning_effort"),
        (items(json!({"thinking": {"type": "disabled"}})), "thinking"),
        (items(json!({"response_format": {"type": "json_object"}})), "response_format"),
        (items(json!({"stop": "a"})), "stop"),
        (items(json!({"n": 2})), "n"),
        (items(json!({"logprobs": true})), "logprobs"),
        (items(json!({"reasoning": {"mode": "pro"}})), "reasoning.mode"),
        (items(json!({"reasoning": {"context": "all_turns"}})), "reasoning.context"),
        (talk(json!({"mcp_servers": [{"url": "http://x"}]})), "mcp_servers"),
        (
            talk(json!({"thinking": {"type": "enabled", "budget_tokens": "x"}})),
            "thinking.budget_tokens",
        ),
        (talk(json!({"thinking": {"type": "enabled", "display": "x"}})), "thinking.display"),
        (tokens(json!({"return_token_strs": true})), "return_token_strs"),
    ] {
        let reply = post(house.public, path, &body).await;
        refused(&reply, param, param.split('[').next().unwrap());
    }
    for (path, body) in [
        chat(json!({"add_generation_prompt": true, "include_reasoning": true, "echo": false})),
        chat(json!({"reasoning": {"enabled": false}, "thinking": null})),
        chat(json!({"chat_template_kwargs": {"thinking": true, "reasoning_effort": "low"}})),
        plain(json!({"response_format": {"type": "json_object"}})),
        items(json!({"n": 1, "stop": null, "logprobs": false, "reasoning": null})),
        talk(json!({"mcp_servers": [], "context_management": {"edits": []}})),
        talk(json!({"thinking": {"type": "adaptive", "display": "summarized"}})),
    ] {
        let reply = post(house.public, path, &body).await;
        assert_eq!(reply.status, 200, "{body}: {}", reply.text());
    }
}
