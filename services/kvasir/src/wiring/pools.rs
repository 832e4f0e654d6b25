//! The memories of a worker and the pools over them.

use std::sync::Arc;

use anyhow::Context;
use engine::KvSlab;
use kvstore::{HostMemory, Pool, PoolConfig};
use shared::{KvLayout, ObjectKind, RegionId, SlotMemory, Tier};

use crate::config::ServerConfig;

/// The regions of one party: its blocks and its window objects.
#[derive(Clone, Copy)]
pub(super) struct Regions {
    pub(super) blocks: RegionId,
    pub(super) windows: RegionId,
}

impl Regions {
    pub(super) const STORE: Self = Self { blocks: RegionId(1), windows: RegionId(2) };
    pub(super) const PREFILL: Self = Self { blocks: RegionId(3), windows: RegionId(4) };
    pub(super) const DECODE: Self = Self { blocks: RegionId(5), windows: RegionId(6) };
}

/// What a worker computes in.
pub(super) struct WorkerMemory {
    pub(super) slab: Arc<KvSlab>,
    /// The bookkeeping of `slab`.
    pub(super) blocks: Pool,
    /// Host memory for window objects.
    pub(super) windows: Pool,
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
    pub(super) fn new(name: &'static str, pool: &Pool) -> Self {
        Self { name, pool: pool.clone() }
    }
}

/// Allocates a worker's memories.
///
/// # Errors
/// When the system does not give them.
pub(super) fn worker_memory(
    layout: &KvLayout,
    config: &ServerConfig,
    regions: Regions,
) -> anyhow::Result<WorkerMemory> {
    let slab = Arc::new(KvSlab::new(config.device_blocks, layout.block_bytes()));
    let host = HostMemory::with_slots(config.window_objects, layout.window_bytes())
        .context("memory for window objects (window_objects of [server])")?;
    let pool = |region, kind, tier, memory: Arc<dyn SlotMemory>| {
        Pool::new(PoolConfig { region, kind, tier }, memory)
    };
    let memory = Arc::clone(&slab) as Arc<dyn SlotMemory>;
    Ok(WorkerMemory {
        slab,
        blocks: pool(regions.blocks, ObjectKind::Block, Tier::Device, memory),
        windows: pool(regions.windows, ObjectKind::Window, Tier::Host, Arc::new(host)),
    })
}
