//! What the router is to be told of one member and does not know yet, because its queue was full.

use std::collections::VecDeque;

use router::{DrainSource, Role};
use shared::WorkerRank;

use crate::wiring::parts::{DrainWord, Told};

/// Tells the router something, unless it has no room: then false.
pub(super) type Tell<'a> = &'a dyn Fn(Told) -> bool;

/// Most words that wait: a leave makes all before it void, a join stands behind it, its end behind that.
const WORDS_MAX: usize = 3;

/// Words that wait, in the order in which they are to be told.
#[derive(Debug, Default)]
pub(super) struct Owed(VecDeque<Word>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Left,
    Joined(Role),
    Interrupted,
    Ends,
}

impl Owed {
    /// The member left; whatever was to be told of it before is over.
    pub(super) fn left(&mut self) {
        self.0.clear();
        self.push(Word::Left);
    }

    /// It joined.
    pub(super) fn joined(&mut self, role: Role) {
        self.push(Word::Joined(role));
    }

    /// Discovery says that it is about to end, which the router forgets with a leave.
    pub(super) fn ends(&mut self) {
        self.push(Word::Ends);
    }

    /// Its events begin anew. Of one that joins here nothing is known that could be wrong.
    pub(super) fn interrupted(&mut self) {
        if !self.0.iter().any(|word| matches!(word, Word::Joined(_) | Word::Interrupted)) {
            self.push(Word::Interrupted);
        }
    }

    /// Tells as much as there is room for. Whether nothing is left.
    pub(super) fn tell(&mut self, worker: WorkerRank, tell: Tell<'_>) -> bool {
        while let Some(word) = self.0.front() {
            if !tell(word.of(worker)) {
                return false;
            }
            self.0.pop_front();
        }
        true
    }

    fn push(&mut self, word: Word) {
        self.0.push_back(word);
        assert!(self.0.len() <= WORDS_MAX, "{:?}", self.0);
    }
}

impl Word {
    fn of(self, worker: WorkerRank) -> Told {
        match self {
            Self::Left => Told::Left(worker),
            Self::Joined(role) => Told::Joined(worker, role),
            Self::Interrupted => Told::Interrupted(worker),
            Self::Ends => ending(worker),
        }
    }
}

/// What the router is told of a member that discovery says is about to end. It goes when discovery says that it is gone.
pub(super) fn ending(worker: WorkerRank) -> Told {
    Told::Drain(worker, DrainSource::Discovery, DrainWord::Begin(None))
}
