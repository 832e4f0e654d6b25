//! Parity of whole golden sets. `tiny-w` and the seedling lie in the repository; the others run where `shared` is there.

use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, Part};
use crate::golden::GoldenSet;
use crate::model::{Arithmetic, Engine, EngineOptions};
use crate::parity::{Outcome, run_case};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs every case of `cases` against `checkpoint`; at least `passed_min` must be of a kind this engine computes.
fn check(cases: &Path, checkpoint: &Path, arithmetic: Arithmetic, passed_min: usize) {
    let name = cases.file_name().unwrap().to_string_lossy();
    let checkpoint = Checkpoint::open(checkpoint).unwrap();
    let options = EngineOptions { arithmetic, part: Part::Whole, rollback: 12 };
    let engine = Engine::load(&checkpoint, &options, &mut |_| ()).unwrap();
    let set = GoldenSet::open(cases).unwrap();
    let reports: Vec<_> = set
        .cases()
        .iter()
        .map(|case| run_case(&engine, arithmetic, &name, case).unwrap())
        .collect();
    let count = |outcome| reports.iter().filter(|report| report.outcome == outcome).count();
    let failed: Vec<_> =
        reports.iter().filter(|report| report.outcome == Outcome::Failed).collect();
    assert!(failed.is_empty(), "{name} {arithmetic:?}: {failed:#?}");
    assert!(passed_min <= count(Outcome::Passed), "{name}: only {} ran", count(Outcome::Passed));
}

fn golden(name: &str, arithmetic: Arithmetic, passed_min: usize) {
    let here = root().join("tests/golden").join(name);
    let shared = root().join("../shared/golden").join(name);
    if !here.exists() && !shared.exists() {
        // Only `tiny-w` lies in the repository.
        assert_ne!(name, "tiny-w");
        println!("skipped: {} is not here", shared.display());
        return;
    }
    let folder = if here.exists() { here } else { shared };
    check(&folder, &folder.join("checkpoint"), arithmetic, passed_min);
}

#[test]
fn tiny_meets_the_reference_exactly() {
    golden("tiny", Arithmetic::Exact, 22);
}

#[test]
fn tiny_b_meets_the_reference_exactly() {
    golden("tiny-b", Arithmetic::Exact, 21);
}

#[test]
fn tiny_w_meets_the_reference_exactly() {
    golden("tiny-w", Arithmetic::Exact, 18);
}

#[test]
fn tiny_is_within_the_tolerances_in_float32() {
    golden("tiny", Arithmetic::Fast, 22);
}

#[test]
fn tiny_b_is_within_the_tolerances_in_float32() {
    golden("tiny-b", Arithmetic::Fast, 21);
}

#[test]
fn tiny_w_is_within_the_tolerances_in_float32() {
    golden("tiny-w", Arithmetic::Fast, 18);
}

#[test]
fn the_seedling_meets_the_reference_in_both_arithmetics() {
    let folder = root().join("deploy/models/seedling");
    check(&folder.join("golden"), &folder, Arithmetic::Exact, 27);
    check(&folder.join("golden"), &folder, Arithmetic::Fast, 27);
}
