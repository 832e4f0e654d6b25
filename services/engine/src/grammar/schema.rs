//! The JSON schemas of clients, as llguidance takes them. What it would take and not hold to is refused here.

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use super::compile::GrammarRefusal;

pub(super) mod server;

/// White space between two parts of a value: room for a line and its indentation. Without a bound a model that has nothing to
/// say writes spaces until its answer is as long as it may be, and all of it follows the schema.
const WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,64}";
/// Escapes in strings. Not `u`: names of properties are compared as they are spelled, so that `"\u0061"` would be another
/// name than `"a"`, and escape what the schema says of it. Control characters without an escape of their own cannot be said;
/// where a schema asks for one, llguidance would leave it out, so that is refused.
const ESCAPES: &str = "nrbtf\\\"";
/// Keywords that restrict values and that llguidance does not know, or not in each draft.
const NOT_SERVED: [&str; 15] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is a schema, or a list of them.
const SCHEMAS: [&str; 7] =
    ["additionalItems", "additionalProperties", "allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords whose value has schemas by name.
const NAMED_SCHEMAS: [&str; 4] = ["$defs", "definitions", "patternProperties", "properties"];
/// Keywords with what values are compared with.
const VALUES: [&str; 8] = [
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maximum",
    "minimum",
    "multipleOf",
    "pattern",
];
/// Beyond it llguidance takes two integers for the same.
const INTEGER_MAX: u64 = 1 << 53;
/// Different references of one schema.
const REFERENCES_MAX: usize = 4_096;
/// Schemas inside of schemas, those of the whole and of all that is referred to added up. llguidance follows them by recursion, a
/// reference where it meets it first, on a stack of [`GRAMMAR_STACK_BYTES`](super::compile::GRAMMAR_STACK_BYTES); 2 MiB were too little
/// for 700 references in a row, and for 440 schemas inside of schemas.
const LEVELS_MAX: usize = 8_000;

/// Reads a schema.
///
/// # Errors
/// When the text is no JSON, sets options of the engine, or says what would not be held to.
pub(super) fn read(text: &str) -> Result<TopLevelGrammar, GrammarRefusal> {
    let schema: Value = serde_json::from_str(text)
        .map_err(|error| GrammarRefusal::new(format!("json: the schema is not JSON: {error}")))?;
    prepared(schema).map(TopLevelGrammar::from_json_schema)
}

/// Checks a schema and completes it by what llguidance is to be told.
///
/// # Errors
/// When it sets options of the engine, or says what would not be held to.
pub(super) fn prepared(mut schema: Value) -> Result<Value, GrammarRefusal> {
    if schema.get("x-guidance").is_some() {
        // The engine's own options are no client's to set.
        return Err(not_supported("x-guidance"));
    }
    let mut check = Check { references: Vec::new(), nested_id: false, level: 0, deepest: 0 };
    check.schema(&schema, Depth::Root)?;
    check.referred(&schema)?;
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    without_effect(&mut schema);
    if let Value::Object(members) = &mut schema {
        let options = json!({"whitespace_pattern": WHITESPACE, "json_allowed_escapes": ESCAPES});
        members.insert("x-guidance".to_owned(), options);
    }
    Ok(schema)
}

fn not_supported(keyword: &str) -> GrammarRefusal {
    GrammarRefusal::new(format!("json: the keyword {keyword} is not supported"))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Root,
    Inner,
}

/// A walk over all places of a schema that are schemas themselves.
struct Check<'a> {
    /// Those met, each once.
    references: Vec<&'a str>,
    /// Whether references inside of a part may be meant relative to that part.
    nested_id: bool,
    /// How many schemas the one that is looked at is inside of, and the most so far.
    level: usize,
    deepest: usize,
}

impl<'a> Check<'a> {
    fn schema(&mut self, schema: &'a Value, depth: Depth) -> Result<(), GrammarRefusal> {
        let Value::Object(members) = schema else { return Ok(()) };
        self.level += 1;
        self.deepest = self.deepest.max(self.level);
        for (keyword, value) in members {
            let keyword = keyword.as_str();
            let refused = NOT_SERVED.contains(&keyword)
                || (keyword == "uniqueItems" && *value != Value::Bool(false));
            if refused {
                return Err(not_supported(keyword));
            }
            if VALUES.contains(&keyword) {
                check_value(keyword, value)?;
            }
            match (keyword, value) {
                ("minProperties", _) => check_min_properties(members)?,
                ("$id" | "id", Value::String(_)) => self.nested_id |= depth == Depth::Inner,
                ("$ref", Value::String(reference)) => self.reference(reference)?,
                (_, Value::Array(list)) if SCHEMAS.contains(&keyword) => {
                    list.iter().try_for_each(|inner| self.schema(inner, Depth::Inner))?;
                }
                (_, Value::Object(named)) if NAMED_SCHEMAS.contains(&keyword) => {
                    if keyword == "patternProperties" {
                        named.keys().try_for_each(|pattern| check_pattern(pattern))?;
                    }
                    named.values().try_for_each(|inner| self.schema(inner, Depth::Inner))?;
                }
                _ if SCHEMAS.contains(&keyword) => self.schema(value, Depth::Inner)?,
                _ => {}
            }
        }
        self.level -= 1;
        Ok(())
    }

    fn reference(&mut self, reference: &'a str) -> Result<(), GrammarRefusal> {
        check_reference(reference)?;
        if !self.references.contains(&reference) {
            if self.references.len() == REFERENCES_MAX {
                let text = format!("json: more than {REFERENCES_MAX} different references");
                return Err(GrammarRefusal::new(text));
            }
            self.references.push(reference);
        }
        Ok(())
    }

    /// What is referred to need not be at a place of a schema.
    fn referred(mut self, root: &'a Value) -> Result<(), GrammarRefusal> {
        let mut levels = self.deepest;
        let mut next = 0;
        while let Some(reference) = self.references.get(next) {
            next += 1;
            self.deepest = 0;
            let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
            if let Some(target) = target {
                self.schema(target, Depth::Inner)?;
            }
            levels += 1 + self.deepest;
            if LEVELS_MAX < levels {
                let text = format!(
                    "json: schemas inside of schemas, with all that they refer to, deeper than {LEVELS_MAX}"
                );
                return Err(GrammarRefusal::new(text));
            }
        }
        if self.nested_id && !self.references.is_empty() {
            return Err(GrammarRefusal::new(
                "json: $id inside of a schema with $ref is not supported",
            ));
        }
        Ok(())
    }
}

/// Refuses an escaped reference: it would be looked up as it is spelled, which may be something else.
pub(super) fn check_reference(reference: &str) -> Result<(), GrammarRefusal> {
    if reference.contains(['%', '~']) {
        let text = format!("json: the $ref {reference} is escaped; rename what it refers to");
        return Err(GrammarRefusal::new(text));
    }
    Ok(())
}

/// Names that are not required may come twice, and are one then.
fn check_min_properties(members: &Map<String, Value>) -> Result<(), GrammarRefusal> {
    let required = members.get("required").and_then(Value::as_array).map_or(0, Vec::len);
    let min = members["minProperties"].as_u64().and_then(|min| usize::try_from(min).ok());
    match min {
        Some(min) if min <= required + 1 => Ok(()),
        _ => Err(GrammarRefusal::new(
            "json: minProperties is supported up to one more than the required properties",
        )),
    }
}

fn check_value(keyword: &str, value: &Value) -> Result<(), GrammarRefusal> {
    match value {
        Value::Number(number) => {
            let magnitude = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
            match magnitude {
                Some(magnitude) if INTEGER_MAX < magnitude => Err(GrammarRefusal::new(format!(
                    "json: {keyword} has an integer beyond {INTEGER_MAX}, which is not told from its neighbours"
                ))),
                _ => Ok(()),
            }
        }
        Value::String(text) if keyword == "pattern" => check_pattern(text),
        Value::String(text) if text.chars().any(cannot_be_said) => Err(control_character(keyword)),
        Value::Array(list) => list.iter().try_for_each(|inner| check_value(keyword, inner)),
        Value::Object(members) => {
            members.values().try_for_each(|inner| check_value(keyword, inner))
        }
        _ => Ok(()),
    }
}

/// Whether a character of a string has no escape of [`ESCAPES`] and needs one.
fn cannot_be_said(sign: char) -> bool {
    sign.is_ascii_control() && !matches!(sign, '\n' | '\r' | '\t' | '\u{8}' | '\u{c}')
}

fn control_character(keyword: &str) -> GrammarRefusal {
    GrammarRefusal::new(format!(
        "json: {keyword} has a control character other than \\b, \\f, \\n, \\r and \\t, which is not supported"
    ))
}

/// Looks for control characters, also as escapes.
fn check_pattern(pattern: &str) -> Result<(), GrammarRefusal> {
    let mut signs = pattern.chars();
    while let Some(sign) = signs.next() {
        let escaped = if sign == '\\' { signs.next() } else { None };
        let digits = match escaped {
            Some('x') => 2,
            Some('u') => 4,
            _ => 0,
        };
        let number: String = signs.clone().take(digits).collect();
        let number = u32::from_str_radix(&number, 16).ok().and_then(char::from_u32);
        let refused = cannot_be_said(sign)
            || number.is_some_and(cannot_be_said)
            || (digits != 0 && number.is_none())
            || matches!(escaped, Some('0' | 'a' | 'c' | 'e' | 'v'));
        if refused {
            return Err(control_character("pattern"));
        }
    }
    Ok(())
}

/// Removes keywords that llguidance refuses also where they say nothing.
fn without_effect(schema: &mut Value) {
    let Value::Object(members) = schema else { return };
    members.remove("uniqueItems");
    for (keyword, value) in members {
        let keyword = keyword.as_str();
        match value {
            Value::Array(list) if SCHEMAS.contains(&keyword) => {
                list.iter_mut().for_each(without_effect);
            }
            Value::Object(named) if NAMED_SCHEMAS.contains(&keyword) => {
                named.values_mut().for_each(without_effect);
            }
            _ if SCHEMAS.contains(&keyword) => without_effect(value),
            _ => {}
        }
    }
}
