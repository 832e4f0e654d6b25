//! Which members must be asked for their whole state, and when again: bounded retries, spaced in time.

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
    attempts: u32,
    /// When to ask next, and before which not to ask.
    next: Timestamp,
}

impl Resyncs {
    pub(crate) fn new(config: ResyncConfig) -> Self {
        Self { config, pending: BTreeMap::new() }
    }

    /// Notes a gap. Gaps in quick succession lead to one request per retry interval.
    pub(crate) fn need(&mut self, worker: WorkerRank, now: Timestamp) {
        let pending = self.pending.entry(worker).or_insert(Pending { attempts: 0, next: now });
        pending.attempts = 0;
    }

    /// Notes that a member's view is complete, or that it left.
    pub(crate) fn settled(&mut self, worker: WorkerRank) {
        self.pending.remove(&worker);
    }

    /// The members to ask now. Each is counted as asked.
    pub(crate) fn due(&mut self, now: Timestamp) -> Vec<WorkerRank> {
        let config = self.config;
        let due = self.pending.iter_mut().filter_map(|(&worker, pending)| {
            if config.attempts_max <= pending.attempts || now < pending.next {
                return None;
            }
            pending.attempts += 1;
            pending.next = now.after(config.retry);
            Some(worker)
        });
        due.collect()
    }

    /// When [`Self::due`] has something to say next.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        let open = self.pending.values().filter(|it| it.attempts < self.config.attempts_max);
        open.map(|pending| pending.next).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::Timestamp;

    use super::Resyncs;
    use crate::config::ResyncConfig;
    use crate::testing::rank;

    #[test]
    fn requests_are_spaced_and_bounded() {
        let retry = Duration::from_nanos(10);
        let mut resyncs = Resyncs::new(ResyncConfig { retry, attempts_max: 2 });
        let asked = |resyncs: &mut Resyncs, at| resyncs.due(Timestamp(at)).len();
        resyncs.need(rank(0), Timestamp(0));
        assert_eq!(
            [0, 1, 9, 10, 11, 20, 99].map(|at| asked(&mut resyncs, at)),
            [1, 0, 0, 1, 0, 0, 0]
        );
        assert_eq!(resyncs.next(), None, "given up");
        resyncs.need(rank(0), Timestamp(100));
        resyncs.need(rank(0), Timestamp(101));
        assert_eq!([101, 105, 111].map(|at| asked(&mut resyncs, at)), [1, 0, 1]);
        resyncs.need(rank(0), Timestamp(112));
        assert_eq!(resyncs.next(), Some(Timestamp(121)), "a new gap waits for the interval");
        resyncs.settled(rank(0));
        assert_eq!((resyncs.next(), asked(&mut resyncs, 200)), (None, 0));
    }
}
