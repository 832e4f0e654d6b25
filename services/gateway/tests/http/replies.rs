//! What a client gets when all goes well.

use serde_json::{Value, json};
use shared::{Sampling, TokenId, block_names};

use crate::client::{Reply, chat, send};
use crate::house::{House, ask, tokenizer};

fn joined(reply: &Reply, field: &str) -> String {
    let chunks = reply.chunks();
    let texts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str());
    texts.collect()
}

/// One token per byte of `text`.
fn byte_tokens(text: &str) -> Vec<u32> {
    let tokenizer = tokenizers::Tokenizer::from_file(tokenizer()).unwrap();
    let byte_token = |byte: u8| {
        let letter = match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            0..=b' ' => char::from_u32(256 + u32::from(byte)).unwrap(),
            0x7f..=0xa0 => char::from_u32(256 + 33 + u32::from(byte) - 0x7f).unwrap(),
            0xad => '\u{143}',
        };
        tokenizer.token_to_id(&letter.to_string()).unwrap()
    };
    text.bytes().map(byte_token).collect()
}

#[tokio::test]
async fn a_thinking_stream_has_role_reasoning_content_and_end_in_this_order() {
    let text = "\nLet me think.\n</think>\n\nParis.";
    let house = House::new(json!([{"match": "<think>", "text": text}])).await;
    let body = ask(&json!({"stream": true, "thinking": {"type": "enabled"}}));
    let reply = chat(house.public, &body).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let chunks = reply.chunks();
    let first = &chunks[0]["choices"][0];
    assert_eq!(
        first["delta"],
        json!({"role": "assistant", "content": null, "reasoning_content": ""})
    );
    let kinds: Vec<&str> = chunks[1..chunks.len() - 1]
        .iter()
        .map(|chunk| {
            let delta = &chunk["choices"][0]["delta"];
            assert!(delta.get("role").is_none(), "the role comes once");
            if delta["reasoning_content"].is_string() { "reasoning" } else { "content" }
        })
        .collect();
    let mut sorted = kinds.clone();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(kinds, sorted, "reasoning first");
    assert_eq!(joined(&reply, "reasoning_content"), "Let me think.");
    assert_eq!(joined(&reply, "content"), "Paris.");
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!((&chunk["id"], &chunk["created"]), (&chunks[0]["id"], &chunks[0]["created"]));
        assert!(chunk.get("usage").is_none(), "nobody asked");
    }
    let (last, earlier) = chunks.split_last().unwrap();
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert!(last["kvasir"]["ttft_ms"].is_number());
    assert!(earlier.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
}

#[tokio::test]
async fn a_usage_chunk_comes_last_and_only_when_asked() {
    let started = json!({"cached_tokens": 3, "replayed_tokens": 128,
        "window_source": {"replayed": 128}, "exact": false, "bytes_fetched": 77});
    let answer = json!([{"match": "*", "text": "one two", "started": started}]);
    let house = House::new(answer).await;
    let body = ask(&json!({"stream": true, "stream_options": {"include_usage": true}}));
    let reply = chat(house.public, &body).await;
    let chunks = reply.chunks();
    let (last, earlier) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    let usage = &last["usage"];
    let prompt = usage["prompt_tokens"].as_u64().unwrap();
    let completion = usage["completion_tokens"].as_u64().unwrap();
    assert!(3 < prompt && 2 < completion, "the stop token counts");
    assert_eq!(usage["total_tokens"], prompt + completion);
    let details =
        json!({"audio_tokens": 0, "cache_write_tokens": 0, "cached_tokens": 3, "image_tokens": 0});
    assert_eq!(usage["prompt_tokens_details"], details);
    assert_eq!(usage["prompt_cache_hit_tokens"], 3);
    assert_eq!(usage["prompt_cache_miss_tokens"], prompt - 3);
    assert_eq!(
        last["kvasir"],
        json!({"cached_tokens": 3, "replayed_tokens": 128, "window_source": "replayed",
            "exact": false, "bytes_fetched": 77, "ttft_ms": 0.0})
    );
    assert!(earlier.iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
    assert!(earlier.iter().all(|chunk| chunk.get("kvasir").is_none()));
    assert_eq!(earlier.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn a_whole_answer_is_one_object() {
    let house = House::new(json!([
        {"match": "<think>", "text": "Hm.\n</think>\n\nParis."},
        {"match": "*", "text": "Paris."},
    ]))
    .await;
    for thinking in [true, false] {
        let kind = if thinking { "enabled" } else { "disabled" };
        let body = ask(&json!({"thinking": {"type": kind}, "model": "deepseek-flash"}));
        let reply = chat(house.public, &body).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("content-type"), Some("application/json"));
        let object = reply.json();
        assert_eq!(object["object"], "chat.completion");
        assert_eq!(object["model"], "deepseek-flash");
        assert_eq!(object["system_fingerprint"], "kvasir-cpu-exact-1");
        let id = reply.header("x-request-id").unwrap();
        assert_eq!(object["id"], format!("chatcmpl-{id}"));
        let choice = &object["choices"][0];
        assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("stop")));
        assert_eq!(choice["message"]["role"], "assistant");
        assert_eq!(choice["message"]["content"], "Paris.");
        assert_eq!(choice["message"].get("refusal"), Some(&Value::Null));
        let reasoning = choice["message"].get("reasoning_content");
        assert_eq!(reasoning, thinking.then_some(&json!("Hm.")));
        let reasoning_tokens = &object["usage"]["completion_tokens_details"]["reasoning_tokens"];
        assert_eq!(reasoning_tokens.as_u64().unwrap() > 0, thinking);
        assert_eq!(object["kvasir"]["window_source"], "cold");
        assert_eq!(object["kvasir"]["exact"], true);
    }
}

#[tokio::test]
async fn behaviour_11_characters_are_never_split_between_chunks() {
    let text = "é杭🤭👩‍👩‍👧!";
    let house = House::new(json!([{"match": "*", "tokens": byte_tokens(text)}])).await;
    let reply = chat(house.public, &ask(&json!({"stream": true}))).await;
    assert_eq!(joined(&reply, "content"), text);
    assert!(!reply.text().contains('\u{fffd}'));
    let whole = chat(house.public, &ask(&json!({}))).await.json();
    assert_eq!(whole["choices"][0]["message"]["content"], text);
}

#[tokio::test]
async fn half_a_character_at_the_bound_is_dropped() {
    let house = House::new(json!([{"match": "*", "tokens": byte_tokens("a🤭")}])).await;
    let whole = chat(house.public, &ask(&json!({"max_tokens": 3}))).await.json();
    assert_eq!(whole["choices"][0]["message"]["content"], "a");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 3);
}

#[tokio::test]
async fn behaviour_10_a_stop_string_over_several_tokens_is_not_shown_and_ends_the_request() {
    let tokens = byte_tokens("one STO two STOP three");
    let answers = json!([{"match": "*", "tokens": tokens, "then": "hold"}]);
    let mut house = House::new(answers).await;
    for stream in [true, false] {
        let body = ask(&json!({"stream": stream, "stop": ["STOP"]}));
        // The engine would hold the request open for ever; only the dropped ticket ends it.
        let reply = chat(house.public, &body).await;
        house.submitted().await;
        house.released().await;
        if stream {
            assert_eq!(joined(&reply, "content"), "one STO two ");
            let chunks = reply.chunks();
            assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
        } else {
            let choice = &reply.json()["choices"][0];
            assert_eq!(choice["message"]["content"], "one STO two ");
            assert_eq!(choice["finish_reason"], "stop");
        }
    }
}

#[tokio::test]
async fn behaviour_10_what_might_have_become_a_stop_string_is_shown_at_the_end() {
    let answers = json!([{"match": "*", "tokens": byte_tokens("one STO"), "then": "length"}]);
    let house = House::new(answers).await;
    let reply = chat(house.public, &ask(&json!({"stream": true, "stop": "STOP"}))).await;
    assert_eq!(joined(&reply, "content"), "one STO");
    assert_eq!(reply.chunks().last().unwrap()["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn control_tokens_of_the_answer_are_not_shown() {
    let text = "a<｜User｜>b｜DSML｜c<think>d";
    let house = House::new(json!([{"match": "*", "text": text}])).await;
    let reply = chat(house.public, &ask(&json!({"stream": true}))).await;
    assert_eq!(joined(&reply, "content"), "abcd");
}

#[tokio::test]
async fn the_worker_gets_prompt_names_sampling_and_bounds() {
    let mut house = House::new(json!([{"match": "capital of France", "text": "Paris."}])).await;
    let question = format!("{} What is the capital of France?", "Please. ".repeat(100));
    let messages = json!([{"role": "system", "content": "Be brief."},
        {"role": "user", "content": "<｜User｜> hi"}, {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": question}]);
    let body = ask(&json!({"messages": messages, "temperature": 0, "seed": 11, "max_tokens": 9,
        "kvasir": {"lineage": "exact"}}));
    assert_eq!(chat(house.public, &body).await.status, 200);
    let request = house.submitted().await;
    let tokenizer = tokenizers::Tokenizer::from_file(tokenizer()).unwrap();
    let ids: Vec<u32> = request.prompt.iter().map(|id| id.0).collect();
    let expected = format!(
        "<｜begin▁of▁sentence｜><｜System｜>Be brief.<｜User｜><｜User｜> hi<｜Assistant｜></think>Hello.<｜end▁of▁sentence｜><｜User｜>{question}<｜Assistant｜></think>"
    );
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), expected);
    let user = tokenizer.token_to_id("<｜User｜>").unwrap();
    assert_eq!(ids.iter().filter(|id| **id == user).count(), 2, "the typed one is text");
    assert!(128 < ids.len() && !request.names.is_empty());
    assert_eq!(request.names.to_vec(), block_names(&request.root, &request.prompt));
    assert_eq!(
        request.sampling,
        Sampling { temperature: 0.0, top_p: 1.0, seed: 11, ..Sampling::GREEDY }
    );
    assert_eq!(request.lineage, shared::Lineage::Exact);
    assert_eq!((request.stop_ids, request.output_tokens_max), (vec![TokenId(1)], 9));
    assert!(request.emitted.is_empty() && request.deadline.is_some());
}

#[tokio::test]
async fn operators_learn_the_names_a_prompt_is_looked_up_by() {
    let mut house = House::new(json!([{"match": "*", "text": "a"}])).await;
    let words = "one more word ".repeat(400);
    let body = ask(&json!({"messages": [{"role": "user", "content": words}]}));
    let answer = chat(house.public, &body).await.json();
    let placed = house.submitted().await;
    let mut nameless = body.clone();
    nameless.as_object_mut().unwrap().remove("model");
    for body in [&body, &nameless] {
        let told = send(house.admin, "POST", "/debug/prompt", body.to_string().as_bytes()).await;
        let told = told.json();
        let names: Vec<String> = placed.names.iter().map(ToString::to_string).collect();
        assert!(2 < names.len());
        assert_eq!(told["names"], json!(names));
        assert_eq!(told["prompt_tokens"], answer["usage"]["prompt_tokens"]);
        assert_eq!(told["block_tokens"], 128);
    }
    let refused = send(house.admin, "POST", "/debug/prompt", b"{\"messages\": []}").await;
    assert_eq!(refused.status, 400);
    assert_eq!(send(house.public, "POST", "/debug/prompt", b"{}").await.status, 404);
}

#[tokio::test]
async fn models_and_health_are_served() {
    let house = House::new(json!([])).await;
    let list = send(house.public, "GET", "/v1/models", b"").await.json();
    assert_eq!(list["object"], "list");
    let names: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|m| &m["id"]).collect();
    assert_eq!(names, ["seedling", "deepseek-flash"]);
    let one = send(house.public, "GET", "/v1/models/seedling", b"").await.json();
    assert_eq!((&one["object"], &one["context_length"]), (&json!("model"), &json!(32_768)));
    let none = send(house.public, "GET", "/v1/models/a/b", b"").await;
    assert_eq!((none.status, &none.json()["error"]["code"]), (404, &json!("model_not_found")));
    for server in [house.public, house.admin] {
        assert_eq!(send(server, "GET", "/healthz", b"").await.status, 200);
        assert_eq!(send(server, "GET", "/readyz", b"").await.status, 200);
    }
}

#[tokio::test]
async fn metrics_count_what_happened_and_include_the_providers() {
    let started = json!({"cached_tokens": 2, "replayed_tokens": 5});
    let answers = json!([{"match": "*", "text": "a b", "started": started}]);
    let house = House::new(answers).await;
    chat(house.public, &ask(&json!({}))).await;
    chat(house.public, &ask(&json!({"max_tokens": 1, "stream": true}))).await;
    chat(house.public, &ask(&json!({"n": 0}))).await;
    let prompt = chat(house.public, &ask(&json!({}))).await.json()["usage"]["prompt_tokens"]
        .as_u64()
        .unwrap();
    house.gateway.drained().await;
    let text = house.metrics().await;
    for line in [
        "# TYPE kvasir_gateway_requests_total counter".to_owned(),
        "kvasir_gateway_requests_total{outcome=\"stop\"} 2".into(),
        "kvasir_gateway_requests_total{outcome=\"length\"} 1".into(),
        "kvasir_gateway_requests_total{outcome=\"invalid\"} 1".into(),
        "kvasir_gateway_prompt_tokens_total{source=\"cached\"} 6".into(),
        "kvasir_gateway_prompt_tokens_total{source=\"replayed\"} 15".into(),
        format!("kvasir_gateway_prompt_tokens_total{{source=\"cold\"}} {}", 3 * (prompt - 2)),
        "kvasir_gateway_first_token_seconds_count 3".into(),
        "kvasir_gateway_queue_seconds_count 3".into(),
        "kvasir_gateway_in_flight_requests 0".into(),
        "kvasir_gateway_token_cache_lookups_total{result=\"hit\"} 2".into(),
        "kvasir_gateway_token_cache_lookups_total{result=\"miss\"} 1".into(),
        "kvasir_pool_slots 7".into(),
    ] {
        assert!(text.lines().any(|other| other == line), "{line} is missing in\n{text}");
    }
    assert!(text.contains("kvasir_gateway_token_interval_seconds_bucket"));
    assert!(text.lines().any(|line| line.starts_with("kvasir_gateway_token_cache_bytes ")));
    assert!(!text.contains("# EOF"));
    let public = send(house.public, "GET", "/metrics", b"").await;
    assert_eq!(public.status, 404, "metrics are not for the public");
}
