use shared::{Lineage, Random, StartGeometry, Tier, WindowSource};

use super::{
    StartCosts, StartPlan, StartQuery, StartRole, WindowCandidate, WindowPlan, plan_start,
    replay_is_exact, replay_rows, useful_window_floor,
};

const FLASH: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };
/// A row costs ten blocks or two windows: fetching always pays.
const COSTS: StartCosts =
    StartCosts { block_fetch_ms: 0.1, window_fetch_ms: 0.5, encoder_row_ms: 1.0 };
const ALONE: StartRole = StartRole::DecodeAlone;
const ASKING: StartRole = StartRole::DecodeWithPrefill;
const PREFILL: StartRole = StartRole::Prefill;

fn query(role: StartRole, lineage: Lineage, tokens: u32) -> StartQuery<'static> {
    StartQuery {
        role,
        geometry: FLASH,
        lineage,
        bounded_rows: 128,
        target: FLASH.boundary(tokens),
        device_blocks: 0,
        reachable_blocks: 0,
        windows: &[],
        costs: COSTS,
    }
}

fn host(at: u32) -> WindowCandidate {
    WindowCandidate { at, tier: Tier::Host, exact: true }
}

/// The parts of a plan that the tables compare: start, attach, fetch, ask, window.
type Found = (u32, u32, (u32, u32), Option<(u32, u32)>, WindowPlan);

fn found(plan: &StartPlan) -> Found {
    let fetch = (plan.fetch_blocks.start, plan.fetch_blocks.end);
    let ask = plan.ask.as_ref().map(|ask| (ask.start, ask.end));
    (plan.start, plan.attach_blocks, fetch, ask, plan.window)
}

#[test]
fn cold_prompts_ask_prefill_for_all_of_the_target_or_nothing() {
    for lineage in [Lineage::Exact, Lineage::Bounded] {
        for (tokens, target) in [
            (1, 0),
            (2, 0),
            (127, 0),
            (128, 0),
            (129, 0),
            (267, 0),
            (268, 128),
            (269, 128),
            (408, 256),
            (1_000, 768),
            (7_948, 7_808),
        ] {
            let asking = plan_start(&query(ASKING, lineage, tokens));
            let expected = if target == 0 {
                (0, 0, (0, 0), None, WindowPlan::Cold)
            } else {
                (target, 0, (0, 0), Some((0, target)), WindowPlan::FromPrefill)
            };
            assert_eq!(found(&asking), expected, "N = {tokens}");
            for role in [ALONE, PREFILL] {
                let plan = plan_start(&query(role, lineage, tokens));
                let cold = (0, 0, (0, 0), None, WindowPlan::Cold);
                assert_eq!(found(&plan), cold, "N = {tokens}, {role:?}");
                assert_eq!(plan.window_source(), WindowSource::Cold);
                assert!(plan.windows_exact && plan.replayed_rows() == 0);
            }
        }
    }
}

#[test]
fn complete_prefixes_start_at_the_target_without_prefill() {
    // (N, device, reachable, lineage, expected rows of the replay)
    let cases = [
        (268, 1, 1, Lineage::Bounded, 128),
        (268, 0, 1, Lineage::Exact, 128),
        (269, 1, 0, Lineage::Exact, 128),
        (408, 9, 0, Lineage::Bounded, 128),
        (408, 1, 2, Lineage::Exact, 256),
        (1_000, 2, 6, Lineage::Bounded, 128),
        (1_000, 6, 6, Lineage::Exact, 768),
        (7_948, 60, 70, Lineage::Bounded, 128),
        (7_948, 70, 62, Lineage::Exact, 2_540),
    ];
    for (tokens, device_blocks, reachable_blocks, lineage, rows) in cases {
        for role in [ALONE, ASKING, PREFILL] {
            let target = FLASH.boundary(tokens);
            let blocks = target / 128;
            let attach = device_blocks.min(blocks);
            let base = query(role, lineage, tokens);
            let plan = plan_start(&StartQuery { device_blocks, reachable_blocks, ..base });
            let expected = (target, attach, (attach, blocks), None, WindowPlan::Replay { rows });
            if role == PREFILL && lineage == Lineage::Exact && rows == target {
                // Fetching blocks saves no row here, so a prefill worker does not.
                assert_eq!((plan.start, plan.fetch_blocks.len()), (attach * 128, 0));
                continue;
            }
            assert_eq!(found(&plan), expected, "N = {tokens}, {role:?}");
            assert_eq!(plan.replayed_rows(), rows);
            assert_eq!((plan.first_row(), plan.window_floor()), (target - rows, target - rows));
            assert_eq!(plan.window_source(), WindowSource::Replayed(rows));
            let exact = rows == target || lineage == Lineage::Exact;
            assert_eq!(plan.windows_exact, exact, "N = {tokens}");
        }
    }
}

#[test]
fn partly_cached_prefixes_ask_for_the_rest_or_start_earlier() {
    let window = WindowPlan::Replay { rows: 128 };
    let cases: [(StartRole, u32, u32, Found); 7] = [
        (ASKING, 2, 4, (768, 2, (2, 4), Some((512, 768)), WindowPlan::FromPrefill)),
        (ASKING, 0, 5, (768, 0, (0, 5), Some((640, 768)), WindowPlan::FromPrefill)),
        (ASKING, 5, 0, (768, 5, (5, 5), Some((640, 768)), WindowPlan::FromPrefill)),
        (ALONE, 2, 4, (512, 2, (2, 4), None, window)),
        (ALONE, 5, 0, (640, 5, (5, 5), None, window)),
        (PREFILL, 2, 4, (512, 2, (2, 4), None, window)),
        // One reachable block saves 128 rows and costs a replay of 128: not worth its fetch.
        (PREFILL, 0, 1, (0, 0, (0, 0), None, WindowPlan::Cold)),
    ];
    for (role, device_blocks, reachable_blocks, expected) in cases {
        let base = query(role, Lineage::Bounded, 1_000);
        let plan = plan_start(&StartQuery { device_blocks, reachable_blocks, ..base });
        assert_eq!(found(&plan), expected, "{role:?} {device_blocks} {reachable_blocks}");
    }
}

#[test]
fn window_sources_are_chosen_by_cost() {
    let free = StartCosts { window_fetch_ms: 0.0, ..COSTS };
    let dear = StartCosts { window_fetch_ms: 5_000.0, ..COSTS };
    let device = |at| WindowCandidate { at, tier: Tier::Device, exact: true };
    let object = |at, tier| WindowPlan::Object { at, tier };
    let recompute = |from, tier| WindowPlan::Recompute { from, tier };
    let replay = |rows| WindowPlan::Replay { rows };
    let (exact, bounded) = (Lineage::Exact, Lineage::Bounded);
    // All 61 blocks of N = 7,948 are in the own pool, so the start is 7,808.
    let cases: [(Lineage, StartCosts, &[WindowCandidate], WindowPlan); 15] = [
        (exact, COSTS, &[], replay(2_540)),
        (exact, COSTS, &[host(7_808)], object(7_808, Tier::Host)),
        (exact, COSTS, &[host(7_680), host(7_808)], object(7_808, Tier::Host)),
        (exact, COSTS, &[host(7_680), host(6_144)], recompute(7_680, Tier::Host)),
        (exact, COSTS, &[host(5_376)], recompute(5_376, Tier::Host)),
        (exact, COSTS, &[host(5_248)], replay(2_540)),
        (exact, dear, &[host(7_808)], replay(2_540)),
        (exact, dear, &[host(7_808), device(7_808)], object(7_808, Tier::Device)),
        (exact, dear, &[host(7_808), device(7_552)], recompute(7_552, Tier::Device)),
        (bounded, COSTS, &[host(7_808)], object(7_808, Tier::Host)),
        (bounded, COSTS, &[host(7_680)], replay(128)),
        (bounded, free, &[host(7_680)], recompute(7_680, Tier::Host)),
        (bounded, dear, &[host(7_808)], replay(128)),
        (bounded, dear, &[device(7_808)], object(7_808, Tier::Device)),
        (bounded, COSTS, &[host(0), host(7_936)], replay(128)),
    ];
    for (lineage, costs, windows, expected) in cases {
        for role in [ALONE, ASKING, PREFILL] {
            let base = query(role, lineage, 7_948);
            let plan = plan_start(&StartQuery { device_blocks: 61, windows, costs, ..base });
            assert_eq!(
                found(&plan),
                (7_808, 61, (61, 61), None, expected),
                "{lineage:?} {windows:?} {role:?}"
            );
        }
    }
}

#[test]
fn approximate_windows_are_not_used_in_the_exact_lineage_and_lose_ties_in_the_other() {
    let inexact = |at| WindowCandidate { at, tier: Tier::Host, exact: false };
    let plan = |lineage, windows: &[WindowCandidate]| {
        let base = query(ALONE, lineage, 1_000);
        plan_start(&StartQuery { device_blocks: 6, windows, ..base })
    };
    let exact = plan(Lineage::Exact, &[inexact(768)]);
    assert_eq!(exact.window, WindowPlan::Replay { rows: 768 });
    let bounded = plan(Lineage::Bounded, &[inexact(768)]);
    assert_eq!(bounded.window, WindowPlan::Object { at: 768, tier: Tier::Host });
    assert!(!bounded.windows_exact);
    let both = plan(Lineage::Bounded, &[inexact(768), host(768)]);
    assert!(both.windows_exact);
    assert_eq!(both.window_source(), WindowSource::Object);
}

#[test]
fn a_start_below_the_target_is_where_window_and_blocks_cost_least() {
    // N = 7,948: 20 of 61 blocks in the own pool, 40 with the store.
    let base = StartQuery {
        device_blocks: 20,
        reachable_blocks: 40,
        ..query(PREFILL, Lineage::Exact, 7_948)
    };
    let slow_store = StartCosts { block_fetch_ms: 200.0, ..COSTS };
    let object = |at| WindowPlan::Object { at, tier: Tier::Host };
    let cases: [(StartCosts, &[WindowCandidate], u32, WindowPlan); 5] = [
        (COSTS, &[], 5_120, WindowPlan::Replay { rows: 2_540 }),
        (COSTS, &[host(5_120)], 5_120, object(5_120)),
        // A block costs 0.1 and saves no row once its windows must be recomputed from 3,840.
        (COSTS, &[host(3_840)], 3_840, object(3_840)),
        (slow_store, &[], 2_560, WindowPlan::Replay { rows: 2_540 }),
        // 128 rows saved per block do not pay for 200 ms.
        (slow_store, &[host(5_120), host(2_560)], 2_560, object(2_560)),
    ];
    for (costs, windows, start, window) in cases {
        for role in [PREFILL, ALONE] {
            let plan = plan_start(&StartQuery { role, costs, windows, ..base });
            assert_eq!((plan.start, plan.window), (start, window), "{windows:?} {role:?}");
            assert_eq!(plan.fetch_blocks, 20..start / 128);
        }
    }
}

#[test]
fn equal_costs_go_to_the_later_start() {
    // Within 2,540 tokens an exact replay recomputes everything, so attaching saves no row and costs nothing.
    let base = query(ALONE, Lineage::Exact, 2_000);
    let plan = plan_start(&StartQuery { device_blocks: 10, ..base });
    assert_eq!((plan.start, plan.window), (1_280, WindowPlan::Replay { rows: 1_280 }));
    let no_cost = StartCosts { block_fetch_ms: 0.0, window_fetch_ms: 0.0, encoder_row_ms: 0.0 };
    let plan = plan_start(&StartQuery { reachable_blocks: 10, costs: no_cost, ..base });
    assert_eq!(plan.start, 1_280);
}

#[test]
fn replay_lengths_follow_the_lineage() {
    // (lineage, R, start, rows, exact)
    let cases = [
        (Lineage::Exact, 128, 0, 0, true),
        (Lineage::Exact, 128, 128, 128, true),
        (Lineage::Exact, 128, 2_432, 2_432, true),
        (Lineage::Exact, 128, 2_560, 2_540, true),
        (Lineage::Exact, 128, 7_808, 2_540, true),
        (Lineage::Bounded, 128, 128, 128, true),
        (Lineage::Bounded, 128, 256, 128, false),
        (Lineage::Bounded, 2_539, 7_808, 2_539, false),
        (Lineage::Bounded, 2_540, 7_808, 2_540, true),
    ];
    for (lineage, bounded_rows, start, rows, exact) in cases {
        assert_eq!(replay_rows(FLASH, lineage, bounded_rows, start), rows);
        assert_eq!(replay_is_exact(FLASH, start, rows), exact, "{lineage:?} {start}");
        assert_eq!(useful_window_floor(FLASH, lineage, bounded_rows, start), start - rows);
    }
}

#[test]
fn random_plans_keep_the_rules() {
    let seed = 20_261_129;
    println!("seed {seed}");
    let mut generator = Random::new(seed);
    for round in 0..3_000 {
        let mut below = |bound: u32| u32::try_from(generator.below(bound as usize)).unwrap();
        let target = below(40) * 128;
        let blocks = target / 128;
        let windows: Vec<_> = (0..below(5))
            .map(|_| WindowCandidate {
                at: below(45) * 128,
                tier: [Tier::Device, Tier::Host][below(2) as usize],
                exact: below(3) != 0,
            })
            .collect();
        let query = StartQuery {
            role: [ALONE, ASKING, PREFILL][below(3) as usize],
            geometry: FLASH,
            lineage: [Lineage::Exact, Lineage::Bounded][below(2) as usize],
            bounded_rows: 128 + below(600),
            target,
            device_blocks: below(45),
            reachable_blocks: below(45),
            windows: &windows,
            costs: StartCosts {
                block_fetch_ms: f64::from(below(300)),
                window_fetch_ms: f64::from(below(3_000)),
                encoder_row_ms: f64::from(below(3)),
            },
        };
        let plan = plan_start(&query);
        let context = format!("round {round}: {query:?} gave {plan:?}");
        let device = query.device_blocks.min(blocks);
        let reachable = query.reachable_blocks.min(blocks).max(device);
        assert!(plan.start <= target && plan.start.is_multiple_of(128), "{context}");
        assert_eq!(plan.attach_blocks, plan.fetch_blocks.start, "{context}");
        assert!(plan.attach_blocks <= query.device_blocks, "{context}");
        assert!(plan.fetch_blocks.end <= reachable, "{context}");
        assert!(plan.replayed_rows() <= plan.start, "{context}");
        let covered = plan.ask.as_ref().map_or(plan.fetch_blocks.end * 128, |ask| ask.end);
        assert_eq!(covered, plan.start, "{context}");
        if query.role != PREFILL && (query.role == ASKING || reachable == blocks) {
            assert_eq!(plan.start, target, "{context}");
        }
        assert_eq!(plan.ask.is_some(), query.role == ASKING && reachable < blocks, "{context}");
        if query.lineage == Lineage::Exact {
            assert!(plan.windows_exact, "{context}");
        }
        // Looking up only the windows that can pay off changes nothing.
        let floor = useful_window_floor(FLASH, query.lineage, query.bounded_rows, device * 128);
        let useful: Vec<_> = windows.iter().copied().filter(|w| floor <= w.at).collect();
        let again = plan_start(&StartQuery { windows: &useful, ..query });
        assert!((again.cost_ms - plan.cost_ms).abs() < 1e-9, "{context}");
    }
}
