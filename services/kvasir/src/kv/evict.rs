//! `kvasir kv evict`.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use kvstore::survey::{Exclusive, Segment, SegmentState};
use serde_json::{Value, json};
use shared::{Clock, TenantId};
use tokio::runtime::Builder;

use super::EvictArgs;
use super::units::show_bytes;
use crate::client::Client;
use crate::console::Console;

/// Removes segments of a store that is stopped, or a tenant from one that is stopped or from some that run.
pub(super) fn run(
    args: &EvictArgs,
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    match (&args.folder, &args.tenant) {
        (Some(folder), None) => segments(args, folder, clock.unix_seconds(), console),
        (Some(folder), Some(tenant)) => {
            let exclusive = Exclusive::lock(folder)?;
            let tag = TenantId(tenant.as_str().into()).tag();
            exclusive.evict_tenant(tag, clock.unix_seconds(), args.tenant_keys.as_deref())?;
            let line = if args.json {
                json!({"tenant": tag.to_string()}).to_string()
            } else {
                format!("evicted tenant {tenant} ({tag}); the next start takes its names out")
            };
            Ok(console.line(&line)?)
        }
        (None, Some(tenant)) => {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(running(args, tenant, &clock, console))
        }
        (None, None) => bail!("--admin evicts one tenant: say which with --tenant"),
    }
}

/// Asks running store nodes, all of them before it tells of the first that refused.
async fn running(
    args: &EvictArgs,
    tenant: &str,
    clock: &Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let mut refused = None;
    for url in &args.admin {
        match ask(url, tenant, clock).await {
            Ok(answer) if args.json => console.line(&answer.to_string())?,
            Ok(answer) => {
                let evicted = &answer["evicted"];
                console.line(&format!("{url}: evicted tenant {tenant}: {evicted} names"))?;
            }
            Err(error) => {
                refused.get_or_insert_with(|| error.context(format!("asking {url}")));
            }
        }
    }
    refused.map_or(Ok(()), Err)
}

async fn ask(url: &str, tenant: &str, clock: &Arc<dyn Clock>) -> anyhow::Result<Value> {
    let client = Client::http(url, None, Arc::clone(clock))?;
    let mut path = "/debug/cache/evict?tier=all&tenant=".to_owned();
    for byte in tenant.bytes() {
        path.push_str(&format!("%{byte:02x}"));
    }
    let answer = client.json("POST", &path).await?;
    answer.get("evicted").context("it is no admin listener of a store node of this version")?;
    Ok(answer)
}

/// Removes segments of a store that is stopped.
fn segments(
    args: &EvictArgs,
    folder: &Path,
    now: u64,
    console: &mut Console,
) -> anyhow::Result<()> {
    let exclusive = Exclusive::lock(folder)?;
    let survey = exclusive.survey();
    let objects = survey.objects()?;
    if let Some(number) = args.segment
        && !survey.numbers().contains(&number)
        && !objects.iter().any(|object| object.number == number)
    {
        bail!("there is no segment {number}; kvasir kv ls shows those that are there");
    }
    let (mut segments, mut blocks, mut bytes, mut kept_unread) = (0, 0, 0, 0);
    for segment in survey.segments() {
        let number = segment.number();
        let wanted = match (args.segment, args.older_than) {
            (Some(wanted), _) => wanted == number,
            (None, None) => args.all,
            (None, Some(seconds)) => match newest(&segment) {
                Some(newest) => newest.saturating_add(seconds) < now,
                None => {
                    kept_unread += 1;
                    false
                }
            },
        };
        if wanted {
            bytes += exclusive.remove(number)?;
            blocks += segment.blocks().len();
            segments += 1;
        }
    }
    let doomed: Vec<u64> = objects
        .iter()
        .filter(|object| match (args.segment, args.older_than) {
            (Some(wanted), _) => wanted == object.number,
            (None, None) => args.all,
            (None, Some(seconds)) => object.newest_unix_seconds.saturating_add(seconds) < now,
        })
        .map(|object| object.number)
        .collect();
    exclusive.doom_objects(&doomed)?;
    if args.json {
        let line = json!({
            "segments": segments, "blocks": blocks, "bytes": bytes, "kept_unread": kept_unread,
            "objects": doomed.len()
        });
        console.line(&line.to_string())?;
        return Ok(());
    }
    let mut line = format!("evicted {segments} segments: {blocks} blocks, {}", show_bytes(bytes));
    if 0 < kept_unread {
        line.push_str(&format!(
            "; {kept_unread} that cannot be read were kept, --segment removes them"
        ));
    }
    if !doomed.is_empty() {
        line.push_str(&format!(
            "; {} objects are not read any more, the store deletes them when it runs again",
            doomed.len()
        ));
    }
    console.line(&line)?;
    Ok(())
}

/// When a segment was last written to; without blocks, when it was begun. None when that cannot be told.
fn newest(segment: &Segment) -> Option<u64> {
    match segment.state() {
        SegmentState::Damaged { .. } => None,
        _ => {
            let begun = segment.origin().map(|origin| origin.created_unix_seconds);
            segment.written().map(|(_, newest)| newest).or(begun)
        }
    }
}
