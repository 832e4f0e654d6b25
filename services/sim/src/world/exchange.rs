//! Routers: how they are called, and what they tell each other, as the placement threads of shipped processes do it.
//!
//! A router tells the others each placement and each end at once, and all that runs every few seconds. Nothing that is told
//! to or by a router that is cut off arrives; when it is joined again, both sides tell all that runs, as a new stream does.

use router::{Action, ConfigError, PEER_REFRESH, Reservation, Router, RouterConfig};
use shared::{RequestId, Timestamp};

use super::clients::Client;
use super::seats::rank;
use super::{Event, World, id_of};
use crate::fault::Member;
use crate::settings::ms;

/// A router, and what its driver knows.
pub(super) struct RouterSeat {
    pub(super) router: Router,
    pub(super) tick_at: Option<Timestamp>,
    /// When it told all that runs.
    refreshed_at: Timestamp,
    /// It and the others do not hear each other.
    is_cut_off: bool,
}

/// What a router tells.
#[derive(Clone, Debug)]
pub(crate) enum RouterNews {
    All(Vec<Reservation>),
    Placed(Reservation),
    Finished(RequestId),
}

impl RouterSeat {
    pub(super) fn new(config: RouterConfig) -> Result<Self, ConfigError> {
        let router = Router::new(config)?;
        Ok(Self { router, tick_at: None, refreshed_at: Timestamp(0), is_cut_off: false })
    }
}

impl World<'_> {
    pub(super) fn tick(&mut self, router: usize) {
        self.routers[router].tick_at = None;
        self.ask_router(router, |router, now| router.tick(now));
    }

    /// Calls a router and does what it says.
    pub(super) fn ask_router(
        &mut self,
        router: usize,
        call: impl FnOnce(&mut Router, Timestamp) -> Vec<Action>,
    ) {
        let now = self.now();
        let actions = call(&mut self.routers[router].router, now);
        self.carry_out(router, actions);
    }

    /// A request is over for a router, which tells the others first.
    pub(super) fn finish_at(&mut self, router: usize, number: usize) {
        let id = id_of(number);
        self.spread(router, || RouterNews::Finished(id));
        self.ask_router(router, |router, now| router.finished(id, now));
    }

    /// A router has placed a request.
    pub(super) fn tell_placed(&mut self, router: usize, id: RequestId) {
        let Some(mut reservation) = self.routers[router].router.reservation(id) else { return };
        if self.settings.exchange < 2 {
            reservation.names = std::sync::Arc::default();
        }
        self.spread(router, || RouterNews::Placed(reservation));
    }

    /// What routers do by the clock: what is over by time, and all that runs for the others.
    pub(super) fn routers_upkeep(&mut self) {
        for place in 0..self.routers.len() {
            self.ask_router(place, |router, now| router.tick(now));
            if PEER_REFRESH <= self.now().since(self.routers[place].refreshed_at) {
                self.tell_all(place);
            }
        }
    }

    pub(super) fn part_router(&mut self, router: usize) {
        self.routers[router].is_cut_off = true;
    }

    pub(super) fn join_router(&mut self, router: usize) {
        self.routers[router].is_cut_off = false;
        (0..self.routers.len()).for_each(|place| self.tell_all(place));
    }

    fn tell_all(&mut self, place: usize) {
        let now = self.now();
        let seat = &mut self.routers[place];
        seat.refreshed_at = now;
        let all = seat.router.reservations();
        self.spread(place, || RouterNews::All(all));
    }

    fn spread(&mut self, from: usize, news: impl FnOnce() -> RouterNews) {
        if self.routers.len() < 2 || self.settings.exchange == 0 {
            return;
        }
        self.agenda.enter(ms(self.settings.exchange_ms), Event::Heard(from, news()));
    }

    /// The others hear what a router said.
    pub(super) fn heard(&mut self, from: usize, news: &RouterNews) {
        if self.routers[from].is_cut_off {
            return;
        }
        if let (Some(checks), RouterNews::Placed(told)) = (&mut self.checks, news) {
            checks.sent([Some(told.decode), told.prefill.map(|(worker, _)| worker)], &told.names);
        }
        let peer = rank(Member::Router(from));
        for place in 0..self.routers.len() {
            if place == from || self.routers[place].is_cut_off {
                continue;
            }
            self.ask_router(place, |router, now| match news {
                RouterNews::All(all) => router.peer_holds(peer, all, now),
                RouterNews::Placed(reservation) => {
                    router.peer_placed(peer, reservation, now);
                    Vec::new()
                }
                RouterNews::Finished(id) => router.peer_finished(peer, *id, now),
            });
        }
    }

    /// Whether a placed request's router counts it where it is. It does not when the worker left meanwhile, even if the
    /// worker is back before the request reaches it.
    pub(super) fn is_counted(&self, number: usize, client: &Client) -> bool {
        let reserved = self.routers[client.router()].router.reservation(id_of(number));
        reserved.is_some_and(|reserved| Some(reserved.decode) == client.decode())
    }

    /// When every request has its outcome, and the routers told each other so, nothing is placed, waits or runs anywhere.
    pub(super) fn check_routers_end(&mut self) {
        let now = self.now();
        for place in 0..self.routers.len() {
            for from in (0..self.routers.len()).filter(|from| *from != place) {
                let all = self.routers[from].router.reservations();
                assert!(all.is_empty(), "router {from} has something running: {all:?}");
                let peer = rank(Member::Router(from));
                let actions = self.routers[place].router.peer_holds(peer, &all, now);
                assert!(actions.is_empty(), "nothing waits: {actions:?}");
            }
            let snapshot = self.routers[place].router.snapshot(now);
            assert_eq!((snapshot.waiting, snapshot.running), (0, 0), "router {place}");
            assert_eq!(snapshot.peers.reservations, 0, "router {place}");
            for member in &snapshot.workers {
                let placed = member.load.as_ref().map_or(0, |load| load.placed);
                assert_eq!(placed, 0, "router {place} counts requests at {}", member.worker);
            }
        }
    }
}
