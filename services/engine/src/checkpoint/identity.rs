//! The model id: what makes two checkpoints the same model.
//!
//! A BLAKE3 hash over `config.json`, `tokenizer.json` and, in the order of names, each tensor's name, type, shape and
//! content. The content of a tensor above 16 KiB is sampled: four pieces of 4 KiB, the first and the last bytes and
//! two between at equal distances. Hashing all of the release would read 510 GB at each start. How tensors are spread
//! over files does not matter. Source: architecture.md §3 step 2.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use super::{CONFIG_FILE, Checkpoint, CheckpointError, Place};

const PIECE_BYTES: u64 = 4_096;
const PIECE_BUFFER: usize = 4_096;
const PIECES: u64 = 4;
const _: () = assert!(PIECE_BUFFER as u64 == PIECE_BYTES);
const CONTEXT: &str = "kvasir 2026 model id 1";

pub(super) fn model_id(checkpoint: &Checkpoint) -> Result<[u8; 32], CheckpointError> {
    let config_path = checkpoint.folder.join(CONFIG_FILE);
    let config = std::fs::read(&config_path)
        .map_err(|source| CheckpointError::Read { path: config_path, source })?;
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    for file in [config, checkpoint.tokenizer_json()?] {
        hasher.update(&(file.len() as u64).to_le_bytes());
        hasher.update(&file);
    }
    for ((name, place), sample) in checkpoint.tensors.iter().zip(sample_all(checkpoint)?) {
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        hasher.update(place.dtype.as_str().as_bytes());
        hasher.update(&(place.shape.len() as u64).to_le_bytes());
        for size in &place.shape {
            hasher.update(&(*size as u64).to_le_bytes());
        }
        hasher.update(sample.as_bytes());
    }
    Ok(*hasher.finalize().as_bytes())
}

/// The hash of each tensor's sampled content, in the order of names. Files are read front to back, one at a time.
fn sample_all(checkpoint: &Checkpoint) -> Result<Vec<blake3::Hash>, CheckpointError> {
    let places: Vec<&Place> = checkpoint.tensors.values().collect();
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|index| (places[*index].file, places[*index].begin));
    let mut samples = vec![blake3::Hash::from_bytes([0; 32]); places.len()];
    let mut open: Option<(usize, File)> = None;
    for index in order {
        let place = places[index];
        let path = &checkpoint.files[place.file];
        let failed = |source| CheckpointError::Read { path: path.clone(), source };
        let file = match &mut open {
            Some((number, file)) if *number == place.file => file,
            slot => &mut slot.insert((place.file, File::open(path).map_err(failed)?)).1,
        };
        samples[index] = sample(file, place).map_err(failed)?;
    }
    Ok(samples)
}

fn sample(file: &mut File, place: &Place) -> std::io::Result<blake3::Hash> {
    let mut buffer = [0; PIECE_BUFFER];
    let mut hasher = blake3::Hasher::new();
    for (offset, length) in pieces(place.bytes) {
        file.seek(SeekFrom::Start(place.begin + offset))?;
        let piece = &mut buffer[..length];
        file.read_exact(piece)?;
        hasher.update(piece);
    }
    Ok(hasher.finalize())
}

/// Offset and length of each piece of a tensor of `bytes` bytes.
fn pieces(bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    let last = bytes.saturating_sub(PIECE_BYTES);
    let sampled = PIECES * PIECE_BYTES < bytes;
    let count = if sampled { PIECES } else { bytes.div_ceil(PIECE_BYTES) };
    (0..count).map(move |piece| {
        let offset = if sampled { last * piece / (PIECES - 1) } else { piece * PIECE_BYTES };
        let length = PIECE_BYTES.min(bytes - offset);
        (offset, usize::try_from(length).expect("at most a piece"))
    })
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn small_tensors_are_covered_and_large_ones_sampled_at_both_ends() {
        let cases: [(u64, &[(u64, usize)]); 5] = [
            (0, &[]),
            (4, &[(0, 4)]),
            (8_194, &[(0, 4_096), (4_096, 4_096), (8_192, 2)]),
            (16_384, &[(0, 4_096), (4_096, 4_096), (8_192, 4_096), (12_288, 4_096)]),
            (34_096, &[(0, 4_096), (10_000, 4_096), (20_000, 4_096), (30_000, 4_096)]),
        ];
        for (bytes, expected) in cases {
            assert_eq!(pieces(bytes).collect::<Vec<_>>(), expected);
        }
    }
}
