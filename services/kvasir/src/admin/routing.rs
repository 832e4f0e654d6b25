//! `GET /debug/routing` and `GET /debug/routing/{id}`: why requests went where they went, and what became of it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use router::{
    Candidate, Cost, DecisionRecord, EndOutcome, PrefillCandidate, RateSnapshot, Router,
    RouterSnapshot, StartOutcome,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use shared::{RequestId, Timestamp, WorkerRank};

use super::Operated;
use crate::explain::{Predictions, Sums};
use crate::wiring::parts::Placement;

/// Decisions told when the question does not say how many.
const LAST: usize = 20;
/// Most decisions in one answer: some megabytes of text.
const LAST_MAX: usize = 1_024;

/// The router of a process, as it can be asked.
#[derive(Clone)]
pub(crate) struct Routing {
    pub(crate) thread: Arc<Placement>,
    pub(crate) predictions: Arc<Predictions>,
    /// Finds a worker by its name.
    pub(crate) worker: WorkerByName,
}

/// Finds a worker by its name in the configuration.
pub(crate) type WorkerByName = Arc<dyn Fn(&str) -> Option<WorkerRank> + Send + Sync>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LastQuery {
    last: Option<usize>,
}

/// What the thread answers.
struct Seen {
    now: Timestamp,
    records: Vec<DecisionRecord>,
    snapshot: RouterSnapshot,
}

/// The last decisions, newest first, with the state of the router that made them.
pub(super) async fn last(
    State(operated): State<Operated>,
    Query(query): Query<LastQuery>,
) -> Response {
    let last = query.last.unwrap_or(LAST).min(LAST_MAX);
    let look = move |router: &Router| router.decisions().take(last).cloned().collect();
    let (routing, seen) = match seen(&operated, look).await {
        Ok(seen) => seen,
        Err(response) => return *response,
    };
    let figures = routing.predictions.figures();
    let sums = |sums: Sums| {
        json!({
            "starts": sums.starts,
            "predicted_tokens": sums.predicted,
            "actual_tokens": sums.actual,
            "error_tokens": sums.error,
            "error_percent": sums.error_percent(),
        })
    };
    let peers = seen.snapshot.peers;
    let value = json!({
        "prediction": {
            "total": sums(seen.snapshot.predictions.into()),
            "window": sums(figures.window),
            "alarm": figures.alarm,
        },
        "workers": workers(&seen.snapshot),
        "routers": {"heard": peers.routers, "reservations": peers.reservations},
        "waiting": seen.snapshot.waiting,
        "running": seen.snapshot.running,
        "decisions": decisions(&seen),
    });
    Json(value).into_response()
}

/// All decisions about one request that are kept, newest first: more than one when it was placed anew.
pub(super) async fn of(State(operated): State<Operated>, Path(id): Path<String>) -> Response {
    let Ok(id) = u128::from_str_radix(&id, 16).map(RequestId) else {
        let text = "a request id has up to 32 hexadecimal digits, as in the header x-request-id\n";
        return (StatusCode::BAD_REQUEST, text).into_response();
    };
    let look = move |router: &Router| {
        router.decisions().filter(|record| record.id == id).cloned().collect()
    };
    let (_, seen) = match seen(&operated, look).await {
        Ok(seen) => seen,
        Err(response) => return *response,
    };
    if seen.records.is_empty() {
        let text = "no decision about this request is kept; [router.records] decisions_max says how many are\n";
        return (StatusCode::NOT_FOUND, text).into_response();
    }
    Json(decisions(&seen)).into_response()
}

/// Asks the placement thread. The error is the answer to the operator.
async fn seen(
    operated: &Operated,
    look: impl FnOnce(&Router) -> Vec<DecisionRecord> + Send + 'static,
) -> Result<(Routing, Seen), Box<Response>> {
    let refused = |status, text: &'static str| Box::new((status, text).into_response());
    let Some(routing) = operated.observed.routing.clone() else {
        let text = "this process has no router; ask the admin listener of one\n";
        return Err(refused(StatusCode::NOT_FOUND, text));
    };
    let look = move |router: &Router, now| {
        let records = look(router);
        Seen { now, records, snapshot: router.snapshot(now) }
    };
    let busy = "the router has no time for questions now; ask again\n";
    let asked = routing.thread.look(look);
    let asked = asked.ok_or_else(|| refused(StatusCode::SERVICE_UNAVAILABLE, busy))?;
    let ended = "the placement thread ended; start the process again\n";
    let seen = asked.await.map_err(|_| refused(StatusCode::SERVICE_UNAVAILABLE, ended))?;
    Ok((routing, seen))
}

fn decisions(seen: &Seen) -> Value {
    Value::Array(seen.records.iter().map(|record| decision(record, seen.now)).collect())
}

fn decision(record: &DecisionRecord, now: Timestamp) -> Value {
    let considered = &record.considered;
    let decodes: Vec<Value> = considered.decode.iter().map(candidate).collect();
    let prefills: Vec<Value> = considered.prefill.iter().map(prefill_candidate).collect();
    let steered = considered
        .steered
        .iter()
        .map(|steered| json!({"worker": steered.worker.to_string(), "why": steered.why.as_str()}));
    let steered: Vec<Value> = steered.collect();
    json!({
        "id": record.id.to_string(),
        "age_ms": ms(now.since(record.at)),
        "waited_ms": ms(record.waited),
        "prompt_tokens": record.prompt_tokens,
        "boundary": record.boundary,
        "priority": record.priority.as_str(),
        "policy": record.policy.as_str(),
        "kind": record.kind.as_str(),
        "chosen": candidate(&record.chosen),
        "tied": considered.tied,
        "overridden": record.overridden,
        "predicted_cached_tokens": record.expected_cached_tokens,
        "decode_candidates": decodes,
        "prefill_candidates": prefills,
        "steered": steered,
        "actual_cached_tokens": record.started.map(|started| started.report.cached_tokens),
        "outcome": outcome(record),
    })
}

fn candidate(candidate: &Candidate) -> Value {
    json!({
        "decode": candidate.decode.to_string(),
        "prefill": candidate.prefill.map(|prefill| prefill.to_string()),
        "cached_tokens": candidate.cached_tokens,
        "expected_tokens": candidate.expected_tokens,
        "requests": candidate.requests,
        "cost_ms": cost(&candidate.cost),
    })
}

fn prefill_candidate(candidate: &PrefillCandidate) -> Value {
    json!({
        "prefill": candidate.prefill.to_string(),
        "cached_tokens": candidate.cached_tokens,
        "expected_tokens": candidate.expected_tokens,
        "requests": candidate.requests,
        "cost_ms": cost(&candidate.cost),
    })
}

/// Every term in milliseconds, and their sum.
fn cost(cost: &Cost) -> Value {
    let terms = cost.terms().into_iter().map(|(name, time)| (name.to_owned(), ms(time)));
    let mut terms: Map<String, Value> = terms.collect();
    terms.insert("total".to_owned(), ms(cost.total().into()));
    Value::Object(terms)
}

/// What became of it on its decode worker.
fn outcome(record: &DecisionRecord) -> Value {
    let started = record.started.map(|StartOutcome { after, report }| {
        json!({
            "after_ms": ms(after),
            "expected_after_ms": ms(record.chosen.cost.first_token().into()),
            "cached_tokens": report.cached_tokens,
            "replayed_tokens": report.replayed_tokens,
            "window_source": report.window_source.as_str(),
            "exact": report.exact,
            "bytes_fetched": report.bytes_fetched,
            "prefill": report.prefill.map(|prefill| prefill.to_string()),
        })
    });
    let ended = record.ended.map(|EndOutcome { after, how }| {
        json!({"how": how.as_str(), "after_ms": ms(after), "tokens": how.tokens()})
    });
    json!({"started": started, "ended": ended})
}

fn workers(snapshot: &RouterSnapshot) -> Value {
    let workers = snapshot.workers.iter().map(|member| {
        let load = member.load.map(|load| {
            json!({
                "placed": load.placed,
                "requests": load.requests,
                "rows": load.rows,
                "rows_per_second": load.rows_per_second,
                "measured": load.measured,
                "rates_ms": rates(&load.rates),
                "breaker": load.life.breaker.as_str(),
                "wedged": load.life.wedged,
                "draining_by": load.life.draining.map(|by| by.as_str()),
                "warming_up": load.life.warming_up,
            })
        });
        json!({
            "worker": member.worker.to_string(),
            "role": member.role.as_str(),
            "view": format!("{:?}", member.view).to_lowercase(),
            "index_entries": member.index_entries,
            "load": load,
        })
    });
    Value::Array(workers.collect())
}

/// What a worker is priced with besides its pace, as it measured it or as configured.
fn rates(rates: &RateSnapshot) -> Value {
    let &RateSnapshot { step, restore_host, restore_disk, restore_remote, restore_peer, handoff } =
        rates;
    json!({
        "step": ms(step),
        "restore_host": ms(restore_host),
        "restore_disk": ms(restore_disk),
        "restore_remote": ms(restore_remote),
        "restore_peer": ms(restore_peer),
        "handoff": ms(handoff),
    })
}

/// Milliseconds with three digits behind the point.
fn ms(time: Duration) -> Value {
    let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    json!(f64::from(micros) / 1_000.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use router::Cost;
    use serde_json::json;

    use super::{cost, ms};

    #[test]
    fn every_term_is_told_in_milliseconds_with_the_sum() {
        let terms = Cost {
            decode_queue: Duration::from_micros(1_500).into(),
            tail: Duration::from_millis(2).into(),
            ..Cost::default()
        };
        let told = cost(&terms);
        assert_eq!(told["decode_queue"], json!(1.5));
        assert_eq!(told["tail"], json!(2.0));
        assert_eq!(told["total"], json!(3.5));
        assert_eq!(told.as_object().unwrap().len(), terms.terms().len() + 1);
        assert_eq!(ms(Duration::MAX), json!(4_294_967.295));
    }
}
