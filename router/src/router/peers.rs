//! What other routers have placed: counted at their workers like this router's own requests, and so are the blocks that these
//! will bring.
//!
//! Best effort. A router tells each other one its placements and their ends, and now and then all it has running, which mends
//! whatever was lost between. One that is gone, or silent for [`PEER_SILENCE`], takes nothing with it: what it had placed
//! counts no more, and the workers' own reports remain.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use shared::{BlockName, RequestId, Timestamp, WorkerRank};

use super::{Action, Router, Running};
use crate::loads::Loads;

/// How often a driver tells other routers all that runs, at least. Between two of these a lost word counts wrongly.
pub const PEER_REFRESH: Duration = Duration::from_secs(5);
/// How long the word of a router that says nothing any more is believed: three refreshes.
pub const PEER_SILENCE: Duration = Duration::from_secs(15);
/// Most other routers. A cluster has at most 8; the rest is for those that were replaced and are not expired yet.
const PEERS_MAX: usize = 16;
/// Most reservations of one router, far above the requests that one process serves at a time.
const RESERVATIONS_MAX: usize = 65_536;
/// Most names of one reservation: 131,072 tokens. The end of a longer prompt is not expected before its worker tells of it.
pub const RESERVED_NAMES_MAX: usize = 1_024;

/// A placed request, as far as it loads workers and fills their memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The request. Unique in the cluster.
    pub id: RequestId,
    /// Its decode worker.
    pub decode: WorkerRank,
    /// Rows to compute there before the first token, as they were expected.
    pub decode_rows: u64,
    /// Its prefill worker and the rows to compute there, if there is one.
    pub prefill: Option<(WorkerRank, u64)>,
    /// The leading blocks of the prompt, which its workers will have soon: at most [`RESERVED_NAMES_MAX`]. None in what is
    /// told to mend losses: by then the workers told of them.
    pub names: Arc<[BlockName]>,
}

/// What is known of other routers, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerSnapshot {
    /// Other routers that are heard.
    pub routers: usize,
    /// Their requests that are counted here.
    pub reservations: usize,
    /// Counter: reservations that found a bound reached and are not counted.
    pub refused: u64,
    /// Counter: routers that fell silent.
    pub silent: u64,
}

/// The other routers.
#[derive(Debug, Default)]
pub(super) struct Peers {
    peers: BTreeMap<WorkerRank, Peer>,
    refused: u64,
    silent: u64,
}

#[derive(Debug)]
struct Peer {
    heard_at: Timestamp,
    reserved: HashMap<RequestId, Reserved>,
}

/// Where a reservation is counted: only what was added to a load is taken off it again.
#[derive(Clone, Copy, Debug, Default)]
struct Reserved {
    decode: Option<WorkerRank>,
    prefill: Option<WorkerRank>,
}

impl Peers {
    pub(super) fn snapshot(&self) -> PeerSnapshot {
        PeerSnapshot {
            routers: self.peers.len(),
            reservations: self.peers.values().map(|peer| peer.reserved.len()).sum(),
            refused: self.refused,
            silent: self.silent,
        }
    }

    /// A worker left, and with it the counts of all that was placed there.
    pub(super) fn worker_left(&mut self, worker: WorkerRank) {
        for peer in self.peers.values_mut() {
            for reserved in peer.reserved.values_mut() {
                for place in [&mut reserved.decode, &mut reserved.prefill] {
                    if *place == Some(worker) {
                        *place = None;
                    }
                }
            }
        }
    }

    /// The peer, if there is room for it.
    fn heard(&mut self, router: WorkerRank, now: Timestamp) -> Option<&mut Peer> {
        if PEERS_MAX <= self.peers.len() && !self.peers.contains_key(&router) {
            self.refused += 1;
            return None;
        }
        let new = || Peer { heard_at: now, reserved: HashMap::new() };
        let peer = self.peers.entry(router).or_insert_with(new);
        peer.heard_at = now;
        Some(peer)
    }

    fn place(
        &mut self,
        router: WorkerRank,
        reservation: &Reservation,
        loads: &mut Loads,
        now: Timestamp,
    ) {
        let Some(peer) = self.heard(router, now) else { return };
        let is_full = RESERVATIONS_MAX <= peer.reserved.len();
        if is_full && !peer.reserved.contains_key(&reservation.id) {
            self.refused += 1;
            return;
        }
        peer.reserved.entry(reservation.id).or_default().count(reservation, loads, now);
    }

    /// Takes off the loads what a router has placed, all of it or what is not among `kept`.
    fn release(
        &mut self,
        router: WorkerRank,
        kept: &BTreeSet<RequestId>,
        loads: &mut Loads,
        now: Timestamp,
    ) {
        let Some(peer) = self.peers.get_mut(&router) else { return };
        peer.reserved.retain(|id, reserved| {
            let stays = kept.contains(id);
            if !stays {
                reserved.release(*id, loads, now);
            }
            stays
        });
    }
}

impl Reserved {
    /// Counts a reservation at those of its workers that are members here. Where it is counted already it stays as it is; where
    /// it is no more, or the worker was no member before, the count moves.
    fn count(&mut self, reservation: &Reservation, loads: &mut Loads, now: Timestamp) {
        let Reservation { id, decode, decode_rows, prefill, .. } = *reservation;
        let told = [(&mut self.decode, Some((decode, decode_rows))), (&mut self.prefill, prefill)];
        for (counted, told) in told {
            if *counted == told.map(|(worker, _)| worker) {
                continue;
            }
            if let Some(before) = counted.take() {
                loads.finish(before, id, now);
            }
            if let Some((worker, rows)) = told.filter(|(worker, _)| loads.of(*worker).is_some()) {
                loads.place(worker, id, rows, now);
                *counted = Some(worker);
            }
        }
    }

    fn release(self, id: RequestId, loads: &mut Loads, now: Timestamp) {
        for worker in [self.decode, self.prefill].into_iter().flatten() {
            loads.finish(worker, id, now);
        }
    }
}

impl Running {
    fn reservation(&self, id: RequestId) -> Reservation {
        Reservation {
            id,
            decode: self.decode,
            decode_rows: self.decode_rows,
            prefill: self.prefill.map(|worker| (worker, self.prefill_rows)),
            names: Arc::default(),
        }
    }
}

impl Router {
    /// What other routers are to be told about a request that was placed here and has not finished.
    #[must_use]
    pub fn reservation(&self, id: RequestId) -> Option<Reservation> {
        let running = self.running.get(&id)?;
        let names = match running.names.get(..RESERVED_NAMES_MAX) {
            Some(first) => Arc::from(first),
            None => Arc::clone(&running.names),
        };
        Some(Reservation { names, ..running.reservation(id) })
    }

    /// The same of all requests, in the order of their ids, without their blocks.
    #[must_use]
    pub fn reservations(&self) -> Vec<Reservation> {
        let mut all: Vec<Reservation> =
            self.running.iter().map(|(&id, running)| running.reservation(id)).collect();
        all.sort_unstable_by_key(|reservation| reservation.id.0);
        all
    }

    /// Another router has placed a request: it loads its workers, and its blocks are expected of them, as if it had been
    /// placed here. What is known already is not counted twice, and moves if it is told to be elsewhere.
    pub fn peer_placed(&mut self, router: WorkerRank, reservation: &Reservation, now: Timestamp) {
        self.peers.place(router, reservation, &mut self.loads, now);
        let prefill = reservation.prefill.map(|(worker, _)| worker);
        self.expect([Some(reservation.decode), prefill], &reservation.names, now);
    }

    /// A request of another router is over. Unknown ones are ignored.
    pub fn peer_finished(
        &mut self,
        router: WorkerRank,
        id: RequestId,
        now: Timestamp,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let peer = self.peers.heard(router, now);
        if let Some(reserved) = peer.and_then(|peer| peer.reserved.remove(&id)) {
            reserved.release(id, &mut self.loads, now);
            self.drain(now, &mut actions);
        }
        actions
    }

    /// All that another router has running: what is not among it is over, what is new counts from now on, and so does what was
    /// known of workers that were no members then.
    pub fn peer_holds(
        &mut self,
        router: WorkerRank,
        all: &[Reservation],
        now: Timestamp,
    ) -> Vec<Action> {
        let kept: BTreeSet<RequestId> = all.iter().map(|reservation| reservation.id).collect();
        self.peers.release(router, &kept, &mut self.loads, now);
        self.peers.heard(router, now);
        for reservation in all {
            self.peers.place(router, reservation, &mut self.loads, now);
        }
        let mut actions = Vec::new();
        self.drain(now, &mut actions);
        actions
    }

    /// Another router is gone: what it had placed counts no more. Unknown ones are ignored.
    pub fn peer_left(&mut self, router: WorkerRank, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        self.peers.release(router, &BTreeSet::new(), &mut self.loads, now);
        if self.peers.peers.remove(&router).is_some() {
            self.drain(now, &mut actions);
        }
        actions
    }

    /// Lets go of routers that say nothing any more.
    pub(super) fn expire_peers(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let silent = self.peers.peers.iter();
        let silent = silent.filter(|(_, peer)| peer.heard_at.after(PEER_SILENCE) <= now);
        let silent: Vec<WorkerRank> = silent.map(|(&router, _)| router).collect();
        for router in silent {
            self.peers.silent += 1;
            actions.extend(self.peer_left(router, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use shared::{
        LoadReport, RequestId, StartGeometry, Timestamp, WorkerEvent, WorkerRank, WorkerRates,
    };

    use super::{PEER_SILENCE, PEERS_MAX, PeerSnapshot, RESERVATIONS_MAX, Reservation};
    use crate::testing::{names, rank, request};
    use crate::{Action, Role, Router, RouterConfig};
    use shared::Random;

    const DECODE: u32 = 1;
    const PREFILL: u32 = 2;

    fn router(running_max: u32) -> Router {
        let geometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 5 };
        let mut config = RouterConfig::with_defaults(geometry);
        config.admission.decode_running_max = running_max;
        let mut router = Router::new(config).unwrap();
        let now = Timestamp(0);
        router.worker_joined(rank(DECODE), Role::Decode, now).unwrap();
        router.worker_joined(rank(PREFILL), Role::Prefill, now).unwrap();
        router
    }

    fn reserved(id: u128) -> Reservation {
        let prefill = Some((rank(PREFILL), 7_000));
        let names = Arc::default();
        Reservation { id: RequestId(id), decode: rank(DECODE), decode_rows: 100, prefill, names }
    }

    /// Requests placed at a worker and rows waiting there.
    fn load(router: &Router, worker: u32, now: Timestamp) -> (u32, u64) {
        let snapshot = router.snapshot(now);
        let load = snapshot.workers.iter().find(|member| member.worker == rank(worker));
        let load = load.unwrap().load.unwrap();
        (load.placed, load.rows)
    }

    fn loads(router: &Router, now: Timestamp) -> [(u32, u64); 2] {
        [DECODE, PREFILL].map(|worker| load(router, worker, now))
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    #[test]
    fn a_placement_of_one_router_loads_the_workers_of_another() {
        let (mut first, mut second) = (router(8), router(8));
        let now = at(0);
        let actions = first.submit(request(1, 8_000, &names(1, 60)), now);
        assert!(matches!(actions[..], [Action::Place { .. }]));
        let told = first.reservation(RequestId(1)).unwrap();
        let refreshed = Reservation { names: Arc::default(), ..told.clone() };
        assert_eq!(first.reservations(), [refreshed]);
        assert_eq!(told.prefill.map(|(worker, _)| worker), Some(rank(PREFILL)));
        second.peer_placed(rank(90), &told, now);
        second.peer_placed(rank(90), &told, now);
        assert_eq!(loads(&second, now), loads(&first, now), "one picture");
        let expected = [&mut first, &mut second].map(|router| {
            assert_eq!(router.tick(now), []);
            router.snapshot(now).expected
        });
        assert_eq!(expected, [120; 2], "of both workers");
        first.finished(RequestId(1), now);
        assert_eq!(first.reservation(RequestId(1)), None);
        second.peer_finished(rank(90), RequestId(1), now);
        assert_eq!(loads(&second, now), [(0, 0); 2]);
        second.peer_finished(rank(90), RequestId(1), now);
        assert_eq!(second.snapshot(now).peers.reservations, 0);
    }

    #[test]
    fn a_full_worker_is_full_for_all_and_an_end_elsewhere_places_what_waits() {
        let mut router = router(1);
        router.peer_placed(rank(90), &reserved(5), at(0));
        assert_eq!(router.submit(request(1, 10, &[]), at(0)), []);
        let actions = router.peer_finished(rank(90), RequestId(5), at(0));
        assert!(matches!(actions[..], [Action::Place { .. }]), "{actions:?}");
        router.finished(RequestId(1), at(0));
        for (id, left) in [(2, false), (3, true)] {
            router.peer_holds(rank(90), &[reserved(id)], at(0));
            assert_eq!(router.submit(request(id + 10, 10, &[]), at(0)), []);
            let actions = match left {
                true => router.peer_left(rank(90), at(0)),
                false => router.peer_holds(rank(90), &[], at(0)),
            };
            assert!(matches!(actions[..], [Action::Place { .. }]), "{actions:?}");
            router.finished(RequestId(id + 10), at(0));
        }
    }

    #[test]
    fn a_silent_router_is_forgotten_and_one_that_speaks_is_not() {
        let mut router = router(8);
        router.peer_placed(rank(90), &reserved(1), at(0));
        router.peer_placed(rank(91), &reserved(2), at(0));
        let almost = Timestamp(at(0).after(PEER_SILENCE).0 - 1);
        router.peer_holds(rank(91), &[reserved(2)], almost);
        router.tick(almost);
        assert_eq!(load(&router, DECODE, almost).0, 2);
        router.tick(at(0).after(PEER_SILENCE));
        assert_eq!(load(&router, DECODE, almost).0, 1);
        let expected = PeerSnapshot { routers: 1, reservations: 1, refused: 0, silent: 1 };
        assert_eq!(router.snapshot(almost).peers, expected);
    }

    #[test]
    fn a_worker_that_leaves_takes_its_counts_and_a_refresh_brings_those_of_a_new_one() {
        let mut router = router(8);
        router.peer_placed(rank(90), &reserved(1), at(0));
        router.worker_left(rank(DECODE), at(0));
        router.worker_joined(rank(DECODE), Role::Decode, at(0)).unwrap();
        assert_eq!(load(&router, DECODE, at(0)), (0, 0));
        router.peer_holds(rank(90), &[reserved(1)], at(0));
        assert_eq!(loads(&router, at(0)), [(1, 100), (1, 7_000)]);
        router.peer_finished(rank(90), RequestId(1), at(0));
        assert_eq!(loads(&router, at(0)), [(0, 0); 2]);
        let stranger = Reservation { decode: rank(77), ..reserved(2) };
        router.peer_placed(rank(90), &stranger, at(0));
        router.worker_joined(rank(77), Role::Decode, at(0)).unwrap();
        assert_eq!(load(&router, 77, at(0)), (0, 0));
        router.peer_holds(rank(90), &[stranger], at(0));
        assert_eq!(load(&router, 77, at(0)), (1, 100));
        router.peer_left(rank(90), at(0));
        assert_eq!(load(&router, 77, at(0)), (0, 0));
    }

    /// The word that it ended on the first worker was lost.
    #[test]
    fn a_request_that_is_placed_anew_counts_where_it_is_told_to_be() {
        let other = 3;
        for refreshed in [false, true] {
            let mut router = router(8);
            router.worker_joined(rank(other), Role::Decode, at(0)).unwrap();
            router.peer_placed(rank(90), &reserved(1), at(0));
            let moved = Reservation { decode: rank(other), prefill: None, ..reserved(1) };
            match refreshed {
                true => drop(router.peer_holds(rank(90), &[moved], at(0))),
                false => router.peer_placed(rank(90), &moved, at(0)),
            }
            assert_eq!(loads(&router, at(0)), [(0, 0); 2]);
            assert_eq!(load(&router, other, at(0)), (1, 100));
            router.peer_finished(rank(90), RequestId(1), at(0));
            assert_eq!(load(&router, other, at(0)), (0, 0));
        }
    }

    #[test]
    fn a_router_with_all_reservations_refreshes_them() {
        let mut router = router(8);
        let elsewhere = |id| Reservation { decode: rank(77), prefill: None, ..reserved(id) };
        let all: Vec<Reservation> =
            (0..=u128::try_from(RESERVATIONS_MAX).unwrap()).map(elsewhere).collect();
        let known = &all[..RESERVATIONS_MAX];
        for (told, refused) in [(known, 0), (known, 0), (&all[..], 1)] {
            router.peer_holds(rank(90), told, at(0));
            let snapshot = router.snapshot(at(0)).peers;
            assert_eq!((snapshot.reservations, snapshot.refused), (RESERVATIONS_MAX, refused));
        }
    }

    #[test]
    fn routers_are_bounded() {
        let mut router = router(64);
        for peer in 0..=u32::try_from(PEERS_MAX).unwrap() {
            router.peer_placed(rank(100 + peer), &reserved(peer.into()), at(0));
        }
        let snapshot = router.snapshot(at(0)).peers;
        assert_eq!((snapshot.routers, snapshot.refused), (PEERS_MAX, 1));
    }

    /// Whatever is told in whatever order, loads return to nothing when all routers are gone.
    #[test]
    fn counts_return_to_nothing_whatever_was_told() {
        for seed in 0..500 {
            let mut random = Random::new(seed);
            let mut router = router(64);
            let mut now = at(0);
            router.worker_joined(rank(3), Role::Decode, now).unwrap();
            for _ in 0..200 {
                now = now.after(Duration::from_millis(u64::try_from(random.below(50)).unwrap()));
                let peer = rank(90 + u32::try_from(random.below(3)).unwrap());
                let id = u128::try_from(random.below(20)).unwrap();
                // Some are told to be elsewhere than before, or where nobody is.
                let decode = rank(*random.pick(&[DECODE, DECODE, 3, 77]));
                let prefill = reserved(id).prefill.filter(|_| !random.one_in(4));
                let reserved = |id| Reservation { decode, prefill, ..reserved(id) };
                match random.below(9) {
                    0..3 => router.peer_placed(peer, &reserved(id), now),
                    3..5 => drop(router.peer_finished(peer, RequestId(id), now)),
                    5 => drop(router.peer_left(peer, now)),
                    6 => drop(router.peer_holds(peer, &[reserved(id), reserved(id + 1)], now)),
                    7 => {
                        let (worker, role) =
                            *random.pick(&[(PREFILL, Role::Prefill), (3, Role::Decode)]);
                        router.worker_left(rank(worker), now);
                        router.worker_joined(rank(worker), role, now).unwrap();
                    }
                    _ => report(&mut router, rank(DECODE), now),
                }
                drop(router.tick(now));
            }
            for peer in 90..93 {
                router.peer_left(rank(peer), now);
            }
            let end = now.after(Duration::from_secs(60));
            for worker in [DECODE, 3] {
                report(&mut router, rank(worker), end);
            }
            assert_eq!(loads(&router, end), [(0, 0); 2], "seed {seed}");
            assert_eq!(load(&router, 3, end), (0, 0), "seed {seed}");
        }
    }

    fn report(router: &mut Router, worker: WorkerRank, now: Timestamp) {
        let report = LoadReport {
            running: 0,
            waiting: 0,
            pending_rows: 0,
            slots_available: 9,
            slots: 9,
            rows_per_second: 1_000.0,
            progress: 0,
            draining: false,
            rates: WorkerRates::default(),
        };
        router.worker_event(&WorkerEvent::Load { worker, report }, now);
    }
}
