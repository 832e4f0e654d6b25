//! `kvasir bench router`: what the way through a router costs a request, beside going to the worker directly and beside
//! other routers, in turns.
//!
//! Ours is a real cluster of processes: a router with its front door, exact token routing on, and decode workers that
//! answer at once (`roles/unmodelled.rs`). Others are started by a command line and forward HTTP to servers that answer
//! at once (`router/origin.rs`); the direct row goes to these without any router.

mod bodies;
mod cluster;
mod load;
pub(crate) mod origin;
mod others;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use serde::Serialize;
use shared::Clock;
use tokenizers::Tokenizer;
use tokio::task::block_in_place;

use self::bodies::{Prefix, bodies, long_text, openings};
use self::cluster::Ours;
use self::load::{Shots, send};
use self::others::{Other, Server, start_origins};
use super::figures::{load_average, median, percentile, tick_seconds, ticks_of, to_float};
use super::rig::turns;
use crate::cli::RouterArgs;
use crate::console::Console;

/// Connections of the load, one kind of run each.
const CONNECTIONS: [usize; 3] = [1, 16, 64];
/// Bytes of a body, and requests of one run with it.
const SIZES: [(usize, u64); 2] = [(2_600, 768), (220_000, 96)];
/// Texts that are tokenised for the bound of unseen prompts.
const TOKENISED: u64 = 24;

/// Runs of one kind to one target, over all rounds: medians.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct RouterRow {
    /// `direct`, `kvasir`, or the name of another router.
    pub target: String,
    /// Bytes of a body, about.
    pub body_bytes: usize,
    /// `seen` or `unseen`: whether all but the end of the prompt was sent before.
    pub prefix: &'static str,
    /// Requests at a time, each on its own connection.
    pub connections: usize,
    /// Milliseconds from sending to the end of the answer.
    pub p50_ms: f64,
    /// The same, of the slowest hundredth.
    pub p99_ms: f64,
    /// Requests per second.
    pub per_second: f64,
    /// Seconds of processor time of the router's process per 1,000 requests; nothing for the direct row.
    pub processor_seconds_per_thousand: Option<f64>,
}

/// The bound of prompts that are new: reading them into tokens and nothing else.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Tokenisation {
    /// Bytes of a body whose text was tokenised.
    pub body_bytes: usize,
    /// Milliseconds on one thread, the median.
    pub p50_ms: f64,
}

/// What the run found.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct RouterReport {
    /// Rounds, each with every kind of run.
    pub rounds: u32,
    /// Workers behind every router.
    pub workers: u16,
    /// Load averages over 1, 5 and 15 minutes when the run began.
    pub load_before: [f64; 3],
    /// The same when it ended; the run itself is in them.
    pub load_after: [f64; 3],
    /// One per size.
    pub tokenisation: Vec<Tokenisation>,
    /// One per kind of run and target.
    pub rows: Vec<RouterRow>,
}

/// One kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    bytes: usize,
    requests: u64,
    prefix: Prefix,
    connections: usize,
}

/// What one run found.
#[derive(Clone, Copy, Debug)]
struct Ran {
    target: usize,
    kind: Kind,
    p50: f64,
    p99: f64,
    per_second: f64,
    processor: Option<f64>,
}

/// Starts everything, measures in turns, and reports.
///
/// # Errors
/// When something does not start or a request fails.
pub(crate) async fn run(
    args: &RouterArgs,
    clock: &Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    ensure!((1..=100).contains(&args.rounds), "--rounds is {}, expected 1 to 100", args.rounds);
    ensure!((1..=16).contains(&args.workers), "--workers is {}, expected 1 to 16", args.workers);
    let folder = tempfile::tempdir().context("no folder for the model of the run")?;
    let ours = Ours::start(args, folder.path(), clock).await?;
    let measured = with_others(args, &ours, clock, console).await;
    ours.end().await;
    let report = measured?;
    if args.json {
        console.line(&serde_json::to_string(&report)?)?;
        return Ok(());
    }
    for line in report.lines() {
        console.line(&line)?;
    }
    Ok(())
}

async fn with_others(
    args: &RouterArgs,
    ours: &Ours,
    clock: &Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<RouterReport> {
    let load_before = load_average()?;
    let origins = start_origins(usize::from(args.workers), &ours.model).await?;
    let direct: Vec<Server> = origins.iter().map(|origin| origin.server()).collect();
    let mut targets = vec![
        Target { name: "direct".to_owned(), servers: direct.clone(), pid: None },
        Target { name: "kvasir".to_owned(), servers: vec![ours.server], pid: Some(ours.router) },
    ];
    let mut others = Vec::new();
    for spec in &args.peer {
        console.progress(&format!("starting {spec}"));
        let other = Other::start(spec, &direct, &ours.model).await?;
        targets.push(Target {
            name: other.name().to_owned(),
            servers: vec![other.server()],
            pid: Some(other.pid()?),
        });
        others.push(other);
    }
    let mut all = Vec::new();
    for round in 0..=args.rounds {
        all.extend(one_round(round, &targets, &ours.model, clock).await?.into_iter().filter(
            // The first round warms all of them.
            |_| round != 0,
        ));
        console.progress(&format!("round {round} of {}", args.rounds));
    }
    let tokenizer = ours.tokenizer.clone();
    let tokenisation = block_in_place(|| tokenise(&tokenizer, clock))?;
    let names: Vec<String> = targets.into_iter().map(|target| target.name).collect();
    Ok(RouterReport {
        rounds: args.rounds,
        workers: args.workers,
        load_before,
        load_after: load_average()?,
        tokenisation,
        rows: rows(&all, &names),
    })
}

/// Something that answers chats.
struct Target {
    name: String,
    servers: Vec<Server>,
    /// Whose processor time counts.
    pid: Option<u32>,
}

fn kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (bytes, requests) in SIZES {
        for prefix in [Prefix::Seen, Prefix::Unseen] {
            kinds.extend(CONNECTIONS.map(|connections| Kind {
                bytes,
                requests,
                prefix,
                connections,
            }));
        }
    }
    kinds
}

async fn one_round(
    round: u32,
    targets: &[Target],
    model: &str,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Vec<Ran>> {
    let mut found = Vec::new();
    let round_number = usize::try_from(round).context("rounds are few")?;
    for (number, kind) in kinds().into_iter().enumerate() {
        for at in turns(round_number + number, targets.len()) {
            let target = &targets[at];
            // No two runs send the same new text: a number per round, kind and target.
            let salt = u64::from(round) * 10_000 + wide(number) * 100 + wide(at) + 1;
            let name = || format!("{} with bodies of {} bytes", target.name, kind.bytes);
            let ran = one_run(at, target, kind, model, (salt, clock)).await;
            found.push(ran.with_context(name)?);
        }
    }
    Ok(found)
}

async fn one_run(
    at: usize,
    target: &Target,
    kind: Kind,
    model: &str,
    (salt, clock): (u64, &Arc<dyn Clock>),
) -> anyhow::Result<Ran> {
    let shots = |bodies: Vec<_>| Shots { servers: target.servers.clone(), bodies: bodies.into() };
    if kind.prefix == Prefix::Seen {
        send(&shots(openings(model, kind.bytes)), 1, clock).await?;
    }
    let prepared = shots(bodies(model, kind.prefix, kind.bytes, (kind.requests, salt)));
    let before = target.pid.map(ticks_of).transpose()?;
    let sent = send(&prepared, kind.connections, clock).await?;
    let after = target.pid.map(ticks_of).transpose()?;
    let requests = to_float(sent.milliseconds.len());
    let used = before.zip(after).map(|(before, after)| tick_seconds(after.saturating_sub(before)));
    Ok(Ran {
        target: at,
        kind,
        p50: median(sent.milliseconds.iter().copied()),
        p99: percentile(sent.milliseconds.iter().copied(), 99),
        per_second: requests / sent.seconds,
        processor: used.map(|seconds| seconds / requests * 1e3),
    })
}

/// How long the texts of the bodies take to be read into tokens, on this thread.
fn tokenise(file: &Path, clock: &Arc<dyn Clock>) -> anyhow::Result<Vec<Tokenisation>> {
    let tokenizer = Tokenizer::from_file(file)
        .map_err(|error| anyhow::anyhow!("{} cannot be read: {error}", file.display()))?;
    let mut found = Vec::new();
    for (bytes, _) in SIZES {
        let mut milliseconds = Vec::new();
        for key in 0..TOKENISED {
            let text = long_text(90_000_000 + key, bytes);
            let began = clock.now();
            let read = tokenizer.encode_fast(text.as_str(), false);
            let tokens = read.map_err(|error| anyhow::anyhow!("a text has no tokens: {error}"))?;
            milliseconds.push(clock.now().since(began).as_secs_f64() * 1e3);
            ensure!(!tokens.get_ids().is_empty(), "a text has no tokens");
        }
        found.push(Tokenisation { body_bytes: bytes, p50_ms: median(milliseconds) });
    }
    Ok(found)
}

fn rows(all: &[Ran], names: &[String]) -> Vec<RouterRow> {
    let mut rows = Vec::new();
    for kind in kinds() {
        for (at, name) in names.iter().enumerate() {
            let runs = || all.iter().filter(|ran| ran.target == at && ran.kind == kind);
            let of = |value: fn(&Ran) -> f64| median(runs().map(value));
            let processor: Vec<f64> = runs().filter_map(|ran| ran.processor).collect();
            rows.push(RouterRow {
                target: name.clone(),
                body_bytes: kind.bytes,
                prefix: kind.prefix.as_str(),
                connections: kind.connections,
                p50_ms: of(|ran| ran.p50),
                p99_ms: of(|ran| ran.p99),
                per_second: of(|ran| ran.per_second),
                processor_seconds_per_thousand: (!processor.is_empty())
                    .then(|| median(processor.iter().copied())),
            });
        }
    }
    rows
}

impl RouterReport {
    /// A Markdown table and the bound, for people.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            "| body bytes | prefix | connections | target | p50 ms | p99 ms | requests/s | processor s per 1,000 |".to_owned(),
            "| --- | --- | --- | --- | --- | --- | --- | --- |".to_owned(),
        ];
        for row in &self.rows {
            let processor = row.processor_seconds_per_thousand;
            lines.push(format!(
                "| {} | {} | {} | {} | {:.2} | {:.2} | {:.0} | {} |",
                row.body_bytes,
                row.prefix,
                row.connections,
                row.target,
                row.p50_ms,
                row.p99_ms,
                row.per_second,
                processor.map_or_else(|| "–".to_owned(), |seconds| format!("{seconds:.2}"))
            ));
        }
        for Tokenisation { body_bytes, p50_ms } in &self.tokenisation {
            lines.push(format!("tokenising a text of {body_bytes} bytes: {p50_ms:.2} ms"));
        }
        lines.push(format!(
            "{} workers, {} rounds, load average {:.1} before, {:.1} after",
            self.workers, self.rounds, self.load_before[0], self.load_after[0]
        ));
        lines
    }
}

fn wide(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Ran, kinds, rows};

    #[test]
    fn a_row_is_the_median_of_its_runs() {
        let kind = kinds()[4];
        let ran = |target, p50| Ran {
            target,
            kind,
            p50,
            p99: p50 * 2.0,
            per_second: 10.0 / p50,
            processor: (target == 1).then_some(p50),
        };
        let all: Vec<Ran> = kinds()
            .into_iter()
            .flat_map(|kind| [0, 1].map(|target| Ran { kind, ..ran(target, 7.0) }))
            .chain([ran(1, 1.0), ran(1, 9.0), ran(1, 2.0), ran(1, 8.0)])
            .collect();
        let names = ["direct".to_owned(), "kvasir".to_owned()];
        let rows = rows(&all, &names);
        assert_eq!(rows.len(), 2 * kinds().len());
        let found = rows.iter().filter(|row| row.target == "kvasir").nth(4).unwrap();
        assert!((found.p50_ms - 7.0).abs() < 1e-9 && (found.p99_ms - 14.0).abs() < 1e-9);
        assert_eq!(found.processor_seconds_per_thousand.map(f64::round), Some(7.0));
        assert!(rows.iter().all(|row| row.processor_seconds_per_thousand.is_some()
            == (row.target == "kvasir")));
    }
}
