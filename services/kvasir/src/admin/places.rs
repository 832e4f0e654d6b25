//! `POST /debug/blocks`: where each of some blocks is in this process.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use kvstore::{BlockPlace, HostTier};
use serde::Deserialize;
use serde_json::{Value, json};
use shared::{BlockName, ObjectKind};
use tokio::sync::oneshot;

use super::{Observed, Operated};
use crate::kv::block_name;

/// Blocks in one question: a prompt of a million tokens and some more.
pub(crate) const NAMES_MAX: usize = 16_384;

/// Asks the store of this process; dropped unanswered when it has no room for questions.
pub(crate) type Places =
    Arc<dyn Fn(Vec<BlockName>, oneshot::Sender<Vec<BlockPlace>>) + Send + Sync>;

/// What a store node says of blocks.
pub(crate) fn of_store(tier: Arc<HostTier>) -> Places {
    Arc::new(move |names, told| {
        let answer = move |places| {
            // A caller that went away wants none.
            let _wanted_or_not = told.send(places).is_ok();
        };
        tier.places(names, Box::new(answer));
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    names: Vec<String>,
}

/// Blocks that follow each other and are in the same place.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    blocks: usize,
    place: &'static str,
    reason: Option<&'static str>,
}

pub(super) async fn blocks(State(operated): State<Operated>, body: Bytes) -> Response {
    let names = match read(&body) {
        Ok(names) => names,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let observed = &operated.observed;
    let mut places = in_pools(observed, &names);
    if let Some(ask) = &observed.places {
        let (told, answer) = oneshot::channel();
        ask(names, told);
        let Ok(stored) = answer.await else {
            let busy = "the store has no room for questions now; ask again\n";
            return (StatusCode::SERVICE_UNAVAILABLE, busy).into_response();
        };
        for (place, stored) in places.iter_mut().zip(stored) {
            *place = match stored {
                BlockPlace::Memory => ("in memory", None),
                BlockPlace::Drive => ("on the drive", None),
                BlockPlace::Missing(miss) => ("missing", Some(miss.as_str())),
            };
        }
    }
    Json(told(&places)).into_response()
}

fn read(body: &[u8]) -> Result<Vec<BlockName>, String> {
    let wanted =
        format!("send {{\"names\": [..]}} with at most {NAMES_MAX} names of 32 hex digits");
    let question: Question =
        serde_json::from_slice(body).map_err(|error| format!("{error}; {wanted}"))?;
    if NAMES_MAX < question.names.len() {
        return Err(format!("{} names are too many; {wanted}", question.names.len()));
    }
    let names = question.names.iter().map(|name| block_name(name));
    names.collect::<Result<_, _>>().map_err(|error| format!("{error}; {wanted}"))
}

/// Whether a pool of blocks of this process holds each name.
fn in_pools(observed: &Observed, names: &[BlockName]) -> Vec<(&'static str, Option<&'static str>)> {
    let pools: Vec<_> = observed.pools.iter().map(|named| &named.pool).collect();
    let blocks = || pools.iter().filter(|pool| pool.config().kind == ObjectKind::Block);
    let held = |name: &BlockName| blocks().any(|pool| pool.contains(*name));
    let place = |name| if held(name) { ("in memory", None) } else { ("missing", None) };
    names.iter().map(place).collect()
}

/// Run by run.
fn told(places: &[(&'static str, Option<&'static str>)]) -> Value {
    let mut runs: Vec<Run> = Vec::new();
    for &(place, reason) in places {
        match runs.last_mut() {
            Some(run) if (run.place, run.reason) == (place, reason) => run.blocks += 1,
            _ => runs.push(Run { blocks: 1, place, reason }),
        }
    }
    let mut from = 0;
    let runs = runs.iter().map(|run| {
        let to = from + run.blocks;
        let run = json!({"from": from, "to": to, "place": run.place, "reason": run.reason});
        from = to;
        run
    });
    Value::Array(runs.collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{NAMES_MAX, read, told};

    #[test]
    fn questions_that_cannot_be_answered_say_what_to_send() {
        let many = json!({"names": vec!["0".repeat(32); NAMES_MAX + 1]}).to_string();
        for body in ["", "{}", "{\"names\": [\"ab\"]}", "{\"names\": [], \"x\": 1}", &many] {
            let error = read(body.as_bytes()).unwrap_err();
            assert!(error.contains("32 hex digits"), "{error}");
        }
        let body = json!({"names": ["0f".repeat(16)]}).to_string();
        assert_eq!(read(body.as_bytes()).unwrap()[0].0, [0x0f; 16]);
    }

    #[test]
    fn blocks_in_the_same_place_are_one_run() {
        let (memory, expired) = (("in memory", None), ("missing", Some("expired")));
        let found = told(&[memory, memory, expired, memory]);
        assert_eq!(
            found,
            json!([
                {"from": 0, "to": 2, "place": "in memory", "reason": null},
                {"from": 2, "to": 3, "place": "missing", "reason": "expired"},
                {"from": 3, "to": 4, "place": "in memory", "reason": null},
            ])
        );
        assert_eq!(told(&[]), json!([]));
    }
}
