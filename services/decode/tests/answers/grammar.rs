//! Answers that follow grammars, and what else changes a draw: none of it depends on what else runs.

use std::path::Path;
use std::sync::Arc;

use decode::DecodeConfig;
use engine::{Engine, GrammarCompiler, GrammarLimits, GrammarVocabulary};
use shared::{
    Constraint, DecodeEvent, DecodeRequest, FinishReason, Grammar, Sampling, ServeError, TokenId,
};

use crate::checks::SAMPLED;
use crate::rig::{Answer, Rig, RigOptions, prompt, request, tiny};

fn compiler(engine: &Engine) -> Arc<GrammarCompiler> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = std::fs::read(root.join("tests/golden/tiny-w/checkpoint/tokenizer.json")).unwrap();
    let config = engine.config();
    let vocabulary = GrammarVocabulary::read(&file, config.vocab, config.special.eos).unwrap();
    Arc::new(GrammarCompiler::new(&vocabulary, GrammarLimits::STANDARD))
}

fn rig(engine: &Arc<Engine>, slots: u32) -> Rig {
    let config = DecodeConfig { grammar_threads: 3, ..RigOptions::default().config };
    let grammars = Some(compiler(engine));
    Rig::new(engine, RigOptions { slots, config, grammars, ..RigOptions::default() })
}

fn constrained(engine: &Engine, seed: u64, grammar: Grammar) -> DecodeRequest {
    let constraint = Constraint { grammar, trigger: Vec::new(), bound: None, barred: None };
    DecodeRequest {
        sampling: Sampling { seed, ..SAMPLED },
        constraint: Some(Arc::new(constraint)),
        stop_ids: vec![engine.config().special.eos],
        ..request(&prompt(engine, seed, 150), 120)
    }
}

fn text(engine: &Engine, tokens: &[TokenId]) -> String {
    let compiler = compiler(engine);
    let bytes = tokens.iter().filter_map(|token| compiler.vocabulary().bytes(*token));
    String::from_utf8(bytes.collect::<Vec<_>>().concat()).unwrap()
}

fn code(text: &str) -> bool {
    let Some((letters, digits)) = text.split_once('-') else { return false };
    (20..=30).contains(&letters.len())
        && letters.chars().all(|sign| ('a'..='c').contains(&sign))
        && digits.len() == 3
        && digits.chars().all(|sign| sign.is_ascii_digit())
}

fn code_grammar(number: u64) -> Grammar {
    if number.is_multiple_of(2) {
        return Grammar::Regex("[a-c]{20,30}-[0-9]{3}".to_owned());
    }
    let rules = "root ::= letter{20,30} \"-\" digits\nletter ::= [a-c]\ndigits ::= [0-9]{3}";
    Grammar::Ebnf(rules.to_owned())
}

#[test]
fn a_constrained_answer_is_the_same_alone_in_a_batch_preempted_and_resumed() {
    let engine = tiny();
    let asked: Vec<DecodeRequest> =
        (0..4).map(|number| constrained(&engine, number, code_grammar(number))).collect();
    let alone: Vec<Answer> = asked
        .iter()
        .map(|asked| {
            let rig = rig(&engine, 64);
            let answer = rig.answer(asked.clone());
            rig.rest();
            answer
        })
        .collect();
    for answer in &alone {
        assert_eq!(answer.end, Ok(FinishReason::Stop), "{answer:?}");
        let text = text(&engine, &answer.tokens);
        assert!(code(&text), "{text:?}");
    }
    let same = |rig: &Rig, asked: &DecodeRequest, expected: &[TokenId]| {
        let answer = rig.answer(asked.clone());
        assert_eq!((answer.tokens.as_slice(), answer.end), (expected, Ok(FinishReason::Stop)));
    };
    // Together with free answers, in a pool so small that the youngest give way.
    let crowded = rig(&engine, 8 + 6);
    let free = crowded.ask(request(&prompt(&engine, 99, 200), 150));
    let pending: Vec<_> = asked.iter().map(|asked| crowded.ask(asked.clone())).collect();
    for (pending, alone) in pending.into_iter().zip(&alone) {
        assert_eq!(pending.answer().tokens, alone.tokens);
    }
    assert_eq!(free.answer().tokens.len(), 150);
    crowded.rest();
    for (asked, alone) in asked.iter().zip(&alone) {
        let rig = rig(&engine, 64);
        for emitted in [1, alone.tokens.len() / 2, alone.tokens.len() - 1] {
            let (before, after) = alone.tokens.split_at(emitted);
            same(&rig, &DecodeRequest { emitted: before.to_vec(), ..asked.clone() }, after);
        }
        let stats = rig.guide_stats();
        assert_eq!((stats.compiled, stats.cache_hits, stats.failed), (1, 2, 0));
        rig.rest();
    }
}

#[test]
fn a_grammar_begins_behind_its_trigger_and_is_forced_behind_its_bound() {
    let engine = tiny();
    let (first, second) = (TokenId(40), TokenId(41));
    let asked = constrained(&engine, 5, code_grammar(0));
    let behind = |trigger: Vec<TokenId>, bound: Option<TokenId>, likely: TokenId| {
        let constraint = Constraint { grammar: code_grammar(0), trigger, bound, barred: None };
        DecodeRequest {
            constraint: Some(Arc::new(constraint)),
            logit_bias: Arc::from([(likely, 100.0)]),
            ..asked.clone()
        }
    };
    let rig = rig(&engine, 64);
    let answer = rig.answer(behind(vec![first], None, first));
    assert_eq!(answer.tokens[0], first);
    assert!(code(&text(&engine, &answer.tokens[1..])), "{answer:?}");
    let answer = rig.answer(behind(vec![second, second, first], Some(first), first));
    assert_eq!(answer.tokens[..4], [first, second, second, first]);
    assert!(code(&text(&engine, &answer.tokens[4..])), "{answer:?}");
    rig.rest();
}

#[test]
fn a_refused_grammar_ends_its_request_before_any_work() {
    let engine = tiny();
    let rig = rig(&engine, 64);
    for (grammar, named) in [
        (Grammar::Regex("(?=a)b".to_owned()), "look-around"),
        (Grammar::Ebnf("root ::= Token(5)".to_owned()), "Token"),
        (Grammar::Json("{\"type\": 5}".to_owned()), ""),
    ] {
        let answer = rig.answer(constrained(&engine, 1, grammar));
        let Err(ServeError::GrammarRefused { what }) = answer.end else { panic!("{answer:?}") };
        assert!(what.contains(named) && answer.report.is_none(), "{what}");
    }
    let barred = Some(TokenId(40));
    for (trigger, bound) in [(vec![TokenId(40)], None), (vec![TokenId(41)], barred)] {
        let constraint = Constraint { grammar: code_grammar(0), trigger, bound, barred };
        let constraint = Some(Arc::new(constraint));
        let asked = constrained(&engine, 1, code_grammar(0));
        let answer = rig.answer(DecodeRequest { constraint, ..asked });
        let Err(ServeError::GrammarRefused { what }) = answer.end else { panic!("{answer:?}") };
        assert!(what.contains("barred"), "{what}");
    }
    assert_eq!((rig.stats().steps, rig.guide_stats().refused), (0, 5));
    let cancelled = rig.ask(constrained(&engine, 1, code_grammar(1)));
    cancelled.cancel();
    rig.rest();
    let bare = Rig::new(&engine, RigOptions::default());
    let answer = bare.answer(constrained(&engine, 1, code_grammar(0)));
    assert!(matches!(answer.end, Err(ServeError::Unsupported { .. })), "{answer:?}");
    bare.rest();
}

#[test]
fn penalties_and_biases_survive_a_resume() {
    let engine = tiny();
    let sampling = Sampling {
        frequency_penalty: 1.5,
        presence_penalty: 0.5,
        top_k: 30,
        min_p: 0.01,
        ..SAMPLED
    };
    let asked = DecodeRequest {
        sampling,
        logit_bias: Arc::from([(TokenId(30), 3.0), (TokenId(31), -3.0)]),
        ..request(&prompt(&engine, 8, 200), 60)
    };
    let rig = rig(&engine, 64);
    let whole = rig.answer(asked.clone()).tokens;
    for emitted in [1, 30, 59] {
        let (before, after) = whole.split_at(emitted);
        let resumed = DecodeRequest { emitted: before.to_vec(), ..asked.clone() };
        assert_eq!(rig.answer(resumed).tokens, after);
    }
    let plain = rig.answer(DecodeRequest { sampling: SAMPLED, ..asked });
    assert_ne!(plain.tokens, whole, "the parameters change the answer");
    rig.rest();
}

#[test]
fn log_probabilities_are_told_with_each_token_when_asked_for() {
    let engine = tiny();
    let rig = rig(&engine, 64);
    let asked = DecodeRequest {
        logprobs: Some(3),
        // The greedy choice is biased away from the true distribution, which is what is told.
        logit_bias: Arc::from([(TokenId(77), 100.0)]),
        ..request(&prompt(&engine, 8, 40), 5)
    };
    let pending = rig.ask(asked);
    let mut told = 0;
    loop {
        match pending.next() {
            DecodeEvent::Started(_) => {}
            DecodeEvent::Token(token, logprobs) => {
                let logprobs = logprobs.expect("asked for");
                assert_eq!((token, logprobs.top.len()), (TokenId(77), 3));
                assert!(logprobs.top.is_sorted_by(|a, b| b.1 <= a.1));
                assert!(logprobs.logprob <= logprobs.top[0].1 && logprobs.top[0].1 <= 0.0);
                told += 1;
            }
            end => {
                assert_eq!((end, told), (DecodeEvent::Finished(FinishReason::Length), 5));
                break;
            }
        }
    }
    rig.rest();
}
