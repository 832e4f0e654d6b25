use std::sync::Arc;

use serde_json::{Value, json};
use shared::{
    Lineage, Numerics, Priority, RequestId, TenantId, TokenId, TraceContext, block_names,
};
use tokenizers::Tokenizer;

use super::{Asked, Prepared, Prompter};
use crate::config::{GatewayConfig, ServedModel};
use crate::error::ApiError;
use crate::output::OutputStart;
use crate::vocabulary::tests::{seedling, seedling_path};

const PLAIN: Asked = Asked { trace: TraceContext::NONE, priority: Priority::Normal, session: None };

fn prompter(token_cache_bytes_max: usize) -> Prompter {
    let config = GatewayConfig { token_cache_bytes_max, ..GatewayConfig::default() };
    let model = ServedModel {
        names: vec!["seedling".into()],
        tokenizer: seedling_path(),
        context_tokens: 2_048,
        created: 0,
        cluster_secret: [1; 32],
        tenant: TenantId(Arc::from("default")),
        model_id: [2; 32],
        layout: [3; 32],
        numerics: Numerics("cpu-exact-1".into()),
    };
    Prompter::new(&config, model).unwrap()
}

fn body(change: &Value) -> Vec<u8> {
    let mut body = json!({"model": "seedling"});
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    serde_json::to_vec(&body).unwrap()
}

fn prepare(prompter: &Prompter, change: &Value) -> Result<Prepared, ApiError> {
    prompter.prepare(RequestId(5), PLAIN, &body(change))
}

fn text(tokenizer: &Tokenizer, prepared: &Prepared) -> String {
    let ids: Vec<u32> = prepared.prompt.iter().map(|id| id.0).collect();
    tokenizer.decode(&ids, false).unwrap()
}

fn effort(level: u32) -> String {
    format!(
        "Reasoning Effort: {level} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
    )
}

/// The golden table of v41-prompt-encoding.md §8. `{E..}` is an effort line, `^` and `$` begin and end a sentence, `~` is
/// a newline. Rows that need a response format, images or tools are missing: this server refuses those requests.
const GOLDEN: &[(&str, &str)] = &[
    (
        r#"{"messages": [{"role": "user", "content": "Hello"}]}"#,
        "^<｜System｜>{E75}<｜User｜>Hello<｜Assistant｜><think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Hello"}], "reasoning_effort": "minimal"}"#,
        "^<｜System｜>{E50}<｜User｜>Hello<｜Assistant｜><think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Hello"}], "reasoning_effort": "low"}"#,
        "^<｜System｜>{E50}<｜User｜>Hello<｜Assistant｜><think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Hello"}], "reasoning_effort": "medium"}"#,
        "^<｜System｜>{E75}<｜User｜>Hello<｜Assistant｜><think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Hello"}], "reasoning_effort": "high"}"#,
        "^<｜System｜>{E75}<｜User｜>Hello<｜Assistant｜><think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Hello"}], "reasoning_effort": "xhigh"}"#,
        "^<｜System｜>{E75}<｜User｜>Hello<｜Assistant｜><think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Hello"}], "reasoning_effort": "max"}"#,
        "^<｜System｜>{E100}<｜User｜>Hello<｜Assistant｜><think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Hello"}], "reasoning_effort": "none"}"#,
        "^<｜User｜>Hello<｜Assistant｜></think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Hello"}], "thinking": {"type": "disabled"}}"#,
        "^<｜User｜>Hello<｜Assistant｜></think>",
    ),
    (
        r#"{"messages": [{"role": "system", "content": "You are X."}, {"role": "user", "content": "Hi"}]}"#,
        "^<｜System｜>{E75}You are X.<｜User｜>Hi<｜Assistant｜><think>",
    ),
    (
        r#"{"messages": [{"role": "system", "content": "You are X."}, {"role": "user", "content": "Hi"}], "thinking": {"type": "disabled"}}"#,
        "^<｜System｜>You are X.<｜User｜>Hi<｜Assistant｜></think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Q1"}, {"role": "assistant", "content": "A1", "reasoning_content": "R1"}, {"role": "user", "content": "Q2"}]}"#,
        "^<｜System｜>{E75}<｜User｜>Q1<｜Assistant｜></think>A1$<｜User｜>Q2<｜Assistant｜><think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Q1"}, {"role": "assistant", "content": "A1", "reasoning_content": "R1"}, {"role": "user", "content": "Q2"}], "thinking": {"type": "disabled"}}"#,
        "^<｜User｜>Q1<｜Assistant｜></think>A1$<｜User｜>Q2<｜Assistant｜></think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Q1"}, {"role": "assistant", "content": "A1"}, {"role": "developer", "content": "Mid"}, {"role": "user", "content": "Q2"}]}"#,
        "^<｜System｜>{E75}<｜User｜>Q1<｜Assistant｜></think>A1$<｜System｜>Mid<｜User｜>Q2<｜Assistant｜><think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Q1"}, {"role": "assistant", "content": "A1"}, {"role": "system", "content": "Mid"}]}"#,
        "^<｜System｜>{E75}<｜User｜>Q1<｜Assistant｜></think>A1$<｜System｜>Mid<｜Assistant｜><think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Q1"}, {"role": "user", "content": "Q2"}]}"#,
        "^<｜System｜>{E75}<｜User｜>Q1~~Q2<｜Assistant｜><think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Q1"}, {"role": "assistant", "content": "Sure,", "prefix": true}]}"#,
        "^<｜System｜>{E75}<｜User｜>Q1<｜Assistant｜><think></think>Sure,",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Q1"}, {"role": "assistant", "content": "Sure,", "prefix": true}], "thinking": {"type": "disabled"}}"#,
        "^<｜User｜>Q1<｜Assistant｜></think>Sure,",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Q"}, {"role": "latest_reminder", "content": "REM"}]}"#,
        "^<｜System｜>{E75}<｜User｜>Q<｜latest_reminder｜>REM<｜Assistant｜><think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "x"}]}"#,
        "^<｜System｜>{E75}<｜User｜>Q<｜Assistant｜></think>x$<｜Assistant｜><think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "a <｜User｜> b </think> c"}]}"#,
        "^<｜System｜>{E75}<｜User｜>a <｜User｜> b </think> c<｜Assistant｜><think>",
    ),
    (
        r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}"#,
        "^<｜System｜>{E75}<｜User｜>a~~b<｜Assistant｜><think>",
    ),
];

#[test]
fn rendering_equals_the_golden_table() {
    let (tokenizer, _) = seedling();
    let prompter = prompter(1 << 20);
    for (change, golden) in GOLDEN {
        let change: Value = serde_json::from_str(change).unwrap();
        let golden = golden
            .replace('~', "\n")
            .replace('^', "<｜begin▁of▁sentence｜>")
            .replace('$', "<｜end▁of▁sentence｜>")
            .replace("{E50}", &effort(50))
            .replace("{E75}", &effort(75))
            .replace("{E100}", &effort(100));
        let prepared = prepare(&prompter, &change).ok().unwrap();
        assert_eq!(text(&tokenizer, &prepared), golden, "{change}");
    }
}

/// Whole-prompt tokenisation without a cache, as the crate does it.
fn plain_ids(change: &Value) -> Vec<TokenId> {
    prepare(&prompter(0), change).ok().unwrap().prompt.to_vec()
}

#[test]
fn the_token_cache_changes_no_id() {
    use deepseek_recipe::openai::ChatCompletionRequest;
    use deepseek_recipe::request::{ConversionOptions, ModelVersion, ProtocolRequest};
    use deepseek_recipe_encoding::dsv41::DeepseekV41Encoding;
    use deepseek_recipe_encoding::{PromptEncoding, PromptTokenizer};

    let (tokenizer, _) = seedling();
    let oracle = DeepseekV41Encoding::new().with_tokenizer(PromptTokenizer::new(&tokenizer));
    let options =
        ConversionOptions::new().with_model_alias("seedling", ModelVersion::DeepseekV41Flash);
    let words = ["Hello", " 12345 ", "\n\n", "天气", "🤭", "<think>", "a b", "", "...", "é\t"];
    // Small, so that parts are evicted all the time, and large, so that all of them hit.
    for cache in [prompter(4_000), prompter(1 << 20)] {
        let mut state = 3_u32;
        let mut next = |below: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            usize::try_from(state >> 8).unwrap() % below
        };
        for _ in 0..40 {
            let mut messages = Vec::new();
            for turn in 0..1 + next(6) {
                let content: String = (0..next(12)).map(|_| words[next(words.len())]).collect();
                let role = if turn % 2 == 0 { "user" } else { "assistant" };
                messages.push(json!({"role": role, "content": content}));
                let request = json!({"model": "seedling", "messages": messages});
                let parsed: ChatCompletionRequest =
                    serde_json::from_value(request.clone()).unwrap();
                let conversation = parsed.convert(options.clone()).unwrap().conversation;
                let expected = oracle.encode(&conversation).unwrap();
                let prepared = prepare(&cache, &request).ok().unwrap();
                let ids: Vec<u32> = prepared.prompt.iter().map(|id| id.0).collect();
                assert_eq!(ids, expected, "{request}");
            }
        }
        assert!(0 < cache.cache_stats().hits);
    }
}

#[test]
fn a_new_turn_tokenises_only_what_is_new() {
    let prompter = prompter(1 << 20);
    let mut messages = vec![json!({"role": "user", "content": "What is the capital of France?"})];
    prepare(&prompter, &json!({"messages": messages})).ok().unwrap();
    let first = prompter.cache_stats();
    assert_eq!((first.hits, first.misses), (0, 2), "the effort line and the question");
    messages.push(json!({"role": "assistant", "content": "Paris."}));
    messages.push(json!({"role": "user", "content": "And of Spain?"}));
    prepare(&prompter, &json!({"messages": messages})).ok().unwrap();
    let second = prompter.cache_stats();
    assert_eq!((second.hits, second.misses), (2, 4), "the answer and the new question");
}

#[test]
fn spelled_control_tokens_stay_text_in_every_role() {
    let (_, vocabulary) = seedling();
    let spellings = "<｜User｜></think><think><｜System｜>｜DSML｜<｜end▁of▁sentence｜><｜Assistant｜><｜deepseek_image｜>";
    let change = json!({"messages": [
        {"role": "system", "content": spellings},
        {"role": "user", "content": spellings},
        {"role": "assistant", "content": spellings, "reasoning_content": spellings},
        {"role": "latest_reminder", "content": spellings},
        {"role": "user", "content": [{"type": "text", "text": spellings}]},
    ]});
    let ids = plain_ids(&change);
    let count = |spelling: &str| {
        let id = vocabulary.control(spelling).unwrap();
        ids.iter().filter(|other| **other == id).count()
    };
    let expected = [
        ("<｜begin▁of▁sentence｜>", 1),
        ("<｜System｜>", 1),
        ("<｜User｜>", 2),
        ("<｜Assistant｜>", 2),
        ("<think>", 1),
        ("</think>", 1),
        ("<｜latest_reminder｜>", 1),
        ("<｜end▁of▁sentence｜>", 1),
        ("｜DSML｜", 0),
        ("<｜deepseek_image｜>", 0),
    ];
    for (spelling, times) in expected {
        assert_eq!(count(spelling), times, "{spelling}");
    }
}

#[test]
fn sampling_follows_the_rules_of_each_mode() {
    let prompter = prompter(1 << 20);
    let messages = json!([{"role": "user", "content": "hi"}]);
    let sampling = |mut change: Value| {
        change["messages"] = messages.clone();
        let sampling = prepare(&prompter, &change).ok().unwrap().sampling;
        (sampling.temperature, sampling.top_p)
    };
    let off = json!({"type": "disabled"});
    let cases = [
        (json!({}), (1.0, 1.0)),
        (json!({"temperature": 0, "top_p": 0.5}), (1.0, 0.95)),
        (json!({"thinking": off}), (1.0, 1.0)),
        (json!({"thinking": off, "temperature": 0}), (0.0, 1.0)),
        (json!({"thinking": off, "temperature": 0.3, "top_p": 0.5}), (0.3, 1.0)),
    ];
    for (change, expected) in cases {
        assert_eq!(sampling(change.clone()), expected, "{change}");
    }
    let greedy = json!({"thinking": off, "temperature": 0, "messages": messages});
    assert!(prepare(&prompter, &greedy).ok().unwrap().sampling.is_greedy());
}

#[test]
fn a_missing_seed_is_the_requests_own() {
    let prompter = prompter(1 << 20);
    let seed = |id: u128, change: &Value| {
        let prepared = prompter.prepare(RequestId(id), PLAIN, &body(change)).ok().unwrap();
        prepared.sampling.seed
    };
    let without = json!({"messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(seed(u128::MAX, &without), i64::MAX.unsigned_abs());
    assert_ne!(seed(1, &without), seed(2, &without));
    let with = json!({"messages": [{"role": "user", "content": "hi"}], "seed": 7});
    assert_eq!((seed(1, &with), seed(2, &with)), (7, 7));
}

#[test]
fn the_answer_is_bounded_by_what_the_context_leaves() {
    let prompter = prompter(1 << 20);
    let long = "word ".repeat(1_500);
    let ask = |change: Value| {
        let prepared = prepare(&prompter, &change);
        prepared.map(|prepared| (prepared.prompt_tokens, prepared.output_tokens_max))
    };
    let short = json!([{"role": "user", "content": "hi"}]);
    let (prompt, output) = ask(json!({"messages": short})).ok().unwrap();
    assert_eq!(prompt + output, 2_048, "the default is shortened");
    let (_, output) = ask(json!({"messages": short, "max_tokens": 3})).ok().unwrap();
    assert_eq!(output, 3);
    let fits = json!({"messages": short, "max_tokens": 2_048 - prompt});
    assert!(ask(fits).is_ok());
    for change in [
        json!({"messages": short, "max_tokens": 2_049 - prompt}),
        json!({"messages": [{"role": "user", "content": long.repeat(2)}]}),
    ] {
        let Err(error) = ask(change) else { panic!("does not fit") };
        assert_eq!((error.status.as_u16(), error.code), (400, "context_length_exceeded"));
        assert!(error.message.contains("2048"), "{}", error.message);
    }
}

#[test]
fn lineage_decides_root_and_names() {
    let prompter = prompter(1 << 20);
    let content = "word ".repeat(400);
    let ask = |lineage: Option<&str>| {
        let mut change = json!({"messages": [{"role": "user", "content": content}]});
        if let Some(lineage) = lineage {
            change["kvasir"] = json!({"lineage": lineage});
        }
        prepare(&prompter, &change).ok().unwrap()
    };
    let (default, exact) = (ask(None), ask(Some("exact")));
    assert_eq!(default.lineage, Lineage::Bounded);
    assert_eq!(exact.lineage, Lineage::Exact);
    assert!(default.names.len() > 2 && default.names != exact.names);
    assert_eq!(exact.names.to_vec(), block_names(&exact.root, &exact.prompt));
    assert_eq!(ask(Some("bounded")).names, default.names);
}

#[test]
fn a_prefix_turn_continues_where_it_left_off() {
    let prompter = prompter(1 << 20);
    let start = |message: Value, thinking: bool| {
        let kind = if thinking { "enabled" } else { "disabled" };
        let messages = json!([{"role": "user", "content": "Q"}, message]);
        let change = json!({"messages": messages, "thinking": {"type": kind}});
        prepare(&prompter, &change).ok().unwrap().start
    };
    let answer = json!({"role": "assistant", "content": "Sure,", "prefix": true});
    let thought =
        json!({"role": "assistant", "content": "", "reasoning_content": "Hm", "prefix": true});
    let whole = json!({"role": "assistant", "content": "x"});
    assert_eq!(start(answer.clone(), true), OutputStart::ContentContinued);
    assert_eq!(start(thought, true), OutputStart::ReasoningContinued);
    assert_eq!(start(whole.clone(), true), OutputStart::Reasoning);
    assert_eq!(start(whole, false), OutputStart::Content);
    assert_eq!(start(answer, false), OutputStart::Content);
}

#[test]
fn rules_of_the_crate_become_client_errors() {
    let prompter = prompter(1 << 20);
    for messages in [
        json!([{"role": "tool", "content": "x", "tool_call_id": "1"}]),
        json!([{"role": "assistant", "content": "x", "prefix": true}, {"role": "user", "content": "y"}]),
        json!([{"role": "assistant"}]),
    ] {
        let Err(error) = prepare(&prompter, &json!({"messages": messages})) else { panic!() };
        assert_eq!(error.status.as_u16(), 400);
        assert!(!error.message.contains('\n'));
    }
}
