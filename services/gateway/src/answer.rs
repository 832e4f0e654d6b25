//! Collects the events of one answer: what became visible, when, and what it cost.

use std::sync::Arc;

use shared::{Clock, DecodeEvent, FinishReason, ServeError, StartReport, Timestamp, TokenId};

use crate::call::Call;
use crate::metrics::{Metrics, Outcome};
use crate::output::{Delta, OutputParser, Piece, Progress, Scored};
use crate::prompt::Prepared;
use crate::vocabulary::Vocabulary;

/// What one event changed.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// The prompt is processed.
    Began,
    /// The answer goes on.
    Shown(Delta),
    /// The answer is complete; the worker is not needed any more.
    Ended(Delta, End),
    /// The answer cannot be completed.
    Failed(ServeError),
}

/// Why an answer ended, as protocols tell it apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Stop,
    Length,
    /// This stop string was completed.
    StopString(String),
    /// The answer came to its end, and tools are to be called.
    Calls,
}

/// Tokens and times of an answer, for the client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bill {
    /// Which prompt of the request it is for.
    pub(crate) prompt_index: usize,
    pub(crate) prompt_tokens: u32,
    pub(crate) completion_tokens: u32,
    pub(crate) reasoning_tokens: u32,
    /// How the request started; none when no worker said so.
    pub(crate) start: Option<StartReport>,
    /// From the request's arrival to its first token, in milliseconds.
    pub(crate) ttft_ms: f64,
}

impl Bill {
    /// Tokens of the prompt that were cached. More than the prompt cannot be.
    pub(crate) fn cached_tokens(&self) -> u32 {
        self.start.map_or(0, |start| start.cached_tokens).min(self.prompt_tokens)
    }

    /// What several answers cost together: each prompt counts once, as its first answer found it. Replayed and fetched is what
    /// all of them did; exact is what all are, and the window's source is that of the first that is not.
    pub(crate) fn total(bills: &[Self]) -> Self {
        let (first, others) = bills.split_first().expect("a request has an answer");
        let mut total = *first;
        let mut cached = first.cached_tokens();
        let mut counted = first.prompt_index;
        for bill in others {
            total.start = total.start.map(|all| joined(all, bill.start));
            total.completion_tokens =
                total.completion_tokens.saturating_add(bill.completion_tokens);
            total.reasoning_tokens = total.reasoning_tokens.saturating_add(bill.reasoning_tokens);
            if bill.prompt_index != counted {
                counted = bill.prompt_index;
                total.prompt_tokens = total.prompt_tokens.saturating_add(bill.prompt_tokens);
                cached = cached.saturating_add(bill.cached_tokens());
            }
        }
        if let Some(start) = &mut total.start {
            start.cached_tokens = cached;
        }
        total
    }
}

/// The report of several answers and of one more, of which a worker may have said nothing. What was cached is counted elsewhere.
fn joined(all: StartReport, one: Option<StartReport>) -> StartReport {
    let Some(one) = one else { return StartReport { exact: false, ..all } };
    let window_source = if all.exact && !one.exact { one.window_source } else { all.window_source };
    StartReport {
        replayed_tokens: all.replayed_tokens.saturating_add(one.replayed_tokens),
        bytes_fetched: all.bytes_fetched.saturating_add(one.bytes_fetched),
        window_source,
        exact: all.exact && one.exact,
        ..all
    }
}

/// One answer in the making.
pub(crate) struct Answer {
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    call: Arc<Call>,
    parser: OutputParser,
    end_of_answer: TokenId,
    arrived: Timestamp,
    first_token: Option<Timestamp>,
    last_token: Timestamp,
    prompt_index: usize,
    prompt_tokens: u32,
    completion_tokens: u32,
    /// Whether a tool is to be called.
    calls: bool,
    /// Whether the client is told the ids of the tokens.
    tell_ids: bool,
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
            call: Arc::clone(&prepared.call),
            parser: OutputParser::new(Arc::clone(vocabulary), &prepared.reading),
            end_of_answer: vocabulary.end_of_answer(),
            arrived,
            first_token: None,
            last_token: arrived,
            prompt_index: prepared.prompt_index,
            prompt_tokens: prepared.prompt_tokens,
            calls: false,
            tell_ids: prepared.tell_ids,
            completion_tokens: 0,
            start: None,
        }
    }

    /// Takes the next event. Not to be called after the end.
    pub(crate) fn take(&mut self, event: DecodeEvent) -> Step {
        let mut delta = Delta::default();
        let end = match event {
            DecodeEvent::Started(report) => {
                let goes_on = self.start.is_some();
                self.start = Some(self.merged(report));
                // A worker that goes on with the answer of another one begins nothing.
                return if goes_on { Step::Shown(delta) } else { Step::Began };
            }
            DecodeEvent::Token(id, scores) => {
                self.count_token();
                if self.tell_ids {
                    delta.ids.push(id);
                }
                let scored = scores.map(|scores| Scored { id, scores });
                let stopped = id != self.end_of_answer
                    && self.parser.push_scored(id, scored, &mut delta) == Progress::StopString;
                if !stopped {
                    self.note_calls(&delta);
                    return Step::Shown(delta);
                }
                End::StopString(self.parser.stop_string().unwrap_or_default().to_owned())
            }
            DecodeEvent::Finished(reason) => {
                self.parser.finish(&mut delta);
                match reason {
                    FinishReason::Length => End::Length,
                    FinishReason::Stop if self.calls => End::Calls,
                    FinishReason::Stop => End::Stop,
                }
            }
            DecodeEvent::Failed(error) => return Step::Failed(error),
        };
        Step::Ended(delta, end)
    }

    fn note_calls(&mut self, delta: &Delta) {
        self.calls |= delta.pieces().iter().any(|piece| matches!(piece, Piece::Call(_)));
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
        self.call.note_token(now);
        match self.first_token {
            None => {
                self.first_token = Some(now);
                self.metrics.first_token(now.since(self.arrived));
                if let Some(start) = &self.start {
                    self.metrics.started(self.prompt_tokens, start);
                    self.call.note_cached(start.cached_tokens);
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
            prompt_index: self.prompt_index,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            reasoning_tokens: self.parser.reasoning_tokens(),
            start: self.start,
            ttft_ms: first.since(self.arrived).as_secs_f64() * 1_000.0,
        }
    }
}

/// How a completed answer is counted.
pub(crate) fn outcome_of(end: &End) -> Outcome {
    match end {
        End::Stop | End::StopString(_) | End::Calls => Outcome::Stop,
        End::Length => Outcome::Length,
    }
}

#[cfg(test)]
mod tests {
    use shared::{StartReport, WindowSource};

    use super::Bill;

    fn bill(start: Option<StartReport>) -> Bill {
        Bill {
            prompt_index: 0,
            prompt_tokens: 300,
            completion_tokens: 5,
            reasoning_tokens: 1,
            start,
            ttft_ms: 1.0,
        }
    }

    #[test]
    fn answers_are_exact_together_when_each_of_them_is() {
        let cold = StartReport {
            cached_tokens: 0,
            replayed_tokens: 0,
            window_source: WindowSource::Cold,
            exact: true,
            bytes_fetched: 0,
            prefill: None,
        };
        let object = StartReport {
            cached_tokens: 256,
            window_source: WindowSource::Object,
            bytes_fetched: 70,
            ..cold
        };
        let replayed = StartReport {
            cached_tokens: 256,
            replayed_tokens: 140,
            window_source: WindowSource::Replayed(140),
            exact: false,
            bytes_fetched: 7,
            ..cold
        };
        for (starts, exact, source) in [
            ([Some(cold), Some(object)], true, WindowSource::Cold),
            ([Some(cold), Some(replayed)], false, WindowSource::Replayed(140)),
            ([Some(replayed), Some(object)], false, WindowSource::Replayed(140)),
            ([Some(cold), None], false, WindowSource::Cold),
        ] {
            let total = Bill::total(&starts.map(bill));
            let start = total.start.unwrap();
            assert_eq!((start.exact, start.window_source), (exact, source), "{starts:?}");
            let started = starts.iter().flatten();
            let sums = started.fold((0, 0), |(tokens, bytes), start| {
                (tokens + start.replayed_tokens, bytes + start.bytes_fetched)
            });
            assert_eq!((start.replayed_tokens, start.bytes_fetched), sums, "{starts:?}");
            assert_eq!(start.cached_tokens, starts[0].map_or(0, |start| start.cached_tokens));
            assert_eq!((total.prompt_tokens, total.completion_tokens), (300, 10));
        }
    }
}
