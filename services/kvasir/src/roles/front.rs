//! The router as a process: front door, placement, and what the other members tell.

mod heard;
mod owed;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use gateway::{Gateway, GatewayParts};
use router::Router;
use shared::{Clock, DecodeDirectory, Placer};
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::timeout;

use super::base::{Base, Offered};
use super::peers::Peers;
use super::routers;
use crate::admin::{self, Observed, Routing};
use crate::capture::Recorder;
use crate::clock::random_bytes;
use crate::config::ROLLBACK;
use crate::console::Console;
use crate::explain::{Predictions, evidence_policy};
use crate::identity::MemberRole;
use crate::model;
use crate::public::Public;
use crate::serve::bind;
use crate::wire::RouterHub;
use crate::wiring::parts::{Placement, PlacementParts, Teller};
use heard::{Heard, Silence};

/// The roles that a router listens to.
const HEARD: &[MemberRole] = &MemberRole::ALL;

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
    let threads = base.config.http.start_threads(&base.clock)?;
    let peers = base.peers(HEARD, threads.lanes());
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
    let served = (gateway.clone(), threads.lanes());
    tasks.spawn(public.serve(clients, served, stopped.clone()));
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
        drop(threads);
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
        known.tell_all(&|change| told.membership(change).is_ok());
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
