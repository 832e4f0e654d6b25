//! Devices and the operations of the model on them.
//!
//! What it is: number formats ([`formats`], [`quant`]), views of stored weights ([`Weight`]) and the [`Ops`] trait with
//! its CPU implementation in two arithmetics. What it is not: it knows no model, no sequence and no cache.
//!
//! Invariants: results of a row do not depend on batch, threads or instruction set; unsafe code exists only in `cpu/simd`
//! (dispatch) and `cpu/map` (file mapping).
//!
//! Start reading at [`Ops`].
#![deny(unsafe_code)]

mod cpu;
pub mod formats;
mod ops;
pub mod quant;
mod weights;

pub use cpu::CpuOps;
pub use cpu::attention::{AttentionRow, AttentionShape};
pub use cpu::map::MappedFile;
pub use cpu::simd::Isa;
pub use ops::{
    Angles, EngramGate, Expert, ExpertLayer, Gate, HyperConnection, IndexChoice, IndexRow,
    IndexShape, MIXES, Mixes, Ops, Routing, STREAMS, Turn,
};
pub use weights::{FP4_GROUP, FP8_TILE, Weight, WeightData};
