//! A request that is placed by who submits it: the router's decision is a function of its state and the time, so it does not matter
//! on which thread it is made, and waking the placement thread and being woken by it takes several times as long as deciding.

use std::collections::VecDeque;
use std::thread;

use shared::ServeError;

use super::mailbox::{Letter, Sleeper};
use super::{PERIOD, Placement, refuse_all};

impl Placement {
    /// Has a request placed before this returns, or queued, and returns none; gives it back when the thread has to do that: when it is awake, when
    /// requests wait, or when something that may take long is to be read first. Never waits for another thread; takes as long
    /// as the decision, and a few dozen short words before it.
    pub(super) fn place_here(&self, letter: Letter) -> Option<Letter> {
        // Declared before the lock, so that it is given back first.
        let _end = EndOnPanic(self);
        let Some(mut state) = self.state.try_lock() else { return Some(letter) };
        let mut letters = VecDeque::new();
        if !self.mailbox.take_idle(&mut letters) {
            return Some(letter);
        }
        letters.push_back(letter);
        while let Some(letter) = letters.pop_front() {
            state.read(letter);
        }
        let rest = state.rest();
        drop(state);
        if rest != (PERIOD, Sleeper::Idle) {
            // It sleeps for too long, or not for what is to be watched now.
            self.mailbox.hurry();
        }
        None
    }
}

/// A broken invariant of the router ends placement, on whichever thread it shows.
struct EndOnPanic<'a>(&'a Placement);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let error = ServeError::NoWorker { role: "placement" };
            refuse_all(&self.0.mailbox, &self.0.state, &error);
        }
    }
}
