//! The retention contract: a block that was admitted to disk can be read for the whole retention. Pure: state and `now`
//! go in, decisions come out; no file, clock or lock.
//!
//! A promise about time is a budget of writes. What exceeds the budget is not admitted; what was admitted leaves with its
//! whole segment when the newest write to that is older than the retention, and never earlier to make room for others.
//!
//! Let `B` be the bytes that all files may take, `S` those of a segment, `n` the blocks that fit a segment and `R` the
//! retention in seconds. A block costs `S / n`, rounded up, so that a full segment was paid for with its header, its
//! table and its unused end. The budget is a token bucket over `U = B - 2 S`: it holds `U / 8` at most (the burst) and
//! gains `(U - U / 8) / R` a second.
//!
//! Why that never needs room that is not there: a segment is begun at second `T` after everything that was to leave has
//! left. What remains was written to within the seconds `T - R` to `T`. Segments are written one after the other, so only
//! the first of them can hold older records too; it takes at most `S`, however slowly it was filled. All records of the
//! others were paid for within those seconds, and a bucket gives at most `U / 8 + R (U - U / 8) / R = U` there. So at
//! least `B - S - U = S` is free: the new segment fits. The bucket pays at the second that stands in the record, and
//! what waits to be written is set aside, so a slow queue changes nothing.
//!
//! What the proof does not cover (a clock that jumps, other settings after a restart, segments given up after an error of
//! the drive) ends at a second fence: the writer begins no segment without room, whatever the bucket says.
//!
//! The budget goes to expected reuse: a block that nobody asked for since it was made may only take the upper half of the
//! bucket; one that was found by a lookup, offered twice or refused before may take all of it. A bucket that is more than
//! half full admits everything.
//!
//! Times are Unix seconds, because they outlive processes. A write that seems to come from the future counts as written
//! now; when the clock is set back the budget keeps what it has and goes on from there.

mod plan;
mod seen;

#[cfg(test)]
mod tests;

use shared::BlockName;

pub use plan::{PlanError, PlanVerdict, RetentionPlan, RetentionQuery, plan_retention};

use super::format::{PAGE, record_bytes, seal_bytes, wide};
use seen::Seen;

/// The burst is this part of the usable bytes: nine hours of budget at 72 hours, so that a working day's peak passes at
/// night's expense. A larger one costs as much of the steady rate.
const BURST_PART: u64 = 8;
/// A first admission leaves this part of a full bucket to blocks that were asked for before.
const RESERVED_PART: u128 = 2;
/// A block is written again on a hit when at most this part of its retention is left.
const RENEWED_PART: u64 = 4;
/// Blocks that a burst must hold, for the reserved half to be at least one.
const BURST_BLOCKS_MIN: u64 = 2;

/// What is known about a block that wants to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// It was made for the first time, as far as is known.
    Unknown,
    /// It was found by a lookup, or offered again.
    Expected,
}

/// The numbers of the contract, fixed while a tier runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Seconds. Above 0.
    retention_s: u64,
    /// Bytes that blocks may take: all but two segments.
    usable_bytes: u64,
    /// Bytes that a block is charged.
    block_cost: u64,
}

impl Limits {
    /// None when the bytes hold no budget: less than two segments and sixteen blocks, or no block fits a segment.
    #[must_use]
    pub fn new(
        bytes_max: u64,
        segment_bytes: u64,
        block_bytes: u32,
        retention_s: u64,
    ) -> Option<Self> {
        let block_cost = segment_bytes.div_ceil(blocks_per_segment(segment_bytes, block_bytes)?);
        let usable_bytes = bytes_max.checked_sub(2 * segment_bytes)?;
        let limits = Self { retention_s, usable_bytes, block_cost };
        (0 < retention_s && BURST_BLOCKS_MIN * block_cost <= limits.burst_bytes()).then_some(limits)
    }

    /// Bytes that a full bucket holds.
    #[must_use]
    pub fn burst_bytes(&self) -> u64 {
        self.usable_bytes / BURST_PART
    }

    /// Bytes that the bucket gains in a whole retention.
    #[must_use]
    pub fn refill_bytes(&self) -> u64 {
        self.usable_bytes - self.burst_bytes()
    }

    /// Bytes that blocks may take.
    #[must_use]
    pub fn usable_bytes(&self) -> u64 {
        self.usable_bytes
    }

    /// Bytes that a block is charged.
    #[must_use]
    pub fn block_cost(&self) -> u64 {
        self.block_cost
    }

    /// Whether what was last written at `newest` may leave. Unix seconds.
    #[must_use]
    pub fn is_over(&self, newest: u64, now: u64) -> bool {
        self.retention_s < now.saturating_sub(newest)
    }

    /// Whether a hit is to write the block again. Unix seconds.
    #[must_use]
    pub fn is_ending(&self, written: u64, now: u64) -> bool {
        let spared = self.retention_s / RENEWED_PART;
        self.retention_s - spared <= now.saturating_sub(written)
    }

    /// Amounts of the bucket are bytes times seconds: what it gains a second is then a whole number.
    fn scaled(&self, bytes: u64) -> u128 {
        u128::from(bytes) * u128::from(self.retention_s)
    }
}

/// The bucket, and the names that were refused.
#[derive(Debug)]
pub struct Retention {
    limits: Limits,
    /// What the bucket held at `counted_at`, in bytes times seconds of retention.
    level: u128,
    /// Unix seconds.
    counted_at: u64,
    seen: Seen,
}

impl Retention {
    /// A full bucket.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let level = limits.scaled(limits.burst_bytes());
        let seen = Seen::new(limits.usable_bytes / limits.block_cost);
        Self { limits, level, counted_at: 0, seen }
    }

    /// The numbers it keeps.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether a block may take a place in the queue in which `waiting` blocks wait already. One that may not is
    /// remembered: the next time its reuse is expected.
    pub fn admits(&mut self, name: BlockName, reuse: Reuse, waiting: usize, now: u64) -> bool {
        self.count(now);
        let expected = reuse == Reuse::Expected || self.seen.contains(name);
        let reserved = if expected {
            0
        } else {
            self.limits.scaled(self.limits.burst_bytes()) / RESERVED_PART
        };
        let places = u128::from(wide(waiting)) + 1;
        let admitted = places * self.limits.scaled(self.limits.block_cost) + reserved <= self.level;
        if !admitted {
            self.seen.insert(name);
        }
        admitted
    }

    /// Pays for blocks that were written at `now`. Blocks that waited since they were admitted are always covered.
    pub fn spend(&mut self, blocks: usize, now: u64) {
        self.count(now);
        let cost = u128::from(wide(blocks)) * self.limits.scaled(self.limits.block_cost);
        self.level = self.level.saturating_sub(cost);
    }

    /// The bucket after a restart or an eviction, from what lies on disk: `written` are the blocks of each segment and
    /// the second of its newest write, oldest first. To pay for all blocks of a segment at its end leaves at most what
    /// paying one by one had left: what a full bucket cannot take in is lost.
    pub fn restart(&mut self, written: impl IntoIterator<Item = (usize, u64)>, now: u64) {
        self.level = self.limits.scaled(self.limits.burst_bytes());
        self.counted_at = 0;
        for (blocks, newest) in written {
            self.spend(blocks, newest.min(now));
        }
        self.count(now);
    }

    /// Bytes that the bucket holds.
    #[must_use]
    pub fn budget_bytes(&self, now: u64) -> u64 {
        let bytes = self.level_at(now) / u128::from(self.limits.retention_s);
        u64::try_from(bytes).expect("a bucket holds less than the drive")
    }

    fn level_at(&self, now: u64) -> u128 {
        let gained = u128::from(now.saturating_sub(self.counted_at))
            * u128::from(self.limits.refill_bytes());
        (self.level + gained).min(self.limits.scaled(self.limits.burst_bytes()))
    }

    fn count(&mut self, now: u64) {
        self.level = self.level_at(now);
        self.counted_at = now;
    }
}

/// Blocks of this size in a full segment; None when not even one fits.
fn blocks_per_segment(segment_bytes: u64, block_bytes: u32) -> Option<u64> {
    let record = record_bytes(block_bytes);
    let fits = |blocks: u64| {
        let blocks_held = usize::try_from(blocks).ok()?;
        let bytes = PAGE + blocks.checked_mul(record)? + seal_bytes(blocks_held);
        (bytes <= segment_bytes).then_some(())
    };
    // With 128 bytes of table each this many fit for sure; one or two more may.
    let mut blocks = segment_bytes.saturating_sub(3 * PAGE) / (record + 128);
    while fits(blocks + 1).is_some() {
        blocks += 1;
    }
    (0 < blocks).then_some(blocks)
}
