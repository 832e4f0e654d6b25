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

/// What each source says: none, or by when the worker has to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drains {
    words: [Option<Timestamp>; DrainSource::ALL.len()],
    /// The first of these times has come: nothing is left there to wait for, however long the drain goes on.
    is_over: bool,
}

impl Drains {
    /// Takes a word. The first end of each source stays, unless a later word brings an earlier one.
    pub(super) fn begin(&mut self, by: DrainSource, until: Timestamp) {
        let end = self.of(by);
        *end = Some(end.map_or(until, |before| before.min(until)));
    }

    /// Takes the contrary word. False when this source had said nothing.
    pub(super) fn end(&mut self, by: DrainSource) -> bool {
        let said = self.of(by).take().is_some();
        self.is_over &= self.by().is_some();
        said
    }

    /// The first source that says so.
    pub(super) fn by(&self) -> Option<DrainSource> {
        let told = DrainSource::ALL.into_iter().zip(self.words);
        told.filter(|(_, until)| until.is_some()).map(|(by, _)| by).next()
    }

    /// When the worker has to be done; none once that was.
    pub(super) fn until(&self) -> Option<Timestamp> {
        let first = self.words.into_iter().flatten().min();
        first.filter(|_| !self.is_over)
    }

    /// Whether the worker has to be done now. True once: it drains on, and nobody waits for it any more.
    pub(super) fn is_cut_off(&mut self, now: Timestamp) -> bool {
        let cut_off = self.until().is_some_and(|until| until <= now);
        self.is_over |= cut_off;
        cut_off
    }

    /// What stays of it for a worker that left: an operator's word, until the operator takes it back. What ran there went with the
    /// worker, so a time that has come cuts nothing off.
    pub(super) fn remembered(mut self, now: Timestamp) -> Self {
        let operator = *self.of(DrainSource::Operator);
        let is_over = operator.is_some_and(|until| self.is_over || until <= now);
        let mut stays = Self { is_over, ..Self::default() };
        *stays.of(DrainSource::Operator) = operator;
        stays
    }

    fn of(&mut self, by: DrainSource) -> &mut Option<Timestamp> {
        match by {
            DrainSource::Worker => &mut self.words[0],
            DrainSource::Operator => &mut self.words[1],
            DrainSource::Discovery => &mut self.words[2],
        }
    }
}
