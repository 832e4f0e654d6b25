//! Where cached state lives: pools of slots, the transport between them, the host tier with the disk below it, media
//! embeddings over both, and the planner that decides how a request starts from what is cached.
//!
//! What it is not: it knows no model and computes nothing; bytes are opaque, checked by length, generation and CRC-32C.
//! Async is behind [`PeerTransport`] alone; everything else is threads and locks.
//!
//! Invariants: a sealed slot never changes until nobody holds it; a read returns the bytes of the object it named or an
//! error, never those of a later tenant of the slot; every slot is explained by a list or a living guard
//! ([`Pool::audit`]); the planner is pure.
//!
//! Start reading at [`pool`], then [`transport`], then [`planner`].
#![deny(unsafe_code)]

pub mod block_checks;
pub mod disk;
pub mod host;
pub mod media;
pub mod memory;
pub mod planner;
pub mod pool;
pub mod transport;

mod recent;
mod records;
mod sys;
mod tenants;

#[cfg(test)]
mod proofs;
#[cfg(test)]
mod testing;

pub use block_checks::check_names;
pub use disk::catalog;
pub use disk::{
    DiskConfig, DiskError, DiskIo, DiskLoad, DiskStats, DiskTier, DiskWiring, EvictError,
    ObjectConfig, ObjectError, ObjectStats, PlanError, PlanVerdict, Retention, RetentionLimits,
    RetentionPlan, RetentionQuery, Reuse, plan_retention, survey,
};
pub use host::{
    BlockPlace, HostStats, HostTier, HostTierConfig, HostTierError, HostWiring, NoStore,
};
pub use media::{
    MEDIA_BYTES_MAX, MEDIA_PIECES_MAX, MediaClient, MediaEmbedding, MediaError, MediaMiss,
    MediaSize, MediaStats, MediaWiring,
};
pub use memory::{HostMemory, MemoryError, SharedMemory};
pub use planner::{
    StartCosts, StartPlan, StartQuery, StartRole, WindowCandidate, WindowPlan, plan_start,
    replay_is_exact, replay_rows, useful_window_floor,
};
pub use pool::{OpenRead, OwnedSlot, Pool, PoolAudit, PoolConfig, PoolFull, Seal, SealedSlot};
pub use records::{BlockFate, FateRun, StartRecord, StartRecords, fate_runs};
pub use tenants::{TenantQuota, TenantQuotas};
pub use transport::{
    DataTls, Failures, LocalTransport, LocalTransportConfig, PathStats, Peer, PeerDirectory,
    PeerStats, PeerTransport, PeerTransportConfig, PeerTransportError, PeerWiring, ReadDone,
    ReadError, ReadRequest, RegisterError, Transport,
};
