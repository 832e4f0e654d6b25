//! `kvasir serve`: the life of a server, from bound sockets to the end of the drain.
//!
//! Sockets are bound before the model is loaded, so that a taken port is told at once; nothing is accepted before every
//! role runs. A signal while the model loads ends the process at once: the loading thread is left behind. At the end: refuse new requests, let those in work finish until the deadline, cut off the rest and say so.

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use axum::Router;
use engine::{Checkpoint, LoadedShare};
use gateway::scripted::{Script, ScriptedCluster, ScriptedEngine};
use gateway::{Gateway, GatewayParts, HealthCheck, LineageChoice, MetricsProvider};
use shared::{Clock, DecodeDirectory, Placer};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet, block_in_place, spawn_blocking};
use tokio::time::timeout;

use crate::admin::{self, Observed};
use crate::cli::{LineageArg, ServeArgs};
use crate::clock::random_bytes;
use crate::config::Config;
use crate::console::Console;
use crate::explain;
use crate::lanes::LaneThreads;
use crate::model;
use crate::public::Public;
use crate::telemetry::{LogTap, Sender, Telemetry};
use crate::wiring::Cluster;

/// Lines of progress that may wait to be shown; the load waits beyond that.
const LINES: usize = 16;
/// How long connections may take to close after their last answer.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// Serves until SIGTERM or Ctrl-C, then drains.
///
/// # Errors
/// When a setting, a port or the model cannot be used.
pub(crate) async fn run(
    args: &ServeArgs,
    tap: &LogTap,
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let config = settings(args)?;
    for table in config.unused_by_serve() {
        console.progress(&format!(
            "{table} has no effect here: it is for clusters (kvasir up, or a process per role)"
        ));
    }
    let mut stop = StopSignals::new()?;
    let sender = Sender { name: "serve".to_owned(), role: "serve", worker: None };
    let telemetry = Telemetry::start(&config.telemetry, &sender, tap, Arc::clone(&clock))?;
    let telemetry = Arc::new(telemetry);
    let loading = Loading {
        config: config.clone(),
        folder: args.model.clone(),
        scripted: args.scripted.clone(),
        telemetry: Arc::clone(&telemetry),
        clock,
    };
    let Some(server) = Server::start(loading, &mut stop, console).await? else {
        console.progress("stopped before the model was loaded");
        return Ok(());
    };
    console.line(&format!("admin on http://{}", server.admin))?;
    let name = &server.model_name;
    let scheme = server.scheme;
    console.line(&format!("listening on {scheme}://{} (model {name})", server.clients))?;
    stop.wait().await;
    let left = server.stop(&config, &mut stop, console).await;
    telemetry.shutdown().await;
    let left = left?;
    let rest = if left == 0 { String::new() } else { format!("; {left} requests were cut off") };
    console.line(&format!("drained{rest}"))?;
    Ok(())
}

/// The file's settings with the command line's on top.
fn settings(args: &ServeArgs) -> anyhow::Result<Config> {
    let mut config = match &args.config {
        Some(path) => Config::read(path)?,
        None => Config::default(),
    };
    if let Some(listen) = args.listen {
        config.server.listen = listen;
    }
    if let Some(admin) = args.admin {
        config.server.admin = admin;
    }
    if let Some(arith) = args.arith {
        config.server.arith = arith;
    }
    if let Some(lineage) = args.lineage {
        config.gateway.lineage = match lineage {
            LineageArg::Exact => LineageChoice::Exact,
            LineageArg::Bounded => LineageChoice::Bounded,
        };
    }
    config.check()?;
    Ok(config)
}

/// SIGTERM and SIGINT.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let hear = |kind| signal(kind).context("signals cannot be heard");
        Ok(Self {
            terminate: hear(SignalKind::terminate())?,
            interrupt: hear(SignalKind::interrupt())?,
        })
    }

    /// Waits for either. Cancel-safe.
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Who answers: the roles of this process, or a script.
pub(crate) enum Backend {
    /// Router, workers and store.
    Roles(Arc<Cluster>),
    /// Given token sequences.
    Script(ScriptedCluster),
}

impl Backend {
    /// Starts the roles, or reads the script. Blocks while the model loads.
    pub(crate) fn start(
        config: &Config,
        checkpoint: &Checkpoint,
        scripted: Option<&Path>,
        telemetry: &Telemetry,
        clock: &Arc<dyn Clock>,
        progress: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Self> {
        let Some(path) = scripted else {
            let cluster = Cluster::start_traced(config, checkpoint, clock, telemetry, progress)?;
            progress(&loaded_line(cluster.prefill_loaded_share()));
            return Ok(Self::Roles(Arc::new(cluster)));
        };
        let script = Script::read(path)?;
        let tokenizer = checkpoint.folder().join("tokenizer.json");
        let engine = ScriptedEngine::start(script, &tokenizer, Arc::clone(clock))?;
        Ok(Self::Script(ScriptedCluster::new(Arc::new(engine))))
    }

    /// The front door before this backend. Blocks while the tokenizer loads.
    pub(crate) fn gateway(
        &self,
        config: &Config,
        checkpoint: &Checkpoint,
        telemetry: &Telemetry,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<(Gateway, String)> {
        let served = model::served(&config.server, checkpoint, clock.as_ref())?;
        let name = served.names.first().cloned().unwrap_or_default();
        let (placer, directory): (Arc<dyn Placer>, Arc<dyn DecodeDirectory>) = match self {
            Self::Roles(cluster) => (cluster.placer(), cluster.directory()),
            Self::Script(cluster) => (Arc::new(cluster.clone()), Arc::new(cluster.clone())),
        };
        let parts = GatewayParts {
            placer,
            directory: telemetry.directory(directory),
            health: self.health(),
            clock: Arc::clone(clock),
            request_id_seed: random_bytes().context("no random bytes for request ids")?,
            evidence: explain::evidence_policy(&config.explain)?,
        };
        Ok((Gateway::new(config.gateway.clone(), served, parts)?, name))
    }

    fn health(&self) -> HealthCheck {
        match self {
            Self::Roles(cluster) => {
                let cluster = Arc::clone(cluster);
                Arc::new(move || cluster.health())
            }
            Self::Script(_) => Arc::new(|| Ok(())),
        }
    }

    fn admin_router(
        &self,
        gateway: &Gateway,
        telemetry: &Telemetry,
        public: MetricsProvider,
    ) -> Router {
        let mut observed = match self {
            Self::Roles(cluster) => Observed::of_cluster(cluster),
            // There are no pools, so only what is in work is told.
            Self::Script(_) => Observed::default(),
        };
        observed.figures.extend([telemetry.figures(), public]);
        admin::router(observed, Some(gateway))
    }

    fn begin_drain(&self) {
        if let Self::Roles(cluster) = self {
            cluster.begin_drain();
        }
    }
}

fn loaded_line(share: LoadedShare) -> String {
    format!(
        "a prefill worker loads {:.1} % of the checkpoint, {:.1} % without the Engram tables",
        100.0 * share.with_tables,
        100.0 * share.without_tables
    )
}

/// What a backend is started from.
pub(crate) struct Loading {
    pub(crate) config: Config,
    /// Of the checkpoint.
    pub(crate) folder: PathBuf,
    /// The script instead of the model, if any.
    pub(crate) scripted: Option<PathBuf>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// What clients and operators are served from, and the model's name.
type Loaded = (Backend, Gateway, String);

impl Loading {
    /// Blocks while the model loads.
    fn run(&self, progress: &mut dyn FnMut(&str)) -> anyhow::Result<Loaded> {
        let Self { config, folder, scripted, telemetry, clock } = self;
        let checkpoint = Checkpoint::open(folder)?;
        let scripted = scripted.as_deref();
        let backend = Backend::start(config, &checkpoint, scripted, telemetry, clock, progress)?;
        let (gateway, name) = backend.gateway(config, &checkpoint, telemetry, clock)?;
        Ok((backend, gateway, name))
    }

    /// The same on a thread of its own, and the lines of its progress. The thread goes on when nobody waits for it.
    fn spawn(self) -> (JoinHandle<anyhow::Result<Loaded>>, mpsc::Receiver<String>) {
        let (lines, shown) = mpsc::channel(LINES);
        let work = move || {
            self.run(&mut |line| {
                if lines.blocking_send(line.to_owned()).is_err() {
                    tracing::debug!(line, "nobody waits for the model any more");
                }
            })
        };
        (spawn_blocking(work), shown)
    }
}

/// Waits for a load and shows its progress; none when a signal came first.
async fn load(
    loading: Loading,
    stop: &mut StopSignals,
    console: &mut Console,
) -> anyhow::Result<Option<Loaded>> {
    let (mut loaded, mut lines) = loading.spawn();
    loop {
        tokio::select! {
            // Every line comes before the result; the channel ends with the load.
            biased;
            () = stop.wait() => return Ok(None),
            Some(line) = lines.recv() => console.progress(&line),
            loaded = &mut loaded => {
                return loaded.context("the load broke off by a fault")?.map(Some);
            }
        }
    }
}

/// A server that accepts requests.
pub(crate) struct Server {
    /// Where clients connect.
    pub(crate) clients: SocketAddr,
    /// How clients connect: `http` or `https`.
    pub(crate) scheme: &'static str,
    /// Where operators connect.
    pub(crate) admin: SocketAddr,
    /// What clients call the model.
    pub(crate) model_name: String,
    gateway: Gateway,
    backend: Backend,
    stop: watch::Sender<bool>,
    tasks: JoinSet<std::io::Result<()>>,
    threads: LaneThreads,
}

impl Server {
    /// Binds, loads and serves; none when a signal came before that. The thread that loads is then left to the end of
    /// the process.
    ///
    /// # Errors
    /// When a port is taken or the model cannot be used.
    pub(crate) async fn start(
        loading: Loading,
        stop_signals: &mut StopSignals,
        console: &mut Console,
    ) -> anyhow::Result<Option<Self>> {
        let clients = bind(loading.config.server.listen, "--listen").await?;
        let operators = bind(loading.config.server.admin, "--admin").await?;
        let public = block_in_place(|| Public::open(&loading.config.http))?;
        let threads = loading.config.http.start_threads(&loading.clock)?;
        let scheme = public.scheme();
        let telemetry = Arc::clone(&loading.telemetry);
        let Some((backend, gateway, model_name)) = load(loading, stop_signals, console).await?
        else {
            return Ok(None);
        };
        let (stop, stopped) = watch::channel(false);
        let (clients_at, operators_at) = (clients.local_addr()?, operators.local_addr()?);
        let mut tasks = JoinSet::new();
        let admin_router = backend.admin_router(&gateway, &telemetry, public.figures());
        let serving = public.serve(clients, (gateway.clone(), threads.lanes()), stopped.clone());
        tasks.spawn(async move {
            serving.await;
            Ok(())
        });
        tasks.spawn(accept(operators, admin_router, stopped));
        Ok(Some(Self {
            clients: clients_at,
            scheme,
            admin: operators_at,
            model_name,
            gateway,
            backend,
            stop,
            tasks,
            threads,
        }))
    }

    /// Drains: no new requests, those in work until the deadline or a second signal, then the end of every task and thread.
    /// Says how many requests were cut off.
    ///
    /// # Errors
    /// When a listener had failed.
    pub(crate) async fn stop(
        self,
        config: &Config,
        again: &mut StopSignals,
        console: &mut Console,
    ) -> anyhow::Result<usize> {
        let Self { gateway, backend, stop, mut tasks, threads, .. } = self;
        let deadline = Duration::from_secs(config.server.drain_seconds);
        console.progress(&format!(
            "draining: {} requests in work, at most {} s; a second signal cuts them off",
            gateway.in_flight(),
            deadline.as_secs()
        ));
        gateway.begin_drain();
        tokio::select! {
            _ = timeout(deadline, gateway.drained()) => {}
            () = again.wait() => {}
        }
        let left = gateway.in_flight();
        backend.begin_drain();
        // The receivers are in the tasks; without them everything has ended already.
        stop.send_replace(true);
        gateway.cut_off().await;
        let failed = close(&mut tasks).await;
        // Worker threads are joined here; a step in progress is finished first.
        block_in_place(|| {
            drop(threads);
            drop(gateway);
            drop(backend);
        });
        failed.map_or(Ok(left), Err)
    }
}

/// Waits for the listeners' tasks, ends those that stay too long, and gives the first failure.
async fn close(tasks: &mut JoinSet<std::io::Result<()>>) -> Option<anyhow::Error> {
    let mut failed = None;
    let mut take = |joined: Result<std::io::Result<()>, tokio::task::JoinError>| match joined {
        Ok(Ok(())) => {}
        Ok(Err(error)) => failed = failed.take().or_else(|| Some(anyhow!(error))),
        Err(error) if error.is_cancelled() => {}
        Err(error) => failed = failed.take().or_else(|| Some(anyhow!(error))),
    };
    let all = async {
        while let Some(joined) = tasks.join_next().await {
            take(joined);
        }
    };
    if timeout(CLOSE_WAIT, all).await.is_err() {
        tasks.abort_all();
        while let Some(joined) = tasks.join_next().await {
            take(joined);
        }
    }
    failed
}

pub(crate) async fn bind(address: SocketAddr, option: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            anyhow!("{address} is in use; stop who uses it or choose another with {option}")
        }
        _ => anyhow!("cannot listen on {address} ({error}); choose another with {option}"),
    })
}

/// Serves one router until told to stop; answers in work are finished.
pub(crate) fn accept(
    listener: TcpListener,
    router: Router,
    mut stopped: watch::Receiver<bool>,
) -> impl Future<Output = std::io::Result<()>> {
    let told = async move {
        // A dropped sender says the same.
        if stopped.wait_for(|stop| *stop).await.is_err() {
            tracing::debug!("the server is gone");
        }
    };
    let serving = axum::serve(listener, router).with_graceful_shutdown(told);
    async move { serving.await }
}
