//! `kvasir config`: every setting with its value and where it comes from, and whether a file can be used.
//!
//! The defaults are read from the example file, which a test holds equal to them.

use std::fs;
use std::path::Path;

use anyhow::Context;
use toml::{Table, Value};

use super::Config;
use crate::cli::{ConfigAction, ConfigArgs};
use crate::console::Console;

/// Every setting at its default.
const DEFAULTS: &str = include_str!("../../../../deploy/kvasir.example.toml");
/// Settings whose default is that nothing is set.
const UNSET: [&str; 8] = [
    "server.model_name",
    "server.cluster_secret_file",
    "cluster.model",
    "cluster.tls",
    "telemetry.otlp_endpoint",
    "prefill.replay_rows",
    "decode.replay_rows",
    "router.cost.replay_rows",
];

/// Shows or checks a file.
///
/// # Errors
/// When the file cannot be read or used; the text names the place.
pub(crate) fn run(args: &ConfigArgs, console: &mut Console) -> anyhow::Result<()> {
    let given = match &args.config {
        Some(path) => {
            // Says what is wrong before anything is shown.
            Config::read(path)?;
            let text = fs::read_to_string(path)
                .with_context(|| format!("{} cannot be read", path.display()))?;
            text.parse().context("it is not TOML")?
        }
        None => Table::new(),
    };
    if args.action == Some(ConfigAction::Check) {
        let file = args.config.as_deref().unwrap_or_else(|| Path::new("the defaults"));
        console.line(&format!("{} can be used", file.display()))?;
        return Ok(());
    }
    let origin = args.config.as_ref().map_or_else(String::new, |path| path.display().to_string());
    for line in lines(&given, &origin)? {
        console.line(&line)?;
    }
    Ok(())
}

/// One line per setting, sorted: key, value, origin.
fn lines(given: &Table, origin: &str) -> anyhow::Result<Vec<String>> {
    let defaults: Table = DEFAULTS.parse().context("the defaults are not TOML")?;
    let (mut known, mut set) = (Vec::new(), Vec::new());
    flatten("", &defaults, &mut known);
    flatten("", given, &mut set);
    let mut lines = Vec::new();
    for (key, value) in known {
        if !set.iter().any(|(other, _)| *other == key) {
            lines.push(format!("{key} = {value}  # default"));
        }
    }
    lines.extend(set.iter().map(|(key, value)| format!("{key} = {value}  # {origin}")));
    let unset = UNSET.iter().filter(|key| !set.iter().any(|(other, _)| other == *key));
    lines.extend(unset.map(|key| format!("# {key} is not set")));
    lines.sort();
    Ok(lines)
}

/// Puts the values of all tables below one into a list, each under its whole key.
fn flatten(prefix: &str, table: &Table, into: &mut Vec<(String, String)>) {
    for (key, value) in table {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            Value::Table(inner) => flatten(&key, inner, into),
            Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_table) => {
                for item in items.iter().filter_map(Value::as_table) {
                    let name = item.get("name").and_then(Value::as_str).unwrap_or("?");
                    flatten(&format!("{key}[{name}]"), item, into);
                }
            }
            _ => into.push((key, value.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::lines;

    #[test]
    fn every_value_is_shown_with_its_origin() {
        let given = "[server]\narith = \"exact\"\n[router.cost]\nhandoff_us = 7\n\
                     [[cluster.member]]\nname = \"d\"\nid = 3\n";
        let shown = lines(&given.parse().unwrap(), "a.toml").unwrap();
        for line in [
            "server.arith = \"exact\"  # a.toml",
            "router.cost.handoff_us = 7  # a.toml",
            "cluster.member[d].id = 3  # a.toml",
            "server.drain_seconds = 30  # default",
            "gateway.cors_origins = []  # default",
            "store.queue_max = 1024  # default",
            "# cluster.tls is not set",
        ] {
            assert!(shown.iter().any(|other| other == line), "{line}: {shown:#?}");
        }
        let arith = shown.iter().filter(|line| line.starts_with("server.arith ")).count();
        assert_eq!(arith, 1, "a value has one origin");
    }
}
