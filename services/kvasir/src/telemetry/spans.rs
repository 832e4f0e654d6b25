//! Spans: which requests have one, what it is called and says, and when it ends.
//!
//! Times of one span come from one reading of the wall clock and the monotonic clock from there on, so that no span ends before
//! it begins.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};
use parking_lot::Mutex;
use shared::{Clock, RequestId, Timestamp, TraceContext};

use super::export::Outlet;

/// Flags of a recorded span: sampled.
const SAMPLED: u32 = 0x001;
/// The parent is known to be another process's.
const PARENT_REMOTE: u32 = 0x300;

/// What a tracer is made of.
pub(super) struct TracerParts {
    pub(super) spans: Outlet<Span>,
    pub(super) clock: Arc<dyn Clock>,
    /// Nanoseconds since the Unix epoch.
    pub(super) wall: fn() -> u64,
    /// Fresh random bytes of this process.
    pub(super) seed: [u8; 32],
    /// Share of the requests that are recorded when no client decides, 0 to 1.
    pub(super) sample_ratio: f64,
}

/// Makes the spans of a process.
pub(super) struct Tracer {
    parts: TracerParts,
    made: AtomicU64,
    running: Arc<Running>,
}

/// The spans that are open, by their requests: at most as many as requests are in work.
#[derive(Debug, Default)]
pub(super) struct Running {
    table: Mutex<BTreeMap<RequestId, TraceContext>>,
}

impl Running {
    /// The outermost open span of a request in this process.
    pub(super) fn of(&self, request: RequestId) -> Option<TraceContext> {
        self.table.lock().get(&request).copied()
    }
}

impl Tracer {
    pub(super) fn new(parts: TracerParts) -> Self {
        Self { parts, made: AtomicU64::new(0), running: Arc::default() }
    }

    pub(super) fn running(&self) -> &Arc<Running> {
        &self.running
    }

    /// The parent of a request that came in at the front door, or none if it is not recorded. Who sent a `traceparent`
    /// decides; else the share does, and there is no parent.
    pub(super) fn admit(&self, request: RequestId, trace: TraceContext) -> Option<TraceContext> {
        if trace.sampled {
            return Some(trace);
        }
        // The gateway names a trace that it begins itself by the request, whose id no client knows beforehand. Its span
        // stands for nothing.
        let begun_here = trace.trace == request.0.max(1);
        (begun_here && self.chosen(trace.trace)).then_some(TraceContext {
            trace: trace.trace,
            span: 0,
            sampled: true,
        })
    }

    /// Chooses by the trace alone, whose bits are random.
    fn chosen(&self, trace: u128) -> bool {
        let bits = u32::try_from(trace & u128::from(u32::MAX)).expect("32 bits are left");
        f64::from(bits) / (f64::from(u32::MAX) + 1.0) < self.parts.sample_ratio
    }

    /// Begins a span below `parent`, whose span is 0 when there is none. It lasts until it is ended.
    pub(super) fn begin(
        self: &Arc<Self>,
        name: &'static str,
        request: RequestId,
        parent: TraceContext,
        attributes: Vec<KeyValue>,
    ) -> Recording {
        let context = TraceContext { span: self.next_span(), ..parent };
        let (parent_span, flags) = match parent.span {
            0 => (Vec::new(), SAMPLED),
            span => (span.to_be_bytes().into(), SAMPLED | PARENT_REMOTE),
        };
        let mut span = Span {
            trace_id: context.trace.to_be_bytes().into(),
            span_id: context.span.to_be_bytes().into(),
            parent_span_id: parent_span,
            flags,
            name: name.to_owned(),
            kind: i32::from(SpanKind::Server),
            start_time_unix_nano: (self.parts.wall)(),
            attributes,
            ..Span::default()
        };
        span.attributes.push(text("kvasir.request_id", request.to_string()));
        self.running.table.lock().entry(request).or_insert(context);
        let open = Open { tracer: Arc::clone(self), request, span, began: self.parts.clock.now() };
        let state =
            State { context, counted: AtomicU64::new(0), open: Mutex::new(Some(Box::new(open))) };
        Recording(Arc::new(state))
    }

    /// Unique in this process, and random to others.
    fn next_span(&self) -> u64 {
        let count = self.made.fetch_add(1, Ordering::Relaxed);
        let hash = blake3::keyed_hash(&self.parts.seed, &count.to_le_bytes());
        let mut id = [0; 8];
        id.copy_from_slice(&hash.as_bytes()[..8]);
        u64::from_le_bytes(id).max(1)
    }
}

/// How a span ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// With its last event.
    Finished,
    /// With an error, in words.
    Failed(String),
    /// By its caller.
    Cancelled,
    /// Without a last event: who worked on it went away.
    Lost,
}

/// A span that lasts. Clones are the same one; the first ending counts.
#[derive(Clone)]
pub(super) struct Recording(Arc<State>);

struct State {
    context: TraceContext,
    /// Tokens or blocks so far.
    counted: AtomicU64,
    open: Mutex<Option<Box<Open>>>,
}

struct Open {
    tracer: Arc<Tracer>,
    request: RequestId,
    span: Span,
    began: Timestamp,
}

impl Open {
    fn now(&self) -> u64 {
        let since = self.tracer.parts.clock.now().since(self.began);
        let nanoseconds = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        self.span.start_time_unix_nano.saturating_add(nanoseconds)
    }
}

impl Recording {
    /// The span, as the next leg's parent.
    pub(super) fn context(&self) -> TraceContext {
        self.0.context
    }

    /// Counts a token or block; true for the first one.
    pub(super) fn count(&self) -> bool {
        self.0.counted.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Tokens or blocks so far.
    pub(super) fn counted(&self) -> u64 {
        self.0.counted.load(Ordering::Relaxed)
    }

    /// Adds attributes, unless the span ended.
    pub(super) fn note(&self, attributes: impl IntoIterator<Item = KeyValue>) {
        if let Some(open) = &mut *self.0.open.lock() {
            open.span.attributes.extend(attributes);
        }
    }

    /// Adds an event that happens now, unless the span ended.
    pub(super) fn happened(&self, name: &'static str) {
        if let Some(open) = &mut *self.0.open.lock() {
            let event =
                Event { time_unix_nano: open.now(), name: name.to_owned(), ..Event::default() };
            open.span.events.push(event);
        }
    }

    /// Ends the span and queues it; `counts` is noted first. Later endings do nothing.
    pub(super) fn end(&self, ending: Ending, counts: Option<KeyValue>) {
        let Some(open) = self.0.open.lock().take() else { return };
        let end_time_unix_nano = open.now();
        let Open { tracer, request, mut span, .. } = *open;
        span.end_time_unix_nano = end_time_unix_nano;
        span.attributes.extend(counts);
        let (outcome, error) = match ending {
            Ending::Finished => ("finished", None),
            Ending::Cancelled => ("cancelled", None),
            Ending::Failed(error) => ("failed", Some(error)),
            Ending::Lost => ("lost", Some("it ended without a last event".to_owned())),
        };
        span.attributes.push(text("kvasir.outcome", outcome));
        span.status = error.map(|message| Status { message, code: i32::from(StatusCode::Error) });
        {
            let mut table = tracer.running.table.lock();
            if table.get(&request) == Some(&self.0.context) {
                table.remove(&request);
            }
        }
        tracer.parts.spans.put(span);
    }
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

/// An attribute of text.
pub(super) fn text(key: &str, value: impl Into<String>) -> KeyValue {
    attribute(key, Value::StringValue(value.into()))
}

/// An attribute that counts.
pub(super) fn number(key: &str, value: impl Into<u64>) -> KeyValue {
    attribute(key, Value::IntValue(i64::try_from(value.into()).unwrap_or(i64::MAX)))
}

/// An attribute that holds or does not.
pub(super) fn flag(key: &str, value: bool) -> KeyValue {
    attribute(key, Value::BoolValue(value))
}
