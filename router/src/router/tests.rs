//! Placement, admission and membership by cases.

use std::collections::BTreeMap;
use std::time::Duration;

use shared::{
    BlockName, CacheChange, CacheEvent, CacheQuestion, LoadReport, Placement, RequestId,
    ServeError, StartGeometry, Tier, Timestamp, WorkerEvent, WorkerRank,
};

use super::{Action, Router};
use crate::config::RouterConfig;
use crate::index::ViewState;
use crate::records::PlacementKind;
use crate::role::Role;
use crate::testing::{names, rank, request};

const FLASH: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };
pub(super) const T0: Timestamp = Timestamp(0);

pub(super) fn ms(ms: u64) -> Timestamp {
    T0.after(Duration::from_millis(ms))
}

pub(super) fn config(change: impl FnOnce(&mut RouterConfig)) -> RouterConfig {
    let mut config = RouterConfig::with_defaults(FLASH);
    // New workers would get a share only; tests of that set it.
    config.life.warm_up_requests = 0;
    // What is expected has tests of its own; here the same prompt comes again and again.
    config.expected_blocks = Duration::ZERO;
    change(&mut config);
    config
}

pub(super) fn router(members: &[(u32, Role)], change: impl FnOnce(&mut RouterConfig)) -> Router {
    let mut router = Router::new(config(change)).expect("valid settings");
    for &(worker, role) in members {
        let actions = router.worker_joined(rank(worker), role, T0).expect("room");
        assert_eq!(actions, []);
    }
    router
}

pub(super) fn cache(
    router: &mut Router,
    worker: u32,
    sequence: u64,
    change: CacheChange,
) -> Vec<Action> {
    let event = CacheEvent { worker: rank(worker), incarnation: 1, sequence, change };
    router.worker_event(&WorkerEvent::Cache(event), T0)
}

pub(super) fn hold(router: &mut Router, worker: u32, tier: Tier, names: &[BlockName]) {
    let change = CacheChange::Stored { tier, names: names.to_vec() };
    assert_eq!(cache(router, worker, 0, change), []);
}

pub(super) fn report(
    router: &mut Router,
    worker: u32,
    at: Timestamp,
    report: LoadReport,
) -> Vec<Action> {
    router.worker_event(&WorkerEvent::Load { worker: rank(worker), report }, at)
}

pub(super) fn busy(pending_rows: u64) -> LoadReport {
    LoadReport { running: 1, pending_rows, rows_per_second: 1_000.0, ..LoadReport::default() }
}

pub(super) fn placed(actions: &[Action]) -> Placement {
    match actions {
        [Action::Place { placement, .. }] => placement.clone(),
        other => panic!("expected one placement, found {other:?}"),
    }
}

pub(super) fn place(router: &mut Router, id: u128, tokens: u32, names: &[BlockName]) -> Placement {
    let placement = placed(&router.submit(request(id, tokens, names), T0));
    assert!(!placement.reason.contains('\n') && !placement.reason.is_empty());
    placement
}

pub(super) fn kind(router: &Router, id: u128) -> PlacementKind {
    router.decision(RequestId(id)).expect("kept").kind
}

#[test]
fn prefill_is_visited_only_for_a_missing_part() {
    use PlacementKind::{AllCached, DirectCheaper, Disaggregated, ShortPrompt};
    // N, S, and the kind when cold, when D lacks the last block of [0, S), and when D has all of it.
    let cases = [
        (1, 0, [ShortPrompt; 3]),
        (2, 0, [ShortPrompt; 3]),
        (127, 0, [ShortPrompt; 3]),
        (128, 0, [ShortPrompt; 3]),
        (129, 0, [ShortPrompt; 3]),
        (267, 0, [ShortPrompt; 3]),
        (268, 128, [Disaggregated, Disaggregated, AllCached]),
        (269, 128, [Disaggregated, Disaggregated, AllCached]),
        (408, 256, [Disaggregated, Disaggregated, AllCached]),
        // D lacks 128 rows and replays 128: 256 ms, and as much for who waits. Prefill needs 768 ms and the hand-off.
        (1_000, 768, [Disaggregated, DirectCheaper, AllCached]),
        (7_948, 7_808, [Disaggregated, DirectCheaper, AllCached]),
    ];
    for (tokens, boundary, kinds) in cases {
        let boundary: u32 = boundary;
        let all = names(1, tokens / 128);
        let needed = boundary / 128;
        for running in [0, 1, 4] {
            for (held, mut expected) in [0, needed.saturating_sub(1), needed].into_iter().zip(kinds)
            {
                let mut router = router(&[(0, Role::Decode), (1, Role::Prefill)], |_| ());
                report(&mut router, 0, T0, LoadReport { running, ..LoadReport::default() });
                let held_names = &all[..usize::try_from(held).expect("small")];
                hold(&mut router, 0, Tier::Device, held_names);
                if (running, tokens, expected) == (4, 1_000, DirectCheaper) {
                    // Four wait for 256 ms: more than the whole of prefill.
                    expected = Disaggregated;
                }
                let placement = place(&mut router, 1, tokens, &all);
                let case = format!("N = {tokens}, {held} blocks held, {running} running");
                assert_eq!(kind(&router, 1), expected, "{case}");
                assert_eq!(placement.prefill.is_some(), expected == Disaggregated, "{case}");
                assert_eq!(placement.expected_cached_tokens, held * 128, "{case}");
                assert_eq!(router.decision(RequestId(1)).expect("kept").boundary, boundary);
            }
        }
    }
}

#[test]
fn more_cached_than_the_boundary_is_not_counted() {
    let all = names(1, 62);
    let mut router = router(&[(0, Role::Decode), (1, Role::Prefill)], |_| ());
    hold(&mut router, 0, Tier::Device, &all);
    assert_eq!(place(&mut router, 1, 7_948, &all).expected_cached_tokens, 7_808);
    assert_eq!(place(&mut router, 2, 267, &all[..2]).expected_cached_tokens, 0);
}

#[test]
fn blocks_in_a_store_are_had_by_every_decode_worker() {
    let all = names(1, 62);
    let members = [(0, Role::Decode), (1, Role::Decode), (2, Role::Prefill), (3, Role::Store)];
    for tier in [Tier::Host, Tier::Disk, Tier::Remote] {
        let mut router = router(&members, |_| ());
        hold(&mut router, 3, tier, &all);
        for id in 1..=8 {
            let placement = place(&mut router, id, 7_948, &all);
            assert_eq!((placement.prefill, placement.expected_cached_tokens), (None, 7_808));
        }
        let snapshot = router.snapshot(T0);
        let loads = snapshot.workers.iter().filter_map(|it| it.load.map(|load| load.placed));
        assert_eq!(loads.collect::<Vec<_>>(), [4, 4, 0], "equal copies: the less loaded one");
    }
}

#[test]
fn each_cached_block_costs_the_lesser_of_restore_and_recompute() {
    let all = names(1, 8);
    // Restore time of a host block, and what eight of them add; one block's recompute takes 128 ms.
    for (restore, expected) in [(1, 6), (100, 600), (128, 768), (500, 768)] {
        let mut router = router(&[(0, Role::Decode), (3, Role::Store)], |config| {
            config.cost.restore_host = Duration::from_millis(restore);
        });
        hold(&mut router, 3, Tier::Host, &all);
        place(&mut router, 1, 1_000, &all);
        let cost = router.decision(RequestId(1)).expect("kept").chosen.cost;
        assert_eq!(cost.restore, Duration::from_millis(expected).into(), "restore in {restore} ms");
        assert_eq!(cost.recompute, Duration::from_millis(128).into(), "the replayed rows");
        assert_eq!(cost.tail, Duration::from_millis(232).into());
        assert_eq!(cost.total(), cost.restore.plus(cost.recompute).plus(cost.tail));
    }
}

#[test]
fn a_long_queue_outweighs_a_cached_prefix() {
    let all = names(1, 62);
    // Rows waiting at the worker that holds the prompt, and who gets the request.
    for (waiting, chosen) in [(0, 0), (5_000, 0), (7_000, 0), (25_000, 1)] {
        let members = [(0, Role::Decode), (1, Role::Decode)];
        let mut router = router(&members, |_| ());
        hold(&mut router, 0, Tier::Device, &all);
        report(&mut router, 0, T0, busy(waiting));
        let placement = place(&mut router, 1, 7_948, &all);
        assert_eq!(placement.decode, rank(chosen), "{waiting} rows waiting");
        assert_eq!(placement.prefill, None);
    }
}

#[test]
fn the_prefill_worker_with_the_shortest_path_is_chosen() {
    let all = names(1, 62);
    let members = [(0, Role::Decode), (1, Role::Prefill), (2, Role::Prefill)];
    // Rows waiting at worker 1, blocks cached there, and who gets the prompt; worker 2 is idle and cold.
    for (waiting, cached, chosen) in [(0, 10, 1), (1_000, 10, 1), (1_400, 10, 2), (100, 0, 2)] {
        let mut router = router(&members, |_| ());
        hold(&mut router, 1, Tier::Device, &all[..cached]);
        report(&mut router, 1, T0, busy(waiting));
        let placement = place(&mut router, 1, 7_948, &all);
        assert_eq!(placement.prefill, Some(rank(chosen)), "{waiting} rows, {cached} blocks");
        assert_eq!(placement.expected_cached_tokens, 0, "nothing is cached at the decode worker");
        let record = router.decision(RequestId(1)).expect("kept");
        let cached = if chosen == 1 { 1_280 } else { 0 };
        assert_eq!(record.prefill_cached_tokens, cached);
        assert_eq!(record.considered.prefill.len(), 2);
    }
}

#[test]
fn direct_rows_max_sends_long_prompts_to_prefill_whatever_the_estimate() {
    let all = names(1, 62);
    // The prefill worker is hopelessly slow; S = 768 rows are missing.
    for (direct_rows_max, visits) in [(0, true), (767, true), (768, false), (2_048, false)] {
        let mut router = router(&[(0, Role::Decode), (1, Role::Prefill)], |config| {
            config.cost.direct_rows_max = direct_rows_max;
            config.cost.prefill_rows_per_second = 1;
        });
        let placement = place(&mut router, 1, 1_000, &all[..7]);
        assert_eq!(placement.prefill.is_some(), visits, "at most {direct_rows_max} rows");
    }
}

#[test]
fn without_prefill_workers_everything_is_direct() {
    let mut router = router(&[(0, Role::Decode)], |config| config.cost.direct_rows_max = 0);
    let placement = place(&mut router, 1, 7_948, &names(1, 62));
    assert_eq!((placement.decode, placement.prefill), (rank(0), None));
    assert_eq!(kind(&router, 1), PlacementKind::NoPrefillWorker);
}

#[test]
fn equal_workers_share_requests_by_load_and_then_by_seed() {
    let members = [(0, Role::Decode), (1, Role::Decode), (2, Role::Decode)];
    let mut router = router(&members, |_| ());
    for id in 0..30 {
        place(&mut router, id, 1, &[]);
    }
    let even = router.snapshot(T0).workers.iter().all(|it| it.load.is_some_and(|l| l.placed == 10));
    assert!(even, "placed requests count before any report");

    let alone = |seed| {
        let mut router = self::router(&members, |config| config.seed = seed);
        let choices = (0..300_u128).map(|id| {
            let worker = place(&mut router, id, 1, &[]).decode;
            router.finished(RequestId(id), T0);
            worker
        });
        choices.collect::<Vec<_>>()
    };
    let choices = alone(7);
    let mut shares: BTreeMap<WorkerRank, u32> = BTreeMap::new();
    for &worker in &choices {
        *shares.entry(worker).or_default() += 1;
    }
    assert!(shares.len() == 3 && shares.values().all(|&share| 70 < share), "{shares:?}");
    assert_eq!(choices, alone(7), "same seed, same choices");
    assert_ne!(choices, alone(8), "another replica chooses differently");
}

#[test]
fn a_full_router_queues_then_refuses_then_serves_in_order() {
    let mut router = router(&[(0, Role::Decode)], |config| {
        config.admission.decode_running_max = 2;
        config.admission.waiting_max = 3;
    });
    place(&mut router, 1, 10, &[]);
    place(&mut router, 2, 10, &[]);
    for id in 3..=5 {
        assert_eq!(router.submit(request(id, 10, &[]), T0), []);
    }
    let error = ServeError::Overloaded { waiting: 3, waiting_max: 3, retry_after_ms: 1_000 };
    let refused = vec![Action::Refuse { id: RequestId(6), error }];
    assert_eq!(router.submit(request(6, 10, &[]), T0), refused);
    assert_eq!(router.finished(RequestId(4), ms(1)), [], "withdrawn while waiting");
    for (done, next) in [(2, 3), (1, 5)] {
        let actions = router.finished(RequestId(done), ms(100));
        assert!(matches!(actions[..], [Action::Place { id, .. }] if id == RequestId(next)));
    }
    let snapshot = router.snapshot(ms(100));
    assert_eq!((snapshot.waiting, snapshot.running, snapshot.withdrawn), (0, 2, 1));
    assert_eq!((snapshot.refused.overloaded, snapshot.placed.total()), (1, 4));
    assert_eq!(router.decision(RequestId(5)).expect("kept").waited, Duration::from_millis(100));
}

#[test]
fn expired_requests_are_refused_and_never_placed() {
    let mut router = router(&[(0, Role::Decode)], |config| {
        config.admission.decode_running_max = 1;
    });
    let expired = |id| Action::Refuse {
        id: RequestId(id),
        error: ServeError::DeadlineExceeded { stage: "queued" },
    };
    let with_deadline = |id, at| {
        let mut request = request(id, 10, &[]);
        request.deadline = Some(ms(at));
        request
    };
    assert_eq!(router.submit(with_deadline(1, 5), ms(5)), [expired(1)]);
    place(&mut router, 2, 10, &[]);
    assert_eq!(router.submit(with_deadline(3, 80), ms(10)), []);
    assert_eq!(router.submit(with_deadline(4, 40), ms(10)), []);
    assert_eq!(router.submit(with_deadline(5, 900), ms(10)), []);
    assert_eq!(router.next_deadline(), Some(ms(40)));
    assert_eq!(router.tick(ms(39)), []);
    assert_eq!(router.tick(ms(40)), [expired(4)]);
    let actions = router.finished(RequestId(2), ms(80));
    assert_eq!(actions.len(), 2, "{actions:?}");
    assert_eq!(actions[0], expired(3));
    assert!(matches!(actions[1], Action::Place { id: RequestId(5), .. }));
    assert_eq!(router.next_deadline(), None);
}

#[test]
fn without_decode_workers_nothing_waits() {
    let no_worker =
        |id| Action::Refuse { id: RequestId(id), error: ServeError::NoWorker { role: "decode" } };
    let mut router = router(&[(1, Role::Prefill), (2, Role::Store)], |config| {
        config.admission.decode_running_max = 1;
    });
    assert_eq!(router.submit(request(1, 10, &[]), T0), [no_worker(1)]);
    assert_eq!(router.worker_joined(rank(0), Role::Decode, T0), Ok(Vec::new()));
    place(&mut router, 2, 10, &[]);
    assert_eq!(router.submit(request(3, 10, &[]), T0), []);
    assert_eq!(router.submit(request(4, 10, &[]), T0), []);
    assert_eq!(router.worker_left(rank(0), T0), [no_worker(3), no_worker(4)]);
    assert_eq!(router.snapshot(T0).lost_with_worker, 1);
}

#[test]
fn a_worker_whose_events_begin_anew_keeps_its_requests_and_those_that_wait() {
    let mut router = router(&[(0, Role::Decode)], |config| {
        config.admission.decode_running_max = 1;
    });
    hold(&mut router, 0, Tier::Device, &names(1, 8));
    place(&mut router, 1, 10, &[]);
    assert_eq!(router.submit(request(2, 10, &[]), T0), []);
    // A gap has been noticed; its repair is over as well.
    let stored = |names| CacheChange::Stored { tier: Tier::Device, names };
    assert_ne!(cache(&mut router, 0, 5, stored(names(2, 1))), []);
    router.view_lost(rank(0));
    let snapshot = router.snapshot(T0);
    assert_eq!((snapshot.running, snapshot.waiting, snapshot.lost_with_worker), (1, 1, 0));
    let member = snapshot.workers[0];
    assert_eq!((member.view, member.index_entries), (ViewState::Stale, 0));
    assert_eq!(member.load.expect("computes").placed, 1);
    assert_eq!((router.next_deadline(), router.tick(ms(10_000))), (None, Vec::new()));
    assert_eq!(cache(&mut router, 0, 9, CacheChange::Cleared), []);
    assert_eq!(cache(&mut router, 0, 10, stored(names(3, 2))), []);
    assert_eq!(router.index.view(rank(0)), Some((ViewState::Complete, 2)));
    assert_eq!(placed(&router.finished(RequestId(1), ms(10_000))).decode, rank(0));
    router.view_lost(rank(7));
}

#[test]
fn a_worker_that_leaves_takes_its_requests_along() {
    let all = names(1, 8);
    let mut router = router(&[(0, Role::Decode), (1, Role::Prefill)], |config| {
        config.admission.decode_running_max = 1;
        config.cost.direct_rows_max = 0;
    });
    hold(&mut router, 0, Tier::Device, &all[..1]);
    assert_eq!(place(&mut router, 1, 1_000, &all).prefill, Some(rank(1)));
    assert_eq!(router.worker_joined(rank(2), Role::Decode, T0), Ok(Vec::new()));
    assert_eq!(place(&mut router, 2, 1_000, &all).decode, rank(2));
    assert_eq!(router.worker_left(rank(0), T0), []);
    let snapshot = router.snapshot(T0);
    assert_eq!((snapshot.running, snapshot.index_entries), (1, 0));
    let prefill = snapshot.workers[0].load.expect("computes");
    assert_eq!((prefill.placed, prefill.rows), (1, 768), "its half of the chain ended, too");
    assert_eq!(router.worker_joined(rank(0), Role::Decode, T0), Ok(Vec::new()));
    assert_eq!(router.finished(RequestId(1), T0), [], "known no more");
    assert_eq!(place(&mut router, 1, 10, &[]).decode, rank(0), "free again, same id");
    assert_eq!(router.worker_left(rank(1), T0), []);
    assert_eq!(router.worker_joined(rank(1), Role::Prefill, T0), Ok(Vec::new()));
    assert_eq!(router.finished(RequestId(2), T0), []);
    assert_eq!(router.snapshot(T0).finished_unknown, 1);
}

#[test]
fn a_request_that_needs_prefill_waits_for_it() {
    let all = names(1, 62);
    let mut router = router(&[(0, Role::Decode), (1, Role::Prefill)], |config| {
        config.admission.prefill_running_max = 1;
    });
    assert_eq!(place(&mut router, 1, 7_948, &all).prefill, Some(rank(1)));
    assert_eq!(router.submit(request(2, 7_948, &all), T0), []);
    let beside = placed(&router.submit(request(3, 10, &[]), T0));
    assert_eq!(beside.prefill, None, "one that needs no prefill goes past");
    assert_eq!(router.snapshot(T0).overtaken, 1);
    assert_eq!(router.next_deadline(), Some(ms(7_808)), "when the first prompt should be done");
    assert_eq!(router.tick(ms(7_807)), []);
    let actions = router.tick(ms(7_808));
    let ids = actions.iter().map(|action| match action {
        Action::Place { id, placement } => (id.0, placement.prefill),
        other => panic!("{other:?}"),
    });
    assert_eq!(ids.collect::<Vec<_>>(), [(2, Some(rank(1)))]);

    // A short missing part does not wait.
    let placement = placed(&router.submit(request(4, 408, &names(2, 3)), ms(7_808)));
    assert_eq!((placement.prefill, kind(&router, 4)), (None, PlacementKind::PrefillBusy));
    assert_eq!(router.submit(request(5, 7_948, &all), ms(7_808)), []);
    let actions = router.worker_left(rank(1), ms(7_809));
    assert_eq!(placed(&actions).prefill, None, "no prefill worker is left to wait for");
}

#[test]
fn a_gap_asks_for_digests_and_in_the_end_for_everything() {
    let all = names(1, 4);
    let stored = || CacheChange::Stored { tier: Tier::Device, names: names(1, 4) };
    let asks = |question| [Action::Resync { worker: rank(0), question }];
    let mut router = router(&[(0, Role::Decode)], |config| config.resync.attempts_max = 2);
    hold(&mut router, 0, Tier::Device, &all);
    assert_eq!(
        cache(&mut router, 0, 2, CacheChange::Removed { tier: Tier::Device, names: names(1, 1) }),
        asks(CacheQuestion::Digests)
    );
    assert_eq!(router.snapshot(T0).index_entries, 3, "the others are likely still there");
    assert_eq!(router.next_deadline(), Some(ms(1_000)));
    assert_eq!(router.tick(ms(999)), []);
    assert_eq!(router.tick(ms(1_000)), asks(CacheQuestion::Digests));
    assert_eq!(router.tick(ms(2_000)), asks(CacheQuestion::Whole));
    assert_eq!(router.snapshot(T0).index_entries, 0, "believed no more");
    assert_eq!(router.tick(ms(3_000)), asks(CacheQuestion::Whole));
    assert_eq!((router.next_deadline(), router.tick(ms(9_000))), (None, Vec::new()), "given up");
    let worker = router.snapshot(T0).workers[0];
    assert_eq!((worker.view, worker.ranges_suspect), (ViewState::Stale, 256));
    assert_eq!(cache(&mut router, 0, 3, CacheChange::Cleared), []);
    assert_eq!(cache(&mut router, 0, 4, stored()), []);
    let snapshot = router.snapshot(T0);
    let worker = snapshot.workers[0];
    assert_eq!((worker.view, worker.ranges_suspect), (ViewState::Complete, 0));
    assert_eq!((snapshot.index_entries, snapshot.index.gaps, snapshot.resyncs.total()), (4, 1, 4));
}

#[test]
fn an_id_in_use_is_refused_and_its_owner_untouched() {
    let mut router = router(&[(0, Role::Decode)], |config| {
        config.admission.decode_running_max = 1;
    });
    place(&mut router, 1, 10, &[]);
    assert_eq!(router.submit(request(2, 10, &[]), T0), []);
    for id in [1, 2] {
        let actions = router.submit(request(id, 10, &[]), T0);
        assert!(
            matches!(actions[..], [Action::Refuse { error: ServeError::Internal { .. }, .. }]),
            "{actions:?}"
        );
    }
    let snapshot = router.snapshot(T0);
    assert_eq!((snapshot.running, snapshot.waiting, snapshot.refused.duplicate), (1, 1, 2));
}

#[test]
fn a_changed_role_replaces_the_member() {
    let mut router = router(&[(0, Role::Decode), (1, Role::Decode)], |_| ());
    assert_eq!(router.worker_joined(rank(1), Role::Prefill, T0), Ok(Vec::new()));
    assert_eq!(router.worker_joined(rank(1), Role::Prefill, T0), Ok(Vec::new()), "harmless");
    assert_eq!(place(&mut router, 1, 7_948, &names(1, 62)).prefill, Some(rank(1)));
}

#[test]
fn strangers_are_counted_and_ignored() {
    let mut router = router(&[(0, Role::Decode), (2, Role::Store)], |_| ());
    assert_eq!(cache(&mut router, 7, 0, CacheChange::Cleared), []);
    assert_eq!(report(&mut router, 7, T0, busy(1)), []);
    assert_eq!(report(&mut router, 2, T0, busy(1)), []);
    assert_eq!(router.worker_left(rank(7), T0), []);
    let snapshot = router.snapshot(T0);
    assert_eq!((snapshot.index.events_unknown_worker, snapshot.reports_unknown_worker), (1, 2));
}

#[test]
fn decision_records_are_bounded_and_explain() {
    let members = [(0, Role::Decode), (1, Role::Decode), (2, Role::Prefill), (3, Role::Prefill)];
    let mut router = router(&members, |config| {
        config.records.decisions_max = 3;
        config.records.candidates_max = 1;
        config.cost.direct_rows_max = 0;
    });
    for id in 1..=5 {
        place(&mut router, id, 1_000, &names(1, 7));
    }
    assert_eq!(router.decisions().map(|it| it.id.0).collect::<Vec<_>>(), [5, 4, 3]);
    assert_eq!(router.decision(RequestId(2)), None);
    let record = router.decision(RequestId(5)).expect("kept");
    assert_eq!(record.considered.decode, [record.chosen]);
    assert_eq!(record.considered.prefill.len(), 1);
    assert_eq!(Some(record.considered.prefill[0].prefill), record.chosen.prefill);
}

#[test]
fn reasons_read_as_one_line() {
    let all = names(1, 62);
    let members = [(0, Role::Decode), (1, Role::Prefill)];
    let mut router = router(&members, |_| ());
    assert_eq!(
        place(&mut router, 1, 127, &[]).reason,
        "cost: decode 0.0, direct, 127 tokens are too few for prefill; 0 of 0 tokens cached, \
         127.0 ms = queue 0.0 + restore 0.0 + recompute 0.0 + hand-off 0.0 + tail 127.0 + interference 0.0"
    );
    router.finished(RequestId(1), T0);
    assert_eq!(
        place(&mut router, 2, 7_948, &all).reason,
        "cost: decode 0.0, prefill 1.0; 0 of 7808 tokens cached, 7953.0 ms = queue 0.0 + restore 0.0 + \
         recompute 7808.0 + hand-off 5.0 + tail 140.0 + interference 0.0"
    );
}
