//! What the machine can do at best, measured now: the bounds that engine figures stand beside.

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par};
use kernels::{CpuOps, Ops, Weight, WeightData};
use rayon::prelude::{IntoParallelRefIterator, ParallelIterator};
use shared::{Clock, Timestamp};

/// Bytes read per run of the bandwidth measurement: far more than any cache holds.
const READ_BYTES: usize = 512 << 20;
/// Runs; the best one counts, because a bound must not be lowered by other work on the machine.
const RUNS: usize = 7;
/// Rows, outputs and inputs of the matrix products: the size at which the kernels were tuned.
const GEMM: (usize, usize, usize) = (256, 2_048, 2_048);

/// Measured bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Bytes per second that all threads together read from memory.
    pub read_bytes_per_second: f64,
    /// Floating-point operations per second of a float32 matrix product by faer, the fastest safe library for it: the
    /// bound of every product here.
    pub gemm_flops: f64,
    /// The same product through the engine's own `fast` kernel, with bfloat16 weights.
    pub own_gemm_flops: f64,
    /// Threads that compute.
    pub threads: usize,
}

impl Machine {
    /// One line for a result file.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "{} threads; memory read {:.1} GB/s; matrix product {}x{}x{}: {:.0} GFLOP/s by faer in float32, {:.0} by the \
             `fast` kernel with bfloat16 weights (best of {RUNS})",
            self.threads,
            self.read_bytes_per_second / 1e9,
            GEMM.0,
            GEMM.1,
            GEMM.2,
            self.gemm_flops / 1e9,
            self.own_gemm_flops / 1e9
        )
    }
}

/// Measures the machine; takes a few seconds.
#[must_use]
pub fn measure(clock: &dyn Clock) -> Machine {
    Machine {
        read_bytes_per_second: read_speed(clock),
        gemm_flops: gemm_speed(clock),
        own_gemm_flops: own_gemm_speed(clock),
        threads: rayon::current_num_threads(),
    }
}

/// Seconds from `start` to now.
pub(crate) fn seconds(clock: &dyn Clock, start: Timestamp) -> f64 {
    clock.now().since(start).as_secs_f64()
}

fn read_speed(clock: &dyn Clock) -> f64 {
    let words = vec![1_u64; READ_BYTES / size_of::<u64>()];
    let best = (0..RUNS).map(|_| {
        let start = clock.now();
        let sum: u64 = words.par_iter().sum();
        assert_eq!(usize::try_from(sum), Ok(words.len()), "every word was read");
        seconds(clock, start)
    });
    as_f64(READ_BYTES) / best.fold(f64::INFINITY, f64::min)
}

fn gemm_speed(clock: &dyn Clock) -> f64 {
    let (rows, outputs, inputs) = GEMM;
    let (x, weight) = (Mat::from_fn(rows, inputs, |_, _| 1.0_f32), Mat::full(inputs, outputs, 1.0));
    let mut out = Mat::zeros(rows, outputs);
    let threads = Par::rayon(rayon::current_num_threads());
    let best = (0..RUNS).map(|_| {
        let start = clock.now();
        matmul(&mut out, Accum::Replace, &x, &weight, 1.0_f32, threads);
        seconds(clock, start)
    });
    2.0 * as_f64(rows * outputs * inputs) / best.fold(f64::INFINITY, f64::min)
}

fn own_gemm_speed(clock: &dyn Clock) -> f64 {
    let (rows, outputs, inputs) = GEMM;
    // 1.0 in bfloat16: the time does not depend on the values.
    let stored: Vec<u8> = [0x80, 0x3f].repeat(outputs * inputs);
    let weight = Weight::new(outputs, inputs, WeightData::Bf16(&stored));
    let x = vec![1.0; rows * inputs];
    let mut out = vec![0.0; rows * outputs];
    let ops = CpuOps::fast();
    let best = (0..RUNS).map(|_| {
        let start = clock.now();
        ops.linear(&x, weight, &mut out);
        seconds(clock, start)
    });
    2.0 * as_f64(rows * outputs * inputs) / best.fold(f64::INFINITY, f64::min)
}

/// A count as a number to divide by; counts here are far below 2^53.
pub(crate) fn as_f64(count: usize) -> f64 {
    let count = u32::try_from(count / 1_000).map(|thousands| {
        f64::from(thousands) * 1_000.0 + f64::from(u32::try_from(count % 1_000).unwrap_or(0))
    });
    count.unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::as_f64;

    #[test]
    fn counts_become_numbers_exactly() {
        for (count, expected) in [(0, 0.0), (999, 999.0), (1_234_567_890_123, 1_234_567_890_123.0)]
        {
            assert!((as_f64(count) - expected).abs() < 0.5, "{count}");
        }
    }
}
