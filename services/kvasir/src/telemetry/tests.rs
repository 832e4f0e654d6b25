mod chain;
mod collector;
mod lines;
mod sending;
mod served;

use std::sync::Arc;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use parking_lot::Mutex;
use shared::{
    Clock, Decode, DecodeEvent, DecodeRequest, DpRank, Flow, Lineage, ManualClock, Prefill,
    PrefillEvent, PrefillRequest, RequestId, Root, Sampling, Sink, TenantTag, Ticket, TokenId,
    TraceContext, WorkerId, WorkerRank,
};

use super::{LogTap, Sender, Telemetry, TelemetryConfig};

const WORKER: WorkerRank = WorkerRank { worker: WorkerId(3), rank: DpRank(0) };
/// What a client sends in its header.
const CLIENT: TraceContext =
    TraceContext { trace: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, span: 0xb7ad, sampled: true };

fn config(endpoint: String) -> TelemetryConfig {
    TelemetryConfig { otlp_endpoint: Some(endpoint), export_ms: 1, ..TelemetryConfig::default() }
}

/// A process that sends to `config`'s collector.
fn process(config: &TelemetryConfig, role: &'static str, clock: &Arc<ManualClock>) -> Telemetry {
    let sender = Sender { name: format!("{role}-1"), role, worker: Some(WORKER) };
    let clock = Arc::clone(clock) as Arc<dyn Clock>;
    Telemetry::start(config, &sender, &LogTap::default(), clock).unwrap()
}

/// A decode worker, and a prefill worker, that leave their requests to the test.
type Decoder = Shelf<DecodeRequest, DecodeEvent>;
type Prefiller = Shelf<PrefillRequest, PrefillEvent>;

type Submitted<R, E> = (R, Box<dyn Sink<E>>);

struct Shelf<R, E>(Mutex<Vec<Submitted<R, E>>>);

impl<R, E> Shelf<R, E> {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::default()))
    }

    fn take(&self) -> Submitted<R, E> {
        self.0.lock().pop().expect("something was submitted")
    }
}

impl Decode for Shelf<DecodeRequest, DecodeEvent> {
    fn submit(&self, request: DecodeRequest, sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        self.0.lock().push((request, sink));
        Ticket::empty()
    }
}

impl Prefill for Shelf<PrefillRequest, PrefillEvent> {
    fn submit(&self, request: PrefillRequest, sink: Box<dyn Sink<PrefillEvent>>) -> Ticket {
        self.0.lock().push((request, sink));
        Ticket::empty()
    }
}

/// A sink that answers `flow` to everything.
fn listener<E>(flow: Flow) -> Box<dyn Sink<E>> {
    Box::new(move |_: E| flow)
}

fn decode_request(id: u128, trace: TraceContext) -> DecodeRequest {
    DecodeRequest {
        id: RequestId(id),
        trace,
        tenant: TenantTag(4),
        prompt: (0..300).map(TokenId).collect(),
        emitted: vec![TokenId(1)],
        root: Root::from_bytes([5; 32]),
        names: Arc::from([]),
        lineage: Lineage::Exact,
        sampling: Sampling::GREEDY,
        logit_bias: Arc::from([]),
        logprobs: None,
        constraint: None,
        stop_ids: vec![TokenId(1)],
        output_tokens_max: 8,
        prefill: None,
        deadline: None,
    }
}

fn prefill_request(id: u128, trace: TraceContext) -> PrefillRequest {
    PrefillRequest {
        id: RequestId(id),
        trace,
        tenant: TenantTag(4),
        ids: (0..256).map(TokenId).collect(),
        root: Root::from_bytes([5; 32]),
        names: Arc::from([]),
        lineage: Lineage::Bounded,
        from: 128,
        to: 256,
    }
}

/// An attribute in words; empty when it is missing.
fn said(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.clone()?.value) {
        Some(Value::StringValue(value)) => value,
        Some(Value::IntValue(value)) => value.to_string(),
        Some(Value::BoolValue(value)) => value.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    }
}

/// The counts of sent, dropped and lost records of a kind, as operators read them.
fn figures(telemetry: &Telemetry, signal: &str) -> [u64; 3] {
    let mut text = String::new();
    (telemetry.figures())(&mut text);
    ["sent", "dropped", "lost"].map(|outcome| {
        let head =
            format!("kvasir_telemetry_records_total{{signal=\"{signal}\",outcome=\"{outcome}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(head.as_str()));
        line.expect("every outcome has a line").parse().unwrap()
    })
}

#[test]
fn without_a_collector_nothing_is_wrapped() {
    let clock = Arc::new(ManualClock::new());
    let telemetry = process(&TelemetryConfig::default(), "decode", &clock);
    let worker: Arc<dyn Decode> = Decoder::new();
    assert!(Arc::ptr_eq(&worker, &telemetry.decode(Arc::clone(&worker), WORKER)));
    let worker: Arc<dyn Prefill> = Prefiller::new();
    assert!(Arc::ptr_eq(&worker, &telemetry.prefill(Arc::clone(&worker), WORKER)));
    let mut text = String::new();
    (telemetry.figures())(&mut text);
    assert!(text.is_empty(), "{text}");
}
