//! The model's configuration: `config.json` as numbers under our own names, checked as a whole.
//!
//! Every number the engine uses comes from here; nothing is assumed from the released model. What this engine does not
//! compute is refused by [`ModelConfig::parse`] with the field's name, so that no later code needs to ask again.
//! Source of all fields and rules: specs/v41-architecture.md §1.
//!
//! Invariants of a value of [`ModelConfig`]: all sizes are positive and bounded, so that byte counts of tensors fit
//! 64 bits; quantised widths are whole scale groups; [`ModelConfig::layers`] has one consistent role per layer; the
//! boundary layer is the last KV source. Start reading at [`ModelConfig`], then [`LayerRole`].

mod fields;
mod parse;
mod roles;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use shared::{KvLayout, StartGeometry, TokenId};

pub use roles::{CandidateUse, LayerRole};

/// Bound of the size of `config.json` in bytes; the release has 3 KB.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// The configuration of a text model with what belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Rows of the embedding and of the head.
    pub vocab: usize,
    /// D: width of the residual stream. A multiple of 32.
    pub hidden: usize,
    /// Query heads. A multiple of `o_groups`.
    pub heads: usize,
    /// Width of the one KV head and of each query head. A multiple of 32.
    pub head_dim: usize,
    /// Rotary dimensions at the end of each head and index vector. Even.
    pub rope_dim: usize,
    /// Rank of the query projection. A multiple of 32.
    pub q_rank: usize,
    /// Rank of the output projection of one group. A multiple of 32.
    pub o_rank: usize,
    /// Groups of the output projection.
    pub o_groups: usize,
    /// W: tokens a window sees, the query itself included.
    pub window: u32,
    /// Longest sequence in tokens.
    pub context: u32,
    /// Added to the mean square in every text RMS norm, in mHC and in Engram.
    pub rms_eps: f64,
    /// Base of the rotary frequencies in layers of ratio 0.
    pub rope_theta: f64,
    /// Base of the rotary frequencies in all other layers.
    pub compress_rope_theta: f64,
    /// Frequency scaling of layers whose ratio is not 0; none when the file has no `rope_scaling`.
    pub yarn: Option<Yarn>,
    /// Index query heads.
    pub index_heads: usize,
    /// Width of an index key. A multiple of 32.
    pub index_dim: usize,
    /// Compressed entries a query selects at most.
    pub index_topk: usize,
    /// The hierarchical indexer, if there is one.
    pub candidates: Option<Candidates>,
    /// The mixture of experts.
    pub experts: Experts,
    /// Sinkhorn iterations of the mHC combination weights, at least 1.
    pub hc_iterations: usize,
    /// The mHC epsilon.
    pub hc_eps: f64,
    /// The Engram tables, if there are any.
    pub engram: Option<EngramConfig>,
    /// The draft network (DSpark), if there is one.
    pub draft: Option<DraftConfig>,
    /// The vision encoder, if there is one.
    pub vision: Option<VisionConfig>,
    /// Ids with a meaning of their own.
    pub special: SpecialTokens,
    /// The role of every layer of the backbone, in order.
    pub layers: Vec<LayerRole>,
    /// b: the first layer of ratio 1. Equals the number of encoder layers.
    pub boundary: usize,
    layout: KvLayout,
}

/// YaRN scaling of rotary frequencies. Source: specs/v41-architecture.md §5.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// By how much low frequencies are slowed down.
    pub factor: f64,
    /// The context the frequencies were trained for, in tokens.
    pub original_context: u32,
    /// Rotations above which a frequency is kept.
    pub beta_fast: f64,
    /// Rotations below which a frequency is scaled in full.
    pub beta_slow: f64,
}

/// The hierarchical indexer: blocks of entries that Reindex layers may select from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// The layer that chooses the blocks.
    pub source_layer: usize,
    /// Blocks chosen per query at most.
    pub blocks_max: usize,
    /// Entries in a block. Divides the entries of a 128-token block.
    pub block_entries: usize,
}

/// The mixture of experts of every backbone layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Routed experts of a layer.
    pub routed: usize,
    /// Routed experts a token uses.
    pub per_token: usize,
    /// Inner width of a routed expert and of the shared one. A multiple of 32.
    pub intermediate: usize,
    /// Factor on the normalised routing weights.
    pub scaling: f64,
    /// Clamp of the gate (from above) and of the up projection (both sides).
    pub swiglu_limit: f64,
    /// Divides the routing logits.
    pub gate_temperature: f64,
}

/// The Engram tables. Source: specs/v41-architecture.md §9.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngramConfig {
    /// The layers with a table, ascending, all of them encoder layers.
    pub layers: Vec<usize>,
    /// Rows of each table, in the order of `layers`.
    pub rows: Vec<u64>,
    /// Longest n-gram; orders are 2 up to this.
    pub ngram_max: usize,
    /// Hash heads per order.
    pub heads: usize,
    /// Width of a row. A multiple of 32.
    pub head_dim: usize,
    /// Where the search for table primes starts.
    pub prime_floor: u64,
    /// The token whose compressed id stands for "nothing there".
    pub pad: TokenId,
    /// Compressed ids the token map must yield.
    pub compressed_vocab: usize,
}

impl EngramConfig {
    /// Rows a token looks up in one table: heads times orders.
    #[must_use]
    pub fn columns(&self) -> usize {
        (self.ngram_max - 1) * self.heads
    }

    /// Width of the concatenated rows of one token.
    #[must_use]
    pub fn width(&self) -> usize {
        self.columns() * self.head_dim
    }
}

/// The draft network (DSpark). Its weights lie under `mtp.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftConfig {
    /// Draft stages.
    pub stages: usize,
    /// Tokens of a draft block.
    pub block: usize,
    /// The id that stands for a token not drafted yet.
    pub noise: TokenId,
    /// Layers whose input the draft network reads, ascending.
    pub target_layers: Vec<usize>,
    /// Rank of the Markov head.
    pub markov_rank: usize,
    /// Routed experts of a stage.
    pub experts_routed: usize,
    /// Routed experts a draft row uses.
    pub experts_per_token: usize,
}

/// The sizes of the vision encoder that determine its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisionConfig {
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the stream.
    pub hidden: usize,
    /// Inner width of the MLP.
    pub intermediate: usize,
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Patches per side that become one model token.
    pub downsample: usize,
}

/// Ids with a meaning of their own. Each is below the vocabulary size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a prompt. 0 unless the file says otherwise.
    pub bos: TokenId,
    /// Ends an answer. 1 unless the file says otherwise.
    pub eos: TokenId,
    /// Fills. 2 unless the file says otherwise.
    pub pad: TokenId,
    /// Stands at every position of an image span.
    pub image: Option<TokenId>,
}

/// Why a `config.json` is not used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}; give the folder of a checkpoint")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not JSON.
    #[error("config.json is not valid JSON: {message}")]
    Syntax {
        /// Where and why.
        message: String,
    },
    /// A field has a value this engine cannot serve, or lacks one.
    #[error("config.json: {field} is {found}, expected {expected}")]
    Field {
        /// The field with the objects it lies in, for example `text_config.hidden_size`.
        field: String,
        /// What would be accepted.
        expected: String,
        /// What stands there.
        found: String,
    },
}

impl ConfigError {
    fn field(field: impl Into<String>, expected: impl Display, found: impl Display) -> Self {
        Self::Field {
            field: field.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}

impl ModelConfig {
    /// Reads and checks a `config.json`. Blocks on the file system.
    ///
    /// # Errors
    /// When the file cannot be read (or is larger than 1 MiB), is not JSON, or describes a model this engine cannot serve.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Read { path: path.to_path_buf(), source };
        if CONFIG_BYTES_MAX < fs::metadata(path).map_err(failed)?.len() {
            return Err(failed(io::Error::other("the file is larger than 1 MiB")));
        }
        Self::parse(&fs::read_to_string(path).map_err(failed)?)
    }

    /// Checks the text of a `config.json`.
    ///
    /// # Errors
    /// When it is not JSON, or a field is missing, out of range, or asks for something this engine does not compute.
    pub fn parse(json: &str) -> Result<Self, ConfigError> {
        parse::parse(json)
    }

    /// Where every byte of a block and of a window object lies.
    #[must_use]
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The numbers that decide where a request is handed from prefill to decode. `rollback` is B: the largest number
    /// of tokens a sequence is ever rolled back by.
    #[must_use]
    pub fn geometry(&self, rollback: u32) -> StartGeometry {
        let encoder_layers = u32::try_from(self.boundary).expect("layer counts are bounded");
        StartGeometry { window: self.window, rollback, encoder_layers }
    }
}
