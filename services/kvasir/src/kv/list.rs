//! `kvasir kv ls` and `kvasir kv inspect`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use kvstore::survey::{
    BlockCopy, BlockFault, Checker, ObjectSegment, Segment, SegmentState, Survey,
};
use serde_json::{Value, json};

use super::units::{show_age, show_bytes};
use super::{InspectArgs, ListArgs};
use crate::console::Console;

/// A line for each segment, or for each block.
pub(super) fn ls(args: &ListArgs, now: u64, console: &mut Console) -> anyhow::Result<()> {
    let survey = Survey::open(&args.of.folder)?;
    if args.records {
        return records(args, &survey, now, console);
    }
    if !args.of.json {
        console.line(&format!(
            "{:>8} {:<8} {:>7} {:>10} {:>8} {:>10} {:>8} {:>8}  {:<16} numerics",
            "segment",
            "state",
            "version",
            "file",
            "blocks",
            "payload",
            "oldest",
            "newest",
            "layout"
        ))?;
    }
    for segment in survey.segments() {
        let line = if args.of.json {
            segment_json(&segment).to_string()
        } else {
            segment_line(&segment, now)
        };
        console.line(&line)?;
    }
    for object in survey.objects()?.iter().filter(|object| !object.on_drive) {
        let line =
            if args.of.json { object_json(object).to_string() } else { object_line(object, now) };
        console.line(&line)?;
    }
    Ok(())
}

fn records(
    args: &ListArgs,
    survey: &Survey,
    now: u64,
    console: &mut Console,
) -> anyhow::Result<()> {
    if !args.of.json {
        console.line(&format!(
            "{:<32} {:>8} {:>8} {:>10} {:>8} {:>8} {:<5} kind",
            "name", "segment", "page", "bytes", "crc32c", "age", "exact"
        ))?;
    }
    for segment in survey.segments() {
        for copy in segment.blocks() {
            let line =
                if args.of.json { copy_json(&copy).to_string() } else { copy_line(&copy, now) };
            console.line(&line)?;
        }
    }
    Ok(())
}

/// Every copy of one block; false when there is none that can be read.
pub(super) fn inspect(args: &InspectArgs, now: u64, console: &mut Console) -> anyhow::Result<bool> {
    let survey = Survey::open(&args.of.folder)?;
    let mut checker = Checker::new();
    // As a start enters them: the last one of the tables, and of those that are intact in segments without one.
    let mut counts: Option<(BlockCopy, Result<(), BlockFault>)> = None;
    let mut copies = Vec::new();
    let mut payload = Vec::new();
    for segment in survey.segments() {
        for copy in segment.blocks().filter(|copy| copy.name == args.name) {
            let result = segment.check(&copy, &mut checker);
            let is_listed = result.is_ok() || *segment.state() == SegmentState::Sealed;
            if is_listed && !survey.is_evicted(&copy) {
                counts = Some((copy, result));
                payload.clear();
                payload.extend_from_slice(checker.payload());
            }
            copies.push((copy, segment.state().as_str(), result));
        }
    }
    for (copy, state, result) in &copies {
        let counted = counts.is_some_and(|(counted, _)| counted == *copy);
        let mut health = result.map_or_else(|fault| fault.to_string(), |()| "intact".to_owned());
        if survey.is_evicted(copy) {
            health.push_str(", evicted with its tenant");
        }
        if args.of.json {
            let mut line = copy_json(copy);
            line["state"] = json!(state);
            line["counts"] = json!(counted);
            line["intact"] = json!(result.is_ok());
            line["health"] = json!(health);
            console.line(&line.to_string())?;
        } else {
            let place = format!("segment {} ({state}), page {}", copy.segment, copy.page);
            let written = format!(
                "written {} ago ({}), exact {}",
                show_age(now, copy.written_unix_seconds),
                copy.written_unix_seconds,
                copy.exact
            );
            let size = format!(
                "{}, {} bytes{} of {}, crc32c {:08x}",
                copy.kind.as_str(),
                copy.bytes,
                if copy.sealed { ", encrypted," } else { "" },
                copy.tenant,
                copy.checksum
            );
            let mark = if counted { "  <- counts" } else { "" };
            console.line(&format!("{place}: {size}, {written}: {health}{mark}"))?;
        }
    }
    let Some((counted, result)) = counts else {
        console.progress(&format!("kvasir: no block {} can be read here", args.name));
        return Ok(false);
    };
    if let Some(path) = &args.out {
        ensure!(
            !counted.sealed,
            "the block is encrypted with its tenant's key, which stays with the store"
        );
        result.map_err(anyhow::Error::new).context("the copy that counts is not intact")?;
        write(path, &payload).with_context(|| format!("{} cannot be written", path.display()))?;
    }
    Ok(result.is_ok())
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn segment_line(segment: &Segment, now: u64) -> String {
    let payload: u64 = segment.blocks().map(|block| u64::from(block.bytes)).sum();
    let none = || "-".to_owned();
    let age = |then: Option<u64>| then.map_or_else(none, |then| show_age(now, then));
    let version = segment.version().map_or_else(none, |version| version.to_string());
    let origin = segment.origin();
    let layout = origin.as_ref().map_or_else(none, |origin| hex(&origin.layout[..8]));
    let end = match segment.state() {
        SegmentState::Damaged { reason } => reason.clone(),
        _ => origin.map_or_else(none, |origin| origin.numerics.0),
    };
    format!(
        "{:>8} {:<8} {version:>7} {:>10} {:>8} {:>10} {:>8} {:>8}  {layout:<16} {end}",
        segment.number(),
        segment.state().as_str(),
        show_bytes(segment.file_bytes()),
        segment.blocks().len(),
        show_bytes(payload),
        age(segment.written().map(|(oldest, _)| oldest)),
        age(segment.written().map(|(_, newest)| newest)),
    )
}

/// A segment that lies in the object store alone: its payload and its header are not read.
fn object_line(object: &ObjectSegment, now: u64) -> String {
    format!(
        "{:>8} {:<8} {:>7} {:>10} {:>8} {:>10} {:>8} {:>8}  {:<16} -",
        object.number,
        "remote",
        "-",
        show_bytes(object.bytes),
        object.records,
        "-",
        show_age(now, object.oldest_unix_seconds),
        show_age(now, object.newest_unix_seconds),
        "-"
    )
}

fn object_json(object: &ObjectSegment) -> Value {
    json!({
        "segment": object.number,
        "state": "remote",
        "object_bytes": object.bytes,
        "records": object.records,
        "oldest_unix_seconds": object.oldest_unix_seconds,
        "newest_unix_seconds": object.newest_unix_seconds,
    })
}

fn segment_json(segment: &Segment) -> Value {
    let reason = match segment.state() {
        SegmentState::Damaged { reason } => Some(reason),
        _ => None,
    };
    let origin = segment.origin();
    json!({
        "segment": segment.number(),
        "state": segment.state().as_str(),
        "reason": reason,
        "version": segment.version(),
        "file_bytes": segment.file_bytes(),
        "blocks": segment.blocks().len(),
        "payload_bytes": segment.blocks().map(|block| u64::from(block.bytes)).sum::<u64>(),
        "oldest_unix_seconds": segment.written().map(|(oldest, _)| oldest),
        "newest_unix_seconds": segment.written().map(|(_, newest)| newest),
        "created_unix_seconds": origin.as_ref().map(|origin| origin.created_unix_seconds),
        "layout": origin.as_ref().map(|origin| hex(&origin.layout)),
        "numerics": origin.map(|origin| origin.numerics.0),
    })
}

fn copy_line(copy: &BlockCopy, now: u64) -> String {
    format!(
        "{} {:>8} {:>8} {:>10} {:08x} {:>8} {:<5} {}",
        copy.name,
        copy.segment,
        copy.page,
        copy.bytes,
        copy.checksum,
        show_age(now, copy.written_unix_seconds),
        copy.exact,
        copy.kind.as_str()
    )
}

fn copy_json(copy: &BlockCopy) -> Value {
    json!({
        "name": copy.name.to_string(),
        "kind": copy.kind.as_str(),
        "segment": copy.segment,
        "page": copy.page,
        "bytes": copy.bytes,
        "crc32c": format!("{:08x}", copy.checksum),
        "written_unix_seconds": copy.written_unix_seconds,
        "exact": copy.exact,
        "tenant": copy.tenant.to_string(),
        "encrypted": copy.sealed,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
