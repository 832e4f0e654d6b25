//! `kvasir trace capture`: fetches what a running router remembers of requests and writes it as a trace for `kvasir sim`.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde::Deserialize;
use shared::Clock;
use tokio::time::sleep;

use crate::client::Client;
use crate::console::Console;

/// Between two questions to the router.
const PAUSE: Duration = Duration::from_secs(1);

/// What can be done with traces.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Write the requests that a running router answers: arrivals, lengths, and which prefixes are equal, never content. The
    /// router must remember them (`[capture] bytes_max`).
    Capture(CaptureArgs),
}

/// Options of `kvasir trace capture`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CaptureArgs {
    /// Admin listener of a router of a cluster (`member.admin` in its file), for example http://127.0.0.1:9301.
    #[arg(long)]
    admin: String,
    /// The file to write; it must not be there yet.
    #[arg(long)]
    out: PathBuf,
    /// How long, in seconds; 0 takes what is remembered now.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Stop before the file has more than so many MiB.
    #[arg(long, default_value_t = 1_024)]
    mib: u64,
}

/// An answer of `GET /debug/capture`.
#[derive(Debug, Deserialize)]
struct Answer {
    life: String,
    first: u64,
    next: u64,
    lines: Vec<String>,
}

impl TraceCommand {
    /// Runs it.
    ///
    /// # Errors
    /// When the router cannot be asked or was started anew, or the file cannot be written.
    pub(crate) async fn run(
        self,
        clock: Arc<dyn Clock>,
        console: &mut Console,
    ) -> anyhow::Result<()> {
        let Self::Capture(args) = self;
        capture(&args, clock, console).await
    }
}

async fn capture(
    args: &CaptureArgs,
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let client = Client::http(&args.admin, None, Arc::clone(&clock))?;
    let ask = async |after: u64| -> anyhow::Result<Answer> {
        let path = format!("/debug/capture?after={after}");
        let answer = client.json("GET", &path).await.with_context(|| {
            format!("asking {}; does the router have [capture] bytes_max?", args.admin)
        })?;
        serde_json::from_value(answer).context("the answer is none of a router of this version")
    };
    let mut answer = ask(0).await?;
    let shown = args.out.display();
    let unwritten = || format!("{shown} cannot be written; name a file that is not there yet");
    let mut file = File::create_new(&args.out).with_context(unwritten)?;
    let header = sim::capture_header();
    writeln!(file, "{header}").with_context(unwritten)?;
    let ends = clock.now().after(Duration::from_secs(args.seconds));
    let bytes_max = args.mib.saturating_mul(1 << 20);
    let size = |line: &str| u64::try_from(line.len()).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = size(&header);
    let (life, mut after) = (answer.life.clone(), answer.first);
    let (mut written, mut missed) = (0_u64, 0_u64);
    loop {
        if answer.life != life {
            bail!(
                "the router was started anew: words of two lives cannot be compared; what {shown} has is whole"
            );
        }
        missed += answer.first - after;
        after = answer.next;
        for line in &answer.lines {
            bytes += size(line);
            if bytes_max < bytes {
                return told((written, missed), "the file is full", console);
            }
            writeln!(file, "{line}").with_context(unwritten)?;
            written += 1;
        }
        let is_over = ends <= clock.now();
        if answer.lines.is_empty() {
            if is_over {
                return told((written, missed), "done", console);
            }
            sleep(PAUSE).await;
        }
        answer = ask(after).await?;
    }
}

fn told((written, missed): (u64, u64), why: &str, console: &mut Console) -> anyhow::Result<()> {
    let lost = if missed == 0 { String::new() } else { format!("; {missed} came and went unseen") };
    console.line(&format!("{why}: {written} requests{lost}"))?;
    Ok(())
}
