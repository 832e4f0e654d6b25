//! A cluster of one authority, servers and links of its members, and doubles of the borders.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use shared::{
    BlockName, BlockStore, Decode, DecodeEvent, DecodeRequest, Descriptor, DpRank, Durability,
    Flow, Generation, Grouped, Lineage, LocateEvent, Location, ManualClock, Numerics, ObjectKey,
    ObjectKind, OfferEvent, Prefill, PrefillEvent, PrefillRequest, RegionId, RequestContext,
    RequestId, Root, Sampling, Sink, SlotIndex, TenantTag, Ticket, TokenId, TraceContext, WorkerId,
    WorkerRank, ungrouped,
};
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::clock::SystemClock;
use crate::identity::{ClusterAuthority, Identity, IdentityFiles, MemberIdentity, MemberRole};
use crate::lanes::Lanes;
use crate::wire::{
    EventHub, Facts, Link, LinkLimits, LinkOptions, LinkState, MemberAddress, PROTOCOL,
    ServeReport, ServerLimits, Services, serve,
};

/// Times short enough that a test which waits for them is quick, and long enough for a busy machine.
pub(super) const LINK: LinkLimits = LinkLimits {
    connect_max: Duration::from_secs(10),
    pause_min: Duration::from_millis(1),
    pause_max: Duration::from_millis(10),
    ..LinkLimits::DEFAULT
};

fn role(name: &str) -> MemberRole {
    MemberRole::parse(name.split_once('-').unwrap().0).unwrap()
}

/// The worker of a member whose name ends with its number.
pub(super) fn worker(name: &str) -> WorkerRank {
    let number = name.split_once('-').unwrap().1.parse().unwrap();
    WorkerRank { worker: WorkerId(number), rank: DpRank(0) }
}

/// Facts of a member whose name says its role, for example `decode-1`, which is worker 1.
pub(crate) fn facts(name: &str) -> Facts {
    Facts {
        protocol: PROTOCOL,
        model: [1; 32],
        layout: [2; 32],
        numerics: Numerics("cpu-exact-1".to_owned()),
        block_tokens: 128,
        tokenizer: [3; 32],
        member: MemberIdentity::new(role(name), name).unwrap(),
        worker: worker(name),
        incarnation: 1,
    }
}

/// An authority and the identities it signed.
pub(super) struct Cluster {
    folder: TempDir,
    authority: ClusterAuthority,
}

impl Cluster {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(SystemClock::start());
        let authority = ClusterAuthority::create(folder.path(), clock).unwrap();
        Self { folder, authority }
    }

    /// New files for a member.
    pub(super) fn issue(&self, name: &str) -> IdentityFiles {
        let files = self.authority.issue(role(name), name).unwrap();
        let authority = self.authority.certificate();
        IdentityFiles { authority, certificate: files.certificate, key: files.key }
    }

    pub(super) fn identity(&self, name: &str) -> Arc<Identity> {
        Arc::new(Identity::load(self.issue(name)).unwrap())
    }

    /// A file with the certificates of this authority and another one.
    pub(super) fn bundle(&self, other: &Self) -> PathBuf {
        let read = |cluster: &Self| std::fs::read(cluster.authority.certificate()).unwrap();
        let path = self.folder.path().join("bundle.pem");
        std::fs::write(&path, [read(self), read(other)].concat()).unwrap();
        path
    }

    /// A link between two members of this cluster.
    pub(super) fn link(&self, from: &str, to: &str, address: SocketAddr) -> Arc<Link> {
        let identity = self.identity(from);
        Arc::new(Link::start(link_options(identity, facts(from), to, address)))
    }
}

pub(super) fn link_options(
    identity: Arc<Identity>,
    facts: Facts,
    to: &str,
    address: SocketAddr,
) -> LinkOptions {
    LinkOptions {
        peer: MemberAddress {
            member: MemberIdentity::new(role(to), to).unwrap(),
            worker: worker(to),
            control: address.to_string(),
        },
        facts,
        identity,
        runtime: Handle::current(),
        lanes: Lanes::default(),
        clock: Arc::new(ManualClock::new()),
        limits: LINK,
    }
}

/// Waits for a state of a link.
pub(super) async fn until(link: &Link, wanted: impl FnMut(&LinkState) -> bool) -> LinkState {
    link.states().wait_for(wanted).await.unwrap().clone()
}

pub(super) async fn ready(link: &Link) {
    until(link, |state| matches!(state, LinkState::Ready(_))).await;
}

pub(super) async fn refused(link: &Link) -> String {
    match until(link, |state| matches!(state, LinkState::Refused { .. })).await {
        LinkState::Refused { reason } => reason,
        _ => unreachable!("it was waited for"),
    }
}

/// Services that consist of facts only.
pub(super) fn services(name: &str) -> Services {
    Services {
        facts: facts(name),
        clock: Arc::new(ManualClock::new()),
        limits: ServerLimits::DEFAULT,
        decode: None,
        prefill: None,
        store: None,
        events: None,
        routers: None,
        lanes: Lanes::default(),
    }
}

/// A server; ends abruptly when dropped.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) stop: watch::Sender<bool>,
    task: JoinHandle<ServeReport>,
}

impl Server {
    pub(super) async fn start(identity: Arc<Identity>, services: Services) -> Self {
        Self::on(listener().await, identity, services)
    }

    #[expect(clippy::disallowed_methods, reason = "the handle is kept and awaited or aborted")]
    pub(super) fn on(listener: TcpListener, identity: Arc<Identity>, services: Services) -> Self {
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(serve(listener, identity, services, stopped));
        Self { address, stop, task }
    }

    /// Waits for its end.
    pub(super) async fn ended(mut self) -> ServeReport {
        (&mut self.task).await.unwrap()
    }

    /// Ends it as a killed process would.
    pub(super) async fn kill(mut self) {
        self.task.abort();
        assert!((&mut self.task).await.unwrap_err().is_cancelled());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// Two listeners on one port: when one server is gone, the next takes the other.
pub(super) async fn twin_listeners() -> (TcpListener, TcpListener) {
    let first = listener().await.into_std().unwrap();
    let second = first.try_clone().unwrap();
    (TcpListener::from_std(first).unwrap(), TcpListener::from_std(second).unwrap())
}

/// Forwards connections until it is told to freeze; then it keeps them open and moves nothing.
pub(super) struct Wire {
    pub(super) address: SocketAddr,
    pub(super) frozen: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Wire {
    pub(super) async fn to(server: SocketAddr) -> Self {
        let listener = listener().await;
        let address = listener.local_addr().unwrap();
        let (frozen, freeze) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(forward(near, server, freeze.clone()));
            }
        });
        Self { address, frozen, _tasks: tasks }
    }
}

async fn forward(mut near: TcpStream, server: SocketAddr, mut freeze: watch::Receiver<bool>) {
    let mut far = TcpStream::connect(server).await.unwrap();
    tokio::select! {
        biased;
        _ = freeze.wait_for(|frozen| *frozen) => {}
        _ = copy_bidirectional(&mut near, &mut far) => return,
    }
    std::future::pending::<()>().await;
}

/// One request that reached a double.
pub(super) struct Submitted<R, E> {
    pub(super) request: R,
    pub(super) sink: Box<dyn Sink<E>>,
    /// Resolves when the ticket dropped.
    pub(super) ended: oneshot::Receiver<()>,
}

type Queue<R, E> = mpsc::UnboundedReceiver<Submitted<R, E>>;

/// Hands what is submitted to the test.
pub(super) struct Puppet<R, E>(mpsc::UnboundedSender<Submitted<R, E>>);

pub(super) fn puppet<R, E>() -> (Arc<Puppet<R, E>>, Queue<R, E>) {
    let (sender, queue) = mpsc::unbounded_channel();
    (Arc::new(Puppet(sender)), queue)
}

impl<R, E> Puppet<R, E> {
    fn take(&self, request: R, sink: Box<dyn Sink<E>>) -> Ticket {
        let (end, ended) = oneshot::channel();
        // A test that is over takes no more.
        drop(self.0.send(Submitted { request, sink, ended }));
        Ticket::new(move || drop(end))
    }
}

impl Decode for Puppet<DecodeRequest, DecodeEvent> {
    fn submit(&self, request: DecodeRequest, sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        self.take(request, sink)
    }
}

impl Prefill for Puppet<PrefillRequest, PrefillEvent> {
    fn submit(&self, request: PrefillRequest, sink: Box<dyn Sink<PrefillEvent>>) -> Ticket {
        self.take(request, sink)
    }
}

/// A store whose lookups and offers both come to the test.
pub(super) struct PuppetStore {
    lookups: Arc<Puppet<(RequestContext, Vec<ObjectKey>), LocateEvent>>,
    offers: Arc<Puppet<Offered, OfferEvent>>,
}

/// What a store is offered.
pub(super) type Offered = (RequestContext, Vec<Descriptor>, Durability);
pub(super) type Lookups = Queue<(RequestContext, Vec<ObjectKey>), LocateEvent>;
pub(super) type Offers = Queue<Offered, OfferEvent>;

pub(super) fn puppet_store() -> (Arc<PuppetStore>, Lookups, Offers) {
    let (lookups, looked_up) = puppet();
    let (offers, offered) = puppet();
    (Arc::new(PuppetStore { lookups, offers }), looked_up, offered)
}

impl BlockStore for PuppetStore {
    fn locate(
        &self,
        context: RequestContext,
        keys: Vec<Grouped<ObjectKey>>,
        sink: Box<dyn Sink<LocateEvent>>,
    ) -> Ticket {
        self.lookups.take((context, ungrouped(keys)), sink)
    }

    fn offer(
        &self,
        context: RequestContext,
        objects: Vec<Grouped<Descriptor>>,
        durability: Durability,
        sink: Box<dyn Sink<OfferEvent>>,
    ) -> Ticket {
        self.offers.take((context, ungrouped(objects), durability), sink)
    }
}

/// Keys, each as a group of its own.
pub(super) fn asked(keys: &[ObjectKey]) -> Vec<Grouped<ObjectKey>> {
    keys.iter().copied().map(Grouped::<ObjectKey>::alone).collect()
}

/// Objects, each as a group of its own.
pub(super) fn offered(objects: &[Descriptor]) -> Vec<Grouped<Descriptor>> {
    objects.iter().copied().map(Grouped::<Descriptor>::alone).collect()
}

/// On whose behalf stores are asked.
pub(super) const CONTEXT: RequestContext = RequestContext {
    id: RequestId(7),
    trace: TraceContext { trace: 8, span: 9, sampled: true },
    tenant: TenantTag(10),
};

/// A sink whose events come to the test; the queue ends when the sink is dropped.
pub(super) fn listen<E: Send + 'static>() -> (Box<dyn Sink<E>>, mpsc::UnboundedReceiver<E>) {
    let (sender, events) = mpsc::unbounded_channel();
    let sink = move |event| if sender.send(event).is_ok() { Flow::Open } else { Flow::Closed };
    (Box::new(sink), events)
}

pub(super) fn decode_request(prompt_tokens: u32) -> DecodeRequest {
    DecodeRequest {
        id: RequestId(7),
        trace: TraceContext { trace: 8, span: 9, sampled: true },
        tenant: TenantTag(4),
        prompt: (0..prompt_tokens).map(TokenId).collect(),
        emitted: Vec::new(),
        root: Root::from_bytes([5; 32]),
        names: Arc::from([]),
        lineage: Lineage::Exact,
        sampling: Sampling::GREEDY,
        logit_bias: Arc::from([]),
        logprobs: None,
        constraint: None,
        stop_ids: vec![TokenId(1)],
        output_tokens_max: 8,
        prefill: None,
        deadline: None,
    }
}

pub(super) fn prefill_request() -> PrefillRequest {
    PrefillRequest {
        id: RequestId(7),
        trace: TraceContext::NONE,
        tenant: TenantTag(4),
        ids: (0..128).map(TokenId).collect(),
        root: Root::from_bytes([5; 32]),
        names: Arc::from([BlockName([1; 16])]),
        lineage: Lineage::Exact,
        from: 0,
        to: 128,
    }
}

pub(super) fn descriptor(name: u8) -> Descriptor {
    Descriptor {
        key: ObjectKey { kind: ObjectKind::Block, name: BlockName([name; 16]) },
        location: Location { region: RegionId(1), slot: SlotIndex(2), generation: Generation(3) },
        bytes: 4,
        checksum: 5,
        exact: true,
    }
}

/// A hub that nobody asks anything of.
pub(super) fn silent_hub() -> Arc<EventHub> {
    EventHub::new(|_| {})
}
