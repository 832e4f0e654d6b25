//! Pieces of Lark text. Everything that comes from a client is written as numbers of characters or as JSON, so that
//! nothing of it can be read as Lark.

use std::fmt::Write;

use serde_json::Value;

/// A terminal of exactly this text, to stand in a rule. The text is not empty.
pub(super) fn exactly(text: &str) -> String {
    format!("/{}/", characters(text))
}

/// The text as a part of a regular expression between slashes.
pub(super) fn characters(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    for sign in text.chars() {
        if sign.is_ascii_alphanumeric() {
            written.push(sign);
        } else {
            write!(written, "\\x{{{:X}}}", u32::from(sign)).expect("a string takes everything");
        }
    }
    written
}

/// A value of a schema, to stand in a rule. The engine's own options are no client's to set, so they are left out.
pub(super) fn json(schema: &Value) -> String {
    let mut schema = schema.clone();
    if let Some(map) = schema.as_object_mut() {
        map.remove("x-guidance");
    }
    format!("%json {schema}")
}
