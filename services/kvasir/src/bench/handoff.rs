//! `kvasir bench handoff`: what separate processes cost a cold prompt.
//!
//! The same model is served by one process with all roles and by four processes (router, prefill, decode, store) on this
//! machine; both answer cold prompts of the same length in turns. Prefill announces blocks while it computes and decode
//! reads them meanwhile, so the hand-off should hide behind the computing: what is compared is the time to the first token.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use serde::Serialize;
use shared::Clock;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::figures::median;
use super::ladder::{Ladder, LadderOptions};
use crate::cli::HandoffArgs;
use crate::console::Console;
use crate::serve::StopSignals;
use crate::up::{LocalCluster, Replicas, UpOptions};

/// How long the server with all roles may take to load.
const LOAD_MAX: Duration = Duration::from_secs(120);
/// How long members may take to end.
const DRAIN: Duration = Duration::from_secs(5);

/// What the run found; times in milliseconds.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct HandoffReport {
    /// Tokens of each prompt.
    pub prompt_tokens: u64,
    /// Times to the first token of the process with all roles.
    pub one_process_ms: Vec<f64>,
    /// The same through four processes.
    pub four_processes_ms: Vec<f64>,
    /// The medians' ratio.
    pub four_of_one: f64,
}

/// Runs both in turns and reports.
///
/// # Errors
/// When either does not start or a request fails.
pub(crate) async fn run(
    args: &HandoffArgs,
    clock: &Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    ensure!((1..=1_000).contains(&args.rounds), "--rounds is {}, expected 1 to 1000", args.rounds);
    let options = UpOptions {
        model: args.model.clone(),
        state: None,
        replicas: Replicas { router: 1, prefill: 1, decode: 1, kvstore: 1 },
        settings: toml::Table::new(),
        listen: None,
        drain: DRAIN,
        unmodelled: false,
    };
    let mut stop = StopSignals::new()?;
    let cluster = LocalCluster::start(options, Arc::clone(clock), &mut stop).await?;
    let url = cluster.url();
    let measured = tokio::select! {
        measured = against_one(args, clock, console, &url) => measured,
        () = stop.wait() => Err(anyhow!("interrupted")),
    };
    cluster.shutdown().await;
    let report = measured?;
    if args.json {
        console.line(&serde_json::to_string(&report)?)?;
        return Ok(());
    }
    console.line(&format!(
        "{} tokens cold: one process {:.0} ms, four processes {:.0} ms (medians of {}); ratio {:.3}",
        report.prompt_tokens,
        median(report.one_process_ms.iter().copied()),
        median(report.four_processes_ms.iter().copied()),
        args.rounds,
        report.four_of_one
    ))?;
    Ok(())
}

/// Starts the process with all roles, measures, and ends it; it ends with this one, too.
async fn against_one(
    args: &HandoffArgs,
    clock: &Arc<dyn Clock>,
    console: &mut Console,
    four: &str,
) -> anyhow::Result<HandoffReport> {
    let (mut one, url) = serve(args).await?;
    let measured = measure(args, clock, console, [&url, four]).await;
    one.kill().await.context("the process with all roles cannot be ended")?;
    measured
}

async fn measure(
    args: &HandoffArgs,
    clock: &Arc<dyn Clock>,
    console: &mut Console,
    urls: [&str; 2],
) -> anyhow::Result<HandoffReport> {
    let mut times = [Vec::new(), Vec::new()];
    let mut prompt_tokens = 0;
    // The first round warms both.
    for round in 0..=args.rounds {
        for (url, times) in urls.iter().zip(&mut times) {
            let options = LadderOptions {
                url: (*url).to_owned(),
                admins: Vec::new(),
                api_key: None,
                model: None,
                prompt_tokens: args.prompt_tokens,
            };
            let mut ladder = Ladder::keyed(&options, clock, u64::from(round) + 1).await?;
            ladder.cold().await?;
            let rung = ladder.last().context("a cold run is a rung")?;
            ensure!(rung.cached_tokens == 0, "a prompt that should be cold was cached");
            prompt_tokens = rung.prompt_tokens;
            console.progress(&format!("round {round}: {url} {:.0} ms", rung.ttft_ms));
            if round != 0 {
                times.push(rung.ttft_ms);
            }
        }
    }
    let [one, four] = times;
    Ok(HandoffReport {
        prompt_tokens,
        four_of_one: median(four.iter().copied()) / median(one.iter().copied()),
        one_process_ms: one,
        four_processes_ms: four,
    })
}

/// Starts the process with all roles, and finds out where it listens.
async fn serve(args: &HandoffArgs) -> anyhow::Result<(Child, String)> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).to_string();
    let program = std::env::current_exe().context("this program's own path is unknown")?;
    let mut child = Command::new(program)
        .args(["serve", "--listen", &any, "--admin", &any, "--model"])
        .arg(&args.model)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("the process with all roles cannot be started")?;
    let output = child.stdout.take().context("its output was asked for")?;
    let mut lines = BufReader::new(output).lines();
    let find = async {
        while let Some(line) = lines.next_line().await? {
            if let Some(rest) = line.strip_prefix("listening on ") {
                let url = rest.split_whitespace().next().unwrap_or_default();
                return Ok(url.to_owned());
            }
        }
        bail!("the process with all roles ended before it listened")
    };
    let url = timeout(LOAD_MAX, find)
        .await
        .context("the process with all roles did not start in time")??;
    Ok((child, url))
}
