//! What routers asked members of this process, until the members answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvstore::HostTier;
use parking_lot::Mutex;
use shared::{CacheChange, CacheQuestion, RangeSet, WorkerRank};

/// Members that a router asked something and that did not answer yet. Clones share one table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked(Arc<Mutex<BTreeMap<WorkerRank, Wanted>>>);

/// What is asked of one member. Questions of several routers are one: everybody hears the answer.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    Whole,
    /// Of these ranges, what is held, and then the digests if there is nothing to tell, or somebody asked for both.
    Parts {
        ranges: RangeSet,
        digests: Digests,
    },
}

/// Whether digests are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Digests {
    Unasked,
    Wanted,
}

impl Wanted {
    fn of(question: &CacheQuestion) -> Self {
        match question {
            CacheQuestion::Whole => Self::Whole,
            CacheQuestion::Ranges(ranges) => {
                Self::Parts { ranges: *ranges, digests: Digests::Unasked }
            }
            CacheQuestion::Digests => {
                Self::Parts { ranges: RangeSet::default(), digests: Digests::Wanted }
            }
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Parts { ranges, digests }, Self::Parts { ranges: more, digests: wanted }) => {
                let digests = if digests == Digests::Wanted { digests } else { wanted };
                Self::Parts { ranges: ranges.union(more), digests }
            }
            _ => Self::Whole,
        }
    }

    /// The questions to answer, one after the other.
    fn questions(self) -> Vec<CacheQuestion> {
        let Self::Parts { ranges, digests } = self else { return vec![CacheQuestion::Whole] };
        let ranges = (!ranges.is_empty()).then_some(CacheQuestion::Ranges(ranges));
        let digests = (digests == Digests::Wanted).then_some(CacheQuestion::Digests);
        ranges.into_iter().chain(digests).collect()
    }
}

impl Asked {
    /// Notes a question. At most one entry per member: what is asked before the answer is answered with it.
    pub(crate) fn ask(&self, worker: WorkerRank, question: &CacheQuestion) {
        let wanted = Wanted::of(question);
        let mut table = self.0.lock();
        table.entry(worker).and_modify(|known| *known = known.and(wanted)).or_insert(wanted);
    }

    /// What this member was asked since the last call, at most two questions.
    pub(crate) fn take(&self, worker: WorkerRank) -> Vec<CacheQuestion> {
        self.0.lock().remove(&worker).map_or_else(Vec::new, Wanted::questions)
    }

    /// What a store node tells now: answers to what it was asked, else what changed. Blocks for the catalog.
    pub(crate) fn told_by(&self, store: &HostTier, worker: WorkerRank) -> Vec<CacheChange> {
        let questions = self.take(worker);
        if questions.is_empty() {
            return store.drain_changes();
        }
        questions
            .iter()
            .flat_map(|question| answer(worker, question, |it| store.answer(it)))
            .collect()
    }
}

/// Answers a question, and says so in the log.
pub(super) fn answer(
    worker: WorkerRank,
    question: &CacheQuestion,
    answer: impl FnOnce(&CacheQuestion) -> Vec<CacheChange>,
) -> Vec<CacheChange> {
    let changes = answer(question);
    match question {
        CacheQuestion::Digests => tracing::debug!(%worker, "telling routers digests"),
        CacheQuestion::Ranges(ranges) => {
            tracing::info!(%worker, ranges = ranges.len(), "telling routers ranges of what is cached");
        }
        CacheQuestion::Whole => {
            tracing::info!(%worker, "telling routers everything that is cached");
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use shared::CacheQuestion::{Digests, Ranges, Whole};
    use shared::{CacheQuestion, DpRank, WorkerId, WorkerRank};

    use super::Asked;

    #[test]
    fn questions_before_an_answer_are_answered_together() {
        let ranges = |some: &[u8]| Ranges(some.iter().copied().collect());
        let cases: [(&[CacheQuestion], Vec<CacheQuestion>); 6] = [
            (&[], vec![]),
            (&[Digests, Digests], vec![Digests]),
            (&[ranges(&[1, 2]), ranges(&[2, 9])], vec![ranges(&[1, 2, 9])]),
            (&[Digests, ranges(&[7])], vec![ranges(&[7]), Digests]),
            (&[ranges(&[7]), Whole, Digests], vec![Whole]),
            (&[Digests, ranges(&[7]), Digests], vec![ranges(&[7]), Digests]),
        ];
        let [one, other] =
            [3, 4].map(|worker| WorkerRank { worker: WorkerId(worker), rank: DpRank(0) });
        for (questions, expected) in cases {
            let asked = Asked::default();
            questions.iter().for_each(|question| asked.ask(one, question));
            asked.ask(other, &Whole);
            assert_eq!(asked.take(one), expected);
            assert_eq!(asked.take(one), [], "answered once");
            assert_eq!(asked.take(other), [Whole]);
        }
    }
}
