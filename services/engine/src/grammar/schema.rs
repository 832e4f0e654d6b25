//! The JSON schemas of clients, as llguidance takes them.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::compile::GrammarRefusal;

/// White space between two parts of a value: room for a line and its indentation. Without a bound a model that has nothing to
/// say writes spaces until its answer is as long as it may be, and all of it follows the schema.
const WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,64}";

/// Reads a schema.
///
/// # Errors
/// When the text is no JSON, or sets options of the engine.
pub(super) fn read(text: &str) -> Result<TopLevelGrammar, GrammarRefusal> {
    let mut schema: Value = serde_json::from_str(text)
        .map_err(|error| GrammarRefusal::new(format!("json: the schema is not JSON: {error}")))?;
    if schema.get("x-guidance").is_some() {
        // The engine's own options are no client's to set.
        return Err(GrammarRefusal::new("json: the keyword x-guidance is not supported"));
    }
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    if let Value::Object(members) = &mut schema {
        members.insert("x-guidance".to_owned(), json!({"whitespace_pattern": WHITESPACE}));
    }
    Ok(TopLevelGrammar::from_json_schema(schema))
}
