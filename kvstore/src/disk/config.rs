//! Settings of the disk tier, and why it did not start.

use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::catalog::{CACHE_BYTES, CatalogConfig, CatalogError, WRITE_BUFFER_BYTES};
use super::format::{NUMERICS_BYTES_MAX, PAGE, record_bytes, seal_bytes, wide};
use super::object::{ObjectConfig, ObjectError};
use super::retention::Limits;

/// Segments a store may have: each costs a file and an entry in a table, and is visited at the start.
const SEGMENTS_MAX: u64 = 65_536;
/// The folder of the catalog, beside the segments.
pub(super) const CATALOG_FOLDER: &str = "catalog";

/// How a disk tier is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// The folder of the segment files. Made when it is missing; one store at a time has it. Nothing else should lie in
    /// it, what does is left alone.
    pub folder: PathBuf,
    /// Bytes of all segment files together. Range: two segments and room for 16 blocks, to 65,536 segments. Default: 16 GiB, which for the Flash
    /// layout is 150,000 blocks or 19 million tokens: fits most laptops, small beside a server's drive. With
    /// `retention_s` it makes the write budget; `kvstore::plan_retention` says how many new tokens a second that is.
    pub bytes_max: u64,
    /// Bytes of one segment file. Range: 64 KiB to 16 GiB, a multiple of 4,096, with room for one block. Default:
    /// 256 MiB, 2,337 Flash blocks: large enough that files are few, small enough that what leaves at once is little.
    pub segment_bytes: u64,
    /// How long a block that was admitted can be read, in seconds. Range: 1 to 31,536,000, a year. Default: 259,200, which
    /// is 72 hours. Half of it is twice the budget: what exceeds the budget is not written.
    pub retention_s: u64,
    /// Blocks that may wait to be written. Range: 1 to 65,536. Default: 1,024. A waiting block pins a slot of host
    /// memory, so a host tier lets at most half of its slots wait, whatever is set here. What overflows is not written.
    pub queue_objects_max: usize,
    /// Payload bytes that may wait to be written. Range: one block to 1 TiB. Default: 256 MiB, a tenth of a second of a
    /// fast drive and a second of a slow one.
    pub queue_bytes_max: u64,
    /// How long a written block may stay without fdatasync, in milliseconds: what a crash of the machine can cost. Range:
    /// 0 to 60,000; 0 syncs whenever the queue is empty, and after 64 blocks at the latest. Default: 1,000.
    pub sync_ms: u64,
    /// Reading threads. Range: 1 to 16. Default: 2: one already keeps a drive busy with blocks of 100 KB in sequence, the
    /// second hides its checksums.
    pub readers: usize,
    /// Blocks that may be read or wait for it at a time. Range: 1 to 65,536. Default: 2,048, 233 MB of Flash blocks or
    /// about what a drive reads within `onboard_ms_max`. Each has a slot of host memory. What exceeds it is a miss.
    pub reads_max: usize,
    /// How long the answer to a lookup may wait for blocks from disk, in milliseconds. Range: 1 to 60,000. Default: 200:
    /// workers wait 250 for an answer, and 50 are left for the way there and back. What comes later is found next time.
    pub onboard_ms_max: u64,
    /// Lookups that may wait for blocks from disk at a time; others are answered from host memory alone. Range: 1 to
    /// 4,096. Default: 64: more would share the drive so far that they are late anyway.
    pub onboard_lookups_max: usize,
    /// How fast stored blocks are read again to find damage, in MiB per second. Range: 0 to 65,536; 0 does not. Default:
    /// 8, a few thousandths of a drive: goes over 16 GiB in 35 minutes and over a drive of 7.68 TB in 11 days.
    pub scrub_mib_per_s: u64,
    /// Bytes of memory for what was read of the catalog, the index of names on disk. Range: 1 MiB to 64 GiB. Default:
    /// 64 MiB, which keeps the filters of 40 million blocks; with less than 1.6 bytes a block lookups read the drive more
    /// often.
    pub catalog_cache_bytes: usize,
    /// Bytes of memory for what was written to the catalog lately. Range: 1 MiB to 4 GiB. Default: 32 MiB, about 80,000
    /// blocks. The start after a crash reads back at most half of it.
    pub catalog_write_buffer_bytes: usize,
    /// The folder of the tenants' keys, with which blocks are encrypted before they are written; empty: they are not. Made
    /// when it is missing, and refused when others may read it. Whoever deletes a key deletes its tenant, so it belongs
    /// on another device than the segments and into no backup of those. With it plain blocks that are there are read as
    /// before; without it encrypted ones are not found. Default: empty.
    pub tenant_keys: PathBuf,
    /// The object store below the drive. Default: none.
    pub object: ObjectConfig,
}

impl DiskConfig {
    /// The defaults documented at the fields, in this folder.
    #[must_use]
    pub fn in_folder(folder: PathBuf) -> Self {
        Self {
            folder,
            bytes_max: 16 << 30,
            segment_bytes: 256 << 20,
            retention_s: 72 * 3_600,
            queue_objects_max: 1_024,
            queue_bytes_max: 256 << 20,
            sync_ms: 1_000,
            readers: 2,
            reads_max: 2_048,
            onboard_ms_max: 200,
            onboard_lookups_max: 64,
            scrub_mib_per_s: 8,
            catalog_cache_bytes: 64 << 20,
            catalog_write_buffer_bytes: 32 << 20,
            tenant_keys: PathBuf::new(),
            object: ObjectConfig::default(),
        }
    }

    /// Checks the ranges for blocks of `block_bytes` bytes. Touches no file.
    ///
    /// # Errors
    /// [`DiskError::Config`] with the first setting that is out of its range.
    pub fn check(&self, block_bytes: usize) -> Result<(), DiskError> {
        let block_bytes = u32::try_from(block_bytes)
            .map_err(|_| refused("block bytes", block_bytes, "less than 4 GiB"))?;
        let segment_bytes_min = (PAGE + record_bytes(block_bytes) + seal_bytes(1)).max(64 << 10);
        let segment_bytes = segment_bytes_min..=16 << 30;
        let whole = self.segment_bytes.is_multiple_of(PAGE);
        if !whole || !segment_bytes.contains(&self.segment_bytes) {
            let expected = "64 KiB to 16 GiB, a multiple of 4,096, with room for one block";
            return Err(refused("segment_bytes", self.segment_bytes, expected));
        }
        let wait = 1..=60_000;
        let settings: [(&'static str, u64, RangeInclusive<u64>, &'static str); 12] = [
            (
                "bytes_max",
                self.bytes_max,
                2 * self.segment_bytes..=SEGMENTS_MAX * self.segment_bytes,
                "2 to 65,536 times segment_bytes",
            ),
            ("retention_s", self.retention_s, 1..=31_536_000, "1 to 31,536,000"),
            ("queue_objects_max", wide(self.queue_objects_max), 1..=65_536, "1 to 65,536"),
            (
                "queue_bytes_max",
                self.queue_bytes_max,
                u64::from(block_bytes)..=1 << 40,
                "one block to 1 TiB",
            ),
            ("sync_ms", self.sync_ms, 0..=60_000, "0 to 60,000"),
            ("readers", wide(self.readers), 1..=16, "1 to 16"),
            ("reads_max", wide(self.reads_max), 1..=65_536, "1 to 65,536"),
            ("onboard_ms_max", self.onboard_ms_max, wait, "1 to 60,000"),
            ("onboard_lookups_max", wide(self.onboard_lookups_max), 1..=4_096, "1 to 4,096"),
            ("scrub_mib_per_s", self.scrub_mib_per_s, 0..=65_536, "0 to 65,536"),
            ("catalog_cache_bytes", wide(self.catalog_cache_bytes), CACHE_BYTES, "1 MiB to 64 GiB"),
            (
                "catalog_write_buffer_bytes",
                wide(self.catalog_write_buffer_bytes),
                WRITE_BUFFER_BYTES,
                "1 MiB to 4 GiB",
            ),
        ];
        for (field, found, range, expected) in settings {
            if !range.contains(&found) {
                return Err(refused(field, found, expected));
            }
        }
        self.object.check()?;
        self.limits(block_bytes).map(|_| ())
    }

    /// The settings of the catalog in this folder.
    pub(super) fn catalog(&self) -> CatalogConfig {
        CatalogConfig {
            cache_bytes: self.catalog_cache_bytes,
            write_buffer_bytes: self.catalog_write_buffer_bytes,
            ..CatalogConfig::in_folder(self.folder.join(CATALOG_FOLDER))
        }
    }

    /// The numbers of the retention contract.
    pub(super) fn limits(&self, block_bytes: u32) -> Result<Limits, DiskError> {
        Limits::new(self.bytes_max, self.segment_bytes, block_bytes, self.retention_s).ok_or_else(
            || refused("bytes_max", self.bytes_max, "room for two segments and 16 blocks"),
        )
    }
}

/// Why a disk tier did not start.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A setting is out of its range.
    #[error("{field} is {found}, expected {expected}")]
    Config {
        /// The setting.
        field: &'static str,
        /// Its value.
        found: String,
        /// Its range.
        expected: &'static str,
    },
    /// The numerics do not fit a segment header.
    #[error("the numerics have {found} bytes, at most {NUMERICS_BYTES_MAX} fit a segment header")]
    Numerics {
        /// Their length.
        found: usize,
    },
    /// Another store has the folder.
    #[error(
        "{} is in use by another store; stop that one or give this one a folder of its own",
        folder.display()
    )]
    Locked {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder or a file in it cannot be used.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The catalog cannot be opened or brought in step with the segments.
    #[error("{0}; make room or check the drive, or remove the folder catalog to have it made anew")]
    Catalog(#[from] CatalogError),
    /// The object store below the drive cannot be set up. One that does not answer is no error.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The system gave no thread.
    #[error("cannot start a thread of the disk tier: {0}")]
    Thread(io::Error),
}

fn refused(field: &'static str, found: impl ToString, expected: &'static str) -> DiskError {
    DiskError::Config { field, found: found.to_string(), expected }
}
