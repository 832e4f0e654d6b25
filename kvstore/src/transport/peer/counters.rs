//! What a transport did, counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::transport::ReadError;

/// What a [`crate::PeerTransport`] did since it started, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerStats {
    /// Objects read from pools of this process.
    pub local: PathStats,
    /// Objects read from other processes through shared memory.
    pub shared_memory: PathStats,
    /// Objects read over QUIC.
    pub quic: PathStats,
    /// Objects sent to peers over QUIC. What they read through shared memory, only they can count.
    pub served_quic: PathStats,
    /// Reads that failed, by reason.
    pub failures: Failures,
    /// Reads taken and not answered yet.
    pub open_reads: u64,
    /// Connections of peers, both kinds, now.
    pub connections_served: u64,
    /// Connections made to peers, both kinds, since the start. Many of them with few reads: peers come and go.
    pub connections_made: u64,
    /// Connections refused: one too many, or their certificate or user may not read.
    pub connections_refused: u64,
    /// Requests of peers that broke the protocol.
    pub requests_malformed: u64,
    /// Objects that a peer did not take from its stream for longer than it may; they were released without it.
    pub holds_expired: u64,
}

/// Objects and payload bytes that went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    /// Objects.
    pub objects: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

/// Reads that failed, by [`ReadError`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// [`ReadError::UnknownRegion`].
    pub unknown_region: u64,
    /// [`ReadError::Stale`].
    pub stale: u64,
    /// [`ReadError::Corrupt`].
    pub corrupt: u64,
    /// [`ReadError::Length`].
    pub length: u64,
    /// [`ReadError::Busy`].
    pub busy: u64,
    /// [`ReadError::Late`].
    pub late: u64,
    /// [`ReadError::PeerLost`].
    pub peer_lost: u64,
    /// [`ReadError::Closed`].
    pub closed: u64,
}

/// The way an object took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Path {
    Local,
    SharedMemory,
    Quic,
}

/// The counters behind [`PeerStats`].
#[derive(Debug, Default)]
pub(in crate::transport) struct Counters {
    local: PathCounters,
    shared_memory: PathCounters,
    quic: PathCounters,
    served_quic: PathCounters,
    failures: Mutex<Failures>,
    open_reads: AtomicU64,
    connections_served: AtomicU64,
    pub(in crate::transport) connections_made: AtomicU64,
    pub(in crate::transport) connections_refused: AtomicU64,
    pub(in crate::transport) requests_malformed: AtomicU64,
    pub(in crate::transport) holds_expired: AtomicU64,
}

#[derive(Debug, Default)]
struct PathCounters {
    objects: AtomicU64,
    bytes: AtomicU64,
}

/// Reads taken and not answered. What is left of them when it drops will not be answered and counts no longer.
#[derive(Debug)]
pub(super) struct OpenReads {
    counters: Arc<Counters>,
    left: u64,
}

/// A connection of a peer, while it lives.
pub(in crate::transport) struct ServedConnection(Arc<Counters>);

impl Counters {
    pub(in crate::transport) fn read(&self, path: Path, bytes: u32) {
        let counters = match path {
            Path::Local => &self.local,
            Path::SharedMemory => &self.shared_memory,
            Path::Quic => &self.quic,
        };
        counters.add(bytes);
    }

    /// An object went out over QUIC. What peers read through shared memory nobody here sees.
    pub(in crate::transport) fn served(&self, bytes: u32) {
        self.served_quic.add(bytes);
    }

    pub(super) fn failed(&self, error: ReadError) {
        *self.failures.lock().of(error) += 1;
    }

    pub(super) fn snapshot(&self) -> PeerStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PeerStats {
            local: self.local.snapshot(),
            shared_memory: self.shared_memory.snapshot(),
            quic: self.quic.snapshot(),
            served_quic: self.served_quic.snapshot(),
            failures: *self.failures.lock(),
            open_reads: read(&self.open_reads),
            connections_served: read(&self.connections_served),
            connections_made: read(&self.connections_made),
            connections_refused: read(&self.connections_refused),
            requests_malformed: read(&self.requests_malformed),
            holds_expired: read(&self.holds_expired),
        }
    }
}

impl Failures {
    fn of(&mut self, error: ReadError) -> &mut u64 {
        match error {
            ReadError::UnknownRegion { .. } => &mut self.unknown_region,
            ReadError::Stale => &mut self.stale,
            ReadError::Corrupt { .. } => &mut self.corrupt,
            ReadError::Length { .. } => &mut self.length,
            ReadError::Busy { .. } => &mut self.busy,
            ReadError::Late { .. } => &mut self.late,
            ReadError::PeerLost { .. } => &mut self.peer_lost,
            ReadError::Closed => &mut self.closed,
        }
    }
}

impl PathCounters {
    fn add(&self, bytes: u32) {
        add(&self.objects, 1);
        add(&self.bytes, u64::from(bytes));
    }

    fn snapshot(&self) -> PathStats {
        PathStats {
            objects: self.objects.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

impl OpenReads {
    pub(super) fn new(counters: &Arc<Counters>, count: usize) -> Self {
        let left = u64::try_from(count).expect("usize has at most 64 bits");
        add(&counters.open_reads, left);
        Self { counters: Arc::clone(counters), left }
    }

    pub(super) fn answered(&mut self) {
        assert!(0 < self.left, "a read is answered once");
        self.left -= 1;
        self.counters.open_reads.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for OpenReads {
    fn drop(&mut self) {
        self.counters.open_reads.fetch_sub(self.left, Ordering::Relaxed);
    }
}

impl ServedConnection {
    pub(in crate::transport) fn new(counters: &Arc<Counters>) -> Self {
        add(&counters.connections_served, 1);
        Self(Arc::clone(counters))
    }
}

impl Drop for ServedConnection {
    fn drop(&mut self) {
        self.0.connections_served.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(in crate::transport) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
