//! A gateway with its two servers on free ports, before a scripted engine whose border is watched.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use gateway::scripted::{Script, ScriptedCluster, ScriptedEngine};
use gateway::{EvidencePolicy, Gateway, GatewayConfig, GatewayParts, MetricsProvider, ServedModel};
use serde_json::{Value, json};
use shared::{
    Decode, DecodeDirectory, DecodeEvent, DecodeRequest, ManualClock, Numerics, PlaceEvent,
    PlaceRequest, Placer, Sink, TenantId, Ticket, WorkerRank,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

/// What happened at the borders.
#[derive(Debug)]
pub(crate) enum Seen {
    Submitted(Box<DecodeRequest>),
    DecodeReleased,
    PlaceReleased,
}

pub(crate) struct House {
    pub(crate) gateway: Gateway,
    pub(crate) public: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) engine: Arc<ScriptedEngine>,
    /// The time of gateway and engine.
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) seen: UnboundedReceiver<Seen>,
    _servers: JoinSet<()>,
}

pub(crate) fn tokenizer() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/models/seedling/tokenizer.json")
}

pub(crate) fn served_model() -> ServedModel {
    ServedModel {
        names: vec!["seedling".into(), "deepseek-flash".into()],
        tokenizer: tokenizer(),
        context_tokens: 32_768,
        created: 1_700_000_000,
        cluster_secret: [1; 32],
        tenant: TenantId(Arc::from("default")),
        model_id: [2; 32],
        layout: [3; 32],
        numerics: Numerics("cpu-exact-1".into()),
    }
}

/// A request for a non-thinking answer, changed by `change`.
pub(crate) fn ask(change: &Value) -> Value {
    let mut body = json!({
        "model": "seedling",
        "messages": [{"role": "user", "content": "hi"}],
        "thinking": {"type": "disabled"},
    });
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

impl House {
    pub(crate) async fn new(answers: Value) -> Self {
        Self::with(answers, |_, _| ()).await
    }

    pub(crate) async fn with(
        answers: Value,
        change: impl FnOnce(&mut GatewayConfig, &mut GatewayParts),
    ) -> Self {
        let script = Script::parse(&json!({"answers": answers}).to_string()).unwrap();
        let clock = Arc::new(ManualClock::new());
        let engine = ScriptedEngine::start(script, &tokenizer(), Arc::clone(&clock) as _).unwrap();
        let engine = Arc::new(engine);
        let (sender, seen) = unbounded_channel();
        let watched = Watched { cluster: ScriptedCluster::new(Arc::clone(&engine)), seen: sender };
        let mut parts = GatewayParts {
            placer: Arc::new(watched.clone()),
            directory: Arc::new(watched),
            health: Arc::new(|| Ok(())),
            clock: Arc::clone(&clock) as _,
            request_id_seed: [9; 32],
            evidence: EvidencePolicy::NOBODY,
        };
        let mut config = GatewayConfig::default();
        change(&mut config, &mut parts);
        let gateway = Gateway::new(config, served_model(), parts).unwrap();
        let mut servers = JoinSet::new();
        let provider: MetricsProvider =
            Arc::new(|text| text.push_str("# TYPE kvasir_pool_slots gauge\nkvasir_pool_slots 7"));
        let public = serve(&mut servers, gateway.public_router()).await;
        let admin = serve(&mut servers, gateway.admin_router(vec![provider])).await;
        Self { gateway, public, admin, engine, clock, seen, _servers: servers }
    }

    /// Waits for what happens next at the borders.
    pub(crate) async fn next_seen(&mut self) -> Seen {
        self.seen.recv().await.unwrap()
    }

    /// Waits until both tickets of a request were dropped, the worker's first.
    pub(crate) async fn released(&mut self) {
        assert!(matches!(self.next_seen().await, Seen::DecodeReleased));
        assert!(matches!(self.next_seen().await, Seen::PlaceReleased));
    }

    pub(crate) async fn submitted(&mut self) -> DecodeRequest {
        let Seen::Submitted(request) = self.next_seen().await else { panic!("not submitted") };
        *request
    }

    pub(crate) async fn metrics(&self) -> String {
        let reply = crate::client::send(self.admin, "GET", "/metrics", b"").await;
        reply.text().to_owned()
    }
}

async fn serve(servers: &mut JoinSet<()>, router: Router) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    servers.spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

/// The scripted cluster, with a witness at both borders.
#[derive(Clone)]
struct Watched {
    cluster: ScriptedCluster,
    seen: UnboundedSender<Seen>,
}

impl Placer for Watched {
    fn submit(&self, request: PlaceRequest, sink: Box<dyn Sink<PlaceEvent>>) -> Ticket {
        let inner = Placer::submit(&self.cluster, request, sink);
        let seen = self.seen.clone();
        Ticket::new(move || {
            drop(inner);
            let _house_is_gone = seen.send(Seen::PlaceReleased);
        })
    }
}

impl DecodeDirectory for Watched {
    fn decode(&self, worker: WorkerRank) -> Option<Arc<dyn Decode>> {
        let inner = self.cluster.decode(worker)?;
        Some(Arc::new(WatchedDecode { inner, seen: self.seen.clone() }))
    }
}

struct WatchedDecode {
    inner: Arc<dyn Decode>,
    seen: UnboundedSender<Seen>,
}

impl Decode for WatchedDecode {
    fn submit(&self, request: DecodeRequest, sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        let _house_is_gone = self.seen.send(Seen::Submitted(Box::new(request.clone())));
        let inner = self.inner.submit(request, sink);
        let seen = self.seen.clone();
        Ticket::new(move || {
            drop(inner);
            let _house_is_gone = seen.send(Seen::DecodeReleased);
        })
    }
}
