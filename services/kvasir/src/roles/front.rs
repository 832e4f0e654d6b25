//! The router as a process: front door, placement, and what the other members tell.
//!
//! A member counts as joined once it told something: a worker tells with each report of its load, so a process that
//! answers while its worker stands still does not join. One that falls silent for `server.worker_silence_seconds` is taken for stuck: its link
//! is made anew, which ends its requests here, and they go on elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, ensure};
use gateway::{Gateway, GatewayParts};
use parking_lot::Mutex;
use router::{DrainSource, Role, Router};
use serde_json::{Value, json};
use shared::{
    CacheQuestion, Clock, DecodeDirectory, Flow, Placer, Timestamp, WorkerEvent, WorkerRank,
};
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{interval, timeout};

use super::base::{Base, Offered};
use super::peers::Peers;
use super::routers;
use crate::admin::{self, Observed, Routing};
use crate::capture::Recorder;
use crate::clock::random_bytes;
use crate::config::{MemberConfig, ROLLBACK};
use crate::console::Console;
use crate::explain::{Predictions, evidence_policy};
use crate::identity::MemberRole;
use crate::model;
use crate::public::Public;
use crate::serve::bind;
use crate::wire::{Link, RouterHub, Watch, Watched, watch as watch_member};
use crate::wiring::parts::{DrainWord, Placement, PlacementParts, Teller, Told};

/// The roles that a router listens to.
const HEARD: &[MemberRole] = &MemberRole::ALL;
/// The epoch of a member that nobody listens to.
const NOBODY: u64 = u64::MAX;
/// Pause between two looks at who is silent.
const SILENCE_PERIOD: Duration = Duration::from_secs(1);

/// Why a router is not ready.
const NO_THREAD: &str = "the placement thread ended by a fault and needs a restart of this process";
const NO_DECODE: &str =
    "no decode worker has joined this router; look at /debug/members of its admin listener";

/// Runs the router until it is told to stop.
///
/// # Errors
/// When a setting, an address or the tokenizer cannot be used.
pub(super) async fn run(mut base: Base, console: &mut Console) -> anyhow::Result<()> {
    let listen = base.me.listen.unwrap_or(base.config.server.listen);
    ensure!(
        base.config.server.cluster_secret_file.is_some(),
        "a router of a cluster needs server.cluster_secret_file: without it cached blocks would be lost with each restart, and \
         two routers would share none; make one with openssl rand -hex 32 and chmod 600"
    );
    let clients = bind(listen, "listen of the member").await?;
    let public = block_in_place(|| Public::open(&base.config.http))?;
    let scheme = public.scheme();
    let peers = base.peers(HEARD);
    let heard = Arc::new(Heard::default());
    let hub = RouterHub::new();
    let routing = place(&base, &heard, &hub)?;
    let placement = Arc::clone(&routing.thread);
    let teller = placement.teller();
    listen_to(&peers, &heard, &teller, &base.clock);

    let key = random_bytes().context("no random bytes for the capture")?;
    let recorder = Recorder::new(base.config.capture, key, &base.clock);
    let (gateway, name) = open_gateway(&base, &routing, &peers, &heard, recorder.as_ref())?;
    let mut observed = Observed { capture: recorder, ..observe(&base, &routing, &peers, &heard) };
    observed.figures.push(public.figures());
    let admin = admin::router(observed, Some(&gateway));
    drop(routing);
    let offered = Offered { routers: Some(hub), ..Offered::default() };
    let running = base.answer(offered, admin, &peers)?;

    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    tasks.spawn(public.serve(clients, gateway.clone(), stopped.clone()));
    let silence = Silence {
        heard: Arc::clone(&heard),
        peers: Arc::clone(&peers),
        teller,
        clock: Arc::clone(&base.clock),
        silence_max: Duration::from_secs(base.config.server.worker_silence_seconds),
    };
    tasks.spawn(silence.look(stopped));
    base.say_ready(console)?;
    console.line(&format!("listening on {scheme}://{listen} (model {name})"))?;
    base.stop.wait().await;

    console.progress(&format!("draining: {} requests in work", gateway.in_flight()));
    gateway.begin_drain();
    tokio::select! {
        _ = timeout(base.drain(), gateway.drained()) => {}
        () = base.stop.wait() => {}
    }
    let left = gateway.in_flight();
    stop.send_replace(true);
    gateway.cut_off().await;
    if timeout(Duration::from_secs(1), async { while tasks.join_next().await.is_some() {} })
        .await
        .is_err()
    {
        tasks.shutdown().await;
    }
    running.end(Duration::from_secs(1)).await;
    peers.close().await;
    block_in_place(|| {
        drop(gateway);
        drop(placement);
    });
    let rest = if left == 0 { String::new() } else { format!("; {left} requests were cut off") };
    console.line(&format!("drained{rest}"))?;
    Ok(())
}

/// From now on every member is heard for as long as it is linked, and discovery when it says that one is about to end.
fn listen_to(peers: &Peers, heard: &Arc<Heard>, teller: &Teller, clock: &Arc<dyn Clock>) {
    let (known, told) = (Arc::clone(heard), teller.clone());
    peers.hear_ending(Box::new(move |ending| {
        known.take_ending(ending);
        known.tell_ending(&|change| told.membership(change).is_ok());
    }));
    let (heard, teller, clock) = (Arc::clone(heard), teller.clone(), Arc::clone(clock));
    peers.accompany(Box::new(move |link, member| {
        if member.role() == MemberRole::Router {
            return Box::new(routers::listen(link, member.rank(), teller.clone()));
        }
        Box::new(heard.listen(link, member, teller.clone(), Arc::clone(&clock)))
    }));
}

/// The front door before this router, and the model's name.
fn open_gateway(
    base: &Base,
    routing: &Routing,
    peers: &Arc<Peers>,
    heard: &Arc<Heard>,
    recorder: Option<&Arc<Recorder>>,
) -> anyhow::Result<(Gateway, String)> {
    let served = block_in_place(|| {
        model::served(&base.config.server, &base.checkpoint, base.clock.as_ref())
    })?;
    let name = served.names.first().cloned().unwrap_or_default();
    let (thread, members) = (Arc::clone(&routing.thread), Arc::clone(heard));
    let placer = Arc::clone(&routing.thread) as Arc<dyn Placer>;
    let workers = Arc::clone(peers) as Arc<dyn DecodeDirectory>;
    let directory = base.telemetry.directory(workers);
    let (placer, directory) = match recorder {
        None => (placer, directory),
        Some(recorder) => (recorder.placer(placer), recorder.directory(directory)),
    };
    let parts = GatewayParts {
        placer,
        directory,
        health: Arc::new(move || match (thread.is_running(), members.joined(MemberRole::Decode)) {
            (false, _) => Err(NO_THREAD.to_owned()),
            (true, 0) => Err(NO_DECODE.to_owned()),
            (true, _) => Ok(()),
        }),
        clock: Arc::clone(&base.clock),
        request_id_seed: random_bytes().context("no random bytes for request ids")?,
        evidence: evidence_policy(&base.config.explain)?,
    };
    let config = base.config.gateway.clone();
    Ok((block_in_place(|| Gateway::new(config, served, parts))?, name))
}

fn place(base: &Base, heard: &Arc<Heard>, hub: &Arc<RouterHub>) -> anyhow::Result<Routing> {
    let settings = base.config.router(base.checkpoint.config().geometry(ROLLBACK))?;
    let predictions = Predictions::new(&base.config.explain);
    let known = Arc::clone(heard);
    let heard = Arc::clone(heard);
    let parts = PlacementParts {
        router: Router::new(settings)?,
        members: Vec::new(),
        // A request that is placed anew has two places for a moment.
        requests_max: 2 * base.config.gateway.requests_in_flight_max,
        clock: Arc::clone(&base.clock),
        poll: Box::new(Vec::new),
        resync: Box::new(move |worker, question| heard.ask(worker, question)),
        predictions: Arc::clone(&predictions),
        hub: Some(Arc::clone(hub)),
    };
    let thread = Placement::start(parts).context("the placement thread")?;
    let worker = Arc::new(move |name: &str| known.worker(name));
    Ok(Routing { thread: Arc::new(thread), predictions, worker })
}

fn observe(base: &Base, routing: &Routing, peers: &Arc<Peers>, heard: &Arc<Heard>) -> Observed {
    let (peers, heard) = (Arc::clone(peers), Arc::clone(heard));
    let Routing { thread, predictions, .. } = routing.clone();
    Observed {
        figures: vec![
            Arc::new(move |text| {
                admin::routing_figures(&thread.snapshot(), thread.events_lost(), text);
                admin::prediction(&predictions.figures(), text);
                admin::other_routers(thread.routers_cut_off(), text);
            }),
            base.telemetry.figures(),
            base.discovery_figures(),
        ],
        members: Some(Arc::new(move || heard.mark(peers.states()))),
        routing: Some(routing.clone()),
        ..Observed::default()
    }
}

/// The members that this router listens to.
#[derive(Default)]
struct Heard {
    table: Mutex<BTreeMap<WorkerRank, Member>>,
    epochs: AtomicU64,
    /// Members that are about to end, as discovery says, linked or not.
    ending: Mutex<BTreeSet<WorkerRank>>,
    /// What the router does not know of that yet: whether it is to drain, of each member the last word.
    untold: Mutex<BTreeMap<WorkerRank, bool>>,
}

/// Listening to one member. Its end is that member's leave.
struct Listening {
    heard: Arc<Heard>,
    worker: WorkerRank,
    epoch: u64,
    teller: Teller,
    /// Told to end first; what is still heard from it is of another epoch.
    watch: Option<Arc<Mutex<Watch>>>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.watch = None;
        let mut table = self.heard.table.lock();
        if table.get(&self.worker).is_none_or(|member| member.epoch != self.epoch) {
            return;
        }
        let joined = table.remove(&self.worker).is_some_and(|member| member.joined);
        if joined && self.teller.membership(Told::Left(self.worker)).is_err() {
            tracing::error!(worker = %self.worker, "the placement thread is too far behind to hear of a leave");
        }
    }
}

struct Member {
    /// Tells this listening from an earlier one of the same member.
    epoch: u64,
    name: String,
    role: MemberRole,
    watch: Weak<Mutex<Watch>>,
    joined: bool,
    /// When it last told something, or the watch began.
    at: Timestamp,
}

impl Heard {
    /// Listens to the member at the other end of a link for as long as the result lives.
    fn listen(
        self: &Arc<Self>,
        link: &Arc<Link>,
        config: &MemberConfig,
        teller: Teller,
        clock: Arc<dyn Clock>,
    ) -> Listening {
        let worker = config.rank();
        let epoch = self.epochs.fetch_add(1, Ordering::Relaxed);
        let member = Member {
            epoch,
            name: config.name.clone(),
            role: config.role(),
            watch: Weak::new(),
            joined: false,
            at: clock.now(),
        };
        let before = self.table.lock().insert(worker, member);
        // The member is the same, what it holds is not: its entry changed.
        let left = before.filter(|member| member.joined).map(|_| Told::Left(worker));
        let pending = left.and_then(|left| teller.membership(left).err());
        let mut ear = Ear {
            heard: Arc::clone(self),
            worker,
            epoch,
            role: placed_as(config.role()),
            teller: teller.clone(),
            clock,
            pending,
            joining: false,
        };
        let watch = watch_member(link, Box::new(move |watched| ear.take(watched)));
        let watch = Arc::new(Mutex::new(watch));
        if let Some(member) = self.table.lock().get_mut(&worker) {
            member.watch = Arc::downgrade(&watch);
        }
        Listening { heard: Arc::clone(self), worker, epoch, teller, watch: Some(watch) }
    }

    fn ask(&self, worker: WorkerRank, question: &CacheQuestion) {
        let watch = self.table.lock().get(&worker).and_then(|member| member.watch.upgrade());
        if let Some(watch) = watch {
            watch.lock().ask(question);
        }
    }

    /// Notes a word of a member, and whether it has joined by now. Says whether it had before; none when this listening is
    /// over.
    fn note(&self, heard: (WorkerRank, u64), now: Timestamp, joined: bool) -> Option<bool> {
        let mut table = self.table.lock();
        let member = table.get_mut(&heard.0).filter(|member| member.epoch == heard.1)?;
        member.at = now;
        Some(std::mem::replace(&mut member.joined, joined))
    }

    /// Takes who is about to end now; the difference is to be told. The router knows nothing of those that have not joined, and is
    /// told of them when they do.
    fn take_ending(&self, now: &BTreeSet<WorkerRank>) {
        let mut untold = self.untold.lock();
        let before = std::mem::replace(&mut *self.ending.lock(), now.clone());
        untold.extend(before.difference(now).map(|worker| (*worker, false)));
        untold.extend(now.difference(&before).map(|worker| (*worker, true)));
    }

    /// Tells what is not told yet. What finds no room stays for the next time.
    fn tell_ending(&self, tell: &dyn Fn(Told) -> bool) {
        self.untold.lock().retain(|worker, ends| {
            let word = if *ends {
                ending(*worker)
            } else {
                Told::Drain(*worker, DrainSource::Discovery, DrainWord::End)
            };
            !tell(word)
        });
    }

    fn is_ending(&self, worker: WorkerRank) -> bool {
        self.ending.lock().contains(&worker)
    }

    /// The member of this name that is listened to.
    fn worker(&self, name: &str) -> Option<WorkerRank> {
        let table = self.table.lock();
        table.iter().find(|(_, member)| member.name == name).map(|(worker, _)| *worker)
    }

    fn joined(&self, role: MemberRole) -> usize {
        let table = self.table.lock();
        table.values().filter(|member| member.role == role && member.joined).count()
    }

    /// Workers that joined and then told nothing for too long. They count as not joined from now on, and are not heard until
    /// they are listened to anew.
    fn take_silent(&self, now: Timestamp, silence_max: Duration) -> Vec<WorkerRank> {
        let mut table = self.table.lock();
        let silent = table.iter_mut().filter(|(_, member)| {
            member.joined
                && member.role != MemberRole::Kvstore
                && silence_max < now.since(member.at)
        });
        silent
            .map(|(worker, member)| {
                member.joined = false;
                member.epoch = NOBODY;
                tracing::error!(
                    member = member.name,
                    "a worker stands still; its requests go elsewhere"
                );
                *worker
            })
            .collect()
    }

    /// Says of each member whether it has joined.
    fn mark(&self, mut states: Value) -> Value {
        let table = self.table.lock();
        for member in table.values() {
            if let Some(state) = states.get_mut(&member.name).and_then(Value::as_object_mut) {
                state.insert("joined".to_owned(), json!(member.joined));
            }
        }
        states
    }
}

/// Hears one member, on the tasks of its link.
struct Ear {
    heard: Arc<Heard>,
    worker: WorkerRank,
    epoch: u64,
    role: Role,
    teller: Teller,
    clock: Arc<dyn Clock>,
    /// A change that found the queue full. Until it is told nothing else is: the gap shows, and the router asks again.
    pending: Option<Told>,
    /// Whether its join was not told yet, or not whether it is about to end, which the router forgets with a leave.
    joining: bool,
}

impl Ear {
    fn take(&mut self, watched: Watched) -> Flow {
        let now = self.clock.now();
        match watched {
            // It joins with its first event.
            Watched::Begun(_) => {}
            Watched::Event(event) => return self.event(event, now),
            Watched::Interrupted => {
                if self.heard.note((self.worker, self.epoch), now, false) == Some(true) {
                    self.pending = Some(Told::Left(self.worker));
                }
                self.tell_pending();
            }
        }
        Flow::Open
    }

    fn event(&mut self, event: WorkerEvent, now: Timestamp) -> Flow {
        let Some(had_joined) = self.heard.note((self.worker, self.epoch), now, true) else {
            return Flow::Closed;
        };
        if !had_joined {
            // It may have been told to have left and not heard yet, or never have been there.
            self.tell_pending();
            self.pending = Some(Told::Joined(self.worker, self.role));
            self.joining = true;
        }
        self.tell_pending();
        // Looked at behind the join: who begins to end after this look is told of behind it, too.
        if self.pending.is_none() && std::mem::take(&mut self.joining) {
            self.pending = self.heard.is_ending(self.worker).then(|| ending(self.worker));
            self.tell_pending();
        }
        if self.pending.is_some() {
            return Flow::Open;
        }
        self.teller.event(event)
    }

    fn tell_pending(&mut self) {
        if let Some(change) = self.pending.take() {
            self.pending = self.teller.membership(change).err();
        }
    }
}

/// What the router is told of a member that discovery says is about to end. It goes when discovery says that it is gone.
fn ending(worker: WorkerRank) -> Told {
    Told::Drain(worker, DrainSource::Discovery, DrainWord::Begin(None))
}

fn placed_as(role: MemberRole) -> Role {
    match role {
        MemberRole::Decode => Role::Decode,
        MemberRole::Prefill => Role::Prefill,
        MemberRole::Kvstore | MemberRole::Router => Role::Store,
    }
}

/// Makes the links of workers that stand still anew. Their requests end with the old link.
struct Silence {
    heard: Arc<Heard>,
    peers: Arc<Peers>,
    teller: Teller,
    clock: Arc<dyn Clock>,
    silence_max: Duration,
}

impl Silence {
    async fn look(self, mut stopped: watch::Receiver<bool>) {
        let mut period = interval(SILENCE_PERIOD);
        let mut untold = Vec::new();
        loop {
            tokio::select! {
                // A dropped sender says the same.
                _ = stopped.wait_for(|stop| *stop) => return,
                _ = period.tick() => {}
            }
            self.heard.tell_ending(&|change| self.teller.membership(change).is_ok());
            untold.extend(self.heard.take_silent(self.clock.now(), self.silence_max));
            untold.retain(|worker| {
                // The leave first, so that it cannot follow the join by the new link.
                let untold = self.teller.membership(Told::Left(*worker)).is_err();
                if !untold {
                    self.peers.relink(*worker);
                }
                untold
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::time::Duration;

    use parking_lot::Mutex;
    use router::DrainSource;
    use serde_json::json;
    use shared::{DpRank, Timestamp, WorkerId, WorkerRank};

    use super::{Heard, Member};
    use crate::identity::MemberRole;
    use crate::wiring::parts::{DrainWord, Told};

    fn rank(worker: u32) -> WorkerRank {
        WorkerRank { worker: WorkerId(worker), rank: DpRank(0) }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    #[test]
    fn the_router_is_told_once_who_is_about_to_end() {
        let heard = Heard::default();
        let word = |told: &Told| match told {
            Told::Drain(worker, DrainSource::Discovery, DrainWord::Begin(None)) => {
                (worker.worker.0, true)
            }
            Told::Drain(worker, DrainSource::Discovery, DrainWord::End) => (worker.worker.0, false),
            other => panic!("{other:?}"),
        };
        // Who is about to end, and of whom the router is told: whether one drains.
        type Step = (&'static [u32], &'static [(u32, bool)]);
        let steps: [Step; 5] = [
            (&[], &[]),
            (&[1, 2], &[(1, true), (2, true)]),
            (&[1, 2], &[]),
            (&[2, 3], &[(1, false), (3, true)]),
            (&[], &[(2, false), (3, false)]),
        ];
        let take = |ending: &[u32]| {
            heard.take_ending(&ending.iter().map(|worker| rank(*worker)).collect());
        };
        let tell = |room: usize| {
            let told = Mutex::new(Vec::new());
            heard.tell_ending(&|change| {
                let mut told = told.lock();
                let fits = told.len() < room;
                if fits {
                    told.push(word(&change));
                }
                fits
            });
            told.into_inner()
        };
        for (ending, expected) in steps {
            take(ending);
            assert_eq!(tell(9), expected);
            assert_eq!(heard.is_ending(rank(2)), ending.contains(&2));
        }
        // Without room nothing is lost, and the last word counts.
        take(&[1, 2, 3]);
        assert_eq!(tell(1), [(1, true)]);
        take(&[3]);
        assert_eq!(tell(1), [(1, false)]);
        assert_eq!(tell(9), [(2, false), (3, true)]);
        assert_eq!(tell(9), []);
    }

    #[test]
    fn a_worker_that_stands_still_is_found_once_and_a_store_may_be_silent() {
        let heard = Heard::default();
        let members = [
            (1, "decode-1", MemberRole::Decode),
            (2, "decode-2", MemberRole::Decode),
            (3, "kvstore-1", MemberRole::Kvstore),
            (4, "prefill-1", MemberRole::Prefill),
        ];
        for (id, name, role) in members {
            let (name, watch, joined) = (name.to_owned(), Weak::new(), false);
            let member = Member { epoch: 0, name, role, watch, joined, at: at(0) };
            heard.table.lock().insert(rank(id), member);
        }
        for id in 1..4 {
            assert_eq!(heard.note((rank(id), 0), at(1), true), Some(false), "it had not joined");
        }
        assert_eq!(heard.note((rank(2), 0), at(9), true), Some(true));
        assert_eq!(heard.note((rank(2), 1), at(9), true), None, "another listening");
        assert_eq!(heard.joined(MemberRole::Decode), 2);
        assert_eq!((heard.worker("decode-2"), heard.worker("decode-3")), (Some(rank(2)), None));
        let limit = Duration::from_secs(5);
        assert_eq!(heard.take_silent(at(6), limit), []);
        assert_eq!(heard.take_silent(at(7), limit), [rank(1)], "prefill-1 never joined");
        assert_eq!(heard.take_silent(at(8), limit), [], "it is told once");
        assert_eq!(heard.joined(MemberRole::Decode), 1);
        assert_eq!(heard.note((rank(1), 0), at(9), true), None, "it is not heard any more");
        let marked = heard.mark(json!({"decode-1": {}, "decode-2": {}}));
        assert_eq!(marked, json!({"decode-1": {"joined": false}, "decode-2": {"joined": true}}));
    }
}
