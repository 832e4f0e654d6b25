//! Offers whose time is over.

use std::sync::Arc;
use std::time::Duration;

use shared::{BlockStore, Durability, OfferEvent, OfferOutcome, RequestContext};

use super::{Rig, Silent, config, key, sending};
use crate::host::HostTierConfig;
use crate::pool::SealedSlot;
use crate::testing::{next, offers};
use crate::transport::Transport;

#[test]
fn an_offer_that_is_not_read_in_time_is_dropped_and_lookups_go_on() {
    let silent = Arc::new(Silent::default());
    let wait = Duration::from_millis(20);
    let rig = Rig::with(HostTierConfig { offer_wait_max: wait, ..config() }, |_| {
        Arc::clone(&silent) as Arc<dyn Transport>
    });
    let held = [1, 2, 3].map(|number| rig.block(number));
    let (sink, events) = sending::<OfferEvent>();
    let offered = held.each_ref().map(SealedSlot::descriptor);
    let _ticket = rig.tier.offer(RequestContext::NONE, offers(&offered), Durability::Memory, sink);
    assert!(!rig.holds(key(1)), "lookups are answered meanwhile");
    for _ in &held {
        assert_eq!(next(&events).outcome, OfferOutcome::Dropped);
    }
    assert_eq!(rig.tier.stats().dropped_late, 3);
    silent.0.lock().clear();
    drop(held);
    rig.assert_at_rest();
}
