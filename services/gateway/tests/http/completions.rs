//! Legacy completions, tokens of text, and the roots that paths have.

use serde_json::{Value, json};

use crate::client::{post, send};
use crate::house::House;

#[tokio::test]
async fn prompts_are_answered_in_order_and_counted_once_each() {
    let house = House::new(json!([
        {"match": "first", "text": " one"},
        {"match": "second", "text": " two", "then": "length"},
    ]))
    .await;
    let body = json!({"model": "seedling", "prompt": ["first", "second"], "n": 2, "echo": true});
    let reply = post(house.public, "/v1/completions", &body).await.json();
    assert_eq!(reply["object"], "text_completion");
    let texts: Vec<&Value> =
        reply["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, ["first one", "first one", "second two", "second two"]);
    let ends: Vec<&Value> =
        reply["choices"].as_array().unwrap().iter().map(|c| &c["finish_reason"]).collect();
    assert_eq!(ends, ["stop", "stop", "length", "length"]);
    let alone = |prompt: &'static str| {
        let body = json!({"model": "seedling", "prompt": prompt});
        async move {
            post(house.public, "/completions", &body).await.json()["usage"]["prompt_tokens"]
                .as_u64()
                .unwrap()
        }
    };
    let sum = alone("first").await + alone("second").await;
    assert_eq!(reply["usage"]["prompt_tokens"], sum);
}

#[tokio::test]
async fn a_streamed_completion_shows_the_echo_first_and_ends_with_done() {
    let house = House::new(json!([{"match": "fim▁hole", "text": "x = 1"}])).await;
    let body = json!({"model": "seedling", "prompt": "a(", "suffix": ")", "echo": true,
        "stream": true, "stream_options": {"include_usage": true}});
    let reply = post(house.public, "/beta/completions", &body).await;
    let chunks = reply.chunks();
    assert_eq!(chunks[0]["choices"][0]["text"], "a(");
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "a(x = 1");
    let [.., end, usage] = chunks.as_slice() else { panic!() };
    assert_eq!(end["choices"][0]["finish_reason"], "stop");
    assert_eq!((&usage["choices"], end["usage"].is_null()), (&json!([]), true));
    assert!(usage["usage"]["total_tokens"].is_u64());
}

#[tokio::test]
async fn prompts_are_counted_before_anything_is_made_of_them() {
    let house = House::new(json!([{"match": "*", "text": "x"}])).await;
    // Each of them would have a copy of the stop strings, and the first is no token of the vocabulary.
    let mut prompts = vec![json!([0]); 100_000];
    prompts[0] = json!([u32::MAX]);
    let stops = vec!["s".repeat(1_024); 16];
    let body = json!({"model": "seedling", "prompt": prompts, "stop": stops});
    let reply = post(house.public, "/v1/completions", &body).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("n")));
    assert!(reply.text().contains("more than 64 answers"), "{}", reply.text());
}

#[tokio::test]
async fn tokens_and_their_text_are_each_others_reverse() {
    let house = House::new(json!([])).await;
    let text = "Hello 杭州 🤭 <｜User｜>";
    for path in ["/tokenize", "/v1/tokenize"] {
        let body = json!({"prompt": text, "add_special_tokens": false});
        let told = post(house.public, path, &body).await.json();
        let tokens = told["tokens"].as_array().unwrap();
        assert_eq!(told["count"], tokens.len());
        assert_eq!(told["max_model_len"], 32_768);
        let body = json!({"tokens": tokens});
        let back = post(house.public, &path.replace("token", "detoken"), &body).await.json();
        assert_eq!(back["prompt"], text);
    }
    let messages = json!({"model": "seedling", "messages": [{"role": "user", "content": "hi"}]});
    let told = post(house.public, "/v1/tokenize", &messages).await.json();
    let back = post(house.public, "/v1/detokenize", &json!({"tokens": told["tokens"]})).await;
    assert!(
        back.json()["prompt"].as_str().unwrap().ends_with("<｜User｜>hi<｜Assistant｜><think>")
    );
    for (path, body) in [
        ("/tokenize", json!({})),
        ("/tokenize", json!({"model": "x", "prompt": "a"})),
        ("/detokenize", json!({"tokens": [99_999_999]})),
        ("/detokenize", json!({"tokens": "a"})),
    ] {
        let status = post(house.public, path, &body).await.status;
        assert!(matches!(status, 400 | 404), "{path} {body}: {status}");
    }
}

#[tokio::test]
async fn paths_have_the_roots_that_deepseek_gives_them() {
    let house = House::new(json!([{"match": "*", "text": "ok"}])).await;
    let chat = json!({"model": "seedling", "messages": [{"role": "user", "content": "hi"}]});
    for path in ["/chat/completions", "/v1/chat/completions", "/beta/chat/completions"] {
        assert_eq!(post(house.public, path, &chat).await.status, 200, "{path}");
    }
    for path in ["/models", "/v1/models", "/beta/models"] {
        let list = send(house.public, "GET", path, b"").await.json();
        assert_eq!(list["object"], "list", "{path}");
    }
    for path in ["/anthropic/v1/models", "/anthropic/models"] {
        let list = send(house.public, "GET", path, b"").await.json();
        assert_eq!(list["data"][0]["type"], "model", "{path}");
        assert_eq!(list["data"][0]["created_at"], "2023-11-14T22:13:20Z");
        assert_eq!(list["has_more"], false);
    }
}
