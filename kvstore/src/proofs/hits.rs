//! Writers publish what readers plan with.
//!
//! The writers' rules are written out here as the workers keep them (`prefill/src/worker/compute.rs`: blocks of `[X, S)`,
//! the window object at S and at every `window_interval` it passes; `decode/src/worker/active.rs`: full blocks from X on,
//! the window object at S when it rebuilt it, and the one at S(T) when a sequence of T tokens ends). The readers' rules
//! are the planner's own, asked as the workers ask it. Requests of a few conversations that share prefixes follow each
//! other over one store, and each must find what architecture.md, sections 1, 5 and 6, promises it.

use std::collections::BTreeMap;

use shared::{
    BLOCK_TOKENS, BlockName, Lineage, ObjectKey, ObjectKind, Random, Root, StartGeometry, Tier,
    TokenId, block_names,
};

use crate::planner::{
    StartCosts, StartPlan, StartQuery, StartRole, WindowCandidate, WindowPlan, plan_start,
    replay_rows, useful_window_floor,
};

const WORLDS: u64 = 2_000;
const REQUESTS: usize = 12;
/// Fetching is so cheap that it always pays: what can be used is used.
const COSTS: StartCosts =
    StartCosts { block_fetch_ms: 0.001, window_fetch_ms: 0.002, encoder_row_ms: 1.0 };

/// One cluster: its model's numbers, its settings, and all it has cached.
struct World {
    geometry: StartGeometry,
    lineage: Lineage,
    bounded_rows: u32,
    window_interval: u32,
    root: Root,
    /// What is cached, and whether it is exact. First write wins.
    cached: BTreeMap<ObjectKey, bool>,
    met: Met,
}

/// How often a promise was put to the test.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    /// An equal request found the object at S.
    repeats: u32,
    /// A next turn found the object at S(T).
    turns: u32,
    /// A branch found an object of the interval.
    branches: u32,
    /// Prefill began behind cached blocks.
    visits_behind_blocks: u32,
}

/// What became of a request.
#[derive(Debug)]
struct Served {
    plan: StartPlan,
    /// Prefill's own plan, when it was asked.
    visit: Option<StartPlan>,
}

fn index(position: u32) -> usize {
    usize::try_from(position / BLOCK_TOKENS).unwrap()
}

fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap()
}

impl World {
    fn new(generator: &mut Random) -> Self {
        let mut below = |bound: usize| u32::try_from(generator.below(bound)).unwrap();
        let window = [64, 128][usize::try_from(below(2)).unwrap()];
        Self {
            geometry: StartGeometry { window, rollback: 12, encoder_layers: 1 + below(20) },
            lineage: [Lineage::Exact, Lineage::Bounded][usize::try_from(below(2)).unwrap()],
            bounded_rows: window + below(200),
            window_interval: BLOCK_TOKENS * (1 + below(16)),
            root: Root::from_bytes([7; 32]),
            cached: BTreeMap::new(),
            met: Met::default(),
        }
    }

    fn names(&self, ids: &[TokenId]) -> Vec<BlockName> {
        block_names(&self.root, ids)
    }

    fn exactness(&self, kind: ObjectKind, name: BlockName) -> Option<bool> {
        self.cached.get(&ObjectKey { kind, name }).copied()
    }

    fn publish(&mut self, kind: ObjectKind, name: BlockName, exact: bool) {
        self.cached.entry(ObjectKey { kind, name }).or_insert(exact);
    }

    /// The object that ends at a boundary above 0.
    fn window_at(&self, names: &[BlockName], at: u32) -> Option<bool> {
        self.exactness(ObjectKind::Window, names[index(at) - 1])
    }

    fn leading(&self, names: &[BlockName]) -> u32 {
        let there = |name: &&BlockName| self.exactness(ObjectKind::Block, **name).is_some();
        count(names.iter().take_while(there).count())
    }

    /// Asks the planner for a start at the end of `names` or earlier, for a reader that has the first `device` blocks in its
    /// own pool and looks window objects up from `lowest` on.
    fn ask(&self, role: StartRole, names: &[BlockName], device: u32, lowest: u32) -> StartPlan {
        let target = count(names.len()) * BLOCK_TOKENS;
        let first = lowest.next_multiple_of(BLOCK_TOKENS).max(BLOCK_TOKENS);
        let windows: Vec<WindowCandidate> = (first..=target)
            .step_by(usize::try_from(BLOCK_TOKENS).unwrap())
            .filter_map(|at| {
                let exact = self.window_at(names, at)?;
                Some(WindowCandidate { at, tier: Tier::Host, exact })
            })
            .collect();
        plan_start(&StartQuery {
            role,
            geometry: self.geometry,
            lineage: self.lineage,
            bounded_rows: self.bounded_rows,
            target,
            device_blocks: device,
            reachable_blocks: self.leading(names),
            windows: &windows,
            costs: COSTS,
        })
    }

    /// As the workers ask: they look up no window object below the useful floor of what they have.
    fn plan(&self, role: StartRole, names: &[BlockName], device: u32) -> StartPlan {
        let (geometry, rows) = (self.geometry, self.bounded_rows);
        let floor = useful_window_floor(geometry, self.lineage, rows, device * BLOCK_TOKENS);
        let plan = self.ask(role, names, device, floor);
        self.check_plan(names, &plan);
        plan
    }

    /// A plan stands on objects that are cached, and on nothing it does not need.
    fn check_plan(&self, names: &[BlockName], plan: &StartPlan) {
        let attached = plan.ask.as_ref().map_or(plan.start, |ask| ask.start);
        assert!(
            names[..index(attached)]
                .iter()
                .all(|name| { self.exactness(ObjectKind::Block, *name).is_some() })
        );
        assert_eq!(plan.fetch_blocks.end * BLOCK_TOKENS, attached, "blocks of [0, X), none above");
        if let WindowPlan::Object { at, .. } | WindowPlan::Recompute { from: at, .. } = plan.window
        {
            let exact = self.window_at(names, at).expect("a planned window object is cached");
            assert!(exact || self.lineage == Lineage::Bounded);
        }
        if self.lineage == Lineage::Exact {
            assert!(plan.windows_exact, "{plan:?}");
        }
    }

    /// Whether what is computed behind a start equals a cold run.
    fn is_exact(&self, names: &[BlockName], plan: &StartPlan) -> bool {
        let blocks = names[..index(plan.start)].iter();
        plan.windows_exact
            && blocks.map(|name| self.exactness(ObjectKind::Block, *name)).all(|e| e == Some(true))
    }

    /// A prefill worker computes up to the end of `names`.
    fn prefill(&mut self, names: &[BlockName]) -> StartPlan {
        let plan = self.plan(StartRole::Prefill, names, 0);
        let to = count(names.len()) * BLOCK_TOKENS;
        let exact = self.is_exact(names, &plan);
        for name in &names[index(plan.start)..] {
            self.publish(ObjectKind::Block, *name, exact);
        }
        for at in (BLOCK_TOKENS..=to).step_by(usize::try_from(BLOCK_TOKENS).unwrap()) {
            if at == to || (plan.start < at && at.is_multiple_of(self.window_interval)) {
                self.publish(ObjectKind::Window, names[index(at) - 1], exact);
            }
        }
        plan
    }

    /// A decode worker serves a prompt, with `emitted` tokens of answer behind it in `ids`.
    fn decode(&mut self, ids: &[TokenId], emitted: usize, role: StartRole) -> Served {
        let names = self.names(ids);
        let boundary = self.geometry.boundary(count(ids.len() - emitted));
        let prompt = &names[..index(boundary)];
        let plan = self.plan(role, prompt, 0);
        let visit = plan.ask.as_ref().map(|ask| {
            assert_eq!(ask.end, boundary, "prefill computes up to S and no further");
            let visit = self.prefill(prompt);
            // Decode starts at S then: all of [0, S) and the object at S can be had.
            assert_eq!(self.leading(prompt) * BLOCK_TOKENS, boundary);
            assert!(self.window_at(prompt, boundary).is_some());
            visit
        });
        let windows_exact = match visit {
            Some(_) => self.window_at(prompt, boundary) == Some(true),
            None => plan.windows_exact,
        };
        let exact = self.is_exact(&names, &StartPlan { windows_exact, ..plan.clone() });
        // The last token is sampled and not computed.
        let processed = count(ids.len() - 1);
        for name in &names[index(plan.start)..index(processed)] {
            self.publish(ObjectKind::Block, *name, exact);
        }
        // A replay leaves complete windows behind once it has W - 1 rows.
        let rebuilt = plan.start < boundary || self.geometry.window <= plan.replayed_rows() + 1;
        if 0 < boundary && rebuilt {
            self.publish(ObjectKind::Window, names[index(boundary) - 1], exact);
        }
        let last = self.geometry.boundary(count(ids.len()));
        if 0 < last && boundary < last {
            self.publish(ObjectKind::Window, names[index(last) - 1], exact);
        }
        Served { plan, visit }
    }

    /// What a second, equal request finds: everything.
    fn check_repeat(&mut self, ids: &[TokenId], emitted: usize) {
        let boundary = self.geometry.boundary(count(ids.len() - emitted));
        let names = self.names(ids);
        let prompt = &names[..index(boundary)];
        for role in [StartRole::DecodeWithPrefill, StartRole::DecodeAlone] {
            let plan = self.plan(role, prompt, 0);
            assert_eq!((plan.start, plan.ask.clone()), (boundary, None), "all of [0, S) is cached");
            let usable = |exact: bool| exact || self.lineage == Lineage::Bounded;
            if 0 < boundary && self.window_at(prompt, boundary).is_some_and(usable) {
                let at_start = WindowPlan::Object { at: boundary, tier: Tier::Host };
                assert_eq!((plan.window, plan.replayed_rows()), (at_start, 0));
                self.met.repeats += 1;
            }
        }
    }

    /// What the next turn finds, whose prompt begins with everything said so far.
    fn check_next_turn(&mut self, ids: &[TokenId], generator: &mut Random) {
        let mut next: Vec<TokenId> = ids.to_vec();
        next.extend((0..1 + generator.below(600)).map(|id| TokenId(90_000 + count(id))));
        let boundary = self.geometry.boundary(count(next.len()));
        let names = self.names(&next);
        let prompt = &names[..index(boundary)];
        let plan = self.plan(StartRole::Prefill, prompt, 0);
        let processed = count(ids.len() - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
        let reach = processed.min(boundary);
        assert!(reach <= self.leading(prompt) * BLOCK_TOKENS, "all blocks of the last turn");
        let from = self.geometry.boundary(count(ids.len()));
        if 0 < from && self.lineage == Lineage::Exact {
            // Its windows are at most K + 127 tokens old, so few rows are recomputed instead of L * (W - 1).
            assert!(self.window_at(prompt, from).is_some(), "the object at S(T)");
            self.met.turns += 1;
            let useful = from.max(plan.start.saturating_sub(self.geometry.exact_replay_rows()));
            assert!(plan.first_row() >= useful, "{plan:?}, object at {from}");
            let behind = self.geometry.keep() + BLOCK_TOKENS;
            assert!(reach.saturating_sub(from) < behind, "{reach} {from}");
        }
        self.check_best(prompt, generator);
    }

    /// No window object that the lookup leaves out would have been better, whatever the reader has already.
    fn check_best(&self, names: &[BlockName], generator: &mut Random) {
        let leading = usize::try_from(self.leading(names)).unwrap();
        let device = count(generator.below(leading + 1));
        for role in [StartRole::Prefill, StartRole::DecodeAlone, StartRole::DecodeWithPrefill] {
            let plan = self.plan(role, names, device);
            assert_eq!(plan, self.ask(role, names, device, 0));
            let (geometry, rows) = (self.geometry, self.bounded_rows);
            let most = replay_rows(geometry, self.lineage, rows, plan.start);
            assert!(plan.replayed_rows() <= most, "{plan:?} recomputes more than a replay");
        }
    }

    /// A prompt that shares tokens with one that was prefilled finds the shared blocks and the objects of the interval.
    fn check_branch(&mut self, ids: &[TokenId], visit: &StartPlan, generator: &mut Random) {
        let shared = generator.below(ids.len());
        let mut branch = ids[..shared].to_vec();
        branch.extend((0..1_000).map(|id| TokenId(80_000 + id)));
        let names = self.names(&branch);
        let prompt = &names[..index(self.geometry.boundary(count(branch.len())))];
        let whole = count(shared) / BLOCK_TOKENS * BLOCK_TOKENS;
        assert!(
            whole.min(count(prompt.len()) * BLOCK_TOKENS) <= self.leading(prompt) * BLOCK_TOKENS
        );
        let plan = self.plan(StartRole::Prefill, prompt, 0);
        let object = whole / self.window_interval * self.window_interval;
        if visit.start < object && self.lineage == Lineage::Exact && whole <= plan.start {
            assert!(self.window_at(prompt, object).is_some(), "an object at every interval");
            self.met.branches += 1;
            let most = (plan.start - object).min(self.geometry.exact_replay_rows());
            assert!(plan.replayed_rows() <= most, "{plan:?}, object at {object}");
        }
        self.check_best(prompt, generator);
    }

    /// Objects leave: blocks by eviction, window objects by age. In the exact lineage what stays is exact.
    fn forget_some(&mut self, generator: &mut Random) {
        let keep = 2 + generator.below(6);
        self.cached.retain(|_, _| generator.below(keep) != 0);
    }

    fn check_exact(&self) {
        if self.lineage == Lineage::Exact {
            assert!(self.cached.values().all(|exact| *exact), "bytes are a function of the name");
        }
    }
}

/// Requests one after the other: new prompts, repeats, next turns and branches, the last of which forget nothing.
fn check_world(seed: u64) -> Met {
    let mut generator = Random::new(seed);
    let mut world = World::new(&mut generator);
    let mut talks: Vec<Vec<TokenId>> = Vec::new();
    for request in 0..REQUESTS {
        let fresh = u32::try_from(request).unwrap() * 1_000;
        let before = talks.len().checked_sub(1).map(|last| generator.below(last + 1));
        let mut ids = match (before, generator.below(4)) {
            (Some(talk), 1) => talks[talk].clone(),
            (Some(talk), 2 | 3) => talks[talk][..1 + generator.below(talks[talk].len())].to_vec(),
            _ => Vec::new(),
        };
        let added_max = [40, 300, 3_000][generator.below(3)];
        let added = 1 + generator.below(added_max);
        ids.extend((0..added).map(|id| TokenId(fresh + count(id % 900))));
        ids.truncate(6_000);
        let emitted_max = [2, 50, 700][generator.below(3)];
        let emitted = 1 + generator.below(emitted_max);
        ids.extend((0..emitted).map(|id| TokenId(70_000 + fresh + count(id % 900))));
        let role = [StartRole::DecodeWithPrefill, StartRole::DecodeAlone][generator.below(2)];
        let served = world.decode(&ids, emitted, role);
        world.check_exact();
        world.check_repeat(&ids, emitted);
        world.check_next_turn(&ids, &mut generator);
        let prompt = &ids[..ids.len() - emitted];
        if let Some(visit) = &served.visit {
            assert_eq!(served.plan.start, world.geometry.boundary(count(prompt.len())));
            world.met.visits_behind_blocks += u32::from(0 < visit.start);
            let boundary = usize::try_from(served.plan.start).unwrap();
            world.check_branch(&ids[..boundary], visit, &mut generator);
        }
        talks.push(ids);
        if generator.below(3) == 0 {
            world.forget_some(&mut generator);
        }
    }
    world.met
}

#[test]
fn what_writers_publish_is_what_readers_plan_with() {
    let first = 20_261_204;
    println!("seeds from {first} on");
    let mut total = Met::default();
    for met in (first..first + WORLDS).map(check_world) {
        total.repeats += met.repeats;
        total.turns += met.turns;
        total.branches += met.branches;
        total.visits_behind_blocks += met.visits_behind_blocks;
    }
    println!("{total:?}");
    let Met { repeats, turns, branches, visits_behind_blocks } = total;
    for count in [repeats, turns, branches, visits_behind_blocks] {
        assert!(100 < count, "a promise was hardly put to the test: {total:?}");
    }
}
