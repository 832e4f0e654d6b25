//! Parity with reference outputs: runs one golden case and says how it compares.
//!
//! What is compared and how closely is fixed by the tolerance table of shared/golden/README.md: the exact arithmetic
//! meets logits within 1e-4 and every stored byte, list and id; the fast one meets the float32 rows of the table, block by
//! block and for whole prefills. For decode steps and replays in float32 the table has no row; their bounds are wider
//! (`runner.rs`) and a smoke test only.
//!
//! Start reading at [`run_case`].

mod blocks;
mod compare;
mod replay;
mod runner;
mod traces;

use crate::golden::{GoldenCase, GoldenError};
use crate::model::{Arithmetic, Engine};
use compare::Findings;
use runner::Runner;

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Within the tolerances.
    Passed,
    /// Outside.
    Failed,
    /// Of a kind this engine does not compute.
    Skipped,
}

/// What one case showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseReport {
    /// The case.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// What was measured, or what is wrong, in one line.
    pub detail: String,
}

/// Runs one case of `set` (the name in its index, which selects the tolerances of the fast arithmetic).
///
/// # Errors
/// When the case's inputs or tensors cannot be read.
pub fn run_case(
    engine: &Engine,
    arithmetic: Arithmetic,
    set: &str,
    case: &GoldenCase,
) -> Result<CaseReport, GoldenError> {
    let mut runner = Runner { engine, arithmetic, set, findings: Findings::default() };
    let known = match case.kind.as_str() {
        "prefill" => runner.prefill(case).map(|()| true),
        "decode" => runner.decode(case).map(|()| true),
        "greedy" => runner.greedy(case).map(|()| true),
        "trace" | "lists" if arithmetic == Arithmetic::Exact => runner.traces(case).map(|()| true),
        "trace" => runner.blocks(case).map(|()| true),
        "lists" => runner.lists_fast(case).map(|()| true),
        "replay" => runner.replay(case).map(|()| true),
        _ => Ok(false),
    }?;
    let report = |outcome, detail| CaseReport { name: case.name.clone(), outcome, detail };
    if !known {
        let detail = format!("{} cases are not computed by this engine yet", case.kind);
        return Ok(report(Outcome::Skipped, detail));
    }
    let (passed, detail) = runner.findings.finish();
    Ok(report(if passed { Outcome::Passed } else { Outcome::Failed }, detail))
}
