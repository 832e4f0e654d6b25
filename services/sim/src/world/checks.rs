//! What must hold after every event, beyond what is asserted on the way.

use std::collections::{BTreeMap, HashMap, HashSet};

use shared::{
    BLOCK_TOKENS, BlockName, CacheChange, CacheEvent, Placement, Tier, WorkerRank, range_of,
};

use super::World;
use super::seats::{member_of, rank};
use crate::fault::Member;
use crate::settings::wide;

/// Events between two audits of stores.
const STORE_AUDITS: u64 = 32;

/// What members told, and what was sent to them.
#[derive(Default)]
pub(crate) struct Checks {
    told: BTreeMap<WorkerRank, HashMap<BlockName, Vec<Tier>>>,
    /// Blocks of requests that were placed: a router may expect those before it is told.
    placed: HashMap<WorkerRank, HashSet<BlockName>>,
}

impl Checks {
    pub(super) fn told(&mut self, event: &CacheEvent) {
        let told = self.told.entry(event.worker).or_default();
        match &event.change {
            CacheChange::Stored { tier, names } => {
                for name in names {
                    let tiers = told.entry(*name).or_default();
                    if !tiers.contains(tier) {
                        tiers.push(*tier);
                    }
                }
            }
            CacheChange::Removed { tier, names } => {
                for name in names {
                    let tiers = told.entry(*name).or_default();
                    tiers.retain(|other| other != tier);
                    if tiers.is_empty() {
                        told.remove(name);
                    }
                }
            }
            CacheChange::Cleared => told.clear(),
            CacheChange::RangesCleared(ranges) => {
                told.retain(|name, _| !ranges.contains(range_of(*name)));
            }
            CacheChange::Digests(_) => {}
        }
    }

    pub(super) fn left(&mut self, worker: WorkerRank) {
        self.told.remove(&worker);
        self.placed.remove(&worker);
    }

    /// A router expects no more of a worker than that and the stores told, or was sent there.
    pub(super) fn placed(&mut self, names: &[BlockName], placement: &Placement) {
        let worker = placement.decode;
        let is_store = |rank: &WorkerRank| matches!(member_of(*rank), Member::Store(_));
        let told = |name: &BlockName| {
            let mut members = self.told.iter();
            members
                .any(|(rank, told)| (*rank == worker || is_store(rank)) && told.contains_key(name))
        };
        let sent = self.placed.get(&worker);
        let known = names
            .iter()
            .take_while(|name| told(name) || sent.is_some_and(|sent| sent.contains(*name)))
            .count();
        let known = u32::try_from(known).expect("blocks of one prompt") * BLOCK_TOKENS;
        let expected = placement.expected_cached_tokens;
        assert!(expected <= known, "{expected} tokens expected at {worker}, {known} known");
        self.sent([Some(worker), placement.prefill], names);
    }

    /// A request was sent to workers, or a router hears so, which may be after they left and came back.
    pub(super) fn sent(&mut self, workers: [Option<WorkerRank>; 2], names: &[BlockName]) {
        for worker in workers.into_iter().flatten() {
            self.placed.entry(worker).or_default().extend(names);
        }
    }
}

impl World<'_> {
    /// After every event.
    pub(super) fn check(&self) {
        let placed_max = self.settings.decode_running * self.settings.routers;
        for (place, side) in self.decodes.iter().enumerate() {
            let worker = Some(rank(Member::Decode(place)));
            // Only a worker that was away can have been forgotten by a router that placed something on it.
            let was_away = 1 < side.seat.life;
            let placed = self.clients.iter().filter(|(number, client)| {
                client.decode() == worker && (!was_away || self.is_counted(**number, client))
            });
            assert!(wide(placed.count()) <= placed_max, "no worker over its bound");
            let audit = side.pool.audit();
            assert_eq!(audit.leaked, 0, "slots are explained");
            let limits = side.limits;
            assert!(side.scheduler.live() <= limits.sequences_max);
            assert!(side.scheduler.blocks_reserved() <= limits.blocks_max);
            let held = u32::try_from(audit.pinned + audit.owned).expect("a pool counts in 32 bits");
            assert!(held <= side.scheduler.blocks_reserved(), "slots lie within reservations");
            assert_eq!(side.jobs.len(), side.scheduler.live() + side.scheduler.waiting());
            for key in side.jobs.keys() {
                assert!(side.scheduler.stage(*key).is_some(), "who is there is scheduled");
            }
        }
        for side in &self.prefills {
            assert_eq!(side.pool.audit().leaked, 0, "slots are explained");
            let load = side.scheduler.load();
            assert!(load.running <= side.limits.running_max);
            assert!(load.waiting <= side.limits.waiting_max);
            assert_eq!(side.jobs.len(), load.running + load.waiting + load.held);
        }
        // A store's pool has many more slots than the others.
        if self.events.is_multiple_of(STORE_AUDITS) {
            for store in &self.stores {
                assert_eq!(store.store.pool.audit().leaked, 0, "slots are explained");
            }
        }
        let working: usize = self.decodes.iter().map(|side| side.jobs.len()).sum();
        assert!(working <= self.clients.len(), "nothing works for who is gone");
    }

    /// When every request has its outcome.
    pub(super) fn check_end(&mut self) {
        self.check_routers_end();
        let answered: u64 = self.measures.outcomes.iter().sum();
        assert_eq!(usize::try_from(answered), Ok(self.trace.requests.len()), "one outcome each");
        for side in &self.decodes {
            assert!(side.jobs.is_empty() && side.scheduler.live() + side.scheduler.waiting() == 0);
            assert_eq!(side.scheduler.blocks_reserved(), 0);
            assert_eq!(side.pool.available(), side.pool.total(), "every slot is free or cached");
        }
        for side in &self.prefills {
            assert!(side.jobs.is_empty(), "no visit is left");
            assert_eq!(side.pool.available(), side.pool.total(), "every slot is free or cached");
        }
        for store in &self.stores {
            let pool = &store.store.pool;
            assert_eq!(pool.available(), pool.total(), "every slot is free or cached");
        }
    }
}
