//! What an answer is checked for.

use std::sync::Arc;

use engine::Engine;
use shared::{
    BLOCK_TOKENS, BlockName, DecodeRequest, Lineage, Sampling, TokenId, WindowSource, block_names,
};

use crate::reference::{Reference, bytes};
use crate::rig::{Answer, Rig, RigOptions, prompt, request, root};

pub(crate) const SAMPLED: Sampling =
    Sampling { temperature: 0.8, top_p: 0.95, seed: 42, ..Sampling::GREEDY };

/// The answer must be the reference's, and so must every block of it that the worker's pool holds.
pub(crate) fn check(rig: &Rig, asked: &DecodeRequest, answer: &Answer) -> Reference {
    let reference = Reference::answer(
        &rig.engine,
        &asked.prompt,
        &asked.sampling,
        asked.output_tokens_max,
        &asked.stop_ids,
    );
    let all = &reference.tokens[asked.emitted.len()..];
    assert_eq!(answer.tokens, all, "N = {}, {answer:?}", asked.prompt.len());
    let ids: Vec<_> = asked.prompt.iter().chain(&reference.tokens).copied().collect();
    let names = block_names(&asked.root, &ids);
    let full = reference.processed / BLOCK_TOKENS;
    for (index, name) in (0..full).zip(names) {
        if let Some(block) = rig.pool.lookup(name) {
            assert!(block.exact());
            let found = bytes(rig.pool.memory().as_ref(), block.index());
            assert!(found == reference.block(index), "block {index} of {ids:?}");
        }
    }
    reference
}

pub(crate) fn check_alone(engine: &Arc<Engine>, lengths: &[usize], tokens: u32) {
    for (sampling, prefills) in [(Sampling::GREEDY, 0), (SAMPLED, 1)] {
        let rig = Rig::new(engine, RigOptions { prefills, ..RigOptions::default() });
        for length in lengths {
            let prompt = prompt(engine, u64::try_from(*length).unwrap(), *length);
            let asked = DecodeRequest {
                sampling,
                prefill: rig.prefills.first().map(|double| double.rank),
                ..request(&prompt, tokens)
            };
            let answer = rig.answer(asked.clone());
            check(&rig, &asked, &answer);
            let report = answer.report();
            assert!(report.exact);
            assert_eq!((report.cached_tokens, report.replayed_tokens), (0, 0));
            let boundary = engine.geometry().boundary(u32::try_from(*length).unwrap());
            let visited = prefills == 1 && 0 < boundary;
            assert_eq!(report.prefill.is_some(), visited, "N = {length}");
            let source = if visited { WindowSource::Object } else { WindowSource::Cold };
            assert_eq!(report.window_source, source);
            let layout = engine.layout();
            let read = usize::try_from(boundary / BLOCK_TOKENS).unwrap() * layout.block_bytes()
                + layout.window_bytes();
            let expected = if visited { u64::try_from(read).unwrap() } else { 0 };
            assert_eq!(report.bytes_fetched, expected);
        }
        rig.rest();
        assert_eq!(rig.stats().prefill_fallbacks, 0);
    }
}

/// The ids of a whole conversation so far, and more text behind it.
pub(crate) fn next_turn(asked: &DecodeRequest, answer: &Answer, more: &[TokenId]) -> Vec<TokenId> {
    asked.prompt.iter().chain(&answer.tokens).chain(more).copied().collect()
}

pub(crate) fn names_of(ids: &[TokenId], lineage: Lineage) -> Vec<BlockName> {
    block_names(&root(lineage), ids)
}
