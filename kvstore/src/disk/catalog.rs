//! The catalog: which name lies where on disk, in a RocksDB database beside the segments.
//!
//! It holds the index of names, the segment table and what each tenant holds. Its memory is bounded by its settings, and
//! opening it takes the same time for any number of names: the segment table is read (a row per file), and a crash adds
//! at most half a write buffer of log.
//!
//! It is not the truth. The segments are: whatever is lost here is read from them again, and readers check every block
//! against its record, so that a stale entry is a miss. Payloads never come here.
//!
//! Invariants:
//! - Each change is one batch: names, places, segment row, tenants and totals agree at any time, after any crash
//!   ([`Catalog::audit`] recounts). Changes survive in the order in which they were made: a crash of the process loses
//!   none, a crash of the machine some of the last ones unless [`Catalog::sync`] came after them.
//! - Of two copies of a name the one in the later place counts: the higher segment number, then the higher page.
//! - A segment is marked sealed only when as many records were entered as its seal says. [`Catalog::plan_start`] trusts
//!   such a segment without reading it.
//! - A segment whose file and object are there is sealed and *copied*; one whose object alone is there is *remote*, and its
//!   bytes are none of the drive's.
//! - Files go before entries: who removes a segment removes its file first, then calls [`Catalog::remove_segment`]. A
//!   crash between the two leaves a row without a file, which the start removes.
//! - A catalog of another identity, another format or with damage is emptied at its opening; the plan then loads every
//!   segment. A crash in the middle of that costs nothing of what was loaded.
//!
//! Why the family `places` (segment and page to name): a segment's names must be found when its file is gone already, or
//! unreadable. Its keys ascend as segments do, so that it costs 28 bytes a block and next to no compaction.
//!
//! Calls block for reads and writes of the drive. Changes are made one at a time; lookups wait for none of them. Start
//! reading at `catalog/rows.rs`, then `catalog/write.rs`.

mod audit;
mod config;
mod evict;
mod load;
mod plan;
mod remote;
mod rows;
mod scan;
mod write;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rocksdb::{ColumnFamily, DB, ErrorKind, FlushOptions, WriteOptions};
use shared::{BlockName, TenantTag};

pub use audit::CatalogAudit;
pub(super) use config::{CACHE_BYTES, WRITE_BUFFER_BYTES};
pub use config::{CatalogConfig, CatalogError};
pub(super) use evict::Evicted;
pub use load::SegmentContents;
pub use plan::{SegmentFile, StartPlan};
pub use rows::{Entry, Record, Segment, SegmentState, Usage};
pub use write::{Inserted, SegmentSeal};

use config::{NAMES, PLACES, SMALL};
use rows::{KEY_CLEAN, KEY_DAMAGED, KEY_FORMAT, KEY_TOTALS, Totals};

/// How a catalog was found when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// As [`Catalog::close`] left it.
    Clean,
    /// As a crash left it: consistent, but its last changes may be missing.
    Crashed,
    /// Unusable, for this reason: it is empty now, and every segment is to be loaded.
    Rebuild(RebuildReason),
}

/// Why a catalog is made anew.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RebuildReason {
    /// There was none.
    #[error("there is no catalog")]
    Missing,
    /// It was made for another layout, other numerics or by another version of this program.
    #[error("the catalog was made for another layout, other numerics or by another version")]
    Foreign,
    /// Its making was interrupted, or a read met damage and noted that.
    #[error("the catalog was left damaged or unfinished")]
    Damaged,
    /// The database cannot be opened.
    #[error("the catalog cannot be opened: {0}")]
    Unreadable(String),
}

/// What lies in a folder.
#[derive(Debug)]
pub enum Existing {
    /// A catalog, and the identity that it was made for.
    Ready(Catalog, [u8; 32]),
    /// None that could be used; [`Catalog::open`] would make it anew.
    Unusable(RebuildReason),
}

/// Bytes that a catalog takes, as RocksDB counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogSizes {
    /// In the cache.
    pub cache_bytes: u64,
    /// Of the cache, what cannot leave it: the tops of indexes and filters, and those of the newest files.
    pub cache_pinned_bytes: u64,
    /// In write buffers.
    pub write_buffer_bytes: u64,
    /// In memory for open files, outside of the cache.
    pub open_files_bytes: u64,
    /// In table files on disk.
    pub disk_bytes: u64,
}

/// The index of names on disk. See the module for what holds when.
pub struct Catalog {
    db: DB,
    /// Held while a change is put together and written, so that changes never see each other half done.
    writing: Mutex<()>,
    /// What is read at the opening and kept in step with every change. Locked for moments.
    held: Mutex<Held>,
    write_options: WriteOptions,
    damage_noted: AtomicBool,
}

/// What of the database is in memory. Bounded by the number of segments.
#[derive(Clone, Debug, Default)]
struct Held {
    totals: Totals,
    segments: BTreeMap<u64, Segment>,
    /// Bytes of all segment files.
    file_bytes: u64,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clean => f.write_str("clean"),
            Self::Crashed => f.write_str("as a crash left it"),
            Self::Rebuild(reason) => write!(f, "{reason}"),
        }
    }
}

impl Catalog {
    /// Opens the catalog of an `identity` (a hash of whatever the segments' bytes depend on), or makes an empty one.
    /// Blocks: reads the segment table, and after a crash at most half a write buffer of log. One process at a time may
    /// have it open.
    ///
    /// # Errors
    /// When a setting is out of its range, or the folder cannot be read or written or is in use.
    pub fn open(config: &CatalogConfig, identity: [u8; 32]) -> Result<(Self, Found), CatalogError> {
        config.check()?;
        let reason = match Self::open_existing(config, Access::Write)? {
            Existing::Ready(catalog, its_identity) if its_identity == identity => {
                let found = catalog.begin()?;
                return Ok((catalog, found));
            }
            Existing::Ready(..) => RebuildReason::Foreign,
            Existing::Unusable(reason) => reason,
        };
        let options = config::database_options(config);
        // Removing locks the folder, so that it must be there.
        fs::create_dir_all(&config.folder)
            .map_err(|source| CatalogError::Folder { path: config.folder.clone(), source })?;
        DB::destroy(&options, &config.folder)
            .map_err(|source| database("remove the old database", source))?;
        let catalog = Self::new(config, Access::Write)?;
        // Without this row the next start begins again.
        let written = catalog.db.put_opt(KEY_FORMAT, rows::format_row(&identity), &synced());
        written.map_err(|source| database("write what it is for", source))?;
        Ok((catalog, Found::Rebuild(reason)))
    }

    /// Opens a catalog that nobody writes, for reading alone: every change is refused. Blocks like [`Catalog::open`], and
    /// changes nothing on the drive.
    ///
    /// # Errors
    /// When a setting is out of its range, or the folder cannot be read.
    pub fn open_read_only(config: &CatalogConfig) -> Result<Existing, CatalogError> {
        config.check()?;
        Self::open_existing(config, Access::Read)
    }

    /// Where the copy of a name lies, as far as the catalog knows. Waits for no change. Reads at most some pages.
    ///
    /// # Errors
    /// When the database cannot be read, or the row is damaged: to be counted and treated as a miss.
    pub fn find(&self, name: BlockName) -> Result<Option<Entry>, CatalogError> {
        let row = self.db.get_pinned_cf(self.family(NAMES), name.0);
        match row.map_err(|source| self.failed("look up a name", source))? {
            None => Ok(None),
            Some(row) => Entry::decode(&row).map(Some).ok_or_else(|| self.damaged("an entry")),
        }
    }

    /// The same for many names at once, in their order: for runs of blocks. Memory grows with the names.
    ///
    /// # Errors
    /// As [`Catalog::find`], when any of them fails.
    pub fn find_all(&self, names: &[BlockName]) -> Result<Vec<Option<Entry>>, CatalogError> {
        let keys: Vec<&[u8]> = names.iter().map(|name| name.0.as_slice()).collect();
        let rows = self.db.batched_multi_get_cf(self.family(NAMES), keys.iter(), false);
        let entries = rows.into_iter().map(|row| {
            match row.map_err(|source| self.failed("look up names", source))? {
                None => Ok(None),
                Some(row) => Entry::decode(&row).map(Some).ok_or_else(|| self.damaged("an entry")),
            }
        });
        entries.collect()
    }

    /// Names held and their payload bytes. Counts nothing, waits for nothing.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.held.lock().totals.usage
    }

    /// Of the names held, those whose copy is encrypted with its tenant's key.
    #[must_use]
    pub fn sealed(&self) -> u64 {
        self.held.lock().totals.sealed
    }

    /// Bytes of all segment files.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.held.lock().file_bytes
    }

    /// Above the numbers of all segments that were ever listed here. Numbers are not used twice; 0 when the catalog is new,
    /// so that files count as well.
    #[must_use]
    pub fn number_next(&self) -> u64 {
        self.held.lock().totals.number_next
    }

    /// The row of a segment.
    #[must_use]
    pub fn segment(&self, number: u64) -> Option<Segment> {
        self.held.lock().segments.get(&number).copied()
    }

    /// The segment table, ascending: 48 bytes a segment.
    #[must_use]
    pub fn segments(&self) -> Vec<(u64, Segment)> {
        self.held.lock().segments.iter().map(|(number, segment)| (*number, *segment)).collect()
    }

    /// How many segments lie on the drive, and how many of them are foreign.
    #[must_use]
    pub fn segment_counts(&self) -> (usize, usize) {
        let held = self.held.lock();
        let foreign = held.segments.values().filter(|row| row.state == SegmentState::Foreign);
        let far = held.segments.values().filter(|row| row.state == SegmentState::Remote);
        (held.segments.len() - far.count(), foreign.count())
    }

    /// What a start has to do, given all segment files that there are. Touches nothing.
    #[must_use]
    pub fn plan_start(&self, files: &[SegmentFile]) -> StartPlan {
        plan::plan(&self.held.lock().segments, files)
    }

    /// What a tenant holds.
    ///
    /// # Errors
    /// When the database cannot be read, or the row is damaged.
    pub fn tenant(&self, tenant: TenantTag) -> Result<Usage, CatalogError> {
        let row = self.db.get_pinned_cf(self.family(SMALL), rows::tenant_key(tenant));
        match row.map_err(|source| self.failed("look up a tenant", source))? {
            None => Ok(Usage::default()),
            Some(row) => Usage::decode(&row).ok_or_else(|| self.damaged("a tenant's row")),
        }
    }

    /// Makes all changes so far durable. Blocks for a sync of the drive.
    ///
    /// # Errors
    /// When the drive refuses.
    pub fn sync(&self) -> Result<(), CatalogError> {
        self.db.flush_wal(true).map_err(|source| self.failed("make changes durable", source))
    }

    /// Writes everything to table files, notes the clean end and closes. A catalog that is only dropped looks like one
    /// after a crash of its process, which loses nothing and costs the next start some reading.
    ///
    /// # Errors
    /// When the drive refuses.
    pub fn close(mut self) -> Result<(), CatalogError> {
        self.finish()
    }

    /// [`Catalog::close`] for an owner that cannot give it away. Nothing may be changed behind it.
    pub(super) fn finish(&mut self) -> Result<(), CatalogError> {
        let families = [NAMES, PLACES, SMALL].map(|name| self.family(name));
        let refused = |source| database("close", source);
        self.db.flush_cfs_opt(&families, &FlushOptions::default()).map_err(refused)?;
        self.db.put_opt(KEY_CLEAN, [], &synced()).map_err(refused)
    }

    /// How much it takes. Cheap enough for metrics.
    ///
    /// # Errors
    /// When the database does not say.
    pub fn sizes(&self) -> Result<CatalogSizes, CatalogError> {
        let failed = |source| database("read its sizes", source);
        let of_all = |property: &str| {
            let families = [NAMES, PLACES, SMALL].map(|name| self.family(name));
            families.into_iter().try_fold(0_u64, |sum, family| {
                let value = self.db.property_int_value_cf(family, property).map_err(failed)?;
                Ok::<u64, CatalogError>(sum.saturating_add(value.unwrap_or(0)))
            })
        };
        // The families share one cache, so that each of them reports all of it.
        let of_one = |property: &str| {
            let value = self.db.property_int_value(property).map_err(failed)?;
            Ok::<u64, CatalogError>(value.unwrap_or(0))
        };
        Ok(CatalogSizes {
            cache_bytes: of_one("rocksdb.block-cache-usage")?,
            cache_pinned_bytes: of_one("rocksdb.block-cache-pinned-usage")?,
            write_buffer_bytes: of_all("rocksdb.size-all-mem-tables")?,
            open_files_bytes: of_all("rocksdb.estimate-table-readers-mem")?,
            disk_bytes: of_all("rocksdb.total-sst-files-size")?,
        })
    }

    fn open_existing(config: &CatalogConfig, access: Access) -> Result<Existing, CatalogError> {
        if !config.folder.join("CURRENT").is_file() {
            return Ok(Existing::Unusable(RebuildReason::Missing));
        }
        let catalog = match Self::new(config, access) {
            Ok(catalog) => catalog,
            Err(CatalogError::Database { source, .. }) if is_unusable(&source) => {
                let reason = RebuildReason::Unreadable(source.into_string());
                return Ok(Existing::Unusable(reason));
            }
            Err(error) => return Err(error),
        };
        let unusable = |reason| Ok(Existing::Unusable(reason));
        let identity = match catalog.row(KEY_FORMAT) {
            Ok(Some(format)) => match rows::identity_of(&format) {
                Some(identity) => identity,
                None => return unusable(RebuildReason::Foreign),
            },
            Ok(None) => return unusable(RebuildReason::Damaged),
            Err(error) => return unusable(RebuildReason::Unreadable(error.to_string())),
        };
        if catalog.row(KEY_DAMAGED)?.is_some() {
            return unusable(RebuildReason::Damaged);
        }
        match catalog.read_held() {
            Ok(held) => *catalog.held.lock() = held,
            Err(error) => return unusable(RebuildReason::Unreadable(error.to_string())),
        }
        Ok(Existing::Ready(catalog, identity))
    }

    /// Takes the mark of a clean end away, and says whether it was there.
    fn begin(&self) -> Result<Found, CatalogError> {
        if self.row(KEY_CLEAN)?.is_none() {
            return Ok(Found::Crashed);
        }
        let deleted = self.db.delete_opt(KEY_CLEAN, &synced());
        deleted.map_err(|source| database("begin writing", source))?;
        Ok(Found::Clean)
    }

    fn row(&self, key: &[u8]) -> Result<Option<Vec<u8>>, CatalogError> {
        self.db.get(key).map_err(|source| database("read what the catalog is", source))
    }

    fn new(config: &CatalogConfig, access: Access) -> Result<Self, CatalogError> {
        let options = config::database_options(config);
        let (folder, families) = (&config.folder, config::families(config));
        let db = match access {
            Access::Write => DB::open_cf_descriptors(&options, folder, families),
            Access::Read => DB::open_cf_descriptors_read_only(&options, folder, families, false),
        };
        Ok(Self {
            db: db.map_err(|source| database("open the database", source))?,
            writing: Mutex::new(()),
            held: Mutex::new(Held::default()),
            write_options: WriteOptions::default(),
            damage_noted: AtomicBool::new(false),
        })
    }

    fn read_held(&self) -> Result<Held, CatalogError> {
        let totals = self
            .db
            .get(KEY_TOTALS)
            .map_err(|source| self.failed("read the totals", source))?
            .map_or_else(|| Some(Totals::default()), |row| Totals::decode(&row))
            .ok_or_else(|| self.damaged("the row of totals"))?;
        let segments = self.read_segments()?;
        let file_bytes = segments.values().map(Segment::drive_bytes).sum();
        Ok(Held { totals, segments, file_bytes })
    }

    fn family(&self, name: &str) -> &ColumnFamily {
        self.db.cf_handle(name).expect("the database was opened with all families")
    }

    /// An error of the database. Damage is noted, so that the next start rebuilds.
    fn failed(&self, what: &'static str, source: rocksdb::Error) -> CatalogError {
        if source.kind() == ErrorKind::Corruption {
            self.note_damage();
        }
        database(what, source)
    }

    fn damaged(&self, what: &'static str) -> CatalogError {
        self.note_damage();
        CatalogError::Damaged { what }
    }

    fn note_damage(&self) {
        if self.damage_noted.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.db.put_opt(KEY_DAMAGED, [], &synced()) {
            tracing::error!(%error, "the catalog is damaged and cannot be written; remove its folder before the next start");
        } else {
            tracing::error!("the catalog is damaged; the next start rebuilds it from the segments");
        }
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog").field("folder", &self.db.path()).finish_non_exhaustive()
    }
}

/// What a database is opened for.
#[derive(Clone, Copy, Debug)]
enum Access {
    Write,
    Read,
}

fn database(what: &'static str, source: rocksdb::Error) -> CatalogError {
    CatalogError::Database { what, source }
}

fn synced() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(true);
    options
}

/// Whether a new database would be better off: what is there is damaged, incomplete or of another kind. A drive that
/// refuses and a folder in use are no such thing.
fn is_unusable(error: &rocksdb::Error) -> bool {
    match error.kind() {
        ErrorKind::Corruption
        | ErrorKind::NotFound
        | ErrorKind::NotSupported
        | ErrorKind::InvalidArgument => true,
        // The only sign by which RocksDB tells a missing file from a failed drive.
        ErrorKind::IOError => error.as_ref().contains("No such file"),
        _ => false,
    }
}
