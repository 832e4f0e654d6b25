//! RocksDB with values in blob files: no write-ahead log, direct I/O, no compression, nothing cached. An object is durable
//! when the memory table was flushed, at the end of the put.

use std::path::Path;

use anyhow::{Context, ensure};
use rocksdb::{BlockBasedOptions, Cache, DB, DBCompressionType, Options, WriteOptions};

use crate::drive::{self, Store};
use crate::figures::{name, objects};

struct BlobDb {
    db: DB,
    source: Vec<Vec<u8>>,
}

pub(crate) fn measure(folder: &Path, payload: usize, bytes: usize) -> anyhow::Result<Vec<String>> {
    let count = payload / bytes;
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::None);
    options.set_blob_compression_type(DBCompressionType::None);
    options.set_enable_blob_files(true);
    options.set_min_blob_size(0);
    options.set_blob_file_size(256 << 20);
    options.set_write_buffer_size(64 << 20);
    options.set_max_background_jobs(2);
    options.set_use_direct_reads(true);
    options.set_use_direct_io_for_flush_and_compaction(true);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(8 << 20));
    table.set_bloom_filter(10.0, false);
    options.set_block_based_table_factory(&table);
    let db = DB::open(&options, folder)?;
    let mut store = BlobDb { db, source: objects(count, bytes) };
    drive::measure("RocksDB BlobDB", &mut store, count, bytes)
}

impl Store for BlobDb {
    fn put(&mut self) -> anyhow::Result<usize> {
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        for (index, object) in self.source.iter().enumerate() {
            self.db.put_opt(name(index), object, &options)?;
        }
        self.db.flush()?;
        Ok(self.source.len())
    }

    /// Reads are direct and blobs are not cached: there is nothing to forget.
    fn cool(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn get(&mut self, first: usize, count: usize) -> anyhow::Result<()> {
        let found = self.db.multi_get((first..first + count).map(name));
        for (found, expected) in found.into_iter().zip(&self.source[first..]) {
            let found = found?.context("an object is missing")?;
            ensure!(found == *expected, "an object has other bytes");
        }
        Ok(())
    }
}
