//! Languages against brute force, refusals, limits, trigger and bound.

mod dialects;
mod fuzz;
mod lexemes;
mod roll_back;
mod schemas;
mod slices;

use std::sync::Arc;

use shared::{Constraint, Grammar, TokenId};

use super::expression::Expression;
use super::{GrammarCompiler, GrammarLimits, GrammarVocabulary, Guide, TokenMask};

/// Bytes 0 to 255, then controls: 256 is a sentinel, 257 ends.
fn compiler() -> GrammarCompiler {
    GrammarCompiler::new(&vocabulary(), GrammarLimits::STANDARD)
}

const SENTINEL: TokenId = TokenId(256);
const END: TokenId = TokenId(257);

fn vocabulary() -> GrammarVocabulary {
    let mut next = 0x100_u32;
    let mut vocab = serde_json::Map::new();
    for byte in 0..=u8::MAX {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let sign = if printable { u32::from(byte) } else { next };
        next += u32::from(!printable);
        vocab.insert(char::from_u32(sign).unwrap().to_string(), u32::from(byte).into());
    }
    let added = serde_json::json!([
        {"id": 256, "content": "<sentinel>", "special": false},
        {"id": 257, "content": "<end>", "special": true},
    ]);
    let file = serde_json::json!({"model": {"vocab": vocab}, "added_tokens": added});
    GrammarVocabulary::read(file.to_string().as_bytes(), 258, END).unwrap()
}

fn guide_with(compiler: &GrammarCompiler, constraint: Constraint) -> Result<Guide, String> {
    let compiled = compiler.compile(&constraint.grammar).map_err(|refusal| refusal.to_string())?;
    let mut guide = Guide::new(Arc::new(constraint), &Arc::new(compiled), 258, END);
    guide.refresh().map_err(|error| error.to_string())?;
    Ok(guide)
}

fn guide(compiler: &GrammarCompiler, grammar: Grammar) -> Result<Guide, String> {
    guide_with(compiler, Constraint { grammar, trigger: Vec::new(), bound: None, barred: None })
}

/// Whether an answer is possible, token by token, to its end.
fn accepts(compiler: &GrammarCompiler, grammar: &Grammar, answer: &str) -> bool {
    let mut guide = guide(compiler, grammar.clone()).unwrap();
    for token in answer.bytes().map(|byte| TokenId(byte.into())).chain([END]) {
        if !guide.mask().allows(token) {
            return false;
        }
        guide.advance(token).unwrap();
        guide.refresh().unwrap();
    }
    true
}

/// A generator of small numbers; SplitMix64.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word ^ (word >> 31)) % bound
    }

    /// The text of a random expression over a, b and c and `rules` rules.
    fn expression(&mut self, depth: u32, rules: u64) -> String {
        let kind = if depth == 0 { self.below(4) } else { self.below(9) };
        match kind {
            0 => "\"a\"".to_owned(),
            1 => ["\"ab\"", "\"b\"", "\"cab\"", "\"\""][usize::try_from(self.below(4)).unwrap()]
                .to_owned(),
            2 => ["[ab]", "[^a]", "[a-c]", "[bc]"][usize::try_from(self.below(4)).unwrap()]
                .to_owned(),
            3 if rules != 0 => format!("r{}", self.below(rules)),
            3 => "\"c\"".to_owned(),
            4 | 5 => format!(
                "{} {}",
                self.expression(depth - 1, rules),
                self.expression(depth - 1, rules)
            ),
            6 => format!(
                "({} | {})",
                self.expression(depth - 1, rules),
                self.expression(depth - 1, rules)
            ),
            7 => {
                let mark = ["*", "+", "?", "{2}", "{1,2}", "{2,}"]
                    [usize::try_from(self.below(6)).unwrap()];
                format!("({}){mark}", self.expression(depth - 1, rules))
            }
            _ => format!("({})", self.expression(depth - 1, rules)),
        }
    }
}

/// The ends at which an expression can stop matching `text` from `start`: by fixed point, in the plainest way.
struct Recogniser<'a> {
    rules: &'a [Expression],
    text: &'a [char],
    /// For each rule and start, the set of ends found so far, as bits.
    ends: Vec<Vec<u32>>,
}

impl<'a> Recogniser<'a> {
    fn matches(rules: &'a [Expression], text: &'a [char]) -> bool {
        let ends = vec![vec![0; text.len() + 1]; rules.len()];
        let mut recogniser = Self { rules, text, ends };
        loop {
            let mut changed = false;
            for rule in 0..rules.len() {
                for start in 0..=text.len() {
                    let found = recogniser.ends_of(&recogniser.rules[rule], start);
                    changed |= found & !recogniser.ends[rule][start] != 0;
                    recogniser.ends[rule][start] |= found;
                }
            }
            if !changed {
                return recogniser.ends[0][0] >> text.len() & 1 == 1;
            }
        }
    }

    fn ends_of(&self, expression: &Expression, start: usize) -> u32 {
        match expression {
            Expression::Empty => 1 << start,
            Expression::Literal(signs) => {
                let fits = self.text[start..].starts_with(signs);
                if fits { 1 << (start + signs.len()) } else { 0 }
            }
            Expression::Class(class) => {
                let Some(sign) = self.text.get(start) else { return 0 };
                let inside = class.ranges.iter().any(|(low, high)| (low..=high).contains(&sign));
                u32::from(inside != class.negated) << (start + 1)
            }
            Expression::Sequence(parts) => {
                parts.iter().fold(1 << start, |from, part| self.after(part, from))
            }
            Expression::Choice(parts) => {
                parts.iter().fold(0, |ends, part| ends | self.ends_of(part, start))
            }
            Expression::Repeat { what, min, max } => {
                let mut from = 1_u32 << start;
                for _ in 0..*min {
                    from = self.after(what, from);
                }
                let mut all = from;
                // More rounds than characters find nothing new.
                let rounds = max.map_or(16, |max| max - min);
                for _ in 0..rounds.min(16) {
                    from = self.after(what, from);
                    all |= from;
                }
                all
            }
            Expression::Rule(rule) => self.ends[*rule][start],
        }
    }

    fn after(&self, expression: &Expression, from: u32) -> u32 {
        let starts = (0..=self.text.len()).filter(|start| from >> start & 1 == 1);
        starts.fold(0, |ends, start| ends | self.ends_of(expression, start))
    }
}

fn texts_up_to(length: usize) -> Vec<String> {
    let mut texts = vec![String::new()];
    let mut last = texts.clone();
    for _ in 0..length {
        last = last
            .iter()
            .flat_map(|text| ["a", "b", "c"].map(|sign| format!("{text}{sign}")))
            .collect();
        texts.extend(last.clone());
    }
    texts
}

/// All texts up to a length that a compiled grammar accepts, by walking its masks.
fn members(
    compiler: &GrammarCompiler,
    grammar: Grammar,
    texts: &[String],
) -> Result<Vec<String>, String> {
    let compiled = compiler.compile(&grammar).map_err(|refusal| refusal.to_string())?;
    let compiled = Arc::new(compiled);
    let constraint =
        Arc::new(Constraint { grammar, trigger: Vec::new(), bound: None, barred: None });
    let mut found = Vec::new();
    for text in texts {
        let mut guide = Guide::new(Arc::clone(&constraint), &compiled, 258, END);
        let mut possible = true;
        for token in text.bytes().map(|byte| TokenId(byte.into())) {
            guide.refresh().map_err(|error| error.to_string())?;
            possible = guide.mask().allows(token);
            if !possible {
                break;
            }
            guide.advance(token).map_err(|error| error.to_string())?;
        }
        if possible {
            guide.refresh().map_err(|error| error.to_string())?;
            if guide.mask().allows(END) {
                found.push(text.clone());
            }
        }
    }
    Ok(found)
}

#[test]
fn ebnf_accepts_exactly_what_a_brute_force_recogniser_accepts() {
    let compiler = compiler();
    let texts = texts_up_to(4);
    let (mut compared, mut accepted) = (0, 0);
    for seed in 0..250 {
        let mut draws = Draws(seed);
        let rules = 1 + draws.below(3);
        let mut text = format!("root ::= {}\n", draws.expression(3, rules));
        for rule in 0..rules {
            text.push_str(&format!("r{rule} ::= {} # rule\n", draws.expression(2, rules)));
        }
        let read = super::ebnf::read(&text).unwrap();
        let expected: Vec<String> = texts
            .iter()
            .filter(|member| {
                let signs: Vec<char> = member.chars().collect();
                Recogniser::matches(&read.0, &signs)
            })
            .cloned()
            .collect();
        match members(&compiler, Grammar::Ebnf(text.clone()), &texts) {
            Ok(found) => assert_eq!(found, expected, "seed {seed}: {text}"),
            Err(refusal) => assert!(expected.is_empty(), "seed {seed}: {text}: {refusal}"),
        }
        compared += texts.len();
        accepted += expected.len();
    }
    assert!(1_000 < accepted && accepted < compared, "{accepted} of {compared}");
}

#[test]
fn a_regex_accepts_the_whole_answer_only() {
    let cases: [(&str, &[&str], &[&str]); 12] = [
        ("^[a-z]+$", &["a", "end"], &["", "A", "a1"]),
        (r"\d{3}-\d{4}", &["555-1234"], &["555-12345", "x55-1234"]),
        (r"\d", &["7"], &["\u{0663}"]),
        (r"\w+", &["Ab_9"], &["é", "a b"]),
        (r"[\w.-]+@[\w-]+\.(?:com|org)", &["a.b@c-d.org"], &["a@b.net"]),
        ("(?P<year>\\d{4})|(?<none>none)", &["1999", "none"], &["199"]),
        ("a+?b*?", &["a", "aab"], &["b"]),
        (r"a/b\/c", &["a/b/c"], &["ab/c"]),
        (".", &["x", "é"], &["\n", ""]),
        (r"[^\d\s]", &["x"], &["1", " "]),
        (r"\S\D", &["xy"], &[" y", "x1"]),
        ("(|a)b", &["b", "ab"], &["a", "aab"]),
    ];
    let compiler = compiler();
    for (text, members, others) in cases {
        let grammar = Grammar::Regex(text.to_owned());
        for member in members {
            assert!(accepts(&compiler, &grammar, member), "{text} has {member}");
        }
        for other in others {
            assert!(!accepts(&compiler, &grammar, other), "{text} lacks {other}");
        }
    }
}

#[test]
fn a_refusal_names_the_feature() {
    let cases = [
        (Grammar::Regex(r"(a)\1".to_owned()), "back-references"),
        (Grammar::Regex("(?=a)a".to_owned()), "look-around"),
        (Grammar::Regex("(?i)a".to_owned()), "inline flags"),
        (Grammar::Regex(r"\bword".to_owned()), "word boundaries"),
        (Grammar::Regex(r"\p{L}".to_owned()), "property"),
        (Grammar::Regex("(a".to_owned()), "not closed"),
        (Grammar::Regex("a)".to_owned()), "closes nothing"),
        (Grammar::Regex("*a".to_owned()), "nothing that * repeats"),
        (Grammar::Regex("a{20000}".to_owned()), "more than 10000"),
        (Grammar::Regex("a{3,2}".to_owned()), "wrong way"),
        (Grammar::Regex(String::new()), "empty answer"),
        (Grammar::Ebnf("root ::= \"a\" (= \"b\")".to_owned()), "look-ahead"),
        (Grammar::Ebnf("root ::= Token(1)".to_owned()), "Token is not supported"),
        (Grammar::Ebnf("root ::= TagDispatch((\"a\", b))".to_owned()), "TagDispatch"),
        (Grammar::Ebnf("root ::= other".to_owned()), "no rule other"),
        (Grammar::Ebnf("other ::= \"a\"".to_owned()), "no rule root"),
        (Grammar::Ebnf("root ::= \"a\"\nroot ::= \"b\"".to_owned()), "defined twice"),
        (Grammar::Ebnf("root ::= <[5]>".to_owned()), "line 1 column 10"),
        (Grammar::Ebnf("%llguidance {}\nroot ::= \"a\"".to_owned()), "expected a rule"),
        (Grammar::Ebnf("root ::= root".to_owned()), ""),
        (Grammar::Ebnf(format!("root ::= {}", "(".repeat(1_000))), "nested deeper"),
        (Grammar::Json("{".to_owned()), "not JSON"),
        (Grammar::Json("{\"x-guidance\": {}}".to_owned()), "x-guidance"),
        (Grammar::Json("{\"type\": \"string\", \"pattern\": \"(?=a)\"}".to_owned()), ""),
        (Grammar::Json("{\"not\": {\"type\": \"string\"}}".to_owned()), "not"),
        (Grammar::Json("{\"$ref\": \"http://elsewhere/schema\"}".to_owned()), "ref"),
        (Grammar::Json(format!("{{\"title\": \"{}\"}}", "x".repeat(300_000))), "bytes"),
    ];
    let compiler = compiler();
    for (grammar, expected) in cases {
        let refusal = compiler.compile(&grammar).err();
        let refusal = refusal.unwrap_or_else(|| panic!("{expected}: served")).to_string();
        assert!(refusal.contains(expected), "{refusal:?} names {expected:?}");
        assert!(!refusal.contains('\n') && refusal.len() <= 400);
    }
}

#[test]
fn control_tokens_are_out_of_reach_of_client_grammars() {
    let compiler = compiler();
    let everything = [
        Grammar::Regex("(.|\\n)*".to_owned()),
        Grammar::Ebnf("root ::= [^]*".to_owned()),
        Grammar::Ebnf("root ::= \"<sentinel>\" | \"\\xff<sentinel>\"".to_owned()),
        Grammar::Json("{}".to_owned()),
    ];
    for grammar in everything {
        let guide = guide(&compiler, grammar.clone()).unwrap();
        assert!(!guide.mask().allows(SENTINEL), "{grammar:?}");
    }
    let tools = Grammar::Server("start: <[256]> /[a-z]+/ <[256]>".to_owned());
    let mut guide = guide(&compiler, tools).unwrap();
    for token in [SENTINEL, TokenId(97), SENTINEL, END] {
        assert!(guide.mask().allows(token), "{token}");
        guide.advance(token).unwrap();
        guide.refresh().unwrap();
    }
}

#[test]
fn a_grammar_that_only_goes_on_does_not_hang() {
    let compiler = compiler();
    let endless = [
        Grammar::Ebnf("root ::= x \"xy\"\nx ::= \"x\"+".to_owned()),
        Grammar::Ebnf("root ::= \"x\"+ \"x\" root".to_owned()),
        Grammar::Regex("x+x+x+y".to_owned()),
        Grammar::Json("{\"type\": \"string\", \"minLength\": 2000000000}".to_owned()),
        Grammar::Server("start: A B\nA: /x+/\nB: \"xy\"".to_owned()),
    ];
    for grammar in endless {
        let Ok(mut guide) = guide(&compiler, grammar) else { continue };
        for _ in 0..50 {
            if !guide.mask().allows(TokenId(120)) || guide.advance(TokenId(120)).is_err() {
                break;
            }
            if guide.refresh().is_err() {
                break;
            }
        }
    }
}

#[test]
fn the_grammar_begins_behind_its_trigger() {
    let compiler = compiler();
    let grammar = Grammar::Regex("ok".to_owned());
    let id = |sign: u8| TokenId(sign.into());
    let trigger = vec![id(b'a'), id(b'a'), id(b'b')];
    let constraint = Constraint { grammar, trigger, bound: None, barred: None };
    let mut guide = guide_with(&compiler, constraint.clone()).unwrap();
    for sign in *b"xaaab" {
        assert!(guide.mask().allows(id(sign)) && guide.mask().allows(SENTINEL));
        assert!(!guide.mask().allows(END), "the answer cannot end before its grammar");
        guide.advance(id(sign)).unwrap();
        guide.refresh().unwrap();
    }
    assert!(guide.mask().allows(id(b'o')) && !guide.mask().allows(id(b'a')));

    let mut guide =
        guide_with(&compiler, Constraint { bound: Some(SENTINEL), ..constraint }).unwrap();
    for token in [id(b'a'), SENTINEL] {
        guide.advance(token).unwrap();
    }
    for sign in *b"aab" {
        guide.refresh().unwrap();
        assert_eq!(*guide.mask(), TokenMask::Only(id(sign)));
        guide.advance(id(sign)).unwrap();
    }
    guide.refresh().unwrap();
    assert!(guide.mask().allows(id(b'o')));
    assert!(guide.advance(id(b'x')).is_err(), "a token that does not follow is told");
}

#[test]
fn what_is_barred_is_possible_behind_the_trigger_only() {
    let compiler = compiler();
    let id = |sign: u8| TokenId(sign.into());
    let grammar = Grammar::Server(format!("start: \"<\" <[{}]>", SENTINEL.0));
    let constraint = Constraint {
        grammar,
        trigger: vec![id(b'a'), id(b'b')],
        bound: None,
        barred: Some(SENTINEL),
    };
    let mut guide = guide_with(&compiler, constraint).unwrap();
    for sign in *b"<aab" {
        assert!(guide.mask().allows(id(sign)));
        assert!(!guide.mask().allows(SENTINEL) && !guide.mask().allows(END));
        guide.advance(id(sign)).unwrap();
        guide.refresh().unwrap();
    }
    for token in [id(b'<'), SENTINEL, END] {
        assert!(guide.mask().allows(token), "{token} follows the grammar");
        guide.advance(token).unwrap();
        guide.refresh().unwrap();
    }
}

#[test]
fn a_token_that_was_barred_does_not_follow() {
    let compiler = compiler();
    let constraint = Constraint {
        grammar: Grammar::Regex("ok".to_owned()),
        trigger: vec![TokenId(b'a'.into())],
        bound: None,
        barred: Some(SENTINEL),
    };
    let mut guide = guide_with(&compiler, constraint).unwrap();
    assert!(guide.advance(SENTINEL).is_err());
}

#[test]
fn json_schemas_accept_what_is_valid_and_nothing_else() {
    let object = r##"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "minimum": 0}, "next": {"$ref": "#/$defs/node"}},
        "required": ["name"], "additionalProperties": false,
        "$defs": {"node": {"type": "array", "items": {"enum": ["a", null, 1]}, "maxItems": 2}}}"##;
    let cases: [(&str, &[&str], &[&str]); 8] = [
        (
            object,
            &[r#"{"name": "Ada"}"#, r#"{"name":"é","age":7,"next":[null,"a"]}"#],
            &[
                r#"{}"#,
                r#"{"name":"Adele"}"#,
                r#"{"name":"A","age":-1}"#,
                r#"{"name":"A","x":1}"#,
                r#"{"name":"A","next":[2]}"#,
            ],
        ),
        (r#"{"type": "object"}"#, &["{}", r#"{"a": [1, {"b": null}]}"#], &["[]", "1", "{"]),
        (r#"{"const": {"a": 1}}"#, &[r#"{"a": 1}"#], &[r#"{"a": 2}"#]),
        (
            r#"{"anyOf": [{"type": "boolean"}, {"type": "number", "exclusiveMaximum": 2}]}"#,
            &["true", "1.5", "-3"],
            &["2", "\"x\""],
        ),
        (r#"{"type": "string", "pattern": "^a[0-9]+$"}"#, &["\"a1\""], &["\"b1\"", "\"a\""]),
        (
            r#"{"type": "array", "prefixItems": [{"type": "null"}], "minItems": 1}"#,
            &["[null]", "[null, 3]"],
            &["[]", "[1]"],
        ),
        (
            r#"{"type": "string", "format": "date"}"#,
            &["\"2026-11-30\""],
            &["\"2026-13-30\"", "\"x\""],
        ),
        (
            r#"{"type": "object", "properties": {"a": {}}, "required": ["a"], "minProperties": 1}"#,
            &[r#"{"a": 1}"#],
            &["{}"],
        ),
    ];
    let compiler = compiler();
    for (schema, valid, invalid) in cases {
        let grammar = Grammar::Json(schema.to_owned());
        for text in valid {
            assert!(accepts(&compiler, &grammar, text), "{schema} has {text}");
        }
        for text in invalid {
            assert!(!accepts(&compiler, &grammar, text), "{schema} lacks {text}");
        }
    }
}
