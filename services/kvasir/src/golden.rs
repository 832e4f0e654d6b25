//! `kvasir golden`: prints how the engine compares with reference outputs. The comparison itself is the engine's.
//!
//! Kinds of a later issue are listed as skipped, never left out.

use std::path::PathBuf;

use anyhow::bail;
use engine::{
    CaseReport, Checkpoint, Engine, EngineOptions, GoldenCase, GoldenSet, Outcome, Part, run_case,
};
use serde_json::json;

use crate::cli::GoldenArgs;
use crate::config::ROLLBACK;
use crate::console::Console;

/// Compares every case of a folder; true when none failed. Blocks the calling thread for the whole computation.
///
/// # Errors
/// When the folder holds no cases, or the checkpoint cannot be loaded.
pub(crate) fn run(args: &GoldenArgs, console: &mut Console) -> anyhow::Result<bool> {
    let set = GoldenSet::open(&args.dir)?;
    if set.cases().is_empty() {
        bail!("{} lists no cases; give a folder of golden data", args.dir.display());
    }
    let arithmetic = args.arith.into();
    let options = EngineOptions { arithmetic, part: Part::Whole, rollback: ROLLBACK };
    let engine = Engine::load(&Checkpoint::open(&checkpoint(args)?)?, &options, &mut |_| ())?;
    let set_name = set.section("set").and_then(|name| name.as_str()).unwrap_or_default();
    let mut reports = Vec::with_capacity(set.cases().len());
    for case in set.cases() {
        let report = run_case(&engine, arithmetic, set_name, case)
            .unwrap_or_else(|error| unreadable(case, error.to_string()));
        if !args.json {
            let word = word(report.outcome);
            console.line(&format!("{:<16} {word:<8} {}", report.name, report.detail))?;
        }
        reports.push(report);
    }
    let count = |outcome| reports.iter().filter(|report| report.outcome == outcome).count();
    let (passed, failed) = (count(Outcome::Passed), count(Outcome::Failed));
    let skipped = count(Outcome::Skipped);
    if args.json {
        let cases: Vec<_> = set.cases().iter().zip(&reports).map(case_json).collect();
        let report =
            json!({"cases": cases, "passed": passed, "failed": failed, "skipped": skipped});
        console.line(&report.to_string())?;
    } else {
        let skipped = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
        console.line(&format!("{passed} passed, {failed} failed{skipped}"))?;
    }
    Ok(failed == 0)
}

fn unreadable(case: &GoldenCase, detail: String) -> CaseReport {
    CaseReport { name: case.name.clone(), outcome: Outcome::Failed, detail }
}

fn case_json((case, report): (&GoldenCase, &CaseReport)) -> serde_json::Value {
    let status = word(report.outcome);
    json!({"name": case.name, "kind": case.kind, "status": status, "detail": report.detail})
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "passed",
        Outcome::Failed => "FAILED",
        Outcome::Skipped => "skipped",
    }
}

/// The checkpoint's folder: the one named, or `checkpoint` in the set.
fn checkpoint(args: &GoldenArgs) -> anyhow::Result<PathBuf> {
    let checkpoint = args.checkpoint.clone().unwrap_or_else(|| args.dir.join("checkpoint"));
    if !checkpoint.is_dir() {
        bail!("{} is no folder; give the model's with --checkpoint", checkpoint.display());
    }
    Ok(checkpoint)
}
