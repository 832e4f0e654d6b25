//! From the text of `config.json` to a checked [`ModelConfig`].

use kernels::STREAMS;
use serde_json::{Value, json};
use shared::{BLOCK_TOKENS, KvLayout, KvShape, SourceShape, TokenId};

use super::fields::Fields;
use super::roles::{RoleLists, derive};
use super::{
    Candidates, ConfigError, DraftConfig, EngramConfig, Experts, LayerRole, ModelConfig,
    SpecialTokens, VisionConfig, Yarn,
};
use crate::engram_map::HashTables;

/// Bounds of sizes, far above any published model. They keep every byte count below 2^63.
const LAYERS_MAX: usize = 1_024;
const WIDTH_MAX: usize = 1 << 17;
/// Room for the default ids of begin, end and pad.
const VOCAB_MIN: u64 = 3;
const VOCAB_MAX: u64 = 1 << 24;
const HEADS_MAX: usize = 4_096;
const EXPERTS_MAX: usize = 1 << 16;
const SELECTED_MAX: usize = 1 << 20;
const CONTEXT_MAX: u32 = 1 << 30;
const WINDOW_MAX: u32 = 1 << 16;
const ITERATIONS_MAX: usize = 1_000;
const NGRAM_MAX: usize = 8;
const ENGRAM_HEADS_MAX: usize = 64;
const TABLE_ROWS_MAX: u64 = 1 << 40;
/// Elements that share a scale in every quantised tensor.
const GROUP: usize = 32;

pub(super) fn parse(json: &str) -> Result<ModelConfig, ConfigError> {
    let value: Value = serde_json::from_str(json)
        .map_err(|error| ConfigError::Syntax { message: error.to_string() })?;
    let root = Fields::root(&value)?;
    check_top(&root)?;
    let text = root.object("text_config")?;
    check_text(&text)?;
    let layer_count = text.size("num_hidden_layers", LAYERS_MAX)?;
    let vocab = text.integer("vocab_size", VOCAB_MIN, VOCAB_MAX)?;
    let vocab = usize::try_from(vocab).expect("bounded by VOCAB_MAX");
    let draft = draft(&text, layer_count, vocab)?;
    let engram = engram(&text, layer_count, vocab)?;
    let candidate_source = candidate_source(&text, layer_count)?;
    let ratios = ratios(&text, layer_count, draft.as_ref())?;
    let (layers, boundary) = derive(&RoleLists {
        ratios: &ratios,
        kv_sources: &text.layer_list("kv_source_layer_ids", layer_count)?,
        index_sources: &text.layer_list("index_source_layer_ids", layer_count)?,
        candidate_source,
        engram_layers: engram.as_ref().map_or(&[], |engram| engram.layers.as_slice()),
    })?;
    let candidates = match candidate_source {
        Some(source) => Some(candidates(&text, &layers[source])?),
        None => None,
    };
    let head_dim = text.width("head_dim", GROUP, WIDTH_MAX)?;
    let index_dim = text.width("index_head_dim", GROUP, WIDTH_MAX)?;
    let (heads, o_groups) = output_groups(&text)?;
    Ok(ModelConfig {
        vocab,
        hidden: text.width("hidden_size", GROUP, WIDTH_MAX)?,
        heads,
        head_dim,
        rope_dim: rope_dim(&text, head_dim.min(index_dim))?,
        q_rank: text.width("q_lora_rank", GROUP, WIDTH_MAX)?,
        o_rank: text.width("o_lora_rank", GROUP, WIDTH_MAX)?,
        o_groups,
        window: text.integer32("sliding_window", 1, WINDOW_MAX)?,
        context: text.integer32("max_position_embeddings", 1, CONTEXT_MAX)?,
        rms_eps: text.positive("rms_norm_eps")?,
        rope_theta: text.positive("rope_theta")?,
        compress_rope_theta: text.positive("compress_rope_theta")?,
        yarn: yarn(&text)?,
        index_heads: text.size("index_n_heads", HEADS_MAX)?,
        index_dim,
        index_topk: text.size("index_topk", SELECTED_MAX)?,
        candidates,
        experts: experts(&text)?,
        hc_iterations: text.size("hc_sinkhorn_iters", ITERATIONS_MAX)?,
        hc_eps: text.positive("hc_eps")?,
        engram,
        draft,
        vision: vision(&root)?,
        special: special(&root, &text, vocab)?,
        layout: layout(head_dim, index_dim, &layers, boundary)?,
        layers,
        boundary,
    })
}

fn check_top(root: &Fields<'_>) -> Result<(), ConfigError> {
    root.require("model_type", &json!("deepseek_v41"))?;
    root.require_if_present("dtype", &json!("bfloat16"))?;
    let quantization = root.object("quantization_config")?;
    for (name, expected) in [
        ("quant_method", json!("fp8")),
        ("weight_block_size", json!([GROUP, GROUP])),
        ("scale_fmt", json!("ue8m0")),
        ("expert_dtype", json!("fp4")),
    ] {
        quantization.require(name, &expected)?;
    }
    quantization.require_if_present("activation_scheme", &json!("dynamic"))
}

/// The fields whose value selects an algorithm: only the released one is implemented.
fn check_text(text: &Fields<'_>) -> Result<(), ConfigError> {
    for (name, expected) in [
        ("num_key_value_heads", json!(1)),
        ("hidden_act", json!("silu")),
        ("n_shared_experts", json!(1)),
        ("scoring_func", json!("sqrtsoftplus")),
        ("topk_method", json!("noaux_tc")),
        ("norm_topk_prob", json!(true)),
        ("hc_mult", json!(STREAMS)),
    ] {
        text.require(name, &expected)?;
    }
    for (name, expected) in [
        ("model_type", json!("deepseek_v41_text")),
        ("attention_bias", json!(false)),
        ("tie_word_embeddings", json!(false)),
        ("hc_shifted", json!(true)),
        ("use_fp4_sparse_kv", json!(true)),
        ("dspark_target_attn_input", json!(true)),
    ] {
        text.require_if_present(name, &expected)?;
    }
    match (text.value("index_k_source_layer_ids"), text.value("kv_source_layer_ids")) {
        (Some(_), Some(expected)) => text.require("index_k_source_layer_ids", expected),
        _ => Ok(()),
    }
}

/// The ratios of the backbone. The file has one more per draft stage, all 0.
fn ratios(
    text: &Fields<'_>,
    layers: usize,
    draft: Option<&DraftConfig>,
) -> Result<Vec<u64>, ConfigError> {
    let name = "compress_ratios";
    let stages = draft.map_or(0, |draft| draft.stages);
    let mut ratios = text.list(name, u64::from(u32::MAX), 2 * LAYERS_MAX)?;
    if ratios.len() != layers + stages {
        return Err(ConfigError::field(
            text.path(name),
            format!("{} entries, one per layer and draft stage", layers + stages),
            format!("{} entries", ratios.len()),
        ));
    }
    if ratios[layers..].iter().any(|ratio| *ratio != 0) {
        return Err(text.refuse(name, format!("0 for the last {stages} entries (draft stages)")));
    }
    ratios.truncate(layers);
    Ok(ratios)
}

fn output_groups(text: &Fields<'_>) -> Result<(usize, usize), ConfigError> {
    let heads = text.size("num_attention_heads", HEADS_MAX)?;
    let groups = text.size("o_groups", HEADS_MAX)?;
    if heads.is_multiple_of(groups) {
        Ok((heads, groups))
    } else {
        Err(text.refuse("o_groups", format!("a divisor of num_attention_heads, which is {heads}")))
    }
}

fn rope_dim(text: &Fields<'_>, narrowest: usize) -> Result<usize, ConfigError> {
    text.width("qk_rope_head_dim", 2, narrowest)
}

fn yarn(text: &Fields<'_>) -> Result<Option<Yarn>, ConfigError> {
    let Some(scaling) = text.object_if_present("rope_scaling")? else { return Ok(None) };
    scaling.require("rope_type", &json!("yarn"))?;
    Ok(Some(Yarn {
        factor: scaling.positive("factor")?,
        original_context: scaling.integer32("original_max_position_embeddings", 1, CONTEXT_MAX)?,
        beta_fast: scaling.positive("beta_fast")?,
        beta_slow: scaling.positive("beta_slow")?,
    }))
}

fn candidate_source(text: &Fields<'_>, layers: usize) -> Result<Option<usize>, ConfigError> {
    let name = "candidate_source_layer_id";
    let Some(_) = text.value(name) else { return Ok(None) };
    let found = text.integer(name, 0, (layers - 1) as u64)?;
    Ok(usize::try_from(found).ok())
}

fn candidates(text: &Fields<'_>, source: &LayerRole) -> Result<Candidates, ConfigError> {
    let entries = (BLOCK_TOKENS / source.ratio) as usize;
    let block_entries = text.size("candidate_block_size", entries)?;
    if !entries.is_multiple_of(block_entries) {
        let expected = format!("a divisor of {entries}, the entries of a block of that layer");
        return Err(text.refuse("candidate_block_size", expected));
    }
    Ok(Candidates {
        source_layer: source.layer,
        blocks_max: text.size("candidate_topk_blocks", SELECTED_MAX)?,
        block_entries,
    })
}

fn experts(text: &Fields<'_>) -> Result<Experts, ConfigError> {
    let routed = text.size("n_routed_experts", EXPERTS_MAX)?;
    let gate_temperature = match text.value("gate_temp") {
        Some(_) => text.positive("gate_temp")?,
        None => 1.0,
    };
    Ok(Experts {
        routed,
        per_token: text.size("num_experts_per_tok", routed)?,
        intermediate: text.width("moe_intermediate_size", GROUP, WIDTH_MAX)?,
        scaling: text.positive("routed_scaling_factor")?,
        swiglu_limit: text.positive("swiglu_limit")?,
        gate_temperature,
    })
}

fn engram(
    text: &Fields<'_>,
    layers: usize,
    vocab: usize,
) -> Result<Option<EngramConfig>, ConfigError> {
    if text.value("engram_layer_ids").is_none() {
        return Ok(None);
    }
    let engram_layers = text.layer_list("engram_layer_ids", layers)?;
    if engram_layers.is_empty() {
        return Ok(None);
    }
    let ngram_max = text.integer("engram_max_ngram_size", 2, NGRAM_MAX as u64)?;
    let last_id = u32::try_from(vocab - 1).expect("the vocabulary is bounded");
    let config = EngramConfig {
        rows: text.list("engram_num_embeddings", TABLE_ROWS_MAX, engram_layers.len())?,
        layers: engram_layers,
        ngram_max: usize::try_from(ngram_max).expect("at most 8"),
        heads: text.size("engram_n_heads", ENGRAM_HEADS_MAX)?,
        head_dim: text.width("engram_head_dim", GROUP, WIDTH_MAX)?,
        prime_floor: text.integer("engram_vocab_size", 1, u64::from(u32::MAX))?,
        pad: TokenId(text.integer32("engram_pad_token_id", 0, last_id)?),
        compressed_vocab: text.size("engram_compressed_vocab_size", vocab)?,
    };
    // A row of a table is addressed by a prime's remainder plus an offset: the sum of the primes is the table's height.
    let expected = HashTables::build(&config).iter().map(HashTables::rows).collect::<Vec<_>>();
    if config.rows != expected {
        let expected = format!(
            "{expected:?}, the sums of the primes from engram_vocab_size {}",
            config.prime_floor
        );
        return Err(text.refuse("engram_num_embeddings", expected));
    }
    Ok(Some(config))
}

fn draft(
    text: &Fields<'_>,
    layers: usize,
    vocab: usize,
) -> Result<Option<DraftConfig>, ConfigError> {
    let name = "num_nextn_predict_layers";
    if text.value(name).is_none() || text.integer(name, 0, LAYERS_MAX as u64)? == 0 {
        return Ok(None);
    }
    let last_id = u32::try_from(vocab - 1).expect("the vocabulary is bounded");
    let experts_routed = text.size("dspark_n_routed_experts", EXPERTS_MAX)?;
    let target_layers = text.layer_list("dspark_target_layer_ids", layers)?;
    if target_layers.is_empty() {
        return Err(text.refuse("dspark_target_layer_ids", "at least one layer"));
    }
    Ok(Some(DraftConfig {
        stages: text.size(name, LAYERS_MAX)?,
        block: text.size("dspark_block_size", SELECTED_MAX)?,
        noise: TokenId(text.integer32("dspark_noise_token_id", 0, last_id)?),
        target_layers,
        markov_rank: text.size("dspark_markov_rank", WIDTH_MAX)?,
        experts_routed,
        experts_per_token: text.size("dspark_num_experts_per_tok", experts_routed)?,
    }))
}

fn vision(root: &Fields<'_>) -> Result<Option<VisionConfig>, ConfigError> {
    let Some(vision) = root.object_if_present("vision_config")? else { return Ok(None) };
    Ok(Some(VisionConfig {
        layers: vision.size("num_hidden_layers", LAYERS_MAX)?,
        hidden: vision.size("hidden_size", WIDTH_MAX)?,
        intermediate: vision.size("intermediate_size", WIDTH_MAX)?,
        patch: vision.size("patch_size", HEADS_MAX)?,
        downsample: vision.size("downsample_ratio", HEADS_MAX)?,
    }))
}

/// Special ids stand at the top level; the text section is asked second.
fn special(
    root: &Fields<'_>,
    text: &Fields<'_>,
    vocab: usize,
) -> Result<SpecialTokens, ConfigError> {
    let last_id = u32::try_from(vocab - 1).expect("the vocabulary is bounded");
    let find = |name: &str| {
        let holder = if root.value(name).is_some() { root } else { text };
        match holder.value(name) {
            Some(_) => holder.integer32(name, 0, last_id).map(|id| Some(TokenId(id))),
            None => Ok(None),
        }
    };
    Ok(SpecialTokens {
        bos: find("bos_token_id")?.unwrap_or(TokenId(0)),
        eos: find("eos_token_id")?.unwrap_or(TokenId(1)),
        pad: find("pad_token_id")?.unwrap_or(TokenId(2)),
        image: find("image_token_id")?,
    })
}

fn layout(
    head_dim: usize,
    index_dim: usize,
    layers: &[LayerRole],
    boundary: usize,
) -> Result<KvLayout, ConfigError> {
    let sources = layers
        .iter()
        .filter(|role| role.owns_kv())
        .map(|role| SourceShape { layer: role.layer, ratio: role.ratio })
        .collect();
    KvLayout::new(KvShape { head_dim, index_dim, encoder_layers: boundary, sources })
        .map_err(|error| ConfigError::field("text_config", "a KV layout", error))
}
