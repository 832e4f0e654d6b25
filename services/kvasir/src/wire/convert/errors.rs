//! Why a request was not served, as it travels inside events.

use shared::ServeError;

use super::{WireError, required, text_from_wire, text_to_wire, v1};
use v1::serve_error::Kind;

/// The words a role or stage is known by in [`ServeError`]; it holds static text. An unknown word becomes the last one.
const ROLES: [&str; 6] = ["decode", "prefill", "kvstore", "router", "placement", "suitable"];
const STAGES: [&str; 9] = [
    "queued",
    "preempted",
    "starting",
    "compiling its grammar",
    "computing its prompt",
    "decoding",
    "leaving",
    "waiting for its worker",
    "in work",
];

impl From<ServeError> for v1::ServeError {
    fn from(error: ServeError) -> Self {
        let kind = match error {
            ServeError::Overloaded { waiting, waiting_max, retry_after_ms } => {
                let (waiting, waiting_max) = (count(waiting), count(waiting_max));
                Kind::Overloaded(v1::Overloaded { waiting, waiting_max, retry_after_ms })
            }
            ServeError::OverShare { waiting, waiting_max, retry_after_ms } => {
                let (waiting, waiting_max) = (count(waiting), count(waiting_max));
                Kind::OverShare(v1::Overloaded { waiting, waiting_max, retry_after_ms })
            }
            ServeError::TooLong { tokens, tokens_max } => {
                let (tokens, tokens_max) = (count(tokens), count(tokens_max));
                Kind::TooLong(v1::TooLong { tokens, tokens_max })
            }
            ServeError::NeverFits { slots, slots_max } => {
                let (slots, slots_max) = (count(slots), count(slots_max));
                Kind::NeverFits(v1::NeverFits { slots, slots_max })
            }
            ServeError::Unsupported { what } => Kind::Unsupported(text_to_wire(&what)),
            ServeError::GrammarRefused { what } => Kind::GrammarRefused(text_to_wire(&what)),
            ServeError::GrammarFailed { what } => Kind::GrammarFailed(text_to_wire(&what)),
            ServeError::NamesDiffer { index } => Kind::NamesDiffer(count(index)),
            ServeError::WorkerLost { worker } => Kind::WorkerLost(worker.into()),
            ServeError::NoWorker { role } => Kind::NoWorker(role.to_owned()),
            ServeError::DeadlineExceeded { stage } => Kind::DeadlineExceeded(stage.to_owned()),
            ServeError::Draining => Kind::Draining(v1::Empty {}),
            ServeError::Internal { message } => Kind::Internal(text_to_wire(&message)),
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<v1::ServeError> for ServeError {
    type Error = WireError;

    fn try_from(message: v1::ServeError) -> Result<Self, WireError> {
        Ok(match required(message.kind, "failed.kind")? {
            Kind::Overloaded(it) => Self::Overloaded {
                waiting: size(it.waiting),
                waiting_max: size(it.waiting_max),
                retry_after_ms: it.retry_after_ms,
            },
            Kind::OverShare(it) => Self::OverShare {
                waiting: size(it.waiting),
                waiting_max: size(it.waiting_max),
                retry_after_ms: it.retry_after_ms,
            },
            Kind::TooLong(it) => {
                Self::TooLong { tokens: size(it.tokens), tokens_max: size(it.tokens_max) }
            }
            Kind::NeverFits(it) => {
                Self::NeverFits { slots: size(it.slots), slots_max: size(it.slots_max) }
            }
            Kind::Unsupported(what) => {
                Self::Unsupported { what: text_from_wire(what, "failed.unsupported")? }
            }
            Kind::GrammarRefused(what) => {
                Self::GrammarRefused { what: text_from_wire(what, "failed.grammar_refused")? }
            }
            Kind::GrammarFailed(what) => {
                Self::GrammarFailed { what: text_from_wire(what, "failed.grammar_failed")? }
            }
            Kind::NamesDiffer(index) => Self::NamesDiffer { index: size(index) },
            Kind::WorkerLost(worker) => Self::WorkerLost { worker: worker.try_into()? },
            Kind::NoWorker(role) => Self::NoWorker { role: known(&role, &ROLES) },
            Kind::DeadlineExceeded(stage) => {
                Self::DeadlineExceeded { stage: known(&stage, &STAGES) }
            }
            Kind::Draining(_) => Self::Draining,
            Kind::Internal(text) => {
                Self::Internal { message: text_from_wire(text, "failed.internal")? }
            }
        })
    }
}

fn known(word: &str, words: &[&'static str]) -> &'static str {
    let last = words.last().expect("the lists of words are not empty");
    words.iter().find(|known| **known == word).unwrap_or(last)
}

fn count(value: usize) -> u64 {
    u64::try_from(value).expect("usize has at most 64 bits")
}

fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
