//! A look into the forward pass, for parity tests and the `golden` command.

use kernels::IndexChoice;

/// A value at a rounding point. Names are those of `shared/golden`: `attn_in`, `topk`, `x_out` and so on.
#[derive(Clone, Copy, Debug)]
pub enum TraceValue<'a> {
    /// Activations or weights, `[rows, ...]`.
    Floats(&'a [f32]),
    /// Packed bytes, `[rows or entries, ...]`.
    Bytes(&'a [u8]),
    /// Expert ids, `[rows, top]`.
    Ids(&'a [u32]),
    /// Engram rows, `[rows, columns]`.
    Rows(&'a [u64]),
    /// What the indexer chose, one per row.
    Choices(&'a [IndexChoice]),
}

/// Receives values while a forward pass runs.
pub trait Trace {
    /// Whether anything is wanted; when not, nothing is prepared.
    fn active(&self) -> bool;

    /// Takes one value of a layer.
    fn record(&mut self, layer: usize, name: &'static str, value: TraceValue<'_>);
}

/// Wants nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoTrace;

impl Trace for NoTrace {
    fn active(&self) -> bool {
        false
    }

    fn record(&mut self, _: usize, _: &'static str, _: TraceValue<'_>) {}
}
