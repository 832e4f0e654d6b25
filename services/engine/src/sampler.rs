//! Drawing tokens: exact sampling with counter-based noise.
//!
//! The token at output index j is `argmax over t of (log p_j(t) + g(seed, j, t))` with Gumbel noise g that depends on
//! (seed, index, token) alone: an exact draw from p_j which no batch, speculation or migration can change. p_j is made of
//! the logits in this order:
//!
//! 1. biases are added; of each token that this answer has emitted, `presence_penalty` and, for each time,
//!    `frequency_penalty` are taken;
//! 2. tokens outside of the grammar's mask are impossible;
//! 3. what is left is divided by the temperature, and the softmax of it is p;
//! 4. top-p: a token stays when the probability of those before it, in descending order with ties to the lower id, is below
//!    `top_p`; top-k: of those the first `top_k` stay; min-p: of those stay the ones with at least `min_p` times the
//!    probability of the first.
//!
//! A greedy answer is the argmax after the second step. Source: architecture.md §5, specs/v41-serving.md §7.2 for the order
//! of cuts; penalties and min-p, which that engine lacks, as OpenAI and vLLM define them.

mod counts;
mod logprobs;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use shared::random::finalise;
use shared::{Sampling, TokenId};

use crate::grammar::TokenMask;

pub use counts::TokenCounts;
pub use logprobs::logprobs;

/// What a draw depends on besides the logits and the request's [`Sampling`].
#[derive(Clone, Copy, Debug, Default)]
pub struct DrawContext<'a> {
    /// Index of the token in the answer.
    pub output_index: u32,
    /// Added to the logits of these tokens.
    pub bias: &'a [(TokenId, f32)],
    /// What this answer has emitted, for the penalties; none when they are off.
    pub counts: Option<&'a TokenCounts>,
    /// The possible tokens; none when all are.
    pub mask: Option<&'a TokenMask>,
}

/// Draws the token at output index `output_index` from one row of logits, without anything but `sampling`.
///
/// # Panics
/// When `logits` is empty.
#[must_use]
pub fn sample(logits: &[f32], sampling: &Sampling, output_index: u32) -> TokenId {
    draw(logits, sampling, &DrawContext { output_index, ..DrawContext::default() })
}

/// Draws a token from one row of logits.
///
/// # Panics
/// When `logits` is empty, or no token is possible.
#[must_use]
pub fn draw(logits: &[f32], sampling: &Sampling, context: &DrawContext<'_>) -> TokenId {
    let mut scores: Vec<f64> = logits.iter().map(|logit| f64::from(*logit)).collect();
    for (token, bias) in context.bias {
        if let Some(score) = scores.get_mut(token.index()) {
            *score += f64::from(*bias);
        }
    }
    if let Some(counts) = context.counts {
        counts.penalise(&mut scores, sampling);
    }
    if let Some(mask) = context.mask {
        for (score, token) in scores.iter_mut().zip(0..) {
            if !mask.allows(TokenId(token)) {
                *score = f64::NEG_INFINITY;
            }
        }
    }
    if sampling.is_greedy() {
        return argmax(scores.into_iter());
    }
    let temperature = f64::from(sampling.temperature);
    for score in &mut scores {
        *score /= temperature;
    }
    cut(&mut scores, sampling);
    argmax(scores.iter().zip(0_u32..).map(|(score, token)| {
        // Noise is not computed for what is impossible.
        if *score == f64::NEG_INFINITY {
            return *score;
        }
        score + gumbel(sampling.seed, context.output_index, token)
    }))
}

/// The first largest element.
fn argmax(scores: impl Iterator<Item = f64>) -> TokenId {
    let mut best: Option<(u32, f64)> = None;
    for (token, score) in (0_u32..).zip(scores) {
        if score == f64::NEG_INFINITY {
            continue;
        }
        if best.is_none_or(|(_, highest)| highest < score) {
            best = Some((token, score));
        }
    }
    TokenId(best.expect("at least one token is possible").0)
}

/// Tokens that top-p ranks at first; each time they were too few it ranks seven times as many more.
const RANKED_FIRST: usize = 256;

/// Makes the tokens impossible that top-p, top-k and min-p cut off; at least the most probable one stays. A row without a
/// largest finite score is damaged and left as it is.
fn cut(scores: &mut [f64], sampling: &Sampling) {
    let (top_p, min_p) = (f64::from(sampling.top_p), f64::from(sampling.min_p));
    let top_k = usize::try_from(sampling.top_k).expect("u32 fits usize");
    if 1.0 <= top_p && top_k == 0 && min_p <= 0.0 {
        return;
    }
    let maximum = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if !maximum.is_finite() {
        return;
    }
    // The weight of the first is exactly 1.
    let weights: Vec<f64> = scores.iter().map(|score| (score - maximum).exp()).collect();
    let mut stay: Vec<usize> =
        (0..scores.len()).filter(|at| 0.0 < weights[*at] && min_p <= weights[*at]).collect();
    // No two are equal, so what is selected and sorted is one order, however it is found.
    let by_rank = |a: &usize, b: &usize| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b));
    if top_k != 0 && top_k < stay.len() {
        stay.select_nth_unstable_by(top_k - 1, by_rank);
        stay.truncate(top_k);
    }
    if top_p < 1.0 {
        let total: f64 = weights.iter().sum();
        let kept = nucleus(&mut stay, by_rank, |token| weights[token] / total, top_p);
        stay.truncate(kept);
    }
    let stay: Vec<(usize, f64)> = stay.into_iter().map(|token| (token, scores[token])).collect();
    scores.fill(f64::NEG_INFINITY);
    for (token, score) in stay {
        scores[token] = score;
    }
}

/// Puts tokens in order as far as is needed, and says how many it takes until their shares reach `top_p`: one at least.
fn nucleus(
    tokens: &mut [usize],
    by_rank: impl Fn(&usize, &usize) -> Ordering,
    share: impl Fn(usize) -> f64,
    top_p: f64,
) -> usize {
    let (mut ranked, mut before) = (0, 0.0);
    while ranked < tokens.len() {
        let rest = &mut tokens[ranked..];
        let part = rest.len().min(RANKED_FIRST.max(7 * ranked));
        if part < rest.len() {
            rest.select_nth_unstable_by(part - 1, &by_rank);
        }
        rest[..part].sort_unstable_by(&by_rank);
        for (at, token) in rest[..part].iter().enumerate() {
            if 0.0 < before && top_p <= before {
                return ranked + at;
            }
            before += share(*token);
        }
        ranked += part;
    }
    tokens.len()
}

/// Standard Gumbel noise of one (seed, index, token).
fn gumbel(seed: u64, output_index: u32, token: u32) -> f64 {
    let counter = u64::from(output_index) << 32 | u64::from(token);
    let bits = finalise(finalise(seed ^ 0x9E37_79B9_7F4A_7C15).wrapping_add(finalise(counter)));
    // 52 bits, centred inside (0, 1): neither logarithm meets zero.
    let uniform = ((bits >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
    -(-uniform.ln()).ln()
}
