//! What the router learns from requests under way and from workers that drain.

use shared::{LegOutcome, RequestId, StartReport, Timestamp, WorkerRank};

use super::{Action, Router};
use crate::life::DrainSource;
use crate::records::{Expected, LegEnd, StartOutcome};
use crate::role::Role;
use crate::snapshot::LifeSnapshot;

impl Router {
    /// Takes how a placed request fares on its decode worker. Outcomes of requests and workers not known any more are
    /// counted, and kept with the decision record if that still is; they may come in any order with [`Self::finished`].
    pub fn outcome(
        &mut self,
        id: RequestId,
        worker: WorkerRank,
        outcome: LegOutcome,
        now: Timestamp,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut known = self.loads.of(worker).is_some();
        match outcome {
            LegOutcome::Started(report) => known &= self.started(id, worker, report, now),
            LegOutcome::Completed { tokens } => {
                self.lives.completed(worker, now);
                self.answers.note(tokens);
            }
            LegOutcome::Failed => self.lives.failed(worker, id, now),
            LegOutcome::Draining => self.reported_drain(worker, true, now, &mut actions),
        }
        self.counters.outcomes_unknown += u64::from(!known);
        if let Some(how) = end(outcome)
            && let Some(record) = self.decisions.of_mut(id)
            && record.chosen.decode == worker
        {
            record.end(how, now);
        }
        self.drain(now, &mut actions);
        actions
    }

    /// Tokens of the prompt that a placed request is expected to report as cached when it starts on this worker; none once
    /// it has, and of a placement not known any more.
    #[must_use]
    pub fn expected_cached_tokens(&self, id: RequestId, worker: WorkerRank) -> Option<u32> {
        self.expectation(id, worker).map(|expected| expected.cached_tokens)
    }

    /// Marks a worker as draining: it gets nothing new and finishes what it has. What still runs there at `until` counts no
    /// more; the worker stays and drains on. Ends by [`Self::worker_undrained`] and when the worker leaves, but an operator's
    /// word is remembered for its return. When no other decode worker is there, what waits is refused. Unknown members are ignored; repeating it
    /// keeps the earlier end.
    pub fn worker_draining(
        &mut self,
        worker: WorkerRank,
        (by, until): (DrainSource, Timestamp),
        now: Timestamp,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        self.begin_drain(worker, (until, by), &mut actions);
        self.drain(now, &mut actions);
        actions
    }

    /// Takes back what the same source said with [`Self::worker_draining`]; what others said stays. Nothing happens when it
    /// said nothing.
    pub fn worker_undrained(
        &mut self,
        worker: WorkerRank,
        by: DrainSource,
        now: Timestamp,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        self.end_drain(worker, by);
        self.drain(now, &mut actions);
        actions
    }

    /// What speaks for and against giving a worker requests; none of those that are no members and of stores.
    #[must_use]
    pub fn life(&self, worker: WorkerRank, now: Timestamp) -> Option<LifeSnapshot> {
        self.loads.of(worker).map(|_| self.lives.snapshot(worker, now))
    }

    /// A worker says whether it drains.
    pub(super) fn reported_drain(
        &mut self,
        worker: WorkerRank,
        draining: bool,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        if draining {
            let until = now.after(self.config.life.drain_max);
            self.begin_drain(worker, (until, DrainSource::Worker), actions);
        } else {
            self.end_drain(worker, DrainSource::Worker);
        }
    }

    fn end_drain(&mut self, worker: WorkerRank, by: DrainSource) {
        self.prefill_state += u64::from(self.lives.drain_ended(worker, by));
    }

    fn begin_drain(
        &mut self,
        worker: WorkerRank,
        (until, by): (Timestamp, DrainSource),
        actions: &mut Vec<Action>,
    ) {
        if self.lives.drain(worker, until, by) {
            self.prefill_state += u64::from(self.index.role(worker) == Some(Role::Prefill));
            self.refuse_all_without_decode(actions);
        }
    }

    /// Compares what was expected with what is reported, and judges the prefill worker by whether it took part. False when
    /// nothing is known of such a start, or it was told before.
    fn started(
        &mut self,
        id: RequestId,
        worker: WorkerRank,
        report: StartReport,
        now: Timestamp,
    ) -> bool {
        self.lives.started(worker, now);
        let running = self.running.get(&id).filter(|running| running.decode == worker);
        if let Some(running) = running {
            let chosen = running.prefill;
            match report.prefill {
                Some(took_part) if chosen != Some(took_part) => {
                    // The decode worker had to ask another one.
                    if let Some(chosen) = chosen {
                        self.lives.failed(chosen, id, now);
                    }
                    self.lives.completed(took_part, now);
                }
                Some(took_part) => self.lives.completed(took_part, now),
                None => {}
            }
        }
        let Some(expected) = self.expected_of(id, worker) else { return false };
        let after = now.since(expected.at);
        self.counters.predictions.add(&expected, report.cached_tokens, after);
        if let Some(record) = self.decisions.of_mut(id)
            && record.chosen.decode == worker
        {
            record.started = Some(StartOutcome { after, report });
        }
        true
    }

    /// What was expected of a request on this worker, once per placement.
    fn expected_of(&mut self, id: RequestId, worker: WorkerRank) -> Option<Expected> {
        let expected = self.expectation(id, worker);
        if let Some(running) = self.running.get_mut(&id)
            && running.decode == worker
        {
            running.expected = None;
        }
        expected
    }

    /// What is expected of a request on this worker: of one that runs, or of one whose end was heard of first.
    fn expectation(&self, id: RequestId, worker: WorkerRank) -> Option<Expected> {
        if let Some(running) = self.running.get(&id)
            && running.decode == worker
        {
            return running.expected;
        }
        let record = self.decisions.of(id)?;
        if record.chosen.decode != worker || record.started.is_some() {
            return None;
        }
        Some(Expected {
            at: record.at,
            prompt_tokens: record.prompt_tokens,
            cached_tokens: record.expected_cached_tokens,
            first_token: record.chosen.cost.first_token().into(),
        })
    }
}

/// What an outcome says about the end of a placement.
fn end(outcome: LegOutcome) -> Option<LegEnd> {
    match outcome {
        LegOutcome::Started(_) => None,
        LegOutcome::Completed { tokens } => Some(LegEnd::Completed { tokens }),
        LegOutcome::Failed => Some(LegEnd::Failed),
        LegOutcome::Draining => Some(LegEnd::Draining),
    }
}
