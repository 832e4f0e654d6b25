//! The operations the model is written over, cut at the rounding points of the reference.
//!
//! Every tensor that crosses this border is row-major and holds values that are exact in the type the reference stores:
//! activations are bfloat16 values held in float32, mixing and routing weights and logits are float32. What an
//! operation does between two rounding points is its arithmetic's business.
//!
//! Invariant (batch invariance): a row's result depends on that row and the weights only, bit for bit.

use crate::cpu::attention::{AttentionRow, AttentionShape};
use crate::weights::Weight;

/// Residual streams of the model (`hc_mult`); the only number the kernels fix.
pub const STREAMS: usize = 4;
/// Outputs of a hyper-connection: `STREAMS` pre, `STREAMS` post and `STREAMS * STREAMS` combination weights.
pub const MIXES: usize = 2 * STREAMS + STREAMS * STREAMS;

/// Weights of one hyper-connection.
#[derive(Clone, Copy, Debug)]
pub struct HyperConnection<'a> {
    /// `[MIXES, STREAMS * width]`, float32.
    pub projection: Weight<'a>,
    /// `[MIXES]`.
    pub base: &'a [f32],
    /// Scales of pre, post and combination: `[3]`.
    pub scale: &'a [f32],
    /// Sinkhorn iterations.
    pub iterations: usize,
}

/// Mixing weights of a sub-layer for all rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mixes {
    /// `[rows, STREAMS]`: collapse weights for the *next* sub-layer.
    pub pre: Vec<f32>,
    /// `[rows, STREAMS]`.
    pub post: Vec<f32>,
    /// `[rows, source stream, target stream]`.
    pub comb: Vec<f32>,
}

/// Rotation angles of a set of rows.
#[derive(Clone, Debug, Default)]
pub struct Angles {
    /// Rotated pairs per row.
    pub pairs: usize,
    /// `[rows, pairs]` of (cos, sin).
    pub values: Vec<(f64, f64)>,
}

/// Which way to rotate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// By the angle.
    Forward,
    /// Back by the angle.
    Inverse,
}

/// The three matrices of one expert.
#[derive(Clone, Copy, Debug)]
pub struct Expert<'a> {
    /// Gate projection `[inner, width]`.
    pub w1: Weight<'a>,
    /// Output projection `[width, inner]`.
    pub w2: Weight<'a>,
    /// Up projection `[inner, width]`.
    pub w3: Weight<'a>,
}

/// How rows are routed.
#[derive(Clone, Copy, Debug)]
pub struct Gate<'a> {
    /// `[experts, width]`.
    pub weight: Weight<'a>,
    /// `[experts]`: added for selection only.
    pub bias: &'a [f32],
    /// Experts per row.
    pub top: usize,
    /// Factor of the normalised weights.
    pub scale: f64,
}

/// The experts of each row, best first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routing {
    /// `[rows, top]`.
    pub experts: Vec<u32>,
    /// `[rows, top]`.
    pub weights: Vec<f32>,
}

/// Everything the expert layer needs besides its input.
#[derive(Clone, Copy, Debug)]
pub struct ExpertLayer<'a> {
    /// All routed experts.
    pub experts: &'a [Expert<'a>],
    /// The expert every row visits.
    pub shared: Expert<'a>,
    /// Clamp of gate (above) and up projection (both sides).
    pub limit: f32,
}

/// One row's question to the indexer.
#[derive(Clone, Copy, Debug)]
pub struct IndexRow<'a> {
    /// `[heads, dim]`, quantised and decoded.
    pub query: &'a [f32],
    /// `[heads]`.
    pub head_weights: &'a [f32],
    /// Leading entries that the row may see.
    pub visible: usize,
    /// Ascending candidate blocks the row is restricted to.
    pub candidates: Option<&'a [u32]>,
}

/// The indexer's parameters.
#[derive(Clone, Copy, Debug)]
pub struct IndexShape {
    /// Width of a key.
    pub dim: usize,
    /// Entries to select.
    pub top: usize,
    /// Entries per candidate block.
    pub block_size: usize,
    /// Candidate blocks to emit; none when this layer emits none.
    pub emit_blocks: Option<usize>,
    /// Whether scores are wanted even where the selection is certain without them.
    pub keep_scores: bool,
}

/// What the indexer found for one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IndexChoice {
    /// Selected entries, ascending.
    pub selected: Vec<u32>,
    /// Candidate blocks, ascending; empty unless emitted.
    pub candidates: Vec<u32>,
    /// Scores of the visible entries, bfloat16 values, negative infinity outside the candidates; empty unless kept.
    pub scores: Vec<f32>,
}

/// The gate inputs of an Engram layer.
#[derive(Clone, Copy, Debug)]
pub struct EngramGate<'a> {
    /// `[STREAMS, width]`.
    pub query_weight: &'a [f32],
    /// `[STREAMS, width]`.
    pub key_weight: &'a [f32],
    /// Stabiliser of the normalisations.
    pub eps: f64,
}

/// A device's operations. Object-safe; all methods block until the result is there and may use the device's threads.
pub trait Ops: Send + Sync {
    /// `w * x / sqrt(mean(x^2) + eps)` per row, to bfloat16. `x` and `out` are `[rows, weight.len()]`.
    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f64, out: &mut [f32]);

    /// `W x` per row, to bfloat16. Weights in FP8 or FP4 expect an input that went through [`Ops::fake_quant8`].
    fn linear(&self, x: &[f32], weight: Weight<'_>, out: &mut [f32]);

    /// A block-diagonal `W x`: group g of the outputs sees group g of the inputs. To bfloat16.
    fn linear_grouped(&self, x: &[f32], weight: Weight<'_>, groups: usize, out: &mut [f32]);

    /// `W x` per row, to float32.
    fn logits(&self, x: &[f32], weight: Weight<'_>, out: &mut [f32]);

    /// `W x` per row without a rounding point, carried as float64.
    fn project(&self, x: &[f32], weight: Weight<'_>, out: &mut [f64]);

    /// Activations as FP8 sees them; `x` and `out` are `[rows, width]`.
    fn fake_quant8(&self, x: &[f32], width: usize, out: &mut [f32]);

    /// Rotates the last `2 * pairs` elements of each vector of `width` elements, in place, to bfloat16. `x` is
    /// `[rows, vectors, width]` with one angle row per row.
    fn rope(&self, x: &mut [f32], width: usize, angles: &Angles, turn: Turn);

    /// Mixing weights of a sub-layer; `streams` is `[rows, STREAMS, width]`.
    fn mhc_mix(&self, streams: &[f32], connection: HyperConnection<'_>, out: &mut Mixes);

    /// `sum over streams of pre * stream`, to bfloat16; `out` is `[rows, width]`.
    fn mhc_collapse(&self, streams: &[f32], pre: &[f32], out: &mut [f32]);

    /// `post_j * y + sum over i of comb_ij * stream_i`, to bfloat16, in place in `streams`.
    fn mhc_spread(&self, y: &[f32], mixes: &Mixes, streams: &mut [f32]);

    /// Pools `ratio` rows per group with a per-channel softmax of their scores, to bfloat16. `keys` and `scores` are
    /// `[groups, ratio, width]`.
    fn compress(&self, keys: &[f64], scores: &[f64], ratio: usize, width: usize, out: &mut [f32]);

    /// Scores, selection and candidate blocks for rows that share `keys`, `[entries, dim]`.
    fn index(&self, keys: &[f32], rows: &[IndexRow<'_>], shape: IndexShape) -> Vec<IndexChoice>;

    /// Attention over window and selected entries; `out` is `[rows, heads, dim]`, bfloat16.
    fn attention(&self, shape: AttentionShape<'_>, rows: &[AttentionRow<'_>], out: &mut [f32]);

    /// Chooses experts.
    fn gate(&self, x: &[f32], gate: Gate<'_>, out: &mut Routing);

    /// The routed and the shared experts, to bfloat16. `x` and `out` are `[rows, width]`.
    fn experts(&self, x: &[f32], routing: &Routing, layer: ExpertLayer<'_>, out: &mut [f32]);

    /// Adds gated Engram values to the streams, in place. `kv` is `[rows, STREAMS + 1, width]`: keys, then the value.
    /// `open` says per row whether the gate may open (false inside images).
    fn engram(&self, streams: &mut [f32], kv: &[f32], open: &[bool], gate: EngramGate<'_>);
}
