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

/// Makes the tokens impossible that top-p, top-k and min-p cut off; at least the most probable one stays.
fn cut(scores: &mut [f64], sampling: &Sampling) {
    let (top_p, top_k) = (f64::from(sampling.top_p), sampling.top_k);
    let min_p = f64::from(sampling.min_p);
    if 1.0 <= top_p && top_k == 0 && min_p <= 0.0 {
        return;
    }
    let maximum = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - maximum).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut order: Vec<usize> = (0..scores.len()).filter(|token| 0.0 < weights[*token]).collect();
    // A stable sort keeps the lower id first among equals.
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let mut before = 0.0;
    let mut kept = 0;
    for token in &order {
        // The weight of the first is exactly 1.
        let over_p = 0.0 < before && top_p < 1.0 && top_p <= before;
        let over_k = top_k != 0 && top_k <= kept;
        if over_p || over_k || weights[*token] < min_p {
            break;
        }
        before += weights[*token] / total;
        kept += 1;
    }
    let mut stays = vec![false; scores.len()];
    let kept = usize::try_from(kept).expect("u32 fits usize").max(1);
    order.iter().take(kept).for_each(|token| stays[*token] = true);
    for (score, stays) in scores.iter_mut().zip(stays) {
        if !stays {
            *score = f64::NEG_INFINITY;
        }
    }
}

/// Standard Gumbel noise of one (seed, index, token).
fn gumbel(seed: u64, output_index: u32, token: u32) -> f64 {
    let counter = u64::from(output_index) << 32 | u64::from(token);
    let bits = mix(mix(seed ^ 0x9E37_79B9_7F4A_7C15).wrapping_add(mix(counter)));
    // 52 bits, centred inside (0, 1): neither logarithm meets zero.
    let uniform = ((bits >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
    -(-uniform.ln()).ln()
}

/// The SplitMix64 finaliser: a bijection of 64-bit words that passes the usual randomness batteries.
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}
