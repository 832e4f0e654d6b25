//! Bytes to tokens of the built-in model: usual ones, single bytes, control tokens, and ids that are no tokens at all.

use std::path::Path;

use shared::TokenId;
use tokenizers::Tokenizer;

/// The two bytes behind it are an id.
const ID: u8 = 0xff;
/// From here on tokens are single bytes, or no longer.
const SINGLE: u8 = 0xfd;
/// An id that no vocabulary has.
const BEYOND: u8 = 0xfc;

/// The tokenizer. Bytes that no text has are its commands: [`ID`], [`SINGLE`], [`BEYOND`], and 0xfe, across
/// which no token reaches.
pub(crate) struct Words {
    tokenizer: Tokenizer,
    bytes: Vec<TokenId>,
    /// Spellings and ids of control tokens.
    control: Vec<(Vec<u8>, TokenId)>,
}

impl Words {
    /// # Panics
    /// When the tokenizer cannot be read or lacks a byte.
    pub(crate) fn new(tokenizer: &Path) -> Self {
        let tokenizer = Tokenizer::from_file(tokenizer).expect("the tokenizer is readable");
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let control =
            added.iter().map(|(id, token)| (token.content.clone().into_bytes(), TokenId(*id)));
        let control = control.filter(|(text, _)| !text.is_empty()).collect();
        // Byte-level vocabularies spell printable bytes by themselves and the others by the characters from U+0100 on.
        let mut next = 0x100_u32;
        let mut sign = |byte: u8| {
            let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..);
            next += u32::from(!printable);
            char::from_u32(if printable { u32::from(byte) } else { next - 1 })
        };
        let token = |byte| tokenizer.token_to_id(&sign(byte)?.to_string()).map(TokenId);
        let bytes: Option<Vec<TokenId>> = (0..=u8::MAX).map(token).collect();
        let bytes = bytes.expect("a vocabulary of bytes has them all");
        Self { tokenizer, bytes, control }
    }

    /// The tokens that an input spells.
    pub(crate) fn tokens(&self, input: &[u8]) -> Vec<TokenId> {
        let mut tokens = Vec::new();
        let mut run = Vec::new();
        let mut single = false;
        let mut rest = input;
        while let Some((byte, behind)) = rest.split_first() {
            rest = behind;
            if *byte < BEYOND {
                run.push(*byte);
                continue;
            }
            self.push(&std::mem::take(&mut run), single, &mut tokens);
            match (*byte, rest) {
                (ID, [high, low, behind @ ..]) => {
                    tokens.push(TokenId(u16::from_be_bytes([*high, *low]).into()));
                    rest = behind;
                }
                (SINGLE, _) => single = !single,
                (BEYOND, _) => tokens.push(TokenId(u32::MAX)),
                // A cut, or half an id at the end.
                _ => {}
            }
        }
        self.push(&run, single, &mut tokens);
        tokens
    }

    /// Text as it is usually cut; what is no text byte by byte.
    fn push(&self, run: &[u8], single: bool, tokens: &mut Vec<TokenId>) {
        let text = std::str::from_utf8(run).ok().filter(|_| !single);
        if let Some(encoding) = text.and_then(|text| self.tokenizer.encode_fast(text, false).ok()) {
            tokens.extend(encoding.get_ids().iter().copied().map(TokenId));
            return;
        }
        let mut rest = run;
        while let Some((byte, behind)) = rest.split_first() {
            match self.control.iter().find(|(text, _)| rest.starts_with(text)) {
                Some((text, id)) => {
                    tokens.push(*id);
                    rest = &rest[text.len()..];
                }
                None => {
                    tokens.push(self.bytes[usize::from(*byte)]);
                    rest = behind;
                }
            }
        }
    }
}
