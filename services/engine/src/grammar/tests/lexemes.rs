//! EBNF over lexemes has the language of EBNF over characters, which is the one that a brute-force recogniser tells.

use llguidance::Matcher;
use shared::Grammar;

use super::{Draws, END, Recogniser, compiler};
use crate::grammar::lexemes::promote;
use crate::grammar::{GrammarCompiler, ebnf};

/// What a grammar leads to, within a length.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    members: Vec<String>,
    /// Texts that the masks allow, members or not.
    prefixes: usize,
}

/// Walks all texts that the masks of a grammar allow.
fn walk(
    matcher: &mut Matcher,
    alphabet: &[char],
    left: usize,
    text: &mut String,
    found: &mut Found,
) {
    found.prefixes += 1;
    // A rule without any text leads to where nothing is possible.
    let Ok(mask) = matcher.compute_mask_or_eos() else { return };
    if mask.is_allowed(END.0) {
        found.members.push(text.clone());
    }
    if left == 0 {
        return;
    }
    for sign in alphabet {
        let mut next = matcher.deep_clone();
        let mut bytes = sign.to_string().into_bytes().into_iter().map(u32::from);
        let taken = bytes.all(|byte| {
            let possible = next.compute_mask_or_eos().is_ok_and(|mask| mask.is_allowed(byte));
            possible && next.consume_token(byte).is_ok()
        });
        if taken {
            text.push(*sign);
            walk(&mut next, alphabet, left - 1, text, found);
            text.pop();
        }
    }
}

/// None when no text follows the grammar, whatever its length.
fn found(
    compiler: &GrammarCompiler,
    lark: String,
    alphabet: &[char],
    length: usize,
) -> Option<Found> {
    let compiled = compiler.compile(&Grammar::Server(lark)).ok()?;
    let mut found = Found::default();
    walk(&mut compiled.matcher(), alphabet, length, &mut String::new(), &mut found);
    found.members.sort();
    Some(found)
}

fn random_grammar(draws: &mut Draws) -> String {
    let rules = 1 + draws.below(3);
    let mut text = format!("root ::= {}\n", draws.expression(3, rules));
    for rule in 0..rules {
        let (one, two) = (draws.expression(2, 0), draws.expression(1, rules));
        let body = match draws.below(8) {
            0 => format!("{one} r{rule} | {two}"),
            1 => format!("r{rule} {one} | {two}"),
            2 => format!("({one} r{rule})?"),
            3 => format!("{one} | {two} | {one} ({one} r{rule} | {two})"),
            _ => draws.expression(2, rules),
        };
        text.push_str(&format!("r{rule} ::= {body} # a rule\n"));
    }
    text
}

fn texts(alphabet: &[char], length: usize) -> Vec<String> {
    let mut texts = vec![String::new()];
    let mut from = 0;
    for _ in 0..length {
        let until = texts.len();
        for index in from..until {
            for sign in alphabet {
                texts.push(format!("{}{sign}", texts[index]));
            }
        }
        from = until;
    }
    texts.sort();
    texts
}

/// Grammars compared, those with lexemes among them, and members seen.
#[derive(Debug, Default)]
struct Counts {
    grammars: usize,
    promoted: usize,
    members: usize,
}

fn compare(seeds: impl Iterator<Item = u64>, length: usize) -> Counts {
    let compiler = compiler();
    let plain = ['a', 'b', 'c'];
    // Two of these begin with the same byte.
    let wide = ['a', 'é', 'è'];
    let mut counts = Counts::default();
    for seed in seeds {
        let mut draws = Draws(seed);
        let mut text = random_grammar(&mut draws);
        let alphabet = if seed % 3 == 0 { wide } else { plain };
        if seed % 3 == 0 {
            // Comments and names have none of these letters to lose.
            text = text.replace("# a rule", "").replace('b', "é").replace('c', "è");
        }
        let rules = ebnf::read(&text).unwrap().0;
        let is_member = |member: &String| {
            let signs: Vec<char> = member.chars().collect();
            Recogniser::matches(&rules, &signs)
        };
        let expected: Vec<String> =
            texts(&alphabet, length).into_iter().filter(is_member).collect();
        let translated = ebnf::translate(&text).unwrap();
        let by_characters = found(&compiler, translated.by_characters, &alphabet, length);
        match &by_characters {
            Some(found) => assert_eq!(found.members, expected, "seed {seed}: {text}"),
            None => assert!(expected.is_empty(), "seed {seed}: {text}"),
        }
        counts.grammars += 1;
        counts.members += expected.len();
        if let Some(lark) = translated.promoted {
            let over_lexemes = found(&compiler, lark.clone(), &alphabet, length);
            assert_eq!(over_lexemes, by_characters, "seed {seed}: {text}{lark}");
            counts.promoted += 1;
        }
    }
    counts
}

#[test]
fn lexemes_accept_exactly_what_characters_accept() {
    // The last one was found: llguidance did not compile what it became, before it was simplified.
    let counts = compare((0..1_000).chain([8_874]), 5);
    // Neither may the test pass by promoting nothing, nor by comparing what has no members.
    assert!(500 < counts.promoted && 8_000 < counts.members, "{counts:?}");
}

fn longer_lexemes(text: &str) -> usize {
    promote(&ebnf::read(text).unwrap().0).map_or(0, |promoted| promoted.lexemes)
}

fn accepts(compiler: &GrammarCompiler, lark: &str, text: &str) -> bool {
    let compiled = compiler.compile(&Grammar::Server(lark.to_owned()));
    let mut matcher = compiled.unwrap_or_else(|refusal| panic!("{refusal}: {lark}")).matcher();
    for byte in text.bytes() {
        if !matcher.compute_mask_or_eos().unwrap().is_allowed(byte.into()) {
            return false;
        }
        matcher.consume_token(byte.into()).unwrap();
    }
    matcher.compute_mask_or_eos().unwrap().is_allowed(END.0)
}

#[test]
fn what_is_large_is_followed_by_characters() {
    // A copy of the long literal for each of the short ones would be millions of characters.
    let exits: Vec<String> = (0..5_000).map(|number| format!("\"字{number}\"")).collect();
    let copied = format!("root ::= \"{}\" ( root | {} )", "é".repeat(5_000), exits.join(" | "));
    assert_eq!(longer_lexemes(&copied), 0);
    // A class of many characters, none a neighbour of another, and many of it.
    let signs: String = (0..8_000).filter_map(|n| char::from_u32(0x4E00 + 2 * n)).collect();
    let wide = format!("root ::= {}\nbig ::= [{signs}]", "big ".repeat(60));
    assert_eq!(longer_lexemes(&wide), 0);
    // One of them is a character like any other.
    let beside = format!("root ::= \"ab\" big \"cd\"\nbig ::= [{signs}]");
    assert_eq!(longer_lexemes(&beside), 2);
}

struct Case {
    name: &'static str,
    grammar: &'static str,
    /// Places with a lexeme of more than one character.
    lexemes: usize,
    members: &'static [&'static str],
    others: &'static [&'static str],
}

#[test]
fn usual_grammars_are_followed_by_lexemes() {
    let compiler = compiler();
    let mut unexpected = Vec::new();
    for case in CASES {
        let translated = ebnf::translate(case.grammar).unwrap();
        let larks = [Some(translated.by_characters), translated.promoted];
        for lark in larks.into_iter().flatten() {
            for member in case.members {
                assert!(accepts(&compiler, &lark, member), "{} has {member}:\n{lark}", case.name);
            }
            for other in case.others {
                assert!(!accepts(&compiler, &lark, other), "{} lacks {other}:\n{lark}", case.name);
            }
        }
        let lexemes = longer_lexemes(case.grammar);
        if lexemes != case.lexemes {
            unexpected.push((case.name, lexemes));
        }
    }
    assert_eq!(unexpected, []);
}

const CASES: [Case; 12] = [
    Case {
        name: "JSON",
        grammar: r#"root ::= object
object ::= "{" space (pair ("," space pair)*)? "}" space
pair ::= string ":" space value
array ::= "[" space (value ("," space value)*)? "]" space
value ::= object | array | string | number | ("true" | "false" | "null") space
string ::= "\"" ([^"\\\n] | "\\" ["\\/bfnrt])* "\"" space
number ::= "-"? [0-9]+ ("." [0-9]+)? space
space ::= [ \n\t]*
"#,
        lexemes: 10,
        members: &["{}", "{\"a\": [1, {\"b\": null}, -2.5], \"c\\n\" : \"é\"}\n"],
        others: &["[]", "{", "{\"a\": 01.}", "{\"a\" 1}", "{\"a\": nul}"],
    },
    Case {
        name: "JSON of xgrammar",
        grammar: r#"root ::= array | object
any ::= number | string | boolean | null | array | object
number ::= ("0" | "-"? [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
string ::= (([\"] string_1 [\"]))
string_1 ::= "" | [^"\\\r\n] string_1 | "\\" escape string_1
escape ::= ["\\/bfnrt] | "u" [A-Fa-f0-9]{4}
boolean ::= "true" | "false"
null ::= "null"
array ::= "[" ("" | ws any (ws "," ws any)*) ws "]"
object ::= "{" ("" | ws string ws ":" ws any ( ws "," ws string ws ":" ws any)*) ws "}"
ws ::= [ \n\t]*
"#,
        lexemes: 15,
        members: &["[]", "[ ]", "[1 ,2e5]", "{\"a\" :\n[\"\\u00e9\", true ] }"],
        others: &["[01]", "[1 2]", "{\"a\":}", "[1,]", "\"a\""],
    },
    Case {
        name: "sums",
        grammar: "root ::= term (\" + \" term)*\nterm ::= [0-9]+ | \"(\" root \")\"",
        lexemes: 2,
        members: &["1", "12 + (3 + 45)"],
        others: &["", "1 +", "1 +2", "(1"],
    },
    Case {
        name: "terms with white space that a line may end",
        grammar: r#"root ::= (expr "=" ws term "\n")+
expr ::= term ([-+*/] term)*
term ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num ::= [0-9]+ ws
ws ::= [ \t\n]*
"#,
        lexemes: 4,
        members: &["a=1\n", "a1 *(2 +b)\n= c \n\nx=y\n"],
        others: &["a=1", "a=", "=1\n"],
    },
    Case {
        name: "left recursion",
        grammar: "root ::= sum\nsum ::= sum \"+\" product | product\nproduct ::= product \"*\" atom | atom\n\
                  atom ::= [0-9]+ (\".\" [0-9]+)? | \"(\" sum \")\"",
        lexemes: 1,
        members: &["1+2*3", "(1.5+2)*3"],
        others: &["1+", "1.+2", "1**2"],
    },
    Case {
        name: "list",
        grammar: "root ::= (\"- \" [^\\n]+ \"\\n\")+",
        lexemes: 1,
        members: &["- a\n", "- a\n- b c\n"],
        others: &["", "- \n", "a\n", "- a"],
    },
    Case {
        name: "CSV",
        grammar: r#"root ::= row ("\n" row)*
row ::= field ("," field)*
field ::= [^,"\n]* | "\"" ([^"] | "\"\"")* "\""
"#,
        lexemes: 1,
        members: &["", "a,b", "\"a \"\"b\"\"\",\n,"],
        others: &["\"a", "a\"b", "\"a\"b"],
    },
    Case {
        name: "SQL",
        grammar: r#"root ::= "SELECT " columns " FROM " name (" WHERE " condition)? ";"
columns ::= "*" | name (", " name)*
name ::= [a-z] [a-z0-9_]*
condition ::= atom ((" AND " | " OR ") atom)*
atom ::= name " " ("=" | "<" | ">" | "<=" | ">=") " " value | "(" condition ")"
value ::= [0-9]+ | "'" [^']* "'"
"#,
        lexemes: 4,
        members: &[
            "SELECT * FROM t;",
            "SELECT a, b2 FROM t WHERE (a <= 3 OR b = 'x y') AND c > 1;",
        ],
        others: &["SELECT FROM t;", "SELECT a FROM t WHERE;", "SELECT a FROM t WHERE a << 1;"],
    },
    Case {
        name: "C",
        grammar: r#"root ::= (declaration)*
declaration ::= type ident "(" (type ident)? ")" ws "{" ws statement* "}" ws
type ::= ("int" | "float" | "char") " "
ident ::= [a-zA-Z_] [a-zA-Z_0-9]*
statement ::= type ident " = " expr ";" ws | ident " = " expr ";" ws | "return " expr ";" ws | "while (" expr ") {" ws statement* "}" ws
expr ::= term ([-+*/<>] term)*
term ::= ident | [0-9]+ | "(" expr ")" | ident "(" expr ")"
ws ::= ([ \t\n] ws)?
"#,
        lexemes: 14,
        members: &[
            "int f(char c) {\n int a = 1;\n while (a<10) { a = a+(c); }\n return intern; }\n",
        ],
        others: &["int f(char c) { int a 1; }", "int f() {", "f() {}"],
    },
    Case {
        name: "a star before what it matches",
        grammar: "root ::= [a-z]* \"end\" root | \".\"",
        lexemes: 1,
        members: &["endend.", "abcend.", "."],
        others: &["ab.", "en."],
    },
    Case {
        name: "a star that the next lexeme runs on",
        grammar: "root ::= x \"xy\" root \".\" | \"\"\nx ::= \"x\"*",
        lexemes: 1,
        members: &["", "xxxy.", "xyxy.."],
        others: &["xxx", "y."],
    },
    Case {
        name: "characters that begin with the same byte",
        grammar: "root ::= [é]+ \"è\" root \"!\" | \"\"",
        lexemes: 1,
        members: &["", "éè!", "éééè!"],
        others: &["é", "è!"],
    },
];
