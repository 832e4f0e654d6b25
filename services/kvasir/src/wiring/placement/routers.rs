//! What the thread tells other routers, and hears from them.

use router::Router;
use shared::WorkerRank;

use super::Loop;
use crate::wire::{HeardRouter, RESERVATIONS_MAX, RouterNews};

impl Loop {
    /// Tells other routers all that runs, when it is time or one of them asked. Whether it did.
    pub(super) fn tell_all(&self, is_due: bool) -> bool {
        let Some(hub) = &self.parts.hub else { return false };
        let is_asked = hub.take_asked();
        if is_due || is_asked {
            let mut all = self.parts.router.reservations();
            all.truncate(RESERVATIONS_MAX);
            hub.tell(RouterNews::All(all));
        }
        is_due || is_asked
    }

    /// Tells other routers something, if there are any.
    pub(super) fn tell(&self, news: impl FnOnce(&Router) -> Option<RouterNews>) {
        if let Some(hub) = &self.parts.hub
            && let Some(news) = news(&self.parts.router)
        {
            hub.tell(news);
        }
    }

    /// Takes what another router says.
    pub(super) fn router_told(&mut self, router: WorkerRank, heard: &HeardRouter) {
        let now = self.parts.clock.now();
        let ours = &mut self.parts.router;
        let actions = match heard {
            HeardRouter::News(RouterNews::All(all)) => ours.peer_holds(router, all, now),
            HeardRouter::News(RouterNews::Placed(reservation)) => {
                ours.peer_placed(router, reservation, now);
                Vec::new()
            }
            HeardRouter::News(RouterNews::Finished(id)) => ours.peer_finished(router, *id, now),
            HeardRouter::Interrupted => ours.peer_left(router, now),
        };
        self.carry_out(actions);
    }
}
