//! Answers through the real roles against one sequence run alone, on the built-in model in exact arithmetic.
//!
//! Tokens are drawn at temperature 1, so that a difference in any bit of the logits has many chances to show. The single
//! run computes every row itself, in one call, with the same decoder floor: what the design says a cold answer is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use engine::{
    Arithmetic, Checkpoint, Engine, EngineOptions, Floors, KvSlab, Layers, Part, RowPlan, Segment,
    sample,
};
use kvasir::cli::ArithChoice;
use kvasir::clock::SystemClock;
use kvasir::config::Config;
use kvasir::wiring::Cluster;
use shared::{
    BLOCK_TOKENS, BlockName, Clock, DecodeEvent, DecodeRequest, Flow, Lineage, PlaceEvent,
    PlaceRequest, Priority, RequestId, Root, RootInputs, Sampling, SlotIndex, StartReport,
    TenantId, TenantTag, TokenId, TraceContext, WindowSource, block_names,
};

use crate::process::seedling;

const SAMPLING: Sampling = Sampling { temperature: 1.0, top_p: 1.0, seed: 11, ..Sampling::GREEDY };
/// B of the design.
const ROLLBACK: u32 = 12;

/// The roles, and the same model alone.
struct Bench {
    cluster: Cluster,
    alone: Engine,
    model_id: [u8; 32],
}

/// One answer through the roles.
struct Answer {
    tokens: Vec<TokenId>,
    start: StartReport,
}

/// A request before it is asked.
#[derive(Clone)]
struct Ask {
    prompt: Vec<TokenId>,
    lineage: Lineage,
    /// Separates caches: requests with different salts share nothing.
    salt: &'static str,
    output_tokens: u32,
}

impl Bench {
    fn start() -> Self {
        let mut config = Config::default();
        config.server.arith = ArithChoice::Exact;
        config.store.block_bytes_max = 16 << 20;
        config.store.window_bytes_max = 16 << 20;
        let checkpoint = Checkpoint::open(&seedling()).expect("the built-in model is there");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let cluster = Cluster::start(&config, &checkpoint, &clock, &mut |_| ()).expect("it starts");
        assert_eq!(cluster.health(), Ok(()));
        let arithmetic = Arithmetic::Exact;
        let options = EngineOptions { arithmetic, part: Part::Whole, rollback: ROLLBACK };
        let alone = Engine::load(&checkpoint, &options, &mut |_| ()).expect("it loads");
        let model_id = checkpoint.model_id().expect("the model has an identity");
        Self { cluster, alone, model_id }
    }

    fn names(&self, ask: &Ask) -> (Root, Vec<BlockName>) {
        let root = Root::derive(RootInputs {
            cluster_secret: &[7; 32],
            tenant: &TenantId(Arc::from("t")),
            salt: ask.salt,
            model_id: &self.model_id,
            layout: &self.alone.layout().fingerprint(),
            numerics: &self.alone.numerics(),
            lineage: ask.lineage,
        });
        (root, block_names(&root, &ask.prompt))
    }

    /// Places and decodes, as the gateway does.
    fn answer(&self, id: u128, ask: &Ask) -> Answer {
        let (root, names) = self.names(ask);
        let names: Arc<[BlockName]> = names.into();
        let prompt_tokens = u32::try_from(ask.prompt.len()).expect("prompts are short");
        let (sink, placed) = channel();
        let _place_ticket = self.cluster.placer().submit(
            PlaceRequest {
                id: RequestId(id),
                tenant: TenantId(Arc::from("t")),
                names: Arc::clone(&names),
                prompt_tokens,
                output_tokens_max: ask.output_tokens,
                deadline: None,
                priority: Priority::Normal,
                session: None,
                excluded: Vec::new(),
            },
            Box::new(move |event| if sink.send(event).is_ok() { Flow::Open } else { Flow::Closed }),
        );
        let PlaceEvent::Placed(placement) = placed.recv().expect("the router answers") else {
            panic!("an idle cluster places every request");
        };
        let worker = self.cluster.directory().decode(placement.decode).expect("it is a member");
        let (sink, events) = channel();
        let _ticket = worker.submit(
            DecodeRequest {
                id: RequestId(id),
                trace: TraceContext::NONE,
                tenant: TenantTag::NONE,
                prompt: ask.prompt.clone().into(),
                emitted: Vec::new(),
                root,
                names,
                lineage: ask.lineage,
                sampling: SAMPLING,
                logit_bias: Arc::from([]),
                logprobs: None,
                constraint: None,
                stop_ids: Vec::new(),
                output_tokens_max: ask.output_tokens,
                prefill: placement.prefill,
                deadline: None,
            },
            Box::new(move |event| if sink.send(event).is_ok() { Flow::Open } else { Flow::Closed }),
        );
        collect(&events)
    }

    /// The same answer from one sequence: every row computed here, in one call, nothing cached.
    fn alone(&self, ask: &Ask) -> Vec<TokenId> {
        let prompt = u32::try_from(ask.prompt.len()).expect("prompts are short");
        let blocks = (prompt + ask.output_tokens).div_ceil(BLOCK_TOKENS);
        let slab = KvSlab::new(blocks, self.alone.layout().block_bytes());
        let mut sequence = self.alone.sequence(&ask.prompt);
        (0..blocks).for_each(|slot| sequence.push_block(SlotIndex(slot)));
        let floor = self.alone.geometry().decoder_floor(prompt);
        let plan = |position: u32, last: u32| RowPlan {
            position,
            layers: if position < floor { Layers::Encoder } else { Layers::All },
            floors: Floors { window: 0, write: 0, decoder: floor },
            logits: position == last,
        };
        let mut rows: Vec<_> = (0..prompt).map(|position| plan(position, prompt - 1)).collect();
        let mut tokens = Vec::new();
        for output in 0..ask.output_tokens {
            let mut segments = [Segment { sequence: &mut sequence, rows: &rows }];
            let logits = self.alone.forward(&slab, &mut segments);
            let token = sample(logits.row(0), &SAMPLING, output);
            tokens.push(token);
            sequence.push(token);
            rows = vec![plan(prompt + output, prompt + output)];
        }
        tokens
    }

    /// Checksums of the blocks that any worker holds under these names.
    fn checksums(&self, names: &[BlockName]) -> BTreeMap<(&'static str, BlockName), u32> {
        let pools = self.cluster.pools().iter().filter(|named| named.name.ends_with("_blocks"));
        let held = pools.flat_map(|named| {
            let found = names.iter().filter_map(|name| named.pool.lookup(*name));
            found.map(|slot| {
                let descriptor = slot.descriptor();
                ((named.name, descriptor.key.name), descriptor.checksum)
            })
        });
        held.collect()
    }

    fn assert_nothing_leaked(&self) {
        let leaked: usize =
            self.cluster.pools().iter().map(|named| named.pool.audit().leaked).sum();
        assert_eq!(leaked, 0);
    }
}

fn collect(events: &Receiver<DecodeEvent>) -> Answer {
    let mut tokens = Vec::new();
    let mut start = None;
    loop {
        match events.recv().expect("an answer ends before its sink is dropped") {
            DecodeEvent::Started(report) => start = Some(report),
            DecodeEvent::Token(token, _) => tokens.push(token),
            DecodeEvent::Finished(_) => {
                return Answer { tokens, start: start.expect("reported before the first token") };
            }
            DecodeEvent::Failed(error) => panic!("the request failed: {error}"),
        }
    }
}

/// Token ids that look like nothing: the begin token, then a fixed walk over the ordinary vocabulary.
fn prompt(key: u32, tokens: usize) -> Vec<TokenId> {
    let mut state = key;
    let walk = std::iter::from_fn(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some(TokenId(3 + (state >> 16) % 4_000))
    });
    std::iter::once(TokenId(0)).chain(walk).take(tokens).collect()
}

fn ask(prompt: Vec<TokenId>, lineage: Lineage, salt: &'static str) -> Ask {
    Ask { prompt, lineage, salt, output_tokens: 12 }
}

#[test]
fn a_cold_answer_through_the_roles_is_the_answer_of_one_sequence() {
    let bench = Bench::start();
    let exact =
        [1, 2, 3, 127, 128, 129, 255, 267, 268, 269, 395, 396, 408, 511, 1_000, 2_047, 7_948];
    let bounded = [267, 268, 1_000];
    let lineages: [(Lineage, &[usize]); 2] =
        [(Lineage::Exact, &exact), (Lineage::Bounded, &bounded)];
    for (lineage, lengths) in lineages {
        for (key, tokens) in (0..).zip(lengths.iter().copied()) {
            let ask = ask(prompt(key, tokens), lineage, "cold");
            let found = bench.answer(u128::from(key) + 1, &ask);
            let boundary = bench.alone.geometry().boundary(u32::try_from(tokens).expect("short"));
            assert_eq!(found.tokens, bench.alone(&ask), "N = {tokens}, {lineage:?}");
            assert_eq!(found.start.cached_tokens, 0, "N = {tokens}");
            assert!(found.start.exact, "N = {tokens}: {:?}", found.start);
            let visited = found.start.prefill.is_some();
            assert!(boundary != 0 || !visited, "N = {tokens} is too short to visit prefill");
        }
    }
    bench.assert_nothing_leaked();
}

#[test]
fn a_hit_of_any_length_is_the_cold_answer_in_the_exact_lineage() {
    let bench = Bench::start();
    let first = prompt(1, 1_100);
    bench.answer(1, &ask(first.clone(), Lineage::Exact, "hits"));
    let shared_lengths = [0, 100, 128, 129, 256, 300, 512, 640, 768, 895, 896, 1_000, 1_100];
    for (key, shared) in (2..).zip(shared_lengths) {
        let mut second = first[..shared].to_vec();
        let rest = prompt(100 + key, 1_200);
        second.extend_from_slice(&rest[1..=1_100 - shared + 50]);
        let second = ask(second, Lineage::Exact, "hits");
        let found = bench.answer(u128::from(key), &second);
        assert_eq!(found.tokens, bench.alone(&second), "{shared} shared tokens: {:?}", found.start);
        assert!(found.start.exact, "{shared} shared tokens: {:?}", found.start);
        let cached = u32::try_from(shared).expect("short") / BLOCK_TOKENS * BLOCK_TOKENS;
        let boundary = bench.alone.geometry().boundary(1_150);
        assert_eq!(found.start.cached_tokens, cached.min(boundary), "{shared} shared tokens");
    }
    bench.assert_nothing_leaked();
}

#[test]
fn a_bounded_hit_leaves_the_blocks_below_it_untouched() {
    let bench = Bench::start();
    let first = ask(prompt(1, 1_100), Lineage::Bounded, "bounded");
    bench.answer(1, &first);
    let (_, names) = bench.names(&first);
    for (key, shared) in [(2, 300), (3, 640), (4, 900)] {
        let blocks = shared / 128;
        let before = bench.checksums(&names[..blocks]);
        for name in &names[..blocks] {
            assert!(before.keys().any(|(_, held)| held == name), "{name:?} is cached");
        }
        let mut second = first.prompt[..shared].to_vec();
        second.extend_from_slice(&prompt(key, 800)[1..]);
        let found = bench.answer(u128::from(key), &Ask { prompt: second, ..first.clone() });
        let cached = u32::try_from(blocks).expect("few") * BLOCK_TOKENS;
        assert_eq!(found.start.cached_tokens, cached, "{:?}", found.start);
        let replayed = matches!(found.start.window_source, WindowSource::Replayed(_));
        assert!(!replayed || !found.start.exact, "a bounded replay is no exact start");
        let after = bench.checksums(&names[..blocks]);
        for (copy, checksum) in before {
            assert_eq!(after.get(&copy), Some(&checksum), "{copy:?}");
        }
    }
    bench.assert_nothing_leaked();
}

#[test]
fn the_next_turn_hits_through_the_answer() {
    let bench = Bench::start();
    for lineage in [Lineage::Exact, Lineage::Bounded] {
        let first = Ask { output_tokens: 200, ..ask(prompt(9, 1_000), lineage, "turns") };
        let answer = bench.answer(1, &first);
        let mut second = first.prompt.clone();
        second.extend_from_slice(&answer.tokens);
        second.extend_from_slice(&prompt(10, 501)[1..]);
        let second = ask(second, lineage, "turns");
        let found = bench.answer(2, &second);
        // 1,199 tokens were processed; the last one was only emitted.
        assert_eq!(found.start.cached_tokens, 1_152, "{lineage:?}: {:?}", found.start);
        if lineage == Lineage::Exact {
            assert!(found.start.exact, "{:?}", found.start);
        }
        if found.start.exact {
            assert_eq!(found.tokens, bench.alone(&second), "{lineage:?}: {:?}", found.start);
        }
    }
    bench.assert_nothing_leaked();
}
