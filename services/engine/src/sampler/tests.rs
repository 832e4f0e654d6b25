//! Draws against the plainest way to compute them.

use shared::{Random, Sampling, TokenId};

use super::{DrawContext, TokenCounts, draw, logprobs, sample};
use crate::grammar::TokenMask;

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
            let sampling =
                Sampling { temperature, top_p, seed: u64::from(draw % 200), ..Sampling::GREEDY };
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
    let with = |seed, index| {
        sample(&LOGITS, &Sampling { temperature: 1.0, top_p: 1.0, seed, ..Sampling::GREEDY }, index)
    };
    let first: Vec<TokenId> = (0..64).map(|index| with(7, index)).collect();
    let again: Vec<TokenId> = (0..64).map(|index| with(7, index)).collect();
    let other: Vec<TokenId> = (0..64).map(|index| with(8, index)).collect();
    assert_eq!(first, again);
    assert_ne!(first, other);
}

/// A request's row, computed in the plainest way: probabilities by token, 0 for what cannot be drawn.
fn processed(sampling: &Sampling, context: &DrawContext<'_>, emitted: &[TokenId]) -> Vec<f64> {
    let mut logits: Vec<f64> = LOGITS.iter().map(|logit| f64::from(*logit)).collect();
    for (index, logit) in logits.iter_mut().enumerate() {
        let token = TokenId(u32::try_from(index).unwrap());
        for (biased, bias) in context.bias {
            *logit += if *biased == token { f64::from(*bias) } else { 0.0 };
        }
        let times = emitted.iter().filter(|other| **other == token).count();
        if 0 < times {
            *logit -= f64::from(sampling.presence_penalty);
            *logit -=
                f64::from(sampling.frequency_penalty) * f64::from(u32::try_from(times).unwrap());
        }
        if context.mask.is_some_and(|mask| !mask.allows(token)) {
            *logit = f64::NEG_INFINITY;
        }
        *logit /= f64::from(sampling.temperature);
    }
    let softmax = |logits: &[f64]| -> Vec<f64> {
        let weights: Vec<f64> = logits.iter().map(|logit| logit.exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    };
    let probabilities = softmax(&logits);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| probabilities[*b].total_cmp(&probabilities[*a]));
    let best = probabilities[order[0]];
    let mut before = 0.0;
    for (rank, token) in order.into_iter().enumerate() {
        let over_p = sampling.top_p < 1.0 && f64::from(sampling.top_p) <= before && 0 < rank;
        let over_k = sampling.top_k != 0 && usize::try_from(sampling.top_k).unwrap() <= rank;
        let under = probabilities[token] < f64::from(sampling.min_p) * best;
        if over_p || over_k || under {
            logits[token] = f64::NEG_INFINITY;
        }
        before += probabilities[token];
    }
    softmax(&logits)
}

#[test]
fn every_parameter_changes_the_distribution_as_defined() {
    const DRAWS: u32 = 30_000;
    let hot = Sampling { temperature: 1.0, ..Sampling::GREEDY };
    let emitted = [TokenId(2), TokenId(2), TokenId(0), TokenId(5)];
    let counts = TokenCounts::of(&emitted);
    let mask = TokenMask::Set(vec![0b10_1011]);
    let bias = [(TokenId(1), 2.5), (TokenId(2), -100.0)];
    let plain = DrawContext::default();
    let penalised = DrawContext { counts: Some(&counts), ..plain };
    let masked = DrawContext { mask: Some(&mask), ..plain };
    let biased = DrawContext { bias: &bias, ..plain };
    let cases = [
        (Sampling { top_k: 3, ..hot }, plain),
        (Sampling { top_k: 1, ..hot }, plain),
        (Sampling { min_p: 0.2, ..hot }, plain),
        (Sampling { min_p: 1.0, ..hot }, plain),
        (Sampling { top_p: 0.8, top_k: 2, min_p: 0.05, temperature: 1.4, ..hot }, plain),
        (Sampling { presence_penalty: 1.0, ..hot }, penalised),
        (Sampling { frequency_penalty: 0.7, presence_penalty: -0.5, ..hot }, penalised),
        (
            Sampling { frequency_penalty: 2.0, top_k: 4, ..hot },
            DrawContext { bias: &bias, ..penalised },
        ),
        (hot, masked),
        (Sampling { top_p: 0.6, ..hot }, masked),
        (Sampling { temperature: 0.7, ..hot }, biased),
        (Sampling { min_p: 0.1, top_p: 0.9, ..hot }, DrawContext { mask: Some(&mask), ..biased }),
    ];
    for (number, (sampling, context)) in cases.into_iter().enumerate() {
        let expected = processed(&sampling, &context, &emitted);
        let mut counted = [0_u32; LOGITS.len()];
        for index in 0..DRAWS {
            let sampling = Sampling { seed: u64::from(index % 100), ..sampling };
            let context = DrawContext { output_index: index / 100, ..context };
            counted[draw(&LOGITS, &sampling, &context).index()] += 1;
        }
        for (share, count) in expected.iter().zip(counted) {
            assert!(0.0 < *share || count == 0, "case {number}: a token that was cut");
            // Six standard deviations of a binomial.
            let spread = 6.0 * (share * (1.0 - share) / f64::from(DRAWS)).sqrt();
            let found = f64::from(count) / f64::from(DRAWS);
            assert!((found - share).abs() <= spread, "case {number}: {found}, expected {share}");
        }
        let greedy = Sampling { temperature: 0.0, ..sampling };
        let warm = Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, min_p: 0.0, ..sampling };
        let best = processed(&warm, &context, &emitted);
        let best = best.iter().copied().fold(0.0, f64::max);
        let token = draw(&LOGITS, &greedy, &context);
        let share = processed(&warm, &context, &emitted)[token.index()];
        assert!(best - share < 1e-12, "case {number}: greedy takes the most probable");
    }
}

#[test]
fn log_probabilities_are_those_of_the_plain_softmax() {
    let total: f64 = LOGITS.iter().map(|logit| f64::from(*logit).exp()).sum();
    for alternatives in [0, 1, 4, 6, 20] {
        for token in 0..6 {
            let told = logprobs(&LOGITS, TokenId(token), alternatives);
            let expected = |token: TokenId| f64::from(LOGITS[token.index()]) - total.ln();
            assert!((f64::from(told.logprob) - expected(TokenId(token))).abs() < 1e-6);
            let ids: Vec<u32> = told.top.iter().map(|(token, _)| token.0).collect();
            let order = [2, 5, 0, 4, 1, 3];
            assert_eq!(ids, order[..usize::from(alternatives).min(6)]);
            for (token, logprob) in told.top {
                assert!((f64::from(logprob) - expected(token)).abs() < 1e-6);
            }
        }
    }
}

/// The cuts as they are defined, over a fully sorted row.
fn cut_by_sorting(scores: &[f64], sampling: &Sampling) -> Vec<f64> {
    let maximum = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - maximum).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut order: Vec<usize> = (0..scores.len()).filter(|at| 0.0 < weights[*at]).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let (top_p, min_p) = (f64::from(sampling.top_p), f64::from(sampling.min_p));
    let mut cut = vec![f64::NEG_INFINITY; scores.len()];
    let mut before = 0.0;
    for (kept, token) in order.into_iter().enumerate() {
        let over_p = top_p < 1.0 && top_p <= before && 0 < kept;
        let over_k = sampling.top_k != 0 && sampling.top_k <= u32::try_from(kept).unwrap();
        if over_p || over_k || weights[token] < min_p {
            break;
        }
        before += weights[token] / total;
        cut[token] = scores[token];
    }
    cut
}

#[test]
fn cuts_without_sorting_everything_keep_the_same_tokens() {
    let mut random = Random::new(11);
    let mut kept_most = 0;
    for round in 0..300 {
        let tokens = [1, 7, 300, 5_000][round % 4];
        // Flat rows need many tokens to reach top-p; coarse ones have many equal scores.
        let (spread, steps) = ([0.01, 3.0, 30.0][round % 3], [4.0, 1_000_000.0][round % 2]);
        let row: Vec<f64> =
            (0..tokens).map(|_| (random.unit() * steps).floor() / steps * spread).collect();
        for (top_p, top_k, min_p) in [
            (0.9, 0, 0.0),
            (1.0, 5, 0.0),
            (1.0, 0, 0.1),
            (0.5, 40, 0.01),
            (0.999, 300, 0.0),
            (0.0, 0, 0.0),
            (1.0, 6_000, 1.0),
        ] {
            let sampling = Sampling { top_p, top_k, min_p, ..Sampling::GREEDY };
            let mut cut = row.clone();
            super::cut(&mut cut, &sampling);
            assert_eq!(cut, cut_by_sorting(&row, &sampling), "{tokens} {top_p} {top_k} {min_p}");
            kept_most = kept_most.max(cut.iter().filter(|score| score.is_finite()).count());
        }
    }
    assert!(2_048 < kept_most, "more than one turn of ranking: {kept_most}");
}

#[test]
fn a_damaged_row_of_logits_still_gives_a_token() {
    for row in [vec![f32::NAN; 8], vec![1.0, f32::INFINITY, f32::NAN, 0.0]] {
        for (top_p, top_k, min_p) in [(0.9, 0, 0.0), (1.0, 2, 0.0), (1.0, 0, 0.1)] {
            let sampling = Sampling { temperature: 1.0, top_p, top_k, min_p, ..Sampling::GREEDY };
            assert!(sample(&row, &sampling, 0).index() < row.len());
        }
    }
}
