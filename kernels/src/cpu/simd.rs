//! Run-time dispatch to the widest vector instructions the processor has.
//!
//! A kernel is plain Rust written once; here it is compiled three times with different instruction sets. All versions
//! give equal bits, because a kernel is a fixed sequence of IEEE operations per output and the compiler may not reorder
//! them. Invariant: this file is the only place that calls a function compiled for instructions the target may lack.
#![expect(
    unsafe_code,
    reason = "calling code compiled for detected instructions is unsafe by rule"
)]

/// An instruction set level that this processor has. Made by [`Isa::detect`] and [`Isa::available`] only, which is what
/// makes dispatching safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// What every x86-64 or other target has. Correct and slow.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Isa {
    /// The best level of this processor.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 && avx512 {
                return Self(Level::Avx512);
            }
            if avx2 {
                return Self(Level::Avx2);
            }
        }
        Self(Level::Portable)
    }

    /// The levels this processor can run, for tests that compare them.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let levels: &[Level] = match Self::detect().0 {
            Level::Portable => &[Level::Portable],
            Level::Avx2 => &[Level::Portable, Level::Avx2],
            Level::Avx512 => &[Level::Portable, Level::Avx2, Level::Avx512],
        };
        levels.iter().map(|level| Self(*level)).collect()
    }
}

/// A piece of work that profits from vector instructions. `run` must be `#[inline(always)]`, as must be everything hot
/// that it calls. `BLOCK` is how many rows the level has registers for; it must not change results.
pub(crate) trait Kernel {
    fn run<const BLOCK: usize>(self);
}

/// Runs a kernel at a level.
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) {
    match isa.0 {
        Level::Portable => kernel.run::<1>(),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level is only made where these features were detected.
        Level::Avx2 => unsafe { avx2(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level is only made where these features were detected.
        Level::Avx512 => unsafe { avx512(kernel) },
        #[cfg(not(target_arch = "x86_64"))]
        Level::Avx2 | Level::Avx512 => kernel.run::<1>(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<K: Kernel>(kernel: K) {
    kernel.run::<2>();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512<K: Kernel>(kernel: K) {
    kernel.run::<4>();
}
