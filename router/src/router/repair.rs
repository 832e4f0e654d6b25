//! Members whose events are lost, and routers that ask: in the end the index is what the members hold, and little was
//! told again for it.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use shared::{
    BlockName, CacheChange, CacheEvent, CacheQuestion, Random, RangeDigests, RangeSet,
    StartGeometry, Tier, Timestamp, WorkerEvent, range_of,
};

use super::{Action, Router};
use crate::config::RouterConfig;
use crate::index::ViewState;
use crate::role::Role;
use crate::testing::{block, rank};

const GEOMETRY: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };
const TIERS: [Tier; 2] = [Tier::Host, Tier::Disk];

/// One store, the way to its router, and the router.
struct World {
    router: Router,
    now: Timestamp,
    held: BTreeSet<(BlockName, Tier)>,
    sequence: u64,
    questions: VecDeque<CacheQuestion>,
    /// Names told because somebody asked.
    names_again: usize,
}

impl World {
    fn new(entries_max: usize) -> Self {
        let mut config = RouterConfig::with_defaults(GEOMETRY);
        config.index_entries_max = entries_max;
        // The first level alone tells who holds what, and counts it.
        config.index_drive_blocks_max = 0;
        let mut router = Router::new(config).expect("valid settings");
        router.worker_joined(rank(1), Role::Store, Timestamp(0)).expect("room");
        Self {
            router,
            now: Timestamp(0),
            held: BTreeSet::new(),
            sequence: 0,
            questions: VecDeque::new(),
            names_again: 0,
        }
    }

    /// The member tells a change that it made; whether it arrives is said.
    fn tell(&mut self, change: CacheChange, arrives: bool) {
        let event = CacheEvent { worker: rank(1), incarnation: 7, sequence: self.sequence, change };
        self.sequence += 1;
        if arrives {
            let actions = self.router.worker_event(&WorkerEvent::Cache(event), self.now);
            self.carry_out(actions);
        }
    }

    fn store(&mut self, tier: Tier, names: Vec<BlockName>, arrives: bool) {
        let new = names.into_iter().filter(|&name| self.held.insert((name, tier)));
        let names = new.collect();
        self.tell(CacheChange::Stored { tier, names }, arrives);
    }

    fn remove(&mut self, tier: Tier, names: Vec<BlockName>, arrives: bool) {
        let gone = names.into_iter().filter(|&name| self.held.remove(&(name, tier)));
        let names = gone.collect();
        self.tell(CacheChange::Removed { tier, names }, arrives);
    }

    fn answer(&mut self, question: &CacheQuestion, mut arrives: impl FnMut() -> bool) {
        let (first, ranges) = match question {
            CacheQuestion::Digests => {
                let mut digests = RangeDigests::default();
                for &(name, tier) in &self.held {
                    digests.add(name, tier);
                }
                (CacheChange::Digests(digests), RangeSet::default())
            }
            CacheQuestion::Ranges(ranges) => (CacheChange::RangesCleared(*ranges), *ranges),
            CacheQuestion::Whole => (CacheChange::Cleared, RangeSet::ALL),
        };
        self.tell(first, arrives());
        for tier in TIERS {
            let of = |&&(name, in_tier): &&(BlockName, Tier)| {
                in_tier == tier && ranges.contains(range_of(name))
            };
            let names: Vec<BlockName> = self.held.iter().filter(of).map(|held| held.0).collect();
            self.names_again += names.len();
            if !names.is_empty() {
                self.tell(CacheChange::Stored { tier, names }, arrives());
            }
        }
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Resync { worker, question } if worker == rank(1) => {
                    self.questions.push_back(question);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        let actions = self.router.tick(self.now);
        self.carry_out(actions);
    }

    /// Answers everything, without losses, until nothing is asked.
    fn settle(&mut self) {
        self.tell(CacheChange::Stored { tier: Tier::Host, names: Vec::new() }, true);
        for _ in 0..50 {
            while let Some(question) = self.questions.pop_front() {
                self.answer(&question, || true);
            }
            self.pass(Duration::from_secs(1));
        }
        assert!(self.questions.is_empty(), "nothing is asked for ever");
    }

    fn check(&self, names: &[BlockName]) {
        for &name in names {
            let leading = self.router.index.match_prefix(&[name]).of(rank(1)).leading;
            for tier in TIERS {
                let expected = u32::from(self.held.contains(&(name, tier)));
                assert_eq!(leading.of(tier), expected, "{name} in {tier:?}");
            }
        }
        let distinct: BTreeSet<BlockName> = self.held.iter().map(|held| held.0).collect();
        assert_eq!(self.router.index.view(rank(1)), Some((ViewState::Complete, distinct.len())));
    }
}

fn churn(seed: u64) -> World {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut world = World::new(10_000);
    let names: Vec<BlockName> = (0..600).map(|position| block(3, position)).collect();
    // Some histories lose hardly anything, some nearly all that is answered.
    let one_in = [2, 5, 40][random.below(3)];
    for _ in 0..300 {
        let tier = *random.pick(&TIERS);
        let (a, b) = (random.below(names.len()), random.below(20));
        let some = names[a..(a + b).min(names.len())].to_vec();
        let arrives = !random.one_in(one_in);
        match random.below(10) {
            0..=4 => world.store(tier, some, arrives),
            5..=7 => world.remove(tier, some, arrives),
            8 => world.pass(Duration::from_millis(random.word() % 3_000)),
            _ => {
                if let Some(question) = world.questions.pop_front() {
                    if random.one_in(4) {
                        continue;
                    }
                    world.answer(&question, || !random.one_in(one_in));
                }
            }
        }
    }
    world.settle();
    world.check(&names);
    world
}

#[test]
fn whatever_is_lost_the_index_is_what_is_held_in_the_end() {
    let asked = (0..400).map(|seed| churn(seed).router.counters.resyncs);
    let (digests, ranges, whole) = asked.fold((0, 0, 0), |sum, asked| {
        (sum.0 + asked.digests, sum.1 + asked.ranges, sum.2 + asked.whole)
    });
    assert!(1_000 < digests && 100 < ranges && 10 < whole, "{digests} {ranges} {whole}");
}

#[test]
fn one_lost_event_costs_its_ranges_and_nothing_else() {
    let mut world = World::new(100_000);
    let names: Vec<BlockName> = (0..20_000).map(|position| block(1, position)).collect();
    for (at, names) in names.chunks(1_000).enumerate() {
        world.store(TIERS[at % 2], names.to_vec(), true);
    }
    world.remove(Tier::Host, names[..3].to_vec(), false);
    world.settle();
    world.check(&names);
    let ranges: RangeSet = names[..3].iter().map(|&name| range_of(name)).collect();
    let held = world.held.iter().filter(|held| ranges.contains(range_of(held.0))).count();
    assert_eq!(world.names_again, held);
    assert!(held < 400, "{held} of 20,000");
    let snapshot = world.router.snapshot(world.now);
    let asked = snapshot.resyncs;
    assert_eq!((asked.digests, asked.ranges, asked.whole), (1, 1, 0));
    assert_eq!(snapshot.index.ranges_cleared, u64::from(ranges.len()));
    assert_eq!(snapshot.index.blocks_cleared_by_ranges, u64::try_from(held).expect("few") + 3);
}

#[test]
fn a_full_index_asks_for_its_ranges_once_per_loss() {
    let mut world = World::new(100);
    let names: Vec<BlockName> = (0..2_000).map(|position| block(1, position)).collect();
    world.store(Tier::Disk, names.clone(), true);
    // A loss of something that cancels out costs digests alone.
    for round in 1..=3 {
        world.store(Tier::Host, names[..1].to_vec(), false);
        world.remove(Tier::Host, names[..1].to_vec(), false);
        world.settle();
        let asked = world.router.counters.resyncs;
        assert_eq!((asked.digests, asked.ranges, asked.whole), (round, 0, 0));
    }
    world.remove(Tier::Disk, names[500..600].to_vec(), false);
    world.settle();
    let asked = world.router.counters.resyncs;
    assert_eq!((asked.digests, asked.ranges, asked.whole), (4, 1, 0));
    let unindexed = world.router.snapshot(world.now).workers[0].unindexed;
    let entries = u64::try_from(world.router.index.entries()).expect("few");
    assert_eq!((unindexed + entries, entries <= 100), (1_900, true));
}

#[test]
fn who_answers_nothing_is_believed_no_more() {
    let mut world = World::new(1_000);
    let names: Vec<BlockName> = (0..100).map(|position| block(1, position)).collect();
    world.store(Tier::Disk, names.clone(), true);
    world.remove(Tier::Disk, names[..50].to_vec(), false);
    world.store(Tier::Host, Vec::new(), true);
    let mut entries = Vec::new();
    for _ in 0..20 {
        world.pass(Duration::from_secs(1));
        entries.push(world.router.index.entries());
    }
    assert_eq!(entries, [vec![100; 4], vec![0; 16]].concat(), "one was asked for at the gap");
    let asked = world.router.counters.resyncs;
    assert_eq!((asked.digests, asked.ranges, asked.whole), (5, 0, 5));
    world.store(Tier::Host, names[..1].to_vec(), true);
    assert_eq!(world.router.index.view(rank(1)), Some((ViewState::Stale, 1)));
    world.questions.clear();
    world.answer(&CacheQuestion::Whole, || true);
    world.check(&names);
}
