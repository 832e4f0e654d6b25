//! Which tensors a model has, from its configuration alone. Source: specs/v41-architecture.md §2.

use kernels::{MIXES, STREAMS};

use super::header::Dtype;
use crate::config::{DraftConfig, LayerRole, ModelConfig, VisionConfig};

/// Elements that share a scale in quantised tensors.
const GROUP: usize = 32;
/// Scales of one mixing projection: pre, post, combination.
const HC_SCALES: usize = 3;

/// How much of the text model a process loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What turns tokens into global KV: the embedding, the layers below the boundary, and of the boundary layer its
    /// norm and the makers of entries and index keys. Source: architecture.md §1 idea 2.
    Encoder,
    /// The whole text model.
    Whole,
}

impl Part {
    /// The word used in logs and reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Encoder => "encoder",
            Self::Whole => "whole",
        }
    }
}

/// A tensor as the configuration says it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Its size.
    pub bytes: u64,
}

/// The share of a checkpoint's bytes that a part of the model is, in 0..=1.
///
/// The denominator is the whole release: text model, draft network (`mtp.*`) and vision. This is what gives the
/// design's 0.690 and 0.486 for the Flash encoder; of the text model alone they would be 0.703 and 0.501.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadedShare {
    /// With the Engram tables counted above and below the line.
    pub with_tables: f64,
    /// With the Engram tables counted nowhere.
    pub without_tables: f64,
}

/// The tensors a part of the text model needs, in loading order.
#[must_use]
pub fn tensor_list(config: &ModelConfig, part: Part) -> Vec<TensorSpec> {
    let mut list = List::default();
    list.bf16("embed.weight", &[config.vocab, config.hidden]);
    for role in &config.layers {
        if role.is_encoder || part == Part::Whole {
            backbone_layer(&mut list, config, role);
        }
    }
    match part {
        Part::Encoder => boundary(&mut list, config),
        Part::Whole => {
            list.bf16("norm.weight", &[config.hidden]);
            list.bf16("head.weight", &[config.vocab, config.hidden]);
        }
    }
    list.0
}

/// All tensors of a release with this configuration: the text model, the draft network and vision.
#[must_use]
pub fn release_list(config: &ModelConfig) -> Vec<TensorSpec> {
    let mut list = List(tensor_list(config, Part::Whole));
    if let Some(draft) = &config.draft {
        draft_stages(&mut list, config, draft);
    }
    if let Some(vision) = &config.vision {
        vision_tensors(&mut list, config, vision);
    }
    list.0
}

/// What share of the release's bytes a part is, from the configuration alone.
#[must_use]
pub fn loaded_share(config: &ModelConfig, part: Part) -> LoadedShare {
    let loaded = Totals::of(&tensor_list(config, part));
    let release = Totals::of(&release_list(config));
    LoadedShare {
        with_tables: ratio(loaded.bytes, release.bytes),
        without_tables: ratio(loaded.bytes - loaded.tables, release.bytes - release.tables),
    }
}

struct Totals {
    bytes: u64,
    tables: u64,
}

impl Totals {
    fn of(list: &[TensorSpec]) -> Self {
        let table = |spec: &&TensorSpec| spec.name.contains(".engram.embed.");
        Self {
            bytes: list.iter().map(|spec| spec.bytes).sum(),
            tables: list.iter().filter(table).map(|spec| spec.bytes).sum(),
        }
    }
}

/// The quotient of two byte counts. Both are far below 2^53, where f64 is exact.
fn ratio(part: u64, whole: u64) -> f64 {
    let exact = |bytes: u64| {
        let high = u32::try_from(bytes >> 32).expect("the high half");
        let low = u32::try_from(bytes & 0xffff_ffff).expect("the low half");
        f64::from(high) * 4_294_967_296.0 + f64::from(low)
    };
    exact(part) / exact(whole)
}

/// Collects tensor descriptions by storage form.
#[derive(Default)]
struct List(Vec<TensorSpec>);

impl List {
    fn push(&mut self, name: impl Into<String>, dtype: Dtype, shape: &[usize]) {
        let elements: u64 = shape.iter().map(|size| *size as u64).product();
        let spec = TensorSpec {
            name: name.into(),
            dtype,
            shape: shape.to_vec(),
            bytes: elements * dtype.bytes(),
        };
        self.0.push(spec);
    }

    fn bf16(&mut self, name: impl Into<String>, shape: &[usize]) {
        self.push(name, Dtype::Bf16, shape);
    }

    fn f32(&mut self, name: impl Into<String>, shape: &[usize]) {
        self.push(name, Dtype::F32, shape);
    }

    /// E4M3 codes with one E8M0 scale per 32x32 tile.
    fn fp8(&mut self, name: &str, rows: usize, cols: usize) {
        self.push(format!("{name}.weight"), Dtype::F8E4m3, &[rows, cols]);
        let tiles = [rows.div_ceil(GROUP), cols.div_ceil(GROUP)];
        self.push(format!("{name}.scale"), Dtype::F8E8m0, &tiles);
    }

    /// Pairs of E2M1 codes with one E8M0 scale per row and 32 columns.
    fn fp4(&mut self, name: &str, rows: usize, cols: usize) {
        self.push(format!("{name}.weight"), Dtype::I8, &[rows, cols / 2]);
        self.push(format!("{name}.scale"), Dtype::F8E8m0, &[rows, cols / GROUP]);
    }
}

fn backbone_layer(list: &mut List, config: &ModelConfig, role: &LayerRole) {
    let prefix = format!("layers.{}", role.layer);
    block(list, config, &prefix, config.experts.routed);
    if role.owns_kv() {
        source(list, config, role);
    }
    if role.owns_index() {
        list.fp8(
            &format!("{prefix}.attn.indexer.wq_b"),
            config.index_heads * config.index_dim,
            config.q_rank,
        );
        list.bf16(
            format!("{prefix}.attn.indexer.weights_proj.weight"),
            &[config.index_heads, config.hidden],
        );
    }
    if let (Some(slot), Some(engram)) = (role.engram, &config.engram) {
        let rows = usize::try_from(engram.rows[slot]).expect("table heights are bounded");
        let prefix = format!("{prefix}.engram");
        list.push(format!("{prefix}.embed.weight"), Dtype::F8E4m3, &[rows, engram.head_dim]);
        list.push(format!("{prefix}.embed.scale"), Dtype::F8E8m0, &[rows, engram.head_dim / GROUP]);
        list.fp8(&format!("{prefix}.wkv"), (STREAMS + 1) * config.hidden, engram.width());
        list.bf16(format!("{prefix}.q_weight"), &[STREAMS, config.hidden]);
        list.bf16(format!("{prefix}.k_weight"), &[STREAMS, config.hidden]);
    }
}

/// What every block has, of the backbone and of the draft network alike.
fn block(list: &mut List, config: &ModelConfig, prefix: &str, experts: usize) {
    let hidden = config.hidden;
    let attn = format!("{prefix}.attn");
    list.fp8(&format!("{attn}.wq_a"), config.q_rank, hidden);
    list.bf16(format!("{attn}.q_norm.weight"), &[config.q_rank]);
    list.fp8(&format!("{attn}.wq_b"), config.heads * config.head_dim, config.q_rank);
    list.fp8(&format!("{attn}.wkv"), config.head_dim, hidden);
    list.bf16(format!("{attn}.kv_norm.weight"), &[config.head_dim]);
    let group_width = config.heads / config.o_groups * config.head_dim;
    list.fp8(&format!("{attn}.wo_a"), config.o_groups * config.o_rank, group_width);
    list.fp8(&format!("{attn}.wo_b"), hidden, config.o_groups * config.o_rank);
    list.f32(format!("{attn}.attn_sink"), &[config.heads]);
    list.bf16(format!("{prefix}.attn_norm.weight"), &[hidden]);
    list.bf16(format!("{prefix}.ffn_norm.weight"), &[hidden]);
    for place in ["attn", "ffn"] {
        list.f32(format!("{prefix}.hc_{place}_fn"), &[MIXES, STREAMS * hidden]);
        list.f32(format!("{prefix}.hc_{place}_base"), &[MIXES]);
        list.f32(format!("{prefix}.hc_{place}_scale"), &[HC_SCALES]);
    }
    list.bf16(format!("{prefix}.ffn.gate.weight"), &[experts, hidden]);
    list.f32(format!("{prefix}.ffn.gate.bias"), &[experts]);
    list.f32(format!("{prefix}.ffn.gate.bias_vl"), &[experts]);
    let inner = config.experts.intermediate;
    for expert in 0..experts {
        let expert = format!("{prefix}.ffn.experts.{expert}");
        list.fp4(&format!("{expert}.w1"), inner, hidden);
        list.fp4(&format!("{expert}.w2"), hidden, inner);
        list.fp4(&format!("{expert}.w3"), inner, hidden);
    }
    let shared = format!("{prefix}.ffn.shared_experts");
    list.fp8(&format!("{shared}.w1"), inner, hidden);
    list.fp8(&format!("{shared}.w2"), hidden, inner);
    list.fp8(&format!("{shared}.w3"), inner, hidden);
}

/// The makers of compressed entries and index keys of a KV source.
fn source(list: &mut List, config: &ModelConfig, role: &LayerRole) {
    let attn = format!("layers.{}.attn", role.layer);
    let (head_dim, hidden) = (config.head_dim, config.hidden);
    list.bf16(format!("{attn}.compressor.wkv.weight"), &[head_dim, hidden]);
    if 1 < role.ratio {
        list.bf16(format!("{attn}.compressor.wgate.weight"), &[head_dim, hidden]);
    }
    list.bf16(format!("{attn}.compressor.norm.weight"), &[head_dim]);
    list.bf16(format!("{attn}.indexer.wk.weight"), &[config.index_dim, head_dim]);
    list.bf16(format!("{attn}.indexer.k_norm.weight"), &[config.index_dim]);
}

/// What the encoder needs of the boundary layer.
fn boundary(list: &mut List, config: &ModelConfig) {
    let role = &config.layers[config.boundary];
    list.bf16(format!("layers.{}.attn_norm.weight", role.layer), &[config.hidden]);
    source(list, config, role);
}

fn draft_stages(list: &mut List, config: &ModelConfig, draft: &DraftConfig) {
    let hidden = config.hidden;
    for stage in 0..draft.stages {
        block(list, config, &format!("mtp.{stage}"), draft.experts_routed);
    }
    list.fp8("mtp.0.main_proj", hidden, draft.target_layers.len() * hidden);
    list.bf16("mtp.0.main_norm.weight", &[hidden]);
    let last = format!("mtp.{}", draft.stages - 1);
    list.bf16(format!("{last}.norm.weight"), &[hidden]);
    for place in ["embed", "head"] {
        let name = format!("{last}.markov_head.{place}.weight");
        list.bf16(name, &[config.vocab, draft.markov_rank]);
    }
    list.bf16(format!("{last}.confidence_head.proj.weight"), &[1, hidden + draft.markov_rank]);
}

fn vision_tensors(list: &mut List, config: &ModelConfig, vision: &VisionConfig) {
    let (width, inner, hidden) = (vision.hidden, vision.intermediate, config.hidden);
    let mut linear = |name: &str, rows: usize, cols: usize| {
        list.bf16(format!("{name}.weight"), &[rows, cols]);
        list.bf16(format!("{name}.bias"), &[rows]);
    };
    let cell = vision.downsample * vision.downsample * width;
    linear("vision.patch_embed.proj", width, 3 * vision.patch * vision.patch);
    linear("aligner.w1", hidden, cell);
    linear("aligner.w2", hidden, hidden);
    for block in 0..vision.layers {
        linear(&format!("vision.blocks.{block}.attn.wqkv"), 3 * width, width);
        linear(&format!("vision.blocks.{block}.attn.wo"), width, width);
    }
    for block in 0..vision.layers {
        let prefix = format!("vision.blocks.{block}");
        list.bf16(format!("{prefix}.norm1.weight"), &[width]);
        list.bf16(format!("{prefix}.norm2.weight"), &[width]);
        list.bf16(format!("{prefix}.mlp.w1.weight"), &[2 * inner, width]);
        list.bf16(format!("{prefix}.mlp.w2.weight"), &[width, inner]);
    }
    list.bf16("vision.norm.weight", &[width]);
    for name in ["image_start", "image_end", "image_newline"] {
        list.bf16(name, &[hidden]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::{Part, loaded_share, release_list, tensor_list};
    use crate::config::ModelConfig;

    fn flash() -> ModelConfig {
        ModelConfig::parse(include_str!("../config/flash.json")).unwrap()
    }

    #[test]
    fn the_flash_release_has_its_published_totals() {
        let list = release_list(&flash());
        assert_eq!(list.len(), 96_085);
        assert_eq!(list.iter().map(|spec| spec.bytes).sum::<u64>(), 510_286_023_000);
        assert_eq!(list.iter().map(|spec| &spec.name).collect::<HashSet<_>>().len(), 96_085);
        let mut by_dtype: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
        for spec in &list {
            let entry = by_dtype.entry(spec.dtype.as_str()).or_default();
            *entry = (entry.0 + 1, entry.1 + spec.bytes);
        }
        let expected = [
            ("BF16", (520, 3_952_883_712)),
            ("F32", (387, 169_229_128)),
            ("F8_E4M3", (357, 204_015_223_296)),
            ("F8_E8M0", (47_589, 23_563_015_184)),
            ("I8", (47_232, 278_585_671_680)),
        ];
        assert_eq!(by_dtype, BTreeMap::from(expected));
    }

    #[test]
    fn a_flash_prefill_worker_loads_the_share_the_design_states() {
        let share = loaded_share(&flash(), Part::Encoder);
        assert!((share.with_tables - 0.690).abs() < 5e-4, "{share:?}");
        assert!((share.without_tables - 0.486).abs() < 5e-4, "{share:?}");
    }

    #[test]
    fn the_encoder_takes_five_tensors_of_the_boundary_layer_and_nothing_above() {
        let list = tensor_list(&flash(), Part::Encoder);
        let layer_of = |name: &str| -> Option<usize> {
            name.strip_prefix("layers.")?.split('.').next()?.parse().ok()
        };
        let above: Vec<_> = list
            .iter()
            .filter(|spec| layer_of(&spec.name).is_some_and(|layer| 20 <= layer))
            .map(|spec| spec.name.as_str())
            .collect();
        let expected = [
            "layers.20.attn_norm.weight",
            "layers.20.attn.compressor.wkv.weight",
            "layers.20.attn.compressor.norm.weight",
            "layers.20.attn.indexer.wk.weight",
            "layers.20.attn.indexer.k_norm.weight",
        ];
        assert_eq!(above, expected);
        assert!(list.iter().all(|spec| spec.name != "head.weight" && spec.name != "norm.weight"));
    }
}
