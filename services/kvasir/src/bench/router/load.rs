//! Requests in a closed loop: so many connections, each with one request at a time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, anyhow, ensure};
use axum::body::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use shared::Clock;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// What one run of requests found.
#[derive(Debug)]
pub(super) struct Sent {
    /// Milliseconds from sending to the end of the answer, in no order.
    pub(super) milliseconds: Vec<f64>,
    /// Seconds from the first request to the last answer.
    pub(super) seconds: f64,
}

/// Requests that are ready to be sent.
#[derive(Clone)]
pub(super) struct Shots {
    /// Where to, in turns by connection.
    pub(super) servers: Vec<SocketAddr>,
    /// One body per request.
    pub(super) bodies: Arc<[Bytes]>,
}

/// Sends all of them over `connections` connections that are open before the first.
///
/// # Errors
/// When a server cannot be reached, breaks off, or answers with another status than 200.
pub(super) async fn send(
    shots: &Shots,
    connections: usize,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Sent> {
    let mut background = JoinSet::new();
    let mut senders = Vec::with_capacity(connections);
    for connection in 0..connections {
        let server = shots.servers[connection % shots.servers.len()];
        let stream = TcpStream::connect(server).await;
        let stream = stream.with_context(|| format!("{server} cannot be reached"))?;
        stream.set_nodelay(true).context("a socket option")?;
        let (sender, open) = handshake(TokioIo::new(stream)).await.context("no HTTP")?;
        // Ends with its sender; what went wrong shows there.
        background.spawn(async move { open.await.is_ok() });
        senders.push((server, sender));
    }
    let next = Arc::new(AtomicUsize::new(0));
    let began = clock.now();
    let mut tasks = JoinSet::new();
    for (server, sender) in senders {
        let (bodies, next) = (Arc::clone(&shots.bodies), Arc::clone(&next));
        tasks.spawn(shoot(sender, server, bodies, next, Arc::clone(clock)));
    }
    let mut milliseconds = Vec::with_capacity(shots.bodies.len());
    while let Some(ended) = tasks.join_next().await {
        milliseconds.extend(ended.map_err(|error| anyhow!(error))??);
    }
    let seconds = clock.now().since(began).as_secs_f64();
    Ok(Sent { milliseconds, seconds })
}

async fn shoot(
    mut sender: SendRequest<Full<Bytes>>,
    server: SocketAddr,
    bodies: Arc<[Bytes]>,
    next: Arc<AtomicUsize>,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Vec<f64>> {
    let mut milliseconds = Vec::new();
    while let Some(body) = bodies.get(next.fetch_add(1, Ordering::Relaxed)) {
        let request = Request::post("/v1/chat/completions")
            .header(HOST, server.to_string())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body.clone()))
            .context("a request")?;
        let sent = clock.now();
        let answer = sender.send_request(request).await;
        let answer = answer.with_context(|| format!("{server} broke off"))?;
        let status = answer.status();
        let said = answer.into_body().collect().await;
        let said = said.with_context(|| format!("{server} broke off in an answer"))?.to_bytes();
        milliseconds.push(clock.now().since(sent).as_secs_f64() * 1e3);
        ensure!(
            status.is_success(),
            "{server} answered {status}: {}",
            String::from_utf8_lossy(&said[..said.len().min(400)])
        );
        sender.ready().await.with_context(|| format!("{server} closed the connection"))?;
    }
    Ok(milliseconds)
}
