//! `GET /debug/capture?after=N`: what the router remembers of requests that ended, from line N on.

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Json;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Operated;
use super::figures::{counters, head, sample};
use crate::capture::Recorded;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct From {
    #[serde(default)]
    after: u64,
}

pub(super) async fn lines(
    State(operated): State<Operated>,
    Query(from): Query<From>,
) -> (StatusCode, Json<Value>) {
    match &operated.observed.capture {
        Some(recorder) => (StatusCode::OK, Json(recorder.lines(from.after))),
        None => {
            let error = "this process remembers no requests; ask a router of a cluster that has [capture] \
                         bytes_max set (kvasir serve has none)";
            (StatusCode::NOT_FOUND, Json(json!({ "error": error })))
        }
    }
}

pub(super) fn figures(recorded: Recorded, text: &mut String) {
    let Recorded { lines, dropped, bytes } = recorded;
    let name = "kvasir_capture_bytes";
    head(text, name, "gauge", "Bytes of lines about requests that ended");
    sample(text, name, &[], bytes);
    counters(
        text,
        &[
            ("kvasir_capture_requests_total", "Requests that were remembered", lines),
            ("kvasir_capture_dropped_total", "Oldest ones that made room", dropped),
        ],
    );
}
