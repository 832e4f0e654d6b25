//! The processes of a cluster on this machine, under one supervisor.
//!
//! Invariants: every process started here is waited for; one that ends unasked is started again, a bounded number of times;
//! at the end all get SIGTERM, and SIGKILL at the deadline; should this process die, they end with it (they ask the system
//! for that signal by themselves, see `parent`). The system counts the thread that started a process as its parent: nothing
//! here may run where threads of the runtime come and go (`block_in_place`, `spawn_blocking`).

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::plan::Plan;
use crate::identity::MemberRole;

/// How often one member is started again after it ended unasked, without having run for [`STEADY`] in between.
const RESTARTS_MAX: u32 = 5;
/// A member that ran for so long is not one that cannot start.
const STEADY: Duration = Duration::from_secs(60);
/// The pause before the first of these; it doubles each time.
const RESTART_PAUSE: Duration = Duration::from_millis(200);
/// Requests to the supervisor that may wait.
const REQUESTS_MAX: usize = 16;
/// Bytes of the end of a member's log that are looked at, and lines of it that an error quotes.
const LOG_BYTES: u64 = 8 << 10;
const LOG_LINES: usize = 5;

/// Asks the supervisor for something; the answer comes when it is done.
enum Request {
    Start(Vec<String>, oneshot::Sender<anyhow::Result<()>>),
    Stop(Vec<String>, oneshot::Sender<anyhow::Result<()>>),
    Shutdown(oneshot::Sender<()>),
}

/// A handle to the supervisor. When it is dropped without [`Supervisor::shutdown`], the processes are killed.
pub(crate) struct Supervisor {
    requests: mpsc::Sender<Request>,
    failed: mpsc::Receiver<String>,
    task: JoinHandle<()>,
}

impl Supervisor {
    /// Starts every member of the plan; its decode workers without a model, if that is asked for.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub(crate) async fn start(
        plan: &Plan,
        drain: Duration,
        unmodelled: bool,
    ) -> anyhow::Result<Self> {
        let (requests, asked) = mpsc::channel(REQUESTS_MAX);
        let (fails, failed) = mpsc::channel(REQUESTS_MAX);
        let program = std::env::current_exe().context("this program's own path is unknown")?;
        let commands = plan.members.iter().map(|member| {
            let command = MemberCommand {
                program: program.clone(),
                role: member.role(),
                command: match member.role() {
                    MemberRole::Decode if unmodelled => vec!["bench", "decode"],
                    role => vec![role.as_str()],
                },
                name: member.name.clone(),
                file: plan.file(),
                log: plan.log(&member.name),
            };
            (member.name.clone(), command)
        });
        let state = State {
            commands: commands.collect(),
            running: BTreeMap::new(),
            restarts: BTreeMap::new(),
            pauses: BTreeMap::new(),
            fails,
            drain,
        };
        #[expect(clippy::disallowed_methods, reason = "the handle joins it in shutdown")]
        let task = tokio::spawn(state.run(asked));
        let this = Self { requests, failed, task };
        this.start_members(plan.members.iter().map(|member| member.name.clone()).collect()).await?;
        Ok(this)
    }

    /// Starts members that do not run.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub(crate) async fn start_members(&self, names: Vec<String>) -> anyhow::Result<()> {
        self.ask(|answer| Request::Start(names, answer)).await?
    }

    /// Stops members and waits for their end.
    ///
    /// # Errors
    /// When one is unknown.
    pub(crate) async fn stop_members(&self, names: Vec<String>) -> anyhow::Result<()> {
        self.ask(|answer| Request::Stop(names, answer)).await?
    }

    /// Waits until a member cannot be kept running, and says why. Cancel-safe.
    pub(crate) async fn failure(&mut self) -> String {
        match self.failed.recv().await {
            Some(failure) => failure,
            None => "the supervisor ended by a fault".to_owned(),
        }
    }

    /// Stops everything.
    pub(crate) async fn shutdown(self) {
        if self.ask(Request::Shutdown).await.is_err() {
            tracing::error!("the supervisor ended by a fault; its processes were killed");
        }
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the supervisor failed");
        }
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> anyhow::Result<T> {
        let (answer, answered) = oneshot::channel();
        let gone = || anyhow!("the supervisor ended by a fault");
        self.requests.send(request(answer)).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())
    }
}

/// How a member is started.
#[derive(Clone, Debug)]
struct MemberCommand {
    program: PathBuf,
    role: MemberRole,
    /// The words before its options.
    command: Vec<&'static str>,
    name: String,
    file: PathBuf,
    log: PathBuf,
}

impl MemberCommand {
    fn spawn(&self) -> anyhow::Result<Child> {
        let shown = self.log.display();
        let log: File = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .with_context(|| format!("{shown} cannot be written"))?;
        let output = log.try_clone().with_context(|| format!("{shown} cannot be written"))?;
        Command::new(&self.program)
            .args(["--log", "info"])
            .args(&self.command)
            .args(["--name", &self.name, "--config"])
            .arg(&self.file)
            .args(["--parent", &std::process::id().to_string()])
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{} cannot be started", self.name))
    }
}

struct State {
    commands: BTreeMap<String, MemberCommand>,
    running: BTreeMap<String, Child>,
    /// Restarts in a row, and when the last start was.
    restarts: BTreeMap<String, (u32, Instant)>,
    /// Members that ended, and when they are started again.
    pauses: BTreeMap<String, Instant>,
    fails: mpsc::Sender<String>,
    drain: Duration,
}

impl State {
    async fn run(mut self, mut asked: mpsc::Receiver<Request>) {
        loop {
            tokio::select! {
                request = asked.recv() => match request {
                    None => return,
                    Some(Request::Shutdown(answer)) => {
                        self.stop_all().await;
                        // The handle waits for the task, too.
                        let _unheard = answer.send(());
                        return;
                    }
                    Some(Request::Start(names, answer)) => {
                        let started = names.iter().try_for_each(|name| self.spawn(name));
                        let _unheard = answer.send(started);
                    }
                    Some(Request::Stop(names, answer)) => {
                        let stopped = self.stop(&names).await;
                        let _unheard = answer.send(stopped);
                    }
                },
                Some((name, status)) = ended(&mut self.running) => self.ended(&name, &status),
                Some(name) = due(&self.pauses) => {
                    if let Err(error) = self.spawn(&name) {
                        self.tell(format!("{error:#}"));
                    }
                }
            }
        }
    }

    fn spawn(&mut self, name: &str) -> anyhow::Result<()> {
        let command =
            self.commands.get(name).with_context(|| format!("no member is called {name}"))?;
        self.pauses.remove(name);
        if !self.running.contains_key(name) {
            let child = command.spawn()?;
            tracing::info!(name, pid = child.id(), "started a member");
            self.running.insert(name.to_owned(), child);
        }
        Ok(())
    }

    /// A member ended unasked: it is started again after a pause, or given up, which is said.
    fn ended(&mut self, name: &str, status: &str) {
        self.running.remove(name);
        let now = Instant::now();
        let (restarts, last) = self.restarts.entry(name.to_owned()).or_insert((0, now));
        if STEADY <= now - *last {
            *restarts = 0;
        }
        let log =
            self.commands.get(name).map(|command| last_lines(&command.log)).unwrap_or_default();
        if RESTARTS_MAX <= *restarts {
            let text =
                format!("{name} ended {} times ({status}); its log ends: {log}", RESTARTS_MAX + 1);
            self.tell(text);
            return;
        }
        tracing::warn!(name, status, restarts, "a member ended; starting it again");
        let pause = RESTART_PAUSE * 2_u32.pow(*restarts);
        *restarts += 1;
        *last = now + pause;
        self.pauses.insert(name.to_owned(), *last);
    }

    fn tell(&self, failure: String) {
        if let Err(unheard) = self.fails.try_send(failure) {
            tracing::error!(%unheard, "a member cannot be kept running");
        }
    }

    async fn stop(&mut self, names: &[String]) -> anyhow::Result<()> {
        let mut stopping = Vec::new();
        for name in names {
            if !self.commands.contains_key(name) {
                bail!("no member is called {name}");
            }
            self.pauses.remove(name);
            stopping.extend(self.running.remove(name).map(|child| (name.clone(), child)));
        }
        end(stopping, self.drain).await;
        Ok(())
    }

    /// Routers first, so that nothing new comes; then those who compute; the stores last, to take what these still offer.
    async fn stop_all(&mut self) {
        let order = [
            &[MemberRole::Router][..],
            &[MemberRole::Decode],
            &[MemberRole::Prefill],
            &[MemberRole::Kvstore],
        ];
        for roles in order {
            let is_one = |command: &&MemberCommand| roles.contains(&command.role);
            let names = self.commands.values().filter(is_one).map(|command| command.name.clone());
            let names: Vec<String> = names.collect();
            if let Err(error) = self.stop(&names).await {
                tracing::error!(%error, "a member cannot be stopped");
            }
        }
    }
}

/// Waits for the first member that ends; none when nothing runs. Cancel-safe.
async fn ended(running: &mut BTreeMap<String, Child>) -> Option<(String, String)> {
    let mut waits: FuturesUnordered<_> =
        running.iter_mut().map(async |(name, child)| (name.clone(), child.wait().await)).collect();
    let (name, status) = waits.next().await?;
    let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    Some((name, status))
}

/// Waits until the first pause is over; none when nothing pauses. Cancel-safe.
async fn due(pauses: &BTreeMap<String, Instant>) -> Option<String> {
    let (name, at) = pauses.iter().min_by_key(|(_, at)| **at)?;
    sleep_until(*at).await;
    Some(name.clone())
}

/// SIGTERM, and SIGKILL for those that still run at the deadline.
async fn end(mut stopping: Vec<(String, Child)>, drain: Duration) {
    for (name, child) in &stopping {
        if let Some(pid) = pid_of(child)
            && let Err(error) = kill_process(pid, Signal::TERM)
        {
            tracing::debug!(name, %error, "a member ended before its signal");
        }
    }
    let deadline = Instant::now() + drain;
    for (name, child) in &mut stopping {
        match timeout_at(deadline, child.wait()).await {
            Ok(Ok(status)) => tracing::info!(name, %status, "a member ended"),
            Ok(Err(error)) => tracing::warn!(name, %error, "a member cannot be waited for"),
            Err(_) => {
                tracing::warn!(name, "a member did not end in time and is killed");
                if let Err(error) = child.kill().await {
                    tracing::error!(name, %error, "a member cannot be killed");
                }
            }
        }
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()?).ok()?)
}

/// The end of a log, on one line.
pub(super) fn last_lines(log: &Path) -> String {
    let mut end = Vec::new();
    let read = File::open(log).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
        file.take(LOG_BYTES).read_to_end(&mut end)
    });
    if let Err(error) = read {
        return format!("(it cannot be read: {error})");
    }
    let text = String::from_utf8_lossy(&end);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join(" | ")
}
