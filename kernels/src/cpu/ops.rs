//! [`Ops`] on the CPU, in float64 or float32.

use std::marker::PhantomData;

use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use super::attention::{Attend, AttentionRow, AttentionShape, Scratch};
use super::experts;
use super::gemm::linear;
use super::indexer::{Score, select_candidates, select_top};
use super::mhc::RowMixes;
use super::real::Real;
use super::rows::{Collapse, Engram, FakeQuant, Pool, RmsNorm, Rope, Split, Spread};
use super::simd::{Isa, dispatch};
use crate::ops::{
    Angles, EngramGate, ExpertLayer, Gate, HyperConnection, IndexChoice, IndexRow, IndexShape,
    MIXES, Mixes, Ops, Routing, STREAMS, Turn,
};
use crate::weights::Weight;

/// Rows of one task of per-row operations: below twice this, one thread does all.
const ROWS_PER_TASK: usize = 32;

/// The CPU's operations in one arithmetic.
#[derive(Clone, Copy, Debug)]
pub struct CpuOps<R> {
    isa: Isa,
    accumulator: PhantomData<R>,
}

impl CpuOps<f64> {
    /// Float64 between rounding points: the reference arithmetic.
    #[must_use]
    pub fn exact() -> Self {
        Self { isa: Isa::detect(), accumulator: PhantomData }
    }
}

impl CpuOps<f32> {
    /// Float32 with a fixed reduction order.
    #[must_use]
    pub fn fast() -> Self {
        Self { isa: Isa::detect(), accumulator: PhantomData }
    }
}

#[cfg(test)]
impl<R> CpuOps<R> {
    /// One per instruction set that this processor has.
    pub(super) fn all() -> Vec<Self> {
        Isa::available().into_iter().map(|isa| Self { isa, accumulator: PhantomData }).collect()
    }
}

/// Streams and sub-layer output of some rows, and their weights.
type SpreadRows<'a> = ((&'a mut [f32], &'a [f32]), (&'a [f32], &'a [f32]));

/// Runs `task` over chunks of rows of an input and an output, on several threads when there are many.
fn over_rows(
    (x, x_width): (&[f32], usize),
    (out, out_width): (&mut [f32], usize),
    task: impl Fn(&[f32], &mut [f32]) + Sync,
) {
    if x.len() < 2 * ROWS_PER_TASK * x_width {
        return task(x, out);
    }
    let x = x.par_chunks(ROWS_PER_TASK * x_width);
    let out = out.par_chunks_mut(ROWS_PER_TASK * out_width);
    x.zip(out).for_each(|(x, out)| task(x, out));
}

impl<R: Real + Default> Ops for CpuOps<R> {
    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f64, out: &mut [f32]) {
        assert_eq!(x.len(), out.len());
        let width = weight.len();
        over_rows((x, width), (out, width), |x, out| {
            // Float64 in both arithmetics, as in `rope`: what comes next is packed or quantised, and one flipped
            // rounding here changes a whole row there. The work is linear in the width.
            let accumulator = PhantomData::<(&(), f64)>;
            dispatch(self.isa, RmsNorm { x, weight, eps, out, accumulator });
        });
    }

    fn linear(&self, x: &[f32], weight: Weight<'_>, out: &mut [f32]) {
        linear(self.isa, x, weight, out, |sum: R| sum.to_bf16());
    }

    fn linear_grouped(&self, x: &[f32], weight: Weight<'_>, groups: usize, out: &mut [f32]) {
        let (inputs, outputs) = (weight.cols(), weight.rows() / groups);
        let rows = x.len() / (groups * inputs);
        let mut part = vec![0.0; rows * inputs];
        let mut result = vec![0.0; rows * outputs];
        for group in 0..groups {
            for (part, row) in part.chunks_exact_mut(inputs).zip(x.chunks_exact(groups * inputs)) {
                part.copy_from_slice(&row[group * inputs..(group + 1) * inputs]);
            }
            self.linear(&part, weight.row_range(group * outputs, outputs), &mut result);
            let rows = out.chunks_exact_mut(groups * outputs).zip(result.chunks_exact(outputs));
            for (row, result) in rows {
                row[group * outputs..(group + 1) * outputs].copy_from_slice(result);
            }
        }
    }

    fn logits(&self, x: &[f32], weight: Weight<'_>, out: &mut [f32]) {
        linear(self.isa, x, weight, out, |sum: R| sum.to_f32());
    }

    fn project(&self, x: &[f32], weight: Weight<'_>, out: &mut [f64]) {
        // Float64 in both arithmetics: a pooled entry is seen by every later token, and its two projections are
        // below one percent of a layer's work.
        linear(self.isa, x, weight, out, |sum: f64| sum);
    }

    fn fake_quant8(&self, x: &[f32], width: usize, out: &mut [f32]) {
        over_rows((x, width), (out, width), |x, out| {
            dispatch(self.isa, FakeQuant { x, width, out, accumulator: PhantomData::<(&(), R)> });
        });
    }

    fn rope(&self, x: &mut [f32], width: usize, angles: &Angles, turn: Turn) {
        let rows = angles.values.len() / angles.pairs.max(1);
        if rows == 0 {
            return;
        }
        let per_row = x.len() / rows;
        x.par_chunks_exact_mut(per_row)
            .zip(angles.values.par_chunks_exact(angles.pairs))
            .with_min_len(ROWS_PER_TASK)
            .for_each(|(row, angles)| {
                let accumulator = PhantomData::<(&(), f64)>;
                dispatch(self.isa, Rope { vectors: row, width, angles, turn, accumulator });
            });
    }

    fn mhc_mix(&self, streams: &[f32], connection: HyperConnection<'_>, out: &mut Mixes) {
        let width = connection.projection.cols();
        let rows = streams.len() / width;
        let mut raw = vec![R::default(); rows * MIXES];
        linear(self.isa, streams, connection.projection, &mut raw, |sum: R| sum);
        out.pre.resize(rows * STREAMS, 0.0);
        out.post.resize(rows * STREAMS, 0.0);
        out.comb.resize(rows * STREAMS * STREAMS, 0.0);
        let weights = out
            .pre
            .par_chunks_exact_mut(STREAMS)
            .zip(out.post.par_chunks_exact_mut(STREAMS))
            .zip(out.comb.par_chunks_exact_mut(STREAMS * STREAMS));
        raw.par_chunks_exact_mut(MIXES)
            .zip(streams.par_chunks_exact(width))
            .zip(weights)
            .with_min_len(ROWS_PER_TASK)
            .for_each(|((raw, streams), ((pre, post), comb))| {
                let out = RowMixes { pre, post, comb };
                let connection = &connection;
                dispatch(
                    self.isa,
                    Split { streams, raw, connection, out, accumulator: PhantomData },
                );
            });
    }

    fn mhc_collapse(&self, streams: &[f32], pre: &[f32], out: &mut [f32]) {
        let rows = pre.len() / STREAMS;
        let width = out.len() / rows.max(1);
        let task = |(streams, (pre, out)): (&[f32], (&[f32], &mut [f32]))| {
            dispatch(
                self.isa,
                Collapse { streams, pre, out, accumulator: PhantomData::<(&(), R)> },
            );
        };
        if rows < 2 * ROWS_PER_TASK {
            return task((streams, (pre, out)));
        }
        let parts =
            pre.par_chunks(ROWS_PER_TASK * STREAMS).zip(out.par_chunks_mut(ROWS_PER_TASK * width));
        streams.par_chunks(ROWS_PER_TASK * STREAMS * width).zip(parts).for_each(task);
    }

    fn mhc_spread(&self, y: &[f32], mixes: &Mixes, streams: &mut [f32]) {
        let rows = mixes.post.len() / STREAMS;
        let width = y.len() / rows.max(1);
        let task = |((streams, y), (post, comb)): SpreadRows<'_>| {
            let accumulator = PhantomData::<(&(), R)>;
            dispatch(self.isa, Spread { y, post, comb, streams, accumulator });
        };
        let (post, comb) = (&mixes.post[..], &mixes.comb[..]);
        if rows < 2 * ROWS_PER_TASK {
            return task(((streams, y), (post, comb)));
        }
        let weights = post
            .par_chunks(ROWS_PER_TASK * STREAMS)
            .zip(comb.par_chunks(ROWS_PER_TASK * STREAMS * STREAMS));
        streams
            .par_chunks_mut(ROWS_PER_TASK * STREAMS * width)
            .zip(y.par_chunks(ROWS_PER_TASK * width))
            .zip(weights)
            .for_each(task);
    }

    fn compress(&self, keys: &[f64], scores: &[f64], ratio: usize, width: usize, out: &mut [f32]) {
        let group = ratio * width;
        let groups = keys.chunks_exact(group).zip(scores.chunks_exact(group));
        for ((keys, scores), out) in groups.zip(out.chunks_exact_mut(width)) {
            let accumulator = PhantomData::<(&(), f64)>;
            dispatch(self.isa, Pool { keys, scores, width, out, accumulator });
        }
    }

    fn index(&self, keys: &[f32], rows: &[IndexRow<'_>], shape: IndexShape) -> Vec<IndexChoice> {
        rows.par_iter()
            .with_min_len(4)
            .map_init(Vec::new, |scores, row| {
                if is_certain(row, shape) {
                    return certain(row, shape);
                }
                scores.resize(row.visible, 0.0);
                let score = Score {
                    query: row.query,
                    head_weights: row.head_weights,
                    keys,
                    out: scores,
                    accumulator: PhantomData::<R>,
                };
                dispatch(self.isa, score);
                choose(row, scores, shape)
            })
            .collect()
    }

    fn attention(&self, shape: AttentionShape<'_>, rows: &[AttentionRow<'_>], out: &mut [f32]) {
        let heads = shape.sinks.len();
        rows.par_iter()
            .zip(out.par_chunks_exact_mut(heads * shape.dim))
            .with_min_len(8)
            .for_each_init(
                || Scratch::<R>::new(heads, shape.dim),
                |scratch, (row, out)| {
                    dispatch(self.isa, Attend { shape, row: *row, scratch, out });
                },
            );
    }

    fn gate(&self, x: &[f32], gate: Gate<'_>, out: &mut Routing) {
        experts::route::<R>(self.isa, x, gate, out);
    }

    fn experts(&self, x: &[f32], routing: &Routing, layer: ExpertLayer<'_>, out: &mut [f32]) {
        experts::compute::<R>(self.isa, x, routing, layer, out);
    }

    fn engram(&self, streams: &mut [f32], kv: &[f32], open: &[bool], gate: EngramGate<'_>) {
        let rows = open.len();
        let width = streams.len() / (rows.max(1) * STREAMS);
        streams
            .par_chunks_exact_mut(STREAMS * width)
            .zip(kv.par_chunks_exact((STREAMS + 1) * width))
            .zip(open)
            .with_min_len(ROWS_PER_TASK)
            .filter(|(_, open)| **open)
            .for_each(|((streams, kv), _)| {
                dispatch(
                    self.isa,
                    Engram { streams, kv, gate, accumulator: PhantomData::<(&(), R)> },
                );
            });
    }
}

/// Whether a row's selection is known without scores: all it may see fits, and no block can be pruned.
fn is_certain(row: &IndexRow<'_>, shape: IndexShape) -> bool {
    let all_candidates =
        shape.emit_blocks.is_none_or(|blocks| row.visible.div_ceil(shape.block_size) <= blocks);
    !shape.keep_scores && row.visible <= shape.top && all_candidates && row.candidates.is_none()
}

fn certain(row: &IndexRow<'_>, shape: IndexShape) -> IndexChoice {
    let up_to =
        |end: usize| (0..u32::try_from(end).expect("contexts are below 2^32 tokens")).collect();
    let candidates = match shape.emit_blocks {
        Some(_) => up_to(row.visible.div_ceil(shape.block_size)),
        None => Vec::new(),
    };
    IndexChoice { selected: up_to(row.visible), candidates, scores: Vec::new() }
}

fn choose(row: &IndexRow<'_>, scores: &mut [f32], shape: IndexShape) -> IndexChoice {
    let mut choice = IndexChoice::default();
    if let Some(blocks) = shape.emit_blocks {
        select_candidates(scores, shape.block_size, blocks, &mut choice.candidates);
    }
    if let Some(candidates) = row.candidates {
        let mut allowed = candidates.iter().copied().peekable();
        for (block, scores) in (0_u32..).zip(scores.chunks_mut(shape.block_size)) {
            if allowed.next_if_eq(&block).is_none() {
                scores.fill(f32::NEG_INFINITY);
            }
        }
    }
    select_top(scores, shape.top, &mut choice.selected);
    if shape.keep_scores {
        choice.scores = scores.to_vec();
    }
    choice
}
