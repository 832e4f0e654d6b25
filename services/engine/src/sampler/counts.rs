//! How often an answer has emitted each token.

use std::collections::HashMap;

use shared::{Sampling, TokenId};

/// Counts of the tokens of one answer. At most one entry per token of the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts(HashMap<TokenId, u32>);

impl TokenCounts {
    /// The counts of what was emitted so far.
    #[must_use]
    pub fn of(emitted: &[TokenId]) -> Self {
        let mut counts = Self::default();
        emitted.iter().for_each(|token| counts.note(*token));
        counts
    }

    /// Whether a request needs counts at all.
    #[must_use]
    pub fn matter(sampling: &Sampling) -> bool {
        sampling.frequency_penalty != 0.0 || sampling.presence_penalty != 0.0
    }

    /// Counts one more token.
    pub fn note(&mut self, token: TokenId) {
        *self.0.entry(token).or_insert(0) += 1;
    }

    /// Takes the penalties from the scores, each token by itself: the order of the map does not matter.
    pub(super) fn penalise(&self, scores: &mut [f64], sampling: &Sampling) {
        let presence = f64::from(sampling.presence_penalty);
        let frequency = f64::from(sampling.frequency_penalty);
        for (token, count) in &self.0 {
            if let Some(score) = scores.get_mut(token.index()) {
                *score -= presence + frequency * f64::from(*count);
            }
        }
    }
}
