//! Log lines on their way to the collector.

use std::sync::Arc;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};
use shared::{Clock, Flow, ManualClock, RequestId, TraceContext};
use tracing::subscriber::with_default;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, registry};

use super::collector::Collector;
use super::{CLIENT, Decoder, WORKER, config, decode_request, figures, listener, said};
use crate::telemetry::{LogLayer, LogTap, Sender, Telemetry};

fn body(record: &LogRecord) -> &str {
    match record.body.as_ref().and_then(|body| body.value.as_ref()) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn lines_say_their_request_and_its_trace() {
    let mut collector = Collector::start(&[]).await;
    let tap = LogTap::default();
    let sender = Sender { name: "decode-1".to_owned(), role: "decode", worker: Some(WORKER) };
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    let telemetry = Telemetry::start(&config(collector.endpoint()), &sender, &tap, clock).unwrap();
    let shelf = Decoder::new();
    let border = telemetry.decode(Arc::clone(&shelf) as _, WORKER);
    let ticket = border.submit(decode_request(7, CLIENT), listener(Flow::Open));
    let (request, sink) = shelf.take();
    let open = request.trace;
    let other = TraceContext { trace: 3, span: 4, sampled: true };

    let layers = registry().with(EnvFilter::new("info")).with(LogLayer::new(tap.clone()));
    with_default(layers, || {
        tracing::warn!(request = %RequestId(7), worker = %WORKER, count = 3, "first");
        tracing::info!(id = %RequestId(7), "as workers write it");
        tracing::error!(id = 12, error = %"no", "not of a request");
        tracing::info!(request = %RequestId(8), trace = %other, "of a named trace");
        tracing::info_span!("chat", request = %RequestId(7)).in_scope(|| tracing::info!("inside"));
        tracing::debug!(request = %RequestId(7), "below the level");
        tracing::info!(target: "h2::client", "about the sending");
        tracing::info!(target: "kvasir::telemetry::export", "about the sending");
        tracing::info!(target: "h2x", "{}", "ä".repeat(4_096));
    });
    drop((ticket, sink));
    telemetry.shutdown().await;
    with_default(registry().with(LogLayer::new(tap)), || tracing::info!("after the end"));

    let seven = RequestId(7).to_string();
    let eight = RequestId(8).to_string();
    let expected = [
        ("first", SeverityNumber::Warn, seven.as_str(), open),
        ("as workers write it", SeverityNumber::Info, &seven, open),
        ("not of a request", SeverityNumber::Error, "", TraceContext::NONE),
        ("of a named trace", SeverityNumber::Info, &eight, other),
        ("inside", SeverityNumber::Info, &seven, open),
    ];
    for (text, severity, request, trace) in expected {
        let received = collector.lines.recv().await.unwrap();
        let line = received.record;
        assert_eq!(body(&line), text);
        assert_eq!(line.severity_number, i32::from(severity), "{text}");
        assert_eq!(said(&line.attributes, "kvasir.request_id"), request, "{text}");
        assert_eq!(said(&received.from, "service.instance.id"), "decode-1");
        if trace == TraceContext::NONE {
            assert!(line.trace_id.is_empty() && line.span_id.is_empty(), "{text}");
        } else {
            assert_eq!(line.trace_id, trace.trace.to_be_bytes(), "{text}");
            assert_eq!(line.span_id, trace.span.to_be_bytes(), "{text}");
        }
        if text == "first" {
            assert_eq!(said(&line.attributes, "worker"), "3.0");
            assert_eq!(said(&line.attributes, "count"), "3");
            assert!(said(&line.attributes, "target").ends_with("lines"));
        }
    }
    let long = collector.lines.recv().await.unwrap().record;
    assert_eq!(body(&long).len(), 4_096, "long texts are cut");
    assert_eq!(figures(&telemetry, "logs"), [6, 0, 0]);
}
