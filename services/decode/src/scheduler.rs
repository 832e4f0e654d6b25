//! The decode scheduler: who waits, who starts, who contributes which rows to the next step, who must give way.
//!
//! What it is not: it holds no slot, token or request, knows no thread, clock or engine. `now` goes in, decisions come
//! out; the loop in [`crate::worker`] carries them out and reports back. The virtual-time tests drive the same code.
//!
//! Invariants: reserved blocks never exceed `blocks_max`; every live sequence holds a reservation of at least the blocks
//! its next row needs before that row is planned; a sequence that gives way keeps its reservation until the loop reports
//! its slots back; nobody overtakes in the queue, and preempted sequences stand before all others in order of arrival.
//!
//! A reservation counts blocks, it owns none. A reader outside the worker can hold a slot for a moment after its sequence
//! gave it back, so the loop's allocation for a planned row can fail. The loop then puts the row off: it reports nothing,
//! and the same row is planned again.
//!
//! Start reading at [`Scheduler::admit`], then [`Scheduler::plan`].

mod compose;
mod queue;

use std::collections::BTreeMap;

use shared::{BLOCK_TOKENS, ServeError, Timestamp};

use crate::scheduler::queue::Queue;

/// Names one sequence inside a worker. Ascending in order of arrival: the larger key is the younger sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceKey(pub u64);

/// The bounds a scheduler keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerLimits {
    /// Blocks that live sequences may hold together, at least 1.
    pub blocks_max: u32,
    /// Sequences that may be live (starting, computing a tail, decoding) at the same time, at least 1.
    pub sequences_max: usize,
    /// Requests that may wait without having run yet.
    pub waiting_max: usize,
    /// Decode rows of one step, at least 1.
    pub decode_rows_step_max: usize,
    /// Tail rows of one step, at least 128.
    pub tail_rows_step_max: u32,
    /// The model's context in tokens, prompt and answer together.
    pub context_tokens_max: u32,
}

/// A sequence as it enters the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its name. Larger than all keys before it.
    pub key: SequenceKey,
    /// Tokens known: the prompt and what an earlier worker emitted.
    pub tokens: u32,
    /// Tokens the sequence may grow to, as [`Scheduler::bound`] answered.
    pub tokens_max: u32,
    /// When the answer is worth nothing any more.
    pub deadline: Option<Timestamp>,
}

/// The rows of a start that are still to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailPlan {
    /// Position of the next row. Below the start X while windows are being rebuilt.
    pub next: u32,
    /// One behind the last row: the number of known tokens.
    pub end: u32,
    /// From this boundary on every piece ends at the next multiple of 128, so that windows can be exported there;
    /// pieces below it only end at some multiple of 128. At most `end`.
    pub fine_from: u32,
}

/// Consecutive rows of one tail for one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailPiece {
    /// Whose.
    pub key: SequenceKey,
    /// First row.
    pub from: u32,
    /// One behind the last row.
    pub to: u32,
}

/// What one step computes. Reused from step to step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Sequences that contribute one decode row each, ascending.
    pub decode: Vec<SequenceKey>,
    /// Tail pieces, oldest sequence first.
    pub tails: Vec<TailPiece>,
    /// Sequences that give way now. The loop returns their slots and reports [`Scheduler::released`].
    pub preempt: Vec<SequenceKey>,
}

/// Where a sequence is, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Waiting for its first admission.
    Queued,
    /// Preempted and waiting to go on.
    Preempted,
    /// Admitted; reads or prefill are outstanding.
    Starting,
    /// Computing the rest of its prompt.
    Tail,
    /// Producing tokens.
    Decoding,
    /// Slots are on their way back.
    Leaving,
}

impl Stage {
    /// The word used in messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Preempted => "preempted",
            Self::Starting => "starting",
            Self::Tail => "computing its prompt",
            Self::Decoding => "decoding",
            Self::Leaving => "leaving",
        }
    }
}

/// The scheduler's state. See the module's documentation.
#[derive(Debug)]
pub struct Scheduler {
    limits: SchedulerLimits,
    queue: Queue,
    live: BTreeMap<SequenceKey, Live>,
    blocks_reserved: u32,
    /// The last sequence that contributed a decode row when not all could.
    cursor: Option<SequenceKey>,
    newest: Option<SequenceKey>,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    tokens: u32,
    tokens_max: u32,
    deadline: Option<Timestamp>,
    blocks: u32,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Starting,
    Tail(TailPlan),
    Decoding,
    /// Its last known row is computed, and the token that follows waits for something outside.
    Held,
    /// Gives way; goes back to the queue once its slots are back.
    Yielding,
    /// Over; forgotten once its slots are back.
    Ending,
}

impl Scheduler {
    /// A scheduler without sequences.
    ///
    /// # Panics
    /// When a limit is below its documented minimum.
    #[must_use]
    pub fn new(limits: SchedulerLimits) -> Self {
        assert!(0 < limits.blocks_max, "a worker without blocks serves nothing");
        assert!(0 < limits.sequences_max && 0 < limits.decode_rows_step_max);
        assert!(BLOCK_TOKENS <= limits.tail_rows_step_max, "a tail piece reaches a boundary");
        Self {
            limits,
            queue: Queue::default(),
            live: BTreeMap::new(),
            blocks_reserved: 0,
            cursor: None,
            newest: None,
        }
    }

    /// The tokens a sequence may grow to: the smallest of the caller's bound, the context and what the blocks hold.
    /// The last token of a sequence is never processed, so it needs no room in a block.
    ///
    /// # Errors
    /// `TooLong` when not even one more token fits the context, `NeverFits` when the known tokens need more blocks
    /// than there are.
    pub fn bound(&self, tokens: u32, tokens_max: u32) -> Result<u32, ServeError> {
        if self.limits.context_tokens_max <= tokens {
            return Err(ServeError::TooLong {
                tokens: widen(tokens) + 1,
                tokens_max: widen(self.limits.context_tokens_max),
            });
        }
        let blocks = tokens.div_ceil(BLOCK_TOKENS);
        if self.limits.blocks_max < blocks {
            return Err(ServeError::NeverFits {
                slots: widen(blocks),
                slots_max: widen(self.limits.blocks_max),
            });
        }
        let held = self.limits.blocks_max.saturating_mul(BLOCK_TOKENS).saturating_add(1);
        Ok(tokens_max.min(self.limits.context_tokens_max).min(held))
    }

    /// Puts a sequence at the end of the queue.
    ///
    /// # Errors
    /// `Overloaded` when the queue is full.
    ///
    /// # Panics
    /// When the key is not larger than all before it, or the bound does not come from [`Scheduler::bound`].
    pub fn submit(&mut self, arrival: Arrival) -> Result<(), ServeError> {
        assert!(self.newest < Some(arrival.key), "keys ascend in order of arrival");
        assert!(arrival.tokens < arrival.tokens_max, "at least one token is wanted");
        assert!(arrival.tokens.div_ceil(BLOCK_TOKENS) <= self.limits.blocks_max);
        if self.limits.waiting_max <= self.queue.waiting() {
            return Err(ServeError::Overloaded {
                waiting: self.queue.waiting(),
                waiting_max: self.limits.waiting_max,
                retry_after_ms: RETRY_AFTER_MS,
            });
        }
        self.newest = Some(arrival.key);
        self.queue.push(arrival);
        Ok(())
    }

    /// Takes the head of the queue into work if its known tokens and one more block can be reserved; it is then
    /// starting. Call until `None`.
    pub fn admit(&mut self) -> Option<SequenceKey> {
        let head = *self.queue.head()?;
        let blocks = initial_blocks(&head);
        // Blocks that decoding sequences stall for come first: else a preempted sequence would take back what it gave,
        // and both would wait for ever.
        let needed = blocks.saturating_add(self.blocks_stalled());
        if self.limits.sequences_max <= self.live.len() || self.blocks_free() < needed {
            return None;
        }
        self.queue.pop();
        self.blocks_reserved += blocks;
        let live = Live {
            tokens: head.tokens,
            tokens_max: head.tokens_max,
            deadline: head.deadline,
            blocks,
            phase: Phase::Starting,
        };
        let before = self.live.insert(head.key, live);
        assert!(before.is_none(), "a queued sequence is not live");
        Some(head.key)
    }

    /// Reports that everything a start needs has arrived; its rows are planned from the next step on.
    ///
    /// # Panics
    /// When the sequence is not starting, or the plan does not end at its known tokens.
    pub fn started(&mut self, key: SequenceKey, tail: TailPlan) {
        let live = self.live.get_mut(&key).expect("a starting sequence is live");
        assert_eq!(live.phase, Phase::Starting);
        assert_eq!(tail.end, live.tokens, "a tail ends at the known tokens");
        assert!(tail.next < tail.end && tail.fine_from <= tail.end);
        live.phase = Phase::Tail(tail);
    }

    /// Decides the next step. Reservations for the planned rows are made here; see [`StepPlan::preempt`]. Rows that are
    /// not reported as computed are planned again.
    pub fn plan(&mut self, step: &mut StepPlan) {
        compose::plan(self, step);
        assert!(
            self.blocks_reserved <= self.limits.blocks_max,
            "reservations stay within the pool"
        );
        assert!(step.decode.len() <= self.limits.decode_rows_step_max);
    }

    /// Reports that the rows of a piece were computed. Behind the last piece the sequence has one more token (the one
    /// just drawn) and decodes.
    ///
    /// # Panics
    /// When the piece is not the one planned.
    pub fn tail_computed(&mut self, piece: TailPiece) {
        let live = self.live.get_mut(&piece.key).expect("a planned sequence is live");
        let Phase::Tail(tail) = &mut live.phase else { panic!("only a tail has pieces") };
        assert!(tail.next == piece.from && piece.from < piece.to && piece.to <= tail.end);
        tail.next = piece.to;
        if tail.next == tail.end {
            live.phase = Phase::Decoding;
            live.tokens += 1;
        }
    }

    /// Reports that the last known row of a sequence was computed and the token behind it cannot be drawn yet. Nothing of
    /// it is planned until [`Scheduler::drawn`]; it may have to give way like any other, and then computes the row again.
    /// `piece` is the last of its tail, or none for a decode row.
    ///
    /// # Panics
    /// When the sequence is not where it would have to be.
    pub fn hold(&mut self, key: SequenceKey, piece: Option<TailPiece>) {
        let live = self.live.get_mut(&key).expect("a planned sequence is live");
        match (live.phase, piece) {
            (Phase::Tail(tail), Some(piece)) => {
                assert!(tail.next == piece.from && piece.from < piece.to && piece.to == tail.end);
            }
            (Phase::Decoding, None) => {}
            (phase, piece) => panic!("{phase:?} does not hold behind {piece:?}"),
        }
        live.phase = Phase::Held;
    }

    /// Reports that the token was drawn for which a sequence was held; it decodes again.
    ///
    /// # Panics
    /// When the sequence is not held.
    pub fn drawn(&mut self, key: SequenceKey) {
        let live = self.live.get_mut(&key).expect("a held sequence is live");
        assert_eq!(live.phase, Phase::Held);
        live.phase = Phase::Decoding;
        live.tokens += 1;
        assert!(live.tokens <= live.tokens_max, "a finished sequence decodes no further");
    }

    /// Reports that a decode row was computed and one more token drawn.
    ///
    /// # Panics
    /// When the sequence is not decoding.
    pub fn decoded(&mut self, key: SequenceKey) {
        let live = self.live.get_mut(&key).expect("a planned sequence is live");
        assert_eq!(live.phase, Phase::Decoding);
        live.tokens += 1;
        assert!(live.tokens <= live.tokens_max, "a finished sequence decodes no further");
    }

    /// Ends a sequence: finished, failed or cancelled. One that was waiting is forgotten (`false`); a live one keeps
    /// its reservation until [`Scheduler::released`] (`true`). Ending an unknown or ending sequence changes nothing.
    pub fn end(&mut self, key: SequenceKey) -> bool {
        self.queue.remove(key);
        match self.live.get_mut(&key) {
            Some(live) => {
                live.phase = Phase::Ending;
                true
            }
            None => false,
        }
    }

    /// Reports that all slots of a preempted or ended sequence are back. A preempted one waits again.
    ///
    /// # Panics
    /// When the sequence is neither.
    pub fn released(&mut self, key: SequenceKey) {
        let live = self.live.remove(&key).expect("only a live sequence holds slots");
        self.blocks_reserved -= live.blocks;
        match live.phase {
            Phase::Ending => (),
            Phase::Yielding => self.queue.push_preempted(Arrival {
                key,
                tokens: live.tokens,
                tokens_max: live.tokens_max,
                deadline: live.deadline,
            }),
            Phase::Starting | Phase::Tail(_) | Phase::Decoding | Phase::Held => {
                panic!("slots come back from sequences that leave")
            }
        }
    }

    /// Lists the sequences whose deadline passed, with where they are. The caller ends them.
    pub fn expired(&self, now: Timestamp, expired: &mut Vec<(SequenceKey, Stage)>) {
        expired.clear();
        let passed = |deadline: Option<Timestamp>| deadline.is_some_and(|deadline| deadline <= now);
        for (arrival, stage) in self.queue.iter() {
            if passed(arrival.deadline) {
                expired.push((arrival.key, stage));
            }
        }
        for (key, live) in &self.live {
            if passed(live.deadline) && live.phase != Phase::Ending {
                expired.push((*key, stage_of(live.phase)));
            }
        }
    }

    /// Where a sequence is; none when it is unknown.
    #[must_use]
    pub fn stage(&self, key: SequenceKey) -> Option<Stage> {
        match self.live.get(&key) {
            Some(live) => Some(stage_of(live.phase)),
            None => self.queue.stage(key),
        }
    }

    /// Tokens of a live sequence; none when it is not live.
    #[must_use]
    pub fn tokens(&self, key: SequenceKey) -> Option<u32> {
        self.live.get(&key).map(|live| live.tokens)
    }

    /// Sequences that wait, preempted ones included.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.waiting() + self.queue.preempted()
    }

    /// Sequences that hold a reservation.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Whether a step would compute something: a sequence decodes or has tail rows left.
    #[must_use]
    pub fn has_rows(&self) -> bool {
        self.live.values().any(|live| matches!(live.phase, Phase::Tail(_) | Phase::Decoding))
    }

    /// Blocks that live sequences hold.
    #[must_use]
    pub fn blocks_reserved(&self) -> u32 {
        self.blocks_reserved
    }

    /// Blocks reserved for one sequence; 0 when it is not live.
    #[must_use]
    pub fn blocks_of(&self, key: SequenceKey) -> u32 {
        self.live.get(&key).map_or(0, |live| live.blocks)
    }

    /// Prompt rows accepted and not computed yet; a starting sequence counts with all its tokens.
    #[must_use]
    pub fn pending_rows(&self) -> u64 {
        let queued: u64 = self.queue.iter().map(|(arrival, _)| u64::from(arrival.tokens)).sum();
        let live: u64 = self
            .live
            .values()
            .map(|live| match live.phase {
                Phase::Starting => u64::from(live.tokens),
                Phase::Tail(tail) => u64::from(tail.end - tail.next),
                Phase::Decoding | Phase::Held | Phase::Yielding | Phase::Ending => 0,
            })
            .sum();
        queued + live
    }

    /// Blocks that decoding sequences lack for their next rows, one each.
    fn blocks_stalled(&self) -> u32 {
        let lacking = |live: &&Live| live.phase == Phase::Decoding && live.lacks_block();
        u32::try_from(self.live.values().filter(lacking).count()).unwrap_or(u32::MAX)
    }

    fn blocks_free(&self) -> u32 {
        self.limits.blocks_max - self.blocks_reserved
    }
}

impl Live {
    /// Whether the next decode row, that of the last token at position `tokens - 1`, lies behind the reservation.
    fn lacks_block(&self) -> bool {
        self.blocks <= (self.tokens - 1) / BLOCK_TOKENS
    }
}

/// What a client is told to wait when the queue is full: the order of a short answer's time; only a hint.
pub(crate) const RETRY_AFTER_MS: u64 = 1_000;

fn stage_of(phase: Phase) -> Stage {
    match phase {
        Phase::Starting => Stage::Starting,
        Phase::Tail(_) => Stage::Tail,
        Phase::Decoding | Phase::Held => Stage::Decoding,
        Phase::Yielding | Phase::Ending => Stage::Leaving,
    }
}

/// Blocks of the known tokens and one more, but never more than the sequence can ever fill.
fn initial_blocks(arrival: &Arrival) -> u32 {
    let known = arrival.tokens.div_ceil(BLOCK_TOKENS);
    let ever = (arrival.tokens_max - 1).div_ceil(BLOCK_TOKENS);
    (known + 1).min(ever.max(known))
}

fn widen(value: u32) -> usize {
    usize::try_from(value).expect("usize holds 32 bits on every supported target")
}

#[cfg(test)]
mod tests;
