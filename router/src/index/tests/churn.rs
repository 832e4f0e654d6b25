//! Random churn, with restarts, gaps, holes, clears and expectations, against the naive index.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shared::{
    BlockName, CacheChange, DpRank, Random, RangeDigests, RangeSet, Timestamp, WorkerId, WorkerRank,
};

use super::event;
use crate::index::PrefixIndex;
use crate::index::naive::NaiveIndex;
use crate::index::tiers::TIERS;
use crate::role::Role;
use crate::testing::block;

const MEMBERS: usize = 6;
const STEPS: usize = 300;

struct Source {
    incarnation: u64,
    sequence: u64,
}

/// Prefix-sharing sequences: chain c branches off chain c / 2 in the middle.
fn chains() -> Vec<Vec<BlockName>> {
    let mut chains: Vec<Vec<BlockName>> = Vec::new();
    for chain in 0..12_u32 {
        let mut names: Vec<BlockName> = Vec::new();
        if let Some(parent) = chains.get(usize::try_from(chain / 2).expect("small")) {
            names.extend(&parent[..parent.len() / 2]);
        }
        names.extend((0..8).map(|position| block(chain, position)));
        chains.push(names);
    }
    chains
}

fn random_change(random: &mut Random, chains: &[Vec<BlockName>]) -> CacheChange {
    let chain = random.pick(chains);
    let (a, b) = (random.below(chain.len()), random.below(chain.len() + 1));
    let mut names = chain[a.min(b)..a.max(b)].to_vec();
    // The start of the chain is what decides the length of a match: touch it often.
    names.extend(random.one_in(2).then_some(chain[0]));
    let tier = *random.pick(&TIERS);
    match random.below(40) {
        0 => CacheChange::Cleared,
        1 => CacheChange::RangesCleared(RangeSet::from_words([0; 4].map(|_: u64| random.word()))),
        2 | 3 => {
            let mut digests = RangeDigests::default();
            names.iter().for_each(|&name| digests.add(name, tier));
            CacheChange::Digests(digests)
        }
        4..=29 => CacheChange::Stored { tier, names },
        _ => CacheChange::Removed { tier, names },
    }
}

/// How often a walk ended with each combination of tiers, as a bit set of tiers reached.
type Seen = BTreeMap<u8, u32>;

struct World {
    random: Random,
    now: Timestamp,
    real: PrefixIndex,
    naive: NaiveIndex,
    sources: Vec<Source>,
    chains: Vec<Vec<BlockName>>,
    /// Whether members say only what they did not say before, as the second level asks.
    says_net_changes: bool,
}

impl World {
    fn new(seed: u64, drive_blocks: usize) -> Self {
        let says_net_changes = 0 < drive_blocks;
        let real = PrefixIndex::new(6, 10_000).with_expectations(10_000).with_drives(drive_blocks);
        let sources = (0..MEMBERS).map(|_| Source { incarnation: 1, sequence: 0 });
        Self {
            random: Random::new(seed),
            now: Timestamp(0),
            real,
            naive: NaiveIndex::default(),
            sources: sources.collect(),
            chains: chains(),
            says_net_changes,
        }
    }

    fn worker(at: usize) -> WorkerRank {
        WorkerRank {
            worker: WorkerId(u32::try_from(at / 2).expect("small")),
            rank: DpRank(u16::try_from(at % 2).expect("small")),
        }
    }

    fn role(at: usize) -> Role {
        if at < 4 { Role::Decode } else { Role::Store }
    }

    /// One event after something that may go wrong between two events. Answers the step in words.
    fn step(&mut self) -> String {
        let (random, sources) = (&mut self.random, &mut self.sources);
        let at = random.below(sources.len());
        let worker = Self::worker(at);
        match random.below(60) {
            0 => {
                self.real.leave(worker);
                self.naive.leave(worker);
            }
            1..=4 => {
                self.real.join(worker, Self::role(at)).expect("room");
                self.naive.join(worker, Self::role(at));
            }
            5 => sources[at] = Source { incarnation: sources[at].incarnation + 1, sequence: 0 },
            6 => sources[at].sequence += 1 + random.word() % 3,
            7 => sources[at].sequence = sources[at].sequence.saturating_sub(2),
            8 => sources[at].incarnation = sources[at].incarnation.saturating_sub(1),
            9 => {
                self.real.distrust(worker);
                self.naive.distrust(worker);
            }
            10 => {
                self.real.doubt(worker);
                self.naive.doubt(worker);
            }
            11..=20 => self.expect(worker),
            _ => {}
        }
        let mut change = random_change(&mut self.random, &self.chains);
        if self.says_net_changes {
            self.naive.keep_net(worker, &mut change);
        }
        let source = &mut self.sources[at];
        let event = event(worker, source.incarnation, source.sequence, change);
        source.sequence += 1;
        assert_eq!(self.real.apply(&event), self.naive.apply(&event), "{event:?}");
        format!("{event:?}")
    }

    fn expect(&mut self, worker: WorkerRank) {
        let chain = self.random.pick(&self.chains);
        let names: Arc<[BlockName]> = Arc::from(&chain[..1 + self.random.below(chain.len())]);
        let delay = Duration::from_millis(1 + self.random.word() % 50);
        let members: Vec<WorkerRank> = self.real.members().map(|(member, _)| member).collect();
        let members = if members.is_empty() { vec![worker] } else { members };
        let other = self.random.one_in(2).then(|| *self.random.pick(&members));
        let workers = [Some(worker), other.filter(|&other| other != worker)];
        let until = self.now.after(delay);
        for worker in workers.into_iter().flatten() {
            if self.real.role(worker) == Some(Role::Decode) {
                self.naive.expect(worker, &names, until);
            }
        }
        self.real.expect_soon(workers, &names, until);
        self.real.settle();
        self.now = self.now.after(Duration::from_millis(self.random.word() % 5));
        self.real.expire(self.now);
        self.naive.expire(self.now);
    }

    fn members(&self) -> Vec<(WorkerRank, Role)> {
        self.real.members().collect()
    }
}

fn churn(seed: u64, seen: &mut Seen) {
    let mut world = World::new(seed, 0);
    for step in 0..STEPS {
        let words = world.step();
        let at = format!("seed {seed}, step {step}: {words}");
        let (real, naive) = (&world.real, &world.naive);
        assert_eq!(real.entries(), naive.entries(), "{at}");
        assert_eq!(real.expected(), naive.expected(), "{at}");
        let names = world.random.pick(&world.chains);
        let found = real.match_prefix(names);
        for (worker, _) in real.members() {
            assert_eq!(real.view(worker).map(|view| view.0), naive.state(worker), "{at}");
            assert_eq!(real.suspect(worker), naive.suspect(worker), "{at}");
            let found = found.of(worker);
            assert_eq!(found, naive.match_prefix(worker, names), "{at}");
            let bits = found.reach_by_tier.iter().zip([1, 2, 4, 8]);
            let tiers = bits.map(|((_, blocks), bit)| if 0 < blocks { bit } else { 0 }).sum();
            *seen.entry(tiers).or_default() += 1;
        }
    }
    let members = world.members();
    for (worker, _) in members {
        world.real.leave(worker);
    }
    // Nothing is left behind: one more member's round over what was there gives all of it back.
    world.real.join(World::worker(0), Role::Decode).expect("room");
    for _ in 0..100 {
        world.real.expire(world.now);
    }
    assert_eq!((world.real.blocks(), world.real.exact.kept()), (0, 0), "seed {seed}");
}

#[test]
fn random_churn_equals_the_naive_index() {
    let mut seen = Seen::new();
    for seed in 0..1_000 {
        churn(seed, &mut seen);
    }
    assert_eq!(seen.len(), 16, "every combination of tiers occurred: {seen:?}");
}

/// With a second level a store's drives are not exact any more: nothing may be missed, and what is claimed too much is as
/// rare as its 22 bits say.
#[test]
fn random_churn_with_a_second_level_misses_nothing() {
    let (mut walks, mut too_much) = (0_u32, 0);
    for seed in 0..500 {
        let mut world = World::new(seed, 10_000);
        for step in 0..STEPS {
            let words = world.step();
            let names = world.random.pick(&world.chains);
            let found = world.real.match_prefix(names);
            for (worker, _) in world.real.members() {
                let (real, naive) = (found.of(worker), world.naive.match_prefix(worker, names));
                assert!(naive.reach <= real.reach, "seed {seed}, step {step}: {words}");
                too_much += u32::from(real.reach_by_tier != naive.reach_by_tier);
                walks += 1;
            }
        }
    }
    assert!(too_much * 10_000 <= walks, "{too_much} of {walks} walks claim too much");
}
