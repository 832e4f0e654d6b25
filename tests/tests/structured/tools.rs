//! The grammar of tool calls accepts the markup that the model was trained on and nothing beside it.

use std::sync::Arc;

use engine::{GrammarCompiler, GrammarLimits, GrammarVocabulary, Guide};
use gateway::constraint::{
    AnswerFormat, Beginning, CallRules, CallableTool, InputLanguage, Markers, constrain,
};
use serde_json::{Value, json};
use shared::TokenId;

/// Tokens are bytes; these two are not. Cases write them as `§` and `¶`.
const SENTINEL: TokenId = TokenId(256);
const REASONING_END: TokenId = TokenId(257);
pub(super) const END: TokenId = TokenId(258);
pub(super) const MARKERS: Markers = Markers { reasoning_end: REASONING_END, sentinel: SENTINEL };

pub(super) fn compiler() -> GrammarCompiler {
    let mut next = 0x100_u32;
    let mut vocab = serde_json::Map::new();
    for byte in 0..=u8::MAX {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let sign = if printable { u32::from(byte) } else { next };
        next += u32::from(!printable);
        vocab.insert(
            char::from_u32(sign).expect("below the surrogates").to_string(),
            u32::from(byte).into(),
        );
    }
    let added = json!([
        {"id": 256, "content": "｜DSML｜"},
        {"id": 257, "content": "</think>"},
        {"id": 258, "content": "<end>"},
    ]);
    let file = json!({"model": {"vocab": vocab}, "added_tokens": added}).to_string();
    let vocabulary = GrammarVocabulary::read(file.as_bytes(), 259, END);
    let vocabulary = vocabulary.expect("the file is well-formed");
    GrammarCompiler::new(&vocabulary, GrammarLimits::STANDARD)
}

fn tokens(text: &str) -> Vec<TokenId> {
    let mut ids = Vec::new();
    for sign in text.chars() {
        match sign {
            '§' => ids.push(SENTINEL),
            '¶' => ids.push(REASONING_END),
            sign => ids.extend(sign.to_string().bytes().map(|byte| TokenId(byte.into()))),
        }
    }
    ids.push(END);
    ids
}

/// Where an answer leaves its grammar; none when it is a member.
fn leaves(mut guide: Guide, answer: &str) -> Option<usize> {
    for (index, token) in tokens(answer).into_iter().enumerate() {
        guide.refresh().expect("the limits hold");
        if !guide.mask().allows(token) {
            return Some(index);
        }
        guide.advance(token).expect("the mask allows it");
    }
    None
}

pub(super) struct Case<'a> {
    pub(super) name: &'a str,
    pub(super) format: AnswerFormat<'a>,
    pub(super) rules: CallRules<'a>,
    pub(super) beginning: Beginning,
    pub(super) members: &'a [&'a str],
    pub(super) others: &'a [&'a str],
}

pub(super) fn check(compiler: &GrammarCompiler, case: &Case<'_>) {
    let constraint = constrain(case.format, Some(&case.rules), case.beginning, MARKERS);
    let constraint = Arc::new(constraint.expect("it is small").expect("something is fixed"));
    let compiled = compiler.compile(&constraint.grammar);
    let text = constraint.grammar.text();
    let compiled = compiled.unwrap_or_else(|refusal| panic!("{}: {refusal}\n{text}", case.name));
    let compiled = Arc::new(compiled);
    let guide = || Guide::new(Arc::clone(&constraint), &compiled, 259, END);
    for member in case.members {
        assert_eq!(leaves(guide(), member), None, "{} has {member:?}\n{text}", case.name);
    }
    for other in case.others {
        assert!(leaves(guide(), other).is_some(), "{} lacks {other:?}\n{text}", case.name);
    }
}

fn weather() -> Value {
    json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "minimum": 1},
            "unit": {"enum": ["C", "F"]},
            "at": {"$ref": "#/$defs/place"},
        },
        "required": ["city", "days"],
        "additionalProperties": false,
        "$defs": {"place": {"type": "array", "items": {"type": "number"}, "maxItems": 2}},
    })
}

pub(super) fn tool<'a>(name: &'a str, parameters: &'a Value, strict: bool) -> CallableTool<'a> {
    CallableTool { name, parameters, strict, input: None }
}

#[test]
fn the_input_of_a_custom_tool_follows_its_regular_expression() {
    let compiler = compiler();
    let parameters = json!({"type": "object"});
    let call = |input: &str| {
        format!(
            "\n\n<§ calls>\n<§ invoke name=\"run\">\n<§ parameter name=\"input\" string=\"true\">{input}</§ parameter>\n{END_OF_CALL}"
        )
    };
    let rules = |input| CallRules {
        tools: vec![CallableTool {
            input: Some(InputLanguage::Regex(input)),
            ..tool("run", &parameters, true)
        }],
        required: true,
        single: true,
        restricted: false,
    };
    let cases: [(&str, &[&str], &[&str]); 6] = [
        ("[a-z]+", &["abc"], &["", "ABC", "ab1", "a</b"]),
        ("a/b\\/c", &["a/b/c"], &["ab/c", "a\\/b/c"]),
        ("(.|\\n)*", &["", "x </b>\n</ y", "<"], &[]),
        ("(?i)select .* from [a-z]+", &["SELECT * FROM t"], &["select", "drop t"]),
        ("x\ny", &["x\ny"], &["xy", "x y"]),
        ("\\d+|start: <\\[1\\]>", &["12", "start: <[1]>"], &["a"]),
    ];
    for (expression, members, others) in cases {
        let [members, others] = [members, others]
            .map(|list| list.iter().map(|input| call(input)).collect::<Vec<String>>());
        let [members, others] =
            [&members, &others].map(|list| list.iter().map(String::as_str).collect::<Vec<&str>>());
        check(
            &compiler,
            &Case {
                name: expression,
                format: AnswerFormat::Free,
                rules: rules(expression),
                beginning: Beginning::Answer,
                members: &members,
                others: &others,
            },
        );
    }
    for malformed in ["a(", "a)", "[a", "*", "a{2", "(?<x"] {
        let rules = rules(malformed);
        let made = constrain(AnswerFormat::Free, Some(&rules), Beginning::Answer, MARKERS);
        let grammar = made.expect("it is small").expect("something is fixed").grammar;
        assert!(compiler.compile(&grammar).is_err(), "{malformed} is refused");
    }
}

/// Patches in lines, as agents have them written.
const PATCH: &str = "start: begin hunk+ end\nbegin: \"*** Begin Patch\" LF\nend: \"*** End Patch\" LF?\nhunk: add | update\nadd: \"*** Add File: \" name LF line+\nupdate: \"*** Update File: \" name LF change?\nname: /(.+)/\nline: \"+\" /(.*)/ LF -> line\nchange: (context | edit)+ eof?\ncontext: (\"@@\" | \"@@ \" /(.+)/) LF\nedit: (\"+\" | \"-\" | \" \") /(.*)/ LF\neof: \"*** End of File\" LF\n%import common.LF\n";

#[test]
fn the_input_of_a_custom_tool_follows_a_lark_grammar_that_ends_where_the_call_does() {
    let compiler = compiler();
    let parameters = json!({"type": "object"});
    let call = |input: &str| {
        format!(
            "\n\n<§ calls>\n<§ invoke name=\"run\">\n<§ parameter name=\"input\" string=\"true\">{input}</§ parameter>\n{END_OF_CALL}"
        )
    };
    let patches = [
        "*** Begin Patch\n*** Add File: a </b>\n+x </ y\n+\n*** End Patch",
        "*** Begin Patch\n*** Update File: a\n@@ fn\n-x\n+y\n *** End of File\n*** End Patch\n",
    ];
    let others = [
        "",
        "*** Begin Patch\n*** End Patch",
        "*** Begin Patch\n*** Add File: a\nx\n*** End Patch",
        "hello",
    ];
    let anything = ["", "hello </b>\n</"];
    let cases: [(&str, &[&str], &[&str]); 2] =
        [(PATCH, &patches, &others), ("start: /(.*)/", &anything, &[])];
    for (grammar, members, others) in cases {
        let calls = |list: &[&str]| list.iter().map(|input| call(input)).collect::<Vec<String>>();
        let (members, others) = (calls(members), calls(others));
        let tool = CallableTool {
            input: Some(InputLanguage::Lark(grammar)),
            ..tool("run", &parameters, true)
        };
        let case = Case {
            name: grammar,
            format: AnswerFormat::Free,
            rules: CallRules { tools: vec![tool], required: true, single: true, restricted: false },
            beginning: Beginning::Answer,
            members: &members.iter().map(String::as_str).collect::<Vec<&str>>(),
            others: &others.iter().map(String::as_str).collect::<Vec<&str>>(),
        };
        check(&compiler, &case);
    }
}

const CITY: &str = "<§ parameter name=\"city\" string=\"true\">";
const DAYS: &str = "<§ parameter name=\"days\" string=\"false\">3</§ parameter>\n";
const END_OF_CALL: &str = "</§ invoke>\n</§ calls>";

fn call(parameters: &str) -> String {
    format!("\n\n<§ calls>\n<§ invoke name=\"weather\">\n{parameters}{END_OF_CALL}")
}

fn city(value: &str) -> String {
    format!("{CITY}{value}</§ parameter>\n")
}

#[test]
fn strict_calls_are_held_to_their_schema() {
    let parameters = weather();
    let whole = call(&format!("{}{DAYS}", city("杭州 <b>bold</b> </ ｜DSML｜ \"x\"\n")));
    let optional = call(&format!(
        "{}{DAYS}<§ parameter name=\"unit\" string=\"true\">F</§ parameter>\n\
         <§ parameter name=\"at\" string=\"false\">[1.5, -2]</§ parameter>\n",
        city("")
    ));
    let two = format!(
        "{}<§ invoke name=\"weather\">\n{}{DAYS}{END_OF_CALL}",
        call(&format!("{}{DAYS}", city("a"))).replace("</§ calls>", ""),
        city("b")
    );
    let others = [
        call(&city("a")),
        call(&format!("{DAYS}{}", city("a"))),
        call(&format!("{}{}", city("a"), DAYS.replace('3', "\"3\""))),
        call(&format!("{}{}", city("a"), DAYS.replace('3', "0"))),
        call(&format!("{}{DAYS}{DAYS}", city("a"))),
        whole.replace("weather", "whether"),
        whole.replace("</§ calls>", ""),
        format!("{whole} more"),
        "No call at all.".to_owned(),
        whole.replace('§', "｜DSML｜"),
    ];
    let rules = CallRules {
        tools: vec![tool("weather", &parameters, true)],
        required: true,
        single: false,
        restricted: false,
    };
    let compiler = compiler();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    check(
        &compiler,
        &Case {
            name: "required",
            format: AnswerFormat::Free,
            rules: rules.clone(),
            beginning: Beginning::Answer,
            members: &[&whole, &optional, &two],
            others: &others,
        },
    );
    let opened: Vec<String> =
        [&whole, &two].map(|text| text.replacen("\n\n<§ calls>\n", "", 1)).to_vec();
    check(
        &compiler,
        &Case {
            name: "opened by the prompt, one call",
            format: AnswerFormat::Free,
            rules: CallRules { single: true, ..rules.clone() },
            beginning: Beginning::Calls,
            members: &[&opened[0]],
            others: &[&opened[1], &whole],
        },
    );
    let thought = format!("Let me think.\n<b> {{}} ¶{whole}");
    let hasty = format!("Let me think.{whole}¶{whole}");
    let marked = format!("Let me § think.¶{whole}");
    check(
        &compiler,
        &Case {
            name: "behind reasoning",
            format: AnswerFormat::Free,
            rules,
            beginning: Beginning::Reasoning,
            members: &[&thought],
            others: &[&whole, &hasty, &marked, "only thoughts", "thoughts¶an answer"],
        },
    );
}

#[test]
fn a_free_choice_leaves_text_or_json_possible() {
    let parameters = weather();
    let compiler = compiler();
    let called = call(&format!("{}{DAYS}", city("a")));
    let introduced = format!("I shall look < that > up.{called}");
    let rules = CallRules {
        tools: vec![tool("weather", &parameters, true)],
        required: false,
        single: false,
        restricted: false,
    };
    check(
        &compiler,
        &Case {
            name: "text",
            format: AnswerFormat::Free,
            rules: rules.clone(),
            beginning: Beginning::Answer,
            members: &["", "An answer with </ and < and ｜DSML｜.\n", &called, &introduced],
            others: &["a <§ b", &called.replace("days", "day")],
        },
    );
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    check(
        &compiler,
        &Case {
            name: "json",
            format: AnswerFormat::JsonSchema(&schema),
            rules,
            beginning: Beginning::Answer,
            members: &["{\"a\": 1}", &called],
            others: &["text", "{}", &introduced],
        },
    );
}

#[test]
fn calls_that_are_not_strict_are_held_to_names() {
    let (parameters, none, open) = (
        weather(),
        json!({"type": "object", "additionalProperties": false}),
        json!({"type": "object"}),
    );
    let compiler = compiler();
    let any = call("<§ parameter name=\"days\" string=\"true\">soon</§ parameter>\n");
    let json_value = call("<§ parameter name=\"at\" string=\"false\">{\"x\": [1]}</§ parameter>\n");
    let unknown = call("<§ parameter name=\"month\" string=\"true\">soon</§ parameter>\n");
    let tools = vec![
        tool("weather", &parameters, false),
        tool("stop", &none, true),
        tool("note", &open, false),
    ];
    let rules = CallRules { tools, required: true, single: false, restricted: false };
    let empty = call("\n").replace("weather", "stop");
    let noted = unknown.replace("weather", "note");
    check(
        &compiler,
        &Case {
            name: "names",
            format: AnswerFormat::Free,
            rules,
            beginning: Beginning::Answer,
            members: &[&any, &json_value, &empty, &noted, &call("\n"), &call("")],
            others: &[&unknown, &any.replace("weather", "stop")],
        },
    );
}
