//! What happens when: a queue of events in virtual time. Events of one moment come in the order they were entered.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use shared::Timestamp;

/// The queue, and the time.
#[derive(Debug)]
pub(crate) struct Agenda<E> {
    now: Timestamp,
    entered: u64,
    queue: BinaryHeap<Reverse<Entry<E>>>,
}

#[derive(Debug)]
struct Entry<E> {
    at: Timestamp,
    number: u64,
    event: E,
}

impl<E> Agenda<E> {
    pub(crate) fn new() -> Self {
        Self { now: Timestamp(0), entered: 0, queue: BinaryHeap::new() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    /// Enters an event; one in the past happens now.
    pub(crate) fn enter_at(&mut self, at: Timestamp, event: E) {
        self.entered += 1;
        let at = at.max(self.now);
        self.queue.push(Reverse(Entry { at, number: self.entered, event }));
    }

    pub(crate) fn enter(&mut self, delay: Duration, event: E) {
        self.enter_at(self.now.after(delay), event);
    }

    /// The next event. Time moves to it.
    pub(crate) fn take(&mut self) -> Option<E> {
        let Reverse(entry) = self.queue.pop()?;
        assert!(self.now <= entry.at, "time is monotone");
        self.now = entry.at;
        Some(entry.event)
    }
}

impl<E> Entry<E> {
    fn order(&self) -> (Timestamp, u64) {
        (self.at, self.number)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Agenda;

    #[test]
    fn events_come_in_the_order_of_time_then_of_entry() {
        let mut agenda = Agenda::new();
        for (event, delay) in [("b", 2), ("a", 1), ("c", 2)] {
            agenda.enter(Duration::from_nanos(delay), event);
        }
        assert_eq!(agenda.take(), Some("a"));
        agenda.enter_at(shared::Timestamp(0), "now");
        let rest: Vec<_> = std::iter::from_fn(|| agenda.take()).collect();
        assert_eq!((rest, agenda.now().0), (vec!["now", "b", "c"], 2));
    }
}
