//! `kvasir kv plan`: does a token rate fit drives and a retention? The numbers are those of the store's own write budget
//! ([`kvstore::plan_retention`]), so what is promised here is what a store admits.

use std::path::PathBuf;

use kvstore::{DiskConfig, PlanVerdict, RetentionPlan, RetentionQuery, plan_retention};
use serde_json::{Value, json};
use shared::BLOCK_TOKENS;

use super::PlanArgs;
use super::units::{hundredths, show_bytes};
use crate::console::Console;

/// Prints the plan; false when it does not fit.
///
/// # Errors
/// When a number is out of its range, or the drives are too small for any store.
pub(super) fn run(args: &PlanArgs, console: &mut Console) -> anyhow::Result<bool> {
    let drives = usize::try_from(args.drives)?;
    let query = RetentionQuery {
        drives: vec![args.bytes; drives],
        segment_bytes: DiskConfig::in_folder(PathBuf::new()).segment_bytes,
        block_bytes: args.bytes_per_token * BLOCK_TOKENS,
        block_tokens: BLOCK_TOKENS,
        tokens_per_second: args.tokens_per_s,
        retention_s: args.retention,
        drive_writes_per_day_max: Some(args.dwpd),
    };
    let plan = plan_retention(&query)?;
    if args.json {
        console.line(&object(&plan).to_string())?;
    } else {
        for line in lines(&query, &plan) {
            console.line(&line)?;
        }
    }
    Ok(plan.verdict == PlanVerdict::Fits)
}

fn object(plan: &RetentionPlan) -> Value {
    json!({
        "fits": plan.verdict == PlanVerdict::Fits,
        "verdict": word(plan.verdict),
        "usable_bytes": plan.usable_bytes,
        "held_bytes": plan.held_bytes,
        "drive_bytes_min": plan.drive_bytes_min,
        "write_bytes_per_s": plan.write_bytes_per_second,
        "budget_bytes_per_s": plan.budget_bytes_per_second,
        "tokens_per_s_max": plan.tokens_per_second_max,
        "burst_tokens": plan.burst_tokens,
        "drive_writes_per_day": plan.drive_writes_per_day,
    })
}

fn word(verdict: PlanVerdict) -> &'static str {
    match verdict {
        PlanVerdict::Fits => "fits",
        PlanVerdict::TooSmall => "too_small",
        PlanVerdict::WearsOut => "wears_out",
    }
}

fn lines(query: &RetentionQuery, plan: &RetentionPlan) -> Vec<String> {
    let row = |what: &str, value: String| format!("{what:<26} {value}");
    let rate = |bytes: f64| format!("{:.2} MB/s", bytes / 1e6);
    let endured = query.drive_writes_per_day_max.unwrap_or(f64::INFINITY);
    let mut lines = vec![
        row("usable", show_bytes(plan.usable_bytes)),
        row("held after a retention", show_bytes(plan.held_bytes)),
        row("written", rate(plan.write_bytes_per_second)),
        row("write budget", rate(plan.budget_bytes_per_second)),
        row("tokens/s that fit", format!("{:.0}", plan.tokens_per_second_max.floor())),
        row("burst", format!("{} tokens", plan.burst_tokens)),
        row("drive writes per day", format!("{:.2} of {endured:.2}", plan.drive_writes_per_day)),
    ];
    lines.push(match plan.verdict {
        PlanVerdict::Fits => {
            let hours = hundredths(query.retention_s.saturating_mul(100) / 3_600);
            format!("it fits: blocks are kept for {hours} h")
        }
        PlanVerdict::TooSmall => format!(
            "it does not fit: take drives of at least {} each, or more of them, write at most {:.0} tokens/s, or keep blocks for a shorter time",
            show_bytes(plan.drive_bytes_min),
            plan.tokens_per_second_max.floor()
        ),
        PlanVerdict::WearsOut => format!(
            "it wears the drives out: take more of them, or some rated for {:.2} writes per day",
            plan.drive_writes_per_day
        ),
    });
    lines
}

#[cfg(test)]
mod tests {
    use kvstore::{RetentionQuery, plan_retention};

    use super::{lines, object};

    const FLASH: RetentionQuery = RetentionQuery {
        drives: Vec::new(),
        segment_bytes: 256 << 20,
        block_bytes: 113_920,
        block_tokens: 128,
        tokens_per_second: 25_000,
        retention_s: 72 * 3_600,
        drive_writes_per_day_max: Some(1.0),
    };

    #[test]
    fn the_last_line_is_the_verdict_and_says_what_to_do() {
        let cases = [
            (25_000, 1.0, "it fits: blocks are kept for 72.00 h", "fits"),
            (100_000, 1.0, "it does not fit: take drives of at least ", "too_small"),
            (25_000, 0.1, "it wears the drives out: take more of them, ", "wears_out"),
        ];
        for (tokens_per_second, endured, expected, verdict) in cases {
            let query = RetentionQuery {
                drives: vec![7_680_000_000_000],
                tokens_per_second,
                drive_writes_per_day_max: Some(endured),
                ..FLASH
            };
            let plan = plan_retention(&query).unwrap();
            let text = lines(&query, &plan);
            assert!(text.last().unwrap().starts_with(expected), "{text:?}");
            assert_eq!(object(&plan)["verdict"], verdict);
        }
    }
}
