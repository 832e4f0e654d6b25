//! Blocks that a placed request is expected to bring count for the next one.

use std::time::Duration;

use shared::{
    CacheChange, CacheEvent, Placement, RequestId, StartGeometry, Tier, Timestamp, WorkerEvent,
};

use super::{Action, Router};
use crate::config::RouterConfig;
use crate::role::Role;
use crate::testing::{names, rank, request};

const GEOMETRY: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };
/// A prompt of 62 blocks, of which [0, S) is 61.
const TOKENS: u32 = 7_948;
const BOUNDARY: u32 = 61 * 128;

fn ms(ms: u64) -> Timestamp {
    Timestamp(0).after(Duration::from_millis(ms))
}

fn router(expected_blocks_max: usize) -> Router {
    let mut config = RouterConfig::with_defaults(GEOMETRY);
    config.expected_blocks = Duration::from_millis(500);
    config.expected_blocks_max = expected_blocks_max;
    let mut router = Router::new(config).expect("valid settings");
    for worker in 0..4 {
        router.worker_joined(rank(worker), Role::Decode, ms(0)).expect("room");
    }
    router
}

fn place(router: &mut Router, id: u128, now: Timestamp) -> Placement {
    let actions = router.submit(request(id, TOKENS, &names(1, 62)), now);
    let [Action::Place { placement, .. }] = &actions[..] else { panic!("not placed: {actions:?}") };
    placement.clone()
}

#[test]
fn the_same_prompt_follows_the_first_until_the_time_is_over() {
    let mut router = router(1_000);
    let first = place(&mut router, 1, ms(0));
    assert_eq!(first.expected_cached_tokens, 0);
    router.finished(RequestId(1), ms(1));
    let second = place(&mut router, 2, ms(100));
    assert_eq!((second.decode, second.expected_cached_tokens), (first.decode, BOUNDARY));
    assert!(second.reason.contains("7808 of them only expected"), "{}", second.reason);
    let chosen = router.decision(RequestId(2)).expect("kept").chosen;
    assert_eq!((chosen.cached_tokens, chosen.expected_tokens), (BOUNDARY, BOUNDARY));
    // A millisecond per row from 0 ms on, of which 100 are over.
    assert_eq!(chosen.cost.restore, Duration::from_millis(7_808 - 100).into());
    router.finished(RequestId(2), ms(101));
    let snapshot = router.snapshot(ms(101));
    assert_eq!((snapshot.index_entries, snapshot.expected, snapshot.expected_blocks), (0, 62, 124));
    router.tick(ms(600));
    let third = place(&mut router, 3, ms(700));
    assert_eq!(third.expected_cached_tokens, 0, "nothing came of it");
}

#[test]
fn what_a_worker_says_takes_the_place_of_what_was_expected() {
    let mut router = router(1_000);
    let first = place(&mut router, 1, ms(0));
    router.finished(RequestId(1), ms(1));
    let change = CacheChange::Stored { tier: Tier::Device, names: names(1, 30) };
    let event = CacheEvent { worker: first.decode, incarnation: 1, sequence: 0, change };
    router.worker_event(&WorkerEvent::Cache(event), ms(2));
    let snapshot = router.snapshot(ms(2));
    assert_eq!((snapshot.index_entries, snapshot.expected), (30, 32));
    let second = place(&mut router, 2, ms(2_000));
    assert_eq!((second.decode, second.expected_cached_tokens), (first.decode, 30 * 128));
}

#[test]
fn expectations_beyond_their_bound_are_counted() {
    let mut router = router(100);
    place(&mut router, 1, ms(0));
    place(&mut router, 2, ms(0));
    let snapshot = router.snapshot(ms(0));
    assert_eq!((snapshot.expected_blocks, snapshot.index.expected_dropped_full), (62, 62));
}
