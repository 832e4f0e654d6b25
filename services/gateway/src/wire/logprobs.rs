//! Log probabilities in the shapes of the protocols.
//!
//! A token that is no whole text, because a character takes several, is shown by escapes of its bytes; the list of bytes is
//! exact in any case, and those of all tokens joined are the bytes of the text.

use std::iter::once;

use serde_json::{Value, json};
use shared::TokenId;

use crate::output::Scored;
use crate::vocabulary::Vocabulary;

/// As chat completions and responses have them.
pub(super) fn tokens(scored: &[Scored], vocabulary: &Vocabulary) -> Vec<Value> {
    scored
        .iter()
        .map(|token| {
            let mut value = entry(token.id, token.scores.logprob, vocabulary);
            let top = token.scores.top.iter().map(|(id, logprob)| entry(*id, *logprob, vocabulary));
            value["top_logprobs"] = top.collect::<Vec<_>>().into();
            value
        })
        .collect()
}

/// As legacy completions have them. `offset` is the length of the text before, in characters; it grows with the tokens.
pub(super) fn legacy(scored: &[Scored], vocabulary: &Vocabulary, offset: &mut usize) -> Value {
    let mut offsets = Vec::with_capacity(scored.len());
    for token in scored {
        offsets.push(*offset);
        let bytes = vocabulary.bytes(token.id).unwrap_or_default();
        // A character counts with its first byte.
        *offset += bytes.iter().filter(|byte| (**byte & 0xc0) != 0x80).count();
    }
    let texts: Vec<String> = scored.iter().map(|token| text(token.id, vocabulary)).collect();
    let logprobs: Vec<f32> = scored.iter().map(|token| finite(token.scores.logprob)).collect();
    let top = scored.iter().map(|token| {
        // The token that was drawn is always among them: OpenAI's API, also where no others are asked for.
        let drawn = once((token.id, token.scores.logprob));
        let pairs = token.scores.top.iter().copied().chain(drawn);
        let pairs = pairs.map(|(id, logprob)| (text(id, vocabulary), json!(finite(logprob))));
        Value::Object(pairs.collect())
    });
    json!({
        "tokens": texts,
        "token_logprobs": logprobs,
        "top_logprobs": top.collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

fn entry(id: TokenId, logprob: f32, vocabulary: &Vocabulary) -> Value {
    let bytes = vocabulary.bytes(id).unwrap_or_default();
    json!({"token": text(id, vocabulary), "logprob": finite(logprob), "bytes": bytes})
}

/// JSON has no infinities; what is impossible is as improbable as OpenAI says it.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9_999.0)
}

fn text(id: TokenId, vocabulary: &Vocabulary) -> String {
    let bytes = vocabulary.bytes(id).unwrap_or_default();
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}
