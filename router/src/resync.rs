//! What members whose events were lost are asked for, and when again: digests, then the ranges that differ, then
//! everything. Bounded attempts, spaced in time.

use std::collections::BTreeMap;

use shared::{Timestamp, WorkerRank};

use crate::config::ResyncConfig;

/// Members whose view is stale. At most one entry per member.
#[derive(Debug)]
pub(crate) struct Resyncs {
    config: ResyncConfig,
    pending: BTreeMap<WorkerRank, Pending>,
}

#[derive(Debug)]
struct Pending {
    step: Step,
    /// Requests of this step.
    attempts: u32,
    /// When to ask next, and before which not to ask.
    next: Timestamp,
}

/// What a member is asked for, in the order in which it is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// The digests of its ranges.
    Digests,
    /// The ranges that differ.
    Ranges,
    /// Everything.
    Whole,
}

impl Resyncs {
    pub(crate) fn new(config: ResyncConfig) -> Self {
        Self { config, pending: BTreeMap::new() }
    }

    /// Notes a gap: begins with the digests. Gaps in quick succession lead to one request per retry interval.
    pub(crate) fn need(&mut self, worker: WorkerRank, now: Timestamp) {
        let begin = Pending { step: Step::Digests, attempts: 0, next: now };
        let pending = self.pending.entry(worker).or_insert(begin);
        (pending.step, pending.attempts) = (Step::Digests, 0);
    }

    /// Notes that a stale member's digests came: the ranges that differ are asked for, at once. Their number is that of the
    /// digests' answers, so this waits for no interval.
    pub(crate) fn narrowed(&mut self, worker: WorkerRank, now: Timestamp) {
        let begin = Pending { step: Step::Ranges, attempts: 0, next: now };
        let pending = self.pending.entry(worker).or_insert(begin);
        if pending.step == Step::Digests {
            *pending = Pending { step: Step::Ranges, attempts: 0, next: now };
        }
    }

    /// Notes that a member's view is complete, or that it left.
    pub(crate) fn settled(&mut self, worker: WorkerRank) {
        self.pending.remove(&worker);
    }

    /// The members to ask now, and what for. Each is counted as asked. One that did not answer `attempts_max` requests of a
    /// step is asked for more; after as many for everything it is not asked any more.
    pub(crate) fn due(&mut self, now: Timestamp) -> Vec<(WorkerRank, Step)> {
        let config = self.config;
        let due = self.pending.iter_mut().filter_map(|(&worker, pending)| {
            if now < pending.next {
                return None;
            }
            if config.attempts_max <= pending.attempts {
                if pending.step == Step::Whole {
                    return None;
                }
                (pending.step, pending.attempts) = (Step::Whole, 0);
            }
            pending.attempts += 1;
            pending.next = now.after(config.retry);
            Some((worker, pending.step))
        });
        due.collect()
    }

    /// When [`Self::due`] has something to say next.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        let open = self.pending.values().filter(|pending| {
            pending.step != Step::Whole || pending.attempts < self.config.attempts_max
        });
        open.map(|pending| pending.next).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::Timestamp;

    use super::{Resyncs, Step};
    use crate::config::ResyncConfig;
    use crate::testing::rank;

    #[test]
    fn requests_are_spaced_and_bounded_and_end_with_everything() {
        use Step::{Digests, Ranges, Whole};
        let retry = Duration::from_nanos(10);
        let mut resyncs = Resyncs::new(ResyncConfig { retry, attempts_max: 2 });
        let asked = |resyncs: &mut Resyncs, at| {
            let due = resyncs.due(Timestamp(at));
            assert!(due.len() < 2);
            due.first().map(|due| due.1)
        };
        resyncs.need(rank(0), Timestamp(0));
        assert_eq!(
            [0, 1, 9, 10, 11, 20, 25, 30].map(|at| asked(&mut resyncs, at)),
            [Some(Digests), None, None, Some(Digests), None, Some(Whole), None, Some(Whole)]
        );
        assert_eq!((resyncs.next(), asked(&mut resyncs, 99)), (None, None), "given up");
        resyncs.need(rank(0), Timestamp(100));
        resyncs.need(rank(0), Timestamp(101));
        assert_eq!(
            [101, 105, 111].map(|at| asked(&mut resyncs, at)),
            [Some(Digests), None, Some(Digests)]
        );
        resyncs.narrowed(rank(0), Timestamp(112));
        assert_eq!(resyncs.next(), Some(Timestamp(112)), "an answer needs no interval");
        assert_eq!([112, 113].map(|at| asked(&mut resyncs, at)), [Some(Ranges), None]);
        resyncs.narrowed(rank(0), Timestamp(114));
        assert_eq!(asked(&mut resyncs, 115), None, "digests that somebody else asked for");
        resyncs.need(rank(0), Timestamp(116));
        assert_eq!(resyncs.next(), Some(Timestamp(122)), "a new gap waits for the interval");
        assert_eq!(asked(&mut resyncs, 122), Some(Digests));
        resyncs.narrowed(rank(0), Timestamp(123));
        assert_eq!(
            [123, 133, 143, 153, 163].map(|at| asked(&mut resyncs, at)),
            [Some(Ranges), Some(Ranges), Some(Whole), Some(Whole), None]
        );
        resyncs.settled(rank(0));
        assert_eq!((resyncs.next(), asked(&mut resyncs, 200)), (None, None));
    }
}
