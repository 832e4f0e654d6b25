//! What becomes a constraint, and which. That the grammars say what they should is tested where they are compiled.

use serde_json::json;
use shared::{GRAMMAR_BYTES_MAX, Grammar, TokenId};

use super::{
    AnswerFormat, Beginning, CallRules, CallableTool, ConstraintError, Markers, constrain,
};

const MARKERS: Markers = Markers { reasoning_end: TokenId(7), sentinel: TokenId(9) };

#[test]
fn a_format_begins_behind_the_reasoning() {
    let schema = json!({"type": "integer"});
    let cases = [
        (AnswerFormat::JsonObject, Grammar::Json("{\"type\":\"object\"}".to_owned())),
        (AnswerFormat::JsonSchema(&schema), Grammar::Json("{\"type\":\"integer\"}".to_owned())),
        (AnswerFormat::Regex("a+"), Grammar::Regex("a+".to_owned())),
        (AnswerFormat::Ebnf("root ::= \"a\""), Grammar::Ebnf("root ::= \"a\"".to_owned())),
    ];
    for (format, grammar) in cases {
        for (beginning, trigger) in
            [(Beginning::Answer, Vec::new()), (Beginning::Reasoning, vec![TokenId(7)])]
        {
            let made = constrain(format, None, beginning, MARKERS).unwrap().unwrap();
            assert_eq!((made.grammar, made.trigger, made.bound), (grammar.clone(), trigger, None));
            assert_eq!(made.barred, None, "nothing is to be called");
        }
    }
    assert_eq!(constrain(AnswerFormat::Free, None, Beginning::Reasoning, MARKERS), Ok(None));
}

#[test]
fn tools_constrain_when_something_about_them_is_fixed() {
    let parameters = json!({"type": "object"});
    let made = |required, single, strict, restricted, format| {
        let tools =
            vec![CallableTool { name: "look", parameters: &parameters, strict, input: None }];
        let rules = CallRules { tools, required, single, restricted };
        constrain(format, Some(&rules), Beginning::Answer, MARKERS)
    };
    assert_eq!(made(false, false, false, false, AnswerFormat::Free), Ok(None));
    for fixed in 0..4 {
        let [required, single, strict, restricted] = [0, 1, 2, 3].map(|at| at == fixed);
        let constraint =
            made(required, single, strict, restricted, AnswerFormat::Free).unwrap().unwrap();
        let Grammar::Server(text) = constraint.grammar else { panic!("the server's own") };
        assert!(text.contains("<[9]>") && !text.contains('\r'));
    }
    let tools =
        vec![CallableTool { name: "look", parameters: &parameters, strict: true, input: None }];
    let rules = CallRules { tools, required: false, single: false, restricted: false };
    for (beginning, barred) in [
        (Beginning::Reasoning, Some(MARKERS.sentinel)),
        (Beginning::Answer, None),
        (Beginning::Calls, None),
    ] {
        let made = constrain(AnswerFormat::Free, Some(&rules), beginning, MARKERS);
        assert_eq!(made.unwrap().unwrap().barred, barred, "{beginning:?}");
    }
    let refused = made(false, false, false, false, AnswerFormat::Regex("a"));
    assert_eq!(refused, Err(ConstraintError::WithTools { format: "a regex" }));
    assert!(made(true, false, false, false, AnswerFormat::Regex("a")).unwrap().is_some());
}

#[test]
fn a_grammar_beyond_the_bound_is_refused() {
    let text = "a".repeat(GRAMMAR_BYTES_MAX + 1);
    let made = constrain(AnswerFormat::Regex(&text), None, Beginning::Answer, MARKERS);
    assert!(matches!(made, Err(ConstraintError::TooLarge { .. })));
    let made = constrain(AnswerFormat::Free, None, Beginning::Calls, MARKERS);
    assert_eq!(made, Err(ConstraintError::NoTools));
}

#[test]
fn nothing_of_a_client_is_read_as_a_grammar() {
    let parameters =
        json!({"type": "object", "properties": {"a\"/ <[1]> \n%x": {"type": "string"}}});
    let tools = vec![CallableTool {
        name: "x/\n<[2]>",
        parameters: &parameters,
        strict: true,
        input: None,
    }];
    let rules = CallRules { tools, required: true, single: false, restricted: false };
    let made = constrain(AnswerFormat::Free, Some(&rules), Beginning::Answer, MARKERS);
    let text = made.unwrap().unwrap().grammar.text().to_owned();
    assert!(!text.contains("<[1]>") && !text.contains("<[2]>") && !text.contains("%x"));
}
