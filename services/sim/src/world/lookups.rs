//! What workers ask of store nodes and offer to them, and how long blocks are on their way.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use kvstore::SealedSlot;
use shared::{BlockName, GROUP_BLOCKS, Tier, Timestamp, WorkerRank, owners};

use super::World;
use super::pace::average;
use super::seats::rank;
use crate::fault::Member;
use crate::settings::{ms, narrow, wide};

/// How long a worker waits for the answer to a lookup: the workers' default.
const LOCATE_WAIT: Duration = Duration::from_millis(250);

/// Weight of the newest read in the measured time of a block: about that of the workers.
const NEWEST: f64 = 0.1;

/// A worker's way in: one block after the other.
#[derive(Clone, Debug)]
pub(super) struct Link {
    free_at: Timestamp,
    /// Measured time of a block, ms.
    pub(super) block_ms: f64,
}

/// A copy in a store, pinned until it was read.
pub(super) struct Stored {
    pub(super) tier: Tier,
    pub(super) _slot: SealedSlot,
}

/// The answer to a lookup.
pub(super) struct Located {
    /// One place per name.
    pub(super) found: Vec<Option<Stored>>,
    /// When it is there.
    pub(super) at: Timestamp,
}

impl Link {
    pub(super) fn new(block_ms: f64) -> Self {
        Self { free_at: Timestamp(0), block_ms }
    }

    /// Brings `blocks` blocks; when the last one is there.
    pub(super) fn bring(&mut self, now: Timestamp, blocks: u64, block_ms: f64) -> Timestamp {
        if blocks == 0 {
            return now;
        }
        let count = u32::try_from(blocks).unwrap_or(u32::MAX);
        let begins = self.free_at.max(now);
        self.free_at = begins.after(ms(block_ms).saturating_mul(count));
        let took_ms = self.free_at.since(now).as_secs_f64() * 1_000.0;
        average(&mut self.block_ms, took_ms / f64::from(count), NEWEST);
        self.free_at
    }
}

impl World<'_> {
    /// Looks up those of a chain that are wanted.
    pub(super) fn locate(
        &mut self,
        names: &[BlockName],
        wanted: impl Fn(usize) -> bool,
    ) -> Located {
        let now = self.now();
        let mut at = now;
        let mut found: Vec<Option<Stored>> = names.iter().map(|_| None).collect();
        let members = self.store_members();
        if members.is_empty() {
            return Located { found, at };
        }
        let mut is_unanswered = false;
        for (group, names) in names.chunks(GROUP_BLOCKS).enumerate() {
            let first = group * GROUP_BLOCKS;
            if !(first..first + names.len()).any(&wanted) {
                continue;
            }
            let place = owner(names[0], &members);
            let seat = &mut self.stores[place];
            if seat.is_cut_off || !seat.seat.alive {
                is_unanswered = true;
                continue;
            }
            for (offset, name) in names.iter().enumerate() {
                if !wanted(first + offset) {
                    continue;
                }
                if let Some(copy) = seat.store.look_up(*name, now) {
                    at = at.max(copy.at);
                    found[first + offset] = Some(Stored { tier: copy.tier, _slot: copy.slot });
                }
            }
            self.touch(Member::Store(place));
        }
        if is_unanswered {
            self.measures.lookups_unanswered += 1;
            at = at.max(now.after(LOCATE_WAIT));
        }
        Located { found, at }
    }

    /// Offers blocks of a request's chain to the stores that own them. They are read at once.
    pub(super) fn offer(&mut self, number: usize, blocks: Range<usize>) {
        let (now, trace) = (self.now(), self.trace);
        let members = self.store_members();
        if members.is_empty() {
            return;
        }
        let request = &trace.requests[number];
        let name = |block: usize| request.name(number, narrow(wide(block)));
        let mut of_group: BTreeMap<usize, usize> = BTreeMap::new();
        for block in blocks {
            let first = block - block % GROUP_BLOCKS;
            let place = *of_group.entry(first).or_insert_with(|| owner(name(first), &members));
            let seat = &mut self.stores[place];
            if seat.is_cut_off || !seat.seat.alive {
                continue;
            }
            seat.store.offer(name(block), now);
            self.touch(Member::Store(place));
        }
    }

    /// The stores that are members, whether they can be reached or not.
    fn store_members(&self) -> Vec<WorkerRank> {
        (0..self.stores.len()).map(|place| rank(Member::Store(place))).collect()
    }
}

fn owner(group: BlockName, members: &[WorkerRank]) -> usize {
    owners(group, members, 1)[0]
}
