//! Whether the machine has the memory that the configuration asks for, known before it is allocated.

use anyhow::bail;
use shared::KvLayout;

use crate::config::Config;

/// Workers of this process; each has its own blocks and window objects.
const WORKERS: u64 = 2;

/// Physical memory of this machine in bytes; none when the system does not say.
pub(super) fn physical_bytes() -> Option<u64> {
    total_of(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1_024)
}

/// Compares what all caches take with the machine.
///
/// # Errors
/// When they do not fit; the text names the setting that takes most.
pub(super) fn check(
    config: &Config,
    layout: &KvLayout,
    physical: Option<u64>,
) -> anyhow::Result<()> {
    let wanted = [of_workers(config, layout, WORKERS), of_store(config)].concat();
    fits(&wanted, physical)
}

/// Compares what the caches of one worker take with the machine.
///
/// # Errors
/// As for [`check`].
pub(crate) fn check_worker(config: &Config, layout: &KvLayout) -> anyhow::Result<()> {
    fits(&of_workers(config, layout, 1), physical_bytes())
}

/// Compares what a store node takes with the machine.
///
/// # Errors
/// As for [`check`].
pub(crate) fn check_store(config: &Config) -> anyhow::Result<()> {
    fits(&of_store(config), physical_bytes())
}

/// What so many workers take, by the setting that says so.
fn of_workers(config: &Config, layout: &KvLayout, workers: u64) -> [(&'static str, u64); 2] {
    let bytes = |count: u32, bytes: usize| {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        bytes.saturating_mul(workers * u64::from(count))
    };
    let server = &config.server;
    [
        ("server.device_blocks", bytes(server.device_blocks, layout.block_bytes())),
        ("server.window_objects", bytes(server.window_objects, layout.window_bytes())),
    ]
}

fn of_store(config: &Config) -> [(&'static str, u64); 2] {
    [
        ("store.block_bytes_max", config.store.block_bytes_max),
        ("store.window_bytes_max", config.store.window_bytes_max),
    ]
}

fn fits(wanted: &[(&str, u64)], physical: Option<u64>) -> anyhow::Result<()> {
    let Some(physical) = physical else { return Ok(()) };
    let all = wanted.iter().fold(0_u64, |all, (_, bytes)| all.saturating_add(*bytes));
    if let Some((key, bytes)) = wanted.iter().max_by_key(|(_, bytes)| *bytes)
        && physical < all
    {
        let megabytes = |bytes: u64| bytes / 1_000_000;
        bail!(
            "the caches need {} MB, but this machine has {} MB; lower {key}, which takes {} MB",
            megabytes(all),
            megabytes(physical),
            megabytes(*bytes)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use engine::Checkpoint;

    use super::{check, total_of};
    use crate::config::Config;

    type Change = fn(&mut Config);

    #[test]
    fn the_total_is_read_in_bytes() {
        let text = "MemTotal:       24683656 kB\nMemFree:  1 kB\n";
        assert_eq!(total_of(text), Some(24_683_656 * 1_024));
        for text in ["", "MemFree: 1 kB\n", "MemTotal: many kB\n", "MemTotal: 3\n"] {
            assert_eq!(total_of(text), None, "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let model = Path::new("../../deploy/models/seedling");
        let checkpoint = Checkpoint::open(model).unwrap();
        let layout = checkpoint.config().layout();
        let physical = Some(4 << 30);
        assert!(check(&Config::default(), layout, physical).is_ok());
        let cases: [(&str, Change); 4] = [
            ("server.device_blocks", |config| config.server.device_blocks = 16_000_000),
            ("server.window_objects", |config| config.server.window_objects = 1_000_000),
            ("store.block_bytes_max", |config| config.store.block_bytes_max = 1 << 43),
            ("store.window_bytes_max", |config| config.store.window_bytes_max = u64::MAX),
        ];
        for (key, change) in cases {
            let mut config = Config::default();
            change(&mut config);
            let error = check(&config, layout, physical).unwrap_err().to_string();
            assert!(error.contains(key) && !error.contains('\n'), "{error}");
            assert!(
                check(&config, layout, None).is_ok(),
                "{key}: an unknown machine is not judged"
            );
        }
    }
}
