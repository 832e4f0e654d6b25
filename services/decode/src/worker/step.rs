//! One step: rows of many sequences through the engine, one token for each that has processed all of its own.

use std::ops::Range;
use std::sync::Arc;

use engine::{RowPlan, Segment};
use shared::Flow;

use crate::guides::GuideFailure;
use crate::scheduler::{SequenceKey, StepPlan, TailPiece};
use crate::worker::active::Active;
use crate::worker::core::{index, widen};
use crate::worker::job::{Drawn, JobState};
use crate::worker::turn::{End, Loop};

/// The buffers of a step, used again.
#[derive(Default)]
pub(super) struct StepBuffers {
    pub(super) plan: StepPlan,
    rows: Vec<RowPlan>,
    parts: Vec<Part>,
}

/// One sequence's share of a step. Its state is lent to the step while it runs.
struct Part {
    key: SequenceKey,
    active: Box<Active>,
    rows: Range<usize>,
    /// None for a decode row.
    piece: Option<TailPiece>,
}

impl Loop {
    /// Computes the planned rows. Says whether there were any that could be computed.
    pub(super) fn step(&mut self, buffers: &mut StepBuffers) -> bool {
        buffers.rows.clear();
        let plan = std::mem::take(&mut buffers.plan);
        for key in &plan.decode {
            self.collect(*key, None, buffers);
        }
        for piece in &plan.tails {
            self.collect(piece.key, Some(*piece), buffers);
        }
        buffers.plan = plan;
        if buffers.parts.is_empty() {
            return false;
        }
        let began = self.core.clock.now();
        let mut segments: Vec<_> = buffers
            .parts
            .iter_mut()
            .map(|part| Segment {
                sequence: &mut part.active.sequence,
                rows: &buffers.rows[part.rows.clone()],
            })
            .collect();
        let logits = self.core.engine.forward(&self.core.slab, &mut segments);
        drop(segments);
        let took = self.core.clock.now().since(began);
        self.core.step_took(took, widen(buffers.rows.len()));
        if buffers.parts.iter().all(|part| part.piece.is_none()) {
            self.core.rates.step(took);
        }
        let mut drawn = 0;
        for part in buffers.parts.drain(..) {
            let draws = buffers.rows[part.rows.clone()].last().is_some_and(|row| row.logits);
            let row = draws.then(|| logits.row(drawn));
            drawn += usize::from(draws);
            self.take_back(part, row);
        }
        assert_eq!(drawn, logits.len(), "every row of logits belongs to a sequence");
        true
    }

    /// Lends a sequence's state to the step, if all its rows have room. Rows without are put off: the scheduler is told
    /// nothing and plans them again.
    fn collect(&mut self, key: SequenceKey, piece: Option<TailPiece>, buffers: &mut StepBuffers) {
        let job = self.jobs.get_mut(&key).expect("a planned sequence has a job");
        let JobState::Active(active) = &mut job.state else {
            panic!("a planned sequence is active");
        };
        let from = active.sequence.processed();
        let to = piece.map_or(from + 1, |piece| piece.to);
        assert!(piece.is_none_or(|piece| piece.from == from), "a piece begins at the next row");
        if !active.make_room(&self.core, to) {
            self.core.stats.rows_stalled += u64::from(to - from);
            return;
        }
        let first = buffers.rows.len();
        buffers.rows.extend((from..to).map(|position| active.row(position)));
        match piece {
            Some(_) => self.core.stats.tail_rows += u64::from(to - from),
            None => self.core.stats.decode_rows += 1,
        }
        let JobState::Active(active) = std::mem::replace(&mut job.state, JobState::Waiting) else {
            unreachable!("matched above");
        };
        buffers.parts.push(Part { key, active, rows: first..buffers.rows.len(), piece });
    }

    /// Gives a sequence its state back: seals, draws, emits, ends.
    fn take_back(&mut self, part: Part, logits: Option<&[f32]>) {
        let Part { key, mut active, piece, .. } = part;
        let job = self.jobs.get_mut(&key).expect("jobs stay while a step runs");
        active.settle(&mut self.core, &mut job.chain);
        job.state = JobState::Active(active);
        let drawn = logits.map(|row| (row, job.draw(row)));
        match (drawn, piece) {
            (None, Some(piece)) => self.scheduler.tail_computed(piece),
            (None, None) => panic!("a decode row has logits"),
            (Some((row, None)), piece) => {
                // The mask is late: the row sits out, and its logits wait for it.
                job.held.extend_from_slice(row);
                self.scheduler.hold(key, piece);
                self.core.stats.rows_held += 1;
            }
            (Some((_, Some(Err(failure)))), _) => self.lose_grammar(key, failure),
            (Some((_, Some(Ok(drawn)))), piece) => {
                match piece {
                    Some(piece) => self.scheduler.tail_computed(piece),
                    None => self.scheduler.decoded(key),
                }
                self.say(key, drawn);
            }
        }
    }

    /// Draws the tokens of rows that waited for a mask that is there now.
    pub(super) fn draw_held(&mut self) {
        let mut drawn = Vec::new();
        for (key, job) in &mut self.jobs {
            if job.held.is_empty() {
                continue;
            }
            let held = std::mem::take(&mut job.held);
            match job.draw(&held) {
                None => job.held = held,
                Some(outcome) => drawn.push((*key, outcome)),
            }
        }
        for (key, outcome) in drawn {
            match outcome {
                Ok(drawn) => {
                    self.scheduler.drawn(key);
                    self.say(key, drawn);
                }
                Err(failure) => self.lose_grammar(key, failure),
            }
        }
    }

    /// Appends a token, tells it, and ends the answer if it was the last.
    fn say(&mut self, key: SequenceKey, drawn: Drawn) {
        let job = self.jobs.get_mut(&key).expect("a drawing sequence has a job");
        let JobState::Active(active) = &mut job.state else {
            panic!("a drawing sequence is active");
        };
        let token = drawn.token;
        job.ids.push(token);
        active.sequence.push(token);
        self.core.stats.tokens += 1;
        assert_eq!(self.scheduler.tokens(key).map(index), Some(job.ids.len()));
        let flow = job.emit(drawn);
        let ending = job.ending();
        match (flow, ending) {
            (Flow::Closed, _) => self.end(key, End::Cancelled),
            (Flow::Open, Some(reason)) => self.end(key, End::Finished(reason)),
            (Flow::Open, None) => {
                if let Some(pool) = &self.guides {
                    let mailbox = Arc::clone(&self.shared.mailbox);
                    job.follow(pool, token, move || mailbox.nudge());
                }
            }
        }
    }

    fn lose_grammar(&mut self, key: SequenceKey, failure: GuideFailure) {
        self.end(key, End::Failed(failure.into_error(0, self.rank())));
    }
}
