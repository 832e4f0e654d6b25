//! The built-in model answers in the format that was asked for, also behind its reasoning.

use std::sync::Arc;
use std::sync::mpsc::channel;

use engine::{Checkpoint, GrammarVocabulary};
use gateway::constraint::{AnswerFormat, Beginning, Markers, constrain};
use kvasir::clock::SystemClock;
use kvasir::config::Config;
use kvasir::wiring::Cluster;
use serde_json::{Value, json};
use shared::{
    Clock, Decode, DecodeEvent, DecodeRequest, FinishReason, Flow, Lineage, RequestId, Root,
    Sampling, TenantTag, TokenId, TraceContext, block_names,
};

use crate::process::seedling;

/// Of the built-in tokenizer.
const MARKERS: Markers = Markers { reasoning_end: TokenId(4_062), sentinel: TokenId(4_063) };
const REASONING: TokenId = TokenId(4_061);

struct House {
    cluster: Cluster,
    vocabulary: GrammarVocabulary,
}

impl House {
    fn start() -> Self {
        let mut config = Config::default();
        config.store.block_bytes_max = 16 << 20;
        config.store.window_bytes_max = 16 << 20;
        let checkpoint = Checkpoint::open(&seedling()).expect("the built-in model is there");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let cluster = Cluster::start(&config, &checkpoint, &clock, &mut |_| ()).expect("it starts");
        let file = std::fs::read(seedling().join("tokenizer.json")).expect("it is there");
        let model = checkpoint.config();
        let vocabulary = GrammarVocabulary::read(&file, model.vocab, model.special.eos);
        let vocabulary = vocabulary.expect("the file is the model's");
        Self { cluster, vocabulary }
    }

    /// The tokens of an answer that ended by itself.
    fn answer(&self, seed: u64, format: AnswerFormat<'_>, beginning: Beginning) -> Vec<TokenId> {
        let mut prompt = vec![TokenId(0)];
        prompt.extend(self.vocabulary.longest_tokens("Describe the captain as JSON."));
        if beginning == Beginning::Reasoning {
            prompt.push(REASONING);
        }
        let root = Root::from_bytes([3; 32]);
        let constraint = constrain(format, None, beginning, MARKERS);
        let constraint = constraint.expect("it is small");
        let request = DecodeRequest {
            id: RequestId(u128::from(seed)),
            trace: TraceContext::NONE,
            tenant: TenantTag::NONE,
            emitted: Vec::new(),
            root,
            names: block_names(&root, &prompt).into(),
            prompt: prompt.into(),
            lineage: Lineage::Exact,
            sampling: Sampling { temperature: 1.0, seed, ..Sampling::GREEDY },
            // Shortens the reasoning of a model that has little to say.
            logit_bias: Arc::from([(MARKERS.reasoning_end, 12.0)]),
            logprobs: None,
            constraint: constraint.map(Arc::new),
            stop_ids: vec![self.vocabulary.end()],
            output_tokens_max: 600,
            prefill: None,
            deadline: None,
        };
        let (sink, events) = channel();
        let sink = move |event| if sink.send(event).is_ok() { Flow::Open } else { Flow::Closed };
        let _ticket = self.cluster.decode().submit(request, Box::new(sink));
        let mut tokens = Vec::new();
        loop {
            match events.recv().expect("an answer ends before its sink is dropped") {
                DecodeEvent::Started(_) => {}
                DecodeEvent::Token(token, _) => tokens.push(token),
                end => {
                    assert_eq!(end, DecodeEvent::Finished(FinishReason::Stop), "{tokens:?}");
                    return tokens;
                }
            }
        }
    }

    fn text(&self, tokens: &[TokenId]) -> String {
        let bytes = tokens.iter().filter_map(|token| self.vocabulary.bytes(*token));
        String::from_utf8(bytes.collect::<Vec<_>>().concat()).expect("masks keep characters whole")
    }
}

#[test]
fn a_json_answer_parses_and_follows_its_schema_also_behind_reasoning() {
    let house = House::start();
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 18, "maximum": 99},
            "tools": {"type": "array", "items": {"enum": ["map", "rope"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tools"],
        "additionalProperties": false,
    });
    for (seed, beginning) in [
        (1, Beginning::Answer),
        (2, Beginning::Answer),
        (3, Beginning::Reasoning),
        (4, Beginning::Reasoning),
    ] {
        let tokens = house.answer(seed, AnswerFormat::JsonSchema(&schema), beginning);
        let begins = match beginning {
            Beginning::Reasoning => {
                1 + tokens.iter().position(|token| *token == MARKERS.reasoning_end).unwrap()
            }
            Beginning::Answer | Beginning::Calls => 0,
        };
        let text = house.text(&tokens[begins..]);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        let members: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(members, ["name", "age", "tools"], "{text}");
        assert!(value["name"].as_str().unwrap().chars().count() <= 12, "{text}");
        assert!((18..=99).contains(&value["age"].as_i64().unwrap()), "{text}");
        let tools = value["tools"].as_array().unwrap();
        assert!(tools.len() <= 3 && tools.iter().all(|tool| *tool == "map" || *tool == "rope"));
    }
    let stats = house.cluster.decode().guide_stats();
    assert_eq!((stats.compiled, stats.cache_hits, stats.failed), (1, 3, 0));
}
