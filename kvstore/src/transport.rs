//! One verb for data: read a sealed object of a registered region into one's own slot.
//!
//! Nothing ever writes into another party's memory; a put is an offer that the other side answers by reading. A target
//! slot goes in by value and comes back with the result, so memory in flight always has exactly one owner.
//!
//! [`local`] copies inside one process. [`peer`] reads from other processes too and chooses the way by itself: own
//! process, shared memory, QUIC. Start reading there.

pub mod local;
pub mod peer;

mod quic;
mod shm;
mod wire;

#[cfg(test)]
mod conformance;

use shared::{Descriptor, RegionId, RequestContext, Sink, Ticket};

pub use local::{LocalTransport, LocalTransportConfig, RegisterError};
pub use peer::{
    DataTls, Failures, PathStats, Peer, PeerDirectory, PeerStats, PeerTransport,
    PeerTransportConfig, PeerTransportError, PeerWiring,
};

use crate::pool::OwnedSlot;

/// Reads objects by descriptor. Local and remote implementations differ in wiring only.
///
/// Contract
/// - Never blocks its caller. Every request is answered by one [`ReadDone`], in the order given, by one thread at a
///   time; a batch that cannot be queued is answered on the calling thread before `read` returns, so a sink must not
///   wait for a lock that the caller of `read` holds.
/// - A peer that is slow, frozen or gone costs a bounded time: its reads come back with [`ReadError::Late`] or
///   [`ReadError::PeerLost`].
/// - `Ok` means: the target's first `source.bytes` bytes were read while the source still was of that generation, and
///   have its checksum. After an error the target's bytes are undefined. Batches of one caller start in the order given.
/// - Dropping the ticket cancels: reads not yet begun come back with [`ReadError::Closed`]. The ticket may also be
///   dropped after the last answer; it then does nothing.
/// - After the sink answered [`shared::Flow::Closed`] it is not called again, and the targets still inside return to
///   their pool.
pub trait Transport: Send + Sync {
    /// Starts reading on behalf of `context`, which goes to the owner too. Fetches nothing when `reads` is empty.
    fn read(
        &self,
        context: RequestContext,
        reads: Vec<ReadRequest>,
        sink: Box<dyn Sink<ReadDone>>,
    ) -> Ticket;
}

/// One object to read.
#[derive(Debug)]
pub struct ReadRequest {
    /// What, and where it lies.
    pub source: Descriptor,
    /// Where to put it. At least `source.bytes` bytes; what lies behind them is left alone.
    pub target: OwnedSlot,
}

/// One answer.
#[derive(Debug)]
pub struct ReadDone {
    /// What was asked for.
    pub source: Descriptor,
    /// The slot that was lent, to be sealed, reused or dropped.
    pub target: OwnedSlot,
    /// What became of it.
    pub result: Result<(), ReadError>,
}

/// Why an object was not read. The caller looks for another copy, and recomputes when there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The region is not registered: its owner is gone, or was never reachable from here.
    #[error("region {region} is not registered; look the object up again")]
    UnknownRegion {
        /// The region.
        region: RegionId,
    },
    /// The slot holds something else by now: the copy was evicted. Look the object up again.
    #[error("the slot was reused since it was looked up; look the object up again")]
    Stale,
    /// The bytes fail their checksum. The object is lost there; a local source forgets it by itself.
    #[error("checksum is {found:08x}, expected {expected:08x}; the copy is lost")]
    Corrupt {
        /// The checksum in the descriptor.
        expected: u32,
        /// The checksum of the bytes.
        found: u32,
    },
    /// The payload does not fit the target. Both sides disagree on the layout.
    #[error(
        "a payload of {expected} bytes does not fit a slot of {found} bytes; check that both sides run the same model"
    )]
    Length {
        /// Bytes of the payload.
        expected: usize,
        /// Bytes of the slot.
        found: usize,
    },
    /// The queue of the transport is full. Try again when earlier reads came back.
    #[error("{waiting_max} batches of reads are waiting; try again when one of them is done")]
    Busy {
        /// The bound of the queue.
        waiting_max: usize,
    },
    /// The peer did not deliver the object in time: it is slow, overloaded or frozen.
    #[error("the object did not arrive within {limit_ms} ms; read another copy or recompute")]
    Late {
        /// The limit, in milliseconds.
        limit_ms: u64,
    },
    /// The peer cannot be reached, went away in the middle, refused the reader, or broke the protocol.
    #[error("the owner of region {region} is lost; read another copy or recompute")]
    PeerLost {
        /// The region that was to be read.
        region: RegionId,
    },
    /// The read was cancelled, or the transport is shutting down.
    #[error("the read was cancelled or the transport is closed")]
    Closed,
}
