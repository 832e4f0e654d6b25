//! Every value comes back from its message; every malformed message names its field.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use shared::{
    BlockName, Brought, CacheChange, CacheEvent, CacheQuestion, Constraint, DecodeEvent,
    DecodeRequest, Descriptor, DpRank, Durability, FinishReason, Generation, Grammar, Lineage,
    LoadReport, LocateEvent, Location, Miss, ObjectKey, ObjectKind, OfferEvent, OfferOutcome,
    PrefillEvent, PrefillRequest, RangeDigests, RegionId, RequestContext, RequestId, Root,
    Sampling, ServeError, SlotIndex, StartReport, TenantTag, Tier, Timestamp, TokenId,
    TokenLogprobs, TraceContext, WindowSource, WorkerEvent, WorkerId, WorkerRank, WorkerRates,
};

use super::{
    Assembler, OBJECTS_MAX, PART_NAMES_MAX, TEXT_BYTES_MAX, TOKENS_MAX, WireError,
    decode_request_from_wire, decode_request_to_wire, locate_request_from_wire,
    locate_request_to_wire, offer_request_from_wire, offer_request_to_wire,
    prefill_request_from_wire, prefill_request_to_wire, question_from_wire, question_to_wire,
    worker_event_part,
};
use crate::wire::tests::facts;
use crate::wire::{Facts, v1};

const MISSES: [Miss; 9] = [
    Miss::NotAsked,
    Miss::NoAnswer,
    Miss::NeverStored,
    Miss::Evicted,
    Miss::NotAdmitted,
    Miss::Expired,
    Miss::Damaged,
    Miss::NoRoom,
    Miss::TooSlow,
];
const NOW: Timestamp = Timestamp(5_000_000_000);

fn worker(worker: u32) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), rank: DpRank(u16::MAX) }
}

fn key(kind: ObjectKind, name: u8) -> ObjectKey {
    ObjectKey { kind, name: BlockName([name; 16]) }
}

fn descriptor(kind: ObjectKind, name: u8) -> Descriptor {
    let location = Location {
        region: RegionId(u64::MAX - 5),
        slot: SlotIndex(u32::MAX),
        generation: Generation(7),
    };
    Descriptor {
        key: key(kind, name),
        location,
        bytes: 113_920,
        checksum: 0x89ab_cdef,
        exact: true,
    }
}

fn decode_request() -> DecodeRequest {
    DecodeRequest {
        id: RequestId(0x0102_0304 << 96 | 5),
        trace: TraceContext { trace: 6, span: 7, sampled: true },
        tenant: TenantTag(4),
        prompt: (0..300).map(TokenId).collect(),
        emitted: vec![TokenId(u32::MAX)],
        root: Root::from_bytes([8; 32]),
        names: Arc::from([BlockName([1; 16]), BlockName([2; 16])]),
        lineage: Lineage::Bounded,
        sampling: Sampling {
            temperature: 0.7,
            top_p: 0.95,
            top_k: 40,
            min_p: 0.05,
            frequency_penalty: -0.5,
            presence_penalty: 1.5,
            seed: u64::MAX,
        },
        logit_bias: Arc::from([(TokenId(3), -100.0), (TokenId(9), 2.5)]),
        logprobs: Some(20),
        constraint: Some(Arc::new(constraint(Grammar::Json("{}".to_owned())))),
        stop_ids: vec![TokenId(1), TokenId(2)],
        output_tokens_max: 99,
        prefill: Some(worker(4)),
        deadline: Some(NOW.after(Duration::from_millis(1_500))),
    }
}

fn constraint(grammar: Grammar) -> Constraint {
    let trigger = vec![TokenId(7), TokenId(7)];
    Constraint { grammar, trigger, bound: Some(TokenId(0)), barred: Some(TokenId(9)) }
}

fn prefill_request() -> PrefillRequest {
    PrefillRequest {
        id: RequestId(u128::MAX),
        trace: TraceContext::NONE,
        tenant: TenantTag(4),
        ids: (0..256).map(TokenId).collect(),
        root: Root::from_bytes([8; 32]),
        names: Arc::from([BlockName([1; 16]), BlockName([2; 16])]),
        lineage: Lineage::Exact,
        from: 128,
        to: 256,
    }
}

/// A value, encoded and decoded as it would be between two processes.
fn through<M: Message + Default>(message: &M) -> M {
    M::decode(message.encode_to_vec().as_slice()).unwrap()
}

fn same<T, M>(value: T)
where
    T: Clone + Debug + PartialEq + Into<M> + TryFrom<M, Error = WireError>,
    M: Message + Default,
{
    let message: M = value.clone().into();
    assert_eq!(T::try_from(through(&message)).unwrap(), value);
}

#[test]
fn requests_come_back() {
    let bare = DecodeRequest {
        trace: TraceContext::NONE,
        emitted: Vec::new(),
        names: Arc::from([]),
        lineage: Lineage::Exact,
        sampling: Sampling::GREEDY,
        logit_bias: Arc::from([]),
        logprobs: None,
        constraint: None,
        stop_ids: Vec::new(),
        prefill: None,
        deadline: None,
        ..decode_request()
    };
    let grammars = [Grammar::Regex, Grammar::Ebnf, Grammar::Server].map(|kind| {
        let constraint = constraint(kind("a".to_owned()));
        let constraint =
            Constraint { trigger: Vec::new(), bound: None, barred: None, ..constraint };
        DecodeRequest { constraint: Some(Arc::new(constraint)), ..decode_request() }
    });
    for request in grammars.into_iter().chain([decode_request(), bare]) {
        let message = through(&decode_request_to_wire(&request, NOW));
        let back = decode_request_from_wire(message, NOW).unwrap();
        assert_eq!(format!("{back:?}"), format!("{request:?}"));
        assert_eq!(back.root.to_bytes(), request.root.to_bytes());
    }
    let request = prefill_request();
    let back = prefill_request_from_wire(through(&prefill_request_to_wire(&request))).unwrap();
    assert_eq!(format!("{back:?}"), format!("{request:?}"));
    assert_eq!(back.root.to_bytes(), request.root.to_bytes());
}

#[test]
fn a_deadline_is_a_moment_of_the_receivers_clock() {
    let elsewhere = Timestamp(77);
    let back = |request: &DecodeRequest, sent| {
        let message = decode_request_to_wire(request, sent);
        decode_request_from_wire(message, elsewhere).unwrap().deadline
    };
    let request = decode_request();
    assert_eq!(back(&request, NOW), Some(elsewhere.after(Duration::from_millis(1_500))));
    let late = NOW.after(Duration::from_secs(9));
    assert_eq!(back(&request, late), Some(elsewhere), "a deadline that passed leaves nothing");
}

#[test]
fn a_prompt_of_a_hundred_thousand_tokens_is_small() {
    let request = DecodeRequest {
        prompt: (0..100_000).map(|id| TokenId(id % 129_280)).collect(),
        names: vec![BlockName([9; 16]); 781].into(),
        ..decode_request()
    };
    let bytes = decode_request_to_wire(&request, NOW).encoded_len();
    assert!(bytes < 320_000, "{bytes} bytes");
}

#[test]
fn lists_of_tokens_of_every_size_come_back() {
    let largest = [0, 0xFF, 0x100, 0xFFFF, 0x1_0000, 129_279, 0xFF_FFFF, 0x100_0000, u32::MAX];
    for (largest, count) in largest.into_iter().flat_map(|id| [0, 1, 2, 300].map(|n| (id, n))) {
        let prompt = (0..count).map(|at| TokenId(largest >> (at % 5))).collect();
        let request = DecodeRequest { prompt, ..decode_request() };
        let message = through(&decode_request_to_wire(&request, NOW));
        assert_eq!(decode_request_from_wire(message, NOW).unwrap().prompt, request.prompt);
    }
}

#[test]
fn events_of_requests_come_back() {
    let sources = [
        WindowSource::Cold,
        WindowSource::Object,
        WindowSource::Recomputed,
        WindowSource::Replayed(2_540),
    ];
    for window_source in sources {
        let report = StartReport {
            cached_tokens: 1,
            replayed_tokens: 2,
            window_source,
            exact: window_source == WindowSource::Cold,
            bytes_fetched: u64::MAX,
            prefill: (window_source == WindowSource::Object).then(|| worker(3)),
        };
        same::<_, v1::DecodeEvent>(DecodeEvent::Started(report));
        let finished = PrefillEvent::Finished { replayed_tokens: 3, window_source };
        same::<_, v1::PrefillEvent>(finished);
    }
    same::<_, v1::DecodeEvent>(DecodeEvent::Token(TokenId(0), None));
    let top = vec![(TokenId(4), -0.25), (TokenId(2), -1.5)];
    let scored = Some(Box::new(TokenLogprobs { logprob: -1.5, top }));
    same::<_, v1::DecodeEvent>(DecodeEvent::Token(TokenId(2), scored));
    for reason in [FinishReason::Stop, FinishReason::Length] {
        same::<_, v1::DecodeEvent>(DecodeEvent::Finished(reason));
    }
    let block = descriptor(ObjectKind::Block, 1);
    let window = descriptor(ObjectKind::Window, 2);
    for event in [
        PrefillEvent::Waiting,
        PrefillEvent::Sealed { index: 0, block, cached: false },
        PrefillEvent::Sealed { index: 9, block, cached: true },
        PrefillEvent::Window(window),
    ] {
        same::<_, v1::PrefillEvent>(event);
    }
    same::<_, v1::LocateEvent>(LocateEvent {
        found: MISSES.map(Err).into_iter().chain([Ok(block), Ok(window)]).collect(),
        brought: Brought { disk: 3, remote: 4 },
    });
    same::<_, v1::LocateEvent>(LocateEvent::at_once(Vec::new()));
    for outcome in [
        OfferOutcome::Stored,
        OfferOutcome::AlreadyHeld,
        OfferOutcome::MemoryOnly,
        OfferOutcome::Dropped,
    ] {
        same::<_, v1::OfferEvent>(OfferEvent { key: window.key, outcome });
    }
}

#[test]
fn errors_come_back_as_they_were() {
    let errors = [
        ServeError::Overloaded { waiting: 1, waiting_max: 2, retry_after_ms: 3 },
        ServeError::OverShare { waiting: 3, waiting_max: 9, retry_after_ms: 4 },
        ServeError::TooLong { tokens: 4, tokens_max: 5 },
        ServeError::NeverFits { slots: 6, slots_max: 7 },
        ServeError::Unsupported { what: "images".to_owned() },
        ServeError::NamesDiffer { index: 0 },
        ServeError::WorkerLost { worker: worker(8) },
        ServeError::NoWorker { role: "prefill" },
        ServeError::DeadlineExceeded { stage: "computing its prompt" },
        ServeError::Draining,
        ServeError::Internal { message: "a fault".to_owned() },
    ];
    for error in errors {
        same::<_, v1::ServeError>(error.clone());
        same::<_, v1::DecodeEvent>(DecodeEvent::Failed(error.clone()));
        same::<_, v1::PrefillEvent>(PrefillEvent::Failed(error));
    }
    let new = v1::serve_error::Kind::NoWorker("vision".to_owned());
    let back = ServeError::try_from(v1::ServeError { kind: Some(new) }).unwrap();
    assert_eq!(back, ServeError::NoWorker { role: "suitable" }, "a word of a later version");
    let long = ServeError::Internal { message: "ü".repeat(TEXT_BYTES_MAX) };
    let ServeError::Internal { message } =
        ServeError::try_from(v1::ServeError::from(long)).unwrap()
    else {
        panic!("the kind stays");
    };
    assert_eq!(message.len(), TEXT_BYTES_MAX);
}

#[test]
fn lookups_offers_and_facts_come_back() {
    let trace = TraceContext { trace: 3, span: 4, sampled: true };
    let context = RequestContext { id: RequestId(2), trace, tenant: TenantTag(u64::MAX) };
    let keys = ObjectKind::ALL.map(|kind| key(kind, 1)).to_vec();
    let message = through(&locate_request_to_wire(context, &keys));
    assert_eq!(locate_request_from_wire(message).unwrap(), (context, keys));
    let objects = ObjectKind::ALL.map(|kind| descriptor(kind, 2)).to_vec();
    for durability in [Durability::Memory, Durability::Disk] {
        let message = through(&offer_request_to_wire(context, &objects, durability));
        let back = offer_request_from_wire(message).unwrap();
        assert_eq!(back, (context, objects.clone(), durability));
    }
    let unsaid = v1::OfferRequest {
        durability: 0,
        ..offer_request_to_wire(context, &objects, Durability::Disk)
    };
    let refused = offer_request_from_wire(unsaid).unwrap_err();
    assert_eq!(refused.to_string(), "durability has the unknown value 0");
    let ours = facts("kvstore-3");
    assert_eq!(Facts::try_from(through(&v1::Facts::from(&ours))).unwrap(), ours);
}

fn change(sequence: u64, change: CacheChange) -> WorkerEvent {
    WorkerEvent::Cache(CacheEvent { worker: worker(2), incarnation: 3, sequence, change })
}

fn names(count: usize) -> Vec<BlockName> {
    (0..count).map(|name| BlockName(u128::try_from(name).unwrap().to_be_bytes())).collect()
}

fn parts(event: &WorkerEvent) -> Vec<v1::WorkerEvent> {
    let mut parts = Vec::new();
    loop {
        let (message, more) = worker_event_part(event, parts.len());
        parts.push(through(&message));
        if !more {
            return parts;
        }
    }
}

#[test]
fn worker_events_come_back_in_as_many_parts_as_they_need() {
    let report = LoadReport {
        running: 1,
        waiting: 2,
        pending_rows: 3,
        slots_available: 4,
        slots: 5,
        rows_per_second: 6.5,
        progress: 7,
        draining: true,
        rates: WorkerRates {
            step_ns: 8,
            restore_host_ns: 9,
            restore_disk_ns: 10,
            restore_remote_ns: 11,
            restore_peer_ns: 12,
            handoff_ns: 13,
        },
    };
    let mut digests = RangeDigests::default();
    names(900).into_iter().for_each(|name| digests.add(name, Tier::Disk));
    let (stored, removed) = (names(2 * PART_NAMES_MAX + 1), names(PART_NAMES_MAX));
    let cases = [
        (WorkerEvent::Load { worker: worker(1), report }, 1),
        (change(0, CacheChange::Cleared), 1),
        (change(5, CacheChange::RangesCleared([0, 64, 255].into_iter().collect())), 1),
        (change(6, CacheChange::Digests(digests)), 1),
        (change(1, CacheChange::Stored { tier: Tier::Device, names: Vec::new() }), 1),
        (change(2, CacheChange::Stored { tier: Tier::Host, names: stored }), 3),
        (change(3, CacheChange::Removed { tier: Tier::Disk, names: removed }), 1),
        (change(4, CacheChange::Removed { tier: Tier::Remote, names: names(3) }), 1),
    ];
    let mut assembler = Assembler::default();
    for (event, expected) in cases {
        let mut parts = parts(&event);
        assert_eq!(parts.len(), expected);
        let last = parts.pop().unwrap();
        for part in parts {
            assert_eq!(assembler.push(part).unwrap(), None);
        }
        assert_eq!(assembler.push(last).unwrap(), Some(event));
    }
}

#[test]
fn questions_come_back_and_the_one_for_everything_is_none() {
    let ranges = CacheQuestion::Ranges([1, 77, 200].into_iter().collect());
    for question in [CacheQuestion::Digests, ranges] {
        let message = question_to_wire(&question).unwrap();
        assert_eq!(question_from_wire(through(&message)).unwrap(), question);
    }
    assert_eq!(question_to_wire(&CacheQuestion::Whole), None);
}

#[test]
fn parts_that_do_not_fit_together_are_refused() {
    let stored = |sequence, tier| {
        parts(&change(sequence, CacheChange::Stored { tier, names: names(PART_NAMES_MAX + 1) }))
    };
    let first = || stored(1, Tier::Host).swap_remove(0);
    let load = v1::worker_event::Event::Load(v1::Load::default());
    let cases = [
        (stored(2, Tier::Host).swap_remove(1), "cache.sequence"),
        (stored(1, Tier::Disk).swap_remove(1), "cache.change"),
        (parts(&change(1, CacheChange::Cleared)).swap_remove(0), "cache.change"),
        (v1::WorkerEvent { event: Some(load) }, "event"),
    ];
    for (second, field) in cases {
        let mut assembler = Assembler::default();
        assert_eq!(assembler.push(first()).unwrap(), None);
        assert_eq!(assembler.push(second), Err(WireError::Parts { field }));
    }
}

/// The text of a fault, which begins with the field.
fn fault<T: Debug>(result: Result<T, WireError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn malformed_requests_name_their_field() {
    type Break = fn(&mut v1::DecodeRequest);
    let cases: [(Break, &str); 18] = [
        (|m| m.id.clear(), "id has 0 bytes, expected 16"),
        (|m| m.trace = Some(v1::TraceContext::default()), "trace has 0 bytes"),
        (|m| m.prompt = vec![1; TOKENS_MAX + 2], "prompt has 4194305 entries, at most 4194304"),
        (|m| m.emitted = vec![1; TOKENS_MAX + 2], "emitted has 4194305 entries"),
        (|m| m.prompt = vec![0, 7], "prompt is 0, expected 1..=4 bytes for each token"),
        (|m| m.prompt = vec![5; 6], "prompt is 5, expected 1..=4 bytes for each token"),
        (|m| m.prompt = vec![3; 6], "prompt has 6 bytes, expected 1 and a multiple of the first"),
        (|m| m.root.push(0), "root has 33 bytes, expected 32"),
        (|m| m.names.push(0), "names has 33 bytes, expected a multiple of 16"),
        (|m| m.names = vec![0; 16 * 32_769], "names has 32769 entries, at most 32768"),
        (|m| m.lineage = 0, "lineage has the unknown value 0"),
        (|m| m.lineage = 3, "lineage has the unknown value 3"),
        (|m| m.sampling = None, "sampling is missing"),
        (|m| m.sampling.as_mut().unwrap().temperature = f32::NAN, "sampling.temperature is NaN"),
        (|m| m.sampling.as_mut().unwrap().top_p = f32::INFINITY, "sampling.top_p is inf"),
        (|m| m.stop_ids = vec![1; TOKENS_MAX + 2], "stop_ids has 4194305 entries"),
        (|m| m.prefill.as_mut().unwrap().rank = 65_536, "rank is 65536, expected at most 65535"),
        (|m| m.id = vec![0; 17], "id has 17 bytes"),
    ];
    for (spoil, expected) in cases {
        let mut message = decode_request_to_wire(&decode_request(), NOW);
        spoil(&mut message);
        let found = fault(decode_request_from_wire(message, NOW));
        assert!(found.starts_with(expected), "{found} should begin with {expected}");
    }
    type Spoil = fn(&mut v1::PrefillRequest);
    let cases: [(Spoil, &str); 5] = [
        (|m| m.id.clear(), "id has 0 bytes"),
        (|m| m.ids = vec![1; TOKENS_MAX + 2], "ids has "),
        (|m| m.root.clear(), "root has 0 bytes"),
        (|m| m.names.push(0), "names has 33 bytes"),
        (|m| m.lineage = 9, "lineage has the unknown value 9"),
    ];
    for (spoil, expected) in cases {
        let mut message = prefill_request_to_wire(&prefill_request());
        spoil(&mut message);
        let found = fault(prefill_request_from_wire(message));
        assert!(found.starts_with(expected), "{found} should begin with {expected}");
    }
}

#[test]
fn malformed_events_name_their_field() {
    use v1::decode_event::Event as Decoded;
    use v1::prefill_event::Event as Prefilled;

    let decoded = |event| fault(DecodeEvent::try_from(v1::DecodeEvent { event }));
    let prefilled = |event| fault(PrefillEvent::try_from(v1::PrefillEvent { event }));
    let key = Some(v1::ObjectKey::from(key(ObjectKind::Block, 1)));
    let object = v1::Descriptor { key: None, ..descriptor(ObjectKind::Block, 1).into() };
    let unknown = v1::ObjectKey { kind: 4, name: vec![0; 16] };
    let short = v1::ObjectKey { kind: 1, name: vec![0; 15] };
    let located = |descriptor| {
        let found = vec![v1::Found { descriptor: Some(descriptor), miss: 0 }];
        fault(LocateEvent::try_from(v1::LocateEvent { found, ..Default::default() }))
    };
    let with_key = |key| v1::Descriptor { key: Some(key), ..Default::default() };
    let many = vec![v1::Found::default(); OBJECTS_MAX + 1];
    let offered = |key, outcome| fault(OfferEvent::try_from(v1::OfferEvent { key, outcome }));
    let failed = |kind| decoded(Some(Decoded::Failed(v1::ServeError { kind })));
    let long = "x".repeat(TEXT_BYTES_MAX + 1);
    let cases = [
        (decoded(None), "event is missing"),
        (decoded(Some(Decoded::Finished(0))), "finished has the unknown value 0"),
        (decoded(Some(Decoded::Started(v1::StartReport::default()))), "started.window_source is"),
        (failed(None), "failed.kind is missing"),
        (failed(Some(v1::serve_error::Kind::Internal(long))), "failed.internal has 4097"),
        (prefilled(None), "event is missing"),
        (prefilled(Some(Prefilled::Sealed(v1::SealedBlock::default()))), "sealed.block is missing"),
        (prefilled(Some(Prefilled::Window(object))), "descriptor.key is missing"),
        (
            prefilled(Some(Prefilled::Finished(v1::PrefillFinished {
                replayed_tokens: 0,
                window_source: Some(v1::WindowSource { source: None }),
            }))),
            "window_source.source is missing",
        ),
        (located(with_key(unknown)), "key.kind has the unknown value 4"),
        (located(with_key(short)), "key.name has 15 bytes"),
        (
            fault(LocateEvent::try_from(v1::LocateEvent { found: many, ..Default::default() })),
            "found has 65537",
        ),
        (offered(None, 1), "key is missing"),
        (offered(key, 5), "outcome has the unknown value 5"),
    ];
    for (found, expected) in cases {
        assert!(found.starts_with(expected), "{found} should begin with {expected}");
    }
}

#[test]
fn malformed_member_messages_name_their_field() {
    use v1::ask_request::Question;
    use v1::cache_event::Change;
    use v1::worker_event::Event as Told;

    let told = |event| fault(Assembler::default().push(v1::WorkerEvent { event }));
    let cache = |worker: Option<v1::WorkerRank>, change| {
        told(Some(Told::Cache(v1::CacheEvent { worker, change, ..Default::default() })))
    };
    let blocks = |tier, bytes| {
        let names = vec![0; bytes];
        cache(None, Some(Change::Stored(v1::Blocks { tier, names })))
    };
    let load = |rows_per_second| {
        let worker = Some(worker(1).into());
        told(Some(Told::Load(v1::Load { worker, rows_per_second, ..Default::default() })))
    };
    let cleared = || Some(Change::Cleared(v1::Empty {}));
    type Spoil = fn(&mut v1::Facts);
    let spoilt = |spoil: Spoil| {
        let mut message = v1::Facts::from(&facts("decode-1"));
        spoil(&mut message);
        fault(Facts::try_from(message))
    };
    let id = vec![0; 16];
    let keys = v1::LocateRequest {
        keys: vec![v1::ObjectKey::default(); OBJECTS_MAX + 1],
        id: id.clone(),
        trace: None,
        tenant: 0,
    };
    let objects = v1::OfferRequest {
        objects: vec![v1::Descriptor::default(); OBJECTS_MAX + 1],
        id,
        trace: None,
        tenant: 0,
        durability: v1::Durability::Memory.into(),
    };
    let few = Some(Question::Ranges(v1::Ranges { words: vec![0; 3] }));
    let few = v1::AskRequest { question: few };
    let cases = [
        (told(None), "event is missing"),
        (cache(Some(worker(1).into()), None), "cache.change is missing"),
        (cache(None, cleared()), "cache.worker is missing"),
        (
            cache(None, Some(Change::RangesCleared(v1::Ranges { words: vec![0; 5] }))),
            "ranges_cleared.words has 5 entries, expected 4",
        ),
        (
            cache(None, Some(Change::Digests(v1::Digests { values: vec![0; 255] }))),
            "digests.values has 255 entries, expected 256",
        ),
        (fault(question_from_wire(v1::AskRequest { question: None })), "question is missing"),
        (fault(question_from_wire(few)), "ranges.words has 3 entries, expected 4"),
        (blocks(0, 16), "blocks.tier has the unknown value 0"),
        (blocks(1, 17), "blocks.names has 17 bytes"),
        (blocks(1, 16 * (PART_NAMES_MAX + 1)), "blocks.names has 65537 entries"),
        (load(f64::NAN), "load.rows_per_second is NaN"),
        (load(-1.0), "load.rows_per_second is -1"),
        (spoilt(|m| m.model.clear()), "facts.model has 0 bytes"),
        (spoilt(|m| m.layout.clear()), "facts.layout has 0 bytes"),
        (spoilt(|m| m.tokenizer.clear()), "facts.tokenizer has 0 bytes"),
        (spoilt(|m| m.numerics = "x".repeat(5_000)), "facts.numerics has 5000"),
        (spoilt(|m| m.role = "vision".to_owned()), "facts.role has the unknown value vision"),
        (spoilt(|m| m.name = "A".to_owned()), "facts.name is A, expected a label"),
        (spoilt(|m| m.worker = None), "facts.worker is missing"),
        (fault(locate_request_from_wire(keys)), "keys has 65537 entries"),
        (fault(offer_request_from_wire(objects)), "objects has 65537 entries"),
    ];
    for (found, expected) in cases {
        assert!(found.starts_with(expected), "{found} should begin with {expected}");
    }
}

#[test]
fn golden_bytes_stay_as_they_are() {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let token = v1::DecodeEvent::from(DecodeEvent::Token(TokenId(129_279), None));
    let lost = ServeError::WorkerLost { worker: worker(3) };
    let failed = v1::DecodeEvent::from(DecodeEvent::Failed(lost));
    let sealed =
        PrefillEvent::Sealed { index: 2, block: descriptor(ObjectKind::Block, 0xab), cached: true };
    let name = "ab".repeat(16);
    let cases = [
        (hex(token.encode_to_vec()), "10fff107".to_owned()),
        (hex(failed.encode_to_vec()), "22083206080310ffff03".to_owned()),
        (
            hex(v1::PrefillEvent::from(sealed).encode_to_vec()),
            format!(
                "123808021232\
                 0a1408011210{name}\
                 11faffffffffffffff18ffffffff0f2007\
                 2880fa0635efcdab893801\
                 1801"
            ),
        ),
        (hex(worker_event_part(&change(1, CacheChange::Cleared), 0).0.encode_to_vec()), {
            "0a150a06080210ffff0311030000000000000018013200".to_owned()
        }),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
    }
}
