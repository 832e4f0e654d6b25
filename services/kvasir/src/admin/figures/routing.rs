//! What the router decides by: its queue, its workers' rates and states, its predictions and their outcomes.

use std::time::Duration;

use router::{Breaker, LoadSnapshot, RouterSnapshot};
use shared::{Priority, WorkerRank};

use super::{counters, gauges, head, sample};

/// Appends the figures.
pub(super) fn write(snapshot: &RouterSnapshot, text: &mut String) {
    queue(snapshot, text);
    life(snapshot, text);
    remembered(snapshot, text);
    predictions(snapshot, text);
    let loads: Vec<(WorkerRank, LoadSnapshot)> =
        snapshot.workers.iter().filter_map(|worker| Some((worker.worker, worker.load?))).collect();
    rates(&loads, text);
    states(&loads, text);
}

fn queue(snapshot: &RouterSnapshot, text: &mut String) {
    let name = "kvasir_router_waiting_class_requests";
    head(text, name, "gauge", "Requests waiting for a place, by class");
    for (class, waiting) in Priority::ALL.into_iter().zip(snapshot.waiting_by_class) {
        sample(text, name, &[("class", class.as_str())], waiting);
    }
    let count = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
    gauges(
        text,
        &[
            ("kvasir_router_tenants", "Tenants known to the queue", count(snapshot.tenants)),
            (
                "kvasir_router_tenants_waiting",
                "Tenants with a request in the queue",
                count(snapshot.tenants_waiting),
            ),
        ],
    );
    counters(
        text,
        &[(
            "kvasir_router_overtaken_total",
            "Placements past requests that found no worker yet",
            snapshot.overtaken,
        )],
    );
    let name = "kvasir_router_policy";
    head(text, name, "gauge", "1 for the policy in use");
    sample(text, name, &[("policy", snapshot.policy.as_str())], 1);
}

fn life(snapshot: &RouterSnapshot, text: &mut String) {
    let life = &snapshot.life;
    counters(
        text,
        &[
            ("kvasir_router_failures_total", "Requests that failed on their worker", life.failures),
            (
                "kvasir_router_breakers_opened_total",
                "Circuit breakers opened, failed probes included",
                life.breakers_opened,
            ),
            ("kvasir_router_probes_total", "Requests that probed a worker", life.probes),
            ("kvasir_router_wedged_total", "Workers found stuck", life.wedged),
            ("kvasir_router_drains_total", "Drains of workers begun", life.drains),
            (
                "kvasir_router_drains_cut_off_total",
                "Draining workers whose requests were forgotten at their deadline",
                life.drains_cut_off,
            ),
            (
                "kvasir_router_overridden_total",
                "Placements on a doubtful worker for want of another",
                life.overridden,
            ),
            (
                "kvasir_router_returned_total",
                "Workers that came back and were remembered",
                life.returned,
            ),
            (
                "kvasir_router_warm_up_passed_total",
                "Placements past a worker that warms up",
                life.warm_up_passed,
            ),
            (
                "kvasir_router_outcomes_unknown_total",
                "Outcomes of requests or workers not known any more",
                snapshot.outcomes_unknown,
            ),
        ],
    );
}

fn remembered(snapshot: &RouterSnapshot, text: &mut String) {
    let name = "kvasir_router_remembered_workers";
    head(text, name, "gauge", "Workers that left and are remembered for their return");
    sample(text, name, &[], snapshot.remembered);
}

/// Sums, so that any ratio of them weighs tokens and not requests.
fn predictions(snapshot: &RouterSnapshot, text: &mut String) {
    let sums = &snapshot.predictions;
    counters(
        text,
        &[
            (
                "kvasir_router_predictions_total",
                "Starts compared with their prediction",
                sums.requests,
            ),
            ("kvasir_router_predicted_prompt_tokens_total", "Their prompts", sums.prompt_tokens),
            (
                "kvasir_router_predicted_cached_tokens_total",
                "Tokens expected to be cached",
                sums.expected_tokens,
            ),
            (
                "kvasir_router_actual_cached_tokens_total",
                "Tokens that were cached",
                sums.actual_tokens,
            ),
            (
                "kvasir_router_cached_tokens_error_total",
                "Differences of both, without signs",
                sums.error_tokens,
            ),
        ],
    );
    let times = [
        (
            "kvasir_router_predicted_start_seconds_total",
            "Expected time to start",
            sums.expected_time,
        ),
        ("kvasir_router_actual_start_seconds_total", "Time to start", sums.actual_time),
        (
            "kvasir_router_start_error_seconds_total",
            "Differences of both, without signs",
            sums.error_time,
        ),
    ];
    for (name, help, time) in times {
        head(text, name, "counter", help);
        sample(text, name, &[], time.as_secs_f64());
    }
    let tokens = u64::from(snapshot.answer_tokens);
    gauges(text, &[("kvasir_router_answer_tokens", "Mean length of answers", tokens)]);
}

fn rates(loads: &[(WorkerRank, LoadSnapshot)], text: &mut String) {
    let name = "kvasir_router_worker_rows_per_second";
    head(text, name, "gauge", "Rows per second each worker is priced with");
    for (worker, load) in loads {
        let measured = if load.measured { "yes" } else { "no" };
        let labels = [("worker", &*worker.to_string()), ("measured", measured)];
        sample(text, name, &labels, load.rows_per_second);
    }
    type Rate = fn(&LoadSnapshot) -> Duration;
    let rates: [(&str, Rate); 6] = [
        ("step", |load| load.rates.step),
        ("restore_host", |load| load.rates.restore_host),
        ("restore_disk", |load| load.rates.restore_disk),
        ("restore_remote", |load| load.rates.restore_remote),
        ("restore_peer", |load| load.rates.restore_peer),
        ("handoff", |load| load.rates.handoff),
    ];
    let name = "kvasir_router_worker_rate_seconds";
    head(
        text,
        name,
        "gauge",
        "Times each worker is priced with: a step, a block by tier, a hand-off",
    );
    for (worker, load) in loads {
        for (rate, of) in rates {
            let labels = [("worker", &*worker.to_string()), ("rate", rate)];
            sample(text, name, &labels, of(load).as_secs_f64());
        }
    }
}

fn states(loads: &[(WorkerRank, LoadSnapshot)], text: &mut String) {
    type Holds = fn(&LoadSnapshot) -> bool;
    let states: [(&str, Holds); 5] = [
        ("breaker_open", |load| load.life.breaker == Breaker::Open),
        ("breaker_half_open", |load| load.life.breaker == Breaker::HalfOpen),
        ("wedged", |load| load.life.wedged),
        ("draining", |load| load.life.draining.is_some()),
        ("warming_up", |load| load.life.warming_up),
    ];
    let name = "kvasir_router_worker_state";
    head(text, name, "gauge", "1 while the worker is in that state");
    for (worker, load) in loads {
        for (state, holds) in states {
            let labels = [("worker", &*worker.to_string()), ("state", state)];
            sample(text, name, &labels, u8::from(holds(load)));
        }
    }
}
