//! The model of the DeepSeek-V4.1 family: configuration, weights and, on top of `kernels`, the forward pass.
//!
//! Start reading at [`ModelConfig`], then [`Checkpoint`].
#![forbid(unsafe_code)]

mod checkpoint;
mod config;
mod engram_map;
mod forward;
mod golden;
mod grammar;
mod model;
mod parity;
mod rotary;
mod sampler;
mod sequence;
mod slab;
mod trace;

pub use checkpoint::{
    BoundaryWeights, Checkpoint, CheckpointError, Dtype, EngramRows, EngramTable, EngramWeights,
    Expert, HyperConnection, IndexerWeights, LayerWeights, LoadProgress, LoadedShare, Matrix, Part,
    SourceWeights, TensorSpec, Weights, loaded_share, release_list, tensor_list,
};
pub use config::{
    CandidateUse, Candidates, ConfigError, DraftConfig, EngramConfig, Experts, LayerRole,
    ModelConfig, SpecialTokens, VisionConfig, Yarn,
};
pub use engram_map::{EngramError, EngramHasher, EngramToken, HashTables, TokenMap};
pub use forward::{BlockInput, Floors, Layers, Logits, RowPlan, Segment};
pub use golden::{GoldenCase, GoldenError, GoldenSet, GoldenTensors};
pub use grammar::{
    Compiled, GRAMMAR_STACK_BYTES, GrammarCompiler, GrammarLimits, GrammarRefusal,
    GrammarVocabulary, GrammarVocabularyError, Guide, GuideError, Stopper, TokenMask,
};
pub use model::{Arithmetic, Engine, EngineOptions, LoadError};
pub use parity::{CaseReport, Outcome, run_case};
pub use sampler::{DrawContext, TokenCounts, draw, logprobs, sample};
pub use sequence::Sequence;
pub use slab::KvSlab;
pub use trace::{NoTrace, Trace, TraceValue};
