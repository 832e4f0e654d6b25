//! Settings of what is told about placements.

use std::path::PathBuf;

use anyhow::ensure;
use serde::Deserialize;

/// What is told about placements, to whom, and when an alarm is given.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExplainConfig {
    /// Whether every answer carries the header `x-kvasir-routing` with the reason of its placement. Default false: clients
    /// learn nothing about the cluster.
    pub evidence_header: bool,
    /// File with the key that gets a single request that header: it is asked for with the header `x-kvasir-admin-key: KEY`.
    /// At least 16 characters in one line, chmod 600, relative to the configuration's folder. Default "": there is no such key.
    pub admin_key_file: PathBuf,
    /// Starts over which predicted and actual cached tokens are compared for the alarm, 1 to 65,536. Default 256: some
    /// minutes of a small cluster, and enough that one odd request is not seen.
    pub prediction_starts: usize,
    /// Error of the prediction above which the alarm is given, in percent of what was predicted or had, whichever is more, 1 to
    /// 100; it ends at half of it. Default 20: evictions between the decision and the start make a few percent.
    pub prediction_error_percent_max: u32,
}

impl Default for ExplainConfig {
    /// The documented default of every field.
    fn default() -> Self {
        Self {
            evidence_header: false,
            admin_key_file: PathBuf::new(),
            prediction_starts: 256,
            prediction_error_percent_max: 20,
        }
    }
}

impl ExplainConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// Names the first one out of its range.
    pub fn check(&self) -> anyhow::Result<()> {
        let ranges = [
            ("prediction_starts", (1..=65_536).contains(&self.prediction_starts), "1..=65536"),
            (
                "prediction_error_percent_max",
                (1..=100).contains(&self.prediction_error_percent_max),
                "1..=100",
            ),
        ];
        for (field, holds, expected) in ranges {
            ensure!(holds, "explain.{field} is out of range: expected {expected}");
        }
        Ok(())
    }
}
