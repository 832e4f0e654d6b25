//! The decode scheduler in virtual time: thousands of seeded runs with arrivals, cancels, deadlines, slow starts and
//! pools that are too small. Checked after every event: no slot beyond the pool, no row twice, no token lost or repeated,
//! every bound kept; and at the end that everybody got an answer and every slot is back.

#[cfg(test)]
mod harness;
#[cfg(test)]
mod world;

use std::collections::BTreeMap;

use world::World;

#[test]
fn thousands_of_seeded_runs_lose_no_slot_and_no_token() {
    let (mut preemptions, mut tokens) = (0, 0);
    let mut outcomes = BTreeMap::new();
    for seed in 0..4_000 {
        let result = std::panic::catch_unwind(|| {
            let world = World::new(seed).run();
            world.check_end();
            world
        });
        let world = result.unwrap_or_else(|_| panic!("seed {seed} failed"));
        preemptions += world.preemptions;
        tokens += world.tokens;
        for model in world.models.values() {
            *outcomes.entry(format!("{:?}", model.outcome)).or_insert(0_u32) += 1;
        }
    }
    println!("{tokens} tokens, {preemptions} preemptions, {outcomes:?}");
    assert!(1_000 < preemptions, "the runs must be tight enough to preempt");
    assert!(outcomes.values().all(|count| 500 < *count) && outcomes.len() == 4, "{outcomes:?}");
}

#[test]
fn a_seed_repeats_its_run() {
    let run = |seed| {
        let world = World::new(seed).run();
        (world.tokens, world.preemptions, world.agenda.now())
    };
    for seed in [0, 1, 77] {
        assert_eq!(run(seed), run(seed));
    }
}
