//! `y = W x` for rows of activations and weights as stored.
//!
//! Weight rows are decoded a band at a time and used for all rows of the call; inner products are those of `dot`, so that
//! a row's result depends on nothing but the row and the weights, for any batch, thread count and instruction set.

use std::marker::PhantomData;
use std::ops::Range;

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use super::dot::products;
use super::real::Real;
use super::simd::{Isa, Kernel, dispatch};
use crate::formats::{bf16_from_le, e8m0};
use crate::weights::{FP4_GROUP, FP8_TILE, Weight, WeightData};

/// Weight rows decoded at a time: few enough to stay in the first-level cache.
const BAND: usize = 8;
/// Rows that one task computes at least: enough to pay for decoding the weights again in each task.
const ROWS_PER_TASK: usize = 32;
/// Outputs of one task when a large matrix meets few rows.
const OUTPUTS_PER_TASK: usize = 64;
/// Weights from which on few rows are still worth splitting by outputs.
const SPLIT_WEIGHTS: usize = 1 << 18;

/// Computes all outputs of all rows: `x` is `[rows, cols]`, `out` is `[rows, weight.rows()]`; `store` rounds.
pub(crate) fn linear<R: Real, T: Copy + Send + Default, S: Fn(R) -> T + Copy + Send + Sync>(
    isa: Isa,
    x: &[f32],
    weight: Weight<'_>,
    out: &mut [T],
    store: S,
) {
    let (cols, outputs) = (weight.cols(), weight.rows());
    let rows = x.len() / cols;
    assert_eq!(x.len(), rows * cols, "whole rows of activations");
    assert_eq!(out.len(), rows * outputs, "one output row per activation row");
    if rows < 2 * ROWS_PER_TASK && SPLIT_WEIGHTS <= outputs * cols {
        return linear_by_outputs(isa, x, weight, out, store);
    }
    let task = |(x, out): (&[f32], &mut [T])| {
        let outputs = 0..weight.rows();
        let stride = outputs.end;
        dispatch(isa, Gemm { x, weight, outputs, out, stride, store, accumulator: PhantomData });
    };
    if rows < 2 * ROWS_PER_TASK {
        task((x, out));
    } else {
        let rows = ROWS_PER_TASK.max(rows.div_ceil(2 * rayon::current_num_threads()));
        x.par_chunks(rows * cols).zip(out.par_chunks_mut(rows * outputs)).for_each(task);
    }
}

/// Few rows and a large matrix: tasks take outputs, which are put in place afterwards.
fn linear_by_outputs<R: Real, T: Copy + Send + Default, S: Fn(R) -> T + Copy + Send + Sync>(
    isa: Isa,
    x: &[f32],
    weight: Weight<'_>,
    out: &mut [T],
    store: S,
) {
    let (cols, outputs) = (weight.cols(), weight.rows());
    let rows = x.len() / cols;
    let stride = OUTPUTS_PER_TASK;
    let mut parts = vec![T::default(); outputs.div_ceil(stride) * rows * stride];
    parts.par_chunks_mut(rows * stride).enumerate().for_each(|(part, out)| {
        let outputs = part * stride..outputs.min((part + 1) * stride);
        dispatch(isa, Gemm { x, weight, outputs, out, stride, store, accumulator: PhantomData });
    });
    for (part, values) in parts.chunks_exact(rows * stride).enumerate() {
        let first = part * stride;
        let width = stride.min(outputs - first);
        for (row, values) in values.chunks_exact(stride).enumerate() {
            let start = row * outputs + first;
            out[start..start + width].copy_from_slice(&values[..width]);
        }
    }
}

struct Gemm<'a, R, T, S> {
    x: &'a [f32],
    weight: Weight<'a>,
    outputs: Range<usize>,
    out: &'a mut [T],
    stride: usize,
    store: S,
    accumulator: PhantomData<R>,
}

impl<R: Real, T: Copy, S: Fn(R) -> T> Kernel for Gemm<'_, R, T, S> {
    #[inline(always)]
    fn run<const BLOCK: usize>(self) {
        // The lane count is a constant of the type; the branch is resolved when the function is compiled.
        if R::LANES == 16 { self.with_lanes::<16, BLOCK>() } else { self.with_lanes::<8, BLOCK>() }
    }
}

impl<R: Real, T: Copy, S: Fn(R) -> T> Gemm<'_, R, T, S> {
    #[inline(always)]
    fn with_lanes<const LANES: usize, const BLOCK: usize>(self) {
        let cols = self.weight.cols();
        let mut decoded = vec![0.0; cols * BAND];
        let mut first = self.outputs.start;
        while first < self.outputs.end {
            let band = BAND.min(self.outputs.end - first);
            for (row, values) in decoded.chunks_exact_mut(cols).take(band).enumerate() {
                decode_row(self.weight, first + row, values);
            }
            let column = first - self.outputs.start;
            let put = &mut |row: usize, col: usize, sum: R| {
                self.out[row * self.stride + column + col] = (self.store)(sum);
            };
            products::<R, LANES, BLOCK>(self.x, &decoded[..band * cols], cols, put);
            first += band;
        }
    }
}

/// Decodes one row of a matrix; every value is exact.
#[inline(always)]
pub(crate) fn decode_row(weight: Weight<'_>, row: usize, out: &mut [f32]) {
    let cols = weight.cols();
    match weight.data() {
        WeightData::Bf16(bytes) => {
            let bytes = &bytes[row * cols * 2..(row + 1) * cols * 2];
            for (value, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *value = bf16_from_le([pair[0], pair[1]]);
            }
        }
        WeightData::F32(bytes) => {
            let bytes = &bytes[row * cols * 4..(row + 1) * cols * 4];
            for (value, quad) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *value = f32::from_le_bytes([quad[0], quad[1], quad[2], quad[3]]);
            }
        }
        WeightData::Fp8 { codes, scales } => {
            let tiles = cols.div_ceil(FP8_TILE);
            let scales = &scales[row / FP8_TILE * tiles..][..tiles];
            let codes = &codes[row * cols..(row + 1) * cols];
            for ((values, codes), scale) in
                out.chunks_mut(FP8_TILE).zip(codes.chunks(FP8_TILE)).zip(scales)
            {
                let scale = e8m0(*scale);
                for (value, code) in values.iter_mut().zip(codes) {
                    *value = e4m3_value(*code) * scale;
                }
            }
        }
        WeightData::Fp4 { codes, scales } => {
            let scales = &scales[row * cols / FP4_GROUP..(row + 1) * cols / FP4_GROUP];
            let codes = &codes[row * cols / 2..(row + 1) * cols / 2];
            for ((values, codes), scale) in
                out.chunks_exact_mut(FP4_GROUP).zip(codes.chunks_exact(FP4_GROUP / 2)).zip(scales)
            {
                let scale = e8m0(*scale);
                for (pair, code) in values.chunks_exact_mut(2).zip(codes) {
                    pair[0] = e2m1_value(code & 15) * scale;
                    pair[1] = e2m1_value(code >> 4) * scale;
                }
            }
        }
    }
}

/// E4M3 without a table, so that it vectorises: the magnitude is an integer number of 2^-9. (Shifting the bits into a
/// float32 would be shorter, but subnormal operands cost a microcode assist of about 150 cycles on Intel processors.)
#[inline(always)]
fn e4m3_value(code: u8) -> f32 {
    let code = u32::from(code);
    let exponent = (code >> 3) & 15;
    let normal = u32::from(exponent != 0);
    let steps = (normal << 3 | code & 7) << (exponent - normal);
    signed(steps, code >> 7, 1.0 / 512.0)
}

/// E2M1 in the same way: the magnitude is an integer number of halves.
#[inline(always)]
fn e2m1_value(code: u8) -> f32 {
    let code = u32::from(code);
    let exponent = (code >> 1) & 3;
    let normal = u32::from(exponent != 0);
    let steps = (normal << 1 | code & 1) << (exponent - normal);
    signed(steps, code >> 3, 0.5)
}

/// `steps * unit` with the sign of `negative`; a negative zero keeps its sign.
#[inline(always)]
fn signed(steps: u32, negative: u32, unit: f32) -> f32 {
    let magnitude = steps.cast_signed() as f32 * unit;
    f32::from_bits(magnitude.to_bits() | negative << 31)
}

#[cfg(test)]
mod tests {
    use super::{decode_row, e2m1_value, e4m3_value, linear};
    use crate::cpu::real::Real;
    use crate::cpu::simd::Isa;
    use crate::formats::{E2M1, E4M3};
    use crate::weights::{Weight, WeightData};

    #[test]
    fn codes_decode_without_tables() {
        for code in 0..=255_u8 {
            if code & 0x7F != 0x7F {
                assert_eq!(e4m3_value(code).to_bits(), E4M3[usize::from(code)].to_bits(), "{code}");
            }
        }
        for code in 0..16_u8 {
            assert_eq!(e2m1_value(code).to_bits(), E2M1[usize::from(code)].to_bits(), "{code}");
        }
    }

    fn noise(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let step = |state: &mut u32| {
            *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (*state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..count).map(|_| step(&mut state)).collect()
    }

    fn bytes(count: usize, seed: u32) -> Vec<u8> {
        noise(count, seed).iter().map(|value| value.to_bits().to_le_bytes()[1] & 0x77).collect()
    }

    fn check(rows: usize, outputs: usize, cols: usize) {
        let codes = bytes(outputs * cols, 1);
        let scales = vec![120; outputs.div_ceil(32) * cols.div_ceil(32)];
        let weight = Weight::new(outputs, cols, WeightData::Fp8 { codes: &codes, scales: &scales });
        let x = noise(rows * cols, 2);
        let mut results: Vec<Vec<f32>> = Vec::new();
        for isa in Isa::available() {
            let mut out = vec![0.0_f32; rows * outputs];
            linear(isa, &x, weight, &mut out, |sum: f32| sum);
            results.push(out);
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "instruction sets disagree");
        let mut alone = vec![0.0_f32; outputs];
        let last = rows - 1;
        linear(Isa::detect(), &x[last * cols..], weight, &mut alone, |sum: f32| sum);
        assert_eq!(alone, results[0][last * outputs..], "a row depends on its batch");
        let mut exact = vec![0.0_f32; rows * outputs];
        linear(Isa::detect(), &x, weight, &mut exact, |sum: f64| Real::to_f32(sum));
        let mut decoded = vec![0.0; cols];
        decode_row(weight, outputs - 1, &mut decoded);
        let expected: f64 =
            x[..cols].iter().zip(&decoded).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        assert!((f64::from(exact[outputs - 1]) - expected).abs() <= expected.abs() * 1e-6 + 1e-9);
    }

    #[test]
    fn rows_do_not_depend_on_batch_threads_or_instructions() {
        for (rows, outputs, cols) in [(1, 24, 64), (3, 64, 192), (200, 33, 64), (5, 2_048, 576)] {
            check(rows, outputs, cols);
        }
    }
}
