//! Manifold-constrained hyper-connections: mixing weights of the residual streams.
//!
//! Source: specs/v41-architecture.md §4, with the known answer of its §16 as a test.

use super::elementwise::inverse_norm;
use super::real::Real;
use crate::ops::{HyperConnection, MIXES, STREAMS};

/// Added to pre weights and to every normaliser of the Sinkhorn iteration (`hc_eps`).
const EPS: f64 = 1e-6;
/// Stabiliser of the norm over all streams (`rms_norm_eps` of the release, fixed there).
const NORM_EPS: f64 = 1e-20;

/// Where the mixing weights of one row go.
pub(super) struct RowMixes<'a> {
    pub(super) pre: &'a mut [f32],
    pub(super) post: &'a mut [f32],
    pub(super) comb: &'a mut [f32],
}

/// Mixing weights of one row from its streams and their raw projection.
#[inline(always)]
pub(super) fn split_row<R: Real>(
    streams: &[f32],
    raw: &mut [R],
    connection: &HyperConnection<'_>,
    out: RowMixes<'_>,
) {
    let factor = inverse_norm::<R>(streams, NORM_EPS);
    for value in raw.iter_mut() {
        *value = *value * factor;
    }
    split(raw, connection, out);
}

/// Mixing weights from a projection that is already scaled by the inverse norm.
#[inline(always)]
fn split<R: Real>(
    raw: &[R],
    connection: &HyperConnection<'_>,
    RowMixes { pre, post, comb }: RowMixes<'_>,
) {
    let part = |index: usize| usize::from(STREAMS <= index) + usize::from(2 * STREAMS <= index);
    let biased = |index: usize| {
        raw[index] * R::from_f32(connection.scale[part(index)])
            + R::from_f32(connection.base[index])
    };
    for (index, pre) in pre.iter_mut().enumerate() {
        *pre = (biased(index).sigmoid() + R::from_f64(EPS)).to_f32();
    }
    for (index, post) in post.iter_mut().enumerate() {
        *post = (R::from_f64(2.0) * biased(STREAMS + index).sigmoid()).to_f32();
    }
    let mut matrix = [[R::ZERO; STREAMS]; STREAMS];
    for (index, raw) in (2 * STREAMS..MIXES).enumerate() {
        matrix[index / STREAMS][index % STREAMS] = biased(raw);
    }
    sinkhorn(&mut matrix, connection.iterations);
    for (value, out) in matrix.iter().flatten().zip(comb) {
        *out = value.to_f32();
    }
}

#[inline(always)]
fn sinkhorn<R: Real>(matrix: &mut [[R; STREAMS]; STREAMS], iterations: usize) {
    for row in matrix.iter_mut() {
        let maximum = row.iter().fold(R::LOWEST, |max, value| max.larger(*value));
        row.iter_mut().for_each(|value| *value = (*value - maximum).exp());
        let sum = row.iter().fold(R::ZERO, |sum, value| sum + *value);
        row.iter_mut().for_each(|value| *value = *value / sum + R::from_f64(EPS));
    }
    columns(matrix);
    for _ in 1..iterations {
        for row in matrix.iter_mut() {
            let sum = row.iter().fold(R::ZERO, |sum, value| sum + *value) + R::from_f64(EPS);
            row.iter_mut().for_each(|value| *value = *value / sum);
        }
        columns(matrix);
    }
}

#[inline(always)]
fn columns<R: Real>(matrix: &mut [[R; STREAMS]; STREAMS]) {
    for column in 0..STREAMS {
        let sum = matrix.iter().fold(R::ZERO, |sum, row| sum + row[column]) + R::from_f64(EPS);
        for row in matrix.iter_mut() {
            row[column] = row[column] / sum;
        }
    }
}

/// `sum over streams of pre * stream` of some rows.
#[inline(always)]
pub(super) fn collapse<R: Real>(streams: &[f32], pre: &[f32], out: &mut [f32]) {
    let width = streams.len() / pre.len();
    let rows = streams.chunks_exact(STREAMS * width).zip(pre.chunks_exact(STREAMS));
    for ((streams, pre), out) in rows.zip(out.chunks_exact_mut(width)) {
        for (index, out) in out.iter_mut().enumerate() {
            let mut sum = R::ZERO;
            for (stream, pre) in pre.iter().enumerate() {
                sum = R::from_f32(*pre).fused(R::from_f32(streams[stream * width + index]), sum);
            }
            *out = sum.to_bf16();
        }
    }
}

/// `post_j * y + sum over i of comb_ij * stream_i` of some rows, in place.
#[inline(always)]
pub(super) fn spread<R: Real>(y: &[f32], post: &[f32], comb: &[f32], streams: &mut [f32]) {
    let width = streams.len() / post.len();
    let weights = post.chunks_exact(STREAMS).zip(comb.chunks_exact(STREAMS * STREAMS));
    let rows = streams.chunks_exact_mut(STREAMS * width).zip(y.chunks_exact(width));
    for ((streams, y), (post, comb)) in rows.zip(weights) {
        for (index, y) in y.iter().enumerate() {
            let mut old = [R::ZERO; STREAMS];
            for (stream, old) in old.iter_mut().enumerate() {
                *old = R::from_f32(streams[stream * width + index]);
            }
            for target in 0..STREAMS {
                let mut sum = R::from_f32(post[target]) * R::from_f32(*y);
                for (source, old) in old.iter().enumerate() {
                    sum = R::from_f32(comb[source * STREAMS + target]).fused(*old, sum);
                }
                streams[target * width + index] = sum.to_bf16();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RowMixes, split};
    use crate::ops::{HyperConnection, MIXES};
    use crate::weights::{Weight, WeightData};

    #[test]
    fn known_answer_of_the_split_holds() {
        let raw: Vec<f64> = (0..MIXES).map(|k| ((k + 1) as f64).sin()).collect();
        let base: Vec<f32> = (0..MIXES).map(|k| 0.1 * ((k % 5) as f32 - 2.0)).collect();
        let bytes = vec![0; MIXES * 16];
        let connection = HyperConnection {
            projection: Weight::new(MIXES, 4, WeightData::F32(&bytes)),
            base: &base,
            scale: &[1.0, 0.5, 2.0],
            iterations: 20,
        };
        let (mut pre, mut post, mut comb) = ([0.0; 4], [0.0; 4], [0.0; 16]);
        let out = RowMixes { pre: &mut pre, post: &mut post, comb: &mut comb };
        split(&raw, &connection, out);
        let expected = [
            0.655_087, 0.691_961, 0.535_223, 0.341_459, 0.861_171, 0.831_761, 1.113_752, 1.242_416,
            0.459_497, 0.230_170, 0.123_172, 0.187_160, 0.041_551, 0.440_872, 0.490_190, 0.027_385,
            0.003_773, 0.019_484, 0.259_301, 0.717_441, 0.495_178, 0.309_472, 0.127_336, 0.068_012,
        ];
        for (found, expected) in pre.iter().chain(&post).chain(&comb).zip(expected) {
            assert!((found - expected).abs() < 2e-6, "{found} against {expected}");
        }
    }
}
