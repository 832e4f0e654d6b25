//! What a row computes depends on its tokens and its plan alone: not on the cuts between calls, not on who shares a call,
//! not on whether the engine is whole. On the golden model with windows shorter than a block, in both arithmetics.

use engine::{Arithmetic, Engine, KvSlab, Part, Segment, Sequence};
use shared::{BLOCK_TOKENS, Random, SlotIndex, TokenId};

use super::lane::{Lane, bits, bytes};
use super::models::{Model, noise};

const ARITHMETICS: [Arithmetic; 2] = [Arithmetic::Exact, Arithmetic::Fast];
/// Two blocks and a bit, past three turns of a ring of 84.
const TOKENS: u32 = 300;

/// Everything that rows leave behind.
#[derive(PartialEq, Eq)]
struct Outcome {
    logits: Vec<Vec<u32>>,
    blocks: Vec<Vec<u8>>,
    /// The window objects at the boundaries where a call ended.
    windows: Vec<(u32, Vec<u8>)>,
}

/// Computes a prompt in calls that end at `cuts` and at its end.
fn compute(engine: &Engine, ids: &[TokenId], floor: u32, cuts: &[u32]) -> Outcome {
    let end = u32::try_from(ids.len()).unwrap();
    let mut lane = Lane::new(engine, ids, ids.len());
    lane.floors.decoder = floor;
    let (mut logits, mut windows) = (Vec::new(), Vec::new());
    for cut in cuts.iter().copied().filter(|cut| *cut < end).chain([end]) {
        logits.extend(bits(&lane.run_to(cut)));
        if cut.is_multiple_of(BLOCK_TOKENS) {
            windows.push((cut, lane.window(cut)));
        }
    }
    Outcome { logits, blocks: lane.blocks(), windows }
}

/// Compares logits and blocks of the same rows computed in two ways.
fn assert_same(found: &Outcome, expected: &Outcome, what: &str) {
    assert_eq!(found.logits.len(), expected.logits.len(), "{what}");
    let different = found.logits.iter().zip(&expected.logits).position(|(a, b)| a != b);
    assert_eq!(different, None, "{what}: the first row with other logits");
    let different = found.blocks.iter().zip(&expected.blocks).position(|(a, b)| a != b);
    assert_eq!(different, None, "{what}: the first block with other bytes");
    for (end, window) in &found.windows {
        let other = expected.windows.iter().find(|(other, _)| other == end);
        assert!(other.is_none_or(|(_, other)| other == window), "{what}: windows at {end}");
    }
}

fn for_each_arithmetic(check: impl Fn(Arithmetic, &Engine)) {
    for arithmetic in ARITHMETICS {
        check(arithmetic, &Model::TinyW.load(arithmetic, Part::Whole));
    }
}

/// Steps of a fixed size.
fn every(step: usize) -> Vec<u32> {
    (0..TOKENS).step_by(step).skip(1).collect()
}

#[test]
fn any_chunking_gives_the_same_bytes_and_logits() {
    for_each_arithmetic(|arithmetic, engine| {
        let ids = noise(engine, 1, 300);
        // All rows through all layers, and a prompt with its decoder floor.
        for floor in [0, engine.geometry().decoder_floor(TOKENS)] {
            let expected = compute(engine, &ids, floor, &[128, 256]);
            let mut ways: Vec<Vec<u32>> =
                [1, 2, 3, 7, 16, 71, 72, 73, 83, 84, 85, 127, 128, 129, 300]
                    .into_iter()
                    .map(every)
                    .collect();
            ways.extend([vec![1, 128, 129, 256], vec![127, 255, 257], vec![299], vec![1]]);
            for seed in 0..4 {
                let mut draws = Random::new(seed);
                let mut cut = 0;
                let next = || {
                    cut += draws.between(1, 60);
                    (cut < TOKENS).then_some(cut)
                };
                ways.push(std::iter::from_fn(next).collect());
            }
            for cuts in ways {
                let found = compute(engine, &ids, floor, &cuts);
                assert_same(&found, &expected, &format!("{arithmetic:?}, floor {floor}, {cuts:?}"));
            }
        }
    });
}

#[test]
fn prefill_of_all_is_prefill_of_a_part_and_decode_of_the_rest() {
    for_each_arithmetic(|arithmetic, engine| {
        let ids = noise(engine, 2, 150);
        let expected = compute(engine, &ids, 0, &[]);
        for prefilled in [1, 2, 63, 64, 71, 72, 73, 84, 85, 126, 127, 128, 129, 130, 148, 149] {
            let cuts: Vec<u32> = (prefilled..150).collect();
            let found = compute(engine, &ids, 0, &cuts);
            assert_same(
                &found,
                &expected,
                &format!("{arithmetic:?}, {prefilled} tokens prefilled"),
            );
        }
    });
}

/// Sequences of different lengths that share calls and a slab, each moving on by its own steps.
struct Shared<'a> {
    engine: &'a Engine,
    slab: KvSlab,
    sequences: Vec<Sequence>,
    plans: Vec<Lane<'a>>,
    logits: Vec<Vec<Vec<u32>>>,
}

impl<'a> Shared<'a> {
    fn new(engine: &'a Engine, prompts: &[Vec<TokenId>]) -> Self {
        let mut slots = 0;
        let mut sequences = Vec::new();
        for prompt in prompts {
            let mut sequence = engine.sequence(prompt);
            // Slots of one sequence are not neighbours.
            let blocks = u32::try_from(prompt.len()).unwrap().div_ceil(BLOCK_TOKENS);
            (0..blocks).rev().for_each(|block| sequence.push_block(SlotIndex(slots + block)));
            slots += blocks;
            sequences.push(sequence);
        }
        let slab = KvSlab::new(slots, engine.layout().block_bytes());
        let plans = prompts.iter().map(|ids| Lane::of_prompt(engine, ids, ids.len())).collect();
        Self { engine, slab, sequences, plans, logits: vec![Vec::new(); prompts.len()] }
    }

    /// One call with some rows of each sequence that has any left. Says whether there were any.
    fn step(&mut self, draws: &mut Random) -> bool {
        let rows: Vec<_> = self
            .sequences
            .iter()
            .zip(&self.plans)
            .map(|(sequence, plan)| {
                let next = sequence.processed();
                let left = u32::try_from(sequence.ids().len()).unwrap() - next;
                let most = if draws.happens(0.5) { 1 } else { 90 };
                plan.plans(next..next + draws.between(0, most).min(left))
            })
            .collect();
        let mut segments: Vec<_> = self
            .sequences
            .iter_mut()
            .zip(&rows)
            .map(|(sequence, rows)| Segment { sequence, rows })
            .collect();
        let mut logits = bits(&self.engine.forward(&self.slab, &mut segments)).into_iter();
        for (rows, found) in rows.iter().zip(&mut self.logits) {
            let wanted = rows.iter().filter(|row| row.logits).count();
            found.extend(logits.by_ref().take(wanted));
        }
        assert!(logits.next().is_none());
        self.sequences
            .iter()
            .any(|sequence| usize::try_from(sequence.processed()).unwrap() < sequence.ids().len())
    }
}

#[test]
fn any_batch_gives_the_same_bytes_and_logits() {
    for_each_arithmetic(|arithmetic, engine| {
        let lengths = [1, 2, 85, 128, 140, 211, 257, 300];
        let prompts: Vec<_> =
            (10..).zip(lengths).map(|(seed, length)| noise(engine, seed, length)).collect();
        let expected: Vec<_> = prompts
            .iter()
            .map(|ids| {
                let floor = engine.geometry().decoder_floor(u32::try_from(ids.len()).unwrap());
                compute(engine, ids, floor, &[])
            })
            .collect();
        for seed in 0..4 {
            let mut draws = Random::new(seed);
            let mut shared = Shared::new(engine, &prompts);
            while shared.step(&mut draws) {}
            for (number, expected) in expected.iter().enumerate() {
                let sequence = &shared.sequences[number];
                let blocks = sequence.blocks().iter().map(|slot| bytes(&shared.slab, *slot));
                let logits = shared.logits[number].clone();
                let found = Outcome { logits, blocks: blocks.collect(), windows: Vec::new() };
                let what = format!("{arithmetic:?}, seed {seed}, sequence {number}");
                assert_same(&found, expected, &what);
            }
        }
    });
}

#[test]
fn a_call_without_rows_computes_nothing() {
    for_each_arithmetic(|_, engine| {
        let ids = noise(engine, 4, 10);
        let mut lane = Lane::new(engine, &ids, ids.len());
        for _ in 0..2 {
            let before = lane.blocks();
            assert!(lane.run(&[]).is_empty());
            assert!(lane.blocks() == before);
            lane.run_to(10);
        }
        let slab = KvSlab::new(1, engine.layout().block_bytes());
        assert!(engine.forward(&slab, &mut []).is_empty(), "not even a sequence");
    });
}

#[test]
fn a_prefill_workers_blocks_are_the_whole_models() {
    for model in [Model::TinyW, Model::Seedling] {
        for arithmetic in ARITHMETICS {
            let whole = model.load(arithmetic, Part::Whole);
            let encoder = model.load(arithmetic, Part::Encoder);
            let ids = noise(&whole, 3, 384);
            for cuts in [&[128, 256][..], &[256], &[]] {
                let mut found = compute(&encoder, &ids, 0, cuts);
                assert!(found.logits.is_empty(), "an encoder has none");
                let mut expected = compute(&whole, &ids, 0, cuts);
                expected.logits.clear();
                assert!(found.windows.len() == cuts.len() + 1);
                assert_same(&found, &expected, &format!("{model:?}, {arithmetic:?}, {cuts:?}"));
                found.blocks.dedup();
                assert_eq!(found.blocks.len(), 3, "blocks of different tokens differ");
            }
        }
    }
}
