//! The numbers of QUIC, and why.
//!
//! *Size of packets.* quinn sends up to 10 packets in one system call (GSO) and does not look at their sum; above 65,507
//! bytes the kernel refuses the whole call and every full batch is lost, which looks like a dead link. So packets stay
//! below 6,550 bytes. 6,400 is the fastest size measured on loopback (1.9 GB/s against 1.2 at 1,452). Real networks carry
//! 1,500 or 9,000: there a connection starts at 1,200, which QUIC guarantees, and probes its way up to 6,400 while it is
//! used. Loopback carries 65,536, so nothing is probed there, and lost packets mean a full buffer, never a smaller path.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use std::{io, net};

use quinn::congestion::CubicConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig,
    TokioRuntime, TransportConfig, VarInt,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::transport::peer::{DataTls, PeerTransportConfig, PeerTransportError};

/// The protocol's name in the TLS handshake.
pub(in crate::transport) const ALPN: &[u8] = b"kvasir-data/1";

/// Bytes of the largest packet.
pub(in crate::transport) const MTU_MAX: u16 = 6_400;

/// Bytes of the first packets to other hosts: what every path of QUIC must carry.
const MTU_START: u16 = 1_200;

/// Requests of one connection at a time. The reader's `batches_max` is the bound that matters; this one stops a peer
/// that does not keep it.
const STREAMS_MAX: u32 = 32;

/// Bytes sent before the first acknowledgement. Two blocks: the usual 10 packets would spend several round trips on
/// each first block, and one site's switches take this much.
const INITIAL_WINDOW: u64 = 256 << 10;

/// A sign of life is sent this often.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Opens the socket and the endpoint. To be called inside a runtime.
pub(in crate::transport) fn endpoint(
    config: &PeerTransportConfig,
    listen: SocketAddr,
    tls: &dyn DataTls,
) -> Result<Endpoint, PeerTransportError> {
    let unusable = |reason| PeerTransportError::Tls { reason };
    // Both are made anew for each connection; here they show at the start whether they can be used at all.
    let server = server_config(config, tls, listen.ip()).map_err(unusable)?;
    client_config(config, tls, listen.ip()).map_err(unusable)?;
    let udp = |source| PeerTransportError::Udp { address: listen, source };
    let socket = socket(config.socket_bytes, listen).map_err(udp)?;
    let mut endpoint = EndpointConfig::default();
    endpoint.max_udp_payload_size(MTU_MAX).expect("6,400 is in its range");
    Endpoint::new(endpoint, Some(server), socket, Arc::new(TokioRuntime)).map_err(udp)
}

/// The configuration of a connection from this address. The error is a sentence of the TLS library.
pub(super) fn server_config(
    config: &PeerTransportConfig,
    tls: &dyn DataTls,
    remote: IpAddr,
) -> Result<ServerConfig, String> {
    let mut rustls = rustls::ServerConfig::clone(&tls.server());
    rustls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = QuicServerConfig::try_from(rustls).map_err(|error| error.to_string())?;
    let mut server = ServerConfig::with_crypto(Arc::new(crypto));
    server.transport_config(Arc::new(transport(config, remote)));
    Ok(server)
}

/// The configuration of a connection to this address. The error is a sentence of the TLS library.
pub(super) fn client_config(
    config: &PeerTransportConfig,
    tls: &dyn DataTls,
    remote: IpAddr,
) -> Result<ClientConfig, String> {
    let mut rustls = rustls::ClientConfig::clone(&tls.client());
    rustls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = QuicClientConfig::try_from(rustls).map_err(|error| error.to_string())?;
    let mut client = ClientConfig::new(Arc::new(crypto));
    client.transport_config(Arc::new(transport(config, remote)));
    Ok(client)
}

fn transport(config: &PeerTransportConfig, remote: IpAddr) -> TransportConfig {
    let window = config.stream_window_bytes;
    let idle = Duration::from_millis(config.idle_ms_max);
    let idle = IdleTimeout::try_from(idle).expect("at most ten minutes");
    let mut cubic = CubicConfig::default();
    cubic.initial_window(INITIAL_WINDOW);
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_MAX))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(window))
        .receive_window(VarInt::from_u32(window * 2))
        .send_window(u64::from(window) * 2)
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .datagram_receive_buffer_size(None)
        .congestion_controller_factory(Arc::new(cubic));
    if remote.is_loopback() {
        transport.initial_mtu(MTU_MAX).min_mtu(MTU_MAX).mtu_discovery_config(None);
    } else {
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(MTU_MAX);
        transport.initial_mtu(MTU_START).mtu_discovery_config(Some(discovery));
    }
    transport
}

fn socket(bytes: usize, listen: SocketAddr) -> io::Result<net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(listen), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_recv_buffer_size(bytes)?;
    socket.set_send_buffer_size(bytes)?;
    // Linux reports twice what it grants.
    let granted = socket.recv_buffer_size()?.min(socket.send_buffer_size()?) / 2;
    if granted < bytes {
        tracing::info!(
            granted,
            asked = bytes,
            "the UDP buffers are smaller than asked; raise net.core.rmem_max and net.core.wmem_max"
        );
    }
    socket.bind(&listen.into())?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::{MTU_MAX, MTU_START};

    /// `MAX_TRANSMIT_SEGMENTS` of quinn 0.11.
    const SEGMENTS: usize = 10;

    /// The largest payload of a UDP datagram over IPv4.
    const DATAGRAM_BYTES_MAX: usize = 65_507;

    #[test]
    fn a_full_batch_of_packets_is_one_that_the_kernel_takes() {
        for mtu in [MTU_START, MTU_MAX] {
            assert!(usize::from(mtu) * SEGMENTS < DATAGRAM_BYTES_MAX, "{mtu}");
        }
    }
}
