//! Azure's format (2023): CSV with a time and two lengths. Nothing is known about equal prefixes, so nothing is shared.

use shared::Timestamp;

use super::{Chain, Request, lengths};

const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";
const EXPECTED: &str = "2023-11-16 18:17:03.9799600,4808,10";

/// Reads lines; times are counted from the first.
#[derive(Debug, Default)]
pub(super) struct Reader {
    first: Option<u64>,
}

impl Reader {
    pub(super) fn reading(mut self) -> impl FnMut(&str) -> Result<Option<Request>, String> {
        move |text| self.request(text)
    }

    fn request(&mut self, text: &str) -> Result<Option<Request>, String> {
        if text == HEADER {
            return Ok(None);
        }
        let wrong =
            || format!("no request in Azure's format, expected such as {EXPECTED}; see --format");
        let mut fields = text.split(',');
        let (Some(time), Some(prompt), Some(answer), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(wrong());
        };
        let at = nanoseconds(time).ok_or_else(wrong)?;
        let count = |text: &str| text.trim().parse().map_err(|_| wrong());
        let (prompt_tokens, answer_tokens) = lengths(count(prompt)?, count(answer)?)?;
        let first = *self.first.get_or_insert(at);
        let at = at.checked_sub(first).ok_or("arrives before the first request; sort the file")?;
        Ok(Some(Request { at: Timestamp(at), prompt_tokens, answer_tokens, chain: Chain::Private }))
    }
}

/// Nanoseconds of `2023-11-16 18:17:03.9799600` from an arbitrary day on.
fn nanoseconds(text: &str) -> Option<u64> {
    let (date, time) = text.trim().split_once(' ')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.splitn(3, ':');
    let (hour, minute) = (time.next()?.parse::<u64>().ok()?, time.next()?.parse::<u64>().ok()?);
    let second = time.next()?;
    let (second, fraction) = second.split_once('.').unwrap_or((second, "0"));
    let second = second.parse::<u64>().ok()?;
    let is_valid = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61
        && (1970..3000).contains(&year)
        && fraction.len() <= 9
        && fraction.bytes().all(|digit| digit.is_ascii_digit());
    if !is_valid {
        return None;
    }
    let fraction = format!("{fraction:0<9}").parse::<u64>().ok()?;
    let seconds = ((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    seconds.checked_mul(1_000_000_000)?.checked_add(fraction)
}

/// Days of the Gregorian calendar since some day, months counted from March so that leap days come last.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    // Counted from 1968 on, so that nanoseconds fit 64 bits for centuries.
    let before = |year: u64| year * 365 + year / 4 - year / 100 + year / 400;
    before(year) - before(1968) + (153 * month + 2) / 5 + day
}

#[cfg(test)]
mod tests {
    use super::nanoseconds;

    #[test]
    fn times_differ_by_what_lies_between() {
        let cases = [
            ("2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0319600", 52_000_000),
            ("2023-12-31 23:59:59.5", "2024-01-01 00:00:00.5", 1_000_000_000),
            ("2024-02-28 00:00:00.0", "2024-03-01 00:00:00.0", 2 * 86_400_000_000_000),
            ("2023-02-28 00:00:00.0", "2023-03-01 00:00:00.0", 86_400_000_000_000),
        ];
        for (earlier, later, expected) in cases {
            let difference = nanoseconds(later).unwrap() - nanoseconds(earlier).unwrap();
            assert_eq!(difference, expected, "{earlier} to {later}");
        }
        for wrong in ["", "2023-11-16", "2023-13-16 1:1:1.0", "2023-11-16 25:00:00.0", "a b"] {
            assert_eq!(nanoseconds(wrong), None, "{wrong}");
        }
    }
}
