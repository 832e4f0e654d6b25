//! `GET /debug/routing` and `GET /debug/routing/{id}`: why requests went where they went, and what became of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use router::{Candidate, Cost, DecisionRecord, PrefillCandidate, Router, RouterSnapshot};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use shared::{RequestId, Timestamp, WorkerRank};

use super::Operated;
use crate::explain::{Outcome, Outcomes, Sums};
use crate::wiring::parts::Placement;

/// Decisions told when the question does not say how many.
const LAST: usize = 20;
/// Most decisions in one answer: some megabytes of text.
const LAST_MAX: usize = 1_024;

/// The router of a process, as it can be asked.
#[derive(Clone)]
pub(crate) struct Routing {
    pub(crate) thread: Arc<Placement>,
    pub(crate) outcomes: Arc<Outcomes>,
}

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
    let outcomes = keyed(routing.outcomes.last(LAST_MAX));
    let figures = routing.outcomes.figures();
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
            "total": sums(figures.totals),
            "window": sums(figures.window),
            "alarm": figures.alarm,
        },
        "workers": workers(&seen.snapshot),
        "routers": {"heard": peers.routers, "reservations": peers.reservations},
        "waiting": seen.snapshot.waiting,
        "running": seen.snapshot.running,
        "decisions": decisions(&seen, &outcomes),
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
    let (routing, seen) = match seen(&operated, look).await {
        Ok(seen) => seen,
        Err(response) => return *response,
    };
    if seen.records.is_empty() {
        let text = "no decision about this request is kept; [router.records] decisions_max says how many are\n";
        return (StatusCode::NOT_FOUND, text).into_response();
    }
    let outcomes = keyed(routing.outcomes.of(id));
    Json(decisions(&seen, &outcomes)).into_response()
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

type Key = (RequestId, Timestamp, WorkerRank);

fn keyed(outcomes: Vec<Outcome>) -> HashMap<Key, Outcome> {
    let keyed =
        outcomes.into_iter().map(|outcome| ((outcome.id, outcome.at, outcome.decode), outcome));
    keyed.collect()
}

fn decisions(seen: &Seen, outcomes: &HashMap<Key, Outcome>) -> Value {
    let told = seen.records.iter().map(|record| {
        let outcome = outcomes.get(&(record.id, record.at, record.chosen.decode));
        decision(record, outcome, seen.now)
    });
    Value::Array(told.collect())
}

fn decision(record: &DecisionRecord, outcome: Option<&Outcome>, now: Timestamp) -> Value {
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
        "outcome": outcome.map(told),
    })
}

fn candidate(candidate: &Candidate) -> Value {
    json!({
        "decode": candidate.decode.to_string(),
        "prefill": candidate.prefill.map(|prefill| prefill.to_string()),
        "cached_tokens": candidate.cached_tokens,
        "requests": candidate.requests,
        "cost_ms": cost(&candidate.cost),
    })
}

fn prefill_candidate(candidate: &PrefillCandidate) -> Value {
    json!({
        "prefill": candidate.prefill.to_string(),
        "cached_tokens": candidate.cached_tokens,
        "requests": candidate.requests,
        "cost_ms": cost(&candidate.cost),
    })
}

/// Every term in milliseconds, and their sum.
fn cost(cost: &Cost) -> Value {
    let terms = cost.terms().into_iter().map(|(name, time)| (name.to_owned(), ms(time)));
    let mut terms: Map<String, Value> = terms.collect();
    terms.insert("total".to_owned(), ms(cost.total()));
    Value::Object(terms)
}

fn told(outcome: &Outcome) -> Value {
    let started = outcome.started.as_ref().map(|(report, at)| {
        json!({
            "after_ms": ms(at.since(outcome.at)),
            "cached_tokens": report.cached_tokens,
            "replayed_tokens": report.replayed_tokens,
            "window_source": report.window_source.as_str(),
            "exact": report.exact,
            "bytes_fetched": report.bytes_fetched,
            "prefill": report.prefill.map(|prefill| prefill.to_string()),
        })
    });
    let ended = outcome.ended.as_ref().map(
        |ended| json!({"how": ended.how, "after_ms": ms(ended.after), "tokens": ended.tokens}),
    );
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
            decode_queue: Duration::from_micros(1_500),
            tail: Duration::from_millis(2),
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
