//! The fast arithmetic computes other bytes than the exact one, but from a cache the same ones again.

use engine::Arithmetic;
use shared::{DecodeRequest, Lineage};

use super::cluster::{Engines, request};
use super::cold::SAMPLED;
use super::hits::{Bench, cases};
use super::models::{Model, text};

#[test]
fn a_fast_hit_of_every_length_is_the_fast_cold_answer() {
    let engines = Engines::load(Model::Seedling, Arithmetic::Fast);
    let asked = request(1, Lineage::Exact, &text(1_000), 8);
    let bench = Bench::new(&engines, DecodeRequest { sampling: SAMPLED, ..asked });
    assert_eq!(bench.names.len(), 6);
    cases(6, 1).into_iter().for_each(|case| bench.check_exact(case));
}

#[test]
fn fast_is_not_exact() {
    let prompt = text(300);
    let blocks = [Arithmetic::Fast, Arithmetic::Exact].map(|arithmetic| {
        let engines = Engines::load(Model::Seedling, arithmetic);
        Bench::new(&engines, request(1, Lineage::Exact, &prompt, 1)).blocks
    });
    assert_ne!(
        blocks[0], blocks[1],
        "else the tests of one arithmetic prove nothing about the other"
    );
}
