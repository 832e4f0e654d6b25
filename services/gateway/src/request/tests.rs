use serde_json::{Value, json};
use shared::TokenId;

use super::{ApiRequest, Format, Memory, Protocol, Source, parse};
use crate::error::ApiError;

struct Nothing;

impl Memory for Nothing {
    fn items(&self, _id: &str) -> Option<Vec<Value>> {
        None
    }

    fn item(&self, _id: &str) -> Option<Value> {
        None
    }

    fn recalled_bytes_max(&self) -> usize {
        0
    }
}

fn names() -> [String; 2] {
    ["m".into(), "alias".into()]
}

fn check(change: Value) -> Result<ApiRequest, ApiError> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    parse(Protocol::Chat, &serde_json::to_vec(&body).unwrap(), &names(), &Nothing)
}

#[test]
fn each_bad_field_is_named() {
    let cases = [
        (json!({"model": null}), "model", 400),
        (json!({"model": "other"}), "model", 404),
        (json!({"messages": []}), "messages", 400),
        (json!({"messages": null}), "messages", 400),
        (json!({"messages": "hi"}), "messages", 400),
        (
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "x"}]}),
            "messages[1]",
            400,
        ),
        (json!({"messages": [{"role": "user"}]}), "messages[0]", 400),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0]", 400),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}),
            "messages[0]",
            400,
        ),
        (json!({"n": 0}), "n", 400),
        (json!({"n": 129}), "n", 400),
        (json!({"n": "1"}), "n", 400),
        (json!({"temperature": 2.1}), "temperature", 400),
        (json!({"temperature": -0.1}), "temperature", 400),
        (json!({"temperature": "hot"}), "temperature", 400),
        (json!({"top_p": 0}), "top_p", 400),
        (json!({"top_p": 1.5}), "top_p", 400),
        (json!({"max_tokens": 0}), "max_tokens", 400),
        (json!({"max_tokens": 393_217}), "max_tokens", 400),
        (json!({"max_completion_tokens": -1}), "max_completion_tokens", 400),
        (json!({"seed": -1}), "seed", 400),
        (json!({"seed": 9_223_372_036_854_775_808_u64}), "seed", 400),
        (json!({"stop": ""}), "stop", 400),
        (json!({"stop": ["a", ""]}), "stop", 400),
        (json!({"stop": vec!["a"; 17]}), "stop", 400),
        (json!({"stop": "a".repeat(1_025)}), "stop", 400),
        (json!({"stop": ["a", "é".repeat(513)]}), "stop", 400),
        (json!({"stop": 5}), "stop", 400),
        (json!({"stream": "yes"}), "stream", 400),
        (json!({"stream_options": {"include_usage": true}}), "stream_options", 400),
        (json!({"stream": true, "stream_options": []}), "stream_options", 400),
        (json!({"thinking": true}), "thinking", 400),
        (json!({"reasoning_effort": "huge"}), "reasoning_effort", 400),
        (json!({"kvasir": {"lineage": "near"}}), "kvasir", 400),
        (json!({"kvasir": {"linage": "exact"}}), "kvasir", 400),
    ];
    refused(&cases);
}

#[test]
fn each_bad_field_of_draws_tools_and_formats_is_named() {
    let cases = [
        (json!({"frequency_penalty": 2.5}), "frequency_penalty", 400),
        (json!({"presence_penalty": 3}), "presence_penalty", 400),
        (json!({"logprobs": 3}), "logprobs", 400),
        (json!({"top_logprobs": 3}), "top_logprobs", 400),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs", 400),
        (json!({"logit_bias": {"x": 1}}), "logit_bias", 400),
        (json!({"logit_bias": {"5": 101}}), "logit_bias", 400),
        (json!({"logit_bias": {"5": 1, "05": 1}}), "logit_bias", 400),
        (
            json!({"tools": [{"type": "custom", "custom": {"name": "f", "format": {"type": "x"}}}]}),
            "tools[0].format",
            400,
        ),
        (json!({"tools": [{"type": "function"}]}), "tools[0]", 400),
        (json!({"tools": 5}), "tools", 400),
        (json!({"tool_choice": "required"}), "tool_choice", 400),
        (json!({"tool_choice": "some"}), "tool_choice", 400),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "g"}}}),
            "tool_choice",
            400,
        ),
        (json!({"top_k": -2}), "top_k", 400),
        (json!({"min_p": 1.5}), "min_p", 400),
        (json!({"reasoning_effort": 0}), "reasoning_effort", 400),
        (json!({"reasoning_effort": 101}), "reasoning_effort", 400),
        (json!({"guided_regex": "a", "ebnf": "root ::= \"a\""}), "-", 400),
        (json!({"schema_type": "lark", "schema": "x"}), "schema_type", 400),
        (json!({"schema_type": "json", "schema": "{"}), "schema", 400),
        (json!({"user_id": "u".repeat(513)}), "user_id", 400),
        (json!({"functions": [{}]}), "functions", 400),
        (json!({"response_format": {"type": "xml"}}), "response_format", 400),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema", 400),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}),
            "response_format.json_schema",
            400,
        ),
        (json!({"response_format": "json"}), "response_format", 400),
        (json!({"modalities": ["text", "audio"]}), "modalities", 400),
    ];
    refused(&cases);
}

/// Each change of a good request is refused, naming this field, with this status, in one line.
fn refused(cases: &[(Value, &str, u16)]) {
    for (change, param, status) in cases {
        let Err(error) = check(change.clone()) else { panic!("{change} was accepted") };
        assert_eq!(error.param.as_deref().unwrap_or("-"), *param, "{change}");
        assert_eq!(error.status.as_u16(), *status, "{change}");
        assert!(!error.message.contains('\n'), "{change}");
    }
}

#[test]
fn behaviour_19_harmless_fields_are_accepted() {
    for change in [
        json!({}),
        json!({"n": 1, "logprobs": false, "tools": [], "logit_bias": {}, "stop": null}),
        json!({"tools": [{"x": 1}], "tool_choice": "none", "user": "u", "unheard_of": [1]}),
        json!({"frequency_penalty": 0, "presence_penalty": 0.0, "modalities": ["text"]}),
        json!({"response_format": {"type": "text"}, "parallel_tool_calls": true}),
        json!({"model": "alias", "metadata": {"a": "b"}, "store": false, "verbosity": "low"}),
        json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
    ] {
        assert!(check(change.clone()).is_ok(), "{change}");
    }
}

#[test]
fn behaviour_19_fields_of_another_kind_are_refused() {
    for (protocol, change) in [
        (Protocol::Chat, json!({"metadata": "x"})),
        (Protocol::Chat, json!({"user": 3})),
        (Protocol::Chat, json!({"verbosity": "bad"})),
        (Protocol::Chat, json!({"enable_thinking": "no"})),
        (Protocol::Chat, json!({"separate_reasoning": false})),
        (Protocol::Chat, json!({"grammar": "root ::= x"})),
        (Protocol::Responses, json!({"text": "x"})),
        (Protocol::Responses, json!({"text": {"verbosity": 1}})),
        (Protocol::Responses, json!({"truncation": "foo"})),
        (Protocol::Responses, json!({"max_tool_calls": "x"})),
        (Protocol::Responses, json!({"metadata": []})),
    ] {
        let mut body = json!({"model": "m", "input": "hi",
            "messages": [{"role": "user", "content": "hi"}]});
        let (name, value) = change.as_object().unwrap().iter().next().unwrap();
        body[name] = value.clone();
        let Err(error) = read(protocol, &body) else { panic!("{change} was accepted") };
        let named = error.param.as_deref().unwrap_or_default();
        assert!(named == name || named == "verbosity", "{change}: {named}");
    }
    let asked = |change| match check(change).unwrap().source {
        Source::Chat(chat) => format!("{:?}", chat.thinking),
        _ => panic!("not a chat"),
    };
    let off = asked(json!({"thinking": {"type": "disabled"}}));
    assert_eq!(asked(json!({"enable_thinking": false})), off);
    assert_ne!(asked(json!({"enable_thinking": true})), off);
}

#[test]
fn behaviour_26_max_completion_tokens_beats_max_tokens() {
    let read = |change| match check(change).unwrap().source {
        Source::Chat(chat) => chat.max_tokens,
        _ => panic!("not a chat"),
    };
    assert_eq!(read(json!({"max_tokens": 5})), Some(5));
    assert_eq!(read(json!({"max_tokens": 5, "max_completion_tokens": 9})), Some(9));
    assert_eq!(read(json!({})), None);
}

#[test]
fn what_is_no_object_is_refused() {
    for body in ["", "{", "[]", "5", "{\"model\": \"m\",}", "\u{feff}{}"] {
        let Err(error) = parse(Protocol::Chat, body.as_bytes(), &names(), &Nothing) else {
            panic!("{body}")
        };
        assert_eq!((error.status.as_u16(), error.code), (400, "invalid_body"), "{body}");
    }
}

/// Reads a request of another protocol.
fn read(protocol: Protocol, body: &Value) -> Result<ApiRequest, ApiError> {
    parse(protocol, body.to_string().as_bytes(), &names(), &Nothing)
}

#[test]
fn bad_fields_of_the_other_protocols_are_named() {
    let user = json!([{"role": "user", "content": "hi"}]);
    let cases = [
        (Protocol::Messages, json!({"messages": user}), "max_tokens"),
        (Protocol::Messages, json!({"messages": user, "max_tokens": 0}), "max_tokens"),
        (Protocol::Messages, json!({"messages": [], "max_tokens": 5}), "messages"),
        (
            Protocol::Messages,
            json!({"messages": user, "max_tokens": 5, "thinking": {"type": "x"}}),
            "thinking",
        ),
        (
            Protocol::Messages,
            json!({"messages": user, "max_tokens": 5, "tools": [{"type": "web_search_20250305", "name": "w"}]}),
            "tools[0]",
        ),
        (
            Protocol::Messages,
            json!({"messages": user, "max_tokens": 5, "tool_choice": {"type": "tool", "name": "x"}}),
            "tool_choice",
        ),
        (
            Protocol::Messages,
            json!({"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 5}),
            "messages[0]",
        ),
        (Protocol::Responses, json!({"input": []}), "input"),
        (Protocol::Responses, json!({"input": 5}), "input"),
        (
            Protocol::Responses,
            json!({"input": "hi", "background": true, "stream": true}),
            "background",
        ),
        (Protocol::Responses, json!({"input": "hi", "conversation": "c"}), "conversation"),
        (
            Protocol::Responses,
            json!({"input": "hi", "previous_response_id": "r"}),
            "previous_response_id",
        ),
        (
            Protocol::Responses,
            json!({"input": "hi", "tools": [{"type": "file_search"}]}),
            "tools[0]",
        ),
        (
            Protocol::Responses,
            json!({"input": "hi", "text": {"format": {"type": "json_schema"}}}),
            "text.format",
        ),
        (Protocol::Responses, json!({"input": [{"type": "item_reference"}]}), "input[0]"),
        (
            Protocol::Responses,
            json!({"input": "hi", "reasoning": {"effort": "huge"}}),
            "reasoning.effort",
        ),
        (Protocol::Completions, json!({}), "prompt"),
        (Protocol::Completions, json!({"prompt": []}), "prompt"),
        (Protocol::Completions, json!({"prompt": [1, "a"]}), "prompt"),
        (Protocol::Completions, json!({"prompt": "a", "best_of": 3}), "best_of"),
        (Protocol::Completions, json!({"prompt": "a", "echo": true, "logprobs": 1}), "logprobs"),
        (Protocol::Completions, json!({"prompt": [1], "suffix": "b"}), "suffix"),
        (Protocol::Completions, json!({"prompt": "a", "max_tokens": 0}), "max_tokens"),
    ];
    for (protocol, mut body, param) in cases {
        body["model"] = "m".into();
        let Err(error) = read(protocol, &body) else { panic!("{body} was accepted") };
        assert_eq!(error.param.as_deref(), Some(param), "{body}: {}", error.message);
        assert_eq!(error.status.as_u16(), 400, "{body}");
    }
}

#[test]
fn the_choice_among_tools_becomes_rules() {
    let function = |name: &str, strict: bool| {
        let schema = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}},
            "$defs": {"x": {"type": "object", "properties": {"b": {"type": "string"}}}}});
        json!({"type": "function", "function": {"name": name, "strict": strict, "parameters": schema}})
    };
    let tools = json!([function("f", true), function("g", false)]);
    let allowed = |mode: &str| {
        json!({"type": "allowed_tools", "allowed_tools": {"mode": mode,
            "tools": [{"type": "function", "function": {"name": "g"}}]}})
    };
    let named = json!({"type": "function", "function": {"name": "f"}});
    let cases = [
        (json!("auto"), Some((vec!["f", "g"], false))),
        (json!(null), Some((vec!["f", "g"], false))),
        (json!("none"), None),
        (json!("required"), Some((vec!["f", "g"], true))),
        (named, Some((vec!["f"], true))),
        (allowed("auto"), Some((vec!["g"], false))),
        (allowed("required"), Some((vec!["g"], true))),
    ];
    for (choice, expected) in cases {
        let request = check(json!({"tools": tools, "tool_choice": choice,
            "parallel_tool_calls": false}))
        .unwrap();
        let rules = request.shape.calls;
        assert!(rules.as_ref().is_none_or(|rules| rules.single));
        let restricted = rules.as_ref().is_some_and(|rules| rules.restricted);
        assert_eq!(restricted, expected.as_ref().is_some_and(|(tools, _)| tools.len() < 2));
        let got = rules.as_ref().map(|rules| {
            (rules.tools.iter().map(|tool| tool.name.as_str()).collect(), rules.required)
        });
        assert_eq!(got, expected, "{choice}");
    }
    let rules = check(json!({"tools": tools})).unwrap().shape.calls.unwrap();
    let strict = &rules.tools[0].parameters;
    assert_eq!(
        strict["$defs"]["x"]["additionalProperties"], false,
        "definitions are kept and closed"
    );
    assert_eq!(strict["required"], json!(["a"]));
    assert!(rules.tools[1].parameters.get("additionalProperties").is_none());
}

#[test]
fn formats_come_in_many_forms() {
    let schema = json!({"type": "object"});
    for (change, expected) in [
        (json!({"response_format": {"type": "json_object"}}), Format::JsonObject),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}),
            Format::JsonSchema(schema.clone()),
        ),
        (json!({"response_format": {"type": "regex", "regex": "a+"}}), Format::Regex("a+".into())),
        (json!({"response_format": {"type": "ebnf", "ebnf": "x"}}), Format::Ebnf("x".into())),
        (json!({"guided_json": "{\"type\": \"object\"}"}), Format::JsonSchema(schema.clone())),
        (json!({"guided_choice": ["a.b", "c"]}), Format::Regex("a\\.b|c".into())),
        (json!({"structured_outputs": {"grammar": "x"}}), Format::Ebnf("x".into())),
        (json!({"schema_type": "regex", "schema": "a"}), Format::Regex("a".into())),
        (
            json!({"structured_outputs": {"schema_type": "ebnf", "schema": "x", "json": null}}),
            Format::Ebnf("x".into()),
        ),
        (
            json!({"response_format": {"type": "json_object", "schema": schema}}),
            Format::JsonSchema(schema.clone()),
        ),
        (json!({"response_format": {"type": "text"}, "regex": "a"}), Format::Regex("a".into())),
        (
            json!({"schema_type": "json", "schema": schema.to_string()}),
            Format::JsonSchema(schema.clone()),
        ),
        (json!({}), Format::Free),
    ] {
        assert_eq!(check(change.clone()).unwrap().shape.format, expected, "{change}");
    }
}

#[test]
fn behaviour_24_a_format_that_would_not_be_kept_is_refused() {
    for change in [
        json!({"structured_outputs": {}}),
        json!({"structured_outputs": {"json_object": false}}),
        json!({"structured_outputs": {"json_object": "yes"}}),
        json!({"structured_outputs": {"foo": "x"}}),
        json!({"structured_outputs": {"regex": "a", "foo": "x"}}),
        json!({"structured_outputs": {"schema_type": "regex"}}),
        json!({"structured_outputs": {"schema_type": "lark", "schema": "a"}}),
        json!({"schema": "a"}),
        json!({"schema_type": "regex"}),
        json!({"schema_type": 7, "schema": "a"}),
        json!({"response_format": {"type": "json_object"}, "regex": "a"}),
        json!({"response_format": {"type": "regex", "regex": "a"}, "guided_choice": ["a"]}),
        json!({"response_format": {"type": "json_object", "schema": "a"}}),
    ] {
        assert!(check(change.clone()).is_err(), "{change}");
    }
}

#[test]
fn what_draws_tokens_is_read() {
    let draws = check(json!({"top_k": 5, "min_p": 0.5, "seed": 3, "presence_penalty": 1,
        "frequency_penalty": -0.5, "logit_bias": {"7": 1, "5": -100}, "logprobs": true,
        "top_logprobs": 2, "ignore_eos": true}))
    .unwrap()
    .draws;
    assert_eq!((draws.top_k, draws.min_p, draws.seed), (5, 0.5, Some(3)));
    assert_eq!((draws.presence_penalty, draws.frequency_penalty), (1.0, -0.5));
    assert_eq!(draws.logit_bias, [(TokenId(5), -100.0), (TokenId(7), 1.0)]);
    assert_eq!((draws.logprobs, draws.ignore_end), (Some(2), true));
}
