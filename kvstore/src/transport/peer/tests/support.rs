//! Two transports in one process, with certificates of an authority made for the test.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use shared::{Descriptor, ManualClock, RegionId, RequestContext};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::pool::Pool;
use crate::testing::next;
use crate::transport::conformance::{Rig, Source, answers, requests};
use crate::transport::peer::{
    DataTls, Peer, PeerDirectory, PeerTransport, PeerTransportConfig, PeerWiring,
};
use crate::transport::{ReadError, Transport};

/// Deadlines that no healthy peer meets only just, on a machine that does other things too.
pub(super) const CONFIG: PeerTransportConfig = PeerTransportConfig {
    queue_max: 64,
    run_max: 64,
    read_ms_max: 20_000,
    hold_ms_max: 40_000,
    idle_ms_max: 20_000,
    socket_bytes: 1 << 20,
    ..PeerTransportConfig::DEFAULT
};

type Issuer = CertifiedIssuer<'static, KeyPair>;

static AUTHORITY: LazyLock<Issuer> = LazyLock::new(authority);

static OTHER_AUTHORITY: LazyLock<Issuer> = LazyLock::new(authority);

fn authority() -> Issuer {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// The certificate of a node, and whom it trusts.
pub(super) struct Identity {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    may_read: bool,
}

impl Identity {
    pub(super) fn new(name: &str) -> Self {
        Self::issued(name, &AUTHORITY)
    }

    pub(super) fn of_another_authority(self) -> Self {
        Self::issued("stranger", &OTHER_AUTHORITY)
    }

    pub(super) fn without_readers(self) -> Self {
        Self { may_read: false, ..self }
    }

    fn issued(name: &str, issuer: &Issuer) -> Self {
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![server_name(name)]).unwrap();
        let chain = vec![params.signed_by(&key, issuer).unwrap().der().clone()];
        let key: PrivateKeyDer<'_> = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let mut roots = RootCertStore::empty();
        // Everybody trusts both, so that a refusal is the verifier's, except that servers trust the first one alone.
        roots.add(AUTHORITY.der().clone()).unwrap();
        let readers = Arc::new(roots.clone());
        roots.add(OTHER_AUTHORITY.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(readers, Arc::clone(&provider));
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(chain, key)
            .unwrap();
        Self { client: Arc::new(client), server: Arc::new(server), may_read: true }
    }

    /// What a transport with this identity is connected to, and the parts a test turns.
    pub(super) fn wiring(
        self,
        runtime: &Runtime,
        shm: Option<PathBuf>,
    ) -> ((Arc<Directory>, Arc<ManualClock>), PeerWiring) {
        let directory = Arc::new(Directory::default());
        let clock = Arc::new(ManualClock::default());
        let wiring = PeerWiring {
            runtime: runtime.handle().clone(),
            peers: Arc::clone(&directory) as Arc<dyn PeerDirectory>,
            tls: Arc::new(self),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            shm,
            clock: Arc::clone(&clock) as Arc<dyn shared::Clock>,
        };
        ((directory, clock), wiring)
    }
}

impl DataTls for Identity {
    fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }

    fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    fn may_read(&self, certificates: &[CertificateDer<'_>]) -> bool {
        assert!(!certificates.is_empty(), "readers show a certificate");
        self.may_read
    }
}

/// One peer that owns every region.
#[derive(Default)]
pub(super) struct Directory(Mutex<Option<Peer>>);

impl Directory {
    pub(super) fn set(&self, peer: Option<Peer>) {
        *self.0.lock() = peer;
    }
}

impl PeerDirectory for Directory {
    fn peer(&self, _: RegionId) -> Option<Peer> {
        self.0.lock().clone()
    }
}

/// A transport and the parts a test turns.
pub(super) struct Node {
    pub(super) transport: PeerTransport,
    pub(super) directory: Arc<Directory>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) socket: Option<PathBuf>,
}

impl Node {
    pub(super) fn start(
        runtime: &Runtime,
        identity: Identity,
        config: PeerTransportConfig,
        socket: Option<PathBuf>,
    ) -> Self {
        let ((directory, clock), wiring) = identity.wiring(runtime, socket.clone());
        let transport = PeerTransport::start(config, wiring).unwrap();
        Self { transport, directory, clock, socket }
    }
}

/// A reader and an owner. The nodes go before the runtime they run on.
pub(super) struct Pair {
    pub(super) near: Node,
    pub(super) far: Node,
    pub(super) runtime: Runtime,
    pub(super) folder: TempDir,
}

impl Pair {
    /// With or without a unix socket of the owner.
    pub(super) fn start(shm: bool) -> Self {
        let runtime = runtime();
        let folder = tempfile::tempdir().unwrap();
        let socket = shm.then(|| folder.path().join("far"));
        let far = Node::start(&runtime, Identity::new("far"), CONFIG, socket);
        let near = Node::start(&runtime, Identity::new("near"), CONFIG, None);
        near.directory.set(Some(peer(&far, "far")));
        Self { near, far, runtime, folder }
    }
}

pub(super) fn runtime() -> Runtime {
    // Some tests stop a sink, and so a thread, to look at the rest.
    Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()
}

pub(super) fn server_name(name: &str) -> String {
    format!("{name}.test.kvasir")
}

pub(super) fn peer(node: &Node, name: &str) -> Peer {
    let address = node.transport.address();
    Peer { server_name: server_name(name), address, shm: node.socket.clone() }
}

pub(super) fn publish(node: &Node, source: &Source) {
    let published = match &source.segment {
        Some(memory) => node.transport.register_shared(&source.pool, memory),
        None => node.transport.register(&source.pool),
    };
    published.unwrap();
}

/// Reads one object and says what became of it.
pub(super) fn result(
    transport: &PeerTransport,
    source: Descriptor,
    target: &Pool,
) -> Result<(), ReadError> {
    let (sink, events) = answers();
    let _ticket = transport.read(RequestContext::NONE, requests(&[source], target), sink);
    next(&events).result
}

pub(super) struct OwnProcess(Node, #[expect(dead_code, reason = "dropped after the node")] Runtime);

impl Rig for OwnProcess {
    type Transport = PeerTransport;

    const READS_AHEAD: bool = false;
    const SHARES_MEMORY: bool = false;

    fn start() -> Self {
        let runtime = runtime();
        Self(Node::start(&runtime, Identity::new("near"), CONFIG, None), runtime)
    }

    fn transport(&self) -> &PeerTransport {
        &self.0.transport
    }

    fn publish(&self, source: &Source) {
        publish(&self.0, source);
    }

    fn withdraw(&self, region: RegionId) {
        assert!(self.0.transport.unregister(region));
    }
}

/// A rig over a pair, with or without a socket, with or without shared pools.
macro_rules! pair_rig {
    ($name:ident, $socket:literal, $shares:literal) => {
        pub(super) struct $name(Pair);

        impl Rig for $name {
            type Transport = PeerTransport;

            const READS_AHEAD: bool = true;
            const SHARES_MEMORY: bool = $shares;

            fn start() -> Self {
                Self(Pair::start($socket))
            }

            fn transport(&self) -> &PeerTransport {
                &self.0.near.transport
            }

            fn publish(&self, source: &Source) {
                publish(&self.0.far, source);
            }

            fn withdraw(&self, region: RegionId) {
                assert!(self.0.far.transport.unregister(region));
            }
        }
    };
}

pair_rig!(QuicPair, false, false);
pair_rig!(SharedPair, true, true);
pair_rig!(SharedSocketPair, true, false);
