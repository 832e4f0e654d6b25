//! Log probabilities, in front of a script, which is sure by half of each token.

use std::f64::consts::LN_2;

use serde_json::{Value, json};

use crate::client::post;
use crate::house::{House, ask};

/// Characters of several tokens, a stop string that is held back, and tokens that are never shown.
const ANSWER: &str = "thought\n\n</think>\n\né 杭州 🤭👩‍👩‍👧 the STO and the end STOP not shown";
const SHOWN: &str = "é 杭州 🤭👩‍👩‍👧 the STO and the end ";

fn joined(tokens: &[Value]) -> String {
    let bytes = tokens.iter().flat_map(|token| token["bytes"].as_array().unwrap());
    let bytes = bytes.map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap()).collect();
    String::from_utf8(bytes).unwrap()
}

fn entries(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// The stop string may begin inside a token; of that one its bytes are more than what is shown of it.
fn begins_with_shown(tokens: &[Value]) {
    let text = joined(tokens);
    assert!(text.starts_with(SHOWN) && "STOP".starts_with(&text[SHOWN.len()..]), "{text:?}");
}

#[tokio::test]
async fn behaviour_12_bytes_join_to_the_text_whole_and_streamed() {
    let house = House::new(json!([{"match": "*", "text": ANSWER}])).await;
    let change = json!({"logprobs": true, "top_logprobs": 2, "stop": ["STOP"],
        "thinking": {"type": "enabled"}});
    let whole = post(house.public, "/v1/chat/completions", &ask(&change)).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], SHOWN);
    let told = entries(&choice["logprobs"]["content"]);
    begins_with_shown(&told);
    for token in &told {
        assert!((token["logprob"].as_f64().unwrap() + LN_2).abs() < 1e-6);
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2, "per token");
        assert_eq!(token["top_logprobs"][0]["bytes"], token["bytes"]);
    }
    let mut streamed = ask(&change);
    streamed["stream"] = true.into();
    let chunks = post(house.public, "/v1/chat/completions", &streamed).await.chunks();
    let of = |name: &str| -> Vec<Value> {
        chunks.iter().flat_map(|c| entries(&c["choices"][0]["logprobs"][name])).collect()
    };
    assert_eq!(of("content"), told);
    assert_eq!(of("reasoning_content"), entries(&choice["logprobs"]["reasoning_content"]));
    assert_eq!(joined(&of("reasoning_content")).trim_end(), "thought");
}

#[tokio::test]
async fn responses_tell_them_of_text_and_only_when_asked() {
    let house = House::new(json!([{"match": "*", "text": ANSWER}])).await;
    for (change, asked) in [
        (json!({"include": ["message.output_text.logprobs"]}), true),
        (json!({"top_logprobs": 2}), true),
        (json!({}), false),
    ] {
        let mut body = json!({"model": "seedling", "input": "hi"});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let whole = post(house.public, "/v1/responses", &body).await.json();
        let part = &whole["output"][1]["content"][0];
        let told = entries(&part["logprobs"]);
        assert_eq!(!told.is_empty(), asked, "{change}");
        if asked {
            assert_eq!(joined(&told), part["text"].as_str().unwrap());
        }
        assert!(whole["output"][0]["content"][0].get("logprobs").is_none(), "reasoning has none");
    }
}

#[tokio::test]
async fn behaviour_12_legacy_offsets_count_characters() {
    let house = House::new(json!([{"match": "*", "text": "é 杭州 🤭 end"}])).await;
    let body = json!({"model": "seedling", "prompt": "x", "logprobs": 2, "max_tokens": 99});
    let whole = post(house.public, "/v1/completions", &body).await.json();
    let told = &whole["choices"][0]["logprobs"];
    let (tokens, offsets) = (entries(&told["tokens"]), entries(&told["text_offset"]));
    let text: Vec<char> = whole["choices"][0]["text"].as_str().unwrap().chars().collect();
    for (token, offset) in tokens.iter().zip(&offsets) {
        let token = token.as_str().unwrap();
        let offset = usize::try_from(offset.as_u64().unwrap()).unwrap();
        if !token.starts_with("\\x") {
            let rest: String = text[offset..].iter().collect();
            assert!(rest.starts_with(token), "{token:?} at {offset}");
        }
    }
    assert_eq!(entries(&told["token_logprobs"]).len(), tokens.len());
}
