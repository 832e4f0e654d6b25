//! Sparse attention of one query row over window and selected compressed keys.
//!
//! Key partition (part of the numerics): the window has W columns, key r of query p sits in column r - max(0, p-W+1) also
//! when a floor hides it, the j-th selected entry sits in column W + j; the online softmax is cut every 64 columns,
//! unused columns included. Probabilities are rounded to bfloat16 against the running maximum, the denominator is not.
//! Source: architecture.md §5, shared/golden/README.md, specs/v41-architecture.md §6.5.

use super::dot::products;
use super::real::Real;
use super::simd::Kernel;

/// Columns of one step of the online softmax.
const STEP: usize = 64;
/// Outputs that the value product keeps in registers.
const LANES: usize = 32;

/// One query row. Positions are absolute; `window` starts with position `window_first`.
#[derive(Clone, Copy, Debug)]
pub struct AttentionRow<'a> {
    /// `[heads, dim]`, rotated.
    pub query: &'a [f32],
    /// Position of the query.
    pub position: usize,
    /// Window keys below this position are hidden.
    pub floor: usize,
    /// `[positions, dim]`, decoded.
    pub window: &'a [f32],
    /// Position of the first row of `window`.
    pub window_first: usize,
    /// Compressed entries `[entries, dim]`, decoded.
    pub entries: &'a [f32],
    /// Rows of `entries` to attend to, ascending.
    pub selected: &'a [u32],
}

/// What all rows of a layer share.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape<'a> {
    /// W.
    pub window: usize,
    /// Width of a head, a multiple of 32.
    pub dim: usize,
    /// One logit per head that takes part in the denominator only.
    pub sinks: &'a [f32],
}

pub(super) struct Attend<'a, 'b, R> {
    pub(super) shape: AttentionShape<'a>,
    pub(super) row: AttentionRow<'a>,
    pub(super) scratch: &'b mut Scratch<R>,
    /// `[heads, dim]`.
    pub(super) out: &'b mut [f32],
}

/// Buffers of one thread, reused over rows.
pub(super) struct Scratch<R> {
    /// `[STEP, dim]`.
    keys: Vec<f32>,
    /// `[heads, STEP]`.
    scores: Vec<R>,
    used: [bool; STEP],
    /// `[heads, dim]`.
    sums: Vec<R>,
    maxima: Vec<R>,
    denominators: Vec<R>,
}

impl<R: Real> Scratch<R> {
    pub(super) fn new(heads: usize, dim: usize) -> Self {
        Self {
            keys: vec![0.0; STEP * dim],
            scores: vec![R::ZERO; heads * STEP],
            used: [false; STEP],
            sums: vec![R::ZERO; heads * dim],
            maxima: vec![R::LOWEST; heads],
            denominators: vec![R::ZERO; heads],
        }
    }
}

impl<R: Real> Kernel for Attend<'_, '_, R> {
    #[inline(always)]
    fn run<const BLOCK: usize>(self) {
        if R::LANES == 16 { self.with_lanes::<16, BLOCK>() } else { self.with_lanes::<8, BLOCK>() }
    }
}

impl<R: Real> Attend<'_, '_, R> {
    #[inline(always)]
    fn with_lanes<const LANES: usize, const BLOCK: usize>(self) {
        let Self { shape, row, scratch, out } = self;
        let dim = shape.dim;
        // The reference passes its scale as a float32.
        let scale = R::from_f32(R::from_f64(1.0 / (dim as f64).sqrt()).to_f32());
        scratch.sums.fill(R::ZERO);
        scratch.maxima.fill(R::LOWEST);
        scratch.denominators.fill(R::ZERO);
        let columns = shape.window + row.selected.len();
        for first in (0..columns).step_by(STEP) {
            if !load(shape, row, first, scratch) {
                continue;
            }
            let scores = &mut scratch.scores;
            let put = &mut |head: usize, key: usize, dot: R| scores[head * STEP + key] = dot;
            products::<R, LANES, BLOCK>(row.query, &scratch.keys, dim, put);
            for head in 0..shape.sinks.len() {
                attend_step(head, dim, scale, scratch);
            }
        }
        for (head, sink) in shape.sinks.iter().enumerate() {
            let sink = (R::from_f32(*sink) - scratch.maxima[head]).exp();
            let denominator = scratch.denominators[head] + sink;
            let sums = &scratch.sums[head * dim..(head + 1) * dim];
            for (out, sum) in out[head * dim..(head + 1) * dim].iter_mut().zip(sums) {
                *out = (*sum / denominator).to_bf16();
            }
        }
    }
}

/// The key of a column, if the column is used.
#[inline(always)]
fn key<'a>(shape: AttentionShape<'_>, row: AttentionRow<'a>, column: usize) -> Option<&'a [f32]> {
    let (rows, index) = if column < shape.window {
        let position = (row.position + 1).saturating_sub(shape.window) + column;
        if position > row.position || position < row.floor {
            return None;
        }
        (row.window, position - row.window_first)
    } else {
        (row.entries, *row.selected.get(column - shape.window)? as usize)
    };
    Some(&rows[index * shape.dim..(index + 1) * shape.dim])
}

/// Gathers the keys of one step. False when no column is used.
#[inline(always)]
fn load<R: Real>(
    shape: AttentionShape<'_>,
    row: AttentionRow<'_>,
    first: usize,
    scratch: &mut Scratch<R>,
) -> bool {
    let mut any = false;
    let columns = scratch.keys.chunks_exact_mut(shape.dim).zip(&mut scratch.used);
    for (column, (keys, used)) in (first..).zip(columns) {
        let found = key(shape, row, column);
        *used = found.is_some();
        any |= found.is_some();
        match found {
            Some(source) => keys.copy_from_slice(source),
            None => keys.fill(0.0),
        }
    }
    any
}

/// One step of the online softmax for one head, from the raw scores.
#[inline(always)]
fn attend_step<R: Real>(head: usize, dim: usize, scale: R, scratch: &mut Scratch<R>) {
    let mut scores = [R::ZERO; STEP];
    scores.copy_from_slice(&scratch.scores[head * STEP..(head + 1) * STEP]);
    let before = scratch.maxima[head];
    let mut maximum = before;
    for (score, used) in scores.iter_mut().zip(&scratch.used) {
        *score = if *used { *score * scale } else { R::LOWEST };
        maximum = maximum.larger(*score);
    }
    let mut rounded = [R::ZERO; STEP];
    for (score, rounded) in scores.iter_mut().zip(&mut rounded) {
        *score = (*score - maximum).exp();
        *rounded = R::from_f32((*score).to_bf16());
    }
    let shrink = (before - maximum).exp();
    let mut denominator = scratch.denominators[head] * shrink;
    for (score, used) in scores.iter().zip(&scratch.used) {
        if *used {
            denominator = denominator + *score;
        }
    }
    scratch.maxima[head] = maximum;
    scratch.denominators[head] = denominator;
    let sums = &mut scratch.sums[head * dim..(head + 1) * dim];
    for (part, sums) in sums.chunks_exact_mut(LANES).enumerate() {
        let mut lanes = [R::ZERO; LANES];
        for (lane, sum) in lanes.iter_mut().zip(sums.iter()) {
            *lane = *sum * shrink;
        }
        for (column, probability) in rounded.iter().enumerate() {
            let values = &scratch.keys[column * dim + part * LANES..][..LANES];
            for (lane, value) in lanes.iter_mut().zip(values) {
                *lane = probability.fused(R::from_f32(*value), *lane);
            }
        }
        sums.copy_from_slice(&lanes);
    }
}
