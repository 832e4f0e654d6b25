//! Each feature of the two dialects, a row: what follows it and what does not. Source of the list: specs/recipe-and-apis.md
//! §4.4.

use shared::Grammar;

use super::{accepts, compiler};

type Row = (&'static str, &'static [&'static str], &'static [&'static str]);

fn check(rows: &[Row], grammar: fn(String) -> Grammar) {
    let compiler = compiler();
    for (text, members, others) in rows {
        let grammar = grammar((*text).to_owned());
        for member in *members {
            assert!(accepts(&compiler, &grammar, member), "{text} has {member:?}");
        }
        for other in *others {
            assert!(!accepts(&compiler, &grammar, other), "{text} lacks {other:?}");
        }
    }
}

#[test]
fn ebnf_has_the_features_of_its_dialect() {
    let rows: [Row; 27] = [
        ("root ::= \"a\"", &["a"], &["", "aa", "b"]),
        ("root::=\"a\"", &["a"], &["b"]),
        ("# first\nroot ::= \"a\" # behind\n  \"b\" # and on\n", &["ab"], &["a"]),
        ("root ::= other\nother ::= \"a\" | \"b\"", &["a", "b"], &["c"]),
        ("root ::= a-b.c_d\na-b.c_d ::= \"x\"", &["x"], &["a"]),
        ("root ::= \"\\\"\\\\\\n\\t\\x41\\u00e9\\U0001F600\"", &["\"\\\n\tAé😀"], &["\"", "A"]),
        ("root ::= \"\\u{e9}\\/\\[\"", &["é/["], &["e/["]),
        ("root ::= [a-cx]", &["a", "b", "x"], &["d", "y", ""]),
        ("root ::= [^a-c]", &["d", "é", "\n"], &["a", "c", ""]),
        ("root ::= [^]", &["a", "\n", "é"], &["", "ab"]),
        ("root ::= [a-]", &["a", "-"], &["b"]),
        ("root ::= [\\]\\-\\\\\\^]", &["]", "-", "\\", "^"], &["a"]),
        ("root ::= [\\d]", &["0", "9"], &["a", "\u{0663}"]),
        ("root ::= [\\w.]", &["a", "Z", "_", "0", "."], &["é", "-"]),
        ("root ::= [\\s]", &[" ", "\t", "\n"], &["a", "\u{2003}"]),
        ("root ::= [^\\d\\s]", &["a"], &["0", " "]),
        ("root ::= [\\D]", &["a"], &["0"]),
        ("root ::= \"a\"*", &["", "aaa"], &["b"]),
        ("root ::= \"a\"+ \"b\"?", &["a", "aab"], &["", "b", "abb"]),
        ("root ::= \"ab\"{2}", &["abab"], &["ab", "ababab"]),
        ("root ::= \"a\"{2,}", &["aa", "aaaa"], &["a"]),
        ("root ::= \"a\"{1,3}", &["a", "aaa"], &["", "aaaa"]),
        ("root ::= [a-z]{ 2 , 3 }", &["ab", "abc"], &["a", "abcd"]),
        ("root ::= (\"a\" | \"b\" \"c\")+ | \"\"", &["", "abca"], &["b"]),
        ("root ::= \"(\" root \")\" | \"\"", &["", "(())"], &["(", "())"]),
        ("root ::= item | root \",\" item\nitem ::= [0-9]", &["1", "1,2,3"], &["", "1,"]),
        ("root ::= \"a\" root \"b\" root | \"\"", &["", "ab", "aabbab"], &["a", "ba"]),
    ];
    check(&rows, Grammar::Ebnf);
}

#[test]
fn a_regex_has_the_features_of_its_dialect() {
    let rows: [Row; 19] = [
        ("abc", &["abc"], &["ab", "abcd", "xabc"]),
        ("^abc$", &["abc"], &["abcd"]),
        ("a|bc", &["a", "bc"], &["abc"]),
        ("(a|b)c", &["ac", "bc"], &["a"]),
        ("(?:ab)+", &["abab"], &["", "aba"]),
        ("(?<name>a)(?P<other>b)", &["ab"], &["a"]),
        ("a*b+c?", &["b", "aabbc"], &["a", "bcc"]),
        ("a*?b+?c??", &["b", "aabbc"], &["a"]),
        ("a{2}b{1,}c{0,2}", &["aab", "aabbcc"], &["ab", "aabccc"]),
        (".", &["a", "é"], &["\n", ""]),
        ("[a-c]", &["b"], &["d"]),
        ("[^a-c]", &["d", "\n"], &["a"]),
        (r"[\d_]", &["0", "_"], &["a"]),
        (r"\d\w\s", &["0a ", "9_\t"], &["aa "]),
        (r"\D\W\S", &["a-x"], &["0-x", "aax"]),
        (r"\.\*\(\)\[\]\{\}\+\?\|\\\/", &[".*()[]{}+?|\\/"], &["a"]),
        (r"\n\t\r\x41\u00e9", &["\n\t\rAé"], &["A"]),
        (r"[\]\-\\^]", &["]", "-", "\\", "^"], &["a"]),
        ("(|a)b", &["b", "ab"], &["a"]),
    ];
    check(&rows, Grammar::Regex);
}

#[test]
fn what_neither_dialect_has_is_refused_by_name() {
    let ebnf = [
        ("root ::= \"a\" (= \"b\")", "look-ahead"),
        ("root ::= TagDispatch((\"a\", b))", "TagDispatch"),
        ("root ::= Token(1, 2)", "Token"),
        ("root ::= ExcludeToken(1)", "ExcludeToken"),
        ("root ::= TokenTagDispatch((1, b))", "TokenTagDispatch"),
        ("root ::= []", "class without characters"),
        ("root ::= [z-a]", "wrong way"),
        ("root ::= \"a\"{2,1}", "wrong way"),
        ("root ::= \"a", "not closed"),
        ("root ::= (\"a\"", "not closed"),
        ("root ::= \"a\")", "expected"),
        ("root ::= \"\\q\"", "\\q is not supported"),
        ("root ::= \"\\u12\"", "number of a character"),
        ("root ::= \"\\ud800\"", "number of a character"),
        ("root ::= \"a\"*****", "more than 4"),
        ("root = \"a\"", "expected a rule"),
    ];
    let regex = [
        (r"(a)\1", "back-references"),
        (r"\k<a>", "back-references"),
        ("a(?=b)", "look-around"),
        ("a(?!b)", "look-around"),
        ("(?<=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        ("(?i)a", "inline flags"),
        (r"\p{L}", "property"),
        (r"\bx", "word boundaries"),
        (r"\Bx", "word boundaries"),
        ("a**", "needs a group"),
        ("[]a]", "write a bracket"),
        ("[a", "not closed"),
        ("x{1", "repetition is written"),
        ("a\\", "ends behind a backslash"),
    ];
    let compiler = compiler();
    let ebnf = ebnf.map(|(text, named)| (Grammar::Ebnf(text.to_owned()), named));
    let regex = regex.map(|(text, named)| (Grammar::Regex(text.to_owned()), named));
    for (grammar, named) in ebnf.into_iter().chain(regex) {
        let refusal = compiler.compile(&grammar).err();
        let refusal = refusal.unwrap_or_else(|| panic!("{grammar:?}: served")).to_string();
        assert!(refusal.contains(named), "{grammar:?}: {refusal:?} names {named:?}");
    }
}
