//! Short runs of everything, and thousands of seeds against the invariants.

use router::Policy;
use shared::Timestamp;

use crate::{Chain, Checking, Fault, Format, Report, Request, Settings, Trace, simulate};

use shared::Random;

/// Few requests with short prompts that share prefixes.
fn small(seed: u64, count: usize) -> Trace {
    let mut random = Random::new(seed);
    let mut at = 0;
    let requests = (0..count).map(|_| {
        at += random.word() % 400_000_000;
        let group = random.word() % 4;
        let prompt_tokens = 1 + u32::try_from(random.word() % 2_400).unwrap();
        let ids = (0..u64::from(prompt_tokens / 128)).map(|block| group << 32 | block);
        Request {
            at: Timestamp(at),
            prompt_tokens,
            answer_tokens: 1 + u32::try_from(random.word() % 400).unwrap(),
            chain: Chain::Ids { ids: ids.collect(), blocks_per_id: 1 },
        }
    });
    Trace { label: "small".to_owned(), requests: requests.collect() }
}

fn run(trace: &Trace, settings: &Settings, faults: &[&str]) -> Report {
    let faults: Vec<_> = faults.iter().map(|text| Fault::parse(text).unwrap()).collect();
    simulate((trace, trace.bound()), settings, &faults, Checking::Full).unwrap()
}

/// A fleet drawn by the seed: small pools, short queues, few rows per step.
fn fleet(seed: u64) -> Settings {
    let mut random = Random::new(seed ^ 0x66_6c65_6574);
    let mut between = |least: u64, most: u64| least + random.word() % (most - least + 1);
    Settings {
        seed,
        prefill: between(0, 2),
        decode: between(1, 3),
        stores: between(0, 2),
        routers: between(1, 3),
        exchange: between(0, 2),
        exchange_ms: [0.0, 1.0, 300.0][usize::try_from(between(0, 2)).unwrap()],
        policy: Policy::ALL[usize::try_from(between(0, 5)).unwrap()],
        edge_tokens_per_s: [0.0, 20_000.0][usize::try_from(between(0, 1)).unwrap()],
        decode_blocks: between(42, 90),
        prefill_blocks: between(32, 80),
        host_gib: [0.005, 0.02, 1.0][usize::try_from(between(0, 2)).unwrap()],
        disk_gib: [0.0, 0.1, 1.0][usize::try_from(between(0, 2)).unwrap()],
        segment_mib: 4,
        retention_hours: 0.01,
        prefill_rows_step: between(128, 512),
        prefill_running: between(1, 3),
        tail_rows_step: between(128, 512),
        decode_rows_step: between(1, 8),
        sequences: between(1, 6),
        worker_waiting: between(1, 8),
        decode_running: between(1, 10),
        prefill_placed: between(1, 6),
        waiting: between(0, 20),
        index_entries: between(50, 2_000),
        deadline_s: [0.0, 2.0, 60.0][usize::try_from(between(0, 2)).unwrap()],
        random_faults: between(0, 12),
        event_ms: [0.0, 1.0, 300.0][usize::try_from(between(0, 2)).unwrap()],
        ..Settings::default()
    }
}

#[test]
fn thousands_of_seeds_keep_the_invariants() {
    let mut sums: Vec<(&str, f64)> = Vec::new();
    for seed in 0..2_000 {
        println!("seed {seed}");
        let report = run(&small(seed, 12), &fleet(seed), &[]);
        for figure in &report.figures {
            let value = figure.value.unwrap_or(0.0);
            match sums.iter_mut().find(|(name, _)| *name == figure.name) {
                Some((_, sum)) => *sum += value,
                None => sums.push((figure.name, value)),
            }
        }
    }
    // The runs are worth something only if everything happens in them.
    for name in [
        "finished",
        "overloaded",
        "refused",
        "deadline",
        "worker_lost",
        "hit_device",
        "hit_peer",
        "hit_host",
        "hit_disk",
        "visits",
        "visit_retries",
        "fallbacks",
        "preemptions",
        "resumed",
        "resyncs",
        "lookups_unanswered",
        "index_dropped",
        "drive_written",
    ] {
        let sum = sums.iter().find(|(known, _)| *known == name).unwrap().1;
        assert!(20.0 < sum, "{name}: {sum}");
    }
}

#[test]
fn equal_seeds_give_equal_reports() {
    for seed in [3, 77, 4_242] {
        let (trace, settings) = (small(seed, 60), fleet(seed));
        assert_eq!(run(&trace, &settings, &[]), run(&trace, &settings, &[]), "seed {seed}");
    }
}

/// Every policy with every way to tell each other, whatever breaks: the run itself asserts that nothing is counted twice
/// or for ever.
#[test]
fn every_policy_keeps_the_invariants_with_routers_that_lose_each_other() {
    for seed in 0..300 {
        println!("seed {seed}");
        let drawn = fleet(seed);
        let settings = Settings {
            policy: Policy::ALL[usize::try_from(seed % 6).unwrap()],
            routers: 2 + seed % 3,
            exchange: 1 + seed / 6 % 2,
            random_faults: 4,
            ..drawn
        };
        let faults = ["partition:router-0@1+2", "kill:decode-0@1+1", "partition:router-1@2"];
        let report = run(&small(seed, 16), &settings, &faults);
        assert_eq!(value(&report, "requests").round(), 16.0, "seed {seed}");
    }
}

#[test]
fn parted_routers_are_routers_that_tell_each_other_nothing() {
    let trace = small(11, 200);
    let two = |exchange| Settings { routers: 2, decode: 3, exchange, ..Settings::default() };
    let silent = run(&trace, &two(0), &[]);
    let parted = run(&trace, &two(2), &["partition:router-1@0"]);
    let together = run(&trace, &two(2), &[]);
    let figures = |report: &Report| {
        let of = |name| value(report, name);
        ["hit", "ttft_mean", "itl_mean", "decode_busy_least", "end"].map(of)
    };
    assert_eq!(figures(&parted), figures(&silent));
    assert_ne!(figures(&together), figures(&silent));
}

/// The beginning of a recorded trace, when it is there.
#[test]
fn several_routers_that_tell_each_other_find_what_one_finds() {
    let file = recorded("synthetic_trace.jsonl");
    if !file.exists() {
        println!("left out: {} is not here", file.display());
        return;
    }
    let mut settings = Settings { requests: 1_500, ..Settings::default() };
    settings.apply("aggregated-8").unwrap();
    let trace = Trace::load(&file, Format::Mooncake, &settings).unwrap();
    let hit = |routers| {
        let settings = Settings { routers, ..settings.clone() };
        let report = simulate((&trace, trace.bound()), &settings, &[], Checking::Light).unwrap();
        value(&report, "hit")
    };
    let one = hit(1);
    for routers in [2, 8] {
        let found = hit(routers);
        assert!(0.9 * one < found, "{routers} routers {found} %, one {one} %");
    }
}

/// Requests one after the other, each a repetition of the same prompt.
fn repeated(count: u64, gap_s: u64) -> Trace {
    let request = |number: u64| Request {
        at: Timestamp(number * gap_s * 1_000_000_000),
        prompt_tokens: 4_000,
        answer_tokens: 10,
        chain: Chain::Ids { ids: (0..31).collect(), blocks_per_id: 1 },
    };
    Trace { label: "repeated".to_owned(), requests: (0..count).map(request).collect() }
}

fn value(report: &Report, name: &str) -> f64 {
    report.value(name).unwrap_or_else(|| panic!("{name} has no value"))
}

#[test]
fn a_repeated_prompt_is_found_where_it_must_be() {
    let one = Settings { decode: 1, stores: 0, ..Settings::default() };
    let cases: [(&str, Settings, &[&str], &str); 5] = [
        ("own slab", one.clone(), &[], "hit_device"),
        (
            "prefill's slab",
            Settings { prefill: 1, decode_blocks: 48, ..one.clone() },
            &[],
            "hit_device",
        ),
        (
            "host, after the worker was lost",
            Settings { stores: 1, ..one.clone() },
            &["kill:decode-0@40+5"],
            "hit_host",
        ),
        (
            "drive, after worker and store were lost",
            Settings { stores: 1, disk_gib: 16.0, ..one.clone() },
            &["kill:decode-0@40+5", "kill:store-0@40+5"],
            "hit_disk",
        ),
        ("nowhere, after the worker was lost", one, &["kill:decode-0@40+5"], "hit_device"),
    ];
    // S of 4,000 tokens is 3,840; the first request finds nothing.
    let half = 3_840.0 * 100.0 / 8_000.0;
    for (number, (what, settings, faults, tier)) in cases.into_iter().enumerate() {
        let report = run(&repeated(2, 60), &settings, faults);
        assert!((value(&report, "finished") - 2.0).abs() < 1e-9, "{what}");
        let expected = if number == 4 { 0.0 } else { half };
        assert!((value(&report, tier) - expected).abs() < 1e-9, "{what}: {report:?}");
        assert!((value(&report, "hit") - expected).abs() < 1e-9, "{what}: {report:?}");
    }
}

#[test]
fn times_follow_the_rates() {
    let settings = Settings {
        decode: 1,
        stores: 0,
        tail_rows_per_s: 1_000.0,
        decode_step_ms: 10.0,
        decode_row_ms: 0.0,
        tail_rows_step: 8_192,
        hop_ms: 0.0,
        ..Settings::default()
    };
    let report = run(&repeated(1, 1), &settings, &[]);
    // One step of 3,840 rows up to S, or with the tail: 4,000 rows at 1,000 per second, and ten ms for each of two steps.
    let ttft = value(&report, "ttft_p50");
    assert!((ttft / 4_010.0 - 1.0).abs() < 0.02, "{ttft}");
    assert!((value(&report, "itl_p50") / 10.0 - 1.0).abs() < 0.01);
    let split = Settings {
        prefill: 1,
        encoder_rows_per_s: 10_000.0,
        restore_peer_ms: 0.0,
        handoff_ms: 0.0,
        ..settings
    };
    let report = run(&repeated(1, 1), &split, &[]);
    // 3,840 rows at 10,000 and a tail of 160 at 1,000 per second, in two pieces cut at a block.
    let ttft = value(&report, "ttft_p50");
    assert!((ttft / (384.0 + 160.0 + 20.0) - 1.0).abs() < 0.02, "{ttft}");
    assert!((value(&report, "visits") - 1.0).abs() < 1e-9);
}

#[test]
fn a_lost_worker_costs_time_and_no_answer() {
    let trace = small(5, 60);
    let settings = Settings { prefill: 2, decode: 3, ..Settings::default() };
    let calm = run(&trace, &settings, &[]);
    assert!((value(&calm, "finished") - 60.0).abs() < 1e-9);
    for faults in [
        &["kill:decode-0@3+2", "kill:decode-1@6"][..],
        &["kill:prefill-0@2", "kill:prefill-1@5+2"],
        &["freeze:decode-0@2+40"],
        &["freeze:prefill-0@1+60", "freeze:prefill-1@1+60"],
        &["partition:store-0@1+5", "kill:store-0@8+1"],
    ] {
        let report = run(&trace, &settings, faults);
        assert!((value(&report, "finished") - 60.0).abs() < 1e-9, "{faults:?}: {report:?}");
        assert!(value(&calm, "ttft_p99") <= value(&report, "ttft_p99"), "{faults:?}");
    }
}

#[test]
fn a_slow_drive_brings_less() {
    let settings = Settings { decode: 1, disk_gib: 16.0, ..Settings::default() };
    let both = ["kill:decode-0@40+5", "kill:store-0@40+5"];
    let slow = [both[0], both[1], "slow-disk:store-0@50x1000"];
    let fast = run(&repeated(2, 60), &settings, &both);
    let slow = run(&repeated(2, 60), &settings, &slow);
    assert!(0.0 < value(&slow, "drive_late") && value(&slow, "hit") < value(&fast, "hit"));
}

#[test]
fn what_was_kept_long_enough_is_found_again() {
    let mut trace = repeated(2, 3_600);
    trace.requests[1].at = Timestamp(3 * 3_600_000_000_000);
    let faults = ["kill:decode-0@7200+5", "kill:store-0@7200+5"];
    let hit = |retention_hours: f64| {
        let settings =
            Settings { retention_hours, disk_gib: 16.0, decode: 1, ..Settings::default() };
        value(&run(&trace, &settings, &faults), "hit")
    };
    assert!(hit(1.0) == 0.0 && 40.0 < hit(24.0));
}

fn recorded(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces").join(name)
}

/// The recorded trace, when it is there.
#[test]
fn a_recorded_trace_has_the_hits_its_readme_says() {
    let file = recorded("conversation_trace.jsonl");
    if !file.exists() {
        println!("left out: {} is not here", file.display());
        return;
    }
    let trace = Trace::load(&file, Format::Mooncake, &Settings::default()).unwrap();
    let bound = trace.bound();
    assert_eq!(trace.requests.len(), 12_031);
    let percent = bound.hit_tokens as f64 * 100.0 / bound.prompt_tokens as f64;
    // 37.4 % of tokens in blocks of 512, the last partial one included.
    assert!((percent - 37.4).abs() < 0.5, "{percent}");
}
