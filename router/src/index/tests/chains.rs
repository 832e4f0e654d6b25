//! Chains over many groups and pages, with holes that blocks of other chains fill: what a lookup noted about places side by side
//! must not outlive the blocks that lay there.

use shared::{BlockName, Random, Tier};

use super::{event, removed, stored};
use crate::index::PrefixIndex;
use crate::index::naive::NaiveIndex;
use crate::role::Role;
use crate::testing::{block, rank};

const MEMBERS: u32 = 3;
const STEPS: u64 = 150;

/// Chain c branches off chain c / 2 somewhere, so that a block has one predecessor, as names have.
fn chains(random: &mut Random) -> Vec<Vec<BlockName>> {
    let mut chains: Vec<Vec<BlockName>> = Vec::new();
    for chain in 0..8_u32 {
        let mut names = Vec::new();
        if let Some(parent) = chains.get(usize::try_from(chain / 2).expect("small")) {
            names.extend(&parent[..random.below(parent.len())]);
        }
        let length = 40 + u32::try_from(random.below(400)).expect("small");
        names.extend((0..length).map(|position| block(chain, position)));
        chains.push(names);
    }
    chains
}

fn churn(seed: u64) {
    let mut random = Random::new(seed);
    let chains = chains(&mut random);
    let (mut real, mut naive) = (PrefixIndex::new(4, 100_000), NaiveIndex::default());
    for member in 0..MEMBERS {
        real.join(rank(member), Role::Decode).expect("room");
        naive.join(rank(member), Role::Decode);
    }
    let mut sequences = [0; 3];
    for step in 0..STEPS {
        let member = random.below(sequences.len());
        let chain = random.pick(&chains);
        let end = 1 + random.below(chain.len());
        // Mostly from the beginning, now and then a piece of the middle, and out of it a block or two.
        let begin = if random.one_in(3) { random.below(end) } else { 0 };
        let holes = begin..end.min(begin + 1 + random.below(2));
        let change = match random.below(8) {
            0 => removed(Tier::Device, &chain[begin..end]),
            1 | 2 => removed(Tier::Device, &chain[holes]),
            3 => stored(Tier::Host, &chain[begin..end]),
            4 => {
                let mut names = chain[begin..end].to_vec();
                names.sort_unstable();
                stored(Tier::Device, &names)
            }
            _ => stored(Tier::Device, &chain[begin..end]),
        };
        let worker = rank(u32::try_from(member).expect("small"));
        let event = event(worker, 1, sequences[member], change);
        sequences[member] += 1;
        assert_eq!(real.apply(&event), naive.apply(&event), "seed {seed}, step {step}");
        for _ in 0..3 {
            let names = random.pick(&chains);
            let names = &names[..random.below(names.len() + 1)];
            let found = real.match_prefix(names);
            for member in 0..MEMBERS {
                let expected = naive.match_prefix(rank(member), names);
                assert_eq!(found.of(rank(member)), expected, "seed {seed}, step {step}");
            }
        }
    }
}

#[test]
fn long_chains_with_holes_equal_the_naive_index() {
    (0..60).for_each(churn);
}
