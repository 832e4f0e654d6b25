//! Drawing tokens: exact sampling with counter-based noise.
//!
//! The token at output index j is `argmax over t of (log p_j(t) + g(seed, j, t))` with Gumbel noise g that depends on
//! (seed, index, token) alone: an exact draw from p_j which no batch, speculation or migration can change. p_j is the
//! softmax of the logits at the temperature, cut to the smallest set that reaches `top_p` (a token stays when the
//! probability of those before it, in descending order with ties to the lower id, is below `top_p`).
//! Source: architecture.md §5, specs/v41-serving.md §7.2 for the order of cuts.

use shared::{Sampling, TokenId};

/// Draws the token at output index `output_index` from one row of logits.
///
/// # Panics
/// When `logits` is empty.
#[must_use]
pub fn sample(logits: &[f32], sampling: &Sampling, output_index: u32) -> TokenId {
    if sampling.is_greedy() {
        return argmax(logits.iter().map(|logit| f64::from(*logit)));
    }
    let temperature = f64::from(sampling.temperature);
    let scaled: Vec<f64> = logits.iter().map(|logit| f64::from(*logit) / temperature).collect();
    let kept = keep_top_p(&scaled, f64::from(sampling.top_p));
    argmax(scaled.iter().zip(&kept).zip(0_u32..).map(|((score, kept), token)| {
        if *kept { score + gumbel(sampling.seed, output_index, token) } else { f64::NEG_INFINITY }
    }))
}

/// The first largest element.
fn argmax(scores: impl Iterator<Item = f64>) -> TokenId {
    let mut best: Option<(u32, f64)> = None;
    for (token, score) in (0_u32..).zip(scores) {
        if best.is_none_or(|(_, highest)| highest < score) {
            best = Some((token, score));
        }
    }
    TokenId(best.expect("there is at least one logit").0)
}

/// Which tokens survive top-p; at least the most probable one does.
fn keep_top_p(scaled: &[f64], top_p: f64) -> Vec<bool> {
    if 1.0 <= top_p {
        return vec![true; scaled.len()];
    }
    let maximum = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scaled.iter().map(|score| (score - maximum).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut order: Vec<usize> = (0..scaled.len()).collect();
    // A stable sort keeps the lower id first among equals.
    order.sort_by(|a, b| scaled[*b].total_cmp(&scaled[*a]));
    let mut kept = vec![false; scaled.len()];
    let mut before = 0.0;
    for token in order {
        if 0.0 < before && top_p <= before {
            break;
        }
        kept[token] = true;
        before += weights[token] / total;
    }
    kept
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

#[cfg(test)]
mod tests {
    use shared::{Sampling, TokenId};

    use super::sample;

    const LOGITS: [f32; 6] = [1.0, 0.0, 2.0, -1.0, 0.5, 2.0];

    /// Probabilities of the processed distribution, computed in the plainest way.
    fn distribution(temperature: f64, top_p: f64) -> Vec<f64> {
        let weights: Vec<f64> =
            LOGITS.iter().map(|logit| (f64::from(*logit) / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut order: Vec<usize> = (0..LOGITS.len()).collect();
        order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
        let mut result = vec![0.0; LOGITS.len()];
        let mut before = 0.0;
        for token in order {
            if before < top_p {
                result[token] = weights[token] / total;
            }
            before += weights[token] / total;
        }
        let kept: f64 = result.iter().sum();
        result.iter().map(|weight| weight / kept).collect()
    }

    #[test]
    fn draws_follow_the_distribution() {
        // Upper 0.1 % points of chi-square for 1..=5 degrees of freedom.
        const LIMITS: [f64; 5] = [10.83, 13.82, 16.27, 18.47, 20.52];
        const DRAWS: u32 = 40_000;
        for (temperature, top_p) in [(1.0, 1.0), (0.5, 1.0), (2.0, 0.9), (1.0, 0.6)] {
            let expected = distribution(f64::from(temperature), f64::from(top_p));
            let mut counts = [0_u32; 6];
            for draw in 0..DRAWS {
                let sampling = Sampling { temperature, top_p, seed: u64::from(draw % 200) };
                counts[sample(&LOGITS, &sampling, draw / 200).index()] += 1;
            }
            let mut chi_square = 0.0;
            let mut freedom = 0;
            for (count, share) in counts.iter().zip(&expected) {
                let mean = share * f64::from(DRAWS);
                if *share == 0.0 {
                    assert_eq!(*count, 0, "a token outside top-p was drawn");
                } else {
                    chi_square += (f64::from(*count) - mean).powi(2) / mean;
                    freedom += 1;
                }
            }
            let limit = LIMITS[freedom - 2];
            assert!(chi_square < limit, "chi-square {chi_square} at ({temperature}, {top_p})");
        }
    }

    #[test]
    fn greedy_takes_the_first_of_equal_maxima() {
        assert_eq!(sample(&LOGITS, &Sampling::GREEDY, 3), TokenId(2));
    }

    #[test]
    fn a_draw_depends_on_seed_and_index_only() {
        let with =
            |seed, index| sample(&LOGITS, &Sampling { temperature: 1.0, top_p: 1.0, seed }, index);
        let first: Vec<TokenId> = (0..64).map(|index| with(7, index)).collect();
        let again: Vec<TokenId> = (0..64).map(|index| with(7, index)).collect();
        let other: Vec<TokenId> = (0..64).map(|index| with(8, index)).collect();
        assert_eq!(first, again);
        assert_ne!(first, other);
    }
}
