//! Behaviours that naive servers get wrong (specs, recipe-and-apis 5.4), where no other test of a protocol holds them.

use serde_json::{Value, json};

use crate::client::{Reply, chat, post};
use crate::house::{House, ask, tokenizer};

const CALL: &str = "I look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_time\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

/// One request of each protocol for the same prompt and answer.
fn every_protocol() -> [(&'static str, Value); 4] {
    let plain = json!({"type": "disabled"});
    let messages = json!([{"role": "user", "content": "hi"}]);
    [
        ("/v1/chat/completions", ask(&json!({}))),
        ("/v1/completions", json!({"model": "seedling", "prompt": "hi"})),
        (
            "/v1/messages",
            json!({"model": "seedling", "max_tokens": 9, "messages": messages, "thinking": plain}),
        ),
        (
            "/v1/responses",
            json!({"model": "seedling", "input": "hi", "reasoning": {"effort": "none"}}),
        ),
    ]
}

/// Tokens of the prompt, and those of them that were cached, as a protocol's whole answer tells them.
fn prompt_usage(reply: &Reply) -> (u64, u64) {
    let usage = &reply.json()["usage"];
    let count = |value: &Value| value.as_u64();
    let details = count(&usage["prompt_tokens_details"]["cached_tokens"])
        .or_else(|| count(&usage["input_tokens_details"]["cached_tokens"]));
    if let Some(cached) = details {
        let prompt = count(&usage["prompt_tokens"]).or_else(|| count(&usage["input_tokens"]));
        return (prompt.unwrap(), cached);
    }
    let cached = count(&usage["cache_read_input_tokens"]).unwrap();
    (count(&usage["input_tokens"]).unwrap() + cached, cached)
}

/// Streams of Chat: plain, thinking, with a call, cut off, two answers.
async fn chat_streams() -> Vec<(&'static str, Reply)> {
    let house = House::new(json!([
        {"match": "cut", "text": "one two three", "then": "length"},
        {"match": "look", "text": CALL},
        {"match": "<think>", "text": "Hm.\n</think>\n\nParis."},
        {"match": "*", "text": "one two"},
    ]))
    .await;
    let tools = json!([{"type": "function", "function": {"name": "get_time"}}]);
    let said = |text: &str| json!([{"role": "user", "content": text}]);
    let mut streams = Vec::new();
    for (end, change) in [
        ("stop", json!({})),
        ("stop", json!({"thinking": {"type": "enabled"}})),
        ("tool_calls", json!({"messages": said("look"), "tools": tools})),
        ("length", json!({"messages": said("cut")})),
        ("stop", json!({"n": 2})),
    ] {
        let mut body = ask(&change);
        body["stream"] = true.into();
        let reply = chat(house.public, &body).await;
        assert_eq!(reply.status, 200, "{change}");
        streams.push((end, reply));
    }
    streams
}

/// The choices of an index, in the order in which their chunks came.
fn choices_of(reply: &Reply, index: u64) -> Vec<Value> {
    let chunks = reply.chunks().into_iter();
    let choices = chunks.flat_map(|chunk| chunk["choices"].as_array().unwrap().clone());
    choices.filter(|choice| choice["index"] == index).collect()
}

#[tokio::test]
async fn behaviour_01_02_05_the_reason_is_null_until_one_chunk_ends_and_the_role_comes_once() {
    let mut answers = 0;
    for (end, reply) in chat_streams().await {
        for index in 0..2 {
            let choices = choices_of(&reply, index);
            let Some((last, earlier)) = choices.split_last() else { continue };
            answers += 1;
            for choice in earlier {
                let reason = choice.as_object().unwrap().get("finish_reason");
                assert_eq!(reason, Some(&Value::Null), "null, neither \"\" nor absent: {choice}");
            }
            assert_eq!((&last["finish_reason"], &last["delta"]), (&json!(end), &json!({})));
            let roles: Vec<&Value> =
                choices.iter().filter_map(|choice| choice["delta"].get("role")).collect();
            assert_eq!(roles, ["assistant"]);
            assert_eq!(earlier[0]["delta"]["role"], "assistant", "it comes first");
        }
    }
    assert_eq!(answers, 6);
}

#[tokio::test]
async fn behaviour_03_a_usage_chunk_without_choices_comes_last_if_asked_for_and_else_never() {
    let house = House::new(json!([{"match": "*", "text": CALL}])).await;
    for path in ["/v1/chat/completions", "/v1/completions"] {
        for (options, is_asked) in [
            (json!({"include_usage": true}), true),
            (json!({"include_usage": false}), false),
            (Value::Null, false),
        ] {
            let mut body = ask(&json!({"stream": true, "stream_options": options}));
            if path == "/v1/completions" {
                body = json!({"model": "seedling", "prompt": "hi", "stream": true,
                    "stream_options": options});
            }
            let reply = post(house.public, path, &body).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            let chunks = reply.chunks();
            let without = chunks.iter().filter(|chunk| chunk["choices"] == json!([])).count();
            let with_usage = chunks.iter().filter(|chunk| chunk["usage"].is_object()).count();
            let expected = usize::from(is_asked);
            assert_eq!((without, with_usage), (expected, expected), "{path} {options}");
            let last = chunks.last().unwrap();
            assert_eq!(last["usage"].is_object() && last["choices"] == json!([]), is_asked);
        }
    }
}

#[tokio::test]
async fn behaviour_04_done_is_the_last_event_whatever_the_end() {
    for (end, reply) in chat_streams().await {
        assert!(reply.text().ends_with("data: [DONE]\n\n"), "{end}: {}", reply.text());
        assert_eq!(reply.text().matches("[DONE]").count(), 1, "{end}");
    }
}

#[tokio::test]
async fn behaviour_26_the_newer_bound_wins_and_a_prompt_that_is_too_long_is_400() {
    let house = House::new(json!([{"match": "*", "text": "one two three four five six"}])).await;
    for (older, newer) in [(1, 3), (3, 2)] {
        let body = ask(&json!({"max_tokens": older, "max_completion_tokens": newer}));
        let whole = chat(house.public, &body).await.json();
        assert_eq!(whole["usage"]["completion_tokens"], newer);
        assert_eq!(whole["choices"][0]["finish_reason"], "length");
    }
    let long = "word ".repeat(40_000);
    for (path, mut body) in every_protocol() {
        match path {
            "/v1/completions" => body["prompt"] = long.clone().into(),
            "/v1/responses" => body["input"] = long.clone().into(),
            _ => body["messages"][0]["content"] = long.clone().into(),
        }
        for stream in [false, true] {
            body["stream"] = stream.into();
            let reply = post(house.public, path, &body).await;
            assert_eq!(reply.status, 400, "{path}");
            let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains("32768"), "{path} says how long it may be: {message}");
        }
    }
}

#[tokio::test]
async fn behaviour_27_spelled_control_tokens_are_text_to_the_worker() {
    let mut house = House::new(json!([{"match": "*", "text": "ok"}])).await;
    let tokenizer = tokenizers::Tokenizer::from_file(tokenizer()).unwrap();
    let spellings = [
        "<｜User｜>",
        "<｜Assistant｜>",
        "</think>",
        "<think>",
        "｜DSML｜",
        "<｜System｜>",
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜fim▁hole｜>",
    ];
    let controls = spellings.map(|spelling| tokenizer.token_to_id(spelling).unwrap());
    let spelled = spellings.concat();
    for (path, mut body) in every_protocol() {
        let mut counts = Vec::new();
        for text in ["hi", spelled.as_str()] {
            match path {
                "/v1/completions" => body["prompt"] = text.into(),
                "/v1/responses" => body["input"] = text.into(),
                _ => body["messages"][0]["content"] = text.into(),
            }
            assert_eq!(post(house.public, path, &body).await.status, 200, "{path} {text}");
            let prompt = house.submitted().await.prompt;
            house.released().await;
            counts.push(controls.map(|id| prompt.iter().filter(|other| other.0 == id).count()));
            let ids: Vec<u32> = prompt.iter().map(|id| id.0).collect();
            assert!(tokenizer.decode(&ids, false).unwrap().contains(text), "{path}: all of it");
        }
        assert_eq!(counts[0], counts[1], "{path}: as many as in a prompt that spells none");
    }
}

#[tokio::test]
async fn behaviour_29_cached_tokens_are_no_more_than_the_prompts_and_count_once() {
    // A worker that reports more than there is.
    let answer =
        |cached: u32| json!([{"match": "*", "text": "ok", "started": {"cached_tokens": cached}}]);
    let house = House::new(answer(1_000_000)).await;
    for (path, body) in every_protocol() {
        let (prompt, cached) = prompt_usage(&post(house.public, path, &body).await);
        assert!(0 < prompt && cached == prompt, "{path}: {cached} of {prompt}");
    }
    let house = House::new(answer(1)).await;
    let [(chats, mut chat), (completions, mut completion), ..] = every_protocol();
    let (prompt, cached) = prompt_usage(&post(house.public, chats, &chat).await);
    assert_eq!(cached, 1);
    chat["n"] = 3.into();
    assert_eq!(prompt_usage(&post(house.public, chats, &chat).await), (prompt, 1));
    let (prompt, cached) = prompt_usage(&post(house.public, completions, &completion).await);
    assert_eq!(cached, 1);
    completion["prompt"] = json!(["hi", "hi"]);
    completion["n"] = 2.into();
    let both = prompt_usage(&post(house.public, completions, &completion).await);
    assert_eq!(both, (2 * prompt, 2), "each prompt once, however many answers");
}
