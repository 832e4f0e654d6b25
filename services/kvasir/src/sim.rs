//! `kvasir sim`: replays a trace in virtual time and says what it would have been like. Everything is done by the crate `sim`;
//! here are the options and the files.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use sim::{Format, KEYS, PRESETS, Plan};

use crate::console::Console;

/// What a trace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceFormat {
    /// JSON lines of Mooncake (FAST 2025).
    Mooncake,
    /// CSV of Azure (2023); no request shares anything.
    Azure,
    /// JSON lines of `[capture]`.
    Capture,
}

/// How much is checked on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckingArg {
    /// What costs nothing.
    Light,
    /// Every invariant after every event: for short traces.
    Full,
}

/// Options of `kvasir sim`.
#[derive(Clone, Debug, Args)]
pub(crate) struct SimArgs {
    /// The trace.
    #[arg(long, required_unless_present = "list")]
    pub(crate) trace: Option<PathBuf>,
    /// What the trace is; looks at the file when not given.
    #[arg(long)]
    pub(crate) format: Option<TraceFormat>,
    /// Make days of conversations from the lengths of the trace; labelled SYNTHETIC in every output.
    #[arg(long)]
    pub(crate) days: bool,
    /// Settings under a name; see --list.
    #[arg(long)]
    pub(crate) preset: Option<String>,
    /// TOML file with `preset`, `faults` and a table `set`.
    #[arg(long)]
    pub(crate) scenario: Option<PathBuf>,
    /// A setting, KEY=VALUE; see --list. Wins over preset and scenario.
    #[arg(long)]
    pub(crate) set: Vec<String>,
    /// One run for each value, KEY=VALUE,VALUE; several make all combinations, at most 64.
    #[arg(long)]
    pub(crate) sweep: Vec<String>,
    /// A fault: kill:decode-0@60+10, freeze:prefill-1@60+30, slow-disk:store-0@60x10, partition:store-0@60+30, partition:router-0@60+30; seconds.
    #[arg(long)]
    pub(crate) fault: Vec<String>,
    /// How much is checked on the way.
    #[arg(long, default_value = "light")]
    pub(crate) checking: CheckingArg,
    /// The result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with charts, complete in itself, to this file.
    #[arg(long)]
    pub(crate) html: Option<PathBuf>,
    /// Show all settings and presets, and run nothing.
    #[arg(long)]
    pub(crate) list: bool,
}

impl From<TraceFormat> for Format {
    fn from(format: TraceFormat) -> Self {
        match format {
            TraceFormat::Mooncake => Self::Mooncake,
            TraceFormat::Azure => Self::Azure,
            TraceFormat::Capture => Self::Capture,
        }
    }
}

/// Runs the simulations and prints them. Blocks the calling thread for the whole computation.
///
/// # Errors
/// When the trace, a setting or a fault cannot be used, or the page cannot be written.
pub(crate) fn run(args: &SimArgs, console: &mut Console) -> anyhow::Result<()> {
    if args.list {
        return list(console);
    }
    let plan = Plan {
        trace: args.trace.clone().context("name a trace with --trace")?,
        format: args.format.map(Format::from),
        synthetic_days: args.days,
        preset: args.preset.clone(),
        scenario: args.scenario.clone(),
        set: args.set.clone(),
        sweep: args.sweep.clone(),
        faults: args.fault.clone(),
        is_checked: args.checking == CheckingArg::Full,
    };
    let runs = plan.run(&mut |note| console.progress(note))?;
    if let Some(file) = &args.html {
        let page = sim::page(&runs.reports, &runs.axes);
        fs::write(file, page)
            .with_context(|| format!("{} cannot be written; name another file", file.display()))?;
    }
    if args.json {
        console.line(&sim::json(&runs.reports, &runs.axes))?;
        return Ok(());
    }
    for line in sim::table(&runs.reports, &runs.axes) {
        console.line(&line)?;
    }
    Ok(())
}

fn list(console: &mut Console) -> anyhow::Result<()> {
    let defaults: Vec<_> = sim::Settings::default().shown();
    for (key, (name, value, _)) in KEYS.iter().zip(defaults) {
        let range = key.range();
        console.line(&format!("{name} = {value} ({range}): {} [{}]", key.about, key.source))?;
    }
    for preset in PRESETS {
        console.line(&format!("preset {}: {}", preset.name, preset.about))?;
        for (name, value) in preset.values {
            console.line(&format!("  {name} = {value}"))?;
        }
    }
    Ok(())
}
