//! `kvasir demo`: serves the built-in model by a cluster of processes, holds a short chat through HTTP, runs the ladder.
//!
//! Everything goes through sockets, as for any client; nothing is shown that a user could not do.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use shared::Clock;

use crate::bench::ladder::{Ladder, LadderOptions, LadderReport, Rung, describe};
use crate::cli::DemoArgs;
use crate::client::{ChatRequest, Client, Message};
use crate::config::MemberConfig;
use crate::console::Console;
use crate::identity::MemberRole;
use crate::serve::StopSignals;
use crate::up::{LocalCluster, Replicas, UpOptions};

/// Questions of one conversation; the third one needs the first.
const CHAT: [&str; 3] =
    ["My name is Lena. I live in Oslo.", "What is the capital of France?", "Where do I live?"];
/// Where the built-in model is looked for, from the working directory and from the binary upwards.
const MODEL: &str = "deploy/models/seedling";
/// The name of the built-in model, and of any other one in the demo.
const MODEL_NAME: &str = "seedling";
/// Settings of the demo. Lineage exact: every answer from a cache is then promised to be the cold one, those from a drive
/// too. Its stores need a hundred blocks, not a gigabyte; their drives the same, at once, and so much of a bound that the
/// write budget takes all of them in a moment. Nothing is copied between stores, so that each run of rung `remote` finds
/// blocks where the run before did.
const SETTINGS: &str = "[server]\nmodel_name = \"seedling\"\n\
    [gateway]\nlineage = \"exact\"\n\
    [store]\nblock_bytes_max = 67108864\nwindow_bytes_max = 16777216\n\
    [disk]\nbytes_max = 1073741824\nsegment_bytes = 16777216\nsync_ms = 100\n\
    [stores]\ncopies_max = 0\n";
/// How long a member may take to finish its requests when it is stopped.
const DRAIN: Duration = Duration::from_secs(5);
/// A cached first token comes in at most this share of the cold one's time, in the same run. Source: issue 2.
const CACHED_SHARE_MAX: f64 = 0.2;
/// From a drive, and with rows replayed on top, in at most this share.
const DISK_SHARE_MAX: f64 = 0.5;
/// From this length on a prompt may visit prefill: the window, what is rolled back, and one block. Source: design.
const VISIT_TOKENS_MIN: u64 = 268;
/// Shorter prompts promise no share: their tail, which is never cached, is too much of them.
const CACHED_SHARE_TOKENS_MIN: u64 = 6_000;

/// Runs the demo; false when a promise of the ladder is broken.
///
/// # Errors
/// When the model is not found, the server does not start, or a request fails.
pub(crate) async fn run(
    args: &DemoArgs,
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<bool> {
    let folder = match &args.model {
        Some(folder) => folder.clone(),
        None => built_in_model()?,
    };
    let mut stop = StopSignals::new()?;
    let options = UpOptions {
        model: folder,
        state: None,
        replicas: Replicas { router: 1, prefill: 1, decode: 1, kvstore: 2 },
        settings: SETTINGS.parse().context("the settings of the demo")?,
        listen: None,
        unmodelled: false,
        drain: DRAIN,
    };
    let mut cluster = LocalCluster::start(options, Arc::clone(&clock), &mut stop).await?;
    let url = cluster.url();
    console.progress(&format!("serving at {url}: {} processes", cluster.admins().len()));
    let shown = tokio::select! {
        shown = show(&mut cluster, args, &clock, console) => shown,
        () = stop.wait() => Err(anyhow!("interrupted")),
    };
    if args.keep && shown.is_ok() {
        say(args, console, &curl_line(&url, MODEL_NAME))?;
        tokio::select! {
            () = stop.wait() => {}
            failure = cluster.failure() => console.progress(&format!("kvasir: {failure}")),
        }
    }
    cluster.shutdown().await;
    let report = shown?;
    for fault in faults(&report) {
        console.progress(&format!("kvasir: {fault}"));
    }
    Ok(faults(&report).is_empty())
}

/// The conversation and the ladder.
async fn show(
    cluster: &mut LocalCluster,
    args: &DemoArgs,
    clock: &Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<LadderReport> {
    let client = Client::http(&cluster.url(), None, Arc::clone(clock))?;
    let mut messages = Vec::new();
    for question in CHAT {
        messages.push(Message { role: "user", text: question.to_owned() });
        let request = ChatRequest {
            model: MODEL_NAME.to_owned(),
            messages: messages.clone(),
            output_tokens_max: 64,
            temperature: 0.0,
            seed: 7,
            thinking: false,
        };
        let answer = client.chat(&request, |_| ()).await?;
        say(args, console, &format!("you     {question}"))?;
        say(args, console, &format!("kvasir  {}", answer.text))?;
        messages.push(Message { role: "assistant", text: answer.text });
    }
    let report = climb(cluster, args, clock, console).await?;
    if args.json {
        console.line(&serde_json::to_string(&report)?)?;
    } else if let Some(share) = report.prefill_loaded_share {
        let leaked = report.blocks_leaked.unwrap_or(0);
        let share = 100.0 * share;
        let line = format!(
            "a prefill worker loads {share:.1} % of the checkpoint, Engram tables included; {leaked} blocks leaked"
        );
        console.line(&line)?;
    }
    Ok(report)
}

/// All rungs. Between them members are stopped and started, as an operator would.
async fn climb(
    cluster: &mut LocalCluster,
    args: &DemoArgs,
    clock: &Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<LadderReport> {
    let options = LadderOptions {
        url: cluster.url(),
        admins: cluster.admins(),
        api_key: None,
        model: Some(MODEL_NAME.to_owned()),
        prompt_tokens: args.prompt_tokens,
    };
    let names = |cluster: &LocalCluster, role| -> Vec<String> {
        cluster.role(role).map(|member| member.name.clone()).collect()
    };
    let stores = names(cluster, MemberRole::Kvstore);
    let mut workers = names(cluster, MemberRole::Decode);
    workers.extend(names(cluster, MemberRole::Prefill));
    let mut ladder = Ladder::start(&options, clock).await?;
    let mut told =
        |ladder: &Ladder| ladder.last().map_or(Ok(()), |rung| say(args, console, &describe(rung)));
    ladder.cold().await?;
    told(&ladder)?;
    ladder.again("device", &[]).await?;
    told(&ladder)?;
    ladder.again("host", &["device"]).await?;
    told(&ladder)?;
    // Workers first: what they still offer is taken.
    ladder.settle().await?;
    for names in [&workers, &stores] {
        cluster.stop(names).await?;
    }
    let all: Vec<String> = stores.iter().chain(&workers).cloned().collect();
    cluster.start_again(&all).await?;
    ladder.again("disk", &["device", "host"]).await?;
    told(&ladder)?;
    // While the node that owns most of the prompt is away, the other one takes its part. Then it comes back with nothing.
    ladder.settle().await?;
    let owner = fullest(cluster, clock).await?;
    let away = std::slice::from_ref(&owner.name);
    cluster.stop(away).await?;
    ladder.watch(&cluster.admins_running())?;
    cluster.left(away).await?;
    ladder.refill().await?;
    cluster.start_again(away).await?;
    let admin = Client::http(&format!("http://{}", owner.admin), None, Arc::clone(clock))?;
    admin.json("POST", "/debug/cache/evict?tier=all").await?;
    ladder.watch(&cluster.admins())?;
    ladder.again("remote", &["device"]).await?;
    told(&ladder)?;
    ladder.direct().await?;
    told(&ladder)?;
    ladder.report().await
}

/// The store node with the most blocks in memory.
async fn fullest(cluster: &LocalCluster, clock: &Arc<dyn Clock>) -> anyhow::Result<MemberConfig> {
    let mut found: Option<(u64, MemberConfig)> = None;
    for member in cluster.role(MemberRole::Kvstore) {
        let admin = Client::http(&format!("http://{}", member.admin), None, Arc::clone(clock))?;
        let audit = admin.json("GET", "/debug/audit").await?;
        let blocks = audit["pools"]["store_blocks"]["cached"].as_u64().unwrap_or(0);
        if found.as_ref().is_none_or(|(most, _)| *most < blocks) {
            found = Some((blocks, member.clone()));
        }
    }
    let (_, member) = found.context("the demo has store nodes")?;
    Ok(member)
}

/// A line for people: beside the result when that is JSON.
fn say(args: &DemoArgs, console: &mut Console, text: &str) -> io::Result<()> {
    if args.json {
        console.progress(text);
        return Ok(());
    }
    console.line(text)
}

/// The promises of the ladder that this run broke, one line each.
fn faults(report: &LadderReport) -> Vec<String> {
    let rung = |name: &str| report.rungs.iter().find(|rung| rung.name == name);
    let mut faults = Vec::new();
    for name in ["cold", "device", "host", "disk", "remote", "direct"] {
        match rung(name) {
            Some(found) => faults.extend(rung_faults(found, rung("cold"))),
            None => faults.push(format!("rung {name}: it is missing")),
        }
    }
    match report.blocks_leaked {
        Some(0) => {}
        Some(leaked) => faults.push(format!("{leaked} blocks leaked")),
        None => faults.push("the server does not say how many blocks leaked".to_owned()),
    }
    faults
}

fn rung_faults(rung: &Rung, cold: Option<&Rung>) -> Vec<String> {
    let hit = matches!(rung.name, "device" | "host" | "disk" | "remote");
    let cold = cold.filter(|cold| hit && CACHED_SHARE_TOKENS_MIN <= cold.prompt_tokens);
    // Window objects are never on disk, so rows are replayed.
    let from_disk = rung.name == "disk";
    let share = if from_disk { DISK_SHARE_MAX } else { CACHED_SHARE_MAX };
    let slow = cold.is_some_and(|cold| cold.ttft_ms * share < rung.ttft_ms);
    let fetched = rung.bytes_fetched.is_some_and(|bytes| 0 < bytes);
    let expected = rung.answer_equal_expected;
    let broken = [
        (!rung.answer_equal && (hit || expected), "the answer differs from the cold one"),
        (hit && !expected, "the server does not claim the cold answer"),
        (hit && rung.cached_tokens == 0, "nothing was cached"),
        (!hit && rung.cached_tokens != 0, "something was cached"),
        (hit && rung.name != "device" && !fetched, "nothing was fetched"),
        (
            rung.name == "direct" && VISIT_TOKENS_MIN <= rung.prompt_tokens,
            "the prompt is long enough to visit prefill",
        ),
        (slow, "the first token took too large a share of the cold one's time"),
    ];
    let told = broken.into_iter().filter(|(broken, _)| *broken);
    told.map(|(_, what)| format!("rung {}: {what}", rung.name)).collect()
}

fn curl_line(url: &str, model: &str) -> String {
    format!(
        "curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{{\"model\": \"{model}\", \
         \"reasoning_effort\": \"none\", \"temperature\": 0, \
         \"messages\": [{{\"role\": \"user\", \"content\": \"What is 17 + 25?\"}}]}}'"
    )
}

/// Looks for the built-in model upwards from the working directory and from the binary.
fn built_in_model() -> anyhow::Result<PathBuf> {
    let starts = [std::env::current_dir(), std::env::current_exe()];
    let starts: Vec<PathBuf> = starts.into_iter().flatten().collect();
    let folders = starts.iter().flat_map(|start| start.ancestors());
    let found = folders.map(|folder| folder.join(MODEL)).find(|folder| folder.is_dir());
    found.with_context(|| format!("{MODEL} is not here; run in the repository or give --model DIR"))
}

#[cfg(test)]
mod tests {
    use super::{built_in_model, curl_line, faults};
    use crate::bench::ladder::{LadderReport, Rung};

    type Change = fn(&mut LadderReport);

    fn rung(name: &'static str, prompt_tokens: u64, ttft_ms: f64) -> Rung {
        let hit = matches!(name, "device" | "host" | "disk" | "remote");
        Rung {
            name,
            prompt_tokens,
            cached_tokens: if hit { 7_808 } else { 0 },
            replayed_tokens: None,
            window_source: None,
            ttft_ms,
            itl_ms: 1.0,
            bytes_fetched: Some(u64::from(hit && name != "device")),
            answer_equal: true,
            answer_equal_expected: true,
        }
    }

    fn good() -> LadderReport {
        let rungs = vec![
            rung("cold", 8_000, 1_000.0),
            rung("device", 8_000, 200.0),
            rung("host", 8_000, 199.0),
            rung("disk", 8_000, 199.0),
            rung("remote", 8_000, 199.0),
            rung("direct", 267, 900.0),
        ];
        LadderReport { rungs, prefill_loaded_share: None, blocks_leaked: Some(0) }
    }

    #[test]
    fn every_broken_promise_is_told() {
        assert_eq!(faults(&good()), Vec::<String>::new());
        let cases: [(&str, Change); 16] = [
            ("cold: something was cached", |it| it.rungs[0].cached_tokens = 128),
            ("device: nothing was cached", |it| it.rungs[1].cached_tokens = 0),
            ("host: nothing was cached", |it| it.rungs[2].cached_tokens = 0),
            ("device: the answer differs", |it| it.rungs[1].answer_equal = false),
            ("host: the server does not claim", |it| it.rungs[2].answer_equal_expected = false),
            ("device: the first token", |it| it.rungs[1].ttft_ms = 201.0),
            ("host: nothing was fetched", |it| it.rungs[2].bytes_fetched = Some(0)),
            ("host: nothing was fetched", |it| it.rungs[2].bytes_fetched = None),
            ("host: it is missing", |it| drop(it.rungs.remove(2))),
            ("disk: nothing was fetched", |it| it.rungs[3].bytes_fetched = Some(0)),
            ("remote: the answer differs", |it| it.rungs[4].answer_equal = false),
            ("direct: something was cached", |it| it.rungs[5].cached_tokens = 128),
            ("direct: the prompt is long", |it| it.rungs[5].prompt_tokens = 268),
            ("direct: the answer differs", |it| it.rungs[5].answer_equal = false),
            ("2 blocks leaked", |it| it.blocks_leaked = Some(2)),
            ("does not say how many", |it| it.blocks_leaked = None),
        ];
        for (expected, change) in cases {
            let mut report = good();
            change(&mut report);
            let found = faults(&report);
            assert!(found.len() == 1 && found[0].contains(expected), "{expected}: {found:?}");
        }
    }

    #[test]
    fn a_short_prompt_promises_no_share_of_the_time() {
        let mut report = good();
        report.rungs[0].prompt_tokens = 5_999;
        report.rungs[1].ttft_ms = 900.0;
        assert_eq!(faults(&report), Vec::<String>::new());
    }

    #[test]
    fn the_curl_line_carries_json() {
        let line = curl_line("http://127.0.0.1:1", "seedling");
        let body = line.split_once("-d '").unwrap().1.trim_end_matches('\'');
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["model"], "seedling");
    }

    #[test]
    fn the_built_in_model_is_found_from_inside_the_repository() {
        assert!(built_in_model().unwrap().join("config.json").is_file());
    }
}
