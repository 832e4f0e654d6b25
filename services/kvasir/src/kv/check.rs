//! `kvasir kv fsck` and `kvasir kv scrub`.

use std::sync::Arc;
use std::thread;

use kvstore::survey::{
    CatalogCheck, CatalogState, Checked, Exclusive, Finding, Pace, Repair, Survey, Watcher,
    fsck as check,
};
use serde_json::{Value, json};
use shared::Clock;

use super::units::show_bytes;
use super::{FsckArgs, ScrubArgs};
use crate::console::Console;

/// Checks everything, and mends it if asked to; false when there was damage.
pub(super) fn fsck(
    args: &FsckArgs,
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<bool> {
    let mut lines = Lines::new(clock, args.mib_per_s, |finding: &Finding| {
        let line = if args.of.json { finding_json(finding).to_string() } else { describe(finding) };
        console.line(&line)
    });
    let mut repairs = Vec::new();
    let (checked, catalog) = if args.repair {
        let exclusive = Exclusive::lock(&args.of.folder)?;
        let checked = exclusive.repair(&mut lines, &mut |repair| repairs.push(repair.clone()))?;
        // After the files: segments that were mended differ from what the catalog knows.
        (checked, Some(exclusive.mend_catalog()?))
    } else {
        let checked = check(&Survey::open(&args.of.folder)?, &mut lines);
        (checked, catalog_of(args)?)
    };
    lines.written?;
    for repair in &repairs {
        let line = if args.of.json { repair_json(repair).to_string() } else { mended(repair) };
        console.line(&line)?;
    }
    let differences = catalog.as_ref().map_or(0, differences);
    let line = if args.of.json {
        let mut line = checked_json(&checked);
        line["catalog"] = catalog_json(catalog.as_ref());
        line.to_string()
    } else {
        format!("{}; {}", summary(&checked), catalog_summary(catalog.as_ref()))
    };
    console.line(&line)?;
    Ok(checked.damaged == 0 && differences == 0)
}

/// Compares the catalog, unless its folder cannot be locked: a store runs, nothing is there, or it is not to be written.
fn catalog_of(args: &FsckArgs) -> anyhow::Result<Option<CatalogState>> {
    let Ok(exclusive) = Exclusive::lock(&args.of.folder) else {
        return Ok(None);
    };
    Ok(Some(exclusive.check_catalog()?))
}

fn differences(catalog: &CatalogState) -> u64 {
    match catalog {
        CatalogState::Unusable(_) => 0,
        CatalogState::Compared(check) => check.differences(),
    }
}

fn catalog_summary(catalog: Option<&CatalogState>) -> String {
    match catalog {
        None => "the catalog was not looked at: a store runs, or none ever did".to_owned(),
        Some(CatalogState::Unusable(reason)) => {
            format!("{reason}, so the next start makes it anew")
        }
        Some(CatalogState::Compared(check)) if check.differences() == 0 => {
            format!("the catalog agrees in {} segments", check.segments)
        }
        Some(CatalogState::Compared(check)) => format!(
            "the catalog differs: {} entries without a record, {} records without an entry, {} contradictions; \
             --repair mends it",
            check.entries_without_record, check.records_without_entry, check.contradictions
        ),
    }
}

fn catalog_json(catalog: Option<&CatalogState>) -> Value {
    match catalog {
        None => Value::Null,
        Some(CatalogState::Unusable(reason)) => json!({"unusable": reason.to_string()}),
        Some(CatalogState::Compared(check)) => {
            let CatalogCheck {
                segments,
                entries,
                entries_without_record,
                records_without_entry,
                contradictions,
                unsettled,
            } = check;
            json!({
                "segments": segments,
                "segments_unsettled": unsettled,
                "entries": entries,
                "entries_without_record": entries_without_record,
                "records_without_entry": records_without_entry,
                "contradictions": contradictions,
            })
        }
    }
}

/// Reads every payload at a bounded rate; false when there was damage.
pub(super) fn scrub(
    args: &ScrubArgs,
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<bool> {
    let survey = Survey::open(&args.of.folder)?;
    let mut lines = Lines::new(clock, args.mib_per_s, |finding: &Finding| {
        console.progress(&describe(finding));
        Ok(())
    });
    let checked = check(&survey, &mut lines);
    let line = if args.of.json { checked_json(&checked).to_string() } else { summary(&checked) };
    console.line(&line)?;
    Ok(checked.damaged == 0)
}

/// Holds reads back to the rate and shows what is found at once.
struct Lines<Show> {
    clock: Arc<dyn Clock>,
    pace: Pace,
    show: Show,
    /// Whether all of it could be shown.
    written: std::io::Result<()>,
}

impl<Show: FnMut(&Finding) -> std::io::Result<()>> Lines<Show> {
    fn new(clock: Arc<dyn Clock>, mib_per_s: u64, show: Show) -> Self {
        let pace = Pace::new(mib_per_s, clock.now());
        Self { clock, pace, show, written: Ok(()) }
    }
}

impl<Show: FnMut(&Finding) -> std::io::Result<()>> Watcher for Lines<Show> {
    fn read(&mut self, bytes: u64) {
        thread::sleep(self.pace.wait_after(bytes, self.clock.now()));
    }

    fn found(&mut self, finding: &Finding) {
        // A mending goes on when nobody reads any more; what was not shown is an error in the end.
        if self.written.is_ok() {
            self.written = (self.show)(finding);
        }
    }
}

fn describe(finding: &Finding) -> String {
    let Finding { segment, page, name, damage, detail } = finding;
    let page = page.map_or_else(String::new, |page| format!(", page {page}"));
    let name = name.map_or_else(String::new, |name| format!(", block {name}"));
    format!("damage: {}: segment {segment}{page}{name}: {detail}", damage.as_str())
}

fn finding_json(finding: &Finding) -> Value {
    json!({
        "damage": finding.damage.as_str(),
        "segment": finding.segment,
        "page": finding.page,
        "name": finding.name.map(|name| name.to_string()),
        "detail": finding.detail,
    })
}

fn mended(repair: &Repair) -> String {
    match repair {
        Repair::Cut { segment, bytes } => {
            format!(
                "mended: segment {segment}: {bytes} bytes behind its last whole block were cut off"
            )
        }
        Repair::Sealed { segment, records } => {
            format!("mended: segment {segment}: it has a new table of its {records} intact blocks")
        }
        Repair::SetAside { segment, path } => {
            format!(
                "mended: segment {segment}: set aside as {}; remove that when it is not needed",
                path.display()
            )
        }
    }
}

fn repair_json(repair: &Repair) -> Value {
    match repair {
        Repair::Cut { segment, bytes } => {
            json!({"mended": "cut", "segment": segment, "bytes": bytes})
        }
        Repair::Sealed { segment, records } => {
            json!({"mended": "sealed", "segment": segment, "blocks": records})
        }
        Repair::SetAside { segment, path } => {
            json!({"mended": "set_aside", "segment": segment, "path": path.display().to_string()})
        }
    }
}

fn summary(checked: &Checked) -> String {
    let Checked { segments, foreign, unborn, blocks, intact, read_bytes, torn_bytes, damaged } =
        checked;
    let verdict = if *damaged == 0 { "clean".to_owned() } else { format!("{damaged} damaged") };
    let mut text = format!(
        "{verdict}: {segments} segments, {intact} of {blocks} blocks intact, {} read",
        show_bytes(*read_bytes)
    );
    let asides = [
        (*torn_bytes, "bytes of a torn end or being written"),
        (*foreign, "segments of another version left alone"),
        (*unborn, "segments only begun"),
    ];
    for (count, what) in asides {
        if 0 < count {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    text
}

fn checked_json(checked: &Checked) -> Value {
    json!({
        "clean": checked.damaged == 0,
        "damaged": checked.damaged,
        "segments": checked.segments,
        "segments_foreign": checked.foreign,
        "segments_unborn": checked.unborn,
        "blocks": checked.blocks,
        "blocks_intact": checked.intact,
        "read_bytes": checked.read_bytes,
        "torn_bytes": checked.torn_bytes,
    })
}
