//! What the tests of discovery share.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use shared::Clock;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::clock::SystemClock;
use crate::config::MemberConfig;

/// Longest wait for something that must happen: real processes on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// A member whose name says its role, each with an id and ports of its own for the numbers below 100.
pub(super) fn member(name: &str) -> MemberConfig {
    let (role, number) = name.split_once('-').unwrap();
    let roles = ["kvstore", "prefill", "decode", "router"];
    let index = roles.iter().position(|known| *known == role).unwrap();
    let id = 100 * u32::try_from(index).unwrap() + number.parse::<u32>().unwrap();
    let port = 20_000 + u16::try_from(id).unwrap();
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let is_router = role == "router";
    MemberConfig {
        name: name.to_owned(),
        role: role.to_owned(),
        id,
        control: address(port),
        data: (!is_router).then_some(address(port)),
        admin: address(port + 1_000),
        listen: None,
        shm: None,
        disk: None,
    }
}

/// Looks until there is something to see.
pub(super) async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let clock = SystemClock::start();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        let waited = Duration::from_nanos(clock.now().0);
        assert!(waited < SOON, "waited {SOON:?} in vain until {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// What a server outside the cluster on 127.0.0.1 proves itself by.
#[derive(Clone)]
pub(super) struct ServerFiles {
    /// Certificate of its authority.
    pub(super) authority: PathBuf,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    _folder: Arc<TempDir>,
}

impl ServerFiles {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let write = |name: &str, text: String| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        Self {
            authority: write("ca.pem", authority.pem()),
            certificate: write("server.pem", certificate.pem()),
            key: write("server.key", key.serialize_pem()),
            _folder: Arc::new(folder),
        }
    }
}
