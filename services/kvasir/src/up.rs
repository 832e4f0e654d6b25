//! `kvasir up`: a whole cluster on this machine, each member a process of its own on loopback.
//!
//! Everything it makes lies in one folder, `--state DIR`, or a temporary one that is removed at the end. At the end no
//! process and no socket is left.

mod children;
mod plan;

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use shared::Clock;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::cli::UpArgs;
use crate::client::Client;
use crate::config::MemberConfig;
use crate::console::Console;
use crate::identity::MemberRole;
use crate::serve::StopSignals;
use children::Supervisor;
use plan::{Plan, Wanted};

pub(crate) use plan::Replicas;

/// How often and how long to wait until a member answers: 120 seconds in all, enough to map a model from a cold drive.
const READY_TRIES: u32 = 1_200;
const READY_WAIT: Duration = Duration::from_millis(100);
/// The same for all tries together, should a member take a question and not answer it.
const READY_MAX: Duration = Duration::from_secs(150);
/// Beyond the drain that members are given for their requests.
const END_GRACE: Duration = Duration::from_secs(5);

/// What a cluster is started from.
pub(crate) struct UpOptions {
    pub(crate) model: PathBuf,
    /// Kept when given; a temporary folder otherwise.
    pub(crate) state: Option<PathBuf>,
    pub(crate) replicas: Replicas,
    /// Settings of all roles.
    pub(crate) settings: toml::Table,
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) drain: Duration,
    /// Decode workers without a model, for `kvasir bench router`.
    pub(crate) unmodelled: bool,
}

/// A running cluster of processes. [`LocalCluster::shutdown`] ends it; dropping it kills the processes.
pub(crate) struct LocalCluster {
    plan: Plan,
    supervisor: Supervisor,
    clock: Arc<dyn Clock>,
    /// Members that were stopped on purpose.
    stopped: BTreeSet<String>,
    /// Keeps others out of the folder.
    lock: File,
    /// Removed last.
    temporary: Option<TempDir>,
}

impl LocalCluster {
    /// Starts all members and waits until the router has a decode worker, and every other member has joined it.
    ///
    /// # Errors
    /// When a setting is wrong, or a member does not start; the text ends with the end of its log.
    /// When `stop` is heard meanwhile; everything has ended then.
    pub(crate) async fn start(
        options: UpOptions,
        clock: Arc<dyn Clock>,
        stop: &mut StopSignals,
    ) -> anyhow::Result<Self> {
        let temporary = match &options.state {
            Some(_) => None,
            None => {
                let made = tempfile::Builder::new().prefix("kvasir-up-").tempdir();
                Some(made.context("no temporary folder; name one with --state DIR")?)
            }
        };
        let folder = match (&options.state, &temporary) {
            (Some(folder), _) => {
                plan::claim(folder)?;
                fs::canonicalize(folder)?
            }
            (None, Some(made)) => made.path().to_owned(),
            (None, None) => unreachable!("made above"),
        };
        let lock = lock(&folder)?;
        let wanted = Wanted {
            folder: &folder,
            model: &options.model,
            replicas: options.replicas,
            settings: options.settings,
            listen: options.listen,
        };
        let plan = plan::write(wanted, &clock)?;
        let supervisor =
            Supervisor::start(&plan, options.drain + END_GRACE, options.unmodelled).await?;
        let mut cluster =
            Self { plan, supervisor, clock, stopped: BTreeSet::new(), lock, temporary };
        let ready = tokio::select! {
            ready = cluster.ready() => ready,
            () = stop.wait() => Err(anyhow!("interrupted while the cluster started")),
        };
        if let Err(error) = ready {
            cluster.shutdown().await;
            return Err(error);
        }
        Ok(cluster)
    }

    /// The folder with everything that belongs to the cluster.
    pub(crate) fn folder(&self) -> &Path {
        &self.plan.folder
    }

    /// The members of one role.
    pub(crate) fn role(&self, role: MemberRole) -> impl Iterator<Item = &MemberConfig> {
        self.plan.role(role)
    }

    /// Where clients connect.
    pub(crate) fn url(&self) -> String {
        let listen = self.role(MemberRole::Router).find_map(|router| router.listen);
        format!("http://{}", listen.expect("every router of a plan listens"))
    }

    /// The admin listeners of all members.
    pub(crate) fn admins(&self) -> Vec<String> {
        self.plan.members.iter().map(|member| format!("http://{}", member.admin)).collect()
    }

    /// Waits until every member that runs has joined, as the routers tell.
    ///
    /// # Errors
    /// When that takes too long or a member cannot be kept running.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        let names: Vec<String> =
            self.plan.members.iter().map(|member| member.name.clone()).collect();
        self.joined(&names).await
    }

    /// Waits until every member that runs knows these members.
    ///
    /// # Errors
    /// As for [`LocalCluster::ready`].
    pub(crate) async fn joined(&mut self, names: &[String]) -> anyhow::Result<()> {
        let running = self.plan.members.iter();
        let running = running.filter(|member| !self.stopped.contains(&member.name));
        let running: Vec<MemberConfig> = running.cloned().collect();
        let clock = Arc::clone(&self.clock);
        tokio::select! {
            joined = timeout(READY_MAX, wait_until_joined(&running, names, &clock)) => {
                joined.unwrap_or_else(|_| Err(anyhow!("a member does not answer; see the logs in the state folder")))
            }
            failure = self.supervisor.failure() => bail!("the cluster does not start: {failure}"),
        }
    }

    /// Waits until a member cannot be kept running. Cancel-safe.
    pub(crate) async fn failure(&mut self) -> String {
        self.supervisor.failure().await
    }

    /// Stops members as an operator would, with a drain.
    ///
    /// # Errors
    /// When one is unknown.
    pub(crate) async fn stop(&mut self, names: &[String]) -> anyhow::Result<()> {
        self.stopped.extend(names.iter().cloned());
        self.supervisor.stop_members(names.to_vec()).await
    }

    /// Waits until no member that runs has a link to these, which were stopped.
    ///
    /// # Errors
    /// When that takes too long.
    pub(crate) async fn left(&self, names: &[String]) -> anyhow::Result<()> {
        for _ in 0..READY_TRIES {
            let mut linked = false;
            for admin in self.admins_running() {
                let client = Client::http(&admin, None, Arc::clone(&self.clock))?;
                let known = client.json("GET", "/debug/members").await?;
                linked |= names.iter().any(|name| known[name.as_str()]["state"] == "ready");
            }
            if !linked {
                return Ok(());
            }
            sleep(READY_WAIT).await;
        }
        bail!("{} did not leave in time", names.join(", "))
    }

    /// The admin listeners of the members that run.
    pub(crate) fn admins_running(&self) -> Vec<String> {
        let running = self.plan.members.iter();
        let running = running.filter(|member| !self.stopped.contains(&member.name));
        running.map(|member| format!("http://{}", member.admin)).collect()
    }

    /// Starts members that were stopped, and waits until they have joined.
    ///
    /// # Errors
    /// When one does not start.
    pub(crate) async fn start_again(&mut self, names: &[String]) -> anyhow::Result<()> {
        self.supervisor.start_members(names.to_vec()).await?;
        self.stopped.retain(|name| !names.contains(name));
        self.joined(names).await
    }

    /// Ends every process, and removes the folder if it is temporary.
    pub(crate) async fn shutdown(self) {
        let Self { plan, supervisor, lock, temporary, .. } = self;
        supervisor.shutdown().await;
        for socket in plan.members.iter().filter_map(|member| member.shm.as_ref()) {
            // A member that was killed left it; the others removed theirs.
            if fs::remove_file(socket).is_ok() {
                tracing::debug!(socket = %socket.display(), "removed a socket that was left");
            }
        }
        drop(lock);
        if let Some(made) = temporary
            && let Err(error) = made.close()
        {
            tracing::warn!(%error, "the temporary folder cannot be removed");
        }
    }
}

/// Takes the folder: a second cluster there would write over addresses and certificates that the first one lives by.
fn lock(folder: &Path) -> anyhow::Result<File> {
    let path = folder.join("lock");
    let opened = File::options().write(true).create(true).truncate(false).open(&path);
    let file = opened.with_context(|| format!("{} cannot be made", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!(
            "{} is in use by another kvasir up; stop that one or name another folder with --state",
            folder.display()
        ),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("{} cannot be locked", path.display()))
        }
    }
}

/// Waits until every member that runs sees each of `names` that it is linked to, and every router has heard them.
async fn wait_until_joined(
    running: &[MemberConfig],
    names: &[String],
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<()> {
    let mut missing = BTreeSet::new();
    for _ in 0..READY_TRIES {
        missing.clear();
        for member in running {
            let client =
                Client::http(&format!("http://{}", member.admin), None, Arc::clone(clock))?;
            let Ok(known) = client.json("GET", "/debug/members").await else {
                missing.insert(member.name.clone());
                continue;
            };
            for name in names {
                let state = &known[name.as_str()];
                let there = state["state"] == "ready" && state["joined"] != false;
                if state.is_object() && !there {
                    missing.insert(name.clone());
                }
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        sleep(READY_WAIT).await;
    }
    let missing: Vec<String> = missing.into_iter().collect();
    bail!("{} did not join in time; see their logs in the state folder", missing.join(", "))
}

/// Settings that name files.
const FILES: [(&str, &str); 4] = [
    ("server", "cluster_secret_file"),
    ("http", "keys_file"),
    ("http", "certificate_file"),
    ("http", "key_file"),
];

/// Files that the settings name stand beside them, not in the state folder.
fn with_absolute_files(
    mut settings: toml::Table,
    file: Option<&Path>,
) -> anyhow::Result<toml::Table> {
    let Some(file) = file else { return Ok(settings) };
    for (table, key) in FILES {
        let table_of = settings.get_mut(table).and_then(toml::Value::as_table_mut);
        let Some(value) = table_of.and_then(|table| table.get_mut(key)) else { continue };
        let named = value.as_str().with_context(|| format!("{table}.{key} is no text"))?;
        if named.is_empty() {
            continue;
        }
        let path = file.parent().unwrap_or_else(|| Path::new("")).join(named);
        let path = fs::canonicalize(&path)
            .with_context(|| format!("{table}.{key} {} cannot be found", path.display()))?;
        *value = path.to_str().context("a path is not UTF-8")?.into();
    }
    Ok(settings)
}

/// Runs a cluster until SIGTERM or Ctrl-C.
///
/// # Errors
/// When it does not start or a member cannot be kept running.
pub(crate) async fn run(
    args: &UpArgs,
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let settings = match &args.config {
        Some(path) => {
            let text = fs::read_to_string(path)
                .with_context(|| format!("{} cannot be read", path.display()))?;
            text.parse().with_context(|| format!("{} is not TOML", path.display()))?
        }
        None => toml::Table::new(),
    };
    let (settings, drain) = args.apply(settings)?;
    let settings = with_absolute_files(settings, args.config.as_deref())?;
    let certificate = settings.get("http").and_then(|http| http.get("certificate_file"));
    let has_tls = certificate.and_then(toml::Value::as_str).is_some_and(|path| !path.is_empty());
    let mut stop = StopSignals::new()?;
    let options = UpOptions {
        model: args.model.clone(),
        state: args.state.clone(),
        replicas: args.replicas(),
        settings,
        listen: args.listen,
        drain,
        unmodelled: false,
    };
    console.progress("starting the members");
    let mut cluster = LocalCluster::start(options, clock, &mut stop).await?;
    for member in &cluster.plan.members {
        console.line(&format!("{} {} admin http://{}", member.role, member.name, member.admin))?;
    }
    console.line(&format!("state in {}", cluster.folder().display()))?;
    let url = cluster.url();
    let url = if has_tls { url.replacen("http://", "https://", 1) } else { url };
    console.line(&format!("listening on {url}"))?;
    let failure = tokio::select! {
        () = stop.wait() => None,
        failure = cluster.failure() => Some(failure),
    };
    console.progress("stopping the members");
    cluster.shutdown().await;
    match failure {
        None => {
            console.line("stopped")?;
            Ok(())
        }
        Some(failure) => bail!("{failure}"),
    }
}
