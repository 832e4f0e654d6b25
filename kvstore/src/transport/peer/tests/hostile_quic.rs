//! Peers over QUIC that are slow, frozen, or lie: a bare server and a bare client of the protocol.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, SendStream, ServerConfig, VarInt};
use rustls::ClientConfig as TlsClientConfig;
use rustls::ServerConfig as TlsServerConfig;
use shared::{Descriptor, RegionId, RequestContext, RequestId, TenantTag, TraceContext};
use tokio::runtime::Runtime;

use super::support::{CONFIG, Identity, Node, publish, runtime, server_name};
use crate::testing::{SLOT_BYTES, next, payload, pool, store};
use crate::transport::conformance::{Source, answers, requests, settles};
use crate::transport::peer::{Peer, PeerTransportConfig};
use crate::transport::quic::{ALPN, MTU_MAX, code};
use crate::transport::wire::{CONTEXT_BYTES, REQUEST_BYTES_MAX, Verb, read_request, request};
use crate::transport::{ReadError, Transport};

use super::support::QuicPair;

/// On whose behalf the tests read.
const CONTEXT: RequestContext = RequestContext {
    id: RequestId(0x0102),
    trace: TraceContext { trace: 0x0304, span: 0x0506, sampled: true },
    tenant: TenantTag(0x0708),
};

/// What a liar does with the stream of a read of two objects, numbers 0 and 1.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// Sends these bytes and ends the stream.
    Answer(fn() -> Vec<u8>),
    /// Sends these bytes and then nothing.
    Stall(fn() -> Vec<u8>),
    /// Sends these bytes and breaks the stream.
    Reset(fn() -> Vec<u8>),
    /// Sends these bytes and ends the connection.
    Close(fn() -> Vec<u8>),
}

fn object(number: u64) -> Vec<u8> {
    part(0, u32::try_from(SLOT_BYTES).unwrap(), &payload(number))
}

fn part(status: u8, length: u32, bytes: &[u8]) -> Vec<u8> {
    [&[status][..], &length.to_be_bytes(), bytes].concat()
}

fn honest() -> Vec<u8> {
    [object(0), object(1)].concat()
}

/// A server that tells one lie, again and again. Checks it answers with all well, which is one more lie.
fn liar(runtime: &Runtime, lie: Lie) -> Peer {
    let mut tls = TlsServerConfig::clone(&Identity::new("far").server);
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = QuicServerConfig::try_from(tls).unwrap();
    let config = ServerConfig::with_crypto(Arc::new(crypto));
    let _entered = runtime.enter();
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let socket = std::net::UdpSocket::bind(listen).unwrap();
    let mut endpoint = quinn::EndpointConfig::default();
    endpoint.max_udp_payload_size(MTU_MAX).unwrap();
    let quic = Arc::new(quinn::TokioRuntime);
    let endpoint = Endpoint::new(endpoint, Some(config), socket, quic).unwrap();
    let address = endpoint.local_addr().unwrap();
    // Ends with the runtime.
    drop(runtime.spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let connection = incoming.await.unwrap();
            while let Ok((send, mut recv)) = connection.accept_bi().await {
                let asked = recv.read_to_end(REQUEST_BYTES_MAX).await.unwrap();
                let (verb, context, _) = read_request(&asked).unwrap();
                assert_eq!(context, CONTEXT, "the reader says on whose behalf it asks");
                answer(&connection, send, verb, lie).await;
            }
        }
    }));
    Peer { server_name: server_name("far"), address, shm: None }
}

async fn answer(connection: &Connection, mut send: SendStream, verb: Verb, lie: Lie) {
    if verb == Verb::Check {
        send.write_all(&part(0, 0, &[])).await.unwrap();
        send.finish().unwrap();
        return;
    }
    let (Lie::Answer(bytes) | Lie::Stall(bytes) | Lie::Reset(bytes) | Lie::Close(bytes)) = lie;
    send.write_all(&bytes()).await.unwrap();
    match lie {
        Lie::Answer(_) => send.finish().unwrap(),
        Lie::Stall(_) => drop(send.stopped().await),
        Lie::Reset(_) => send.reset(VarInt::from_u32(9)).unwrap(),
        Lie::Close(_) => connection.close(VarInt::from_u32(9), b"gone"),
    }
}

/// What the two reads come back with.
fn results(runtime: &Runtime, lie: Lie, config: PeerTransportConfig) -> [Result<(), ReadError>; 2] {
    let near = Node::start(runtime, Identity::new("near"), config, None);
    near.directory.set(Some(liar(runtime, lie)));
    let source = pool(1, 2);
    let sources = [0, 1].map(|number| store(&source, number).descriptor());
    let target = pool(2, 2);
    let (sink, events) = answers();
    let _ticket = near.transport.read(CONTEXT, requests(&sources, &target), sink);
    let results = [next(&events).result, next(&events).result];
    assert!(events.recv().is_err(), "the sink is gone");
    assert_eq!(target.audit().free, 2, "{lie:?}");
    results
}

#[test]
fn lies_are_seen_through() {
    let runtime = runtime();
    let lost = Err(ReadError::PeerLost { region: RegionId(1) });
    let found = crc32c::crc32c(&payload(7));
    let corrupt = Err(ReadError::Corrupt { expected: crc32c::crc32c(&payload(0)), found });
    let unknown = Err(ReadError::UnknownRegion { region: RegionId(1) });
    let length = u32::try_from(SLOT_BYTES).unwrap();
    assert_eq!(length, 37, "the lengths below are near it");
    let cases = [
        ("the truth", Lie::Answer(honest), [Ok(()), Ok(())]),
        ("more than asked", Lie::Answer(|| [honest(), vec![9; 99]].concat()), [Ok(()), Ok(())]),
        ("other bytes", Lie::Answer(|| [object(7), object(1)].concat()), [corrupt, Ok(())]),
        (
            "wrong order",
            Lie::Answer(|| [object(1), object(0)].concat()),
            [
                Err(ReadError::Corrupt {
                    expected: crc32c::crc32c(&payload(0)),
                    found: crc32c::crc32c(&payload(1)),
                }),
                Err(ReadError::Corrupt {
                    expected: crc32c::crc32c(&payload(1)),
                    found: crc32c::crc32c(&payload(0)),
                }),
            ],
        ),
        ("one byte short", Lie::Answer(|| part(0, 36, &payload(0)[..36])), [lost, lost]),
        ("one byte long", Lie::Answer(|| part(0, 38, &[0; 38])), [lost, lost]),
        ("absurdly long", Lie::Answer(|| part(0, u32::MAX, &[0; 99])), [lost, lost]),
        ("a stale object with bytes", Lie::Answer(|| part(2, 37, &payload(0))), [lost, lost]),
        ("no such status", Lie::Answer(|| part(99, 37, &payload(0))), [lost, lost]),
        ("a status of another path", Lie::Answer(|| part(4, 0, &[])), [lost, lost]),
        ("nothing", Lie::Answer(Vec::new), [lost, lost]),
        ("half a head", Lie::Answer(|| vec![0, 0, 0]), [lost, lost]),
        ("one and a half", Lie::Answer(|| honest()[..60].to_vec()), [Ok(()), lost]),
        (
            "only refusals",
            Lie::Answer(|| [part(1, 0, &[]), part(2, 0, &[])].concat()),
            [unknown, Err(ReadError::Stale)],
        ),
        ("a broken stream", Lie::Reset(Vec::new), [lost, lost]),
        ("a closed connection", Lie::Close(Vec::new), [lost, lost]),
    ];
    for (what, lie, expected) in cases {
        assert_eq!(results(&runtime, lie, CONFIG), expected, "{what}");
    }
}

#[test]
fn a_frozen_peer_is_late() {
    let runtime = runtime();
    let config = PeerTransportConfig { read_ms_max: 50, ..CONFIG };
    let late = Err(ReadError::Late { limit_ms: 50 });
    // Connecting takes part of the time too, so each may also be late in the handshake on a busy machine.
    for stalled in [Vec::new as fn() -> Vec<u8>, || honest()[..3].to_vec(), || object(0)] {
        let results = results(&runtime, Lie::Stall(stalled), config);
        assert!(results[0] == late || results[0] == Ok(()), "{results:?}");
        assert_eq!(results[1], late);
    }
}

#[test]
fn a_silent_address_is_lost_or_late() {
    let runtime = runtime();
    let silent = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let config = PeerTransportConfig { read_ms_max: 50, ..CONFIG };
    let near = Node::start(&runtime, Identity::new("near"), config, None);
    let address = silent.local_addr().unwrap();
    near.directory.set(Some(Peer { server_name: server_name("far"), address, shm: None }));
    let held = store(&pool(1, 1), 1);
    let read = || super::support::result(&near.transport, held.descriptor(), &pool(2, 1));
    assert_eq!(read(), Err(ReadError::Late { limit_ms: 50 }));
    let lost = Err(ReadError::PeerLost { region: RegionId(1) });
    assert_eq!(read(), lost, "it is left alone for a while");
    let stats = near.transport.stats();
    assert_eq!((stats.failures.late, stats.failures.peer_lost, stats.open_reads), (1, 1, 0));
}

#[test]
fn a_cancelled_read_of_a_frozen_peer_comes_back_at_once() {
    let runtime = runtime();
    let near = Node::start(&runtime, Identity::new("near"), CONFIG, None);
    near.directory.set(Some(liar(&runtime, Lie::Stall(|| object(0)))));
    let source = pool(1, 2);
    let sources = [0, 1].map(|number| store(&source, number).descriptor());
    let target = pool(2, 2);
    let (sink, events) = answers();
    let ticket = near.transport.read(CONTEXT, requests(&sources, &target), sink);
    assert_eq!(next(&events).result, Ok(()));
    drop(ticket);
    assert_eq!(next(&events).result, Err(ReadError::Closed));
    assert_eq!(near.transport.stats().failures.late, 0);
}

/// A bare client, connected to a transport that serves one object.
fn client(runtime: &Runtime, far: &Node) -> Connection {
    let mut tls = TlsClientConfig::clone(&Identity::new("near").client);
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let _entered = runtime.enter();
    let endpoint = Endpoint::client(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let connecting = endpoint.connect_with(config, far.transport.address(), &server_name("far"));
    runtime.block_on(connecting.unwrap()).unwrap()
}

async fn exchange(connection: &Connection, bytes: &[u8]) -> Result<Vec<u8>, quinn::ReadToEndError> {
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(bytes).await.unwrap();
    send.finish().unwrap();
    recv.read_to_end(1 << 20).await
}

#[test]
fn malformed_requests_break_their_stream_and_nothing_else() {
    let runtime = runtime();
    let far = Node::start(&runtime, Identity::new("far"), CONFIG, None);
    let source = Source::new::<QuicPair>(1, 1, SLOT_BYTES);
    publish(&far, &source);
    let held: Descriptor = store(&source.pool, 0).descriptor();
    let connection = client(&runtime, &far);
    let good = request(Verb::Read, CONTEXT, &[held]);
    let count = 2 + CONTEXT_BYTES;
    let cases: [(&str, Vec<u8>); 5] = [
        ("nothing", Vec::new()),
        ("another version", [&[9], &good[1..]].concat()),
        ("cut short", good[..good.len() - 1].to_vec()),
        ("too long", [&good[..], &[0]].concat()),
        ("too many", [&good[..count], &[0xff, 0xff], &good[count + 2..]].concat()),
    ];
    for (count, (what, bytes)) in (1..).zip(cases) {
        let broken = runtime.block_on(exchange(&connection, &bytes)).unwrap_err();
        let reset = quinn::ReadError::Reset(code::MALFORMED);
        assert_eq!(broken, quinn::ReadToEndError::Read(reset), "{what}");
        assert_eq!(far.transport.stats().requests_malformed, count, "{what}");
    }
    assert_eq!(runtime.block_on(exchange(&connection, &good)).unwrap(), object(0));
    let check = request(Verb::Check, CONTEXT, &[held]);
    assert_eq!(runtime.block_on(exchange(&connection, &check)).unwrap(), part(0, 0, &[]));
}

#[test]
fn a_reader_that_does_not_read_is_cut_off_and_holds_no_slot() {
    let runtime = runtime();
    let config = PeerTransportConfig { hold_ms_max: 50, ..CONFIG };
    let far = Node::start(&runtime, Identity::new("far"), config, None);
    // Larger than all windows together, so that the server gets stuck.
    let source = Source::new::<QuicPair>(1, 1, 64 << 20);
    publish(&far, &source);
    let slot = source.pool.reserve(1).unwrap().remove(0);
    let seal = crate::pool::Seal { name: crate::testing::name(1), exact: true, bytes: 64 << 20 };
    let held = source.pool.seal(slot, seal);
    let connection = client(&runtime, &far);
    let _stream = runtime.block_on(async {
        let (mut send, recv) = connection.open_bi().await.unwrap();
        send.write_all(&request(Verb::Read, CONTEXT, &[held.descriptor()])).await.unwrap();
        send.finish().unwrap();
        recv
    });
    settles("the stream is cut off", || far.transport.stats().holds_expired == 1);
    drop(held);
    assert!(source.pool.audit().is_at_rest());
}

#[test]
fn a_peer_that_stalls_holds_up_nobody_else() {
    let runtime = runtime();
    let config = PeerTransportConfig { batches_max: 2, peer_batches_max: 1, ..CONFIG };
    let near = Node::start(&runtime, Identity::new("near"), config, None);
    near.directory.set(Some(liar(&runtime, Lie::Stall(Vec::new))));
    let (far, own) = (pool(1, 1), pool(3, 1));
    near.transport.register(&own).unwrap();
    let (wanted, held) = ([store(&far, 0).descriptor()], store(&own, 1));
    let target = pool(2, 3);
    let (sink, one) = answers();
    let first = near.transport.read(CONTEXT, requests(&wanted, &target), sink);
    let (sink, two) = answers();
    let second = near.transport.read(CONTEXT, requests(&wanted, &target), sink);
    let here = super::support::result(&near.transport, held.descriptor(), &target);
    assert_eq!(here, Ok(()), "both places would be taken by the peer that stalls");
    drop((first, second));
    for events in [one, two] {
        assert_eq!(next(&events).result, Err(ReadError::Closed));
    }
}

#[test]
fn a_batch_is_late_as_a_whole_even_before_its_turn() {
    let runtime = runtime();
    let config = PeerTransportConfig { peer_batches_max: 1, batch_ms_max: 100, ..CONFIG };
    let near = Node::start(&runtime, Identity::new("near"), config, None);
    near.directory.set(Some(liar(&runtime, Lie::Stall(Vec::new))));
    let source = pool(1, 2);
    let sources = [0, 1].map(|number| store(&source, number).descriptor());
    let target = pool(2, 4);
    let (sink, one) = answers();
    let _first = near.transport.read(CONTEXT, requests(&sources, &target), sink);
    let (sink, two) = answers();
    let _second = near.transport.read(CONTEXT, requests(&sources, &target), sink);
    let late = Err(ReadError::Late { limit_ms: 100 });
    assert_eq!([next(&one).result, next(&one).result], [late, late]);
    // It may get its turn in the moment between the two limits, and finds a peer that just failed.
    let lost = Err(ReadError::PeerLost { region: RegionId(1) });
    for result in [next(&two).result, next(&two).result] {
        assert!(result == late || result == lost, "{result:?}");
    }
    assert_eq!(target.audit().free, 4);
}
