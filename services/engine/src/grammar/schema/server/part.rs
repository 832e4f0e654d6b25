//! A part of a schema as a schema of its own, with the meaning that it has within the whole.
//!
//! References are looked up from the root of what is compiled, so what the part refers to, and what that refers to, is copied beside
//! it and referred to there. Nothing else is: a part costs what it needs.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::PARTS_BYTES_MAX;
use crate::grammar::compile::GrammarRefusal;
use crate::grammar::schema::{NAMED_SCHEMAS, SCHEMAS, check_reference};

/// What one value or name counts beside its text.
const VALUE_BYTES: usize = 8;

/// The part at a JSON pointer; the whole at the empty one. `bytes_left` is what this and the parts behind it may have.
///
/// # Errors
/// When something referred to is not there, or the part is too large with all of it.
pub(super) fn part_of(
    whole: &Value,
    pointer: &str,
    bytes_left: &mut usize,
) -> Result<Value, GrammarRefusal> {
    let mut copying = Copying {
        whole,
        references: Vec::new(),
        numbers: HashMap::new(),
        has_base: false,
        bytes_left,
    };
    if pointer.is_empty() {
        return copying.value(whole);
    }
    let mut part = copying.schema(copying.target(pointer, pointer)?)?;
    let mut definitions = Map::new();
    // Grows while it is gone through.
    let mut next = 0;
    while let Some(reference) = copying.references.get(next).copied() {
        let target = copying.target(reference, reference.strip_prefix('#').unwrap_or("?"))?;
        definitions.insert(next.to_string(), copying.schema(target)?);
        next += 1;
    }
    if copying.has_base && !definitions.is_empty() {
        return Err(GrammarRefusal::new("json: $id inside of a schema with $ref is not supported"));
    }
    if let Value::Object(members) = &mut part {
        if !definitions.is_empty() {
            members.insert("$defs".to_owned(), definitions.into());
        }
        if let Some(draft) = whole.get("$schema").filter(|draft| draft.is_string()) {
            members.insert("$schema".to_owned(), draft.clone());
        }
    }
    Ok(part)
}

struct Copying<'a, 'b> {
    whole: &'a Value,
    /// Those met, each once; their places are the names of what they refer to.
    references: Vec<&'a str>,
    numbers: HashMap<&'a str, usize>,
    /// Whether references may be meant relative to a part that has a name of its own.
    has_base: bool,
    bytes_left: &'b mut usize,
}

impl<'a> Copying<'a, '_> {
    /// What a reference leads to, which is at this pointer.
    fn target(&self, reference: &str, pointer: &str) -> Result<&'a Value, GrammarRefusal> {
        self.whole.pointer(pointer).ok_or_else(|| {
            let text = format!("json: the $ref {reference} refers to nothing in the schema");
            GrammarRefusal::new(text)
        })
    }

    /// Copies what is a schema.
    fn schema(&mut self, schema: &'a Value) -> Result<Value, GrammarRefusal> {
        let Value::Object(members) = schema else { return self.value(schema) };
        self.spend(0)?;
        let mut copied = Map::new();
        for (keyword, value) in members {
            self.spend(keyword.len())?;
            let value = match (keyword.as_str(), value) {
                // Copied where they are referred to. The draft is the whole's.
                ("$defs" | "definitions" | "$schema", _) => continue,
                ("$id" | "id", Value::String(_)) => {
                    self.has_base |= !std::ptr::eq(schema, self.whole);
                    continue;
                }
                ("$ref", Value::String(reference)) => self.number(reference)?,
                (word, Value::Array(list)) if SCHEMAS.contains(&word) => list
                    .iter()
                    .map(|inner| self.schema(inner))
                    .collect::<Result<Value, GrammarRefusal>>()?,
                (word, Value::Object(named)) if NAMED_SCHEMAS.contains(&word) => {
                    let mut schemas = Map::new();
                    for (name, inner) in named {
                        self.spend(name.len())?;
                        schemas.insert(name.clone(), self.schema(inner)?);
                    }
                    schemas.into()
                }
                (word, inner) if SCHEMAS.contains(&word) => self.schema(inner)?,
                _ => self.value(value)?,
            };
            copied.insert(keyword.clone(), value);
        }
        Ok(copied.into())
    }

    /// The reference to what is copied for this one.
    fn number(&mut self, reference: &'a str) -> Result<Value, GrammarRefusal> {
        check_reference(reference)?;
        let next = self.references.len();
        let number = *self.numbers.entry(reference).or_insert(next);
        if number == next {
            self.references.push(reference);
        }
        Ok(format!("#/$defs/{number}").into())
    }

    /// Copies what is no schema.
    fn value(&mut self, value: &Value) -> Result<Value, GrammarRefusal> {
        self.spend(bytes(value))?;
        Ok(value.clone())
    }

    fn spend(&mut self, bytes: usize) -> Result<(), GrammarRefusal> {
        *self.bytes_left =
            self.bytes_left.checked_sub(VALUE_BYTES + bytes).ok_or_else(|| {
                GrammarRefusal::new(format!(
                    "json: with what they refer to, the parameters of all strict tools have more than {PARTS_BYTES_MAX} bytes"
                ))
            })?;
        Ok(())
    }
}

/// About the bytes of a value's text.
fn bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => VALUE_BYTES,
        Value::String(text) => VALUE_BYTES + text.len(),
        Value::Array(list) => VALUE_BYTES + list.iter().map(bytes).sum::<usize>(),
        Value::Object(members) => {
            VALUE_BYTES
                + members.iter().map(|(name, value)| name.len() + bytes(value)).sum::<usize>()
        }
    }
}
