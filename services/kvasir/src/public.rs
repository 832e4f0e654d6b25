//! The public port: connections of clients, with TLS or without, and the files of keys and certificates behind it.
//!
//! Invariants: connections and what each may send before its first request are bounded; a handshake holds up nobody else;
//! a file that changed is taken within a second, and a bad one changes nothing and is told once.

mod tls;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use gateway::{Gateway, KeyRing, MetricsProvider};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::config::HttpConfig;
use crate::keys::KeyWatch;
use crate::lanes::{Lanes, counted};
use tls::PublicTls;

/// Pause between two looks at the files.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// Pause after an accept that failed: for want of file descriptors, which others give back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// What the port counts.
#[derive(Debug, Default)]
struct Counts {
    connections: AtomicUsize,
    refused: AtomicU64,
    handshakes_failed: AtomicU64,
    keys: AtomicUsize,
    files_refused: AtomicU64,
}

/// A public port that is about to be opened.
pub(crate) struct Public {
    config: HttpConfig,
    ring: Option<KeyRing>,
    keys: Option<KeyWatch>,
    tls: Option<PublicTls>,
    counts: Arc<Counts>,
}

impl Public {
    /// Reads keys and certificates. Blocks on their files.
    ///
    /// # Errors
    /// When one of them cannot be used; the text says what to do.
    pub(crate) fn open(config: &HttpConfig) -> anyhow::Result<Self> {
        let mut public = Self {
            config: config.clone(),
            ring: None,
            keys: None,
            tls: None,
            counts: Arc::default(),
        };
        if config.has_keys() {
            let (watch, ring) = KeyWatch::open(&config.keys_file)?;
            public.counts.keys.store(ring.len(), Ordering::Relaxed);
            (public.keys, public.ring) = (Some(watch), Some(ring));
        }
        if config.has_tls() {
            public.tls = Some(PublicTls::open(&config.certificate_file, &config.key_file)?);
        }
        Ok(public)
    }

    /// How its addresses begin.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Writes the port's figures.
    pub(crate) fn figures(&self) -> MetricsProvider {
        let (counts, most) = (Arc::clone(&self.counts), self.config.connections_max);
        Arc::new(move |text| counts.write(most, text))
    }

    /// Serves a gateway until told to stop, or until the sender drops; answers in work are finished. Dropping the future
    /// cuts them off. Each connection lives on the thread of `lanes` with the fewest of them.
    pub(crate) async fn serve(
        mut self,
        listener: TcpListener,
        (gateway, lanes): (Gateway, Lanes),
        mut stopped: watch::Receiver<bool>,
    ) {
        gateway.set_keys(self.ring.take());
        let host = Host {
            router: gateway.public_router(),
            config: self.config.clone(),
            counts: Arc::clone(&self.counts),
            stopped: stopped.clone(),
        };
        let mut connections = JoinSet::new();
        let mut period = interval(LOOK_PERIOD);
        loop {
            tokio::select! {
                biased;
                () = told(&mut stopped) => break,
                Some(ended) = connections.join_next() => joined(ended),
                _ = period.tick() => block_in_place(|| self.look(&gateway)),
                accepted = listener.accept() => match accepted {
                    Ok(_) if self.config.connections_max <= connections.len() => {
                        self.counts.refused.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok((socket, from)) => {
                        let tls = self.tls.as_ref().map(PublicTls::acceptor);
                        host.clone().begin(&mut connections, &lanes, (socket, from), tls);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a client's connection");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
            self.counts.connections.store(connections.len(), Ordering::Relaxed);
        }
        drop(listener);
        while let Some(ended) = connections.join_next().await {
            joined(ended);
        }
    }

    /// Takes what is new and good.
    fn look(&mut self, gateway: &Gateway) {
        match self.keys.as_mut().and_then(KeyWatch::look) {
            None => {}
            Some(Ok(ring)) => {
                tracing::info!(keys = ring.len(), "API keys were read again");
                self.counts.keys.store(ring.len(), Ordering::Relaxed);
                gateway.set_keys(Some(ring));
            }
            Some(Err(error)) => {
                self.refused(&error, "the changed API keys cannot be used; those before stay");
            }
        }
        match self.tls.as_mut().and_then(PublicTls::look) {
            None => {}
            Some(Ok(())) => tracing::info!("the public port's certificate was replaced"),
            Some(Err(error)) => {
                self.refused(
                    &error,
                    "the public port's new certificate cannot be used; the one before stays",
                );
            }
        }
    }

    fn refused(&self, error: &anyhow::Error, what: &str) {
        self.counts.files_refused.fetch_add(1, Ordering::Relaxed);
        let error = format!("{error:#}");
        tracing::error!(error, "{what}");
    }
}

impl Counts {
    fn write(&self, connections_max: usize, text: &mut String) {
        use std::fmt::Write;

        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let level = |level: &AtomicUsize| level.load(Ordering::Relaxed);
        let written = write!(
            text,
            "# HELP kvasir_http_connections Connections of clients, of at most kvasir_http_connections_max\n\
             # TYPE kvasir_http_connections gauge\n\
             kvasir_http_connections {}\n\
             # TYPE kvasir_http_connections_max gauge\n\
             kvasir_http_connections_max {connections_max}\n\
             # HELP kvasir_http_connections_refused_total Connections closed because there were too many\n\
             # TYPE kvasir_http_connections_refused_total counter\n\
             kvasir_http_connections_refused_total {}\n\
             # HELP kvasir_http_handshakes_failed_total TLS handshakes that failed or took too long\n\
             # TYPE kvasir_http_handshakes_failed_total counter\n\
             kvasir_http_handshakes_failed_total {}\n\
             # HELP kvasir_http_keys API keys that are accepted; 0 with no file of keys\n\
             # TYPE kvasir_http_keys gauge\n\
             kvasir_http_keys {}\n\
             # HELP kvasir_http_files_refused_total Changed files of keys or certificates that could not be used\n\
             # TYPE kvasir_http_files_refused_total counter\n\
             kvasir_http_files_refused_total {}\n",
            level(&self.connections),
            count(&self.refused),
            count(&self.handshakes_failed),
            level(&self.keys),
            count(&self.files_refused),
        );
        written.expect("writing to a string never fails");
    }
}

/// What every connection needs.
#[derive(Clone)]
struct Host {
    router: Router,
    config: HttpConfig,
    counts: Arc<Counts>,
    stopped: watch::Receiver<bool>,
}

impl Host {
    /// Moves a connection to the thread it will live on.
    fn begin(
        self,
        connections: &mut JoinSet<()>,
        lanes: &Lanes,
        (socket, from): (TcpStream, SocketAddr),
        tls: Option<TlsAcceptor>,
    ) {
        let Some(place) = lanes.place() else {
            connections.spawn(self.connection(socket, from, tls));
            return;
        };
        let runtime = place.runtime().clone();
        let living = async move {
            // Whoever reads a socket is woken by the runtime that it was made known to.
            match socket.into_std().and_then(TcpStream::from_std) {
                Ok(socket) => self.connection(socket, from, tls).await,
                Err(error) => tracing::warn!(%from, %error, "cannot take a client's connection"),
            }
            drop(place);
        };
        connections.spawn_on(counted(living), &runtime);
    }

    async fn connection(self, socket: TcpStream, from: SocketAddr, tls: Option<TlsAcceptor>) {
        // Without the second one a client that reads no more would keep its connection, and what waits to be sent, for ever.
        let write_wait = Duration::from_millis(self.config.write_wait_ms_max);
        let prepared = socket
            .set_nodelay(true)
            .and_then(|()| SockRef::from(&socket).set_tcp_user_timeout(Some(write_wait)));
        if let Err(error) = prepared {
            tracing::debug!(%from, %error, "a client left before it was heard");
            return;
        }
        let Some(tls) = tls else { return self.requests(socket, from).await };
        let wait = Duration::from_millis(self.config.handshake_ms_max);
        let error = match timeout(wait, tls.accept(socket)).await {
            Ok(Ok(stream)) => return self.requests(stream, from).await,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it took too long".to_owned(),
        };
        self.counts.handshakes_failed.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(%from, error, "a client's handshake failed");
    }

    async fn requests(
        mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        from: SocketAddr,
    ) {
        let router = self.router;
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            router.clone().oneshot(request.map(Body::new))
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_millis(self.config.header_wait_ms_max))
            .max_headers(self.config.headers_max)
            .max_header_size(self.config.header_bytes_max)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = told(&mut self.stopped) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%from, %error, "lost a client's connection");
        }
    }
}

/// Returns when the port is to stop; a sender that dropped says the same.
async fn told(stopped: &mut watch::Receiver<bool>) {
    // Nothing of the answer may be held across a wait.
    drop(stopped.wait_for(|stop| *stop).await);
}

fn joined(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "the task of a client's connection died; see its panic above");
    }
}

#[cfg(test)]
mod tests;
