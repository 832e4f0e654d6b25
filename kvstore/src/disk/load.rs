//! How long a read from the drive would take now, from how long reads took lately. Pure: amounts and times go in.
//!
//! A transfer is taken to cost a fixed part and a part per byte. Both are learned from the time by which each transfer kept
//! the queue busy, that is since the one before it ended: the drive works on several at a time, and what counts is how fast
//! the queue gets shorter. The difference to what was expected goes to the two parts in the proportion of the squares of what
//! they made of the expectation, so that small transfers teach the fixed part and large ones the other.

use std::time::Duration;

use shared::Timestamp;

/// What is expected before anything was read: a modest solid-state drive.
const FIRST_TRANSFER_NS: u64 = 200_000;
const FIRST_MIB_NS: u64 = 1_000_000;
/// The parts never fall below this, so that they can grow again.
const PART_NS_MIN: u64 = 1_000;
/// Nor rise above an hour.
const PART_NS_MAX: u64 = 3_600_000_000_000;
/// A transfer moves the averages by this part of its difference: the last dozen counts.
const NEW_PART: i128 = 8;
/// Shares of a difference are counted in these parts of one.
const SHARE_PARTS: i128 = 1_024;
/// The number of reads per transfer is kept in these parts of one.
const READ_PARTS: u64 = 64;
const MIB: u64 = 1 << 20;

/// How busy the drive is with reads, and how fast it was lately. Plain numbers; what holds after them is a guess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskLoad {
    /// Blocks that are being read or wait for it.
    pub queued_reads: u64,
    /// Bytes of their records.
    pub queued_bytes: u64,
    /// What each read cost lately besides its bytes, in nanoseconds.
    pub ns_per_read: u64,
    /// What 1,048,576 bytes cost lately, in nanoseconds.
    pub ns_per_mib: u64,
    /// For how long nothing was read although something waits, in nanoseconds.
    pub stalled_ns: u64,
}

impl DiskLoad {
    /// How long so many reads more, with so many bytes in all, would take from now until the last of them ends, everything
    /// before them included. Not less than the drive lets others wait already.
    #[must_use]
    pub fn time_for(&self, reads: u64, bytes: u64) -> Duration {
        let by_reads = self.queued_reads.saturating_add(reads).saturating_mul(self.ns_per_read);
        let bytes = self.queued_bytes.saturating_add(bytes);
        let by_bytes = scaled(self.ns_per_mib, bytes, MIB);
        Duration::from_nanos(by_reads.saturating_add(by_bytes).max(self.stalled_ns))
    }

    /// The load when so much more is queued.
    #[must_use]
    pub fn with(self, reads: u64, bytes: u64) -> Self {
        Self {
            queued_reads: self.queued_reads.saturating_add(reads),
            queued_bytes: self.queued_bytes.saturating_add(bytes),
            ..self
        }
    }
}

/// Counts what waits and learns from what ended.
#[derive(Debug)]
pub(super) struct Load {
    queued_reads: u64,
    queued_bytes: u64,
    transfer_ns: u64,
    mib_ns: u64,
    /// Reads per transfer, in parts of a read. At least one whole.
    reads_per_transfer: u64,
    /// When a read last ended, or the queue was last empty.
    progress: Timestamp,
}

/// A transfer that ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    /// Blocks that it brought.
    pub(super) reads: u64,
    pub(super) bytes: u64,
    /// When it was given to the drive.
    pub(super) began: Timestamp,
}

impl Load {
    pub(super) fn new() -> Self {
        Self {
            queued_reads: 0,
            queued_bytes: 0,
            transfer_ns: FIRST_TRANSFER_NS,
            mib_ns: FIRST_MIB_NS,
            reads_per_transfer: READ_PARTS,
            progress: Timestamp(0),
        }
    }

    /// A read of so many bytes joins the queue.
    pub(super) fn join(&mut self, bytes: u64, now: Timestamp) {
        if self.queued_reads == 0 {
            self.progress = self.progress.max(now);
        }
        self.queued_reads += 1;
        self.queued_bytes += bytes;
    }

    /// Reads leave the queue, each of so many bytes.
    pub(super) fn leave(&mut self, reads: u64, bytes_each: u64) {
        self.queued_reads = self.queued_reads.saturating_sub(reads);
        self.queued_bytes = self.queued_bytes.saturating_sub(reads * bytes_each);
    }

    /// A transfer ended.
    pub(super) fn served(&mut self, served: Served, now: Timestamp) {
        let taken = now.since(served.began.max(self.progress));
        self.progress = self.progress.max(now);
        let taken = i128::try_from(taken.as_nanos()).unwrap_or(i128::MAX);
        let by_bytes = scaled(self.mib_ns, served.bytes, MIB).clamp(1, PART_NS_MAX);
        let (fixed, by_bytes) = (i128::from(self.transfer_ns), i128::from(by_bytes));
        let more = taken.min(i128::from(PART_NS_MAX)) - fixed - by_bytes;
        let squares = fixed * fixed + by_bytes * by_bytes;
        let learned = |part: u64, made: i128| {
            let share = made * made * SHARE_PARTS / squares;
            let moved = more * share * i128::from(part) / (made * SHARE_PARTS * NEW_PART);
            let part = (i128::from(part) + moved).clamp(PART_NS_MIN.into(), PART_NS_MAX.into());
            u64::try_from(part).expect("it is within the bounds")
        };
        self.transfer_ns = learned(self.transfer_ns, fixed);
        self.mib_ns = learned(self.mib_ns, by_bytes);
        let reads = i128::from((served.reads * READ_PARTS).max(READ_PARTS));
        let before = i128::from(self.reads_per_transfer);
        let moved = before + (reads - before) / NEW_PART;
        self.reads_per_transfer = u64::try_from(moved).unwrap_or(READ_PARTS).max(READ_PARTS);
    }

    pub(super) fn snapshot(&self, now: Timestamp) -> DiskLoad {
        let stalled =
            if self.queued_reads == 0 { Duration::ZERO } else { now.since(self.progress) };
        DiskLoad {
            queued_reads: self.queued_reads,
            queued_bytes: self.queued_bytes,
            ns_per_read: scaled(self.transfer_ns, READ_PARTS, self.reads_per_transfer),
            ns_per_mib: self.mib_ns,
            stalled_ns: u64::try_from(stalled.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// `value * times / parts`, saturating.
fn scaled(value: u64, times: u64, parts: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(times) / u128::from(parts);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::Timestamp;

    use super::{DiskLoad, Load, MIB, Served};

    const BLOCK: u64 = 114_688;

    /// A drive on which a transfer costs so much, and each MiB.
    struct Drive {
        transfer_us: u64,
        mib_us: u64,
    }

    impl Drive {
        fn time_ns(&self, bytes: u64) -> u64 {
            self.transfer_us * 1_000 + self.mib_us * 1_000 * bytes / MIB
        }

        /// Serves transfers of so many blocks, one after the other, each given to the drive when the first one was.
        fn serve(
            &self,
            load: &mut Load,
            transfers: impl IntoIterator<Item = u64>,
            now: &mut Timestamp,
        ) {
            let began = *now;
            for reads in transfers {
                for _ in 0..reads {
                    load.join(BLOCK, began);
                }
                *now = Timestamp(now.0 + self.time_ns(reads * BLOCK));
                load.served(Served { reads, bytes: reads * BLOCK, began }, *now);
                load.leave(reads, BLOCK);
            }
        }
    }

    /// Whether a time is within a quarter of another.
    fn is_near(found: Duration, expected: u64) -> bool {
        let found = u64::try_from(found.as_nanos()).unwrap();
        (expected * 3 / 4..=expected * 5 / 4).contains(&found)
    }

    #[test]
    fn the_speed_of_the_drive_is_learned_from_what_it_serves() {
        for drive in [
            Drive { transfer_us: 80, mib_us: 150 },
            Drive { transfer_us: 100, mib_us: 600 },
            Drive { transfer_us: 1_500, mib_us: 4_000 },
            Drive { transfer_us: 8_000, mib_us: 6_000 },
        ] {
            let (mut load, mut now) = (Load::new(), Timestamp(1_000_000));
            for _ in 0..20 {
                drive.serve(&mut load, [1, 18, 18, 2, 18, 18, 18], &mut now);
            }
            // A run of 252 blocks, read as those before were: 13.3 blocks at a time.
            let found = load.snapshot(now).time_for(252, 252 * BLOCK);
            let expected =
                19 * drive.transfer_us * 1_000 + drive.mib_us * 1_000 * 252 * BLOCK / MIB;
            assert!(is_near(found, expected), "{found:?}, {expected} ns");
        }
    }

    #[test]
    fn single_reads_cost_each_their_own() {
        let (mut load, mut now) = (Load::new(), Timestamp(0));
        let drive = Drive { transfer_us: 9_000, mib_us: 6_000 };
        drive.serve(&mut load, [1; 60], &mut now);
        for _ in 0..20 {
            load.join(BLOCK, now);
        }
        let found = load.snapshot(now).time_for(1, BLOCK);
        assert!(is_near(found, 21 * drive.time_ns(BLOCK)), "{found:?}");
    }

    #[test]
    fn what_waits_comes_first_and_leaves_the_estimate_when_it_is_served() {
        let mut load = Load::new();
        let now = Timestamp(5);
        let alone = load.snapshot(now).time_for(1, BLOCK);
        for _ in 0..9 {
            load.join(BLOCK, now);
        }
        let snapshot = load.snapshot(now);
        assert_eq!((snapshot.queued_reads, snapshot.queued_bytes), (9, 9 * BLOCK));
        let behind = snapshot.time_for(1, BLOCK);
        assert!(is_near(behind, 10 * u64::try_from(alone.as_nanos()).unwrap()), "{behind:?}");
        assert_eq!(snapshot.with(3, 3 * BLOCK).time_for(0, 0), snapshot.time_for(3, 3 * BLOCK));
        load.leave(9, BLOCK);
        assert_eq!(load.snapshot(now).time_for(1, BLOCK), alone);
    }

    #[test]
    fn a_drive_that_answers_nothing_grows_slower_with_time() {
        let mut load = Load::new();
        assert_eq!(load.snapshot(Timestamp(9_000_000_000)).stalled_ns, 0, "nothing waits");
        load.join(BLOCK, Timestamp(9_000_000_000));
        load.join(BLOCK, Timestamp(10_000_000_000));
        let hung = load.snapshot(Timestamp(12_000_000_000));
        assert_eq!(hung.time_for(1, BLOCK), Duration::from_secs(3));
        let served = Served { reads: 1, bytes: BLOCK, began: Timestamp(9_000_000_000) };
        load.served(served, Timestamp(12_000_000_000));
        load.leave(1, BLOCK);
        let back = load.snapshot(Timestamp(12_000_000_000));
        assert_eq!(back.stalled_ns, 0);
        assert!(Duration::from_millis(370) < back.time_for(0, 0), "it was slow: {back:?}");
    }

    #[test]
    fn a_drive_that_recovers_is_believed_after_some_reads() {
        let (mut load, mut now) = (Load::new(), Timestamp(0));
        Drive { transfer_us: 900_000, mib_us: 1_000 }.serve(&mut load, [1; 40], &mut now);
        assert!(Duration::from_millis(500) < load.snapshot(now).time_for(1, BLOCK));
        Drive { transfer_us: 100, mib_us: 1_000 }.serve(&mut load, [1; 40], &mut now);
        assert!(load.snapshot(now).time_for(1, BLOCK) < Duration::from_millis(10));
    }

    #[test]
    fn the_ends_of_the_numbers_are_no_trouble() {
        let mut load = Load::new();
        load.join(u64::MAX / 2, Timestamp(0));
        let served = Served { reads: 0, bytes: u64::MAX, began: Timestamp(0) };
        for now in [0, 0, u64::MAX, u64::MAX, 0] {
            load.served(served, Timestamp(now));
            let _time = load.snapshot(Timestamp(u64::MAX)).time_for(u64::MAX, u64::MAX);
        }
        load.leave(3, 1);
        let empty = DiskLoad::default();
        assert_eq!(empty.time_for(u64::MAX, u64::MAX), Duration::ZERO);
    }
}
