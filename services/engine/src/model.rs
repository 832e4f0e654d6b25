//! The model: weights, operations and everything derived from the configuration once.

use std::fmt;

use kernels::{CpuOps, Ops};
use shared::{KvLayout, Numerics, StartGeometry, TokenId};

use crate::checkpoint::{Checkpoint, CheckpointError, LoadProgress, Part, Weights};
use crate::config::ModelConfig;
use crate::engram_map::EngramHasher;
use crate::rotary::Frequencies;
use crate::sequence::{Sequence, SequenceShape};

/// How numbers between two rounding points are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Float64: meets the reference outputs bit for bit in all stored bytes. Several times slower.
    Exact,
    /// Float32 with a fixed reduction order.
    Fast,
}

impl Arithmetic {
    /// The revision string that goes into every block name. Raised by any change of bytes.
    #[must_use]
    pub fn numerics(self) -> Numerics {
        let revision = match self {
            Self::Exact => "cpu-exact-1",
            Self::Fast => "cpu-fast-1",
        };
        Numerics(revision.into())
    }
}

/// How an engine is loaded.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// The arithmetic.
    pub arithmetic: Arithmetic,
    /// Which part of the model to load.
    pub part: Part,
    /// B: the largest number of tokens a sequence is ever rolled back by. 12 for the released model: two verify steps
    /// of 6 tokens.
    pub rollback: u32,
}

/// Why an engine could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The checkpoint is damaged, foreign or not supported.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// A loaded model. Immutable; any number of threads may run passes at the same time.
pub struct Engine {
    pub(crate) config: ModelConfig,
    pub(crate) weights: Weights,
    pub(crate) ops: Box<dyn Ops>,
    pub(crate) engram: Option<EngramHasher>,
    pub(crate) frequencies: Frequencies,
    /// Source layers with a ratio above 1, in order: each has a carry.
    pub(crate) pooled_sources: Vec<usize>,
    options: EngineOptions,
    shape: SequenceShape,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Engine {
    /// Loads the part of a checkpoint that `options` name. Blocks; `progress` is called after each layer.
    ///
    /// # Errors
    /// When a file of the checkpoint cannot be used; the message names file and tensor.
    pub fn load(
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        let config = checkpoint.config().clone();
        let weights = checkpoint.load(options.part, progress)?;
        let ops: Box<dyn Ops> = match options.arithmetic {
            Arithmetic::Exact => Box::new(CpuOps::exact()),
            Arithmetic::Fast => Box::new(CpuOps::fast()),
        };
        let sources = config.layers.iter().filter(|role| role.owns_kv() && 1 < role.ratio);
        let pooled_sources: Vec<usize> = sources.map(|role| role.layer).collect();
        let shape = sequence_shape(&config, *options, pooled_sources.len());
        Ok(Self {
            engram: checkpoint.engram_hasher()?,
            frequencies: Frequencies::new(&config),
            pooled_sources,
            options: *options,
            shape,
            config,
            weights,
            ops,
        })
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The byte layout of blocks and window objects.
    #[must_use]
    pub fn layout(&self) -> &KvLayout {
        self.config.layout()
    }

    /// The numbers that decide hand-off boundaries.
    #[must_use]
    pub fn geometry(&self) -> StartGeometry {
        self.config.geometry(self.options.rollback)
    }

    /// Which part is loaded.
    #[must_use]
    pub fn part(&self) -> Part {
        self.options.part
    }

    /// The revision of the arithmetic.
    #[must_use]
    pub fn numerics(&self) -> Numerics {
        self.options.arithmetic.numerics()
    }

    /// Bytes of the checkpoint this engine maps.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.weights.bytes
    }

    /// A new sequence with these tokens and nothing processed.
    #[must_use]
    pub fn sequence(&self, ids: &[TokenId]) -> Sequence {
        Sequence::new(ids, self.shape)
    }
}

fn sequence_shape(config: &ModelConfig, options: EngineOptions, pooled: usize) -> SequenceShape {
    let decoder_layers = match options.part {
        Part::Encoder => 0,
        Part::Whole => config.layers.len() - config.boundary,
    };
    let rollback = options.rollback as usize;
    let ratio = config.layers.iter().map(|role| role.ratio as usize).max().unwrap_or(0);
    SequenceShape {
        encoder_layers: config.boundary,
        decoder_layers,
        window: config.window as usize,
        ring: config.window as usize + rollback,
        window_entry_bytes: config.layout().window_entry_bytes(),
        pooled_sources: pooled,
        carry: ratio + rollback,
        head_dim: config.head_dim,
    }
}
