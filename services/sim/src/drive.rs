//! A store's drive: segments in the order in which they were filled, under the shipped contract of retention.
//!
//! What is admitted, what it costs and when a segment may leave is decided by `kvstore`'s own [`Retention`]; here are only the
//! lists of names that its writer keeps in files. Writes take no time and never wait in a queue.

use std::collections::{HashMap, VecDeque};

use kvstore::{Retention, RetentionLimits, Reuse};
use shared::{BlockName, Timestamp};

use crate::settings::{BLOCK_BYTES, Settings, narrow, seconds, size, wide};

/// The drive.
#[derive(Debug)]
pub(crate) struct Drive {
    retention: Retention,
    segments: VecDeque<Segment>,
    /// Number of the oldest segment.
    oldest: u64,
    segments_max: usize,
    blocks_per_segment: usize,
    held: HashMap<BlockName, Copy>,
    pub(crate) counts: DriveCounts,
}

/// What became of blocks. Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriveCounts {
    pub(crate) written: u64,
    pub(crate) written_again: u64,
    pub(crate) refused: u64,
    pub(crate) expired: u64,
}

#[derive(Debug)]
struct Segment {
    names: Vec<BlockName>,
    newest: u64,
}

#[derive(Clone, Copy, Debug)]
struct Copy {
    segment: u64,
    written: u64,
}

fn limits(settings: &Settings) -> Option<RetentionLimits> {
    let bytes = seconds(settings.disk_gib * 1_073_741_824.0).as_secs();
    let retention_s = seconds(settings.retention_hours * 3_600.0).as_secs();
    let block_bytes = narrow(BLOCK_BYTES);
    RetentionLimits::new(bytes, settings.segment_mib << 20, block_bytes, retention_s)
}

/// Whether the settings give a drive a budget.
pub(crate) fn fits(settings: &Settings) -> bool {
    limits(settings).is_some()
}

impl Drive {
    /// An empty drive; none when the settings have none.
    pub(crate) fn new(settings: &Settings) -> Option<Self> {
        let limits = limits(settings)?;
        let segment_bytes = settings.segment_mib << 20;
        // Of the usable bytes two segments are left out: see the proof in `retention.rs`.
        let segments_max = limits.usable_bytes() / segment_bytes + 2;
        Some(Self {
            blocks_per_segment: size((segment_bytes / limits.block_cost()).max(1)),
            retention: Retention::new(limits),
            segments: VecDeque::new(),
            oldest: 0,
            segments_max: size(segments_max),
            held: HashMap::new(),
            counts: DriveCounts::default(),
        })
    }

    pub(crate) fn holds(&self, name: BlockName) -> bool {
        self.held.contains_key(&name)
    }

    /// Blocks that are held.
    pub(crate) fn blocks(&self) -> usize {
        self.held.len()
    }

    /// All names, sorted.
    pub(crate) fn names(&self) -> Vec<BlockName> {
        let mut names: Vec<BlockName> = self.held.keys().copied().collect();
        names.sort_unstable();
        names
    }

    /// Offers a block, as `kvstore`'s queue takes it: a first write is wanted once, one that was asked for also when the copy
    /// it has will not last. Says whether it is newly held.
    pub(crate) fn put(&mut self, name: BlockName, reuse: Reuse, now: Timestamp) -> bool {
        let second = now.since(Timestamp(0)).as_secs();
        let held = self.held.get(&name).copied();
        if let Some(copy) = held
            && (reuse == Reuse::Unknown || !self.retention.limits().is_ending(copy.written, second))
        {
            return false;
        }
        if !self.retention.admits(name, reuse, 0, second) || !self.has_room() {
            self.counts.refused += 1;
            return false;
        }
        self.retention.spend(1, second);
        let full = |segment: &Segment| self.blocks_per_segment <= segment.names.len();
        if self.segments.back().is_none_or(full) {
            self.segments.push_back(Segment { names: Vec::new(), newest: second });
        }
        let number = self.oldest + wide(self.segments.len()) - 1;
        let segment = self.segments.back_mut().expect("pushed when there was none");
        segment.names.push(name);
        segment.newest = second;
        self.held.insert(name, Copy { segment: number, written: second });
        match held {
            Some(_) => self.counts.written_again += 1,
            None => self.counts.written += 1,
        }
        held.is_none()
    }

    /// Takes away the segments whose time is over, and the names that left with them.
    pub(crate) fn expire(&mut self, now: Timestamp) -> Vec<BlockName> {
        let second = now.since(Timestamp(0)).as_secs();
        let mut gone = Vec::new();
        while let Some(first) = self.segments.front()
            && self.retention.limits().is_over(first.newest, second)
        {
            let first = self.segments.pop_front().expect("looked at above");
            for name in first.names {
                if self.held.get(&name).is_some_and(|copy| copy.segment == self.oldest) {
                    self.held.remove(&name);
                    gone.push(name);
                }
            }
            self.oldest += 1;
        }
        self.counts.expired += wide(gone.len());
        gone
    }

    /// The writer's second fence: no segment is begun without room for it.
    fn has_room(&self) -> bool {
        let open =
            self.segments.back().is_some_and(|last| last.names.len() < self.blocks_per_segment);
        open || self.segments.len() < self.segments_max
    }
}

#[cfg(test)]
mod tests {
    use kvstore::Reuse;
    use shared::{BlockName, Timestamp};

    use super::Drive;
    use crate::settings::Settings;

    fn name(number: u32) -> BlockName {
        let mut name = [7; 16];
        name[..4].copy_from_slice(&number.to_le_bytes());
        BlockName(name)
    }

    fn hours(hours: u64) -> Timestamp {
        Timestamp(hours * 3_600_000_000_000)
    }

    #[test]
    fn what_was_admitted_stays_for_the_retention_and_leaves_after_it() {
        let settings = Settings {
            disk_gib: 1.0,
            segment_mib: 16,
            retention_hours: 24.0,
            ..Settings::default()
        };
        let mut drive = Drive::new(&settings).unwrap();
        let mut kept = 0;
        for number in 0..2_000 {
            kept += u32::from(drive.put(name(number), Reuse::Unknown, hours(0)));
        }
        assert!(0 < kept && kept < 2_000, "the burst is bounded: {kept}");
        assert!(!drive.put(name(0), Reuse::Unknown, hours(1)), "held already");
        assert_eq!(drive.expire(hours(24)), []);
        assert!(drive.holds(name(0)));
        assert!(!drive.put(name(0), Reuse::Expected, hours(20)), "written again, not newly held");
        assert_eq!(drive.counts.written_again, 1);
        let gone = drive.expire(hours(25));
        assert!(!gone.is_empty() && !gone.contains(&name(0)), "its second copy lasts");
        assert!(drive.holds(name(0)) && !drive.holds(name(1)));
        drive.expire(hours(100));
        assert_eq!(drive.blocks(), 0);
    }
}
