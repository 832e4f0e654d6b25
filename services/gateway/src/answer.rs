//! Collects the events of one answer: what became visible, when, and what it cost.

use std::sync::Arc;

use shared::{Clock, DecodeEvent, FinishReason, ServeError, StartReport, Timestamp, TokenId};

use crate::metrics::{Metrics, Outcome};
use crate::output::{Delta, OutputParser, Progress};
use crate::prompt::Prepared;
use crate::vocabulary::Vocabulary;

/// What one event changed.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// The answer goes on.
    Shown(Delta),
    /// The answer is complete; the worker is not needed any more.
    Ended(Delta, FinishReason),
    /// The answer cannot be completed.
    Failed(ServeError),
}

/// Tokens and times of an answer, for the client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bill {
    pub(crate) prompt_tokens: u32,
    pub(crate) completion_tokens: u32,
    pub(crate) reasoning_tokens: u32,
    /// How the request started; none when no worker said so.
    pub(crate) start: Option<StartReport>,
    /// From the request's arrival to its first token, in milliseconds.
    pub(crate) ttft_ms: f64,
}

/// One answer in the making.
pub(crate) struct Answer {
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    parser: OutputParser,
    end_of_answer: TokenId,
    arrived: Timestamp,
    first_token: Option<Timestamp>,
    last_token: Timestamp,
    prompt_tokens: u32,
    completion_tokens: u32,
    start: Option<StartReport>,
}

impl Answer {
    /// The answer to a request that arrived at `arrived`.
    pub(crate) fn new(
        prepared: &Prepared,
        vocabulary: &Arc<Vocabulary>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        arrived: Timestamp,
    ) -> Self {
        Self {
            clock,
            metrics,
            parser: OutputParser::new(Arc::clone(vocabulary), prepared.start, &prepared.stops),
            end_of_answer: vocabulary.end_of_answer(),
            arrived,
            first_token: None,
            last_token: arrived,
            prompt_tokens: prepared.prompt_tokens,
            completion_tokens: 0,
            start: None,
        }
    }

    /// Takes the next event. Not to be called after the end.
    pub(crate) fn take(&mut self, event: DecodeEvent) -> Step {
        let mut delta = Delta::default();
        match event {
            DecodeEvent::Started(report) => self.start = Some(self.merged(report)),
            DecodeEvent::Token(id) => {
                self.count_token();
                if id != self.end_of_answer
                    && self.parser.push(id, &mut delta) == Progress::StopString
                {
                    return Step::Ended(delta, FinishReason::Stop);
                }
            }
            DecodeEvent::Finished(reason) => {
                self.parser.finish(&mut delta);
                return Step::Ended(delta, reason);
            }
            DecodeEvent::Failed(error) => return Step::Failed(error),
        }
        Step::Shown(delta)
    }

    /// The report of a worker that goes on with tokens of another one says little about how the request started; whether
    /// its own tokens are exact counts for the whole answer.
    fn merged(&self, report: StartReport) -> StartReport {
        match self.start {
            Some(first) if self.first_token.is_some() => {
                StartReport { exact: first.exact && report.exact, ..first }
            }
            Some(_) | None => report,
        }
    }

    fn count_token(&mut self) {
        let now = self.clock.now();
        match self.first_token {
            None => {
                self.first_token = Some(now);
                self.metrics.first_token(now.since(self.arrived));
                if let Some(start) = &self.start {
                    self.metrics.started(self.prompt_tokens, start);
                }
            }
            Some(_) => self.metrics.next_token(now.since(self.last_token)),
        }
        self.last_token = now;
        self.completion_tokens += 1;
        self.metrics.output_token();
    }

    /// What the answer cost so far.
    pub(crate) fn bill(&self) -> Bill {
        let first = self.first_token.unwrap_or(self.last_token);
        Bill {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            reasoning_tokens: self.parser.reasoning_tokens(),
            start: self.start,
            ttft_ms: first.since(self.arrived).as_secs_f64() * 1_000.0,
        }
    }
}

/// How a completed answer is counted.
pub(crate) fn outcome_of(reason: FinishReason) -> Outcome {
    match reason {
        FinishReason::Stop => Outcome::Stop,
        FinishReason::Length => Outcome::Length,
    }
}
