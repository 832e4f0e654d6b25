//! The answers to one request, side by side: one for most requests, several when the client asked for more.
//!
//! Answers to the same prompt begin once the first of them found its prompt processed, so that the others find its blocks
//! instead of computing them again.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{AbortHandle, Abortable, BoxStream, SelectAll, unfold};
use shared::{RequestId, ServeError};

use crate::alarm::Alarm;
use crate::answer::{Answer, Bill, End, Step};
use crate::dispatch::{Session, Word};
use crate::output::Delta;

/// What happened to one of the answers.
#[derive(Debug)]
pub(crate) enum Happened {
    Began(usize),
    Shown(usize, Delta),
    Ended(usize, Delta, End),
    /// Of the whole request: one answer that cannot be given fails all.
    Failed(ServeError),
    /// Too many events of one answer waited; its worker was told to stop.
    Overflow,
}

/// A run before it begins.
pub(crate) struct Run {
    pub(crate) session: Session,
    pub(crate) answer: Answer,
    pub(crate) id: RequestId,
    pub(crate) prompt_index: usize,
}

/// All runs of one request. Dropping it cancels their chains.
pub(crate) struct Runs {
    alarm: Arc<Alarm>,
    answers: Vec<Answer>,
    /// By prompt, in order; those of a prompt whose first run has not begun.
    waiting: Vec<(usize, usize, Session)>,
    running: SelectAll<Abortable<BoxStream<'static, (usize, Word)>>>,
    /// Ends a run whose answer ended, and with it its worker's work.
    handles: Vec<Option<AbortHandle>>,
    prompts: Vec<usize>,
    id: RequestId,
    left: usize,
}

impl Runs {
    /// Runs with the alarm that rings when one of them overflowed. Not empty; those of one prompt are neighbours.
    pub(crate) fn new(runs: Vec<Run>, alarm: Arc<Alarm>) -> Self {
        let first = runs.first().expect("a request has an answer");
        let mut all = Self {
            alarm,
            answers: Vec::with_capacity(runs.len()),
            waiting: Vec::new(),
            running: SelectAll::new(),
            handles: Vec::with_capacity(runs.len()),
            prompts: runs.iter().map(|run| run.prompt_index).collect(),
            id: first.id,
            left: runs.len(),
        };
        let mut last_prompt = None;
        for (index, run) in runs.into_iter().enumerate() {
            all.answers.push(run.answer);
            all.handles.push(None);
            if last_prompt.replace(run.prompt_index) == Some(run.prompt_index) {
                all.waiting.push((run.prompt_index, index, run.session));
            } else {
                all.start(index, run.session);
            }
        }
        all
    }

    /// Rings when a worker was stopped because too many events waited.
    pub(crate) fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// The request's id.
    pub(crate) fn id(&self) -> RequestId {
        self.id
    }

    /// How many answers there are.
    pub(crate) fn count(&self) -> usize {
        self.answers.len()
    }

    /// Whether all answers ended.
    pub(crate) fn is_done(&self) -> bool {
        self.left == 0
    }

    pub(crate) fn bill(&self, index: usize) -> Bill {
        self.answers[index].bill()
    }

    /// What all answers cost together.
    pub(crate) fn total(&self) -> Bill {
        let bills: Vec<Bill> = self.answers.iter().map(Answer::bill).collect();
        Bill::total(&bills)
    }

    /// Waits for the next thing that happens. Not to be called after the end, a failure or an overflow. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Happened {
        loop {
            let Some((index, word)) = self.running.next().await else {
                let message = "a run ended without a last word".into();
                return Happened::Failed(ServeError::Internal { message });
            };
            // What an ended run still had to say is nothing to anybody.
            if self.handles[index].is_none() {
                continue;
            }
            let Word::Event(event) = word else { return Happened::Overflow };
            return match self.answers[index].take(event) {
                Step::Began => {
                    self.start_siblings(index);
                    Happened::Began(index)
                }
                Step::Shown(delta) => Happened::Shown(index, delta),
                Step::Ended(delta, end) => {
                    self.finish(index);
                    Happened::Ended(index, delta, end)
                }
                Step::Failed(error) => Happened::Failed(error),
            };
        }
    }

    fn finish(&mut self, index: usize) {
        if let Some(handle) = self.handles[index].take() {
            handle.abort();
        }
        self.left -= 1;
        if self.left == 0 {
            // The worker need not wait until the client took the last event.
            self.running.clear();
        }
        self.start_siblings(index);
    }

    fn start_siblings(&mut self, index: usize) {
        let prompt = self.prompts[index];
        let begun = self.waiting.iter().position(|(other, ..)| *other == prompt);
        let Some(begun) = begun else { return };
        let count = self.waiting[begun..].iter().take_while(|(other, ..)| *other == prompt).count();
        let siblings: Vec<_> = self.waiting.drain(begun..begun + count).collect();
        for (_, index, session) in siblings {
            self.start(index, session);
        }
    }

    fn start(&mut self, index: usize, session: Session) {
        let words = unfold(session, move |mut session| async move {
            let word = session.next().await;
            Some(((index, word), session))
        });
        let (handle, registration) = AbortHandle::new_pair();
        self.running.push(Abortable::new(words.boxed(), registration));
        self.handles[index] = Some(handle);
    }
}
