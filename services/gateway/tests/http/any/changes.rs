//! Bodies that are right, and changes of them at random.

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

use super::bodies::PATHS;

/// A change of a body at one of its members, chosen by number.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Replace(usize, Value),
    Remove(usize),
    /// Of lists: the member stands twice.
    Double(usize),
    /// A known member of the top gets any value.
    Set(String, Value),
}

/// Members that some protocol knows.
const NAMES: &str = "audio background best_of cache_salt chat_template_kwargs conversation ebnf echo \
    frequency_penalty function_call functions guided_json guided_regex ignore_eos include input instructions \
    json_schema kvasir logit_bias logprobs max_completion_tokens max_output_tokens max_tokens messages metadata \
    min_p modalities model n output_config output_format parallel_tool_calls presence_penalty \
    previous_response_id prompt prompt_cache_key reasoning reasoning_effort regex response_format schema \
    schema_type seed service_tier stop stop_sequences store stream stream_options structured_outputs suffix system \
    temperature text thinking tool_choice tools top_k top_logprobs top_p user_id";

/// Members within messages, items, tools and formats.
const KEYS: &str = "role content type name tool_calls tool_call_id id call_id arguments input output parameters \
    input_schema format definition syntax properties required summary encrypted_content prefix \
    reasoning_content custom function tools mode";

/// Words that mean something somewhere.
const WORDS: &str = "user assistant system developer tool function custom text input_text output_text refusal \
    thinking redacted_thinking tool_use tool_result message function_call function_call_output custom_tool_call \
    custom_tool_call_output reasoning item_reference namespace auto none required any allowed_tools json_object \
    json_schema grammar lark enabled high seedling";

/// Text that is hard to handle.
const ODD: [&str; 6] = [
    "",
    "\u{0}",
    "\u{feff}\u{202e}e\u{301}",
    "👩‍👩‍👧\u{10ffff}",
    "<｜User｜></think><｜DSML｜ calls>",
    "\\\"\n\t\u{7f}",
];

pub(crate) fn one_of(words: &'static str) -> impl Strategy<Value = String> {
    let words: Vec<&str> = words.split_whitespace().collect();
    (0..words.len()).prop_map(move |index| words[index].to_owned())
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-2..200_i64).prop_map(Value::from),
        Just(json!(1e308)),
        Just(json!(-0.0)),
    ]
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        one_of(WORDS),
        one_of(NAMES),
        (0..ODD.len()).prop_map(|index| ODD[index].to_owned()),
        vec(any::<char>(), 0..6).prop_map(|signs| signs.into_iter().collect()),
    ]
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number(),
        word().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 24, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((prop_oneof![one_of(KEYS), word()], inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

pub(crate) fn change() -> impl Strategy<Value = Change> {
    let place = any::<u16>().prop_map(usize::from);
    prop_oneof![
        (place.clone(), anything()).prop_map(|(place, value)| Change::Replace(place, value)),
        (place.clone(), word()).prop_map(|(place, word)| Change::Replace(place, word.into())),
        place.clone().prop_map(Change::Remove),
        place.clone().prop_map(Change::Double),
        (one_of(NAMES), anything()).prop_map(|(name, value)| Change::Set(name, value)),
    ]
}

/// The member at this number, counted through the whole value; lists and objects count before what they hold.
fn visit(value: &mut Value, left: &mut usize, act: &mut dyn FnMut(&mut Value)) -> bool {
    if *left == 0 {
        act(value);
        return true;
    }
    *left -= 1;
    match value {
        Value::Array(list) => list.iter_mut().any(|inner| visit(inner, left, act)),
        Value::Object(map) => map.values_mut().any(|inner| visit(inner, left, act)),
        _ => false,
    }
}

fn size(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(size).sum(),
        Value::Object(map) => map.values().map(size).sum(),
        _ => 0,
    }
}

pub(crate) fn apply(body: &mut Value, change: Change) {
    let mut at = |place: usize, act: &mut dyn FnMut(&mut Value)| {
        let mut left = place % size(body);
        visit(body, &mut left, act);
    };
    match change {
        Change::Replace(place, new) => at(place, &mut |value| *value = new.clone()),
        Change::Remove(place) => at(place, &mut |value| match value {
            Value::Object(map) => {
                let key = map.keys().nth(place % map.len().max(1)).cloned().unwrap_or_default();
                map.remove(&key);
            }
            Value::Array(list) => drop(list.pop()),
            other => *other = Value::Null,
        }),
        Change::Double(place) => at(place, &mut |value| match value {
            Value::Array(list) => list.extend(list.first().cloned()),
            other => *other = json!([other.clone(), other.clone()]),
        }),
        Change::Set(name, new) => {
            if let Value::Object(map) = body {
                map.insert(name, new);
            }
        }
    }
}

fn parameters() -> Value {
    json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"$ref": "#/$defs/d"}},
        "required": ["a"], "additionalProperties": false, "$defs": {"d": {"enum": [1, null, "x"]}}})
}

/// Path and body of a request that is right and has much that its protocol has.
pub(crate) fn bases() -> [(&'static str, Value); 10] {
    let function =
        json!({"name": "f", "description": "d", "parameters": parameters(), "strict": true});
    let tool = json!({"type": "function", "function": function});
    let custom = json!({"type": "custom", "custom": {"name": "c", "format": {"type": "grammar",
        "grammar": {"syntax": "regex", "definition": "[a-z]+"}}}});
    let called = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": \"x\"}"}});
    let chat = json!({"model": "seedling", "messages": [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "Q"}]},
        {"role": "assistant", "content": null, "reasoning_content": "R", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "1", "content": "T"},
    ], "tools": [tool, custom], "tool_choice": "auto", "max_tokens": 40, "logprobs": true, "top_logprobs": 2,
        "stop": ["STOP"], "n": 2, "seed": 3});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": parameters(), "strict": true}});
    let plain = json!({"model": "seedling", "messages": [{"role": "user", "content": "json"}],
        "response_format": format, "thinking": {"type": "disabled"}, "stream": true,
        "stream_options": {"include_usage": true}, "logit_bias": {"5": 1.5}, "temperature": 0.5});
    let messages = json!({"model": "seedling", "max_tokens": 40, "system": [{"type": "text", "text": "S"}], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Q"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "R", "signature": "s"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"a": "x"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "T"}]}]},
    ], "tools": [{"name": "f", "input_schema": parameters()}], "tool_choice": {"type": "auto"}, "stream": true,
        "output_config": {"effort": "high"}});
    let namespace = json!({"type": "namespace", "name": "ns", "description": "n", "tools": [
        {"type": "function", "name": "g", "parameters": parameters()}]});
    let items = json!([
        {"role": "developer", "content": "D"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Q"}]},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "kvasir-reasoning-1:R"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"a\": \"x\"}"},
        {"type": "function_call_output", "call_id": "1", "output": "T"},
    ]);
    let mut flat = function;
    flat["type"] = "function".into();
    let responses = json!({"model": "seedling", "input": items, "instructions": "I", "tools": [flat, namespace,
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"x\""}}],
        "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content",
        "message.output_text.logprobs"], "metadata": {"a": "b"}, "max_output_tokens": 40});
    let mut streamed = responses.clone();
    streamed["stream"] = true.into();
    let legacy = json!({"model": "seedling", "prompt": ["Once", "upon"], "n": 2, "logprobs": 3, "max_tokens": 9,
        "stop": "x", "suffix": "the end"});
    [
        ("/v1/messages/count_tokens", messages.clone()),
        ("/v1/responses/input_tokens", responses.clone()),
        ("/v1/tokenize", json!({"messages": chat["messages"], "tools": chat["tools"]})),
        ("/v1/detokenize", json!({"tokens": [1, 40, 300, 4_000]})),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", plain),
        ("/v1/messages", messages),
        ("/v1/responses", responses),
        ("/v1/responses", streamed),
        ("/v1/completions", legacy),
    ]
}

/// A body at this path, as an input of [`Bodies`](super::bodies::Bodies).
///
/// # Panics
/// When nothing at this path takes a body.
pub(crate) fn input(path: &str, body: &[u8]) -> Vec<u8> {
    let index = PATHS.iter().position(|other| *other == path).expect("a path that takes a body");
    [&[u8::try_from(index).expect("few paths")], body].concat()
}

/// The input with a change or two that follow from the seed; where its body is no JSON, and now and then elsewhere, one that is
/// right.
pub(crate) fn varied(given: &[u8], seed: u32) -> Vec<u8> {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let (path, body) = given.split_first().unwrap_or((&0, &[]));
    let body = serde_json::from_slice(body).ok().filter(|_| !seed.is_multiple_of(16));
    let mut changed = match body {
        Some(body) => (PATHS[usize::from(*path) % PATHS.len()], body),
        None => {
            let mut bases = bases();
            let index = usize::try_from(seed / 16).unwrap_or(0) % bases.len();
            std::mem::take(&mut bases[index])
        }
    };
    if let Ok(drawn) = vec(change(), 1..3).new_tree(&mut runner) {
        for change in drawn.current() {
            apply(&mut changed.1, change);
        }
    }
    input(changed.0, changed.1.to_string().as_bytes())
}
