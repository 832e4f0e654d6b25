//! `kvasir kv evict`.

use anyhow::bail;
use kvstore::survey::{Exclusive, Segment, SegmentState};
use serde_json::json;

use super::EvictArgs;
use super::units::show_bytes;
use crate::console::Console;

/// Removes segments of a store that is stopped.
pub(super) fn run(args: &EvictArgs, now: u64, console: &mut Console) -> anyhow::Result<()> {
    let exclusive = Exclusive::lock(&args.of.folder)?;
    let survey = exclusive.survey();
    if let Some(number) = args.segment
        && !survey.numbers().contains(&number)
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
    if args.of.json {
        let line = json!({
            "segments": segments, "blocks": blocks, "bytes": bytes, "kept_unread": kept_unread
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
