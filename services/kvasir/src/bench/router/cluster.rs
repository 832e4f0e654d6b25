//! Our side of the run: a cluster of processes on this machine, its workers without a model.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use shared::Clock;

use super::others::Server;
use crate::cli::RouterArgs;
use crate::identity::MemberRole;
use crate::serve::StopSignals;
use crate::up::{LocalCluster, Replicas, UpOptions};

/// Tokens of the context that the run's model says it has: bodies of 220 KB must fit.
const CONTEXT: u32 = 1 << 18;
/// How long members may take to end.
const DRAIN: Duration = Duration::from_secs(5);

/// The cluster, and where it is.
pub(super) struct Ours {
    pub(super) model: String,
    pub(super) tokenizer: PathBuf,
    pub(super) server: Server,
    /// The router's process.
    pub(super) router: u32,
    cluster: LocalCluster,
}

impl Ours {
    /// Starts one router and the workers, with the tokenizer of the model, or the one that was named.
    ///
    /// # Errors
    /// When a file cannot be read, or a member does not start.
    pub(super) async fn start(
        args: &RouterArgs,
        folder: &Path,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let model = folder.join("bench-model");
        write_model(args, &model)?;
        let options = UpOptions {
            model: model.clone(),
            state: None,
            replicas: Replicas { router: 1, prefill: 0, decode: args.workers, kvstore: 0 },
            settings: toml::Table::new(),
            listen: None,
            drain: DRAIN,
            unmodelled: true,
        };
        let mut stop = StopSignals::new()?;
        let cluster = LocalCluster::start(options, Arc::clone(clock), &mut stop).await?;
        let router = cluster.role(MemberRole::Router).next().context("a router was planned")?;
        let server = router.listen.context("every router of a plan listens")?;
        let process = process_of(cluster.folder(), &router.name)?;
        Ok(Self {
            model: "bench-model".to_owned(),
            tokenizer: model.join("tokenizer.json"),
            server,
            router: process,
            cluster,
        })
    }

    /// Ends all members.
    pub(super) async fn end(self) {
        self.cluster.shutdown().await;
    }
}

/// A checkpoint like the given one, but with a longer context. Nobody computes with it.
fn write_model(args: &RouterArgs, folder: &Path) -> anyhow::Result<()> {
    let source = &args.model;
    let shown = source.display();
    fs::create_dir(folder).context("the folder of the run's model cannot be made")?;
    let source = fs::canonicalize(source).with_context(|| format!("{shown} cannot be found"))?;
    for entry in fs::read_dir(&source).with_context(|| format!("{shown} cannot be read"))? {
        let path = entry?.path();
        let name = path.file_name().context("a file has a name")?;
        if path.is_file() && name != "config.json" {
            symlink(&path, folder.join(name)).context("a link to a file of the model")?;
        }
    }
    let text = fs::read_to_string(source.join("config.json"))
        .with_context(|| format!("{shown}/config.json cannot be read"))?;
    let mut config: Value = serde_json::from_str(&text).context("config.json is not JSON")?;
    let context = config.pointer_mut("/text_config/max_position_embeddings");
    *context.context("config.json says no max_position_embeddings")? = CONTEXT.into();
    fs::write(folder.join("config.json"), config.to_string()).context("config.json")?;
    if let Some(tokenizer) = &args.tokenizer {
        let link = folder.join("tokenizer.json");
        fs::remove_file(&link).context("the model's own tokenizer.json")?;
        let tokenizer = fs::canonicalize(tokenizer)
            .with_context(|| format!("--tokenizer {} cannot be found", tokenizer.display()))?;
        symlink(tokenizer, link).context("a link to the tokenizer")?;
    }
    Ok(())
}

/// The process whose command line names this folder and this member.
fn process_of(folder: &Path, member: &str) -> anyhow::Result<u32> {
    let folder = folder.to_str().context("a path is not UTF-8")?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("/proc cannot be read")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process may have ended since.
        let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).into_owned();
        let mut words = line.split('\0');
        if line.contains(folder) && words.any(|word| word == member) {
            found.push(pid);
        }
    }
    ensure!(found.len() == 1, "{member} of the run is {} processes, expected one", found.len());
    Ok(found[0])
}
