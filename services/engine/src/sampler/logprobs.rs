//! Log probabilities of the true distribution.

use shared::{TokenId, TokenLogprobs};

/// The log probability of an emitted token and those of the `alternatives` most probable ones, in the softmax of the logits
/// as the model gave them: before temperature, cuts, penalties, biases and grammar.
///
/// # Panics
/// When the token is not of the vocabulary.
#[must_use]
pub fn logprobs(logits: &[f32], token: TokenId, alternatives: u8) -> TokenLogprobs {
    let maximum = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let maximum = f64::from(maximum);
    let total: f64 = logits.iter().map(|logit| (f64::from(*logit) - maximum).exp()).sum();
    let normaliser = maximum + total.ln();
    let logprob = |index: usize| to_f32(f64::from(logits[index]) - normaliser);
    let wanted = usize::from(alternatives).min(logits.len());
    let mut order: Vec<usize> = (0..logits.len()).collect();
    let descending =
        |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then_with(|| a.cmp(b));
    if 0 < wanted && wanted < order.len() {
        order.select_nth_unstable_by(wanted - 1, descending);
    }
    order.truncate(wanted);
    order.sort_unstable_by(descending);
    let id = |index: usize| TokenId(u32::try_from(index).expect("ids of tokens have 32 bits"));
    let top = order.into_iter().map(|index| (id(index), logprob(index))).collect();
    TokenLogprobs { logprob: logprob(token.index()), top }
}

#[expect(clippy::cast_possible_truncation, reason = "the nearest f32 is what a client is told")]
fn to_f32(value: f64) -> f32 {
    value as f32
}
