//! Which files a checkpoint consists of, and where each tensor lies in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::header::read_header;
use super::{CheckpointError, Place};

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";
/// Bound of the index in bytes; the release has 8 MB.
const INDEX_BYTES_MAX: u64 = 256 << 20;
/// Bound of the number of shards; the release has 48.
const SHARDS_MAX: usize = 4_096;

type Tensors = BTreeMap<String, Place>;

/// The weight files of a folder and the tensors in them. A single file goes before an index.
pub(super) fn find_tensors(folder: &Path) -> Result<(Vec<PathBuf>, Tensors), CheckpointError> {
    let single = folder.join(SINGLE_FILE);
    if single.exists() {
        let files = vec![single];
        let tensors = gather(&files)?;
        return Ok((files, tensors));
    }
    let index = folder.join(INDEX_FILE);
    if !index.exists() {
        return Err(CheckpointError::NoWeights { folder: folder.to_path_buf() });
    }
    let weight_map = read_index(&index)?;
    let files = shards(folder, &index, &weight_map)?;
    let tensors = gather(&files)?;
    for (name, shard) in &weight_map {
        let shard = shard.as_str().unwrap_or_default();
        let found = tensors.get(name).map(|place| &files[place.file]);
        if found.and_then(|file| file.file_name()?.to_str()) != Some(shard) {
            let reason = format!("it places tensor {name} in {shard}, which does not hold it");
            return Err(CheckpointError::Damaged { file: index, reason });
        }
    }
    Ok((files, tensors))
}

fn gather(files: &[PathBuf]) -> Result<Tensors, CheckpointError> {
    let mut tensors = Tensors::new();
    for (file, path) in files.iter().enumerate() {
        for entry in read_header(path)? {
            let place = Place {
                dtype: entry.dtype,
                shape: entry.shape,
                file,
                begin: entry.begin,
                bytes: entry.bytes,
            };
            if let Some(first) = tensors.insert(entry.name.clone(), place) {
                let reason =
                    format!("tensor {} is also in {}", entry.name, files[first.file].display());
                return Err(CheckpointError::Damaged { file: path.clone(), reason });
            }
        }
    }
    Ok(tensors)
}

fn read_index(index: &Path) -> Result<Map<String, Value>, CheckpointError> {
    let failed = |source| CheckpointError::Read { path: index.to_path_buf(), source };
    let damaged = |reason| CheckpointError::Damaged { file: index.to_path_buf(), reason };
    if INDEX_BYTES_MAX < fs::metadata(index).map_err(failed)?.len() {
        return Err(failed(io::Error::other("the file is larger than 256 MiB")));
    }
    let bytes = fs::read(index).map_err(failed)?;
    let mut value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| damaged(format!("it is not valid JSON: {error}")))?;
    match value.get_mut("weight_map").map(Value::take) {
        Some(Value::Object(map)) => Ok(map),
        _ => Err(damaged(String::from("it has no weight_map"))),
    }
}

/// The distinct shards of an index, which must be plain names of files in the folder.
fn shards(
    folder: &Path,
    index: &Path,
    weight_map: &Map<String, Value>,
) -> Result<Vec<PathBuf>, CheckpointError> {
    let damaged = |reason| CheckpointError::Damaged { file: index.to_path_buf(), reason };
    let mut names = BTreeSet::new();
    for (tensor, shard) in weight_map {
        let name = shard.as_str().filter(|name| is_plain(name)).ok_or_else(|| {
            damaged(format!("it places tensor {tensor} in {shard}, which is no file name"))
        })?;
        names.insert(name);
    }
    if SHARDS_MAX < names.len() {
        return Err(damaged(format!("it names {} shards, at most {SHARDS_MAX}", names.len())));
    }
    let path = |name: &str| {
        let path = folder.join(name);
        if path.is_file() {
            Ok(path)
        } else {
            Err(damaged(format!("it names the shard {name}, which is not there")))
        }
    };
    names.into_iter().map(path).collect()
}

fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(_)), None))
}
