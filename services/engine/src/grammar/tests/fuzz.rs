//! Whatever text a client sends as a grammar is compiled or refused: no panic, no hang, nothing unbounded.

use serde_json::{Value, json};
use shared::{Grammar, TokenId};

use super::{Draws, compiler, guide};
use crate::grammar::{GRAMMAR_STACK_BYTES, GrammarCompiler, GuideError};

/// What grammars are made of, valid and not.
const PIECES: [&str; 48] = [
    "root",
    "::=",
    " ",
    "\n",
    "\"",
    "\"a\"",
    "\"ab\"",
    "[",
    "]",
    "[a-c]",
    "[^a]",
    "[^]",
    "(",
    ")",
    "|",
    "*",
    "+",
    "?",
    "{",
    "}",
    "{2}",
    "{1,3}",
    "{,4}",
    "{9999}",
    "{99999}",
    ",",
    "\\",
    "\\d",
    "\\w",
    "\\S",
    "\\u00e9",
    "\\x4",
    "\\u{10FFFF}",
    "\\1",
    "^",
    "$",
    ".",
    "-",
    "(?:",
    "(?P<n>",
    "(?=",
    "(=",
    "#",
    "x",
    "é",
    "\u{1F600}",
    "<[5]>",
    "%llguidance",
];

fn pieces(draws: &mut Draws) -> String {
    let count = 1 + draws.below(24);
    (0..count)
        .map(|_| {
            let last = u64::try_from(PIECES.len()).unwrap();
            PIECES[usize::try_from(draws.below(last)).unwrap()]
        })
        .collect()
}

/// A valid grammar with one character taken out, doubled or replaced.
fn damaged(draws: &mut Draws, text: &str) -> String {
    let signs: Vec<char> = text.chars().collect();
    let at = usize::try_from(draws.below(u64::try_from(signs.len()).unwrap())).unwrap();
    let (before, after) = signs.split_at(at);
    let middle = match draws.below(3) {
        0 => String::new(),
        1 => after[0].to_string().repeat(2),
        _ => pieces(draws),
    };
    let before: String = before.iter().collect();
    let after: String = after[1..].iter().collect();
    format!("{before}{middle}{after}")
}

/// Follows a grammar along the first possible tokens; whether it was served.
fn follow(compiler: &GrammarCompiler, grammar: Grammar) -> bool {
    let shown = format!("{grammar:?}");
    let Ok(mut guide) = guide(compiler, grammar) else { return false };
    for _ in 0..8 {
        let token = (0..258).map(TokenId).find(|token| guide.mask().allows(*token));
        let token = token.unwrap_or_else(|| panic!("{shown}: a mask is never empty"));
        match guide.advance(token).and_then(|()| guide.refresh()) {
            Ok(()) => {}
            Err(GuideError::TooComplex { .. }) => break,
            Err(error) => panic!("{shown}: {error}"),
        }
    }
    true
}

#[test]
fn any_text_is_compiled_or_refused() {
    let compiler = compiler();
    let rules = "root ::= x{1,3} (\"a\" | [^b-d])* # end\nx ::= \"\\u00e9\"? root? [\\d\\w-]+\n";
    let regex = r"^(?:[a-z]+\.?|\d{2,4}[^\s,]*)(?P<n>x|y\/z)?$";
    let schema =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"pattern\":\"^x+$\"}},\"required\":[\"a\"]}";
    let (mut served, mut refused) = (0, 0);
    for seed in 0..1_500 {
        let mut draws = Draws(seed);
        let grammar = match seed % 6 {
            0 => Grammar::Ebnf(format!("root ::= {}", pieces(&mut draws))),
            1 => Grammar::Ebnf(damaged(&mut draws, rules)),
            2 => Grammar::Regex(pieces(&mut draws)),
            3 => Grammar::Regex(damaged(&mut draws, regex)),
            4 => Grammar::Json(damaged(&mut draws, schema)),
            _ => Grammar::Ebnf(pieces(&mut draws)),
        };
        if follow(&compiler, grammar) {
            served += 1;
        } else {
            refused += 1;
        }
    }
    assert!(100 < served && 100 < refused, "{served} served, {refused} refused");
}

/// Characters of all kinds: of the dialects, of ASCII, of Unicode.
fn any_text(draws: &mut Draws) -> String {
    let count = draws.below(40);
    let mut text = String::new();
    for _ in 0..count {
        let scalar = match draws.below(3) {
            0 => 0x20 + draws.below(0x5F),
            1 => draws.below(0x80),
            _ => draws.below(0x11_0000),
        };
        let scalar = u32::try_from(scalar).unwrap();
        text.extend(char::from_u32(scalar));
        if draws.below(4) == 0 {
            text.push_str(&pieces(draws));
        }
    }
    text
}

const KEYWORDS: [&str; 24] = [
    "type",
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "$defs",
    "enum",
    "const",
    "pattern",
    "format",
    "minLength",
    "maximum",
    "multipleOf",
    "not",
    "a",
    "$schema",
];
const WORDS: [&str; 12] = [
    "object",
    "string",
    "integer",
    "number",
    "array",
    "null",
    "#/$defs/a",
    "#",
    "date",
    "^a+b$",
    "(a|b)*c",
    "a",
];

/// JSON that is like a schema more often than not.
fn schema(draws: &mut Draws, depth: u32) -> Value {
    let kind = if depth == 0 { 3 + pick(draws, 5) } else { pick(draws, 8) };
    match kind {
        0..=2 => {
            let count = pick(draws, 4);
            let keywords: Vec<&str> = (0..count).map(|_| KEYWORDS[pick(draws, 24)]).collect();
            let members = keywords.into_iter().map(|keyword| {
                // The keyword's own kind of value, more often than another one.
                let value = match keyword {
                    "type" | "$ref" | "pattern" | "format" => json!(WORDS[pick(draws, 12)]),
                    "properties" | "patternProperties" | "$defs" => {
                        json!({WORDS[pick(draws, 12)]: schema(draws, depth - 1)})
                    }
                    "anyOf" | "oneOf" | "allOf" | "prefixItems" => {
                        json!([schema(draws, depth - 1), schema(draws, depth - 1)])
                    }
                    _ => schema(draws, depth - 1),
                };
                (keyword.to_owned(), value)
            });
            Value::Object(members.collect())
        }
        3 => json!(WORDS[pick(draws, 12)]),
        4 => json!(pick(draws, 9)),
        5 => json!(f64::from(u32::try_from(pick(draws, 1_000)).unwrap()) / 8.0 - 9.0),
        6 => json!(pick(draws, 2) == 0),
        _ => json!([WORDS[pick(draws, 12)]]),
    }
}

fn pick(draws: &mut Draws, from: u64) -> usize {
    usize::try_from(draws.below(from)).unwrap()
}

#[test]
fn any_characters_are_compiled_or_refused() {
    let compiler = compiler();
    let mut served = 0;
    for seed in 0..1_500 {
        let mut draws = Draws(seed);
        let text = any_text(&mut draws);
        let grammar = match seed % 3 {
            0 => Grammar::Ebnf(format!("root ::= {text}")),
            1 => Grammar::Regex(text),
            _ => Grammar::Ebnf(format!("root ::= \"{text}\" | [{text}] root")),
        };
        served += u32::from(follow(&compiler, grammar));
    }
    assert!(50 < served, "{served} served");
}

#[test]
fn any_schema_is_compiled_or_refused() {
    let compiler = compiler();
    let mut served = 0;
    for seed in 0..2_000 {
        let mut draws = Draws(seed);
        let schema = schema(&mut draws, 4);
        served += u32::from(follow(&compiler, Grammar::Json(schema.to_string())));
    }
    assert!(50 < served, "{served} served");
}

#[test]
fn deep_nesting_is_refused_before_it_needs_the_stack() {
    let compiler = compiler();
    let many = 80_000;
    let deep = [
        Grammar::Ebnf(format!("root ::= \"a\"{}", "*".repeat(many))),
        Grammar::Ebnf(format!("root ::= \"a\"{}", "{1}".repeat(many))),
        Grammar::Ebnf(format!("root ::= {}\"a\"{}", "(".repeat(many), ")".repeat(many))),
        Grammar::Regex(format!("{}a{}", "(".repeat(many), ")".repeat(many))),
        Grammar::Regex(format!("a{}", "*".repeat(many))),
        Grammar::Json("[".repeat(many)),
        Grammar::Json(format!("{}true{}", "{\"items\":".repeat(9_000), "}".repeat(9_000))),
    ];
    for grammar in deep {
        assert!(!follow(&compiler, grammar));
    }
    // As deep as it may be is served.
    let groups = |depth| format!("root ::= {}\"a\"{} root?", "(".repeat(depth), ")?".repeat(depth));
    assert!(follow(&compiler, Grammar::Ebnf(groups(50))));
    let chain = |rules: usize| {
        let mut chain = String::from("root ::= r0 root?\n");
        for rule in 0..rules {
            chain.push_str(&format!("r{rule} ::= r{}\n", rule + 1));
        }
        format!("{chain}r{rules} ::= \"a\"")
    };
    assert!(follow(&compiler, Grammar::Ebnf(chain(190))));
    for rules in [200, 400, 4_000] {
        assert!(!follow(&compiler, Grammar::Ebnf(chain(rules))));
    }
}

/// Compiles on a stack as grammar threads have it; what a refusal says.
fn compiled_deep(grammar: Grammar) -> Option<String> {
    let compile = move || compiler().compile(&grammar).err().map(|refusal| refusal.to_string());
    let thread = std::thread::Builder::new().stack_size(GRAMMAR_STACK_BYTES);
    thread.spawn(compile).unwrap().join().unwrap()
}

#[test]
fn what_refers_to_itself_deeply_is_compiled_or_refused_before_it_needs_the_stack() {
    // Definitions of which each is the next one, inside of so many others.
    let definitions = |count: usize, (open, close): (&str, &str), depth: usize| {
        let (open, close) = (open.repeat(depth), close.repeat(depth));
        let link = |n: usize| format!("\"a{n}\":{open}{{\"$ref\":\"#/$defs/a{}\"}}{close},", n + 1);
        let links: String = (0..count).map(link).collect();
        let root = "{\"$ref\":\"#/$defs/a0\",\"$defs\":{";
        Grammar::Json(format!("{root}{links}\"a{count}\":{{\"type\":\"integer\"}}}}}}"))
    };
    let [items, any] = [("{\"items\":", "}"), ("{\"anyOf\":[", "]}")];
    let all = ("{\"allOf\":[{\"type\":\"array\"},", "]}");
    assert_eq!(compiled_deep(definitions(3_900, items, 0)), None);
    for (nested, count, depth) in [(items, 60, 100), (any, 140, 50), (all, 100, 50), (any, 700, 8)]
    {
        let refusal = compiled_deep(definitions(count, nested, depth));
        // Some are too large for llguidance itself.
        assert!(refusal.is_none_or(|text| !text.contains("deeper")), "{nested:?}");
    }
    for (nested, count, depth) in [(items, 80, 100), (any, 160, 50), (any, 2_000, 4)] {
        let refusal = compiled_deep(definitions(count, nested, depth)).unwrap();
        assert!(refusal.contains("deeper than 8000"), "{refusal}");
    }
    // The same in the Lark of custom tools, of which as many rules are kept.
    let rules = |link: fn(usize) -> String| {
        let links: String = (0..9_900).map(link).collect();
        let head = "start: input\ninput: %lark {\nstart: r0\n";
        Grammar::Server(format!("{head}{links}r9900: \"a\"\n}}\n"))
    };
    assert_eq!(compiled_deep(rules(|n| format!("r{n}: r{}\n", n + 1))), None);
    let words = rules(|n| format!("R{n}: R{} \"a\"\n", n + 1)).text().replace("r0", "R0");
    let words = compiled_deep(Grammar::Server(words.replace("r9900", "R9900")));
    assert!(words.is_none_or(|refusal| !refusal.is_empty()));
}
