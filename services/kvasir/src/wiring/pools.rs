//! The memories of a worker and the pools over them.

use std::sync::Arc;

use anyhow::Context;
use engine::KvSlab;
use kvstore::{Pool, PoolConfig, SharedMemory};
use shared::{KvLayout, ObjectKind, RegionId, SlotMemory, Tier, WorkerRank};

use crate::config::ServerConfig;

/// What a worker computes in. All of it lies in segments that other processes of the host can be let read.
pub(crate) struct WorkerMemory {
    pub(crate) slab: Arc<KvSlab>,
    /// The bookkeeping of `slab`.
    pub(crate) blocks: Pool,
    /// Host memory for window objects.
    pub(crate) windows: Pool,
    /// Below `slab`.
    pub(crate) slab_memory: Arc<SharedMemory>,
    /// Below `windows`.
    pub(crate) window_memory: Arc<SharedMemory>,
}

/// A pool under the name that reports use.
#[derive(Clone, Debug)]
pub struct NamedPool {
    /// One of six fixed names: role and kind.
    pub name: &'static str,
    /// The pool.
    pub pool: Pool,
}

impl NamedPool {
    pub(crate) fn new(name: &'static str, pool: &Pool) -> Self {
        Self { name, pool: pool.clone() }
    }
}

/// Allocates a worker's memories.
///
/// # Errors
/// When the system does not give them.
pub(crate) fn worker_memory(
    layout: &KvLayout,
    config: &ServerConfig,
    owner: WorkerRank,
) -> anyhow::Result<WorkerMemory> {
    let slab_memory = SharedMemory::with_slots(config.device_blocks, layout.block_bytes())
        .context("memory for blocks (device_blocks of [server])")?;
    let window_memory = SharedMemory::with_slots(config.window_objects, layout.window_bytes())
        .context("memory for window objects (window_objects of [server])")?;
    let (slab_memory, window_memory) = (Arc::new(slab_memory), Arc::new(window_memory));
    let pool = |kind, tier, memory: Arc<dyn SlotMemory>| {
        Pool::new(PoolConfig { region: RegionId::of(owner, kind), kind, tier }, memory)
    };
    let slab = Arc::new(KvSlab::over(Arc::clone(&slab_memory) as Arc<dyn SlotMemory>));
    let blocks = Arc::clone(&slab) as Arc<dyn SlotMemory>;
    let windows = Arc::clone(&window_memory) as Arc<dyn SlotMemory>;
    Ok(WorkerMemory {
        slab,
        blocks: pool(ObjectKind::Block, Tier::Device, blocks),
        windows: pool(ObjectKind::Window, Tier::Host, windows),
        slab_memory,
        window_memory,
    })
}
