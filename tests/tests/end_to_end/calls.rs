//! The grammar that a worker keeps and the parser that reads what it emitted agree about where calls begin.

use serde_json::{Value, json};

use crate::http::post;
use crate::process::Server;

/// Of the built-in tokenizer.
const BRACKET: u32 = 30;
const REASONING_END: u32 = 4_062;
const SENTINEL: u32 = 4_063;

/// A chat whose reasoning is brackets and, where it may, sentinels, until the end of reasoning is likelier than more of them:
/// the beginning of a block of calls is among what the model writes before that end.
fn hasty(change: &Value) -> Value {
    let mut body = json!({
        "model": "seedling", "messages": [{"role": "user", "content": "How warm is it in Oslo?"}],
        "reasoning_effort": "high", "max_tokens": 600, "seed": 7, "frequency_penalty": 2,
        "logit_bias": {BRACKET.to_string(): 100, SENTINEL.to_string(): 100,
            REASONING_END.to_string(): 70},
        "return_token_ids": true,
    });
    for (name, value) in change.as_object().expect("a change has names") {
        body[name] = value.clone();
    }
    body
}

fn tool(name: &str, strict: bool) -> Value {
    let parameters = json!({"type": "object", "properties": {"unit": {"enum": ["C", "F"]}},
        "required": ["unit"], "additionalProperties": false});
    json!({"type": "function", "function": {"name": name, "strict": strict, "parameters": parameters}})
}

/// The ids before the end of reasoning, all of them where it never ends.
fn reasoning(choice: &Value) -> Vec<u32> {
    let ids: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).expect("ids are told");
    ids.into_iter().take_while(|id| *id != REASONING_END).collect()
}

#[test]
fn calls_that_are_held_to_something_begin_behind_the_reasoning() {
    let server = Server::start(&[]);
    let ask = |change: &Value| {
        let response = post(server.clients, "/v1/chat/completions", &hasty(change).to_string());
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()["choices"][0].clone()
    };
    let tools = json!([tool("warmth", true), tool("wind", true)]);
    let free = ask(&json!({"tools": [tool("warmth", false), tool("wind", false)]}));
    let begins = |ids: &[u32]| ids.windows(2).any(|pair| pair == [BRACKET, SENTINEL]);
    assert!(begins(&reasoning(&free)), "without a grammar the block begins early: {free}");
    let named = json!({"type": "function", "function": {"name": "wind"}});
    for (choice, allowed) in
        [(named, ["wind"].as_slice()), (json!("required"), &["warmth", "wind"])]
    {
        let choice =
            ask(&json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false}));
        let thought = reasoning(&choice);
        assert!(thought.contains(&BRACKET) && !thought.contains(&SENTINEL), "{choice}");
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        let calls = choice["message"]["tool_calls"].as_array().expect("there are calls");
        let [call] = calls.as_slice() else { panic!("one call: {choice}") };
        let name = call["function"]["name"].as_str().expect("calls have names");
        assert!(allowed.contains(&name), "{choice}");
        let arguments = call["function"]["arguments"].as_str().expect("arguments are text");
        let arguments: Value = serde_json::from_str(arguments).expect("of JSON");
        assert!(["C", "F"].iter().any(|unit| arguments == json!({"unit": unit})), "{choice}");
    }
    // Free to call or not, but held to the schema if it does.
    let choice = ask(&json!({"tools": tools}));
    assert!(!reasoning(&choice).contains(&SENTINEL), "{choice}");
    assert_eq!(server.audit()["leaked"], 0);
}
