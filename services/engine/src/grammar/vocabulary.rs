//! The bytes of every token, as the masks need them, read from `tokenizer.json`.
//!
//! Every added token is a control token here, whatever its `special` flag says: it has no bytes that a grammar of text
//! could match. Tokens of the base vocabulary are spelled in the byte-level alphabet of GPT-2, in which each byte is a
//! printable character. Source: specs/recipe-and-apis.md §1.4, §4.5.

use std::collections::HashMap;
use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use serde::Deserialize;
use shared::TokenId;

/// Why a tokenizer file is of no use for grammars.
#[derive(Debug, thiserror::Error)]
pub enum GrammarVocabularyError {
    /// It is not JSON of the expected shape.
    #[error("tokenizer.json cannot be read for grammars: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// It has an id outside of the model's vocabulary.
    #[error(
        "tokenizer.json has token {id}, the model has {vocabulary} tokens; use the model's own file"
    )]
    Foreign {
        /// The id.
        id: usize,
        /// Tokens of the model.
        vocabulary: usize,
    },
}

/// The prefix tree of a vocabulary. Cheap to clone; about 10 MB for 129,280 tokens.
#[derive(Clone)]
pub struct GrammarVocabulary {
    pub(super) environment: TokEnv,
    tokens: usize,
}

#[derive(Deserialize)]
struct TokenizerFile {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct Model {
    vocab: HashMap<String, usize>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: usize,
    content: String,
}

impl GrammarVocabulary {
    /// Reads the vocabulary of a model with ids below `tokens` whose answers end with `end`. Computes for a second with
    /// a large one.
    ///
    /// # Errors
    /// When the file is malformed or belongs to another model.
    ///
    /// # Panics
    /// When `end` is not below `tokens`, or `tokens` does not fit 32 bits.
    pub fn read(
        tokenizer_json: &[u8],
        tokens: usize,
        end: TokenId,
    ) -> Result<Self, GrammarVocabularyError> {
        assert!(end.index() < tokens, "the end of an answer is a token");
        let file: TokenizerFile = serde_json::from_slice(tokenizer_json)?;
        let alphabet = byte_alphabet();
        let mut words = vec![Vec::new(); tokens];
        let vocabulary = tokens;
        for (text, id) in &file.model.vocab {
            let word = words
                .get_mut(*id)
                .ok_or(GrammarVocabularyError::Foreign { id: *id, vocabulary })?;
            // A token with other characters has no bytes that a text could ask for.
            let bytes: Option<Vec<u8>> =
                text.chars().map(|sign| alphabet.get(&sign).copied()).collect();
            *word = bytes.unwrap_or_default();
        }
        for AddedToken { id, content } in &file.added_tokens {
            let word = words
                .get_mut(*id)
                .ok_or(GrammarVocabularyError::Foreign { id: *id, vocabulary })?;
            *word = [&[TokTrie::SPECIAL_TOKEN_MARKER], content.as_bytes()].concat();
        }
        let size = u32::try_from(tokens).expect("ids of tokens have 32 bits");
        let trie = TokTrie::from(&TokRxInfo::new(size, end.0), &words);
        // Never canonical: nothing is forced, and the tree's own greedy tokenisation is not used for anything.
        Ok(Self { environment: Arc::new(ApproximateTokEnv::new(trie)), tokens })
    }

    /// Tokens of the vocabulary.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The token that ends an answer.
    #[must_use]
    pub fn end(&self) -> TokenId {
        TokenId(self.environment.tok_trie().eos_token())
    }

    /// A text in tokens, the longest one each time. Not the model's own way to write it, but one of those that masks allow.
    #[must_use]
    pub fn longest_tokens(&self, text: &str) -> Vec<TokenId> {
        let trie = self.environment.tok_trie();
        trie.greedy_tokenize(text.as_bytes()).into_iter().map(TokenId).collect()
    }

    /// The bytes of a token of text; none for control tokens and ids without a text.
    #[must_use]
    pub fn bytes(&self, token: TokenId) -> Option<&[u8]> {
        if self.tokens <= token.index() {
            return None;
        }
        let bytes = self.environment.tok_trie().token(token.0);
        let text = !bytes.is_empty() && bytes[0] != TokTrie::SPECIAL_TOKEN_MARKER;
        text.then_some(bytes)
    }
}

/// The byte of each character of the alphabet: printable Latin-1 stands for itself, the rest for U+0100 and up in order.
fn byte_alphabet() -> HashMap<char, u8> {
    let mut next = 0x100_u32;
    (0..=u8::MAX)
        .map(|byte| {
            let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
            if printable {
                return (char::from(byte), byte);
            }
            let sign = char::from_u32(next).expect("below U+0200 every number is a character");
            next += 1;
            (sign, byte)
        })
        .collect()
}
