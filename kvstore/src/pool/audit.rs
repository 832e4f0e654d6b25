//! A recount of every slot that trusts none of the pool's counters.
//!
//! Membership in the lists is found by walking them, and the number of guards by counting the witnesses they hold. A
//! slot is explained when exactly one of the five reasons below holds and its counters agree with it; else it leaked.

use std::sync::Arc;

use super::state::{Phase, Slot, State};

/// Where every slot of a pool is. The six numbers add up to the pool's slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolAudit {
    /// Slots in the free list.
    pub free: usize,
    /// Named slots that nobody holds: evictable.
    pub cached: usize,
    /// Slots held by at least one [`crate::SealedSlot`].
    pub pinned: usize,
    /// Slots held by an [`crate::OwnedSlot`].
    pub owned: usize,
    /// Slots held by reads alone.
    pub open_reads: usize,
    /// Slots whose state none of the others explains. Always 0 unless there is a fault in the pool.
    pub leaked: usize,
}

impl PoolAudit {
    /// Whether nobody holds anything: every slot is free or cached.
    #[must_use]
    pub fn is_at_rest(self) -> bool {
        self.pinned + self.owned + self.open_reads + self.leaked == 0
    }
}

/// How many lists a slot was found in.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Places {
    free: usize,
    cached: usize,
}

pub(super) fn recount(state: &State) -> PoolAudit {
    let mut places = vec![Places::default(); state.slots.len()];
    for slot in &state.free {
        places[slot.index()].free += 1;
    }
    // Bounded, so that a broken link cannot walk in a circle.
    for slot in state.cached.iter().take(state.slots.len()) {
        places[slot.index()].cached += 1;
    }
    let mut named = vec![0_usize; state.slots.len()];
    for slot in state.by_name.values() {
        named[slot.index()] += 1;
    }
    let mut audit = PoolAudit::default();
    for ((slot, places), named) in state.slots.iter().zip(places).zip(named) {
        *explanation(slot, places, named, &mut audit) += 1;
    }
    audit
}

fn explanation<'a>(
    slot: &Slot,
    places: Places,
    named: usize,
    audit: &'a mut PoolAudit,
) -> &'a mut usize {
    let living = &slot.living;
    let [owners, pins, reads] = [&living.owner, &living.pins, &living.reads].map(guards);
    let listed = (places.free, places.cached);
    match &slot.phase {
        Phase::Free if listed == (1, 0) && owners + pins + reads + named == 0 => &mut audit.free,
        Phase::Owned if listed == (0, 0) && owners == 1 && pins + reads + named == 0 => {
            &mut audit.owned
        }
        Phase::Sealed(sealed)
            if owners == 0
                && usize::from(sealed.named) == named
                && pins == count(sealed.pins)
                && reads == count(sealed.reads) =>
        {
            match (listed, pins, reads) {
                ((0, 1), 0, 0) if named == 1 => &mut audit.cached,
                ((0, 0), 1.., _) => &mut audit.pinned,
                ((0, 0), 0, 1..) => &mut audit.open_reads,
                _ => &mut audit.leaked,
            }
        }
        Phase::Free | Phase::Owned | Phase::Sealed(_) => &mut audit.leaked,
    }
}

fn guards(witness: &Arc<()>) -> usize {
    Arc::strong_count(witness) - 1
}

fn count(value: u32) -> usize {
    usize::try_from(value).expect("usize holds 32 bits on every supported target")
}
