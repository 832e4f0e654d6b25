//! Engram addresses: from token ids to rows of the lookup tables.
//!
//! Three steps, all determined by `config.json` and `tokenizer.json`: a token map that merges tokens which differ in
//! case, accents or white space only ([`TokenMap`]); one multiplier per n-gram position and one prime per order and
//! head ([`HashTables`]); the multiplicative-xor hash of the last tokens ([`EngramHasher`]).
//! Source: specs/v41-architecture.md §9. What lies in the rows is read through `EngramRows` elsewhere.
//!
//! Invariants: an address depends on the last `ngram_max` tokens of a sequence alone, never on chunks or batches;
//! every address is below the height of its table.

mod random;
mod tables;
mod token_map;

use shared::TokenId;

pub use tables::HashTables;
pub use token_map::TokenMap;

use crate::config::ModelConfig;

/// Positions an n-gram may span. The configuration is refused above it.
const NGRAM_MAX: usize = 8;

/// One position of a sequence as Engram sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngramToken {
    /// A token of text.
    Text(TokenId),
    /// A position inside an image span: it, and everything before it, reads as the pad token.
    Dead,
}

/// Why the addresses cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum EngramError {
    /// The configuration has no Engram section.
    #[error(
        "config.json: text_config.engram_layer_ids is missing or empty, expected Engram layers"
    )]
    NoTables,
    /// The tokenizer cannot be read.
    #[error("tokenizer.json cannot be used: {message}")]
    Tokenizer {
        /// What the tokenizer library said.
        message: String,
    },
    /// The tokenizer has more tokens than the model has rows.
    #[error("tokenizer.json has {found} tokens, expected at most vocab_size {expected}")]
    Vocabulary {
        /// Rows of the embedding.
        expected: usize,
        /// Tokens.
        found: usize,
    },
    /// Tokenizer and configuration do not belong together.
    #[error(
        "tokenizer.json yields {found} compressed ids, expected engram_compressed_vocab_size {expected}"
    )]
    CompressedVocabulary {
        /// The configuration's number.
        expected: usize,
        /// What the map has.
        found: usize,
    },
}

/// Computes row addresses. Immutable; shared by all threads.
#[derive(Clone, Debug)]
pub struct EngramHasher {
    map: TokenMap,
    pad: u64,
    tables: Vec<HashTables>,
    ngram_max: usize,
}

impl EngramHasher {
    /// Builds the token map from the bytes of `tokenizer.json` and the tables from the configuration. Takes about a
    /// second for a vocabulary of 129,280.
    ///
    /// # Errors
    /// When the model has no Engram, the tokenizer cannot be read, or it does not fit the configuration.
    pub fn build(config: &ModelConfig, tokenizer_json: &[u8]) -> Result<Self, EngramError> {
        let engram = config.engram.as_ref().ok_or(EngramError::NoTables)?;
        let map = TokenMap::build(tokenizer_json, config.vocab, engram.pad)?;
        if map.compressed() != engram.compressed_vocab {
            return Err(EngramError::CompressedVocabulary {
                expected: engram.compressed_vocab,
                found: map.compressed(),
            });
        }
        let pad = u64::from(map.id(engram.pad));
        Ok(Self { pad, map, tables: HashTables::build(engram), ngram_max: engram.ngram_max })
    }

    /// Rows one token looks up in one table; the length `rows` expects of its output.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.tables[0].columns()
    }

    /// Positions that determine an address: more history than this is not looked at.
    #[must_use]
    pub fn ngram_max(&self) -> usize {
        self.ngram_max
    }

    /// The token map.
    #[must_use]
    pub fn map(&self) -> &TokenMap {
        &self.map
    }

    /// The tables, in the order of `EngramConfig::layers`.
    #[must_use]
    pub fn tables(&self) -> &[HashTables] {
        &self.tables
    }

    /// The addresses of one token in table `slot` (an index into `EngramConfig::layers`).
    ///
    /// `history` ends with the token itself and goes back to the start of the sequence or at least `ngram_max`
    /// positions. `rows` receives the 2-gram heads, then the 3-gram heads, and so on. Does not allocate.
    ///
    /// # Panics
    /// When `history` is empty, a token is outside the vocabulary, or `rows` does not hold one value per column.
    pub fn rows(&self, slot: usize, history: &[EngramToken], rows: &mut [u64]) {
        assert!(!history.is_empty(), "the history ends with the token itself");
        let mut compressed = [self.pad; NGRAM_MAX];
        for (place, token) in compressed[..self.ngram_max].iter_mut().zip(history.iter().rev()) {
            let EngramToken::Text(id) = token else { break };
            *place = u64::from(self.map.id(*id));
        }
        self.tables[slot].rows_of(&compressed[..self.ngram_max], rows);
    }
}

#[cfg(test)]
mod tests;
