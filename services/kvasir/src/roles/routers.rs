//! Listening to another router: what it has placed counts here as well.

use std::sync::Arc;

use shared::WorkerRank;

use crate::wire::{HeardRouter, Link, RouterWatch, watch_router};
use crate::wiring::parts::Teller;

/// Listening to one router. Its end takes what that router had placed out of the loads.
pub(super) struct ListeningRouter {
    router: WorkerRank,
    teller: Teller,
    /// Told to end first, so that nothing it still says comes behind the end.
    watch: Option<RouterWatch>,
}

/// Listens to the router at the other end of a link for as long as the result lives.
pub(super) fn listen(link: &Arc<Link>, router: WorkerRank, teller: Teller) -> ListeningRouter {
    let told = teller.clone();
    let watch = watch_router(link, Box::new(move |heard| told.router(router, heard)));
    ListeningRouter { router, teller, watch: Some(watch) }
}

impl Drop for ListeningRouter {
    fn drop(&mut self) {
        self.watch = None;
        // Without room or thread its silence says the same a little later.
        let _: shared::Flow = self.teller.router(self.router, HeardRouter::Interrupted);
    }
}
