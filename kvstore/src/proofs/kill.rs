//! Real processes over real files, killed with SIGKILL while they start, read and write.
//!
//! The child is this test executable once more. It is told by its standard input what was acknowledged before, checks all
//! of it, and then writes until it is killed; what it says on its standard output is acknowledged. The parent counts the
//! lines it reads to choose the moment of the kill, plus a seeded moment of at most some milliseconds.
//!
//! A kill leaves the system's caches alone, so this says nothing about a loss of power: what was synced is asked of the
//! drive, what a kill can tear is what the process had not handed over.

use std::collections::BTreeSet;
use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use shared::{Durability, ManualClock, OfferOutcome, Random, TenantTag};

use super::support::{Rig, config};
use crate::disk::io::{Drive, SystemDrive};
use crate::disk::survey::{CatalogState, Exclusive, Finding, Watcher, fsck};
use crate::disk::tests::{Folder, wiring};
use crate::disk::{DiskConfig, DiskIo, DiskTier};
use crate::testing::name;

/// Kills of one run, issue 4's least number. A long run raises it, and `LANES` with it.
const KILLS: u64 = 300;
/// Folders, every other one encrypted, each with kills of its own, all at once: most of a kill is waiting for the drive. Each start checks all of its
/// folder, so a folder must not grow without end.
const LANES: u64 = 6;
/// Blocks one child writes at most, should nobody kill it.
const CHILD_BLOCKS_MAX: u64 = 2_000;
/// More than any flush takes.
const FLUSH: Duration = Duration::from_secs(20);
const SIGKILL: i32 = 9;
/// What a child is started with besides its own name.
const CHILD: &str = "as-the-child-of-the-kill-loop";
const CHILD_TEST: &str = "proofs::kill::a_child_of_the_kill_loop_checks_and_writes";

/// What a child is told.
struct Order {
    folder: PathBuf,
    seed: u64,
    /// Numbers from here on were never written.
    next: u64,
    acknowledged: BTreeSet<u64>,
    /// Whether blocks are encrypted.
    sealed: bool,
}

impl Order {
    fn text(&self) -> String {
        let numbers: Vec<String> = self.acknowledged.iter().map(u64::to_string).collect();
        let folder = self.folder.display();
        format!(
            "{folder}\n{}\n{}\n{}\n{}\n",
            self.seed,
            self.next,
            u64::from(self.sealed),
            numbers.join(" ")
        )
    }

    fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let folder = PathBuf::from(lines.next().unwrap());
        let mut number = || lines.next().unwrap().parse().unwrap();
        let (seed, next, sealed) = (number(), number(), number() == 1);
        let acknowledged = lines.next().unwrap().split_whitespace();
        let acknowledged = acknowledged.map(|number| number.parse().unwrap()).collect();
        Self { folder, seed, next, acknowledged, sealed }
    }
}

/// Small segments, so that kills meet the seal and the beginning of files too; room for everything, so that nothing
/// leaves by the bound on bytes.
fn open(order: &Order, sync_ms: u64, io: DiskIo) -> (Rig, Arc<DiskTier>) {
    let folder = &order.folder;
    let tenant_keys = if order.sealed { folder.join("keys") } else { PathBuf::new() };
    let disk = DiskConfig {
        bytes_max: 1 << 30,
        segment_bytes: 1 << 16,
        queue_objects_max: 32,
        queue_bytes_max: 1 << 20,
        sync_ms,
        reads_max: 32,
        onboard_ms_max: 60_000,
        tenant_keys,
        ..DiskConfig::in_folder(folder.clone())
    };
    let wiring = wiring(&Arc::new(ManualClock::new()));
    let drive = |_: &Path| -> Arc<dyn Drive> { Arc::new(SystemDrive::of(io)) };
    let disk = Arc::new(DiskTier::start_on(&disk, wiring, drive).unwrap());
    (Rig::new(Some(Arc::clone(&disk)), config(), |transport| transport), disk)
}

/// Everything that is found has the right bytes, and everything acknowledged is found.
fn check(rig: &Rig, order: &Order) {
    let found: BTreeSet<u64> =
        rig.versions(0..order.next).into_iter().map(|(number, _)| number).collect();
    let lost: Vec<u64> = order.acknowledged.difference(&found).copied().collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}, seed {}", order.seed);
}

#[test]
fn a_child_of_the_kill_loop_checks_and_writes() {
    // In an ordinary run of the tests there is no parent, so there is nothing to do.
    if !env::args().any(|argument| argument == CHILD) {
        return;
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).unwrap();
    let order = Order::parse(&text);
    let mut generator = Random::new(order.seed);
    let sync_ms = [0, 60_000][generator.below(2)];
    let io = [DiskIo::RingDirect, DiskIo::Threads][generator.below(2)];
    let (rig, disk) = open(&order, sync_ms, io);
    check(&rig, &order);
    println!("\nchecked");
    let mut next = order.next;
    let mut written = Vec::new();
    while next < order.next + CHILD_BLOCKS_MAX {
        let batch = next..next + 1 + u64::try_from(generator.below(4)).unwrap();
        // A put that asks for the disk is acknowledged by its answer alone; others by a flush.
        let asked = [Durability::Memory, Durability::Disk][generator.below(2)];
        let outcomes = rig.store_for(TenantTag::NONE, asked, batch.clone());
        assert!(outcomes.iter().all(|outcome| *outcome == OfferOutcome::Stored), "{outcomes:?}");
        next = batch.end;
        if asked == Durability::Disk {
            let durable: Vec<String> = batch.map(|number| number.to_string()).collect();
            println!("next {next} durable {}", durable.join(" "));
            continue;
        }
        written.extend(batch);
        // Sometimes a kill finds blocks that were never acknowledged; at most half of the slots may wait.
        if written.len() <= 4 && generator.below(3) == 0 {
            continue;
        }
        assert!(disk.flush(FLUSH));
        written.retain(|number| disk.contains(name(*number)));
        let durable: Vec<String> = written.drain(..).map(|number| number.to_string()).collect();
        println!("next {next} durable {}", durable.join(" "));
    }
}

/// A child that runs, and what it said.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(order: &Order) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", CHILD_TEST, CHILD, "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(order.text().as_bytes()).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Takes in lines up to the next one that acknowledges blocks.
    fn hear_block(&mut self, order: &mut Order) -> bool {
        let next = order.next;
        while order.next == next {
            if !self.hear(order) {
                return false;
            }
        }
        true
    }

    /// Takes in the next whole line and says whether there was one. A line that a kill cut off says nothing.
    fn hear(&mut self, order: &mut Order) -> bool {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        let Some(line) = line.strip_suffix('\n') else {
            return false;
        };
        if let Some((next, durable)) =
            line.strip_prefix("next ").and_then(|line| line.split_once(" durable"))
        {
            order.next = next.parse().unwrap();
            let durable = durable.split_whitespace().map(|number| number.parse::<u64>().unwrap());
            order.acknowledged.extend(durable);
        }
        true
    }

    fn kill(mut self, order: &mut Order) {
        self.child.kill().unwrap();
        while self.hear(order) {}
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(SIGKILL), "a child ended by itself, seed {}", order.seed);
    }
}

/// The files are whole, and the catalog claims nothing that is not there. A store that was killed while it made its first
/// segment has none.
fn check_files(order: &Order) {
    let Ok(exclusive) = Exclusive::lock(&order.folder) else {
        return;
    };
    let mut findings = Findings::default();
    let checked = fsck(exclusive.survey(), &mut findings);
    assert_eq!(checked.damaged, 0, "{findings:?}, seed {}", order.seed);
    if let CatalogState::Compared(check) = exclusive.check_catalog().unwrap() {
        assert_eq!(check.differences(), 0, "{check:?}, seed {}", order.seed);
    }
}

/// Keeps what is found.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Watcher for Findings {
    fn read(&mut self, _: u64) {}

    fn found(&mut self, finding: &Finding) {
        self.0.push(finding.clone());
    }
}

/// Kills one child after the other over one folder, checks it in the end, and says how many blocks were acknowledged and
/// how many kills came before a first block.
fn lane(first_seed: u64, sealed: bool) -> (usize, u64) {
    let folder = Folder::new();
    let mut order = Order {
        folder: folder.path().to_owned(),
        seed: first_seed,
        next: 0,
        acknowledged: BTreeSet::new(),
        sealed,
    };
    let mut early = 0;
    for seed in first_seed..first_seed + KILLS / LANES {
        let mut generator = Random::new(seed ^ 0xdead);
        let mut below = |bound: usize| u64::try_from(generator.below(bound)).unwrap();
        order.seed = seed;
        let mut running = Running::start(&order);
        // A fifth of the kills come somewhere between the start of the process and its first block.
        let is_early = below(5) == 0;
        let microseconds = below(if is_early { 150_000 } else { 4_000 });
        let blocks = if is_early { 0 } else { 1 + below(6) };
        early += u64::from(is_early);
        for _ in 0..blocks {
            assert!(running.hear_block(&mut order), "a child stopped speaking, seed {seed}");
        }
        thread::sleep(Duration::from_micros(microseconds));
        running.kill(&mut order);
        check_files(&order);
        // What was written after the last line has numbers the next child gives out again: here a number always has the
        // same bytes.
    }
    // What the last child wrote and never said is checked too.
    order.next += 100;
    check(&open(&order, 0, DiskIo::RingDirect).0, &order);
    check_files(&order);
    (order.acknowledged.len(), early)
}

#[test]
fn killed_stores_lose_nothing_acknowledged_and_serve_no_wrong_byte() {
    let seed = 20_261_130;
    println!("{KILLS} kills in {LANES} folders, seeds from {seed} on");
    let totals: Vec<(usize, u64)> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES)
            .map(|number| scope.spawn(move || lane(seed + number * KILLS / LANES, number % 2 == 1)))
            .collect();
        lanes.into_iter().map(|lane| lane.join().expect("the failure is printed above")).collect()
    });
    let acknowledged: usize = totals.iter().map(|(acknowledged, _)| acknowledged).sum();
    let early: u64 = totals.iter().map(|(_, early)| early).sum();
    println!("{acknowledged} blocks acknowledged, {early} kills before a first block");
    assert!(KILLS <= u64::try_from(acknowledged).unwrap(), "too little was written to lose");
}
