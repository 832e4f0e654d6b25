//! foyer's disk engine below a memory that holds nothing: direct I/O and its default I/O engine. It drops what exceeds its
//! buffers, so that the put waits for them now and then. An object counts as put when the engine has written it; it does not
//! sync.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use foyer::{
    BlockEngineConfig, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder, RecoverMode,
};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::drive::{self, Store};
use crate::figures::{name, objects};

/// What foyer may buffer, and objects put before waiting until it has written them: 117 MB of Flash blocks.
const BUFFER_BYTES: usize = 256 << 20;
const LOT: usize = 1_024;

struct Foyer {
    runtime: Runtime,
    cache: HybridCache<u128, Vec<u8>>,
    source: Arc<Vec<Vec<u8>>>,
}

pub(crate) fn measure(folder: &Path, payload: usize, bytes: usize) -> anyhow::Result<Vec<String>> {
    let count = payload / bytes;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let capacity = 2 * payload.next_multiple_of(64 << 20) + (256 << 20);
    let device = FsDeviceBuilder::new(folder).with_capacity(capacity).with_direct(true).build()?;
    let engine = BlockEngineConfig::new(device)
        .with_block_size(64 << 20)
        .with_buffer_pool_size(BUFFER_BYTES)
        .with_submit_queue_size_threshold(2 * payload);
    let builder = HybridCacheBuilder::new()
        .memory(1 << 20)
        .with_weighter(|_: &u128, value: &Vec<u8>| value.len())
        .storage()
        .with_recover_mode(RecoverMode::None)
        .with_engine_config(engine);
    let cache = runtime.block_on(builder.build())?;
    let mut store = Foyer { runtime, cache, source: Arc::new(objects(count, bytes)) };
    let lines = drive::measure("foyer", &mut store, count, bytes)?;
    store.runtime.block_on(store.cache.close())?;
    Ok(lines)
}

impl Store for Foyer {
    fn put(&mut self) -> anyhow::Result<usize> {
        let (cache, source) = (&self.cache, &self.source);
        self.runtime.block_on(async {
            for (index, object) in source.iter().enumerate() {
                let entry = cache.storage_writer(key(index)).force().insert(object.clone());
                drop(entry);
                if (index + 1) % LOT == 0 {
                    cache.storage().wait().await;
                }
            }
            cache.storage().wait().await;
        });
        Ok((0..source.len()).filter(|index| cache.storage().may_contains(&key(*index))).count())
    }

    fn cool(&mut self) -> anyhow::Result<()> {
        self.cache.memory().clear();
        Ok(())
    }

    /// All at once: the engine reads single objects only.
    fn get(&mut self, first: usize, count: usize) -> anyhow::Result<()> {
        let (cache, source) = (&self.cache, &self.source);
        self.runtime.block_on(async {
            let mut reads = JoinSet::new();
            for index in first..first + count {
                let (cache, source) = (cache.clone(), Arc::clone(source));
                reads.spawn(async move {
                    let entry = cache.get(&key(index)).await?.context("an object is missing")?;
                    ensure!(*entry.value() == source[index], "an object has other bytes");
                    anyhow::Ok(())
                });
            }
            while let Some(read) = reads.join_next().await {
                read??;
            }
            Ok(())
        })
    }
}

/// Sixteen bytes, as a type that foyer takes for a key.
fn key(index: usize) -> u128 {
    u128::from_be_bytes(name(index))
}
