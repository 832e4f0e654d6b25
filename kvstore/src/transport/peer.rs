//! The transport between processes. It chooses the way by itself, for each run of reads from one region: a copy inside
//! this process when the region is registered here, shared memory when the owner has a socket on this host, else QUIC.
//!
//! What it is not: it keeps no copies, retries no read that began, and knows nothing about names. Who owns a region says a
//! [`PeerDirectory`]; who may read says a [`DataTls`].
//!
//! Invariants: every queue, connection count, request and wait has a bound from the config; a target slot is written only
//! by the task that holds it, so it can go back at any moment; bytes count as read only after their length, their
//! checksum and (through shared memory) the owner's hold were checked here; a peer that failed is left alone for up to a
//! second before the next try.
//!
//! Read [`batch`](self) first: one batch is one task. The two ways to a peer are `transport/quic.rs` and
//! `transport/shm.rs`.

mod batch;
mod core;
mod counters;
mod members;
mod registry;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ServerConfig};
use shared::{Clock, RegionId, RequestContext, Sink, SlotMemory, Ticket};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Sender};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::batch::{Answers, Batch, dispatch, refuse};
use self::counters::OpenReads;
use self::members::Members;
use self::registry::Registry;
use super::{ReadDone, ReadError, ReadRequest, RegisterError, Transport, quic, shm};
use crate::memory::SharedMemory;
use crate::pool::Pool;

pub use self::counters::{Failures, PathStats, PeerStats};

pub(super) use self::batch::{Run, fitting, misfit};
pub(super) use self::core::Core;
pub(super) use self::counters::{Path, ServedConnection, add};
pub(super) use self::members::Member;

/// The bounds of a [`PeerTransport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerTransportConfig {
    /// Batches of reads that may wait. Range: 1 to 65,536. Default: 1,024, which is more than the live requests of one
    /// process; each holds reserved slots of its reader's pool, so memory is bounded there and not here.
    pub queue_max: usize,
    /// Batches read at the same time. Range: 1 to 1,024. Default: 16: few enough that each gets a share of the link that
    /// lets it meet its deadline.
    pub batches_max: usize,
    /// Of these, batches that begin with the same peer: others wait, so that a slow peer does not stop the rest. Range: 1
    /// to 1,024. Default: 8.
    pub peer_batches_max: usize,
    /// Objects in one request to a peer. Range: 1 to 256. Default: 256, about 29 MB of Flash blocks: between two requests
    /// the link is idle for a round trip, and a peer that fails costs the rest of one request.
    pub run_max: usize,
    /// How long one object may take to arrive after the one before it, in milliseconds. Range: 1 to 600,000. Default:
    /// 5,000: recomputing a block takes less, so waiting longer for it is never right.
    pub read_ms_max: u64,
    /// How long a batch of reads may take from the call on, in milliseconds, waiting for its turn included. Range: 1 to
    /// 600,000. Default: 30,000: a request that waited so long for its prefix was given up before.
    pub batch_ms_max: u64,
    /// How long a peer may leave a stream or a socket blocked, in milliseconds. Range: 1 to 600,000. Default: 10,000, twice
    /// `read_ms_max`, so that a reader which still waits finds its object held.
    pub hold_ms_max: u64,
    /// After how long without a sign of life a QUIC connection is dead, in milliseconds. Range: 1,500 to 600,000, because
    /// a sign is sent every second. Default: 4,000.
    pub idle_ms_max: u64,
    /// Send and receive buffer of the UDP socket, in bytes. Range: 65,536 to 1 GiB. Default: 8 MiB: below 4 MiB the socket
    /// drops packets of fast peers. The system caps it at `net.core.rmem_max` and `wmem_max`; a smaller value than asked
    /// for is reported in the log at the start.
    pub socket_bytes: usize,
    /// Bytes of one QUIC stream on their way to this reader; a connection carries twice that. Range: 65,536 to 512 MiB.
    /// Default: 2 MiB, the fastest measured on one host (4 MiB was a tenth slower: the bytes leave the caches and overrun
    /// the socket's buffer). Between sites set it to bandwidth times round trip.
    pub stream_window_bytes: u32,
    /// Connections that peers may have to this process, for QUIC and for shared memory each. Range: 1 to 65,536. Default:
    /// 256. A QUIC connection may run 32 requests, each with one object in memory.
    pub connections_max: usize,
    /// Peers whose state is kept. Range: 1 to 65,536. Default: 1,024.
    pub peers_max: usize,
}

impl PeerTransportConfig {
    /// The defaults documented at the fields.
    pub const DEFAULT: Self = Self {
        queue_max: 1_024,
        batches_max: 16,
        peer_batches_max: 8,
        run_max: 256,
        read_ms_max: 5_000,
        batch_ms_max: 30_000,
        hold_ms_max: 10_000,
        idle_ms_max: 4_000,
        socket_bytes: 8 << 20,
        stream_window_bytes: 2 << 20,
        connections_max: 256,
        peers_max: 1_024,
    };

    /// Checks every setting against its range.
    ///
    /// # Errors
    /// [`PeerTransportError::Config`] with the first one out of it.
    pub fn check(&self) -> Result<(), PeerTransportError> {
        let wide = |count: usize| u64::try_from(count).expect("usize has at most 64 bits");
        let settings = [
            ("queue_max", wide(self.queue_max), 1..=65_536, "1 to 65,536 batches"),
            ("batches_max", wide(self.batches_max), 1..=1_024, "1 to 1,024 batches"),
            ("peer_batches_max", wide(self.peer_batches_max), 1..=1_024, "1 to 1,024 batches"),
            ("run_max", wide(self.run_max), 1..=256, "1 to 256 objects"),
            ("read_ms_max", self.read_ms_max, 1..=600_000, "1 to 600,000 ms"),
            ("batch_ms_max", self.batch_ms_max, 1..=600_000, "1 to 600,000 ms"),
            ("hold_ms_max", self.hold_ms_max, 1..=600_000, "1 to 600,000 ms"),
            ("idle_ms_max", self.idle_ms_max, 1_500..=600_000, "1,500 to 600,000 ms"),
            ("socket_bytes", wide(self.socket_bytes), 65_536..=1 << 30, "64 KiB to 1 GiB"),
            (
                "stream_window_bytes",
                u64::from(self.stream_window_bytes),
                65_536..=1 << 29,
                "64 KiB to 512 MiB",
            ),
            ("connections_max", wide(self.connections_max), 1..=65_536, "1 to 65,536 connections"),
            ("peers_max", wide(self.peers_max), 1..=65_536, "1 to 65,536 peers"),
        ];
        for (field, found, range, expected) in settings {
            if !range.contains(&found) {
                return Err(PeerTransportError::Config { field, found, expected });
            }
        }
        Ok(())
    }
}

/// What a [`PeerTransport`] is connected to.
#[derive(Clone)]
pub struct PeerWiring {
    /// Where its tasks run; with timers and I/O, and more than one thread. It must outlive the transport.
    pub runtime: Handle,
    /// Who owns a region.
    pub peers: Arc<dyn PeerDirectory>,
    /// Certificates, and who may read.
    pub tls: Arc<dyn DataTls>,
    /// The UDP address to listen on, and to read from peers of the same address family. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where the unix socket for readers on this host goes; none to offer no shared memory. At most 107 bytes. Its folder
    /// should be the user's own.
    pub shm: Option<PathBuf>,
    /// The time by which failed peers are left alone.
    pub clock: Arc<dyn Clock>,
}

/// Finds the owner of a region.
pub trait PeerDirectory: Send + Sync {
    /// Where the owner of this region is, if it is a member now. Called for every run of reads; must not block.
    fn peer(&self, region: RegionId) -> Option<Peer>;
}

/// Where a peer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The name its certificate must have. Also names the peer in logs, and its state here.
    pub server_name: String,
    /// Its UDP address.
    pub address: SocketAddr,
    /// Its unix socket, if it is on this host.
    pub shm: Option<PathBuf>,
}

/// Certificates for the data plane. Asked anew for each connection, so that replaced files take effect.
///
/// The configurations allow TLS 1.3 only and ask for client certificates. The protocol's name (ALPN) is set on a copy.
pub trait DataTls: Send + Sync {
    /// For a connection to a peer. Must not block.
    fn client(&self) -> Arc<ClientConfig>;

    /// For a connection from a peer. Must not block.
    fn server(&self) -> Arc<ServerConfig>;

    /// Whether the holder of this chain, leaf first and verified against the server configuration's roots, may read
    /// objects of this process.
    fn may_read(&self, certificates: &[CertificateDer<'_>]) -> bool;
}

/// Why a [`PeerTransport`] did not start.
#[derive(Debug, thiserror::Error)]
pub enum PeerTransportError {
    /// A setting is out of its range.
    #[error("{field} is {found}, expected {expected}")]
    Config {
        /// The setting.
        field: &'static str,
        /// Its value.
        found: u64,
        /// Its range.
        expected: &'static str,
    },
    /// The UDP socket could not be had.
    #[error("cannot listen on UDP {address}: {source}; choose a free address of this host")]
    Udp {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The unix socket could not be had.
    #[error(
        "cannot listen on the unix socket {path}: {source}; use a folder of this user and a path of at most 107 bytes"
    )]
    Unix {
        /// The path asked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The TLS configuration cannot be used for QUIC.
    #[error(
        "the TLS configuration cannot be used for QUIC: {reason}; it must allow TLS 1.3 with AES-128-GCM"
    )]
    Tls {
        /// What the library said.
        reason: String,
    },
}

/// Reads from other processes and serves the pools registered here to them.
///
/// Answers come from tasks of the runtime: sinks must not block. Dropping it answers what waits with
/// [`ReadError::Closed`], closes all connections and removes the socket file. Outside a runtime the drop waits until its
/// tasks ended; inside one it cannot: call [`PeerTransport::close`] before.
pub struct PeerTransport {
    core: Arc<Core>,
    address: SocketAddr,
    batches: Option<Sender<Batch>>,
    tasks: TaskTracker,
    runtime: Handle,
}

impl PeerTransport {
    /// Opens the sockets and starts the tasks. Blocks for a moment only.
    ///
    /// # Errors
    /// [`PeerTransportError`], see there.
    pub fn start(
        config: PeerTransportConfig,
        wiring: PeerWiring,
    ) -> Result<Self, PeerTransportError> {
        config.check()?;
        let PeerWiring { runtime, peers, tls, listen, shm, clock } = wiring;
        let _entered = runtime.enter();
        let endpoint = quic::endpoint(&config, listen, &*tls)?;
        let udp = |source| PeerTransportError::Udp { address: listen, source };
        let address = endpoint.local_addr().map_err(udp)?;
        let listener = shm.map(shm::Listener::bind).transpose()?;
        let core = Arc::new(Core {
            config,
            registry: Registry::default(),
            counters: Arc::default(),
            tls,
            endpoint,
            closing: CancellationToken::new(),
            directory: peers,
            members: Members::new(config.peers_max),
            clock,
        });
        let (batches, waiting) = mpsc::channel(config.queue_max);
        let tasks = TaskTracker::new();
        drop(tasks.spawn_on(dispatch(Arc::clone(&core), waiting), &runtime));
        drop(tasks.spawn_on(quic::serve(Arc::clone(&core)), &runtime));
        if let Some(listener) = listener {
            drop(tasks.spawn_on(shm::serve(Arc::clone(&core), listener), &runtime));
        }
        tasks.close();
        Ok(Self { core, address, batches: Some(batches), tasks, runtime: runtime.clone() })
    }

    /// Makes a pool readable under its region, for this process and over QUIC.
    ///
    /// # Errors
    /// When another pool has that region.
    pub fn register(&self, pool: &Pool) -> Result<(), RegisterError> {
        self.core.registry.register(pool, None)
    }

    /// The same for a pool whose slots are those of `memory` (the pool may lie over something that wraps it): processes
    /// on this host then read it without a copy on this side.
    ///
    /// # Errors
    /// When another pool has that region.
    ///
    /// # Panics
    /// When the pool's slots are not shaped like those of `memory`.
    pub fn register_shared(
        &self,
        pool: &Pool,
        memory: &Arc<SharedMemory>,
    ) -> Result<(), RegisterError> {
        let shape = |memory: &dyn SlotMemory| (memory.slots(), memory.slot_bytes());
        let (pooled, shared) = (shape(&**pool.memory()), shape(&**memory));
        assert_eq!(pooled, shared, "the pool lies over this memory: slots and bytes of a slot");
        self.core.registry.register(pool, Some(Arc::clone(memory)))
    }

    /// Takes a region away; later reads from it fail with [`ReadError::UnknownRegion`]. A read in progress completes.
    /// Says whether the region was there.
    pub fn unregister(&self, region: RegionId) -> bool {
        self.core.registry.unregister(region)
    }

    /// The UDP address peers reach it under, with the port that was taken.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it did so far.
    #[must_use]
    pub fn stats(&self) -> PeerStats {
        self.core.counters.snapshot()
    }

    /// Cancels all reads, takes no more, closes all connections and waits until its tasks ended. May be called twice.
    pub async fn close(&self) {
        self.core.registry.shut();
        self.core.closing.cancel();
        self.tasks.wait().await;
    }
}

impl Transport for PeerTransport {
    fn read(
        &self,
        context: RequestContext,
        reads: Vec<ReadRequest>,
        sink: Box<dyn Sink<ReadDone>>,
    ) -> Ticket {
        if reads.is_empty() {
            return Ticket::empty();
        }
        let open = OpenReads::new(&self.core.counters, reads.len());
        let cancelled = self.core.closing.child_token();
        let answers = Answers { sink, open };
        let until = Instant::now() + self.core.batch_limit();
        let batch = Batch { context, reads, answers, cancelled: cancelled.clone(), until };
        let Some(batches) = &self.batches else {
            unreachable!("the sender is taken by drop alone");
        };
        match batches.try_send(batch) {
            Ok(()) => Ticket::new(move || cancelled.cancel()),
            Err(TrySendError::Full(batch)) => {
                let waiting_max = self.core.config.queue_max;
                refuse(&self.core, batch, ReadError::Busy { waiting_max });
                Ticket::empty()
            }
            Err(TrySendError::Closed(batch)) => {
                refuse(&self.core, batch, ReadError::Closed);
                Ticket::empty()
            }
        }
    }
}

impl Drop for PeerTransport {
    fn drop(&mut self) {
        self.core.registry.shut();
        self.core.closing.cancel();
        self.batches = None;
        // A thread of a runtime must not wait: it may be the one the tasks need, or run one of them.
        if Handle::try_current().is_err() {
            self.runtime.block_on(self.tasks.wait());
        }
    }
}

impl fmt::Debug for PeerTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerTransport").field("address", &self.address).finish_non_exhaustive()
    }
}
