use std::cell::Cell;
use std::sync::Arc;

use serde_json::{Value, json};
use shared::{
    Lineage, Numerics, Priority, RequestId, SessionKey, TenantId, Timestamp, TokenId, TraceContext,
    block_names,
};
use tokenizers::Tokenizer;

use super::{Asked, Incoming, Plan, Prepared, Prompter};
use crate::call::{Call, Caller};
use crate::config::{GatewayConfig, ServedModel};
use crate::error::ApiError;
use crate::limits::RateLimits;
use crate::output::OutputStart;
use crate::request::{Memory, Protocol};
use crate::vocabulary::tests::{seedling, seedling_path};

fn asked_by(tenant: &str) -> Asked {
    let caller = Caller::anybody(&TenantId(tenant.into()), RateLimits::default());
    Asked {
        call: Arc::new(Call::new(caller, Timestamp(0))),
        trace: TraceContext::NONE,
        priority: Priority::Normal,
        session: None,
    }
}

pub(super) fn prompter(token_cache_bytes_max: usize) -> Prompter {
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

struct Nothing;

impl Memory for Nothing {
    fn items(&self, _id: &str) -> Option<Vec<Value>> {
        None
    }

    fn item(&self, _id: &str) -> Option<Value> {
        None
    }

    fn recalled_bytes_max(&self) -> usize {
        0
    }
}

/// The plan for a request of any protocol; its runs have ids from `first` on.
pub(super) fn plan(
    prompter: &Prompter,
    protocol: Protocol,
    first: u128,
    change: &Value,
) -> Result<Plan, ApiError> {
    plan_for(prompter, (protocol, first), asked_by("default"), change)
}

fn plan_for(
    prompter: &Prompter,
    (protocol, first): (Protocol, u128),
    asked: Asked,
    change: &Value,
) -> Result<Plan, ApiError> {
    let next = Cell::new(first);
    let next_id = || RequestId(next.replace(next.get().wrapping_add(1)));
    let body = body(change);
    let (memory, next_id) = (&Nothing, &next_id);
    prompter.prepare(&Incoming { protocol, asked, body: &body, memory, next_id })
}

fn prepare(prompter: &Prompter, change: &Value) -> Result<Arc<Prepared>, ApiError> {
    plan(prompter, Protocol::Chat, 5, change).map(|plan| Arc::clone(&plan.runs[0]))
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
fn behaviour_27_spelled_control_tokens_stay_text_in_every_role() {
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
        plan(&prompter, Protocol::Chat, id, change).ok().unwrap().runs[0].sampling.seed
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
        prepare(&prompter, &change).ok().unwrap().reading.start
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

#[test]
fn an_effort_in_numbers_is_stated_as_it_is() {
    let (tokenizer, _) = seedling();
    let prompter = prompter(1 << 20);
    for (number, tools) in [(1, false), (50, true), (7, true), (100, false)] {
        let mut change = json!({"messages": [{"role": "user", "content": "Hello"}],
            "reasoning_effort": number});
        if tools {
            change["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
        }
        let text = text(&tokenizer, &prepare(&prompter, &change).ok().unwrap());
        let head = format!("<｜begin▁of▁sentence｜><｜System｜>{}", effort(number));
        assert!(text.starts_with(&head), "{text}");
        assert!(text.ends_with("<｜User｜>Hello<｜Assistant｜><think>"), "{text}");
    }
}

#[test]
fn a_forced_call_opens_its_block_unless_there_is_thinking() {
    let (tokenizer, _) = seedling();
    let prompter = prompter(1 << 20);
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let named = json!({"type": "function", "function": {"name": "g"}});
    let cases = [
        (json!("auto"), "disabled", OutputStart::Content, true),
        (json!("required"), "disabled", OutputStart::Calls, true),
        (json!("required"), "enabled", OutputStart::Reasoning, true),
        (named, "disabled", OutputStart::Calls, false),
        (json!("none"), "disabled", OutputStart::Content, false),
    ];
    for (choice, thinking, start, shows_f) in cases {
        let change = json!({"messages": [{"role": "user", "content": "Q"}], "tool_choice": choice,
            "tools": [tool("f"), tool("g")], "thinking": {"type": thinking}});
        let prepared = prepare(&prompter, &change).ok().unwrap();
        let text = text(&tokenizer, &prepared);
        assert_eq!(prepared.reading.start, start, "{change}");
        assert_eq!(text.contains("\"name\": \"f\""), shows_f, "{change}");
        assert_eq!(text.ends_with("<｜DSML｜ calls>\n"), start == OutputStart::Calls, "{change}");
        assert_eq!(prepared.reading.calls, choice != "none");
    }
}

#[test]
fn several_answers_share_a_prompt_and_have_seeds_of_their_own() {
    let prompter = prompter(1 << 20);
    let ask = |n: u32| {
        let change = json!({"messages": [{"role": "user", "content": "Q"}], "n": n, "seed": 7});
        plan(&prompter, Protocol::Chat, 9, &change).ok().unwrap()
    };
    let (one, three) = (ask(1), ask(3));
    assert_eq!(three.runs.len(), 3);
    assert_eq!(three.runs[0].sampling.seed, 7);
    let seeds: Vec<u64> = three.runs.iter().map(|run| run.sampling.seed).collect();
    assert!(seeds[1] != 7 && seeds[1] != seeds[2] && seeds.iter().all(|seed| *seed < 1 << 63));
    assert_eq!(ask(2).runs[1].sampling.seed, seeds[1], "whatever else is asked for");
    assert!(three.runs.iter().all(|run| run.prompt == one.runs[0].prompt));
    let ids: Vec<u128> = three.runs.iter().map(|run| run.id.0).collect();
    assert_eq!(ids, [9, 10, 11]);
    let many = json!({"prompt": vec!["a"; 33], "n": 2});
    let Err(error) = plan(&prompter, Protocol::Completions, 0, &many) else { panic!() };
    assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("n")));
}

#[test]
fn plain_prompts_and_holes_are_rendered_without_a_template() {
    let (tokenizer, _) = seedling();
    let prompter = prompter(1 << 20);
    let ask = |change: Value| {
        let plan = plan(&prompter, Protocol::Completions, 0, &change).ok().unwrap();
        plan.runs.iter().map(|run| text(&tokenizer, run)).collect::<Vec<_>>()
    };
    assert_eq!(ask(json!({"prompt": "a <｜User｜>"})), ["<｜begin▁of▁sentence｜>a <｜User｜>"]);
    assert_eq!(
        ask(json!({"prompt": "def f(", "suffix": "  return"})),
        ["<｜begin▁of▁sentence｜><｜fim▁begin｜>def f(<｜fim▁hole｜>  return<｜fim▁end｜>"]
    );
    assert_eq!(ask(json!({"prompt": ["a", "b"]})).len(), 2);
    assert_eq!(ask(json!({"prompt": [0, 4043]})), ["<｜begin▁of▁sentence｜><｜User｜>"]);
    let typed = plan(&prompter, Protocol::Completions, 0, &json!({"prompt": "<｜User｜>"}));
    assert!(!typed.ok().unwrap().runs[0].prompt.contains(&TokenId(4043)), "typed, it is text");
    let unknown = json!({"prompt": [999_999]});
    assert!(plan(&prompter, Protocol::Completions, 0, &unknown).is_err());
}

#[test]
fn counted_tokens_are_those_of_the_prompt() {
    let prompter = prompter(1 << 20);
    let tools = json!([{"name": "f", "description": "d", "input_schema": {"type": "object"}}]);
    for change in [
        json!({"messages": [{"role": "user", "content": "hi"}]}),
        json!({"messages": [{"role": "user", "content": "hi"}], "system": "Be brief.", "tools": tools,
            "tool_choice": {"type": "any"}, "thinking": {"type": "disabled"}}),
        json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So"}],
            "thinking": {"type": "disabled"}, "output_config": {"effort": 30}}),
    ] {
        let counted = prompter.count(Protocol::Messages, &body(&change), &Nothing).ok().unwrap();
        let mut change = change.clone();
        change["max_tokens"] = 5.into();
        let plan = plan(&prompter, Protocol::Messages, 0, &change).ok().unwrap();
        assert_eq!(plan.runs[0].prompt_tokens, counted, "{change}");
    }
    for change in [
        json!({"input": "hi"}),
        json!({"input": [{"role": "user", "content": "hi"}], "instructions": "Be brief.",
            "tools": [{"type": "custom", "name": "c"}], "tool_choice": "required",
            "reasoning": {"effort": 30}}),
    ] {
        let counted = prompter.count(Protocol::Responses, &body(&change), &Nothing).ok().unwrap();
        let plan = plan(&prompter, Protocol::Responses, 0, &change).ok().unwrap();
        assert_eq!(plan.runs[0].prompt_tokens, counted, "{change}");
    }
}

#[test]
fn tenants_users_and_salts_share_no_names() {
    let prompter = prompter(1 << 20);
    let text = json!({"messages": [{"role": "user", "content": "word ".repeat(300)}]});
    let named = |tenant: &str, change: Value| {
        let mut asked = text.clone();
        for (name, value) in change.as_object().unwrap() {
            asked[name] = value.clone();
        }
        let plan = plan_for(&prompter, (Protocol::Chat, 5), asked_by(tenant), &asked);
        plan.ok().unwrap().runs[0].names[0]
    };
    let plain = named("acme", json!({}));
    assert_eq!(named("acme", json!({"prompt_cache_key": "k", "user": "u"})), plain);
    let others = [
        named("bolt", json!({})),
        named("acme", json!({"user_id": "a"})),
        named("acme", json!({"user_id": "b"})),
        named("acme", json!({"cache_salt": "a"})),
    ];
    for (index, name) in others.iter().enumerate() {
        assert!(*name != plain && !others[..index].contains(name));
    }
}

#[test]
fn a_cache_key_is_the_session_of_those_who_name_none() {
    let prompter = prompter(1 << 20);
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "prompt_cache_key": "k"});
    let tenant = TenantId("acme".into());
    let of = |session| {
        let asked = Asked { session, ..asked_by("acme") };
        plan_for(&prompter, (Protocol::Chat, 5), asked, &body).ok().unwrap().runs[0].session
    };
    assert_eq!(of(None), Some(SessionKey::of(&tenant, b"k")));
    let named = SessionKey::of(&tenant, b"header");
    assert_eq!(of(Some(named)), Some(named));
}
