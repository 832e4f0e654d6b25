//! Responses that nobody waits for (`background`): said to have begun, made beside everything else, and looked at by their id.
//!
//! Each is work like any other: it counts as a request in work until it ended, of its tenant and key as well, and pays its tokens.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use tracing::Instrument;

use super::answers::memory;
use super::json;
use super::whole::Work;
use crate::call::Call;
use crate::door::Visit;
use crate::gateway::Shared;
use crate::metrics::Outcome;
use crate::request::Echo;
use crate::stored::Unfinished;
use crate::wire::{self, Head, ResponsesWriter};

/// Who asked.
pub(super) struct Client<'a> {
    pub(super) call: &'a Call,
    /// None on the listener of operators.
    pub(super) visit: Option<Arc<Visit>>,
}

/// Begins a response and says so.
pub(super) fn begin(
    shared: &Arc<Shared>,
    client: Client<'_>,
    head: Head,
    echo: Echo,
    work: Work,
) -> Response {
    let memory = Arc::new(memory(shared, client.call));
    let writer =
        ResponsesWriter::new(head, echo, Arc::clone(&memory), Arc::clone(&shared.cluster.clock));
    let begun = writer.begun();
    let body = wire::json(&begun.object);
    let unfinished = match memory.begin(writer.id(), begun) {
        Ok(unfinished) => unfinished,
        Err(error) => {
            work.end(error.outcome);
            return error.into_response();
        }
    };
    let visit = client.visit;
    let making = async move {
        make(work, writer, unfinished).await;
        drop(visit);
    };
    shared.spawn(making.in_current_span());
    json(body)
}

async fn make(mut work: Work, mut writer: ResponsesWriter, unfinished: Unfinished) {
    let made = tokio::select! {
        // Its last word is said by whoever cancelled it.
        () = unfinished.cancelled() => return work.end(Outcome::ClientGone),
        made = work.collect() => made,
    };
    match made {
        Ok(made) => {
            work.end(made.outcome);
            unfinished.finish(writer.finished(&made.answers, &made.total));
        }
        Err(error) => {
            work.end(error.outcome);
            unfinished.fail(&error);
        }
    }
}
