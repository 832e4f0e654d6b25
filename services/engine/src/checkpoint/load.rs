//! Building [`Weights`] from an opened checkpoint.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use kernels::MappedFile;
use kernels::formats::bf16_from_le;

use super::engram_table::EngramTable;
use super::header::Dtype;
use super::list::{Part, TensorSpec, tensor_list};
use super::weights::{
    BoundaryWeights, Bytes, EngramWeights, Expert, HyperConnection, IndexerWeights, LayerWeights,
    Matrix, SourceWeights, Stored, Weights,
};
use super::{Checkpoint, CheckpointError, Place};
use crate::config::LayerRole;

/// How far loading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Layers handed out so far.
    pub layers: usize,
    /// Layers of the part.
    pub layers_total: usize,
    /// Bytes handed out so far.
    pub bytes: u64,
    /// Bytes of the part.
    pub bytes_total: u64,
}

pub(super) fn load(
    checkpoint: &Checkpoint,
    part: Part,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Weights, CheckpointError> {
    let config = &checkpoint.config;
    let list = tensor_list(config, part);
    let bytes_total = list.iter().map(|spec| spec.bytes).sum();
    let mut taker = Taker::new(checkpoint, &list);
    let embed = taker.plain("embed.weight")?;
    let wanted = |role: &LayerRole| role.is_encoder || part == Part::Whole;
    let layers_total = config.layers.iter().filter(|role| wanted(role)).count();
    let mut layers = Vec::with_capacity(config.layers.len());
    for role in &config.layers {
        if !wanted(role) {
            layers.push(None);
            continue;
        }
        layers.push(Some(taker.layer(role, config.experts.routed)?));
        progress(LoadProgress {
            layers: layers.len(),
            layers_total,
            bytes: taker.bytes,
            bytes_total,
        });
    }
    let boundary = match layers[config.boundary].as_ref() {
        Some(LayerWeights { attn_norm, source: Some(source), .. }) => {
            BoundaryWeights { attn_norm: attn_norm.clone(), source: source.clone() }
        }
        _ => taker.boundary(&config.layers[config.boundary])?,
    };
    let (norm, head) = match part {
        Part::Encoder => (None, None),
        Part::Whole => (Some(taker.vector("norm.weight")?), Some(taker.plain("head.weight")?)),
    };
    // The list is what a part is defined by; the forward pass must hold all of it and nothing else.
    assert_eq!(taker.taken.len(), list.len(), "every tensor of the list is handed out");
    assert!(list.iter().all(|spec| taker.taken.contains(&spec.name)), "and no other one");
    assert_eq!(taker.bytes, bytes_total, "bytes handed out are those of the list");
    assert_eq!(taker.mapped(), bytes_total, "bytes mapped are those of the list");
    Ok(Weights { part, bytes: taker.bytes, embed, layers, boundary, norm, head })
}

/// Bytes of one file that are mapped together: tensors of the part that lie next to each other.
struct Run {
    file: usize,
    begin: u64,
    end: u64,
    map: Option<Arc<MappedFile>>,
}

/// The runs that hold exactly the tensors of a list, by file and place. A layer lies in one piece, so that there are few.
fn runs(checkpoint: &Checkpoint, list: &[TensorSpec]) -> Vec<Run> {
    let mut places: Vec<&Place> = list.iter().map(|spec| &checkpoint.tensors[&spec.name]).collect();
    places.sort_by_key(|place| (place.file, place.begin));
    let mut runs: Vec<Run> = Vec::new();
    for place in places {
        let end = place.begin + place.bytes;
        match runs.last_mut() {
            Some(run) if run.file == place.file && run.end == place.begin => run.end = end,
            _ => runs.push(Run { file: place.file, begin: place.begin, end, map: None }),
        }
    }
    runs
}

/// Maps a run on first use.
fn map(run: &mut Run, path: &Path) -> Result<Arc<MappedFile>, CheckpointError> {
    if let Some(map) = &run.map {
        return Ok(Arc::clone(map));
    }
    let bytes = usize::try_from(run.end - run.begin).expect("the address space holds a checkpoint");
    let map =
        MappedFile::open_range(path, run.begin, bytes).map_err(|source| match source.kind() {
            ErrorKind::UnexpectedEof => CheckpointError::Damaged {
                file: path.to_path_buf(),
                reason: format!("it became shorter than {} bytes while it was loaded", run.end),
            },
            _ => CheckpointError::Read { path: path.to_path_buf(), source },
        })?;
    Ok(Arc::clone(run.map.insert(Arc::new(map))))
}

/// Hands out each tensor once, mapping runs as they are needed.
struct Taker<'a> {
    checkpoint: &'a Checkpoint,
    runs: Vec<Run>,
    taken: HashSet<String>,
    bytes: u64,
}

impl<'a> Taker<'a> {
    fn new(checkpoint: &'a Checkpoint, list: &[TensorSpec]) -> Self {
        Self { checkpoint, runs: runs(checkpoint, list), taken: HashSet::new(), bytes: 0 }
    }

    fn take(&mut self, name: &str) -> Result<(&'a Place, Bytes), CheckpointError> {
        assert!(self.taken.insert(name.to_owned()), "{name} is handed out once");
        let place = self.checkpoint.tensors.get(name).expect("open checked every tensor");
        let after =
            self.runs.partition_point(|run| (run.file, run.begin) <= (place.file, place.begin));
        let run = &mut self.runs[after.checked_sub(1).expect("a listed tensor lies in a run")];
        let map = map(run, &self.checkpoint.files[run.file])?;
        let offset = |position: u64| usize::try_from(position - run.begin).expect("inside the run");
        self.bytes += place.bytes;
        Ok((place, Bytes::new(map, offset(place.begin)..offset(place.begin + place.bytes))))
    }

    /// Bytes of all runs that have been mapped.
    fn mapped(&self) -> u64 {
        let mapped = self.runs.iter().filter_map(|run| run.map.as_ref());
        mapped.map(|map| map.bytes().len() as u64).sum()
    }

    /// A bf16 matrix.
    fn plain(&mut self, name: &str) -> Result<Matrix, CheckpointError> {
        let (place, bytes) = self.take(name)?;
        Ok(Matrix::new(place.shape[0], place.shape[1], Stored::Bf16(bytes)))
    }

    fn single(&mut self, name: &str) -> Result<Matrix, CheckpointError> {
        let (place, bytes) = self.take(name)?;
        Ok(Matrix::new(place.shape[0], place.shape[1], Stored::F32(bytes)))
    }

    fn fp8(&mut self, name: &str) -> Result<Matrix, CheckpointError> {
        let (place, codes) = self.take(&format!("{name}.weight"))?;
        let (_, scales) = self.take(&format!("{name}.scale"))?;
        Ok(Matrix::new(place.shape[0], place.shape[1], Stored::Fp8 { codes, scales }))
    }

    fn fp4(&mut self, name: &str) -> Result<Matrix, CheckpointError> {
        let (place, codes) = self.take(&format!("{name}.weight"))?;
        let (_, scales) = self.take(&format!("{name}.scale"))?;
        Ok(Matrix::new(place.shape[0], 2 * place.shape[1], Stored::Fp4 { codes, scales }))
    }

    /// A small tensor as f32 values, all of them finite.
    fn vector(&mut self, name: &str) -> Result<Vec<f32>, CheckpointError> {
        let (place, bytes) = self.take(name)?;
        let values = decode(place.dtype, bytes.bytes());
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(at) => Err(CheckpointError::Tensor {
                tensor: name.to_owned(),
                file: self.checkpoint.files[place.file].clone(),
                expected: String::from("finite values"),
                found: format!("{} at element {at}", values[at]),
            }),
        }
    }

    fn layer(&mut self, role: &LayerRole, experts: usize) -> Result<LayerWeights, CheckpointError> {
        let p = format!("layers.{}", role.layer);
        Ok(LayerWeights {
            attn_norm: self.vector(&format!("{p}.attn_norm.weight"))?,
            ffn_norm: self.vector(&format!("{p}.ffn_norm.weight"))?,
            wq_a: self.fp8(&format!("{p}.attn.wq_a"))?,
            q_norm: self.vector(&format!("{p}.attn.q_norm.weight"))?,
            wq_b: self.fp8(&format!("{p}.attn.wq_b"))?,
            wkv: self.fp8(&format!("{p}.attn.wkv"))?,
            kv_norm: self.vector(&format!("{p}.attn.kv_norm.weight"))?,
            wo_a: self.fp8(&format!("{p}.attn.wo_a"))?,
            wo_b: self.fp8(&format!("{p}.attn.wo_b"))?,
            sink: self.vector(&format!("{p}.attn.attn_sink"))?,
            hc_attn: self.hyper_connection(&format!("{p}.hc_attn"))?,
            hc_ffn: self.hyper_connection(&format!("{p}.hc_ffn"))?,
            gate: self.plain(&format!("{p}.ffn.gate.weight"))?,
            gate_bias: self.vector(&format!("{p}.ffn.gate.bias"))?,
            gate_bias_vl: self.vector(&format!("{p}.ffn.gate.bias_vl"))?,
            experts: (0..experts)
                .map(|expert| self.expert(&format!("{p}.ffn.experts.{expert}"), Self::fp4))
                .collect::<Result<_, _>>()?,
            shared: self.expert(&format!("{p}.ffn.shared_experts"), Self::fp8)?,
            source: if role.owns_kv() { Some(self.source(role)?) } else { None },
            indexer: if role.owns_index() { Some(self.indexer(&p)?) } else { None },
            engram: if role.engram.is_some() { Some(self.engram(&p)?) } else { None },
        })
    }

    fn hyper_connection(&mut self, name: &str) -> Result<HyperConnection, CheckpointError> {
        Ok(HyperConnection {
            fn_: self.single(&format!("{name}_fn"))?,
            base: self.vector(&format!("{name}_base"))?,
            scale: self.vector(&format!("{name}_scale"))?,
        })
    }

    fn expert(
        &mut self,
        name: &str,
        take: fn(&mut Self, &str) -> Result<Matrix, CheckpointError>,
    ) -> Result<Expert, CheckpointError> {
        Ok(Expert {
            w1: take(self, &format!("{name}.w1"))?,
            w2: take(self, &format!("{name}.w2"))?,
            w3: take(self, &format!("{name}.w3"))?,
        })
    }

    fn source(&mut self, role: &LayerRole) -> Result<SourceWeights, CheckpointError> {
        let p = format!("layers.{}.attn", role.layer);
        let pooled = 1 < role.ratio;
        Ok(SourceWeights {
            compressor_wkv: self.plain(&format!("{p}.compressor.wkv.weight"))?,
            compressor_gate: match pooled {
                true => Some(self.plain(&format!("{p}.compressor.wgate.weight"))?),
                false => None,
            },
            compressor_norm: self.vector(&format!("{p}.compressor.norm.weight"))?,
            index_wk: self.plain(&format!("{p}.indexer.wk.weight"))?,
            index_k_norm: self.vector(&format!("{p}.indexer.k_norm.weight"))?,
        })
    }

    fn boundary(&mut self, role: &LayerRole) -> Result<BoundaryWeights, CheckpointError> {
        Ok(BoundaryWeights {
            attn_norm: self.vector(&format!("layers.{}.attn_norm.weight", role.layer))?,
            source: self.source(role)?,
        })
    }

    fn indexer(&mut self, layer: &str) -> Result<IndexerWeights, CheckpointError> {
        Ok(IndexerWeights {
            wq_b: self.fp8(&format!("{layer}.attn.indexer.wq_b"))?,
            weights_proj: self.plain(&format!("{layer}.attn.indexer.weights_proj.weight"))?,
        })
    }

    fn engram(&mut self, layer: &str) -> Result<EngramWeights, CheckpointError> {
        let (place, codes) = self.take(&format!("{layer}.engram.embed.weight"))?;
        let (_, scales) = self.take(&format!("{layer}.engram.embed.scale"))?;
        Ok(EngramWeights {
            table: EngramTable::new(codes, scales, place.shape[0], place.shape[1]),
            wkv: self.fp8(&format!("{layer}.engram.wkv"))?,
            q_weight: self.vector(&format!("{layer}.engram.q_weight"))?,
            k_weight: self.vector(&format!("{layer}.engram.k_weight"))?,
        })
    }
}

/// Decodes a whole bf16 or f32 tensor: the tensor list has no other small ones.
fn decode(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    if dtype == Dtype::Bf16 {
        return bytes.as_chunks().0.iter().copied().map(bf16_from_le).collect();
    }
    assert_eq!(dtype, Dtype::F32, "small tensors are bf16 or f32");
    bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect()
}
