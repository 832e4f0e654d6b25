//! The services of a server: each checks who calls, turns the message into a request of a border and submits it.

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use futures::stream::{Stream, unfold};
use shared::{
    BlockStore, Clock, Decode, DecodeEvent, Descriptor, Grouped, LocateEvent, ObjectKey,
    OfferEvent, Prefill, PrefillEvent, WorkerEvent,
};
use tokio::sync::{mpsc, watch};
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Request, Response, Status, async_trait};

use super::{EventHub, Facts, Peer, RouterHub, RouterNews, Services, stopped};
use crate::identity::{Service, may_call};
use crate::wire::convert::{
    decode_request_from_wire, locate_request_from_wire, offer_request_from_wire,
    prefill_request_from_wire, question_from_wire, worker_event_part,
};
use crate::wire::streams::{EventStream, event_stream};
use crate::wire::{MESSAGE_BYTES_MAX, WireError, v1};
use v1::decode_server::DecodeServer;
use v1::events_server::EventsServer;
use v1::member_server::MemberServer;
use v1::prefill_server::PrefillServer;
use v1::routers_server::RoutersServer;
use v1::store_server::StoreServer;

/// Tokens of an answer that its caller may lag behind: more than a minute of decoding.
const TOKENS_QUEUED_MAX: usize = 4_096;
/// Events of a prefill besides one per block: the window object, the end, and signs of life.
const PREFILL_EVENTS_EXTRA: usize = 64;

/// The services that are there, with the bound on messages.
pub(super) fn routes(services: Services, stop: &watch::Receiver<bool>) -> Routes {
    let gate = Gate { facts: Arc::new(services.facts) };
    let max = MESSAGE_BYTES_MAX;
    let us = gate.facts.member.clone();
    let unserved = move || {
        let status = Status::unimplemented(format!("{us} does not serve this call"));
        ready(status.into_http::<Body>())
    };
    let mut routes =
        Routes::from(Router::new().fallback(unserved)).add_service(MemberServer::new(gate.clone()));
    if let Some(worker) = services.decode {
        let service = DecodeService { gate: gate.clone(), worker, clock: services.clock };
        let server = DecodeServer::new(service);
        routes = routes
            .add_service(server.max_decoding_message_size(max).max_encoding_message_size(max));
    }
    if let Some(worker) = services.prefill {
        let server = PrefillServer::new(PrefillService { gate: gate.clone(), worker });
        routes = routes
            .add_service(server.max_decoding_message_size(max).max_encoding_message_size(max));
    }
    if let Some(store) = services.store {
        let server = StoreServer::new(StoreService { gate: gate.clone(), store });
        routes = routes
            .add_service(server.max_decoding_message_size(max).max_encoding_message_size(max));
    }
    if let Some(hub) = services.events {
        let service = EventsService { gate: gate.clone(), hub, stop: stop.clone() };
        let server = EventsServer::new(service);
        routes = routes
            .add_service(server.max_decoding_message_size(max).max_encoding_message_size(max));
    }
    if let Some(hub) = services.routers {
        let server = RoutersServer::new(RoutersService { gate, hub, stop: stop.clone() });
        routes = routes
            .add_service(server.max_decoding_message_size(max).max_encoding_message_size(max));
    }
    routes.prepare()
}

/// Decides who may call.
#[derive(Clone)]
struct Gate {
    facts: Arc<Facts>,
}

impl Gate {
    fn peer<M>(request: &Request<M>) -> Result<&Arc<Peer>, Status> {
        let peer = request.extensions().get::<Arc<Peer>>();
        peer.ok_or_else(|| Status::unauthenticated("the connection has no peer"))
    }

    /// Lets a greeted peer of an allowed role through.
    fn admit<M>(&self, request: &Request<M>, service: Service) -> Result<(), Status> {
        let peer = Self::peer(request)?;
        let us = &self.facts.member;
        if !may_call(peer.member.role(), service) {
            tracing::warn!(caller = %peer.member, %service, "refused a call that the caller's role does not allow");
            return Err(Status::permission_denied(format!(
                "{} may not call {service} of {us}",
                peer.member
            )));
        }
        if !peer.greeted.load(Ordering::Acquire) {
            return Err(Status::failed_precondition(format!("say Hello to {us} first")));
        }
        Ok(())
    }
}

fn malformed(error: &WireError) -> Status {
    Status::invalid_argument(error.to_string())
}

#[async_trait]
impl v1::member_server::Member for Gate {
    async fn hello(
        &self,
        request: Request<v1::HelloRequest>,
    ) -> Result<Response<v1::HelloResponse>, Status> {
        let peer = Arc::clone(Self::peer(&request)?);
        let missing = WireError::Missing { field: "facts" };
        let facts = request.into_inner().facts.ok_or_else(|| malformed(&missing))?;
        let facts = Facts::try_from(facts).map_err(|error| malformed(&error))?;
        if facts.member != peer.member {
            let text = format!("{} says it is {}", peer.member, facts.member);
            return Err(Status::permission_denied(text));
        }
        if let Err(disagreement) = self.facts.agree(&facts) {
            tracing::error!(caller = %peer.member, %disagreement, "refused a member that does not fit");
            return Err(Status::failed_precondition(disagreement.to_string()));
        }
        peer.greeted.store(true, Ordering::Release);
        Ok(Response::new(v1::HelloResponse { facts: Some(self.facts.as_ref().into()) }))
    }
}

struct DecodeService {
    gate: Gate,
    worker: Arc<dyn Decode>,
    clock: Arc<dyn Clock>,
}

#[async_trait]
impl v1::decode_server::Decode for DecodeService {
    type RunStream = EventStream<DecodeEvent>;

    async fn run(
        &self,
        request: Request<v1::DecodeRequest>,
    ) -> Result<Response<Self::RunStream>, Status> {
        self.gate.admit(&request, Service::Decode)?;
        let request = decode_request_from_wire(request.into_inner(), self.clock.now())
            .map_err(|error| malformed(&error))?;
        tracing::debug!(request = %request.id, trace = %request.trace, prompt_tokens = request.prompt.len(), "decode called");
        let capacity = TOKENS_QUEUED_MAX;
        Ok(Response::new(event_stream(capacity, |sink| self.worker.submit(request, sink))))
    }
}

struct PrefillService {
    gate: Gate,
    worker: Arc<dyn Prefill>,
}

#[async_trait]
impl v1::prefill_server::Prefill for PrefillService {
    type RunStream = EventStream<PrefillEvent>;

    async fn run(
        &self,
        request: Request<v1::PrefillRequest>,
    ) -> Result<Response<Self::RunStream>, Status> {
        self.gate.admit(&request, Service::Prefill)?;
        let request =
            prefill_request_from_wire(request.into_inner()).map_err(|error| malformed(&error))?;
        tracing::debug!(request = %request.id, trace = %request.trace, from = request.from, to = request.to, "prefill called");
        let capacity = request.names.len() + PREFILL_EVENTS_EXTRA;
        Ok(Response::new(event_stream(capacity, |sink| self.worker.submit(request, sink))))
    }
}

struct StoreService {
    gate: Gate,
    store: Arc<dyn BlockStore>,
}

#[async_trait]
impl v1::store_server::Store for StoreService {
    type LocateStream = EventStream<LocateEvent>;
    type OfferStream = EventStream<OfferEvent>;

    async fn locate(
        &self,
        request: Request<v1::LocateRequest>,
    ) -> Result<Response<Self::LocateStream>, Status> {
        self.gate.admit(&request, Service::Store)?;
        let (context, keys) =
            locate_request_from_wire(request.into_inner()).map_err(|error| malformed(&error))?;
        tracing::debug!(request = %context.id, trace = %context.trace, keys = keys.len(), "lookup called");
        // A node keeps everything in one place, so groups are not on the wire.
        let keys = keys.into_iter().map(Grouped::<ObjectKey>::alone).collect();
        Ok(Response::new(event_stream(1, |sink| self.store.locate(context, keys, sink))))
    }

    async fn offer(
        &self,
        request: Request<v1::OfferRequest>,
    ) -> Result<Response<Self::OfferStream>, Status> {
        self.gate.admit(&request, Service::Store)?;
        let (context, objects, durability) =
            offer_request_from_wire(request.into_inner()).map_err(|error| malformed(&error))?;
        tracing::debug!(request = %context.id, trace = %context.trace, objects = objects.len(), "offer called");
        let objects: Vec<_> = objects.into_iter().map(Grouped::<Descriptor>::alone).collect();
        Ok(Response::new(event_stream(objects.len(), |sink| {
            self.store.offer(context, objects, durability, sink)
        })))
    }
}

struct EventsService {
    gate: Gate,
    hub: Arc<EventHub>,
    stop: watch::Receiver<bool>,
}

#[async_trait]
impl v1::events_server::Events for EventsService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::WorkerEvent, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.gate.admit(&request, Service::Events)?;
        let events = self
            .hub
            .watch()
            .map_err(|_| Status::resource_exhausted("too many watch this member already"))?;
        let telling = Telling { events, begun: None, stop: self.stop.clone(), ended: false };
        let stream = unfold(telling, |mut telling| async {
            telling.next().await.map(|message| (message, telling))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn ask(
        &self,
        request: Request<v1::AskRequest>,
    ) -> Result<Response<v1::AskResponse>, Status> {
        self.gate.admit(&request, Service::Events)?;
        let question = question_from_wire(request.into_inner());
        self.hub.ask(question.map_err(|error| malformed(&error))?);
        Ok(Response::new(v1::AskResponse {}))
    }
}

/// A watcher's queue on its way into the stream.
struct Telling {
    events: mpsc::Receiver<Arc<WorkerEvent>>,
    /// An event in several parts, and the part to go next.
    begun: Option<(Arc<WorkerEvent>, usize)>,
    stop: watch::Receiver<bool>,
    ended: bool,
}

impl Telling {
    async fn next(&mut self) -> Option<Result<v1::WorkerEvent, Status>> {
        if self.ended {
            return None;
        }
        let (event, part) = match self.begun.take() {
            Some(begun) => begun,
            None => {
                let event = tokio::select! {
                    biased;
                    () = stopped(&mut self.stop) => return None,
                    event = self.events.recv() => event,
                };
                let Some(event) = event else {
                    self.ended = true;
                    let text = "events were taken too slowly; watch again to begin anew";
                    return Some(Err(Status::resource_exhausted(text)));
                };
                (event, 0)
            }
        };
        let (message, more) = worker_event_part(&event, part);
        if more {
            self.begun = Some((event, part + 1));
        }
        Some(Ok(message))
    }
}

struct RoutersService {
    gate: Gate,
    hub: Arc<RouterHub>,
    stop: watch::Receiver<bool>,
}

#[async_trait]
impl v1::routers_server::Routers for RoutersService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::RouterNews, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<v1::RoutersRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.gate.admit(&request, Service::Routers)?;
        let news = self
            .hub
            .watch()
            .map_err(|_| Status::resource_exhausted("too many routers watch this one already"))?;
        let telling = (Some(news), self.stop.clone());
        let stream = unfold(telling, |(news, stop)| async { next_news(news?, stop).await });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// A watcher's queue, none behind its last word, and when to stop.
type Listening = (Option<mpsc::Receiver<Arc<RouterNews>>>, watch::Receiver<bool>);

async fn next_news(
    mut news: mpsc::Receiver<Arc<RouterNews>>,
    mut stop: watch::Receiver<bool>,
) -> Option<(Result<v1::RouterNews, Status>, Listening)> {
    let next = tokio::select! {
        biased;
        () = stopped(&mut stop) => return None,
        next = news.recv() => next,
    };
    Some(match next {
        Some(next) => (Ok(next.as_ref().into()), (Some(news), stop)),
        None => {
            let text = "news were taken too slowly; watch again to begin anew";
            (Err(Status::resource_exhausted(text)), (None, stop))
        }
    })
}
