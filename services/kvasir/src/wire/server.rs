//! Answers the calls of other members.
//!
//! One task per connection; hyper's tasks below it are tracked, so that all of them end with the server. A connection
//! begins with TLS, in which the peer proves who it is, then a `Hello`; before that nothing else is answered.

mod services;

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use shared::{BlockStore, Clock, Decode, Prefill};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tonic::codegen::Service as _;
use tonic::codegen::http::Request;
use tonic::service::Routes;

use super::gather::Gather;
use super::tasks::Tasks;
use super::{EventHub, Facts, RouterHub, RouterNews};
use crate::identity::{Identity, MemberIdentity, member_of};
use crate::lanes::Lanes;

/// The protocol's name inside TLS.
pub(super) const ALPN: &[u8] = b"h2";
/// Window of one stream and of one connection, in bytes: a prompt of 100,000 tokens goes out without waiting for the
/// peer to grant more, and a stalled stream holds at most this much memory.
pub(super) const STREAM_WINDOW: u32 = 1 << 20;
pub(super) const CONNECTION_WINDOW: u32 = 16 << 20;
/// Streams that were reset before they were looked at. Hyper's default of 20 is meant for the public; here a burst of
/// cancelled requests must not end the connection of all others.
const RESETS_PENDING_MAX: usize = 4_096;
/// Pause after the system refused a connection, mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The bounds of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Connections at a time; further ones are closed at once. Members times two, since a restarted peer may come before
    /// its old connection is noticed.
    pub connections_max: usize,
    /// Calls at a time on one connection. A caller's [`super::LinkLimits::calls_max`] should be lower.
    pub calls_max: u32,
    /// Longest TLS handshake.
    pub handshake_max: Duration,
    /// Pause between signs of life asked of a peer.
    pub keep_alive_interval: Duration,
    /// Longest wait for one, after which the peer counts as gone and its requests end.
    pub keep_alive_timeout: Duration,
    /// Longest wait for calls in progress once the server is told to stop.
    pub drain_max: Duration,
}

impl ServerLimits {
    /// 1,024 connections of 4,096 calls; 5 s for a handshake; signs of life every second within 3 s; 10 s to drain.
    pub const DEFAULT: Self = Self {
        connections_max: 1_024,
        calls_max: 4_096,
        handshake_max: Duration::from_secs(5),
        keep_alive_interval: Duration::from_secs(1),
        keep_alive_timeout: Duration::from_secs(3),
        drain_max: Duration::from_secs(10),
    };
}

/// What a server offers. What is `None` is not served: UNIMPLEMENTED.
pub struct Services {
    /// What every caller must agree with.
    pub facts: Facts,
    /// The clock that deadlines of requests are set by.
    pub clock: Arc<dyn Clock>,
    /// The bounds.
    pub limits: ServerLimits,
    /// The decode worker.
    pub decode: Option<Arc<dyn Decode>>,
    /// The prefill worker.
    pub prefill: Option<Arc<dyn Prefill>>,
    /// The store.
    pub store: Option<Arc<dyn BlockStore>>,
    /// What the workers of this process tell.
    pub events: Option<Arc<EventHub>>,
    /// What the router of this process has placed.
    pub routers: Option<Arc<RouterHub>>,
    /// Threads that connections live on; without them they are where the server is.
    pub(crate) lanes: Lanes,
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "connections that were cut off should be reported"]
pub struct ServeReport {
    /// Connections with calls in progress when the time to drain was over.
    pub connections_cut_off: usize,
}

/// The peer of a connection, put into every request of it.
pub(super) struct Peer {
    pub(super) member: MemberIdentity,
    /// Whether its facts were found to agree.
    pub(super) greeted: AtomicBool,
}

/// Serves until `stop` becomes true or its sender drops; then accepts no more, ends the streams of `Watch`, lets calls in
/// progress end for at most [`ServerLimits::drain_max`], and cuts off the rest. Dropping the future cuts off everything.
///
/// Calls in progress include those that only pin something: their callers end them.
pub async fn serve(
    listener: TcpListener,
    identity: Arc<Identity>,
    services: Services,
    mut stop: watch::Receiver<bool>,
) -> ServeReport {
    let limits = services.limits;
    let member = services.facts.member.clone();
    let lanes = services.lanes.clone();
    let tasks: Box<[Tasks]> =
        (0..lanes.len()).map(|number| Tasks::new(lanes.runtime(number).clone())).collect();
    let tasks = StopOnDrop { here: Tasks::new(Handle::current()), lanes: tasks };
    let host =
        Host { identity, limits, routes: services::routes(services, &stop), stop: stop.clone() };
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            Some(ended) = connections.join_next() => joined(ended),
            accepted = listener.accept() => match accepted {
                Ok((_, from)) if limits.connections_max <= connections.len() => {
                    tracing::warn!(%member, %from, connections_max = limits.connections_max, "refused a connection: there are too many");
                }
                Ok((socket, from)) => {
                    begin(&mut connections, host.clone(), (socket, from), (&lanes, &tasks));
                }
                Err(error) => {
                    tracing::warn!(%member, %error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let all_ended = async {
        while let Some(ended) = connections.join_next().await {
            joined(ended);
        }
    };
    // What is cut off is counted below.
    let _: Result<(), _> = timeout(limits.drain_max, all_ended).await;
    let connections_cut_off = connections.len();
    connections.shutdown().await;
    for tasks in tasks.all() {
        tasks.stop();
        tasks.ended().await;
    }
    ServeReport { connections_cut_off }
}

/// What hyper runs for connections, by where these live.
struct StopOnDrop {
    here: Tasks,
    lanes: Box<[Tasks]>,
}

impl StopOnDrop {
    fn all(&self) -> impl Iterator<Item = &Tasks> {
        std::iter::once(&self.here).chain(&self.lanes)
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.all().for_each(Tasks::stop);
    }
}

/// Moves a connection to the thread it will live on.
fn begin(
    connections: &mut JoinSet<()>,
    host: Host,
    (socket, from): (TcpStream, SocketAddr),
    (lanes, tasks): (&Lanes, &StopOnDrop),
) {
    let Some(place) = lanes.place() else {
        connections.spawn(connection(host, socket, from, (tasks.here.clone(), false)));
        return;
    };
    let (runtime, tasks) = (place.runtime().clone(), tasks.lanes[place.number()].clone());
    let living = async move {
        // Whoever reads a socket is woken by the runtime that it was made known to.
        match socket.into_std().and_then(TcpStream::from_std) {
            Ok(socket) => connection(host, socket, from, (tasks, true)).await,
            Err(error) => tracing::warn!(%from, %error, "cannot take a connection"),
        }
        drop(place);
    };
    connections.spawn_on(living, &runtime);
}

/// Returns when the server is to stop.
pub(super) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A sender that dropped means the same.
    drop(stop.wait_for(|stop| *stop).await);
}

fn joined(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "the task of a connection died; see its panic above");
    }
}

/// What every connection needs.
#[derive(Clone)]
struct Host {
    identity: Arc<Identity>,
    limits: ServerLimits,
    routes: Routes,
    stop: watch::Receiver<bool>,
}

/// Serves a connection with tasks that are all on one thread or not.
async fn connection(
    host: Host,
    socket: TcpStream,
    from: SocketAddr,
    (tasks, on_one_thread): (Tasks, bool),
) {
    let Host { identity, limits, routes, mut stop } = host;
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%from, %error, "a connection ended before it began");
        return;
    }
    let mut config = identity.tls_server().as_ref().clone();
    config.alpn_protocols = vec![ALPN.to_vec()];
    let accepting = TlsAcceptor::from(Arc::new(config)).accept(Gather::new(socket));
    let mut stream = match timeout(limits.handshake_max, accepting).await {
        Ok(Ok(stream)) => stream,
        // A peer that gave up while this member was still loading.
        Ok(Err(error)) if error.kind() == ErrorKind::UnexpectedEof => {
            tracing::debug!(%from, %error, "a connection ended before it began");
            return;
        }
        Ok(Err(error)) => {
            tracing::warn!(%from, %error, "refused a connection: its peer proved no identity of this cluster");
            return;
        }
        Err(_) => {
            tracing::warn!(%from, "refused a connection: its peer took too long to prove its identity");
            return;
        }
    };
    let Some(member) = member_of(stream.get_ref().1.peer_certificates().unwrap_or_default()) else {
        tracing::warn!(%from, "refused a connection: the certificate of its peer names no member");
        return;
    };
    if on_one_thread {
        stream.get_mut().0.gather();
    }
    tracing::debug!(%member, %from, "connected");
    let peer = Arc::new(Peer { member, greeted: AtomicBool::new(false) });
    let called = Arc::clone(&peer);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&called));
        let answer = routes.clone().call(request);
        async move { answer.await.map_err(|never: Infallible| never) }
    });
    let connection = builder(tasks, limits).serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    match ended {
        Ok(()) => tracing::debug!(member = %peer.member, "disconnected"),
        Err(error) => tracing::info!(member = %peer.member, %error, "lost a connection"),
    }
}

fn builder(tasks: Tasks, limits: ServerLimits) -> http2::Builder<Tasks> {
    let mut builder = http2::Builder::new(tasks);
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(limits.keep_alive_interval)
        .keep_alive_timeout(limits.keep_alive_timeout)
        .max_concurrent_streams(limits.calls_max)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
        // Counts over the life of a connection, which here is that of the peer.
        .max_local_error_reset_streams(None);
    builder
}
