//! Spans of the legs of a request.

use std::sync::Arc;
use std::time::Duration;

use kvstore::{
    HostMemory, NoStore, Pool, PoolConfig, ReadDone, ReadError, ReadRequest, Seal, SealedSlot,
    Transport,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use shared::{
    BlockName, Decode, DecodeDirectory, DecodeEvent, Descriptor, Durability, FinishReason, Flow,
    Grouped, ManualClock, ObjectKey, ObjectKind, PrefillEvent, RegionId, RequestContext, RequestId,
    ServeError, Sink, StartReport, TenantTag, Ticket, Tier, TokenId, TraceContext, WindowSource,
    WorkerRank,
};

use super::collector::Collector;
use super::{
    CLIENT, Decoder, Prefiller, WORKER, config, decode_request, figures, listener, prefill_request,
    process, said,
};
use crate::telemetry::TelemetryConfig;

struct One(Arc<dyn Decode>);

impl DecodeDirectory for One {
    fn decode(&self, worker: WorkerRank) -> Option<Arc<dyn Decode>> {
        (worker == WORKER).then(|| Arc::clone(&self.0))
    }
}

const STARTED: DecodeEvent = DecodeEvent::Started(StartReport {
    cached_tokens: 128,
    replayed_tokens: 5,
    window_source: WindowSource::Replayed(5),
    exact: false,
    bytes_fetched: 77,
    prefill: Some(WORKER),
});

fn events(span: &Span) -> Vec<&str> {
    span.events.iter().map(|event| event.name.as_str()).collect()
}

#[tokio::test]
async fn a_request_is_one_trace_through_its_legs() {
    let mut collector = Collector::start(&[]).await;
    let clock = Arc::new(ManualClock::new());
    let config = config(collector.endpoint());
    let [router, decode, prefill] =
        ["router", "decode", "prefill"].map(|role| process(&config, role, &clock));
    let (decoder, prefiller) = (Decoder::new(), Prefiller::new());
    let worker = decode.decode(Arc::clone(&decoder) as _, WORKER);
    let directory = router.directory(Arc::new(One(worker)));

    assert!(directory.decode(WorkerRank { rank: shared::DpRank(1), ..WORKER }).is_none());
    let request = decode_request(7, CLIENT);
    let ticket = directory.decode(WORKER).unwrap().submit(request, listener(Flow::Open));
    let (request, mut answer) = decoder.take();
    let prefiller_border = prefill.prefill(Arc::clone(&prefiller) as _, WORKER);
    let pinned = prefiller_border.submit(prefill_request(7, request.trace), listener(Flow::Open));
    let (_, mut blocks) = prefiller.take();
    clock.advance(Duration::from_millis(3));
    let finished = PrefillEvent::Finished { replayed_tokens: 0, window_source: WindowSource::Cold };
    assert_eq!(blocks.emit(PrefillEvent::Waiting), Flow::Open);
    assert_eq!(blocks.emit(finished), Flow::Open);
    for event in
        [STARTED, DecodeEvent::Token(TokenId(4), None), DecodeEvent::Token(TokenId(5), None)]
    {
        assert_eq!(answer.emit(event), Flow::Open);
    }
    assert_eq!(answer.emit(DecodeEvent::Finished(FinishReason::Length)), Flow::Open);
    drop((pinned, ticket, answer, blocks));

    let received = collector.spans(3).await;
    let spans: Vec<&Span> = received.iter().map(|received| &received.record).collect();
    let [decoded, prefilled, requested] = spans.as_slice() else { panic!("{spans:?}") };
    assert_eq!([&decoded.name, &prefilled.name, &requested.name], ["decode", "prefill", "request"]);
    assert_eq!(requested.parent_span_id, CLIENT.span.to_be_bytes());
    assert_eq!(decoded.parent_span_id, requested.span_id);
    assert_eq!(prefilled.parent_span_id, decoded.span_id);
    for (span, received) in spans.iter().zip(&received) {
        assert_eq!(span.trace_id, CLIENT.trace.to_be_bytes(), "{}", span.name);
        assert_eq!(said(&span.attributes, "kvasir.request_id"), RequestId(7).to_string());
        assert_eq!(said(&span.attributes, "kvasir.outcome"), "finished");
        assert_eq!(span.end_time_unix_nano - span.start_time_unix_nano, 3_000_000);
        assert!(span.status.is_none());
        assert_eq!(said(&received.from, "service.name"), "kvasir");
    }
    assert_eq!(said(&received[1].from, "service.instance.id"), "prefill-1");
    assert_eq!(said(&received[2].from, "kvasir.role"), "router");
    let expected = [
        ("kvasir.worker", "3.0"),
        ("kvasir.prompt_tokens", "300"),
        ("kvasir.emitted_tokens", "1"),
        ("kvasir.cached_tokens", "128"),
        ("kvasir.replayed_tokens", "5"),
        ("kvasir.window_source", "replayed"),
        ("kvasir.exact", "false"),
        ("kvasir.lineage", "exact"),
        ("kvasir.prefill_worker", "3.0"),
        ("kvasir.output_tokens", "2"),
        ("kvasir.finish_reason", "length"),
    ];
    for (key, value) in expected {
        assert_eq!(said(&decoded.attributes, key), value, "{key}");
        assert_eq!(said(&requested.attributes, key), value, "{key}");
    }
    assert_eq!(events(decoded), ["started", "first_token"]);
    let expected = [("kvasir.from", "128"), ("kvasir.to", "256"), ("kvasir.blocks", "0")];
    for (key, value) in expected {
        assert_eq!(said(&prefilled.attributes, key), value, "{key}");
    }
}

/// A transport that answers at once: the first object arrived, the others did not.
struct FirstOnly;

impl Transport for FirstOnly {
    fn read(
        &self,
        context: RequestContext,
        reads: Vec<ReadRequest>,
        mut sink: Box<dyn Sink<ReadDone>>,
    ) -> Ticket {
        assert_ne!(context.trace.span, CLIENT.span, "the read's own span goes to the owner");
        for (index, ReadRequest { source, target }) in reads.into_iter().enumerate() {
            let result = if index == 0 { Ok(()) } else { Err(ReadError::Stale) };
            assert_eq!(sink.emit(ReadDone { source, target, result }), Flow::Open);
        }
        Ticket::empty()
    }
}

#[tokio::test]
async fn lookups_offers_and_reads_are_legs_of_the_same_trace() {
    let mut collector = Collector::start(&[]).await;
    let clock = Arc::new(ManualClock::new());
    let telemetry = process(&config(collector.endpoint()), "kvstore", &clock);
    let store = telemetry.store(Arc::new(NoStore), WORKER);
    let transport = telemetry.transport(Arc::new(FirstOnly), WORKER);
    let context = RequestContext { id: RequestId(7), trace: CLIENT, tenant: TenantTag(5) };
    let (kind, tier) = (ObjectKind::Block, Tier::Host);
    let memory = Arc::new(HostMemory::with_slots(4, 64).unwrap());
    let pool = Pool::new(PoolConfig { region: RegionId::of(WORKER, kind), kind, tier }, memory);
    let seal = |(number, slot)| {
        pool.seal(slot, Seal { name: BlockName([number; 16]), exact: true, bytes: 64 })
    };
    let objects: Vec<SealedSlot> = (1..).zip(pool.reserve(2).unwrap()).map(seal).collect();
    let keys =
        objects.iter().map(|slot| Grouped::<ObjectKey>::alone(slot.descriptor().key)).collect();
    let sources: Vec<_> = objects.iter().map(SealedSlot::descriptor).collect();
    let reads = sources.iter().zip(pool.reserve(2).unwrap());
    let reads = reads.map(|(source, target)| ReadRequest { source: *source, target }).collect();
    let silent = RequestContext { trace: TraceContext { sampled: false, ..CLIENT }, ..context };
    drop(store.locate(silent, Vec::new(), listener(Flow::Open)));
    drop(store.locate(context, keys, listener(Flow::Open)));
    let offered = sources.into_iter().map(Grouped::<Descriptor>::alone).collect();
    drop(store.offer(context, offered, Durability::Memory, listener(Flow::Open)));
    drop(transport.read(context, reads, listener(Flow::Open)));
    let received = collector.spans(3).await;
    let expected = [
        ("lookup", "kvasir.keys", "0", "finished"),
        ("offer", "kvasir.objects", "0", "finished"),
        ("read", "kvasir.objects", "1", "failed"),
    ];
    for (received, (name, asked, done, outcome)) in received.iter().zip(expected) {
        let span = &received.record;
        assert_eq!(span.name, name);
        assert_eq!(span.parent_span_id, CLIENT.span.to_be_bytes());
        assert_eq!(span.trace_id, CLIENT.trace.to_be_bytes());
        assert_eq!(said(&span.attributes, "kvasir.request_id"), RequestId(7).to_string());
        assert_eq!(said(&span.attributes, asked), "2", "{name}");
        assert_eq!(said(&span.attributes, "kvasir.objects_done"), done, "{name}");
        assert_eq!(said(&span.attributes, "kvasir.outcome"), outcome, "{name}");
    }
}

/// How a test ends a request.
#[derive(Clone, Copy, Debug)]
enum End {
    TicketDropped,
    SinkDropped,
    CallerClosed,
    Failed,
}

#[tokio::test]
async fn every_end_of_a_request_ends_its_span() {
    let mut collector = Collector::start(&[]).await;
    let clock = Arc::new(ManualClock::new());
    let telemetry = process(&config(collector.endpoint()), "decode", &clock);
    let failure = ServeError::WorkerLost { worker: WORKER };
    let cases = [
        (End::TicketDropped, "cancelled", None),
        (End::SinkDropped, "lost", Some("it ended without a last event".to_owned())),
        (End::CallerClosed, "cancelled", None),
        (End::Failed, "failed", Some(failure.to_string())),
    ];
    for (end, outcome, error) in cases {
        let shelf = Decoder::new();
        let border = telemetry.decode(Arc::clone(&shelf) as _, WORKER);
        let flow = if matches!(end, End::CallerClosed) { Flow::Closed } else { Flow::Open };
        let ticket = border.submit(decode_request(1, CLIENT), listener(flow));
        let (_, mut sink) = shelf.take();
        assert_eq!(sink.emit(DecodeEvent::Token(TokenId(9), None)), flow);
        match end {
            End::TicketDropped => drop(ticket),
            End::SinkDropped => drop(sink),
            End::CallerClosed => {}
            End::Failed => assert_eq!(sink.emit(DecodeEvent::Failed(failure.clone())), flow),
        }
        // What comes later changes nothing; the rest drops at the end of the case.
        let span = collector.spans(1).await.remove(0).record;
        assert_eq!(said(&span.attributes, "kvasir.outcome"), outcome, "{end:?}");
        assert_eq!(said(&span.attributes, "kvasir.output_tokens"), "1", "{end:?}");
        let expected = error.map(|message| (message, i32::from(StatusCode::Error)));
        assert_eq!(span.status.map(|status| (status.message, status.code)), expected, "{end:?}");
    }
    telemetry.shutdown().await;
    assert_eq!(figures(&telemetry, "spans"), [4, 0, 0], "one span for each request");
}

#[tokio::test]
async fn what_a_client_does_not_record_is_not_recorded() {
    let collector = Collector::start(&[]).await;
    let clock = Arc::new(ManualClock::new());
    let telemetry = process(&config(collector.endpoint()), "router", &clock);
    let (decoder, prefiller) = (Decoder::new(), Prefiller::new());
    let directory = telemetry.directory(Arc::new(One(Arc::clone(&decoder) as _)));
    let trace = TraceContext { sampled: false, ..CLIENT };
    let border = directory.decode(WORKER).unwrap();
    let ticket = border.submit(decode_request(7, trace), listener(Flow::Open));
    let worker = telemetry.decode(Arc::clone(&decoder) as _, WORKER);
    let second = worker.submit(decode_request(7, trace), listener(Flow::Open));
    let worker = telemetry.prefill(Arc::clone(&prefiller) as _, WORKER);
    let third = worker.submit(prefill_request(7, trace), listener(Flow::Open));
    assert_eq!(decoder.take().0.trace, trace, "it goes on as it came");
    assert_eq!(decoder.take().0.trace, trace);
    assert_eq!(prefiller.take().0.trace, trace);
    drop((ticket, second, third));
    telemetry.shutdown().await;
    assert_eq!(figures(&telemetry, "spans"), [0, 0, 0]);
}

#[tokio::test]
async fn requests_without_a_header_are_recorded_by_their_share() {
    let cases = [(0.0, 0..=0), (0.25, 200..=300), (1.0, 1_000..=1_000)];
    for (sample_ratio, expected) in cases {
        let clock = Arc::new(ManualClock::new());
        let standard = TelemetryConfig { sample_ratio, ..config("http://127.0.0.1:1".to_owned()) };
        let telemetry = process(&standard, "router", &clock);
        let tracer = &telemetry.on.as_ref().unwrap().tracer;
        let mut admitted = 0;
        for count in 0_u32..1_000 {
            let hash = blake3::hash(&count.to_le_bytes());
            let id = u128::from_le_bytes(hash.as_bytes()[..16].try_into().unwrap());
            // As the gateway fills it in for a request without the header.
            let trace = TraceContext { trace: id, span: 5, sampled: false };
            if let Some(parent) = tracer.admit(RequestId(id), trace) {
                assert_eq!(parent, TraceContext { trace: id, span: 0, sampled: true });
                admitted += 1;
            }
            assert_eq!(tracer.admit(RequestId(id), TraceContext { trace: 1, ..trace }), None);
            let sampled = TraceContext { sampled: true, ..trace };
            assert_eq!(tracer.admit(RequestId(id), sampled), Some(sampled));
        }
        assert!(expected.contains(&admitted), "{sample_ratio}: {admitted}");
    }
}
