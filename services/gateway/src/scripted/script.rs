//! The file format of the scripted engine.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use shared::{ServeError, StartReport, WindowSource, WorkerRank};

use crate::vocabulary::VocabularyError;

/// Why a script cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The file is missing or not readable.
    #[error("cannot read the script {path}: {source}")]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The text is not a script.
    #[error("the script is malformed: {0}")]
    Malformed(String),
    /// The tokenizer that turns texts into tokens cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] VocabularyError),
    /// The system gave no thread.
    #[error("cannot start the scripted engine's thread: {0}")]
    Thread(std::io::Error),
}

/// Answers for prompts. The first answer that matches a prompt is given; a prompt without one is refused.
///
/// ```json
/// {"answers": [
///   {"match": "capital of France", "text": "</think>Paris."},
///   {"match": [0, 4043], "tokens": [17, 18], "delay_ms": 5, "then": "length"},
///   {"match": "*", "text": "ha", "repeat": 3, "fail_after": 2, "fail": "worker_lost", "fail_times": 1}
/// ]}
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// In order of precedence.
    pub answers: Vec<ScriptedAnswer>,
}

/// One answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedAnswer {
    /// Which prompts it is for.
    pub r#match: Pattern,
    /// The answer as text; control tokens are spelled out. Exclusive with `tokens`.
    pub text: Option<String>,
    /// The answer as token ids. Exclusive with `text`.
    pub tokens: Option<Vec<u32>>,
    /// How often text or tokens are said. Default 1.
    #[serde(default = "once")]
    pub repeat: u32,
    /// Milliseconds before each token. Default 0.
    #[serde(default)]
    pub delay_ms: u64,
    /// The report before the first token. Default: a cold, exact start.
    #[serde(default)]
    pub started: Started,
    /// Fail after so many tokens; 0 refuses the request without a report.
    pub fail_after: Option<u32>,
    /// How to fail. Default `internal`.
    #[serde(default)]
    pub fail: Failure,
    /// How many requests fail before later ones succeed. Absent: all fail.
    pub fail_times: Option<u32>,
    /// What follows the last token. Default `stop`.
    #[serde(default)]
    pub then: Ending,
}

/// Which prompts an answer is for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Pattern {
    /// `*` for every prompt, otherwise a part of the rendered prompt, control tokens spelled out.
    Text(String),
    /// The ids that the prompt begins with.
    Tokens(Vec<u32>),
}

/// What follows the last token of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The request's stop token, unless it was said already, and the end.
    #[default]
    Stop,
    /// The end, as if the bound of the answer had been reached.
    Length,
    /// Nothing: the request stays open until it is cancelled.
    Hold,
}

/// How a request fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// A fault of the worker.
    #[default]
    Internal,
    /// The worker goes away.
    WorkerLost,
    /// The worker's queue is full; the client should wait 2 s.
    Overloaded,
    /// The tenant is over its share.
    OverShare,
    /// The worker is shutting down.
    Draining,
    /// Prompt and answer do not fit.
    TooLong,
    /// The worker has too few cache blocks.
    NeverFits,
    /// Names differ.
    NamesDiffer,
    /// The deadline passed.
    DeadlineExceeded,
    /// No prefill worker is there.
    NoWorker,
}

/// The report of a start, as [`StartReport`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Started {
    /// Prompt tokens found cached.
    pub cached_tokens: u32,
    /// Rows recomputed to rebuild windows.
    pub replayed_tokens: u32,
    /// Where the windows came from.
    pub window_source: Windows,
    /// Whether the answer equals a cold run.
    pub exact: bool,
    /// Bytes read from other memory.
    pub bytes_fetched: u64,
}

/// Where the windows came from, as [`WindowSource`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Windows {
    /// There was no start above 0.
    Cold,
    /// A window object.
    Object,
    /// An earlier window object, and recomputation.
    Recomputed,
    /// A replay of so many rows.
    Replayed(u32),
}

impl Default for Started {
    /// A cold, exact start.
    fn default() -> Self {
        Self {
            cached_tokens: 0,
            replayed_tokens: 0,
            window_source: Windows::Cold,
            exact: true,
            bytes_fetched: 0,
        }
    }
}

impl Script {
    /// Reads a script file. Blocks.
    ///
    /// # Errors
    /// When the file cannot be read or is not a script.
    pub fn read(path: &Path) -> Result<Self, ScriptError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScriptError::Unreadable { path: path.to_path_buf(), source })?;
        Self::parse(&text)
    }

    /// Reads a script from its text.
    ///
    /// # Errors
    /// When the text is not a script.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let script: Self = serde_json::from_str(text)
            .map_err(|error| ScriptError::Malformed(error.to_string()))?;
        let doubled = script.answers.iter().position(|a| a.text.is_some() && a.tokens.is_some());
        if let Some(index) = doubled {
            let what = format!("answers[{index}] has both text and tokens; leave one out");
            return Err(ScriptError::Malformed(what));
        }
        Ok(script)
    }
}

impl Failure {
    pub(super) fn error(self, worker: WorkerRank) -> ServeError {
        match self {
            Self::Internal => ServeError::Internal { message: "the script says so".into() },
            Self::WorkerLost => ServeError::WorkerLost { worker },
            Self::OverShare => {
                ServeError::OverShare { waiting: 1, waiting_max: 2, retry_after_ms: 2_000 }
            }
            Self::Overloaded => {
                ServeError::Overloaded { waiting: 1, waiting_max: 1, retry_after_ms: 2_000 }
            }
            Self::Draining => ServeError::Draining,
            Self::TooLong => ServeError::TooLong { tokens: 2, tokens_max: 1 },
            Self::NeverFits => ServeError::NeverFits { slots: 2, slots_max: 1 },
            Self::NamesDiffer => ServeError::NamesDiffer { index: 0 },
            Self::DeadlineExceeded => ServeError::DeadlineExceeded { stage: "queued" },
            Self::NoWorker => ServeError::NoWorker { role: "prefill" },
        }
    }
}

impl Started {
    pub(super) fn report(self) -> StartReport {
        StartReport {
            cached_tokens: self.cached_tokens,
            replayed_tokens: self.replayed_tokens,
            window_source: match self.window_source {
                Windows::Cold => WindowSource::Cold,
                Windows::Object => WindowSource::Object,
                Windows::Recomputed => WindowSource::Recomputed,
                Windows::Replayed(rows) => WindowSource::Replayed(rows),
            },
            exact: self.exact,
            bytes_fetched: self.bytes_fetched,
            prefill: None,
        }
    }
}

fn once() -> u32 {
    1
}

#[cfg(test)]
mod tests {
    use super::{Ending, Pattern, Script, Windows};

    #[test]
    fn a_script_has_defaults_and_refuses_unknown_keys() {
        let script = Script::parse(r#"{"answers": [{"match": "*", "text": "hi"}]}"#).unwrap();
        let answer = &script.answers[0];
        assert_eq!(answer.r#match, Pattern::Text("*".into()));
        assert_eq!((answer.repeat, answer.delay_ms, answer.then), (1, 0, Ending::Stop));
        assert_eq!(answer.started.window_source, Windows::Cold);
        for bad in [
            "",
            "{}",
            r#"{"answers": [{"text": "hi"}]}"#,
            r#"{"answers": [{"match": "*", "txt": "hi"}]}"#,
            r#"{"answers": [{"match": "*", "text": "hi", "tokens": [1]}]}"#,
            r#"{"answers": [{"match": "*", "started": {"cashed_tokens": 1}}]}"#,
        ] {
            assert!(Script::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn all_forms_of_the_format_parse() {
        let text = r#"{"answers": [
            {"match": [0, 5], "tokens": [1, 2], "repeat": 2, "delay_ms": 3, "fail_after": 1,
             "fail": "worker_lost", "fail_times": 2, "then": "hold",
             "started": {"cached_tokens": 128, "window_source": {"replayed": 128}, "exact": false}},
            {"match": "x", "started": {"window_source": "object"}, "then": "length"}
        ]}"#;
        let script = Script::parse(text).unwrap();
        assert_eq!(script.answers[0].r#match, Pattern::Tokens(vec![0, 5]));
        assert_eq!(script.answers[0].started.window_source, Windows::Replayed(128));
        assert_eq!(script.answers[1].started.window_source, Windows::Object);
    }
}
