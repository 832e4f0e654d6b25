//! Mooncake's format (FAST 2025): one JSON object a line, one id for each 512 tokens of the prompt.

use serde::Deserialize;
use shared::Timestamp;

use super::{Chain, Request, lengths};
use crate::settings::wide;

/// Tokens of an id.
const ID_TOKENS: u32 = 512;
/// Blocks of an id.
const BLOCKS_PER_ID: u32 = 4;

#[derive(Deserialize)]
struct Line {
    timestamp: u64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

/// The request of a line.
pub(super) fn request(text: &str) -> Result<Option<Request>, String> {
    let line: Line = serde_json::from_str(text)
        .map_err(|error| format!("no request in Mooncake's format ({error}); see --format"))?;
    let (prompt_tokens, answer_tokens) = lengths(line.input_length, line.output_length)?;
    let expected = u64::from(prompt_tokens.div_ceil(ID_TOKENS));
    let found = wide(line.hash_ids.len());
    if found != expected {
        return Err(format!(
            "{found} hash_ids for {prompt_tokens} tokens, expected {expected}, one for each 512"
        ));
    }
    let at = Timestamp(line.timestamp.saturating_mul(1_000_000));
    let chain = Chain::Ids { ids: line.hash_ids.into(), blocks_per_id: BLOCKS_PER_ID };
    Ok(Some(Request { at, prompt_tokens, answer_tokens, chain }))
}
