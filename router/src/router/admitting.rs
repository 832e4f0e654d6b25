//! Who waits, who goes past, who is refused: classes, tenants and the head of the line.

use shared::{PlaceRequest, Priority, RequestId, ServeError, TenantId, Timestamp};

use super::tests::{T0, busy, hold, kind, ms, place, placed, report, router};
use super::{Action, Router};
use crate::records::PlacementKind;
use crate::role::Role;
use crate::testing::{names, rank, request};

fn of(tenant: &str, id: u128) -> PlaceRequest {
    PlaceRequest { tenant: TenantId(tenant.into()), ..request(id, 10, &[]) }
}

fn ids(actions: &[Action]) -> Vec<u128> {
    let id = |action: &Action| match action {
        Action::Place { id, .. } => id.0,
        other => panic!("expected placements, found {other:?}"),
    };
    actions.iter().map(id).collect()
}

/// A router whose one decode worker is taken by request 0, and whose queue holds `waiting_max`.
fn full(waiting_max: usize) -> Router {
    let mut router = router(&[(0, Role::Decode)], |config| {
        config.admission.decode_running_max = 1;
        config.admission.waiting_max = waiting_max;
    });
    place(&mut router, 0, 10, &[]);
    router
}

/// Ends what runs again and again; the order in which the others ran.
fn run_all(router: &mut Router) -> Vec<u128> {
    let mut order = vec![0];
    while let Some(&running) = order.last() {
        let actions = router.finished(RequestId(running), T0);
        if actions.is_empty() {
            break;
        }
        order.extend(ids(&actions));
    }
    order.split_off(1)
}

#[test]
fn tenants_take_turns_and_urgent_requests_go_first() {
    let mut router = full(20);
    for id in 1..=6 {
        assert_eq!(router.submit(of("big", id), T0), []);
    }
    for id in [11, 12] {
        assert_eq!(router.submit(of("small", id), T0), []);
    }
    let high = PlaceRequest { priority: Priority::High, ..of("big", 21) };
    assert_eq!(router.submit(high, T0), []);
    let low = PlaceRequest { priority: Priority::Low, ..of("small", 31) };
    assert_eq!(router.submit(low, T0), []);
    assert_eq!(router.snapshot(T0).waiting_by_class, [1, 8, 1]);
    // What big had in the urgent class counts.
    assert_eq!(run_all(&mut router), [21, 11, 12, 1, 2, 3, 4, 5, 6, 31]);
}

#[test]
fn deadlines_decide_within_a_class_and_a_tenant() {
    let mut router = full(20);
    for (id, deadline) in [(1, 900), (2, 300), (3, 600)] {
        let request = PlaceRequest { deadline: Some(ms(deadline)), ..of("a", id) };
        assert_eq!(router.submit(request, T0), []);
    }
    assert_eq!(run_all(&mut router), [2, 3, 1]);
}

#[test]
fn a_full_queue_refuses_the_tenant_with_most_and_only_a_lonely_one_as_full() {
    let mut router = full(4);
    for id in 1..=4 {
        assert_eq!(router.submit(of("big", id), T0), []);
    }
    let overloaded = ServeError::Overloaded { waiting: 4, waiting_max: 4, retry_after_ms: 1_000 };
    let refused =
        |id, error: &ServeError| Action::Refuse { id: RequestId(id), error: error.clone() };
    assert_eq!(router.submit(of("big", 5), T0), [refused(5, &overloaded)]);
    // Another tenant takes the place of big's youngest, until both have as much.
    for (waiting, newcomer, leaves) in [(4, 11, 4), (3, 12, 3)] {
        let error = ServeError::OverShare { waiting, waiting_max: 4, retry_after_ms: 1_000 };
        assert_eq!(router.submit(of("small", newcomer), T0), [refused(leaves, &error)]);
    }
    let error = ServeError::OverShare { waiting: 2, waiting_max: 4, retry_after_ms: 1_000 };
    for (tenant, id) in [("small", 13), ("big", 6)] {
        assert_eq!(router.submit(of(tenant, id), T0), [refused(id, &error)]);
    }
    let snapshot = router.snapshot(T0);
    assert_eq!((snapshot.refused.overloaded, snapshot.refused.over_share), (1, 4));
    assert_eq!(run_all(&mut router), [11, 1, 12, 2]);
}

#[test]
fn who_needs_no_prefill_goes_past_those_that_do_however_many_wait() {
    let all = names(1, 62);
    let members = [(0, Role::Decode), (1, Role::Prefill)];
    let mut router = router(&members, |config| {
        config.admission.prefill_running_max = 1;
        config.admission.waiting_max = 12;
        config.admission.look_ahead_max = 2;
    });
    place(&mut router, 0, 7_948, &all);
    for id in 1..=11 {
        assert_eq!(router.submit(request(id, 7_948, &all), T0), []);
    }
    assert_eq!(placed(&router.submit(request(50, 10, &[]), T0)).decode, rank(0), "beside eleven");
    assert_eq!(router.submit(request(12, 7_948, &all), T0), []);
    assert_eq!(
        placed(&router.submit(request(51, 10, &[]), T0)).decode,
        rank(0),
        "the queue is full"
    );
    let refused = router.submit(request(13, 7_948, &all), T0);
    assert!(matches!(refused[..], [Action::Refuse { .. }]), "{refused:?}");
    assert_eq!(router.snapshot(T0).waiting, 12);
    // They go on in their order as prefill gets free.
    let next = router.next_deadline().expect("prefill gets free by time");
    assert_eq!(ids(&router.tick(next)), [1]);
    let actions = router.worker_left(rank(1), next);
    assert_eq!(ids(&actions), (2..=12).collect::<Vec<u128>>(), "tried anew without prefill");
}

#[test]
fn a_bounded_number_of_requests_is_tried_per_event() {
    let mut router = router(&[(0, Role::Decode), (1, Role::Decode)], |config| {
        config.admission.decode_running_max = 2;
        config.admission.look_ahead_max = 3;
    });
    for id in 0..4 {
        place(&mut router, id, 10, &[]);
    }
    let ends_at_0 =
        (0..4).find(|&id| router.decision(RequestId(id)).expect("kept").chosen.decode == rank(0));
    // Those wait for worker 1 as long as it is there; the last one takes either.
    for id in 10..13 {
        let request = PlaceRequest { excluded: vec![rank(0)], ..request(id, 10, &[]) };
        assert_eq!(router.submit(request, T0), []);
    }
    assert_eq!(router.submit(request(20, 10, &[]), T0), []);
    assert_eq!(router.finished(RequestId(ends_at_0.expect("two")), T0), [], "three were tried");
    assert_eq!(ids(&router.finished(RequestId(10), T0)), [20], "the third of those that wait");
    let snapshot = router.snapshot(T0);
    assert_eq!((snapshot.waiting, snapshot.running), (2, 4));
}

#[test]
fn a_request_that_waited_for_prefill_uses_what_was_cached_meanwhile() {
    let all = names(1, 62);
    let mut router = router(&[(0, Role::Decode), (1, Role::Prefill)], |config| {
        config.admission.prefill_running_max = 1;
    });
    place(&mut router, 0, 7_948, &all);
    assert_eq!(router.submit(request(1, 7_948, &all), T0), []);
    hold(&mut router, 0, shared::Tier::Device, &all);
    report(&mut router, 1, ms(60), busy(0));
    let at = router.next_deadline().expect("the report gets stale");
    let actions = router.tick(at);
    assert_eq!(placed(&actions).prefill, None);
    assert_eq!(kind(&router, 1), PlacementKind::AllCached);
    assert!(Timestamp(0) < at);
}
