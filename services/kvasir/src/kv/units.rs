//! Sizes, times and ages as they are typed and shown. Decimal fractions are read exactly, without floating point.

use kvstore::survey::segment_number;

const BYTES: [(&str, u64); 12] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
    ("B", 1),
];
const SECONDS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
const FRACTION_DIGITS_MAX: usize = 9;

/// Reads `7.68TB`, `500GiB` or plain bytes.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text, &BYTES).unwrap_or((text, 1));
    scaled(number, unit).ok_or_else(|| format!("{text} is no size; write 7.68TB, 500GiB or bytes"))
}

/// Reads `72h`, `30m`, `3d`, `90s`.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let read = split(text, &SECONDS).and_then(|(number, unit)| scaled(number, unit));
    read.ok_or_else(|| format!("{text} is no time; write 72h, 3d, 30m or 90s"))
}

/// Reads a segment's number, or the name of its file.
pub(super) fn segment(text: &str) -> Result<u64, String> {
    let number = segment_number(text).or_else(|| text.parse().ok());
    number.ok_or_else(|| format!("{text} is no segment; write 10 or 000000000000000a.segment"))
}

/// Shows bytes in the largest decimal unit below them, with two decimals.
pub(super) fn show_bytes(bytes: u64) -> String {
    let units = [("TB", 12), ("GB", 9), ("MB", 6), ("kB", 3)];
    for (unit, digits) in units {
        let one = 10_u64.pow(digits);
        if one <= bytes {
            return format!("{} {unit}", hundredths(bytes / (one / 100)));
        }
    }
    format!("{bytes} B")
}

/// Shows a number that is given in hundredths.
pub(super) fn hundredths(number: u64) -> String {
    format!("{}.{:02}", number / 100, number % 100)
}

/// Shows how long ago something was, in its two largest units.
pub(super) fn show_age(now: u64, then: u64) -> String {
    if now < then {
        return "in the future".to_owned();
    }
    let seconds = now - then;
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => format!("{minutes}m{rest:02}s"),
        (0, _, _) => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

fn split<'a>(text: &'a str, units: &[(&str, u64)]) -> Option<(&'a str, u64)> {
    units.iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?.trim_end(), *size)))
}

/// A decimal number times a unit, rounded down.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || FRACTION_DIGITS_MAX < fraction.len() {
        return None;
    }
    let unit = u128::from(unit);
    let ten_to = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let whole = whole.parse::<u64>().ok().map(u128::from)? * unit;
    let fraction = fraction.parse::<u64>().ok().map(u128::from)? * unit / ten_to;
    u64::try_from(whole + fraction).ok()
}

#[cfg(test)]
mod tests {
    use super::{bytes, seconds, segment, show_age, show_bytes};

    #[test]
    fn sizes_are_read_exactly() {
        let cases = [
            ("7.68TB", 7_680_000_000_000),
            ("1.92 TB", 1_920_000_000_000),
            ("500GiB", 500 << 30),
            ("0.1kB", 100),
            ("12", 12),
            ("12B", 12),
        ];
        for (text, expected) in cases {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for wrong in ["", "TB", "-1GB", "1.2.3GB", "1e3", "7,68TB", "99999999PB", ".5GB", "5.GB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_need_their_unit() {
        let cases = [("72h", 259_200), ("1.5h", 5_400), ("3d", 259_200), ("30m", 1_800), ("9s", 9)];
        for (text, expected) in cases {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        assert!(seconds("72").is_err_and(|error| error.contains("write 72h")));
    }

    #[test]
    fn a_segment_is_a_number_or_a_file() {
        assert_eq!((segment("10"), segment("000000000000000a.segment")), (Ok(10), Ok(10)));
        assert!(segment("0xa").is_err_and(|error| error.contains("000000000000000a.segment")));
    }

    #[test]
    fn what_is_shown_fits_a_column() {
        let sizes =
            [(0, "0 B"), (999, "999 B"), (1_000, "1.00 kB"), (7_680_000_000_000, "7.68 TB")];
        for (bytes, expected) in sizes {
            assert_eq!(show_bytes(bytes), expected);
        }
        let ages = [(5, "5s"), (65, "1m05s"), (3_660, "1h01m"), (90_000, "1d01h")];
        for (seconds, expected) in ages {
            assert_eq!(show_age(1_000_000, 1_000_000 - seconds), expected);
        }
        assert_eq!(show_age(1, 2), "in the future");
    }
}
