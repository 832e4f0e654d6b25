//! What a start has to do, from the segment table and the files that are there. Pure.

use std::collections::BTreeMap;

use super::rows::{Segment, SegmentState};

/// A segment file that a start found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFile {
    /// Its number.
    pub number: u64,
    /// Its size.
    pub bytes: u64,
}

/// What a start has to do. Each list is ascending, and is bounded by the segments there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartPlan {
    /// Sealed, and as long as the catalog says: nothing is read.
    pub trusted: Vec<u64>,
    /// Without a seal, unknown, or of another length: to be read (its table, or else record by record) and loaded.
    pub load: Vec<u64>,
    /// In the catalog without a file: to be removed from it, before anything is written under a new number.
    pub gone: Vec<u64>,
    /// The same, but with a copy in the object store, where alone they are from now on.
    pub remote: Vec<u64>,
}

/// Sealed in the catalog means that it had entered all records of the seal's count; the database keeps the order of its
/// writes over any crash, so that they are all there when the mark is. Foreign segments are trusted as well: they were
/// foreign for the same identity.
pub(super) fn plan(segments: &BTreeMap<u64, Segment>, files: &[SegmentFile]) -> StartPlan {
    let files: BTreeMap<u64, u64> = files.iter().map(|file| (file.number, file.bytes)).collect();
    let mut plan = StartPlan::default();
    for (number, bytes) in &files {
        let agrees = segments.get(number).is_some_and(|segment| {
            let known = segment.state.is_sealed() || segment.state == SegmentState::Foreign;
            known && segment.bytes == *bytes
        });
        let list = if agrees { &mut plan.trusted } else { &mut plan.load };
        list.push(*number);
    }
    for (number, segment) in segments.iter().filter(|(number, _)| !files.contains_key(number)) {
        match segment.state {
            SegmentState::Remote => {}
            SegmentState::Copied => plan.remote.push(*number),
            SegmentState::Open | SegmentState::Sealed | SegmentState::Foreign => {
                plan.gone.push(*number);
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{SegmentFile, StartPlan, plan};
    use crate::disk::catalog::rows::{Segment, SegmentState};

    #[test]
    fn each_segment_has_one_fate() {
        // The row in the catalog, the length of the file, and in which list it must be.
        let cases = [
            (Some((SegmentState::Sealed, 10)), Some(10), "trusted"),
            (Some((SegmentState::Sealed, 10)), Some(11), "load"),
            (Some((SegmentState::Open, 10)), Some(10), "load"),
            (Some((SegmentState::Foreign, 10)), Some(10), "trusted"),
            (Some((SegmentState::Foreign, 10)), Some(9), "load"),
            (None, Some(10), "load"),
            (Some((SegmentState::Sealed, 10)), None, "gone"),
            (Some((SegmentState::Open, 10)), None, "gone"),
            (Some((SegmentState::Copied, 10)), Some(10), "trusted"),
            (Some((SegmentState::Copied, 10)), Some(9), "load"),
            (Some((SegmentState::Copied, 10)), None, "remote"),
            (Some((SegmentState::Remote, 10)), Some(10), "load"),
            (Some((SegmentState::Remote, 10)), None, "nothing"),
        ];
        let (mut segments, mut files, mut expected) =
            (BTreeMap::new(), Vec::new(), StartPlan::default());
        for (number, (row, file, fate)) in (1..).zip(cases) {
            segments.extend(row.map(|(state, bytes)| (number, Segment::empty(state, bytes))));
            files.extend(file.map(|bytes| SegmentFile { number, bytes }));
            match fate {
                "trusted" => expected.trusted.push(number),
                "load" => expected.load.push(number),
                "remote" => expected.remote.push(number),
                "nothing" => {}
                _ => expected.gone.push(number),
            }
        }
        files.reverse();
        assert_eq!(plan(&segments, &files), expected);
        assert_eq!(plan(&BTreeMap::new(), &[]), StartPlan::default());
    }
}
