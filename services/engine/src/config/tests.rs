use serde_json::{Value, json};
use shared::TokenId;

use super::{CandidateUse, ConfigError, LayerRole, ModelConfig};
use crate::golden::golden_folders;

const FLASH: &str = include_str!("flash.json");

/// The Flash configuration with one value replaced (removed for `Null`), by JSON pointer.
fn changed(pointer: &str, value: Value) -> Result<ModelConfig, ConfigError> {
    let mut config: Value = serde_json::from_str(FLASH).unwrap();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let parent = config.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    if value.is_null() {
        parent.remove(field);
    } else {
        parent.insert(field.to_owned(), value);
    }
    ModelConfig::parse(&config.to_string())
}

#[test]
fn flash_has_the_published_roles() {
    let config = ModelConfig::parse(FLASH).unwrap();
    assert_eq!(config.boundary, 20);
    for role in &config.layers {
        let layer = role.layer;
        // layer -> ratio, KV owner, index owner: specs/v41-architecture.md §1.2.
        let (ratio, kv_owner, index_owner) = match layer {
            0 | 1 => (0, None, None),
            2..8 => (2, Some(2), Some(2)),
            8..14 => (2, Some(8), Some(8)),
            14..20 => (2, Some(14), Some(14)),
            _ => (1, Some(20), Some(layer / 4 * 4)),
        };
        let candidates = match layer {
            20 => CandidateUse::Source,
            24 | 28 | 32 | 36 => CandidateUse::Restricted,
            _ => CandidateUse::Unrelated,
        };
        let engram = [1, 14].iter().position(|engram| *engram == layer);
        let is_encoder = layer < 20;
        let expected =
            LayerRole { layer, ratio, kv_owner, index_owner, candidates, engram, is_encoder };
        assert_eq!(*role, expected);
    }
    let named = |test: fn(&LayerRole) -> bool| -> Vec<usize> {
        config.layers.iter().filter(|role| test(role)).map(|role| role.layer).collect()
    };
    assert_eq!(named(LayerRole::owns_kv), [2, 8, 14, 20]);
    assert_eq!(named(LayerRole::owns_index), [2, 8, 14, 20, 24, 28, 32, 36]);
    assert_eq!(named(LayerRole::is_candidate_source), [20]);
    assert_eq!(named(LayerRole::uses_candidates), [24, 28, 32, 36]);
}

#[test]
fn flash_has_the_published_sizes() {
    let config = ModelConfig::parse(FLASH).unwrap();
    assert_eq!(config.layout().block_bytes(), 113_920);
    assert_eq!(config.layout().window_bytes(), 1_351_680);
    let geometry = config.geometry(12);
    assert_eq!((geometry.keep(), geometry.exact_replay_rows()), (140, 2_540));
    assert_eq!((config.vocab, config.context, config.window), (129_280, 1 << 20, 128));
    let engram = config.engram.as_ref().unwrap();
    assert_eq!((engram.columns(), engram.width()), (24, 6_144));
    assert_eq!(config.special.image, Some(TokenId(129_264)));
    assert_eq!(config.draft.as_ref().unwrap().target_layers, [37, 38, 39]);
}

#[test]
fn every_golden_configuration_is_accepted() {
    for folder in golden_folders() {
        let config = ModelConfig::read(&folder.join("checkpoint/config.json")).unwrap();
        assert!(0 < config.boundary);
    }
}

#[test]
fn missing_optional_fields_get_their_defaults() {
    let cases = ["/bos_token_id", "/eos_token_id", "/pad_token_id", "/image_token_id"];
    for pointer in cases {
        let special = changed(pointer, Value::Null).unwrap().special;
        assert_eq!((special.bos, special.eos, special.pad), (TokenId(0), TokenId(1), TokenId(2)));
        assert_eq!(special.image.is_none(), pointer == "/image_token_id");
    }
    assert_eq!(ModelConfig::parse(FLASH).unwrap().experts.gate_temperature, 1.0);
    assert_eq!(
        changed("/text_config/gate_temp", json!(2.0)).unwrap().experts.gate_temperature,
        2.0
    );
    assert!(changed("/vision_config", Value::Null).unwrap().vision.is_none());
    assert!(changed("/text_config/rope_scaling", Value::Null).unwrap().yarn.is_none());
    let flat = changed("/text_config/candidate_source_layer_id", Value::Null).unwrap();
    assert!(flat.candidates.is_none() && flat.layers.iter().all(|role| !role.uses_candidates()));
    assert!(changed("/text_config/engram_layer_ids", Value::Null).unwrap().engram.is_none());
}

/// Each change, as a JSON pointer and a value, is refused in one line that contains the text beside it.
fn check_refused(cases: &[(&str, Value, &str)]) {
    for (pointer, value, expected) in cases {
        let error = changed(pointer, value.clone()).unwrap_err().to_string();
        assert!(error.contains(expected), "{pointer} = {value}: {error}");
        assert!(error.starts_with("config.json: ") && !error.contains('\n'), "{error}");
    }
}

#[test]
fn algorithms_that_are_not_implemented_are_refused_by_field() {
    check_refused(&[
        ("/model_type", json!("deepseek_v4"), "model_type is \"deepseek_v4\""),
        ("/model_type", json!(null), "model_type is missing"),
        ("/dtype", json!("float16"), "expected \"bfloat16\""),
        ("/text_config", json!(null), "text_config is missing, expected an object"),
        ("/quantization_config", json!(null), "quantization_config is missing"),
        ("/quantization_config/quant_method", json!("awq"), "expected \"fp8\""),
        ("/quantization_config/weight_block_size", json!([128, 128]), "[32,32]"),
        ("/quantization_config/scale_fmt", json!("float"), "scale_fmt"),
        ("/quantization_config/expert_dtype", json!("fp8"), "expert_dtype"),
        ("/eos_token_id", json!(129_280), "eos_token_id is 129280"),
        ("/text_config/scoring_func", json!("sigmoid"), "text_config.scoring_func"),
        ("/text_config/topk_method", json!("greedy"), "text_config.topk_method"),
        ("/text_config/norm_topk_prob", json!(false), "text_config.norm_topk_prob"),
        ("/text_config/hidden_act", json!("gelu"), "text_config.hidden_act"),
        (
            "/text_config/num_key_value_heads",
            json!(8),
            "text_config.num_key_value_heads is 8, expected 1",
        ),
        ("/text_config/hc_mult", json!(2), "text_config.hc_mult is 2, expected 4"),
        ("/text_config/hc_shifted", json!(false), "text_config.hc_shifted"),
        ("/text_config/tie_word_embeddings", json!(true), "text_config.tie_word_embeddings"),
    ]);
}

#[test]
fn sizes_out_of_range_are_refused_by_field() {
    check_refused(&[
        ("/text_config/hidden_size", json!(5_000), "expected a multiple of 32"),
        ("/text_config/hidden_size", json!(0), "text_config.hidden_size is 0"),
        ("/text_config/hidden_size", json!(1 << 30), "text_config.hidden_size"),
        ("/text_config/hidden_size", json!("5120"), "text_config.hidden_size is \"5120\""),
        ("/text_config/hidden_size", json!(null), "text_config.hidden_size is missing"),
        ("/text_config/head_dim", json!(48), "text_config.head_dim"),
        ("/text_config/moe_intermediate_size", json!(2_300), "text_config.moe_intermediate_size"),
        ("/text_config/qk_rope_head_dim", json!(63), "text_config.qk_rope_head_dim"),
        ("/text_config/qk_rope_head_dim", json!(256), "text_config.qk_rope_head_dim"),
        ("/text_config/o_groups", json!(7), "a divisor of num_attention_heads, which is 64"),
        ("/text_config/num_experts_per_tok", json!(385), "text_config.num_experts_per_tok is 385"),
        ("/text_config/sliding_window", json!(0), "text_config.sliding_window is 0"),
        ("/text_config/rms_norm_eps", json!(0.0), "text_config.rms_norm_eps"),
        ("/text_config/swiglu_limit", json!(-1.0), "text_config.swiglu_limit"),
        (
            "/text_config/rope_scaling",
            json!({"rope_type": "linear"}),
            "text_config.rope_scaling.rope_type",
        ),
    ]);
}

#[test]
fn layer_lists_that_contradict_each_other_are_refused_by_field() {
    let ratio = |layer: usize, ratio: u32| {
        let config: Value = serde_json::from_str(FLASH).unwrap();
        let mut ratios = config["text_config"]["compress_ratios"].clone();
        ratios[layer] = json!(ratio);
        ratios
    };
    check_refused(&[
        ("/text_config/compress_ratios", json!([0, 0, 2]), "3 entries, expected 43 entries"),
        ("/text_config/compress_ratios", ratio(41, 1), "0 for the last 3 entries"),
        (
            "/text_config/compress_ratios",
            ratio(2, 3),
            "compress_ratios[2] is 3, expected 0 or a divisor of 128",
        ),
        (
            "/text_config/compress_ratios",
            ratio(5, 4),
            "compress_ratios[5] is 4, expected 2, the ratio of its KV source 2",
        ),
        (
            "/text_config/compress_ratios",
            ratio(1, 2),
            "compress_ratios[1] is 2, expected 0, as no KV source",
        ),
        ("/text_config/compress_ratios", ratio(24, 0), "compress_ratios[24]"),
        ("/text_config/compress_ratios", ratio(19, 1), "the boundary layer 19"),
        ("/text_config/kv_source_layer_ids", json!([2, 8, 14]), "the boundary layer 20"),
        ("/text_config/kv_source_layer_ids", json!([8, 2, 20]), "ascending"),
        ("/text_config/kv_source_layer_ids", json!([2, 40]), "integers in 0..=39"),
        ("/text_config/kv_source_layer_ids", json!([2, 5, 8, 14, 20]), "every KV source, 5 too"),
        (
            "/text_config/index_k_source_layer_ids",
            json!([2]),
            "text_config.index_k_source_layer_ids",
        ),
        (
            "/text_config/candidate_source_layer_id",
            json!(24),
            "candidate_source_layer_id is 24, expected a KV source",
        ),
        ("/text_config/candidate_source_layer_id", json!(2), "every later Reindex layer (24)"),
        ("/text_config/candidate_block_size", json!(24), "a divisor of 128"),
        ("/text_config/engram_layer_ids", json!([1, 20]), "layers below the boundary 20"),
        ("/text_config/engram_num_embeddings", json!([384_006_168, 384_016_681]), "384016682"),
        ("/text_config/engram_max_ngram_size", json!(1), "text_config.engram_max_ngram_size"),
        (
            "/text_config/engram_compressed_vocab_size",
            json!(200_000),
            "engram_compressed_vocab_size",
        ),
        ("/text_config/dspark_target_layer_ids", json!([]), "text_config.dspark_target_layer_ids"),
    ]);
}

#[test]
fn a_file_that_is_no_configuration_is_refused_in_one_line() {
    for text in ["", "{", "[]", "null", "{\"model_type\": 3}"] {
        let error = ModelConfig::parse(text).unwrap_err().to_string();
        assert!(error.starts_with("config.json") && !error.contains('\n'), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let error = ModelConfig::read(&folder.path().join("config.json")).unwrap_err().to_string();
    assert!(error.contains("cannot read") && error.contains("config.json"), "{error}");
}
