//! Rows that are rolled back leave no trace: a sequence that guessed wrong and went back computes what it would have
//! computed at once.

use std::collections::BTreeSet;

use engine::{Arithmetic, Engine, Part};
use shared::{Random, TokenId};

use super::lane::{Lane, bits};
use super::models::{Model, noise};

/// B: the most tokens a sequence is rolled back by.
const ROLLBACK: u32 = 12;
/// Rows computed behind a roll-back: more than there were guesses, so that each guess was written over.
const AFTERWARDS: u32 = 16;

/// The logits of the rows that follow from `to` on, some in one call, some one by one, and all blocks then.
type Afterwards = (Vec<Vec<u32>>, Vec<Vec<u8>>);

fn go_on(mut lane: Lane<'_>, ids: &[TokenId], to: u32) -> Afterwards {
    assert_eq!(lane.sequence.ids(), &ids[..count(to)]);
    ids[count(to)..].iter().for_each(|token| lane.sequence.push(*token));
    let mut logits = bits(&lane.run_to(to + 7));
    for end in [to + 8, to + 9, to + AFTERWARDS] {
        logits.extend(bits(&lane.run_to(end)));
    }
    (logits, lane.blocks())
}

fn count(tokens: u32) -> usize {
    usize::try_from(tokens).unwrap()
}

/// Positions around every turn of a ring of W + B, and around pairs and block boundaries.
fn interesting(engine: &Engine) -> BTreeSet<u32> {
    let ring = engine.geometry().keep();
    let window = engine.geometry().window;
    let turns = [window, ring, 2 * ring, 128, 256];
    turns
        .into_iter()
        .flat_map(|turn| [turn - 7, turn - 2, turn - 1, turn, turn + 1, turn + 5])
        .collect()
}

/// Computes a sequence up to `to`, then for each case guesses as many tokens as its steps add up to, goes back by those
/// steps, and goes on.
fn check(engine: &Engine, to: u32, cases: &[&[u32]]) {
    let ids = noise(engine, u64::from(to), count(to + AFTERWARDS));
    let mut lane = Lane::new(engine, &ids[..count(to)], ids.len());
    lane.floors.decoder = engine.geometry().decoder_floor(to);
    lane.run_to(to);
    let expected = go_on(lane.fork(), &ids, to);
    for steps in cases {
        let mut lane = lane.fork();
        let mut end = to + steps.iter().sum::<u32>();
        let guesses = noise(engine, u64::from(1_000 + end), count(end - to));
        guesses.iter().for_each(|token| lane.sequence.push(*token));
        lane.run_to(end);
        for step in *steps {
            end -= step;
            lane.sequence.roll_back(end);
            assert_eq!(lane.sequence.processed(), end);
        }
        let (logits, blocks) = go_on(lane, &ids, to);
        assert!(logits == expected.0, "logits behind {to}, went back by {steps:?}");
        assert!(blocks == expected.1, "blocks behind {to}, went back by {steps:?}");
    }
}

#[test]
fn rolled_back_rows_leave_no_trace() {
    let single: Vec<[u32; 1]> = (1..=ROLLBACK).map(|rows| [rows]).collect();
    let mut cases: Vec<&[u32]> = single.iter().map(|steps| &steps[..]).collect();
    cases.extend([&[6, 6][..], &[1, 11], &[4, 4, 4]]);
    // Bookkeeping does not depend on the arithmetic: fewer positions do for the second one.
    for (arithmetic, stride) in [(Arithmetic::Exact, 1), (Arithmetic::Fast, 5)] {
        let engine = Model::TinyW.load(arithmetic, Part::Whole);
        for to in interesting(&engine).into_iter().step_by(stride) {
            check(&engine, to, &cases);
        }
    }
}

#[test]
fn rolled_back_rows_leave_no_trace_with_windows_of_a_block() {
    let engine = Model::Seedling.load(Arithmetic::Exact, Part::Whole);
    for to in [127, 128, 129, 139, 140, 141, 256, 280] {
        check(&engine, to, &[&[1], &[7], &[12], &[6, 6]]);
    }
}

#[test]
fn many_guesses_in_a_row_leave_no_trace() {
    for arithmetic in [Arithmetic::Exact, Arithmetic::Fast] {
        let engine = Model::TinyW.load(arithmetic, Part::Whole);
        let ids = noise(&engine, 9, 400);
        let floor = engine.geometry().decoder_floor(100);
        let mut expected = Lane::new(&engine, &ids, 412);
        expected.floors.decoder = floor;
        let expected_logits = bits(&expected.run_to(400));
        let mut draws = Random::new(9);
        let mut lane = Lane::new(&engine, &ids[..100], 412);
        lane.floors.decoder = floor;
        let mut logits = bits(&lane.run_to(100));
        let mut accepted = 100;
        while accepted < 400 {
            // A verify step: a token that is known to be right, guesses that are right up to some point, the rest wrong.
            let right = usize::try_from(draws.between(1, 6)).unwrap().min(400 - accepted);
            let wrong = usize::try_from(draws.between(0, 6)).unwrap();
            let drawn = noise(&engine, draws.word(), wrong);
            ids[accepted..accepted + right]
                .iter()
                .chain(&drawn)
                .for_each(|t| lane.sequence.push(*t));
            let end = u32::try_from(accepted + right + wrong).unwrap();
            let found = bits(&lane.run_to(end));
            logits.extend(found.into_iter().take(right));
            accepted += right;
            lane.sequence.roll_back(u32::try_from(accepted).unwrap());
        }
        assert!(logits == expected_logits, "{arithmetic:?}");
        assert!(lane.blocks()[..3] == expected.blocks()[..3], "{arithmetic:?}");
    }
}

#[test]
#[should_panic(expected = "rings reach back")]
fn more_rows_than_the_rings_hold_are_not_rolled_back() {
    let engine = Model::TinyW.load(Arithmetic::Exact, Part::Whole);
    let ids = noise(&engine, 1, 100);
    let mut lane = Lane::new(&engine, &ids, ids.len());
    lane.run_to(100);
    lane.sequence.roll_back(100 - ROLLBACK - 1);
}
