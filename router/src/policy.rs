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

/// What candidates are compared by; the least is best.
type Key = u128;

/// The first number counts, of equal ones the second.
fn key(first: u64, second: u64) -> Key {
    u128::from(first) << 64 | u128::from(second)
}

/// The positions of the best candidates.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) best_first: Vec<usize>,
    /// How many are as good as the first for the policy, itself included; only the hash puts it before them.
    pub(crate) tied: u32,
}

/// Finds the best `kept` candidates, at least one if there is any.
pub(crate) fn order(policy: Policy, draw: &Draw, seen: &[Seen], kept: usize) -> Order {
    let keys = keys(policy, draw, seen);
    let tie = Tie::of(draw.seed, draw.id);
    let better = |&left: &usize, &right: &usize| {
        // Few keys are equal, and a hash takes longer than a look at them.
        let hashes = || tie.with(seen[left].worker).cmp(&tie.with(seen[right].worker));
        let names = || seen[left].worker.cmp(&seen[right].worker);
        keys[left].cmp(&keys[right]).then_with(hashes).then_with(names)
    };
    let mut best_first: Vec<usize> = (0..seen.len()).collect();
    let kept = kept.max(1);
    if kept < best_first.len() {
        best_first.select_nth_unstable_by(kept - 1, better);
        best_first.truncate(kept);
    }
    best_first.sort_unstable_by(better);
    let least = best_first.first().map(|&best| keys[best]);
    let tied = keys.iter().filter(|&&key| Some(key) == least).count();
    Order { best_first, tied: u32::try_from(tied).expect("fewer candidates than 2^32") }
}

fn keys(policy: Policy, draw: &Draw, seen: &[Seen]) -> Vec<Key> {
    match policy {
        Policy::Cost => cost(draw, seen),
        Policy::CacheAware => cache_aware(draw, seen),
        Policy::LeastLoaded => seen.iter().map(load).collect(),
        Policy::PowerOfTwo => power_of_two(draw, seen),
        Policy::RoundRobin => seen.iter().map(|it| round_robin(draw, it)).collect(),
        Policy::Session => session(draw, seen),
    }
}

fn load(seen: &Seen) -> Key {
    key(u64::from(seen.requests), seen.queue.0)
}

fn cost(draw: &Draw, seen: &[Seen]) -> Vec<Key> {
    let least = seen.iter().map(|it| it.total).min().unwrap_or_default();
    let tied_up_to = least.plus(draw.tie_margin);
    let banded = |it: &Seen| {
        let Nanos(band) = if it.total <= tied_up_to { Nanos::ZERO } else { it.total };
        key(band, u64::from(it.requests))
    };
    seen.iter().map(banded).collect()
}

fn cache_aware(draw: &Draw, seen: &[Seen]) -> Vec<Key> {
    let bound = load_bound(draw, seen);
    let uncached = |it: &Seen| {
        let over = bound <= u64::from(it.requests);
        // Beyond the bound what is cached does not count any more.
        let uncached = if over { 0 } else { u64::from(u32::MAX - it.cached_blocks) };
        key(u64::from(over), uncached << 32 | u64::from(it.requests))
    };
    seen.iter().map(uncached).collect()
}

fn power_of_two(draw: &Draw, seen: &[Seen]) -> Vec<Key> {
    let tie = Tie::of(draw.seed, draw.id);
    let ticket = |it: &Seen| mix(tie.with(it.worker));
    let mut tickets: Vec<u64> = seen.iter().map(ticket).collect();
    tickets.sort_unstable();
    let last = tickets.get(1).or_else(|| tickets.first()).copied().unwrap_or(0);
    let drawn = |it: &Seen| key(u64::from(last < ticket(it)), u64::from(it.requests));
    seen.iter().map(drawn).collect()
}

fn round_robin(draw: &Draw, seen: &Seen) -> Key {
    let name = u64::from(seen.worker.worker.0) << 16 | u64::from(seen.worker.rank.0);
    key(u64::from(draw.last.is_some_and(|last| seen.worker <= last)), name)
}

fn session(draw: &Draw, seen: &[Seen]) -> Vec<Key> {
    let (bound, tie) = (load_bound(draw, seen), Tie::of(draw.session, RequestId(0)));
    let homed = |it: &Seen| {
        let over = bound <= u64::from(it.requests);
        // Rendezvous hashing: a worker that comes or goes moves only its own sessions.
        key(u64::from(over), tie.with(it.worker))
    };
    seen.iter().map(homed).collect()
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

    use shared::{RequestId, WorkerRank};

    use super::{Draw, Policy, Seen, order};
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
        let order = order(policy, draw, &seen, 2);
        assert_eq!(order.best_first.len(), rows.len().min(2));
        (seen[order.best_first[0]].worker, order.tied)
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
