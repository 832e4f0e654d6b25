//! `kvasir bench transport`: how fast blocks move, beside what the machine can do at best.
//!
//! Five ways move the same objects from one memory to another, taking turns in one run: memcpy, a plain TCP connection, one
//! stream of bare quinn, and this project's transport over QUIC and through shared memory. Both ends are in this process,
//! so that the processor time is that of both. The first two are bounds, the third is what QUIC costs without checksums,
//! generations, slots and deadlines.
//!
//! Every second round goes backwards: a way is faster right after one that touched the same memory and little else, and
//! in one fixed order only the first would come after such a one.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use kvstore::{PeerTransport, ReadDone, ReadRequest, SealedSlot, Transport};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use serde::Serialize;
use shared::{Clock, DpRank, Flow, RequestContext, SlotMemory, WorkerId, WorkerRank};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::mpsc;

use super::figures::{median, processor_ticks, tick_seconds, to_float};
use super::rig::{Directory, Side, identity, peer, transport, turns};
use crate::cli::TransportArgs;
use crate::console::Console;
use crate::identity::{Identity, MemberRole};

/// The bare stream's packets, windows and buffers: those that suit this project's transport best, for a fair bound.
const MTU: u16 = 6_400;
const WINDOW: u32 = 2 << 20;
const SOCKET_BYTES: usize = 8 << 20;
const NANOSECONDS: f64 = 1e9;

/// What one way did.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct WayReport {
    /// `memcpy`, `tcp`, `quinn`, `quic` or `shared_memory`.
    pub name: &'static str,
    /// Payload in 10^9 bytes per second: the median over the rounds.
    pub gigabytes_per_second: f64,
    /// Processor seconds of both ends per 10^9 bytes, over all rounds.
    pub cpu_seconds_per_gigabyte: f64,
}

/// What the run found.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct TransportReport {
    /// Bytes of one object.
    pub object_bytes: usize,
    /// Bytes moved per way and round.
    pub round_bytes: usize,
    /// Rounds.
    pub rounds: u32,
    /// One entry per way.
    pub ways: Vec<WayReport>,
    /// QUIC against the bare stream: the median of each round's ratio.
    pub quic_of_quinn: f64,
    /// Shared memory against memcpy: the median of each round's ratio.
    pub shared_memory_of_memcpy: f64,
}

/// Runs all ways in turns and reports.
///
/// # Errors
/// When an address, memory or a certificate cannot be had, or a read fails.
pub(crate) async fn run(
    args: &TransportArgs,
    clock: &Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let rig = Rig::start(args, clock, folder.path()).await?;
    let mut seconds: Vec<[f64; WAYS.len()]> = Vec::new();
    let mut ticks = [0_u64; WAYS.len()];
    for number in 0..=usize::try_from(args.rounds)? {
        let mut round = [0.0; WAYS.len()];
        for at in turns(number, WAYS.len()) {
            let way = WAYS[at];
            let (before, start) = (processor_ticks()?, clock.now());
            rig.go(way).await.with_context(|| format!("{way} failed"))?;
            round[at] = nanoseconds(clock.now().since(start)) / NANOSECONDS;
            ticks[at] += processor_ticks()? - before;
            rig.check(way)?;
        }
        // The first round warms connections and memory.
        if seconds.is_empty() {
            ticks = [0; WAYS.len()];
        }
        seconds.push(round);
    }
    let report = report(args, &seconds[1..], ticks, rig.round_bytes());
    rig.end().await;
    if args.json {
        console.line(&serde_json::to_string(&report)?)?;
        return Ok(());
    }
    for way in &report.ways {
        console.line(&format!(
            "{:<14} {:>7.2} GB/s  {:>6.2} CPU s/GB",
            way.name, way.gigabytes_per_second, way.cpu_seconds_per_gigabyte
        ))?;
    }
    console.line(&format!("quic / quinn            {:.2}", report.quic_of_quinn))?;
    console.line(&format!("shared memory / memcpy  {:.2}", report.shared_memory_of_memcpy))?;
    Ok(())
}

const WAYS: [&str; 5] = ["memcpy", "tcp", "quinn", "quic", "shared_memory"];

fn report(
    args: &TransportArgs,
    seconds: &[[f64; WAYS.len()]],
    ticks: [u64; WAYS.len()],
    round_bytes: usize,
) -> TransportReport {
    let gigabytes = to_float(round_bytes) / 1e9;
    let rounds = to_float(seconds.len());
    let ratio =
        |slow: usize, fast: usize| median(seconds.iter().map(|round| round[fast] / round[slow]));
    let ways = WAYS.iter().enumerate().map(|(at, name)| WayReport {
        name,
        gigabytes_per_second: gigabytes / median(seconds.iter().map(|round| round[at])),
        cpu_seconds_per_gigabyte: tick_seconds(ticks[at]) / (gigabytes * rounds),
    });
    TransportReport {
        object_bytes: args.object_bytes,
        round_bytes,
        rounds: args.rounds,
        ways: ways.collect(),
        quic_of_quinn: ratio(3, 2),
        shared_memory_of_memcpy: ratio(4, 0),
    }
}

/// Both ends of everything.
struct Rig {
    source: Side,
    target: Side,
    sealed: Vec<SealedSlot>,
    object_bytes: usize,
    owner: PeerTransport,
    /// Reads the owner's region over QUIC, since it knows no socket.
    quic: PeerTransport,
    /// Reads it through shared memory.
    shared: PeerTransport,
    bare: Bare,
}

const OWNER: WorkerRank = WorkerRank { worker: WorkerId(1), rank: DpRank(0) };
const READER: WorkerRank = WorkerRank { worker: WorkerId(2), rank: DpRank(0) };

impl Rig {
    async fn start(
        args: &TransportArgs,
        clock: &Arc<dyn Clock>,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let bytes = args.mebibytes.checked_mul(1 << 20).context("--mebibytes is too large")?;
        let objects = bytes.checked_div(args.object_bytes).context("--object-bytes is 0")?;
        ensure!(
            (1..=16_384).contains(&objects) && (1..=1_000).contains(&args.rounds),
            "{objects} objects and {} rounds are out of range; choose 1 to 16,384 objects and 1 to 1,000 rounds",
            args.rounds
        );
        let slots = u32::try_from(objects)?;
        let (source, target) = (
            Side::new(OWNER, slots, args.object_bytes)?,
            Side::new(READER, slots, args.object_bytes)?,
        );
        let sealed = source.fill(objects, args.object_bytes)?;
        let owner_tls = identity(folder, MemberRole::Kvstore, "owner", clock)?;
        let reader_tls = identity(folder, MemberRole::Decode, "reader", clock)?;
        let socket = folder.join("owner.sock");
        let owner = transport(&owner_tls, Directory::new(), Some(socket.clone()), clock)?;
        owner.register_shared(&source.pool, &source.memory)?;
        let knowing = |shm: Option<PathBuf>| {
            let peers = Directory::new();
            peers.add(OWNER, peer(&owner_tls, &owner, shm));
            transport(&reader_tls, peers, None, clock)
        };
        Ok(Self {
            quic: knowing(None)?,
            shared: knowing(Some(socket))?,
            bare: Bare::start(&owner_tls, &reader_tls).await?,
            object_bytes: args.object_bytes,
            source,
            target,
            sealed,
            owner,
        })
    }

    fn round_bytes(&self) -> usize {
        self.sealed.len() * self.object_bytes
    }

    async fn go(&self, way: &str) -> anyhow::Result<()> {
        match way {
            "memcpy" => self.copy(),
            "tcp" => self.tcp()?,
            "quinn" => self.bare.go(self).await?,
            "quic" => self.read(&self.quic).await?,
            _ => self.read(&self.shared).await?,
        }
        Ok(())
    }

    fn copy(&self) {
        for slot in &self.sealed {
            self.source.copy(slot.index(), (&self.target, slot.index()), self.object_bytes);
        }
    }

    fn tcp(&self) -> anyhow::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        thread::scope(|scope| {
            let sending = scope.spawn(|| -> io::Result<()> {
                let (mut stream, _) = listener.accept()?;
                let mut sent = Ok(());
                for slot in &self.sealed {
                    self.source.memory.read(slot.index(), &mut |from| {
                        sent = stream.write_all(&from[..self.object_bytes]);
                    });
                    std::mem::replace(&mut sent, Ok(()))?;
                }
                Ok(())
            });
            let mut stream = TcpStream::connect(address)?;
            let mut received = Ok(());
            for slot in &self.sealed {
                self.target.memory.write(slot.index(), &mut |to| {
                    received = stream.read_exact(&mut to[..self.object_bytes]);
                });
                std::mem::replace(&mut received, Ok(()))?;
            }
            sending.join().map_err(|_| anyhow!("the sending thread died"))??;
            Ok(())
        })
    }

    async fn read(&self, transport: &PeerTransport) -> anyhow::Result<()> {
        let targets = self.target.pool.reserve(self.sealed.len())?;
        let sources = self.sealed.iter().map(SealedSlot::descriptor);
        let reads = sources.zip(targets).map(|(source, target)| ReadRequest { source, target });
        let (done, mut results) = mpsc::unbounded_channel();
        let sink = move |answer: ReadDone| {
            let ReadDone { result, target, .. } = answer;
            drop(target);
            if done.send(result).is_ok() { Flow::Open } else { Flow::Closed }
        };
        let _ticket = transport.read(RequestContext::NONE, reads.collect(), Box::new(sink));
        for _ in 0..self.sealed.len() {
            results.recv().await.context("the transport gave up")??;
        }
        Ok(())
    }

    /// Says whether the reads went the way they were meant to.
    fn check(&self, way: &str) -> anyhow::Result<()> {
        let (quic, shared) = (self.quic.stats(), self.shared.stats());
        ensure!(
            quic.shared_memory.objects == 0 && shared.quic.objects == 0,
            "{way}: reads took another way than the one measured"
        );
        Ok(())
    }

    async fn end(self) {
        for transport in [self.quic, self.shared, self.owner] {
            transport.close().await;
        }
        self.bare.server.close(VarInt::from_u32(0), b"done");
        self.bare.client.close(VarInt::from_u32(0), b"done");
    }
}

/// One connection of bare quinn, with the same kind of TLS.
struct Bare {
    server: Endpoint,
    client: Endpoint,
    sending: quinn::Connection,
    receiving: quinn::Connection,
}

impl Bare {
    async fn start(owner: &Identity, reader: &Identity) -> anyhow::Result<Self> {
        let mut rustls = owner.tls_server().as_ref().clone();
        rustls.alpn_protocols = vec![b"bare".to_vec()];
        let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(rustls)?));
        config.transport_config(Arc::new(tuned()));
        let server = endpoint(Some(config))?;
        let mut rustls = reader.tls_client().as_ref().clone();
        rustls.alpn_protocols = vec![b"bare".to_vec()];
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(rustls)?));
        config.transport_config(Arc::new(tuned()));
        let client = endpoint(None)?;
        let name = owner.member().dns_name();
        let connecting = client.connect_with(config, server.local_addr()?, &name)?;
        let (receiving, sending) = tokio::join!(connecting, async {
            server
                .accept()
                .await
                .context("the endpoint is closed")?
                .await
                .map_err(anyhow::Error::from)
        });
        Ok(Self { receiving: receiving?, sending: sending?, server, client })
    }

    async fn go(&self, rig: &Rig) -> anyhow::Result<()> {
        let sending = async {
            let mut stream = self.sending.open_uni().await?;
            for slot in &rig.sealed {
                let mut object = Vec::new();
                rig.source.memory.read(slot.index(), &mut |from| {
                    object = from[..rig.object_bytes].to_vec();
                });
                stream.write_chunk(object.into()).await?;
            }
            stream.finish()?;
            anyhow::Ok(())
        };
        let receiving = async {
            let mut stream = self.receiving.accept_uni().await?;
            let mut place = 0;
            while let Some(chunk) = stream.read_chunk(usize::MAX, true).await? {
                let mut bytes = &chunk.bytes[..];
                while !bytes.is_empty() {
                    let slot = &rig.sealed[place / rig.object_bytes];
                    let at = place % rig.object_bytes;
                    let count = bytes.len().min(rig.object_bytes - at);
                    rig.target.memory.write(slot.index(), &mut |to| {
                        to[at..at + count].copy_from_slice(&bytes[..count]);
                    });
                    bytes = &bytes[count..];
                    place += count;
                }
            }
            ensure!(place == rig.round_bytes(), "the bare stream lost bytes");
            Ok(())
        };
        let (sent, received) = tokio::join!(sending, receiving);
        sent.and(received)
    }
}

fn tuned() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(2 * WINDOW))
        .send_window(2 * u64::from(WINDOW))
        .initial_mtu(MTU)
        .min_mtu(MTU)
        .mtu_discovery_config(None)
        .keep_alive_interval(Some(Duration::from_secs(1)));
    transport
}

fn endpoint(config: Option<ServerConfig>) -> anyhow::Result<Endpoint> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_recv_buffer_size(SOCKET_BYTES)?;
    socket.set_send_buffer_size(SOCKET_BYTES)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    let mut settings = EndpointConfig::default();
    settings.max_udp_payload_size(MTU)?;
    Ok(Endpoint::new(settings, config, socket.into(), Arc::new(TokioRuntime))?)
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * NANOSECONDS
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shared::Clock;

    use super::run;
    use crate::cli::TransportArgs;
    use crate::clock::SystemClock;
    use crate::console::Console;

    #[tokio::test(flavor = "multi_thread")]
    async fn every_way_moves_every_object() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let args = TransportArgs { mebibytes: 1, object_bytes: 20_000, rounds: 1, json: true };
        let mut console = Console::new(std::io::sink(), std::io::sink());
        run(&args, &clock, &mut console).await.unwrap();
    }
}
