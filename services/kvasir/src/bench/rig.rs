//! Both ends of what is measured: memories with their objects, transports and who they are, in one process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::ensure;
use kvstore::{
    DataTls, Peer, PeerDirectory, PeerTransport, PeerTransportConfig, PeerWiring, Pool, PoolConfig,
    Seal, SealedSlot, SharedMemory,
};
use parking_lot::Mutex;
use shared::{BlockName, Clock, ObjectKind, RegionId, SlotIndex, SlotMemory, Tier, WorkerRank};
use tokio::runtime::Handle;

use crate::identity::{ClusterAuthority, Identity, IdentityFiles, MemberIdentity, MemberRole};

/// One memory with its pool.
pub(super) struct Side {
    pub(super) memory: Arc<SharedMemory>,
    pub(super) pool: Pool,
}

impl Side {
    /// Memory for blocks of this owner.
    pub(super) fn new(owner: WorkerRank, slots: u32, bytes: usize) -> anyhow::Result<Self> {
        let memory = Arc::new(SharedMemory::with_slots(slots, bytes)?);
        let kind = ObjectKind::Block;
        let config = PoolConfig { region: RegionId::of(owner, kind), kind, tier: Tier::Host };
        let pool = Pool::new(config, Arc::clone(&memory) as Arc<dyn SlotMemory>);
        Ok(Self { memory, pool })
    }

    /// Objects of different content, so that nothing is found equal by chance, with names that are spread like hashes.
    pub(super) fn fill(&self, objects: usize, bytes: usize) -> anyhow::Result<Vec<SealedSlot>> {
        let mut sealed = Vec::new();
        for (number, mut slot) in (0_u64..).zip(self.pool.reserve(objects)?) {
            slot.write(&mut |memory| fill(memory, number));
            let mut name = [0; 16];
            name.copy_from_slice(&blake3::hash(&number.to_le_bytes()).as_bytes()[..16]);
            let seal = Seal { name: BlockName(name), exact: true, bytes: u32::try_from(bytes)? };
            sealed.push(self.pool.seal(slot, seal));
        }
        Ok(sealed)
    }

    /// Copies one object into a slot of another memory: the least that moving it can cost.
    pub(super) fn copy(&self, from: SlotIndex, target: (&Self, SlotIndex), bytes: usize) {
        let (target, to) = target;
        self.memory.read(from, &mut |from| {
            target.memory.write(to, &mut |to| to[..bytes].copy_from_slice(&from[..bytes]));
        });
    }
}

/// The order of `count` steps in a round: forward, and backward every second time, so that none always follows the same.
pub(super) fn turns(round: usize, count: usize) -> Vec<usize> {
    let forward = 0..count;
    if round.is_multiple_of(2) { forward.collect() } else { forward.rev().collect() }
}

/// Bytes that look random and differ by key.
pub(super) fn fill(memory: &mut [u8], key: u64) {
    let mut value = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in memory.chunks_mut(8) {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
        chunk.copy_from_slice(&value.to_le_bytes()[..chunk.len()]);
    }
}

/// Who can be read from. Members are added when their addresses are known.
pub(super) struct Directory(Mutex<Vec<(WorkerRank, Peer)>>);

impl Directory {
    /// Nobody.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Vec::new())))
    }

    /// One more. At most a handful are ever added.
    pub(super) fn add(&self, rank: WorkerRank, peer: Peer) {
        self.0.lock().push((rank, peer));
    }
}

impl PeerDirectory for Directory {
    fn peer(&self, region: RegionId) -> Option<Peer> {
        let peers = self.0.lock();
        peers.iter().find(|(rank, _)| *rank == region.owner()).map(|(_, peer)| peer.clone())
    }
}

/// How a running transport is reached: over QUIC, unless a socket is told.
pub(super) fn peer(identity: &Identity, transport: &PeerTransport, shm: Option<PathBuf>) -> Peer {
    Peer { server_name: identity.member().dns_name(), address: transport.address(), shm }
}

/// A transport on a free loopback port, and on a socket if one is told.
pub(super) fn transport(
    identity: &Arc<Identity>,
    peers: Arc<Directory>,
    shm: Option<PathBuf>,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<PeerTransport> {
    let wiring = PeerWiring {
        runtime: Handle::current(),
        peers,
        tls: Arc::clone(identity) as Arc<dyn DataTls>,
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        shm,
        clock: Arc::clone(clock),
    };
    Ok(PeerTransport::start(PeerTransportConfig::DEFAULT, wiring)?)
}

/// A member of a cluster whose authority lies in the folder; the first call makes it.
pub(super) fn identity(
    folder: &Path,
    role: MemberRole,
    name: &str,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Arc<Identity>> {
    let authority = if folder.join("ca.key").is_file() {
        ClusterAuthority::open(folder, Arc::clone(clock))?
    } else {
        ClusterAuthority::create(folder, Arc::clone(clock))?
    };
    let files = authority.issue(role, name)?;
    let identity = Identity::load(IdentityFiles {
        authority: authority.certificate(),
        certificate: files.certificate,
        key: files.key,
    })?;
    ensure!(
        *identity.member() == MemberIdentity::new(role, name)?,
        "a certificate has a wrong name"
    );
    Ok(Arc::new(identity))
}
