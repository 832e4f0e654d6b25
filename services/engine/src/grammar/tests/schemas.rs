//! What a schema rules out stays out in every spelling, or the schema is refused by name.

use shared::Grammar;

use super::{accepts, compiler};

#[test]
fn no_spelling_gets_around_a_schema() {
    let cases = [
        (r#"{"properties":{"a":{"type":"integer"}}}"#, r#"{"\u0061": "x"}"#),
        (r#"{"properties":{"a":{"type":"integer"}}}"#, r#"{"a": 1, "a": "x"}"#),
        (r#"{"properties":{"a":{"type":"integer"}}}"#, r#"{"b": 1, "a": "x"}"#),
        (r#"{"patternProperties":{"^f":{"type":"integer"}}}"#, r#"{"\u0066oo": "x"}"#),
        (r#"{"patternProperties":{"\\n":{"type":"integer"}}}"#, r#"{"a\u000a": "x"}"#),
        (r#"{"patternProperties":{"é":{"type":"integer"}}}"#, r#"{"\u00e9": "x"}"#),
        (r#"{"type":"string","pattern":"^a*$","maxLength":2}"#, r#""aaa""#),
        (r#"{"type":"string","pattern":"x{2}$","minLength":3}"#, r#""xx""#),
        (r#"{"type":"string","minLength":2}"#, r#""\ud83d\ude00""#),
        (r#"{"type":"string","minLength":2}"#, "\"\u{1F600}\""),
        (r#"{"type":"string","pattern":"^[^a]$"}"#, r#""\u0061""#),
        (r#"{"type":"string","pattern":"^\\w$"}"#, r#""é""#),
        (r#"{"const":1}"#, "2e0"),
        (r#"{"maximum":5}"#, "1e2"),
        (r#"{"multipleOf":2}"#, "3e0"),
        (r##"{"$ref":"#/$defs/a","maxLength":1,"$defs":{"a":{"type":"string"}}}"##, r#""xx""#),
    ];
    let compiler = compiler();
    for (schema, text) in cases {
        let grammar = Grammar::Json(schema.to_owned());
        assert!(!accepts(&compiler, &grammar, text), "{schema} lacks {text}");
    }
}

#[test]
fn what_would_not_be_held_to_is_refused() {
    let cases = [
        // Two properties of one name are one.
        (r#"{"minProperties":2}"#, "minProperties"),
        (r#"{"allOf":[{"required":["a"],"minProperties":3}]}"#, "minProperties"),
        // llguidance compares 64-bit floating-point numbers.
        (r#"{"const":9007199254740993}"#, "const"),
        (r#"{"enum":[[{"a":-9007199254740993}]]}"#, "enum"),
        // It leaves these characters out.
        (r#"{"const":"a\u0000b"}"#, "control character"),
        (r#"{"pattern":"a\\u0001"}"#, "control character"),
        (r#"{"pattern":"a\\x7f"}"#, "control character"),
        (r#"{"pattern":"\\cA"}"#, "control character"),
        (r#"{"patternProperties":{"\\0":{}}}"#, "control character"),
        // It looks references up as they are spelled.
        (r##"{"$ref":"#/$defs/a~1b","$defs":{"a/b":{"type":"string"},"a~1b":{}}}"##, "escaped"),
        (r##"{"$ref":"#/$defs/a%25b","$defs":{"a%25b":{}}}"##, "escaped"),
        (
            r##"{"properties":{"a":{"$id":"b/","$ref":"#/$defs/c"}},"$defs":{"c":{}}}"##,
            "$id inside",
        ),
        // Drafts differ in what they know, authors do not know that.
        (
            r#"{"$schema":"http://json-schema.org/draft-07/schema#","dependentRequired":{"a":["b"]}}"#,
            "dependentRequired",
        ),
        (
            r#"{"$schema":"http://json-schema.org/draft-04/schema#","contains":{"type":"string"}}"#,
            "contains",
        ),
        // Also where only a reference says that it is a schema.
        (
            r##"{"$ref":"#/parts/a","parts":{"a":{"type":"array","uniqueItems":true}}}"##,
            "uniqueItems",
        ),
        (r#"{"items":[{"not":{}}]}"#, "not"),
    ];
    let compiler = compiler();
    for (schema, expected) in cases {
        let refusal = compiler.compile(&Grammar::Json(schema.to_owned())).err();
        let refusal = refusal.unwrap_or_else(|| panic!("{schema}: served")).to_string();
        assert!(refusal.contains(expected), "{refusal:?} names {expected:?}");
    }
}

#[test]
fn what_says_nothing_is_served() {
    let cases = [
        (r#"{"type":"array","uniqueItems":false}"#, "[1,1]"),
        (r#"{"required":["a"],"minProperties":2}"#, r#"{"a":1,"b":2}"#),
        (r#"{"properties":{"not":{"type":"integer"},"$id":{}}}"#, r#"{"not":1,"$id":2}"#),
        (r#"{"const":9007199254740991}"#, "9007199254740991"),
        (r#"{"type":"string"}"#, r#""a\n\t\"\\é""#),
        (r#"{"pattern":"^\\x41\\u00e9\\n$"}"#, r#""Aé\n""#),
    ];
    let compiler = compiler();
    for (schema, text) in cases {
        let grammar = Grammar::Json(schema.to_owned());
        assert!(accepts(&compiler, &grammar, text), "{schema} has {text}");
    }
}
