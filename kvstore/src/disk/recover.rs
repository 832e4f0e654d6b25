//! The start: the index is rebuilt from the segment files alone.
//!
//! A sealed segment costs one read of its table. A segment without a seal is walked with its payloads; in the ordinary
//! case that is the last one only, whose torn tail is cut off and which is then written on. Segments of another layout,
//! other numerics or another version are left alone: an older program may come back for them. Their bytes count against
//! the bound, and they leave by the age of their last change, earlier when ours need room. Files with other names are not
//! looked at; one of ours that is shorter than a header was never begun and is removed.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::config::{DiskConfig, DiskError};
use super::format::{Identity, RecordHeader, SegmentHeader};
use super::index::{Segment, State};
use super::retention::Retention;
use super::segment::{self, OpenSegment, Walk};
use super::stats::Counters;

/// What a start found.
pub(super) struct Recovered {
    pub(super) state: State,
    /// The last segment, when it can be written on.
    pub(super) active: Option<OpenSegment>,
    /// Above the numbers of all files, also of those that are gone since.
    pub(super) number_next: u64,
}

/// One file.
enum Loaded {
    /// It ends within its first page: the program was stopped while making it.
    Unborn,
    /// It is not to be read.
    Foreign { reason: String, bytes: u64, changed_unix_seconds: u64 },
    /// It is complete.
    Sealed { records: Vec<RecordHeader>, bytes: u64 },
    /// It has no seal.
    Open { file: File, walk: Walk, bytes: u64 },
}

/// Reads all segments of the folder. Nothing but the torn tail of the last one is changed.
pub(super) fn recover(
    config: &DiskConfig,
    identity: Identity,
    retention: Retention,
    counters: &Counters,
) -> Result<Recovered, DiskError> {
    let folder = &config.folder;
    let failed = |what| move |source| DiskError::File { what, path: folder.clone(), source };
    let numbers = segment_numbers(folder).map_err(failed("list"))?;
    let mut state = State::new(retention);
    let mut active = None;
    let mut foreign: Option<(u64, String)> = None;
    for number in &numbers {
        let loaded = load(folder, *number, identity).unwrap_or_else(|error| {
            let reason = format!("it cannot be read: {error}");
            foreign_file(reason, fs::metadata(segment::path(folder, *number)).ok().as_ref())
        });
        match loaded {
            Loaded::Unborn => {
                fs::remove_file(segment::path(folder, *number)).map_err(failed("clean up"))?;
            }
            Loaded::Foreign { reason, bytes, changed_unix_seconds } => {
                foreign.get_or_insert((*number, reason));
                let segment = Segment {
                    bytes,
                    names: Vec::new(),
                    newest_unix_seconds: changed_unix_seconds,
                    foreign: true,
                };
                state.add_segment(*number, segment);
            }
            Loaded::Sealed { records, bytes } => enter(&mut state, *number, bytes, &records),
            Loaded::Open { file, walk, bytes } => {
                let last = Some(number) == numbers.last();
                let data_end = segment::data_end(&file).unwrap_or(bytes).max(walk.end);
                counters.lost_bytes(walk.lost_bytes + data_end - walk.end);
                enter(&mut state, *number, if last { walk.end } else { bytes }, &walk.records);
                if last {
                    cut(&file, bytes, walk.end)
                        .map_err(failed("cut the torn end of a segment in"))?;
                    active = Some(OpenSegment::resume(file, *number, walk));
                }
            }
        }
    }
    if let Some((number, reason)) = foreign {
        let count = state.segments().values().filter(|segment| segment.foreign).count();
        tracing::warn!(
            folder = %folder.display(), count, first = number, reason,
            "segments were left alone; they leave when their space is needed, or remove them"
        );
    }
    let number_next = numbers.last().map_or(1, |last| last.saturating_add(1));
    Ok(Recovered { state, active, number_next })
}

fn enter(state: &mut State, number: u64, bytes: u64, records: &[RecordHeader]) {
    state.add_segment(number, Segment { bytes, ..Segment::default() });
    for record in records {
        let entered = state.insert(record);
        assert!(entered, "the segment was added above");
    }
}

fn cut(file: &File, bytes: u64, end: u64) -> io::Result<()> {
    if bytes == end {
        // What was found may lie in the system's cache alone.
        return file.sync_data();
    }
    file.set_len(end)?;
    file.sync_all()
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

fn load(folder: &Path, number: u64, identity: Identity) -> io::Result<Loaded> {
    let file = OpenOptions::new().read(true).write(true).open(segment::path(folder, number))?;
    let metadata = file.metadata()?;
    let bytes = metadata.len();
    let Some(header) = segment::read_header(&file)? else {
        return Ok(Loaded::Unborn);
    };
    let foreign = |reason| Ok(foreign_file(reason, Some(&metadata)));
    match SegmentHeader::decode(&header) {
        Err(error) => return foreign(error.to_string()),
        Ok(header) if header.number != number => {
            return foreign(format!("its header says it is number {}", header.number));
        }
        Ok(header) if header.identity != identity => {
            return foreign("it was written for another layout or other numerics".to_owned());
        }
        Ok(_) => {}
    }
    Ok(match segment::read_table(&file, number)? {
        Some(records) => Loaded::Sealed { records, bytes },
        None => Loaded::Open { walk: segment::walk(&file, number)?, file, bytes },
    })
}

/// A file that is left alone: its age is that of its last change, as far as it can be told.
fn foreign_file(reason: String, metadata: Option<&Metadata>) -> Loaded {
    let changed = metadata.and_then(|metadata| u64::try_from(metadata.mtime()).ok());
    Loaded::Foreign {
        reason,
        bytes: metadata.map_or(0, Metadata::len),
        changed_unix_seconds: changed.unwrap_or(u64::MAX),
    }
}
