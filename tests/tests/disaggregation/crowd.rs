//! Many requests at the same time, some of which share prefixes, give way to each other or are given up by their clients:
//! each answer is that of one sequence alone, and nothing stays behind.

use decode::DecodeConfig;
use engine::{Arithmetic, Engine};
use prefill::PrefillConfig;
use shared::{DecodeEvent, DecodeRequest, Lineage, Random, Sampling, TokenId};

use super::cluster::{Cluster, Engines, Sizes, request};
use super::cold::SAMPLED;
use super::lane::Alone;
use super::models::{Model, noise};

/// Prompts of all lengths; every third begins like the one before.
fn requests(engine: &Engine, seed: u64) -> Vec<DecodeRequest> {
    let mut draws = Random::new(seed);
    let mut before = Vec::new();
    let mut requests = Vec::new();
    for number in 0..14 {
        let length = usize::try_from(draws.between(1, 700)).unwrap();
        let mut prompt = noise(engine, draws.word(), length);
        if number % 3 == 2 {
            let common = length.min(before.len()) / 2;
            prompt[..common].copy_from_slice(&before[..common]);
        }
        before.clone_from(&prompt);
        let asked = request(1, Lineage::Exact, &prompt, draws.between(1, 400));
        let sampling = if draws.happens(0.3) { Sampling::GREEDY } else { SAMPLED };
        let prefill = asked.prefill.filter(|_| number % 5 != 4);
        requests.push(DecodeRequest { sampling, prefill, ..asked });
    }
    requests
}

/// A decode worker in which only a few of them fit at a time.
fn tight(engines: &Engines) -> Cluster {
    let decode = DecodeConfig { offers_max: 4, tail_rows_step_max: 200, ..DecodeConfig::STANDARD };
    let prefill = PrefillConfig { step_rows_max: 256, running_max: 3, ..PrefillConfig::STANDARD };
    Cluster::sized(engines, Sizes { prefill, decode, decode_slots: 14 })
}

fn check_alone(cluster: &Cluster, asked: &DecodeRequest) -> Vec<TokenId> {
    let engine = &cluster.engines.decode;
    let alone = Alone::answer(engine, &asked.prompt, &asked.sampling, asked.output_tokens_max);
    cluster.check_blocks(asked, &alone);
    alone.tokens
}

#[test]
fn each_of_a_crowd_gets_the_answer_of_one_sequence() {
    let engines = Engines::load(Model::TinyW, Arithmetic::Exact);
    let cluster = tight(&engines);
    let asked = requests(&engines.decode, 1);
    let pending: Vec<_> = asked.iter().map(|asked| cluster.ask(asked)).collect();
    let answers: Vec<_> = pending.into_iter().map(|pending| pending.answer()).collect();
    cluster.rest();
    for (asked, answer) in asked.iter().zip(answers) {
        assert!(answer.start.exact, "{:?}", answer.start);
        assert_eq!(answer.tokens, check_alone(&cluster, asked), "N = {}", asked.prompt.len());
    }
    let stats = cluster.decode_worker.stats();
    assert!(0 < stats.preemptions && 0 < stats.prefill_visits, "{stats:?}");
    assert!(stats.steps < stats.decode_rows, "rows share steps: {stats:?}");
}

#[test]
fn clients_that_leave_take_everything_along_and_change_no_other_answer() {
    let engines = Engines::load(Model::TinyW, Arithmetic::Exact);
    let cluster = tight(&engines);
    let asked = requests(&engines.decode, 2);
    let pending: Vec<_> = asked.iter().map(|asked| cluster.ask(asked)).collect();
    let mut answers = Vec::new();
    for (number, pending) in pending.into_iter().enumerate() {
        match number % 3 {
            0 => answers.push((number, pending.answer())),
            // Before its first event, wherever it is; or in the middle of its answer.
            1 => drop(pending),
            _ => assert!(matches!(pending.next(), DecodeEvent::Started(_))),
        }
    }
    cluster.rest();
    for (number, answer) in answers {
        let asked = &asked[number];
        assert_eq!(answer.tokens, check_alone(&cluster, asked), "N = {}", asked.prompt.len());
    }
    let stats = cluster.decode_worker.stats();
    assert!(0 < stats.cancelled, "{stats:?}");
}
