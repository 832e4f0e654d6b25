//! Answers of the real engine through the decode worker, against one sequence computed alone without any cache.
//!
//! Exact arithmetic on the small checkpoints: every comparison is bit for bit, of tokens and of the bytes of the blocks.

#[cfg(test)]
mod caching;
#[cfg(test)]
mod checks;
#[cfg(test)]
mod failures;
#[cfg(test)]
mod grammar;
#[cfg(test)]
mod legs;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod prefill_double;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod store_double;

use checks::{SAMPLED, check, check_alone};
use decode::DecodeConfig;
use reference::Reference;
use rig::{Rig, RigOptions, prompt, request, seedling, tiny};
use shared::{DecodeRequest, FinishReason, Sampling};

#[test]
fn every_length_answers_as_one_sequence_alone() {
    let lengths = [1, 2, 83, 84, 85, 127, 128, 129, 211, 212, 213, 339, 340, 341, 900];
    check_alone(&tiny(), &lengths, 6);
}

#[test]
fn the_seedling_answers_as_one_sequence_alone() {
    check_alone(&seedling(), &[1, 128, 267, 268, 408, 1_000], 3);
}

#[test]
fn an_answer_that_crosses_many_boundaries_is_the_references() {
    let engine = tiny();
    let rig = Rig::new(&engine, RigOptions { prefills: 1, ..RigOptions::default() });
    let prompt = prompt(&engine, 5, 250);
    let asked = DecodeRequest { prefill: Some(rig.prefills[0].rank), ..request(&prompt, 400) };
    let answer = rig.answer(asked.clone());
    check(&rig, &asked, &answer);
    assert_eq!(answer.end, Ok(FinishReason::Length));
    rig.rest();
}

#[test]
fn a_batch_of_many_equals_each_alone() {
    let engine = tiny();
    let config = DecodeConfig { tail_rows_step_max: 200, ..RigOptions::default().config };
    let options = RigOptions { config, slots: 160, prefills: 2, ..RigOptions::default() };
    let rig = Rig::new(&engine, options);
    let asked: Vec<_> = (0..20)
        .map(|number| {
            let length = usize::try_from(number * 37 % 500 + 1).unwrap();
            let chosen = rig.prefills[usize::try_from(number % 2).unwrap()].rank;
            DecodeRequest {
                sampling: if number % 3 == 0 { Sampling::GREEDY } else { SAMPLED },
                prefill: (number % 5 != 0).then_some(chosen),
                ..request(&prompt(&engine, number, length), 24)
            }
        })
        .collect();
    let pending: Vec<_> = asked.iter().map(|asked| rig.ask(asked.clone())).collect();
    for (asked, pending) in asked.iter().zip(pending) {
        check(&rig, asked, &pending.answer());
    }
    let stats = rig.stats();
    assert!(stats.steps < stats.decode_rows, "rows of many sequences share steps: {stats:?}");
    rig.rest();
}

#[test]
fn preempted_and_resumed_equals_undisturbed() {
    let engine = tiny();
    for prefills in [0, 1] {
        let options = RigOptions { slots: 8 + 9, prefills, ..RigOptions::default() };
        let rig = Rig::new(&engine, options);
        let asked: Vec<_> = (0..4)
            .map(|number| DecodeRequest {
                sampling: SAMPLED,
                prefill: rig.prefills.first().map(|double| double.rank),
                ..request(&prompt(&engine, number, 230), 200)
            })
            .collect();
        let pending: Vec<_> = asked.iter().map(|asked| rig.ask(asked.clone())).collect();
        for (asked, pending) in asked.iter().zip(pending) {
            check(&rig, asked, &pending.answer());
        }
        let stats = rig.stats();
        assert!(0 < stats.preemptions && stats.preemptions <= stats.resumes, "{stats:?}");
        assert_eq!(stats.tokens, 4 * 200);
        rig.rest();
    }
}

#[test]
fn a_resumed_request_continues_where_another_worker_ended() {
    let engine = tiny();
    let prompt = prompt(&engine, 9, 300);
    let asked = DecodeRequest { sampling: SAMPLED, ..request(&prompt, 150) };
    let whole = Reference::answer(&engine, &prompt, &SAMPLED, 150, &[]);
    for emitted in [1, 83, 149, 150] {
        let rig = Rig::new(&engine, RigOptions::default());
        let emitted = whole.tokens[..emitted].to_vec();
        let resumed = DecodeRequest { emitted, ..asked.clone() };
        let answer = rig.answer(resumed.clone());
        check(&rig, &resumed, &answer);
        assert!(answer.report.is_none_or(|report| report.exact));
        rig.rest();
    }
}

#[test]
fn a_resume_beyond_the_exact_range_moves_the_floor_and_says_so() {
    let engine = tiny();
    let prompt = prompt(&engine, 9, 300);
    let whole = Reference::answer(&engine, &prompt, &SAMPLED, 150, &[]);
    let config = DecodeConfig { resume_exact_tokens: 50, ..RigOptions::default().config };
    let rig = Rig::new(&engine, RigOptions { config, ..RigOptions::default() });
    let asked = |emitted: usize| DecodeRequest {
        sampling: SAMPLED,
        emitted: whole.tokens[..emitted].to_vec(),
        ..request(&prompt, 60)
    };
    assert!(rig.answer(asked(50)).report().exact);
    assert!(!rig.answer(asked(51)).report().exact);
    rig.rest();
}

#[test]
fn stop_tokens_end_the_answer_and_are_emitted_last() {
    let engine = tiny();
    let prompt = prompt(&engine, 3, 40);
    let whole = Reference::answer(&engine, &prompt, &SAMPLED, 40, &[]);
    let stop = whole.tokens[20];
    let first = whole.tokens.iter().position(|token| *token == stop).unwrap();
    let rig = Rig::new(&engine, RigOptions::default());
    let asked = DecodeRequest { sampling: SAMPLED, stop_ids: vec![stop], ..request(&prompt, 40) };
    let answer = rig.answer(asked.clone());
    check(&rig, &asked, &answer);
    assert_eq!((answer.tokens.len(), answer.end), (first + 1, Ok(FinishReason::Stop)));
    let emitted = answer.tokens;
    let over = rig.answer(DecodeRequest { emitted, ..asked });
    assert_eq!((over.tokens.len(), over.end), (0, Ok(FinishReason::Stop)));
    rig.rest();
}
