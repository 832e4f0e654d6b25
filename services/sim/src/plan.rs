//! What is to be run: a trace, settings from a preset, a scenario file and the command line, faults, and sweeps over settings.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::fault::{Fault, FaultError};
use crate::report::{Report, simulate};
use crate::settings::{SettingError, Settings, key};
use crate::trace::{Format, Trace, TraceError};
use crate::world::Checking;

/// Most runs of one command.
const RUNS_MAX: usize = 64;
/// Longest scenario file.
const SCENARIO_BYTES_MAX: u64 = 1 << 20;

/// What is to be run. Later sources win: preset, scenario file, `set`.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The trace.
    pub trace: PathBuf,
    /// What the trace is; none looks.
    pub format: Option<Format>,
    /// Make days of conversations from the lengths of the trace.
    pub synthetic_days: bool,
    /// Name of a preset.
    pub preset: Option<String>,
    /// TOML file with `preset`, `faults` and a table `set`.
    pub scenario: Option<PathBuf>,
    /// `KEY=VALUE`, in turn.
    pub set: Vec<String>,
    /// `KEY=VALUE,VALUE`: one run for each combination.
    pub sweep: Vec<String>,
    /// As [`Fault::parse`] reads them.
    pub faults: Vec<String>,
    /// Whether to check everything after every event.
    pub is_checked: bool,
}

/// What ran.
#[derive(Clone, Debug)]
pub struct Runs {
    /// One for each combination of the sweeps, the last one's values next to each other.
    pub reports: Vec<Report>,
    /// The settings that were swept.
    pub axes: Vec<String>,
}

/// Why nothing ran.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A setting.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A fault.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// Something that was typed.
    #[error("{text} is no {what}")]
    Typed {
        /// What was typed.
        text: String,
        /// What was expected, with an example.
        what: &'static str,
    },
    /// The scenario file.
    #[error("{}: {what}", file.display())]
    Scenario {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// More combinations than can be looked at.
    #[error("the sweeps make {runs} runs, at most {RUNS_MAX} are made; sweep fewer values")]
    TooMany {
        /// Combinations.
        runs: usize,
    },
}

/// One swept setting.
struct Axis {
    name: String,
    values: Vec<String>,
}

impl Plan {
    /// Runs everything, one run after the other. `note` is told before each what is done.
    ///
    /// # Errors
    /// Before anything ran: the first thing that is wrong with the plan. A trace that needs settings (`requests`, `days`) is
    /// read again for each run that changes them.
    pub fn run(&self, note: &mut dyn FnMut(&str)) -> Result<Runs, PlanError> {
        let (settings, faults) = self.base()?;
        let axes = self.axes()?;
        let mut variants = vec![settings];
        for axis in &axes {
            let with = |settings: &Settings, value: &String| {
                let mut settings = settings.clone();
                settings.set(&axis.name, value).map(|()| settings)
            };
            let next: Result<Vec<_>, _> = variants
                .iter()
                .flat_map(|settings| axis.values.iter().map(move |value| with(settings, value)))
                .collect();
            variants = next?;
            if RUNS_MAX < variants.len() {
                return Err(PlanError::TooMany { runs: variants.len() });
            }
        }
        for settings in &variants {
            settings.check()?;
        }
        let checking = if self.is_checked { Checking::Full } else { Checking::Light };
        let format = self.format.map_or_else(|| guess(&self.trace), Ok)?;
        let mut reports = Vec::with_capacity(variants.len());
        let mut loaded: Option<(Settings, Trace)> = None;
        for (number, settings) in variants.iter().enumerate() {
            if loaded.as_ref().is_none_or(|(known, _)| !self.makes_same_trace(known, settings)) {
                let trace = Trace::load(&self.trace, format, settings)?;
                let trace = if self.synthetic_days { trace.days(settings) } else { trace };
                loaded = Some((settings.clone(), trace));
            }
            let (_, trace) = loaded.as_ref().expect("loaded above");
            note(&format!("run {} of {}: {}", number + 1, variants.len(), trace.label));
            reports.push(simulate((trace, trace.bound()), settings, &faults, checking)?);
        }
        Ok(Runs { reports, axes: axes.into_iter().map(|axis| axis.name).collect() })
    }

    fn makes_same_trace(&self, one: &Settings, other: &Settings) -> bool {
        let of = |settings: &Settings| {
            let Settings { requests, arrival_step_ms, .. } = *settings;
            let mut made = Settings { requests, arrival_step_ms, ..Settings::default() };
            if 0.0 < arrival_step_ms {
                made.seed = settings.seed;
            }
            if self.synthetic_days {
                let shape = settings.clone();
                made = Settings {
                    seed: shape.seed,
                    days: shape.days,
                    conversations_per_hour: shape.conversations_per_hour,
                    day_swing: shape.day_swing,
                    turns: shape.turns,
                    return_soon: shape.return_soon,
                    return_minutes: shape.return_minutes,
                    return_later: shape.return_later,
                    return_hours: shape.return_hours,
                    return_days: shape.return_days,
                    question_tokens: shape.question_tokens,
                    shared_prompts: shape.shared_prompts,
                    shared_tokens: shape.shared_tokens,
                    ..made
                };
            }
            made
        };
        of(one) == of(other)
    }

    fn base(&self) -> Result<(Settings, Vec<Fault>), PlanError> {
        let mut settings = Settings::default();
        let mut faults = Vec::new();
        if let Some(preset) = &self.preset {
            settings.apply(preset)?;
        }
        if let Some(file) = &self.scenario {
            faults = scenario(file, &mut settings)?;
        }
        for text in &self.set {
            let (name, value) = pair(text)?;
            settings.set(name, value)?;
        }
        for text in &self.faults {
            faults.push(Fault::parse(text)?);
        }
        Ok((settings, faults))
    }

    fn axes(&self) -> Result<Vec<Axis>, PlanError> {
        let axis = |text: &String| {
            let (name, values) = pair(text)?;
            key(name)?;
            let values = values.split(',').map(str::to_owned).collect();
            Ok(Axis { name: name.to_owned(), values })
        };
        self.sweep.iter().map(axis).collect()
    }
}

fn pair(text: &str) -> Result<(&str, &str), PlanError> {
    let what = "setting with its value, such as host-gib=64";
    text.split_once('=').ok_or_else(|| PlanError::Typed { text: text.to_owned(), what })
}

/// Looks at the name and the first line of a trace.
fn guess(file: &Path) -> Result<Format, TraceError> {
    if file.extension().is_some_and(|end| end == "csv") {
        return Ok(Format::Azure);
    }
    let failed = |source| TraceError::File { file: file.to_owned(), source };
    let mut first = Vec::new();
    let mut reader = BufReader::new(File::open(file).map_err(failed)?).take(4_096);
    reader.read_until(b'\n', &mut first).map_err(failed)?;
    let is_capture = String::from_utf8_lossy(&first).contains("kvasir-capture");
    Ok(if is_capture { Format::Capture } else { Format::Mooncake })
}

/// Reads a scenario file into the settings; its faults.
fn scenario(file: &Path, settings: &mut Settings) -> Result<Vec<Fault>, PlanError> {
    let wrong = |what: String| PlanError::Scenario { file: file.to_owned(), what };
    let mut text = String::new();
    let opened = File::open(file).map_err(|error| wrong(error.to_string()))?;
    opened
        .take(SCENARIO_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|error| wrong(error.to_string()))?;
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| wrong(error.message().to_owned()))?;
    let mut faults = Vec::new();
    if let Some(preset) = table.get("preset") {
        let preset = preset.as_str().ok_or_else(|| wrong("preset is a text".to_owned()))?;
        settings.apply(preset)?;
    }
    for (name, value) in &table {
        match (name.as_str(), value) {
            ("preset", _) => {}
            ("faults", toml::Value::Array(list)) => {
                for fault in list {
                    let text =
                        fault.as_str().ok_or_else(|| wrong("faults are texts".to_owned()))?;
                    faults.push(Fault::parse(text)?);
                }
            }
            ("set", toml::Value::Table(values)) => {
                for (name, value) in values {
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    settings.set(name, &text)?;
                }
            }
            _ => {
                let known = "a scenario has preset = \"…\", faults = [\"…\"] and a table [set]";
                return Err(wrong(format!("{name} is not known: {known}")));
            }
        }
    }
    Ok(faults)
}

#[cfg(test)]
mod tests;
