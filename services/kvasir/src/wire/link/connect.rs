//! One attempt to connect: TCP, TLS, HTTP/2, `Hello`.

use std::error::Error;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Code;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};

use super::LinkInner;
use crate::wire::gather::Gather;
use crate::wire::server::{ALPN, CONNECTION_WINDOW, STREAM_WINDOW};
use crate::wire::tasks::Tasks;
use crate::wire::{Facts, v1};
use v1::member_client::MemberClient;

/// Streams reset by us whose late frames are still expected. Hyper's default of 50 is less than a burst of cancels.
const RESETS_MAX: usize = 4_096;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) enum Kind {
    /// It says how the member stands: asks it for signs of life all the time.
    Main,
    /// Calls of one thread: all its tasks are there, and it asks for signs of life while something is called (the member does
    /// all the time).
    Lane,
}

/// Why there is no connection.
#[derive(Debug)]
pub(in crate::wire) enum Fault {
    /// The member cannot be reached now.
    Down(String),
    /// It was reached and does not fit.
    Refused(String),
}

/// A connection that said hello.
pub(super) struct Connected {
    pub(super) channel: Channel,
    pub(super) facts: Arc<Facts>,
    pub(super) driver: Driver,
}

/// Ends with the connection; must be polled for as long as calls are made.
pub(in crate::wire) type Driver = Pin<Box<dyn Future<Output = Fault> + Send>>;

/// Sends requests over one connection. Clones share it.
#[derive(Clone)]
pub(in crate::wire) struct Channel(http2::SendRequest<Body>);

impl Channel {
    /// Whether its connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

impl LinkInner {
    /// One attempt, of [`super::LinkLimits::connect_max`] at most.
    pub(super) async fn connect(&self, tasks: &Tasks, kind: Kind) -> Result<Connected, Fault> {
        let attempt = self.attempt(tasks, kind);
        timeout(self.limits.connect_max, attempt).await.unwrap_or_else(|_| {
            Err(Fault::Down(format!("no answer within {:?}", self.limits.connect_max)))
        })
    }

    async fn attempt(&self, tasks: &Tasks, kind: Kind) -> Result<Connected, Fault> {
        let (channel, mut driver) = self.open(tasks, kind).await?;
        let mut hello = pin!(self.hello(channel.clone()));
        let greeted = tokio::select! {
            biased;
            greeted = &mut hello => greeted,
            fault = &mut driver => return Err(fault),
        };
        let facts = match greeted {
            Ok(facts) => facts,
            Err(refused @ Fault::Refused(_)) => return Err(refused),
            // The connection broke; it knows better why.
            Err(Fault::Down(_)) => return Err(driver.await),
        };
        Ok(Connected { channel, facts: Arc::new(facts), driver })
    }

    /// A connection on which nothing was said yet.
    pub(in crate::wire) async fn open(
        &self,
        tasks: &Tasks,
        kind: Kind,
    ) -> Result<(Channel, Driver), Fault> {
        let socket = TcpStream::connect(&self.peer.control).await.map_err(|e| fault(&e))?;
        socket.set_nodelay(true).map_err(|e| fault(&e))?;
        let mut config = self.identity.tls_client().as_ref().clone();
        config.alpn_protocols = vec![ALPN.to_vec()];
        let name = ServerName::try_from(self.peer.member.dns_name())
            .expect("labels of a domain name make a server name");
        let mut stream = TlsConnector::from(Arc::new(config))
            .connect(name, Gather::new(socket))
            .await
            .map_err(|error| fault(&error))?;
        if kind == Kind::Lane {
            stream.get_mut().0.gather();
        }
        let refusal = Refusal::default();
        let stream = Noting { stream, refusal: Arc::clone(&refusal) };
        let (requests, connection) =
            self.handshake(stream, tasks, kind).await.map_err(|e| fault(&e))?;
        let driver = async move {
            let ended = connection.await;
            match (refusal.get(), ended) {
                (Some(reason), _) => Fault::Refused(reason.clone()),
                (None, Ok(())) => Fault::Down("the connection ended".to_owned()),
                (None, Err(error)) => fault(&error),
            }
        };
        Ok((Channel(requests), Box::pin(driver)))
    }

    async fn handshake(
        &self,
        stream: Noting,
        tasks: &Tasks,
        kind: Kind,
    ) -> hyper::Result<(http2::SendRequest<Body>, http2::Connection<TokioIo<Noting>, Body, Tasks>)>
    {
        http2::Builder::new(tasks.clone())
            .timer(TokioTimer::new())
            .keep_alive_interval(self.limits.keep_alive_interval)
            .keep_alive_timeout(self.limits.keep_alive_timeout)
            .keep_alive_while_idle(kind == Kind::Main)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_reset_streams(RESETS_MAX)
            // Counts over the life of a connection, which here is that of the peer.
            .max_local_error_reset_streams(None)
            .handshake(TokioIo::new(stream))
            .await
    }

    async fn hello(&self, channel: Channel) -> Result<Facts, Fault> {
        let mut client = MemberClient::with_origin(channel, self.origin.clone());
        let request = v1::HelloRequest { facts: Some((&self.facts).into()) };
        let response = client.hello(request).await.map_err(|status| match status.code() {
            Code::FailedPrecondition
            | Code::PermissionDenied
            | Code::InvalidArgument
            | Code::Unauthenticated
            | Code::Unimplemented => Fault::Refused(status.message().to_owned()),
            _ => Fault::Down(status.message().to_owned()),
        })?;
        let told = response.into_inner().facts;
        let told = told.ok_or_else(|| Fault::Refused("facts is missing".to_owned()))?;
        let told = Facts::try_from(told).map_err(|error| Fault::Refused(error.to_string()))?;
        self.facts.agree(&told).map_err(|differ| Fault::Refused(differ.to_string()))?;
        let expected = (&self.peer.member, self.peer.worker);
        if (&told.member, told.worker) != expected {
            return Err(Fault::Refused(format!(
                "{} is {} as worker {}, the configuration says {} as worker {}",
                self.peer.control, told.member, told.worker, expected.0, expected.1
            )));
        }
        Ok(told)
    }
}

/// Why TLS ended a connection after its handshake: in TLS 1.3 a server looks at the client's certificate only then. The
/// layers above keep no cause of an error, so it is noted where it passes.
type Refusal = Arc<OnceLock<String>>;

/// A stream that notes an error of TLS.
pub(in crate::wire) struct Noting {
    stream: TlsStream<Gather<TcpStream>>,
    refusal: Refusal,
}

impl Noting {
    fn note<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &polled
            && let Fault::Refused(reason) = fault(error)
        {
            // The first one is the cause of the others.
            drop(self.refusal.set(reason));
        }
        polled
    }
}

impl AsyncRead for Noting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.note(polled)
    }
}

impl AsyncWrite for Noting {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(polled)
    }

    // Without these the head of a message and its body go out apart, and wake the other side twice.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.note(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.note(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// An error of TLS refuses; every other one means that the member is not there.
fn fault(error: &(dyn Error + 'static)) -> Fault {
    let mut cause = Some(error);
    let mut innermost = error.to_string();
    while let Some(error) = cause {
        innermost = error.to_string();
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let tls = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(tls) = tls.or_else(|| error.downcast_ref()) {
            return Fault::Refused(format!("TLS: {tls}"));
        }
        cause = error.source();
    }
    Fault::Down(innermost)
}
