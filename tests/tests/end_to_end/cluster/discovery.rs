//! Members that find each other in a real etcd, and go on without it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use kvasir::identity::MemberRole;
use tempfile::TempDir;

use super::hand::{Hand, Reads};
use super::view::{SOON, long_prompt, until};

const COUNTS: [(MemberRole, u32); 3] =
    [(MemberRole::Kvstore, 1), (MemberRole::Prefill, 1), (MemberRole::Decode, 2)];

/// An etcd of one member, `etcd` of Debian's package etcd-server. Killed at the end.
struct Etcd {
    folder: TempDir,
    clients: SocketAddr,
    peers: SocketAddr,
    child: Child,
}

impl Etcd {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder for etcd");
        let free = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free TCP port");
            listener.local_addr().expect("a bound socket has an address")
        };
        let (clients, peers) = (free(), free());
        let child = spawn(&folder, clients, peers);
        Self { folder, clients, peers, child }
    }

    fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it can be waited for");
    }

    fn restart(&mut self) {
        self.child = spawn(&self.folder, self.clients, self.peers);
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // Gone already when the test killed it.
        if self.child.kill().is_ok() {
            self.child.wait().expect("it can be waited for");
        }
    }
}

fn spawn(folder: &TempDir, clients: SocketAddr, peers: SocketAddr) -> Child {
    let (url, peer) = (format!("http://{clients}"), format!("http://{peers}"));
    let child = Command::new("etcd")
        .arg("--data-dir")
        .arg(folder.path().join("data"))
        .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .args(["--heartbeat-interval", "20", "--election-timeout", "200"])
        .args(["--logger", "zap", "--log-level", "error"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let child = child.expect("etcd is missing; run deploy/test.sh, or install etcd-server");
    until("etcd listens", SOON, || TcpStream::connect(clients).ok().map(drop));
    child
}

#[test]
fn members_find_each_other_in_etcd_and_keep_each_other_without_it() {
    let mut etcd = Etcd::start();
    let settings = format!(
        "[store]\nblock_bytes_max = 67108864\nwindow_bytes_max = 16777216\n\
         [discovery]\nbackend = \"etcd\"\n\
         [discovery.etcd]\nendpoints = [\"http://{}\"]\nlease_s = 2\n",
        etcd.clients
    );
    let mut cluster = Hand::plan(COUNTS, Reads::Quic, &settings);
    for name in ["kvstore-1", "prefill-1", "decode-1", "router-1"] {
        cluster.start_alone(name);
    }
    until("the router found the others", SOON, || {
        let found = ["kvstore-1", "prefill-1", "decode-1"]
            .map(|name| cluster.link("router-1", name)["joined"] == true);
        let store = cluster.link("decode-1", "kvstore-1")["state"] == "ready";
        (found == [true; 3] && store).then_some(())
    });
    let prompt = long_prompt("found", 120);
    let expected = cluster.answer(&prompt);
    assert!(0 < expected.bytes_fetched, "prefill took part: {expected:?}");

    etcd.kill();
    until("the view is older than a lease", SOON, || {
        (5.0 <= cluster.metric("router-1", "kvasir_discovery_view_age_seconds ")).then_some(())
    });
    assert!(cluster.metric("router-1", "kvasir_discovery_answers ") == 0.0);
    let again = cluster.answer(&prompt);
    assert_eq!(again.text, expected.text);
    assert!(0 < again.cached_tokens);

    etcd.restart();
    cluster.start_alone("decode-2");
    until("a new member is found", SOON, || {
        (cluster.link("router-1", "decode-2")["joined"] == true).then_some(())
    });
    assert_eq!(cluster.stop("decode-1"), Some(0));
    until("a member that ended is gone", SOON, || {
        cluster.link("router-1", "decode-1").is_null().then_some(())
    });
    assert_eq!(cluster.answer(&prompt).text, expected.text);
    cluster.at_rest();
}
