//! The router's prefix index beside those of other routers: the same events, the same requests, equal checksums.
//!
//! `peers-index TRACE [ROUNDS]` starts itself once for each index, fleet and round, so that rounds are interleaved and no
//! index sees another's heap. `peers-index TRACE decide [by-name | WORKERS]` measures whole decisions of the shipped router.

mod decide;
#[cfg(feature = "dynamo")]
mod dynamo;
mod indexes;
mod trace;

use std::env;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use indexes::{Chain, Index, Map, Ours};
use trace::{Fleet, count, each_event, each_request, events, write};

#[cfg(not(feature = "dynamo"))]
const INDEXES: [&str; 3] = ["ours", "chain", "map"];
#[cfg(feature = "dynamo")]
const INDEXES: [&str; 5] = ["ours", "chain", "dynamo", "dynamo-radix", "map"];

/// Name, and what it is.
const FLEETS: [(&str, Fleet); 6] = [
    ("8", Fleet { workers: 8, strays_percent: 0, cache_blocks: usize::MAX, hole_every: 0 }),
    ("64", Fleet { workers: 64, strays_percent: 0, cache_blocks: usize::MAX, hole_every: 0 }),
    ("8-strays", Fleet { workers: 8, strays_percent: 50, cache_blocks: usize::MAX, hole_every: 0 }),
    (
        "64-strays",
        Fleet { workers: 64, strays_percent: 50, cache_blocks: usize::MAX, hole_every: 0 },
    ),
    ("8-churn", Fleet { workers: 8, strays_percent: 20, cache_blocks: 20_000, hole_every: 20 }),
    ("64-churn", Fleet { workers: 64, strays_percent: 20, cache_blocks: 3_000, hole_every: 20 }),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [trace] => rounds(trace, 3),
        [trace, "decide"] => decide::run(trace, decide::Order::Chain, &[8, 64, 512]),
        [trace, "decide", "by-name"] => decide::run(trace, decide::Order::Names, &[8, 64, 512]),
        [trace, "decide", workers] => decide::run(trace, decide::Order::Chain, &[workers.parse()?]),
        [trace, rounds_count] => rounds(trace, rounds_count.parse().context("ROUNDS is a number")?),
        [trace, index, workers, events] => one(trace, index, workers.parse()?, Path::new(events)),
        _ => bail!("usage: peers-index TRACE [ROUNDS | decide [by-name | WORKERS]]"),
    }
}

fn rounds(trace: &str, rounds: u32) -> Result<()> {
    println!("load average: {}", fs::read_to_string("/proc/loadavg")?.trim());
    println!(
        "| fleet | index | pairs | stored / removed | ns/block | lookup p50 / p90 / p99 / p99.9 us | names just made | bytes/pair | checksum |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let this = env::current_exe()?;
    let mut blocks = Vec::new();
    each_request(trace, |request| blocks.push(request.to_vec()))?;
    let file = env::temp_dir().join(format!("peers-index-{}", std::process::id()));
    for (name, fleet) in FLEETS {
        let events = events(&blocks, fleet);
        write(&file, &events)?;
        let (pairs, stored, removed) = count(&events);
        drop(events);
        let mut checksums = Vec::new();
        for _ in 0..rounds {
            for index in INDEXES {
                let mut command = Command::new(&this);
                command.args([trace, index, &fleet.workers.to_string()]).arg(&file);
                // Large blocks go back to the system at once, so that resident bytes are those in use.
                command.env("MALLOC_MMAP_THRESHOLD_", "131072");
                let output = command.output()?;
                let error = String::from_utf8_lossy(&output.stderr);
                ensure!(output.status.success(), "{index} at {name}: {error}");
                let text = String::from_utf8(output.stdout)?;
                let fields: Vec<&str> = text.split_whitespace().collect();
                let [ns, ref times @ .., bytes, checksum] = fields[..] else {
                    bail!("{index} answered {text}");
                };
                let (cold, warm) = times.split_at(4);
                let (cold, warm) = (cold.join(" / "), warm.join(" / "));
                let per_block = ns.parse::<f64>()? / (stored + removed) as f64;
                let per_pair = bytes.parse::<f64>()? / pairs as f64;
                println!(
                    "| {name} | {index} | {pairs} | {stored} / {removed} | {per_block:.0} | \
                     {cold} | {warm} | {per_pair:.1} | {checksum} |"
                );
                // Trees know nothing behind a hole; see `dynamo.rs`.
                if fleet.hole_every == 0 || !index.starts_with("dynamo") {
                    checksums.push(checksum.to_owned());
                }
            }
        }
        ensure!(checksums.windows(2).all(|pair| pair[0] == pair[1]), "checksums differ at {name}");
    }
    fs::remove_file(&file)?;
    println!("load average: {}", fs::read_to_string("/proc/loadavg")?.trim());
    Ok(())
}

fn one(trace: &str, index: &str, workers: u32, events: &Path) -> Result<()> {
    match index {
        "ours" => measure::<Ours>(trace, workers, events),
        "chain" => measure::<Chain>(trace, workers, events),
        #[cfg(feature = "dynamo")]
        "dynamo" => measure::<dynamo::Concurrent>(trace, workers, events),
        #[cfg(feature = "dynamo")]
        "dynamo-radix" => measure::<dynamo::Radix>(trace, workers, events),
        "map" => measure::<Map>(trace, workers, events),
        _ => bail!("no such index"),
    }
}

/// Prints nanoseconds of all events, percentiles of lookups in microseconds, resident bytes, the checksum.
fn measure<I: Index>(trace: &str, workers: u32, file: &Path) -> Result<()> {
    let mut index = I::new(workers);
    let (mut events, mut requests) = (Vec::new(), Vec::new());
    each_event(file, |event| events.push(index.event(&event)))?;
    each_request(trace, |blocks| requests.push(I::request(blocks)))?;
    let before = resident()?;
    let start = Instant::now();
    for event in &events {
        index.apply(event);
    }
    index.settle();
    let storing = start.elapsed();
    let bytes = resident()?.saturating_sub(before);
    let mut times = Vec::with_capacity(requests.len());
    let mut checksum = 0_u64;
    for timed in [false, true] {
        for request in &requests {
            let start = Instant::now();
            let overlaps = index.overlaps(request);
            let time = start.elapsed();
            if timed {
                times.push(time);
                checksum += overlaps;
            }
        }
    }
    // Once more with names that were just made, as they are when a request was hashed: in the nearest cache.
    let mut warm = Vec::with_capacity(requests.len());
    for request in &requests {
        let request = black_box(request.clone());
        let start = Instant::now();
        black_box(index.overlaps(&request));
        warm.push(start.elapsed());
    }
    let [times, warm] = [times, warm].map(|mut times| {
        times.sort_unstable();
        let at = |thousandth: usize| micros(times[(times.len() - 1) * thousandth / 1_000]);
        [at(500), at(900), at(990), at(999)].join(" ")
    });
    println!("{} {times} {warm} {bytes} {checksum}", storing.as_nanos());
    Ok(())
}

pub fn micros(time: Duration) -> String {
    format!("{:.2}", time.as_nanos() as f64 / 1_000.0)
}

/// Resident bytes of this process.
fn resident() -> Result<usize> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages = text.split(' ').nth(1).context("statm has no resident pages")?;
    Ok(pages.parse::<usize>()? * 4_096)
}
