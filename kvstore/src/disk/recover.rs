//! The start: the catalog is compared with the segment files, and what it does not know is read from them.
//!
//! A sealed segment that the catalog knows costs one look at the length of its file. Others are read: the table of a
//! sealed one, every record of one without a seal, payloads included. In the ordinary case that is the last one only,
//! whose torn tail is cut off and which is then written on. A catalog that is missing, damaged or made for something else
//! is empty now, so that all segments are read.
//!
//! Segments of another layout, other numerics or another version are left alone: an older program may come back for them.
//! Their bytes count against the bound, and they leave by the age of their last change, earlier when ours need room. Files
//! with other names are not looked at, but free ones (`disk/free.rs`) are counted; one of ours that is shorter than a header
//! was never begun and is removed.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use shared::Clock;

use super::catalog::{
    Catalog, Entry, Evicted, Found, Record, SegmentContents, SegmentFile, SegmentState, StartPlan,
};
use super::config::{DiskConfig, DiskError};
use super::format::{FileOrigin, Identity, RecordHeader, SegmentHeader};
use super::free::{FREE_FILES_MAX, FreeFiles};
use super::index::Index;
use super::io::Drive;
use super::segment::{self, OpenSegment, Walk};
use super::stats::Counters;
use super::tombstones::Tombstones;

/// Where a node with an object store and a new catalog begins to number its segments, for each second since the Unix epoch. It
/// makes fewer than that, so that a later life of the node has higher numbers.
const NUMBERS_PER_SECOND: u64 = 65_536;

/// What a start found.
pub(super) struct Recovered {
    pub(super) index: Index,
    /// The last segment, when it can be written on.
    pub(super) active: Option<OpenSegment>,
    /// Above the numbers of all files, also of those that are gone since.
    pub(super) number_next: u64,
    /// The files that can be written on again.
    pub(super) free: FreeFiles,
    pub(super) report: StartReport,
}

/// For the line that a start logs.
#[derive(Debug)]
pub(super) struct StartReport {
    pub(super) catalog: Found,
    /// Segments of which nothing was read.
    pub(super) trusted: usize,
    /// Segments that were read.
    pub(super) loaded: usize,
    /// Segments whose files are gone.
    pub(super) dropped: usize,
    pub(super) took: Duration,
}

/// One file.
pub(super) enum Loaded {
    /// It ends within its first page: the program was stopped while making it.
    Unborn,
    /// It is not to be read.
    Foreign { reason: String, contents: SegmentContents },
    /// It is complete.
    Sealed(SegmentContents),
    /// It has no seal.
    Open { file: File, walk: Walk, bytes: u64, origin: FileOrigin },
}

/// Brings the catalog in step with all segments of the folder. Nothing but the torn tail of the last one is changed.
pub(super) fn recover(
    config: &DiskConfig,
    identity: Identity,
    drive: &dyn Drive,
    clock: &dyn Clock,
    counters: &Counters,
) -> Result<Recovered, DiskError> {
    match attempt(config, identity, drive, clock, counters) {
        // Damage that was met on the way is noted in the catalog, so that it is made anew now.
        Err(DiskError::Catalog(error)) if error.is_damage() => {
            attempt(config, identity, drive, clock, counters)
        }
        recovered => recovered,
    }
}

fn attempt(
    config: &DiskConfig,
    identity: Identity,
    drive: &dyn Drive,
    clock: &dyn Clock,
    counters: &Counters,
) -> Result<Recovered, DiskError> {
    let began = clock.now();
    let folder = &config.folder;
    let failed = |what| move |source| DiskError::File { what, path: folder.clone(), source };
    let files = segment_files(folder).map_err(failed("list"))?;
    let (catalog, found) = Catalog::open(&config.catalog(), identity.fingerprint())?;
    if let Found::Rebuild(reason) = &found
        && !files.is_empty()
    {
        let folder = folder.display();
        tracing::warn!(%folder, segments = files.len(), "{reason}; it is made anew from the segments");
    }
    let (tombstones, unfinished) = bury(folder, &catalog)?;
    let StartPlan { trusted, load, mut gone, remote } = catalog.plan_start(&files);
    if config.object.is_on() {
        for number in &remote {
            catalog.mark_remote(*number)?;
        }
    } else {
        // Nobody can read them; with the object store back, its list is read in again.
        let segments = catalog.segments().into_iter();
        gone.extend(segments.filter(|(_, row)| row.state == SegmentState::Remote).map(|row| row.0));
        gone.extend(remote);
    }
    for number in &gone {
        catalog.remove_segment(*number, &mut |_| {})?;
    }
    let mut free = FreeFiles::list(folder).map_err(failed("list"))?;
    let free_last = free.last();
    let no_free = config.object.is_on() || tombstones.iter().next().is_some();
    free.shrink(folder, if no_free { 0 } else { FREE_FILES_MAX }).map_err(failed("clean up"))?;
    let last = files.last().map(|file| file.number);
    let mut start = Start {
        folder,
        identity,
        drive,
        tombstones,
        catalog,
        counters,
        active: None,
        foreign: None,
    };
    for number in &load {
        start.load(*number, Some(*number) == last)?;
    }
    start.catalog.sync()?;
    start.tell_foreign();
    let Start { catalog, active, tombstones, .. } = start;
    // Above what lies in free files, too.
    let behind = last.max(free_last).map_or(1, |last| last.saturating_add(1));
    let report = StartReport {
        catalog: found,
        trusted: trusted.len(),
        loaded: load.len(),
        dropped: gone.len(),
        took: clock.now().since(began),
    };
    let mut number_next = behind.max(catalog.number_next());
    if config.object.is_on() && matches!(report.catalog, Found::Rebuild(_)) {
        // Above the numbers of all objects of a store whose catalog and drive were lost: nobody has read them yet.
        number_next = number_next.max(clock.unix_seconds().saturating_mul(NUMBERS_PER_SECOND));
    }
    let opens_sealed = !config.tenant_keys.as_os_str().is_empty();
    let index = Index::new(catalog, tombstones, opens_sealed);
    index.take_out(&unfinished)?;
    Ok(Recovered { index, active, number_next, free, report })
}

/// Who was evicted, by the list in the folder and by the catalog's copy of it, and whose names are still to be taken out. A list
/// that is damaged is made anew from the copy, if there is one.
fn bury(folder: &Path, catalog: &Catalog) -> Result<(Tombstones, Vec<Evicted>), DiskError> {
    let failed = |source| {
        let what = "use the list of evicted tenants in";
        DiskError::File { what, path: folder.to_owned(), source }
    };
    let copies = catalog.evicted()?;
    let listed = match Tombstones::read(folder) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData && !copies.is_empty() => {
            tracing::warn!(folder = %folder.display(), "the list of evicted tenants is damaged; it is made anew from the catalog");
            Tombstones::default()
        }
        read => read.map_err(failed)?,
    };
    let mut all = listed.clone();
    for copy in &copies {
        all.add(copy.tenant, copy.stone);
    }
    if all != listed {
        all.write(folder).map_err(failed)?;
    }
    let is_done = |tenant, stone| {
        copies.iter().any(|copy| copy.tenant == tenant && copy.stone == stone && copy.done)
    };
    let unfinished = all.iter().filter(|(tenant, stone)| !is_done(*tenant, *stone));
    let unfinished: Vec<Evicted> =
        unfinished.map(|(tenant, stone)| Evicted { tenant, stone, done: false }).collect();
    Ok((all, unfinished))
}

/// A start while it reads segments.
struct Start<'a> {
    folder: &'a Path,
    identity: Identity,
    drive: &'a dyn Drive,
    tombstones: Tombstones,
    catalog: Catalog,
    counters: &'a Counters,
    active: Option<OpenSegment>,
    /// The first one that was left alone, and why.
    foreign: Option<(u64, String)>,
}

impl Start<'_> {
    fn load(&mut self, number: u64, last: bool) -> Result<(), DiskError> {
        let folder = self.folder;
        let failed = |what| move |source| DiskError::File { what, path: folder.to_owned(), source };
        let loaded = load(folder, number, |identity| identity == self.identity);
        match loaded.unwrap_or_else(|error| unreadable(folder, number, &error)) {
            Loaded::Unborn => {
                fs::remove_file(segment::path(folder, number)).map_err(failed("clean up"))?;
                self.catalog.remove_segment(number, &mut |_| {})?;
            }
            Loaded::Foreign { reason, contents } => {
                self.foreign.get_or_insert((number, reason));
                self.catalog.load_segment(&contents)?;
            }
            Loaded::Sealed(contents) => {
                self.catalog.load_segment(&living(contents, &self.tombstones))?;
            }
            Loaded::Open { file, walk, bytes, origin } => {
                let data_end = match origin {
                    FileOrigin::Made => segment::data_end(&file).unwrap_or(bytes).max(walk.end),
                    // Nobody knows how much of what lies behind is new.
                    FileOrigin::Recycled => walk.end,
                };
                self.counters.lost_bytes(walk.lost_bytes + data_end - walk.end);
                let bytes_kept = if last { walk.end } else { bytes };
                if last {
                    // Before it is entered: what the catalog knows is durable.
                    cut(self.drive, &file, bytes, walk.end)
                        .map_err(failed("cut the torn end of a segment in"))?;
                }
                let contents = open_contents(number, bytes_kept, &walk);
                self.catalog.load_segment(&living(contents, &self.tombstones))?;
                if last {
                    self.active = Some(OpenSegment::resume(file, number, walk));
                }
            }
        }
        Ok(())
    }

    fn tell_foreign(&self) {
        if let Some((number, reason)) = &self.foreign {
            let (_, count) = self.catalog.segment_counts();
            tracing::warn!(
                folder = %self.folder.display(), count, first = number, reason,
                "segments were left alone; they leave when their space is needed, or remove them"
            );
        }
    }
}

/// Leaves out what was evicted with its tenant.
pub(super) fn living(mut contents: SegmentContents, tombstones: &Tombstones) -> SegmentContents {
    let is_dead = |entry: &Entry| tombstones.covers(entry.tenant, entry.written_unix_seconds);
    contents.records.retain(|record| !is_dead(&record.entry));
    contents
}

pub(super) fn open_contents(number: u64, bytes: u64, walk: &Walk) -> SegmentContents {
    let records = walk.records.iter().map(Record::from).collect();
    SegmentContents { number, state: SegmentState::Open, bytes, changed_unix_seconds: 0, records }
}

fn cut(drive: &dyn Drive, file: &File, bytes: u64, end: u64) -> io::Result<()> {
    if bytes != end {
        file.set_len(end)?;
    }
    // What was found may lie in the system's cache alone.
    drive.sync(file)
}

/// The numbers of all segment files, ascending. As many as files were ever allowed there; each takes 8 bytes.
pub(super) fn segment_numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        numbers.extend(segment::number_of(&entry?.file_name()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The same with their sizes; of one whose size cannot be told it is 0, so that it is read.
pub(super) fn segment_files(folder: &Path) -> io::Result<Vec<SegmentFile>> {
    let files = segment_numbers(folder)?.into_iter().map(|number| {
        let bytes = fs::metadata(segment::path(folder, number)).map_or(0, |file| file.len());
        SegmentFile { number, bytes }
    });
    Ok(files.collect())
}

/// Reads a segment: its table, or all of its records when it has none.
pub(super) fn load(
    folder: &Path,
    number: u64,
    is_ours: impl FnOnce(Identity) -> bool,
) -> io::Result<Loaded> {
    let path = segment::path(folder, number);
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let metadata = file.metadata()?;
    let bytes = metadata.len();
    let Some(header) = segment::read_header(&file)? else {
        return Ok(Loaded::Unborn);
    };
    let header = SegmentHeader::decode(&header);
    let reason = match header {
        Err(error) => Some(error.to_string()),
        Ok(header) if header.number != number => {
            Some(format!("its header says it is number {}", header.number))
        }
        Ok(header) if !is_ours(header.identity) => {
            Some("it was written for another layout or other numerics".to_owned())
        }
        Ok(_) => None,
    };
    if let Some(reason) = reason {
        let contents = unread(number, SegmentState::Foreign, Some(&metadata));
        return Ok(Loaded::Foreign { reason, contents });
    }
    let origin = header.map_or(FileOrigin::Made, |header| header.origin);
    Ok(match segment::read_table(&file, number)? {
        Some(records) => Loaded::Sealed(sealed_contents(number, bytes, &records)),
        None => Loaded::Open { walk: segment::walk(&file, number, origin)?, file, bytes, origin },
    })
}

fn sealed_contents(number: u64, bytes: u64, records: &[RecordHeader]) -> SegmentContents {
    let records = records.iter().map(Record::from).collect();
    SegmentContents { number, state: SegmentState::Sealed, bytes, changed_unix_seconds: 0, records }
}

/// A file that the system does not give now. It is open for the catalog, so that the next start tries again.
pub(super) fn unreadable(folder: &Path, number: u64, error: &io::Error) -> Loaded {
    let metadata = fs::metadata(segment::path(folder, number)).ok();
    let contents = unread(number, SegmentState::Open, metadata.as_ref());
    Loaded::Foreign { reason: format!("it cannot be read: {error}"), contents }
}

/// A file that is left alone: its age is that of its last change, as far as it can be told.
fn unread(number: u64, state: SegmentState, metadata: Option<&Metadata>) -> SegmentContents {
    let changed = metadata.and_then(|metadata| u64::try_from(metadata.mtime()).ok());
    SegmentContents {
        number,
        state,
        bytes: metadata.map_or(0, Metadata::len),
        changed_unix_seconds: changed.unwrap_or(u64::MAX),
        records: Vec::new(),
    }
}
