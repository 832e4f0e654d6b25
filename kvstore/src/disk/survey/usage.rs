//! What the bytes of a folder are spent on.

use std::collections::{BTreeMap, HashSet};

use shared::{BlockName, ObjectKind, TenantTag};

use super::{Segment, SegmentState, Survey};
use crate::disk::format::{PAGE, seal_bytes};

/// Names held at a time, about 150 MB: a drive with more blocks is gone over several times.
const NAMES_MAX: u64 = 4 << 20;
/// Names are hashes, so their first byte cuts any number of them into equal parts.
const PARTS: usize = 256;
const HOUR: u64 = 3_600;

/// Files and bytes of the segments in one state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateBytes {
    /// Files.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Payload bytes of live blocks by the time since they were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ages {
    /// At most an hour.
    pub hour: u64,
    /// At most 24 hours.
    pub day: u64,
    /// At most 72 hours.
    pub retention: u64,
    /// More.
    pub older: u64,
}

/// What all segment files together hold. All numbers are bytes but for the counts of blocks and files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// By the word of [`SegmentState::as_str`], or `free`.
    pub states: BTreeMap<&'static str, StateBytes>,
    /// All files.
    pub file_bytes: u64,
    /// Blocks that count, pieces of media embeddings included.
    pub live_blocks: u64,
    /// Their payload.
    pub live_bytes: u64,
    /// The pieces of media embeddings among them.
    pub media_pieces: u64,
    /// Their payload.
    pub media_bytes: u64,
    /// Copies of blocks that a newer copy took the place of.
    pub superseded_blocks: u64,
    /// Their payload.
    pub superseded_bytes: u64,
    /// Blocks that were evicted with their tenant; not among those above.
    pub evicted_blocks: u64,
    /// Their payload.
    pub evicted_bytes: u64,
    /// Headers of records and zeros up to the end of their pages.
    pub padding_bytes: u64,
    /// Headers, tables and seals of segments.
    pub structure_bytes: u64,
    /// Torn ends, what lies between records, and all of segments that are not read.
    pub lost_bytes: u64,
    /// Files of segments that left, kept to be written on again.
    pub free_bytes: u64,
    /// Live payload by age.
    pub ages: Ages,
}

impl Usage {
    /// Reads header and table of every segment, two times and once more for every four million blocks. Blocks. Beside a
    /// running store the numbers are those of different moments.
    #[must_use]
    pub fn of(survey: &Survey, now_unix_seconds: u64) -> Self {
        let mut usage = Self::default();
        let (segments, bytes) = survey.free_files();
        if 0 < segments {
            usage.states.insert("free", StateBytes { segments, bytes });
            usage.file_bytes += bytes;
            usage.free_bytes += bytes;
        }
        let mut parts = [0; PARTS];
        for segment in survey.segments() {
            usage.segment(&segment);
            for block in segment.blocks() {
                parts[part(block.name)] += 1;
            }
        }
        for (from, until) in groups(&parts) {
            usage.names(survey, now_unix_seconds, |name| (from..until).contains(&part(name)));
        }
        usage
    }

    /// Bytes of files for each byte of live payload; None without any.
    #[must_use]
    pub fn amplification(&self) -> Option<f64> {
        let thousandths = u128::from(self.file_bytes) * 1_000 / u128::from(self.live_bytes.max(1));
        let thousandths = u32::try_from(thousandths).ok()?;
        (0 < self.live_bytes).then(|| f64::from(thousandths) / 1_000.0)
    }

    fn segment(&mut self, segment: &Segment) {
        let state = self.states.entry(segment.state.as_str()).or_default();
        state.segments += 1;
        state.bytes += segment.file_bytes;
        self.file_bytes += segment.file_bytes;
        let payload: u64 = segment.blocks().map(|block| u64::from(block.bytes)).sum();
        let records = segment.record_bytes();
        let structure = match segment.state {
            SegmentState::Sealed => PAGE + seal_bytes(segment.records.len()),
            SegmentState::Open | SegmentState::Unsealed => PAGE,
            SegmentState::Unborn | SegmentState::Foreign { .. } | SegmentState::Damaged { .. } => 0,
        };
        self.padding_bytes += records - payload;
        self.structure_bytes += structure;
        self.lost_bytes += segment.file_bytes.saturating_sub(structure + records);
    }

    /// Adds the copies of some of the names, newest first, so that the first one seen is the one that counts.
    fn names(&mut self, survey: &Survey, now: u64, wanted: impl Fn(BlockName) -> bool) {
        let mut seen: HashSet<BlockName> = HashSet::new();
        for segment in survey.segments().rev() {
            for block in segment.blocks().rev().filter(|block| wanted(block.name)) {
                let bytes = u64::from(block.bytes);
                if survey.is_evicted(&block) {
                    self.evicted_blocks += 1;
                    self.evicted_bytes += bytes;
                    continue;
                }
                if !seen.insert(block.name) {
                    self.superseded_blocks += 1;
                    self.superseded_bytes += bytes;
                    continue;
                }
                self.live_blocks += 1;
                self.live_bytes += bytes;
                if block.kind == ObjectKind::Media {
                    self.media_pieces += 1;
                    self.media_bytes += bytes;
                }
                let age = now.saturating_sub(block.written_unix_seconds);
                let bucket = match age.div_ceil(HOUR) {
                    0..=1 => &mut self.ages.hour,
                    2..=24 => &mut self.ages.day,
                    25..=72 => &mut self.ages.retention,
                    _ => &mut self.ages.older,
                };
                *bucket += bytes;
            }
        }
    }
}

/// What one tenant has on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantBytes {
    /// Records, newer and older copies of a block alike.
    pub blocks: u64,
    /// Their payload.
    pub bytes: u64,
}

/// What tenants have in the segments, by their tags from `first` on, `count_max` at most; what was evicted is left out. Reads
/// header and table of every segment once; its memory is that of `count_max` tenants. Blocks.
#[must_use]
pub fn tenants(
    survey: &Survey,
    first: TenantTag,
    count_max: usize,
) -> BTreeMap<TenantTag, TenantBytes> {
    let mut tenants: BTreeMap<TenantTag, TenantBytes> = BTreeMap::new();
    for segment in survey.segments() {
        for block in segment.blocks().filter(|block| first <= block.tenant) {
            if survey.is_evicted(&block) {
                continue;
            }
            let held = tenants.entry(block.tenant).or_default();
            held.blocks += 1;
            held.bytes += u64::from(block.bytes);
            // The greatest one can only be beyond the page, now and for good.
            if count_max < tenants.len() {
                tenants.pop_last();
            }
        }
    }
    tenants
}

fn part(name: BlockName) -> usize {
    usize::from(name.0[0])
}

/// Ranges of parts with at most [`NAMES_MAX`] names each, or one part each when that has more.
fn groups(parts: &[u64; PARTS]) -> Vec<(usize, usize)> {
    let mut groups = Vec::new();
    let (mut from, mut held) = (0, 0);
    for (part, count) in parts.iter().enumerate() {
        if from < part && NAMES_MAX < held + count {
            groups.push((from, part));
            (from, held) = (part, 0);
        }
        held += count;
    }
    groups.push((from, PARTS));
    groups
}

#[cfg(test)]
mod tests {
    use super::{NAMES_MAX, PARTS, groups};

    #[test]
    fn every_part_is_in_one_group_that_fits() {
        let cases = [
            ([0; PARTS], 1),
            ([NAMES_MAX / 256; PARTS], 1),
            ([NAMES_MAX / 100; PARTS], 3),
            ([NAMES_MAX + 1; PARTS], PARTS),
        ];
        for (parts, expected) in cases {
            let found = groups(&parts);
            assert_eq!(found.len(), expected);
            let mut end = 0;
            for (from, until) in found {
                assert_eq!(from, end);
                assert!(until == from + 1 || parts[from..until].iter().sum::<u64>() <= NAMES_MAX);
                end = until;
            }
            assert_eq!(end, PARTS);
        }
    }
}
