//! Strict tools are held to their schemas, all of them, or refused by name.

use gateway::constraint::{
    AnswerFormat, Beginning, CallRules, CallableTool, ConstraintError, constrain,
};
use serde_json::{Value, json};
use shared::GRAMMAR_BYTES_MAX;

use super::tools::{Case, MARKERS, check, compiler, tool};

fn rules<'a>(tools: Vec<CallableTool<'a>>) -> CallRules<'a> {
    CallRules { tools, required: true, single: true, restricted: false }
}

/// A call with arguments as JSON.
fn call(arguments: &[(&str, &str)]) -> String {
    let written: String = arguments
        .iter()
        .map(|(name, value)| {
            format!("<§ parameter name=\"{name}\" string=\"false\">{value}</§ parameter>\n")
        })
        .collect();
    format!("\n\n<§ calls>\n<§ invoke name=\"f\">\n{written}</§ invoke>\n</§ calls>")
}

type Arguments = &'static [&'static [(&'static str, &'static str)]];

#[test]
fn references_mean_the_whole_schema_of_the_tool() {
    let list = json!({"type": "object", "required": ["value", "next"], "additionalProperties": false,
        "properties": {"value": {"type": "number"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}});
    let tree = json!({"$id": "https://example.com/tree", "type": "object",
        "$schema": "http://json-schema.org/draft-07/schema#", "required": ["kind", "children"],
        "properties": {"kind": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#"}}}});
    let defined = json!({"type": "object", "required": ["node"],
        "properties": {"node": {"$ref": "#/$defs/node"}},
        "$defs": {"node": {"type": ["array"], "items": {"anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#"}]}}}});
    let property = json!({"type": "object", "required": ["x", "y"],
        "properties": {"x": {"type": "array", "items": {"type": "integer"}}, "y": {"$ref": "#/properties/x/items"}}});
    let own = json!({"type": "object", "required": ["a/b"], "$defs": {"n": {"type": "integer"}},
        "properties": {"a/b": {"$defs": {"n": {"type": "boolean"}}, "type": "array", "items": {"$ref": "#/$defs/n"}}}});
    let cases: [(&Value, Arguments, Arguments); 5] = [
        (
            &list,
            &[
                &[("value", "1"), ("next", "null")],
                &[
                    ("value", "1"),
                    ("next", "{\"value\": 2, \"next\": {\"value\": 3, \"next\": null}}"),
                ],
            ],
            &[
                &[("value", "1"), ("next", "2")],
                &[("value", "1"), ("next", "{\"value\": 2}")],
                &[("value", "1"), ("next", "{\"value\": true, \"next\": null}")],
            ],
        ),
        (
            &tree,
            &[
                &[("kind", "1"), ("children", "[]")],
                &[("kind", "1"), ("children", "[{\"kind\": 2, \"children\": []}]")],
            ],
            &[&[("kind", "1"), ("children", "[[], [[]]]")], &[("kind", "1"), ("children", "[{}]")]],
        ),
        (
            &defined,
            &[&[("node", "[]")], &[("node", "[[], {\"node\": [[]]}]")]],
            &[&[("node", "{}")], &[("node", "[{\"node\": 1}]")]],
        ),
        (&property, &[&[("x", "[1]"), ("y", "2")]], &[&[("x", "[1]"), ("y", "[2]")]]),
        (&own, &[&[("a/b", "[1]")]], &[&[("a/b", "[true]")]]),
    ];
    let compiler = compiler();
    for (schema, members, others) in cases {
        let calls = |list: Arguments| list.iter().map(|one| call(one)).collect::<Vec<String>>();
        let (members, others) = (calls(members), calls(others));
        let case = Case {
            name: &schema.to_string(),
            format: AnswerFormat::Free,
            rules: rules(vec![tool("f", schema, true)]),
            beginning: Beginning::Answer,
            members: &members.iter().map(String::as_str).collect::<Vec<&str>>(),
            others: &others.iter().map(String::as_str).collect::<Vec<&str>>(),
        };
        check(&compiler, &case);
    }
}

/// What is said of a tool with one parameter of this schema; none when it is served.
fn refusal(parameter: &Value, strict: bool) -> Option<String> {
    let schema = json!({"type": "object", "properties": {"p": parameter}, "required": ["p"],
        "$defs": {"a/b": {}, "late": {"$id": "x/", "items": {"$ref": "#/$defs/a"}}, "a": {}}});
    let rules = rules(vec![tool("f", &schema, strict)]);
    let made = constrain(AnswerFormat::Free, Some(&rules), Beginning::Answer, MARKERS);
    let grammar = made.expect("it is small").expect("something is fixed").grammar;
    compiler().compile(&grammar).err().map(|refusal| refusal.to_string())
}

#[test]
fn what_would_not_be_held_to_is_refused_as_for_answers() {
    let refused = [
        (json!({"enum": [1_234_567_890_123_456_789_u64]}), "integer beyond"),
        (
            json!({"type": "array", "items": {"const": -9_007_199_254_740_993_i64}}),
            "integer beyond",
        ),
        (json!({"type": "object", "minProperties": 2}), "minProperties"),
        (json!({"not": {"type": "string"}}), "keyword not"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (
            json!({"type": "object", "x-guidance": {"lenient": true}, "properties": {}}),
            "x-guidance",
        ),
        (json!({"$ref": "#/$defs/a~1b"}), "escaped"),
        (json!({"$ref": "#/$defs/none"}), "refers to nothing"),
        (json!({"$ref": "other.json#/a"}), "refers to nothing"),
        (json!({"$ref": "#/$defs/late"}), "$id inside"),
    ];
    for (parameter, expected) in refused {
        let refusal = refusal(&parameter, true).unwrap_or_else(|| panic!("{parameter}: served"));
        assert!(refusal.contains(expected), "{refusal:?} names {expected:?}");
        assert!(refusal.contains("f/properties/p: "), "{refusal:?} names the place");
    }
    for parameter in [
        json!({"type": "array", "uniqueItems": false}),
        json!({"type": "object", "properties": {"not": {"$id": "x", "type": "integer"}}}),
        json!({"const": 9_007_199_254_740_991_u64}),
        json!(true),
    ] {
        assert_eq!(refusal(&parameter, true), None, "{parameter}");
    }
    // A tool that is not strict is held to nothing that its parameters say.
    for parameter in [
        json!({"not": {}, "x-guidance": 5, "$ref": "#/$defs/none", "format": "uint32"}),
        json!({"type": "array", "uniqueItems": true, "contains": {}}),
    ] {
        assert_eq!(refusal(&parameter, false), None, "{parameter}");
    }
    // The format of an answer is checked beside tools as well.
    let open = json!({"type": "object"});
    let rules = CallRules { required: false, ..rules(vec![tool("f", &open, false)]) };
    let schema = json!({"const": 1_234_567_890_123_456_789_u64});
    let format = AnswerFormat::JsonSchema(&schema);
    let made = constrain(format, Some(&rules), Beginning::Answer, MARKERS).unwrap().unwrap();
    let refusal = compiler().compile(&made.grammar).err().unwrap().to_string();
    assert!(refusal.contains("response_format: json: const has an integer"), "{refusal}");
}

#[test]
fn white_space_ends() {
    let open = json!({"type": "object", "properties": {"p": {}}});
    let fits = format!("[1,{}2]", " ".repeat(64));
    let runs_away = format!("[1,{}2]", " ".repeat(65));
    for strict in [true, false] {
        let case = Case {
            name: "white space",
            format: AnswerFormat::Free,
            rules: rules(vec![tool("f", &open, strict)]),
            beginning: Beginning::Answer,
            members: &[&call(&[("p", &fits)])],
            others: &[&call(&[("p", &runs_away)])],
        };
        check(&compiler(), &case);
    }
}

#[test]
fn what_the_schema_says_beside_properties_is_refused() {
    let constrained = |schema: &Value, strict: bool| {
        let rules = rules(vec![tool("f", schema, strict)]);
        constrain(AnswerFormat::Free, Some(&rules), Beginning::Answer, MARKERS)
    };
    let with = |change: Value| {
        let mut schema = json!({"type": "object", "properties": {"p": {"type": "integer"}, "q": {}},
            "required": ["p"], "additionalProperties": false});
        for (name, value) in change.as_object().unwrap() {
            schema[name] = value.clone();
        }
        schema
    };
    for (keyword, value) in [
        ("anyOf", json!([{"required": ["q"]}])),
        ("oneOf", json!([{}])),
        ("allOf", json!([{"required": ["q"]}])),
        ("$ref", json!("#/$defs/Args")),
        ("not", json!({"required": ["q"]})),
        ("if", json!({"required": ["q"]})),
        ("patternProperties", json!({"^x": {}})),
        ("propertyNames", json!({"maxLength": 1})),
        ("dependentRequired", json!({"p": ["q"]})),
        ("minProperties", json!(2)),
        ("maxProperties", json!(1)),
        ("enum", json!([{"p": 1}])),
    ] {
        let schema = with(json!({keyword: value}));
        let expected = ConstraintError::Root { tool: "f".into(), keyword };
        assert_eq!(constrained(&schema, true), Err(expected), "{keyword}");
        assert!(constrained(&schema, false).is_ok(), "{keyword}");
    }
    for change in [
        json!({"$schema": "http://json-schema.org/draft-07/schema#", "$id": "x", "title": "t",
            "description": "d", "$comment": "c", "examples": [{}], "deprecated": true, "x-order": 1,
            "$defs": {"a": {"not": {}}}, "definitions": {}}),
        json!({"minProperties": 1, "maxProperties": 2, "patternProperties": {}}),
    ] {
        assert!(constrained(&with(change.clone()), true).is_ok(), "{change}");
    }
}

#[test]
fn definitions_are_there_once_however_many_parameters_refer_to_them() {
    let about = "x".repeat(15_000);
    let parameters = |count: usize, definition: &Value| {
        let properties: serde_json::Map<String, Value> =
            (0..count).map(|n| (format!("p{n}"), json!({"$ref": "#/$defs/a"}))).collect();
        json!({"type": "object", "properties": properties, "$defs": {"a": definition}})
    };
    let made = |schema: &Value| {
        let rules = rules(vec![tool("f", schema, true)]);
        constrain(AnswerFormat::Free, Some(&rules), Beginning::Answer, MARKERS)
    };
    let honest = parameters(40, &json!({"type": "integer", "description": about}));
    let grammar = made(&honest).unwrap().unwrap().grammar;
    assert!(grammar.text().len() < 40_000, "{}", grammar.text().len());
    assert!(compiler().compile(&grammar).is_ok());
    // What each of them refers to is bounded where it is written out.
    let about = "x".repeat(100_000);
    let large = parameters(40, &json!({"type": "integer", "description": about}));
    let grammar = made(&large).unwrap().unwrap().grammar;
    let refusal = compiler().compile(&grammar).err().unwrap().to_string();
    assert!(refusal.contains("more than 1048576 bytes"), "{refusal}");
    // It is left as soon as it is too large.
    let about = "x".repeat(1_000_000);
    let huge = parameters(30_000, &json!({"type": "integer", "description": about}));
    let error = Err(ConstraintError::TooLarge { bytes_max: GRAMMAR_BYTES_MAX });
    assert_eq!(made(&huge), error);
    assert_eq!(made(&parameters(30_000, &json!({}))), error);
}
