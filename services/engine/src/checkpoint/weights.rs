//! Weights as the forward pass uses them: views of mapped files, and small vectors in f32.

use std::ops::Range;
use std::sync::Arc;

use kernels::{MappedFile, Weight, WeightData};

use super::engram_table::EngramTable;
use super::list::Part;

/// A range of a mapped file. Keeps the mapping alive; cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    file: Arc<MappedFile>,
    range: Range<usize>,
}

impl Bytes {
    /// The caller has checked that the range lies inside the file.
    pub(super) fn new(file: Arc<MappedFile>, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= file.bytes().len());
        Self { file, range }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }

    pub(super) fn len(&self) -> usize {
        self.range.len()
    }
}

/// A stored matrix. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    stored: Stored,
}

#[derive(Clone, Debug)]
pub(super) enum Stored {
    Bf16(Bytes),
    F32(Bytes),
    Fp8 { codes: Bytes, scales: Bytes },
    Fp4 { codes: Bytes, scales: Bytes },
}

impl Matrix {
    pub(super) fn new(rows: usize, cols: usize, stored: Stored) -> Self {
        let matrix = Self { rows, cols, stored };
        // Checks the lengths once, so that later calls cannot fail.
        let view = matrix.view();
        assert_eq!((view.rows(), view.cols()), (rows, cols));
        matrix
    }

    /// The matrix for the kernels. Cheap.
    #[must_use]
    pub fn view(&self) -> Weight<'_> {
        let data = match &self.stored {
            Stored::Bf16(bytes) => WeightData::Bf16(bytes.bytes()),
            Stored::F32(bytes) => WeightData::F32(bytes.bytes()),
            Stored::Fp8 { codes, scales } => {
                WeightData::Fp8 { codes: codes.bytes(), scales: scales.bytes() }
            }
            Stored::Fp4 { codes, scales } => {
                WeightData::Fp4 { codes: codes.bytes(), scales: scales.bytes() }
            }
        };
        Weight::new(self.rows, self.cols, data)
    }

    /// Outputs of the linear layer.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of the linear layer.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }
}

/// The weights of one [`Part`] of the text model. Names and shapes: specs/v41-architecture.md §2.
#[derive(Debug)]
pub struct Weights {
    /// Which part this is.
    pub part: Part,
    /// Bytes of the checkpoint this covers: the sum over `tensor_list(config, part)`.
    pub bytes: u64,
    /// Token embedding, bf16 `[vocab, hidden]`.
    pub embed: Matrix,
    /// One entry per backbone layer; none where the part does not have the layer.
    pub layers: Vec<Option<LayerWeights>>,
    /// What makes global KV at the boundary layer. Present in both parts.
    pub boundary: BoundaryWeights,
    /// Final norm `[hidden]`; `Whole` only.
    pub norm: Option<Vec<f32>>,
    /// Output head, bf16 `[vocab, hidden]`; `Whole` only.
    pub head: Option<Matrix>,
}

/// The part of the boundary layer that the encoder ends with.
#[derive(Clone, Debug)]
pub struct BoundaryWeights {
    /// Norm of the layer's attention input `[hidden]`.
    pub attn_norm: Vec<f32>,
    /// Makers of entries and index keys.
    pub source: SourceWeights,
}

/// One layer of the backbone.
#[derive(Debug)]
pub struct LayerWeights {
    /// `[hidden]`
    pub attn_norm: Vec<f32>,
    /// `[hidden]`
    pub ffn_norm: Vec<f32>,
    /// Query down projection, FP8 `[q_rank, hidden]`.
    pub wq_a: Matrix,
    /// `[q_rank]`
    pub q_norm: Vec<f32>,
    /// Query up projection, FP8 `[heads * head_dim, q_rank]`.
    pub wq_b: Matrix,
    /// Window KV projection, FP8 `[head_dim, hidden]`.
    pub wkv: Matrix,
    /// `[head_dim]`
    pub kv_norm: Vec<f32>,
    /// Output down projection, FP8 `[o_groups * o_rank, heads / o_groups * head_dim]`; each group's rows read that
    /// group's heads.
    pub wo_a: Matrix,
    /// Output up projection, FP8 `[hidden, o_groups * o_rank]`.
    pub wo_b: Matrix,
    /// Attention sink logits `[heads]`.
    pub sink: Vec<f32>,
    /// Mixing around attention.
    pub hc_attn: HyperConnection,
    /// Mixing around the experts.
    pub hc_ffn: HyperConnection,
    /// Routing projection, bf16 `[routed, hidden]`.
    pub gate: Matrix,
    /// Selection bias for text `[routed]`.
    pub gate_bias: Vec<f32>,
    /// Selection bias for image spans `[routed]`.
    pub gate_bias_vl: Vec<f32>,
    /// Routed experts, FP4.
    pub experts: Vec<Expert>,
    /// Shared expert, FP8.
    pub shared: Expert,
    /// Makers of entries and index keys; at KV sources.
    pub source: Option<SourceWeights>,
    /// Makers of index queries; at index sources.
    pub indexer: Option<IndexerWeights>,
    /// Applied before the layer; at Engram layers.
    pub engram: Option<EngramWeights>,
}

/// The projection that yields pre, post and combination weights of a sub-layer.
#[derive(Debug)]
pub struct HyperConnection {
    /// f32 `[24, 4 * hidden]`, columns stream-major.
    pub fn_: Matrix,
    /// `[24]`: pre, post, combination.
    pub base: Vec<f32>,
    /// `[3]`: pre, post, combination.
    pub scale: Vec<f32>,
}

/// A gated MLP.
#[derive(Debug)]
pub struct Expert {
    /// Gate projection `[intermediate, hidden]`.
    pub w1: Matrix,
    /// Down projection `[hidden, intermediate]`.
    pub w2: Matrix,
    /// Up projection `[intermediate, hidden]`.
    pub w3: Matrix,
}

/// Makers of compressed entries and index keys.
#[derive(Clone, Debug)]
pub struct SourceWeights {
    /// Entry projection, bf16 `[head_dim, hidden]`.
    pub compressor_wkv: Matrix,
    /// Pooling scores, bf16 `[head_dim, hidden]`; where the ratio is above 1.
    pub compressor_gate: Option<Matrix>,
    /// `[head_dim]`
    pub compressor_norm: Vec<f32>,
    /// Index key projection of the entry, bf16 `[index_dim, head_dim]`.
    pub index_wk: Matrix,
    /// `[index_dim]`
    pub index_k_norm: Vec<f32>,
}

/// Makers of index queries.
#[derive(Debug)]
pub struct IndexerWeights {
    /// FP8 `[index_heads * index_dim, q_rank]`.
    pub wq_b: Matrix,
    /// Head weights, bf16 `[index_heads, hidden]`.
    pub weights_proj: Matrix,
}

/// One Engram layer.
#[derive(Debug)]
pub struct EngramWeights {
    /// The learned rows.
    pub table: EngramTable,
    /// Keys of the four streams, then the value, FP8 `[5 * hidden, columns * row width]`.
    pub wkv: Matrix,
    /// `[4 * hidden]`, stream-major.
    pub q_weight: Vec<f32>,
    /// `[4 * hidden]`, stream-major.
    pub k_weight: Vec<f32>,
}
