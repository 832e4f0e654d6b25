//! One answer on its way through its grammar: the automaton of trigger, bound and bar, then the grammar itself.

use std::collections::VecDeque;
use std::sync::Arc;

use llguidance::{CancellationHandle, Matcher};
use shared::{Constraint, TokenId};

use super::compile::SharedCompiled;
use super::mask::TokenMask;

/// Why a guide cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuideError {
    /// A token was emitted that was not possible. Of another grammar, or a fault of ours.
    #[error("token {token} does not follow the grammar at this place")]
    Foreign {
        /// The token.
        token: TokenId,
    },
    /// The grammar went beyond one of its limits.
    #[error("the grammar became too complex: {reason}; simplify it")]
    TooComplex {
        /// What llguidance says.
        reason: String,
    },
    /// More tokens were to be taken back than are remembered. The guide is as it was.
    #[error("{tokens} tokens cannot be taken back, the last {remembered} can")]
    Forgotten {
        /// How many were to be taken back.
        tokens: usize,
        /// How many can be.
        remembered: usize,
    },
    /// No token at all is possible.
    #[error("no token follows the grammar at this place; simplify it")]
    DeadEnd,
}

/// Stops a call of a guide from another thread, which then ends with an error soon: its loops look for it. The guide is of
/// no use afterwards.
#[derive(Clone, Debug)]
pub struct Stopper(CancellationHandle);

impl Stopper {
    /// Asks the call to end. Does not wait for it.
    pub fn stop(&self) {
        self.0.cancel();
    }
}

/// Most tokens that a guide takes back. The engine rolls back by 12 at most, two verify steps; the rest costs a kilobyte.
const ROLL_BACK_TOKENS_MAX: usize = 64;

/// The state of one answer. See [`Constraint`] for what trigger, bound and barred mean.
pub struct Guide {
    matcher: Matcher,
    stopper: Stopper,
    constraint: Arc<Constraint>,
    /// For each length of a part of the trigger, the longest shorter one that ends it as well.
    borders: Vec<usize>,
    stage: Stage,
    /// The stages before each of the last tokens, oldest first; at most [`ROLL_BACK_TOKENS_MAX`].
    past: VecDeque<Stage>,
    end: TokenId,
    vocabulary: usize,
    mask: TokenMask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// This much of the trigger was just emitted.
    Free(usize),
    /// The token of the trigger that must come next.
    Forced(usize),
    Grammar,
    /// The end was emitted.
    Over,
}

impl Guide {
    /// The guide of a new answer of `constraint`, whose grammar is `compiled`, over a vocabulary of so many tokens of
    /// which `end` ends an answer. Its mask is that of the first token after [`Guide::refresh`].
    #[must_use]
    pub fn new(
        constraint: Arc<Constraint>,
        compiled: &SharedCompiled,
        vocabulary: usize,
        end: TokenId,
    ) -> Self {
        let matcher = compiled.matcher();
        let handle =
            matcher.cancellation_handle().expect("a matcher of a compiled grammar has one");
        let stage = if constraint.trigger.is_empty() { Stage::Grammar } else { Stage::Free(0) };
        Self {
            matcher,
            stopper: Stopper(handle),
            borders: borders(&constraint.trigger),
            constraint,
            stage,
            past: VecDeque::with_capacity(ROLL_BACK_TOKENS_MAX),
            end,
            vocabulary,
            mask: TokenMask::AllBut(vec![end]),
        }
    }

    /// What stops a call of this guide.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// The tokens that are possible next, as of the last [`Guide::refresh`].
    #[must_use]
    pub fn mask(&self) -> &TokenMask {
        &self.mask
    }

    /// Takes the next token of the answer. Usually microseconds, and as long as a mask at the worst.
    ///
    /// # Errors
    /// When the token was not possible.
    pub fn advance(&mut self, token: TokenId) -> Result<(), GuideError> {
        let trigger = &self.constraint.trigger;
        let next = match self.stage {
            Stage::Free(_) if self.constraint.barred == Some(token) => {
                return Err(GuideError::Foreign { token });
            }
            Stage::Free(_) if self.constraint.bound == Some(token) => Stage::Forced(0),
            Stage::Free(mut matched) => {
                while 0 < matched && trigger[matched] != token {
                    matched = self.borders[matched - 1];
                }
                matched += usize::from(trigger[matched] == token);
                if matched == trigger.len() { Stage::Grammar } else { Stage::Free(matched) }
            }
            Stage::Forced(next) => {
                if trigger[next] != token {
                    return Err(GuideError::Foreign { token });
                }
                if next + 1 == trigger.len() { Stage::Grammar } else { Stage::Forced(next + 1) }
            }
            Stage::Grammar if token == self.end => {
                let complete =
                    self.matcher.is_stopped() || self.matcher.is_accepting().unwrap_or(false);
                if !complete {
                    return Err(GuideError::Foreign { token });
                }
                Stage::Over
            }
            Stage::Grammar => {
                self.matcher.consume_token(token.0).map_err(|error| self.failure(token, &error))?;
                Stage::Grammar
            }
            Stage::Over => Stage::Over,
        };
        if self.past.len() == ROLL_BACK_TOKENS_MAX {
            self.past.pop_front();
        }
        self.past.push_back(self.stage);
        self.stage = next;
        Ok(())
    }

    /// Takes back the last tokens, as if they had never been taken: for speculation, where some are found to be none of the
    /// answer. Not called by the decode worker so far, which does not speculate. Microseconds; the mask is old until the next
    /// [`Guide::refresh`].
    ///
    /// # Errors
    /// When it took fewer tokens than that, or does not remember so many (64), or when the grammar cannot go back.
    pub fn roll_back(&mut self, tokens: usize) -> Result<(), GuideError> {
        let remembered = self.past.len();
        let Some(kept) = remembered.checked_sub(tokens) else {
            return Err(GuideError::Forgotten { tokens, remembered });
        };
        let Some(first) = self.past.get(kept).copied() else { return Ok(()) };
        // The grammar knows of the tokens that it was shown: those between two of its own stages.
        let after = self.past.range(kept + 1..).chain([&self.stage]);
        let shown = self.past.range(kept..).zip(after);
        let shown = shown.filter(|pair| *pair == (&Stage::Grammar, &Stage::Grammar)).count();
        self.matcher
            .rollback(shown)
            .map_err(|error| GuideError::TooComplex { reason: one_line(&error) })?;
        self.past.truncate(kept);
        self.stage = first;
        Ok(())
    }

    /// Computes the mask of the next token. Usually microseconds; the bound is the limits of the compiler, and
    /// [`Stopper::stop`] for what they do not see.
    ///
    /// # Errors
    /// When the grammar goes beyond its limits, or nothing is possible.
    pub fn refresh(&mut self) -> Result<(), GuideError> {
        self.mask = match self.stage {
            Stage::Free(_) => {
                let barred = self.constraint.barred;
                TokenMask::AllBut(std::iter::once(self.end).chain(barred).collect())
            }
            Stage::Forced(next) => TokenMask::Only(self.constraint.trigger[next]),
            Stage::Over => TokenMask::AllBut(Vec::new()),
            Stage::Grammar => {
                let too_complex =
                    |error: &dyn ToString| GuideError::TooComplex { reason: one_line(error) };
                let set =
                    self.matcher.compute_mask_or_eos().map_err(|error| too_complex(&error))?;
                if set.is_zero() {
                    return Err(GuideError::DeadEnd);
                }
                let words = self.vocabulary.div_ceil(32);
                TokenMask::Set(set.as_slice()[..words.min(set.as_slice().len())].to_vec())
            }
        };
        Ok(())
    }

    fn failure(&self, token: TokenId, error: &impl ToString) -> GuideError {
        if self.matcher.stop_reason().is_ok() {
            return GuideError::Foreign { token };
        }
        let reason = one_line(error);
        if reason.contains("doesn't satisfy") {
            GuideError::Foreign { token }
        } else {
            GuideError::TooComplex { reason }
        }
    }
}

/// Source: the failure function of Knuth, Morris and Pratt.
fn borders(trigger: &[TokenId]) -> Vec<usize> {
    let mut borders = vec![0; trigger.len()];
    for end in 1..trigger.len() {
        let mut border = borders[end - 1];
        while 0 < border && trigger[border] != trigger[end] {
            border = borders[border - 1];
        }
        borders[end] = border + usize::from(trigger[border] == trigger[end]);
    }
    borders
}

/// The first line of an error's text, cut where it becomes too long.
fn one_line(error: &dyn ToString) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line[..line.floor_char_boundary(200)].to_owned()
}
