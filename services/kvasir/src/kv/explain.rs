//! `kvasir kv explain`: why each block of a request was had from a cache, or not.
//!
//! Workers remember their last starts; this asks the admin listeners it is given and prints what they say, block run by
//! block run. Of a request that went through prefill and decode both tell their part.

use std::sync::Arc;

use anyhow::{Context, bail};
use serde::Deserialize;
use shared::{BLOCK_TOKENS, Clock, RequestId};
use tokio::runtime::Builder;

use super::ExplainArgs;
use crate::client::Client;
use crate::console::Console;

/// One start, as `GET /debug/starts/{id}` tells it.
#[derive(Debug, Deserialize)]
struct Start {
    worker: String,
    start: u32,
    window_source: String,
    replayed_rows: u32,
    exact: bool,
    blocks: Vec<Run>,
}

#[derive(Debug, Deserialize)]
struct Run {
    from: u32,
    to: u32,
    fate: String,
    reason: Option<String>,
}

/// Asks, prints.
///
/// # Errors
/// When a listener cannot be reached or none remembers the request.
pub(super) fn run(
    args: &ExplainArgs,
    request: RequestId,
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(explain(args, request, clock, console))
}

async fn explain(
    args: &ExplainArgs,
    request: RequestId,
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let mut known = false;
    for url in &args.admin {
        let client = Client::http(url, None, Arc::clone(&clock))?;
        let path = format!("/debug/starts/{request}");
        let answer = client.json("GET", &path).await.with_context(|| format!("asking {url}"))?;
        let starts: Vec<Start> = serde_json::from_value(answer.clone())
            .with_context(|| format!("{url} is no admin listener of this version"))?;
        known |= !starts.is_empty();
        if args.json {
            for start in answer.as_array().into_iter().flatten() {
                console.line(&start.to_string())?;
            }
            continue;
        }
        for line in starts.iter().flat_map(described) {
            console.line(&line)?;
        }
    }
    if !known {
        bail!(
            "none of these processes remembers request {request}; ask the admin listeners of the prefill and decode \
             workers, which remember their last 4,096 starts"
        );
    }
    Ok(())
}

fn described(start: &Start) -> Vec<String> {
    let Start { worker, start: at, window_source, replayed_rows, exact, blocks } = start;
    let exact = if *exact { "exact" } else { "not exact" };
    let mut lines = vec![format!(
        "{worker}: started at token {at}, windows {window_source}, {replayed_rows} rows replayed, {exact}"
    )];
    for Run { from, to, fate, reason } in blocks {
        let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        let tokens = (from * BLOCK_TOKENS, to * BLOCK_TOKENS);
        lines.push(format!(
            "  blocks {from:>5} to {to:<5}  tokens {:>7} to {:<7}  {fate}{reason}",
            tokens.0, tokens.1
        ));
    }
    lines
}

/// A request's id: the header `x-request-id` of its answer, or the `id` of the answer itself.
pub(super) fn request_id(text: &str) -> Result<RequestId, String> {
    let digits = text.rsplit('-').next().unwrap_or(text);
    if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("a request id has 32 hex digits, see the header x-request-id".to_owned());
    }
    u128::from_str_radix(digits, 16).map(RequestId).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shared::RequestId;

    use super::{Start, described, request_id};

    #[test]
    fn an_id_is_taken_from_the_header_and_from_the_answer() {
        let id = RequestId(0xabc);
        assert_eq!(request_id(&id.to_string()), Ok(id));
        assert_eq!(request_id(&format!("chatcmpl-{id}")), Ok(id));
        for wrong in ["", "abc", "+0000000000000000000000000000abc"] {
            assert!(request_id(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_start_is_told_run_by_run_with_reasons() {
        let start: Start = serde_json::from_value(json!({
            "worker": "decode 2/0", "start": 256, "window_source": "cold", "replayed_rows": 0, "exact": true,
            "blocks": [
                {"from": 0, "to": 2, "fate": "held", "reason": null},
                {"from": 2, "to": 3, "fate": "missed", "reason": "expired"},
            ],
        }))
        .unwrap();
        let lines = described(&start);
        assert_eq!(lines.len(), 3);
        assert!(lines[1].ends_with("tokens       0 to 256      held"), "{}", lines[1]);
        assert!(lines[2].ends_with("missed: expired"), "{}", lines[2]);
    }
}
