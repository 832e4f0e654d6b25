//! Masks are the same whether the vocabulary has slices or not.

use std::path::PathBuf;
use std::sync::Arc;

use shared::{Constraint, Grammar, TokenId};

use super::Draws;
use crate::grammar::{GrammarCompiler, GrammarLimits, GrammarVocabulary, Guide};

/// Of the built-in tokenizer.
const END: TokenId = TokenId(1);
const TOKENS: u32 = 4_096;
/// Answers of each grammar, and the most tokens of one.
const ANSWERS: u64 = 6;
const LENGTH_MAX: usize = 40;

fn grammars() -> Vec<Grammar> {
    let regex = |text: &str| Grammar::Regex(text.to_owned());
    let ebnf = |text: &str| Grammar::Ebnf(text.to_owned());
    vec![
        Grammar::Json(
            r#"{"type": "object", "additionalProperties": {"type": "string"}}"#.to_owned(),
        ),
        regex("'[^']*'( or '[^']*')*"),
        regex("[^,]{1,50}(,[^,]{0,9})*"),
        regex(r"([^\n]+\n)+"),
        regex("([A-Z][a-z]+ ){1,9}[a-z~]+"),
        regex(r#"[^"',\\~]+~?"#),
        ebnf("root ::= row (\"\\n\" row)*\nrow ::= cell (\",\" cell)*\ncell ::= [^,\\n]*"),
        ebnf("root ::= name \" = \" text\nname ::= [a-z]+\ntext ::= \"'\" ([^'] | \"''\")* \"'\""),
        ebnf("root ::= (word \" \")* word\nword ::= \"if\" | \"else\" | [a-z]+"),
        // By characters: names that touch each other.
        ebnf("root ::= name root? | \"(\" root \")\"\nname ::= [a-z]+ [0-9]*"),
    ]
}

fn guide(compiler: &GrammarCompiler, grammar: &Grammar) -> Guide {
    let compiled = compiler.compile(grammar).unwrap();
    let constraint =
        Constraint { grammar: grammar.clone(), trigger: Vec::new(), bound: None, barred: None };
    let tokens = usize::try_from(TOKENS).unwrap();
    let mut guide = Guide::new(Arc::new(constraint), &Arc::new(compiled), tokens, END);
    guide.refresh().unwrap();
    guide
}

fn allowed(guide: &Guide) -> Vec<TokenId> {
    (0..TOKENS).map(TokenId).filter(|token| guide.mask().allows(*token)).collect()
}

#[test]
fn masks_are_those_of_a_vocabulary_without_slices() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/models/seedling/tokenizer.json");
    let file = std::fs::read(path).unwrap();
    let vocabulary = GrammarVocabulary::read(&file, usize::try_from(TOKENS).unwrap(), END).unwrap();
    let sliced = GrammarCompiler::new(&vocabulary, GrammarLimits::STANDARD);
    let plain = GrammarCompiler::with_slices(&vocabulary, GrammarLimits::STANDARD, &[]);
    let (mut masks, mut wide) = (0, 0);
    for (number, grammar) in grammars().iter().enumerate() {
        for answer in 0..ANSWERS {
            let mut draws = Draws(answer << 32 | u64::try_from(number).unwrap());
            let (mut one, mut other) = (guide(&sliced, grammar), guide(&plain, grammar));
            for _ in 0..LENGTH_MAX {
                let possible = allowed(&one);
                assert_eq!(possible, allowed(&other), "{grammar:?}");
                masks += 1;
                wide += usize::from(1_000 < possible.len());
                let count = u64::try_from(possible.len()).unwrap();
                let token = possible[usize::try_from(draws.below(count)).unwrap()];
                if token == END {
                    break;
                }
                for guide in [&mut one, &mut other] {
                    guide.advance(token).unwrap();
                    guide.refresh().unwrap();
                }
            }
        }
    }
    // Otherwise no slice was allowed as a whole.
    assert!(1_000 < masks && 300 < wide, "{masks} masks, {wide} wide ones");
}
