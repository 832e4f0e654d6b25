//! Answers in one piece: everything is collected before anything is said.
//!
//! While a client waits, blank lines may keep its connection open (`whole_keep_alive_ms`), as DeepSeek's API sends them. They come
//! behind the head of the response, so an error that comes later has status 200 and is told by the error object alone.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::stream::unfold;
use tokio::time::timeout;

use super::{JSON, json};
use crate::admission::Flight;
use crate::answer::{Bill, outcome_of};
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::metrics::Outcome;
use crate::output::Delta;
use crate::runs::{Happened, Runs};
use crate::wire::{Finished, Writer};

/// What keeps a connection open; JSON may begin with any number of them.
const BLANK_LINE: Bytes = Bytes::from_static(b"\n");

/// An answer on its way.
type Waited = Pin<Box<dyn Future<Output = Result<Vec<u8>, ApiError>> + Send>>;

/// A request in work.
pub(super) struct Work {
    pub(super) runs: Runs,
    /// One of each run.
    pub(super) flights: Vec<Flight>,
}

/// All answers to a request.
pub(super) struct Collected {
    pub(super) answers: Vec<Finished>,
    pub(super) total: Bill,
    pub(super) outcome: Outcome,
}

/// How a client that waits is told that it is not forgotten.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// Blank lines come in silences of this length; none when it is zero.
    pub(super) silence: Duration,
    /// In whose words an error is told behind them.
    pub(super) dialect: Dialect,
}

impl Work {
    /// All answers, or why there are none.
    pub(super) async fn collect(&mut self) -> Result<Collected, ApiError> {
        let runs = &mut self.runs;
        let id = runs.id();
        let mut said: Vec<Delta> = Vec::new();
        let mut finished: Vec<Option<Finished>> = Vec::new();
        said.resize_with(runs.count(), Delta::default);
        finished.resize_with(runs.count(), || None);
        loop {
            match runs.next().await {
                Happened::Began(_) => {}
                Happened::Shown(index, delta) => said[index].append(delta),
                Happened::Ended(index, delta, end) => {
                    let mut said = std::mem::take(&mut said[index]);
                    said.append(delta);
                    let outcome = outcome_of(&end);
                    finished[index] = Some(Finished { said, end });
                    if runs.is_done() {
                        let answers = finished.into_iter().flatten().collect();
                        return Ok(Collected { answers, total: runs.total(), outcome });
                    }
                }
                Happened::Failed(error) => return Err(ApiError::from_serve(&error, id)),
                Happened::Overflow => {
                    // Whoever collects reads as fast as it can, so only a runtime without a free thread gets here.
                    tracing::error!(request = %id, "the answer came faster than it was read");
                    return Err(ApiError::internal(id));
                }
            }
        }
    }

    /// Ends the request, its runs first.
    pub(super) fn end(self, outcome: Outcome) {
        drop(self.runs);
        for flight in self.flights {
            flight.end(outcome);
        }
    }
}

async fn answer(mut work: Work, mut writer: Box<dyn Writer>) -> Result<Vec<u8>, ApiError> {
    let collected = work.collect().await;
    work.end(match &collected {
        Ok(collected) => collected.outcome,
        Err(error) => error.outcome,
    });
    collected.map(|collected| writer.whole(&collected.answers, &collected.total))
}

/// Answers when everything is there.
pub(super) async fn respond(work: Work, writer: Box<dyn Writer>, patience: Patience) -> Response {
    let Patience { silence, dialect } = patience;
    let mut answer: Waited = Box::pin(answer(work, writer));
    let told = if silence.is_zero() {
        answer.await
    } else {
        match timeout(silence, &mut answer).await {
            Ok(told) => told,
            Err(_) => return waiting(answer, silence, dialect),
        }
    };
    match told {
        Ok(body) => json(body),
        Err(error) => error.into_response(),
    }
}

/// The head of the response and a blank line now, more in every silence, and then the answer. The request ends with the body.
fn waiting(answer: Waited, silence: Duration, dialect: Dialect) -> Response {
    let (waits, first) = (Some(answer), true);
    let body = unfold((waits, first), move |(waits, first)| async move {
        let mut answer = waits?;
        if first {
            return Some((Ok::<_, Infallible>(BLANK_LINE), (Some(answer), false)));
        }
        let part = match timeout(silence, &mut answer).await {
            Err(_) => return Some((Ok(BLANK_LINE), (Some(answer), false))),
            Ok(Ok(body)) => body,
            Ok(Err(error)) => match dialect {
                Dialect::OpenAi => error.to_json(),
                Dialect::Anthropic => error.to_anthropic_json(None),
            },
        };
        Some((Ok(part.into()), (None, false)))
    });
    ([(CONTENT_TYPE, JSON)], Body::from_stream(body)).into_response()
}
