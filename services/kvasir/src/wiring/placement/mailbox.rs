//! What reaches the placement thread: requests and looks in one queue, what members say in another, both bounded.
//!
//! The thread is woken for what somebody waits for. What only has to be known before the next request is placed (that a
//! request ended, how one fares) waits until then, or for one sleep of the thread: a thread that is woken three times more
//! for each request takes the processor from those that answer it.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use shared::{PlaceEvent, PlaceRequest, RequestId, Sink};

use super::{Look, Seat, Told};

/// What members said that is looked at before the requests that wait: a request stands behind this much at most, however
/// much a member has to tell.
const TOLD_PER_TURN: usize = 16;
/// Letters without hurry that wake the thread together: few enough to be read in the time of a placement.
const UNHURRIED_MAX: usize = 32;

/// One thing for the thread.
pub(super) enum Letter {
    Submit(PlaceRequest, Box<dyn Sink<PlaceEvent>>),
    Finished(RequestId, Seat),
    Look(Look),
    Told(Told),
}

/// What became of a letter.
#[must_use = "a letter that was not taken comes back"]
pub(super) enum Sent {
    /// The thread will read it.
    Taken,
    /// Its queue is full.
    Full(Letter),
    /// The thread has ended.
    Ended(Letter),
}

/// The queues. Shared by the thread and by those who write to it; nobody holds the lock while computing.
pub(super) struct Mailbox {
    letters: Mutex<Letters>,
    came: Condvar,
    commands_max: usize,
    told_max: usize,
    looks_max: usize,
}

#[derive(Default)]
struct Letters {
    /// Requests, their ends, and looks.
    commands: VecDeque<Letter>,
    told: VecDeque<Letter>,
    looks: usize,
    unhurried: usize,
    sleeper: Sleeper,
    stopped: bool,
    ended: bool,
}

/// What the thread does, or waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sleeper {
    #[default]
    Awake,
    /// Nothing that it knows waits.
    Idle,
    /// Requests wait for a worker: whatever comes may make room.
    Watching,
}

impl Letter {
    /// Whether nobody waits for it to be read.
    fn is_unhurried(&self) -> bool {
        matches!(self, Self::Finished(..) | Self::Told(Told::Outcome(..)))
    }
}

impl Mailbox {
    /// For at most this many requests and their ends, words of members, and looks.
    pub(super) fn new(commands_max: usize, told_max: usize, looks_max: usize) -> Self {
        let letters = Mutex::new(Letters::default());
        Self { letters, came: Condvar::new(), commands_max, told_max, looks_max }
    }

    /// Writes to the thread. Does not wait for it.
    pub(super) fn put(&self, letter: Letter) -> Sent {
        let mut letters = self.letters.lock();
        if letters.ended {
            return Sent::Ended(letter);
        }
        let full = match &letter {
            Letter::Told(_) => self.told_max <= letters.told.len(),
            Letter::Look(_) => self.looks_max <= letters.looks,
            // Looks are in the same queue and take no place of a request.
            _ => self.commands_max <= letters.commands.len() - letters.looks,
        };
        if full {
            return Sent::Full(letter);
        }
        letters.looks += usize::from(matches!(letter, Letter::Look(_)));
        letters.unhurried += usize::from(letter.is_unhurried());
        let wakes = match letters.sleeper {
            Sleeper::Awake => false,
            Sleeper::Watching => true,
            Sleeper::Idle => !letter.is_unhurried() || UNHURRIED_MAX <= letters.unhurried,
        };
        match letter {
            Letter::Told(_) => letters.told.push_back(letter),
            _ => letters.commands.push_back(letter),
        }
        self.wake_if(wakes, letters);
        Sent::Taken
    }

    /// Has the thread read what is there.
    pub(super) fn hurry(&self) {
        let letters = self.letters.lock();
        let sleeps = letters.sleeper != Sleeper::Awake;
        self.wake_if(sleeps, letters);
    }

    /// Ends [`Self::take`] from now on.
    pub(super) fn stop(&self) {
        let mut letters = self.letters.lock();
        letters.stopped = true;
        let sleeps = letters.sleeper != Sleeper::Awake;
        self.wake_if(sleeps, letters);
    }

    fn wake_if(&self, wakes: bool, mut letters: parking_lot::MutexGuard<'_, Letters>) {
        if wakes {
            letters.sleeper = Sleeper::Awake;
            drop(letters);
            self.came.notify_one();
        }
    }

    /// Moves the next letters to `read`, which is empty, in the order in which to read them; sleeps until there are any, for
    /// `wait_max` at most. `sleeper` says what may wake it. False once the thread is to stop.
    pub(super) fn take(
        &self,
        read: &mut VecDeque<Letter>,
        wait_max: Duration,
        sleeper: Sleeper,
    ) -> bool {
        let mut letters = self.letters.lock();
        if letters.is_empty() && !letters.stopped {
            letters.sleeper = sleeper;
            // Who wakes it says so first, so that one wait is enough; whatever else ends it makes it look too early.
            let _timed_out = self.came.wait_for(&mut letters, wait_max);
            letters.sleeper = Sleeper::Awake;
        }
        // Who looks sees what was told before.
        let turn_max = if letters.looks == 0 { TOLD_PER_TURN } else { letters.told.len() };
        let turn = letters.told.len().min(turn_max);
        read.extend(letters.told.drain(..turn));
        read.append(&mut letters.commands);
        letters.looks = 0;
        letters.unhurried = 0;
        !letters.stopped
    }

    /// Moves the letters to `read`, which is empty, in the order in which to read them, if the thread sleeps, no request waits,
    /// and none of them is one that the thread is woken for. Otherwise it does nothing and says false.
    pub(super) fn take_idle(&self, read: &mut VecDeque<Letter>) -> bool {
        let mut letters = self.letters.lock();
        let unread = letters.commands.len() + letters.told.len();
        let asleep = letters.sleeper == Sleeper::Idle && !letters.stopped && !letters.ended;
        if !asleep || unread != letters.unhurried {
            return false;
        }
        read.append(&mut letters.told);
        read.append(&mut letters.commands);
        letters.unhurried = 0;
        true
    }

    /// Takes nothing more, ends [`Self::take`], and gives what was not read.
    pub(super) fn end(&self) -> Vec<Letter> {
        let mut letters = self.letters.lock();
        (letters.ended, letters.stopped) = (true, true);
        let sleeps = letters.sleeper != Sleeper::Awake;
        let told = std::mem::take(&mut letters.told);
        let unread = std::mem::take(&mut letters.commands).into_iter().chain(told).collect();
        self.wake_if(sleeps, letters);
        unread
    }
}

impl Letters {
    fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.told.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use shared::{DpRank, LegOutcome, RequestId, WorkerId, WorkerRank};

    use super::{Letter, Mailbox, Seat, Sent, Sleeper, TOLD_PER_TURN, Told};

    const WORKER: WorkerRank = WorkerRank { worker: WorkerId(1), rank: DpRank(0) };

    fn finished(id: u128) -> Letter {
        let seats = Arc::new(AtomicUsize::new(0));
        Letter::Finished(RequestId(id), Seat::take(&seats, 1).unwrap())
    }

    fn look() -> Letter {
        Letter::Look(Box::new(|_, _| ()))
    }

    fn outcome() -> Letter {
        Letter::Told(Told::Outcome(RequestId(1), WORKER, LegOutcome::Draining))
    }

    fn is_taken(sent: &Sent) -> bool {
        matches!(sent, Sent::Taken)
    }

    fn is_full(sent: &Sent) -> bool {
        matches!(sent, Sent::Full(_))
    }

    #[test]
    fn each_kind_has_its_own_bound() {
        let mailbox = Mailbox::new(2, 3, 1);
        for _ in 0..2 {
            assert!(is_taken(&mailbox.put(finished(1))));
        }
        assert!(is_taken(&mailbox.put(look())));
        assert!(is_full(&mailbox.put(finished(2))));
        assert!(is_full(&mailbox.put(look())));
        for _ in 0..3 {
            assert!(is_taken(&mailbox.put(outcome())));
        }
        assert!(is_full(&mailbox.put(outcome())));
        let mut read = VecDeque::new();
        assert!(mailbox.take(&mut read, Duration::MAX, Sleeper::Idle));
        assert_eq!(read.len(), 6);
        assert!(is_taken(&mailbox.put(finished(3))) && is_taken(&mailbox.put(look())));
    }

    #[test]
    fn a_request_stands_behind_a_bounded_number_of_words() {
        let mailbox = Mailbox::new(1, 1_000, 1);
        for _ in 0..100 {
            assert!(is_taken(&mailbox.put(outcome())));
        }
        assert!(is_taken(&mailbox.put(finished(1))));
        let mut read = VecDeque::new();
        assert!(mailbox.take(&mut read, Duration::MAX, Sleeper::Idle));
        assert_eq!(read.len(), TOLD_PER_TURN + 1);
        assert!(matches!(read.pop_back(), Some(Letter::Finished(..))));
    }

    #[test]
    fn short_words_are_taken_from_a_sleeper_and_nothing_else() {
        let mailbox = Mailbox::new(8, 8, 8);
        let mut read = VecDeque::new();
        assert!(!mailbox.take_idle(&mut read), "nobody sleeps yet");
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let mut read = VecDeque::new();
                while mailbox.take(&mut read, Duration::from_secs(3_600), Sleeper::Idle) {}
                read.len()
            });
            while !mailbox.take_idle(&mut read) {
                std::thread::yield_now();
            }
            assert!(is_taken(&mailbox.put(finished(1))) && is_taken(&mailbox.put(outcome())));
            assert!(mailbox.take_idle(&mut read) && read.len() == 2);
            assert!(is_taken(&mailbox.put(look())), "which wakes the sleeper");
            mailbox.stop();
            assert_eq!(sleeper.join().unwrap(), 1);
        });
        assert!(!mailbox.take_idle(&mut read), "it stopped");
    }

    #[test]
    fn whoever_stops_or_hurries_a_sleeper_wakes_it_and_the_end_gives_back_what_is_left() {
        let mailbox = Mailbox::new(8, 8, 8);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let mut read = VecDeque::new();
                let mut turns = 0;
                while mailbox.take(&mut read, Duration::from_secs(3_600), Sleeper::Watching) {
                    turns += read.drain(..).count();
                }
                turns + read.len()
            });
            // Requests wait, so an end wakes it, asleep or not.
            assert!(is_taken(&mailbox.put(finished(1))));
            mailbox.hurry();
            mailbox.stop();
            assert_eq!(sleeper.join().unwrap(), 1);
        });
        assert!(is_taken(&mailbox.put(finished(2))));
        assert_eq!(mailbox.end().len(), 1);
        assert!(matches!(mailbox.put(finished(3)), Sent::Ended(_)));
    }
}
