//! Blocks onto a drive and back, through a store node with its own memory above the drive.
//!
//! A *put* begins with the offer of a worker's blocks through shared memory and ends when all of them are synced; a
//! *write-behind* is the second half alone, of blocks that the node holds in memory. A *run* brings consecutive blocks
//! from the drive into the node's memory, with nothing of them in the page cache; a *restore* brings them on into the
//! worker's memory, from the drive or from the node's memory.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kvstore::{DiskConfig, DiskTier, DiskWiring};
use rustix::fs::{Advice, fadvise};
use serde::Serialize;
use shared::{Clock, Numerics, OfferOutcome, SlotIndex};
use tokio::task::block_in_place;

use super::BATCH;
use super::ceiling::Ceiling;
use super::node::{Rig, Sizes, Way};
use crate::bench::figures::{
    device_bytes_written, drive_bytes, median, processor_ticks, tick_seconds, to_float,
    wide_to_float,
};
use crate::bench::rig::turns;

/// Blocks of a run: a prompt of 32,768 tokens.
const RUN_BLOCKS: usize = 256;
/// Blocks of a restore: a prompt of 7,808 tokens.
const RESTORE_BLOCKS: usize = 61;
/// Runs, and restores of each kind, per round.
const REPEATS: usize = 4;
/// The store is told that it may use so many times the payload: an eighth of that is its burst of writes, half of which
/// blocks get that nobody asked for before.
const BUDGET_FACTOR: u64 = 32;
const SEGMENT_BYTES_MAX: u64 = 256 << 20;
/// Blocks that may wait to be written.
const QUEUE_MAX: usize = 1_024;
/// How often and how long to wait for room in that queue: 2 minutes in all.
const ROOM_TRIES: u32 = 600_000;
const ROOM_WAIT: Duration = Duration::from_micros(200);
const FLUSH_MAX: Duration = Duration::from_secs(120);
const WAY: Way = Way::SharedMemory;

/// What the drive took and gave. Medians over the rounds; ratios are medians of the rounds' ratios.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct DriveReport {
    /// Bytes of payload put per round and way.
    pub payload_bytes: usize,
    /// Whether the file beside the store went past the page cache. If not, it is no bound.
    pub direct: bool,
    /// A new file beside the store in pieces of 4 MiB, four at a time, sync included: 10^9 bytes per second.
    pub direct_write_gigabytes_per_second: f64,
    /// The same file read.
    pub direct_read_gigabytes_per_second: f64,
    /// Offered through shared memory until synced.
    pub put: WriteReport,
    /// Held in memory until synced.
    pub write_behind: WriteReport,
    /// Runs from the drive into the node's memory.
    pub run: RunReport,
    /// Into the worker's memory.
    pub restore: RestoreReport,
}

/// What one way of writing did.
#[derive(Clone, Copy, Debug, Serialize, PartialEq)]
pub struct WriteReport {
    /// Payload in 10^9 bytes per second.
    pub gigabytes_per_second: f64,
    /// Against the file beside the store.
    pub of_direct_write: f64,
    /// Bytes that the kernel counts as written for this process, per byte of payload.
    pub write_amplification: f64,
    /// Bytes that the device counts, of everybody on this machine, per byte of payload; absent without such a device.
    pub device_write_amplification: Option<f64>,
    /// Processor seconds per 10^9 bytes.
    pub cpu_seconds_per_gigabyte: f64,
}

/// What runs did.
#[derive(Clone, Copy, Debug, Serialize, PartialEq)]
pub struct RunReport {
    /// Blocks of one run.
    pub blocks: usize,
    /// Payload in 10^9 bytes per second.
    pub gigabytes_per_second: f64,
    /// Against the file beside the store.
    pub of_direct_read: f64,
    /// Bytes that came from the device per byte of payload: at least 1 when the page cache was cold.
    pub fetched_of_payload: f64,
}

/// What restores did.
#[derive(Clone, Copy, Debug, Serialize, PartialEq)]
pub struct RestoreReport {
    /// Blocks of one restore.
    pub blocks: usize,
    /// From the drive, in milliseconds.
    pub disk_ms: f64,
    /// From the node's memory.
    pub host_ms: f64,
    /// A copy of as many bytes.
    pub copy_ms: f64,
    /// From the drive, against reading as many bytes of the file beside the store at its speed.
    pub disk_of_direct_read: f64,
    /// From the node's memory, against the copy.
    pub host_of_copy: f64,
}

/// What one round took; seconds, but for the last two of a write.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    direct_write: f64,
    put: Written,
    write_behind: Written,
    direct_read: f64,
    run: f64,
    fetched: f64,
    restore_disk: f64,
    restore_host: f64,
    copy: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Written {
    seconds: f64,
    process_bytes: u64,
    device_bytes: Option<u64>,
    ticks: u64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    DirectWrite,
    Put,
    WriteBehind,
    DirectRead,
    Run,
    RestoreDisk,
    RestoreHost,
    Copy,
}

/// Reading steps need what writing steps leave, in whichever order those were.
const STAGES: [&[Step]; 2] = [
    &[Step::DirectWrite, Step::Put, Step::WriteBehind],
    &[Step::DirectRead, Step::Run, Step::RestoreDisk, Step::RestoreHost, Step::Copy],
];

/// The node, the worker and the rounds so far.
pub(super) struct Drive {
    rig: Rig,
    disk: Arc<DiskTier>,
    ceiling: Ceiling,
    folder: PathBuf,
    clock: Arc<dyn Clock>,
    direct: bool,
    rounds: Vec<Round>,
}

impl Drive {
    /// `folder` is on the drive.
    pub(super) fn start(
        objects: usize,
        object_bytes: usize,
        folder: &Path,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let payload = objects * object_bytes;
        let folder = folder.join("segments");
        let wide = u64::try_from(payload)?;
        let segment_bytes = wide.next_multiple_of(1 << 20).min(SEGMENT_BYTES_MAX);
        let config = DiskConfig {
            segment_bytes,
            bytes_max: BUDGET_FACTOR * wide + 8 * segment_bytes,
            queue_objects_max: QUEUE_MAX,
            onboard_ms_max: 60_000,
            // A scrub would read and count beside the steps.
            scrub_mib_per_s: 0,
            ..DiskConfig::in_folder(folder.clone())
        };
        let wiring = DiskWiring {
            quotas: Arc::default(),
            block_bytes: object_bytes,
            layout: [7; 32],
            numerics: Numerics("bench".to_owned()),
            clock: Arc::clone(clock),
        };
        let disk = Arc::new(DiskTier::start(&config, wiring)?);
        let sizes = Sizes { objects, targets: objects.min(RUN_BLOCKS), object_bytes };
        let above = folder.parent().context("the folder was made below another one")?;
        Ok(Self {
            rig: Rig::start(sizes, &[WAY], Some(&disk), above, clock)?,
            ceiling: Ceiling::new(above, payload, clock),
            clock: Arc::clone(clock),
            direct: true,
            rounds: Vec::new(),
            folder,
            disk,
        })
    }

    /// Every step once; the order within writing and within reading is reversed every second time.
    pub(super) fn round(&mut self) -> anyhow::Result<()> {
        let mut round = Round::default();
        for (stage, steps) in STAGES.into_iter().enumerate() {
            if stage == 1 && self.rounds.is_empty() {
                self.touch()?;
            }
            for at in turns(self.rounds.len(), steps.len()) {
                let step = steps[at];
                self.step(step, &mut round).with_context(|| format!("{step:?} failed"))?;
            }
        }
        self.rig.check_ways()?;
        self.rounds.push(round);
        Ok(())
    }

    /// Ends everything, and reports all rounds but the first.
    pub(super) async fn end(self) -> DriveReport {
        let report = self.report();
        self.rig.end().await;
        block_in_place(|| drop(self.disk));
        report
    }

    fn step(&mut self, step: Step, round: &mut Round) -> anyhow::Result<()> {
        match step {
            Step::DirectWrite | Step::DirectRead => {
                let write = matches!(step, Step::DirectWrite);
                let (took, direct) =
                    if write { self.ceiling.write()? } else { self.ceiling.read()? };
                self.direct &= direct;
                let seconds = if write { &mut round.direct_write } else { &mut round.direct_read };
                *seconds = took.as_secs_f64();
            }
            Step::Put => {
                self.rig.empty(WAY)?;
                round.put = self.written(OfferOutcome::Stored)?;
            }
            Step::WriteBehind => {
                self.rig.hold_all(WAY)?;
                round.write_behind = self.written(OfferOutcome::AlreadyHeld)?;
            }
            Step::Run => {
                let before = drive_bytes()?.read;
                let (mut seconds, mut payload) = (Vec::new(), 0);
                for blocks in self.places(RUN_BLOCKS) {
                    self.cool()?;
                    payload += blocks.len() * self.rig.sizes.object_bytes;
                    let start = self.clock.now();
                    let held = self.rig.locate(WAY, &self.rig.sealed[blocks])?;
                    seconds.push(self.clock.now().since(start).as_secs_f64());
                    drop(held);
                }
                round.run = median(seconds);
                round.fetched = wide_to_float(drive_bytes()?.read - before) / to_float(payload);
            }
            Step::RestoreDisk => round.restore_disk = self.restore(|| self.cool())?,
            Step::RestoreHost => round.restore_host = self.restore(|| Ok(()))?,
            Step::Copy => round.copy = self.copy(),
        }
        Ok(())
    }

    /// Reads everything once from the node's memory, so that its pages are mapped as they are after some time of work.
    fn touch(&self) -> anyhow::Result<()> {
        self.rig.hold_all(WAY)?;
        for blocks in self.rig.sealed.chunks(BATCH.min(self.rig.sizes.targets)) {
            let (_ticket, sources) = self.rig.locate(WAY, blocks)?;
            self.rig.get(&sources)?;
        }
        Ok(())
    }

    /// Empties the drive, offers every block to the store, and measures until all of them are synced.
    fn written(&self, expected: OfferOutcome) -> anyhow::Result<Written> {
        let _left: usize = self.disk.evict_all();
        let waiting_max = QUEUE_MAX.min(self.rig.sizes.objects / 2);
        let lot = (waiting_max / 4).clamp(1, BATCH);
        let device = device_bytes_written(&self.folder)?;
        let (bytes, ticks, start) = (drive_bytes()?.written, processor_ticks()?, self.clock.now());
        let mut under_way = VecDeque::new();
        for objects in self.rig.sealed.chunks(lot) {
            if under_way.len() == 2 {
                finish(&mut under_way, expected)?;
            }
            // Two lots may be on their way into the queue, and this one.
            self.wait_for_room(waiting_max.saturating_sub(3 * lot))?;
            under_way.push_back(self.rig.offer(WAY, objects)?);
        }
        while !under_way.is_empty() {
            finish(&mut under_way, expected)?;
        }
        ensure!(self.disk.flush(FLUSH_MAX), "the drive did not sync what it was given");
        let seconds = self.clock.now().since(start).as_secs_f64();
        let (ticks, process_bytes) = (processor_ticks()? - ticks, drive_bytes()?.written - bytes);
        let after = device_bytes_written(&self.folder)?;
        let device_bytes = device.zip(after).map(|(before, after)| after - before);
        let stats = self.disk.stats();
        let objects = u64::try_from(self.rig.sealed.len())?;
        ensure!(stats.objects_held == objects, "not all {objects} blocks were written: {stats:?}");
        Ok(Written { seconds, process_bytes, device_bytes, ticks })
    }

    fn wait_for_room(&self, waiting_max: usize) -> anyhow::Result<()> {
        let waiting_max = u64::try_from(waiting_max)?;
        for _ in 0..ROOM_TRIES {
            if self.disk.stats().queue_objects <= waiting_max {
                return Ok(());
            }
            thread::sleep(ROOM_WAIT);
        }
        bail!("the drive stands still: {:?}", self.disk.stats())
    }

    /// Takes everything out of the node's memory and the page cache.
    fn cool(&self) -> anyhow::Result<()> {
        self.rig.empty(WAY)?;
        ensure!(self.disk.flush(FLUSH_MAX), "the drive did not sync what it was given");
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "segment") {
                fadvise(File::open(&path)?, 0, None, Advice::DontNeed)?;
            }
        }
        Ok(())
    }

    /// The median of restores from the store into the worker's memory, in seconds.
    fn restore(&self, prepare: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<f64> {
        let mut seconds = Vec::new();
        for blocks in self.places(RESTORE_BLOCKS) {
            let blocks = &self.rig.sealed[blocks];
            // What is read from the drive only now is in memory when nothing is taken out of it again.
            drop(self.rig.locate(WAY, blocks)?);
            prepare()?;
            let start = self.clock.now();
            let (ticket, sources) = self.rig.locate(WAY, blocks)?;
            self.rig.get(&sources)?;
            seconds.push(self.clock.now().since(start).as_secs_f64());
            drop(ticket);
        }
        Ok(median(seconds))
    }

    /// The median of plain copies of as many blocks, into slots in turn, as reads go. What is copied was read once before, as
    /// what lies in the node's memory was when it was checked.
    fn copy(&self) -> f64 {
        let Rig { source, target, sealed, sizes, .. } = &self.rig;
        let mut slots = (0..u32::try_from(sizes.targets).unwrap_or(u32::MAX)).cycle();
        let mut seconds = Vec::new();
        for blocks in self.places(RESTORE_BLOCKS) {
            for measured in [false, true] {
                let start = self.clock.now();
                for (slot, to) in sealed[blocks.clone()].iter().zip(&mut slots) {
                    source.copy(slot.index(), (target, SlotIndex(to)), sizes.object_bytes);
                }
                if measured {
                    seconds.push(self.clock.now().since(start).as_secs_f64());
                }
            }
        }
        median(seconds)
    }

    /// Some runs of so many blocks, spread over all.
    fn places(&self, blocks: usize) -> Vec<Range<usize>> {
        let objects = self.rig.sizes.objects;
        let blocks = blocks.min(objects);
        let last = objects - blocks;
        (0..REPEATS).map(|at| last * at / REPEATS..last * at / REPEATS + blocks).collect()
    }

    fn report(&self) -> DriveReport {
        let rounds = &self.rounds[1..];
        let object_bytes = self.rig.sizes.object_bytes;
        let payload_bytes = self.rig.sizes.objects * object_bytes;
        let payload = to_float(payload_bytes) / 1e9;
        let file = to_float(self.ceiling.bytes()) / 1e9;
        let all = |of: &dyn Fn(&Round) -> f64| median(rounds.iter().map(of));
        let write = |of: fn(&Round) -> Written| WriteReport {
            gigabytes_per_second: payload / all(&|round| of(round).seconds),
            of_direct_write: all(&|round| {
                payload / of(round).seconds / (file / round.direct_write)
            }),
            write_amplification: all(&|round| {
                wide_to_float(of(round).process_bytes) / 1e9 / payload
            }),
            device_write_amplification: rounds[0].put.device_bytes.map(|_| {
                all(&|round| wide_to_float(of(round).device_bytes.unwrap_or(0)) / 1e9 / payload)
            }),
            cpu_seconds_per_gigabyte: tick_seconds(rounds.iter().map(|r| of(r).ticks).sum())
                / (payload * to_float(rounds.len())),
        };
        let bytes_of = |blocks: usize| to_float(blocks * object_bytes) / 1e9;
        let (run, restore) =
            (self.places(RUN_BLOCKS)[0].len(), self.places(RESTORE_BLOCKS)[0].len());
        DriveReport {
            payload_bytes,
            direct: self.direct,
            direct_write_gigabytes_per_second: file / all(&|round| round.direct_write),
            direct_read_gigabytes_per_second: file / all(&|round| round.direct_read),
            put: write(|round| round.put),
            write_behind: write(|round| round.write_behind),
            run: RunReport {
                blocks: run,
                gigabytes_per_second: bytes_of(run) / all(&|round| round.run),
                of_direct_read: all(&|round| {
                    bytes_of(run) / round.run / (file / round.direct_read)
                }),
                fetched_of_payload: all(&|round| round.fetched),
            },
            restore: RestoreReport {
                blocks: restore,
                disk_ms: 1e3 * all(&|round| round.restore_disk),
                host_ms: 1e3 * all(&|round| round.restore_host),
                copy_ms: 1e3 * all(&|round| round.copy),
                disk_of_direct_read: all(&|round| {
                    round.restore_disk / (bytes_of(restore) / (file / round.direct_read))
                }),
                host_of_copy: all(&|round| round.restore_host / round.copy),
            },
        }
    }
}

fn finish(
    under_way: &mut VecDeque<super::node::Offering>,
    expected: OfferOutcome,
) -> anyhow::Result<()> {
    match under_way.pop_front() {
        Some(offering) => offering.finish(&[expected]),
        None => Ok(()),
    }
}
