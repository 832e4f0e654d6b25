//! Reading of golden sets: cases with inputs and expected tensors. For tests and for `kvasir golden`.
//!
//! A set is a folder with `cases/index.json` or `index.json`; each case names a safetensors file beside its index.
//! Types and shapes are taken from those files alone. Source: golden/README.md.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kernels::formats::bf16_from_le;
use serde_json::Value;
use shared::TokenId;

use crate::checkpoint::header::{TensorEntry, read_header};
use crate::checkpoint::{CheckpointError, Dtype};

/// Bound of an index and of a case file in bytes; the largest so far has 9 MB.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Why a golden set cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The index does not have the expected form.
    #[error("{path} is no index of golden cases: {reason}")]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A case file is damaged.
    #[error(transparent)]
    Tensors(#[from] CheckpointError),
    /// A case lacks something its kind should have.
    #[error("case {case} has no {what}")]
    Missing {
        /// The case.
        case: String,
        /// The tensor or input, with its type.
        what: String,
    },
}

/// A set of golden cases.
#[derive(Debug)]
pub struct GoldenSet {
    folder: PathBuf,
    index: Value,
    cases: Vec<GoldenCase>,
}

/// One case: what goes in, and where the expected tensors lie.
#[derive(Clone, Debug)]
pub struct GoldenCase {
    /// Unique in its set.
    pub name: String,
    /// What is computed: `prefill`, `decode`, `greedy`, `trace`, `lists`, `replay`, `dspark`, `image`, `multimodal`.
    pub kind: String,
    /// The inputs as they stand in the index.
    pub inputs: Value,
    /// The file with the expected tensors.
    pub file: PathBuf,
}

/// The tensors of a case, in memory.
#[derive(Debug)]
pub struct GoldenTensors {
    case: String,
    bytes: Vec<u8>,
    entries: BTreeMap<String, TensorEntry>,
}

impl GoldenSet {
    /// Reads the index of the set in `folder`. Blocks on the file system.
    ///
    /// # Errors
    /// When there is no index or it does not describe cases.
    pub fn open(folder: &Path) -> Result<Self, GoldenError> {
        let nested = folder.join("cases");
        let folder = if nested.join("index.json").exists() { nested } else { folder.to_path_buf() };
        let path = folder.join("index.json");
        let bad = |reason: String| GoldenError::Index { path: path.clone(), reason };
        let index: Value =
            serde_json::from_slice(&read(&path)?).map_err(|error| bad(error.to_string()))?;
        let listed = index["cases"].as_array().ok_or_else(|| bad("it has no cases".to_owned()))?;
        let mut cases = Vec::with_capacity(listed.len());
        for (number, case) in listed.iter().enumerate() {
            let text = |field: &str| {
                let text = case[field].as_str().map(str::to_owned);
                text.ok_or_else(|| bad(format!("case number {number} has no {field}")))
            };
            cases.push(GoldenCase {
                name: text("name")?,
                kind: text("kind")?,
                inputs: case["inputs"].clone(),
                file: folder.join(text("file")?),
            });
        }
        Ok(Self { folder, index, cases })
    }

    /// The folder of the index, which also holds inputs that are files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The cases in the order of the index.
    #[must_use]
    pub fn cases(&self) -> &[GoldenCase] {
        &self.cases
    }

    /// Another section of the index, for example `engram_tables`.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<&Value> {
        self.index.get(name)
    }
}

impl GoldenCase {
    /// A list of token ids among the inputs.
    ///
    /// # Errors
    /// When there is no such input, or it is something else.
    pub fn ids(&self, input: &str) -> Result<Vec<TokenId>, GoldenError> {
        let id = |value: &Value| u32::try_from(value.as_u64()?).ok().map(TokenId);
        self.inputs[input]
            .as_array()
            .and_then(|values| values.iter().map(id).collect())
            .ok_or_else(|| self.missing(format!("input {input} of token ids")))
    }

    /// A non-negative integer among the inputs.
    ///
    /// # Errors
    /// When there is no such input, or it is something else.
    pub fn number(&self, input: &str) -> Result<usize, GoldenError> {
        self.inputs[input]
            .as_u64()
            .and_then(|value| usize::try_from(value).ok())
            .ok_or_else(|| self.missing(format!("input {input} that is a number")))
    }

    /// Reads the expected tensors. Blocks on the file system.
    ///
    /// # Errors
    /// When the file cannot be read or is damaged.
    pub fn read(&self) -> Result<GoldenTensors, GoldenError> {
        let entries = read_header(&self.file)?;
        let entries = entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        Ok(GoldenTensors { case: self.name.clone(), bytes: read(&self.file)?, entries })
    }

    fn missing(&self, what: String) -> GoldenError {
        GoldenError::Missing { case: self.name.clone(), what }
    }
}

impl GoldenTensors {
    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Whether there is a tensor of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The dimensions of a tensor.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn shape(&self, name: &str) -> Result<&[usize], GoldenError> {
        let entry = self.entries.get(name);
        entry.map(|entry| entry.shape.as_slice()).ok_or_else(|| self.missing(name, "any type"))
    }

    /// The values of an F32 or BF16 tensor, row-major.
    ///
    /// # Errors
    /// When there is none of this name and type.
    pub fn f32(&self, name: &str) -> Result<Vec<f32>, GoldenError> {
        if let Ok(bytes) = self.raw(name, Dtype::F32) {
            return Ok(bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect());
        }
        let bytes = self.raw(name, Dtype::Bf16)?;
        Ok(bytes.as_chunks().0.iter().copied().map(bf16_from_le).collect())
    }

    /// The values of an I32 tensor, row-major.
    ///
    /// # Errors
    /// When there is none of this name and type.
    pub fn i32(&self, name: &str) -> Result<Vec<i32>, GoldenError> {
        let bytes = self.raw(name, Dtype::I32)?;
        Ok(bytes.as_chunks().0.iter().copied().map(i32::from_le_bytes).collect())
    }

    /// The values of an I64 tensor, row-major.
    ///
    /// # Errors
    /// When there is none of this name and type.
    pub fn i64(&self, name: &str) -> Result<Vec<i64>, GoldenError> {
        let bytes = self.raw(name, Dtype::I64)?;
        Ok(bytes.as_chunks().0.iter().copied().map(i64::from_le_bytes).collect())
    }

    /// The bytes of a U8 tensor, row-major.
    ///
    /// # Errors
    /// When there is none of this name and type.
    pub fn u8(&self, name: &str) -> Result<&[u8], GoldenError> {
        self.raw(name, Dtype::U8)
    }

    fn raw(&self, name: &str, dtype: Dtype) -> Result<&[u8], GoldenError> {
        let entry = self.entries.get(name).filter(|entry| entry.dtype == dtype);
        let bytes = entry.and_then(|entry| {
            let begin = usize::try_from(entry.begin).ok()?;
            let bytes = usize::try_from(entry.bytes).ok()?;
            self.bytes.get(begin..)?.get(..bytes)
        });
        bytes.ok_or_else(|| self.missing(name, dtype.as_str()))
    }

    fn missing(&self, name: &str, dtype: &str) -> GoldenError {
        let what = format!("tensor {name} of {dtype}");
        GoldenError::Missing { case: self.case.clone(), what }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, GoldenError> {
    let failed = |source| GoldenError::Read { path: path.to_path_buf(), source };
    if FILE_BYTES_MAX < fs::metadata(path).map_err(failed)?.len() {
        return Err(failed(io::Error::other("the file is larger than 1 GiB")));
    }
    fs::read(path).map_err(failed)
}

/// The golden sets on this machine: `tiny-w` of the repository first, then those of `../shared` if it is there.
#[cfg(test)]
pub(crate) fn golden_folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders = vec![root.join("tests/golden/tiny-w")];
    for set in ["tiny", "tiny-b"] {
        let folder = root.join("../shared/golden").join(set);
        if folder.exists() {
            folders.push(folder);
        } else {
            println!("skipped: {} is not there", folder.display());
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{GoldenSet, golden_folders};

    #[test]
    fn every_case_of_every_set_is_read() {
        let mut folders = golden_folders();
        let seedling =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/models/seedling/golden");
        folders.extend(Some(seedling).filter(|folder| folder.exists()));
        for folder in folders {
            let set = GoldenSet::open(&folder).unwrap();
            assert!(!set.cases().is_empty());
            for case in set.cases() {
                let tensors = case.read().unwrap();
                for name in tensors.names() {
                    let values = tensors
                        .f32(name)
                        .map(|v| v.len())
                        .or_else(|_| tensors.i32(name).map(|v| v.len()))
                        .or_else(|_| tensors.i64(name).map(|v| v.len()))
                        .or_else(|_| tensors.u8(name).map(<[u8]>::len))
                        .unwrap();
                    let expected: usize = tensors.shape(name).unwrap().iter().product();
                    assert_eq!(values, expected, "{} {name}", case.name);
                }
            }
        }
    }

    #[test]
    fn a_missing_tensor_or_input_is_named() {
        let set = GoldenSet::open(&golden_folders()[0]).unwrap();
        let case = set.cases().iter().find(|case| case.kind == "prefill").unwrap();
        let tensors = case.read().unwrap();
        let error = tensors.i64("logits").unwrap_err().to_string();
        assert_eq!(error, format!("case {} has no tensor logits of I64", case.name));
        assert!(case.number("ids").is_err());
        assert!(!case.ids("ids").unwrap().is_empty());
    }
}
