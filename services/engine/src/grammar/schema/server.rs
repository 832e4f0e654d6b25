//! Grammars of this server: Lark, and the schemas that it speaks of, which are the clients' ([`shared::Grammar::Server`]).
//!
//! Every schema goes the way of those that a whole answer follows, so that a strict tool is held to as much, and what
//! would not be held to is refused by the same words.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::Value;
use shared::GRAMMAR_BYTES_MAX;

use super::prepared;
use crate::grammar::compile::GrammarRefusal;
use part::part_of;

mod part;

/// Bytes of all parts of schemas, each with what it refers to. What many parts refer to is there as many times.
const PARTS_BYTES_MAX: usize = 4 * GRAMMAR_BYTES_MAX;
/// Characters by which a refusal tells where it found something.
const PLACE_CHARS_MAX: usize = 100;

/// Reads a grammar.
///
/// # Errors
/// When a schema says what would not be held to, refers to what is not there, or all parts together are too large.
pub(in crate::grammar) fn read(text: &str) -> Result<TopLevelGrammar, GrammarRefusal> {
    let Some((head, lark)) = text.split_once('\n').filter(|_| text.starts_with('{')) else {
        return Ok(TopLevelGrammar::from_lark(text.to_owned()));
    };
    let head: Value = serde_json::from_str(head)
        .map_err(|error| GrammarRefusal::new(format!("tools: a schema is not JSON: {error}")))?;
    let malformed = || GrammarRefusal::new("tools: the schemas of the grammar are malformed");
    let mut top = TopLevelGrammar::from_lark(lark.to_owned());
    let mut bytes_left = PARTS_BYTES_MAX;
    for (number, part) in head["parts"].as_array().ok_or_else(malformed)?.iter().enumerate() {
        let index = part[0].as_u64().and_then(|index| usize::try_from(index).ok());
        let pair = index.and_then(|index| head["schemas"].get(index)).ok_or_else(malformed)?;
        let (Some(name), Some(pointer)) = (pair[0].as_str(), part[1].as_str()) else {
            return Err(malformed());
        };
        let prepared = part_of(&pair[1], pointer, &mut bytes_left).and_then(prepared);
        let prepared = prepared.map_err(|refusal| {
            let place: String = name.chars().chain(pointer.chars()).take(PLACE_CHARS_MAX).collect();
            GrammarRefusal::new(format!("{place}: {refusal}"))
        })?;
        top.grammars.push(GrammarWithLexer {
            name: Some(format!("part{number}")),
            json_schema: Some(prepared),
            lark_grammar: None,
        });
    }
    Ok(top)
}
