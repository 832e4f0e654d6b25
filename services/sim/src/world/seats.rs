//! What all members have in common: their name, their life, their place in the sequence of their events.

use std::time::Duration;

use router::Role;
use shared::{DpRank, Timestamp, WorkerId, WorkerRank};

use crate::fault::Member;
use crate::settings::Settings;
use crate::store::Store;

/// Numbers of members: the role in the hundreds.
const DECODE: u32 = 100;
const PREFILL: u32 = 200;
const STORE: u32 = 300;
const ROUTER: u32 = 400;

/// The common part.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    /// Raised by every start.
    pub(crate) life: u64,
    /// Of its next event.
    pub(crate) sequence: u64,
    pub(crate) alive: bool,
    /// It stands still until then.
    pub(crate) frozen_until: Timestamp,
    /// Since when it stands still, or did last.
    pub(crate) frozen_at: Timestamp,
    pub(crate) busy: Duration,
}

impl Seat {
    pub(crate) fn new() -> Self {
        Self {
            life: 1,
            sequence: 0,
            alive: true,
            frozen_until: Timestamp(0),
            frozen_at: Timestamp(0),
            busy: Duration::ZERO,
        }
    }

    pub(crate) fn is_frozen(&self, now: Timestamp) -> bool {
        now < self.frozen_until
    }

    /// A new life, with its own sequence.
    pub(crate) fn begin_again(&mut self) {
        self.life += 1;
        self.sequence = 0;
        self.alive = true;
        self.frozen_until = Timestamp(0);
    }
}

/// A store node and its seat.
pub(crate) struct StoreSeat {
    pub(crate) seat: Seat,
    pub(crate) store: Store,
    /// Nobody can reach it.
    pub(crate) is_cut_off: bool,
}

impl StoreSeat {
    pub(crate) fn new(place: usize, settings: &Settings, blocks_max: u64) -> Self {
        let store = Store::new(rank(Member::Store(place)), settings, blocks_max);
        Self { seat: Seat::new(), store, is_cut_off: false }
    }
}

/// The name of a member.
pub(crate) fn rank(member: Member) -> WorkerRank {
    let (base, place) = match member {
        Member::Decode(place) => (DECODE, place),
        Member::Prefill(place) => (PREFILL, place),
        Member::Store(place) => (STORE, place),
        Member::Router(place) => (ROUTER, place),
    };
    let place = u32::try_from(place).expect("at most 64 of a role");
    WorkerRank { worker: WorkerId(base + place), rank: DpRank(0) }
}

/// The member of a name.
pub(crate) fn member_of(rank: WorkerRank) -> Member {
    let place = |base: u32| usize::try_from(rank.worker.0 - base).expect("at most 64 of a role");
    match rank.worker.0 {
        ROUTER.. => Member::Router(place(ROUTER)),
        STORE.. => Member::Store(place(STORE)),
        PREFILL.. => Member::Prefill(place(PREFILL)),
        _ => Member::Decode(place(DECODE)),
    }
}

pub(crate) fn role(member: Member) -> Role {
    match member {
        Member::Decode(_) => Role::Decode,
        Member::Prefill(_) => Role::Prefill,
        Member::Store(_) => Role::Store,
        Member::Router(_) => unreachable!("routers do not join routers"),
    }
}
