//! The token map: tokens whose texts differ in case, accents, compatibility forms or white space only share an id.
//!
//! Source: specs/v41-architecture.md §9.1. New ids are given in the order in which keys are first seen.

use std::collections::HashMap;

use shared::TokenId;
use tokenizers::normalizers::{Lowercase, NFD, NFKC, StripAccents};
use tokenizers::{NormalizedString, Normalizer, Tokenizer};

use super::EngramError;

/// Keeps a lone space through the trimming: a private-use character no normaliser touches.
const LONE_SPACE: char = '\u{e000}';

/// Compressed ids by token id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMap {
    ids: Vec<u32>,
    compressed: usize,
}

impl TokenMap {
    /// Builds the map for ids below `vocab`. Ids the tokenizer does not have (the embedding may be padded to a round
    /// number of rows) read as `pad`: no text contains them.
    ///
    /// # Errors
    /// When the tokenizer cannot be read, has more than `vocab` tokens, or lacks `pad`.
    pub fn build(tokenizer_json: &[u8], vocab: usize, pad: TokenId) -> Result<Self, EngramError> {
        let tokenizer = Tokenizer::from_bytes(tokenizer_json).map_err(unusable)?;
        let tokens = tokenizer.get_vocab_size(true);
        if vocab < tokens {
            return Err(EngramError::Vocabulary { expected: vocab, found: tokens });
        }
        let mut ids = Vec::with_capacity(vocab);
        let mut seen = HashMap::with_capacity(tokens);
        for id in 0..u32::try_from(tokens).map_err(unusable)? {
            let fresh = u32::try_from(seen.len()).expect("fewer keys than tokens");
            ids.push(*seen.entry(key(&tokenizer, id)?).or_insert(fresh));
        }
        let Some(pad) = ids.get(pad.index()).copied() else {
            return Err(unusable(format!("it has no token {pad}, the Engram pad")));
        };
        ids.resize(vocab, pad);
        Ok(Self { ids, compressed: seen.len() })
    }

    /// The compressed id of a token.
    ///
    /// # Panics
    /// When the id is outside the vocabulary the map was built for.
    #[must_use]
    pub fn id(&self, token: TokenId) -> u32 {
        self.ids[token.index()]
    }

    /// All compressed ids, by token id.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// How many compressed ids there are.
    #[must_use]
    pub fn compressed(&self) -> usize {
        self.compressed
    }
}

fn unusable(reason: impl ToString) -> EngramError {
    EngramError::Tokenizer { message: reason.to_string() }
}

/// What a token is recognised by.
fn key(tokenizer: &Tokenizer, id: u32) -> Result<String, EngramError> {
    let text = tokenizer.decode(&[id], false).map_err(unusable)?;
    if text.contains(char::REPLACEMENT_CHARACTER) {
        // A part of a character has no text; its vocabulary string tells it apart.
        return Ok(tokenizer.id_to_token(id).unwrap_or(text));
    }
    let plain = plain(&text)?;
    Ok(if plain.is_empty() { text } else { plain })
}

fn plain(text: &str) -> Result<String, EngramError> {
    let mut normalized = NormalizedString::from(text);
    NFKC.normalize(&mut normalized).map_err(unusable)?;
    NFD.normalize(&mut normalized).map_err(unusable)?;
    StripAccents.normalize(&mut normalized).map_err(unusable)?;
    Lowercase.normalize(&mut normalized).map_err(unusable)?;
    let folded = fold_spaces(normalized.get());
    if folded == " " {
        return Ok(folded);
    }
    // A sentinel of the text's own becomes a space, as in the original.
    Ok(folded.trim().replace(LONE_SPACE, " "))
}

/// Replaces each run of spaces, tabs, carriage returns and line feeds by one space.
fn fold_spaces(text: &str) -> String {
    let mut folded = String::with_capacity(text.len());
    let mut in_run = false;
    for sign in text.chars() {
        let is_space = matches!(sign, ' ' | '\t' | '\r' | '\n');
        if !is_space {
            folded.push(sign);
        } else if !in_run {
            folded.push(' ');
        }
        in_run = is_space;
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn texts_that_look_alike_share_a_key() {
        let cases = [
            ("Café", "cafe"),
            (" \t\n", " "),
            (" ", " "),
            ("\u{a0}", " "),
            ("  The  END\r\n", "the end"),
            ("ﬁ", "fi"),
            ("Ａ", "a"),
            ("", ""),
            ("\u{301}", ""),
            ("x\u{e000}", "x "),
        ];
        for (text, expected) in cases {
            assert_eq!(plain(text).unwrap(), expected, "{text:?}");
        }
    }
}
