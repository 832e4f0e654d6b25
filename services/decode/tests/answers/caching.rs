//! What is cached is used, reported, and changes no answer.

use std::collections::BTreeSet;

use decode::DecodeConfig;
use shared::{
    BLOCK_TOKENS, CacheChange, DecodeRequest, Lineage, Sampling, WindowSource, WorkerEvent,
};

use crate::checks::{SAMPLED, check, names_of, next_turn};
use crate::reference::bytes;
use crate::rig::{Rig, RigOptions, StoreKind, prompt, request, tiny, wait_until, with_lineage};

#[test]
fn a_repeated_prompt_hits_up_to_its_boundary() {
    let engine = tiny();
    let rig = Rig::new(&engine, RigOptions::default());
    let asked = request(&prompt(&engine, 1, 700), 8);
    let cold = rig.answer(asked.clone());
    check(&rig, &asked, &cold);
    let hit = rig.answer(asked.clone());
    check(&rig, &asked, &hit);
    let boundary = engine.geometry().boundary(700);
    let report = hit.report();
    assert_eq!((report.cached_tokens, report.replayed_tokens), (boundary, 0));
    assert_eq!(report.window_source, WindowSource::Object);
    assert_eq!(report.bytes_fetched, 0);
    assert!(report.exact);
    rig.rest();
}

#[test]
fn the_next_turn_hits_through_the_answer() {
    let engine = tiny();
    let options = RigOptions { store: StoreKind::Host, ..RigOptions::default() };
    let rig = Rig::new(&engine, options);
    let first = DecodeRequest { sampling: SAMPLED, ..request(&prompt(&engine, 1, 250), 200) };
    let answer = rig.answer(first.clone());
    let more = prompt(&engine, 2, 15);
    let second = request(&next_turn(&first, &answer, &more), 20);
    rig.rest();
    // From the own pool, then from the store alone.
    for evict in [false, true] {
        if evict {
            assert_ne!(rig.pool.evict_all(), 0);
            assert_ne!(rig.windows.evict_all(), 0);
        }
        let answer = rig.answer(second.clone());
        check(&rig, &second, &answer);
        let report = answer.report();
        assert_eq!(report.cached_tokens, 256, "beyond the 250 tokens of the first prompt");
        assert!(report.exact);
        assert_eq!(report.replayed_tokens, 0);
        assert_eq!(0 < report.bytes_fetched, evict);
        assert_eq!(report.window_source, WindowSource::Object);
        rig.rest();
    }
}

#[test]
fn an_exact_replay_stands_in_for_a_missing_window_object() {
    let engine = tiny();
    let whole = prompt(&engine, 4, 800);
    let exact_rows = engine.geometry().exact_replay_rows();
    for length in [212, 340, 500, 800] {
        let rig = Rig::new(&engine, RigOptions::default());
        let asked = DecodeRequest { sampling: SAMPLED, ..request(&whole[..length], 10) };
        rig.answer(asked.clone());
        rig.rest();
        assert_ne!(rig.windows.evict_all(), 0);
        let hit = rig.answer(asked.clone());
        check(&rig, &asked, &hit);
        let start = engine.geometry().boundary(u32::try_from(length).unwrap());
        let report = hit.report();
        assert_eq!(report.cached_tokens, start);
        assert_eq!(report.replayed_tokens, exact_rows.min(start));
        assert_eq!(report.window_source, WindowSource::Replayed(exact_rows.min(start)));
        assert!(report.exact);
        rig.rest();
    }
}

#[test]
fn an_earlier_window_object_is_recomputed_from() {
    let engine = tiny();
    let whole = prompt(&engine, 4, 900);
    let rig = Rig::new(&engine, RigOptions::default());
    // Blocks up to 768, and the only window object below at 384: 128 rows are fewer than a replay's 213.
    rig.answer(request(&whole, 2));
    rig.rest();
    assert_ne!(rig.windows.evict_all(), 0);
    rig.answer(request(&whole[..500], 2));
    rig.rest();
    let asked = request(&whole[..600], 6);
    let answer = rig.answer(asked.clone());
    check(&rig, &asked, &answer);
    let report = answer.report();
    assert_eq!(report.cached_tokens, 512);
    assert_eq!(report.window_source, WindowSource::Recomputed);
    assert_eq!(report.replayed_tokens, 128);
    assert!(report.exact);
    rig.rest();
}

#[test]
fn a_bounded_hit_replays_one_window_and_leaves_blocks_below_it_untouched() {
    let engine = tiny();
    let rig = Rig::new(&engine, RigOptions::default());
    let prompt = prompt(&engine, 6, 600);
    let asked = with_lineage(&prompt, 8, Lineage::Bounded);
    let cold = rig.answer(asked.clone());
    assert!(cold.report().exact, "a cold start is exact in every lineage");
    rig.rest();
    assert_ne!(rig.windows.evict_all(), 0);
    let names = names_of(&prompt, Lineage::Bounded);
    let copy = || {
        let blocks = rig.pool.lookup_run(&names[..4]);
        let memory = rig.pool.memory();
        let copies: Vec<_> = blocks.iter().map(|b| bytes(memory.as_ref(), b.index())).collect();
        rig.pool.release(blocks);
        copies
    };
    let before = copy();
    assert_eq!(before.len(), 4);
    let hit = rig.answer(asked.clone());
    let report = hit.report();
    assert_eq!(report.cached_tokens, 512);
    assert_eq!(report.window_source, WindowSource::Replayed(72));
    assert_eq!(report.replayed_tokens, 72);
    assert!(!report.exact);
    assert!(before == copy());
    // The window object the replay made is inexact, and so is what starts from it.
    let again = rig.answer(asked.clone());
    assert_eq!(again.report().window_source, WindowSource::Object);
    assert!(!again.report().exact);
    assert_eq!(again.tokens, hit.tokens, "the same windows give the same answer");
    rig.rest();
}

#[test]
fn without_prefill_a_partly_cached_prompt_starts_where_the_cache_ends() {
    let engine = tiny();
    let rig = Rig::new(&engine, RigOptions::default());
    let whole = prompt(&engine, 8, 900);
    rig.answer(request(&whole[..500], 2));
    rig.rest();
    let asked = request(&whole, 6);
    let answer = rig.answer(asked.clone());
    check(&rig, &asked, &answer);
    let report = answer.report();
    assert_eq!((report.cached_tokens, report.replayed_tokens), (384, 0));
    assert!(report.exact);
    rig.rest();
}

#[test]
fn prefill_is_asked_only_for_what_is_missing() {
    let engine = tiny();
    let rig = Rig::new(&engine, RigOptions { prefills: 1, ..RigOptions::default() });
    let double = &rig.prefills[0];
    let visit = |tokens: &[_]| DecodeRequest {
        prefill: Some(double.rank),
        sampling: Sampling::GREEDY,
        ..request(tokens, 4)
    };
    let whole = prompt(&engine, 8, 900);
    for length in [500, 900, 900] {
        let asked = visit(&whole[..length]);
        check(&rig, &asked, &rig.answer(asked.clone()));
    }
    assert_eq!(*double.asked.lock(), [(0, 384), (384, 768)]);
    rig.rest();
}

#[test]
fn the_router_hears_of_every_block_without_gaps() {
    let engine = tiny();
    // So small that blocks of earlier requests are evicted.
    let config = DecodeConfig { offers_max: 2, ..DecodeConfig::STANDARD };
    let rig = Rig::new(&engine, RigOptions { config, slots: 9, ..RigOptions::default() });
    for number in 0..4 {
        rig.answer(request(&prompt(&engine, number, 600), 2));
    }
    rig.rest();
    let held: BTreeSet<_> = rig.pool.names().into_iter().collect();
    let replay = || {
        let mut index = BTreeSet::new();
        let mut expected = 0;
        for event in rig.events.lock().iter() {
            let WorkerEvent::Cache(event) = event else { continue };
            assert_eq!(event.sequence, expected);
            expected += 1;
            match &event.change {
                CacheChange::Cleared => index.clear(),
                CacheChange::Stored { names, .. } => index.extend(names),
                CacheChange::Removed { names, .. } => {
                    assert!(names.iter().all(|name| index.remove(name)));
                }
                other => panic!("nobody asked for {other:?}"),
            }
        }
        index
    };
    wait_until("the events tell what the pool holds", || replay() == held);
    let blocks = usize::try_from(600 / BLOCK_TOKENS).unwrap();
    assert!(blocks <= held.len() && held.len() <= 9, "{held:?}");
    assert!(rig.events.lock().iter().any(|event| matches!(event, WorkerEvent::Load { .. })));
}
