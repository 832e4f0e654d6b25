//! The borders of another process: each call is a task of its link, its events go into the sink from there.
//!
//! What a caller can rely on, whatever the network does: `submit` returns at once; exactly one last event comes, unless
//! the ticket drops before; a member that cannot be had answers on the calling thread, like a full local queue.

mod words;

use std::future::Future;
use std::sync::Arc;

use shared::{
    BlockStore, Decode, DecodeEvent, DecodeRequest, Descriptor, Durability, Flow, Grouped,
    LocateEvent, Miss, ObjectKey, OfferEvent, Prefill, PrefillEvent, PrefillRequest,
    RequestContext, RequestId, ServeError, Sink, Ticket, TraceContext, ungrouped,
};
use tokio::sync::oneshot;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status, Streaming};

use super::convert::{
    decode_request_to_wire, locate_request_to_wire, offer_request_to_wire, prefill_request_to_wire,
};
use super::link::{Call, Link};
use super::streams::{After, BorderEvent};
use super::tasks::Tasks;
use super::{MESSAGE_BYTES_MAX, WireError, v1};
use v1::decode_client::DecodeClient;
use v1::prefill_client::PrefillClient;
use v1::store_client::StoreClient;
use words::{LastWord, OfferWords};

/// A decode worker in another process.
#[derive(Clone, Debug)]
pub struct RemoteDecode {
    link: Arc<Link>,
}

impl RemoteDecode {
    /// The worker at the other end of a link.
    #[must_use]
    pub fn new(link: Arc<Link>) -> Self {
        Self { link }
    }
}

impl Decode for RemoteDecode {
    fn submit(&self, request: DecodeRequest, sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        let link = self.link.inner();
        let mut word = LastWord::new(sink, DecodeEvent::Failed(link.lost()));
        let call = match link.begin_here() {
            Ok(call) => call,
            Err(error) => {
                word.last(DecodeEvent::Failed(error));
                return Ticket::empty();
            }
        };
        let clock = Arc::clone(&link.clock);
        run(call.tasks.clone(), move |cancelled| async move {
            let Call { channel, origin, seat: _seat, .. } = call;
            let message = decode_request_to_wire(&request, clock.now());
            let id = request.id;
            let message = with_metadata(message, id, request.trace);
            // The prompt is not needed twice.
            drop(request);
            let mut client = DecodeClient::with_origin(channel, origin)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
                .max_decoding_message_size(MESSAGE_BYTES_MAX);
            carry_out(id, cancelled, word, client.run(message), DecodeEvent::Failed).await;
        })
    }
}

/// A prefill worker in another process.
#[derive(Clone, Debug)]
pub struct RemotePrefill {
    link: Arc<Link>,
}

impl RemotePrefill {
    /// The worker at the other end of a link.
    #[must_use]
    pub fn new(link: Arc<Link>) -> Self {
        Self { link }
    }
}

impl Prefill for RemotePrefill {
    fn submit(&self, request: PrefillRequest, sink: Box<dyn Sink<PrefillEvent>>) -> Ticket {
        let link = self.link.inner();
        let mut word = LastWord::new(sink, PrefillEvent::Failed(link.lost()));
        let call = match link.begin_here() {
            Ok(call) => call,
            Err(error) => {
                word.last(PrefillEvent::Failed(error));
                return Ticket::empty();
            }
        };
        run(call.tasks.clone(), move |cancelled| async move {
            let Call { channel, origin, seat: _seat, .. } = call;
            let message = prefill_request_to_wire(&request);
            let id = request.id;
            let message = with_metadata(message, id, request.trace);
            drop(request);
            let mut client = PrefillClient::with_origin(channel, origin)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
                .max_decoding_message_size(MESSAGE_BYTES_MAX);
            carry_out(id, cancelled, word, client.run(message), PrefillEvent::Failed).await;
        })
    }
}

/// A store node in another process. What cannot be asked of it is not found and not taken.
#[derive(Clone, Debug)]
pub struct RemoteStore {
    link: Arc<Link>,
}

impl RemoteStore {
    /// The node at the other end of a link.
    #[must_use]
    pub fn new(link: Arc<Link>) -> Self {
        Self { link }
    }
}

impl BlockStore for RemoteStore {
    fn locate(
        &self,
        context: RequestContext,
        keys: Vec<Grouped<ObjectKey>>,
        sink: Box<dyn Sink<LocateEvent>>,
    ) -> Ticket {
        let keys = ungrouped(keys);
        let link = self.link.inner();
        let nothing = LocateEvent::at_once(vec![Err(Miss::NoAnswer); keys.len()]);
        let word = LastWord::new(sink, nothing.clone());
        let Ok(call) = link.begin_here() else {
            // The word's drop says that nothing was found.
            return Ticket::empty();
        };
        run(call.tasks.clone(), move |cancelled| async move {
            let Call { channel, origin, seat: _seat, .. } = call;
            let message = locate_request_to_wire(context, &keys);
            let message = with_metadata(message, context.id, context.trace);
            let mut client = StoreClient::with_origin(channel, origin)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
                .max_decoding_message_size(MESSAGE_BYTES_MAX);
            carry_out(context.id, cancelled, word, client.locate(message), move |_| nothing).await;
        })
    }

    fn offer(
        &self,
        context: RequestContext,
        objects: Vec<Grouped<Descriptor>>,
        durability: Durability,
        sink: Box<dyn Sink<OfferEvent>>,
    ) -> Ticket {
        let objects = ungrouped(objects);
        let link = self.link.inner();
        let words = OfferWords::new(sink, &objects);
        let Ok(call) = link.begin_here() else {
            // The drop of the words says that nothing was taken.
            return Ticket::empty();
        };
        run(call.tasks.clone(), move |cancelled| async move {
            let Call { channel, origin, seat: _seat, .. } = call;
            let message = offer_request_to_wire(context, &objects, durability);
            let message = with_metadata(message, context.id, context.trace);
            let mut client = StoreClient::with_origin(channel, origin)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
                .max_decoding_message_size(MESSAGE_BYTES_MAX);
            carry_out_offer(context.id, cancelled, words, client.offer(message)).await;
        })
    }
}

type Cancelled = oneshot::Receiver<()>;

/// Runs a call as a task of the link, until it ends by itself, the ticket drops or the link stops.
fn run<F>(tasks: Tasks, call: impl FnOnce(Cancelled) -> F) -> Ticket
where
    F: Future<Output = ()> + Send + 'static,
{
    let (cancel, cancelled) = oneshot::channel();
    tasks.spawn(call(cancelled));
    Ticket::new(move || drop(cancel))
}

/// Carries out a call until it ends or is cancelled; then nobody listens and nothing more is said.
async fn carry_out<E: BorderEvent>(
    id: RequestId,
    mut cancelled: Cancelled,
    mut word: LastWord<E>,
    response: impl Future<Output = Result<Response<Streaming<E::Message>>, Status>>,
    failed: impl FnOnce(ServeError) -> E,
) {
    let ended = tokio::select! {
        biased;
        _ = &mut cancelled => None,
        ended = exchange(id, response, &mut word) => Some(ended),
    };
    match ended {
        None => word.forget(),
        Some(Err(error)) => word.last(failed(error)),
        // Without a last event the member is lost, which the word's drop says.
        Some(Ok(())) => {}
    }
}

/// Passes the events of a call on. Returns when the stream ended or broke, or nobody listens; an error when the member
/// answered and would not do it.
async fn exchange<E: BorderEvent>(
    id: RequestId,
    response: impl Future<Output = Result<Response<Streaming<E::Message>>, Status>>,
    word: &mut LastWord<E>,
) -> Result<(), ServeError> {
    let mut events = match response.await {
        Ok(response) => response.into_inner(),
        Err(status) => return broken(id, &status),
    };
    loop {
        let message = match events.message().await {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(status) => return broken(id, &status),
        };
        let event = E::try_from(message).map_err(|error| malformed(id, &error))?;
        let after = event.after();
        if word.pass(event) == Flow::Closed || after == After::Ends {
            return Ok(());
        }
        if after == After::Pins {
            // Open until the ticket drops; its end tells nothing, what was pinned is gone then.
            while let Ok(Some(_)) = events.message().await {}
            return Ok(());
        }
    }
}

/// As [`carry_out`], for a call with one event per object.
async fn carry_out_offer(
    id: RequestId,
    mut cancelled: Cancelled,
    mut words: OfferWords,
    response: impl Future<Output = Result<Response<Streaming<v1::OfferEvent>>, Status>>,
) {
    let exchange = async {
        let mut events = response.await?.into_inner();
        while !words.is_over() {
            let Some(message) = events.message().await? else { break };
            match OfferEvent::try_from(message) {
                Ok(event) => words.pass(event),
                Err(error) => return Err(Status::internal(error.to_string())),
            }
        }
        Ok::<(), Status>(())
    };
    let ended = tokio::select! {
        biased;
        _ = &mut cancelled => None,
        ended = exchange => Some(ended),
    };
    match ended {
        None => words.forget(),
        // What was not answered is dropped, which the words' drop says.
        Some(Err(status)) => tracing::debug!(request = %id, %status, "an offer broke off"),
        Some(Ok(())) => {}
    }
}

/// What a status means: nothing when the connection or the member is gone, otherwise why it would not.
fn broken(id: RequestId, status: &Status) -> Result<(), ServeError> {
    match status.code() {
        Code::PermissionDenied
        | Code::Unauthenticated
        | Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::ResourceExhausted
        | Code::Unimplemented => {
            tracing::warn!(request = %id, %status, "a call was refused");
            Err(ServeError::Internal { message: status.message().to_owned() })
        }
        _ => {
            tracing::debug!(request = %id, %status, "a call broke off");
            Ok(())
        }
    }
}

fn malformed(id: RequestId, error: &WireError) -> ServeError {
    tracing::error!(request = %id, %error, "a member sent a malformed event");
    ServeError::Internal { message: format!("malformed event: {error}") }
}

/// A request with the id and trace of its cause where proxies and tools look for them.
fn with_metadata<M>(message: M, id: RequestId, trace: TraceContext) -> Request<M> {
    let mut request = Request::new(message);
    set(request.metadata_mut(), "x-request-id", &id.to_string());
    if trace != TraceContext::NONE {
        set(request.metadata_mut(), "traceparent", &trace.to_string());
    }
    request
}

fn set(metadata: &mut MetadataMap, key: &'static str, value: &str) {
    let value = value.parse().expect("digits and hyphens are a header's value");
    metadata.insert(key, value);
}
