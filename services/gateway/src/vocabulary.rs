//! The tokenizer's vocabulary as bytes: what each token id adds to an answer.
//!
//! Ids of control tokens are resolved from `tokenizer.json` by text at start-up; nothing here knows a number. Message
//! text never maps to a control token (the prompt encoder keeps them apart), and a control token in an answer is
//! recognised by its id, never by its spelling.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use deepseek_recipe_core::special_tokens::SpecialToken;
use shared::TokenId;
use tokenizers::{DecoderWrapper, Tokenizer};

/// Why a tokenizer cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyError {
    /// The file is missing or damaged.
    #[error("cannot read the tokenizer {path}: {detail}; check the model folder")]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the tokenizer library says.
        detail: String,
    },
    /// The tokenizer is not byte-level BPE, so the bytes of a token are not known.
    #[error("the tokenizer {path} has no byte-level decoder; only DeepSeek-V4.1 tokenizers work")]
    NotByteLevel {
        /// Which file.
        path: PathBuf,
    },
    /// A control token of the prompt format is missing.
    #[error("the tokenizer {path} lacks the control token {token}; it is not a DeepSeek-V4.1 one")]
    TokenMissing {
        /// Which file.
        path: PathBuf,
        /// The spelling looked for.
        token: &'static str,
    },
}

/// What a token adds to an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenText {
    /// Bytes of text, not necessarily whole characters.
    Bytes(Box<[u8]>),
    /// `</think>`.
    ThinkEnd,
    /// The sentinel in the tags of tool calls.
    Sentinel,
    /// A grounding mark: a control token that belongs to the answer and is shown by its spelling.
    Mark(Box<str>),
    /// Any other control token, or an id without an entry: never shown.
    Hidden,
}

/// Control tokens the prompt format cannot do without.
const REQUIRED: [SpecialToken; 9] = [
    SpecialToken::Bos,
    SpecialToken::Eos,
    SpecialToken::ThinkingStart,
    SpecialToken::ThinkingEnd,
    SpecialToken::System,
    SpecialToken::User,
    SpecialToken::Assistant,
    SpecialToken::LatestReminder,
    SpecialToken::Dsml,
];

/// Control tokens that are part of what the model says.
const SHOWN: [SpecialToken; 8] = [
    SpecialToken::Ref,
    SpecialToken::RefEnd,
    SpecialToken::Box,
    SpecialToken::BoxEnd,
    SpecialToken::Point,
    SpecialToken::PointEnd,
    SpecialToken::Polygon,
    SpecialToken::PolygonEnd,
];

/// Reads a tokenizer file and checks that it can be served.
///
/// # Errors
/// When the file cannot be read, is not byte-level, or lacks a control token of the prompt format.
pub(crate) fn read_tokenizer(path: &Path) -> Result<(Tokenizer, Vocabulary), VocabularyError> {
    let tokenizer = Tokenizer::from_file(path).map_err(|error| VocabularyError::Unreadable {
        path: path.to_path_buf(),
        detail: error.to_string(),
    })?;
    if !matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
        return Err(VocabularyError::NotByteLevel { path: path.to_path_buf() });
    }
    let vocabulary = Vocabulary::new(&tokenizer);
    for token in REQUIRED {
        if !vocabulary.control.contains_key(token.default_str()) {
            let token = token.default_str();
            return Err(VocabularyError::TokenMissing { path: path.to_path_buf(), token });
        }
    }
    Ok((tokenizer, vocabulary))
}

/// The bytes of every token and the ids of the control tokens. Immutable.
pub(crate) struct Vocabulary {
    texts: Vec<TokenText>,
    control: HashMap<String, TokenId>,
    spellings: HashMap<TokenId, Box<[u8]>>,
}

impl Vocabulary {
    fn new(tokenizer: &Tokenizer) -> Self {
        let byte_of = byte_of_char();
        let vocab = tokenizer.get_vocab(false);
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let rows = vocab.values().chain(added.keys()).map(|id| TokenId(*id).index() + 1).max();
        let mut texts = vec![TokenText::Hidden; rows.unwrap_or(0)];
        for (text, id) in &vocab {
            texts[TokenId(*id).index()] = TokenText::Bytes(token_bytes(text, &byte_of));
        }
        let mut control = HashMap::with_capacity(added.len());
        let mut spellings = HashMap::with_capacity(added.len());
        for (id, token) in added {
            control.insert(token.content.clone(), TokenId(*id));
            spellings.insert(TokenId(*id), token.content.as_bytes().into());
            texts[TokenId(*id).index()] = control_text(&token.content);
        }
        Self { texts, control, spellings }
    }

    /// What the token adds to an answer.
    pub(crate) fn text(&self, id: TokenId) -> &TokenText {
        self.texts.get(id.index()).unwrap_or(&TokenText::Hidden)
    }

    /// The bytes of a token, of a control token those of its spelling; none for an id without an entry.
    pub(crate) fn bytes(&self, id: TokenId) -> Option<&[u8]> {
        match self.text(id) {
            TokenText::Bytes(bytes) => Some(bytes),
            _ => self.spellings.get(&id).map(AsRef::as_ref),
        }
    }

    /// The id of a control token by its spelling.
    pub(crate) fn control(&self, spelling: &str) -> Option<TokenId> {
        self.control.get(spelling).copied()
    }

    /// The token that ends an answer.
    pub(crate) fn end_of_answer(&self) -> TokenId {
        self.control(SpecialToken::Eos.default_str()).expect("checked when the tokenizer was read")
    }
}

fn control_text(spelling: &str) -> TokenText {
    if spelling == SpecialToken::ThinkingEnd.default_str() {
        return TokenText::ThinkEnd;
    }
    if spelling == SpecialToken::Dsml.default_str() {
        return TokenText::Sentinel;
    }
    if SHOWN.iter().any(|token| token.default_str() == spelling) {
        return TokenText::Mark(spelling.into());
    }
    TokenText::Hidden
}

/// The bytes a vocabulary entry stands for. An entry with a character outside the byte alphabet stands for itself.
fn token_bytes(text: &str, byte_of: &HashMap<char, u8>) -> Box<[u8]> {
    let bytes: Option<Vec<u8>> = text.chars().map(|c| byte_of.get(&c).copied()).collect();
    bytes.unwrap_or_else(|| text.as_bytes().to_vec()).into_boxed_slice()
}

/// The alphabet of byte-level BPE, by byte: printable Latin-1 bytes stand for themselves, the others for U+0100 onwards in
/// ascending order. Source: the GPT-2 encoder, which byte-level tokenizers share.
pub(crate) fn alphabet() -> [char; 256] {
    let mut next = 0x100;
    let mut alphabet = ['\0'; 256];
    for byte in 0..=u8::MAX {
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let code = if printable { u32::from(byte) } else { next };
        next += u32::from(!printable);
        alphabet[usize::from(byte)] = char::from_u32(code).expect("below the surrogates");
    }
    alphabet
}

fn byte_of_char() -> HashMap<char, u8> {
    alphabet().into_iter().zip(0..=u8::MAX).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;

    use shared::TokenId;
    use tokenizers::Tokenizer;

    use super::{TokenText, Vocabulary, VocabularyError, read_tokenizer};

    pub(crate) fn seedling() -> (Tokenizer, Vocabulary) {
        read_tokenizer(&seedling_path()).unwrap()
    }

    pub(crate) fn seedling_path() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../../deploy/models/seedling/tokenizer.json")
    }

    #[test]
    fn joined_token_bytes_are_the_text() {
        let (tokenizer, vocabulary) = seedling();
        for text in
            ["", "Hello, world!", " 12 345\n\n\t", "杭州 天气", "🤭👩‍👩‍👧 é ü ß", "\u{0}\u{7f}\u{ad}"]
        {
            let encoding = tokenizer.encode(text, false).unwrap();
            let mut bytes = Vec::new();
            for id in encoding.get_ids() {
                let TokenText::Bytes(part) = vocabulary.text(TokenId(*id)) else { panic!("{id}") };
                bytes.extend_from_slice(part);
            }
            assert_eq!(String::from_utf8(bytes).unwrap(), text);
        }
    }

    #[test]
    fn control_tokens_are_classified_by_id() {
        let (_, vocabulary) = seedling();
        let text = |spelling: &str| vocabulary.text(vocabulary.control(spelling).unwrap()).clone();
        assert_eq!(text("</think>"), TokenText::ThinkEnd);
        assert_eq!(text("<｜box｜>"), TokenText::Mark("<｜box｜>".into()));
        assert_eq!(text("｜DSML｜"), TokenText::Sentinel);
        for spelling in ["<think>", "<｜User｜>", "<｜end▁of▁sentence｜>", "<dsml:"] {
            assert_eq!(text(spelling), TokenText::Hidden, "{spelling}");
        }
        assert_eq!(vocabulary.text(TokenId(9_999_999)), &TokenText::Hidden);
        assert_eq!(vocabulary.end_of_answer(), TokenId(1));
    }

    #[test]
    fn a_file_that_is_no_tokenizer_is_named() {
        let path = seedling_path().with_file_name("config.json");
        let Err(error) = read_tokenizer(&path) else { panic!("a configuration is no tokenizer") };
        assert!(matches!(error, VocabularyError::Unreadable { .. }));
        assert!(error.to_string().contains("config.json"));
    }
}
