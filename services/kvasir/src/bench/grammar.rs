//! `kvasir bench grammar`: what grammars cost beside the decode loop: compiling one, and each mask of an answer that follows it.
//!
//! Answers are written here, cut into the longest tokens of the vocabulary, and followed token by token, so that the masks
//! are those of real text. Everything runs on one thread.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use engine::{GrammarCompiler, GrammarLimits, GrammarVocabulary, Guide};
use serde::Serialize;
use shared::{Clock, Constraint, Grammar, TokenId};

use super::figures::percentile;
use crate::cli::GrammarArgs;
use crate::console::Console;

/// Grammars and answers that follow them.
const CASES: [(&str, Kind, &str, &str); 17] = [
    ("flat object", Kind::Json, FLAT, FLAT_ANSWER),
    ("nested object", Kind::Json, NESTED, NESTED_ANSWER),
    ("any JSON object", Kind::Json, "{\"type\":\"object\"}", NESTED_ANSWER),
    ("list of references", Kind::Json, TREE, TREE_ANSWER),
    ("choice of kinds", Kind::Json, KINDS, KINDS_ANSWER),
    ("patterns and formats", Kind::Json, PATTERNS, PATTERNS_ANSWER),
    ("long text", Kind::Json, TEXT, TEXT_ANSWER),
    ("numbers", Kind::Json, NUMBERS, "[1, -2.5, 3e10, 400000, 0.125, -17, 99, 1000000]"),
    (
        "date by regex",
        Kind::Regex,
        r"^\d{4}-(0[1-9]|1[0-2])-\d{2}( [a-z]+)*$",
        "2026-11-30 a quiet day in late autumn",
    ),
    (
        "words by regex",
        Kind::Regex,
        r"([A-Z][a-z]+ ){3,40}[a-z]+\.",
        "Anna Tom Lena Carl Maria Paul walk.",
    ),
    ("JSON by EBNF", Kind::Ebnf, JSON_RULES, NESTED_ANSWER),
    (
        "sums by EBNF",
        Kind::Ebnf,
        "root ::= term (\" + \" term)*\nterm ::= [0-9]+ | \"(\" root \")\"",
        "12 + (3 + 45 + (6)) + 789",
    ),
    ("JSON by EBNF of xgrammar", Kind::Ebnf, XGRAMMAR_RULES, NESTED_ANSWER),
    ("queries by EBNF", Kind::Ebnf, QUERY_RULES, QUERY_ANSWER),
    ("programs by EBNF", Kind::Ebnf, PROGRAM_RULES, PROGRAM_ANSWER),
    ("tables by EBNF", Kind::Ebnf, TABLE_RULES, TABLE_ANSWER),
    (
        "by characters: names that touch",
        Kind::Ebnf,
        "root ::= name root? | \"(\" root \")\"\nname ::= [a-z]+ [0-9]*",
        "alpha1beta(gamma2delta)",
    ),
];

const FLAT: &str = r#"{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0},"email":{"type":"string"},"active":{"type":"boolean"},"score":{"type":"number"}},"required":["name","age","active"],"additionalProperties":false}"#;
const FLAT_ANSWER: &str = r#"{"name": "Anna Petersen", "age": 41, "email": "anna@example.org", "active": true, "score": 0.75}"#;
const NESTED: &str = r#"{"type":"object","properties":{"title":{"type":"string","maxLength":80},"author":{"type":"object","properties":{"first":{"type":"string"},"last":{"type":"string"}},"required":["first","last"],"additionalProperties":false},"tags":{"type":"array","items":{"type":"string"},"maxItems":8},"chapters":{"type":"array","items":{"type":"object","properties":{"heading":{"type":"string"},"pages":{"type":"integer"}},"required":["heading"],"additionalProperties":false}}},"required":["title","author"],"additionalProperties":false}"#;
const NESTED_ANSWER: &str = r#"{"title": "The old map of the harbour", "author": {"first": "Lena", "last": "Kowalski"}, "tags": ["sea", "maps", "short stories"], "chapters": [{"heading": "A letter from the captain", "pages": 12}, {"heading": "The blue door", "pages": 31}, {"heading": "What the tide left"}]}"#;
const TREE: &str = r##"{"$defs":{"node":{"type":"object","properties":{"value":{"type":["string","number","null"]},"children":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["value"],"additionalProperties":false}},"$ref":"#/$defs/node"}"##;
const TREE_ANSWER: &str = r#"{"value": "root", "children": [{"value": 1, "children": [{"value": null}, {"value": "a leaf"}]}, {"value": -2.5}, {"value": "last", "children": []}]}"#;
const KINDS: &str = r#"{"type":"array","items":{"anyOf":[{"type":"object","properties":{"kind":{"const":"move"},"x":{"type":"integer"},"y":{"type":"integer"}},"required":["kind","x","y"],"additionalProperties":false},{"type":"object","properties":{"kind":{"const":"say"},"text":{"type":"string"}},"required":["kind","text"],"additionalProperties":false},{"type":"object","properties":{"kind":{"const":"wait"},"unit":{"enum":["s","ms","min"]},"time":{"type":"number"}},"required":["kind","unit","time"],"additionalProperties":false}]}}"#;
const KINDS_ANSWER: &str = r#"[{"kind": "move", "x": 10, "y": -4}, {"kind": "say", "text": "Good morning, everybody."}, {"kind": "wait", "unit": "ms", "time": 250.5}, {"kind": "move", "x": 0, "y": 0}]"#;
const PATTERNS: &str = r#"{"type":"object","properties":{"id":{"type":"string","pattern":"^[A-Z]{3}-[0-9]{6}$"},"day":{"type":"string","format":"date"},"mail":{"type":"string","format":"email"},"colour":{"type":"string","pattern":"^#[0-9a-f]{6}$"},"level":{"type":"integer","minimum":1,"maximum":99}},"required":["id","day"],"additionalProperties":false}"#;
const PATTERNS_ANSWER: &str = r##"{"id": "KVA-004711", "day": "2026-11-30", "mail": "ops@example.org", "colour": "#00aaff", "level": 42}"##;
const TEXT: &str = r#"{"type":"object","properties":{"summary":{"type":"string","minLength":10},"quality":{"enum":["good","fair","poor"]}},"required":["summary","quality"],"additionalProperties":false}"#;
const TEXT_ANSWER: &str = r#"{"summary": "The harbour was quiet when the boats came in. Three fishermen carried their nets to the shed behind the school, and the captain wrote the day's catch into his book: forty crates of herring, two of cod, and a bottle with a letter in it. Nobody could read the letter, because it was written in a language that none of them had learnt; so they kept it on the shelf beside the old map until the teacher came back from the town.", "quality": "fair"}"#;
const NUMBERS: &str = r#"{"type":"array","items":{"type":"number"},"maxItems":64}"#;
const JSON_RULES: &str = r#"root ::= object
object ::= "{" space (pair ("," space pair)*)? "}" space
pair ::= string ":" space value
array ::= "[" space (value ("," space value)*)? "]" space
value ::= object | array | string | number | ("true" | "false" | "null") space
string ::= "\"" ([^"\\\n] | "\\" ["\\/bfnrt])* "\"" space
number ::= "-"? [0-9]+ ("." [0-9]+)? space
space ::= [ \n\t]*
"#;

const XGRAMMAR_RULES: &str = r#"root ::= array | object
any ::= number | string | boolean | null | array | object
number ::= ("0" | "-"? [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
string ::= [\"] string_1 [\"]
string_1 ::= "" | [^"\\\r\n] string_1 | "\\" escape string_1
escape ::= ["\\/bfnrt] | "u" [A-Fa-f0-9]{4}
boolean ::= "true" | "false"
null ::= "null"
array ::= "[" ("" | ws any (ws "," ws any)*) ws "]"
object ::= "{" ("" | ws string ws ":" ws any (ws "," ws string ws ":" ws any)*) ws "}"
ws ::= [ \n\t]*
"#;
const QUERY_RULES: &str = r#"root ::= "SELECT " columns " FROM " name (" WHERE " condition)? ";"
columns ::= "*" | name (", " name)*
name ::= [a-z] [a-z0-9_]*
condition ::= atom ((" AND " | " OR ") atom)*
atom ::= name " " ("=" | "<" | ">" | "<=" | ">=") " " value | "(" condition ")"
value ::= [0-9]+ | "'" [^']* "'"
"#;
const QUERY_ANSWER: &str = "SELECT name, harbour, built_in FROM ships WHERE (length >= 40 OR flag = 'Red Lion') AND crew < 12;";
const PROGRAM_RULES: &str = r#"root ::= declaration*
declaration ::= type ident "(" (type ident)? ")" ws "{" ws statement* "}" ws
type ::= ("int" | "float" | "char") " "
ident ::= [a-zA-Z_] [a-zA-Z_0-9]*
statement ::= type ident " = " expr ";" ws | ident " = " expr ";" ws | "return " expr ";" ws | "while (" expr ") {" ws statement* "}" ws
expr ::= term ([-+*/<>] term)*
term ::= ident | [0-9]+ | "(" expr ")" | ident "(" expr ")"
ws ::= ([ \t\n] ws)?
"#;
const PROGRAM_ANSWER: &str = "int area(int width) {\n    int total = 0;\n    while (total<100) {\n        total = total+(width*width);\n    }\n    return total;\n}\n";
const TABLE_RULES: &str = r#"root ::= row ("\n" row)*
row ::= field ("," field)*
field ::= [^,"\n]* | "\"" ([^"] | "\"\"")* "\""
"#;
const TABLE_ANSWER: &str = "name,port,year\nSea Lion,Rostock,1987\n\"Star, the second\",Bremen,2003\n\"The \"\"Old\"\" One\",Kiel,1911";

#[derive(Clone, Copy, Debug)]
enum Kind {
    Json,
    Regex,
    Ebnf,
}

impl Kind {
    fn grammar(self, text: &str) -> Grammar {
        match self {
            Self::Json => Grammar::Json(text.to_owned()),
            Self::Regex => Grammar::Regex(text.to_owned()),
            Self::Ebnf => Grammar::Ebnf(text.to_owned()),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Regex => "regex",
            Self::Ebnf => "ebnf",
        }
    }
}

/// What one grammar, or all of a kind, cost. Times in microseconds; a compilation includes the first mask.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct GrammarFigures {
    /// The grammar, or the kind.
    pub name: String,
    /// Masks measured.
    pub masks: usize,
    /// Median and worst compilation.
    pub compile_us: [f64; 2],
    /// Percentiles 50, 90, 99 and 100 of following a token and computing the mask behind it.
    pub mask_us: [f64; 4],
}

/// What the run found.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct GrammarReport {
    /// Tokens of the vocabulary.
    pub tokens: usize,
    /// Seconds to read the vocabulary and prepare it.
    pub prepare_s: f64,
    /// One per grammar, then one per kind.
    pub figures: Vec<GrammarFigures>,
}

/// Measures and prints.
///
/// # Errors
/// When the tokenizer cannot be read, or an answer does not follow its grammar.
pub(crate) fn run(
    args: &GrammarArgs,
    clock: &dyn Clock,
    console: &mut Console,
) -> anyhow::Result<()> {
    ensure!((1..=1_000).contains(&args.rounds), "--rounds is {}, expected 1 to 1000", args.rounds);
    let report = measure(&args.tokenizer, (args.tokens, TokenId(args.end)), args.rounds, clock)?;
    if args.json {
        console.line(&serde_json::to_string(&report)?)?;
        return Ok(());
    }
    let GrammarReport { tokens, prepare_s, figures } = report;
    console.line(&format!("vocabulary of {tokens} tokens, prepared in {prepare_s:.2} s"))?;
    console.line("| grammar | masks | compile p50 | max us | mask p50 | p90 | p99 | max us |")?;
    console.line("| --- | --- | --- | --- | --- | --- | --- | --- |")?;
    for GrammarFigures { name, masks, compile_us: [c50, c100], mask_us: [p50, p90, p99, p100] } in
        figures
    {
        console.line(&format!(
            "| {name} | {masks} | {c50:.0} | {c100:.0} | {p50:.1} | {p90:.1} | {p99:.1} | {p100:.1} |"
        ))?;
    }
    Ok(())
}

fn measure(
    tokenizer: &Path,
    (tokens, end): (usize, TokenId),
    rounds: u32,
    clock: &dyn Clock,
) -> anyhow::Result<GrammarReport> {
    let file = fs::read(tokenizer);
    let file = file.with_context(|| format!("{} cannot be read", tokenizer.display()))?;
    ensure!(end.index() < tokens, "--end is {end}, expected below {tokens}");
    let began = clock.now();
    let vocabulary = GrammarVocabulary::read(&file, tokens, end)?;
    let compiler = GrammarCompiler::new(&vocabulary, GrammarLimits::STANDARD);
    let prepare_s = clock.now().since(began).as_secs_f64();
    let mut figures = Vec::with_capacity(CASES.len());
    let mut kinds: BTreeMap<&str, [Vec<Duration>; 2]> = BTreeMap::new();
    for (name, kind, grammar, answer) in CASES {
        let times = follow(&compiler, &kind.grammar(grammar), answer, (rounds, clock));
        let times = times.with_context(|| format!("the grammar {name:?}"))?;
        let of_kind = kinds.entry(kind.as_str()).or_default();
        for (all, times) in of_kind.iter_mut().zip(&times) {
            all.extend(times);
        }
        figures.push(figures_of(name, &times));
    }
    figures.extend(kinds.iter().map(|(name, times)| figures_of(&format!("all {name}"), times)));
    Ok(GrammarReport { tokens, prepare_s, figures })
}

/// Times of compilations and of masks.
fn follow(
    compiler: &GrammarCompiler,
    grammar: &Grammar,
    answer: &str,
    (rounds, clock): (u32, &dyn Clock),
) -> anyhow::Result<[Vec<Duration>; 2]> {
    let vocabulary = compiler.vocabulary();
    let tokens = vocabulary.longest_tokens(answer);
    let constraint =
        Constraint { grammar: grammar.clone(), trigger: Vec::new(), bound: None, barred: None };
    let constraint = Arc::new(constraint);
    let (mut compilations, mut masks) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let began = clock.now();
        let compiled = Arc::new(compiler.compile(grammar)?);
        compilations.push(clock.now().since(began));
        let size = vocabulary.tokens();
        let mut guide = Guide::new(Arc::clone(&constraint), &compiled, size, vocabulary.end());
        guide.refresh()?;
        for token in tokens.iter().copied().chain([vocabulary.end()]) {
            ensure!(guide.mask().allows(token), "the answer leaves its grammar at token {token}");
            let began = clock.now();
            guide.advance(token)?;
            guide.refresh()?;
            masks.push(clock.now().since(began));
        }
    }
    Ok([compilations, masks])
}

fn figures_of(name: &str, [compilations, masks]: &[Vec<Duration>; 2]) -> GrammarFigures {
    let at = |times: &[Duration], percent: usize| {
        percentile(times.iter().map(|time| time.as_secs_f64() * 1e6), percent)
    };
    GrammarFigures {
        name: name.to_owned(),
        masks: masks.len(),
        compile_us: [50, 100].map(|percent| at(compilations, percent)),
        mask_us: [50, 90, 99, 100].map(|percent| at(masks, percent)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use shared::TokenId;

    use super::{CASES, measure};
    use crate::clock::SystemClock;

    #[test]
    fn every_answer_follows_its_grammar_to_the_end() {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
        let tokenizer = root.join("deploy/models/seedling/tokenizer.json");
        let clock = SystemClock::start();
        let report = measure(&tokenizer, (4_096, TokenId(1)), 1, &clock).unwrap();
        assert_eq!(report.figures.len(), CASES.len() + 3);
        assert!(report.figures.iter().all(|figures| 8 < figures.masks));
    }
}
