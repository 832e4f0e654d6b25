//! What every role process has, and the parts of its life that are the same for all.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use axum::Router;
use engine::{Arithmetic, Checkpoint};
use gateway::MetricsProvider;
use kvstore::{PeerTransport, PeerWiring};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use shared::{BLOCK_TOKENS, Clock};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{interval, timeout};

use super::peers::Peers;
use crate::admin::{self, Observed};
use crate::cli::RoleArgs;
use crate::config::{ClusterConfig, Config, DiscoveryBackend, MemberConfig};
use crate::console::Console;
use crate::discovery::{self, Discovery, Found, View};
use crate::file_watch::FileWatch;
use crate::identity::{Identity, IdentityFiles, MemberRole, Reload};
use crate::lanes::{LaneThreads, Lanes};
use crate::serve::{StopSignals, accept, bind};
use crate::telemetry::{LogTap, Sender, Telemetry};
use crate::wire::{EventHub, Facts, PROTOCOL, RouterHub, ServerLimits, Services, serve};

/// Pause between two looks at the configuration and the certificates.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// Pause between two looks at whether the role's own thread still runs.
const RUNNING_PERIOD: Duration = Duration::from_secs(1);
/// How long connections may take to close after the drain.
const CLOSE_WAIT: Duration = Duration::from_secs(1);
/// Threads that answer other members, as many as did when they shared the main runtime.
const ANSWERING: usize = 2;

/// See the module's documentation.
pub(super) struct Base {
    pub(super) config: Config,
    pub(super) me: MemberConfig,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) identity: Arc<Identity>,
    pub(super) facts: Facts,
    pub(super) checkpoint: Checkpoint,
    pub(super) stop: StopSignals,
    pub(super) telemetry: Arc<Telemetry>,
    view: Arc<View>,
    /// The configuration, as it was when it was read.
    file: Option<FileWatch>,
    control: Option<TcpListener>,
    admin: Option<TcpListener>,
}

/// What a role answers other members with.
#[derive(Default)]
pub(super) struct Offered {
    pub(super) decode: Option<Arc<dyn shared::Decode>>,
    pub(super) prefill: Option<Arc<dyn shared::Prefill>>,
    pub(super) store: Option<Arc<dyn shared::BlockStore>>,
    pub(super) events: Option<Arc<EventHub>>,
    pub(super) routers: Option<Arc<RouterHub>>,
}

/// The tasks of a role that answers, and the way to end them.
pub(super) struct Running {
    stop: watch::Sender<bool>,
    tasks: JoinSet<anyhow::Result<()>>,
    /// Ends last: a member that is not found any more has its calls cut off.
    found: watch::Sender<bool>,
    discovery: JoinSet<()>,
    threads: LaneThreads,
}

impl Base {
    /// Reads the file, takes the addresses and opens the model.
    pub(super) async fn open(
        role: MemberRole,
        args: &RoleArgs,
        tap: &LogTap,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        end_with_parent(args.parent)?;
        let stop = StopSignals::new()?;
        let file = FileWatch::new(&[&args.config]);
        let config = Config::read(&args.config)?;
        let me = config.cluster.myself(role, args.name.as_deref())?.clone();
        let sender = Sender { name: me.name.clone(), role: role.as_str(), worker: Some(me.rank()) };
        let telemetry = Telemetry::start(&config.telemetry, &sender, tap, Arc::clone(&clock))?;
        let control = bind(me.control, "control of the member").await?;
        let admin = bind(me.admin, "admin of the member").await?;
        let shown = args.config.display();
        let tls = config.cluster.tls.as_ref();
        let tls = tls.with_context(|| {
            format!("{shown} names no folder with certificates; set cluster.tls")
        })?;
        let identity = Identity::load(IdentityFiles {
            authority: tls.join("ca.pem"),
            certificate: tls.join(format!("{}.pem", me.name)),
            key: tls.join(format!("{}.key", me.name)),
        })?;
        ensure!(
            *identity.member() == me.identity(),
            "the certificate is that of {}, but this is {}; issue one with this name and role",
            identity.member(),
            me.identity()
        );
        let model = config.cluster.model.as_ref();
        let model = model.with_context(|| format!("{shown} names no model; set cluster.model"))?;
        let (checkpoint, facts) = block_in_place(|| {
            anyhow::Ok({
                let checkpoint = Checkpoint::open(model)?;
                let facts = facts(&config, &me, &checkpoint, clock.as_ref())?;
                (checkpoint, facts)
            })
        })?;
        Ok(Self {
            config,
            me,
            identity: Arc::new(identity),
            facts,
            checkpoint,
            stop,
            telemetry: Arc::new(telemetry),
            view: View::new(Arc::clone(&clock)),
            clock,
            file: Some(file),
            control: Some(control),
            admin: Some(admin),
        })
    }

    /// The links to members of these roles. Threads of `lanes` get connections of their own.
    pub(super) fn peers(&self, roles: &'static [MemberRole], lanes: Lanes) -> Arc<Peers> {
        let peers = Peers::new(self, roles, Handle::current(), lanes);
        peers.set(&self.config.cluster);
        Arc::new(peers)
    }

    /// The data plane: reads from peers, and serves what is registered with it.
    pub(super) fn transport(&self, peers: &Arc<Peers>) -> anyhow::Result<PeerTransport> {
        let listen = self.me.data.context("this member has no data address; set data")?;
        let wiring = PeerWiring {
            runtime: Handle::current(),
            peers: Arc::clone(peers) as Arc<dyn kvstore::PeerDirectory>,
            tls: Arc::clone(&self.identity) as Arc<dyn kvstore::DataTls>,
            listen,
            shm: self.me.shm.clone(),
            clock: Arc::clone(&self.clock),
        };
        PeerTransport::start(self.config.transport, wiring)
            .context("the data plane ([transport] of the configuration)")
    }

    /// Waits until the role is told to stop, or stands still by a fault.
    ///
    /// # Errors
    /// When `is_running` says no: only a new process makes that good, and whoever supervises this one starts it.
    pub(super) async fn until_stopped(
        &mut self,
        is_running: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        let mut period = interval(RUNNING_PERIOD);
        loop {
            tokio::select! {
                () = self.stop.wait() => return Ok(()),
                _ = period.tick() => ensure!(
                    is_running(),
                    "the thread of {} ended by a fault, see the message above; start the process again",
                    self.me.name
                ),
            }
        }
    }

    /// How long requests in work are given at the end.
    pub(super) fn drain(&self) -> Duration {
        Duration::from_secs(self.config.server.drain_seconds)
    }

    /// Begins to answer members and operators, and to look after configuration and certificates.
    pub(super) fn answer(
        &mut self,
        offered: Offered,
        admin: Router,
        peers: &Arc<Peers>,
    ) -> anyhow::Result<Running> {
        let (stop, stopped) = watch::channel(false);
        let threads =
            LaneThreads::start(ANSWERING, None).context("the threads that answer members")?;
        let services = Services {
            facts: self.facts.clone(),
            clock: Arc::clone(&self.clock),
            limits: ServerLimits { drain_max: self.drain(), ..ServerLimits::DEFAULT },
            decode: offered.decode,
            prefill: offered.prefill,
            store: offered.store,
            events: offered.events,
            routers: offered.routers,
            lanes: threads.lanes(),
        };
        let control = self.control.take().context("a role answers once")?;
        let operators = self.admin.take().context("a role answers once")?;
        let mut tasks = JoinSet::new();
        let control = serve(control, Arc::clone(&self.identity), services, stopped.clone());
        tasks.spawn(async move {
            let report = control.await;
            if report.connections_cut_off != 0 {
                tracing::warn!(
                    connections = report.connections_cut_off,
                    "cut off at the end of the drain"
                );
            }
            Ok(())
        });
        let accepting = accept(operators, admin, stopped.clone());
        tasks.spawn(async move { Ok(accepting.await?) });
        let file = self.file.take().context("a role answers once")?;
        let identity = Arc::clone(&self.identity);
        let is_static = self.config.discovery.backend == DiscoveryBackend::Static;
        let listed = is_static.then(|| Arc::clone(peers));
        tasks.spawn(look_after(file, identity, listed, stopped));
        let (found, until) = watch::channel(false);
        let mut discovery = JoinSet::new();
        discovery.spawn(discovery::run(self.discovery(peers), until));
        Ok(Running { stop, tasks, found, discovery, threads })
    }

    fn discovery(&self, peers: &Arc<Peers>) -> Discovery {
        let peers = Arc::clone(peers);
        Discovery {
            config: self.config.discovery.clone(),
            me: self.me.clone(),
            identity: Arc::clone(&self.identity),
            view: Arc::clone(&self.view),
            apply: Box::new(move |Found { members, ending }| {
                let is_ending = |member: &&MemberConfig| ending.contains(&member.name);
                let ending = members.iter().filter(is_ending).map(MemberConfig::rank).collect();
                peers.set(&ClusterConfig { member: members, ..ClusterConfig::default() });
                peers.set_ending(&ending);
            }),
        }
    }

    /// How discovery stands; nothing while the members are those of the file.
    pub(super) fn discovery_figures(&self) -> MetricsProvider {
        let is_static = self.config.discovery.backend == DiscoveryBackend::Static;
        let view = Arc::clone(&self.view);
        Arc::new(move |text| {
            if !is_static {
                view.write(text);
            }
        })
    }

    /// The admin routes of a process without a front door.
    pub(super) fn admin(observed: Observed) -> Router {
        admin::router(observed, None)
    }

    /// The line by which a person or a script knows that the role answers.
    pub(super) fn say_ready(&self, console: &mut Console) -> anyhow::Result<()> {
        let MemberConfig { name, control, admin, .. } = &self.me;
        console.line(&format!("{name} answers on {control}, admin on http://{admin}"))?;
        Ok(())
    }
}

impl Running {
    /// Ends the answering: no new calls, those in progress until the deadline, then everything.
    pub(super) async fn end(mut self, deadline: Duration) {
        self.stop.send_replace(true);
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                match ended {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::error!(%error, "a task of this role failed"),
                    Err(error) => tracing::error!(%error, "a task of this role died"),
                }
            }
        };
        if timeout(deadline + CLOSE_WAIT, all).await.is_err() {
            tracing::warn!("tasks were cut off at the end of the drain");
            self.tasks.shutdown().await;
        }
        self.found.send_replace(true);
        let left = async { while self.discovery.join_next().await.is_some() {} };
        if timeout(CLOSE_WAIT, left).await.is_err() {
            self.discovery.shutdown().await;
        }
        block_in_place(|| drop(self.threads));
    }
}

/// Asks the system to end this process with the one that started it.
fn end_with_parent(parent: Option<u32>) -> anyhow::Result<()> {
    let Some(parent) = parent else { return Ok(()) };
    set_parent_process_death_signal(Some(Signal::TERM)).context("--parent cannot be watched")?;
    // It may have ended before the system was asked.
    let now = getppid().map(|pid| pid.as_raw_nonzero().get());
    if now != i32::try_from(parent).ok() {
        bail!("the process {parent}, which started this one, is gone");
    }
    Ok(())
}

fn facts(
    config: &Config,
    me: &MemberConfig,
    checkpoint: &Checkpoint,
    clock: &dyn Clock,
) -> anyhow::Result<Facts> {
    let arithmetic: Arithmetic = config.server.arith.into();
    let tokenizer = checkpoint.folder().join("tokenizer.json");
    let tokenizer =
        fs::read(&tokenizer).with_context(|| format!("{} cannot be read", tokenizer.display()))?;
    Ok(Facts {
        protocol: PROTOCOL,
        model: checkpoint.model_id()?,
        layout: checkpoint.config().layout().fingerprint(),
        numerics: arithmetic.numerics(),
        block_tokens: BLOCK_TOKENS,
        tokenizer: *blake3::hash(&tokenizer).as_bytes(),
        member: me.identity(),
        worker: me.rank(),
        incarnation: clock.incarnation(),
    })
}

/// Reads the certificates again when their files change, and the configuration's members, if these are what counts.
async fn look_after(
    mut file: FileWatch,
    identity: Arc<Identity>,
    listed: Option<Arc<Peers>>,
    mut stopped: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let mut period = interval(LOOK_PERIOD);
    loop {
        tokio::select! {
            // A dropped sender says the same.
            _ = stopped.wait_for(|stop| *stop) => return Ok(()),
            _ = period.tick() => {}
        }
        let changed = listed
            .as_ref()
            .and_then(|peers| Some((peers, block_in_place(|| changed_cluster(&mut file))?)));
        match changed {
            None => {}
            Some((peers, Ok(cluster))) => peers.set(&cluster),
            Some((_, Err(error))) => {
                let error = format!("{error:#}");
                tracing::error!(
                    error,
                    "the changed configuration cannot be used; the members stay as they are"
                );
            }
        }
        match block_in_place(|| identity.reload_if_changed()) {
            Ok(Reload::Taken) => tracing::info!("certificates were replaced"),
            Ok(Reload::Unchanged) => {}
            Err(error) => {
                tracing::error!(%error, "the new certificates cannot be used; the old ones stay");
            }
        }
    }
}

/// The cluster of a configuration that changed. One that cannot be read is tried again with every look. Blocks on the file.
fn changed_cluster(file: &mut FileWatch) -> Option<anyhow::Result<ClusterConfig>> {
    file.look(|paths| Ok(Config::read(&paths[0])?.cluster))
}

/// An address as the file has it.
pub(super) fn shown(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "nowhere".to_owned(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::changed_cluster;
    use crate::file_watch::FileWatch;

    #[test]
    fn a_configuration_that_could_not_be_read_is_read_again_within_a_tick_of_the_clock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kvasir.toml");
        fs::write(&path, "").unwrap();
        let mut file = FileWatch::new(&[&path]);
        assert!(changed_cluster(&mut file).is_none());
        fs::write(&path, "[clus").unwrap();
        let at = fs::metadata(&path).unwrap().modified().unwrap();
        assert!(changed_cluster(&mut file).unwrap().is_err(), "half of it is written");
        assert!(changed_cluster(&mut file).is_none(), "told once");
        fs::write(&path, "[cluster]\n").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(at).unwrap();
        assert!(changed_cluster(&mut file).unwrap().is_ok());
        assert!(changed_cluster(&mut file).is_none());
    }
}
