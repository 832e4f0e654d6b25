use std::sync::Arc;
use std::time::Duration;

use shared::{
    BlockName, Clock, Decode, DecodeDirectory, DecodeEvent, DecodeRequest, FinishReason, Flow,
    ManualClock, PlaceEvent, PlaceRequest, Placer, Priority, RequestId, Sink, TenantId, Ticket,
    WorkerRank,
};

use super::{CaptureConfig, Recorder};

/// Places nothing and answers every request with three tokens.
struct Quiet;

impl Placer for Quiet {
    fn submit(&self, _: PlaceRequest, _: Box<dyn Sink<PlaceEvent>>) -> Ticket {
        Ticket::empty()
    }
}

impl DecodeDirectory for Quiet {
    fn decode(&self, _: WorkerRank) -> Option<Arc<dyn Decode>> {
        Some(Arc::new(Self))
    }
}

impl Decode for Quiet {
    fn submit(&self, _: DecodeRequest, mut sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        for token in 0..3 {
            assert_eq!(sink.emit(DecodeEvent::Token(shared::TokenId(token), None)), Flow::Open);
        }
        assert_eq!(sink.emit(DecodeEvent::Finished(FinishReason::Stop)), Flow::Open);
        Ticket::empty()
    }
}

fn recorder(bytes_max: u64, clock: &Arc<ManualClock>) -> Option<Arc<Recorder>> {
    let clock: Arc<dyn Clock> = Arc::clone(clock) as _;
    Recorder::new(CaptureConfig { bytes_max }, [7; 32], &clock)
}

/// One request with these names, through both borders. The place is given back in the end.
fn request(recorder: &Arc<Recorder>, id: u128, names: &[BlockName]) {
    let placer = recorder.placer(Arc::new(Quiet));
    let names: Arc<[BlockName]> = names.into();
    let asked = PlaceRequest {
        id: RequestId(id),
        tenant: TenantId(Arc::from("t")),
        names: Arc::clone(&names),
        prompt_tokens: 300,
        output_tokens_max: 9,
        deadline: None,
        priority: Priority::Normal,
        session: None,
        excluded: Vec::new(),
    };
    let ticket = placer.submit(asked, Box::new(|_| Flow::Open));
    let worker = WorkerRank { worker: shared::WorkerId(1), rank: shared::DpRank(0) };
    let decode = recorder.directory(Arc::new(Quiet)).decode(worker).unwrap();
    let asked = DecodeRequest {
        id: RequestId(id),
        trace: shared::TraceContext::NONE,
        tenant: TenantId(Arc::from("t")).tag(),
        prompt: vec![shared::TokenId(1); 300].into(),
        emitted: vec![shared::TokenId(2); 2],
        root: shared::Root::from_bytes([0; 32]),
        names,
        lineage: shared::Lineage::Bounded,
        sampling: shared::Sampling::GREEDY,
        logit_bias: Arc::from([]),
        logprobs: None,
        constraint: None,
        stop_ids: Vec::new(),
        output_tokens_max: 9,
        prefill: None,
        deadline: None,
    };
    drop(decode.submit(asked, Box::new(|_| Flow::Open)));
    drop(ticket);
}

#[test]
fn a_capture_can_be_replayed_and_holds_no_name() {
    let clock = Arc::new(ManualClock::new());
    let recorder = recorder(1 << 20, &clock).unwrap();
    let [a, b, c] = [1, 2, 3].map(|byte| BlockName([byte; 16]));
    request(&recorder, 1, &[a, b]);
    clock.advance(Duration::from_millis(12));
    request(&recorder, 2, &[a, c]);
    let told = recorder.lines(0);
    let lines: Vec<String> = serde_json::from_value(told["lines"].clone()).unwrap();
    assert_eq!((told["next"].as_u64(), lines.len()), (Some(2), 2));
    assert!(!lines[0].contains("0101") && lines[1].contains("\"at_ms\":12"), "{lines:?}");
    assert!(lines[0].contains("\"answer_tokens\":5"), "two of an earlier worker and three");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace");
    std::fs::write(&file, format!("{}\n{}\n", sim::capture_header(), lines.join("\n"))).unwrap();
    let settings = sim::Settings::default();
    let trace = sim::Trace::load(&file, sim::Format::Capture, &settings).unwrap();
    assert_eq!(trace.bound().hit_tokens, 128, "the first block is the same");
    assert!(recorder.state.lock().arrivals.is_empty());
}

#[test]
fn the_oldest_lines_make_room_and_are_counted() {
    let clock = Arc::new(ManualClock::new());
    assert!(recorder(0, &clock).is_none(), "off by default");
    let recorder = recorder(300, &clock).unwrap();
    for id in 0..10 {
        request(&recorder, id, &[BlockName([1; 16]), BlockName([2; 16])]);
    }
    let recorded = recorder.recorded();
    assert_eq!(recorded.lines, 10);
    assert!(0 < recorded.dropped && recorded.bytes <= 300, "{recorded:?}");
    let told = recorder.lines(0);
    assert_eq!(told["first"].as_u64(), Some(recorded.dropped), "the reader sees what it missed");
    assert_eq!(recorder.lines(10)["lines"].as_array().map(Vec::len), Some(0));
}
