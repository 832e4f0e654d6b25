//! `kvasir kv plan`: does a token rate fit drives and a retention? Pure arithmetic in whole numbers.
//!
//! Write budget = usable bytes / retention: what is written at that rate is kept exactly as long. Whole segments leave, so
//! the last ones of each drive are held longer than needed and are not usable.

use serde_json::json;
use shared::BLOCK_TOKENS;

use super::PlanArgs;
use super::units::{hundredths, show_bytes};
use crate::console::Console;

const DAY_SECONDS: u128 = 86_400;
/// Bytes of a page, a record's header and its entry in the table: kvstore/src/disk/format.rs.
const PAGE: u64 = 4_096;
const RECORD_HEADER: u64 = 128;
/// The default of `[disk] segment_bytes`.
const SEGMENT: u64 = 256 << 20;
/// Per drive: the segment that is written, and the one whose newest block is not yet old enough.
const SEGMENTS_HELD: u64 = 2;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Question {
    /// Bytes of one drive.
    drive_bytes: u64,
    drives: u32,
    retention_seconds: u64,
    tokens_per_second: u64,
    /// Payload bytes of one token.
    token_bytes: u32,
    /// Drive writes per day that the drives bear, in thousandths.
    dwpd_max: u64,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    /// Bytes that one token takes in files, in thousandths of a byte.
    stored_token_milli_bytes: u64,
    /// Bytes of all drives that hold blocks.
    usable_bytes: u64,
    /// Usable bytes per second of retention.
    write_budget_bytes_per_second: u64,
    /// What the token rate writes.
    written_bytes_per_second: u64,
    /// Tokens per second that the budget holds.
    tokens_per_second_max: u64,
    /// Retention that the token rate leaves.
    retention_seconds_max: u64,
    /// Bytes of drives that the token rate needs.
    bytes_needed: u64,
    /// Drives of this size that it needs, for space and for wear.
    drives_needed: u64,
    /// Drive writes per day, in thousandths.
    dwpd: u64,
    fits_space: bool,
    fits_wear: bool,
}

/// Saturates far beyond any drive.
fn plan(question: &Question) -> Plan {
    let Question { drive_bytes, drives, retention_seconds, tokens_per_second, .. } = *question;
    let wide = u128::from;
    let narrow = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
    let tokens = wide(u64::from(BLOCK_TOKENS));
    let payload = u64::from(question.token_bytes) * u64::from(BLOCK_TOKENS);
    let stored = (payload + RECORD_HEADER).next_multiple_of(PAGE) + RECORD_HEADER;
    let held = SEGMENTS_HELD * SEGMENT;
    let usable_drive = wide(drive_bytes.saturating_sub(held));
    let usable = usable_drive * u128::from(drives);
    let retention = wide(retention_seconds.max(1));
    // Bytes times tokens of a block, so that nothing is rounded before the last division.
    let rate = wide(tokens_per_second) * wide(stored);
    let need = rate.saturating_mul(retention).div_ceil(tokens);
    let per_drive_max = wide(question.dwpd_max) * wide(drive_bytes);
    let per_day = rate * DAY_SECONDS * 1_000 / tokens;
    let for_wear = if per_drive_max == 0 { u128::MAX } else { per_day.div_ceil(per_drive_max) };
    let for_space = if usable_drive == 0 { u128::MAX } else { need.div_ceil(usable_drive) };
    let all_drives = wide(drive_bytes) * u128::from(drives);
    Plan {
        stored_token_milli_bytes: narrow(wide(stored) * 1_000 / tokens),
        usable_bytes: narrow(usable),
        write_budget_bytes_per_second: narrow(usable / retention),
        written_bytes_per_second: narrow(rate.div_ceil(tokens)),
        tokens_per_second_max: narrow(usable * tokens / (wide(stored) * retention)),
        retention_seconds_max: narrow(usable * tokens / rate.max(1)),
        bytes_needed: narrow(need.saturating_add(wide(held) * u128::from(drives))),
        drives_needed: narrow(for_space.max(for_wear).max(1)),
        dwpd: narrow(per_day.div_ceil(all_drives.max(1))),
        fits_space: need <= usable,
        fits_wear: per_day <= per_drive_max.saturating_mul(u128::from(drives)),
    }
}

/// Prints the plan; false when it does not fit.
pub(super) fn run(args: &PlanArgs, console: &mut Console) -> anyhow::Result<bool> {
    let question = Question {
        drive_bytes: args.bytes,
        drives: args.drives,
        retention_seconds: args.retention,
        tokens_per_second: args.tokens_per_s,
        token_bytes: args.bytes_per_token,
        dwpd_max: args.dwpd,
    };
    let plan = plan(&question);
    let fits = plan.fits_space && plan.fits_wear;
    if args.json {
        let line = json!({
            "fits": fits,
            "fits_space": plan.fits_space,
            "fits_wear": plan.fits_wear,
            "usable_bytes": plan.usable_bytes,
            "write_budget_bytes_per_s": plan.write_budget_bytes_per_second,
            "written_bytes_per_s": plan.written_bytes_per_second,
            "tokens_per_s_max": plan.tokens_per_second_max,
            "retention_s_max": plan.retention_seconds_max,
            "bytes_needed": plan.bytes_needed,
            "drives_needed": plan.drives_needed,
            "drive_writes_per_day_thousandths": plan.dwpd,
        });
        console.line(&line.to_string())?;
        return Ok(fits);
    }
    for line in lines(&question, &plan) {
        console.line(&line)?;
    }
    Ok(fits)
}

fn lines(question: &Question, plan: &Plan) -> Vec<String> {
    let hours = |seconds: u64| format!("{} h", hundredths(seconds.saturating_mul(100) / 3_600));
    let writes = |dwpd: u64| hundredths(dwpd.div_ceil(10));
    let row = |what: &str, value: String| format!("{what:<26} {value}");
    let mut lines = vec![
        row("bytes per token on disk", hundredths(plan.stored_token_milli_bytes / 10)),
        row("usable", show_bytes(plan.usable_bytes)),
        row("write budget", format!("{}/s", show_bytes(plan.write_budget_bytes_per_second))),
        row("written", format!("{}/s", show_bytes(plan.written_bytes_per_second))),
        row("tokens/s that fit", plan.tokens_per_second_max.to_string()),
        row("bytes needed", show_bytes(plan.bytes_needed)),
        row(
            "drive writes per day",
            format!("{} of {}", writes(plan.dwpd), writes(question.dwpd_max)),
        ),
    ];
    if plan.fits_space && plan.fits_wear {
        lines.push(format!("it fits: blocks are kept for {}", hours(question.retention_seconds)));
        return lines;
    }
    if !plan.fits_space {
        lines.push(format!(
            "it does not fit: keep blocks for at most {}, or write at most {} tokens/s, or take {} drives",
            hours(plan.retention_seconds_max), plan.tokens_per_second_max, plan.drives_needed
        ));
    }
    if !plan.fits_wear {
        lines.push(format!(
            "it wears the drives out: take {} of them, or some rated for {} writes per day",
            plan.drives_needed,
            writes(plan.dwpd)
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::{Plan, Question, lines, plan};

    const FLASH: Question = Question {
        drive_bytes: 7_680_000_000_000,
        drives: 1,
        retention_seconds: 72 * 3_600,
        tokens_per_second: 30_000,
        token_bytes: 890,
        dwpd_max: 1_000,
    };

    #[test]
    fn a_flash_drive_holds_30_000_tokens_per_second_for_72_hours() {
        // A block of 113,920 bytes takes 28 pages and 128 bytes of the table: 897 bytes for a token.
        let expected = Plan {
            stored_token_milli_bytes: 897_000,
            usable_bytes: 7_679_463_129_088,
            write_budget_bytes_per_second: 29_627_558,
            written_bytes_per_second: 26_910_000,
            tokens_per_second_max: 33_029,
            retention_seconds_max: 285_375,
            bytes_needed: 6_975_072_000_000 + (512 << 20),
            drives_needed: 1,
            dwpd: 303,
            fits_space: true,
            fits_wear: true,
        };
        assert_eq!(plan(&FLASH), expected);
        let text = lines(&FLASH, &expected);
        assert_eq!(text.last().unwrap(), "it fits: blocks are kept for 72.00 h");
    }

    #[test]
    fn what_is_proposed_fits_and_a_little_more_does_not() {
        let cases = [
            Question { tokens_per_second: 100_000, ..FLASH },
            Question { retention_seconds: 30 * 86_400, ..FLASH },
            Question { drive_bytes: 1_000_000_000_000, ..FLASH },
            Question { dwpd_max: 100, ..FLASH },
        ];
        for question in cases {
            let found = plan(&question);
            assert!(!(found.fits_space && found.fits_wear), "{question:?}");
            let fits = |question: Question| {
                let plan = plan(&question);
                plan.fits_space && plan.fits_wear
            };
            let drives = u32::try_from(found.drives_needed).unwrap();
            assert!(fits(Question { drives, ..question }), "{question:?}");
            assert!(!fits(Question { drives: drives - 1, ..question }), "{question:?}");
            let space = |question: Question| plan(&question).fits_space;
            let most = found.tokens_per_second_max;
            assert!(space(Question { tokens_per_second: most, ..question }));
            assert!(!space(Question { tokens_per_second: most + 1, ..question }));
            let longest = found.retention_seconds_max;
            assert!(space(Question { retention_seconds: longest, ..question }));
            assert!(!space(Question { retention_seconds: longest + 1, ..question }));
        }
    }

    #[test]
    fn nonsense_is_answered_and_does_not_overflow() {
        let most = Question {
            drive_bytes: u64::MAX,
            drives: u32::MAX,
            retention_seconds: u64::MAX,
            tokens_per_second: u64::MAX,
            token_bytes: 1 << 20,
            dwpd_max: u64::MAX,
        };
        let small = Question { drive_bytes: 0, dwpd_max: 0, ..FLASH };
        assert!(!plan(&small).fits_space);
        assert_eq!(plan(&small).drives_needed, u64::MAX);
        assert!(plan(&Question { tokens_per_second: 0, ..FLASH }).fits_space);
        assert!(!plan(&most).fits_space && plan(&most).fits_wear);
    }
}
