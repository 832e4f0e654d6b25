//! Workers without a store.

use shared::{BlockStore, Durability, LocateEvent, Miss, OfferEvent, OfferOutcome, RequestContext};

use super::{key, sending};
use crate::host::NoStore;
use crate::testing::{asked, next, offers, pool, store};

#[test]
fn no_store_holds_nothing() {
    let (sink, located) = sending::<LocateEvent>();
    drop(NoStore.locate(RequestContext::NONE, asked(&[key(1), key(2)]), sink));
    assert_eq!(next(&located).found, [Err(Miss::NotAsked); 2]);
    let source = pool(1, 1);
    let held = store(&source, 1);
    let (sink, offered) = sending::<OfferEvent>();
    drop(NoStore.offer(
        RequestContext::NONE,
        offers(&[held.descriptor()]),
        Durability::Memory,
        sink,
    ));
    assert_eq!(next(&offered).outcome, OfferOutcome::Dropped);
}
