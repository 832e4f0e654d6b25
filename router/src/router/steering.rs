//! Steering away from workers, and what is learned from outcomes.

use std::time::Duration;

use shared::{
    LegOutcome, LoadReport, PlaceRequest, RequestId, ServeError, SessionKey, StartReport, Tier,
    WindowSource, WorkerRank, WorkerRates,
};

use super::tests::{T0, busy, hold, ms, place, placed, report, router};
use super::{Action, Router};
use crate::life::{Breaker, Steer};
use crate::policy::Policy;
use crate::records::{PlacementKind, Steered};
use crate::role::Role;
use crate::testing::{names, rank, request};

const TWO: [(u32, Role); 2] = [(0, Role::Decode), (1, Role::Decode)];

fn started(cached_tokens: u32, prefill: Option<WorkerRank>) -> LegOutcome {
    LegOutcome::Started(StartReport {
        cached_tokens,
        replayed_tokens: 0,
        window_source: WindowSource::Cold,
        exact: true,
        bytes_fetched: 0,
        prefill,
    })
}

/// Places short requests one after the other, each ending at once; how many each of the two workers got.
fn shares(router: &mut Router, first_id: u128, at_ms: u64) -> [u32; 2] {
    let mut shares = [0; 2];
    for id in first_id..first_id + 40 {
        let worker = placed(&router.submit(request(id, 10, &[]), ms(at_ms))).decode;
        shares[usize::try_from(worker.worker.0).expect("two")] += 1;
        assert_eq!(router.finished(RequestId(id), ms(at_ms)), []);
    }
    shares
}

#[test]
fn a_retry_avoids_the_workers_that_failed_it_while_there_are_others() {
    let mut router = router(&TWO, |_| ());
    let retry = |id, excluded: &[u32]| PlaceRequest {
        excluded: excluded.iter().map(|&worker| rank(worker)).collect(),
        ..request(id, 10, &[])
    };
    for id in 0..10 {
        assert_eq!(placed(&router.submit(retry(id, &[0]), T0)).decode, rank(1));
    }
    let record = router.decision(RequestId(9)).expect("kept");
    assert_eq!(record.considered.steered, [Steered { worker: rank(0), why: Steer::Excluded }]);
    assert!(!record.overridden);
    let placement = placed(&router.submit(retry(10, &[0, 1]), T0));
    assert_eq!(placement.decode, rank(0), "nobody else is left: the less loaded one");
    assert!(router.decision(RequestId(10)).expect("kept").overridden);
    assert_eq!(router.snapshot(T0).life.overridden, 1);
}

#[test]
fn a_worker_that_fails_in_a_row_is_left_alone_then_probed() {
    let mut router = router(&TWO, |_| ());
    for id in 0..3 {
        assert_eq!(router.outcome(RequestId(id), rank(0), LegOutcome::Failed, T0), []);
    }
    assert_eq!(shares(&mut router, 100, 4_999), [0, 40]);
    let breaker = |router: &Router, at| {
        router.snapshot(ms(at)).workers[0].load.expect("computes").life.breaker
    };
    assert_eq!([4_999, 5_000].map(|at| breaker(&router, at)), [Breaker::Open, Breaker::HalfOpen]);
    let mut probe = None;
    for id in 200..240 {
        if placed(&router.submit(request(id, 10, &[]), ms(5_000))).decode == rank(0) {
            assert_eq!(probe.replace(id), None, "one probe at a time");
        }
    }
    let probe = RequestId(probe.expect("some request tried it"));
    assert_eq!(router.outcome(probe, rank(0), started(0, None), ms(5_001)), []);
    assert_eq!(breaker(&router, 5_001), Breaker::Closed);
    assert_eq!(router.snapshot(T0).life.probes, 1);
    assert_eq!(placed(&router.submit(request(300, 10, &[]), ms(5_002))).decode, rank(0), "idle");
}

#[test]
fn the_only_worker_is_used_whatever_is_known_of_it() {
    let mut router = router(&[(0, Role::Decode)], |_| ());
    for id in 0..3 {
        assert_eq!(router.outcome(RequestId(id), rank(0), LegOutcome::Failed, T0), []);
    }
    report(&mut router, 0, T0, busy(0));
    let placement = placed(&router.submit(request(9, 10, &[]), ms(60_000)));
    assert_eq!(placement.decode, rank(0));
    assert_eq!(router.snapshot(T0).life.overridden, 1);
}

#[test]
fn a_worker_without_progress_is_steered_away_from_until_it_moves() {
    let mut router = router(&TWO, |_| ());
    let of = |progress| LoadReport { running: 1, progress, ..LoadReport::default() };
    for (worker, progress) in [(0, 5), (1, 5)] {
        report(&mut router, worker, T0, of(progress));
    }
    for at in [5_000, 10_000, 14_000, 15_000] {
        report(&mut router, 0, ms(at), of(5));
        report(&mut router, 1, ms(at), of(at));
    }
    assert_eq!(shares(&mut router, 100, 15_000), [0, 40]);
    let snapshot = router.snapshot(ms(15_000));
    assert!(snapshot.workers[0].load.expect("computes").life.wedged);
    assert_eq!(snapshot.life.wedged, 1);
    report(&mut router, 0, ms(15_100), of(6));
    assert!(shares(&mut router, 200, 15_100).iter().all(|share| 5 < *share));
}

#[test]
fn what_waits_is_tried_again_when_a_breaker_may_close() {
    let mut router = router(&TWO, |config| config.admission.decode_running_max = 1);
    for id in 0..3 {
        assert_eq!(router.outcome(RequestId(id), rank(0), LegOutcome::Failed, T0), []);
    }
    assert_eq!(placed(&router.submit(request(10, 10, &[]), T0)).decode, rank(1));
    assert_eq!(router.submit(request(11, 10, &[]), T0), [], "rather wait than go to a broken one");
    assert_eq!(router.next_deadline(), Some(ms(5_000)));
    assert_eq!(placed(&router.tick(ms(5_000))).decode, rank(0));
}

#[test]
fn a_draining_worker_gets_nothing_new_and_is_forgotten_at_its_deadline() {
    let mut router = router(&TWO, |_| ());
    let at_0 = (0..).find(|&id| place(&mut router, id, 10, &[]).decode == rank(0)).expect("soon");
    assert_eq!(router.worker_draining(rank(0), ms(9_000), T0), []);
    assert_eq!(router.worker_draining(rank(0), ms(99_000), T0), [], "the first deadline stays");
    assert_eq!(shares(&mut router, 100, 1), [0, 40]);
    assert_eq!(router.next_deadline(), Some(ms(9_000)));
    assert_eq!(router.snapshot(T0).workers.len(), 2);
    assert_eq!(router.tick(ms(9_000)), []);
    let snapshot = router.snapshot(ms(9_000));
    assert_eq!((snapshot.workers.len(), snapshot.lost_with_worker), (1, 1));
    assert_eq!((snapshot.life.drains, snapshot.life.drains_cut_off), (1, 1));
    assert_eq!(router.finished(RequestId(at_0), ms(9_001)), []);
}

#[test]
fn when_all_decode_workers_drain_nothing_waits() {
    let mut router = router(&[(0, Role::Decode)], |config| config.admission.decode_running_max = 1);
    place(&mut router, 1, 10, &[]);
    assert_eq!(router.submit(request(2, 10, &[]), T0), []);
    let refused =
        |id| Action::Refuse { id: RequestId(id), error: ServeError::NoWorker { role: "decode" } };
    let draining = LoadReport { draining: true, ..LoadReport::default() };
    assert_eq!(report(&mut router, 0, T0, draining), [refused(2)]);
    assert_eq!(router.submit(request(3, 10, &[]), T0), [refused(3)]);
    assert_eq!(report(&mut router, 0, T0, LoadReport::default()), []);
    assert_eq!(router.submit(request(4, 10, &[]), T0), [], "it waits again");
    let actions = router.outcome(RequestId(1), rank(0), LegOutcome::Draining, T0);
    assert_eq!(actions, [refused(4)], "a refusal tells as much as a report");
}

#[test]
fn without_the_last_prefill_worker_that_takes_requests_prompts_go_direct() {
    let all = names(1, 62);
    let mut router = router(&[(0, Role::Decode), (1, Role::Prefill)], |_| ());
    assert_eq!(router.worker_draining(rank(1), ms(9_000), T0), []);
    assert_eq!(place(&mut router, 1, 7_948, &all).prefill, None);
    let record = router.decision(RequestId(1)).expect("kept");
    assert_eq!(record.kind, PlacementKind::NoPrefillWorker);
    assert_eq!(record.considered.steered, [Steered { worker: rank(1), why: Steer::Draining }]);
}

#[test]
fn a_new_worker_gets_a_share_of_cold_requests_and_all_it_holds() {
    let mut router = router(&[(0, Role::Decode)], |config| config.life.warm_up_requests = 20);
    shares(&mut router, 0, 0);
    router.worker_joined(rank(1), Role::Decode, T0).expect("room");
    // Worker 0 is busy, so that every request would go to the new one.
    report(&mut router, 0, T0, LoadReport { running: 3, ..LoadReport::default() });
    let mut first = [0; 2];
    for id in 100..140 {
        let worker = place(&mut router, id, 10, &[]).decode;
        first[usize::try_from(worker.worker.0).expect("two")] += 1;
    }
    assert!((4..18).contains(&first[1]), "about a quarter of forty: {first:?}");
    assert!(20 < router.snapshot(T0).life.warm_up_passed);
    let held = names(7, 8);
    hold(&mut router, 1, Tier::Device, &held);
    for id in 200..210 {
        assert_eq!(place(&mut router, id, 1_164, &held).decode, rank(1), "its own blocks");
    }
    for id in 200..210 {
        router.finished(RequestId(id), T0);
    }
    for id in 100..140 {
        router.finished(RequestId(id), T0);
    }
    assert_eq!(shares(&mut router, 300, 0), [0, 40], "warm, and idle beside one that is not");
}

#[test]
fn a_prefill_worker_that_did_not_take_part_counts_as_failed() {
    let all = names(1, 62);
    let members = [(0, Role::Decode), (1, Role::Prefill), (2, Role::Prefill)];
    let mut router = router(&members, |_| ());
    let mut at_1 = 0;
    for id in 0..12 {
        let prefill = place(&mut router, id, 7_948, &all).prefill.expect("it is long");
        at_1 += u32::from(prefill == rank(1));
        // Worker 1 fails whoever it gets, and worker 2 helps out.
        assert_eq!(router.outcome(RequestId(id), rank(0), started(0, Some(rank(2))), T0), []);
    }
    assert_eq!(at_1, 3, "three in a row open its breaker");
    assert_eq!(router.snapshot(T0).life.failures, 3);
}

#[test]
fn predictions_and_outcomes_are_summed_once_per_placement() {
    let all = names(1, 62);
    let mut router = router(&[(0, Role::Decode), (1, Role::Prefill)], |_| ());
    hold(&mut router, 1, Tier::Device, &all[..10]);
    place(&mut router, 1, 7_948, &all);
    place(&mut router, 2, 100, &[]);
    router.finished(RequestId(2), ms(1));
    for (id, cached, at) in [(1, 1_152, 7_000), (1, 9_999, 7_001), (2, 0, 300), (7, 0, 300)] {
        assert_eq!(
            router.outcome(RequestId(id), rank(0), started(cached, Some(rank(1))), ms(at)),
            []
        );
    }
    let ended = LegOutcome::Completed { tokens: 30 };
    assert_eq!(router.outcome(RequestId(1), rank(0), ended, ms(8_000)), []);
    let snapshot = router.snapshot(T0);
    let sums = snapshot.predictions;
    assert_eq!((sums.requests, sums.prompt_tokens), (2, 8_048));
    assert_eq!((sums.expected_tokens, sums.actual_tokens, sums.error_tokens), (1_280, 1_152, 128));
    assert_eq!(sums.actual_time, Duration::from_millis(7_300));
    assert_eq!(snapshot.outcomes_unknown, 2, "told twice, and of a stranger");
    let record = router.decision(RequestId(1)).expect("kept");
    assert_eq!((record.expected_cached_tokens, record.ended), (1_280, Some(ended)));
    let start = record.started.expect("told");
    assert_eq!((start.report.cached_tokens, start.after), (1_152, Duration::from_millis(7_000)));
    // Rows 6,528 and 128 replayed, hand-off, tail; then 100 rows behind them that are not done yet.
    assert_eq!(record.chosen.cost.first_token(), Duration::from_millis(6_656 + 5 + 140));
    assert!(snapshot.answer_tokens < 256);
}

#[test]
fn measured_rates_change_the_choice() {
    let all = names(1, 62);
    let members = [(0, Role::Decode), (1, Role::Decode), (3, Role::Store)];
    // Time of a block from the store at worker 0, in microseconds, and who gets a prompt that all lies there.
    for (block_us, chosen) in [(20, 0), (49, 0), (500, 1)] {
        let mut router = router(&members, |config| config.cost.tie_margin = Duration::ZERO);
        hold(&mut router, 3, Tier::Host, &all);
        let rates = WorkerRates { restore_host_ns: block_us * 1_000, ..WorkerRates::default() };
        report(&mut router, 0, T0, LoadReport { rates, ..LoadReport::default() });
        assert_eq!(place(&mut router, 1, 7_948, &all).decode, rank(chosen), "{block_us} us");
        let cost = router.decision(RequestId(1)).expect("kept").chosen.cost;
        assert_eq!(cost.restore, Duration::from_micros(61 * block_us.min(50)));
    }
}

#[test]
fn running_answers_make_a_worker_dearer_by_what_they_wait() {
    let mut router = router(&TWO, |_| ());
    let rates = WorkerRates { step_ns: 2_000_000, ..WorkerRates::default() };
    report(&mut router, 0, T0, LoadReport { running: 4, rates, ..LoadReport::default() });
    report(&mut router, 1, T0, LoadReport { running: 40, ..LoadReport::default() });
    assert_eq!(place(&mut router, 1, 100, &[]).decode, rank(0));
    let candidates = &router.decision(RequestId(1)).expect("kept").considered.decode;
    let (near, far) = (candidates[0].cost, candidates[1].cost);
    // Four answers wait for 100 rows of a millisecond, and in each of 16 steps for a quarter of the measured step.
    assert_eq!(near.interference, Duration::from_millis(4 * (100 + 8)));
    assert_eq!(near.tail, Duration::from_millis(102), "with the step that it shares");
    assert_eq!(far.interference, Duration::from_millis(40 * (100 + 16)), "unmeasured: a row each");
}

#[test]
fn every_policy_places_and_decides_about_prefill_by_cost() {
    let all = names(1, 62);
    for policy in Policy::ALL {
        let members =
            [(0, Role::Decode), (1, Role::Decode), (2, Role::Prefill), (3, Role::Prefill)];
        let mut router = router(&members, |config| config.policy = policy);
        hold(&mut router, 1, Tier::Device, &all);
        for id in 0..24 {
            let session = Some(SessionKey(7));
            let asked = PlaceRequest { session, ..request(id, 7_948, &all) };
            let placement = placed(&router.submit(asked, T0));
            let holder = placement.decode == rank(1);
            assert_eq!(placement.prefill.is_none(), holder, "{}", policy.as_str());
            assert!(placement.reason.starts_with(policy.as_str()), "{}", placement.reason);
        }
        let loads = router.snapshot(T0).workers.into_iter();
        let placed: Vec<u32> = loads.filter_map(|it| it.load.map(|load| load.placed)).collect();
        let [first, second, ..] = placed[..] else { panic!("four workers compute") };
        match policy {
            Policy::Cost => assert!(20 <= second, "{placed:?}"),
            Policy::CacheAware => assert!(first < second && 0 < first, "{placed:?}"),
            Policy::LeastLoaded | Policy::PowerOfTwo | Policy::RoundRobin => {
                assert_eq!((first, second), (12, 12), "{}", policy.as_str());
            }
            Policy::Session => {
                assert!(0 < first.min(second) && first != second, "{placed:?}");
            }
        }
    }
}
