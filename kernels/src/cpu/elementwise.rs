//! Norms, rotation, pooling and the Engram gate: per-row arithmetic without matrices.

use super::real::Real;
use crate::ops::{EngramGate, STREAMS, Turn};

/// RMS norm of rows as long as `weight`.
#[inline(always)]
pub(super) fn rms_norm<R: Real>(x: &[f32], weight: &[f32], eps: f64, out: &mut [f32]) {
    let width = weight.len();
    for (row, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let factor = inverse_norm::<R>(row, eps);
        for ((value, weight), out) in row.iter().zip(weight).zip(out) {
            *out = (R::from_f32(*value) * factor * R::from_f32(*weight)).to_bf16();
        }
    }
}

/// `1 / sqrt(mean(x^2) + eps)`. Sixteen partial sums, joined in order, so that lanes can be used.
#[inline(always)]
pub(super) fn inverse_norm<R: Real>(row: &[f32], eps: f64) -> R {
    let sum = dot_with::<R>(row, |value| value);
    let mean = sum / R::from_f64(row.len() as f64);
    R::ONE / (mean + R::from_f64(eps)).sqrt()
}

/// `sum x_i * f(x_i)` in sixteen lanes, joined in order.
#[inline(always)]
fn dot_with<R: Real>(row: &[f32], other: impl Fn(R) -> R) -> R {
    let mut lanes = [R::ZERO; 16];
    let chunks = row.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            let value = R::from_f32(*value);
            *lane = value.fused(other(value), *lane);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        let value = R::from_f32(*value);
        *lane = value.fused(other(value), *lane);
    }
    lanes.iter().fold(R::ZERO, |sum, lane| sum + *lane)
}

/// Rotates adjacent pairs at the end of each vector.
#[inline(always)]
pub(super) fn rope<R: Real>(vectors: &mut [f32], width: usize, angles: &[(f64, f64)], turn: Turn) {
    let sign = match turn {
        Turn::Forward => 1.0,
        Turn::Inverse => -1.0,
    };
    for vector in vectors.chunks_exact_mut(width) {
        let first = width - 2 * angles.len();
        for (pair, (cos, sin)) in vector[first..].chunks_exact_mut(2).zip(angles) {
            let (cos, sin) = (R::from_f64(*cos), R::from_f64(sign * *sin));
            let (even, odd) = (R::from_f32(pair[0]), R::from_f32(pair[1]));
            pair[0] = (even * cos - odd * sin).to_bf16();
            pair[1] = (even * sin + odd * cos).to_bf16();
        }
    }
}

/// Softmax-weighted mean of the rows of one group, per channel.
#[inline(always)]
pub(super) fn pool<R: Real>(keys: &[f64], scores: &[f64], width: usize, out: &mut [f32]) {
    for (channel, out) in out.iter_mut().enumerate() {
        let column = |values: &[f64], row: usize| R::from_f64(values[row * width + channel]);
        let rows = keys.len() / width;
        let maximum = (0..rows).map(|row| column(scores, row)).fold(R::LOWEST, R::larger);
        let (mut sum, mut total) = (R::ZERO, R::ZERO);
        for row in 0..rows {
            let weight = (column(scores, row) - maximum).exp();
            total = total + weight;
            sum = weight.fused(column(keys, row), sum);
        }
        *out = (sum / total).to_bf16();
    }
}

/// The Engram gate of one row: `streams` is `[STREAMS, width]`, `kv` is `[STREAMS + 1, width]`.
#[inline(always)]
pub(super) fn engram<R: Real>(streams: &mut [f32], kv: &[f32], gate: EngramGate<'_>) {
    let width = kv.len() / (STREAMS + 1);
    let (keys, value) = kv.split_at(STREAMS * width);
    for (index, stream) in streams.chunks_exact_mut(width).enumerate() {
        let range = index * width..(index + 1) * width;
        let key = &keys[range.clone()];
        let (query_weight, key_weight) =
            (&gate.query_weight[range.clone()], &gate.key_weight[range]);
        let mut dot = R::ZERO;
        for (((x, key), q), k) in stream.iter().zip(key).zip(query_weight).zip(key_weight) {
            let weight = R::from_f32(*q) * R::from_f32(*k);
            dot = (R::from_f32(*x) * weight).fused(R::from_f32(*key), dot);
        }
        let norms = inverse_norm::<R>(stream, gate.eps) * inverse_norm::<R>(key, gate.eps);
        let strength = (dot * norms).to_f64() / (width as f64).sqrt();
        let root = strength.abs().max(1e-6).sqrt().copysign(strength);
        let open = R::from_f64(root).sigmoid();
        for (x, value) in stream.iter_mut().zip(value) {
            *x = open.fused(R::from_f32(*value), R::from_f32(*x)).to_bf16();
        }
    }
}
