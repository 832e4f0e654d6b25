//! The borders with a span around each request that is recorded. A request that is not passes through unchanged.

mod data;

use std::sync::Arc;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use shared::{
    Decode, DecodeDirectory, DecodeEvent, DecodeRequest, FinishReason, Flow, Lineage, Prefill,
    PrefillEvent, PrefillRequest, Sink, Ticket, TraceContext, WindowSource, WorkerRank,
};

use super::spans::{Ending, Recording, Tracer, flag, number, text};

pub(super) use data::{TracedStore, TracedTransport};

/// Which leg of a request a decode border is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leg {
    /// From the front door to a decode worker. A request that is resumed by another worker has one for each.
    Request,
    /// In the decode worker.
    Decode,
}

/// A decode border with spans.
pub(super) struct TracedDecode {
    inner: Arc<dyn Decode>,
    tracer: Arc<Tracer>,
    leg: Leg,
    worker: WorkerRank,
}

impl TracedDecode {
    pub(super) fn new(
        inner: Arc<dyn Decode>,
        tracer: &Arc<Tracer>,
        leg: Leg,
        worker: WorkerRank,
    ) -> Self {
        Self { inner, tracer: Arc::clone(tracer), leg, worker }
    }

    fn begin(&self, request: &DecodeRequest) -> Option<Recording> {
        let (name, parent) = match self.leg {
            Leg::Request => ("request", self.tracer.admit(request.id, request.trace)),
            Leg::Decode => ("decode", recorded(request.trace)),
        };
        let attributes = vec![
            text("kvasir.worker", self.worker.to_string()),
            number("kvasir.prompt_tokens", length(request.prompt.len())),
            number("kvasir.emitted_tokens", length(request.emitted.len())),
            number("kvasir.output_tokens_max", request.output_tokens_max),
            lineage(request.lineage),
        ];
        Some(self.tracer.begin(name, request.id, parent?, attributes))
    }
}

impl Decode for TracedDecode {
    fn submit(&self, mut request: DecodeRequest, sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        let Some(recording) = self.begin(&request) else { return self.inner.submit(request, sink) };
        request.trace = recording.context();
        let sink = TracedSink { inner: sink, recording: recording.clone() };
        traced_ticket::<DecodeEvent>(self.inner.submit(request, Box::new(sink)), recording)
    }
}

/// A prefill border with spans.
pub(super) struct TracedPrefill {
    inner: Arc<dyn Prefill>,
    tracer: Arc<Tracer>,
    worker: WorkerRank,
}

impl TracedPrefill {
    pub(super) fn new(inner: Arc<dyn Prefill>, tracer: &Arc<Tracer>, worker: WorkerRank) -> Self {
        Self { inner, tracer: Arc::clone(tracer), worker }
    }
}

impl Prefill for TracedPrefill {
    fn submit(&self, mut request: PrefillRequest, sink: Box<dyn Sink<PrefillEvent>>) -> Ticket {
        let Some(parent) = recorded(request.trace) else {
            return self.inner.submit(request, sink);
        };
        let attributes = vec![
            text("kvasir.worker", self.worker.to_string()),
            number("kvasir.from", request.from),
            number("kvasir.to", request.to),
            lineage(request.lineage),
        ];
        let recording = self.tracer.begin("prefill", request.id, parent, attributes);
        request.trace = recording.context();
        let sink = TracedSink { inner: sink, recording: recording.clone() };
        traced_ticket::<PrefillEvent>(self.inner.submit(request, Box::new(sink)), recording)
    }
}

/// A directory whose workers have a span around each request.
pub(super) struct TracedDirectory {
    inner: Arc<dyn DecodeDirectory>,
    tracer: Arc<Tracer>,
}

impl TracedDirectory {
    pub(super) fn new(inner: Arc<dyn DecodeDirectory>, tracer: &Arc<Tracer>) -> Self {
        Self { inner, tracer: Arc::clone(tracer) }
    }
}

impl DecodeDirectory for TracedDirectory {
    fn decode(&self, worker: WorkerRank) -> Option<Arc<dyn Decode>> {
        let inner = self.inner.decode(worker)?;
        Some(Arc::new(TracedDecode::new(inner, &self.tracer, Leg::Request, worker)))
    }
}

/// Events that a span is told by.
trait Telling {
    /// What [`Recording::count`] counts.
    const COUNTED: &'static str;

    /// Tells the span; the ending if this is the last event.
    fn tell(&self, recording: &Recording) -> Option<Ending>;
}

impl Telling for DecodeEvent {
    const COUNTED: &'static str = "kvasir.output_tokens";

    fn tell(&self, recording: &Recording) -> Option<Ending> {
        match self {
            Self::Started(report) => {
                recording.note([
                    number("kvasir.cached_tokens", report.cached_tokens),
                    number("kvasir.replayed_tokens", report.replayed_tokens),
                    window(report.window_source),
                    flag("kvasir.exact", report.exact),
                    number("kvasir.bytes_fetched", report.bytes_fetched),
                ]);
                if let Some(worker) = report.prefill {
                    recording.note([text("kvasir.prefill_worker", worker.to_string())]);
                }
                recording.happened("started");
                None
            }
            Self::Token(..) => {
                if recording.count() {
                    recording.happened("first_token");
                }
                None
            }
            Self::Finished(reason) => {
                let reason = match reason {
                    FinishReason::Stop => "stop",
                    FinishReason::Length => "length",
                };
                recording.note([text("kvasir.finish_reason", reason)]);
                Some(Ending::Finished)
            }
            Self::Failed(error) => Some(Ending::Failed(error.to_string())),
        }
    }
}

impl Telling for PrefillEvent {
    const COUNTED: &'static str = "kvasir.blocks";

    fn tell(&self, recording: &Recording) -> Option<Ending> {
        match self {
            Self::Waiting => None,
            Self::Sealed { .. } => {
                if recording.count() {
                    recording.happened("first_block");
                }
                None
            }
            Self::Window(_) => {
                recording.happened("window");
                None
            }
            Self::Finished { replayed_tokens, window_source } => {
                recording.note([
                    number("kvasir.replayed_tokens", *replayed_tokens),
                    window(*window_source),
                ]);
                Some(Ending::Finished)
            }
            Self::Failed(error) => Some(Ending::Failed(error.to_string())),
        }
    }
}

/// A sink that tells a span what passes through. A worker that drops it without a last event is lost, unless the caller
/// had cancelled.
struct TracedSink<E: Telling> {
    inner: Box<dyn Sink<E>>,
    recording: Recording,
}

impl<E: Telling> Sink<E> for TracedSink<E> {
    fn emit(&mut self, event: E) -> Flow {
        if let Some(ending) = event.tell(&self.recording) {
            end::<E>(&self.recording, ending);
        }
        let flow = self.inner.emit(event);
        if flow == Flow::Closed {
            // As good as a dropped ticket.
            end::<E>(&self.recording, Ending::Cancelled);
        }
        flow
    }
}

impl<E: Telling> Drop for TracedSink<E> {
    fn drop(&mut self) {
        end::<E>(&self.recording, Ending::Lost);
    }
}

/// A ticket that ends the span as cancelled if it is still open, then drops `inner`.
fn traced_ticket<E: Telling>(inner: Ticket, recording: Recording) -> Ticket {
    Ticket::new(move || {
        end::<E>(&recording, Ending::Cancelled);
        drop(inner);
    })
}

fn end<E: Telling>(recording: &Recording, ending: Ending) {
    recording.end(ending, Some(number(E::COUNTED, recording.counted())));
}

/// The parent, if its trace is recorded.
fn recorded(trace: TraceContext) -> Option<TraceContext> {
    trace.sampled.then_some(trace)
}

fn lineage(lineage: Lineage) -> KeyValue {
    text("kvasir.lineage", lineage.as_str())
}

fn window(source: WindowSource) -> KeyValue {
    text("kvasir.window_source", source.as_str())
}

fn length(tokens: usize) -> u64 {
    u64::try_from(tokens).expect("usize has at most 64 bits")
}
