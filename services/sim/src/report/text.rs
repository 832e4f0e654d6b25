//! The report as a table for people and as JSON for programs.

use serde_json::{Map, Value, json as object};

use super::{Figure, Report};
use crate::settings::{KEYS, Key};

/// What every output says first.
const WHAT: &str = "simulated in virtual time with the shipped router, schedulers, planner, pools and retention; times are \
                    as good as the rates below";

/// Runs beside each other: figures down, runs across. `axes` are the settings that differ.
#[must_use]
pub fn table(reports: &[Report], axes: &[String]) -> Vec<String> {
    let Some(first) = reports.first() else { return Vec::new() };
    let mut lines = vec![format!("trace: {}", first.trace), WHAT.to_owned()];
    for fault in &first.faults {
        lines.push(format!("fault: {fault}"));
    }
    lines.push(String::new());
    lines.push("| figure | unit |".to_owned() + &cells(reports, |report| heading(report, axes)));
    lines.push(format!("|---|---|{}", "---|".repeat(reports.len())));
    for (row, figure) in first.figures.iter().enumerate() {
        let values = cells(reports, |report| shown(&report.figures[row]));
        lines.push(format!("| {} | {} |{values}", figure.name, figure.unit));
    }
    lines.push(String::new());
    lines.push("settings (* set by this run; the others are defaults):".to_owned());
    for (key, (name, value, is_default)) in KEYS.iter().zip(&first.settings) {
        if axes.contains(name) {
            continue;
        }
        let mark = if *is_default { " " } else { "*" };
        let source = source(key, *is_default);
        lines.push(format!("{mark} {name} = {value}: {}{source}", key.about));
    }
    lines
}

/// Where a value comes from. A value that was set has no source but who set it.
fn source(key: &Key, is_default: bool) -> String {
    if is_default { format!(" [{}]", key.source) } else { " [given]".to_owned() }
}

fn cells(reports: &[Report], cell: impl Fn(&Report) -> String) -> String {
    reports.iter().map(|report| format!(" {} |", cell(report))).collect()
}

/// What sets a run apart from the others.
pub(super) fn heading(report: &Report, axes: &[String]) -> String {
    let value = |axis: &String| format!("{axis} {}", report.setting(axis).unwrap_or("?"));
    let values: Vec<String> = axes.iter().map(value).collect();
    if values.is_empty() { "value".to_owned() } else { values.join(", ") }
}

/// A value for people: counts whole, everything else with three significant digits or more.
pub(super) fn shown(figure: &Figure) -> String {
    match figure.value {
        None => "–".to_owned(),
        Some(value) if figure.unit.is_empty() => format!("{value:.0}"),
        Some(value) if value.abs() < 10.0 => format!("{value:.2}"),
        Some(value) if value.abs() < 1_000.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

/// All runs as one JSON document.
#[must_use]
pub fn json(reports: &[Report], axes: &[String]) -> String {
    let run = |report: &Report| {
        let settings: Map<String, Value> = report
            .settings
            .iter()
            .map(|(name, value, _)| (name.clone(), Value::from(value.as_str())))
            .collect();
        let figures: Map<String, Value> = report
            .figures
            .iter()
            .map(|figure| (figure.name.to_owned(), figure.value.map_or(Value::Null, Value::from)))
            .collect();
        let parts: Vec<Value> = report
            .parts
            .iter()
            .map(|part| {
                object!({
                    "until_s": part.until_s,
                    "arrivals_per_s": part.arrivals,
                    "hit_percent": part.hit,
                    "ttft_ms": part.ttft_ms,
                })
            })
            .collect();
        object!({
            "trace": report.trace,
            "faults": report.faults,
            "settings": settings,
            "figures": figures,
            "parts": parts,
        })
    };
    let keys: Vec<Value> = KEYS
        .iter()
        .map(|key| {
            let name: String = key.name().collect();
            object!({ "name": name, "about": key.about, "source_of_default": key.source })
        })
        .collect();
    let units: Map<String, Value> = reports
        .first()
        .map(|report| {
            let unit = |figure: &Figure| {
                let about = object!({ "unit": figure.unit, "about": figure.about });
                (figure.name.to_owned(), about)
            };
            report.figures.iter().map(unit).collect()
        })
        .unwrap_or_default();
    let runs: Vec<Value> = reports.iter().map(run).collect();
    object!({
        "simulated": WHAT,
        "axes": axes,
        "settings": keys,
        "figures": units,
        "runs": runs,
    })
    .to_string()
}
