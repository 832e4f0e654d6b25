use std::path::{Path, PathBuf};

use super::{Plan, PlanError};
use crate::Format;

/// A folder with a trace of two requests and whatever else a test writes.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let text = "{\"timestamp\":0,\"input_length\":600,\"output_length\":5,\"hash_ids\":[1,2]}\n\
                {\"timestamp\":900,\"input_length\":600,\"output_length\":5,\"hash_ids\":[1,3]}\n";
    std::fs::write(&trace, text).unwrap();
    (folder, trace)
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

fn error(plan: &Plan) -> String {
    let error = plan.run(&mut |_| ()).unwrap_err().to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

#[test]
fn sweeps_make_all_combinations_the_last_one_fastest() {
    let (_folder, trace) = folder();
    let sweep = texts(&["decode=1,2", "host-gib=0.5,1,2"]);
    let mut notes = 0;
    let plan = Plan { trace, sweep, is_checked: true, ..Plan::default() };
    let runs = plan.run(&mut |_| notes += 1).unwrap();
    let found: Vec<_> = runs
        .reports
        .iter()
        .map(|report| (report.setting("decode").unwrap(), report.setting("host-gib").unwrap()))
        .collect();
    let expected = [("1", "0.5"), ("1", "1"), ("1", "2"), ("2", "0.5"), ("2", "1"), ("2", "2")];
    assert_eq!((found, notes), (expected.to_vec(), 6));
    assert_eq!(runs.axes, ["decode", "host-gib"]);
    assert!(runs.reports.iter().all(|report| report.value("finished") == Some(2.0)));
}

#[test]
fn a_scenario_file_gives_settings_and_faults_and_options_win() {
    let (folder, trace) = folder();
    let scenario = folder.path().join("scenario.toml");
    let text = "preset = \"aggregated-8\"\nfaults = [\"kill:decode-0@1+1\"]\n[set]\nstores = 1\nspeed = 2.5\n";
    std::fs::write(&scenario, text).unwrap();
    let set = texts(&["stores=2"]);
    let faults = texts(&["partition:store-1@1+1"]);
    let plan = Plan { trace, scenario: Some(scenario), set, faults, ..Plan::default() };
    let report = plan.run(&mut |_| ()).unwrap().reports.remove(0);
    let settings = ["decode", "stores", "speed"].map(|name| report.setting(name).unwrap());
    assert_eq!(settings, ["8", "2", "2.5"]);
    assert_eq!(report.faults, ["kill:decode-0@1+1", "partition:store-1@1+1"]);
}

#[test]
fn days_are_made_again_only_for_settings_that_shape_them() {
    let (_folder, trace) = folder();
    let sweep = texts(&["turns=1,3"]);
    let set = texts(&["days=0.2", "deadline-s=0"]);
    let plan = Plan { trace, synthetic_days: true, sweep, set, ..Plan::default() };
    let reports = plan.run(&mut |_| ()).unwrap().reports;
    assert!(reports[0].trace.starts_with("SYNTHETIC") && reports[0].trace != reports[1].trace);
    assert!(reports[0].value("requests") < reports[1].value("requests"));
}

#[test]
fn what_is_wrong_is_said_before_anything_runs() {
    let (folder, trace) = folder();
    let plan = Plan { trace, ..Plan::default() };
    let with = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        error(&plan)
    };
    assert!(with(&|plan| plan.set = texts(&["host-gib"])).contains("host-gib=64"));
    assert!(with(&|plan| plan.set = texts(&["hosts=1"])).contains("--list"));
    assert!(with(&|plan| plan.sweep = texts(&["decode=1,x"])).contains("decode = x"));
    assert!(with(&|plan| plan.faults = texts(&["kill:decode-9@1"])).contains("does not have"));
    assert!(with(&|plan| plan.faults = texts(&["kill"])).contains("write such as"));
    assert!(with(&|plan| plan.format = Some(Format::Azure)).contains("line 1"));
    assert!(with(&|plan| plan.trace = PathBuf::from("/no/such/file")).contains("/no/such/file"));
    let many = (1..=65).map(|count| count.to_string()).collect::<Vec<_>>().join(",");
    let plan_of_many = Plan { sweep: vec![format!("waiting={many}")], ..plan.clone() };
    assert!(matches!(plan_of_many.run(&mut |_| ()), Err(PlanError::TooMany { runs: 65 })));
    let scenario = |text: &str| {
        let file: &Path = &folder.path().join("s.toml");
        std::fs::write(file, text).unwrap();
        with(&|plan| plan.scenario = Some(file.to_owned()))
    };
    assert!(scenario("sets = 1\n").contains("[set]"));
    assert!(scenario("a = \n").contains("s.toml"));
    assert!(scenario("[set]\ndecode = 99\n").contains("decode = 99"));
}
