//! Routing and the expert layer.
//!
//! Source: specs/v41-architecture.md §8. The routing weight multiplies the activation before the second matrix, and so
//! before its quantisation. Experts' outputs are summed in ascending order of expert, whatever the batch.

use std::marker::PhantomData;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use super::gemm::linear;
use super::real::Real;
use super::rows::{Activate, FakeQuant, RouteScores};
use super::simd::{Isa, dispatch};
use crate::ops::{Expert, ExpertLayer, Gate, Routing};
use crate::quant::fake_quant8;

/// From here on softplus is the identity, as in the reference.
const SOFTPLUS_LINEAR: f64 = 20.0;

/// Chooses the experts of every row.
pub(super) fn route<R: Real + Default>(isa: Isa, x: &[f32], gate: Gate<'_>, out: &mut Routing) {
    let experts = gate.weight.rows();
    let rows = x.len() / gate.weight.cols();
    let mut raw = vec![R::default(); rows * experts];
    linear(isa, x, gate.weight, &mut raw, |sum: R| sum);
    out.experts.clear();
    out.weights.clear();
    dispatch(isa, RouteScores { raw: &mut raw, accumulator: PhantomData });
    for raw in raw.chunks_exact(experts) {
        let biased = |expert: usize| raw[expert] + R::from_f32(gate.bias[expert]);
        let mut order: Vec<usize> = (0..experts).collect();
        // A stable sort keeps the lower expert first among equals.
        order.sort_by(|a, b| biased(*b).to_f64().total_cmp(&biased(*a).to_f64()));
        order.truncate(gate.top);
        let sum = order.iter().fold(R::ZERO, |sum, expert| sum + raw[*expert]) + R::from_f64(1e-20);
        for expert in order {
            out.experts.push(u32::try_from(expert).expect("expert counts are small"));
            out.weights.push((raw[expert] / sum * R::from_f64(gate.scale)).to_f32());
        }
    }
}

#[inline(always)]
fn softplus<R: Real>(value: R) -> R {
    if R::from_f64(SOFTPLUS_LINEAR) < value { value } else { value.exp().ln_1p() }
}

/// A row that visits an expert, and with which weight.
struct Visit {
    row: usize,
    weight: Option<f32>,
}

/// Computes the layer.
pub(super) fn compute<R: Real>(
    isa: Isa,
    x: &[f32],
    routing: &Routing,
    layer: ExpertLayer<'_>,
    out: &mut [f32],
) {
    let width = layer.shared.w1.cols();
    let rows = x.len() / width;
    let mut quantised = vec![0.0; x.len()];
    let quantise =
        FakeQuant { x, width, out: &mut quantised, accumulator: PhantomData::<(&(), R)> };
    dispatch(isa, quantise);
    let mut jobs: Vec<(Expert<'_>, Vec<Visit>)> =
        layer.experts.iter().map(|expert| (*expert, Vec::new())).collect();
    let top = routing.experts.len() / rows.max(1);
    for (slot, (expert, weight)) in routing.experts.iter().zip(&routing.weights).enumerate() {
        jobs[*expert as usize].1.push(Visit { row: slot / top, weight: Some(*weight) });
    }
    jobs.push((layer.shared, (0..rows).map(|row| Visit { row, weight: None }).collect()));
    jobs.retain(|(_, visits)| !visits.is_empty());
    let outputs: Vec<Vec<f32>> = jobs
        .par_iter()
        .map(|(expert, visits)| visit::<R>(isa, &quantised, *expert, visits, layer.limit))
        .collect();
    let mut sums = vec![R::ZERO; rows * width];
    for ((_, visits), values) in jobs.iter().zip(&outputs) {
        for (visit, values) in visits.iter().zip(values.chunks_exact(width)) {
            let sums = &mut sums[visit.row * width..(visit.row + 1) * width];
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = *sum + R::from_f32(*value);
            }
        }
    }
    for (out, sum) in out.iter_mut().zip(&sums) {
        *out = sum.to_bf16();
    }
}

/// Outputs of one expert for its rows, `[visits, width]`.
fn visit<R: Real>(
    isa: Isa,
    quantised: &[f32],
    expert: Expert<'_>,
    visits: &[Visit],
    limit: f32,
) -> Vec<f32> {
    let (inner, width) = (expert.w1.rows(), expert.w1.cols());
    let mut x = Vec::with_capacity(visits.len() * width);
    for visit in visits {
        x.extend_from_slice(&quantised[visit.row * width..(visit.row + 1) * width]);
    }
    let mut gate = vec![0.0; visits.len() * inner];
    let mut up = vec![0.0; visits.len() * inner];
    linear(isa, &x, expert.w1, &mut gate, |sum: R| sum.to_bf16());
    linear(isa, &x, expert.w3, &mut up, |sum: R| sum.to_bf16());
    let mut activated = vec![0.0; gate.len()];
    let visits = Visits { visits, inner, limit };
    let activate = Activate {
        gate: &mut gate,
        up: &up,
        visits,
        out: &mut activated,
        accumulator: PhantomData::<(&(), R)>,
    };
    dispatch(isa, activate);
    let mut out = vec![0.0; x.len()];
    linear(isa, &activated, expert.w2, &mut out, |sum: R| sum.to_bf16());
    out
}

/// Square roots of softplus, in place.
#[inline(always)]
pub(super) fn route_scores<R: Real>(raw: &mut [R]) {
    for value in raw {
        *value = softplus(*value).sqrt();
    }
}

/// The rows of an expert with the numbers its activation needs.
pub(super) struct Visits<'a> {
    visits: &'a [Visit],
    inner: usize,
    limit: f32,
}

/// Activations of one expert's rows, as FP8 sees them: `gate` is overwritten on the way.
#[inline(always)]
pub(super) fn activate_rows<R: Real>(
    gate: &mut [f32],
    up: &[f32],
    Visits { visits, inner, limit }: Visits<'_>,
    out: &mut [f32],
) {
    let rows = gate.chunks_exact_mut(inner).zip(up.chunks_exact(inner)).zip(visits);
    for ((gate, up), visit) in rows {
        for (gate, up) in gate.iter_mut().zip(up) {
            *gate = activate::<R>(*gate, *up, visit.weight, limit);
        }
    }
    fake_quant8(gate, inner, out);
}

/// `silu(min(gate, limit)) * clamp(up, limit) * weight`, to bfloat16.
#[inline(always)]
fn activate<R: Real>(gate: f32, up: f32, weight: Option<f32>, limit: f32) -> f32 {
    let gate = R::from_f32(gate.min(limit));
    let value = gate * gate.sigmoid() * R::from_f32(up.clamp(-limit, limit));
    match weight {
        Some(weight) => (value * R::from_f32(weight)).to_bf16(),
        None => value.to_bf16(),
    }
}
