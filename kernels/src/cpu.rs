//! The CPU device: one source for two arithmetics, compiled for several instruction sets.

pub(crate) mod attention;
mod dot;
mod elementwise;
mod experts;
pub(crate) mod gemm;
mod indexer;
pub(crate) mod map;
mod mhc;
mod ops;
mod real;
mod rows;
pub(crate) mod simd;
#[cfg(test)]
mod tests;

pub use ops::CpuOps;
