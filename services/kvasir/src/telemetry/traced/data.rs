//! Lookups, offers and reads with a span around each that belongs to a recorded trace.

use std::sync::Arc;

use kvstore::{ReadDone, ReadRequest, Transport};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use shared::{
    BlockStore, Descriptor, Durability, Flow, Grouped, LocateEvent, ObjectKey, OfferEvent,
    OfferOutcome, RequestContext, Sink, Ticket, WorkerRank,
};

use super::{length, recorded};
use crate::telemetry::spans::{Ending, Recording, Tracer, number, text};

/// A store with a span around each lookup and offer.
pub(in crate::telemetry) struct TracedStore {
    inner: Arc<dyn BlockStore>,
    tracer: Arc<Tracer>,
    worker: WorkerRank,
}

/// A transport with a span around each batch of reads.
pub(in crate::telemetry) struct TracedTransport {
    inner: Arc<dyn Transport>,
    tracer: Arc<Tracer>,
    worker: WorkerRank,
}

impl TracedStore {
    pub(in crate::telemetry) fn new(
        inner: Arc<dyn BlockStore>,
        tracer: &Arc<Tracer>,
        worker: WorkerRank,
    ) -> Self {
        Self { inner, tracer: Arc::clone(tracer), worker }
    }
}

impl TracedTransport {
    pub(in crate::telemetry) fn new(
        inner: Arc<dyn Transport>,
        tracer: &Arc<Tracer>,
        worker: WorkerRank,
    ) -> Self {
        Self { inner, tracer: Arc::clone(tracer), worker }
    }
}

impl BlockStore for TracedStore {
    fn locate(
        &self,
        context: RequestContext,
        keys: Vec<Grouped<ObjectKey>>,
        sink: Box<dyn Sink<LocateEvent>>,
    ) -> Ticket {
        let asked = number("kvasir.keys", length(keys.len()));
        let Some(recording) = begin(&self.tracer, "lookup", context, self.worker, asked) else {
            return self.inner.locate(context, keys, sink);
        };
        let context = RequestContext { trace: recording.context(), ..context };
        let sink = told(sink, &recording, 1, |event: &LocateEvent, tally| {
            tally.objects += length(event.found.iter().flatten().count());
        });
        ended_with(self.inner.locate(context, keys, sink), recording)
    }

    fn offer(
        &self,
        context: RequestContext,
        objects: Vec<Grouped<Descriptor>>,
        durability: Durability,
        sink: Box<dyn Sink<OfferEvent>>,
    ) -> Ticket {
        let offered = number("kvasir.objects", length(objects.len()));
        let Some(recording) = begin(&self.tracer, "offer", context, self.worker, offered) else {
            return self.inner.offer(context, objects, durability, sink);
        };
        let context = RequestContext { trace: recording.context(), ..context };
        let sink = told(sink, &recording, objects.len(), |event: &OfferEvent, tally| {
            let held = matches!(event.outcome, OfferOutcome::Stored | OfferOutcome::MemoryOnly);
            tally.objects += u64::from(held);
        });
        ended_with(self.inner.offer(context, objects, durability, sink), recording)
    }
}

impl Transport for TracedTransport {
    fn read(
        &self,
        context: RequestContext,
        reads: Vec<ReadRequest>,
        sink: Box<dyn Sink<ReadDone>>,
    ) -> Ticket {
        let wanted = number("kvasir.objects", length(reads.len()));
        let recording = match reads.is_empty() {
            true => None,
            false => begin(&self.tracer, "read", context, self.worker, wanted),
        };
        let Some(recording) = recording else { return self.inner.read(context, reads, sink) };
        let context = RequestContext { trace: recording.context(), ..context };
        let sink =
            told(sink, &recording, reads.len(), |done: &ReadDone, tally| match done.result {
                Ok(()) => {
                    tally.objects += 1;
                    tally.bytes += u64::from(done.source.bytes);
                }
                Err(error) => {
                    tally.error.get_or_insert_with(|| error.to_string());
                }
            });
        ended_with(self.inner.read(context, reads, sink), recording)
    }
}

fn begin(
    tracer: &Arc<Tracer>,
    name: &'static str,
    context: RequestContext,
    worker: WorkerRank,
    asked: KeyValue,
) -> Option<Recording> {
    let parent = recorded(context.trace)?;
    let attributes = vec![text("kvasir.worker", worker.to_string()), asked];
    Some(tracer.begin(name, context.id, parent, attributes))
}

/// What came of it so far.
#[derive(Default)]
struct Tally {
    /// Found, stored or read.
    objects: u64,
    /// Read.
    bytes: u64,
    /// Why the first of the others failed.
    error: Option<String>,
}

/// A sink that adds up what passes through and ends the span with the last event.
struct TallySink<E, F> {
    inner: Box<dyn Sink<E>>,
    recording: Recording,
    open: usize,
    tally: Tally,
    add: F,
}

fn told<E: 'static>(
    inner: Box<dyn Sink<E>>,
    recording: &Recording,
    events: usize,
    add: impl Fn(&E, &mut Tally) + Send + 'static,
) -> Box<dyn Sink<E>> {
    let recording = recording.clone();
    Box::new(TallySink { inner, recording, open: events, tally: Tally::default(), add })
}

impl<E, F: Fn(&E, &mut Tally) + Send> Sink<E> for TallySink<E, F> {
    fn emit(&mut self, event: E) -> Flow {
        (self.add)(&event, &mut self.tally);
        self.open = self.open.saturating_sub(1);
        if self.open == 0 {
            self.end(Ending::Finished);
        }
        let flow = self.inner.emit(event);
        if flow == Flow::Closed {
            self.end(Ending::Cancelled);
        }
        flow
    }
}

impl<E, F> TallySink<E, F> {
    fn end(&mut self, ending: Ending) {
        let Tally { objects, bytes, error } = std::mem::take(&mut self.tally);
        self.recording
            .note([number("kvasir.objects_done", objects), number("kvasir.bytes", bytes)]);
        let ending = match (ending, error) {
            (Ending::Finished, Some(error)) => Ending::Failed(error),
            (ending, _) => ending,
        };
        self.recording.end(ending, None);
    }
}

impl<E, F> Drop for TallySink<E, F> {
    fn drop(&mut self) {
        self.end(Ending::Lost);
    }
}

/// A ticket that ends the span as cancelled if it is still open, then drops `inner`.
fn ended_with(inner: Ticket, recording: Recording) -> Ticket {
    Ticket::new(move || {
        recording.end(Ending::Cancelled, None);
        drop(inner);
    })
}
