//! The two accumulator types: float64 for the exact arithmetic, float32 for the fast one.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numeric code: rounding and bit fields are the point"
)]

use std::f32::consts::LOG2_E;
use std::ops::{Add, Div, Mul, Sub};

use crate::formats::{round_bf16, round_bf16_from_f64};

/// What a kernel needs of its accumulator. Every operation is a fixed sequence of IEEE operations, so that all
/// instruction sets give equal bits.
pub(crate) trait Real:
    Copy
    + Send
    + Sync
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + 'static
{
    /// Partial sums of an inner product: one 512-bit register.
    const LANES: usize;
    const ZERO: Self;
    const ONE: Self;
    /// Below every score: the running maximum starts here.
    const LOWEST: Self;

    fn from_f32(value: f32) -> Self;
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    /// Rounds to float32, once.
    fn to_f32(self) -> f32;
    /// Rounds to bfloat16, once.
    fn to_bf16(self) -> f32;
    /// `self * factor + addend` as the arithmetic defines it: fused in float32; in float64 the product of two float32
    /// values is exact, so that plain operations give the fused result.
    fn fused(self, factor: Self, addend: Self) -> Self;
    fn exp(self) -> Self;
    fn sqrt(self) -> Self;
    fn ln_1p(self) -> Self;
    fn larger(self, other: Self) -> Self;

    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::ONE / (Self::ONE + (Self::ZERO - self).exp())
    }
}

impl Real for f64 {
    const LANES: usize = 8;
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const LOWEST: Self = -1e30;

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self::from(value)
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self as f32
    }
    #[inline(always)]
    fn to_bf16(self) -> f32 {
        round_bf16_from_f64(self)
    }
    #[inline(always)]
    fn fused(self, factor: Self, addend: Self) -> Self {
        self * factor + addend
    }
    #[inline(always)]
    fn exp(self) -> Self {
        Self::exp(self)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self::sqrt(self)
    }
    #[inline(always)]
    fn ln_1p(self) -> Self {
        Self::ln_1p(self)
    }
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self < other { other } else { self }
    }
}

impl Real for f32 {
    const LANES: usize = 16;
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const LOWEST: Self = -1e30;

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as Self
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn to_bf16(self) -> f32 {
        round_bf16(self)
    }
    #[inline(always)]
    fn fused(self, factor: Self, addend: Self) -> Self {
        self.mul_add(factor, addend)
    }
    #[inline(always)]
    fn exp(self) -> Self {
        exp_f32(self)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self::sqrt(self)
    }
    #[inline(always)]
    fn ln_1p(self) -> Self {
        // Through float64, so that the bits do not depend on the platform's single-precision library.
        f64::from(self).ln_1p() as Self
    }
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self < other { other } else { self }
    }
}

/// e^x in float32 by range reduction to [-ln 2 / 2, ln 2 / 2] and the Taylor polynomial of degree 7, within 2 ulp;
/// straight-line code, so that it vectorises and gives the same bits on every instruction set.
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.0, 88.0);
    let n = clamped.mul_add(LOG2_E, ROUND) - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, clamped));
    let mut p = 1.0 / 5_040.0_f32;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p.mul_add(r, coefficient);
    }
    let scale = f32::from_bits(((n as i32 + 127) as u32) << 23);
    if x < -87.0 { 0.0 } else { p * scale }
}

#[cfg(test)]
mod tests {
    use super::Real;

    #[test]
    fn the_fast_exponential_is_within_two_units() {
        for step in -8_700..=8_800_i16 {
            let x = f32::from(step) / 100.0;
            let exact = f64::from(x).exp();
            let error = (f64::from(<f32 as Real>::exp(x)) - exact).abs() / exact;
            assert!(error < 2.5e-7, "exp({x}) is off by {error:e}");
        }
        assert_eq!(<f32 as Real>::exp(-1e30), 0.0);
    }
}
