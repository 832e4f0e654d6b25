//! `kvasir kv du`.

use kvstore::survey::{Survey, Usage, tenants};
use serde_json::json;
use shared::TenantTag;

use super::DuArgs;
use super::units::show_bytes;
use crate::console::Console;

/// What the bytes of a folder are spent on.
pub(super) fn du(args: &DuArgs, now: u64, console: &mut Console) -> anyhow::Result<()> {
    let survey = Survey::open(&args.of.folder)?;
    if args.tenants {
        return du_tenants(args, &survey, console);
    }
    let usage = Usage::of(&survey, now);
    let remote = survey.objects()?.into_iter().filter(|object| !object.on_drive);
    let (mut objects, mut object_bytes) = (0_u64, 0_u64);
    for object in remote {
        objects += 1;
        object_bytes += object.bytes;
    }
    if args.of.json {
        let mut line = object(&usage);
        line["remote"] = json!({"segments": objects, "bytes": object_bytes});
        console.line(&line.to_string())?;
        return Ok(());
    }
    let line = |what: &str, bytes: u64, more: &str| {
        format!("{what:<28} {:>10} {bytes:>16} B  {more}", show_bytes(bytes)).trim_end().to_owned()
    };
    let mut lines = Vec::new();
    for (state, held) in &usage.states {
        let more = format!("{} segments", held.segments);
        lines.push(line(&format!("{state} segments"), held.bytes, &more));
    }
    let blocks = |count: u64| format!("{count} blocks");
    lines.extend([
        line("all segments", usage.file_bytes, ""),
        String::new(),
        line("live payload", usage.live_bytes, &blocks(usage.live_blocks)),
        line("  of media embeddings", usage.media_bytes, &format!("{} pieces", usage.media_pieces)),
        line("  written within 1 h", usage.ages.hour, ""),
        line("  within 24 h", usage.ages.day, ""),
        line("  within 72 h", usage.ages.retention, ""),
        line("  older", usage.ages.older, ""),
        line("superseded payload", usage.superseded_bytes, &blocks(usage.superseded_blocks)),
        line("payload of evicted tenants", usage.evicted_bytes, &blocks(usage.evicted_blocks)),
        line("record headers and padding", usage.padding_bytes, ""),
        line("segment headers and tables", usage.structure_bytes, ""),
        line("torn, damaged, unreadable", usage.lost_bytes, ""),
        line("kept to be written again", usage.free_bytes, ""),
    ]);
    if 0 < objects {
        let more = format!("{objects} segments");
        lines.push(line("in the object store alone", object_bytes, &more));
    }
    if let Some(amplification) = usage.amplification() {
        lines.push(String::new());
        lines.push(format!("{amplification:.3} bytes of files for each byte of live payload"));
    }
    for line in lines {
        console.line(&line)?;
    }
    Ok(())
}

/// A page of the tenants and what each has in the segments, copies that a newer one took the place of included.
fn du_tenants(args: &DuArgs, survey: &Survey, console: &mut Console) -> anyhow::Result<()> {
    let next = args.after.map_or(Some(0), |tag| tag.0.checked_add(1));
    let Some(first) = next.map(TenantTag) else { return Ok(()) };
    let page = usize::try_from(args.page)?;
    let held = tenants(survey, first, page);
    for (tag, of) in &held {
        let line = if args.of.json {
            json!({"tenant": tag.to_string(), "blocks": of.blocks, "bytes": of.bytes}).to_string()
        } else {
            format!("{tag} {:>10} {:>16} B  {} blocks", show_bytes(of.bytes), of.bytes, of.blocks)
        };
        console.line(&line)?;
    }
    if let (true, Some((last, _))) = (held.len() == page && !args.of.json, held.last_key_value()) {
        console.line(&format!("there may be more: --after {last}"))?;
    }
    Ok(())
}

fn object(usage: &Usage) -> serde_json::Value {
    let states = usage.states.iter().map(|(state, held)| {
        ((*state).to_owned(), json!({"segments": held.segments, "bytes": held.bytes}))
    });
    json!({
        "states": states.collect::<serde_json::Map<_, _>>(),
        "file_bytes": usage.file_bytes,
        "live_blocks": usage.live_blocks,
        "live_bytes": usage.live_bytes,
        "media_pieces": usage.media_pieces,
        "media_bytes": usage.media_bytes,
        "live_bytes_by_age": {
            "1h": usage.ages.hour,
            "24h": usage.ages.day,
            "72h": usage.ages.retention,
            "older": usage.ages.older,
        },
        "superseded_blocks": usage.superseded_blocks,
        "superseded_bytes": usage.superseded_bytes,
        "evicted_blocks": usage.evicted_blocks,
        "evicted_bytes": usage.evicted_bytes,
        "padding_bytes": usage.padding_bytes,
        "structure_bytes": usage.structure_bytes,
        "lost_bytes": usage.lost_bytes,
        "free_bytes": usage.free_bytes,
        "space_amplification": usage.amplification(),
    })
}
