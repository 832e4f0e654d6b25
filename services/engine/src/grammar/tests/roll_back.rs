//! A guide that took tokens back is the guide that never saw them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use shared::{Constraint, Grammar, TokenId};

use super::Draws;
use crate::grammar::{
    Compiled, GrammarCompiler, GrammarLimits, GrammarVocabulary, Guide, GuideError,
};

/// Of the built-in tokenizer.
const END: TokenId = TokenId(1);
const SENTINEL: TokenId = TokenId(4_063);
const TOKENS: usize = 4_096;

/// What the engine takes back at most, two verify steps.
const BACK_MAX: u64 = 12;

struct Bench {
    constraint: Arc<Constraint>,
    compiled: Arc<Compiled>,
}

impl Bench {
    /// The guide behind these tokens, with its mask.
    fn behind(&self, tokens: &[TokenId]) -> Guide {
        let mut guide = Guide::new(Arc::clone(&self.constraint), &self.compiled, TOKENS, END);
        for token in tokens {
            guide.advance(*token).unwrap();
        }
        guide.refresh().unwrap();
        guide
    }
}

fn compiler() -> GrammarCompiler {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/models/seedling/tokenizer.json");
    let vocabulary = GrammarVocabulary::read(&std::fs::read(path).unwrap(), TOKENS, END).unwrap();
    GrammarCompiler::new(&vocabulary, GrammarLimits::STANDARD)
}

/// A token that is possible, the end more often than others, so that walks end.
fn drawn(guide: &Guide, draws: &mut Draws) -> TokenId {
    if guide.mask().allows(END) && draws.below(4) == 0 {
        return END;
    }
    let ids = (0..u32::try_from(TOKENS).unwrap()).map(TokenId);
    let possible: Vec<TokenId> = ids.filter(|token| guide.mask().allows(*token)).collect();
    possible[usize::try_from(draws.below(u64::try_from(possible.len()).unwrap())).unwrap()]
}

#[test]
fn taken_back_is_as_never_taken() {
    let compiler = compiler();
    let object = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 9},
        "ages": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}},
        "required": ["name"], "additionalProperties": false}"#;
    let calls = format!(
        "%llguidance {{\"no_forcing\": true}}\nstart: /(.|\\n)*</ <[{0}]> \" calls>\" (\"a\" | <[{0}]>)+ | /(.|\\n)*/",
        SENTINEL.0
    );
    let (mut taken_back, mut ends) = (0, 0);
    for grammar in [
        Grammar::Json(object.to_owned()),
        Grammar::Regex("(the|a) [a-z]{2,8}( and [a-z]{1,5})*\\.".to_owned()),
        Grammar::Ebnf(
            "root ::= word (\", \" word)* \"!\"\nword ::= [a-z]+ | \"(\" root \")\"".to_owned(),
        ),
        // By characters: what follows a word may go on with it.
        Grammar::Ebnf("root ::= item+\nitem ::= \"x\" [a-z]* | \"xy\" root \"z\"".to_owned()),
        Grammar::Server(calls),
    ] {
        let compiled = Arc::new(compiler.compile(&grammar).unwrap());
        for trigger in [Vec::new(), vec![TokenId(30), TokenId(31)]] {
            let (bound, barred) = (Some(TokenId(40)), Some(SENTINEL));
            let (bound, barred) = if trigger.is_empty() { (None, None) } else { (bound, barred) };
            let constraint = Constraint { grammar: grammar.clone(), trigger, bound, barred };
            let bench = Bench { constraint: Arc::new(constraint), compiled: Arc::clone(&compiled) };
            for seed in 0..3 {
                let mut draws = Draws(seed);
                let mut tokens = Vec::new();
                let mut guide = bench.behind(&tokens);
                for _ in 0..80 {
                    // The walk through the free part is led on: what is drawn there at random hardly ever ends it.
                    let led = bench.constraint.bound.filter(|_| tokens.len() == 9);
                    let led = led.filter(|token| guide.mask().allows(*token));
                    let token = led.unwrap_or_else(|| drawn(&guide, &mut draws));
                    guide.advance(token).unwrap();
                    tokens.push(token);
                    ends += u32::from(token == END);
                    if token == END || draws.below(10) == 0 {
                        let back = usize::try_from(1 + draws.below(BACK_MAX)).unwrap();
                        let back = back.min(tokens.len());
                        guide.roll_back(back).unwrap();
                        tokens.truncate(tokens.len() - back);
                        taken_back += back;
                    }
                    guide.refresh().unwrap();
                    let replayed = bench.behind(&tokens);
                    assert_eq!(
                        guide.mask(),
                        replayed.mask(),
                        "{grammar:?}, seed {seed}: {tokens:?}"
                    );
                }
            }
        }
    }
    assert!(500 < taken_back && 10 < ends, "{taken_back} tokens, {ends} ends were taken back");
}

#[test]
fn more_than_is_remembered_is_not_taken_back() {
    let compiler = compiler();
    let grammar = Grammar::Regex("a*".to_owned());
    let compiled = Arc::new(compiler.compile(&grammar).unwrap());
    let constraint = Constraint { grammar, trigger: Vec::new(), bound: None, barred: None };
    let bench = Bench { constraint: Arc::new(constraint), compiled };
    let mut guide = bench.behind(&[]);
    assert_eq!(guide.roll_back(0), Ok(()));
    assert_eq!(guide.roll_back(1), Err(GuideError::Forgotten { tokens: 1, remembered: 0 }));
    let letters: BTreeSet<u32> =
        (0..4_096).filter(|id| guide.mask().allows(TokenId(*id)) && *id != END.0).collect();
    let letter = TokenId(*letters.first().unwrap());
    for _ in 0..200 {
        guide.advance(letter).unwrap();
    }
    let Err(GuideError::Forgotten { remembered, .. }) = guide.roll_back(200) else {
        panic!("the past is bounded")
    };
    assert!(usize::try_from(BACK_MAX).unwrap() <= remembered && remembered < 200);
    guide.roll_back(remembered).unwrap();
    guide.refresh().unwrap();
    assert_eq!(guide.mask(), bench.behind(&vec![letter; 200 - remembered]).mask());
}
