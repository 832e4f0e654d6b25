//! What bringing cached blocks from a store takes, by the tier they came from, as a worker measures it.

use std::time::Duration;

use crate::clock::MeanTime;
use crate::events::WorkerRates;

/// Blocks remembered of each tier: some prompts.
const BLOCKS: u32 = 1_024;

/// Of the objects that a lookup asked for, the blocks that it waited for: those that had to be brought into the store's host memory
/// first, in time or not. The time until the lookup is answered is theirs: what lies in memory is found at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brought {
    /// From the store's drive.
    pub disk: u32,
    /// From its object store.
    pub remote: u32,
}

impl Brought {
    /// Blocks of both tiers.
    #[must_use]
    pub fn blocks(self) -> usize {
        usize::try_from(u64::from(self.disk) + u64::from(self.remote)).expect("64 bits are enough")
    }

    /// Both together, as of several lookups; saturating.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            disk: self.disk.saturating_add(other.disk),
            remote: self.remote.saturating_add(other.remote),
        }
    }
}

/// Mean times per block, over the last one to two thousand blocks of each tier: ratios of sums, so a long prompt weighs as
/// much as it holds.
#[derive(Clone, Copy, Debug)]
pub struct RestoreTimes {
    read: MeanTime,
    disk: MeanTime,
    remote: MeanTime,
}

impl Default for RestoreTimes {
    /// Nothing measured yet.
    fn default() -> Self {
        let none = MeanTime::over(BLOCKS);
        Self { read: none, disk: none, remote: none }
    }
}

impl RestoreTimes {
    /// A lookup was answered after `took`. Drive and object store are read at the same time, and the latter is the slower: of
    /// a lookup that waited for both the time says something about the object store alone.
    pub fn looked_up(&mut self, took: Duration, brought: Brought) {
        match brought {
            Brought { disk, remote: 0 } => self.disk.note(took, u64::from(disk)),
            Brought { remote, .. } => self.remote.note(took, u64::from(remote)),
        }
    }

    /// Reading as much as so many blocks from the host memory of stores took this long.
    pub fn read(&mut self, took: Duration, blocks: u64) {
        self.read.note(took, blocks);
    }

    /// Writes what was measured into what a worker tells: a block from below is waited for and then read.
    pub fn tell(&self, rates: &mut WorkerRates) {
        let read = self.read.nanoseconds();
        let below = |wait: MeanTime| match wait.nanoseconds() {
            0 => 0,
            wait => wait.saturating_add(read),
        };
        rates.restore_host_ns = read;
        rates.restore_disk_ns = below(self.disk);
        rates.restore_remote_ns = below(self.remote);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Brought, RestoreTimes};
    use crate::events::WorkerRates;

    /// Lookups (us, blocks from the drive, from the object store) and reads (us, blocks), and what is told of host, disk and
    /// remote in ns.
    type Case = (&'static [(u64, u32, u32)], &'static [(u64, u64)], [u64; 3]);

    #[test]
    fn times_are_told_by_tier_as_sums_over_sums() {
        let cases: [Case; 7] = [
            (&[], &[], [0, 0, 0]),
            (&[(900, 0, 0)], &[(100, 2)], [50_000, 0, 0]),
            (&[], &[(100, 1), (200, 9), (77, 0)], [30_000, 0, 0]),
            (&[(1_000, 10, 0), (5_000, 20, 0)], &[], [0, 200_000, 0]),
            (&[(1_000, 10, 0)], &[(60, 2)], [30_000, 130_000, 0]),
            (&[(1_000, 10, 0), (8_000, 90, 4)], &[(60, 2)], [30_000, 130_000, 2_030_000]),
            // Old ones fade.
            (
                &[(1_000_000, 1_000, 0), (20_000, 2_000, 0), (20_000, 2_000, 0)],
                &[],
                [0, 151_428, 0],
            ),
        ];
        for (lookups, reads, [host, disk, remote]) in cases {
            let mut times = RestoreTimes::default();
            for &(took, disk, remote) in lookups {
                times.looked_up(Duration::from_micros(took), Brought { disk, remote });
            }
            for &(took, blocks) in reads {
                times.read(Duration::from_micros(took), blocks);
            }
            let mut rates = WorkerRates { step_ns: 5, ..WorkerRates::default() };
            times.tell(&mut rates);
            let case = format!("{lookups:?} {reads:?}");
            assert_eq!(rates.restore_host_ns, host, "{case}");
            assert_eq!(rates.restore_disk_ns, disk, "{case}");
            assert_eq!(rates.restore_remote_ns, remote, "{case}");
            assert_eq!(rates.step_ns, 5, "what is not about stores stays");
        }
    }
}
