//! Connections to a source: TCP, and TLS where its URL says so.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::ANSWER_MAX;
use super::config::Target;

/// A connection.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects within [`ANSWER_MAX`]. `tls` is needed where the target wants it; `protocol` is its name inside TLS.
pub(super) async fn connect(
    target: &Target,
    tls: Option<Arc<ClientConfig>>,
    protocol: &[u8],
) -> io::Result<Stream> {
    let connecting = async {
        let socket = TcpStream::connect((target.host.as_str(), target.port)).await?;
        socket.set_nodelay(true)?;
        if !target.is_tls {
            return Ok(Stream::Plain(socket));
        }
        let tls = tls.ok_or_else(|| io::Error::other("no certificates to check it by"))?;
        let mut tls = tls.as_ref().clone();
        tls.alpn_protocols = vec![protocol.to_vec()];
        let name = match target.host.parse::<IpAddr>() {
            Ok(address) => ServerName::IpAddress(address.into()),
            Err(_) => ServerName::try_from(target.host.clone()).map_err(io::Error::other)?,
        };
        let stream = TlsConnector::from(Arc::new(tls)).connect(name, socket).await?;
        Ok(Stream::Tls(Box::new(stream)))
    };
    timeout(ANSWER_MAX, connecting)
        .await
        .unwrap_or_else(|_| Err(io::Error::other(format!("no answer within {ANSWER_MAX:?}"))))
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
