//! Who says that a worker drains, and until when it may. A worker drains while anybody says so.

use shared::Timestamp;

/// Who says that a worker drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DrainSource {
    /// The worker, by its reports or by refusing a request. It can say the contrary.
    Worker,
    /// An operator, until the operator says the contrary; remembered while the worker is away.
    Operator,
    /// The source of members: it is about to end the worker.
    Discovery,
}

impl DrainSource {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Worker, Self::Operator, Self::Discovery];

    /// The word used in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Operator => "operator",
            Self::Discovery => "discovery",
        }
    }
}

/// The end of the drain that each source asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drains([Option<Timestamp>; DrainSource::ALL.len()]);

impl Drains {
    /// Takes a word. The first end of each source stays, unless a later word brings an earlier one.
    pub(super) fn begin(&mut self, by: DrainSource, until: Timestamp) {
        let end = self.of(by);
        *end = Some(end.map_or(until, |before| before.min(until)));
    }

    /// Takes the contrary word. False when this source had said nothing.
    pub(super) fn end(&mut self, by: DrainSource) -> bool {
        self.of(by).take().is_some()
    }

    /// The first source that says so.
    pub(super) fn by(&self) -> Option<DrainSource> {
        let told = DrainSource::ALL.into_iter().zip(self.0);
        told.filter(|(_, until)| until.is_some()).map(|(by, _)| by).next()
    }

    /// When the worker has to be done.
    pub(super) fn until(&self) -> Option<Timestamp> {
        self.0.into_iter().flatten().min()
    }

    /// What stays of it for a worker that left: an operator's word, while its end has not come.
    pub(super) fn remembered(mut self, now: Timestamp) -> Self {
        let operator = self.of(DrainSource::Operator).filter(|until| now < *until);
        let mut stays = Self::default();
        *stays.of(DrainSource::Operator) = operator;
        stays
    }

    fn of(&mut self, by: DrainSource) -> &mut Option<Timestamp> {
        match by {
            DrainSource::Worker => &mut self.0[0],
            DrainSource::Operator => &mut self.0[1],
            DrainSource::Discovery => &mut self.0[2],
        }
    }
}
