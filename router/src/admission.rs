//! The queue in front of the workers: bounded, first in first out, with deadlines; and the retry hint of refusals.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use shared::{PlaceRequest, RequestId, Timestamp};

use crate::config::AdmissionConfig;

/// A request that waits for a worker.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) request: PlaceRequest,
    pub(crate) since: Timestamp,
}

/// The requests that wait, oldest first.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting_max: usize,
    turn_next: u64,
    by_turn: BTreeMap<u64, Waiting>,
    turns: HashMap<RequestId, u64>,
    deadlines: BTreeSet<(Timestamp, u64)>,
}

impl Queue {
    pub(crate) fn new(waiting_max: usize) -> Self {
        Self {
            waiting_max,
            turn_next: 0,
            by_turn: BTreeMap::new(),
            turns: HashMap::new(),
            deadlines: BTreeSet::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_turn.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.waiting_max <= self.len()
    }

    pub(crate) fn contains(&self, id: RequestId) -> bool {
        self.turns.contains_key(&id)
    }

    /// Appends a request.
    ///
    /// # Panics
    /// When the queue is full or holds the id already: the caller looked.
    pub(crate) fn push(&mut self, request: PlaceRequest, now: Timestamp) {
        assert!(!self.is_full(), "the caller checked for room");
        let turn = self.turn_next;
        self.turn_next += 1;
        if let Some(deadline) = request.deadline {
            self.deadlines.insert((deadline, turn));
        }
        let earlier = self.turns.insert(request.id, turn);
        assert!(earlier.is_none(), "the caller checked the id");
        self.by_turn.insert(turn, Waiting { request, since: now });
    }

    /// The request that is next.
    pub(crate) fn head(&self) -> Option<&Waiting> {
        self.by_turn.values().next()
    }

    /// Takes the request that is next.
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        let turn = *self.by_turn.keys().next()?;
        self.take(turn)
    }

    /// Takes a request out. None when it does not wait.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Waiting> {
        let turn = *self.turns.get(&id)?;
        self.take(turn)
    }

    /// Takes one request whose deadline passed.
    pub(crate) fn pop_expired(&mut self, now: Timestamp) -> Option<Waiting> {
        let &(deadline, turn) = self.deadlines.first()?;
        if now < deadline { None } else { self.take(turn) }
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    fn take(&mut self, turn: u64) -> Option<Waiting> {
        let waiting = self.by_turn.remove(&turn)?;
        self.turns.remove(&waiting.request.id);
        if let Some(deadline) = waiting.request.deadline {
            self.deadlines.remove(&(deadline, turn));
        }
        Some(waiting)
    }
}

/// Completions remembered for the retry hint: enough to average over a few batches.
const COMPLETIONS_MAX: usize = 64;

/// How fast running requests end.
#[derive(Debug, Default)]
pub(crate) struct Completions {
    recent: VecDeque<Timestamp>,
}

impl Completions {
    pub(crate) fn note(&mut self, now: Timestamp) {
        if self.recent.len() == COMPLETIONS_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
    }

    /// When a refused client should come back: the time in which as many requests end as wait now.
    pub(crate) fn retry_after(
        &self,
        waiting: usize,
        now: Timestamp,
        config: &AdmissionConfig,
    ) -> Duration {
        let hint = self.interval(now).map(|interval| {
            interval.saturating_mul(u32::try_from(waiting.max(1)).unwrap_or(u32::MAX))
        });
        hint.unwrap_or(config.retry_after_unmeasured)
            .clamp(config.retry_after_min, config.retry_after_max)
    }

    /// Mean time between completions, the time since the last one included, so that a stall shows.
    fn interval(&self, now: Timestamp) -> Option<Duration> {
        let first = self.recent.front()?;
        let count = u32::try_from(self.recent.len()).expect("bounded by COMPLETIONS_MAX");
        if count < 2 {
            return None;
        }
        Some(now.since(*first) / (count - 1))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::{RequestId, StartGeometry, Timestamp};

    use super::{Completions, Queue};
    use crate::config::RouterConfig;
    use crate::testing::request;

    const GEOMETRY: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };

    #[test]
    fn the_queue_keeps_its_order_whatever_is_taken_out() {
        let mut queue = Queue::new(4);
        for (id, deadline) in [(1, None), (2, Some(50)), (3, Some(20)), (4, Some(50))] {
            let mut request = request(id, 10, &[]);
            request.deadline = deadline.map(Timestamp);
            queue.push(request, Timestamp(0));
        }
        assert!(queue.is_full());
        assert_eq!(queue.next_deadline(), Some(Timestamp(20)));
        let taken = |waiting: Option<super::Waiting>| waiting.map(|it| it.request.id.0);
        assert_eq!(taken(queue.pop_expired(Timestamp(19))), None);
        assert_eq!(taken(queue.pop_expired(Timestamp(20))), Some(3));
        assert_eq!(taken(queue.remove(RequestId(2))), Some(2));
        assert_eq!(taken(queue.remove(RequestId(2))), None);
        assert_eq!(taken(queue.pop()), Some(1));
        assert_eq!(queue.head().map(|it| it.request.id.0), Some(4));
        assert_eq!(queue.next_deadline(), Some(Timestamp(50)));
        assert_eq!(taken(queue.pop()), Some(4));
        assert_eq!((queue.len(), queue.next_deadline()), (0, None));
    }

    #[test]
    fn the_retry_hint_follows_the_completion_rate() {
        let config = RouterConfig::with_defaults(GEOMETRY).admission;
        let ms = |ms: u64| Timestamp(0).after(Duration::from_millis(ms));
        let mut completions = Completions::default();
        let hint = |completions: &Completions, waiting, at| {
            completions.retry_after(waiting, ms(at), &config).as_millis()
        };
        assert_eq!(hint(&completions, 10, 0), 1_000, "unmeasured");
        for done in 0..100 {
            completions.note(ms(done * 50));
        }
        assert_eq!(hint(&completions, 10, 4_950), 500, "ten places at 20 per second");
        assert_eq!(hint(&completions, 1, 4_950), 100, "never below the least hint");
        assert_eq!(hint(&completions, 10, 4_950 + 63_000), 10_500, "a stall shows");
        assert_eq!(hint(&completions, 10_000, 4_950), 60_000, "never above the largest");
    }
}
