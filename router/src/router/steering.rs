//! Steering away from workers, and what is learned from outcomes.

use std::time::Duration;

use shared::{
    LegOutcome, LoadReport, PlaceRequest, RequestId, ServeError, SessionKey, StartReport, Tier,
    Timestamp, WindowSource, WorkerRank, WorkerRates,
};

use super::tests::{T0, busy, hold, ms, place, placed, report, router};
use super::{Action, Router};
use crate::life::{Breaker, DrainSource, Steer};
use crate::policy::Policy;
use crate::records::{LegEnd, PlacementKind, Steered};
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

/// An operator's drain until then.
fn told(until_ms: u64) -> (DrainSource, Timestamp) {
    (DrainSource::Operator, ms(until_ms))
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
fn a_probe_ends_with_the_decode_worker_of_its_request() {
    let all = names(1, 62);
    let members = [(0, Role::Decode), (1, Role::Prefill), (2, Role::Prefill)];
    let mut router = router(&members, |config| config.life.failures_max = 1);
    // Worker 1 gets no request in any other way than as a probe.
    assert_eq!(router.outcome(RequestId(0), rank(1), LegOutcome::Failed, T0), []);
    let submit = |router: &mut Router, id| {
        let actions = router.submit(request(id, 7_948, &all), ms(5_000));
        placed(&actions).prefill
    };
    let probe = |router: &mut Router, first: u128| {
        let at_1 = (first..first + 10).filter(|&id| submit(router, id) == Some(rank(1))).count();
        assert_eq!(at_1, 1, "one probe at a time");
    };
    probe(&mut router, 100);
    assert_eq!(router.worker_left(rank(0), ms(5_000)), []);
    router.worker_joined(rank(0), Role::Decode, ms(5_000)).expect("room");
    probe(&mut router, 200);
    assert_eq!(router.snapshot(T0).life.probes, 2);
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
fn a_draining_worker_gets_nothing_new_and_what_runs_there_is_forgotten_at_its_deadline() {
    let mut router = router(&TWO, |_| ());
    let at_0 = (0..).find(|&id| place(&mut router, id, 10, &[]).decode == rank(0)).expect("soon");
    assert_eq!(router.worker_draining(rank(0), told(9_000), T0), []);
    assert_eq!(router.worker_draining(rank(0), told(99_000), T0), [], "the first deadline stays");
    assert_eq!(shares(&mut router, 100, 1), [0, 40]);
    assert_eq!(router.next_deadline(), Some(ms(9_000)));
    assert_eq!(router.snapshot(T0).workers.len(), 2);
    assert_eq!(router.tick(ms(9_000)), []);
    let snapshot = router.snapshot(ms(9_000));
    assert_eq!((snapshot.running, snapshot.lost_with_worker), (0, 1));
    assert_eq!((snapshot.life.drains, snapshot.life.drains_cut_off), (1, 1));
    assert_eq!(router.finished(RequestId(at_0), ms(9_001)), []);
    // The worker stays, and drains until the operator says the contrary.
    assert_eq!((snapshot.workers.len(), router.next_deadline()), (2, None));
    assert_eq!(
        router.worker_draining(rank(0), told(10_000), T0),
        [],
        "there is nothing more to end"
    );
    assert_eq!(shares(&mut router, 200, 20_000), [0, 40]);
    report(&mut router, 0, ms(20_000), LoadReport::default());
    let snapshot = router.snapshot(ms(20_000));
    assert_eq!((snapshot.reports_unknown_worker, snapshot.life.drains_cut_off), (0, 1));
    assert_eq!(router.worker_undrained(rank(0), DrainSource::Operator, ms(20_000)), []);
    assert!(shares(&mut router, 300, 20_001).iter().all(|share| 5 < *share));
    // A drain after that has a deadline of its own.
    assert_eq!(router.worker_draining(rank(0), told(30_000), ms(20_002)), []);
    assert_eq!(router.next_deadline(), Some(ms(30_000)));
}

/// A worker that is away when the time of its drain comes, or was cut off before it went.
#[test]
fn an_operators_word_outlasts_its_deadline_and_the_worker() {
    for (left_ms, cut_off) in [(1_000, 0), (10_000, 1)] {
        let mut router = router(&TWO, |_| ());
        assert_eq!(router.worker_draining(rank(0), told(9_000), T0), []);
        assert_eq!(router.tick(ms(left_ms)), []);
        assert_eq!(router.worker_left(rank(0), ms(left_ms)), []);
        router.worker_joined(rank(0), Role::Decode, ms(11_000)).expect("room");
        assert_eq!(shares(&mut router, 100, 11_000), [0, 40]);
        let snapshot = router.snapshot(ms(11_000));
        assert_eq!((snapshot.life.drains_cut_off, router.next_deadline()), (cut_off, None));
        assert_eq!(router.worker_undrained(rank(0), DrainSource::Operator, ms(11_001)), []);
        assert!(shares(&mut router, 200, 11_002).iter().all(|share| 5 < *share));
    }
}

/// Who says that worker 0 drains, who says the contrary, and whether it drains then.
#[test]
fn a_drain_ends_when_all_who_asked_for_it_say_so() {
    let ends = |router: &mut Router, by| router.worker_undrained(rank(0), by, T0);
    for first in DrainSource::ALL {
        for second in DrainSource::ALL {
            let mut router = router(&TWO, |_| ());
            let by = |router: &Router| router.life(rank(0), T0).expect("computes").draining;
            assert_eq!(router.worker_draining(rank(0), (first, ms(9_000)), T0), []);
            assert_eq!(router.worker_draining(rank(0), (second, ms(8_000)), T0), []);
            assert_eq!(by(&router), Some(first.min(second)));
            assert_eq!(router.next_deadline(), Some(ms(8_000)));
            assert_eq!(ends(&mut router, first), []);
            assert_eq!(by(&router).is_some(), first != second, "{first:?}, {second:?}");
            assert_eq!(ends(&mut router, second), []);
            assert_eq!(by(&router), None);
            assert_eq!(router.snapshot(T0).life.drains, 1);
            assert!(shares(&mut router, 100, 1).iter().all(|share| 5 < *share));
        }
    }
    let router = router(&TWO, |_| ());
    assert_eq!(router.life(rank(7), T0), None, "no member");
}

#[test]
fn what_waits_is_placed_when_a_drain_ends() {
    let mut router = router(&TWO, |config| config.admission.decode_running_max = 1);
    assert_eq!(router.worker_draining(rank(0), told(9_000), T0), []);
    assert_eq!(place(&mut router, 1, 10, &[]).decode, rank(1));
    assert_eq!(router.submit(request(2, 10, &[]), T0), []);
    let actions = router.worker_undrained(rank(0), DrainSource::Operator, T0);
    assert_eq!(placed(&actions).decode, rank(0));
}

/// A worker that fails, leaves and comes back after some time, and what is known of it then.
#[test]
fn a_worker_that_comes_back_in_time_is_known() {
    let cases = [
        (1, Role::Decode, Breaker::Open, true, false),
        (4_999, Role::Decode, Breaker::Open, true, false),
        (5_000, Role::Decode, Breaker::HalfOpen, true, false),
        (599_999, Role::Decode, Breaker::HalfOpen, true, false),
        (600_000, Role::Decode, Breaker::Closed, false, true),
        (1, Role::Prefill, Breaker::Closed, false, true),
    ];
    for (away_ms, role, breaker, drained, new) in cases {
        let mut router = router(&TWO, |config| config.life.warm_up_requests = 20);
        shares(&mut router, 100, 0);
        shares(&mut router, 200, 0);
        router.worker_draining(rank(0), (DrainSource::Operator, ms(9_000_000)), T0);
        router.worker_draining(rank(0), (DrainSource::Discovery, ms(9_000_000)), T0);
        for id in 0..2 {
            router.outcome(RequestId(id), rank(0), LegOutcome::Failed, T0);
        }
        router.worker_left(rank(0), T0);
        assert_eq!(router.snapshot(T0).remembered, 1);
        // Heard of when it is gone.
        router.outcome(RequestId(2), rank(0), LegOutcome::Failed, T0);
        let back = ms(away_ms);
        router.worker_joined(rank(0), role, back).expect("room");
        let life = router.life(rank(0), back).expect("computes");
        let case = format!("away {away_ms} ms, {role:?}");
        assert_eq!(life.breaker, breaker, "{case}");
        assert_eq!(life.draining, drained.then_some(DrainSource::Operator), "{case}");
        assert_eq!(life.warming_up, new, "{case}");
        let snapshot = router.snapshot(back);
        assert_eq!((snapshot.remembered, snapshot.life.returned), (0, u64::from(!new)), "{case}");
    }
}

#[test]
fn those_remembered_are_bounded_and_nobody_is_where_nothing_is_to_be() {
    for (remember, most) in [(Duration::from_secs(600), 512), (Duration::ZERO, 0)] {
        let mut router = router(&[], |config| config.life.remember = remember);
        for worker in 0..600 {
            router.worker_joined(rank(worker), Role::Decode, T0).expect("room");
            router.worker_left(rank(worker), T0);
        }
        assert_eq!(router.snapshot(T0).remembered, most);
        router.worker_joined(rank(0), Role::Decode, T0).expect("room");
        assert_eq!(router.snapshot(T0).life.returned, 0, "the first made room");
    }
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
    assert_eq!(router.worker_draining(rank(1), told(9_000), T0), []);
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
    assert_eq!(record.expected_cached_tokens, 1_280);
    let end = record.ended.expect("told");
    assert_eq!((end.how, end.after), (LegEnd::Completed { tokens: 30 }, Duration::from_secs(8)));
    let start = record.started.expect("told");
    assert_eq!((start.report.cached_tokens, start.after), (1_152, Duration::from_millis(7_000)));
    // Rows 6,528 and 128 replayed, hand-off, tail; then 100 rows behind them that are not done yet.
    assert_eq!(record.chosen.cost.first_token(), Duration::from_millis(6_656 + 5 + 140).into());
    assert!(snapshot.answer_tokens < 256);
}

/// What a request's caller says in turn, and the end that its record shows: words beat silence, in either order.
#[test]
fn a_record_shows_how_its_placement_ended() {
    let completed = LegOutcome::Completed { tokens: 7 };
    let shown = LegEnd::Completed { tokens: 7 };
    let cases: [(&[Option<LegOutcome>], Option<LegEnd>); 6] = [
        (&[], None),
        (&[Some(started(0, None))], None),
        (&[None], Some(LegEnd::LetGo)),
        (&[Some(completed), None], Some(shown)),
        (&[None, Some(completed), Some(LegOutcome::Failed)], Some(shown)),
        (&[Some(LegOutcome::Draining), None], Some(LegEnd::Draining)),
    ];
    for (words, end) in cases {
        let mut router = router(&[(0, Role::Decode)], |_| ());
        place(&mut router, 1, 100, &[]);
        assert_eq!(router.expected_cached_tokens(RequestId(1), rank(0)), Some(0));
        assert_eq!(router.expected_cached_tokens(RequestId(1), rank(1)), None, "another worker");
        for (word, at) in words.iter().zip(1..) {
            let actions = match word {
                Some(outcome) => router.outcome(RequestId(1), rank(0), *outcome, ms(at)),
                None => router.finished(RequestId(1), ms(at)),
            };
            assert_eq!(actions, [], "{words:?}");
        }
        let record = router.decision(RequestId(1)).expect("kept");
        assert_eq!(record.ended.map(|ended| ended.how), end, "{words:?}");
        let has_started = record.started.is_some();
        assert_eq!(
            router.expected_cached_tokens(RequestId(1), rank(0)).is_none(),
            has_started,
            "a start is compared once"
        );
    }
}

#[test]
fn measured_rates_change_the_choice() {
    let all = names(1, 62);
    let members = [(0, Role::Decode), (1, Role::Decode), (3, Role::Store)];
    // The tier at the store, its time of a block as configured and at worker 0, in microseconds, and who gets a prompt that
    // all lies there.
    let cases = [
        (Tier::Host, 50, 20, 0),
        (Tier::Host, 50, 49, 0),
        (Tier::Host, 50, 500, 1),
        (Tier::Disk, 200, 90, 0),
        (Tier::Disk, 200, 900, 1),
        (Tier::Remote, 1_000, 400, 0),
        (Tier::Remote, 1_000, 2_000, 1),
    ];
    for (tier, configured_us, block_us, chosen) in cases {
        let mut router = router(&members, |config| config.cost.tie_margin = Duration::ZERO);
        hold(&mut router, 3, tier, &all);
        let none = WorkerRates::default();
        let nanos = block_us * 1_000;
        let rates = match tier {
            Tier::Disk => WorkerRates { restore_disk_ns: nanos, ..none },
            Tier::Remote => WorkerRates { restore_remote_ns: nanos, ..none },
            Tier::Host | Tier::Device => WorkerRates { restore_host_ns: nanos, ..none },
        };
        report(&mut router, 0, T0, LoadReport { rates, ..LoadReport::default() });
        assert_eq!(
            place(&mut router, 1, 7_948, &all).decode,
            rank(chosen),
            "{tier:?} {block_us} us"
        );
        let cost = router.decision(RequestId(1)).expect("kept").chosen.cost;
        assert_eq!(cost.restore, Duration::from_micros(61 * block_us.min(configured_us)).into());
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
    assert_eq!(near.interference, Duration::from_millis(4 * (100 + 8)).into());
    assert_eq!(near.tail, Duration::from_millis(102).into(), "with the step that it shares");
    assert_eq!(
        far.interference,
        Duration::from_millis(40 * (100 + 16)).into(),
        "unmeasured: a row each"
    );
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
