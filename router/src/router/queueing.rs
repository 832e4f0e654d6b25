//! From a submission to a placement or a refusal: the queue, who is tried, and what is booked.

use std::sync::Arc;
use std::time::Duration;

use shared::{BlockName, PlaceRequest, RequestId, ServeError, Timestamp, WorkerRank};

use super::{Action, Router, Running};
use crate::place::{Blocked, Choice, choose, has_decode_room, has_prefill_room};
use crate::queue::{Room, Surplus, Waiting};
use crate::records::{DecisionRecord, Expected};
use crate::role::Role;

impl Router {
    /// Asks for a placement: the answer is among the actions of this or of a later call, exactly once, unless
    /// [`Self::finished`] withdraws the request before. In a full queue it may take the place of another request, which
    /// then is refused.
    ///
    /// An id that is waiting or running already is refused as an internal error; the earlier request is not touched.
    pub fn submit(&mut self, request: PlaceRequest, now: Timestamp) -> Vec<Action> {
        let mut actions = self.tick(now);
        let id = request.id;
        if let Some(error) = self.refusal(&request, now) {
            self.refuse(id, error, &mut actions);
            return actions;
        }
        let mut gated = false;
        if self.is_next(now) {
            match choose(&request, self.facts(now)) {
                Ok(choice) => {
                    self.place(
                        &Waiting { request, since: now, gated: None },
                        choice,
                        now,
                        &mut actions,
                    );
                    return actions;
                }
                Err(blocked) => gated = blocked == Blocked::Prefill,
            }
        }
        if self.queue.is_full() {
            let (leaves, surplus) = match self.queue.room_for(&request) {
                Room::InsteadOf(other, surplus) => (other, surplus),
                Room::None(surplus) => (id, surplus),
            };
            let error = self.surplus_error(surplus, now);
            self.queue.remove(leaves);
            self.refuse(leaves, error, &mut actions);
            if leaves == id {
                return actions;
            }
        }
        self.queue.push(request, now);
        if gated {
            self.queue.gate(id, self.prefill_state);
        }
        self.drain(now, &mut actions);
        actions
    }

    /// Places from the queue, in its order, until none that is tried can be placed. Those that find no worker are passed
    /// over, within bounds.
    pub(super) fn drain(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        self.expire(now, actions);
        while let Some((id, choice)) = self.next_placeable(now) {
            let waiting = self.queue.serve(id).expect("it was found in the queue");
            self.place(&waiting, choice, now, actions);
        }
        self.relief_at = (0 < self.queue.len())
            .then(|| {
                let advice = self.lives.next_change(&self.loads, now);
                [self.loads.prefill_relief(now), advice].into_iter().flatten().min()
            })
            .flatten();
    }

    pub(super) fn expire(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        while let Some(waiting) = self.queue.pop_expired(now) {
            let error = ServeError::DeadlineExceeded { stage: "queued" };
            self.refuse(waiting.request.id, error, actions);
        }
    }

    /// Refuses what waits when no decode worker is left that takes requests.
    pub(super) fn refuse_all_without_decode(&mut self, actions: &mut Vec<Action>) {
        if self.takes_requests() {
            return;
        }
        while let Some(waiting) = self.queue.pop_any() {
            let error = ServeError::NoWorker { role: Role::Decode.as_str() };
            self.refuse(waiting.request.id, error, actions);
        }
    }

    /// Whether any decode worker takes requests, full or not.
    fn takes_requests(&self) -> bool {
        self.loads.decode().any(|(worker, _)| !self.lives.is_draining(worker))
    }

    /// Why a new request cannot even wait.
    fn refusal(&self, request: &PlaceRequest, now: Timestamp) -> Option<ServeError> {
        let id = request.id;
        if self.running.contains_key(&id) || self.queue.contains(id) {
            let message = format!("request {id} was submitted twice; request ids must be unique");
            return Some(ServeError::Internal { message });
        }
        if request.deadline.is_some_and(|deadline| deadline <= now) {
            return Some(ServeError::DeadlineExceeded { stage: "queued" });
        }
        (!self.takes_requests()).then(|| ServeError::NoWorker { role: Role::Decode.as_str() })
    }

    /// Whether a newcomer is tried before it would wait: nobody waits, or the queue is full of requests that wait for a
    /// prefill worker and none is free, so that it takes nothing from them.
    fn is_next(&self, now: Timestamp) -> bool {
        let gate = Some(self.prefill_state);
        self.queue.len() == 0
            || (self.queue.is_full()
                && !has_prefill_room(self.facts(now))
                && self.queue.in_order().all(|waiting| waiting.gated == gate))
    }

    /// The first in the queue's order that can be placed. Those known to need a prefill worker are passed over without a
    /// look while none is free.
    fn next_placeable(&mut self, now: Timestamp) -> Option<(RequestId, Choice)> {
        self.index.settle();
        let facts = self.facts(now);
        if self.queue.len() == 0 || !has_decode_room(facts) {
            return None;
        }
        let prefill_room = has_prefill_room(facts);
        let gate = Some(self.prefill_state);
        let (mut tries, mut passed, mut gated, mut found) = (0, false, Vec::new(), None);
        for waiting in self.queue.in_order() {
            if waiting.gated == gate && !prefill_room {
                passed = true;
                continue;
            }
            if tries == self.config.admission.look_ahead_max {
                break;
            }
            tries += 1;
            match choose(&waiting.request, facts) {
                Ok(choice) => {
                    found = Some((waiting.request.id, choice));
                    break;
                }
                Err(Blocked::Prefill) => gated.push(waiting.request.id),
                Err(Blocked::Decode) => {}
            }
            passed = true;
        }
        for id in gated {
            self.queue.gate(id, self.prefill_state);
        }
        self.counters.overtaken += u64::from(found.is_some() && passed);
        found
    }

    fn place(
        &mut self,
        waiting: &Waiting,
        choice: Choice,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) {
        let request = &waiting.request;
        let id = request.id;
        let Choice { placement, prompt, decode, prefill, considered, overridden, warm_up_passed } =
            choice;
        let prefilled = prefill.map(|start| (start.worker, start.rows));
        for (worker, rows) in
            [Some((placement.decode, decode.rows)), prefilled].into_iter().flatten()
        {
            let busy = self.loads.is_busy(worker);
            self.lives.placed(worker, id, busy, now);
            self.loads.place(worker, id, rows, now);
        }
        self.last.0 = Some(placement.decode);
        self.last.1 = placement.prefill.or(self.last.1);
        let prefill_cached_tokens = prefill.map_or(0, |start| start.cached_tokens);
        let expected = Expected {
            at: now,
            prompt_tokens: prompt.tokens,
            cached_tokens: decode.cached_tokens.max(prefill_cached_tokens),
            first_token: decode.cost.first_token().into(),
        };
        let decoded = decode.cost.before_tail();
        self.loads.expect(placement.decode, now.after(decoded.into()));
        if let Some(start) = prefill {
            let computed = start.cost.prefill_path();
            self.loads.expect(start.worker, now.after(computed.into()));
        }
        self.expect([Some(placement.decode), placement.prefill], &request.names, now);
        let running = Running {
            decode: placement.decode,
            prefill: placement.prefill,
            decode_rows: decode.rows,
            prefill_rows: prefilled.map_or(0, |(_, rows)| rows),
            names: Arc::clone(&request.names),
            expected: Some(expected),
        };
        self.running.insert(id, running);
        self.counters.placed.add(decode.kind);
        self.lives.counters.overridden += u64::from(overridden);
        self.lives.counters.warm_up_passed += u64::from(warm_up_passed);
        let forgotten = self.decisions.push(DecisionRecord {
            id,
            tenant: request.tenant.tag(),
            priority: request.priority,
            at: now,
            waited: now.since(waiting.since),
            prompt_tokens: prompt.tokens,
            boundary: prompt.boundary,
            answer_tokens: prompt.answer_tokens,
            policy: self.config.policy,
            kind: decode.kind,
            chosen: decode.candidate(),
            overridden,
            prefill_cached_tokens,
            expected_cached_tokens: expected.cached_tokens,
            considered,
            started: None,
            ended: None,
        });
        self.scratch.get_mut().take_back(forgotten.map(|record| record.considered));
        actions.push(Action::Place { id, placement });
    }

    /// Expects the blocks of a placed request of its workers.
    pub(super) fn expect(
        &mut self,
        workers: [Option<WorkerRank>; 2],
        names: &Arc<[BlockName]>,
        now: Timestamp,
    ) {
        let lasts = self.config.expected_blocks;
        if lasts == Duration::ZERO || names.is_empty() {
            return;
        }
        self.index.expect_soon(workers, names, now.after(lasts));
    }

    fn surplus_error(&self, surplus: Surplus, now: Timestamp) -> ServeError {
        let (waiting, waiting_max) = (self.queue.len(), self.config.admission.waiting_max);
        let retry_after = self.completions.retry_after(waiting, now, &self.config.admission);
        let retry_after_ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
        match surplus {
            Surplus::OfAll => ServeError::Overloaded { waiting, waiting_max, retry_after_ms },
            Surplus::OfTenant(waiting) => {
                ServeError::OverShare { waiting, waiting_max, retry_after_ms }
            }
        }
    }

    fn refuse(&mut self, id: RequestId, error: ServeError, actions: &mut Vec<Action>) {
        let refused = &mut self.counters.refused;
        let counter = match error {
            ServeError::Overloaded { .. } => &mut refused.overloaded,
            ServeError::OverShare { .. } => &mut refused.over_share,
            ServeError::DeadlineExceeded { .. } => &mut refused.deadline,
            ServeError::NoWorker { .. } => &mut refused.no_worker,
            _ => &mut refused.duplicate,
        };
        *counter += 1;
        actions.push(Action::Refuse { id, error });
    }
}
