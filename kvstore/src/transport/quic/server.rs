//! The owner's side of QUIC.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, Incoming, RecvStream, SendStream};
use rustls::pki_types::CertificateDer;
use shared::Descriptor;
use tokio::task::JoinSet;
use tokio::{select, time};

use super::code;
use super::settings::server_config;
use crate::pool::{OpenRead, payload_bytes};
use crate::transport::ReadError;
use crate::transport::local::forget_if_damaged;
use crate::transport::peer::{Core, ServedConnection, add};
use crate::transport::wire::{HEAD_BYTES, REQUEST_BYTES_MAX, Status, Verb, read_request};

/// How long the last packets of closing connections may take.
const CLOSE_MAX: Duration = Duration::from_millis(500);

/// Serves connections until the transport closes, then ends them all and says so to the peers.
pub(in crate::transport) async fn serve(core: Arc<Core>) {
    let mut connections = JoinSet::new();
    loop {
        select! {
            () = core.closing.cancelled() => break,
            incoming = core.endpoint.accept() => match incoming {
                None => break,
                Some(incoming) if core.config.connections_max <= connections.len() => {
                    add(&core.counters.connections_refused, 1);
                    incoming.refuse();
                }
                Some(incoming) => drop(connections.spawn(serve_connection(Arc::clone(&core), incoming))),
            },
            Some(ended) = connections.join_next() => report(ended),
        }
    }
    core.endpoint.close(code::CLOSED, b"closed");
    connections.shutdown().await;
    // What is not said in time is found out by the peers through their own idle limit.
    let _in_time = time::timeout(CLOSE_MAX, core.endpoint.wait_idle()).await.is_ok();
}

async fn serve_connection(core: Arc<Core>, incoming: Incoming) {
    let remote = incoming.remote_address();
    let Some(connection) = welcome(&core, incoming).await else {
        return;
    };
    let _counted = ServedConnection::new(&core.counters);
    let mut streams = JoinSet::new();
    loop {
        select! {
            stream = connection.accept_bi() => match stream {
                Ok((send, recv)) => drop(streams.spawn(answer(Arc::clone(&core), send, recv))),
                Err(error) => {
                    tracing::debug!(%remote, %error, "a reader's connection ended");
                    return;
                }
            },
            Some(ended) = streams.join_next() => report(ended),
        }
    }
}

/// Completes the handshake and checks who it is.
async fn welcome(core: &Core, incoming: Incoming) -> Option<Connection> {
    let remote = incoming.remote_address();
    let refused = |error: &str| {
        add(&core.counters.connections_refused, 1);
        tracing::warn!(%remote, error, "a reader's connection was refused");
    };
    let config = match server_config(&core.config, &*core.tls, remote.ip()) {
        Ok(config) => Arc::new(config),
        Err(error) => {
            refused(&error);
            incoming.refuse();
            return None;
        }
    };
    let handshake = async { incoming.accept_with(config)?.await };
    let connection = match time::timeout(core.read_limit(), handshake).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            refused(&error.to_string());
            return None;
        }
        Err(_) => {
            refused("the handshake took too long");
            return None;
        }
    };
    let identity = connection.peer_identity();
    let chain = identity.and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok());
    if core.tls.may_read(chain.as_deref().map_or(&[], Vec::as_slice)) {
        return Some(connection);
    }
    refused("its certificate may not read");
    connection.close(code::FORBIDDEN, b"this certificate may not read");
    None
}

/// Answers one request. A stream that breaks is the reader's business: it cancelled or is gone.
async fn answer(core: Arc<Core>, mut send: SendStream, mut recv: RecvStream) {
    let limit = core.hold_limit();
    let request = time::timeout(limit, recv.read_to_end(REQUEST_BYTES_MAX)).await;
    let Ok(Ok(request)) = request else {
        let _ended = send.reset(code::MALFORMED).is_err();
        return;
    };
    let Some((verb, context, objects)) = read_request(&request) else {
        add(&core.counters.requests_malformed, 1);
        tracing::warn!(bytes = request.len(), "a reader's request is malformed");
        let _ended = send.reset(code::MALFORMED).is_err();
        return;
    };
    tracing::debug!(
        request = %context.id, trace = %context.trace, objects = objects.len(), ?verb, "read over QUIC"
    );
    for object in &objects {
        let part = match verb {
            Verb::Read => payload(&core, object),
            Verb::Check => head(check(&core, object), 0),
        };
        match time::timeout(limit, send.write_chunk(Bytes::from(part))).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => {
                add(&core.counters.holds_expired, 1);
                let _ended = send.reset(code::CANCELLED).is_err();
                return;
            }
        }
    }
    let _ended = send.finish().is_err();
}

/// Status, length and bytes of one object. The slot is held open for the copy alone.
fn payload(core: &Core, object: &Descriptor) -> Vec<u8> {
    let open = match open(core, object) {
        Ok(open) => open,
        Err(error) => return head(Status::of(error), 0),
    };
    let mut part = head(Status::Ready, object.bytes);
    open.read(&mut |payload| part.extend_from_slice(payload));
    core.counters.served(object.bytes);
    part
}

fn check(core: &Core, object: &Descriptor) -> Status {
    let Some(served) = core.registry.served(object.location.region) else {
        return Status::UnknownRegion;
    };
    match served.pool.open(object) {
        Ok(open) if forget_if_damaged(&served.pool, &open) => Status::Damaged,
        Ok(_) => Status::Ready,
        Err(error) => Status::of(error),
    }
}

fn open(core: &Core, object: &Descriptor) -> Result<OpenRead, ReadError> {
    let region = object.location.region;
    let served = core.registry.served(region).ok_or(ReadError::UnknownRegion { region })?;
    served.pool.open(object)
}

/// Status and length, with room for the payload behind them.
fn head(status: Status, bytes: u32) -> Vec<u8> {
    let mut part = Vec::with_capacity(HEAD_BYTES + payload_bytes(bytes));
    part.push(status.code());
    part.extend_from_slice(&bytes.to_be_bytes());
    part
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!("a task that serves readers died, see the message above");
    }
}
