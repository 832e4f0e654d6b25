//! Scores of compressed entries, their selection, and the candidate blocks of the hierarchical indexer.
//!
//! Source: specs/v41-architecture.md §6.3 and §6.4; ties go to the lower position everywhere.

use std::marker::PhantomData;

use super::dot::products;
use super::real::Real;
use super::simd::Kernel;

/// Keys scored at a time: their products with all heads stay in the first-level cache.
const BAND: usize = 32;
/// Index heads a row may have; the configuration bounds them.
const HEADS_MAX: usize = 128;

/// `score(g) = round_bf16(sum over heads of relu(q_h . k_g) * w_h)` for the first `out.len()` entries.
pub(super) struct Score<'a, R> {
    /// `[heads, dim]`.
    pub(super) query: &'a [f32],
    /// `[heads]`.
    pub(super) head_weights: &'a [f32],
    /// `[entries, dim]`.
    pub(super) keys: &'a [f32],
    pub(super) out: &'a mut [f32],
    pub(super) accumulator: PhantomData<R>,
}

impl<R: Real> Kernel for Score<'_, R> {
    #[inline(always)]
    fn run<const BLOCK: usize>(self) {
        if R::LANES == 16 { self.with_lanes::<16, BLOCK>() } else { self.with_lanes::<8, BLOCK>() }
    }
}

impl<R: Real> Score<'_, R> {
    #[inline(always)]
    fn with_lanes<const LANES: usize, const BLOCK: usize>(self) {
        let heads = self.head_weights.len();
        assert!(heads <= HEADS_MAX, "the configuration bounds index heads");
        let dim = self.query.len() / heads;
        let mut dots = [[R::ZERO; BAND]; HEADS_MAX];
        let keys = &self.keys[..self.out.len() * dim];
        for (keys, out) in keys.chunks(BAND * dim).zip(self.out.chunks_mut(BAND)) {
            let put = &mut |head: usize, key: usize, dot: R| dots[head][key] = dot;
            products::<R, LANES, BLOCK>(self.query, keys, dim, put);
            let mut total = [R::ZERO; BAND];
            for (dots, weight) in dots.iter().zip(self.head_weights) {
                let weight = R::from_f32(*weight);
                for (total, dot) in total.iter_mut().zip(dots) {
                    *total = dot.larger(R::ZERO).fused(weight, *total);
                }
            }
            for (out, total) in out.iter_mut().zip(&total) {
                *out = total.to_bf16();
            }
        }
    }
}

/// Maps a bfloat16 value, held in float32, to an integer of the same order.
fn order_key(value: f32) -> u16 {
    // Adding zero turns a negative zero into a positive one: they tie.
    let bits = ((value + 0.0).to_bits() >> 16) as u16;
    if bits & 0x8000 == 0 { bits | 0x8000 } else { !bits }
}

/// The `count` largest of bfloat16 `scores` as ascending indices into `out`; ties go to the lower index; entries of
/// negative infinity are never taken.
pub(super) fn select_top(scores: &[f32], count: usize, out: &mut Vec<u32>) {
    out.clear();
    let usable = |score: f32| score != f32::NEG_INFINITY;
    let available = scores.iter().filter(|score| usable(**score)).count();
    let index = |i: usize| u32::try_from(i).expect("contexts are below 2^32 tokens");
    if available <= count {
        let all = scores.iter().enumerate().filter(|(_, score)| usable(**score));
        out.extend(all.map(|(i, _)| index(i)));
        return;
    }
    // Two passes of counting find the smallest key that is taken and how many equal to it.
    let (high, above) = threshold(scores.iter().map(|s| order_key(*s) >> 8), count);
    let same_high = scores.iter().map(|s| order_key(*s)).filter(|key| key >> 8 == high);
    let (low, above_low) = threshold(same_high.map(|key| key & 0xFF), count - above);
    let limit = high << 8 | low;
    let mut equal = count - above - above_low;
    for (i, score) in scores.iter().enumerate() {
        let key = order_key(*score);
        if key > limit {
            out.push(index(i));
        } else if key == limit && 0 < equal {
            equal -= 1;
            out.push(index(i));
        }
    }
}

/// The bin in which the `count`-th largest key lies, and how many keys lie in higher bins.
fn threshold(bins: impl Iterator<Item = u16>, count: usize) -> (u16, usize) {
    let mut histogram = [0_usize; 256];
    for bin in bins {
        histogram[usize::from(bin)] += 1;
    }
    let mut above = 0;
    for bin in (0..256_u16).rev() {
        let here = histogram[usize::from(bin)];
        if count <= above + here {
            return (bin, above);
        }
        above += here;
    }
    unreachable!("the caller asks for no more than there are")
}

/// The candidate blocks of one row: the best `blocks` blocks of `block_size` entries by their best score, the block of
/// the newest entry always among them. Ascending block numbers.
pub(super) fn select_candidates(
    scores: &[f32],
    block_size: usize,
    blocks: usize,
    out: &mut Vec<u32>,
) {
    let mut best: Vec<f32> = scores
        .chunks(block_size)
        .map(|block| block.iter().copied().fold(f32::NEG_INFINITY, f32::max))
        .collect();
    if let Some(newest) = best.last_mut() {
        *newest = f32::INFINITY;
    }
    select_top(&best, blocks, out);
}

#[cfg(test)]
mod tests {
    use super::{select_candidates, select_top};
    use crate::formats::round_bf16;

    fn naive(scores: &[f32], count: usize) -> Vec<u32> {
        let mut order: Vec<usize> =
            (0..scores.len()).filter(|i| scores[*i] != f32::NEG_INFINITY).collect();
        order.sort_by(|a, b| scores[*b].partial_cmp(&scores[*a]).unwrap().then(a.cmp(b)));
        let mut taken: Vec<u32> =
            order.iter().take(count).map(|i| u32::try_from(*i).unwrap()).collect();
        taken.sort_unstable();
        taken
    }

    #[test]
    fn selection_equals_a_stable_sort() {
        let mut state = 7_u32;
        for (length, count) in [(0, 3), (3, 3), (9, 4), (500, 64), (4_000, 256), (40, 1)] {
            let scores: Vec<f32> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let value = ((state >> 24) as f32 - 128.0) / 16.0;
                    if state.is_multiple_of(11) { f32::NEG_INFINITY } else { round_bf16(value) }
                })
                .collect();
            let mut found = Vec::new();
            select_top(&scores, count, &mut found);
            assert_eq!(found, naive(&scores, count), "{length} take {count}");
        }
    }

    #[test]
    fn the_newest_block_is_always_a_candidate() {
        let scores = [5.0, 4.0, 1.0, 1.0, 3.0, 2.0, 0.0];
        let mut blocks = Vec::new();
        select_candidates(&scores, 2, 2, &mut blocks);
        assert_eq!(blocks, [0, 3]);
    }
}
