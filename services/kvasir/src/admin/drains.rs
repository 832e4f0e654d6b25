//! `POST /debug/workers/{name}/drain` and `/undrain`: an operator's word about one worker, at one router.

use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Json;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Operated;
use crate::wiring::parts::DrainWord;

/// Longest time that can be asked for: a week. Longer ones are meant to have no end, which is what is had without a number.
const WITHIN_SECONDS_MAX: u64 = 7 * 24 * 3_600;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DrainQuery {
    /// Seconds after which what still runs there counts no more. Absent: it may take as long as it needs. The worker drains
    /// either way until the word is taken back.
    within_s: Option<u64>,
}

/// The worker gets nothing new and finishes what it has.
pub(super) async fn drain(
    State(operated): State<Operated>,
    Path(name): Path<String>,
    Query(query): Query<DrainQuery>,
) -> (StatusCode, Json<Value>) {
    if query.within_s.is_some_and(|seconds| seconds == 0 || WITHIN_SECONDS_MAX < seconds) {
        let text = format!("within_s is a number of seconds in 1..={WITHIN_SECONDS_MAX}");
        return refused(StatusCode::BAD_REQUEST, &text);
    }
    tell(&operated, &name, DrainWord::Begin(query.within_s.map(Duration::from_secs))).await
}

/// The worker takes requests again, unless it says itself, or discovery does, that it ends.
pub(super) async fn undrain(
    State(operated): State<Operated>,
    Path(name): Path<String>,
) -> (StatusCode, Json<Value>) {
    tell(&operated, &name, DrainWord::End).await
}

async fn tell(operated: &Operated, name: &str, word: DrainWord) -> (StatusCode, Json<Value>) {
    let Some(routing) = operated.observed.routing.clone() else {
        let text = "this process has no router; ask the admin listener of each router";
        return refused(StatusCode::NOT_FOUND, text);
    };
    let unknown = "no worker of this name is a member now; /debug/members lists the names";
    let Some(worker) = (routing.worker)(name) else {
        return refused(StatusCode::NOT_FOUND, unknown);
    };
    let Some(answer) = routing.thread.drain(worker, word) else {
        let text = "the router has no time to answer now and may have taken the word; ask again, which does no harm";
        return refused(StatusCode::SERVICE_UNAVAILABLE, text);
    };
    match answer.await {
        Ok(Some(life)) => {
            let draining = life.draining.map(|by| by.as_str());
            let told = json!({"name": name, "worker": worker.to_string(), "draining_by": draining});
            (StatusCode::OK, Json(told))
        }
        Ok(None) => refused(StatusCode::NOT_FOUND, unknown),
        Err(_) => {
            let text = "the placement thread ended; start the process again";
            refused(StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}

fn refused(status: StatusCode, text: &str) -> (StatusCode, Json<Value>) {
    (status, Json(json!({ "error": text })))
}
