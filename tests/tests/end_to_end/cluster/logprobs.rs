//! Log probabilities through a cluster of processes: of every token of an answer, whole and streamed, in the words of each
//! protocol that has them.

use serde_json::{Value, json};

use super::up::Up;
use crate::http::{open, post};

const ALTERNATIVES: usize = 4;
const TOKENS_MAX: usize = 60;

/// What an answer says and what is told of its tokens.
#[derive(Debug, PartialEq)]
struct Told {
    text: String,
    tokens: Vec<Value>,
}

impl Told {
    /// Behaviour 12: the bytes of the tokens, joined, are the text; alternatives are sorted and their probabilities are no more
    /// than all there is.
    fn check(&self) {
        let mut joined = Vec::new();
        for token in &self.tokens {
            let bytes = bytes_of(token);
            if let Ok(text) = std::str::from_utf8(&bytes) {
                assert_eq!(token["token"], text);
            }
            joined.extend(bytes);
            let logprob = token["logprob"].as_f64().expect("a number");
            let top = token["top_logprobs"].as_array().expect("a list");
            check_top(
                logprob,
                &top.iter().map(|other| number(&other["logprob"])).collect::<Vec<_>>(),
            );
            let same = top.iter().find(|other| other["bytes"] == token["bytes"]);
            assert!(same.is_none_or(|same| same["logprob"] == token["logprob"]), "{token}");
        }
        assert_eq!(String::from_utf8(joined).expect("the text is text"), self.text);
    }
}

fn count(value: &Value) -> usize {
    let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
    count.unwrap_or_else(|| panic!("no count: {value}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn bytes_of(token: &Value) -> Vec<u8> {
    let bytes = token["bytes"].as_array().expect("a list");
    bytes.iter().map(|byte| u8::try_from(count(byte)).expect("a byte")).collect()
}

fn check_top(logprob: f64, top: &[f64]) {
    assert!(logprob <= 0.0);
    // Legacy completions add the drawn token where it is none of them.
    assert!(
        top.len() == ALTERNATIVES || top.len() == ALTERNATIVES + 1 && top.last() == Some(&logprob)
    );
    assert!(top.windows(2).all(|pair| pair[1] <= pair[0]), "{top:?}");
    let sum: f64 = top.iter().map(|logprob| logprob.exp()).sum();
    assert!(sum <= 1.0 + 1e-5, "{sum}: {top:?}");
    assert!(logprob <= top[0], "nothing is more probable than the first alternative");
}

fn ask(up: &Up, path: &str, body: &Value) -> Value {
    let response = post(up.clients, path, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

fn stream(up: &Up, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let open = open(up.clients, "POST", path, &body.to_string());
    assert_eq!(open.status, 200);
    let events = open.events().into_iter().filter(|event| event != "[DONE]");
    events.map(|event| serde_json::from_str(&event).expect("an event is JSON")).collect()
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// Content and reasoning of a chat. The model thinks about numbers, and not about stories.
fn chat(up: &Up, thinking: bool) {
    let question = if thinking { "What is 17 + 25?" } else { "Tell me a short story." };
    let body = json!({
        "model": "seedling", "messages": [{"role": "user", "content": question}],
        "max_tokens": TOKENS_MAX, "seed": 7, "temperature": 1, "logprobs": true,
        "top_logprobs": ALTERNATIVES, "thinking": {"type": if thinking { "enabled" } else { "disabled" }},
    });
    let whole = ask(up, "/v1/chat/completions", &body);
    let choice = &whole["choices"][0];
    let told = |name: &str| Told {
        text: choice["message"][name].as_str().unwrap_or_default().to_owned(),
        tokens: list(&choice["logprobs"][name]),
    };
    let (content, reasoning) = (told("content"), told("reasoning_content"));
    // The token that ends the answer is told of by nobody, nor is the one that ends the reasoning.
    let shown = count(&whole["usage"]["completion_tokens"])
        - usize::from(choice["finish_reason"] == "stop")
        - usize::from(thinking && !content.text.is_empty());
    assert_eq!(content.tokens.len() + reasoning.tokens.len(), shown, "one entry a token: {whole}");
    content.check();
    reasoning.check();
    assert_eq!(thinking, !reasoning.tokens.is_empty());
    let (mut content_streamed, mut reasoning_streamed) = (empty(), empty());
    for chunk in stream(up, "/v1/chat/completions", &body) {
        let choice = &chunk["choices"][0];
        for (name, told) in
            [("content", &mut content_streamed), ("reasoning_content", &mut reasoning_streamed)]
        {
            told.text.push_str(choice["delta"][name].as_str().unwrap_or_default());
            told.tokens.extend(list(&choice["logprobs"][name]));
        }
    }
    assert_eq!((content_streamed, reasoning_streamed), (content, reasoning));
}

fn empty() -> Told {
    Told { text: String::new(), tokens: Vec::new() }
}

fn completion(up: &Up) {
    let body = json!({
        "model": "seedling", "prompt": "Once upon a time", "max_tokens": TOKENS_MAX, "seed": 7,
        "logprobs": ALTERNATIVES,
    });
    let whole = ask(up, "/v1/completions", &body);
    let choice = &whole["choices"][0];
    let names = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
    let lists = names.map(|name| list(&choice["logprobs"][name]));
    let shown = count(&whole["usage"]["completion_tokens"])
        - usize::from(choice["finish_reason"] == "stop");
    assert_eq!(lists.each_ref().map(Vec::len), [shown; 4], "one entry a token: {whole}");
    let mut text = String::new();
    for (index, token) in lists[0].iter().enumerate() {
        assert_eq!(lists[3][index], text.chars().count(), "the token begins there");
        text.push_str(token.as_str().expect("text"));
        let top = lists[2][index].as_object().expect("an object");
        check_top(number(&lists[1][index]), &top.values().map(number).collect::<Vec<_>>());
    }
    assert_eq!(choice["text"], text);
    let mut streamed: [Vec<Value>; 4] = Default::default();
    let mut said = String::new();
    for chunk in stream(up, "/v1/completions", &body) {
        let choice = &chunk["choices"][0];
        said.push_str(choice["text"].as_str().expect("text"));
        for (name, list_) in names.iter().zip(&mut streamed) {
            list_.extend(list(&choice["logprobs"][*name]));
        }
    }
    assert_eq!((said, streamed), (text, lists));
}

fn response(up: &Up) {
    let body = json!({
        "model": "seedling", "input": "Tell me a short story.", "max_output_tokens": TOKENS_MAX,
        "reasoning": {"effort": "none"}, "include": ["message.output_text.logprobs"],
        "top_logprobs": ALTERNATIVES, "seed": 7,
    });
    let whole = ask(up, "/v1/responses", &body);
    let part = &whole["output"][0]["content"][0];
    let told = Told {
        text: part["text"].as_str().expect("text").to_owned(),
        tokens: list(&part["logprobs"]),
    };
    let shown =
        count(&whole["usage"]["output_tokens"]) - usize::from(whole["status"] == "completed");
    assert_eq!(told.tokens.len(), shown, "one entry a token: {whole}");
    told.check();
    let mut streamed = empty();
    for event in stream(up, "/v1/responses", &body) {
        match event["type"].as_str().expect("a name") {
            "response.output_text.delta" => {
                streamed.text.push_str(event["delta"].as_str().expect("text"));
                streamed.tokens.extend(list(&event["logprobs"]));
            }
            "response.output_text.done" => assert_eq!(list(&event["logprobs"]), streamed.tokens),
            "response.output_item.done" => {
                assert_eq!(list(&event["item"]["content"][0]["logprobs"]), streamed.tokens);
            }
            _ => {}
        }
    }
    assert_eq!(streamed, told);
}

#[test]
fn log_probabilities_come_token_by_token_through_all_processes() {
    let up = Up::start(None, "", &[]);
    chat(&up, false);
    chat(&up, true);
    completion(&up);
    response(&up);
    // Messages have none, and say nothing of them.
    let body = json!({"model": "seedling", "max_tokens": 4, "logprobs": true,
        "messages": [{"role": "user", "content": "hi"}]});
    assert!(ask(&up, "/v1/messages", &body).get("logprobs").is_none());
    up.at_rest();
    assert_eq!(up.stop().0, Some(0));
}
