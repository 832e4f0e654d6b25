//! What the system counts about this process and this machine, and the arithmetic of results.

use std::fs;
use std::path::Path;

use anyhow::Context;
use rustix::fs::{major, minor, stat};

/// Ticks of the system's processor accounting per second.
const TICKS: f64 = 100.0;
/// Bytes of a sector in the counters of block devices, whatever the device's own sectors are.
const SECTOR_BYTES: u64 = 512;

/// Ticks of processor time that this process took so far, in user and system mode.
pub(super) fn processor_ticks() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/self/stat").context("/proc/self/stat cannot be read")?;
    ticks_in(&text)
}

/// The same of another process.
///
/// # Errors
/// When it ended.
pub(super) fn ticks_of(process: u32) -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat"));
    ticks_in(&text.with_context(|| format!("the process {process} ended"))?)
}

fn ticks_in(text: &str) -> anyhow::Result<u64> {
    // The second field is the name in parentheses and may have blanks; the 14th and 15th are the times.
    let rest = text.rsplit_once(')').context("/proc/self/stat has another form")?.1;
    let mut fields = rest.split_whitespace().skip(11);
    let mut next = || fields.next().and_then(|field| field.parse::<u64>().ok());
    let times = next().zip(next()).context("/proc/self/stat has another form")?;
    Ok(times.0 + times.1)
}

/// Seconds of so many ticks.
pub(super) fn tick_seconds(ticks: u64) -> f64 {
    wide_to_float(ticks) / TICKS
}

/// Threads of the machine that ran or wanted to: averages over 1, 5 and 15 minutes.
pub(super) fn load_average() -> anyhow::Result<[f64; 3]> {
    let text = fs::read_to_string("/proc/loadavg").context("/proc/loadavg cannot be read")?;
    let mut fields = text.split_whitespace().map(str::parse::<f64>);
    let mut next = || fields.next().and_then(Result::ok).context("/proc/loadavg has another form");
    Ok([next()?, next()?, next()?])
}

/// Bytes that this process read from drives and had written to them since its start, as the kernel counts them. Bytes that
/// only went to the page cache count as written when they make a page dirty.
pub(super) fn drive_bytes() -> anyhow::Result<DriveBytes> {
    let text = fs::read_to_string("/proc/self/io").context("/proc/self/io cannot be read")?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim().parse().ok()).context("/proc/self/io has another form")
    };
    Ok(DriveBytes { read: field("read_bytes:")?, written: field("write_bytes:")? })
}

/// See [`drive_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DriveBytes {
    pub(super) read: u64,
    pub(super) written: u64,
}

/// Bytes that everybody had written so far to the device below `path`; None when no block device is listed for it.
pub(super) fn device_bytes_written(path: &Path) -> anyhow::Result<Option<u64>> {
    let device = stat(path).context("the folder of the drive cannot be looked at")?.st_dev;
    let text = fs::read_to_string("/proc/diskstats").context("/proc/diskstats cannot be read")?;
    Ok(sectors_written(&text, major(device), minor(device)).map(|sectors| sectors * SECTOR_BYTES))
}

/// The tenth column of the device's line.
fn sectors_written(diskstats: &str, major: u32, minor: u32) -> Option<u64> {
    diskstats.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
        let found = number(0)? == u64::from(major) && number(1)? == u64::from(minor);
        if found { number(9) } else { None }
    })
}

/// The middle one, the upper of two.
///
/// # Panics
/// When there is none.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    percentile(values, 50)
}

/// The value that `percent` of a hundred do not exceed, one among those given.
///
/// # Panics
/// When there is none.
pub(super) fn percentile(values: impl IntoIterator<Item = f64>, percent: usize) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// A count as a number.
pub(super) fn to_float(count: usize) -> f64 {
    wide_to_float(u64::try_from(count).unwrap_or(u64::MAX))
}

/// A count as a number.
pub(super) fn wide_to_float(count: u64) -> f64 {
    // Counts here are far below 2^53; two halves of 32 bits each are exact.
    let high = u32::try_from(count >> 32).unwrap_or(u32::MAX);
    let low = u32::try_from(count & 0xffff_ffff).unwrap_or(u32::MAX);
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

#[cfg(test)]
mod tests {
    use super::{
        drive_bytes, load_average, median, percentile, processor_ticks, sectors_written, to_float,
    };

    #[test]
    fn the_system_counts_what_is_asked_for() {
        processor_ticks().unwrap();
        drive_bytes().unwrap();
        assert!(load_average().unwrap().iter().all(|load| 0.0 <= *load));
    }

    #[test]
    fn a_device_is_found_by_its_numbers() {
        let text = "   7  0 loop0 0 0 0 0 0 0 0 0 0 0 0\n 254  0 vda 1 2 3 4 5 6 70 8 0 9 10\n";
        for (device, expected) in [((254, 0), Some(70)), ((7, 0), Some(0)), ((0, 40), None)] {
            assert_eq!(sectors_written(text, device.0, device.1), expected);
        }
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values = || (1_u32..=200).rev().map(f64::from);
        for (percent, expected) in [(0, 1.0), (50, 101.0), (99, 199.0), (100, 200.0)] {
            assert!((percentile(values(), percent) - expected).abs() < 1e-9, "{percent}");
        }
        assert!((median([3.0]) - 3.0).abs() < 1e-9);
        assert!((to_float(5_000_000_000) - 5e9).abs() < 0.5);
    }
}
