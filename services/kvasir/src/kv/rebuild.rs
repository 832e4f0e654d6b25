//! `kvasir kv rebuild`.

use kvstore::survey::{Exclusive, Rebuilt};
use serde_json::json;

use super::FolderArgs;
use super::units::show_bytes;
use crate::console::Console;

/// Makes the catalog anew from the segments.
pub(super) fn run(args: &FolderArgs, console: &mut Console) -> anyhow::Result<()> {
    let exclusive = Exclusive::lock(&args.folder)?;
    let Rebuilt { segments, without_blocks, blocks, bytes } = exclusive.rebuild_catalog()?;
    let line = if args.json {
        json!({
            "segments": segments, "segments_without_blocks": without_blocks, "blocks": blocks,
            "bytes": bytes,
        })
        .to_string()
    } else {
        let aside = match without_blocks {
            0 => String::new(),
            count => format!("; no block is known of {count} of them, kvasir kv ls shows why"),
        };
        let bytes = show_bytes(bytes);
        format!("the catalog is made anew: {segments} segments, {blocks} blocks, {bytes}{aside}")
    };
    console.line(&line)?;
    Ok(())
}
