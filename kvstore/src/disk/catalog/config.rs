//! Settings of the catalog, why it failed, and what RocksDB is told.

use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, ColumnFamilyDescriptor, DBCompressionType,
    DBRecoveryMode, ErrorKind, LogLevel, Options,
};

use crate::disk::format::wide;

/// The family of names.
pub(super) const NAMES: &str = "names";
/// The family of places.
pub(super) const PLACES: &str = "places";
/// The family of everything else: a few rows per segment and tenant.
pub(super) const SMALL: &str = "default";

/// Bits of the bloom filter per name: one lookup in a hundred of names that are not held reads a page in vain.
const BLOOM_BITS: f64 = 10.0;
/// Bytes of one piece of index, filter or rows: what one lookup reads at once when it is not in memory.
const BLOCK_BYTES: usize = 4 << 10;

/// The range of [`CatalogConfig::cache_bytes`].
pub(in crate::disk) const CACHE_BYTES: RangeInclusive<u64> = 1 << 20..=64 << 30;
/// The range of [`CatalogConfig::write_buffer_bytes`].
pub(in crate::disk) const WRITE_BUFFER_BYTES: RangeInclusive<u64> = 1 << 20..=4 << 30;

/// How a catalog is set up. Its memory is at most about the sum of the two byte settings, and some MiB for open files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogConfig {
    /// The folder of its database. Made when it is missing, with its parents; nothing else should lie in it.
    pub folder: PathBuf,
    /// Bytes of memory for what was read: rows, and with priority the pieces of the filters and of RocksDB's index.
    /// Range: 1 MiB to 64 GiB. Default: 64 MiB. Filters and index take 1.6 bytes per block, so that the default keeps
    /// those of 40 million blocks; with less than that a lookup may read up to three pages of 4 KiB.
    pub cache_bytes: usize,
    /// Bytes of memory for what was written and is not in a table file yet. Range: 1 MiB to 4 GiB. Default: 32 MiB, about
    /// 80,000 blocks. The start after a crash reads back at most half of it.
    pub write_buffer_bytes: usize,
    /// Table files open at a time; a drive of 8 TB has about 100 of them. Range: 16 to 65,536. Default: 256.
    pub open_files_max: usize,
    /// Threads that flush and compact, shared by all databases of the process. Range: 1 to 16. Default: 2, one of each.
    pub background_jobs: usize,
}

impl CatalogConfig {
    /// The defaults documented at the fields, in this folder.
    #[must_use]
    pub fn in_folder(folder: PathBuf) -> Self {
        Self {
            folder,
            cache_bytes: 64 << 20,
            write_buffer_bytes: 32 << 20,
            open_files_max: 256,
            background_jobs: 2,
        }
    }

    /// Checks the ranges. Touches no file.
    ///
    /// # Errors
    /// [`CatalogError::Config`] with the first setting that is out of its range.
    pub fn check(&self) -> Result<(), CatalogError> {
        let settings: [(&'static str, usize, RangeInclusive<u64>, &'static str); 4] = [
            ("cache_bytes", self.cache_bytes, CACHE_BYTES, "1 MiB to 64 GiB"),
            ("write_buffer_bytes", self.write_buffer_bytes, WRITE_BUFFER_BYTES, "1 MiB to 4 GiB"),
            ("open_files_max", self.open_files_max, 16..=65_536, "16 to 65,536"),
            ("background_jobs", self.background_jobs, 1..=16, "1 to 16"),
        ];
        for (field, found, range, expected) in settings {
            let found = wide(found);
            if !range.contains(&found) {
                return Err(CatalogError::Config { field, found, expected });
            }
        }
        Ok(())
    }
}

/// Why the catalog could not do something. Losing it costs a rebuild, never a wrong byte: readers check what they read.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// A setting is out of its range.
    #[error("catalog: {field} is {found}, expected {expected}")]
    Config {
        /// The setting.
        field: &'static str,
        /// Its value.
        found: u64,
        /// Its range.
        expected: &'static str,
    },
    /// The folder cannot be made.
    #[error("catalog: cannot make the folder {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The database refused. What was asked for did not happen, not even in part. After a full or failed drive it may
    /// refuse everything until it is opened again.
    #[error("catalog: cannot {what}: {source}")]
    Database {
        /// What was tried.
        what: &'static str,
        /// What RocksDB said.
        source: rocksdb::Error,
    },
    /// A row is not what it must be. The next start rebuilds the catalog.
    #[error("catalog: {what} is damaged; the next start rebuilds the catalog from the segments")]
    Damaged {
        /// Which.
        what: &'static str,
    },
}

impl CatalogError {
    /// Whether the catalog itself is damaged: it has noted that, and its next opening makes it anew.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Database { source, .. } => source.kind() == ErrorKind::Corruption,
            Self::Damaged { .. } => true,
            Self::Config { .. } | Self::Folder { .. } => false,
        }
    }
}

/// What holds for the whole database. No mmap and no statistics; the log of the database is at most 2 MiB.
pub(super) fn database_options(config: &CatalogConfig) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_max_open_files(c_int(config.open_files_max));
    options.set_max_background_jobs(c_int(config.background_jobs));
    // Half a buffer of log is about a full table in memory: a crash costs a second at the start, not more.
    options.set_max_total_wal_size(wide(config.write_buffer_bytes / 2));
    // After a crash of the machine: everything up to the first gap, so that the catalog is one that once was.
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    options.set_skip_stats_update_on_db_open(true);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options.set_log_level(LogLevel::Warn);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options.set_max_manifest_file_size(4 << 20);
    options.set_allow_mmap_reads(false);
    options.set_allow_mmap_writes(false);
    // Compactions write out as they go, so that no sync of the segments waits for a burst of them.
    options.set_bytes_per_sync(1 << 20);
    options
}

/// The families. Two write buffers each; all six together are below the setting.
pub(super) fn families(config: &CatalogConfig) -> Vec<ColumnFamilyDescriptor> {
    let cache = Cache::new_lru_cache(config.cache_bytes);
    let family = |name, share, table: &BlockBasedOptions| {
        let mut options = Options::default();
        options.set_write_buffer_size(config.write_buffer_bytes / share);
        options.set_max_write_buffer_number(2);
        options.set_compression_type(DBCompressionType::None);
        options.set_block_based_table_factory(table);
        ColumnFamilyDescriptor::new(name, options)
    };
    let unfiltered = table_options(&cache);
    let mut filtered = table_options(&cache);
    filtered.set_bloom_filter(BLOOM_BITS, false);
    filtered.set_partition_filters(true);
    // Places are only ever read in ranges, the small rows are few.
    vec![
        family(NAMES, 4, &filtered),
        family(PLACES, 8, &unfiltered),
        family(SMALL, 16, &unfiltered),
    ]
}

/// Index and filters are cut into pieces of a page that live in the cache: whole ones are 1.6 MB a file each, and a cache
/// smaller than all of them would read one for every lookup.
fn table_options(cache: &Cache) -> BlockBasedOptions {
    let mut options = BlockBasedOptions::default();
    options.set_block_cache(cache);
    options.set_block_size(BLOCK_BYTES);
    options.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    options.set_metadata_block_size(BLOCK_BYTES);
    options.set_cache_index_and_filter_blocks(true);
    options.set_pin_l0_filter_and_index_blocks_in_cache(true);
    options.set_pin_top_level_index_and_filter(true);
    options
}

fn c_int(count: usize) -> i32 {
    i32::try_from(count).expect("the ranges of all counts are checked")
}
