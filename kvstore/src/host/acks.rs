//! Offers that are answered when their blocks are on disk.
//!
//! A disk says once what became of each block; one that says nothing within the offer's time leaves it in memory only. As
//! many wait as the disk has queued or written and not synced.

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use shared::{Flow, ObjectKey, OfferEvent, OfferOutcome, Sink, Timestamp};

use super::stats::{Counters, count};
use crate::disk::{Ack, Acked};

/// Where the answers of an offer go: the offer and each of its objects that waits have it in common.
#[derive(Clone)]
pub(super) struct Answers(Arc<Mutex<Box<dyn Sink<OfferEvent>>>>);

impl Answers {
    pub(super) fn new(sink: Box<dyn Sink<OfferEvent>>) -> Self {
        Self(Arc::new(Mutex::new(sink)))
    }
}

impl Sink<OfferEvent> for Answers {
    fn emit(&mut self, event: OfferEvent) -> Flow {
        self.0.lock().emit(event)
    }
}

/// The objects that wait.
pub(super) struct Acks {
    counters: Arc<Counters>,
    done: Sender<Acked>,
    /// By number, so by age: offers are read in the order in which their time ends.
    pending: BTreeMap<u64, Pending>,
    number_next: u64,
}

struct Pending {
    key: ObjectKey,
    /// The answer when it is durable.
    outcome: OfferOutcome,
    answers: Answers,
    until: Timestamp,
}

impl Acks {
    /// And where the disk's answers arrive, to be handed to [`Acks::settle`].
    pub(super) fn new(counters: Arc<Counters>) -> (Self, Receiver<Acked>) {
        // Unbounded, but one message per waiting object is ever sent.
        let (done, acked) = unbounded();
        (Self { counters, done, pending: BTreeMap::new(), number_next: 0 }, acked)
    }

    /// An object waits from now on; it is answered with `outcome` when it is durable.
    pub(super) fn begin(
        &mut self,
        key: ObjectKey,
        outcome: OfferOutcome,
        answers: &Answers,
        until: Timestamp,
    ) -> Ack {
        let number = self.number_next;
        self.number_next += 1;
        let answers = answers.clone();
        self.pending.insert(number, Pending { key, outcome, answers, until });
        Ack::new(number, self.done.clone())
    }

    /// The disk said what became of one.
    pub(super) fn settle(&mut self, acked: Acked) {
        // One that was answered late is not there any more.
        if let Some(pending) = self.pending.remove(&acked.number) {
            self.answer(pending, acked.durable);
        }
    }

    /// When the next one is to be answered, whatever the disk does.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.pending.first_key_value().map(|(_, pending)| pending.until)
    }

    /// Answers those whose time is over.
    pub(super) fn answer_late(&mut self, now: Timestamp) {
        while let Some(oldest) = self.pending.first_entry() {
            if now < oldest.get().until {
                return;
            }
            let pending = oldest.remove();
            self.answer(pending, false);
        }
    }

    fn answer(&self, pending: Pending, durable: bool) {
        let Pending { key, outcome, mut answers, .. } = pending;
        let (counter, outcome) = if durable {
            (&self.counters.acknowledged, outcome)
        } else {
            (&self.counters.memory_only, OfferOutcome::MemoryOnly)
        };
        count(counter, 1);
        // Closed or not, there is nothing more to say of this one.
        let _: Flow = answers.emit(OfferEvent { key, outcome });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crossbeam_channel::unbounded;
    use shared::{Flow, ObjectKey, ObjectKind, OfferEvent, OfferOutcome, Timestamp};

    use super::super::stats::Counters;
    use super::{Acks, Answers};
    use crate::testing::name;

    fn key(number: u64) -> ObjectKey {
        ObjectKey { kind: ObjectKind::Block, name: name(number) }
    }

    #[test]
    fn each_object_is_answered_once_by_the_disk_or_by_its_time() {
        let (mut acks, acked) = Acks::new(Arc::new(Counters::default()));
        let (sender, events) = unbounded();
        let sink =
            move |event: OfferEvent| sender.send(event).map_or(Flow::Closed, |()| Flow::Open);
        let answers = Answers::new(Box::new(sink));
        let waiting: Vec<_> = (0..3)
            .map(|number| {
                let until = Timestamp(10 + number);
                acks.begin(key(number), OfferOutcome::Stored, &answers, until)
            })
            .collect();
        let mut waiting = waiting.into_iter();
        // The first one is late, the second one given up, the third one durable.
        assert_eq!(acks.deadline(), Some(Timestamp(10)));
        acks.answer_late(Timestamp(10));
        assert_eq!(acks.deadline(), Some(Timestamp(11)));
        let late = waiting.next();
        drop(waiting.next());
        waiting.next().unwrap().durable();
        drop(late);
        while let Ok(done) = acked.try_recv() {
            acks.settle(done);
        }
        let outcomes: Vec<_> = events.try_iter().map(|event| (event.key, event.outcome)).collect();
        let expected = [OfferOutcome::MemoryOnly, OfferOutcome::MemoryOnly, OfferOutcome::Stored];
        assert_eq!(outcomes, [0, 1, 2].map(key).into_iter().zip(expected).collect::<Vec<_>>());
        assert_eq!(acks.deadline(), None);
    }
}
