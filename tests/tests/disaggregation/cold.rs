//! A cold answer through prefill, transport and decode is the answer of one sequence, for every kind of length.

use engine::Arithmetic;
use shared::{
    BLOCK_TOKENS, DecodeRequest, Lineage, ObjectKind, Sampling, StartReport, WindowSource,
    block_names,
};

use super::cluster::{Cluster, Engines, request};
use super::lane::{Alone, Lane};
use super::models::{Model, text};

pub(crate) const SAMPLED: Sampling =
    Sampling { temperature: 1.0, top_p: 0.98, seed: 17, ..Sampling::GREEDY };
const ANSWER_TOKENS: u32 = 12;

fn check_lengths(lengths: &[usize], samplings: &[Sampling]) {
    let engines = Engines::load(Model::Seedling, Arithmetic::Exact);
    let cluster = Cluster::start(&engines);
    let mut cache = 0;
    for length in lengths {
        let prompt = text(*length);
        for sampling in samplings {
            cache += 1;
            let asked = request(cache, Lineage::Exact, &prompt, ANSWER_TOKENS);
            let asked = DecodeRequest { sampling: *sampling, ..asked };
            let answer = cluster.answer(&asked);
            let alone = Alone::answer(&engines.decode, &prompt, sampling, ANSWER_TOKENS);
            cluster.rest();
            cluster.check(&asked, &answer, &alone);
            check_report(&cluster, &asked, answer.start);
        }
    }
}

/// What a start without any cache reports.
fn check_report(cluster: &Cluster, asked: &DecodeRequest, start: StartReport) {
    let engine = &cluster.engines.decode;
    let boundary = engine.geometry().boundary(u32::try_from(asked.prompt.len()).unwrap());
    let visited = boundary != 0;
    assert_eq!((start.cached_tokens, start.replayed_tokens), (0, 0));
    assert_eq!(start.prefill, asked.prefill.filter(|_| visited));
    let source = if visited { WindowSource::Object } else { WindowSource::Cold };
    assert_eq!(start.window_source, source);
    let blocks = usize::try_from(boundary / BLOCK_TOKENS).unwrap();
    let layout = engine.layout();
    let read = if visited { blocks * layout.block_bytes() + layout.window_bytes() } else { 0 };
    assert_eq!(start.bytes_fetched, u64::try_from(read).unwrap(), "N = {}", asked.prompt.len());
}

#[test]
fn a_short_cold_answer_is_that_of_one_sequence() {
    let lengths = [1, 2, 11, 127, 128, 129, 140, 267, 268, 269];
    check_lengths(&lengths, &[Sampling::GREEDY, SAMPLED]);
}

#[test]
fn a_cold_answer_of_some_blocks_is_that_of_one_sequence() {
    check_lengths(&[395, 396, 408, 512, 1_000], &[Sampling::GREEDY, SAMPLED]);
}

#[test]
fn a_long_cold_answer_is_that_of_one_sequence() {
    check_lengths(&[3_000, 7_948], &[SAMPLED]);
}

#[test]
fn window_objects_are_those_of_one_sequence() {
    let engines = Engines::load(Model::Seedling, Arithmetic::Exact);
    let cluster = Cluster::start(&engines);
    let prompt = text(1_000);
    let asked = request(1, Lineage::Exact, &prompt, 200);
    let answer = cluster.answer(&asked);
    cluster.rest();
    let ids: Vec<_> = asked.prompt.iter().chain(&answer.tokens).copied().collect();
    let mut lane = Lane::of_prompt(&engines.decode, &prompt, ids.len());
    answer.tokens.iter().for_each(|token| lane.sequence.push(*token));
    let mut found = Vec::new();
    let ends = (1..).map(|block| block * BLOCK_TOKENS);
    for (end, name) in ends.zip(block_names(&asked.root, &ids)) {
        lane.run_to(end);
        for (party, memory) in cluster.parties() {
            if let Some(object) = memory.object(ObjectKind::Window, name) {
                assert!(object.exact);
                assert!(object.bytes == lane.window(end), "the object at {end} of {party}");
                found.push((party, end));
            }
        }
    }
    // Prefill publishes at every block up to S, decode at the boundary from which the next turn will start.
    let next_turn = engines.decode.geometry().boundary(1_200);
    for expected in [("prefill", 128), ("prefill", 768), ("decode", 768), ("decode", next_turn)] {
        assert!(found.contains(&expected), "{expected:?} of {found:?}");
    }
}
