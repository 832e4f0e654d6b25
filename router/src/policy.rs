//! How a worker is chosen among those that can take a request: a closed set of policies, each a small pure function.
//!
//! A policy sees each candidate of one role as a few numbers and gives it a key; the least key is chosen. Equal keys are
//! ordered by a hash of seed, request and worker, so that no worker is favoured for its name and replicas of the router
//! with different seeds do not choose the same one. The same policy orders decode workers and prefill workers.
//!
//! Under every policy a miss, a request of which nobody holds anything, is decided by load alone: the policies that
//! look at cached blocks then see equal ones.

use shared::random::mix;
use shared::{RequestId, WorkerRank};

use crate::nanos::Nanos;

/// Requests above the mean that a worker may always have under `cache_aware` and `session`: a handful more is no
/// imbalance yet, and with one or two requests each the mean says little.
const LOAD_SLACK: u64 = 4;

/// The policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// Least cost in time; of those within `tie_margin` of it the least loaded.
    Cost,
    /// Longest cached prefix among workers within the load bound; of equal ones the least loaded.
    CacheAware,
    /// Fewest requests in work or waiting, then the shortest wait.
    LeastLoaded,
    /// The less loaded of two drawn at random.
    PowerOfTwo,
    /// One after the other, in the order of their names.
    RoundRobin,
    /// The same worker for the same session while it is within the load bound: a hash of the client's session key, or else
    /// of the prompt's first block. Replicas of the router agree on it.
    Session,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 6] = [
        Self::Cost,
        Self::CacheAware,
        Self::LeastLoaded,
        Self::PowerOfTwo,
        Self::RoundRobin,
        Self::Session,
    ];

    /// The word used in the configuration, in metrics and reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cost => "cost",
            Self::CacheAware => "cache_aware",
            Self::LeastLoaded => "least_loaded",
            Self::PowerOfTwo => "power_of_two",
            Self::RoundRobin => "round_robin",
            Self::Session => "session",
        }
    }

    /// The policy that a word names.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == word)
    }
}

/// A candidate as the policies see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) worker: WorkerRank,
    pub(crate) total: Nanos,
    pub(crate) queue: Nanos,
    pub(crate) requests: u32,
    pub(crate) cached_blocks: u32,
}

/// What the policies need besides the candidates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    pub(crate) seed: u64,
    pub(crate) id: RequestId,
    /// What stands for the session: equal for its requests.
    pub(crate) session: u64,
    /// The worker chosen last in this role.
    pub(crate) last: Option<WorkerRank>,
    pub(crate) tie_margin: Nanos,
    pub(crate) load_bound_percent: u32,
}

/// What a policy compares candidates by; the least is best.
type Key = u64;

/// Requests and times share a key; what is beyond 65,535 requests or 78 hours is as good as that.
const REQUEST_BITS: u32 = 16;

fn requests(seen: &Seen) -> Key {
    u64::from(seen.requests).min((1 << REQUEST_BITS) - 1)
}

fn time(Nanos(nanos): Nanos) -> Key {
    nanos.min((1 << (Key::BITS - REQUEST_BITS)) - 1)
}

/// The positions of the best candidates. Its memory serves one decision after the other.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// How many are as good as the first for the policy, itself included; only the hash puts it before them.
    pub(crate) tied: u32,
    keys: Vec<Key>,
    /// The best so far, the best first: key, the first bits of the hash for ties, position.
    best: Vec<u128>,
}

/// Bits of a position: there are not more workers.
const POSITION_BITS: u32 = u16::BITS;

impl Order {
    /// Finds the best `kept` candidates, at least one if there is any.
    pub(crate) fn find(&mut self, policy: Policy, draw: &Draw, seen: &[Seen], kept: usize) {
        let Self { tied, keys, best } = self;
        keys.clear();
        fill(keys, policy, draw, seen);
        let tie = Tie::of(draw.seed, draw.id);
        best.clear();
        best.resize(kept.max(1).min(seen.len()), u128::MAX);
        for ((&key, it), position) in keys.iter().zip(seen).zip(0_u16..) {
            let hash = tie.with(it.worker) & !u64::from(u16::MAX);
            let mut ranked = u128::from(key) << Key::BITS | u128::from(hash | u64::from(position));
            if best.last().is_some_and(|&last| last < ranked) {
                continue;
            }
            // Past all that are better, without a branch for each: which way one goes cannot be foreseen. Selecting and
            // sorting took a fifth of a decision at 64 workers.
            for kept in &mut *best {
                (*kept, ranked) = ((*kept).min(ranked), (*kept).max(ranked));
            }
        }
        let least = keys.iter().min();
        let equal = keys.iter().filter(|&key| Some(key) == least).count();
        *tied = u32::try_from(equal).expect("fewer candidates than 2^32");
    }

    /// The positions, the best first.
    pub(crate) fn best_first(&self) -> impl ExactSizeIterator<Item = usize> {
        let position = |ranked: u128| ranked & ((1 << POSITION_BITS) - 1);
        self.best.iter().map(move |&it| usize::try_from(position(it)).expect("16 bits"))
    }
}

fn fill(keys: &mut Vec<Key>, policy: Policy, draw: &Draw, seen: &[Seen]) {
    match policy {
        Policy::Cost => cost(keys, draw, seen),
        Policy::CacheAware => cache_aware(keys, draw, seen),
        Policy::LeastLoaded => keys.extend(seen.iter().map(load)),
        Policy::PowerOfTwo => power_of_two(keys, draw, seen),
        Policy::RoundRobin => keys.extend(seen.iter().map(|it| round_robin(draw, it))),
        Policy::Session => session(keys, draw, seen),
    }
}

fn load(seen: &Seen) -> Key {
    requests(seen) << (Key::BITS - REQUEST_BITS) | time(seen.queue)
}

fn cost(keys: &mut Vec<Key>, draw: &Draw, seen: &[Seen]) {
    let least = seen.iter().map(|it| it.total).min().unwrap_or_default();
    let tied_up_to = least.plus(draw.tie_margin);
    let banded = |it: &Seen| {
        let band = if it.total <= tied_up_to { Nanos::ZERO } else { it.total };
        time(band) << REQUEST_BITS | requests(it)
    };
    keys.extend(seen.iter().map(banded));
}

fn cache_aware(keys: &mut Vec<Key>, draw: &Draw, seen: &[Seen]) {
    let bound = load_bound(draw, seen);
    let uncached = |it: &Seen| {
        let over = bound <= u64::from(it.requests);
        // Beyond the bound what is cached does not count any more.
        let uncached = if over { 0 } else { u64::from(u32::MAX - it.cached_blocks) };
        last_if(over) | uncached << REQUEST_BITS | requests(it)
    };
    keys.extend(seen.iter().map(uncached));
}

fn power_of_two(keys: &mut Vec<Key>, draw: &Draw, seen: &[Seen]) {
    let tie = Tie::of(draw.seed, draw.id);
    let ticket = |it: &Seen| mix(tie.with(it.worker));
    let mut tickets: Vec<u64> = seen.iter().map(ticket).collect();
    tickets.sort_unstable();
    let last = tickets.get(1).or_else(|| tickets.first()).copied().unwrap_or(0);
    keys.extend(seen.iter().map(|it| last_if(last < ticket(it)) | requests(it)));
}

fn round_robin(draw: &Draw, seen: &Seen) -> Key {
    let passed = draw.last.is_some_and(|last| seen.worker <= last);
    last_if(passed) | u64::from(seen.worker.worker.0) << 16 | u64::from(seen.worker.rank.0)
}

fn session(keys: &mut Vec<Key>, draw: &Draw, seen: &[Seen]) {
    let (bound, tie) = (load_bound(draw, seen), Tie::of(draw.session, RequestId(0)));
    // Rendezvous hashing: a worker that comes or goes moves only its own sessions.
    let homed = |it: &Seen| last_if(bound <= u64::from(it.requests)) | tie.with(it.worker) >> 1;
    keys.extend(seen.iter().map(homed));
}

/// Puts a candidate behind all others.
fn last_if(is_last: bool) -> Key {
    u64::from(is_last) << (Key::BITS - 1)
}

/// Requests that make a worker too loaded to be chosen for its cache or a session.
fn load_bound(draw: &Draw, seen: &[Seen]) -> u64 {
    let sum: u64 = seen.iter().map(|it| u64::from(it.requests)).sum();
    let count = u64::try_from(seen.len()).unwrap_or(u64::MAX).max(1);
    let scaled = (sum + 1).saturating_mul(u64::from(draw.load_bound_percent));
    scaled.div_ceil(100 * count) + LOAD_SLACK
}

/// Hashes that differ between workers, requests and seeds: what of them is the same for all workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tie(u64);

impl Tie {
    pub(crate) fn of(seed: u64, id: RequestId) -> Self {
        let words = id.0.to_le_bytes();
        let (low, high) = words.split_at(8);
        let word = |bytes: &[u8]| bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        Self([word(low), word(high)].into_iter().fold(mix(seed), |hash, part| mix(hash ^ part)))
    }

    /// The hash for a worker.
    pub(crate) fn with(self, worker: WorkerRank) -> u64 {
        mix(self.0 ^ (u64::from(worker.worker.0) << 16 | u64::from(worker.rank.0)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use shared::{Random, RequestId, WorkerRank};

    use super::{Draw, Order, Policy, Seen};
    use crate::nanos::Nanos;
    use crate::testing::rank;

    fn draw(id: u128) -> Draw {
        Draw {
            seed: 3,
            id: RequestId(id),
            session: 11,
            last: None,
            tie_margin: Nanos(1_000_000),
            load_bound_percent: 125,
        }
    }

    /// Candidates by (cost in ms, requests, cached blocks); worker names count from 0.
    fn fleet(rows: &[(u64, u32, u32)]) -> Vec<Seen> {
        let seen = rows.iter().zip(0..).map(|(&(ms, requests, cached_blocks), worker)| Seen {
            worker: rank(worker),
            total: Nanos(ms * 1_000_000),
            queue: Nanos::ZERO,
            requests,
            cached_blocks,
        });
        seen.collect()
    }

    fn best(policy: Policy, draw: &Draw, rows: &[(u64, u32, u32)]) -> (WorkerRank, u32) {
        let seen = fleet(rows);
        let mut order = Order::default();
        order.find(policy, draw, &seen, 2);
        let best_first: Vec<usize> = order.best_first().collect();
        assert_eq!(best_first.len(), rows.len().min(2));
        (seen[best_first[0]].worker, order.tied)
    }

    #[test]
    fn each_policy_chooses_by_its_own_rule() {
        use Policy::{CacheAware, Cost, LeastLoaded};
        // The fleet, then who is chosen and how many were as good.
        type Case = (Policy, &'static [(u64, u32, u32)], u32, u32);
        let cases: [Case; 10] = [
            (Cost, &[(9, 0, 0), (5, 9, 0), (7, 1, 9)], 1, 1),
            // Within a millisecond the less loaded one is as good.
            (Cost, &[(5, 3, 0), (6, 2, 0), (7, 0, 0)], 1, 1),
            (Cost, &[(5, 0, 0), (50, 0, 0)], 0, 1),
            (CacheAware, &[(1, 0, 0), (9, 3, 7), (9, 0, 3)], 1, 1),
            (CacheAware, &[(1, 3, 7), (9, 2, 7), (9, 0, 3)], 1, 1),
            // Twenty requests against a mean of seven: more than 125 % and 4.
            (CacheAware, &[(1, 0, 0), (9, 20, 7), (9, 1, 0)], 0, 1),
            (CacheAware, &[(1, 2, 0), (9, 1, 0), (9, 3, 0)], 1, 1),
            // Everybody beyond the bound cannot be: the mean is not above itself.
            (CacheAware, &[(1, 64, 1), (9, 64, 2), (9, 64, 0)], 1, 1),
            (LeastLoaded, &[(1, 2, 9), (9, 1, 0), (9, 3, 0)], 1, 1),
            (LeastLoaded, &[(1, 2, 9), (9, 2, 0), (9, 3, 0)], 0, 2),
        ];
        for (policy, rows, chosen, tied) in cases {
            let found = best(policy, &draw(1), rows);
            assert_eq!(found.1, tied, "{} {rows:?}", policy.as_str());
            if tied == 1 {
                assert_eq!(found.0, rank(chosen), "{} {rows:?}", policy.as_str());
            }
        }
    }

    #[test]
    fn the_best_are_the_first_of_all_in_order() {
        println!("seed 11");
        let mut random = Random::new(11);
        let mut order = Order::default();
        for _ in 0..300 {
            let count = random.below(40);
            let rows: Vec<_> = (0..count)
                .map(|_| (random.word() % 6, u32::try_from(random.below(3)).expect("few"), 1))
                .collect();
            let (seen, draw) = (fleet(&rows), draw(u128::from(random.word())));
            for policy in Policy::ALL {
                let mut find = |kept| {
                    order.find(policy, &draw, &seen, kept);
                    order.best_first().collect::<Vec<usize>>()
                };
                let (all, kept) = (find(usize::MAX), random.below(10));
                let mut sorted = all.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..count), "each is there once");
                assert_eq!(find(kept), all[..count.min(kept.max(1))]);
                let keys: Vec<_> = all.iter().map(|&at| order.keys[at]).collect();
                assert!(keys.is_sorted(), "{} {rows:?}", policy.as_str());
            }
        }
    }

    #[test]
    fn ties_fall_evenly_and_by_the_seed() {
        let rows = [(5, 1, 2); 4];
        for policy in [Policy::Cost, Policy::CacheAware, Policy::LeastLoaded, Policy::PowerOfTwo] {
            let shares = |seed| {
                let mut shares: BTreeMap<WorkerRank, u32> = BTreeMap::new();
                for id in 0..400 {
                    let draw = Draw { seed, ..draw(id) };
                    *shares.entry(best(policy, &draw, &rows).0).or_default() += 1;
                }
                shares
            };
            let even = shares(1).values().filter(|share| (60..=140).contains(*share)).count();
            assert_eq!(even, 4, "{}: {:?}", policy.as_str(), shares(1));
            let differ = (0..100).filter(|&id| {
                let other = Draw { seed: 9, ..draw(id) };
                best(policy, &draw(id), &rows).0 != best(policy, &other, &rows).0
            });
            assert!(40 < differ.count(), "{}", policy.as_str());
        }
    }

    #[test]
    fn the_better_of_two_is_never_the_worst_of_the_fleet() {
        let rows = [(1, 9, 0), (1, 5, 0), (1, 1, 0)];
        let mut shares = [0; 3];
        for id in 0..300 {
            let worker = best(Policy::PowerOfTwo, &draw(id), &rows).0;
            shares[usize::try_from(worker.worker.0).expect("small")] += 1;
        }
        // Of three pairs two have the idle one, and one has the middle one as its better half.
        assert!(shares[0] == 0 && 150 < shares[2] && 60 < shares[1], "{shares:?}");
        assert_eq!(best(Policy::PowerOfTwo, &draw(1), &rows[..1]).0, rank(0));
    }

    #[test]
    fn round_robin_visits_all_in_turn_as_members_come_and_go() {
        let mut last = None;
        let mut turns = Vec::new();
        for count in [3, 3, 3, 3, 2, 2, 4, 4, 4] {
            let rows = vec![(1, 0, 0); count];
            let worker = best(Policy::RoundRobin, &Draw { last, ..draw(7) }, &rows).0;
            turns.push(worker.worker.0);
            last = Some(worker);
        }
        assert_eq!(turns, [0, 1, 2, 0, 1, 0, 1, 2, 3]);
    }

    #[test]
    fn a_session_stays_until_its_worker_is_overloaded_or_gone() {
        let of = |session, seed, rows: &[(u64, u32, u32)]| {
            best(Policy::Session, &Draw { session, seed, ..draw(u128::from(seed)) }, rows).0
        };
        let idle = vec![(1, 0, 0); 8];
        let mut moved = 0;
        for session in 0..100 {
            let home = of(session, 1, &idle);
            assert_eq!(home, of(session, 2, &idle), "requests and replicas agree");
            let mut busy = idle.clone();
            busy[usize::try_from(home.worker.0).expect("small")].1 = 40;
            assert_ne!(of(session, 1, &busy), home, "40 requests against a mean of 5");
            moved += u32::from(home != of(session, 1, &idle[..7]));
        }
        assert!(
            (3..30).contains(&moved),
            "one of eight workers left: {moved} of 100 sessions moved"
        );
    }

    #[test]
    fn words_name_policies() {
        for policy in Policy::ALL {
            assert_eq!(Policy::parse(policy.as_str()), Some(policy));
        }
        assert_eq!(Policy::parse("best"), None);
    }
}
