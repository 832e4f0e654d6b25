//! `kvasir bench store`: how fast a store node takes and gives blocks, beside what the machine can do at best.
//!
//! Two parts, each in rounds whose steps take turns, in reversed order every second round: objects between a worker and a
//! store node over loopback (`store/loopback.rs`), and blocks onto a drive and back (`store/drive.rs`). All ends are in
//! this process, so that the processor time is that of all of them. Other stores are measured by `benches/peers`.

mod ceiling;
mod drive;
mod loopback;
mod node;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use serde::Serialize;
use shared::Clock;
use tokio::task::block_in_place;

pub use drive::{DriveReport, RestoreReport, RunReport, WriteReport};
pub use loopback::LoopbackReport;

use self::drive::Drive;
use self::loopback::Loopback;
use super::figures::load_average;
use super::rig::turns;
use crate::cli::StoreArgs;
use crate::console::Console;

/// Objects of a batch.
const BATCH: usize = 64;

/// What the run found.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct StoreReport {
    /// Bytes of one object.
    pub object_bytes: usize,
    /// Objects moved over loopback per way and round.
    pub objects: usize,
    /// Rounds, without the first one of each part.
    pub rounds: u32,
    /// Load averages over 1, 5 and 15 minutes when the run began.
    pub load_before: [f64; 3],
    /// The same when it ended; the run itself is in them.
    pub load_after: [f64; 3],
    /// One entry per way and verb.
    pub loopback: Vec<LoopbackReport>,
    /// The drive.
    pub drive: DriveReport,
}

/// Runs both parts and reports.
///
/// # Errors
/// When memory, an address or the folder cannot be had, or a block does not arrive.
pub(crate) async fn run(
    args: &StoreArgs,
    clock: &Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let folder = match &args.folder {
        None => tempfile::tempdir(),
        Some(folder) => tempfile::tempdir_in(folder),
    };
    let folder = folder.context("no folder for the store; choose another one by --folder")?;
    let report = measure(args, folder.path(), clock, console).await?;
    if args.json {
        console.line(&serde_json::to_string(&report)?)?;
        return Ok(());
    }
    for line in report.lines() {
        console.line(&line)?;
    }
    Ok(())
}

async fn measure(
    args: &StoreArgs,
    folder: &Path,
    clock: &Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<StoreReport> {
    let StoreArgs { objects, object_bytes, rounds, .. } = *args;
    let bytes =
        args.drive_mebibytes.checked_mul(1 << 20).context("--drive-mebibytes is too large")?;
    let on_drive = bytes.checked_div(object_bytes).context("--object-bytes is 0")?;
    for (count, option) in [(objects, "--objects"), (on_drive, "--drive-mebibytes")] {
        ensure!(
            (16..=65_536).contains(&count),
            "{option} makes {count} objects; choose 16 to 65,536"
        );
    }
    ensure!((1..=1_000).contains(&rounds), "--rounds is {rounds}, expected 1 to 1000");
    let load_before = load_average()?;
    let mut part = Loopback::start(objects, object_bytes, folder, clock)?;
    for round in 0..=rounds {
        block_in_place(|| part.round())?;
        console.progress(&format!("loopback: round {round} of {rounds}"));
    }
    let loopback = part.end().await?;
    let below = folder.join("drive");
    std::fs::create_dir(&below).context("the folder for the drive cannot be made")?;
    let mut part = Drive::start(on_drive, object_bytes, &below, clock)?;
    for round in 0..=rounds {
        block_in_place(|| part.round())?;
        console.progress(&format!("drive: round {round} of {rounds}"));
    }
    let drive = part.end().await;
    let load_after = load_average()?;
    Ok(StoreReport { object_bytes, objects, rounds, load_before, load_after, loopback, drive })
}

/// Takes the steps of a round in their turn; the results are in the order of the steps all the same.
fn in_turn<T>(
    round: usize,
    count: usize,
    mut step: impl FnMut(usize) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<T>> {
    let order = turns(round, count);
    let backward = order.first() != Some(&0);
    let mut results = order.into_iter().map(&mut step).collect::<anyhow::Result<Vec<T>>>()?;
    if backward {
        results.reverse();
    }
    Ok(results)
}

impl StoreReport {
    fn lines(&self) -> Vec<String> {
        let Self { object_bytes, rounds, load_before, load_after, drive, .. } = self;
        let mut lines = vec![
            format!("objects of {object_bytes} bytes, medians of {rounds} rounds"),
            format!("load average {load_before:.2?} before, {load_after:.2?} after"),
            "way            verb    single p50 us  p99 us  batch 64 objects/s    GB/s  CPU s/GB"
                .to_owned(),
        ];
        let or_none = |value: Option<f64>| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
        };
        lines.extend(self.loopback.iter().map(|way| {
            format!(
                "{:<14} {:<6} {:>14.1} {:>7.1} {:>19.0} {:>7} {:>9}",
                way.way,
                way.verb,
                way.single_p50_us,
                way.single_p99_us,
                way.batch_objects_per_second,
                or_none(way.batch_gigabytes_per_second),
                or_none(way.batch_cpu_seconds_per_gigabyte)
            )
        }));
        lines.extend(drive.lines());
        lines
    }
}

impl DriveReport {
    fn lines(&self) -> Vec<String> {
        let kind = if self.direct { "direct I/O" } else { "page cache, no bound" };
        let mut lines = vec![
            format!("drive, {} bytes a round ({kind})", self.payload_bytes),
            format!("plain write   {:.2} GB/s", self.direct_write_gigabytes_per_second),
        ];
        for (name, write) in [("put", self.put), ("write-behind", self.write_behind)] {
            let device = write.device_write_amplification;
            let device = device.map_or_else(|| "unknown".to_owned(), |times| format!("{times:.3}"));
            lines.push(format!(
                "{name:<13} {:.2} GB/s, {:.2} of plain; amplification {:.3} (device {device}); {:.2} CPU s/GB",
                write.gigabytes_per_second,
                write.of_direct_write,
                write.write_amplification,
                write.cpu_seconds_per_gigabyte
            ));
        }
        let (run, restore) = (self.run, self.restore);
        lines.extend([
            format!("plain read    {:.2} GB/s", self.direct_read_gigabytes_per_second),
            format!(
                "run of {:<6} {:.2} GB/s, {:.2} of plain; {:.2} bytes fetched per byte",
                run.blocks, run.gigabytes_per_second, run.of_direct_read, run.fetched_of_payload
            ),
            format!(
                "restore of {} from disk {:.2} ms, {:.2} times plain reading; from host memory {:.2} ms, {:.2} times memcpy ({:.2} ms)",
                restore.blocks,
                restore.disk_ms,
                restore.disk_of_direct_read,
                restore.host_ms,
                restore.host_of_copy,
                restore.copy_ms
            ),
        ]);
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shared::Clock;

    use super::{in_turn, measure};
    use crate::bench::rig::turns;
    use crate::cli::StoreArgs;
    use crate::clock::SystemClock;
    use crate::console::Console;

    #[tokio::test(flavor = "multi_thread")]
    async fn every_step_moves_every_object_and_leaves_nothing_behind() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let folder = tempfile::tempdir().unwrap();
        let args = StoreArgs {
            objects: 70,
            object_bytes: 20_000,
            drive_mebibytes: 2,
            folder: None,
            rounds: 2,
            json: false,
        };
        let mut console = Console::new(std::io::sink(), std::io::sink());
        let report = measure(&args, folder.path(), &clock, &mut console).await.unwrap();
        assert_eq!(report.loopback.len(), 7);
        let moved = report.loopback.iter().filter(|way| way.batch_gigabytes_per_second.is_some());
        assert_eq!(moved.count(), 6);
        assert_eq!((report.drive.run.blocks, report.drive.restore.blocks), (104, 61));
        assert!(report.lines().len() == 3 + 7 + 7);
    }

    #[test]
    fn every_second_round_goes_backward_and_reports_forward() {
        assert_eq!(turns(0, 3), [0, 1, 2]);
        assert_eq!(turns(1, 3), [2, 1, 0]);
        for round in 0..2 {
            let mut order = Vec::new();
            let results = in_turn(round, 3, |at| {
                order.push(at);
                Ok(10 * at)
            });
            assert_eq!(results.unwrap(), [0, 10, 20]);
            assert_eq!(order, turns(round, 3));
        }
    }
}
