//! Both pure schedulers together in virtual time: a decode worker that visits a prefill worker, with pools that are too
//! small, clients that leave, deadlines, preemptions, and a prefill worker that dies.
//!
//! Checked after every event: no slot beyond a pool, no row twice or in the wrong order, no token lost or repeated, every
//! bound kept; at the end everybody got an answer and every slot is back. No engine, no thread, no clock: thousands of
//! seeds in seconds.

mod decode_side;
mod prefill_side;
mod world;

use std::collections::BTreeMap;

use decode_side::Outcome;
use world::World;

const SEEDS: u64 = 8_000;

#[test]
fn thousands_of_seeded_runs_lose_no_slot_and_no_token() {
    let mut totals = world::Counts::default();
    let mut outcomes: BTreeMap<Outcome, u32> = BTreeMap::new();
    for seed in 0..SEEDS {
        let run = std::panic::catch_unwind(|| World::new(seed).run());
        let world = run.unwrap_or_else(|_| panic!("seed {seed} failed"));
        totals.add(&world.counts);
        for outcome in world.outcomes() {
            *outcomes.entry(outcome).or_default() += 1;
        }
    }
    println!("{totals:?}, {outcomes:?}");
    // The runs must be tight enough to reach everything.
    for outcome in [Outcome::Finished, Outcome::Refused, Outcome::Cancelled, Outcome::Expired] {
        assert!(500 < outcomes[&outcome], "{outcomes:?}");
    }
    assert_eq!(outcomes.get(&Outcome::Open), None);
    for (what, count) in totals.all() {
        assert!(500 < count, "{what}: {count}");
    }
}

#[test]
fn a_seed_repeats_its_run() {
    for seed in [0, 1, 77] {
        let [first, again] = [0, 1].map(|_| World::new(seed).run());
        assert_eq!((first.now(), first.counts), (again.now(), again.counts));
    }
}
