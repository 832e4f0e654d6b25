//! A checkpoint on disk: found, checked as a whole, and handed out as weights.
//!
//! [`Checkpoint::open`] reads the configuration and every header and compares them with what the configuration says
//! must be there, so that a damaged or foreign checkpoint is refused before any request is accepted, in one line that
//! names the tensor or field. [`Checkpoint::load`] then maps files and hands out exactly the tensors of a [`Part`].
//! FP8 and FP4 weights stay as stored; only small vectors are decoded.
//!
//! What it is not: it converts nothing, downloads nothing and never looks at the data of large tensors.
//!
//! Invariants: after `open` every tensor of the text model is known to have the expected type, shape and place;
//! a loaded [`Weights`] covers the bytes of `tensor_list(config, part)`, no more and no less (asserted).
//! Start reading at [`Checkpoint`], then [`tensor_list`], then [`Weights`].

mod engram_table;
mod files;
pub(crate) mod header;
mod identity;
mod list;
mod load;
#[cfg(test)]
mod tests;
mod weights;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::{ConfigError, ModelConfig};
use crate::engram_map::{EngramError, EngramHasher};

pub use engram_table::{EngramRows, EngramTable};
pub use header::Dtype;
pub use list::{LoadedShare, Part, TensorSpec, loaded_share, release_list, tensor_list};
pub use load::LoadProgress;
pub use weights::{
    BoundaryWeights, EngramWeights, Expert, HyperConnection, IndexerWeights, LayerWeights, Matrix,
    SourceWeights, Weights,
};

const CONFIG_FILE: &str = "config.json";
const TOKENIZER_FILE: &str = "tokenizer.json";
/// Bound of `tokenizer.json` in bytes; the release has 8 MB.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;

/// Why a checkpoint is not used. One line each, with what to do where that is not obvious.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The configuration is missing, damaged or describes an unsupported model.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Tokenizer and configuration do not fit.
    #[error(transparent)]
    Engram(#[from] EngramError),
    /// There are no weights in the folder.
    #[error("{folder} has neither model.safetensors nor model.safetensors.index.json")]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file contradicts itself or its index.
    #[error("{file} is damaged: {reason}; copy the checkpoint again")]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor is missing or differs from what the configuration demands.
    #[error("tensor {tensor} in {file} is {found}, expected {expected}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// Its file, or the folder when no file has it.
        file: PathBuf,
        /// Type and shape, or a property of the values.
        expected: String,
        /// What is there.
        found: String,
    },
}

/// Where one tensor lies.
#[derive(Clone, Debug)]
struct Place {
    dtype: Dtype,
    shape: Vec<usize>,
    /// Index into `Checkpoint::files`.
    file: usize,
    begin: u64,
    bytes: u64,
}

/// An opened checkpoint. Holds names and places, no weights and no open files.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    config: ModelConfig,
    files: Vec<PathBuf>,
    tensors: BTreeMap<String, Place>,
    unknown: usize,
}

impl Checkpoint {
    /// Opens the checkpoint in `folder`: `config.json`, `tokenizer.json` and one `model.safetensors`, or shards listed
    /// by `model.safetensors.index.json`. Blocks on the file system; reads headers only.
    ///
    /// # Errors
    /// When a file is missing or damaged, the configuration is not supported, or a tensor of the text model is missing
    /// or has another type, shape or size than the configuration demands.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let config = ModelConfig::read(&folder.join(CONFIG_FILE))?;
        let tokenizer = folder.join(TOKENIZER_FILE);
        fs::metadata(&tokenizer)
            .map_err(|source| CheckpointError::Read { path: tokenizer, source })?;
        let (files, tensors) = files::find_tensors(folder)?;
        let mut checkpoint =
            Self { folder: folder.to_path_buf(), config, files, tensors, unknown: 0 };
        checkpoint.check()?;
        Ok(checkpoint)
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Tensors that belong to no part of the model as configured. They are never read.
    #[must_use]
    pub fn unknown_tensors(&self) -> usize {
        self.unknown
    }

    /// The bytes of `tokenizer.json`. Blocks on the file system.
    ///
    /// # Errors
    /// When the file cannot be read or is larger than 256 MiB.
    pub fn tokenizer_json(&self) -> Result<Vec<u8>, CheckpointError> {
        let path = self.folder.join(TOKENIZER_FILE);
        let failed = |source| CheckpointError::Read { path: path.clone(), source };
        if TOKENIZER_BYTES_MAX < fs::metadata(&path).map_err(failed)?.len() {
            return Err(failed(io::Error::other("the file is larger than 256 MiB")));
        }
        fs::read(&path).map_err(failed)
    }

    /// The Engram addresses of this model, or none when it has no Engram. Blocks; takes about a second for the release.
    ///
    /// # Errors
    /// When the tokenizer cannot be read or does not fit the configuration.
    pub fn engram_hasher(&self) -> Result<Option<EngramHasher>, CheckpointError> {
        if self.config.engram.is_none() {
            return Ok(None);
        }
        let tokenizer = self.tokenizer_json()?;
        Ok(Some(EngramHasher::build(&self.config, &tokenizer)?))
    }

    /// The model id: the same for two folders exactly when they hold the same model, up to the sampling of tensor
    /// contents. It is part of the root of every block name. How it is made: module `identity`. Blocks; reads at most
    /// 16 KiB per tensor.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn model_id(&self) -> Result<[u8; 32], CheckpointError> {
        identity::model_id(self)
    }

    /// Maps the files that hold tensors of `part` and hands out exactly those tensors. `progress` is called after each
    /// layer. Blocks on the file system; large tensors are paged in on first use only.
    ///
    /// # Errors
    /// When a file cannot be mapped or has changed since `open`, or a small vector holds a value that is not finite.
    pub fn load(
        &self,
        part: Part,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Weights, CheckpointError> {
        load::load(self, part, progress)
    }

    /// Compares every tensor of the text model with the configuration, and counts tensors of no known use.
    fn check(&mut self) -> Result<(), CheckpointError> {
        let list = tensor_list(&self.config, Part::Whole);
        for spec in &list {
            self.check_tensor(spec)?;
        }
        let known: std::collections::HashSet<&str> =
            list.iter().map(|spec| spec.name.as_str()).collect();
        let other = |name: &&String| {
            !known.contains(name.as_str())
                && !["vision.", "aligner.", "image_", "mtp."].iter().any(|p| name.starts_with(p))
        };
        let mut unknown = self.tensors.keys().filter(other);
        if let Some(first) = unknown.next() {
            let count = 1 + unknown.count();
            tracing::warn!(count, first, "the checkpoint has tensors this engine does not use");
            self.unknown = count;
        }
        Ok(())
    }

    fn check_tensor(&self, spec: &TensorSpec) -> Result<(), CheckpointError> {
        let place = self.tensors.get(&spec.name);
        if place.is_some_and(|place| place.dtype == spec.dtype && place.shape == spec.shape) {
            return Ok(());
        }
        let show = |dtype: Dtype, shape: &[usize]| format!("{} {shape:?}", dtype.as_str());
        Err(CheckpointError::Tensor {
            tensor: spec.name.clone(),
            file: place.map_or(&self.folder, |place| &self.files[place.file]).clone(),
            expected: show(spec.dtype, &spec.shape),
            found: place
                .map_or_else(|| String::from("missing"), |place| show(place.dtype, &place.shape)),
        })
    }
}
