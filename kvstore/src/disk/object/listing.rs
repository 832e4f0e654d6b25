//! What a start finds in the object store: rows of objects that are gone are put right, and objects that the catalog does not
//! know are read in, newest first, by their last pages.

use std::collections::BTreeMap;

use futures::stream::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt};

use super::{Failure, REQUEST_MAX, Remote};
use crate::disk::Shared;
use crate::disk::catalog::{Record, SegmentContents, SegmentState};
use crate::disk::format::{
    PAGE, SEAL_BYTES, SEGMENT_HEADER_BYTES, Seal, SegmentHeader, SegmentHeaderError, wide,
};
use crate::disk::segment;

/// An object that was read.
enum Opened {
    /// A segment of ours.
    Segment(SegmentContents),
    /// Of another version, or of another kind: left alone.
    Foreign,
    /// Nothing can be read from it.
    Damaged,
}

/// Brings the catalog in step with the objects.
pub(super) async fn adopt(shared: &Shared, remote: &Remote) -> Result<(), Failure> {
    let known = shared.index.catalog().segments();
    let store = remote.store()?;
    let (found, is_whole) = list(remote, &*store).await?;
    if is_whole {
        for (number, row) in known.iter().filter(|(number, _)| !found.contains_key(number)) {
            match row.state {
                SegmentState::Remote => {
                    shared.index.remove_segment(*number, &mut |_| {})?;
                    remote.counters.missing.add(1);
                }
                SegmentState::Copied => _ = shared.index.catalog().unmark_copied(*number)?,
                SegmentState::Open | SegmentState::Sealed | SegmentState::Foreign => {}
            }
        }
    }
    for (number, bytes) in found.into_iter().rev() {
        let row = shared.index.catalog().segment(number);
        let is_known = row.is_some_and(|row| {
            row.state != SegmentState::Remote || 0 < row.records || row.is_doomed()
        });
        if is_known {
            continue;
        }
        if remote.number_next <= number {
            remote.counters.ignored.add(1);
            continue;
        }
        match open(shared, remote, &*store, number, bytes).await {
            Ok(Opened::Segment(contents)) => {
                shared.index.adopt(contents)?;
                remote.counters.adopted.add(1);
            }
            Ok(Opened::Foreign) => remote.counters.ignored.add(1),
            Ok(Opened::Damaged) => {
                tracing::warn!(number, "an object is no whole segment; it is deleted");
                remote.request(REQUEST_MAX, store.delete(&remote.keys.object(number))).await?;
                remote.counters.deleted.add(1);
            }
            // It left since it was listed.
            Err(Failure::Missing(_)) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

/// Numbers and sizes, and whether that is all.
async fn list(
    remote: &Remote,
    store: &dyn ObjectStore,
) -> Result<(BTreeMap<u64, u64>, bool), Failure> {
    let mut found = BTreeMap::new();
    let mut listing = store.list(Some(&remote.keys.base));
    while let Some(object) = remote.request(REQUEST_MAX, listing.try_next()).await? {
        let Some(number) = remote.keys.number(&object.location) else { continue };
        if found.len() == remote.config.segments_max {
            remote.counters.ignored.add(1);
            return Ok((found, false));
        }
        found.insert(number, object.size);
    }
    Ok((found, true))
}

/// Reads the header, the seal and the table of an object: three small ranges.
async fn open(
    shared: &Shared,
    remote: &Remote,
    store: &dyn ObjectStore,
    number: u64,
    bytes: u64,
) -> Result<Opened, Failure> {
    if !bytes.is_multiple_of(PAGE) || bytes < 3 * PAGE {
        return Ok(Opened::Damaged);
    }
    let key = remote.keys.object(number);
    let ends = [0..wide(SEGMENT_HEADER_BYTES), bytes - PAGE..bytes - PAGE + wide(SEAL_BYTES)];
    let ends = remote.request(REQUEST_MAX, store.get_ranges(&key, &ends)).await?;
    let [header, seal] = &*ends else { return Ok(Opened::Damaged) };
    let (Some(header), Some(seal)) = (header.first_chunk(), seal.first_chunk()) else {
        return Ok(Opened::Damaged);
    };
    match SegmentHeader::decode(header) {
        Ok(header) if header.number == number && header.identity == shared.identity => {}
        Ok(_) | Err(SegmentHeaderError::Version { .. } | SegmentHeaderError::Page { .. }) => {
            return Ok(Opened::Foreign);
        }
        Err(SegmentHeaderError::Magic | SegmentHeaderError::Checksum) => {
            return Ok(Opened::Damaged);
        }
    }
    let seal = Seal::decode(seal).filter(|seal| seal.segment == number);
    let Some((seal, range)) =
        seal.and_then(|seal| Some((seal, segment::table_range(&seal, bytes)?)))
    else {
        return Ok(Opened::Damaged);
    };
    let table = remote.request(REQUEST_MAX, store.get_range(&key, range)).await?;
    let Some(records) = segment::table_records(&seal, &table) else { return Ok(Opened::Damaged) };
    Ok(Opened::Segment(SegmentContents {
        number,
        state: SegmentState::Remote,
        bytes,
        changed_unix_seconds: 0,
        records: records.iter().map(Record::from).collect(),
    }))
}
