//! Grammars over a vocabulary of bytes.

use std::sync::{Arc, LazyLock};

use engine::{GrammarCompiler, GrammarLimits, GrammarVocabulary, Guide, GuideError};
use shared::{Constraint, Grammar, TokenId};

/// Tokens: the 256 bytes and the end.
const TOKENS: usize = 257;
const END: TokenId = TokenId(256);
/// Tokens of an answer that are followed.
const STEPS: u32 = 24;

static COMPILER: LazyLock<GrammarCompiler> = LazyLock::new(|| {
    let mut next = 0x100_u32;
    let mut vocab = Vec::new();
    for byte in 0..=u8::MAX {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let sign = if printable { u32::from(byte) } else { next };
        next += u32::from(!printable);
        vocab.push(format!("\"\\u{sign:04x}\": {byte}"));
    }
    let file = format!(
        "{{\"model\": {{\"vocab\": {{{}}}}}, \"added_tokens\": [{{\"id\": {}, \"content\": \"<end>\"}}]}}",
        vocab.join(", "),
        END.0
    );
    let vocabulary = GrammarVocabulary::read(file.as_bytes(), TOKENS, END);
    GrammarCompiler::new(&vocabulary.expect("the file is well-formed"), GrammarLimits::STANDARD)
});

/// Compiles a grammar and follows an answer to it, taking now the first and now the last token that is possible.
///
/// # Panics
/// When a mask is empty or allows what cannot be taken.
pub fn follow(grammar: Grammar) {
    let Ok(compiled) = COMPILER.compile(&grammar) else { return };
    let constraint = Arc::new(Constraint { grammar, trigger: Vec::new(), bound: None, barred: None });
    let mut guide = Guide::new(constraint, &Arc::new(compiled), TOKENS, END);
    for step in 0..STEPS {
        if guide.refresh().is_err() {
            return;
        }
        let mut possible = (0..=END.0).map(TokenId).filter(|token| guide.mask().allows(*token));
        let token = if step % 2 == 0 { possible.next() } else { possible.next_back() };
        let token = token.expect("a mask is never empty");
        match guide.advance(token) {
            Ok(()) => {}
            // A limit; the answer would end here.
            Err(GuideError::TooComplex { .. }) => return,
            Err(error) => panic!("a mask allows what can be taken: {error}"),
        }
        if token == END {
            return;
        }
    }
}
