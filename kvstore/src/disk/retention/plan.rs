//! The capacity planner: does a rate of new tokens fit these drives for that long? It answers with the very numbers of
//! the budget, so that what it promises is what a tier admits.

use super::super::format::wide;
use super::{BURST_PART, Limits};

const DAY_S: f64 = 86_400.0;

/// What is asked. All drives serve one group of stores, each with a share of the blocks as large as any other's: the
/// placement knows no sizes, so the smallest drive bounds them all.
#[derive(Clone, Debug, PartialEq)]
pub struct RetentionQuery {
    /// `bytes_max` of the disk tier on each drive. At least one.
    pub drives: Vec<u64>,
    /// `segment_bytes` of all of them.
    pub segment_bytes: u64,
    /// Payload bytes of a block; 113,920 for the Flash layout. Above 0.
    pub block_bytes: u32,
    /// Tokens of a block; 128. Above 0.
    pub block_tokens: u32,
    /// New tokens in a second, on average over a retention, of all prompts and answers together: tokens that are found in
    /// a cache are not new. What is written again on late hits counts like new.
    pub tokens_per_second: u64,
    /// How long every block is to be kept, in seconds. Above 0.
    pub retention_s: u64,
    /// What the drives endure, in writes of their whole `bytes_max` a day, as their maker says; finite and above 0. None
    /// when that is no matter.
    pub drive_writes_per_day_max: Option<f64>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// There is nothing to plan with.
    #[error("{field} must be {expected}")]
    Query {
        /// The field.
        field: &'static str,
        /// Its range.
        expected: &'static str,
    },
    /// A drive is smaller than any store.
    #[error(
        "a drive of {bytes} bytes holds no store: it takes two segments and a burst of two blocks; \
         smaller segments or a larger drive help"
    )]
    DriveTooSmall {
        /// Its `bytes_max`.
        bytes: u64,
    },
}

/// Whether it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanVerdict {
    /// Every block is admitted and kept, as long as the rate is no burst.
    Fits,
    /// The budget is smaller than the rate: the blocks with the least expected reuse are not admitted.
    TooSmall,
    /// It is kept, but the drives are written more than they endure.
    WearsOut,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetentionPlan {
    /// Whether it fits.
    pub verdict: PlanVerdict,
    /// Bytes that blocks may take on all drives together: what is left of each beside two segments, at the smallest.
    pub usable_bytes: u64,
    /// Bytes that the blocks of a whole retention take, with headers and tables, on all drives together.
    pub held_bytes: u64,
    /// The smallest `bytes_max` of each drive with which it fits, endurance left aside. As many drives as were given.
    pub drive_bytes_min: u64,
    /// Bytes a second that the asked rate writes, on all drives together.
    pub write_bytes_per_second: f64,
    /// Bytes a second that the budget admits, on all drives together.
    pub budget_bytes_per_second: f64,
    /// The highest rate of new tokens that fits, endurance included.
    pub tokens_per_second_max: f64,
    /// Tokens that the budget takes at once when it is full, on all drives together; half of them, when nobody asked
    /// for them before.
    pub burst_tokens: u64,
    /// How often a day the asked rate writes the smallest drive in full; what the drive adds by its own collection comes
    /// on top, little for files that are written and removed as a whole.
    pub drive_writes_per_day: f64,
}

/// Plans. Pure; takes as long as it takes to look at each drive once.
///
/// # Errors
/// When a number is out of its range, or a drive is too small for any store.
pub fn plan_retention(query: &RetentionQuery) -> Result<RetentionPlan, PlanError> {
    check(query)?;
    let Some(smallest) = query.drives.iter().copied().min() else {
        return Err(PlanError::Query { field: "drives", expected: "at least one" });
    };
    let RetentionQuery { segment_bytes, block_bytes, retention_s, .. } = *query;
    let limits = Limits::new(smallest, segment_bytes, block_bytes, retention_s)
        .ok_or(PlanError::DriveTooSmall { bytes: smallest })?;
    let drives = wide(query.drives.len());
    let held_blocks = (u128::from(query.tokens_per_second) * u128::from(retention_s))
        .div_ceil(u128::from(query.block_tokens));
    let held_of_one = held_blocks.div_ceil(u128::from(drives)) * u128::from(limits.block_cost());
    // The refill of a retention is all of the usable bytes but the burst.
    let part = u128::from(BURST_PART);
    let usable_min = (held_of_one * part).div_ceil(part - 1);
    let burst_min = u128::from(super::BURST_BLOCKS_MIN * limits.block_cost()) * part;
    let drive_bytes_min = usable_min.max(burst_min) + 2 * u128::from(segment_bytes);

    let seconds = real(retention_s);
    let bytes_per_token = real(limits.block_cost()) / f64::from(query.block_tokens);
    let budget = real(limits.refill_bytes()) * real(drives) / seconds;
    let written = real(query.tokens_per_second) * bytes_per_token;
    let endured =
        query.drive_writes_per_day_max.map(|days| days * real(smallest) * real(drives) / DAY_S);
    let verdict = if budget < written {
        PlanVerdict::TooSmall
    } else if endured.is_some_and(|endured| endured < written) {
        PlanVerdict::WearsOut
    } else {
        PlanVerdict::Fits
    };
    let burst_blocks = limits.burst_bytes() / limits.block_cost();
    Ok(RetentionPlan {
        verdict,
        usable_bytes: drives.saturating_mul(limits.usable_bytes()),
        held_bytes: narrow(held_of_one * u128::from(drives)),
        drive_bytes_min: narrow(drive_bytes_min),
        write_bytes_per_second: written,
        budget_bytes_per_second: budget,
        tokens_per_second_max: endured.map_or(budget, |endured| endured.min(budget))
            / bytes_per_token,
        burst_tokens: burst_blocks
            .saturating_mul(drives)
            .saturating_mul(u64::from(query.block_tokens)),
        drive_writes_per_day: written * DAY_S / (real(smallest) * real(drives)),
    })
}

fn check(query: &RetentionQuery) -> Result<(), PlanError> {
    let endured = query.drive_writes_per_day_max;
    let checks = [
        ("block_bytes", 0 < query.block_bytes, "above 0"),
        ("block_tokens", 0 < query.block_tokens, "above 0"),
        ("retention_s", 0 < query.retention_s, "above 0"),
        (
            "drive_writes_per_day_max",
            endured.is_none_or(|days| days.is_finite() && 0.0 < days),
            "finite and above 0",
        ),
    ];
    match checks.into_iter().find(|(_, holds, _)| !holds) {
        Some((field, _, expected)) => Err(PlanError::Query { field, expected }),
        None => Ok(()),
    }
}

fn narrow(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Exact below 2^53; rates need less.
fn real(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::{PlanError, PlanVerdict, RetentionPlan, RetentionQuery, plan_retention};

    const HOURS_72: u64 = 259_200;

    /// Drives of 7.68 TB with Flash blocks.
    fn query(drives: usize, tokens_per_second: u64) -> RetentionQuery {
        RetentionQuery {
            drives: vec![7_680_000_000_000; drives],
            segment_bytes: 256 << 20,
            block_bytes: 113_920,
            block_tokens: 128,
            tokens_per_second,
            retention_s: HOURS_72,
            drive_writes_per_day_max: None,
        }
    }

    fn plan(query: &RetentionQuery) -> RetentionPlan {
        plan_retention(query).unwrap()
    }

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-3, "{found}, expected {expected}");
    }

    #[test]
    fn a_drive_of_7_68_terabytes_keeps_28_800_new_tokens_a_second_for_72_hours() {
        let found = plan(&query(1, 20_000));
        assert_eq!(found.verdict, PlanVerdict::Fits);
        // 7.68 TB / 72 h are 29.6 MB/s or 33,000 tokens/s at 898 bytes; the burst takes an eighth of that.
        near(found.budget_bytes_per_second, 25.92e6);
        near(found.tokens_per_second_max, 28_885.0);
        near(found.write_bytes_per_second, 17.946e6);
        near(found.drive_writes_per_day, 0.2019);
        assert!(
            found.drive_bytes_min < 5_330_000_000_000 && 5_310_000_000_000 < found.drive_bytes_min
        );
        assert_eq!(plan(&query(1, 40_000)).verdict, PlanVerdict::TooSmall);
        assert_eq!(plan(&query(2, 40_000)).verdict, PlanVerdict::Fits);
        near(plan(&query(8, 1)).tokens_per_second_max, 8.0 * 28_885.0);
    }

    #[test]
    fn the_smallest_drive_bounds_all() {
        let mut mixed = query(2, 40_000);
        mixed.drives = vec![7_680_000_000_000, 3_840_000_000_000];
        let found = plan(&mixed);
        assert_eq!(found.verdict, PlanVerdict::TooSmall);
        near(found.tokens_per_second_max, 28_885.0);
    }

    #[test]
    fn endurance_is_a_limit_of_its_own() {
        let worn = RetentionQuery { drive_writes_per_day_max: Some(0.1), ..query(1, 20_000) };
        let found = plan(&worn);
        assert_eq!(found.verdict, PlanVerdict::WearsOut);
        near(found.tokens_per_second_max, 9_906.0);
        let fine = RetentionQuery { drive_writes_per_day_max: Some(1.0), ..worn };
        assert_eq!(plan(&fine).verdict, PlanVerdict::Fits);
    }

    #[test]
    fn the_smallest_drive_that_fits_fits_and_one_segment_less_does_not() {
        for drives in [1, 3] {
            for tokens_per_second in [0, 1, 999, 33_333] {
                for retention_s in [60, HOURS_72] {
                    let asked = RetentionQuery { retention_s, ..query(drives, tokens_per_second) };
                    let bytes = plan(&asked).drive_bytes_min;
                    let exact = RetentionQuery { drives: vec![bytes; drives], ..asked.clone() };
                    assert_eq!(plan(&exact).verdict, PlanVerdict::Fits, "{exact:?}");
                    assert_eq!(plan(&exact).drive_bytes_min, bytes);
                    let less = vec![bytes - (256 << 20); drives];
                    let less = plan_retention(&RetentionQuery { drives: less, ..asked });
                    assert!(
                        less.is_err() || less.is_ok_and(|plan| plan.verdict != PlanVerdict::Fits)
                    );
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_planned_is_refused_by_name() {
        let base = query(1, 1);
        let cases = [
            (RetentionQuery { drives: vec![], ..base.clone() }, "drives"),
            (RetentionQuery { block_bytes: 0, ..base.clone() }, "block_bytes"),
            (RetentionQuery { block_tokens: 0, ..base.clone() }, "block_tokens"),
            (RetentionQuery { retention_s: 0, ..base.clone() }, "retention_s"),
            (
                RetentionQuery { drive_writes_per_day_max: Some(0.0), ..base.clone() },
                "drive_writes_per_day_max",
            ),
        ];
        for (query, expected) in cases {
            let error = plan_retention(&query).unwrap_err();
            assert!(
                matches!(error, PlanError::Query { field, .. } if field == expected),
                "{error}"
            );
        }
        let small = RetentionQuery { drives: vec![1 << 20], ..base };
        assert_eq!(plan_retention(&small), Err(PlanError::DriveTooSmall { bytes: 1 << 20 }));
    }
}
